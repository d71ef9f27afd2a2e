//! The KBTP target: sessions, the software engine, admin and metrics.
//!
//! [`Target::start`] takes the pool (its own, or that of a host agent), listens, and starts the threads; it needs no
//! other thread of the caller. [`Target::join`] waits until a [`ShutdownHandle`] or the agent has ended it.
//! `docs/target.md` says how it works and `docs/target.toml` what it can be told.
//!
//! Below it: `kbtp-core` (what requests mean), `kbtp-iwarp-tcp` (streams), `kbtp-control` and `kbtp-agent` (memory).
//! `kbtp serve` is this library with a command line.
//!
//! ```
//! use kbtp_target::{Target, TargetConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let target = Target::start(TargetConfig {
//!     listen: vec!["127.0.0.1:0".parse()?],
//!     admin: None,
//!     blocks: 16,
//!     block_size: 4096,
//!     ..TargetConfig::default()
//! })?;
//! println!("serving at {:?}", target.addresses());
//! target.shutdown_handle().drain();
//! target.join()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod chains;
mod config;
mod driver;
mod engine;
mod footprint;
pub mod http;
mod inbox;
mod lifecycle;
pub mod limits;
mod metrics;
mod plane;
mod slab;
mod sources;
mod status;
mod strangers;
mod timers;
mod transport;
mod units;

pub use config::{
    ConfigError, DEFAULT_ADMIN_PORT, DEFAULT_PORT, DirectConfig, EngineChoice, Lease, LimitsConfig,
    NicChoice, NoNic, PagesConfig, SpinPolicy, TargetConfig, TenantConfig, TenantKey, Wish,
};
pub use driver::{JoinError, ShutdownHandle, StartError, Target};
pub use footprint::MemoryBound;
pub use lifecycle::Phase;
pub use metrics::{BuildInfo, PoolGauges};
pub use status::{ChainStatus, LeaseStatus, PagesStatus, SessionStatus, Status};
pub use units::{UnitError, format_size, parse_duration_us, parse_size};
