//! KBTP without sockets, clocks, threads or randomness: the pool of a target, its sessions, and the initiator.
//!
//! A target is one [`Shared`] (pool, block table, free-block ring, counters: lock-free, used by all workers), one
//! [`Directory`] (tenants, handle ranges, quotas, leases: behind the caller's mutex, touched when a session begins or
//! ends) and a [`TargetSession`] per stream, owned by one worker. The worker feeds a session messages and the ends
//! of posted work, and posts the [`Work`] it asks for.
//!
//! ```
//! use kbtp_core::{Contents, Directory, DirectoryConfig, Geometry, Pool, Shared};
//! use kbtp_memory::{PageOptions, Region};
//! use kbtp_wire::{BlockOffset, Handle};
//!
//! let geometry = Geometry {
//!     block_size: 64 << 10,
//!     blocks: 16,
//!     handles: 1024,
//!     table_base_handle: Handle(0),
//!     pool_base: BlockOffset(1 << 32),
//! };
//! let options = PageOptions::default();
//! let meta = Region::memfd("kbtp-meta", geometry.meta_len(), &options)?;
//! let blocks = Region::memfd("kbtp-pool", geometry.pool_len(), &options)?;
//! let pool = Pool::format(meta, blocks, geometry, [7; 16], Contents::Zeroed)?;
//! let directory = Directory::new(DirectoryConfig::default(), &pool)?;
//! let shared = Shared::new(pool);
//! assert_eq!(shared.pool.usage().free, 16);
//! assert_eq!(directory.summary().sessions, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Below: `kbtp-wire` (octets), `kbtp-memory` (regions), `kbtp-fabric` (work requests). Above: the programs.
#![forbid(unsafe_code)]

mod auth;
mod directory;
mod geometry;
pub mod initiator;
#[doc(hidden)]
pub mod journal;
pub mod limits;
#[doc(hidden)]
pub mod plants;
mod pool;
#[cfg(test)]
#[cfg(shuttle)]
mod schedules;
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
pub use pool::{Audit, Contents, Places, Pool, PoolError, PoolUsage, Recovered, RecoveryReport};
pub use session::{
    Admission, AuthMode, ByDevice, Exposer, Grant, Intake, SessionConfig, SessionEnd, SessionPhase,
    SessionUsage, TargetSession, Work,
};
pub use shared::Shared;
pub use stats::{Stats, StatsSnapshot};
