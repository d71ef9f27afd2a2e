//! What the soak found.

use super::analysis::{Slope, Verdict, changed};
use super::sample::{Sample, Watched};
use crate::cli::SoakArgs;
use crate::verdict::Verdict as Shown;
use kbtp::output::{self, Sheet, Table};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// Growth of resident memory that is too much, in octets an hour.
const LIMIT: f64 = MIB;
const MIB: f64 = 1_048_576.0;
/// Samples shown when something grew, about.
const SHOWN: usize = 30;

#[derive(Debug)]
struct Memory {
    name: &'static str,
    first: f64,
    last: f64,
    slope: Option<Slope>,
}

impl Memory {
    fn verdict(&self) -> Verdict {
        self.slope
            .map_or(Verdict::Unresolved, |slope| slope.against(LIMIT))
    }

    const fn words(verdict: Verdict) -> &'static str {
        match verdict {
            Verdict::Below => "below 1 MiB/h",
            Verdict::Unresolved => "not resolved: too short, or too noisy",
            Verdict::Over => "GROWS",
        }
    }
}

/// All of it.
#[derive(Debug)]
pub(super) struct Report {
    seed: u64,
    json: bool,
    watched: Vec<Watched>,
    samples: Vec<Sample>,
    memory: Vec<Memory>,
    /// Counts that are not what they were.
    changed: Vec<(String, u64, u64)>,
    counts: usize,
    operations: u64,
    sessions: u64,
    elapsed: Duration,
}

impl Report {
    pub(super) fn new(args: &SoakArgs, watched: &[Watched]) -> Self {
        Self {
            seed: args.seed,
            json: args.json,
            watched: watched.to_vec(),
            samples: Vec::new(),
            memory: Vec::new(),
            changed: Vec::new(),
            counts: 0,
            operations: 0,
            sessions: 0,
            elapsed: Duration::ZERO,
        }
    }

    pub(super) fn judge(
        &mut self,
        samples: &[Sample],
        baseline: &Sample,
        end: &Sample,
        (operations, sessions): (u64, u64),
        elapsed: Duration,
    ) {
        (self.operations, self.sessions, self.elapsed) = (operations, sessions, elapsed);
        self.samples = samples.to_vec();
        self.counts = baseline.counts.len();
        self.changed = changed(&baseline.counts, &end.counts);
        let memory = self.watched.iter().enumerate().map(|(which, process)| {
            let series: Vec<_> = samples.iter().map(|s| (s.at, s.resident[which])).collect();
            Memory {
                name: process.name,
                first: baseline.resident[which],
                last: end.resident[which],
                slope: Slope::of(&series),
            }
        });
        self.memory = memory.collect();
    }

    /// Prints it, the verdict last.
    pub(super) fn print(&self) -> ExitCode {
        let verdict = self.shown();
        let printed = output::report(self.json, &self.value(&verdict), || {
            format!("{}\n{verdict}\n", self.text())
        });
        if let Shown::Failed(_) = verdict {
            output::note(&format!(
                "seed {}: {verdict}\n\n{}",
                self.seed,
                self.table()
            ));
        } else if self.json {
            output::note(&verdict.to_string());
        }
        match printed {
            Ok(()) => verdict.exit_code(),
            Err(failure) => failure.exit_code(),
        }
    }

    /// What the run has shown, all in all.
    fn shown(&self) -> Shown {
        let grew = self.grew();
        if !grew.is_empty() {
            return Shown::Failed(grew.join("; "));
        }
        let unresolved: Vec<_> = self
            .memory
            .iter()
            .filter(|m| m.verdict() == Verdict::Unresolved)
            .map(|m| m.name)
            .collect();
        if self.sessions == 0 || self.operations == 0 || self.counts == 0 {
            return Shown::Inconclusive(
                "nothing was done that could have left something".to_owned(),
            );
        }
        if !unresolved.is_empty() {
            return Shown::Inconclusive(format!(
                "{} counts are what they were; whether the memory of {} grows is not resolved: soak for longer, or on a quieter \
                 machine",
                self.counts,
                unresolved.join(", ")
            ));
        }
        Shown::Passed(format!(
            "{} counts are what they were, and the memory of no process grows",
            self.counts
        ))
    }

    /// What grew, or is not what it was.
    fn grew(&self) -> Vec<String> {
        let memory = self
            .memory
            .iter()
            .filter(|m| m.verdict() == Verdict::Over)
            .map(|m| format!("resident memory of {} grows", m.name));
        let counts = self
            .changed
            .iter()
            .map(|(name, before, after)| format!("{name}: {before} before, {after} after"));
        memory.chain(counts).collect()
    }

