//! Whether a device does what chains count on: small programs, each of which asks one thing, over any [`Device`].
//!
//! A chain engine serves with a device only if [`Report::refusal`] is `None`: everything that chains need was seen to work. What
//! is only of interest is in the report too. The model of a device passes as it is, and fails where its hazards say so.

mod bench;
mod probes;

use crate::{Device, SetUpError};
use bench::Bench;

/// What came of asking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The device does it.
    Passed,
    /// It does not, in words.
    Failed(String),
    /// What it does, where chains bear either.
    Says(String),
    /// Not asked, and why.
    NotTried(&'static str),
}

/// One thing that is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Its number in the list of `docs/chains.md`.
    pub number: u8,
    /// What is asked.
    pub asks: &'static str,
    /// Whether chains need it.
    pub needed: bool,
    /// The answer.
    pub outcome: Outcome,
}

/// How long things took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latency {
    /// From ringing to the CQE of one READ of 8 octets of the queue pair itself, the median of many: software included.
    pub read_ns: u64,
    /// The same of a NOP.
    pub nop_ns: u64,
    /// A NOP behind others, on average.
    pub next_nop_ns: u64,
}

/// All answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// In the order of their numbers.
    pub probes: Vec<Probe>,
    /// `None` if a READ or a NOP does not work at all.
    pub latency: Option<Latency>,
}

impl Report {
    /// What chains need and the device was not seen to do: one line for each step, with its number. Empty if they may serve.
    #[must_use]
    pub fn failed(&self) -> Vec<String> {
        let needed = self.probes.iter().filter(|probe| probe.needed);
        let failed = needed.filter_map(|probe| match &probe.outcome {
            Outcome::Failed(how) => Some((probe, how.as_str())),
            Outcome::NotTried(why) => Some((probe, *why)),
            Outcome::Passed | Outcome::Says(_) => None,
        });
        failed
            .map(|(probe, how)| format!("step {}, {}: {how}", probe.number, probe.asks))
            .collect()
    }

    /// Why chains may not serve with this device, in words; `None` if they may.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let failed = self.failed();
        (!failed.is_empty()).then(|| failed.join("; "))
    }
}

/// Asks a device everything. `wait` is called while something is waited for, and lets the device run if it is a model; it
/// gives `false` when it has waited long enough. `now` counts nanoseconds.
///
/// Takes domains, memory, keys and some thirty queue pairs, and gives back all but the domains and software's queue pair.
///
/// # Errors
/// [`SetUpError`] if there is not even memory to ask with.
pub fn calibrate<D: Device>(
    device: &mut D,
    wait: &mut dyn FnMut(&mut D) -> bool,
    now: &mut dyn FnMut() -> u64,
) -> Result<Report, SetUpError<D::Error>> {
    let mut bench = Bench::new(device, wait)?;
    let probes = probes::all(&mut bench);
    let latency = probes::latency(&mut bench, now).ok();
    bench.end();
    Ok(Report { probes, latency })
}
