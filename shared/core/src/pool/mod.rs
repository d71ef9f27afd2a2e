//! The pool: blocks, block table, free-block rings and the words kept per block, over two regions.
//!
//! A block is always in exactly one place: in a ring (a slot, or the ring's deferred list), bound by one entry, held
//! by one session (taken and not bound yet), or freed while loads still send it. Each function here moves one block
//! from one place to the next.

mod audit;
mod entry;
#[cfg(test)]
#[cfg(shuttle)]
mod follow_tests;
mod format;
mod homes;
#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
mod meta_tests;
mod outside;
#[cfg(test)]
mod outside_tests;
mod partition;
mod pins;
mod records;
mod recover;
mod region_words;
mod ring;
#[cfg(test)]
mod tests;
mod types;

pub use outside::Places;
pub(crate) use partition::{PartitionId, PartitionPlace};
pub(crate) use records::{RangeRecord, RecordSlot};
pub use types::{Audit, Contents, PoolError, PoolUsage, Recovered, RecoveryReport};

use crate::geometry::Layout;
use crate::plants::{Plant, planted};
use crate::sync::{Mutex, Word32};
use crate::{BlockIndex, Geometry};
use kbtp_memory::Region;
use kbtp_wire::{AtomicForm, BlockOffset, ByteLen, Generation, TableEntry, Ticket};
use partition::Partition;
use region_words::{BlockWord, RingIn};
use ring::{Deferred, Freed, Ring};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// A trust domain (draft, section 6.4; P9): neither 0 nor all ones, and the same after a restart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Domain(pub(crate) u32);

/// Content word of a block that holds zeros.
const CLEAN: u32 = 0;
/// Content word of a block that may hold anybody's octets.
const ANYBODY: u32 = u32::MAX;

/// The ring a block comes from and goes back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// The ring all sessions share.
    Shared,
    /// The ring of a partition.
    Partition(PartitionId),
}

/// What the home word of a partition's blocks says.
const fn home_word(id: PartitionId) -> u32 {
    id.0.wrapping_add(1)
}

//= kbtp-3.3-no-block-lost-or-twice
/// A pool of blocks. Shared by reference; nothing in it is locked on the data path.
#[derive(Debug)]
pub struct Pool {
    geometry: Geometry,
    layout: Layout,
    instance: [u8; 16],
    meta: Region,
    blocks: Region,
    deferred: Deferred<AtomicU32>,
    partitions: Box<[Partition]>,
    /// Tickets whose session ended before their block came.
    orphans: Mutex<Vec<Ticket>>,
    orphan_count: AtomicU32,
    /// Tickets of the shared ring that sessions of this crate have and have not used, if a device serves the pool.
    held: Mutex<Vec<Ticket>>,
    /// Blocks that were freed and wait until no device sends them any more, and how many.
    freed: Mutex<VecDeque<BlockIndex>>,
    freed_count: AtomicU32,
    /// Whether a device serves requests on this pool.
    by_device: AtomicBool,
    /// Bound blocks of no octets, if one does.
    empty: AtomicU32,
    /// Whether a freed block may next go to another trust domain.
    isolate: AtomicBool,
    /// Trust domain of each granule of handles; 0: nobody's.
    domains: Box<[AtomicU32]>,
}

impl Pool {
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

