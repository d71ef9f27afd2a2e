//! How often a line is logged that a peer without a session can cause: who may only connect must not fill a disk. What is
//! left out is counted, and said in one line later.

use crate::Time;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The budget of one kind of line. It reads no clock and logs nothing: whoever logs asks it first.
#[derive(Debug)]
pub struct LogBudget {
    what: &'static str,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the window began.
    since: Option<Time>,
    /// Lines admitted in it.
    lines: u32,
    /// Lines left out and not yet told of.
    left_out: u64,
    /// When they are to be told of.
    due: Time,
}

impl LogBudget {
    /// Lines of a kind in one window: enough to see who and why.
    pub const LINES: u32 = 10;

    /// How long a window lasts, in milliseconds: with eleven lines of 200 octets in each, a kind writes 20 MB a day at most.
    pub const WINDOW_MS: u64 = 10_000;

    /// The budget of the lines that say `what`.
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        Self {
            what,
            state: Mutex::new(State {
                since: None,
                lines: 0,
                left_out: 0,
                due: Time(0),
            }),
        }
    }

    /// What the lines say.
    #[must_use]
    pub const fn what(&self) -> &'static str {
        self.what
    }

    /// Whether a line may be logged now; if not, it is counted as left out.
    pub fn admits(&self, now: Time) -> bool {
        let mut state = self.lock();
        let over = |since: Time| since.after_ms(Self::WINDOW_MS) <= now;
        let since = match state.since {
            Some(since) if !over(since) => since,
            _ => {
                state.lines = 0;
                now
            }
        };
        state.since = Some(since);
        if state.lines < Self::LINES {
            state.lines = state.lines.saturating_add(1);
            return true;
        }
        if state.left_out == 0 {
            state.due = since.after_ms(Self::WINDOW_MS);
        }
        state.left_out = state.left_out.saturating_add(1);
        false
    }

    /// How many lines were left out, once the window in which that began is over; they are told of then.
    pub fn settle(&self, now: Time) -> Option<u64> {
        let mut state = self.lock();
        let is_due = state.left_out > 0 && state.due <= now;
        is_due.then(|| std::mem::take(&mut state.left_out))
    }

    /// When [`settle`](Self::settle) has something to tell.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        let state = self.lock();
        (state.left_out > 0).then_some(state.due)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_number() {
        let budget = LogBudget::new("it rains");
        let begin = Time(5);
        let admitted = (0..1000)
            .filter(|n| budget.admits(begin.after_ms(*n)))
            .count();
        assert_eq!(admitted, 10);
        let over = begin.after_ms(LogBudget::WINDOW_MS);
        assert_eq!(budget.due(), Some(over));
        assert_eq!(budget.settle(Time(over.0 - 1)), None);
        assert_eq!(budget.settle(over), Some(990));
        assert_eq!((budget.due(), budget.settle(over)), (None, None));
    }

    #[test]
    fn a_new_window_has_lines_of_its_own_and_forgets_nothing() {
        let budget = LogBudget::new("it rains");
        for _ in 0..11 {
            budget.admits(Time(0));
        }
        let next = Time(0).after_ms(LogBudget::WINDOW_MS);
        assert_eq!((0..12).filter(|_| budget.admits(next)).count(), 10);
        assert_eq!(budget.settle(next), Some(3));
        for n in 2..20 {
            let now = Time(0).after_ms(n * LogBudget::WINDOW_MS);
            assert!(budget.admits(now), "lines that are rare are never left out");
        }
        assert_eq!(budget.due(), None);
    }
}
