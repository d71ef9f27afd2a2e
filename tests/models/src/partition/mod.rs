//! A pool whose blocks move between the shared ring and a partition: the life of a `DIRECT_ALLOC` session beside a plain
//! one (draft, sections 3.3, 3.4, 6.4 and 6.6; profile, P8; docs/adr/0010, 0011 and 0013).
//!
//! A whole operation on a ring is one step here; the model `ring` is about the steps within. What is told apart is who
//! has a block, and which party may still reach it: tickets that are never bound, their timeout, STags that are revoked,
//! sessions that end in the middle of anything, loads that send a block while it is freed, a partition that goes back
//! to the shared ring while a free is on its way to it.
//!
//! | step | function of the product |
//! |---|---|
//! | `Plain(Allocate, Consume)` | `Pool::take`, `Pool::consume` |
//! | `Plain(Free)`, `Returner` | `Pool::release`, `Pool::put_back` |
//! | `Plain(End)` | `TargetSession::finish`, `Pool::orphan`, `Directory::close` |
//! | `Lease` | `Directory::poll`, `free_some` |
//! | `Open`, `Draw`, `DrawLater` | `Directory::open`, `Pool::carve`, `draw_run`, `consume_soon` |
//! | `FetchAdd`, `Read`, `Write`, `Send` | `Initiator`: `taken`, `confirmed`, `WriteBlock`, `Bind` |
//! | `Look`, `Timeout`, `Reclaim` | `Tickets::look`, `handle_timeout` with `revoke`, `reclaim` |
//! | `Bind` | `Open::bind_checked`, `Tickets::check` |
//! | `Pin`, `Unpin` | `Pool::entry_for`, `Pool::unpin` |
//! | `Dissolve` | `Dissolving::go_on`, `Pool::dissolve`, `Pool::take_back` |

mod types;

pub use types::{Action, Direct, Going, Op, Returner, Rules, State, Want};

use crate::marks::Marks;
use crate::whole_ring::Ring;
use stateright::{Model, Property};

/// A write reached a block that is not its ticket's.
const FOREIGN_WRITE: u16 = 1 << 0;
/// A free was deferred.
const DEFERRED_SEEN: u16 = 1 << 1;
/// A block was reclaimed.
const RECLAIMED_SEEN: u16 = 1 << 2;
/// A BIND came too late.
const LATE_BIND_SEEN: u16 = 1 << 3;

/// The model: how large, and by which rules.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Blocks; the shared ring has the next power of two of slots.
    pub blocks: u8,
    /// Quota of the plain session.
    pub plain_quota: u8,
    /// Quota of the direct session: blocks of its partition.
    pub direct_quota: u8,
    /// Allocations of the plain and of the direct session.
    pub allocations: [u8; 2],
    /// Sessions of the direct initiator.
    pub sessions: u8,
    /// Loads.
    pub pins: u8,
    /// Rule left out.
    pub rules: Rules,
}

const PLAIN: usize = 0;
const DIRECT: usize = 1;
const LOAD: usize = 2;

impl Partition {
    /// Whether a free waits for its slot.
    fn defers(&self) -> bool {
        self.rules != Rules::NoDeferral
    }

    fn committed(&self, state: &State) -> u8 {
        let bound = |list: &Vec<u8>| u8::try_from(list.len()).unwrap_or(u8::MAX);
        let plain = if state.plain_live {
            self.plain_quota
        } else {
            bound(&state.plain_bound)
        };
        let direct = match state.direct {
            Direct::Open => self.direct_quota,
            _ => bound(&state.direct_bound),
        };
        let going = match state.going {
            Going::Ended | Going::Closed => self.direct_quota,
            Going::No | Going::Gone => 0,
        };
        plain + direct + going
    }

    /// Bound handles and tickets of the direct session, seen or not.
    fn direct_usage(state: &State) -> usize {
        let unseen = state.part.distance(state.next, state.part.head);
        state.direct_bound.len()
            + state.open.len()
            + usize::from(unseen)
            + usize::from(state.own.is_some())
    }

    /// `Pool::release`: the entry no longer binds the block.
    fn release(&self, state: &mut State, worker: Option<usize>, block: u8) {
        match &mut state.pinned {
            Some((pinned, freed)) if *pinned == block && self.rules != Rules::PinsIgnored => {
                *freed = true;
                if self.rules == Rules::DissolveAfterLoads && state.home[usize::from(block)] {
                    state.count += 1;
                }
            }
            _ => match worker {
                Some(worker) => state.returners[worker] = Returner::Home(block),
                None => self.put_back(state, block),
            },
        }
    }

