//! How long an idle worker looks for work before it sleeps: as long as recent gaps between work were, and no longer.
//!
//! Waking a sleeping core costs tens of microseconds, so spinning over a gap shorter than that wins. Spinning over a
//! longer gap burns the core for nothing, and spinning while another thread wants the core makes both slow: the
//! policy stops spinning for a while when a yield shows that someone else ran.

use kbtp_fabric::Time;

/// A yield that took longer than this gave the core to another thread: alone, it is one system call.
const YIELD_ALONE_NS: u64 = 20_000;

/// How long a worker that shares its core does not spin.
const CROWDED_NS: u64 = 10_000_000;

/// Spin this many times the recent gap: gaps vary.
const MARGIN: u64 = 2;

/// The policy of one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    max_ns: u64,
    gap_ns: u64,
    crowded_until: Time,
}

impl Spin {
    /// A policy that spins `max_ns` at most; zero never spins.
    pub(crate) const fn new(max_ns: u64) -> Self {
        Self {
            max_ns,
            gap_ns: max_ns / MARGIN,
            crowded_until: Time(0),
        }
    }

    /// How long to spin now, in nanoseconds; zero: sleep at once.
    pub(crate) fn budget_ns(&self, now: Time) -> u64 {
        if now < self.crowded_until || self.gap_ns > self.max_ns {
            return 0;
        }
        self.gap_ns.saturating_mul(MARGIN).min(self.max_ns)
    }

    /// Learns that work came `gap_ns` after the last.
    pub(crate) fn observe_gap(&mut self, gap_ns: u64) {
        // A mean over about eight gaps. One long pause must not undo what many short gaps taught, nor leave a debt
        // that many short gaps must pay off: it counts as four times the longest spin.
        let gap = gap_ns.min(self.max_ns.saturating_mul(4));
        self.gap_ns = (self.gap_ns.saturating_mul(7).saturating_add(gap)) / 8;
    }

    /// Learns how long a yield took.
    pub(crate) fn observe_yield(&mut self, now: Time, took_ns: u64) {
        if took_ns > YIELD_ALONE_NS {
            self.crowded_until = now.after_ns(CROWDED_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_gaps_spin_and_long_gaps_sleep() {
        let mut spin = Spin::new(50_000);
        for _ in 0..50 {
            spin.observe_gap(5_000);
        }
        let budget = spin.budget_ns(Time(0));
        assert!((10_000..=12_000).contains(&budget), "{budget}");
        for _ in 0..50 {
            spin.observe_gap(1_000_000_000);
        }
        assert_eq!(spin.budget_ns(Time(0)), 0);
        for _ in 0..50 {
            spin.observe_gap(5_000);
        }
        assert!(spin.budget_ns(Time(0)) > 0, "a long pause is forgotten");
    }

    #[test]
    fn a_crowded_core_is_left_alone_for_a_while() {
        let mut spin = Spin::new(50_000);
        assert!(spin.budget_ns(Time(0)) > 0);
        spin.observe_yield(Time(0), 1_000);
        assert!(spin.budget_ns(Time(0)) > 0);
        spin.observe_yield(Time(0), 8_000_000);
        assert_eq!(spin.budget_ns(Time(1)), 0);
        assert!(spin.budget_ns(Time(CROWDED_NS)) > 0);
    }

    #[test]
    fn zero_never_spins() {
        let mut spin = Spin::new(0);
        spin.observe_gap(0);
        assert_eq!(spin.budget_ns(Time(0)), 0);
    }
}
