//! Measures every point: KBTP and its limit in turn, several times.

use crate::bounds;
use crate::child;
use crate::cli::{Cli, Load};
use crate::cpu::{Account, Burners};
use crate::memory::Copier;
use crate::plain::{Client, PlainMover, Way};
use crate::report;
use crate::sample::{self, Mover, Sample, median, medians};
use kbtp::Failure;
use kbtp::cli::{BenchOp, TenantArgs};
use kbtp::daemon::Daemon;
use kbtp::lane::{Lane, Plan};
use kbtp::output::Progress;
use serde::Serialize;

/// Octets of a target's pool at least: beyond the caches.
const POOL_LEN: u64 = 64 << 20;

/// Octets in flight at most: each is there several times, and more of them make nothing faster. What passes it is left
/// out, and the report says so.
pub(crate) const IN_FLIGHT_MAX: u64 = 256 << 20;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) op: BenchOp,
    pub(crate) size: u32,
    pub(crate) depth: u16,
    pub(crate) sessions: u16,
    pub(crate) load: Load,
}

/// A point's figures: medians of the rounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) point: Point,
    pub(crate) kbtp: Sample,
    /// The same octets over plain sockets.
    pub(crate) limit: Sample,
    pub(crate) memcpy_octets_per_s: f64,
    /// KBTP over limit, median of the rounds: throughput (1 is the limit), latency (at depth 1), server CPU.
    pub(crate) throughput_ratio: f64,
    pub(crate) latency_ratio: Option<f64>,
    pub(crate) server_cpu_ratio: f64,
    /// The part of the machine that others had meanwhile; load that was put on it on purpose counts as ours.
    pub(crate) others_cpu: f64,
    /// The limit's throughput in the round in which it was highest, over that in which it was lowest.
    pub(crate) limit_spread: f64,
}

