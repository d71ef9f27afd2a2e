//! How large a pool is, and where everything lies in its two regions.
//! Source: KBTP draft, sections 3.1 to 3.3; profile, P6 and P10.
//!
//! The pool region holds the blocks and nothing else. The metadata region holds, each part on its own pages:
//! superblock, ring counters, partition counters, range records, block words, ring, partition rings, block table.

use crate::limits::{
    BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, BLOCKS_MAX, GRANULE_HANDLES_MIN, GRANULES_MAX, HANDLES_MAX,
    PARTITIONS_MAX, RANGE_RECORD_LEN, RANGES_MAX,
};
use kbtp_wire::{BlockOffset, Handle, RingOrder};

/// Octets of a page: parts start on one, so that each can be registered alone.
pub(crate) const PAGE: u64 = 4096;
/// Octets between two counters: a cache line each, so that Head and Tail do not share one.
//= kbtp-3.3-counter-aligned
pub(crate) const COUNTER_STRIDE: u64 = 64;
/// Octets of a ring slot and of a table entry.
pub(crate) const SLOT_LEN: u64 = 16;
/// Octets of the words kept per block.
pub(crate) const BLOCK_WORDS_LEN: u64 = 16;

/// The size of a pool, fixed when it is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Octets of a block, 4 KiB to 16 MiB, a multiple of 4 KiB.
    pub block_size: u32,
    /// Blocks F, 1 to 2^27.
    pub blocks: u32,
    /// Handles of the block table, 1 to 2^32.
    pub handles: u64,
    /// First handle of the table (P6, Table Base Handle).
    pub table_base_handle: Handle,
    /// Block Offset of the first block, a multiple of 4 KiB.
    pub pool_base: BlockOffset,
}

/// Why a geometry cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// The block size is out of bounds or no multiple of 4 KiB.
    #[error("a block of {0} octets: must be a multiple of 4096 from 4 KiB to 16 MiB")]
    BlockSize(u32),
    /// Too few or too many blocks.
    #[error("{0} blocks: must be 1 to {BLOCKS_MAX}")]
    Blocks(u32),
    /// Too few or too many handles, or their numbers overflow.
    #[error("{0} handles: must be 1 to {HANDLES_MAX}, and their numbers below 2^64")]
    Handles(u64),
    /// The first Block Offset is no multiple of 4 KiB, or the last one overflows.
    #[error("first Block Offset {0}: must be a multiple of 4096, and the pool end below 2^64")]
    PoolBase(BlockOffset),
}

