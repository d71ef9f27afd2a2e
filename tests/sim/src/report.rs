//! What a command says of its runs.

use crate::marks::Mark;
use crate::options::Options;
use crate::plan::Fault;
use crate::run::{Totals, count, shrink};
use serde_json::json;
use std::fmt::Write;

/// Seeds from which on a run must have met every mark and every kind of fault.
pub const ALL_MARKS_FROM: u64 = 5_000;

/// How a failure came about: options, the shrunk history, how to run it again.
#[must_use]
pub fn failure(seed: u64, what: &str, ops: u64, shrinks: bool, more: &str) -> String {
    let options = Options::draw(seed, ops);
    let mut out = format!("seed {seed}: {what}\n");
    let replay = replay(seed, ops, more);
    if !shrinks {
        return out + &replay;
    }
    let (plan, outcome) = shrink(&options);
    let (operations, faults) = count(&plan);
    let again = outcome.violation.as_deref();
    let again = again.unwrap_or("it did not fail again");
    // Writing to a string does not fail.
    let _written = write!(
        out,
        "{options:#?}\nshrunk to {operations} operations and {faults} faults; the end of what happened:\n{}\nseed {seed}, shrunk: {again}\n{replay}",
        Vec::from(outcome.history).join("\n"),
    );
    out
}

/// How to run it again: with the journal of the core it is another run than without.
fn replay(seed: u64, ops: u64, more: &str) -> String {
    let flags = format!("--seed {seed} --ops {ops}{more}");
    if cfg!(feature = "plants") {
        format!("replay: make sim SIMFLAGS=\"{flags}\"\n")
    } else {
        format!("replay: cargo run --release -p kbtp-sim -- {flags}\n")
    }
}

/// What a run should have met and has not.
#[must_use]
pub fn unmet(totals: &Totals) -> Vec<String> {
    // Without the journal of the core nobody reads in the middle of a call.
    let journal = cfg!(feature = "plants");
    let needs_journal = [
        Mark::TornEntry,
        Mark::TornSlot,
        Mark::DiedWithin,
        Mark::MsnWrap,
    ];
    let marks = totals.sum.marks.missing().into_iter();
    let marks = marks
        .filter(|mark| journal || !needs_journal.contains(mark))
        .map(|mark| mark.text().to_owned());
    let faults = Fault::ALL.iter().zip(totals.sum.faults);
    let faults = faults
        .filter(|(_, n)| *n == 0)
        .map(|(fault, _)| format!("fault {fault:?}"));
    marks.chain(faults).collect()
}

/// The totals in one line.
#[must_use]
pub fn in_words(totals: &Totals, seconds: f64) -> String {
    let faults: u64 = totals.sum.faults.iter().sum();
    let unmet = unmet(totals);
    let unmet = if unmet.is_empty() {
        String::new()
    } else {
        format!(" (not: {})", unmet.join("; "))
    };
    format!(
        "{} seeds, {} operations ({:.0}/s), {faults} faults, {} events, {} virtual s in {seconds:.0} s; {} of {} marks met{unmet}; hash {:016x}; {} violations",
        totals.seeds,
        totals.sum.ops,
        totals.sum.ops as f64 / seconds.max(0.001),
        totals.sum.events,
        totals.sum.virtual_ns / 1_000_000_000,
        Mark::ALL.len() - totals.sum.marks.missing().len(),
        Mark::ALL.len(),
        totals.sum.hash,
        totals.failed.len(),
    )
}

/// The same as JSON, with the count of each mark and fault.
#[must_use]
pub fn in_json(totals: &Totals, seconds: f64) -> serde_json::Value {
    let marks: serde_json::Map<_, _> = Mark::ALL
        .iter()
        .map(|mark| (mark.text().to_owned(), json!(totals.sum.marks.count(*mark))))
        .collect();
    let faults: serde_json::Map<_, _> = Fault::ALL
        .iter()
        .zip(totals.sum.faults)
        .map(|(fault, n)| (format!("{fault:?}"), json!(n)))
        .collect();
    let failed: Vec<_> = totals
        .failed
        .iter()
        .map(|(seed, what)| json!({ "seed": seed, "violation": what }))
        .collect();
    json!({
        "seeds": totals.seeds,
        "ops": totals.sum.ops,
        "events": totals.sum.events,
        "seconds": seconds,
        "virtual_seconds": totals.sum.virtual_ns / 1_000_000_000,
        "faults": faults,
        "marks": marks,
        "unmet": unmet(totals),
        "hash": format!("{:016x}", totals.sum.hash),
        "violations": failed,
    })
}
