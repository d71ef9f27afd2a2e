//! The order of the requests of a session that are on one handle (profile, P8): a request starts only when no earlier one
//! on its handle is under way, but loads do not wait for loads.
//!
//! The requests on a handle form a line, in the order they came. Some are under way, all behind them wait: one that waits
//! has something before it that is no load, and so has whatever comes later. Who leaves a line lets the first of those who
//! wait start, and the loads right behind it if it is a load.
//!
//! A peer chooses the handles, and how many of its requests are on one: nothing here takes longer for that. Finding a line is
//! a binary search; a line that begins or ends moves the entries of those behind it, 16 octets each, at most 2,048. Letting
//! a request start is a few steps, however many wait.

use super::slots::SlotIndex;
use kbtp_wire::Handle;
use std::collections::VecDeque;

/// No slot.
const NONE: u16 = u16::MAX;

/// A request in a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// When it came, from 1; 0: the slot is free.
    seq: u64,
    line: u16,
    before: u16,
    behind: u16,
    load: bool,
}

/// The requests on one handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    handle: Handle,
    last: u16,
    first_waiting: u16,
    under_way: u16,
    /// Of those under way, the ones that are no loads: one at most.
    changing: u16,
}

const EMPTY: Line = Line {
    handle: Handle(0),
    last: NONE,
    first_waiting: NONE,
    under_way: 0,
    changing: 0,
};

/// The lines of a session; none is allocated after it is made.
#[derive(Debug)]
pub(super) struct Order {
    places: Box<[Place]>,
    lines: Box<[Line]>,
    free_lines: Vec<u16>,
    /// Lines by handle, sorted.
    by_handle: Vec<(Handle, u16)>,
    /// Those whose turn has come.
    turns: VecDeque<SlotIndex>,
    next_seq: u64,
}

impl Order {
    /// For `count` slots, 2,048 at most.
    pub(super) fn new(count: u16) -> Self {
        let len = usize::from(count);
        let nobody = Place {
            seq: 0,
            line: NONE,
            before: NONE,
            behind: NONE,
            load: false,
        };
        Self {
            places: vec![nobody; len].into(),
            lines: vec![EMPTY; len].into(),
            free_lines: (0..count).rev().collect(),
            by_handle: Vec::with_capacity(len),
            turns: VecDeque::with_capacity(len),
            next_seq: 1,
        }
    }

    /// Whether a request that came now on this handle would have to wait.
    pub(super) fn blocks(&self, handle: Handle, load: bool) -> bool {
        let Ok(at) = self.find(handle) else {
            return false;
        };
        let line = self
            .by_handle
            .get(at)
            .and_then(|(_, line)| self.line(*line));
        line.is_some_and(|line| !load || line.changing > 0 || line.first_waiting != NONE)
    }

    /// The number of this use of the slot.
    pub(super) fn seq(&self, slot: SlotIndex) -> u64 {
        self.place(slot.0).map_or(0, |place| place.seq)
    }

    /// A request takes its place behind the others on its handle: it waits, or, if nothing [`blocks`](Self::blocks) it,
    /// is under way.
    pub(super) fn join(&mut self, slot: SlotIndex, handle: Handle, load: bool, waits: bool) {
        let number = match self.find(handle) {
            Ok(at) => self.by_handle.get(at).map(|(_, line)| *line),
            Err(at) => self.free_lines.pop().inspect(|line| {
                self.by_handle.insert(at, (handle, *line));
            }),
        };
        let Some((number, line)) =
            number.and_then(|n| Some((n, self.lines.get_mut(usize::from(n))?)))
        else {
            return;
        };
        line.handle = handle;
        let before = std::mem::replace(&mut line.last, slot.0);
        if waits {
            if line.first_waiting == NONE {
                line.first_waiting = slot.0;
            }
        } else {
            line.start(load);
        }
        let place = Place {
            seq: self.next_seq,
            line: number,
            before,
            behind: NONE,
            load,
        };
        self.next_seq = self.next_seq.wrapping_add(1);
        if let Some(free) = self.places.get_mut(usize::from(slot.0)) {
            *free = place;
        }
        if let Some(neighbour) = self.places.get_mut(usize::from(before)) {
            neighbour.behind = slot.0;
        }
    }

    /// A request that is under way is over: those it held up have their turn.
    pub(super) fn leave(&mut self, slot: SlotIndex) {
        let Some(place) = self.places.get_mut(usize::from(slot.0)) else {
            return;
        };
        let gone = *place;
        place.seq = 0;
        if let Some(neighbour) = self.places.get_mut(usize::from(gone.before)) {
            neighbour.behind = gone.behind;
        }
        if let Some(neighbour) = self.places.get_mut(usize::from(gone.behind)) {
            neighbour.before = gone.before;
        }
        let Some(line) = self.lines.get_mut(usize::from(gone.line)) else {
            return;
        };
        if line.last == slot.0 {
            line.last = gone.before;
        }
        line.under_way = line.under_way.saturating_sub(1);
        line.changing = line.changing.saturating_sub(u16::from(!gone.load));
        if line.last == NONE {
            self.end(gone.line);
        } else {
            self.go_on(gone.line);
        }
    }

