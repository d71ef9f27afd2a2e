//! `Ring::take`, `Ring::consume` and `Ring::free` of a pool's shared ring follow the model `ring`, access by access.

use super::Way;
use crate::pool::ring::{Freed, Ring, RingMemory};
use crate::pool::tests::pool;
use crate::pool::{Home, Pool};
use crate::schedules::check;
use crate::sync::watch::{Used, tell};
use kbtp_models::ring::{Action, Deferred, Ring as Model, Rules, Stage, Step, Taking};
use kbtp_wire::{BlockOffset, RingCounter, RingSlot, Ticket};
use shuttle::thread;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;

const ONES: u64 = u32::MAX as u64;

/// What a word is.
#[derive(Clone, Copy)]
enum Place {
    Head,
    Tail,
    /// Sequence 0, Block Offset high 2 and low 3 of a slot.
    Slot(usize, usize),
}

/// A thread of the product, as a party of the model.
#[derive(Clone, Copy)]
enum Doing {
    Nothing,
    Take,
    /// Loads of the slot that are done.
    Consume(Ticket, usize),
    Free,
}

struct Follower {
    way: Way<Model>,
    /// The model's first ticket; the product's first is 0.
    first: u32,
    slots: u32,
    places: BTreeMap<usize, Place>,
    parties: BTreeMap<usize, usize>,
    doing: Vec<Doing>,
    words: Vec<[u64; 4]>,
    offsets: Vec<BlockOffset>,
}

thread_local! {
    static FOLLOWER: RefCell<Option<Follower>> = const { RefCell::new(None) };
}

/// Shuttle's threads are parts of one thread of the system.
fn with<R>(f: impl FnOnce(&mut Follower) -> R) -> R {
    FOLLOWER.with_borrow_mut(|follower| f(follower.as_mut().expect("somebody follows")))
}

fn ring(pool: &Pool) -> Ring<'_, impl RingMemory<U32 = crate::pool::AtomicU32>> {
    pool.ring(Home::Shared)
}

impl Follower {
    fn new(pool: &Pool, quotas: &[u8]) -> Self {
        let blocks = pool.geometry().blocks;
        let ring = pool.ring(Home::Shared);
        let slots = ring.order.slots();
        let way = Way::new(Model {
            slots: u8::try_from(slots).unwrap(),
            blocks: u8::try_from(blocks).unwrap(),
            quotas: quotas.to_vec(),
            allocations: u8::MAX,
            taking: Taking::Begun,
            rules: Rules::AsSpecified,
        });
        let address = |word: &crate::pool::AtomicU32| std::ptr::from_ref(word).addr();
        let mut places = BTreeMap::from([
            (std::ptr::from_ref(ring.memory.head()).addr(), Place::Head),
            (std::ptr::from_ref(ring.memory.tail()).addr(), Place::Tail),
        ]);
        let first = u32::from(way.state.head());
        let mut words = vec![[0; 4]; usize::try_from(slots).unwrap()];
        for slot in 0..slots {
            // The model's slot, since its tickets begin elsewhere.
            let at = usize::try_from((slot + first) % slots).unwrap();
            for (word, number) in (0..4).zip(0..) {
                let place = Place::Slot(at, number);
                places.insert(address(ring.memory.word(slot, word)), place);
            }
            let RingSlot { sequence, block } = ring.slot(Ticket(slot));
            words[at] = [sequence.0.into(), 0, block.0 >> 32, block.0 & ONES];
        }
        let offsets = (0..blocks).map(|b| pool.geometry().offset_of(crate::BlockIndex(b)));
        let follower = Self {
            first,
            way,
            slots,
            places,
            parties: BTreeMap::new(),
            doing: vec![Doing::Nothing; quotas.len()],
            words,
            offsets: offsets.collect(),
        };
        follower.same("at first");
        follower
    }

    /// The model's ticket.
    fn ticket(&self, ticket: Ticket) -> u8 {
        u8::try_from(ticket.0.wrapping_add(self.first) % (4 * self.slots)).unwrap()
    }