    /// `Pool::put_back` by the directory, whose mutex keeps the homes as they are.
    fn put_back(&self, state: &mut State, block: u8) {
        if state.home[usize::from(block)] {
            state.part.free(block, self.defers());
        } else {
            state.shared.free(block, self.defers());
        }
    }

    /// `Tickets::plan`: whether the target will look at Head of itself.
    fn looks(state: &State) -> bool {
        state.stags || !state.open.is_empty()
    }

    fn look(state: &mut State) {
        while state.next != state.part.head {
            state.open.push((state.next, false));
            state.next = (state.next + 1) % state.part.wrap();
        }
    }

    fn go_on(&self, state: &mut State, worker: usize) {
        let counts = !matches!(
            self.rules,
            Rules::DissolveAtOnce | Rules::DissolveAfterLoads
        );
        state.returners[worker] = match state.returners[worker] {
            Returner::Idle => Returner::Idle,
            Returner::Home(block) => match state.home[usize::from(block)] {
                true if counts => {
                    state.count += 1;
                    Returner::Again(block)
                }
                home => Returner::Ring(block, home),
            },
            Returner::Again(block) if state.home[usize::from(block)] => Returner::Ring(block, true),
            Returner::Again(block) => {
                state.count -= 1;
                Returner::Home(block)
            }
            Returner::Ring(block, true) => {
                state.part.free(block, self.defers());
                state
                    .marks
                    .add(DEFERRED_SEEN, !state.part.deferred.is_empty());
                // With the loads counted, only the one that returns for a load counts down.
                state.count -=
                    i8::from(counts || (worker == LOAD && self.rules == Rules::DissolveAfterLoads));
                Returner::Idle
            }
            Returner::Ring(block, false) => Returner::Write(state.shared.advance_tail(), block),
            Returner::Write(ticket, block) => {
                state.shared.write(ticket, block, self.defers());
                Returner::Idle
            }
        };
        if worker == PLAIN && state.returners[worker] == Returner::Idle {
            // FREE completes.
            state.plain_usage -= 1;
        }
    }

    fn end_direct(&self, state: &mut State) {
        state.ops.clear();
        state.open.clear();
        state.abandoned.clear();
        state.own = None;
        state.stags = false;
        state.next = state.part.head;
        if state.direct == Direct::Open {
            state.going = Going::Ended;
            self.dissolve(state);
        }
        state.direct = Direct::Away;
    }

    fn dissolve(&self, state: &mut State) {
        match state.going {
            Going::Ended => {
                let old = matches!(
                    self.rules,
                    Rules::DissolveAtOnce | Rules::DissolveAfterLoads
                );
                if old {
                    self.collect(state);
                } else {
                    if self.rules != Rules::HomeKept {
                        state.home.fill(false);
                    }
                    state.going = Going::Closed;
                }
            }
            Going::Closed => self.collect(state),
            Going::No | Going::Gone => {}
        }
    }

    fn collect(&self, state: &mut State) {
        if state.count != 0 && self.rules != Rules::DissolveAtOnce {
            return;
        }
        let free: Vec<u8> = state.part.blocks().collect();
        if self.rules != Rules::HomeKept {
            state.home.fill(false);
        }
        state.going = Going::Gone;
        state.part = Ring::new(state.part.count(), &[]);
        state.next = state.part.head;
        for block in free {
            state.shared.free(block, self.defers());
        }
    }

    fn draw(&self, state: &mut State) {
        if let Some(ticket) = state.drawing {
            if let Some(block) = state.shared.consume(ticket) {
                state.drawn.push(block);
                state.drawing = None;
            }
        } else if let Some(ticket) = state.shared.take(false) {
            state.drawing = Some(ticket);
        } else {
            // There are not enough: back with them, and no partition.
            for block in std::mem::take(&mut state.drawn) {
                state.shared.free(block, self.defers());
            }
            state.direct = Direct::Away;
            return;
        }
        if state.drawn.len() == usize::from(self.direct_quota) {
            let blocks = std::mem::take(&mut state.drawn);
            for block in &blocks {
                state.home[usize::from(*block)] = true;
            }
            state.part = Ring::new(self.direct_quota.next_power_of_two().max(2), &blocks);
            state.next = state.part.head;
            state.going = Going::No;
            state.direct = Direct::Open;
            state.stags = true;
        }
    }

