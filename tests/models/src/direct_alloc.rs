//! Direct Allocation: two allocations of one initiator race on its ring, beside the target's own and beside frees
//! (draft, sections 3.3, 3.4 and 6.6).
//!
//! The initiator reads a slot one word of 32 bits at a time, in any order; the target writes and consumes a slot one word
//! at a time, in its order. Any operation may be forgotten by its initiator, any ticket may run out at any time.
//!
//! | step | function of the product |
//! |---|---|
//! | `FetchAdd` | `Act::TakeTicket`, `Initiator::taken` |
//! | `Read(op, word)` | `Act::ReadSlot`; the last word: `step_direct`, `confirmed` |
//! | `Write`, `Send` | `Act::WriteBlock`, `Act::Bind` |
//! | `Bind`, `Consumed` | `Open::bind_checked`, `Tickets::check`, `Ring::consume` |
//! | `Look`, `Timeout`, `Reclaim` | `Tickets::look`, `handle_timeout` with `revoke`, `reclaim` |
//! | `OwnTake`, `OwnConsume` | `Tickets::take`, `Open::take_block` |
//! | `Free`, `Put`, `Settle` | `Pool::free`, `Ring::free`, `Ring::put`, `Ring::settle` |

use crate::marks::Marks;
use stateright::{Model, Property};

/// A torn slot was taken.
const TORN_TAKEN: u16 = 1 << 0;
/// A write reached a block that is not its ticket's.
const FOREIGN_WRITE: u16 = 1 << 1;
/// A slot was overwritten.
const OVERWRITTEN: u16 = 1 << 2;
/// A torn slot was read again.
const RETRIED: u16 = 1 << 3;
/// A BIND came too late.
const LATE: u16 = 1 << 4;

/// Which rule is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// None: as the product does it.
    AsBuilt,
    /// The initiator reads the slot once.
    NoConfirmation,
    /// It takes any Block Offset it finds twice, whatever the Sequence.
    NoSequenceCheck,
    /// The target writes the Sequence before the Block Offset.
    SequenceFirst,
    /// It writes a slot that is not consumed yet.
    NoDeferral,
    /// It does not consume the slot of a BIND.
    BindKeepsSlot,
    /// It judges a BIND by its Block Offset alone.
    BindUnverified,
    /// It reclaims blocks while the initiator's STags reach them.
    ReclaimBeforeRevoke,
    /// It takes no ticket to be abandoned.
    NoTimeout,
}

/// The model: how large, and by which rules. Two blocks in two slots.
#[derive(Clone, Debug)]
pub struct DirectAlloc {
    /// Allocations in all.
    pub allocations: u8,
    /// Operations of the initiator at a time.
    pub racing: usize,
    /// The target allocates too.
    pub own: bool,
    /// Rule left out.
    pub rules: Rules,
}

/// Sequence, Block Offset high, low.
type Words = [u8; 3];

const SEQUENCE: usize = 0;
const HIGH: usize = 1;
const LOW: usize = 2;
/// Either half of an empty Block Offset.
const ONES: u8 = 2;
const SLOTS: u8 = 2;
const WRAP: u8 = 4 * SLOTS;
const QUOTA: usize = 2;
/// Halves of the Block Offsets of the two blocks: a torn one is neither.
const BLOCKS: [[u8; 2]; 2] = [[0, 1], [1, 0]];

/// An operation of the initiator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Op {
    ticket: u8,
    phase: Phase,
}

/// Where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Phase {
    /// Reads the slot: the words it has, and those of the read before.
    Seeking(u8, Words, Words),
    /// Reads it again: what it found, the words it has.
    Confirming([u8; 2], u8, Words),
    /// Has its block.
    Found([u8; 2]),
    /// The RDMA Write is placed.
    Written([u8; 2]),
    /// BIND is sent.
    Sent([u8; 2]),
}

/// What a slot is being consumed for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum For {
    /// A BIND, or the target's own allocation.
    Use,
    /// An abandoned ticket.
    Reclaim,
}

/// A slot write: ticket, block, words that are written.
type Put = (u8, u8, u8);

