//! The free-block ring of draft section 3.3, each memory access a step of its own.
//!
//! Parties allocate and free blocks within their quotas. `FetchAdd`, the read of the Sequence, the read of the Block
//! Offset, marking the slot consumed, the two looks at a slot that a free is to write and its two writes are separate steps, and any party may be between
//! any two of them. A FREE whose slot is not consumed yet completes (and releases its quota) while the slot write
//! stays deferred, as the draft allows; without that freedom the missing Sequence check would go unseen.
//!
//! | step | function of the product |
//! |---|---|
//! | `Allocate` | `Ring::take`: the exchange of Head; or the initiator's `FetchAdd` |
//! | `ReadSequence`, `ReadOffset`, `Consume` | `Ring::consume`: its loads, its store of the low half |
//! | `TakeTail` | `Ring::advance_tail` |
//! | `CheckSlot`, `CheckAgain` | `Ring::write_in_turn`, its two loads; if it may not write, the push to `Deferred` |
//! | `WriteFirst`, `WriteSecond` | `Ring::put`: its store of the low half, its store of the Sequence |
//! | `Write` | `Ring::settle`, whoever calls it: the same two loads and two stores |

use stateright::{Model, Property};

/// Which rule is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// None: the ring as specified.
    AsSpecified,
    /// A free overwrites a slot that is not consumed yet.
    NoDeferral,
    /// An allocation takes any Block Offset it finds, whatever the Sequence.
    NoSequenceCheck,
    /// A free writes the Sequence before the Block Offset.
    SequenceFirst,
    /// A deferred write looks only whether the slot is empty, not whose turn it is.
    NoTurnCheck,
    /// A free looks whether the slot is empty first, and whose turn it is then. The product did this once.
    OffsetFirst,
    /// A party allocates past its quota.
    NoQuota,
    /// The slot is not marked consumed once its block is taken.
    NoConsume,
}

/// Who may take a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taking {
    /// Anybody, at any time, within the quota: the draft, and the initiator of a partition.
    FetchAdd,
    /// Only while a free has begun for it: the target (docs/adr/0010).
    Begun,
}

/// The model: how large, and by which rules.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Slots, a power of two.
    pub slots: u8,
    /// Blocks, at most `slots`.
    pub blocks: u8,
    /// Parties and the quota of each; their sum is at most `blocks`.
    pub quotas: Vec<u8>,
    /// Allocations made in all.
    pub allocations: u8,
    /// When tickets are taken.
    pub taking: Taking,
    /// Rule left out.
    pub rules: Rules,
}

/// Where a party is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Between operations.
    Idle,
    /// Has a ticket; the Sequence is not seen yet.
    ReadSequence(u8),
    /// Has seen its Sequence; the Block Offset is not read yet.
    ReadOffset(u8),
    /// Has read the Block Offset; the slot is not marked consumed yet.
    Consume(u8, u8),
    /// Frees a block: the tail ticket is not taken yet.
    TakeTail(u8),
    /// Has its ticket: looks whose turn it is.
    CheckSlot(u8, u8),
    /// It is its turn: looks whether the slot is consumed.
    CheckAgain(u8, u8),
    /// Writes a free slot: first of the two writes is due.
    WriteFirst(u8, u8),
    /// Second of the two writes is due.
    WriteSecond(u8, u8),
}

/// A slot in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    sequence: u8,
    block: Option<u8>,
}

/// A slot write that waits until the slot is consumed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Deferred {
    /// Its ticket.
    pub ticket: u8,
    /// Its block.
    pub block: u8,
    /// How far it is.
    pub stage: Stage,
}

/// How far a slot write that waited is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Stage {
    /// It waits.
    Waiting,
    /// It is its turn.
    Turn,
    /// The slot is consumed.
    Ready,
    /// The first of the two writes is done.
    Half,
}

/// One state of ring and parties.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    head: u8,
    tail: u8,
    slots: Vec<Slot>,
    steps: Vec<Step>,
    owned: Vec<Vec<u8>>,
    usage: Vec<u8>,
    deferred: Vec<Deferred>,
    left: u8,
    overwritten: bool,
}

/// For comparison with a ring that runs.
impl State {
    /// Ticket of the next allocation.
    #[must_use]
    pub const fn head(&self) -> u8 {
        self.head
    }

    /// Ticket of the next free.
    #[must_use]
    pub const fn tail(&self) -> u8 {
        self.tail
    }

    /// Sequence and block of a slot.
    #[must_use]
    pub fn slot(&self, at: usize) -> (u8, Option<u8>) {
        let slot = self.slots[at];
        (slot.sequence, slot.block)
    }

    /// Where a party is.
    #[must_use]
    pub fn step(&self, party: usize) -> Step {
        self.steps[party]
    }

