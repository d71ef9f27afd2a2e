//! The free-block ring of draft section 3.3: lock-free, over any memory that offers atomics.
//!
//! ```text
//! Head ticket t ──► slot t mod N: wait until Sequence = t and Block Offset not all ones; take; mark consumed
//! Tail ticket u ──► slot u mod N: once consumed and its Sequence is u - N: write Block Offset, then Sequence u
//! ```
//!
//! Two things are stricter than the text. An allocation takes no ticket unless a free has begun for it (Head never
//! passes Tail; docs/adr/0010), so that a block is missing only as long as a free is in progress. And a free writes its
//! slot only when it is its turn: a slot that is merely empty may be owed to an earlier deferred free (docs/adr/0002).

use crate::plants::{Plant, planted};
use crate::sync::{Mutex, Word32, Word64, fence};
use kbtp_wire::{AtomicForm, BlockOffset, RingCounter, RingOrder, RingSlot, Ticket};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Words of a slot, in their order in memory; word 1 is reserved.
const SEQUENCE: u32 = 0;
const HIGH: u32 = 2;
const LOW: u32 = 3;
/// Either half of [`BlockOffset::EMPTY`]. A Block Offset is a multiple of 4096, so the low half alone tells.
const ONES: u32 = u32::MAX;

/// The memory of one ring.
pub(crate) trait RingMemory {
    type U32: Word32;
    type U64: Word64;
    /// Head.
    fn head(&self) -> &Self::U64;
    /// Tail.
    fn tail(&self) -> &Self::U64;
    /// A word of a slot; big-endian in memory, the ring converts. `slot` is below N, `word` below 4.
    fn word(&self, slot: u32, word: u32) -> &Self::U32;
}

/// Frees that wait until their slot is consumed. It outlives every session; at most F entries, since each is a block.
#[derive(Debug)]
pub(crate) struct Deferred<U32> {
    /// Length of `list`, to pass by without the lock.
    len: U32,
    list: Mutex<Vec<(Ticket, BlockOffset)>>,
}

impl<U32: Word32> Deferred<U32> {
    pub(crate) fn new(len: U32, reserve: usize) -> Self {
        Self {
            len,
            list: Mutex::new(Vec::with_capacity(reserve)),
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> u32 {
        self.len.load(Acquire)
    }

    /// The blocks that wait.
    pub(crate) fn blocks(&self) -> Vec<BlockOffset> {
        self.list
            .with(|list| list.iter().map(|(_, block)| *block).collect())
    }

    /// Forgets all that wait and returns their blocks; nobody may use the ring.
    pub(crate) fn clear(&self) -> Vec<BlockOffset> {
        self.list.with(|list| {
            self.len.store(0, Release);
            list.drain(..).map(|(_, block)| block).collect()
        })
    }
}

/// A ring, ready to use.
#[derive(Debug)]
pub(crate) struct Ring<'a, M: RingMemory> {
    pub(crate) memory: M,
    pub(crate) order: RingOrder,
    pub(crate) form: AtomicForm,
    pub(crate) deferred: &'a Deferred<M::U32>,
}

/// How a free ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freed {
    /// The slot is written.
    Written,
    /// The write waits until the slot is consumed.
    Deferred,
}

impl<'a, M: RingMemory> Ring<'a, M> {
    /// Writes slots and counters of a new ring; nobody else uses it yet. `blocks` are at most N.
    //= kbtp-3.3-init-slots
    //= kbtp-3.3-init-counters
    pub(crate) fn format(&self, blocks: impl Iterator<Item = BlockOffset>) {
        let mut filled = 0_u32;
        for block in blocks.take(self.slots_usize()) {
            self.put(Ticket(filled), block);
            filled = filled.wrapping_add(1);
        }
        for slot in filled..self.order.slots() {
            // The Sequence of the turn before: the first free of this slot has ticket `slot`.
            let before = slot.wrapping_sub(self.order.slots());
            self.write(slot, HIGH, ONES, Relaxed);
            self.write(slot, LOW, ONES, Relaxed);
            self.write(slot, SEQUENCE, before, Release);
        }
        self.memory.head().store(self.counter(Ticket(0)).0, Release);
        self.memory
            .tail()
            .store(self.counter(Ticket(filled)).0, Release);
    }

    /// Free blocks: tickets of frees that no allocation has taken. Negative where a peer took too many.
    pub(crate) fn available(&self) -> i64 {
        let head = self.head();
        i64::from(self.tail().distance(head).cast_signed())
    }

    /// Ticket of the next allocation.
    pub(crate) fn head(&self) -> Ticket {
        RingCounter(self.memory.head().load(Acquire)).ticket()
    }

    /// Ticket of the next free.
    pub(crate) fn tail(&self) -> Ticket {
        RingCounter(self.memory.tail().load(Acquire)).ticket()
    }

