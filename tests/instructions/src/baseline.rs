//! The committed counts, and how new ones compare.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Growth that is borne, in per cent: what moving code about does.
const BORNE: u64 = 2;

/// What counts depend on, beside this tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Made {
    /// The compiler.
    pub(crate) rustc: String,
    /// The C library, which copies.
    pub(crate) libc: String,
    /// What counted.
    pub(crate) valgrind: String,
    /// The processor it shows.
    pub(crate) processor: String,
}

/// Counts, and how they were made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Baseline {
    /// With what.
    pub(crate) made: Made,
    /// Instructions per operation.
    pub(crate) count: BTreeMap<String, u64>,
}

/// What became of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing grew by more than what is borne.
    Good,
    /// Something did, or the cases differ.
    Worse,
    /// The counts were made with something else: they say nothing about this tree.
    Incomparable,
}

impl Baseline {
    /// Reads a baseline.
    pub(crate) fn of_text(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Writes one.
    pub(crate) fn to_text(&self) -> Result<String, toml::ser::Error> {
        const HEAD: &str = "# Instructions per operation; `make instructions COUNTFLAGS=--update` writes them anew.\n";
        Ok(HEAD.to_owned() + &toml::to_string(self)?)
    }
}

/// A table of both, and what follows.
pub(crate) fn compare(then: &Baseline, now: &Baseline) -> (String, Verdict) {
    let mut lines = Vec::new();
    let mut worse = Vec::new();
    for (name, count) in &now.count {
        let (line, grew) = row(name, then.count.get(name).copied(), *count);
        lines.push(line);
        worse.extend(grew.then_some(name.as_str()));
    }
    for name in then
        .count
        .keys()
        .filter(|name| !now.count.contains_key(*name))
    {
        lines.push(format!("{name:<20} is in the baseline and is not counted"));
        worse.push(name);
    }
    let verdict = if then.made != now.made {
        lines.push(format!(
            "NOT COMPARED: the baseline was made with\n  {:?}\nand these counts with\n  {:?}",
            then.made, now.made
        ));
        Verdict::Incomparable
    } else if worse.is_empty() {
        Verdict::Good
    } else {
        lines.push(format!(
            "grown by more than {BORNE} %, or not the same cases: {}\nif that is meant, say why in the commit and run: \
             make instructions COUNTFLAGS=--update",
            worse.join(", ")
        ));
        Verdict::Worse
    };
    (lines.join("\n") + "\n", verdict)
}

/// A line of the table, and whether the count is too high.
fn row(name: &str, base: Option<u64>, count: u64) -> (String, bool) {
    let Some(base) = base else {
        return (format!("{name:<20} {count:>8}   NOT IN THE BASELINE"), true);
    };
    let grew = count * 100 > base * (100 + BORNE);
    let note = if grew {
        "   TOO MUCH"
    } else if count * 100 < base * (100 - BORNE) {
        "   less: write the baseline anew to keep that"
    } else {
        ""
    };
    let sign = if count < base { '-' } else { '+' };
    let thousandths = (count.abs_diff(base) * 1000)
        .checked_div(base)
        .unwrap_or(1000);
    let (whole, tenth) = (thousandths / 10, thousandths % 10);
    let line =
        format!("{name:<20} {count:>8}   baseline {base:>8}   {sign}{whole}.{tenth} %{note}");
    (line, grew)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(rustc: &str, counts: &[(&str, u64)]) -> Baseline {
        Baseline {
            made: Made {
                rustc: rustc.to_owned(),
                libc: "l".to_owned(),
                valgrind: "v".to_owned(),
                processor: "p".to_owned(),
            },
            count: counts
                .iter()
                .map(|(name, n)| ((*name).to_owned(), *n))
                .collect(),
        }
    }

    fn verdict(now: &[(&str, u64)]) -> Verdict {
        compare(&baseline("1", &[("a", 1000)]), &baseline("1", now)).1
    }

    #[test]
    fn growth_over_two_per_cent_fails() {
        assert_eq!(verdict(&[("a", 1000)]), Verdict::Good);
        assert_eq!(verdict(&[("a", 1020)]), Verdict::Good);
        assert_eq!(verdict(&[("a", 1021)]), Verdict::Worse);
        assert_eq!(verdict(&[("a", 500)]), Verdict::Good);
    }

    #[test]
    fn the_cases_are_the_same() {
        assert_eq!(verdict(&[("a", 1000), ("b", 1)]), Verdict::Worse);
        assert_eq!(verdict(&[]), Verdict::Worse);
    }

    #[test]
    fn another_compiler_is_told_and_not_judged() {
        let (text, verdict) = compare(&baseline("1", &[("a", 1)]), &baseline("2", &[("a", 9)]));
        assert_eq!(verdict, Verdict::Incomparable);
        assert!(text.contains("NOT COMPARED"), "{text}");
    }

    #[test]
    fn the_committed_baseline_has_the_cases() {
        let text = include_str!("../baseline.toml");
        let baseline = Baseline::of_text(text).unwrap();
        let cases: Vec<&str> = crate::cases::CASES.iter().map(|case| case.name).collect();
        for case in &cases {
            assert!(
                baseline.count.get(*case).is_some_and(|count| *count > 0),
                "{case}"
            );
        }
        assert_eq!(baseline.count.len(), cases.len());
        assert_eq!(baseline.to_text().unwrap(), text);
    }
}