    fn slot(&self, ticket: u8) -> usize {
        usize::from(ticket) % self.words.len()
    }

    /// The model's block.
    fn block(&self, offset: BlockOffset) -> u8 {
        let at = self.offsets.iter().position(|o| *o == offset);
        self.way
            .must(at.is_some(), || format!("{offset} is no block"));
        u8::try_from(at.unwrap_or_default()).unwrap()
    }

    fn party(&self, thread: usize) -> usize {
        *self.parties.get(&thread).expect("a thread of the test")
    }

    fn go(&mut self, what: &'static str, action: Action) {
        self.way.go(what, action);
        self.same(what);
    }

    /// The words of the slots are what the model says.
    fn same(&self, what: &str) {
        for (at, [sequence, _, _, low]) in self.words.iter().enumerate() {
            let sequence = self.ticket(Ticket(u32::try_from(*sequence).unwrap()));
            let low_of = |block: &u8| self.offsets[usize::from(*block)].0 & ONES;
            let (turn, block) = self.way.state.slot(at);
            let same = turn == sequence && block.as_ref().map_or(ONES, low_of) == *low;
            self.way
                .must(same, || format!("{what}: slot {at} is {sequence}, {low:x}"));
        }
    }

    fn step(&self, party: usize) -> Step {
        self.way.state.step(party)
    }

    fn begin(&mut self, doing: Doing) -> usize {
        let party = self.party(shuttle::current::me().into());
        self.doing[party] = doing;
        party
    }

    /// The operation has ended, so that its party has come to this.
    fn end(&mut self, party: usize, step: Step) {
        self.doing[party] = Doing::Nothing;
        self.way.must(self.step(party) == step, || {
            format!("party {party} has ended")
        });
    }

    fn used(&mut self, used: Used) {
        let Some(place) = self.places.get(&used.address).copied() else {
            return;
        };
        let party = self.party(used.thread);
        match (place, used.written) {
            (Place::Head, true) => {
                let doing = matches!(self.doing[party], Doing::Take);
                self.way.must(doing, || "Head changes".into());
                self.go("takes a ticket", Action::Allocate(party));
                let head = self.ticket(RingCounter(used.value).ticket());
                self.way
                    .must(self.way.state.head() == head, || format!("Head is {head}"));
            }
            (Place::Tail, true) => {
                let doing = matches!(self.step(party), Step::TakeTail(_));
                self.way.must(doing, || "Tail changes".into());
                self.go("takes a Tail ticket", Action::Go(party));
                let tail = self.ticket(RingCounter(used.value).ticket());
                self.way
                    .must(self.way.state.tail() == tail, || format!("Tail is {tail}"));
            }
            (Place::Head | Place::Tail, false) => {}
            // In memory they are big-endian.
            (Place::Slot(slot, word), written) => {
                let value = u32::try_from(used.value).unwrap().swap_bytes();
                if written {
                    self.write(party, slot, word, value.into());
                } else {
                    self.read(party, slot, word, value.into());
                }
            }
        }
    }

    fn read(&mut self, party: usize, slot: usize, word: usize, value: u64) {
        match self.doing[party] {
            // `Ring::slot`: Sequence, Block Offset high, low. What is read of slots after that is for others.
            Doing::Consume(ticket, loads) if loads < 3 => {
                self.doing[party] = Doing::Consume(ticket, loads + 1);
                match (loads, word, self.step(party)) {
                    (0, 0, Step::ReadSequence(_)) if value == u64::from(ticket.0) => {
                        self.go("reads its Sequence", Action::Go(party));
                    }
                    (2, 3, Step::ReadOffset(_)) => self.go("reads its block", Action::Go(party)),
                    _ => {}
                }
            }
            _ => match (self.step(party), word) {
                // `Ring::write_in_turn` for its own free: the Sequence, and the low half if it is its turn.
                (Step::CheckSlot(ticket, _), 0) | (Step::CheckAgain(ticket, _), 3)
                    if self.slot(ticket) == slot =>
                {
                    self.go("looks at its slot", Action::Go(party));
                }
                _ => self.settles(slot, word, value),
            },
        }
    }

