//! `kbtp-sim`: runs seeds of the simulation, replays one, and says what went wrong.
#![forbid(unsafe_code)]

use clap::Parser;
use kbtp_sim::report::{self, ALL_MARKS_FROM};
use kbtp_sim::run::{Totals, quiet_panics, run_seed};
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Steps of a run at most: it keeps the plan and the history of each of them in memory.
const OPS_MAX: u64 = 1_000_000;
/// Threads at most: more than any machine has processors for.
const JOBS_MAX: u64 = 1024;

const AFTER_HELP: &str = "\
Examples:
  kbtp-sim                            one run, of seed 1
  kbtp-sim --seeds 5000 --jobs 2      what CI runs
  kbtp-sim --seed 4711                the run of one seed once more, to the same end
  kbtp-sim --seed 1000001 --seeds 1000000 --report 60   a night, with totals every minute

A failure prints its seed, the options drawn from it, and the shortest history found that still fails.
The last line on standard output has the totals.

Exit status: 0 no violation, 1 a violation, or (from 5,000 seeds on, or with --all-marks) something that
should have happened did not; with --plants: a fault was not found; 2 wrong usage.";

/// Deterministic simulation of a KBTP target, its initiators and the network between them.
///
/// One seed makes one run, in one thread and with virtual time: the options, the operations of two to eight initiators,
/// the faults, and every chance of the network. The protocol is carried out by the production code.
#[derive(Parser, Debug)]
#[command(version, after_help = AFTER_HELP)]
#[cfg_attr(
    feature = "plants",
    expect(clippy::struct_excessive_bools, reason = "flags of a command")
)]
struct Arguments {
    /// The first seed
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Seeds to run, from the first on [default: 1; with --plants at most 1000 for each fault]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Steps of each: operations, and faults among them
    #[arg(long, default_value_t = 2000, value_name = "M", value_parser = clap::value_parser!(u64).range(1..=OPS_MAX))]
    ops: u64,
    /// Threads; what comes out does not depend on them
    #[arg(long, default_value_t = 1, value_name = "J", value_parser = clap::value_parser!(u64).range(1..=JOBS_MAX))]
    jobs: u64,
    /// Violations after which no new seed begins
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    failures: u64,
    /// Do not look for a shorter history of a failure
    #[arg(long)]
    no_shrink: bool,
    /// Every kind of fault and everything that must happen sometimes has to, however few the seeds
    #[arg(long)]
    all_marks: bool,
    /// Violations as they come and totals so far on standard error, every so many seconds
    #[arg(long, value_name = "SECONDS")]
    report: Option<u64>,
    /// Totals as JSON, with the count of each mark and fault
    #[arg(long)]
    json: bool,
    /// Measure the simulation: put each known fault into the product, one after the other, until a seed finds it
    #[cfg(feature = "plants")]
    #[arg(long)]
    plants: bool,
    /// Put this fault in; with --plants: measure with this one alone, or with several given one by one
    #[cfg(feature = "plants")]
    #[arg(long, value_name = "NAME", value_parser = planted)]
    plant: Vec<kbtp_sim::plants::Planted>,
    /// List the faults that can be put in
    #[cfg(feature = "plants")]
    #[arg(long)]
    list_plants: bool,
}

impl Arguments {
    fn seeds(&self) -> u64 {
        #[cfg(feature = "plants")]
        if self.plants {
            return self.seeds.unwrap_or(PLANT_SEEDS);
        }
        self.seeds.unwrap_or(1)
    }
}

/// Seeds within which each fault that was put in must be found.
#[cfg(feature = "plants")]
const PLANT_SEEDS: u64 = 1000;

#[cfg(feature = "plants")]
fn planted(name: &str) -> Result<kbtp_sim::plants::Planted, String> {
    kbtp_sim::plants::Planted::named(name)
        .ok_or_else(|| "no such fault; --list-plants lists them".to_owned())
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long it took; no run knows of it"
)]
fn clock() -> Instant {
    Instant::now()
}