    /// The FetchAdd on Head, unless no free has begun for that ticket: then `None`, and nothing is taken.
    /// Cost: one compare-and-swap when nobody else allocates.
    //= kbtp-3.3-allocation-ticket
    pub(crate) fn take(&self) -> Option<Ticket> {
        let mut head = self.memory.head().load(Acquire);
        loop {
            let counter = RingCounter(head);
            // Tail only grows, so that it is still ahead once Head is exchanged.
            if self.tail().distance(counter.ticket()).cast_signed() <= 0 {
                return None;
            }
            match self.memory.head().exchange(head, self.advanced(counter).0) {
                Ok(_) => return Some(counter.ticket()),
                Err(found) => head = found,
            }
        }
    }

    /// What the slot of a ticket holds.
    pub(crate) fn slot(&self, ticket: Ticket) -> RingSlot {
        let slot = self.slot_of(ticket);
        let sequence = self.read(slot, SEQUENCE, Acquire);
        RingSlot::from_words(
            sequence,
            self.read(slot, HIGH, Relaxed),
            self.read(slot, LOW, Relaxed),
        )
    }

    /// The block of a ticket, and the slot marked consumed; `None` while its free is in progress. Only the owner of
    /// the ticket may ask, again and again until there is one.
    //= kbtp-3.3-allocation-wait
    //= kbtp-3.3-mark-consumed
    pub(crate) fn consume(&self, ticket: Ticket) -> Option<BlockOffset> {
        // Acquire on the Sequence: the Block Offset was written before it.
        let mut block = self.slot(ticket).block_for(ticket);
        if planted(Plant::NoSequenceCheck) {
            block = Some(self.slot(ticket).block).filter(|block| *block != BlockOffset::EMPTY);
        }
        let Some(block) = block else {
            self.settle();
            return None;
        };
        let slot = self.slot_of(ticket);
        if planted(Plant::NotConsumed) {
            return Some(block);
        }
        // The low half last: it is what a free looks at, and by then both halves are ours no more.
        self.write(slot, HIGH, ONES, Relaxed);
        self.write(slot, LOW, ONES, Release);
        // Either this reads the deferred free that waits for the slot, or that free, which looks at the slot once more
        // after it has listed itself, sees it consumed. SeqCst, because both sides write one word and read the other.
        fence(SeqCst);
        self.settle();
        Some(block)
    }

    /// The FetchAdd on Tail and the write of the slot, now or as soon as the slot is consumed. The block is the
    /// ring's from here on. Cost: one compare-and-swap; a lock only if the write is deferred.
    //= kbtp-3.3-free-write
    //= kbtp-3.3-no-block-lost-or-twice
    pub(crate) fn free(&self, block: BlockOffset) -> Freed {
        let ticket = self.advance_tail();
        if self.write_in_turn(ticket, block) {
            return Freed::Written;
        }
        //= kbtp-3.3-free-deferred
        self.deferred.list.with(|list| {
            list.push((ticket, block));
            self.deferred.len.fetch_add(1, Release);
        });
        fence(SeqCst);
        self.settle();
        Freed::Deferred
    }

    /// Writes the deferred frees whose slot is consumed by now. Cost: one load if there are none.
    //= kbtp-3.3-free-deferred
    pub(crate) fn settle(&self) {
        if self.deferred.len() == 0 {
            return;
        }
        self.deferred.list.with(|list| {
            let before = list.len();
            list.retain(|(ticket, block)| !self.write_in_turn(*ticket, *block));
            let written = u32::try_from(before.saturating_sub(list.len())).unwrap_or(u32::MAX);
            self.deferred.len.fetch_sub(written, Release);
        });
    }

