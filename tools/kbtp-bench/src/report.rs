//! The figures, each beside its limit.

use crate::cli::{Cli, Load};
use crate::points::Row;
use kbtp::Failure;
use kbtp::output::{self, Table};
use serde::Serialize;
use std::fs;

/// All of it, and on what it was measured.
#[derive(Debug, Serialize)]
struct Report<'a> {
    version: &'static str,
    cpu: String,
    cores: usize,
    kernel: String,
    rounds: u16,
    window_ms: u128,
    rows: &'a [Row],
    /// Why the figures may say little.
    warnings: &'a [String],
}

/// The part of the machine that others may have while a point is measured that is called idle. A ratio of two that wait for
/// each other's cores says nothing of either.
const OTHERS_MOST: f64 = 0.15;

/// How much the limit may differ from round to round. Where it differs more, it is no limit of this machine but of what
/// else ran on it.
const LIMIT_SPREAD_MOST: f64 = 3.0;

fn disturbed(row: &Row) -> bool {
    row.point.load == Load::Idle && row.others_cpu > OTHERS_MOST
}

/// What the reader must know of the rows, one sentence each.
fn warnings(rows: &[Row]) -> Vec<String> {
    let named = |rows: &[&Row]| {
        const SHOWN: usize = 4;
        let mut names: Vec<_> = rows.iter().take(SHOWN).map(|row| point(row)).collect();
        if rows.len() > SHOWN {
            names.push(format!("{} more", rows.len() - SHOWN));
        }
        names.join("; ")
    };
    let mut warnings = Vec::new();
    let busy: Vec<&Row> = rows.iter().filter(|row| disturbed(row)).collect();
    if let Some(most) = busy.iter().map(|row| row.others_cpu).max_by(f64::total_cmp) {
        warnings.push(format!(
            "NOT IDLE: others had up to {:.0} % of the machine (at most {:.0} % passes for idle) at {}: what is marked idle? \
             says little; measure again when nothing else runs",
            most * 100.0,
            OTHERS_MOST * 100.0,
            named(&busy)
        ));
    }
    let unsteady = |row: &&Row| row.limit_spread > LIMIT_SPREAD_MOST;
    let unsteady: Vec<&Row> = rows.iter().filter(unsteady).collect();
    if let Some(most) = unsteady
        .iter()
        .map(|r| r.limit_spread)
        .max_by(f64::total_cmp)
    {
        warnings.push(format!(
            "NO LIMIT: what stands as the limit differed between rounds by a factor of up to {most:.1} (at most {LIMIT_SPREAD_MOST} \
             is plausible) at {}: ratios to it say little; more --rounds, a longer --window, or a quieter machine",
            named(&unsteady)
        ));
    }
    warnings
}

/// Prints the rows.
///
/// # Errors
/// [`Failure`] if standard output cannot be written.
pub(crate) fn print(cli: &Cli, rows: &[Row]) -> Result<(), Failure> {
    let warnings = warnings(rows);
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        cpu: cpu_name(),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned()),
        rounds: cli.rounds,
        window_ms: cli.window.as_millis(),
        rows,
        warnings: &warnings,
    };
    output::report(cli.json, &report, || text(&report))?;
    for warning in &warnings {
        output::note(&format!("kbtp-bench: {warning}"));
    }
    Ok(())
}

fn text(report: &Report<'_>) -> String {
    let mut text = format!(
        "{}, {} cores, kernel {}; medians of {} rounds of {} ms, each round beside its limit\n\n",
        report.cpu, report.cores, report.kernel, report.rounds, report.window_ms
    );
    let mut table = Table::new(&[
        "operation",
        "sessions",
        "depth",
        "load",
        "p50 us",
        "limit",
        "x",
        "p99 us",
        "GiB/s",
        "limit",
        "x",
        "memcpy",
        "CPU s/GiB",
        "limit",
        "x",
    ]);
    for row in report.rows {
        table.row(cells(row));
    }
    text.push_str(&table.text());
    text.push_str(
        "\nlimit: the same octets between two processes over a plain TCP socket; one at a time beside depth 1; beside more, a\n\
         stream in which as many pieces as are in flight share a system call. x: KBTP over limit. GiB/s: all sessions\n\
         together. memcpy: one core copying. CPU: of the serving process. More than 256 MiB in flight is not measured.\n\
         idle?: others had the machine too.\n",
    );
    text
}