    /// An RDMA operation through the session's STags: whether they are valid. If not, the stream ends.
    fn reach(&self, state: &mut State) -> bool {
        if !state.stags {
            self.end_direct(state);
        }
        state.stags
    }

    fn remote(&self, state: &mut State, at: usize) {
        if !self.reach(state) {
            return;
        }
        match state.ops[at] {
            Op::Seeking(ticket) => {
                if let Some(block) = state.part.block_for(ticket) {
                    state.ops[at] = Op::Found(ticket, block);
                }
            }
            Op::Found(ticket, block) => {
                // The block must still be the ticket's.
                state
                    .marks
                    .add(FOREIGN_WRITE, state.part.block_for(ticket) != Some(block));
                state.ops[at] = Op::Written(ticket, block);
            }
            Op::Written(..) | Op::Sent(..) => {}
        }
    }

    fn bind(&self, state: &mut State, at: usize) {
        let Op::Sent(ticket, block) = state.ops.remove(at) else {
            return;
        };
        Self::look(state);
        if self.rules == Rules::BindUnverified {
            let (_, there) = state.part.slots[state.part.slot(ticket)];
            if there == Some(block) {
                let at = state.part.slot(ticket);
                state.part.slots[at].1 = None;
                state.part.settle();
                state.open.retain(|(open, _)| *open != ticket);
                state.direct_bound.push(block);
            }
            return;
        }
        if state.abandoned.contains(&ticket) {
            state.marks.add(LATE_BIND_SEEN, true);
            return;
        }
        let known = state.open.iter().any(|(open, _)| *open == ticket);
        if known && state.part.block_for(ticket) == Some(block) {
            state.part.consume(ticket);
            state.open.retain(|(open, _)| *open != ticket);
            state.direct_bound.push(block);
            state.direct_bound.sort_unstable();
        }
    }

    fn timeout(&self, state: &mut State, first: usize) {
        let over: Vec<u8> = state.open.iter().take(first).map(|(t, _)| *t).collect();
        Self::look(state);
        if self.rules != Rules::ReclaimBeforeRevoke {
            state.stags = false;
        }
        if self.rules == Rules::NoLookAfterRevoke {
            // What was taken between the look above and the revocation: here, all that is not over its time.
            while let Some((ticket, _)) = state.open.last().copied()
                && !over.contains(&ticket)
            {
                state.open.pop();
                state.next = ticket;
            }
        }
        for (ticket, lost) in &mut state.open {
            if over.contains(ticket) {
                *lost = true;
                state.abandoned.push(*ticket);
            }
        }
    }

    fn reclaim(&self, state: &mut State) {
        state.part.settle();
        for (ticket, lost) in state.open.clone() {
            if !lost {
                continue;
            }
            let block = if self.rules == Rules::ReclaimKeepsSlot {
                state.part.block_for(ticket)
            } else {
                state.part.consume(ticket)
            };
            if let Some(block) = block {
                state.part.free(block, self.defers());
                state.open.retain(|(open, _)| *open != ticket);
                state.marks.add(RECLAIMED_SEEN, true);
            }
        }
    }

