//! The command line.

use crate::crash::Kill;
use crate::verdict::EXIT_CODES;
use clap::{Args, Parser, Subcommand};
use kbtp::units::parse_duration;
use std::ffi::OsString;
use std::time::Duration;

/// What agent, target and initiators bear, as processes.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Kill them at random moments, and check each time that nothing is lost, stale or left behind
    Crash(CrashArgs),
    /// Run a mixed load for long, and look whether anything grows
    Soak(SoakArgs),
    /// Be an initiator that may be killed
    #[command(hide = true)]
    Initiator(InitiatorArgs),
    /// Be an initiator that works all the time
    #[command(hide = true)]
    Load(LoadArgs),
    /// Be many initiators, one after the other
    #[command(hide = true)]
    Churn(ChurnArgs),
    /// Be the kbtp command
    #[command(hide = true)]
    Kbtp {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

/// The help that ends that of `crash`.
fn crash_help() -> String {
    let names: Vec<_> = Kill::names().collect();
    format!("Names of kills: {}.\n\n{EXIT_CODES}", names.join("; "))
}

/// Part of the name of a kill.
fn kill_name(text: &str) -> Result<String, String> {
    if Kill::names().any(|name| name.contains(text)) {
        return Ok(text.to_owned());
    }
    let names: Vec<_> = Kill::names().collect();
    Err(format!(
        "no kill has that in its name; there are: {}",
        names.join("; ")
    ))
}

/// Longest soak: what grows shows long before.
const SOAK_MOST: Duration = Duration::from_hours(30 * 24);

/// How long to soak.
fn soak_length(text: &str) -> Result<Duration, String> {
    let length = parse_duration(text).map_err(|e| e.to_string())?;
    if length.is_zero() || length > SOAK_MOST {
        return Err("a soak is longer than nothing, and 30d at most".to_owned());
    }
    Ok(length)
}

#[derive(Debug, Args)]
#[command(after_help = crash_help())]
pub(crate) struct CrashArgs {
    /// Kills at least: some kinds take two, the last one too
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) kills: u64,

    /// What decides who is killed, and after how long; what is in flight then is up to the machine
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Only kills whose name has this in it
    #[arg(long, default_value = "", value_parser = kill_name)]
    pub(crate) only: String,

    /// Fail if serving again took longer than this once; by default the times are only printed
    #[arg(long, value_parser = parse_duration)]
    pub(crate) within: Option<Duration>,

    /// Print one JSON document instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct SoakArgs {
    /// How long, after the warm-up; below some ten minutes no growth of memory can be told from none
    #[arg(long, value_parser = soak_length, default_value = "10m", conflicts_with = "minutes")]
    pub(crate) duration: Duration,

    /// The same in minutes
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=SOAK_MOST.as_secs() / 60))]
    pub(crate) minutes: Option<u64>,

    /// Sessions to begin and end at least; it goes on beyond its duration for them
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) cycles: u64,

    /// What decides what the initiators do
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Print one JSON document instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// How long what is left of a session may stay when nobody is there any more
    #[arg(long, value_parser = parse_duration, default_value = "20s", hide = true)]
    pub(crate) patience: Duration,

    /// Leak something on purpose, to see that it is found
    #[arg(long, value_enum, hide = true)]
    pub(crate) plant: Option<Plant>,
}

impl SoakArgs {
    pub(crate) fn length(&self) -> Duration {
        self.minutes.map_or(self.duration, Duration::from_mins)
    }
}

/// A leak on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Plant {
    /// An initiator that never lets go of some of its sessions.
    Sessions,
    /// An initiator that never lets go of some memory.
    Memory,
}

#[derive(Debug, Args)]
pub(crate) struct InitiatorArgs {
    #[arg(long)]
    pub(crate) target: String,
    #[arg(long)]
    pub(crate) owner: u64,
    #[arg(long)]
    pub(crate) direct: bool,
    /// The Target Instance ID that its blocks are of.
    #[arg(long)]
    pub(crate) instance: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[arg(long)]
    pub(crate) target: String,
    #[arg(long)]
    pub(crate) owner: u64,
    #[arg(long)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ChurnArgs {
    #[arg(long)]
    pub(crate) target: String,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long, value_enum)]
    pub(crate) plant: Option<Plant>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
        let cli = Cli::parse_from(["kbtp-endurance", "soak", "--minutes=120"]);
        let Command::Soak(args) = cli.command else {
            panic!("{cli:?}");
        };
        assert_eq!(args.length(), Duration::from_hours(2));
        for wrong in [
            &["soak", "--minutes=0"][..],
            &["soak", "--minutes=18446744073709551615"],
            &["soak", "--duration=0s"],
            &["soak", "--duration=31d"],
            &["soak", "--cycles=0"],
            &["crash", "--kills=0"],
            &["crash", "--only=nosuch"],
        ] {
            let words = std::iter::once("kbtp-endurance").chain(wrong.iter().copied());
            let error = Cli::try_parse_from(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{wrong:?}");
        }
        let all = Cli::command()
            .find_subcommand_mut("crash")
            .unwrap()
            .render_help()
            .to_string();
        let refused = kill_name("nosuch").unwrap_err();
        for name in Kill::names() {
            assert!(all.contains(name) && refused.contains(name), "{name}");
            assert_eq!(kill_name(name).as_deref(), Ok(name));
        }
    }
}