/// One state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    head: u8,
    tail: u8,
    slots: [Words; 2],
    deferred: Vec<(u8, u8)>,
    puts: Vec<Put>,
    consuming: Option<(u8, u8, For)>,
    ops: Vec<Op>,
    next: u8,
    open: Vec<(u8, bool)>,
    abandoned: Vec<u8>,
    own: Option<u8>,
    bound: Vec<u8>,
    stags: bool,
    dead: bool,
    left: u8,
    marks: Marks,
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The initiator takes a ticket.
    FetchAdd,
    /// Its n-th operation reads a word of its slot.
    Read(usize, usize),
    /// It writes the block.
    Write(usize),
    /// It sends BIND.
    Send(usize),
    /// It forgets the operation.
    Forget(usize),
    /// The target takes the BIND.
    Bind(usize),
    /// It has marked the slot consumed.
    Consumed,
    /// It looks at Head.
    Look,
    /// The first n open tickets are over their time.
    Timeout(usize),
    /// It begins to reclaim the block of a lost ticket.
    Reclaim(u8),
    /// It takes a ticket itself.
    OwnTake,
    /// It begins to take the block.
    OwnConsume,
    /// It frees a bound block.
    Free(u8),
    /// A word of the n-th slot write is written.
    Put(usize),
    /// The n-th deferred free has its turn.
    Settle(usize),
}

const fn distance(from: u8, to: u8) -> u8 {
    (to + WRAP - from) % WRAP
}

const fn next(ticket: u8) -> u8 {
    (ticket + 1) % WRAP
}

fn slot(ticket: u8) -> usize {
    usize::from(ticket % SLOTS)
}

fn halves(block: u8) -> [u8; 2] {
    BLOCKS[usize::from(block)]
}

impl State {
    /// `Ring::slot` and `RingSlot::block_for`.
    fn block_for(&self, ticket: u8) -> Option<[u8; 2]> {
        block_for(self.slots[slot(ticket)], ticket)
    }

    fn known(&self, ticket: u8) -> Option<u8> {
        let found = self.block_for(ticket)?;
        let at = BLOCKS.iter().position(|b| *b == found)?;
        u8::try_from(at).ok()
    }

    fn look(&mut self) {
        while self.next != self.head {
            self.open.push((self.next, false));
            self.next = next(self.next);
        }
    }

    fn usage(&self) -> usize {
        let consuming = matches!(self.consuming, Some((_, _, For::Use)));
        self.bound.len()
            + self.open.len()
            + usize::from(distance(self.next, self.head))
            + usize::from(self.own.is_some())
            + usize::from(consuming)
    }

    fn die(&mut self) {
        self.dead = true;
        self.stags = false;
        self.ops.clear();
        self.open.clear();
        self.next = self.head;
        self.own = None;
    }
}

fn block_for(words: Words, ticket: u8) -> Option<[u8; 2]> {
    let [sequence, high, low] = words;
    let empty = high == ONES && low == ONES;
    (sequence == ticket && !empty).then_some([high, low])
}

impl DirectAlloc {
    /// `Ring::write_in_turn`, but for the writes.
    fn in_turn(&self, state: &State, ticket: u8) -> bool {
        let [sequence, _, low] = state.slots[slot(ticket)];
        let busy = state.puts.iter().any(|(t, ..)| slot(*t) == slot(ticket));
        match self.rules {
            Rules::NoDeferral => !busy,
            _ => low == ONES && distance(sequence, ticket) == SLOTS,
        }
    }

    fn free(&self, state: &mut State, block: u8) {
        let ticket = state.tail;
        state.tail = next(state.tail);
        if self.in_turn(state, ticket) {
            Self::begin(state, ticket, block);
        } else {
            state.deferred.push((ticket, block));
            state.deferred.sort_unstable();
        }
    }

    fn begin(state: &mut State, ticket: u8, block: u8) {
        state
            .marks
            .add(OVERWRITTEN, state.slots[slot(ticket)][LOW] != ONES);
        state.puts.push((ticket, block, 0));
        state.puts.sort_unstable();
    }

