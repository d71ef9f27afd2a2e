//! KBTP without sockets, clocks, threads or randomness: the pool of a target, its sessions, and the initiator.
//!
//! A target is one [`Shared`] (pool, block table, free-block ring, counters: lock-free, used by all workers), one
//! [`Directory`] (tenants, handle ranges, quotas, leases: behind the caller's mutex, touched when a session begins or
//! ends) and a [`TargetSession`] per stream, owned by one worker. The worker feeds a session messages and the ends
//! of posted work, and posts the [`Work`] it asks for.
//!
//! Below: `kbtp-wire` (octets), `kbtp-memory` (regions), `kbtp-fabric` (work requests). Above: the programs.
#![forbid(unsafe_code)]

mod auth;
mod directory;
mod geometry;
pub mod initiator;
pub mod limits;
mod pool;
mod session;
mod shared;
mod stats;
mod sync;

pub use auth::TenantKey;
pub use directory::{
    Directory, DirectoryConfig, DirectoryError, DirectorySummary, RangeSummary, SessionId,
    TenantConfig,
};
pub use geometry::{BlockIndex, Geometry, GeometryError};
pub use pool::{Audit, Contents, Pool, PoolError, PoolUsage, Recovered, RecoveryReport};
pub use session::{
    Admission, AuthMode, Exposer, Grant, Intake, SessionConfig, SessionEnd, SessionPhase,
    SessionUsage, TargetSession, Work,
};
pub use shared::Shared;
pub use stats::{Stats, StatsSnapshot};
