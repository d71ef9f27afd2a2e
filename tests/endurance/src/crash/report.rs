//! What the campaign counted.

use super::Kill;
use super::put::Left;
use crate::cli::CrashArgs;
use crate::verdict::Verdict;
use kbtp::output::{self, Sheet, Table};
use kbtp_harness::Kind;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    kills: BTreeMap<Kill, u64>,
    /// How long it took to serve again.
    times: BTreeMap<Kill, Vec<Duration>>,
    /// Kills with an operation of that kind in flight.
    in_flight: BTreeMap<Kind, u64>,
    puts: BTreeMap<Left, u64>,
    /// Kills that found a release not begun, begun, and done.
    released: [u64; 3],
    pub(crate) sessions: u64,
    pub(crate) operations: u64,
    pub(crate) stags: u64,
    pub(crate) stags_again: u64,
}

impl Tally {
    pub(crate) fn kills(&self) -> u64 {
        self.kills.values().sum()
    }

    pub(crate) fn killed(&mut self, kill: Kill) {
        *self.kills.entry(kill).or_default() += 1;
    }

    pub(crate) fn served(&mut self, kill: Kill, after: Duration) {
        self.times.entry(kill).or_default().push(after);
    }

    pub(crate) fn put(&mut self, left: Left) {
        *self.puts.entry(left).or_default() += 1;
    }

    pub(crate) fn released(&mut self, found: u64, of: u64) {
        let which = match found {
            0 => 2,
            n if n == of => 0,
            _ => 1,
        };
        self.released[which] += 1;
    }

    /// Notes what is in flight as somebody is killed.
    pub(crate) fn in_flight(&mut self, _kill: Kill, kinds: impl Iterator<Item = Kind>) {
        let kinds: std::collections::BTreeSet<_> = kinds.collect();
        for kind in kinds {
            *self.in_flight.entry(kind).or_default() += 1;
        }
    }

    /// Prints it; a failure if serving again took longer than it may.
    pub(crate) fn report(&self, args: &CrashArgs, elapsed: Duration) -> ExitCode {
        let verdict = self.verdict(args);
        let printed = output::report(args.json, &self.value(args, elapsed, &verdict), || {
            format!("{}\n{verdict}\n", self.text(args, elapsed))
        });
        if args.json {
            output::note(&verdict.to_string());
        }
        match printed {
            Ok(()) => verdict.exit_code(),
            Err(failure) => failure.exit_code(),
        }
    }

    /// Whatever is wrong but the times has ended the campaign before.
    fn verdict(&self, args: &CrashArgs) -> Verdict {
        let longest = self.times.values().flatten().max().copied();
        match (args.within, longest) {
            (Some(limit), Some(longest)) if longest > limit => Verdict::Failed(format!(
                "serving again took {longest:?} once, over {limit:?}"
            )),
            (Some(limit), None) => Verdict::Inconclusive(format!(
                "no kill of those that were made shows whether serving again takes {limit:?}"
            )),
            _ => Verdict::Passed(format!(
                "{} kills ({} asked for at least), nothing wrong, stale, lost or left behind",
                self.kills(),
                args.kills
            )),
        }
    }

    fn all_times(&self) -> Vec<Duration> {
        self.times.values().flatten().copied().collect()
    }

    fn value(&self, args: &CrashArgs, elapsed: Duration, verdict: &Verdict) -> Value {
        let kinds: Vec<Value> = self
            .kills
            .iter()
            .map(|(kill, kills)| {
                let times = self.times.get(kill).cloned().unwrap_or_default();
                let [p50, p99, max] = percentiles(times).map(|t| t.as_secs_f64() * 1e3);
                json!({"what": kill.name(), "kills": kills, "p50_ms": p50, "p99_ms": p99, "max_ms": max})
            })
            .collect();
        let [p50, p99, max] = percentiles(self.all_times()).map(|t| t.as_secs_f64() * 1e3);
        let in_flight: serde_json::Map<String, Value> = Kind::ALL
            .iter()
            .map(|kind| (kind.name().to_owned(), json!(self.flew(*kind))))
            .collect();
        let puts: serde_json::Map<String, Value> = self
            .puts
            .iter()
            .map(|(left, n)| (left.name().to_owned(), json!(n)))
            .collect();
        json!({
            "seed": args.seed,
            "seconds": elapsed.as_secs_f64(),
            "kills": self.kills(),
            "by_kind": kinds,
            "served_again_ms": {"p50": p50, "p99": p99, "max": max},
            "kills_with_in_flight": in_flight,
            "puts_left": puts,
            "releases": {"not_begun": self.released[0], "begun": self.released[1], "done": self.released[2]},
            "operations": self.operations,
            "sessions": self.sessions,
            "stags": self.stags,
            "stags_again": self.stags_again,
            "wrong_or_stale_octets": 0,
            "verdict": verdict.word(),
        })
    }

