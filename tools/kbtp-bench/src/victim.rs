//! A session that only wants to work, calm and under attack in turn: what the attack costs it.

use crate::attack::Attack;
use crate::child;
use crate::cli::Cli;
use crate::sample::{self, Mover, Sample, median, medians};
use kbtp::Failure;
use kbtp::cli::{BenchOp, TenantArgs};
use kbtp::lane::{Lane, Plan};
use kbtp::output::{self, Progress, Table};
use serde::Serialize;
use std::ffi::OsString;

/// Blocks of the target: 64 KiB each, so that what is asked for and not taken fills every buffer on the way.
const BLOCK: u32 = 64 << 10;
const BLOCKS: u64 = 4096;
/// Octets of the victim's loads.
const SIZE: u32 = 4096;
/// Handles it goes round. It sleeps while it waits, so that the attackers have its core meanwhile.
const HANDLES: u32 = 256;

/// One attack: medians of the rounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Row {
    attack: Attack,
    calm: Sample,
    attacked: Sample,
    /// Attacked over calm, median of the rounds.
    p50_ratio: f64,
    p99_ratio: f64,
    /// CPU time that the target took in a second of attack.
    target_cpu: f64,
}

/// Commands that others are started with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct With<'a> {
    pub(crate) attackers: &'a [OsString],
    pub(crate) target: &'a [OsString],
}

/// Measures every attack and prints the figures.
///
/// # Errors
/// [`Failure`] if one cannot be measured, or its 99th percentile is over `most`.
pub(crate) fn run(
    cli: &Cli,
    attacks: &[Attack],
    with: With<'_>,
    most: Option<f64>,
) -> Result<(), Failure> {
    let total = u64::try_from(attacks.len()).unwrap_or(0);
    let mut progress = Progress::new(total, "attacking");
    let mut rows = Vec::new();
    for attack in attacks {
        rows.push(measure(*attack, with, cli)?);
        progress.at(u64::try_from(rows.len()).unwrap_or(0));
    }
    progress.finish();
    output::report(cli.json, &rows, || text(&rows))?;
    let over = rows
        .iter()
        .find(|row| most.is_some_and(|most| row.p99_ratio > most));
    match over {
        None => Ok(()),
        Some(row) => Err(Failure::operation(
            format_args!("{:?}: p99 is {:.2} of calm", row.attack, row.p99_ratio),
            "measure on a quiet machine; then look at what the target does meanwhile",
        )),
    }
}

fn measure(attack: Attack, with: With<'_>, cli: &Cli) -> Result<Row, Failure> {
    let target = child::target_of_one_worker(BLOCK, BLOCKS, with.target)?;
    let address = target
        .address("/listen/0")
        .map_err(|e| Failure::operation(e, "report this"))?;
    let plan = Plan {
        target: address,
        who: TenantArgs::default(),
        op: BenchOp::Load,
        size: SIZE,
        depth: 1,
        blocks: HANDLES,
        spin: false,
    };
    let mut lane: Vec<Box<dyn Mover>> = vec![Box::new(Lane::open(&plan)?)];
    let (mut calm, mut attacked, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=cli.rounds {
        // What is left of the round before has gone after the first window.
        sample::take(&mut lane, target.pid(), cli.window)?;
        let before = sample::take(&mut lane, target.pid(), cli.window)?;
        let enemy = child::attacker(attack, address, with.attackers)?;
        sample::take(&mut lane, target.pid(), cli.window / 4)?;
        let took = crate::cpu::time_of(target.pid())?;
        let under = sample::take(&mut lane, target.pid(), cli.window)?;
        let took = crate::cpu::time_of(target.pid())?.saturating_sub(took);
        drop(enemy);
        if round > 0 {
            calm.push(before);
            attacked.push(under);
            cpu.push(took.as_secs_f64() / cli.window.as_secs_f64());
        }
    }
    for lane in lane {
        lane.close()?;
    }
    let ratio = |pick: fn(&Sample) -> f64| {
        let pairs = attacked.iter().zip(&calm);
        median(pairs.map(|(a, b)| pick(a) / pick(b).max(f64::MIN_POSITIVE)))
    };
    Ok(Row {
        attack,
        p50_ratio: ratio(|s| s.p50_ns),
        p99_ratio: ratio(|s| s.p99_ns),
        calm: medians(&calm),
        attacked: medians(&attacked),
        target_cpu: median(cpu),
    })
}

fn text(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "attack",
        "p50 us",
        "attacked",
        "x",
        "p99 us",
        "attacked",
        "x",
        "target's CPU",
    ]);
    for row in rows {
        table.row(cells(row));
    }
    let mut text = table.text();
    text.push_str(
        "\nLoads of 4 KiB, one at a time, by one session, at a target with one worker that the attackers share. x: attacked over\n\
         calm, each round's own. burn, traffic: the attacker computes, or sends to itself, and leaves the target alone.\n",
    );
    text
}

fn cells(row: &Row) -> Vec<String> {
    let us = |ns: f64| format!("{:.1}", ns / 1e3);
    let name = clap::ValueEnum::to_possible_value(&row.attack);
    vec![
        name.map_or_else(String::new, |n| n.get_name().to_owned()),
        us(row.calm.p50_ns),
        us(row.attacked.p50_ns),
        format!("{:.2}", row.p50_ratio),
        us(row.calm.p99_ns),
        us(row.attacked.p99_ns),
        format!("{:.2}", row.p99_ratio),
        format!("{:.2}", row.target_cpu),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calm_and_attack_stand_beside_each_other() {
        let sample = |p50_ns| Sample {
            p50_ns,
            p99_ns: 2.0 * p50_ns,
            ..Sample::default()
        };
        let row = Row {
            attack: Attack::Crowd,
            calm: sample(10_000.0),
            attacked: sample(15_000.0),
            p50_ratio: 1.5,
            p99_ratio: 1.5,
            target_cpu: 0.25,
        };
        assert_eq!(
            cells(&row),
            [
                "crowd", "10.0", "15.0", "1.50", "20.0", "30.0", "1.50", "0.25"
            ]
        );
    }
}