    /// The blocks of the next `count` allocations. While others use the ring what moves is missed.
    pub(crate) fn upcoming(self, count: u32) -> impl Iterator<Item = BlockOffset> + use<'a, M> {
        let free = u32::try_from(self.available()).unwrap_or(0).min(count);
        let mut ticket = self.head();
        (0..free).filter_map(move |_| {
            let block = self.slot(ticket).block_for(ticket);
            ticket = ticket.next();
            block
        })
    }

    /// Every block that stands in a slot, and whether it is free: else the ticket it is for was taken. While others use
    /// the ring what moves is missed, or found half.
    pub(crate) fn blocks(self) -> impl Iterator<Item = (BlockOffset, bool)> + use<'a, M> {
        let head = self.head();
        (0..self.order.slots()).filter_map(move |slot| {
            let slot = self.slot(Ticket(slot));
            let free = slot.sequence.distance(head).cast_signed() >= 0;
            (!slot.is_consumed()).then_some((slot.block, free))
        })
    }

    /// Writes the slot of a free if it is this ticket's turn and the slot is consumed.
    //= kbtp-3.3-free-no-overwrite
    pub(super) fn write_in_turn(&self, ticket: Ticket, block: BlockOffset) -> bool {
        let slot = self.slot_of(ticket);
        let turn = ticket.0.wrapping_sub(self.order.slots());
        // The Sequence first. Once it is that of the turn before, nobody but this free writes the slot any more, but for
        // the mark that it is consumed. Read after the Block Offset, it could be that of a free that has filled the slot
        // in between, and the Block Offset that of the slot while it was empty still. Acquire: the Block Offset of
        // the turn before came before its Sequence, and who marked the slot consumed is done with it.
        let right =
            self.read(slot, SEQUENCE, Acquire) == turn && self.read(slot, LOW, Acquire) == ONES;
        if right || planted(Plant::NoDeferral) {
            self.put(ticket, block);
            true
        } else {
            false
        }
    }

    /// Block Offset, then Sequence.
    //= kbtp-3.3-offset-before-sequence
    fn put(&self, ticket: Ticket, block: BlockOffset) {
        let slot = self.slot_of(ticket);
        let [_, _, _, _, b4, b5, b6, b7] = block.0.to_be_bytes();
        let [b0, b1, b2, b3, ..] = block.0.to_be_bytes();
        if planted(Plant::SequenceFirst) {
            self.write(slot, SEQUENCE, ticket.0, Release);
        }
        self.write(slot, HIGH, u32::from_be_bytes([b0, b1, b2, b3]), Relaxed);
        self.write(slot, LOW, u32::from_be_bytes([b4, b5, b6, b7]), Relaxed);
        if planted(Plant::SequenceFirst) {
            return;
        }
        self.write(slot, SEQUENCE, ticket.0, Release);
    }

    fn advance_tail(&self) -> Ticket {
        let mut tail = self.memory.tail().load(Acquire);
        loop {
            let counter = RingCounter(tail);
            match self.memory.tail().exchange(tail, self.advanced(counter).0) {
                Ok(_) => return counter.ticket(),
                Err(found) => tail = found,
            }
        }
    }

    fn counter(&self, ticket: Ticket) -> RingCounter {
        match self.form {
            AtomicForm::Masked => RingCounter::at(ticket, self.order),
            AtomicForm::Unmasked => RingCounter::at_unmasked(ticket),
        }
    }

    fn advanced(&self, counter: RingCounter) -> RingCounter {
        match self.form {
            AtomicForm::Masked => counter.advanced(self.order),
            AtomicForm::Unmasked => counter.advanced_unmasked(),
        }
    }

    fn slot_of(&self, ticket: Ticket) -> u32 {
        ticket.0 & self.order.slots().wrapping_sub(1)
    }

    fn slots_usize(&self) -> usize {
        usize::try_from(self.order.slots()).unwrap_or(usize::MAX)
    }

    fn read(&self, slot: u32, word: u32, order: std::sync::atomic::Ordering) -> u32 {
        u32::from_be(self.memory.word(slot, word).load(order))
    }

    fn write(&self, slot: u32, word: u32, value: u32, order: std::sync::atomic::Ordering) {
        self.memory.word(slot, word).store(value.to_be(), order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A word that another party writes after so many loads of it and its neighbours.
    struct Changing {
        before: u32,
        after: u32,
        loads: Rc<Cell<u32>>,
    }

    impl Word32 for Changing {
        fn load(&self, _: Ordering) -> u32 {
            let left = self.loads.get();
            self.loads.set(left.saturating_sub(1));
            if left == 0 { self.after } else { self.before }.to_be()
        }
        fn store(&self, _: u32, _: Ordering) {
            panic!("the slot is not free");
        }
        fn fetch_add(&self, _: u32, _: Ordering) -> u32 {
            panic!("the slot is not free");
        }
        fn fetch_sub(&self, _: u32, _: Ordering) -> u32 {
            panic!("the slot is not free");
        }
        fn fetch_or(&self, _: u32, _: Ordering) -> u32 {
            panic!("the slot is not free");
        }
        fn exchange(&self, _: u32, _: u32) -> bool {
            panic!("the slot is not free");
        }
    }

    struct Filled([Changing; 4], AtomicU64);

    impl RingMemory for &Filled {
        type U32 = Changing;
        type U64 = AtomicU64;
        fn head(&self) -> &AtomicU64 {
            &self.1
        }
        fn tail(&self) -> &AtomicU64 {
            &self.1
        }
        fn word(&self, slot: u32, word: u32) -> &Changing {
            assert_eq!(slot, 0);
            &self.0[usize::try_from(word).unwrap()]
        }
    }

    /// The free of ticket 0 fills its slot while that of ticket 2, the next one there, looks whether it may.
    //= test kbtp-3.3-free-no-overwrite
    #[test]
    fn a_slot_that_is_filled_between_two_looks_at_it_is_not_written() {
        for loads in 0..4 {
            let loads = Rc::new(Cell::new(loads));
            let word = |before, after| Changing {
                before,
                after,
                loads: Rc::clone(&loads),
            };
            let empty = Ticket(0).0.wrapping_sub(2);
            let words = [
                word(empty, 0),
                word(0, 0),
                word(ONES, 0),
                word(ONES, 0x1000),
            ];
            let memory = Filled(words, AtomicU64::new(0));
            let ring = Ring {
                memory: &memory,
                order: RingOrder::new(1).unwrap(),
                form: AtomicForm::Masked,
                deferred: &Deferred::new(word(0, 0), 0),
            };
            assert!(!ring.write_in_turn(Ticket(2), BlockOffset(0x2000)));
        }
    }
}