    /// A look at a slot for a free that waits, in `Ring::settle`. One that changes nothing is no step.
    fn settles(&mut self, slot: usize, word: usize, value: u64) {
        let looks = |d: &Deferred| match (d.stage, word) {
            (Stage::Waiting, 0) => {
                let turn = Ticket(u32::try_from(value).unwrap().wrapping_add(self.slots));
                self.ticket(turn) == d.ticket
            }
            (Stage::Turn, 3) => value == ONES,
            _ => false,
        };
        if let Some(at) = self.waiting(slot, looks) {
            self.go("looks again", Action::Write(at));
        }
    }

    fn write(&mut self, party: usize, slot: usize, word: usize, value: u64) {
        self.words[slot][word] = value;
        match word {
            0 => {
                let ticket = self.ticket(Ticket(u32::try_from(value).unwrap()));
                let action = match self.step(party) {
                    Step::WriteSecond(own, _) if own == ticket => Action::Go(party),
                    _ => self.late(slot, |d| d.ticket == ticket && d.stage == Stage::Half),
                };
                self.go("writes a Sequence", action);
                let [_, _, high, low] = self.words[slot];
                self.block(BlockOffset(high << 32 | low));
            }
            3 if value == ONES => {
                let doing = matches!(self.doing[party], Doing::Consume(..));
                self.way.must(doing, || format!("slot {slot} is emptied"));
                self.go("marks its slot consumed", Action::Go(party));
            }
            3 => {
                let [_, _, high, low] = self.words[slot];
                let block = self.block(BlockOffset(high << 32 | low));
                let action = match self.step(party) {
                    Step::WriteFirst(own, b) if b == block && self.slot(own) == slot => {
                        Action::Go(party)
                    }
                    _ => self.late(slot, |d| d.block == block && d.stage == Stage::Ready),
                };
                self.go("writes a Block Offset", action);
            }
            _ => {}
        }
    }

    fn waiting(&self, slot: usize, is: impl Fn(&Deferred) -> bool) -> Option<usize> {
        let mut deferred = self.way.state.deferred().iter();
        deferred.position(|d| self.slot(d.ticket) == slot && is(d))
    }

    /// The write of a free that waited.
    fn late(&self, slot: usize, is: impl Fn(&Deferred) -> bool) -> Action {
        let found = self.waiting(slot, is);
        self.way.must(found.is_some(), || {
            format!("slot {slot} is written for no free")
        });
        Action::Write(found.unwrap_or_default())
    }
}

fn take(pool: &Pool) -> Ticket {
    loop {
        let party = with(|f| f.begin(Doing::Take));
        let taken = ring(pool).take();
        with(|f| {
            let ticket = taken.map(|ticket| Step::ReadSequence(f.ticket(ticket)));
            f.end(party, ticket.unwrap_or(Step::Idle));
        });
        match taken {
            Some(ticket) => return ticket,
            None => thread::yield_now(),
        }
    }
}

fn consume(pool: &Pool, ticket: Ticket) -> BlockOffset {
    loop {
        let party = with(|f| f.begin(Doing::Consume(ticket, 0)));
        let consumed = ring(pool).consume(ticket);
        with(|f| match consumed {
            None => f.end(party, Step::ReadSequence(f.ticket(ticket))),
            Some(offset) => {
                f.end(party, Step::Idle);
                let block = f.block(offset);
                let own = f.way.state.owned(party).contains(&block);
                f.way
                    .must(own, || format!("party {party} has got {offset}"));
            }
        });
        match consumed {
            Some(block) => return block,
            None => thread::yield_now(),
        }
    }
}