    /// A request whose turn has come.
    pub(super) fn next_turn(&mut self) -> Option<SlotIndex> {
        self.turns.pop_front()
    }

    fn go_on(&mut self, number: u16) {
        while let Some(line) = self.lines.get_mut(usize::from(number))
            && let Some(next) = self.places.get(usize::from(line.first_waiting))
            && (line.under_way == 0 || (next.load && line.changing == 0))
        {
            self.turns.push_back(SlotIndex(line.first_waiting));
            line.first_waiting = next.behind;
            line.start(next.load);
        }
    }

    fn end(&mut self, number: u16) {
        let handle = self.line(number).map_or(Handle(0), |line| line.handle);
        if let Ok(at) = self.find(handle) {
            self.by_handle.remove(at);
        }
        if let Some(line) = self.lines.get_mut(usize::from(number)) {
            *line = EMPTY;
        }
        self.free_lines.push(number);
    }

    fn find(&self, handle: Handle) -> Result<usize, usize> {
        self.by_handle
            .binary_search_by_key(&handle, |(handle, _)| *handle)
    }

    fn line(&self, number: u16) -> Option<&Line> {
        self.lines.get(usize::from(number))
    }

    fn place(&self, slot: u16) -> Option<&Place> {
        self.places.get(usize::from(slot))
    }
}

impl Line {
    const fn start(&mut self, load: bool) {
        self.under_way = self.under_way.saturating_add(1);
        if !load {
            self.changing = self.changing.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the rule says, with a pass over all requests that are there.
    #[derive(Debug, Default)]
    struct Plain {
        /// Slot, handle, load, waits; in the order they came.
        there: Vec<(u16, u64, bool, bool)>,
    }

    impl Plain {
        fn blocks(&self, handle: u64, load: bool, before: usize) -> bool {
            self.there[..before]
                .iter()
                .any(|(_, other, other_load, _)| *other == handle && !(*other_load && load))
        }

        fn turns(&mut self) -> Vec<u16> {
            let mut turns = Vec::new();
            for at in 0..self.there.len() {
                let (slot, handle, load, waits) = self.there[at];
                if waits && !self.blocks(handle, load, at) {
                    self.there[at].3 = false;
                    turns.push(slot);
                }
            }
            turns
        }
    }

    const SLOTS: u16 = 12;

    /// The end of work that a slot's last user posted is not the next one's.
    #[test]
    fn each_use_of_a_slot_has_a_number_of_its_own() {
        let mut order = Order::new(SLOTS);
        let slot = SlotIndex(3);
        let unused = order.seq(slot);
        let uses = [1, 2].map(|handle| {
            order.join(slot, Handle(handle), true, false);
            let seq = order.seq(slot);
            order.leave(slot);
            assert_eq!(order.seq(slot), unused);
            seq
        });
        let [first, second] = uses;
        assert!(first != second && first != unused && second != unused);
    }

    proptest! {
        #[test]
        fn lines_are_as_the_rule_says(steps in prop::collection::vec((any::<bool>(), 0_u64..3, any::<bool>(), 0_usize..12), 0..200)) {
            let mut order = Order::new(SLOTS);
            let mut plain = Plain::default();
            let mut free: Vec<u16> = (0..SLOTS).collect();
            for (comes, handle, load, which) in steps {
                let under_way: Vec<_> = plain.there.iter().filter(|r| !r.3).map(|r| r.0).collect();
                if comes && let Some(slot) = free.pop() {
                    let waits = plain.blocks(handle, load, plain.there.len());
                    prop_assert_eq!(order.blocks(Handle(handle), load), waits);
                    order.join(SlotIndex(slot), Handle(handle), load, waits);
                    plain.there.push((slot, handle, load, waits));
                } else if !under_way.is_empty() {
                    let slot = under_way[which % under_way.len()];
                    order.leave(SlotIndex(slot));
                    plain.there.retain(|r| r.0 != slot);
                    free.push(slot);
                    let turns: Vec<_> = std::iter::from_fn(|| order.next_turn()).map(|s| s.0).collect();
                    prop_assert_eq!(turns, plain.turns());
                }
                let handles: std::collections::BTreeSet<_> = plain.there.iter().map(|r| r.1).collect();
                prop_assert_eq!(order.by_handle.len(), handles.len());
                for handle in 0..3 {
                    for load in [false, true] {
                        prop_assert_eq!(order.blocks(Handle(handle), load), plain.blocks(handle, load, plain.there.len()));
                    }
                }
            }
        }
    }
}
