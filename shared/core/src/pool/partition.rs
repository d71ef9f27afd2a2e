//! Partitions: a contiguous run of blocks with a ring of its own, for one DIRECT_ALLOC session (draft, section 3.4;
//! docs/adr/0013).
//!
//! The blocks of a partition are taken out of the shared ring when the session begins, and go back when it has ended.
//! Its ring lies at slot 2a of the partition rings, where a is its first block: a partition of q blocks has fewer
//! 2q slots, so partitions that share no block share no slot.

use super::audit::{Place, deferred, in_slot};
use super::region_words::{BlockWord, RingIn};
use super::ring::{Deferred, Freed, Ring};
use super::{Domain, Home, Pool, home_word, homes};
use crate::BlockIndex;
use crate::geometry::{COUNTER_STRIDE, SLOT_LEN};
use crate::limits::CARVE_WINDOW;
use crate::plants::{Plant, planted};
use kbtp_wire::{AtomicForm, BlockOffset, RingOrder, RingSlot, Ticket};
use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Looks at a slot whose free is being written by another worker right now.
const SPINS: u32 = 1000;

/// The number of a partition, below [`PARTITIONS_MAX`](crate::limits::PARTITIONS_MAX).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PartitionId(pub(crate) u32);

/// A partition. It is changed by the directory alone, while no block has it as its home.
#[derive(Debug)]
pub(super) struct Partition {
    first: AtomicU32,
    /// Blocks; 0: not in use.
    blocks: AtomicU32,
    /// 1 for [`AtomicForm::Unmasked`].
    unmasked: AtomicU32,
    deferred: Deferred<AtomicU32>,
    /// Frees that are on their way to its ring; see [`homes`].
    returning: AtomicU32,
}

impl Default for Partition {
    fn default() -> Self {
        Self {
            first: AtomicU32::new(0),
            blocks: AtomicU32::new(0),
            unmasked: AtomicU32::new(0),
            deferred: Deferred::new(AtomicU32::new(0), 0),
            returning: AtomicU32::new(0),
        }
    }
}

impl Partition {
    pub(super) fn blocks_in_use(&self) -> u32 {
        self.blocks.load(Acquire)
    }

    fn order(&self) -> RingOrder {
        RingOrder::for_blocks(self.blocks.load(Acquire)).unwrap_or(RingOrder::MAX)
    }
}

/// What an initiator needs to know of its partition (P6); offsets are in the metadata region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartitionPlace {
    pub(crate) first: BlockIndex,
    pub(crate) blocks: u32,
    pub(crate) order: RingOrder,
    pub(crate) ring: u64,
    pub(crate) head: u64,
}

impl Pool {
    /// Takes `blocks` contiguous free blocks out of the shared ring and makes them a partition for `domain`. `None` if
    /// there is no such run among the free blocks that come next ([`CARVE_WINDOW`]), or no partition left; the next call
    /// then looks at those behind them. Cost: looks at the window; and if there seems to be a run, or there is more than
    /// the window, takes the blocks in it from the ring and returns the rest, in order: allocations of others wait
    /// meanwhile.
    //= kbtp-p8-contiguous-partition
    //= rfc5042-6.3.6-no-shared-write
    pub(crate) fn carve(
        &self,
        blocks: u32,
        form: AtomicForm,
        domain: Domain,
    ) -> Option<PartitionId> {
        let (number, partition) = (0..)
            .zip(&self.partitions)
            .find(|(_, p)| p.blocks_in_use() == 0)?;
        let id = PartitionId(number);
        let window = blocks.saturating_mul(2).max(CARVE_WINDOW);
        let more = self.ring(Home::Shared).available() > i64::from(window);
        if !more && !self.has_run(blocks, window) {
            return None;
        }
        let (first, rest) = self.draw_run(blocks, window);
        for block in rest {
            self.ring(Home::Shared).free(self.geometry.offset_of(block));
        }
        let first = first?;
        partition.first.store(first.0, Release);
        partition
            .unmasked
            .store(u32::from(form == AtomicForm::Unmasked), Release);
        partition.blocks.store(blocks, Release);
        let run = first.0..first.0.saturating_add(blocks);
        for block in run.clone().map(BlockIndex) {
            self.prepare(block, domain);
        }
        self.partition_ring(id)
            .format(run.clone().map(|b| self.geometry.offset_of(BlockIndex(b))));
        for block in run.map(BlockIndex) {
            if !planted(Plant::HomeForgotten) {
                self.set_home(block, Home::Partition(id));
            }
        }
        Some(id)
    }