    fn plain_actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Its worker does one thing at a time.
        if !state.plain_live || state.returners[PLAIN] != Returner::Idle {
            return;
        }
        match state.plain {
            Want::Nothing => {
                let may = state.allocations[PLAIN] > 0 && state.plain_usage < self.plain_quota;
                if may && state.shared.available() > 0 {
                    actions.push(Action::Allocate);
                }
            }
            Want::Ticket(ticket) => {
                if state.shared.block_for(ticket).is_some() {
                    actions.push(Action::Consume);
                }
            }
            Want::Held(_) => actions.push(Action::Bound),
        }
        actions.extend(state.plain_bound.iter().map(|b| Action::Free(*b)));
        actions.push(Action::End);
    }

    fn direct_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let idle = state.returners[DIRECT] == Returner::Idle;
        if !idle {
            return;
        }
        match state.direct {
            Direct::Carving => {
                match state.drawing {
                    Some(ticket) if state.shared.block_for(ticket).is_none() => {
                        actions.push(Action::DrawLater);
                    }
                    _ => actions.push(Action::Draw),
                }
                return;
            }
            Direct::Away => return,
            Direct::Open | Direct::Resumed => {}
        }
        actions.extend(state.direct_bound.iter().map(|b| Action::DirectFree(*b)));
        actions.push(Action::DirectEnd);
        if state.direct != Direct::Open {
            return;
        }
        let may = state.allocations[DIRECT] > 0
            && Self::direct_usage(state) < usize::from(self.direct_quota);
        if may && state.stags {
            actions.push(Action::FetchAdd);
        }
        if may && state.part.available() > 0 && state.own.is_none() {
            actions.push(Action::OwnTake);
        }
        if state.own.is_some_and(|t| state.part.block_for(t).is_some()) {
            actions.push(Action::OwnConsume);
        }
        for (at, op) in state.ops.iter().enumerate() {
            match *op {
                Op::Seeking(ticket) => {
                    if !state.stags || state.part.block_for(ticket).is_some() {
                        actions.push(Action::Read(at));
                    }
                    actions.push(Action::Forget(at));
                }
                Op::Found(..) => {
                    actions.push(Action::Write(at));
                    actions.push(Action::Forget(at));
                }
                Op::Written(..) => actions.push(Action::Send(at)),
                Op::Sent(..) => actions.push(Action::Bind(at)),
            }
        }
        if state.next != state.part.head && Self::looks(state) {
            actions.push(Action::Look);
        }
        let waiting = state.open.iter().filter(|(_, lost)| !lost).count();
        let lost = state.open.len() - waiting;
        actions.extend((lost + 1..=lost + waiting).map(Action::Timeout));
        let back = |(ticket, lost): &(u8, bool)| *lost && state.part.block_for(*ticket).is_some();
        if state.open.iter().any(back) {
            actions.push(Action::Reclaim);
        }
    }

    fn directory_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.direct == Direct::Carving {
            return;
        }
        if !state.plain_live {
            let leases = state.plain_bound.iter().map(|b| Action::Lease(false, *b));
            actions.extend(leases);
        }
        if state.direct == Direct::Away {
            let leases = state.direct_bound.iter().map(|b| Action::Lease(true, *b));
            actions.extend(leases);
            if state.sessions > 0 {
                actions.push(Action::Open);
            }
        }
        let waits = state.count != 0 && self.rules != Rules::DissolveAtOnce;
        match state.going {
            Going::Ended => actions.push(Action::Dissolve),
            Going::Closed if !waits => actions.push(Action::Dissolve),
            _ => {}
        }
    }

    fn open(&self, state: &mut State) {
        state.sessions -= 1;
        let left = self.blocks.saturating_sub(self.committed(state));
        if left >= self.direct_quota && state.going == Going::Gone {
            state.direct = Direct::Carving;
        } else if !state.direct_bound.is_empty() {
            state.direct = Direct::Resumed;
        }
    }

    fn plain_step(&self, state: &mut State, action: Action) {
        match (action, state.plain) {
            (Action::Allocate, _) => {
                if let Some(ticket) = state.shared.take(false) {
                    state.plain = Want::Ticket(ticket);
                    state.plain_usage += 1;
                    state.allocations[PLAIN] -= 1;
                }
            }
            (Action::Consume, Want::Ticket(ticket)) => {
                if let Some(block) = state.shared.consume(ticket) {
                    state.plain = Want::Held(block);
                }
            }
            (Action::Bound, Want::Held(block)) => {
                state.plain_bound.push(block);
                state.plain_bound.sort_unstable();
                state.plain = Want::Nothing;
            }
            (Action::Free(block), _) => {
                state.plain_bound.retain(|b| *b != block);
                self.release(state, Some(PLAIN), block);
                if state.returners[PLAIN] == Returner::Idle {
                    state.plain_usage -= 1;
                }
            }
            (Action::End, want) => {
                match want {
                    Want::Ticket(ticket) if self.rules != Rules::OrphanForgotten => {
                        state.orphans.push(ticket);
                    }
                    Want::Held(block) => self.put_back(state, block),
                    Want::Ticket(_) | Want::Nothing => {}
                }
                state.plain = Want::Nothing;
                state.plain_live = false;
                state.plain_usage = u8::try_from(state.plain_bound.len()).unwrap_or(u8::MAX);
            }
            _ => {}
        }
    }

    fn direct_step(&self, state: &mut State, action: Action) {
        match action {
            Action::FetchAdd => {
                state.allocations[DIRECT] -= 1;
                if let Some(ticket) = state.part.take(true) {
                    state.ops.push(Op::Seeking(ticket));
                }
            }
            Action::Read(at) | Action::Write(at) => self.remote(state, at),
            Action::Send(at) => {
                if let Op::Written(ticket, block) = state.ops[at] {
                    state.ops[at] = Op::Sent(ticket, block);
                }
            }
            Action::Forget(at) => drop(state.ops.remove(at)),
            Action::Bind(at) => self.bind(state, at),
            Action::Look => Self::look(state),
            Action::Timeout(first) => self.timeout(state, first),
            Action::Reclaim => self.reclaim(state),
            Action::OwnTake => {
                state.allocations[DIRECT] -= 1;
                if let Some(ticket) = state.part.take(false) {
                    Self::look(state);
                    state.open.retain(|(open, _)| *open != ticket);
                    state.own = Some(ticket);
                }
            }
            Action::OwnConsume => {
                if let Some(block) = state.own.take().and_then(|t| state.part.consume(t)) {
                    state.direct_bound.push(block);
                    state.direct_bound.sort_unstable();
                }
            }
            Action::DirectFree(block) => {
                state.direct_bound.retain(|b| *b != block);
                self.release(state, Some(DIRECT), block);
            }
            Action::DirectEnd => self.end_direct(state),
            _ => {}
        }
    }

    /// What must happen in some state, for the rest to mean something.
    fn reached() -> [Property<Self>; 6] {
        [
            Property::sometimes("a free waits for its slot", |_, state: &State| {
                state.marks.has(DEFERRED_SEEN)
            }),
            Property::sometimes("a lost block is reclaimed", |_, state: &State| {
                state.marks.has(RECLAIMED_SEEN)
            }),
            Property::sometimes("a BIND comes too late", |_, state: &State| {
                state.marks.has(LATE_BIND_SEEN)
            }),
            Property::sometimes("dissolving waits for a free", |_, state: &State| {
                state.going == Going::Closed && state.count > 0
            }),
            Property::sometimes("tickets of the partition wrap", |_, state: &State| {
                state.direct == Direct::Open && state.part.head < 2
            }),
            Property::sometimes("an orphan waits for its block", |_, state: &State| {
                !state.orphans.is_empty()
            }),
        ]
    }

    /// Every place a block can be.
    fn places(state: &State) -> Vec<u8> {
        let mut seen: Vec<u8> = state.shared.blocks().chain(state.part.blocks()).collect();
        seen.extend(&state.drawn);
        seen.extend(&state.plain_bound);
        seen.extend(&state.direct_bound);
        seen.extend(state.returners.iter().filter_map(|r| r.block()));
        seen.extend(state.pinned.filter(|(_, freed)| *freed).map(|(b, _)| b));
        if let Want::Held(block) = state.plain {
            seen.push(block);
        }
        seen.sort_unstable();
        seen
    }

    fn at_rest(&self, state: &State) -> bool {
        state.shared.available() == self.blocks
            && state.shared.deferred.is_empty()
            && state.orphans.is_empty()
            && state.going == Going::Gone
            && state.plain_usage == 0
            && state.direct_bound.is_empty()
            && state.home.iter().all(|home| !home)
    }
}