    /// `Ring::put`, a word at a time.
    fn put(&self, state: &mut State, at: usize) {
        let (ticket, block, written) = state.puts[at];
        let order = if self.rules == Rules::SequenceFirst {
            [SEQUENCE, HIGH, LOW]
        } else {
            [HIGH, LOW, SEQUENCE]
        };
        let word = order[usize::from(written)];
        let [high, low] = halves(block);
        state.slots[slot(ticket)][word] = match word {
            SEQUENCE => ticket,
            HIGH => high,
            _ => low,
        };
        if written == 2 {
            state.puts.remove(at);
        } else {
            state.puts[at].2 += 1;
        }
    }

    fn block_for(&self, words: Words, ticket: u8) -> Option<[u8; 2]> {
        let [_, high, low] = words;
        if self.rules == Rules::NoSequenceCheck {
            return (high != ONES || low != ONES).then_some([high, low]);
        }
        block_for(words, ticket)
    }

    /// A word of the slot is read; with the last one, what was read is judged.
    fn read(&self, state: &mut State, at: usize, word: usize) {
        if !state.stags {
            state.die();
            return;
        }
        let op = state.ops[at];
        let now = state.slots[slot(op.ticket)][word];
        let phase = match op.phase {
            Phase::Seeking(mask, mut words, before) => {
                words[word] = now;
                let mask = mask | 1 << word;
                if mask != 0b111 {
                    Phase::Seeking(mask, words, before)
                } else if let Some(block) = self.block_for(words, op.ticket) {
                    if self.rules == Rules::NoConfirmation {
                        Self::found(state, op.ticket, block)
                    } else {
                        Phase::Confirming(block, 0, [0; 3])
                    }
                } else {
                    Phase::Seeking(0, [0; 3], words)
                }
            }
            Phase::Confirming(block, mask, mut words) => {
                words[word] = now;
                let mask = mask | 1 << word;
                if mask != 0b111 {
                    Phase::Confirming(block, mask, words)
                } else if self.block_for(words, op.ticket) == Some(block) {
                    Self::found(state, op.ticket, block)
                } else {
                    state.marks.add(RETRIED, true);
                    Phase::Seeking(0, [0; 3], [ONES; 3])
                }
            }
            other => other,
        };
        state.ops[at].phase = phase;
    }

    fn found(state: &mut State, ticket: u8, block: [u8; 2]) -> Phase {
        state
            .marks
            .add(TORN_TAKEN, state.block_for(ticket) != Some(block));
        Phase::Found(block)
    }

    fn write(state: &mut State, at: usize) {
        if !state.stags {
            state.die();
            return;
        }
        let op = state.ops[at];
        if let Phase::Found(block) = op.phase {
            state
                .marks
                .add(FOREIGN_WRITE, state.block_for(op.ticket) != Some(block));
            state.ops[at].phase = Phase::Written(block);
        }
    }

    fn bind(&self, state: &mut State, at: usize) {
        let Op {
            ticket,
            phase: Phase::Sent(block),
        } = state.ops.remove(at)
        else {
            return;
        };
        state.look();
        if self.rules == Rules::BindUnverified {
            let [_, high, low] = state.slots[slot(ticket)];
            if let Some(index) = BLOCKS
                .iter()
                .position(|b| *b == block)
                .filter(|_| [high, low] == block)
            {
                state.consuming = Some((ticket, u8::try_from(index).unwrap_or(0), For::Use));
                state.slots[slot(ticket)][HIGH] = ONES;
            }
            return;
        }
        if state.abandoned.contains(&ticket) {
            state.marks.add(LATE, true);
            return;
        }
        let known = state.open.iter().any(|(open, _)| *open == ticket);
        if known && state.block_for(ticket) == Some(block) {
            state.open.retain(|(open, _)| *open != ticket);
            self.consume(state, ticket, For::Use);
        }
    }

    /// `Ring::consume`, the first of its two writes.
    fn consume(&self, state: &mut State, ticket: u8, what: For) {
        if let Some(block) = state.known(ticket) {
            if self.rules == Rules::BindKeepsSlot && what == For::Use {
                state.bound.push(block);
                return;
            }
            state.consuming = Some((ticket, block, what));
            state.slots[slot(ticket)][HIGH] = ONES;
        }
    }