/// Runs all points and prints them.
///
/// # Errors
/// [`Failure`] if one cannot be measured.
pub(crate) fn run(cli: &Cli) -> Result<(), Failure> {
    let sizes = cli
        .sizes
        .iter()
        .map(|&s| {
            u32::try_from(s).ok().filter(|&s| s > 0).ok_or_else(|| {
                Failure::usage(format_args!("--sizes {s}"), "take sizes of 1 to 4GiB - 1")
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let each = cli.ops.len() * cli.depths.len() * cli.sessions.len() * cli.load.len();
    let total = u64::try_from(each * sizes.len()).unwrap_or(0);
    let mut progress = Progress::new(total, "measuring");
    let plain = child::plain()?;
    let mut copier = Copier::new();
    let mut rows = Vec::new();
    for &size in &sizes {
        let target = child::target(size, pool_blocks(size, cli))?;
        for point in points(size, cli) {
            let _burners = match point.load {
                Load::Idle => None,
                Load::Busy => Some(Burners::start()?),
            };
            rows.push(measure(&point, &target, &plain, &mut copier, cli)?);
            progress.at(u64::try_from(rows.len()).unwrap_or(0));
        }
        drop(target);
    }
    progress.finish();
    report::print(cli, &rows)?;
    bounds::hold(cli, &rows)
}

fn points(size: u32, cli: &Cli) -> Vec<Point> {
    let mut points = Vec::new();
    for &load in &cli.load {
        for &op in &cli.ops {
            for &sessions in &cli.sessions {
                for &depth in &cli.depths {
                    if in_flight(size, depth, sessions) <= IN_FLIGHT_MAX {
                        points.push(Point {
                            op,
                            size,
                            depth,
                            sessions,
                            load,
                        });
                    }
                }
            }
        }
    }
    points
}

/// Octets in flight on all sessions together.
fn in_flight(size: u32, depth: u16, sessions: u16) -> u64 {
    u64::from(size) * u64::from(depth) * u64::from(sessions)
}

/// Blocks that one session goes round: its share of the pool, and two for each operation in flight at least.
fn lane_blocks(size: u32, depth: u16, sessions: u16) -> u32 {
    let share = POOL_LEN / u64::from(size) / u64::from(sessions.max(1));
    let least = u64::from(depth) + 1;
    u32::try_from(share.clamp(least, 4096)).unwrap_or(u32::MAX)
}

/// Blocks of the target's pool: twice what the point with the most needs, as the sessions of the point before may not
/// have ended yet.
fn pool_blocks(size: u32, cli: &Cli) -> u64 {
    let mut most = 1;
    for &sessions in &cli.sessions {
        for &depth in &cli.depths {
            let lane = u64::from(lane_blocks(size, depth, sessions));
            if in_flight(size, depth, sessions) <= IN_FLIGHT_MAX {
                most = most.max(lane * u64::from(sessions));
            }
        }
    }
    most * 2
}

fn measure(
    point: &Point,
    target: &Daemon,
    plain: &Daemon,
    copier: &mut Copier,
    cli: &Cli,
) -> Result<Row, Failure> {
    let mut lanes = lanes(point, target)?;
    let mut sockets = sockets(point, plain)?;
    let (mut kbtp_samples, mut socket_samples, mut memcpy) = (Vec::new(), Vec::new(), Vec::new());
    let account = Account::begin(&[target.pid(), plain.pid()])?;
    // The first round warms both up.
    for round in 0..=cli.rounds {
        let kbtp = sample::take(&mut lanes, target.pid(), cli.window)?;
        let beside = sample::take(&mut sockets, plain.pid(), cli.window)?;
        let (octets, elapsed) = copier.copy(point.size, cli.window / 10);
        if round > 0 {
            kbtp_samples.push(kbtp);
            socket_samples.push(beside);
            memcpy.push(sample::per_second(octets, elapsed));
        }
    }
    let others_cpu = account.of_others()?;
    for lane in lanes {
        lane.close()?;
    }
    let ratio = |pick: fn(&Sample) -> f64| {
        let pairs = kbtp_samples.iter().zip(&socket_samples);
        median(pairs.map(|(a, b)| pick(a) / pick(b).max(f64::MIN_POSITIVE)))
    };
    Ok(Row {
        point: *point,
        kbtp: medians(&kbtp_samples),
        limit: medians(&socket_samples),
        memcpy_octets_per_s: median(memcpy),
        throughput_ratio: ratio(|s| s.octets_per_s),
        latency_ratio: (point.depth == 1).then(|| ratio(|s| s.p50_ns)),
        server_cpu_ratio: ratio(|s| s.server_cpu_s_per_gib),
        others_cpu,
        limit_spread: spread(socket_samples.iter().map(|s| s.octets_per_s)),
    })
}

/// The largest over the smallest: infinite if one is zero, 1 of nothing.
fn spread(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let most = values.clone().fold(0.0, f64::max);
    let least = values.fold(f64::INFINITY, f64::min);
    if least.is_infinite() {
        1.0
    } else if least > 0.0 {
        most / least
    } else {
        f64::INFINITY
    }
}

fn lanes(point: &Point, target: &Daemon) -> Result<Vec<Box<dyn Mover>>, Failure> {
    let plan = Plan {
        target: address(target)?,
        who: TenantArgs::default(),
        op: point.op,
        size: point.size,
        depth: point.depth,
        blocks: lane_blocks(point.size, point.depth, point.sessions),
        spin: true,
    };
    (0..point.sessions)
        .map(|_| Ok(Box::new(Lane::open(&plan)?) as Box<dyn Mover>))
        .collect()
}

fn sockets(point: &Point, plain: &Daemon) -> Result<Vec<Box<dyn Mover>>, Failure> {
    let addr = address(plain)?;
    let way = match point.op {
        BenchOp::Load => Way::ToClient,
        BenchOp::Store | BenchOp::Alloc => Way::ToServer,
    };
    (0..point.sessions)
        .map(|_| {
            let client = Client::connect(addr, point.size, point.depth).map_err(|e| {
                Failure::operation(format_args!("no plain connection: {e}"), "run it again")
            })?;
            Ok(Box::new(PlainMover {
                client,
                way,
                one_at_a_time: point.depth == 1,
            }) as Box<dyn Mover>)
        })
        .collect()
}

fn address(daemon: &Daemon) -> Result<std::net::SocketAddr, Failure> {
    daemon
        .address("/listen/0")
        .map_err(|e| Failure::operation(e, "report this"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn the_spread_is_of_the_largest_to_the_smallest() {
        for (values, right) in [
            (&[2.0, 6.0, 3.0][..], 3.0),
            (&[5.0], 1.0),
            (&[], 1.0),
            (&[0.0, 1.0], f64::INFINITY),
        ] {
            let found = spread(values.iter().copied());
            assert!(found.total_cmp(&right).is_eq(), "{values:?}: {found}");
        }
    }

    #[test]
    fn the_pool_holds_what_each_point_needs() {
        let cli = Cli::parse_from(["kbtp-bench"]);
        for size in [4096, 65_536, 4 << 20] {
            let pool = pool_blocks(size, &cli);
            for p in points(size, &cli) {
                let lane = lane_blocks(size, p.depth, p.sessions);
                assert!(u64::from(lane) * u64::from(p.sessions) <= pool);
                assert!(lane > u32::from(p.depth));
            }
        }
        assert_eq!(points(4096, &cli).len(), 2 * 2 * 2 * 3);
        // Four sessions with 32 pieces of 4 MiB each are too much.
        assert_eq!(points(4 << 20, &cli).len(), 2 * 2 * (2 * 3 - 1));
    }
}
