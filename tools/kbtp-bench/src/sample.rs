//! What one window of measuring gives, and medians of several.

use crate::cpu;
use kbtp::Failure;
use kbtp::driver;
use kbtp::lane::{self, Lane, Run};
use serde::Serialize;
use std::time::Duration;

/// Something that moves blocks for a while.
pub(crate) trait Mover: Send {
    /// Moves blocks for `window`.
    ///
    /// # Errors
    /// If a block could not be moved.
    fn run(&mut self, window: Duration) -> Result<Run, Failure>;

    /// Leaves nothing behind.
    ///
    /// # Errors
    /// If that fails.
    fn close(self: Box<Self>) -> Result<(), Failure>;
}

impl Mover for Lane {
    fn run(&mut self, window: Duration) -> Result<Run, Failure> {
        Self::run(self, window)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Self::close(*self)
    }
}

/// One window of one or several movers together.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Sample {
    /// Octets a second, of all movers.
    pub(crate) octets_per_s: f64,
    /// Latency of one operation; zero where only a stream was measured.
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    /// CPU time of the serving process for each GiB.
    pub(crate) server_cpu_s_per_gib: f64,
}

/// Runs the movers for `window` and accounts for the CPU time of process `server` meanwhile.
///
/// # Errors
/// If a mover fails.
pub(crate) fn take(
    movers: &mut [Box<dyn Mover>],
    server: u32,
    window: Duration,
) -> Result<Sample, Failure> {
    let before = cpu::time_of(server)?;
    let runs = driver::in_parallel(movers, |m| m.run(window))?;
    let cpu = cpu::time_of(server)?.saturating_sub(before);
    let mut latency = lane::latencies()?;
    let (mut octets, mut elapsed) = (0, Duration::ZERO);
    for run in &runs {
        octets += run.octets;
        elapsed = elapsed.max(run.elapsed);
        latency.add(&run.latency).map_err(|e| {
            Failure::operation(format_args!("cannot add latencies: {e}"), "report this")
        })?;
    }
    Ok(Sample {
        octets_per_s: per_second(octets, elapsed),
        p50_ns: float(latency.value_at_quantile(0.5)),
        p99_ns: float(latency.value_at_quantile(0.99)),
        server_cpu_s_per_gib: cpu.as_secs_f64() * GIB / float(octets).max(1.0),
    })
}

const GIB: f64 = 1_073_741_824.0;

/// Octets over time.
pub(crate) fn per_second(octets: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 {
        float(octets) / seconds
    } else {
        0.0
    }
}

/// A count as a number to divide: exact up to 2^53, which no window reaches.
#[expect(
    clippy::cast_precision_loss,
    reason = "a window moves far fewer than 2^53 octets"
)]
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}

/// The median; zero of nothing.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = sorted.get(middle).copied().unwrap_or(0.0);
    if sorted.len().is_multiple_of(2) && middle > 0 {
        let lower = sorted.get(middle - 1).copied().unwrap_or(0.0);
        return f64::midpoint(lower, upper);
    }
    upper
}

/// The median of each figure.
pub(crate) fn medians(samples: &[Sample]) -> Sample {
    let of = |pick: fn(&Sample) -> f64| median(samples.iter().map(pick));
    Sample {
        octets_per_s: of(|s| s.octets_per_s),
        p50_ns: of(|s| s.p50_ns),
        p99_ns: of(|s| s.p99_ns),
        server_cpu_s_per_gib: of(|s| s.server_cpu_s_per_gib),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_nothing() {
        for (values, right) in [
            (vec![], 0.0),
            (vec![3.0], 3.0),
            (vec![9.0, 1.0, 5.0], 5.0),
            (vec![4.0, 1.0, 2.0, 3.0], 2.5),
        ] {
            assert!((median(values.clone()) - right).abs() < 1e-9, "{values:?}");
        }
    }

    #[test]
    fn movers_are_summed_and_their_latencies_merged() {
        struct Fake(u64);
        impl Mover for Fake {
            fn run(&mut self, _: Duration) -> Result<Run, Failure> {
                let mut latency = lane::latencies()?;
                lane::record(&mut latency, Duration::from_nanos(self.0));
                Ok(Run {
                    operations: 1,
                    octets: 1000,
                    elapsed: Duration::from_secs(self.0 / 100),
                    latency,
                })
            }

            fn close(self: Box<Self>) -> Result<(), Failure> {
                Ok(())
            }
        }
        let mut movers: Vec<Box<dyn Mover>> = vec![Box::new(Fake(100)), Box::new(Fake(200))];
        let sample = take(&mut movers, std::process::id(), Duration::ZERO).unwrap();
        // 2000 octets in the longer of one and two seconds.
        assert!((sample.octets_per_s - 1000.0).abs() < 1e-6);
        assert!((sample.p50_ns - 100.0).abs() < 1.0);
        assert!((sample.p99_ns - 200.0).abs() < 1.0);
    }

    #[test]
    fn a_mover_that_fails_fails_the_sample() {
        struct Broken;
        impl Mover for Broken {
            fn run(&mut self, _: Duration) -> Result<Run, Failure> {
                Err(Failure::operation("broken", "mend it"))
            }

            fn close(self: Box<Self>) -> Result<(), Failure> {
                Ok(())
            }
        }
        let mut movers: Vec<Box<dyn Mover>> = vec![Box::new(Broken)];
        assert!(take(&mut movers, std::process::id(), Duration::ZERO).is_err());
    }
}
