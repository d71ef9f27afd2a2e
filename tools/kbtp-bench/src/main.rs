//! Load and store beside the limit measured in the same run, in turn with it, because machines are noisy.
//!
//! The limit is the same octets between the same two processes over a plain socket (`plain.rs`): one piece there or back
//! at a time beside a depth of one, a stream of such pieces beside larger depths. Server CPU is the time the serving
//! process ran, for each GiB, beside that of the plain server. `memcpy` is one core copying.
#![forbid(unsafe_code)]

mod attack;
mod bounds;
mod child;
mod cli;
mod cpu;
mod memory;
mod plain;
mod points;
mod report;
mod sample;
mod victim;

use clap::{Parser as _, ValueEnum as _};
use cli::{Cli, Hidden};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.hidden {
        Some(Hidden::Target { args }) => {
            let name = OsString::from("kbtp");
            return kbtp::main(std::iter::once(name).chain(args.iter().cloned()));
        }
        Some(Hidden::PlainServer) => plain::serve().map_err(|e| {
            kbtp::Failure::operation(format_args!("plain server: {e}"), "report this")
        }),
        Some(Hidden::Attacker { attack, target }) => attack::run(*attack, *target),
        Some(Hidden::Victim {
            attacks,
            with,
            target_with,
            max_p99,
        }) => {
            let all = attack::Attack::value_variants();
            let attacks = if attacks.is_empty() { all } else { attacks };
            victim::run(
                &cli,
                attacks,
                victim::With {
                    attackers: with,
                    target: target_with,
                },
                *max_p99,
            )
        }
        None => points::run(&cli),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell("kbtp-bench", cli.json),
    }
}
