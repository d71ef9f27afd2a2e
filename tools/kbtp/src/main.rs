//! The kbtp command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    kbtp::main(std::env::args_os())
}