impl Geometry {
    /// Whether such a pool can be.
    ///
    /// # Errors
    /// [`GeometryError`] names the first field that is wrong.
    pub fn validate(&self) -> Result<(), GeometryError> {
        if !(BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(&self.block_size)
            || !self.block_size.is_multiple_of(BLOCK_SIZE_MIN)
        {
            return Err(GeometryError::BlockSize(self.block_size));
        }
        if !(1..=BLOCKS_MAX).contains(&self.blocks) {
            return Err(GeometryError::Blocks(self.blocks));
        }
        if !(1..=HANDLES_MAX).contains(&self.handles)
            || self.table_base_handle.0.checked_add(self.handles).is_none()
        {
            return Err(GeometryError::Handles(self.handles));
        }
        if !self.pool_base.0.is_multiple_of(PAGE)
            || self.pool_base.0.checked_add(self.pool_len()).is_none()
        {
            return Err(GeometryError::PoolBase(self.pool_base));
        }
        Ok(())
    }

    /// Octets of the pool region.
    #[must_use]
    pub fn pool_len(&self) -> u64 {
        u64::from(self.blocks).saturating_mul(u64::from(self.block_size))
    }

    /// Octets of the metadata region.
    #[must_use]
    pub fn meta_len(&self) -> u64 {
        Layout::of(self).len
    }

    /// The order n of the ring's N = 2^n slots, the smallest with N >= F (draft, section 3.3).
    //= kbtp-3.3-ring-size
    #[must_use]
    pub fn ring_order(&self) -> RingOrder {
        RingOrder::for_blocks(self.blocks).unwrap_or(RingOrder::MAX)
    }

    /// The number of the block at this Block Offset; `None` if there is none.
    #[must_use]
    pub fn block_at(&self, offset: BlockOffset) -> Option<BlockIndex> {
        let octets = offset.0.checked_sub(self.pool_base.0)?;
        let size = u64::from(self.block_size);
        let index = u32::try_from(octets.checked_div(size)?).ok()?;
        (octets.is_multiple_of(size) && index < self.blocks).then_some(BlockIndex(index))
    }

    /// The Block Offset of a block of this pool.
    #[must_use]
    pub fn offset_of(&self, block: BlockIndex) -> BlockOffset {
        BlockOffset(self.pool_base.0.wrapping_add(self.region_offset(block)))
    }

    /// Where a block begins in the pool region.
    pub(crate) fn region_offset(&self, block: BlockIndex) -> u64 {
        u64::from(block.0).wrapping_mul(u64::from(self.block_size))
    }

    /// The row of a handle in the block table; `None` if it is outside.
    #[must_use]
    pub fn row(&self, handle: Handle) -> Option<u64> {
        handle
            .0
            .checked_sub(self.table_base_handle.0)
            .filter(|row| *row < self.handles)
    }

    /// Handles of a granule, a power of two.
    pub(crate) fn granule_handles(&self) -> u64 {
        self.handles
            .div_ceil(GRANULES_MAX)
            .max(GRANULE_HANDLES_MIN)
            .next_power_of_two()
    }

    /// Granules of the table; the last one may be short.
    pub(crate) fn granules(&self) -> u64 {
        self.handles.div_ceil(self.granule_handles())
    }
}

/// The number of a block in its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockIndex(pub u32);

/// Where the parts of the metadata region begin, in octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) counters: u64,
    pub(crate) partition_counters: u64,
    pub(crate) records: u64,
    pub(crate) block_words: u64,
    pub(crate) ring: u64,
    pub(crate) partition_rings: u64,
    pub(crate) table: u64,
    pub(crate) len: u64,
}

impl Layout {
    /// The layout of a valid geometry.
    pub(crate) fn of(g: &Geometry) -> Self {
        let f = u64::from(g.blocks);
        let counters = PAGE;
        let partition_counters = counters + PAGE;
        let records = page_up(partition_counters + u64::from(PARTITIONS_MAX) * 2 * COUNTER_STRIDE);
        let block_words = page_up(records + u64::from(RANGES_MAX) * RANGE_RECORD_LEN);
        let ring = page_up(block_words + f * BLOCK_WORDS_LEN);
        let partition_rings = page_up(ring + g.ring_order().ring_len());
        // A partition of q blocks from block a has at most 2 * q slots, from slot 2 * a: two
        // partitions that share no block share no slot.
        let table = page_up(partition_rings + 2 * f * SLOT_LEN);
        let len = page_up(table.saturating_add(g.handles.saturating_mul(SLOT_LEN)));
        Self {
            counters,
            partition_counters,
            records,
            block_words,
            ring,
            partition_rings,
            table,
            len,
        }
    }
}

