//! What a pool needs beside sessions that work in this crate: a device that reads table and ring itself, and serves requests
//! without a word to anybody (docs/adr/0021).
//!
//! Such a device pins nothing and writes no word of a block. So a freed block is kept until who serves it says that no load of
//! before the free is under way, and no block counts as clean. It cannot send a block of no octets: those are counted, so that it
//! can be kept from serving while there is one.

use super::region_words::BlockWord;
use super::{ANYBODY, CLEAN, Home, Pool};
use crate::BlockIndex;
use crate::sync::Word32;
use kbtp_wire::{BlockOffset, ByteLen, Handle, RingOrder, Ticket};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Where a device finds what it works on, in octets from the start of [`Pool::meta_region`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// The first entry of the table.
    pub table: u64,
    /// Slot 0 of the shared ring.
    pub ring: u64,
    /// Its order.
    pub ring_order: RingOrder,
    /// Its Head; its Tail lies 64 octets on.
    pub counters: u64,
}

impl Pool {
    /// Where table, shared ring and its counters lie.
    #[must_use]
    pub fn places(&self) -> Places {
        Places {
            table: self.layout.table,
            ring: self.layout.ring,
            ring_order: self.geometry.ring_order(),
            counters: self.layout.counters,
        }
    }

    /// From now on a device serves requests on this pool: freed blocks are kept ([`return_freed`](Self::return_freed)). Before
    /// the first session. Cost: a pass over the blocks' words and the table.
    pub fn serve_by_device(&self) {
        self.by_device.store(true, Release);
        for block in (0..self.geometry.blocks).map(BlockIndex) {
            let content = self.block_word(block, BlockWord::Content);
            if content.load(Relaxed) == CLEAN {
                content.store(self.clean(), Release);
            }
        }
        let bound = (0..self.geometry.handles).filter(|row| self.is_bound(*row));
        let empty = bound.filter(|row| self.entry(*row).data_len.0 == 0).count();
        Word32::store(
            &self.empty,
            u32::try_from(empty).unwrap_or(u32::MAX),
            Release,
        );
    }

    /// Bound blocks of no octets, of a pool that a device serves.
    #[must_use]
    pub fn empty(&self) -> u32 {
        Word32::load(&self.empty, Acquire)
    }

    /// Whether all who use the pool are one trust domain. A device may serve it only then: it does not look whose a block is.
    #[must_use]
    pub fn is_one_domain(&self) -> bool {
        !self.isolate.load(Acquire)
    }

    /// Blocks that were freed and not returned yet. Cost: one load.
    #[must_use]
    pub fn freed(&self) -> u32 {
        Word32::load(&self.freed_count, Acquire)
    }

    /// Returns freed blocks to their rings, but for those that a device is still sending, as `is_sent` says. It may send only what
    /// an entry bound when it looked: a block that is not sent once it was freed will not be until it is bound again. One
    /// party may do this. Cost: one load if there are none.
    pub fn return_freed(&self, mut is_sent: impl FnMut(BlockOffset) -> bool) {
        if self.freed() == 0 {
            return;
        }
        // Who frees meanwhile comes behind these.
        for _ in 0..self.freed.with(|list| list.len()) {
            let Some(block) = self.freed.with(VecDeque::pop_front) else {
                return;
            };
            if is_sent(self.geometry.offset_of(block)) {
                self.freed.with(|list| list.push_back(block));
            } else {
                self.put_back(block);
                Word32::fetch_sub(&self.freed_count, 1, Release);
            }
        }
    }

    /// Whether this handle's entry binds the block.
    #[must_use]
    pub fn binds(&self, handle: Handle, block: BlockOffset) -> bool {
        let entry = self.geometry.row(handle).map(|row| self.entry(row));
        entry.is_some_and(|entry| entry.is_valid() && entry.block == block)
    }

    /// A device cleared this handle's entry, or was about to: its block is freed unless the entry still binds it. Once for each
    /// request that did.
    pub fn unbound_by_device(&self, handle: Handle, block: BlockOffset) {
        let (row, index) = (self.geometry.row(handle), self.geometry.block_at(block));
        if let (Some(_), Some(index)) = (row, index)
            && !self.binds(handle, block)
        {
            self.release(index);
        }
    }

