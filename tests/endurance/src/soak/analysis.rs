//! What samples say: whether memory grows, and how small a growth they could have shown.

use std::collections::BTreeMap;

/// A growth an hour, and the uncertainty of it, in octets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Slope {
    pub(crate) per_hour: f64,
    /// Twice the standard error: a true growth lies within this of [`per_hour`](Self::per_hour) in 19 of 20 runs.
    noise: f64,
    /// Seconds from the first sample to the last.
    seconds: f64,
    /// The noise, and [`STEP`] within the run: smaller growths cannot be told from none.
    pub(crate) resolution: f64,
}

/// A process settles for so many seconds: a growth of less than [`SETTLING`] octets until then is not called one.
const SETTLED: f64 = 300.0;
const SETTLING: f64 = 1_048_576.0;

/// A page for each of the arenas that the C library's allocator has in a process, eight at most here: so much is no growth.
const STEP: f64 = 32_768.0;

/// What a slope means against a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Below the limit, and the run was long and quiet enough to say so.
    Below,
    /// Not shown to be over the limit; the run could not have shown that it is below.
    Unresolved,
    /// Over the limit.
    Over,
}

impl Slope {
    /// The line of least squares through `samples`, seconds and octets. Three samples at least.
    pub(crate) fn of(samples: &[(f64, f64)]) -> Option<Self> {
        if samples.len() < 3 {
            return None;
        }
        let n = count(samples.len());
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| samples.iter().map(of).sum::<f64>() / n;
        let (at, level) = (mean(&|s| s.0), mean(&|s| s.1));
        let spread: f64 = samples.iter().map(|s| (s.0 - at).powi(2)).sum();
        if spread <= 0.0 {
            return None;
        }
        let together: f64 = samples.iter().map(|s| (s.0 - at) * (s.1 - level)).sum();
        let slope = together / spread;
        let rest: Vec<f64> = samples
            .iter()
            .map(|s| s.1 - level - slope * (s.0 - at))
            .collect();
        let squares: f64 = rest.iter().map(|r| r * r).sum();
        // Neighbours are alike: so many samples are worth fewer independent ones.
        let alike: f64 = rest.windows(2).map(|pair| pair[0] * pair[1]).sum();
        let alike = if squares > 0.0 {
            (alike / squares).clamp(0.0, 0.99)
        } else {
            0.0
        };
        let worth = (n * (1.0 - alike) / (1.0 + alike)).max(3.0);
        let seconds = samples[samples.len() - 1].0 - samples[0].0;
        let error = (squares / ((worth - 2.0) * spread)).sqrt();
        Some(Self {
            per_hour: slope * 3600.0,
            noise: 2.0 * error * 3600.0,
            seconds,
            resolution: (2.0 * error + STEP / seconds) * 3600.0,
        })
    }