fn cells(row: &Row) -> Vec<String> {
    let p = row.point;
    let us = |ns: f64| format!("{:.1}", ns / 1e3);
    let gib = |octets: f64| format!("{:.2}", octets / 1_073_741_824.0);
    let only_alone = |text: String| {
        if p.depth == 1 { text } else { "-".to_owned() }
    };
    vec![
        operation(row),
        p.sessions.to_string(),
        p.depth.to_string(),
        match p.load {
            Load::Idle if disturbed(row) => "idle?".to_owned(),
            Load::Idle => "idle".to_owned(),
            Load::Busy => "busy".to_owned(),
        },
        us(row.kbtp.p50_ns),
        only_alone(us(row.limit.p50_ns)),
        row.latency_ratio
            .map_or_else(|| "-".to_owned(), |r| format!("{r:.2}")),
        us(row.kbtp.p99_ns),
        gib(row.kbtp.octets_per_s),
        gib(row.limit.octets_per_s),
        format!("{:.2}", row.throughput_ratio),
        gib(row.memcpy_octets_per_s),
        format!("{:.3}", row.kbtp.server_cpu_s_per_gib),
        format!("{:.3}", row.limit.server_cpu_s_per_gib),
        format!("{:.2}", row.server_cpu_ratio),
    ]
}

fn operation(row: &Row) -> String {
    let op = match row.point.op {
        kbtp::cli::BenchOp::Load => "load",
        kbtp::cli::BenchOp::Store => "store",
        kbtp::cli::BenchOp::Alloc => "alloc",
    };
    format!(
        "{op} {}",
        kbtp_target::format_size(u64::from(row.point.size))
    )
}

/// A point in words.
pub(crate) fn point(row: &Row) -> String {
    format!("{}, depth {}", operation(row), row.point.depth)
}

fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map_or_else(
            || "unknown CPU".to_owned(),
            |l| l.trim_start_matches([' ', '\t', ':']).to_owned(),
        )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::points::Point;
    use crate::sample::Sample;

    /// A row with half the throughput of its limit, twice its latency and the same CPU.
    pub(crate) fn row(depth: u16) -> Row {
        let sample = |octets_per_s, p50_ns| Sample {
            octets_per_s,
            p50_ns,
            p99_ns: 2.0 * p50_ns,
            server_cpu_s_per_gib: 0.25,
        };
        Row {
            point: Point {
                op: kbtp::cli::BenchOp::Load,
                size: 65_536,
                depth,
                sessions: 1,
                load: Load::Idle,
            },
            kbtp: sample(1_073_741_824.0, 50_000.0),
            limit: sample(2_147_483_648.0, 25_000.0),
            memcpy_octets_per_s: 4_294_967_296.0,
            throughput_ratio: 0.5,
            latency_ratio: (depth == 1).then_some(2.0),
            server_cpu_ratio: 1.0,
            others_cpu: 0.02,
            limit_spread: 1.2,
        }
    }

    #[test]
    fn a_busy_machine_and_a_limit_that_is_none_are_told() {
        let quiet = row(1);
        assert_eq!(warnings(&[quiet]), Vec::<String>::new());
        let crowded = Row {
            others_cpu: 0.9,
            ..quiet
        };
        let said = warnings(&[quiet, crowded]);
        assert_eq!(said.len(), 1, "{said:?}");
        let first = "NOT IDLE: others had up to 90 % of the machine (at most 15 % passes for idle) at load 64KiB, depth 1: ";
        assert!(said[0].starts_with(first), "{said:?}");
        assert_eq!(cells(&crowded)[3], "idle?");
        // Load that was asked for is none of others.
        let mut asked = crowded;
        asked.point.load = Load::Busy;
        assert_eq!(warnings(&[asked]), Vec::<String>::new());
        assert_eq!(cells(&asked)[3], "busy");
        let unsteady = Row {
            limit_spread: 7.5,
            ..quiet
        };
        let said = warnings(&[unsteady; 6]);
        assert!(said[0].contains("a factor of up to 7.5"), "{said:?}");
        assert!(said[0].contains("; 2 more: "), "{said:?}");
    }

    #[test]
    fn each_figure_stands_beside_its_limit() {
        let cells = cells(&row(1));
        assert_eq!(
            cells,
            [
                "load 64KiB",
                "1",
                "1",
                "idle",
                "50.0",
                "25.0",
                "2.00",
                "100.0",
                "1.00",
                "2.00",
                "0.50",
                "4.00",
                "0.250",
                "0.250",
                "1.00"
            ]
        );
    }

    #[test]
    fn beside_a_depth_of_more_than_one_no_latency_is_compared() {
        let cells = cells(&row(8));
        assert_eq!((cells[5].as_str(), cells[6].as_str()), ("-", "-"));
    }
}