    /// Blocks by where they are. Cost: a few loads for each partition in use.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let kept = self.freed();
        let free = u32::try_from(self.ring(Home::Shared).available()).unwrap_or(0);
        let free = free.saturating_add(kept);
        let partitioned = self.partitions.iter().map(Partition::blocks_in_use).sum();
        PoolUsage {
            blocks: self.geometry.blocks,
            free,
            deferred: self.deferred.len().saturating_add(kept),
            partitioned,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    // ---- Trust domains ----

    /// Whether more than one trust domain uses the pool: freed blocks are then cleared before they can be reused.
    pub(crate) fn set_isolation(&self, on: bool) {
        self.isolate.store(on, Release);
    }

    /// Clears free blocks that may hold octets of others than `domain`; before the whole pool is shown to it. Nobody
    /// else may use the pool. Cost: a pass over the ring, and zeroes what it must.
    pub(crate) fn clear_foreign(&self, domain: Domain) {
        for (offset, _) in self.ring(Home::Shared).blocks() {
            let block = self.known(offset);
            let found = self.block_word(block, BlockWord::Content).load(Relaxed);
            if found != domain.0 {
                self.clear(block);
            }
        }
    }

    /// Gives the granules of these rows to a trust domain, or to nobody.
    pub(crate) fn set_domain(&self, first_row: u64, rows: u64, domain: Option<Domain>) {
        let granule = self.geometry.granule_handles();
        let first = first_row / granule;
        let count = rows.div_ceil(granule);
        for index in first..first.saturating_add(count) {
            if let Some(word) = usize::try_from(index)
                .ok()
                .and_then(|i| self.domains.get(i))
            {
                Word32::store(word, domain.map_or(0, |d| d.0), Release);
            }
        }
    }

    /// Whether a row belongs to this trust domain.
    //= kbtp-p7-not-valid-foreign
    pub(crate) fn is_of(&self, row: u64, domain: Domain) -> bool {
        let index = usize::try_from(row / self.geometry.granule_handles()).ok();
        index.and_then(|i| self.domains.get(i)).is_some_and(|word| {
            Word32::load(word, Acquire) == domain.0 || planted(Plant::DomainsIgnored)
        })
    }

    // ---- Allocation and free ----

    /// Takes a ticket for a block; `None` if no block is free or about to be.
    pub(crate) fn take(&self, home: Home) -> Option<Ticket> {
        let ticket = self.ring(home).take()?;
        self.note_taken(home, ticket);
        Some(ticket)
    }

    /// The block of a ticket, fit for `domain`; `None` while its free is in progress. Cost: zeroes the block if it
    /// may hold octets of another trust domain.
    pub(crate) fn consume(&self, home: Home, ticket: Ticket, domain: Domain) -> Option<BlockIndex> {
        let block = self.consume_raw(home, ticket)?;
        self.prepare(block, domain);
        Some(block)
    }

    /// The ticket's owner is gone: its block goes back when it comes.
    pub(crate) fn orphan(&self, ticket: Ticket) {
        self.orphans.with(|list| list.push(ticket));
        self.note_used(Home::Shared, ticket);
        Word32::fetch_add(&self.orphan_count, 1, Release);
        self.settle();
    }

    /// Moves on what waits in the shared ring: deferred frees and orphaned tickets. Cost: two loads if nothing waits.
    pub fn settle(&self) {
        self.ring(Home::Shared).settle();
        if Word32::load(&self.orphan_count, Acquire) != 0 {
            self.orphans.with(|list| {
                list.retain(|ticket| match self.consume_raw(Home::Shared, *ticket) {
                    Some(block) => {
                        Word32::fetch_sub(&self.orphan_count, 1, Release);
                        self.put_back(block);
                        false
                    }
                    None => true,
                });
            });
        }
    }

    /// Returns a held block, bound by no entry, to its ring; whether its slot write is deferred. Cost: zeroes the
    /// block if it may next go to another trust domain.
    //= kbtp-6.4-return-to-its-ring
    pub(crate) fn put_back(&self, block: BlockIndex) -> bool {
        loop {
            let freed = match self.home(block) {
                // The initiator of a partition writes its blocks whenever it likes, bound or not: such a block holds that
                // domain's octets until the partition is no more, and stays with that domain until then.
                Home::Partition(id) => self.free_in(id, block),
                Home::Shared => {
                    //= kbtp-6.4-clear-for-other-domain
                    if self.isolate.load(Acquire) {
                        self.clear(block);
                    }
                    let ring = self.ring(Home::Shared);
                    Some(ring.free(self.geometry.offset_of(block)))
                }
            };
            // A block that was at home in a partition is in the shared ring's hands once that is dissolved.
            if let Some(freed) = freed {
                return freed == Freed::Deferred;
            }
        }
    }

    /// The block was freed (its entry says so already): returns it to its ring, or leaves that to the last load that
    /// sends it. Whether a slot write is deferred.
    //= kbtp-6.4-entry-before-return
    //= kbtp-3.3-free-entry-first
    pub(crate) fn release(&self, block: BlockIndex) -> bool {
        if planted(Plant::PinsIgnored) {
            return self.put_back(block);
        }
        match pins::set_freed(self.block_word(block, BlockWord::Pins)) {
            pins::Then::Return => self.keep_freed(block) || self.put_back(block),
            pins::Then::Keep => false,
        }
    }

    // ---- Entries ----

    /// The entry in a row of the table.
    pub(crate) fn entry(&self, row: u64) -> TableEntry {
        entry::read(self.entry_words(row))
    }

    /// The entry, and its block pinned if it is VALID: [`unpin`](Self::unpin) it, whatever comes.
    pub(crate) fn entry_pinned(&self, row: u64) -> (TableEntry, Option<BlockIndex>) {
        let block_of = |entry: &TableEntry| {
            let block = self.geometry.block_at(entry.block)?;
            Some((block, self.block_word(block, BlockWord::Pins)))
        };
        pins::pin_bound(self.entry_words(row), block_of, |block| {
            if !self.keep_freed(block) {
                self.put_back(block);
            }
        })
    }

    /// [`entry_pinned`](Self::entry_pinned) for a load by `domain`; `None`, and nothing pinned, if the row is not its.
    ///
    /// A range may be released and its rows given to another domain at any time, so that whose the row is must be asked
    /// while the entry is bound: after it was pinned, and it must still be the same binding then.
    //= kbtp-p7-not-valid-foreign
    pub(crate) fn entry_for(
        &self,
        row: u64,
        domain: Domain,
    ) -> Option<(TableEntry, Option<BlockIndex>)> {
        let (entry, pinned) = self.entry_pinned(row);
        let own = self.is_of(row, domain)
            && (pinned.is_none() || entry::still(self.entry_words(row), &entry));
        if own {
            return Some((entry, pinned));
        }
        if let Some(block) = pinned {
            self.unpin(block);
        }
        None
    }

    /// Whether a remote party may write the block at any time, even while it is bound and sealed: it lies in the
    /// partition of a session that has not ended.
    pub(crate) fn is_partitioned(&self, block: BlockIndex) -> bool {
        self.home(block) != Home::Shared
    }

    /// The load that pinned the block is done with it.
    pub(crate) fn unpin(&self, block: BlockIndex) {
        if pins::unpin(self.block_word(block, BlockWord::Pins)) == pins::Then::Return
            && !self.keep_freed(block)
        {
            self.put_back(block);
        }
    }

    /// Binds a row to a held block; returns the entry. The data is in the block already.
    pub(crate) fn bind(&self, row: u64, block: BlockIndex, len: ByteLen, seal: bool) -> TableEntry {
        let words = self.entry_words(row);
        let before = entry::read(words).generation;
        let entry = entry::bound(before, self.geometry.offset_of(block), len, seal);
        self.note_len(|| None, Some(len), || entry::bind(words, &entry));
        entry
    }

    /// New data is in the block of a bound row.
    pub(crate) fn update(&self, row: u64, entry: &TableEntry) {
        let words = self.entry_words(row);
        let before = || Some(entry::read(words).data_len);
        self.note_len(before, Some(entry.data_len), || {
            entry::update(words, entry);
        });
    }

    /// Unbinds a bound row and frees its block: the new Generation, and whether a slot write is deferred.
    pub(crate) fn free(&self, row: u64, block: BlockIndex) -> (Generation, bool) {
        if planted(Plant::ReturnBeforeEntry) {
            let deferred = self.release(block);
            return (entry::unbind(self.entry_words(row)), deferred);
        }
        let words = self.entry_words(row);
        let before = || Some(entry::read(words).data_len);
        let generation = self.note_len(before, None, || entry::unbind(words));
        (generation, self.release(block))
    }

    /// Writes inline data into a held or bound block.
    pub(crate) fn write(&self, block: BlockIndex, data: &[u8]) -> bool {
        data.len() as u64 <= u64::from(self.geometry.block_size)
            && self
                .blocks
                .write(self.geometry.region_offset(block), data)
                .is_ok()
    }

    // ---- Private ----

    fn consume_raw(&self, home: Home, ticket: Ticket) -> Option<BlockIndex> {
        let offset = self.ring(home).consume(ticket)?;
        self.note_used(home, ticket);
        Some(self.known(offset))
    }

    /// The block at an offset that this target wrote into a ring.
    #[expect(
        clippy::expect_used,
        reason = "a ring holds only offsets of blocks; else memory is corrupt"
    )]
    fn known(&self, offset: BlockOffset) -> BlockIndex {
        self.geometry
            .block_at(offset)
            .expect("a ring slot holds a Block Offset of the pool")
    }

    /// Makes a held block fit for a trust domain: zeroed unless it holds only that domain's octets.
    //= kbtp-p9-reads-as-zeros
    //= rfc5042-10.2-no-stale-data
    fn prepare(&self, block: BlockIndex, domain: Domain) {
        let content = self.block_word(block, BlockWord::Content);
        let found = content.load(Relaxed);
        if found == domain.0 {
            return;
        }
        if found != CLEAN && !planted(Plant::ZeroingForgotten) {
            self.zero(block);
        }
        // Release: the zeros come before it. Acquire: the new owner's octets come after it, so that whoever recovers
        // the pool never finds them under another's name.
        content.swap(domain.0, AcqRel);
    }

    fn clear(&self, block: BlockIndex) {
        let content = self.block_word(block, BlockWord::Content);
        if content.load(Relaxed) != CLEAN {
            if !planted(Plant::ZeroingForgotten) {
                self.zero(block);
            }
            content.store(self.clean(), Release);
        }
    }

    #[expect(
        clippy::expect_used,
        reason = "the region is as long as the geometry says, checked when made"
    )]
    fn zero(&self, block: BlockIndex) {
        self.blocks
            .zero(
                self.geometry.region_offset(block),
                u64::from(self.geometry.block_size),
            )
            .expect("a block of the pool lies in its region");
    }

    fn home(&self, block: BlockIndex) -> Home {
        let home = self.block_word(block, BlockWord::Home);
        match Word32::load(home, Acquire).checked_sub(1) {
            None => Home::Shared,
            Some(id) => Home::Partition(PartitionId(id)),
        }
    }

    fn set_home(&self, block: BlockIndex, home: Home) {
        let value = match home {
            Home::Shared => homes::SHARED,
            Home::Partition(id) => home_word(id),
        };
        let word = self.block_word(block, BlockWord::Home);
        Word32::store(word, value, Release);
    }

    fn ring(&self, home: Home) -> Ring<'_, RingIn<'_>> {
        match home {
            Home::Shared => Ring {
                memory: RingIn::new(&self.meta, self.layout.counters, self.layout.ring),
                order: self.geometry.ring_order(),
                form: AtomicForm::Masked,
                deferred: &self.deferred,
            },
            Home::Partition(id) => self.partition_ring(id),
        }
    }
}
