//! Every interleaving, and every value that weak memory may show, of the lock-free parts. Run with
//! `make loom`.

use super::entry;
use super::homes;
use super::pins::{self, Then};
use super::ring::{Deferred, Ring, RingMemory};
use crate::sync::Word32;
use kbtp_wire::{
    AtomicForm, BlockOffset, ByteLen, EntryFlags, Generation, RingOrder, TableEntry, Ticket,
};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Two slots, two blocks.
struct Memory {
    head: AtomicU64,
    tail: AtomicU64,
    words: [AtomicU32; 8],
    deferred: Deferred<AtomicU32>,
}

impl RingMemory for &Memory {
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    fn head(&self) -> &AtomicU64 {
        &self.head
    }
    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }
    fn word(&self, slot: u32, word: u32) -> &AtomicU32 {
        &self.words[usize::try_from(slot * 4 + word).unwrap()]
    }
}

fn ring(memory: &Memory) -> Ring<'_, &Memory> {
    Ring {
        memory,
        order: RingOrder::new(1).unwrap(),
        form: AtomicForm::Masked,
        deferred: &memory.deferred,
    }
}

fn two_blocks() -> Arc<Memory> {
    let memory = Memory {
        head: AtomicU64::new(0),
        tail: AtomicU64::new(0),
        words: std::array::from_fn(|_| AtomicU32::new(0)),
        deferred: Deferred::new(AtomicU32::new(0), 0),
    };
    ring(&memory).format((1..=2).map(|b| BlockOffset(b << 12)));
    Arc::new(memory)
}

fn consume(memory: &Memory, ticket: Ticket) -> BlockOffset {
    loop {
        if let Some(block) = ring(memory).consume(ticket) {
            return block;
        }
        thread::yield_now();
    }
}

/// All blocks once, none deferred, and the tickets agree.
fn whole(memory: &Memory) {
    assert_eq!(memory.deferred.len(), 0);
    assert_eq!(ring(memory).available(), 2);
    let mut blocks: Vec<_> = (0..2)
        .map(|_| {
            ring(memory)
                .consume(ring(memory).take().unwrap())
                .expect("written")
                .0
                >> 12
        })
        .collect();
    blocks.sort_unstable();
    assert_eq!(blocks, [1, 2]);
}

//= test kbtp-3.3-no-block-lost-or-twice
//= test kbtp-3.3-free-deferred
#[test]
fn loom_allocations_and_frees_of_two_threads() {
    loom::model(|| {
        let memory = two_blocks();
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let ticket = ring(&memory).take().unwrap();
                let block = consume(&memory, ticket);
                ring(&memory).free(block);
            })
        };
        for _ in 0..2 {
            // One of two blocks is ours at any time, so a free has always begun.
            let ticket = ring(&memory).take().expect("a block is free");
            let block = consume(&memory, ticket);
            ring(&memory).free(block);
        }
        other.join().unwrap();
        whole(&memory);
    });
}

/// The free of ticket 2 and the allocation of ticket 0 meet at slot 0: one of them writes the slot, without anybody
/// looking again later.
//= test kbtp-3.3-free-deferred
#[test]
fn loom_a_deferred_free_is_never_forgotten() {
    loom::model(|| {
        let memory = two_blocks();
        let slow = ring(&memory).take().unwrap();
        let ticket = ring(&memory).take().unwrap();
        let mine = consume(&memory, ticket);
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                ring(&memory)
                    .consume(slow)
                    .expect("written before the threads")
            })
        };
        ring(&memory).free(mine);
        let block = other.join().unwrap();
        assert_eq!(memory.deferred.len(), 0);
        assert_eq!(
            ring(&memory).slot(Ticket(2)).block_for(Ticket(2)),
            Some(mine)
        );
        ring(&memory).free(block);
        whole(&memory);
    });
}

struct Block {
    entry: [AtomicU32; 4],
    pins: AtomicU32,
    /// Who may write the block: the stamp its data would have.
    data: AtomicU32,
    returned: AtomicU32,
}

impl Block {
    fn words(&self) -> entry::Words<'_, AtomicU32> {
        self.entry.each_ref()
    }

    /// What the ring's next owner does.
    fn give_back(&self) {
        assert_eq!(
            self.returned
                .fetch_add(1, std::sync::atomic::Ordering::AcqRel),
            0,
            "twice"
        );
        self.data.store(99, Relaxed);
    }
}

