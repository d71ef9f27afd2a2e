//! `kbtp-sim`: runs seeds of the simulation, replays one, and says what went wrong.
#![forbid(unsafe_code)]

use clap::Parser;
use kbtp_sim::marks::Mark;
use kbtp_sim::options::Options;
use kbtp_sim::plan::Fault;
use kbtp_sim::run::{Totals, count, run_seed, shrink};
use serde_json::json;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Deterministic simulation of a KBTP target, its initiators and the network.
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds to run, from the first on.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Steps of each: operations, and faults among them.
    #[arg(long, default_value_t = 2000)]
    ops: u64,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Failures after which no new seed begins.
    #[arg(long, default_value_t = 1)]
    failures: u64,
    /// Instead: plants one fault after the other, and says how many seeds it takes to find it.
    #[cfg(feature = "plants")]
    #[arg(long)]
    plants: bool,
    /// Of those only the ones with this in their name.
    #[cfg(feature = "plants")]
    #[arg(long, default_value = "")]
    plant: String,
    /// Totals as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the seeds on as many threads as are wanted.
fn run_all(arguments: &Arguments) -> Totals {
    let (next, failures) = (AtomicU64::new(0), AtomicU64::new(0));
    let job = || {
        let mut totals = Totals::default();
        while failures.load(Relaxed) < arguments.failures {
            let number = next.fetch_add(1, Relaxed);
            if number >= arguments.seeds {
                break;
            }
            let seed = arguments.seed.wrapping_add(number);
            let outcome = run_seed(seed, arguments.ops);
            failures.fetch_add(u64::from(outcome.violation.is_some()), Relaxed);
            totals.add(seed, outcome);
        }
        totals
    };
    let mut totals = Totals::default();
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..arguments.jobs.max(1))
            .map(|_| scope.spawn(job))
            .collect();
        for job in jobs {
            match job.join() {
                Ok(part) => totals.merge(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    totals
}

/// Says which seeds failed, and how little it takes.
#[expect(clippy::print_stdout, reason = "what a command says")]
fn report(totals: &Totals, ops: u64) {
    for (seed, what) in &totals.failed {
        let options = Options::draw(*seed, ops);
        println!("seed {seed}: {what}\n{options:#?}");
        let (plan, outcome) = shrink(&options);
        let (operations, faults) = count(&plan);
        println!(
            "shrunk to {operations} operations and {faults} faults; the end of what happened:"
        );
        for line in &outcome.history {
            println!("{line}");
        }
        let again = outcome.violation.as_deref();
        let again = again.unwrap_or("it did not fail again");
        println!("seed {seed}, shrunk: {again}");
        println!("replay: kbtp-sim --seed {seed} --ops {ops}");
    }
}

/// The totals in one line.
fn in_words(totals: &Totals) -> String {
    let faults: Vec<_> = Fault::ALL
        .iter()
        .zip(totals.sum.faults)
        .map(|(fault, n)| format!("{fault:?} {n}"))
        .collect();
    let missing: Vec<_> = totals
        .sum
        .marks
        .missing()
        .iter()
        .map(|m| m.text())
        .collect();
    format!(
        "{} seeds, {} operations, {} events, {} virtual s; faults: {}; {} of {} marks met, never: {missing:?}; hash {:016x}; {} failed",
        totals.seeds,
        totals.sum.ops,
        totals.sum.events,
        totals.sum.virtual_ns / 1_000_000_000,
        faults.join(", "),
        Mark::ALL.len() - missing.len(),
        Mark::ALL.len(),
        totals.sum.hash,
        totals.failed.len(),
    )
}

/// The same as JSON.
fn in_json(totals: &Totals) -> serde_json::Value {
    let marks: serde_json::Map<_, _> = Mark::ALL
        .iter()
        .map(|mark| (mark.text().to_owned(), json!(totals.sum.marks.count(*mark))))
        .collect();
    let faults: serde_json::Map<_, _> = Fault::ALL
        .iter()
        .zip(totals.sum.faults)
        .map(|(fault, n)| (format!("{fault:?}"), json!(n)))
        .collect();
    let failed: Vec<_> = totals.failed.iter().map(|(seed, _)| seed).collect();
    json!({
        "seeds": totals.seeds,
        "ops": totals.sum.ops,
        "events": totals.sum.events,
        "virtual_seconds": totals.sum.virtual_ns / 1_000_000_000,
        "faults": faults,
        "marks": marks,
        "hash": format!("{:016x}", totals.sum.hash),
        "failed": failed,
    })
}

/// Runs seeds with each planted fault until one fails; whether all were found.
#[cfg(feature = "plants")]
#[expect(clippy::print_stdout, reason = "what a command says")]
fn plant_all(arguments: &Arguments) -> bool {
    use kbtp_core::plants as core;
    use kbtp_iwarp::plants as iwarp;

    let hunt = |name: String| {
        if !name.contains(&arguments.plant) {
            return true;
        }
        let totals = run_all(arguments);
        if let Some((seed, what)) = totals.failed.first() {
            let what: String = what.chars().take(160).collect();
            let n = totals.seeds;
            println!("{name}: found by seed {seed}, after {n} seeds: {what}");
        } else {
            println!("{name}: NOT FOUND in {} seeds", totals.seeds);
        }
        !totals.failed.is_empty()
    };
    let mut all = true;
    for plant in core::Plant::ALL {
        core::plant(Some(plant));
        all &= hunt(format!("{plant:?}"));
    }
    core::plant(None);
    for plant in iwarp::Plant::ALL {
        iwarp::plant(Some(plant));
        all &= hunt(format!("{plant:?}"));
    }
    iwarp::plant(None);
    all
}

#[expect(clippy::print_stdout, reason = "what a command says")]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    #[cfg(feature = "plants")]
    if arguments.plants {
        return if plant_all(&arguments) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    let totals = run_all(&arguments);
    report(&totals, arguments.ops);
    if arguments.json {
        println!("{}", in_json(&totals));
    } else {
        println!("{}", in_words(&totals));
    }
    if totals.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