fn page_up(octets: u64) -> u64 {
    octets.saturating_add(PAGE - 1) / PAGE * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            block_size: 4096,
            blocks: 5,
            handles: 100,
            table_base_handle: Handle(1000),
            pool_base: BlockOffset(0x10_0000),
        }
    }

    //= test kbtp-3.1-equal-blocks
    #[test]
    fn a_good_geometry_maps_blocks_and_handles_both_ways() {
        let g = geometry();
        g.validate().unwrap();
        assert_eq!(g.ring_order().get(), 3);
        for n in 0..5 {
            assert_eq!(g.block_at(g.offset_of(BlockIndex(n))), Some(BlockIndex(n)));
        }
        for bad in [0, 0xf_f000, 0x10_0001, 0x10_0000 + 5 * 4096, u64::MAX] {
            assert_eq!(g.block_at(BlockOffset(bad)), None, "{bad:#x}");
        }
        assert_eq!(g.row(Handle(999)), None);
        assert_eq!(g.row(Handle(1000)), Some(0));
        assert_eq!(g.row(Handle(1099)), Some(99));
        assert_eq!(g.row(Handle(1100)), None);
    }

    //= test kbtp-3.1-equal-blocks
    #[test]
    fn blocks_lie_one_after_the_other() {
        let g = geometry();
        for n in 0..5 {
            let offset = 0x10_0000 + u64::from(n) * 4096;
            assert_eq!(g.offset_of(BlockIndex(n)), BlockOffset(offset));
        }
        assert_eq!(g.pool_len(), 5 * 4096);
    }

    //= test kbtp-3.3-counter-aligned
    #[test]
    fn counters_are_aligned() {
        for blocks in [1, 5, 1 << 20] {
            let l = Layout::of(&Geometry {
                blocks,
                ..geometry()
            });
            for offset in [l.counters, l.partition_counters, COUNTER_STRIDE] {
                assert_eq!(offset % 8, 0);
            }
        }
    }

    #[test]
    fn each_wrong_field_is_named() {
        let size = |block_size| {
            Geometry {
                block_size,
                ..geometry()
            }
            .validate()
        };
        for bad in [0, 4095, 4097, 6144, (16 << 20) + 4096] {
            assert_eq!(size(bad), Err(GeometryError::BlockSize(bad)));
        }
        size(16 << 20).unwrap();
        let blocks = |blocks| {
            Geometry {
                blocks,
                ..geometry()
            }
            .validate()
        };
        assert_eq!(blocks(0), Err(GeometryError::Blocks(0)));
        assert_eq!(
            blocks((1 << 27) + 1),
            Err(GeometryError::Blocks((1 << 27) + 1))
        );
        blocks(1 << 27).unwrap();
        assert_eq!(
            Geometry {
                handles: 0,
                ..geometry()
            }
            .validate(),
            Err(GeometryError::Handles(0))
        );
        let base = Handle(u64::MAX - 50);
        assert_eq!(
            Geometry {
                table_base_handle: base,
                ..geometry()
            }
            .validate(),
            Err(GeometryError::Handles(100))
        );
        for bad in [1, u64::MAX - 4095] {
            assert_eq!(
                Geometry {
                    pool_base: BlockOffset(bad),
                    ..geometry()
                }
                .validate(),
                Err(GeometryError::PoolBase(BlockOffset(bad)))
            );
        }
    }

    /// A target takes over what another one, maybe of an older build, left in memory: whoever changes this changes the
    /// superblock's version too.
    #[test]
    fn the_layout_is_what_version_one_says() {
        let layout = Layout::of(&Geometry {
            blocks: 1000,
            handles: 1000,
            ..geometry()
        });
        let expected = Layout {
            counters: 4096,
            partition_counters: 8192,
            records: 40_960,
            block_words: 8_429_568,
            ring: 8_445_952,
            partition_rings: 8_462_336,
            table: 8_495_104,
            len: 8_511_488,
        };
        assert_eq!(layout, expected);
    }

    #[test]
    fn the_largest_pool_has_a_layout_without_overlap() {
        let g = Geometry {
            blocks: 1 << 27,
            handles: 1 << 32,
            ..geometry()
        };
        let l = Layout::of(&g);
        assert!(l.ring + (16 << 27) <= l.partition_rings);
        assert!(l.partition_rings + (32 << 27) <= l.table);
        assert_eq!(l.len, l.table + (16 << 32));
        assert!(g.granules() <= GRANULES_MAX);
    }
}
