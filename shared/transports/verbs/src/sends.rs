//! What was posted to the send queue and is not done, oldest first, and the memory its heads wait in.

use crate::limits::UNREPORTED_WRITES;
use kbtp_fabric::{WorkId, WorkOutcome};
use std::collections::VecDeque;

/// What a piece of work gives when it succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gives {
    /// Send and Write.
    Nothing,
    /// Read.
    Data,
    /// Atomics: the value that is in this place.
    Value(u32),
}

/// Work that the device has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Posted {
    /// Its number among all; the last one of its requests has it.
    pub(crate) sequence: u64,
    /// Whose it is; none for this crate's own.
    pub(crate) id: Option<WorkId>,
    /// Its poster hears of its end even if it succeeds.
    pub(crate) signaled: bool,
    /// Requests in the send queue that it takes up.
    pub(crate) requests: u32,
    /// Octets of staging memory that are free once it is done, counted from the beginning of time.
    pub(crate) staged: u64,
    /// What it gives.
    pub(crate) gives: Gives,
    /// The device reports its end even if it succeeds.
    pub(crate) reported: bool,
    /// Its end is known.
    pub(crate) done: bool,
}

/// A send queue: how full it is, and what is in it.
#[derive(Debug)]
pub(crate) struct Sends {
    queue: VecDeque<Posted>,
    capacity: u32,
    in_flight: u32,
    next: u64,
    /// Writes since the last request that the device reports.
    unreported: u32,
    staging: Staging,
}