    fn flew(&self, kind: Kind) -> u64 {
        self.in_flight.get(&kind).copied().unwrap_or(0)
    }

    fn text(&self, args: &CrashArgs, elapsed: Duration) -> String {
        let mut table = Table::new(&["killed", "times", "serves again, p50 ms", "p99", "max"]);
        let ms = |t: Duration| format!("{:.0}", t.as_secs_f64() * 1e3);
        for (kill, kills) in &self.kills {
            let times = self.times.get(kill).cloned().unwrap_or_default();
            let mut row = vec![kill.name().to_owned(), kills.to_string()];
            // Nobody waits for a put.
            let measured = !times.is_empty();
            let shown = percentiles(times).map(|t| if measured { ms(t) } else { "-".to_owned() });
            row.extend(shown);
            table.row(row);
        }
        let mut row = vec!["all".to_owned(), self.kills().to_string()];
        row.extend(percentiles(self.all_times()).map(ms));
        table.row(row);
        let mut sheet = Sheet::new();
        let list = |items: Vec<(&str, u64)>| {
            let items: Vec<_> = items
                .iter()
                .map(|(name, n)| format!("{name} {n}"))
                .collect();
            items.join(", ")
        };
        let flew = Kind::ALL.map(|kind| (kind.name(), self.flew(kind)));
        sheet.row("kills with in flight", list(flew.to_vec()));
        let puts = self.puts.iter().map(|(left, n)| (left.name(), *n));
        sheet.row("a killed put left", list(puts.collect()));
        let [before, amid, after] = self.released;
        let releases = vec![("not begun", before), ("begun", amid), ("done", after)];
        sheet.row("a killed release was", list(releases));
        sheet.row("operations", self.operations);
        sheet.row(
            "sessions, STags",
            format_args!(
                "{}, {}; {} STags came twice by chance, none in the session after",
                self.sessions, self.stags, self.stags_again
            ),
        );
        format!(
            "seed {}: {} kills in {:.0} s; wrong or stale octets: none; blocks, quota, tickets lost: none; left behind: nothing\n\n{}\n{}",
            args.seed,
            self.kills(),
            elapsed.as_secs_f64(),
            table.text(),
            sheet.text()
        )
    }
}

/// The median, the 99th percentile and the longest.
fn percentiles(mut times: Vec<Duration>) -> [Duration; 3] {
    times.sort_unstable();
    [50, 99, 100].map(|part| {
        let at = (times.len() * part).div_ceil(100).saturating_sub(1);
        times.get(at).copied().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were() {
        let times: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let ms = [100, 198, 200].map(Duration::from_millis);
        assert_eq!(percentiles(times), ms);
        let one = vec![Duration::from_secs(3)];
        assert_eq!(percentiles(one), [Duration::from_secs(3); 3]);
        assert_eq!(percentiles(Vec::new()), [Duration::ZERO; 3]);
    }

    #[test]
    fn a_campaign_that_was_too_slow_fails_and_one_that_measured_nothing_says_so() {
        let args = |within| CrashArgs {
            kills: 2,
            seed: 1,
            only: String::new(),
            within,
            json: false,
        };
        let second = Some(Duration::from_secs(1));
        let mut tally = Tally::default();
        tally.killed(Kill::Put);
        assert_eq!(tally.verdict(&args(None)).word(), "PASSED");
        assert_eq!(tally.verdict(&args(second)).word(), "INCONCLUSIVE");
        tally.served(Kill::Target, Duration::from_millis(900));
        assert_eq!(tally.verdict(&args(second)).word(), "PASSED");
        tally.served(Kill::Target, Duration::from_millis(1_100));
        assert_eq!(tally.verdict(&args(second)).word(), "FAILED");
    }

    #[test]
    fn releases_are_told_apart() {
        let mut tally = Tally::default();
        for found in [0, 0, 5, 9, 10] {
            tally.released(found, 10);
        }
        assert_eq!(tally.released, [1, 2, 2]);
    }
}
