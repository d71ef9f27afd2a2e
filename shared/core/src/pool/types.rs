//! What the pool tells others: errors, counts, reports.

use super::records::RangeRecord;
use crate::GeometryError;
use kbtp_memory::AccessError;

/// Why a pool could not be made or recovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The geometry cannot be.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A region is too short.
    #[error("the {region} region has {have} octets and needs {need}")]
    RegionTooShort {
        /// Which: "pool" or "metadata".
        region: &'static str,
        /// Octets it has.
        have: u64,
        /// Octets it needs.
        need: u64,
    },
    /// The metadata region does not hold a pool.
    #[error("the metadata region holds no pool: {reason}")]
    NotAPool {
        /// What is wrong with its superblock.
        reason: &'static str,
    },
    /// A region refused an access that must be within it.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// What the blocks of a pool that is formatted hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// Zeros: fresh memory.
    Zeroed,
    /// Anything: each block is zeroed before its first use.
    Unknown,
}

/// Blocks by where they are. Counted while others work, so the sum may be off by what moves meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolUsage {
    /// All blocks, F.
    pub blocks: u32,
    /// Free blocks in the shared ring (deferred ones among them).
    pub free: u32,
    /// Frees whose slot write is deferred.
    pub deferred: u32,
    /// Blocks that belong to partitions of DIRECT_ALLOC sessions.
    pub partitioned: u32,
}

/// What [`Pool::audit`](crate::Pool::audit) found. Each block is counted once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Audit {
    /// All blocks, F.
    pub blocks: u32,
    /// In a slot of a ring, for a ticket that nobody has taken.
    pub in_rings: u32,
    /// In a slot of a ring, for a ticket that was taken: its owner has not read the slot yet.
    pub awaited: u32,
    /// Waiting for a slot.
    pub deferred: u32,
    /// Bound by a VALID entry.
    pub bound: u32,
    /// In none of these: held by sessions (being stored, or freed and still being sent).
    pub elsewhere: u32,
    /// Found in two places, or outside the pool: must be empty.
    pub faults: Vec<String>,
}

/// What a recovery found; to be logged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Blocks still bound.
    pub bound: u32,
    /// Handle ranges kept.
    pub ranges: u32,
    /// Entries dropped because their block is claimed twice, lies outside the pool or is shorter than their length.
    pub entries_dropped: u64,
    /// Range records dropped because they are damaged or overlap.
    pub ranges_dropped: u32,
    /// Whether the Target Instance ID changed, because bound blocks may have been lost.
    pub instance_changed: bool,
}

/// The handle ranges found by a recovery, for [`Directory::recover`](crate::Directory::recover).
#[derive(Debug)]
pub struct Recovered {
    /// What was found, to be logged.
    pub report: RecoveryReport,
    /// Each range and how many of its handles are bound.
    pub(crate) ranges: Vec<(RangeRecord, u32)>,
}
