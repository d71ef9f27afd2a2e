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
}

/// Prints the rows.
///
/// # Errors
/// [`Failure`] if standard output cannot be written.
pub(crate) fn print(cli: &Cli, rows: &[Row]) -> Result<(), Failure> {
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        cpu: cpu_name(),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned()),
        rounds: cli.rounds,
        window_ms: cli.window.as_millis(),
        rows,
    };
    output::report(cli.json, &report, || text(&report))
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
         together. memcpy: one core copying. CPU: of the serving process. More than 256 MiB in flight is not measured.\n",
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
        }
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
