//! The `kbtp` command as a library: `main.rs` only calls [`main`], and `kbtp-bench` shares the words it prints.
//!
//! [`cli`] is the command line; each command is a module of its own name. A command returns a [`Failure`], which is
//! one line for the user, or one JSON object for a program, and an exit code.
#![forbid(unsafe_code)]

mod agent;
mod bench;
pub mod cli;
pub mod config;
mod content;
pub mod daemon;
mod demo;
mod doctor;
pub mod driver;
pub mod failure;
mod files;
mod free;
mod generate;
mod get;
pub mod lane;
pub mod map;
mod newfile;
pub mod output;
mod own_target;
mod pages;
mod put;
mod replay;
mod serve;
mod session;
mod stat;
pub mod status;
mod stopping;
pub mod trace;
pub mod units;
mod usage;
mod wqe;

pub use failure::Failure;

use cli::{Cli, Command, TraceCommand};
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Runs the command line `args`, the name of the program first. Exit codes: 0 done, 1 the operation failed, 2 wrong
/// usage.
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match cli::parse(args.iter().cloned()) {
        Ok(cli) => cli,
        Err(e) if usage::is_help(&e) => {
            // What was asked for goes to standard output, the rest to standard error; a closed one is no failure.
            drop(e.print());
            return u8::try_from(e.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
        Err(e) => return usage::failure(&e, &args).tell("kbtp", usage::wants_json(&args)),
    };
    log(&cli);
    driver::take_limits_as_errors();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell("kbtp", cli.json),
    }
}

/// Logs go to standard error: warnings of a server, errors of the rest, or what `KBTP_LOG` says (`debug`,
/// `kbtp_target=trace`), or more with `-v`.
fn log(cli: &Cli) {
    let quiet = match cli.command {
        Command::Serve(_) | Command::Agent(_) => "warn",
        _ => "error",
    };
    let filter = match cli.verbose {
        0 => EnvFilter::try_from_env("KBTP_LOG").unwrap_or_else(|_| EnvFilter::new(quiet)),
        1 => EnvFilter::new("info"),
        _ => EnvFilter::new("debug"),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would say on standard error that standard error is closed, and panic.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .finish();
    // Set already only if a test calls twice: then the first one stays.
    drop(tracing::subscriber::set_global_default(subscriber));
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let json = cli.json;
    match &cli.command {
        Command::Serve(args) => serve::run(args, json),
        Command::Agent(args) => agent::run(args, json),
        Command::Put(args) => put::run(args, json),
        Command::Get(args) => get::run(args, json),
        Command::Free(args) => free::run(args, json),
        Command::Stat(args) => stat::run(args, json),
        Command::Replay(args) => replay::run(args, json),
        Command::Trace(TraceCommand::Generate {
            seed,
            requests,
            output,
        }) => generate::run(*seed, *requests, output.as_deref(), json),
        Command::Demo(args) => demo::run(args, json),
        Command::Bench(args) => bench::run(args, json),
        Command::Doctor(args) => doctor::run(args, json),
        Command::Wqe(command) => wqe::run(command, json),
        Command::Completions { shell } => pages::completions(*shell),
        Command::Man { dir } => pages::man(dir.as_deref()),
    }
}