    /// Gives back what a device took from the shared ring for a request that came to nothing: a ticket, and the block if it is
    /// known. The block goes back once: from its slot if it still stands there, or will.
    pub fn put_back_taken(&self, ticket: Ticket, block: Option<BlockOffset>) {
        let slot = self.ring(Home::Shared).slot(ticket);
        let to_come = ticket.distance(slot.sequence).cast_signed() > 0;
        if to_come || slot.block_for(ticket).is_some() {
            self.orphan(ticket);
        } else if let Some(block) = block.and_then(|block| self.geometry.block_at(block)) {
            self.put_back(block);
        }
    }

    /// Gives back those of these tickets of the shared ring that a device took and nobody knows of: its queue ended between
    /// FetchAdd and reply. `open` were [`open_tickets`](Self::open_tickets) before anybody was asked, `known` are those that
    /// the device has told of. Returns how many there were.
    pub fn put_back_lost(&self, mut open: Vec<Ticket>, known: &[Ticket]) -> u32 {
        let held = self.held.with(|list| list.clone());
        let orphans = self.orphans.with(|list| list.clone());
        let lists = [known, &held, &orphans];
        open.retain(|ticket| !lists.iter().any(|list| list.contains(ticket)));
        let count = u32::try_from(open.len()).unwrap_or(u32::MAX);
        for ticket in open {
            self.orphan(ticket);
        }
        count
    }

    /// Tickets of the shared ring that were taken and whose slot is not consumed: it holds their block, or will. Cost: a pass
    /// over the ring.
    #[must_use]
    pub fn open_tickets(&self) -> Vec<Ticket> {
        let ring = self.ring(Home::Shared);
        let (head, slots) = (ring.head(), self.geometry.ring_order().slots());
        let mut open = Vec::new();
        for place in 0..slots {
            let slot = ring.slot(Ticket(place));
            let mut ticket = slot.sequence;
            if slot.is_consumed() {
                ticket = Ticket(ticket.0.wrapping_add(slots));
            }
            while head.distance(ticket).cast_signed() > 0 {
                open.push(ticket);
                ticket = Ticket(ticket.0.wrapping_add(slots));
            }
        }
        open
    }

    /// A session has taken a ticket.
    pub(super) fn note_taken(&self, home: Home, ticket: Ticket) {
        if home == Home::Shared && self.by_device.load(Acquire) {
            self.held.with(|list| list.push(ticket));
        }
    }

    /// It has used it, or is gone.
    pub(super) fn note_used(&self, home: Home, ticket: Ticket) {
        if home == Home::Shared && self.by_device.load(Acquire) {
            self.held.with(|list| list.retain(|one| *one != ticket));
        }
    }

    /// Whether a row binds a block.
    pub(crate) fn is_bound(&self, row: u64) -> bool {
        super::entry::is_valid(self.control_word(row))
    }

    /// A block that was freed: kept if a device may still be sending it; whether it was.
    pub(super) fn keep_freed(&self, block: BlockIndex) -> bool {
        let keeps = self.by_device.load(Acquire);
        if keeps {
            Word32::fetch_add(&self.freed_count, 1, AcqRel);
            self.freed.with(|list| list.push_back(block));
        }
        keeps
    }

    /// Those blocks.
    pub(super) fn kept(&self) -> Vec<BlockOffset> {
        let blocks = self.freed.with(|list| list.clone());
        let offsets = blocks.iter().map(|block| self.geometry.offset_of(*block));
        offsets.collect()
    }

    /// What the content word of a block of zeros says.
    pub(super) fn clean(&self) -> u32 {
        // A device hands it out without a word.
        if self.by_device.load(Acquire) {
            ANYBODY
        } else {
            CLEAN
        }
    }

    /// A row is about to bind `after` octets, `None` if it will bind nothing; it binds `before`. Counts the empty ones if a
    /// device serves the pool: a row is among them for as long as anybody may see it so.
    pub(super) fn note_len<T>(
        &self,
        before: impl FnOnce() -> Option<ByteLen>,
        after: Option<ByteLen>,
        change: impl FnOnce() -> T,
    ) -> T {
        if !self.by_device.load(Acquire) {
            return change();
        }
        let is_empty = |len: Option<ByteLen>| len == Some(ByteLen(0));
        let before = before();
        if is_empty(after) {
            Word32::fetch_add(&self.empty, 1, AcqRel);
        }
        let changed = change();
        if is_empty(before) {
            Word32::fetch_sub(&self.empty, 1, AcqRel);
        }
        changed
    }
}
