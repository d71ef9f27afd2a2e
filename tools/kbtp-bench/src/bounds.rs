//! Bounds that the ratios of every point must keep, if they are given.

use crate::cli::Cli;
use crate::points::Row;
use crate::report;
use kbtp::Failure;

/// Fails if a ratio breaks its bound, naming each.
///
/// # Errors
/// [`Failure`] with exit code 1.
pub(crate) fn hold(cli: &Cli, rows: &[Row]) -> Result<(), Failure> {
    let broken: Vec<String> = rows.iter().flat_map(|row| broken(cli, row)).collect();
    if broken.is_empty() {
        Ok(())
    } else {
        Err(Failure::operation(
            broken.join("; "),
            "measure again with nothing else running; if it stays, find what got slower",
        ))
    }
}

/// The bounds that a row breaks, in words.
fn broken(cli: &Cli, row: &Row) -> Vec<String> {
    let over = |found: f64, most: Option<f64>| most.filter(|most| found > *most);
    let under = |found: f64, least: Option<f64>| least.filter(|least| found < *least);
    let named = |what, found, bound: Option<f64>, side| {
        bound.map(|bound| {
            format!(
                "{}: {what} {found:.2} of the limit, {bound} at {side}",
                report::point(row)
            )
        })
    };
    let throughput = row.throughput_ratio;
    // Points of more depth have no latency to compare.
    let latency = row.latency_ratio.unwrap_or(0.0);
    let cpu = row.server_cpu_ratio;
    [
        named(
            "throughput",
            throughput,
            under(throughput, cli.min_throughput),
            "least",
        ),
        named("latency", latency, over(latency, cli.max_latency), "most"),
        named("server CPU", cpu, over(cpu, cli.max_cpu), "most"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn found(args: &[&str], depth: u16) -> Vec<String> {
        let words = std::iter::once(&"kbtp-bench").chain(args);
        broken(&Cli::parse_from(words), &report::tests::row(depth))
    }

    #[test]
    fn each_bound_is_held() {
        // The row has a throughput of 0.5, a latency of 2 and a CPU of 1.
        assert_eq!(found(&[], 1), Vec::<String>::new());
        let kept = ["--min-throughput=0.5", "--max-latency=2", "--max-cpu=1"];
        assert_eq!(found(&kept, 1), Vec::<String>::new());
        let broken = [
            "--min-throughput=0.51",
            "--max-latency=1.9",
            "--max-cpu=0.9",
        ];
        let said = found(&broken, 1);
        assert_eq!(said.len(), 3);
        assert_eq!(
            said[0],
            "load 64KiB, depth 1: throughput 0.50 of the limit, 0.51 at least"
        );
        // Without a latency there is none that could be too high.
        assert_eq!(found(&broken, 8).len(), 2);
    }
}