impl Sends {
    pub(crate) fn new(capacity: u32, staging: u32) -> Self {
        Self {
            queue: VecDeque::with_capacity(usize::try_from(capacity).unwrap_or(0)),
            capacity,
            in_flight: 0,
            next: 0,
            unreported: 0,
            staging: Staging {
                capacity: u64::from(staging),
                ..Staging::default()
            },
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether there is room for so many requests.
    pub(crate) const fn has_room(&self, requests: u32) -> bool {
        match self.in_flight.checked_add(requests) {
            Some(sum) => sum <= self.capacity,
            None => false,
        }
    }

    /// Octets of staging memory for a head; its place, if there is room. They are taken with [`Self::posted`].
    pub(crate) const fn stage(&self, len: u64) -> Option<(u64, u64)> {
        self.staging.room(len)
    }

    /// The number of the next work.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// Whether the device must report work that is otherwise not worth it.
    pub(crate) fn must_report(&self) -> bool {
        self.unreported >= UNREPORTED_WRITES.min(self.capacity / 4)
    }

    /// The work with the number [`Self::next`] was posted.
    pub(crate) fn posted(&mut self, posted: Posted) {
        self.next = self.next.wrapping_add(1);
        self.in_flight = self.in_flight.saturating_add(posted.requests);
        self.unreported = if posted.reported {
            0
        } else {
            self.unreported.saturating_add(posted.requests)
        };
        self.staging.used_to(posted.staged);
        self.queue.push_back(posted);
    }

    /// Where the staging memory ends that is in use, counted from the beginning of time.
    pub(crate) const fn staged(&self) -> u64 {
        self.staging.end
    }

    /// The device reports the end of the work with the number `sequence`. `each` hears of it last, with `true`, and before
    /// it, with `false`, of the work posted earlier whose success is not reported for itself. Earlier work that is reported for
    /// itself may still be under way: a Read on iWARP may well end after a Send behind it.
    pub(crate) fn ended(&mut self, sequence: u64, mut each: impl FnMut(&Posted, bool)) {
        let Some(oldest) = self.queue.front() else {
            return;
        };
        let distance = sequence.wrapping_sub(oldest.sequence);
        let Ok(at) = usize::try_from(distance) else {
            return;
        };
        if at >= self.queue.len() {
            return;
        }
        for (index, posted) in self.queue.iter_mut().enumerate().take(at.saturating_add(1)) {
            let exact = index == at;
            if !posted.done && (exact || !posted.reported) {
                posted.done = true;
                each(posted, exact);
            }
        }
        while self.queue.front().is_some_and(|posted| posted.done) {
            self.free_oldest();
        }
    }

    fn free_oldest(&mut self) -> Option<Posted> {
        let posted = self.queue.pop_front()?;
        self.in_flight = self.in_flight.saturating_sub(posted.requests);
        self.staging.begin = posted.staged;
        Some(posted)
    }

    /// Takes the oldest work whose end is not known: the queue pair is gone.
    pub(crate) fn take(&mut self) -> Option<Posted> {
        loop {
            let posted = self.free_oldest()?;
            if !posted.done {
                return Some(posted);
            }
        }
    }
}

impl Posted {
    /// What its poster hears of its success.
    pub(crate) fn outcome(&self, value: impl Fn(u32) -> u64) -> WorkOutcome {
        match self.gives {
            Gives::Nothing => WorkOutcome::Sent,
            Gives::Data => WorkOutcome::Read,
            Gives::Value(place) => WorkOutcome::Atomic(value(place)),
        }
    }
}

/// A ring of octets, taken and freed in order. Both ends count from the beginning of time.
#[derive(Debug, Default)]
struct Staging {
    capacity: u64,
    begin: u64,
    end: u64,
}

impl Staging {
    /// A piece of `len` octets that does not go round the end: its place, and where it ends counted from the beginning
    /// of time.
    const fn room(&self, len: u64) -> Option<(u64, u64)> {
        let Some(at) = self.end.checked_rem(self.capacity) else {
            return None;
        };
        // The rest of the ring is left out where the piece does not fit in it.
        let skip = if at + len > self.capacity {
            self.capacity - at
        } else {
            0
        };
        let end = self.end.saturating_add(skip).saturating_add(len);
        if len > self.capacity || end - self.begin > self.capacity {
            return None;
        }
        Some(((at + skip) % self.capacity, end))
    }

    const fn used_to(&mut self, end: u64) {
        self.end = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(sends: &mut Sends, id: u64, requests: u32, head: u64, reported: bool) -> Option<u64> {
        if !sends.has_room(requests) {
            return None;
        }
        let (place, staged) = match head {
            0 => (0, sends.staged()),
            len => sends.stage(len)?,
        };
        let posted = Posted {
            sequence: sends.next(),
            id: Some(WorkId(id)),
            signaled: false,
            requests,
            staged,
            gives: Gives::Nothing,
            reported,
            done: false,
        };
        sends.posted(posted);
        Some(place)
    }

    fn done(sends: &mut Sends, sequence: u64) -> Vec<u64> {
        let mut ended = Vec::new();
        sends.ended(sequence, |posted, _| ended.push(posted.id.unwrap().0));
        ended
    }

    #[test]
    fn a_report_is_one_on_the_quiet_ones_before_it() {
        let mut sends = Sends::new(8, 64);
        for id in 0..5 {
            post(&mut sends, id, 1, 0, id == 3).unwrap();
        }
        assert_eq!(done(&mut sends, 3), [0, 1, 2, 3]);
        assert_eq!(done(&mut sends, 3), Vec::<u64>::new());
        assert_eq!(done(&mut sends, 4), [4]);
        assert!(sends.is_empty());
    }

    #[test]
    fn what_is_reported_for_itself_may_end_later() {
        let mut sends = Sends::new(8, 64);
        // A Read, a Write that is not reported, a Send.
        for (id, reported) in [(0, true), (1, false), (2, true)] {
            post(&mut sends, id, 1, 0, reported).unwrap();
        }
        assert_eq!(done(&mut sends, 2), [1, 2]);
        assert!(!sends.is_empty(), "the Read is under way");
        assert_eq!(done(&mut sends, 2), Vec::<u64>::new());
        assert!(!sends.has_room(6), "places are freed in order");
        assert_eq!(done(&mut sends, 0), [0]);
        assert!(sends.is_empty() && sends.has_room(8));
        // What was never posted ended never.
        assert_eq!(done(&mut sends, 3), Vec::<u64>::new());
        assert_eq!(done(&mut sends, u64::MAX), Vec::<u64>::new());
        post(&mut sends, 3, 1, 0, true).unwrap();
        post(&mut sends, 4, 1, 0, true).unwrap();
        assert_eq!(done(&mut sends, 4), [4]);
        assert_eq!(sends.take().map(|posted| posted.id), Some(Some(WorkId(3))));
        assert!(sends.take().is_none(), "what has ended is not taken");
    }

    #[test]
    fn the_queue_holds_what_it_holds() {
        let mut sends = Sends::new(4, 64);
        assert_eq!(post(&mut sends, 0, 2, 0, true), Some(0));
        assert_eq!(post(&mut sends, 1, 2, 0, true), Some(0));
        assert_eq!(post(&mut sends, 2, 1, 0, true), None);
        assert_eq!(done(&mut sends, 0), [0]);
        assert!(sends.has_room(2) && !sends.has_room(3) && !sends.has_room(u32::MAX));
    }

    #[test]
    fn heads_lie_in_a_ring_and_never_over_each_other() {
        let mut sends = Sends::new(100, 100);
        assert_eq!(post(&mut sends, 0, 1, 40, true), Some(0));
        assert_eq!(post(&mut sends, 1, 1, 40, true), Some(40));
        // Twenty are left at the end, none at the beginning.
        assert_eq!(sends.stage(21), None);
        assert_eq!(sends.stage(20), Some((80, 100)));
        done(&mut sends, 0);
        assert_eq!(post(&mut sends, 2, 1, 30, true), Some(0));
        assert_eq!(sends.stage(11), None);
        assert_eq!(post(&mut sends, 3, 1, 10, true), Some(30));
        for id in 1..=3 {
            done(&mut sends, id);
        }
        assert_eq!(
            sends.stage(100),
            None,
            "a whole ring fits only at its beginning"
        );
        assert_eq!(sends.stage(60), Some((40, 200)));
        assert_eq!(sends.stage(101), None);
    }

    #[test]
    fn something_is_reported_before_the_queue_is_full() {
        let mut sends = Sends::new(16, 64);
        let mut posted = 0;
        while !sends.must_report() {
            post(&mut sends, posted, 1, 0, false).unwrap();
            posted += 1;
        }
        assert_eq!(posted, 4);
        post(&mut sends, posted, 1, 0, true).unwrap();
        assert!(!sends.must_report());
    }

    #[test]
    fn any_order_of_posts_and_reports_keeps_the_pieces_apart() {
        // Lengths from a small generator: what is in use never overlaps, and all is free in the end.
        let mut sends = Sends::new(32, 257);
        let mut live: VecDeque<(u64, u64, u64)> = VecDeque::new();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let len = 1 + (state >> 33) % 90;
            let sequence = sends.next();
            if let Some(place) = post(&mut sends, sequence, 1, len, true) {
                assert!(place + len <= 257);
                for (_, other, other_len) in &live {
                    assert!(place + len <= *other || other + other_len <= place);
                }
                live.push_back((sequence, place, len));
            } else if let Some((oldest, ..)) = live.pop_front() {
                assert_eq!(done(&mut sends, oldest), [oldest]);
            }
        }
        while let Some((oldest, ..)) = live.pop_front() {
            done(&mut sends, oldest);
        }
        assert!(sends.is_empty());
        assert!(sends.stage(1).is_some());
    }
}