fn free(pool: &Pool, offset: BlockOffset) -> Freed {
    let party = with(|f| {
        let party = f.begin(Doing::Free);
        let block = f.block(offset);
        let owned = f.way.state.owned(party).iter();
        let at = owned.into_iter().position(|b| *b == block);
        f.go("frees a block", Action::Free(party, at.expect("its own")));
        party
    });
    let freed = ring(pool).free(offset);
    with(|f| f.end(party, Step::Idle));
    freed
}

/// Steps that were made, over all schedules.
static SEEN: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Each thread takes as many blocks as its quota, and frees them, some times over.
fn run(blocks: u32, quotas: &'static [u8], turns: u32) {
    let pool = Arc::new(pool(blocks));
    let follower = Follower::new(&pool, quotas);
    FOLLOWER.set(Some(follower));
    tell(Some(|used| with(|f| f.used(used))));
    let threads = quotas.iter().enumerate().map(|(party, quota)| {
        let pool = Arc::clone(&pool);
        thread::spawn(move || {
            with(|f| f.parties.insert(shuttle::current::me().into(), party));
            let mut deferred = 0;
            for _ in 0..turns {
                let held: Vec<_> = (0..*quota).map(|_| consume(&pool, take(&pool))).collect();
                for block in held {
                    deferred += u64::from(free(&pool, block) == Freed::Deferred);
                }
            }
            deferred
        })
    });
    let threads: Vec<_> = threads.collect();
    let deferred: u64 = threads.into_iter().map(|t| t.join().unwrap()).sum();
    tell(None);
    let follower = FOLLOWER.take().unwrap();
    let waiting = follower.way.state.deferred();
    follower.way.must(waiting.is_empty(), || "the end".into());
    assert_eq!(pool.usage().deferred, 0);
    assert_eq!(pool.audit().in_rings, blocks);
    let mut seen = SEEN.lock().unwrap();
    for (what, count) in follower.way.steps {
        *seen.entry(what).or_default() += count;
    }
    *seen.entry("a free is deferred").or_default() += deferred;
}

fn a_full_ring() {
    run(2, &[1, 1], 4);
}

fn fewer_blocks_than_slots() {
    run(3, &[1, 1, 1], 5);
}

/// What must have happened in some schedule, for the rest to mean something.
fn seen() {
    let seen = SEEN.lock().unwrap();
    eprintln!("{seen:?}");
    assert_eq!(seen.len(), 11, "{seen:?}");
    assert!(seen.values().all(|count| *count > 0), "{seen:?}");
}

//= test kbtp-3.3-no-block-lost-or-twice
//= test kbtp-3.3-offset-before-sequence
//= test kbtp-3.3-free-deferred
#[test]
fn shuttle_a_full_ring_follows_its_model() {
    check(a_full_ring);
    seen();
}

//= test kbtp-3.3-no-block-lost-or-twice
//= test kbtp-3.3-free-deferred
#[test]
fn shuttle_a_ring_with_fewer_blocks_than_slots_follows_its_model() {
    check(fewer_blocks_than_slots);
}

#[cfg(feature = "plants")]
mod astray {
    use super::super::strays;
    use super::a_full_ring;
    use crate::plants::Plant;

    //= test kbtp-3.3-free-no-overwrite
    #[test]
    fn shuttle_a_slot_written_before_it_is_free_is_no_step_of_the_model() {
        strays(Plant::NoDeferral, a_full_ring);
    }

    //= test kbtp-3.3-allocation-wait
    #[test]
    fn shuttle_a_block_taken_whatever_the_sequence_is_no_step_of_the_model() {
        strays(Plant::NoSequenceCheck, a_full_ring);
    }

    //= test kbtp-3.3-offset-before-sequence
    #[test]
    fn shuttle_a_sequence_written_before_the_block_offset_is_no_step_of_the_model() {
        strays(Plant::SequenceFirst, a_full_ring);
    }

    //= test kbtp-3.3-mark-consumed
    #[test]
    fn shuttle_a_slot_left_as_it_is_is_no_step_of_the_model() {
        strays(Plant::NotConsumed, a_full_ring);
    }
}