    /// Ends a partition whose session has ended: its free blocks, each to be given to
    /// [`take_back`](Self::take_back); all others go to the shared ring when they are freed, or when the last load is done
    /// with them. `None` while frees are on their way to its ring: ask again.
    pub(crate) fn dissolve(&self, id: PartitionId) -> Option<Vec<BlockOffset>> {
        let partition = self.partition(id);
        let first = partition.first.load(Acquire);
        let run = first..first.saturating_add(partition.blocks_in_use());
        let homes = run.map(|block| self.block_word(BlockIndex(block), BlockWord::Home));
        if !homes::close(homes, &partition.returning, home_word(id)) {
            return None;
        }
        let mut free: Vec<BlockOffset> = self
            .partition_ring(id)
            .blocks()
            .map(|(block, _)| block)
            .collect();
        free.extend(partition.deferred.clear());
        partition.blocks.store(0, Release);
        Some(free)
    }

    /// Returns a held block to the ring of its partition; `None`, and nothing done, if that is its home no more.
    pub(super) fn free_in(&self, id: PartitionId, block: BlockIndex) -> Option<Freed> {
        let partition = self.partition(id);
        let home = self.block_word(block, BlockWord::Home);
        homes::while_at(home, &partition.returning, home_word(id), || {
            self.partition_ring(id).free(self.geometry.offset_of(block))
        })
    }

    /// Returns a free block of a partition that was dissolved to the shared ring. Cost: zeroes the block if it may next
    /// go to another trust domain.
    pub(crate) fn take_back(&self, block: BlockOffset) {
        self.put_back(self.known(block));
    }

    /// Where a partition lies.
    pub(crate) fn partition_place(&self, id: PartitionId) -> PartitionPlace {
        let partition = self.partition(id);
        let first = partition.first.load(Acquire);
        PartitionPlace {
            first: BlockIndex(first),
            blocks: partition.blocks_in_use(),
            order: partition.order(),
            ring: self
                .layout
                .partition_rings
                .wrapping_add(u64::from(first) * 2 * SLOT_LEN),
            head: self.partition_counters(id),
        }
    }

    /// Ticket of the next allocation of a partition: how many were taken, by peer and target.
    pub(crate) fn partition_head(&self, id: PartitionId) -> Ticket {
        self.partition_ring(id).head()
    }

    /// What the slot of a ticket of a partition holds.
    pub(crate) fn partition_slot(&self, id: PartitionId, ticket: Ticket) -> RingSlot {
        self.partition_ring(id).slot(ticket)
    }

    /// Consumes the slot of an abandoned ticket and returns its block; false while the slot holds none.
    pub(crate) fn reclaim(&self, id: PartitionId, ticket: Ticket) -> bool {
        match self.consume_raw(Home::Partition(id), ticket) {
            Some(block) => {
                self.put_back(block);
                true
            }
            None => false,
        }
    }

    /// Moves on the deferred frees of a partition.
    pub(crate) fn settle_partition(&self, id: PartitionId) {
        self.partition_ring(id).settle();
    }

    #[expect(clippy::expect_used, reason = "ids are made by carve alone")]
    pub(super) fn partition(&self, id: PartitionId) -> &Partition {
        usize::try_from(id.0)
            .ok()
            .and_then(|i| self.partitions.get(i))
            .expect("a partition's number")
    }