fn bound_block() -> Arc<Block> {
    let block = Block {
        entry: std::array::from_fn(|_| AtomicU32::new(0)),
        pins: AtomicU32::new(0),
        data: AtomicU32::new(7),
        returned: AtomicU32::new(0),
    };
    let entry = entry::bound(None, BlockOffset(4096), ByteLen(7), true);
    entry::bind(block.words(), &entry);
    Arc::new(block)
}

fn load(block: &Block) {
    let block_of = |_: &TableEntry| Some(((), &block.pins));
    let (_, pinned) = pins::pin_bound(block.words(), block_of, |()| block.give_back());
    if pinned.is_some() {
        // "Sends" the block.
        assert_eq!(block.data.load(Relaxed), 7, "another owner's data was sent");
        if pins::unpin(&block.pins) == Then::Return {
            block.give_back();
        }
    }
}

//= test kbtp-6.4-entry-before-return
#[test]
fn loom_a_load_never_sends_a_block_that_was_given_on() {
    loom::model(|| {
        let block = bound_block();
        let loaders: Vec<_> = (0..2)
            .map(|_| {
                let block = Arc::clone(&block);
                thread::spawn(move || load(&block))
            })
            .collect();
        entry::unbind(block.words());
        if pins::set_freed(&block.pins) == Then::Return {
            block.give_back();
        }
        for loader in loaders {
            loader.join().unwrap();
        }
        assert_eq!(
            block.returned.load(Acquire),
            1,
            "returned once, by somebody"
        );
        assert_eq!(Word32::load(&block.pins, Relaxed), 0);
    });
}

//= test kbtp-3.2-bind-order
//= test kbtp-6.3-entry-after-data
#[test]
fn loom_a_reader_sees_one_entry_and_its_data() {
    loom::model(|| {
        let block = bound_block();
        let reader = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                let entry = entry::read(block.words());
                if entry.is_valid() {
                    let generation = entry.generation.map(Generation::get);
                    let (len, offset) = match generation {
                        Some(1) => (7, 4096),
                        Some(3) => (8, 8192),
                        other => panic!("generation {other:?}"),
                    };
                    assert_eq!((entry.data_len.0, entry.block.0), (len, offset), "torn");
                    if generation == Some(3) {
                        assert_eq!(block.data.load(Relaxed), 8, "entry before data");
                    }
                }
            })
        };
        let generation = entry::unbind(block.words());
        block.data.store(8, Relaxed);
        let entry = TableEntry {
            flags: EntryFlags::VALID,
            generation: Some(generation.next()),
            data_len: ByteLen(8),
            block: BlockOffset(8192),
        };
        entry::bind(block.words(), &entry);
        reader.join().unwrap();
    });
}

/// A partition with a block in the hands of one who returns it, while it is dissolved.
struct Leaving {
    home: AtomicU32,
    returning: AtomicU32,
    /// Blocks in the partition's ring, and in the shared one.
    rings: [AtomicU32; 2],
}

/// What `Pool::put_back` does.
fn put_back(leaving: &Leaving) {
    let at_home = homes::while_at(&leaving.home, &leaving.returning, 1, || {
        leaving.rings[0].fetch_add(1, Relaxed);
    });
    if at_home.is_none() {
        leaving.rings[1].fetch_add(1, Relaxed);
    }
}

//= test kbtp-6.4-return-to-its-ring
#[test]
fn loom_a_partition_is_not_dissolved_under_a_free() {
    loom::model(|| {
        let leaving = Arc::new(Leaving {
            home: AtomicU32::new(1),
            returning: AtomicU32::new(0),
            rings: [AtomicU32::new(0), AtomicU32::new(0)],
        });
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let leaving = Arc::clone(&leaving);
                thread::spawn(move || put_back(&leaving))
            })
            .collect();
        while !homes::close([&leaving.home].into_iter(), &leaving.returning, 1) {
            thread::yield_now();
        }
        // What `Pool::dissolve` finds in the partition's ring goes to the shared one.
        let found = leaving.rings[0].load(Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
        let [left, shared] = leaving.rings.each_ref().map(|ring| ring.load(Relaxed));
        assert_eq!(left, found, "a free went to a ring that is no more");
        assert_eq!(left + shared, 2);
    });
}
