//! The KBTP target: sessions, engines, admin.
#![forbid(unsafe_code)]
#![expect(
    dead_code,
    reason = "the parts land before the worker that puts them together"
)]

mod config;
mod driver;
mod engine;
mod http;
mod inbox;
mod lifecycle;
pub mod limits;
mod metrics;
mod plane;
mod slab;
mod status;
mod timers;
mod units;

pub use config::{
    ConfigError, DEFAULT_ADMIN_PORT, DEFAULT_PORT, DirectConfig, Lease, LimitsConfig, SpinPolicy,
    TargetConfig, TenantConfig, TenantKey,
};
pub use driver::{JoinError, ShutdownHandle, StartError, Target};
pub use lifecycle::Phase;
pub use metrics::{BuildInfo, PoolGauges};
pub use status::{LeaseStatus, SessionStatus, Status};
pub use units::{UnitError, format_size, parse_duration_us, parse_size};