    fn consumed(&self, state: &mut State) {
        if let Some((ticket, block, what)) = state.consuming.take() {
            state.slots[slot(ticket)][LOW] = ONES;
            match what {
                For::Use => {
                    state.bound.push(block);
                    state.bound.sort_unstable();
                }
                For::Reclaim => {
                    state.open.retain(|(open, _)| *open != ticket);
                    self.free(state, block);
                }
            }
        }
    }

    fn timeout(&self, state: &mut State, first: usize) {
        let over: Vec<u8> = state.open.iter().take(first).map(|(t, _)| *t).collect();
        if self.rules != Rules::ReclaimBeforeRevoke {
            state.stags = false;
        }
        state.look();
        for (ticket, lost) in &mut state.open {
            if over.contains(ticket) && !*lost {
                *lost = true;
                state.abandoned.push(*ticket);
            }
        }
    }

    fn initiator_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let room = state.usage() < QUOTA && state.ops.len() < self.racing;
        if state.stags && state.left > 0 && room {
            actions.push(Action::FetchAdd);
        }
        for (at, op) in state.ops.iter().enumerate() {
            let unread = |mask: u8| {
                let words = (0..3).filter(move |word| mask & (1 << word) == 0);
                words.map(move |word| Action::Read(at, word))
            };
            match op.phase {
                Phase::Seeking(mask, _, before) => {
                    // What does not change need not be read again.
                    if mask != 0 || !state.stags || state.slots[slot(op.ticket)] != before {
                        actions.extend(unread(mask));
                    }
                    actions.push(Action::Forget(at));
                }
                Phase::Confirming(_, mask, _) => actions.extend(unread(mask)),
                Phase::Found(_) => {
                    actions.push(Action::Write(at));
                    actions.push(Action::Forget(at));
                }
                Phase::Written(_) => actions.push(Action::Send(at)),
                Phase::Sent(_) if state.consuming.is_none() => actions.push(Action::Bind(at)),
                Phase::Sent(_) => {}
            }
        }
    }

    fn target_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, put) in state.puts.iter().enumerate() {
            // Where the rules let two writes meet at one slot: the first one first.
            if state.puts.iter().take(at).all(|p| slot(p.0) != slot(put.0)) {
                actions.push(Action::Put(at));
            }
        }
        for (at, (ticket, _)) in state.deferred.iter().enumerate() {
            if self.in_turn(state, *ticket) {
                actions.push(Action::Settle(at));
            }
        }
        if state.consuming.is_some() {
            actions.push(Action::Consumed);
            return;
        }
        if state.dead {
            return;
        }
        actions.extend(state.bound.iter().map(|b| Action::Free(*b)));
        if state.next != state.head {
            actions.push(Action::Look);
        }
        if self.rules != Rules::NoTimeout {
            let waiting = state.open.iter().filter(|(_, lost)| !lost).count();
            let lost = state.open.len() - waiting;
            actions.extend((lost + 1..=lost + waiting).map(Action::Timeout));
        }
        for (ticket, lost) in &state.open {
            if *lost && state.known(*ticket).is_some() {
                actions.push(Action::Reclaim(*ticket));
            }
        }
        let ahead = distance(state.head, state.tail);
        let free = ahead > 0 && ahead <= SLOTS;
        if self.own && free && state.own.is_none() && state.left > 0 && state.usage() < QUOTA {
            actions.push(Action::OwnTake);
        }
        if state.own.is_some_and(|t| state.known(t).is_some()) {
            actions.push(Action::OwnConsume);
        }
    }

    fn places(state: &State) -> Vec<u8> {
        let mut seen = state.bound.clone();
        seen.extend(state.deferred.iter().map(|(_, block)| *block));
        seen.extend(state.puts.iter().map(|(_, block, _)| *block));
        seen.extend(state.consuming.map(|(_, block, _)| block));
        for (at, [_, high, low]) in state.slots.iter().enumerate() {
            let writing = state.puts.iter().any(|(t, ..)| slot(*t) == at);
            let block = BLOCKS.iter().position(|b| *b == [*high, *low]);
            seen.extend(
                block
                    .filter(|_| !writing)
                    .and_then(|b| u8::try_from(b).ok()),
            );
        }
        seen.sort_unstable();
        seen
    }
}

