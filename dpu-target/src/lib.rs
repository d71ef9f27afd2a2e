//! The KBTP target: sessions, engines, admin.
#![forbid(unsafe_code)]

mod config;
pub mod limits;
mod units;

pub use config::{
    ConfigError, DEFAULT_ADMIN_PORT, DEFAULT_PORT, DirectConfig, Lease, LimitsConfig, SpinConfig,
    TargetConfig, TenantConfig, TenantKey,
};
pub use units::{UnitError, format_size, parse_duration_us, parse_size};