    /// The blocks that a party has, in the order of [`Action::Free`].
    #[must_use]
    pub fn owned(&self, party: usize) -> &[u8] {
        &self.owned[party]
    }

    /// Each free that waits, in the order of [`Action::Write`].
    #[must_use]
    pub fn deferred(&self) -> &[Deferred] {
        &self.deferred
    }
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The party begins an allocation: `FetchAdd` on Head.
    Allocate(usize),
    /// The party begins to free its n-th block.
    Free(usize, usize),
    /// The party takes its next step.
    Go(usize),
    /// The n-th deferred write takes its next step.
    Write(usize),
}

impl Ring {
    /// Tickets wrap here: four times round the ring, so that wraps are reached at once.
    fn wrap(&self) -> u8 {
        self.slots * 4
    }

    fn slot(&self, ticket: u8) -> usize {
        usize::from(ticket % self.slots)
    }

    fn next(&self, ticket: u8) -> u8 {
        (ticket + 1) % self.wrap()
    }

    fn is_turn(&self, state: &State, ticket: u8) -> bool {
        let slot = state.slots[self.slot(ticket)];
        slot.sequence == (ticket + self.wrap() - self.slots) % self.wrap()
    }

    fn is_consumed(&self, state: &State, ticket: u8) -> bool {
        state.slots[self.slot(ticket)].block.is_none()
    }

    /// What a free looks at first, and whether it may look on.
    fn first_look(&self, state: &State, ticket: u8) -> bool {
        match self.rules {
            Rules::NoDeferral | Rules::NoTurnCheck => true,
            Rules::OffsetFirst => self.is_consumed(state, ticket),
            _ => self.is_turn(state, ticket),
        }
    }

    /// What it looks at then, and whether it may write.
    fn second_look(&self, state: &State, ticket: u8) -> bool {
        match self.rules {
            Rules::NoDeferral => true,
            Rules::OffsetFirst => self.is_turn(state, ticket),
            _ => self.is_consumed(state, ticket),
        }
    }

    fn defer(state: &mut State, party: usize, ticket: u8, block: u8) -> Step {
        state.deferred.push(Deferred {
            ticket,
            block,
            stage: Stage::Waiting,
        });
        state.deferred.sort_unstable();
        state.usage[party] -= 1;
        Step::Idle
    }

    fn write(&self, state: &mut State, at: usize) {
        let d = state.deferred[at];
        let next = match d.stage {
            Stage::Waiting => Stage::Turn,
            Stage::Turn if self.second_look(state, d.ticket) => Stage::Ready,
            Stage::Turn => Stage::Waiting,
            Stage::Ready => {
                self.write_first(state, d.ticket, d.block);
                Stage::Half
            }
            Stage::Half => {
                self.write_second(state, d.ticket, d.block);
                state.deferred.remove(at);
                return;
            }
        };
        state.deferred[at].stage = next;
        state.deferred.sort_unstable();
    }

    fn write_first(&self, state: &mut State, ticket: u8, block: u8) {
        let at = self.slot(ticket);
        if self.rules == Rules::SequenceFirst {
            state.slots[at].sequence = ticket;
        } else {
            state.overwritten |= state.slots[at].block.is_some();
            state.slots[at].block = Some(block);
        }
    }

    fn write_second(&self, state: &mut State, ticket: u8, block: u8) {
        let at = self.slot(ticket);
        if self.rules == Rules::SequenceFirst {
            state.overwritten |= state.slots[at].block.is_some();
            state.slots[at].block = Some(block);
        } else {
            state.slots[at].sequence = ticket;
        }
    }

    fn go(&self, state: &mut State, party: usize) {
        state.steps[party] = match state.steps[party] {
            Step::Idle => Step::Idle,
            Step::ReadSequence(t) => Step::ReadOffset(t),
            Step::ReadOffset(t) => match state.slots[self.slot(t)].block {
                Some(block) => Step::Consume(t, block),
                None => Step::ReadSequence(t),
            },
            Step::Consume(t, block) => {
                if self.rules != Rules::NoConsume {
                    state.slots[self.slot(t)].block = None;
                }
                state.owned[party].push(block);
                state.owned[party].sort_unstable();
                Step::Idle
            }
            Step::TakeTail(block) => {
                let ticket = state.tail;
                state.tail = self.next(state.tail);
                Step::CheckSlot(ticket, block)
            }
            Step::CheckSlot(t, block) if self.first_look(state, t) => Step::CheckAgain(t, block),
            Step::CheckAgain(t, block) if self.second_look(state, t) => Step::WriteFirst(t, block),
            Step::CheckSlot(t, block) | Step::CheckAgain(t, block) => {
                Self::defer(state, party, t, block)
            }
            Step::WriteFirst(t, block) => {
                self.write_first(state, t, block);
                Step::WriteSecond(t, block)
            }
            Step::WriteSecond(t, block) => {
                self.write_second(state, t, block);
                state.usage[party] -= 1;
                Step::Idle
            }
        };
    }

