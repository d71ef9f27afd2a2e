//! Making a new pool, and the superblock that says what a metadata region holds.
//!
//! Octets of the superblock: 0..8 "KBTPPOOL", 8..12 layout version, 12..16 block size, 16..20 blocks, 24..32 handles,
//! 32..40 Table Base Handle, 40..48 first Block Offset, 48..64 Target Instance ID, 64..68 CRC32C of 0..64; big-endian.
//! It is written last, so that a pool whose making was interrupted is no pool.

use super::partition::Partition;
use super::region_words::BlockWord;
use super::ring::Deferred;
use super::{ANYBODY, Contents, Home, Pool, PoolError};
use crate::geometry::{BLOCK_WORDS_LEN, Layout, SLOT_LEN};
use crate::limits::{DEFERRED_RESERVE, PARTITIONS_MAX, RANGE_RECORD_LEN, RANGES_MAX};
use crate::sync::Mutex;
use crate::{BlockIndex, Geometry};
use kbtp_memory::{Region, crc32c};
use kbtp_wire::{BlockOffset, Handle};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

const MAGIC: [u8; 8] = *b"KBTPPOOL";
/// Changes whenever the layout of the metadata region does.
const VERSION: u32 = 1;
/// Octets before the checksum.
const COVERED: usize = 64;
const SUPERBLOCK_LEN: usize = COVERED + 4;

impl Pool {
    /// Makes a new pool in two regions; all blocks are free, no handle is bound. `instance` is the Target Instance
    /// ID (P6): 16 fresh random octets. Cost: writes the ring; unless both regions are [`Contents::Zeroed`], also the
    /// table and the words of each block.
    ///
    /// # Errors
    /// [`PoolError`] if the geometry cannot be or a region is too short.
    //= kbtp-3.1-equal-blocks
    pub fn format(
        meta: Region,
        blocks: Region,
        geometry: Geometry,
        instance: [u8; 16],
        contents: Contents,
    ) -> Result<Self, PoolError> {
        let pool = Self::over(meta, blocks, geometry, instance)?;
        pool.meta.zero(0, SUPERBLOCK_LEN as u64)?;
        if contents == Contents::Unknown {
            let handles = geometry.handles.saturating_mul(SLOT_LEN);
            pool.meta.zero(pool.layout.table, handles)?;
            pool.meta.zero(
                pool.layout.records,
                u64::from(RANGES_MAX) * RANGE_RECORD_LEN,
            )?;
            let words = u64::from(geometry.blocks).saturating_mul(BLOCK_WORDS_LEN);
            pool.meta.zero(pool.layout.block_words, words)?;
            for block in (0..geometry.blocks).map(BlockIndex) {
                pool.block_word(block, BlockWord::Content)
                    .store(ANYBODY, Relaxed);
            }
        }
        let free = (0..geometry.blocks).map(|block| geometry.offset_of(BlockIndex(block)));
        pool.ring(Home::Shared).format(free);
        pool.write_superblock()?;
        Ok(pool)
    }

    /// A pool over two regions that are long enough; nothing is written.
    pub(super) fn over(
        meta: Region,
        blocks: Region,
        geometry: Geometry,
        instance: [u8; 16],
    ) -> Result<Self, PoolError> {
        geometry.validate()?;
        for (region, what, need) in [
            (&blocks, "pool", geometry.pool_len()),
            (&meta, "metadata", geometry.meta_len()),
        ] {
            if region.len() < need {
                return Err(PoolError::RegionTooShort {
                    region: what,
                    have: region.len(),
                    need,
                });
            }
        }
        let granules = usize::try_from(geometry.granules()).unwrap_or(usize::MAX);
        Ok(Self {
            layout: Layout::of(&geometry),
            geometry,
            instance,
            meta,
            blocks,
            deferred: Deferred::new(AtomicU32::new(0), DEFERRED_RESERVE),
            partitions: (0..PARTITIONS_MAX).map(|_| Partition::default()).collect(),
            orphans: Mutex::new(Vec::new()),
            held: Mutex::new(Vec::new()),
            orphan_count: AtomicU32::new(0),
            freed: Mutex::new(VecDeque::new()),
            freed_count: AtomicU32::new(0),
            by_device: AtomicBool::new(false),
            empty: AtomicU32::new(0),
            isolate: AtomicBool::new(false),
            domains: (0..granules).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    pub(super) fn write_superblock(&self) -> Result<(), PoolError> {
        let g = &self.geometry;
        let mut octets = Vec::with_capacity(SUPERBLOCK_LEN);
        octets.extend_from_slice(&MAGIC);
        octets.extend_from_slice(&VERSION.to_be_bytes());
        octets.extend_from_slice(&g.block_size.to_be_bytes());
        octets.extend_from_slice(&g.blocks.to_be_bytes());
        octets.extend_from_slice(&[0; 4]);
        octets.extend_from_slice(&g.handles.to_be_bytes());
        octets.extend_from_slice(&g.table_base_handle.0.to_be_bytes());
        octets.extend_from_slice(&g.pool_base.0.to_be_bytes());
        octets.extend_from_slice(&self.instance);
        octets.extend_from_slice(&crc32c::crc32c(&octets).to_be_bytes());
        Ok(self.meta.write(0, &octets)?)
    }
}

/// Geometry and Target Instance ID of the pool in a metadata region.
pub(super) fn read_superblock(meta: &Region) -> Result<(Geometry, [u8; 16]), PoolError> {
    let not = |reason| PoolError::NotAPool { reason };
    let mut octets = [0; SUPERBLOCK_LEN];
    if meta.len() < SUPERBLOCK_LEN as u64 {
        return Err(not("it is too short"));
    }
    meta.read(0, &mut octets)?;
    let (covered, crc) = octets.split_at(COVERED);
    let mut fields = covered
        .chunks_exact(4)
        .map(|word| word.try_into().unwrap_or_default());
    let mut u32 = || u32::from_be_bytes(fields.next().unwrap_or_default());
    if u32().to_be_bytes() != *b"KBTP" || u32().to_be_bytes() != *b"POOL" {
        return Err(not("it begins with other octets"));
    }
    if crc != crc32c::crc32c(covered).to_be_bytes() {
        return Err(not("its checksum is wrong"));
    }
    if u32() != VERSION {
        return Err(not("it has another layout"));
    }
    let (block_size, blocks, _) = (u32(), u32(), u32());
    let mut u64 = || (u64::from(u32()) << 32) | u64::from(u32());
    let geometry = Geometry {
        block_size,
        blocks,
        handles: u64(),
        table_base_handle: Handle(u64()),
        pool_base: BlockOffset(u64()),
    };
    let instance = (u128::from(u64()) << 64) | u128::from(u64());
    Ok((geometry, instance.to_be_bytes()))
}
