//! The command line.

use crate::attack::Attack;
use clap::{Parser, Subcommand, ValueEnum};
use kbtp::cli::BenchOp;
use kbtp::units::parse_duration;
use kbtp_target::parse_size;
use serde::Serialize;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

/// Measures load and store beside the limits of this machine, taken in the same run.
#[derive(Debug, Parser)]
#[command(name = "kbtp-bench", version)]
pub(crate) struct Cli {
    /// Print one JSON document instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// Operations to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "load,store")]
    pub(crate) ops: Vec<BenchOp>,

    /// Octets of an operation
    #[arg(long, value_delimiter = ',', value_parser = parse_size, default_value = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB")]
    pub(crate) sizes: Vec<u64>,

    /// Operations in flight on each session
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    pub(crate) depths: Vec<u16>,

    /// Sessions, a thread each
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    pub(crate) sessions: Vec<u16>,

    /// Other load on the machine: none, or a thread a core that computes without end
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle,busy")]
    pub(crate) load: Vec<Load>,

    /// Measurements of each figure, each beside one of its limit; medians are shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,

    /// How long each measurement takes
    #[arg(long, value_parser = parse_duration, default_value = "150ms")]
    pub(crate) window: Duration,

    /// Fail if a point's throughput is less than so many times that of its limit
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    pub(crate) min_throughput: Option<f64>,

    /// Fail if the latency of a point of depth 1 is more than so many times that of its limit
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    pub(crate) max_latency: Option<f64>,

    /// Fail if the server of a point takes more than so many times the CPU of its limit
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    pub(crate) max_cpu: Option<f64>,

    #[command(subcommand)]
    pub(crate) hidden: Option<Hidden>,
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| "a ratio is a number".to_owned())?;
    if ratio.is_finite() && ratio > 0.0 {
        Ok(ratio)
    } else {
        Err("a ratio is more than zero".to_owned())
    }
}

/// Other load on the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Load {
    /// None of ours.
    Idle,
    /// A thread a core that computes without end.
    Busy,
}

/// What else it measures, and what this program starts of itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Hidden {
    /// Measure what attacks on a target cost a session that only loads, beside the calm of the same run
    Victim {
        /// Kinds of attack; all of them, if none is given
        #[arg(value_enum)]
        attacks: Vec<Attack>,

        /// Command that the attackers are started with, to give them less of the machine: `--with='chrt -f 1'`
        #[arg(long, value_delimiter = ' ', value_name = "COMMAND")]
        with: Vec<OsString>,

        /// Command that the target is started with, so that its threads do not keep the victim, which is on another machine in
        /// earnest, from its processor: `chrt -f 3 kbtp-bench victim --target-with='chrt -f 2' --with='chrt -f 1'`
        #[arg(long, value_delimiter = ' ', value_name = "COMMAND")]
        target_with: Vec<OsString>,

        /// Fail if the 99th percentile under an attack is more than so many times that of calm
        #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
        max_p99: Option<f64>,
    },
    /// Attack a target until standard input ends
    #[command(hide = true)]
    Attacker {
        /// How
        #[arg(value_enum)]
        attack: Attack,
        /// Whom
        target: SocketAddr,
    },
    /// Serve plain exchanges until standard input ends
    #[command(hide = true)]
    PlainServer,
    /// Be the kbtp command
    #[command(hide = true)]
    Target {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound_and_lists_parse() {
        Cli::command().debug_assert();
        let cli = Cli::parse_from(["kbtp-bench", "--sizes=4K,1MiB", "--depths=1,2"]);
        assert_eq!(cli.sizes, [4096, 1 << 20]);
        assert_eq!(cli.depths, [1, 2]);
        assert_eq!(cli.load, [Load::Idle, Load::Busy]);
        let cli = Cli::parse_from(["kbtp-bench", "--rounds=2", "victim", "crowd", "--max-p99=2"]);
        let Some(Hidden::Victim {
            attacks, max_p99, ..
        }) = cli.hidden
        else {
            panic!("a victim")
        };
        assert_eq!((attacks, max_p99), (vec![Attack::Crowd], Some(2.0)));
    }
}
