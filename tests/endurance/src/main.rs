//! `kbtp-endurance`: what agent, target and initiators bear, as processes.
//!
//! `crash` kills them at random moments, again and again, and checks after each kill that nothing that was done is lost,
//! nothing is half there and nothing leaks. `soak` runs a mixed load for long, and looks whether anything grows. The
//! processes are this program again: its hidden commands are the initiators, and `kbtp` itself.
#![forbid(unsafe_code)]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test: an expectation that does not hold ends it, with the place and what was met"
)]

mod cli;
mod crash;
mod driver;
mod inspect;
mod scene;
mod soak;
mod verdict;

use clap::Parser as _;
use cli::{Cli, Command};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Crash(args) => crash::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Initiator(args) => crash::initiator::run(&args),
        Command::Load(args) => soak::load::run(&args),
        Command::Churn(args) => soak::churn::run(&args),
        Command::Kbtp { args } => {
            let name = OsString::from("kbtp");
            kbtp::main(std::iter::once(name).chain(args))
        }
    }
}
