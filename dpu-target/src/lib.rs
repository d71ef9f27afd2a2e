//! The KBTP target: sessions, engines, admin.
#![forbid(unsafe_code)]
#![expect(
    dead_code,
    reason = "the parts land before the worker that puts them together"
)]

mod config;
mod driver;
mod http;
mod inbox;
mod lifecycle;
pub mod limits;
mod metrics;
mod slab;
mod spin;
mod status;
mod timers;
mod units;

pub use config::{
    ConfigError, DEFAULT_ADMIN_PORT, DEFAULT_PORT, DirectConfig, Lease, LimitsConfig, SpinConfig,
    TargetConfig, TenantConfig, TenantKey,
};
pub use lifecycle::Phase;
pub use metrics::{BuildInfo, PoolGauges};
pub use status::{LeaseStatus, SessionStatus, Status};
pub use units::{UnitError, format_size, parse_duration_us, parse_size};
