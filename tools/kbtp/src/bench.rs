//! `kbtp bench`: one operation, measured for a short while.

use crate::cli::{BenchArgs, BenchEngine, BenchOp, TenantArgs};
use crate::driver::{self, Interrupt};
use crate::failure::Failure;
use crate::lane::{self, Lane, Plan, Run};
use crate::output::{self, Progress, Sheet};
use crate::own_target::{OwnTarget, Pool};
use crate::units::{count, latency, octets, per_second, rate};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Octets that one session goes round: beyond the caches of most machines.
const WORKING_SET: u64 = 64 << 20;
/// Blocks that one session goes round at most: more need no more memory, only time to bind.
const BLOCKS_MAX: u64 = 1024;
/// The part of the time that warms up and is not counted.
const WARM_UP: u32 = 10;

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    op: BenchOp,
    size: u64,
    depth: u16,
    sessions: u16,
    target: String,
    /// What serves, of a target that this command started.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<BenchEngine>,
    elapsed_ns: u64,
    operations: u64,
    octets: u64,
    operations_per_s: u64,
    octets_per_s: u64,
    latency_ns: Latency,
}

/// Percentiles, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) min: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl From<&Histogram<u64>> for Latency {
    fn from(h: &Histogram<u64>) -> Self {
        Self {
            count: h.len(),
            min: h.min(),
            p50: h.value_at_quantile(0.5),
            p90: h.value_at_quantile(0.9),
            p99: h.value_at_quantile(0.99),
            p999: h.value_at_quantile(0.999),
            max: h.max(),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] if the target cannot carry it, or an operation fails.
pub(crate) fn run(args: &BenchArgs, json: bool) -> Result<(), Failure> {
    let size = u32::try_from(args.size)
        .ok()
        .filter(|&s| s > 0)
        .ok_or_else(|| {
            Failure::usage(
                format_args!("--size of {} octets", args.size),
                "take 1 to 4GiB - 1",
            )
        })?;
    if args.duration.is_zero() {
        return Err(Failure::usage(
            "--duration of 0",
            "take long enough to measure, such as 2s",
        ));
    }
    // Before any thread: they inherit the blocked signals.
    let interrupt = Interrupt::take()?;
    let engines: &[BenchEngine] = match args.engine {
        BenchEngine::Both => &[BenchEngine::Software, BenchEngine::Chain],
        BenchEngine::Software => &[BenchEngine::Software],
        BenchEngine::Chain => &[BenchEngine::Chain],
    };
    let reports = engines.iter();
    let reports = reports.map(|engine| one(args, size, *engine, &interrupt));
    let reports = reports.collect::<Result<Vec<_>, _>>()?;
    match &reports[..] {
        [report] => output::report(json, report, || text(report)),
        all => output::report(json, &all, || {
            let texts: Vec<String> = all.iter().map(text).collect();
            texts.join("\n")
        }),
    }
}

/// Measures one target: the one that is named, or one that is started here with this engine.
fn one(
    args: &BenchArgs,
    size: u32,
    engine: BenchEngine,
    interrupt: &Interrupt,
) -> Result<Report, Failure> {
    let blocks = blocks_for(size, args.depth);
    let own = match args.target {
        Some(_) => None,
        None => Some(OwnTarget::start(Pool {
            block_size: args.size.next_multiple_of(4096),
            blocks: u64::from(blocks) * u64::from(args.sessions),
            credits: args.depth,
            chains: engine == BenchEngine::Chain,
        })?),
    };
    let plan = Plan {
        target: match (&own, args.target) {
            (Some(own), _) => own.addr(),
            (None, Some(addr)) => addr,
            (None, None) => return Err(Failure::usage("no target", "name one with --target")),
        },
        // A target of our own knows no tenants, whatever the environment names.
        who: match own {
            Some(_) => TenantArgs::default(),
            None => args.who.clone(),
        },
        op: args.op,
        size,
        depth: args.depth,
        blocks,
        spin: true,
    };
    let mut report = measure(&plan, args, interrupt)?;
    if let Some(own) = own {
        report.engine = Some(engine);
        own.stop()?;
    }
    Ok(report)
}

fn blocks_for(size: u32, depth: u16) -> u32 {
    let least = u64::from(depth) * 2;
    let fit = WORKING_SET / u64::from(size);
    u32::try_from(fit.min(BLOCKS_MAX).max(least)).unwrap_or(u32::MAX)
}

fn measure(plan: &Plan, args: &BenchArgs, interrupt: &Interrupt) -> Result<Report, Failure> {
    let mut lanes = Vec::with_capacity(usize::from(args.sessions));
    let ran = run_lanes(plan, args, interrupt, &mut lanes);
    // What is bound is given back whatever happened: a lease may be forever.
    let closed: Vec<_> = lanes.into_iter().map(Lane::close).collect();
    let runs = ran?;
    closed.into_iter().collect::<Result<(), _>>()?;
    let mut latency = lane::latencies()?;
    let (mut operations, mut moved, mut elapsed) = (0, 0, Duration::ZERO);
    for run in &runs {
        operations += run.operations;
        moved += run.octets;
        elapsed = elapsed.max(run.elapsed);
        latency.add(&run.latency).map_err(|e| {
            Failure::operation(format_args!("cannot add latencies: {e}"), "report this")
        })?;
    }
    Ok(Report {
        op: plan.op,
        size: args.size,
        depth: args.depth,
        sessions: args.sessions,
        target: plan.target.to_string(),
        engine: None,
        elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        operations,
        octets: moved,
        operations_per_s: per_second(operations, elapsed),
        octets_per_s: per_second(moved, elapsed),
        latency_ns: Latency::from(&latency),
    })
}

fn run_lanes(
    plan: &Plan,
    args: &BenchArgs,
    interrupt: &Interrupt,
    lanes: &mut Vec<Lane>,
) -> Result<Vec<Run>, Failure> {
    for _ in 0..args.sessions {
        let mut lane = Lane::open(plan)?;
        lane.stop_on(interrupt);
        lanes.push(lane);
        interrupt.check("before the measurement")?;
    }
    driver::in_parallel(lanes, |l| l.run(args.duration / WARM_UP))?;
    let progress = Progress::by_itself(args.duration, "measuring");
    let runs = driver::in_parallel(lanes, |l| l.run(args.duration));
    progress.finish();
    let runs = runs?;
    interrupt.check("while measuring")?;
    Ok(runs)
}

fn text(report: &Report) -> String {
    let elapsed = Duration::from_nanos(report.elapsed_ns);
    let l = report.latency_ns;
    let op = match report.op {
        BenchOp::Load => "load",
        BenchOp::Store => "store",
        BenchOp::Alloc => "alloc (store and free)",
    };
    let mut sheet = Sheet::new();
    match report.engine {
        Some(BenchEngine::Chain) => sheet.row("engine", "chains on the model of a NIC"),
        Some(_) => sheet.row("engine", "software"),
        None => {}
    }
    sheet.row(
        "operation",
        format_args!(
            "{op} of {}, {} in flight on each of {} sessions",
            octets(report.size),
            report.depth,
            report.sessions
        ),
    );
    sheet.row(
        "operations",
        format_args!(
            "{} in {} ({}/s)",
            count(report.operations),
            latency(report.elapsed_ns),
            count(report.operations_per_s)
        ),
    );
    sheet.row("throughput", rate(report.octets, elapsed));
    sheet.row(
        "latency",
        format_args!(
            "p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
            latency(l.p50),
            latency(l.p90),
            latency(l.p99),
            latency(l.p999),
            latency(l.max)
        ),
    );
    sheet.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_of_a_session_follow_size_and_depth() {
        assert_eq!(blocks_for(64 << 10, 8), 1024);
        assert_eq!(blocks_for(1 << 20, 8), 64);
        assert_eq!(blocks_for(1 << 30, 8), 16);
        assert_eq!(blocks_for(1, 1024), 2048);
    }
}