impl Model for DirectAlloc {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // The tickets are about to wrap.
        let head = WRAP - 2;
        let filled = |n: u8| {
            let [high, low] = halves(n);
            [head + n, high, low]
        };
        vec![State {
            head,
            tail: 0,
            slots: [filled(0), filled(1)],
            deferred: Vec::new(),
            puts: Vec::new(),
            consuming: None,
            ops: Vec::new(),
            next: head,
            open: Vec::new(),
            abandoned: Vec::new(),
            own: None,
            bound: Vec::new(),
            stags: true,
            dead: false,
            left: self.allocations,
            marks: Marks::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.initiator_actions(state, actions);
        self.target_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut after = last.clone();
        let state = &mut after;
        match action {
            Action::FetchAdd => {
                let ticket = state.head;
                state.head = next(state.head);
                state.left -= 1;
                state.ops.push(Op {
                    ticket,
                    phase: Phase::Seeking(0, [0; 3], [ONES; 3]),
                });
            }
            Action::Read(at, word) => self.read(state, at, word),
            Action::Write(at) => Self::write(state, at),
            Action::Send(at) => {
                if let Phase::Written(block) = state.ops[at].phase {
                    state.ops[at].phase = Phase::Sent(block);
                }
            }
            Action::Forget(at) => drop(state.ops.remove(at)),
            Action::Bind(at) => self.bind(state, at),
            Action::Consumed => self.consumed(state),
            Action::Look => state.look(),
            Action::Timeout(first) => self.timeout(state, first),
            Action::Reclaim(ticket) => self.consume(state, ticket, For::Reclaim),
            Action::OwnTake => {
                let ticket = state.head;
                state.look();
                state.head = next(state.head);
                state.next = state.head;
                state.own = Some(ticket);
                state.left -= 1;
            }
            Action::OwnConsume => {
                if let Some(ticket) = state.own.take() {
                    self.consume(state, ticket, For::Use);
                }
            }
            Action::Free(block) => {
                state.bound.retain(|b| *b != block);
                self.free(state, block);
            }
            Action::Put(at) => self.put(state, at),
            Action::Settle(at) => {
                let (ticket, block) = state.deferred.remove(at);
                Self::begin(state, ticket, block);
            }
        }
        state.ops.sort_unstable();
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no block is in two hands", |_, state: &State| {
                let mut seen = Self::places(state);
                let total = seen.len();
                seen.dedup();
                seen.len() == total
            }),
            Property::always("no block is lost", |_, state: &State| {
                let mut seen = Self::places(state);
                seen.dedup();
                seen.len() == BLOCKS.len()
            }),
            Property::always("no torn slot is taken", |_, state: &State| {
                !state.marks.has(TORN_TAKEN)
            }),
            Property::always("no write reaches another's block", |_, state: &State| {
                !state.marks.has(FOREIGN_WRITE)
            }),
            Property::always("no slot is overwritten", |_, state: &State| {
                !state.marks.has(OVERWRITTEN)
            }),
            Property::always("all comes to rest", |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let free = distance(state.head, state.tail);
                let whole = state.deferred.is_empty()
                    && free == SLOTS
                    && (0..SLOTS).all(|n| state.known((state.head + n) % WRAP).is_some());
                !actions.is_empty() || state.dead || whole
            }),
            Property::sometimes("a torn slot is read again", |_, state: &State| {
                state.marks.has(RETRIED)
            }),
            Property::sometimes("a free waits for its slot", |_, state: &State| {
                !state.deferred.is_empty()
            }),
            Property::sometimes("a BIND comes too late", |_, state: &State| {
                state.marks.has(LATE)
            }),
            Property::sometimes("tickets wrap", |_, state: &State| {
                state.head < SLOTS && state.head > 0
            }),
        ]
    }
}
