//! How long to look for work before going to sleep.
//!
//! Waking a sleeping core costs tens of microseconds, so looking on over a gap shorter than that wins; over a longer
//! one it burns the core for nothing, and while another thread wants the core it makes both slow. The policy learns
//! from recent gaps, and a yield in which another thread ran shows that the core is wanted: then it is left alone for
//! a while, the longer the longer that thread ran.

use crate::limits::{CROWDED_MAX_NS, CROWDED_TIMES, SPIN_MAX_NS, SPIN_PROBE_EVERY, YIELD_ALONE_NS};
use kbtp_fabric::Time;
use std::time::Duration;

/// Whether a [`Poller`](crate::Poller) looks on before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spin {
    /// Never: sleep at once.
    Off,
    /// As long as recent gaps were, at most 100 µs.
    #[default]
    Auto,
    /// This long each time, unless another thread wants the core.
    For(Duration),
}

/// The policy of one poller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    spin: Spin,
    /// Mean of recent gaps.
    gap_ns: u64,
    /// Another thread was seen on this core: no spin before this.
    crowded_until: Time,
    /// Waits since the last that spun.
    slept: u32,
}

impl Policy {
    pub(crate) const fn new(spin: Spin) -> Self {
        Self {
            spin,
            gap_ns: 0,
            crowded_until: Time(0),
            slept: 0,
        }
    }

    /// How long to look on now, in nanoseconds; zero: sleep at once.
    pub(crate) fn budget_ns(&mut self, now: Time) -> u64 {
        if now < self.crowded_until {
            return 0;
        }
        match self.spin {
            Spin::Off => 0,
            Spin::For(time) => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            // Twice the mean catches most gaps of a stream whose gaps vary.
            Spin::Auto if self.gap_ns <= SPIN_MAX_NS => {
                self.slept = 0;
                self.gap_ns.saturating_mul(2).clamp(1000, SPIN_MAX_NS)
            }
            // Gaps measured asleep hold the time to wake, at both ends. A spin now and then finds out whether they
            // are short without it.
            Spin::Auto => {
                self.slept += 1;
                if self.slept < SPIN_PROBE_EVERY {
                    return 0;
                }
                self.slept = 0;
                SPIN_MAX_NS
            }
        }
    }

    /// Learns that work came `gap_ns` after it was first looked for.
    pub(crate) fn observe_gap(&mut self, gap_ns: u64) {
        // A mean over about eight gaps. One pause, however long, counts as four times the longest spin: it must not
        // outweigh many short gaps.
        let gap = gap_ns.min(4 * SPIN_MAX_NS);
        self.gap_ns = self.gap_ns.saturating_mul(7).saturating_add(gap) / 8;
    }

    /// Learns how long a yield took; whether it is worth to look on. `gave_way` is asked after a long one: whether
    /// another thread ran meanwhile. A guest's core stands still now and then without that, and then it is not wanted.
    pub(crate) fn observe_yield(
        &mut self,
        now: Time,
        took_ns: u64,
        gave_way: impl FnOnce() -> bool,
    ) -> bool {
        let crowded = took_ns > YIELD_ALONE_NS && gave_way();
        if crowded {
            let pause = took_ns.saturating_mul(CROWDED_TIMES).min(CROWDED_MAX_NS);
            self.crowded_until = now.after_ns(pause);
        }
        !crowded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Time = Time(1);

    #[test]
    fn short_gaps_spin_and_long_gaps_sleep() {
        let mut policy = Policy::new(Spin::Auto);
        for _ in 0..50 {
            policy.observe_gap(5_000);
        }
        let budget = policy.budget_ns(LATER);
        assert!((9_000..=10_000).contains(&budget), "{budget}");
        for _ in 0..50 {
            policy.observe_gap(1_000_000_000);
        }
        assert_eq!(policy.budget_ns(LATER), 0);
        for _ in 0..50 {
            policy.observe_gap(5_000);
        }
        assert!(policy.budget_ns(LATER) > 0);
    }

    #[test]
    fn one_pause_does_not_undo_many_short_gaps() {
        let mut policy = Policy::new(Spin::Auto);
        for _ in 0..50 {
            policy.observe_gap(5_000);
        }
        policy.observe_gap(u64::MAX);
        assert!(policy.budget_ns(LATER) > 0);
    }

    #[test]
    fn a_sleeper_probes_now_and_then() {
        let mut policy = Policy::new(Spin::Auto);
        for _ in 0..50 {
            policy.observe_gap(u64::MAX);
        }
        let budgets: Vec<u64> = (0..2 * SPIN_PROBE_EVERY)
            .map(|_| policy.budget_ns(LATER))
            .collect();
        assert_eq!(budgets.iter().filter(|b| **b > 0).count(), 2);
        assert!(budgets.iter().all(|b| *b <= SPIN_MAX_NS));
    }

    #[test]
    fn a_crowded_core_is_left_alone_in_proportion() {
        for spin in [Spin::Auto, Spin::For(Duration::from_millis(1))] {
            for (took, pause) in [(30_000, 30_000 * CROWDED_TIMES), (u64::MAX, CROWDED_MAX_NS)] {
                let mut policy = Policy::new(spin);
                assert!(policy.observe_yield(Time(0), 1_000, || panic!("short")));
                assert!(policy.budget_ns(LATER) > 0);
                assert!(!policy.observe_yield(Time(0), took, || true));
                assert_eq!(policy.budget_ns(Time(pause - 1)), 0);
                assert!(policy.budget_ns(Time(pause)) > 0);
            }
        }
    }

    #[test]
    fn a_core_that_stood_still_is_not_crowded() {
        let mut policy = Policy::new(Spin::Auto);
        assert!(policy.observe_yield(Time(0), 3_000_000, || false));
        assert!(policy.budget_ns(LATER) > 0);
    }

    #[test]
    fn off_is_off() {
        let mut policy = Policy::new(Spin::Off);
        policy.observe_gap(0);
        assert_eq!(policy.budget_ns(LATER), 0);
    }
}