/// Runs the seeds on as many threads as are wanted, with at most `failures` violations.
fn run_all(arguments: &Arguments, failures: u64) -> Totals {
    let begun = clock();
    let (next, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let totals = Mutex::new((Totals::default(), begun));
    let job = || {
        while failed.load(Relaxed) < failures {
            let number = next.fetch_add(1, Relaxed);
            if number >= arguments.seeds() {
                break;
            }
            let seed = arguments.seed.wrapping_add(number);
            let outcome = run_seed(seed, arguments.ops);
            failed.fetch_add(u64::from(outcome.violation.is_some()), Relaxed);
            if let Some(what) = outcome
                .violation
                .as_ref()
                .filter(|_| arguments.report.is_some())
            {
                eprintln!("seed {seed}: {what}");
            }
            let Ok(mut guard) = totals.lock() else {
                break;
            };
            let (totals, reported) = &mut *guard;
            totals.add(seed, outcome);
            let now = clock();
            if let Some(every) = arguments.report
                && now.duration_since(*reported) >= Duration::from_secs(every)
            {
                *reported = now;
                let seconds = now.duration_since(begun).as_secs_f64();
                eprintln!("{}", report::in_words(totals, seconds));
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 1..arguments.jobs.min(arguments.seeds()) {
            // The scope waits for it, and passes its panic on.
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, job) {
                eprintln!(
                    "no more than {number} of {} threads: {error}",
                    arguments.jobs
                );
                break;
            }
        }
        job();
    });
    let (mut totals, _) = match totals.into_inner() {
        Ok(inner) => inner,
        Err(poisoned) => poisoned.into_inner(),
    };
    totals.failed.sort_unstable();
    totals
}

/// Puts in each fault in turn and runs seeds until one fails; whether all were found.
#[cfg(feature = "plants")]
fn hunt(arguments: &Arguments, out: &mut impl Write) -> io::Result<bool> {
    use kbtp_sim::plants::Planted;

    let wanted = if arguments.plant.is_empty() {
        Planted::all()
    } else {
        arguments.plant.clone()
    };
    let (mut found, begun) = (0, clock());
    for plant in &wanted {
        Planted::put_in(Some(*plant));
        let totals = run_all(arguments, 1);
        let (name, seeds) = (plant.name(), totals.seeds);
        if let Some((seed, what)) = totals.failed.first() {
            found += 1;
            let what: String = what.chars().take(140).collect();
            writeln!(out, "{name}: found by seed {seed} ({seeds} seeds): {what}")?;
        } else {
            writeln!(out, "{name}: NOT FOUND in {seeds} seeds ({})", plant.text())?;
        }
    }
    Planted::put_in(None);
    writeln!(
        out,
        "{found} of {} planted faults found, in {:.0} s",
        wanted.len(),
        clock().duration_since(begun).as_secs_f64()
    )?;
    Ok(found == wanted.len())
}

/// Does what is wanted; whether it is good.
fn run(arguments: &Arguments, out: &mut impl Write) -> io::Result<bool> {
    let replay = String::new();
    #[cfg(feature = "plants")]
    let replay = {
        use kbtp_sim::plants::Planted;
        if arguments.list_plants {
            for plant in Planted::all() {
                writeln!(out, "{:22}{}", plant.name(), plant.text())?;
            }
            return Ok(true);
        }
        if arguments.plants {
            return hunt(arguments, out);
        }
        let plant = arguments.plant.first().copied();
        Planted::put_in(plant);
        plant.map_or(replay, |plant| format!(" --plant {}", plant.name()))
    };
    let begun = clock();
    let totals = run_all(arguments, arguments.failures);
    let seconds = clock().duration_since(begun).as_secs_f64();
    for (seed, what) in &totals.failed {
        let shrinks = !arguments.no_shrink;
        let failure = report::failure(*seed, what, arguments.ops, shrinks, &replay);
        writeln!(out, "{failure}")?;
    }
    let enough = arguments.all_marks || arguments.seeds() >= ALL_MARKS_FROM;
    let unmet = report::unmet(&totals);
    let unmet_counts = enough && totals.failed.is_empty() && !unmet.is_empty();
    if unmet_counts {
        let unmet = unmet.join("; ");
        writeln!(out, "should have happened, and did not: {unmet}")?;
    }
    if arguments.json {
        writeln!(out, "{}", report::in_json(&totals, seconds))?;
    } else {
        writeln!(out, "{}", report::in_words(&totals, seconds))?;
    }
    out.flush()?;
    Ok(totals.failed.is_empty() && !unmet_counts)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    #[cfg(feature = "plants")]
    if arguments.plant.len() > 1 && !arguments.plants {
        let many =
            "one fault at a time is put in: give one --plant, or --plants to measure with each";
        <Arguments as clap::CommandFactory>::command()
            .error(clap::error::ErrorKind::TooManyValues, many)
            .exit();
    }
    quiet_panics();
    match run(&arguments, &mut io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot write what was found: {error}");
            ExitCode::FAILURE
        }
    }
}