impl Model for Partition {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let blocks: Vec<u8> = (0..self.blocks).collect();
        let part = Ring::new(self.direct_quota.next_power_of_two().max(2), &[]);
        vec![State {
            shared: Ring::new(self.blocks.next_power_of_two().max(2), &blocks),
            next: part.head,
            part,
            home: vec![false; blocks.len()],
            going: Going::Gone,
            count: 0,
            drawn: Vec::new(),
            drawing: None,
            orphans: Vec::new(),
            plain_live: true,
            plain: Want::Nothing,
            plain_bound: Vec::new(),
            plain_usage: 0,
            direct: Direct::Away,
            stags: false,
            ops: Vec::new(),
            open: Vec::new(),
            abandoned: Vec::new(),
            own: None,
            direct_bound: Vec::new(),
            pinned: None,
            returners: [Returner::Idle; 3],
            allocations: self.allocations,
            sessions: self.sessions,
            pins: self.pins,
            marks: Marks::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.plain_actions(state, actions);
        self.direct_actions(state, actions);
        self.directory_actions(state, actions);
        match state.pinned {
            None if state.pins > 0 && state.returners[LOAD] == Returner::Idle => {
                let bound = state.plain_bound.iter().chain(&state.direct_bound);
                actions.extend(bound.map(|b| Action::Pin(*b)));
            }
            Some(_) => actions.push(Action::Unpin),
            None => {}
        }
        for (worker, returner) in state.returners.iter().enumerate() {
            if *returner != Returner::Idle {
                actions.push(Action::Return(worker));
            }
        }
        for (at, ticket) in state.orphans.iter().enumerate() {
            if state.shared.block_for(*ticket).is_some() {
                actions.push(Action::Orphan(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::Allocate | Action::Consume | Action::Bound | Action::Free(_) | Action::End => {
                self.plain_step(state, action);
            }
            Action::Lease(direct, block) => {
                let bound = if direct {
                    &mut state.direct_bound
                } else {
                    state.plain_usage -= 1;
                    &mut state.plain_bound
                };
                bound.retain(|b| *b != block);
                self.release(state, None, block);
            }
            Action::Open => self.open(state),
            Action::Draw => self.draw(state),
            Action::DrawLater => state.orphans.extend(state.drawing.take()),
            Action::Pin(block) => {
                state.pinned = Some((block, false));
                state.pins -= 1;
            }
            Action::Unpin => {
                if let Some((block, true)) = state.pinned.take() {
                    state.returners[LOAD] = Returner::Home(block);
                }
            }
            Action::Return(worker) => self.go_on(state, worker),
            Action::Orphan(at) => {
                let ticket = state.orphans.remove(at);
                if let Some(block) = state.shared.consume(ticket) {
                    self.put_back(state, block);
                }
            }
            Action::Dissolve => self.dissolve(state),
            _ => self.direct_step(state, action),
        }
        state.ops.sort_unstable();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("no block is in two places", |_, state: &State| {
                let mut seen = Self::places(state);
                let total = seen.len();
                seen.dedup();
                seen.len() == total
            }),
            Property::always("no block is lost", |model: &Self, state: &State| {
                let mut seen = Self::places(state);
                seen.dedup();
                seen.len() == usize::from(model.blocks)
            }),
            Property::always("no slot is overwritten", |_, state: &State| {
                !state.shared.overwritten && !state.part.overwritten
            }),
            Property::always("no write reaches another's block", |_, state: &State| {
                !state.marks.has(FOREIGN_WRITE)
            }),
            Property::always("no load sends a block that went on", |_, state: &State| {
                state.pinned.is_none_or(|(block, freed)| {
                    let bound = state.plain_bound.iter().chain(&state.direct_bound);
                    freed || bound.into_iter().any(|b| *b == block)
                })
            }),
            Property::always("quotas are kept", |model: &Self, state: &State| {
                let promised = model.committed(state);
                let open = matches!(state.direct, Direct::Open | Direct::Carving);
                state.plain_usage <= model.plain_quota
                    && Self::direct_usage(state) <= usize::from(model.direct_quota)
                    && (!open || promised <= model.blocks)
            }),
            Property::always("no ticket is overlooked", |_, state: &State| {
                state.direct != Direct::Open || state.next == state.part.head || Self::looks(state)
            }),
            // "An allocation waits at most for an in-progress free" (draft, section 3.4).
            Property::always("a ticket waits for a free alone", |_, state: &State| {
                let ring = &state.part;
                let tickets = state
                    .open
                    .iter()
                    .map(|(ticket, _)| *ticket)
                    .chain(state.own);
                let ahead =
                    Some(ring.distance(state.next, ring.tail)).filter(|n| *n <= ring.count());
                let ahead = (0..ahead.unwrap_or(0)).map(|n| (state.next + n) % ring.wrap());
                let begun = |t: &u8| (1..=ring.count()).contains(&ring.distance(*t, ring.tail));
                state.direct != Direct::Open
                    || tickets.chain(ahead).filter(begun).all(|t| {
                        ring.block_for(t).is_some() || ring.deferred.iter().any(|(d, _)| *d == t)
                    })
            }),
            Property::always("all comes to rest", |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !actions.is_empty() || model.at_rest(state)
            }),
        ];
        properties.extend(Self::reached());
        properties
    }
}