    fn value(&self, verdict: &Shown) -> Value {
        let memory: Vec<_> = self
            .memory
            .iter()
            .map(|m| {
                json!({
                    "process": m.name,
                    "before": m.first,
                    "after": m.last,
                    "mib_per_hour": m.slope.map(|s| s.per_hour / MIB),
                    "resolution_mib_per_hour": m.slope.map(|s| s.resolution / MIB),
                    "verdict": Memory::words(m.verdict()),
                })
            })
            .collect();
        let changed: Vec<_> = self
            .changed
            .iter()
            .map(|(name, before, after)| json!({"name": name, "before": before, "after": after}))
            .collect();
        let samples: Vec<_> = self.samples.iter().map(|s| s.json(&self.watched)).collect();
        json!({
            "seed": self.seed,
            "seconds": self.elapsed.as_secs_f64(),
            "operations": self.operations,
            "sessions": self.sessions,
            "memory": memory,
            "counts": self.counts,
            "counts_changed": changed,
            "samples": samples,
            "verdict": verdict.word(),
        })
    }

    fn text(&self) -> String {
        let mut table = Table::new(&[
            "resident memory of",
            "before MiB",
            "after",
            "MiB/h",
            "+-",
            "",
        ]);
        for memory in &self.memory {
            let slope = |of: fn(&Slope) -> f64| {
                let slope = memory.slope.as_ref().map(|s| of(s) / MIB);
                slope.map_or_else(|| "-".to_owned(), |s| format!("{s:.2}"))
            };
            table.row(vec![
                memory.name.to_owned(),
                format!("{:.1}", memory.first / MIB),
                format!("{:.1}", memory.last / MIB),
                slope(|s| s.per_hour),
                slope(|s| s.resolution),
                Memory::words(memory.verdict()).to_owned(),
            ]);
        }
        let mut sheet = Sheet::new();
        sheet.row(
            "load",
            format_args!(
                "{} operations, {} sessions in {:.0} s; every load compared",
                self.operations,
                self.sessions,
                self.elapsed.as_secs_f64()
            ),
        );
        sheet.row(
            "at rest",
            format_args!(
                "{} of {} counts are what they were",
                self.counts - self.changed.len().min(self.counts),
                self.counts
            ),
        );
        format!(
            "seed {}, {} samples\n\n{}\n{}",
            self.seed,
            self.samples.len(),
            table.text(),
            sheet.text()
        )
    }

    /// Some of the samples, and of the counts those that moved.
    fn table(&self) -> String {
        let moved: Vec<&String> = self.samples.first().map_or_else(Vec::new, |first| {
            let moves = |name: &&String| {
                let of = |s: &Sample| s.counts.get(*name).copied();
                self.samples.iter().any(|s| of(s) != of(first))
            };
            first.counts.keys().filter(moves).collect()
        });
        let mut headings = vec!["at s".to_owned()];
        headings.extend(self.watched.iter().map(|w| format!("{} MiB", w.name)));
        headings.extend(moved.iter().map(|name| (*name).clone()));
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        let mut table = Table::new(&headings);
        for sample in self
            .samples
            .iter()
            .step_by(self.samples.len().div_ceil(SHOWN).max(1))
        {
            let mut row = vec![format!("{:.0}", sample.at)];
            row.extend(sample.resident.iter().map(|r| format!("{:.2}", r / MIB)));
            row.extend(moved.iter().map(|name| sample.counts[*name].to_string()));
            table.row(row);
        }
        table.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a run in which a process of that growth, in MiB an hour, was watched for so many seconds.
    fn report(seconds: u32, growth: f64, changed: bool) -> Report {
        let series: Vec<_> = (0..seconds)
            .map(|at| {
                (
                    f64::from(at),
                    40.0 * MIB + growth * MIB * f64::from(at) / 3600.0,
                )
            })
            .collect();
        Report {
            seed: 1,
            json: false,
            watched: Vec::new(),
            samples: Vec::new(),
            memory: vec![Memory {
                name: "target",
                first: 0.0,
                last: 0.0,
                slope: Slope::of(&series),
            }],
            changed: if changed {
                vec![("leases".to_owned(), 0, 1)]
            } else {
                Vec::new()
            },
            counts: 42,
            operations: 9,
            sessions: 3,
            elapsed: Duration::from_secs(seconds.into()),
        }
    }

    #[test]
    fn what_is_not_resolved_is_no_success() {
        assert_eq!(report(1200, 0.0, false).shown().word(), "PASSED");
        assert_eq!(report(1200, 9.0, false).shown().word(), "FAILED");
        assert_eq!(report(1200, 0.0, true).shown().word(), "FAILED");
        // A second, of which there may be one sample or two.
        let short = report(1, 0.0, false).shown();
        assert_eq!(short.word(), "INCONCLUSIVE");
        assert!(short.to_string().contains("memory of target"), "{short}");
        assert_eq!(report(1, 0.0, true).shown().word(), "FAILED");
        let mut idle = report(1200, 0.0, false);
        idle.sessions = 0;
        assert_eq!(idle.shown().word(), "INCONCLUSIVE");
    }
}