    /// What it means against `limit` octets an hour.
    pub(crate) fn against(self, limit: f64) -> Verdict {
        let settles = self.seconds < SETTLED && self.per_hour * self.seconds / 3600.0 < SETTLING;
        if self.per_hour - self.resolution >= limit && !settles {
            Verdict::Over
        } else if self.per_hour + self.resolution < limit {
            Verdict::Below
        } else {
            Verdict::Unresolved
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
const fn count(n: usize) -> f64 {
    n as f64
}

/// Counts by name.
pub(crate) type Counts = BTreeMap<String, u64>;

/// Names whose count is not what it was, and both counts.
pub(crate) fn changed(before: &Counts, after: &Counts) -> Vec<(String, u64, u64)> {
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let of = |counts: &Counts, name: &String| counts.get(name).copied().unwrap_or(0);
    names
        .into_iter()
        .map(|name| (name.clone(), of(before, name), of(after, name)))
        .filter(|(_, before, after)| before != after)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_harness::Dice;

    const MIB: f64 = 1_048_576.0;

    /// `seconds` of samples, one a second: growth an hour in MiB, noise of so many pages, seed.
    fn series(seconds: u32, growth: f64, pages: u64, seed: u64) -> Vec<(f64, f64)> {
        let mut dice = Dice::new(seed);
        (0..seconds)
            .map(|at| {
                let noise = f64::from(u32::try_from(dice.below(pages + 1)).unwrap()) * 4096.0;
                let at = f64::from(at);
                (at, 40.0 * MIB + growth * MIB * at / 3600.0 + noise)
            })
            .collect()
    }

    fn verdict(seconds: u32, growth: f64, pages: u64, seed: u64) -> Verdict {
        Slope::of(&series(seconds, growth, pages, seed))
            .unwrap()
            .against(MIB)
    }

    #[test]
    fn a_leak_is_found_in_noise_and_no_leak_is_not() {
        for seed in 1..20 {
            assert_eq!(verdict(600, 0.0, 4, seed), Verdict::Below, "seed {seed}");
            assert_eq!(verdict(600, 2.0, 4, seed), Verdict::Over, "seed {seed}");
            assert_eq!(verdict(7200, 0.0, 64, seed), Verdict::Below, "seed {seed}");
            assert_eq!(verdict(7200, 1.5, 64, seed), Verdict::Over, "seed {seed}");
        }
    }

    #[test]
    fn what_a_run_cannot_show_it_does_not_claim() {
        for seed in 1..20 {
            // A minute, and noise of a MiB.
            assert_eq!(
                verdict(60, 0.0, 256, seed),
                Verdict::Unresolved,
                "seed {seed}"
            );
            assert_eq!(
                verdict(60, 1.5, 256, seed),
                Verdict::Unresolved,
                "seed {seed}"
            );
        }
    }

    #[test]
    fn the_uncertainty_is_what_the_same_run_again_would_show() {
        let runs: Vec<_> = (1..400)
            .map(|seed| Slope::of(&series(600, 2.0, 32, seed)).unwrap())
            .collect();
        let misses = runs
            .iter()
            .filter(|slope| (slope.per_hour - 2.0 * MIB).abs() > slope.noise)
            .count();
        // One in twenty: 20 of 399, give or take 4.4.
        assert!((5..=40).contains(&misses), "{misses} of {}", runs.len());
    }

    #[test]
    fn steps_of_an_allocator_are_worth_less_than_as_many_independent_samples() {
        // Half of the run on one level, half on another: no noise from sample to sample, and yet no line.
        let steps: Vec<_> = (0..600)
            .map(|at| {
                (
                    f64::from(at),
                    if (150..450).contains(&at) { MIB } else { 0.0 },
                )
            })
            .collect();
        let quiet = Slope::of(&steps).unwrap();
        assert!(quiet.noise > 4.0 * MIB, "{quiet:?}");
        assert_eq!(quiet.against(MIB), Verdict::Unresolved);
    }

    #[test]
    fn a_flat_line_is_flat() {
        let flat: Vec<_> = (0..10).map(|at| (f64::from(at), MIB)).collect();
        let slope = Slope::of(&flat).unwrap();
        assert!(slope.per_hour.abs() < 1.0 && slope.noise < 1.0, "{slope:?}");
        assert_eq!(Slope::of(&flat[..2]), None);
    }

    #[test]
    fn a_count_that_is_not_what_it_was_is_named() {
        let counts = |items: &[(&str, u64)]| -> Counts {
            items
                .iter()
                .map(|(name, n)| ((*name).to_owned(), *n))
                .collect()
        };
        let before = counts(&[("target sockets", 3), ("leases", 0)]);
        assert_eq!(changed(&before, &before.clone()), []);
        let after = counts(&[("target sockets", 4), ("leases", 0), ("handles", 1)]);
        let named = [
            ("handles".to_owned(), 0, 1),
            ("target sockets".to_owned(), 3, 4),
        ];
        assert_eq!(changed(&before, &after), named);
    }
    #[test]
    fn a_short_run_takes_a_step_of_the_allocator_for_no_growth() {
        // Twenty seconds, in which a process touches another 100 KiB.
        let settling: Vec<_> = (0..100)
            .map(|at| (f64::from(at) / 5.0, 1024.0 * f64::from(at)))
            .collect();
        let slope = Slope::of(&settling).unwrap();
        assert_eq!(slope.against(MIB), Verdict::Unresolved, "{slope:?}");
        // The same growth for ten minutes is one.
        assert_eq!(verdict(600, 18.0, 4, 1), Verdict::Over);
        // Half a MiB in the first minute may be settling, four are not.
        assert_eq!(verdict(60, 30.0, 0, 1), Verdict::Unresolved);
        assert_eq!(verdict(60, 240.0, 0, 1), Verdict::Over);
    }
}
