//! The pool: blocks, block table, free-block rings and the words kept per block, over two regions.

use crate::{Geometry, GeometryError};
use kbtp_memory::{AccessError, Region};

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

/// What [`Pool::audit`] found. Each block is counted once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Audit {
    /// All blocks, F.
    pub blocks: u32,
    /// In a slot of a ring.
    pub in_rings: u32,
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
}

/// A pool of blocks. Shared by reference; nothing in it is locked on the data path.
#[derive(Debug)]
pub struct Pool {
    geometry: Geometry,
    instance: [u8; 16],
    meta: Region,
    blocks: Region,
}

impl Pool {
    /// Makes a new pool in two regions; all blocks are free, no handle is bound. `instance` is the Target Instance
    /// ID (P6): 16 fresh random octets. Cost: writes the ring and the block words; and the table if it is not zero.
    ///
    /// # Errors
    /// [`PoolError`] if the geometry cannot be or a region is too short.
    pub fn format(
        meta: Region,
        blocks: Region,
        geometry: Geometry,
        instance: [u8; 16],
        contents: Contents,
    ) -> Result<Self, PoolError> {
        geometry.validate()?;
        let _ = contents;
        Ok(Self {
            geometry,
            instance,
            meta,
            blocks,
        })
    }

    /// Takes over the pool that a target which is gone left in two regions: bound blocks stay bound, all others are
    /// free, and the ring is rebuilt. Nobody else may use the regions. `fresh_instance` becomes the Target Instance
    /// ID if bound blocks were lost. Cost: one pass over the handle ranges and the blocks' words.
    ///
    /// # Errors
    /// [`PoolError::NotAPool`] if the metadata region holds none, or [`PoolError`] as for `format`.
    pub fn recover(
        meta: Region,
        blocks: Region,
        fresh_instance: [u8; 16],
    ) -> Result<(Self, Recovered), PoolError> {
        let _ = (meta, blocks, fresh_instance);
        Err(PoolError::NotAPool {
            reason: "no recovery yet",
        })
    }

    /// Its size.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The Target Instance ID (P6).
    #[must_use]
    pub fn instance(&self) -> [u8; 16] {
        self.instance
    }

    /// The region of the blocks: a session's stream registers it whole, its first octet at Tagged Offset
    /// `geometry().pool_base`, with `Access::LOCAL`.
    #[must_use]
    pub fn block_region(&self) -> &Region {
        &self.blocks
    }

    /// The region of table, rings and counters.
    #[must_use]
    pub fn meta_region(&self) -> &Region {
        &self.meta
    }

    /// Blocks by where they are. Cost: a few loads.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        PoolUsage {
            blocks: self.geometry.blocks,
            ..PoolUsage::default()
        }
    }

    /// Looks at every slot, entry and block and counts each block once. For tests, `kbtp doctor` and shutdown: what
    /// moves meanwhile shows up as a fault. Cost: a pass over rings and table.
    #[must_use]
    pub fn audit(&self) -> Audit {
        Audit::default()
    }
}