    pub(super) fn partition_ring(&self, id: PartitionId) -> Ring<'_, RingIn<'_>> {
        let partition = self.partition(id);
        let first = u64::from(partition.first.load(Acquire));
        let form = match partition.unmasked.load(Acquire) {
            0 => AtomicForm::Masked,
            _ => AtomicForm::Unmasked,
        };
        Ring {
            memory: RingIn::new(
                &self.meta,
                self.partition_counters(id),
                self.layout
                    .partition_rings
                    .wrapping_add(first * 2 * SLOT_LEN),
            ),
            order: partition.order(),
            form,
            deferred: &partition.deferred,
        }
    }

    /// Blocks in the rings of the partitions in use, each with its place; nobody may use them meanwhile.
    pub(super) fn partitioned_blocks(&self) -> impl Iterator<Item = (BlockOffset, Place)> + '_ {
        let in_use = self
            .partitions
            .iter()
            .zip(0..)
            .filter(|(p, _)| p.blocks_in_use() > 0);
        in_use.flat_map(|(partition, id)| {
            let ring = self.partition_ring(PartitionId(id));
            ring.blocks()
                .map(in_slot)
                .chain(partition.deferred.blocks().into_iter().map(deferred))
        })
    }

    fn partition_counters(&self, id: PartitionId) -> u64 {
        self.layout
            .partition_counters
            .wrapping_add(u64::from(id.0) * 2 * COUNTER_STRIDE)
    }

    /// Whether so many contiguous blocks are among the free ones of the window, as far as can be seen while others use
    /// the ring: whoever asks for what there is not must not make others wait for it. A run is mostly found among the first
    /// blocks, as they go back in order; so a few are looked at first, then twice as many, and so on.
    fn has_run(&self, wanted: u32, window: u32) -> bool {
        let mut look = wanted.saturating_mul(2).min(window).max(1);
        loop {
            if self.has_run_in(wanted, look) {
                return true;
            }
            if look >= window {
                return false;
            }
            look = look.saturating_mul(2).min(window);
        }
    }

    /// Whether there is such a run among the next `window` blocks.
    fn has_run_in(&self, wanted: u32, window: u32) -> bool {
        let mut free: Vec<u32> = self
            .ring(Home::Shared)
            .upcoming(window)
            .filter_map(|offset| self.geometry.block_at(offset))
            .map(|block| block.0)
            .collect();
        free.sort_unstable();
        free.chunk_by(|a, b| a.checked_add(1) == Some(*b))
            .any(|run| u32::try_from(run.len()).is_ok_and(|len| len >= wanted))
    }

    /// Takes blocks of the window from the shared ring until `wanted` of them are contiguous: the first of the run, if
    /// there is one, and the blocks that are not part of it, in order.
    fn draw_run(&self, wanted: u32, window: u32) -> (Option<BlockIndex>, Vec<BlockIndex>) {
        // First block of each run of drawn blocks, and its length.
        let mut runs: BTreeMap<u32, u32> = BTreeMap::new();
        let mut found = None;
        let mut left = window;
        while found.is_none()
            && left > 0
            && let Some(ticket) = self.take(Home::Shared)
        {
            left = left.saturating_sub(1);
            let Some(block) = self.consume_soon(ticket) else {
                self.orphan(ticket);
                continue;
            };
            let after = runs.remove(&block.0.saturating_add(1)).unwrap_or(0);
            let before = runs
                .range(..block.0)
                .next_back()
                .map(|(first, len)| (*first, *len));
            let (first, len) = match before {
                Some((first, len)) if first.saturating_add(len) == block.0 => (first, len),
                _ => (block.0, 0),
            };
            let len = len.saturating_add(1).saturating_add(after);
            runs.insert(first, len);
            found = (len >= wanted).then_some(first);
        }
        let run = found.map(|first| first..first.saturating_add(wanted));
        let rest = runs
            .into_iter()
            .flat_map(|(first, len)| first..first.saturating_add(len))
            .filter(|block| !run.as_ref().is_some_and(|run| run.contains(block)))
            .map(BlockIndex)
            .collect();
        (found.map(BlockIndex), rest)
    }

    fn consume_soon(&self, ticket: Ticket) -> Option<BlockIndex> {
        for _ in 0..SPINS {
            if let Some(block) = self.consume_raw(Home::Shared, ticket) {
                return Some(block);
            }
            spin_loop();
        }
        None
    }
}