    /// Every place a block can be; a block in two places is given out twice, one in none is lost.
    fn places(&self, state: &State) -> Vec<u8> {
        let mut seen: Vec<u8> = state.owned.iter().flatten().copied().collect();
        for step in &state.steps {
            match *step {
                // Until the Block Offset is written, the block is only here.
                Step::TakeTail(b)
                | Step::CheckSlot(_, b)
                | Step::CheckAgain(_, b)
                | Step::WriteFirst(_, b) => seen.push(b),
                Step::WriteSecond(_, b) if self.rules == Rules::SequenceFirst => seen.push(b),
                _ => {}
            }
        }
        for d in &state.deferred {
            if d.stage != Stage::Half || self.rules == Rules::SequenceFirst {
                seen.push(d.block);
            }
        }
        seen.extend(state.slots.iter().filter_map(|s| s.block));
        seen.sort_unstable();
        seen
    }
}

impl Model for Ring {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // The tickets are about to wrap: a new ring begins at 0, but this is where it comes to.
        let first = self.wrap() - 2;
        let mut slots = vec![
            Slot {
                sequence: 0,
                block: None
            };
            usize::from(self.slots)
        ];
        for n in 0..self.slots {
            let ticket = (first + n) % self.wrap();
            let filled = n < self.blocks;
            slots[self.slot(ticket)] = Slot {
                sequence: if filled {
                    ticket
                } else {
                    (ticket + self.wrap() - self.slots) % self.wrap()
                },
                block: filled.then_some(n),
            };
        }
        vec![State {
            head: first,
            tail: (first + self.blocks) % self.wrap(),
            slots,
            steps: vec![Step::Idle; self.quotas.len()],
            owned: vec![Vec::new(); self.quotas.len()],
            usage: vec![0; self.quotas.len()],
            deferred: Vec::new(),
            left: self.allocations,
            overwritten: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (party, step) in state.steps.iter().enumerate() {
            match *step {
                Step::Idle => {
                    let allowed =
                        self.rules == Rules::NoQuota || state.usage[party] < self.quotas[party];
                    let ahead = (state.tail + self.wrap() - state.head) % self.wrap();
                    let begun =
                        (1..=self.slots).contains(&ahead) || self.taking == Taking::FetchAdd;
                    if state.left > 0 && allowed && begun {
                        actions.push(Action::Allocate(party));
                    }
                    for n in 0..state.owned[party].len() {
                        actions.push(Action::Free(party, n));
                    }
                }
                // A slot that does not show the ticket yet is read again: no step until it changes.
                Step::ReadSequence(t) => {
                    let slot = state.slots[self.slot(t)];
                    let mine = slot.sequence == t || self.rules == Rules::NoSequenceCheck;
                    if mine && slot.block.is_some() {
                        actions.push(Action::Go(party));
                    }
                }
                _ => actions.push(Action::Go(party)),
            }
        }
        for (n, d) in state.deferred.iter().enumerate() {
            let may = match d.stage {
                Stage::Waiting => self.first_look(state, d.ticket),
                // Its turn does not pass, so that to look again is no step.
                Stage::Turn => {
                    self.second_look(state, d.ticket) || self.rules == Rules::OffsetFirst
                }
                Stage::Ready | Stage::Half => true,
            };
            if may {
                actions.push(Action::Write(n));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Allocate(party) => {
                state.steps[party] = Step::ReadSequence(state.head);
                state.head = self.next(state.head);
                state.usage[party] += 1;
                state.left -= 1;
            }
            Action::Free(party, n) => {
                let block = state.owned[party].remove(n);
                state.steps[party] = Step::TakeTail(block);
            }
            Action::Go(party) => self.go(&mut state, party),
            Action::Write(n) => self.write(&mut state, n),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no block is handed out twice",
                |model: &Self, state: &State| {
                    // A block read but not yet marked consumed still stands in its slot: count it once.
                    let mut seen = model.places(state);
                    let total = seen.len();
                    seen.dedup();
                    seen.len() == total
                },
            ),
            Property::always("no block is lost", |model: &Self, state: &State| {
                let mut seen = model.places(state);
                seen.dedup();
                seen.len() == usize::from(model.blocks)
            }),
            Property::always("no slot is overwritten", |_, state: &State| {
                !state.overwritten
            }),
            Property::always("nobody is stuck", |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !actions.is_empty()
                    || (state.steps.iter().all(|s| *s == Step::Idle) && state.deferred.is_empty())
            }),
            Property::sometimes("a free is deferred", |_, state: &State| {
                !state.deferred.is_empty()
            }),
            Property::sometimes("the tickets wrap", |model: &Self, state: &State| {
                state.head < model.slots && state.tail > state.head
            }),
        ]
    }
}
