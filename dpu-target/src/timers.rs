//! All timers of a worker, in one structure. Nothing else may be a timer.
//!
//! A min-heap with lazy cancellation: a timer that no longer applies is recognised when it fires (its key's current
//! deadline differs) and dropped. Each key has one live deadline.

use kbtp_fabric::Time;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// What a timer is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum TimerKey {
    /// A stream wants to be progressed (its own handshake, retransmission or close timers), or its session has
    /// something due (tickets).
    Stream(u64),
    /// A stream's handshake and HELLO must be done.
    Handshake(u64),
    /// A HELLO has waited long enough for the session it replaces.
    Replace(u64),
    /// A stream has had long enough to close in order.
    Close(u64),
    /// The drain has waited long enough.
    Drain,
    /// Chains wait for blocks, or freed blocks for chains, or requests are to be watched.
    Chains,
}

/// Deadlines by key.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, TimerKey)>>,
    live: HashMap<TimerKey, Time>,
}

impl Timers {
    /// Sets the deadline of `key`, replacing the one it had. Cost: O(log n); no allocation while the number of
    /// live timers does not grow, but for the dead entries that [`compact`](Self::compact) bounds.
    pub(crate) fn set(&mut self, key: TimerKey, at: Time) {
        if self.live.get(&key) == Some(&at) {
            return;
        }
        self.live.insert(key, at);
        self.heap.push(Reverse((at, key)));
        self.compact();
    }

    /// Sets the deadline of `key` unless it has an earlier one: for a deadline that moves often and whose owner looks
    /// again when it fires.
    pub(crate) fn set_no_later(&mut self, key: TimerKey, at: Time) {
        if self.live.get(&key).is_none_or(|set| at < *set) {
            self.set(key, at);
        }
    }

    /// Forgets the deadline of `key`.
    pub(crate) fn clear(&mut self, key: TimerKey) {
        self.live.remove(&key);
    }

    /// The earliest deadline.
    pub(crate) fn next_at(&mut self) -> Option<Time> {
        loop {
            let Reverse((at, key)) = *self.heap.peek()?;
            if self.live.get(&key) == Some(&at) {
                return Some(at);
            }
            self.heap.pop();
        }
    }

    /// Takes a key whose deadline has come.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<TimerKey> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse((_, key)) = self.heap.pop()?;
        self.live.remove(&key);
        Some(key)
    }

    /// Rebuilds the heap when most of it is dead, so that it stays within a constant factor of the live timers.
    fn compact(&mut self) {
        const SLACK: usize = 64;
        if self.heap.len() > 2 * self.live.len() + SLACK {
            self.heap.clear();
            self.heap
                .extend(self.live.iter().map(|(key, at)| Reverse((*at, *key))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_in_order_once_and_only_the_live_deadline() {
        let mut t = Timers::default();
        t.set(TimerKey::Stream(1), Time(50));
        t.set(TimerKey::Handshake(1), Time(30));
        t.set(TimerKey::Close(9), Time(40));
        t.set(TimerKey::Stream(1), Time(20));
        t.set(TimerKey::Handshake(1), Time(60));
        t.clear(TimerKey::Close(9));
        assert_eq!(t.next_at(), Some(Time(20)));
        assert_eq!(t.pop_due(Time(19)), None);
        assert_eq!(t.pop_due(Time(100)), Some(TimerKey::Stream(1)));
        assert_eq!(t.pop_due(Time(100)), Some(TimerKey::Handshake(1)));
        assert_eq!(t.pop_due(Time(100)), None);
        assert_eq!(t.next_at(), None);
    }

    #[test]
    fn a_timer_set_again_to_an_old_deadline_fires_once() {
        let mut t = Timers::default();
        t.set(TimerKey::Drain, Time(5));
        t.set(TimerKey::Drain, Time(9));
        t.set(TimerKey::Drain, Time(5));
        assert_eq!(t.pop_due(Time(9)), Some(TimerKey::Drain));
        assert_eq!(t.pop_due(Time(9)), None);
    }

    #[test]
    fn a_later_deadline_does_not_replace_an_earlier_one_where_asked() {
        let mut t = Timers::default();
        t.set_no_later(TimerKey::Drain, Time(5));
        t.set_no_later(TimerKey::Drain, Time(9));
        assert_eq!(t.next_at(), Some(Time(5)));
        t.set_no_later(TimerKey::Drain, Time(2));
        assert_eq!(t.next_at(), Some(Time(2)));
    }

    #[test]
    fn moving_deadlines_does_not_grow_the_heap() {
        let mut t = Timers::default();
        for i in 0..100_000 {
            t.set(TimerKey::Stream(i % 10), Time(i));
        }
        assert!(t.heap.len() <= 2 * 10 + 64 + 1);
        let mut fired = 0;
        while t.pop_due(Time(u64::MAX)).is_some() {
            fired += 1;
        }
        assert_eq!(fired, 10);
    }
}
