//! The two processes that are measured: a target, and the server of the plain exchanges. Both are this program again.

use kbtp::Failure;
use kbtp::daemon::Daemon;
use std::io;
use std::path::PathBuf;

/// A target with a pool of `blocks` blocks of `block_size` octets.
///
/// # Errors
/// If it does not start.
pub(crate) fn target(block_size: u32, blocks: u64) -> Result<Daemon, Failure> {
    let args = [
        "target".to_owned(),
        "serve".to_owned(),
        "--json".to_owned(),
        "--standalone".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        "--admin=off".to_owned(),
        "--stop-with-stdin".to_owned(),
        "--lease=0s".to_owned(),
        format!("--block-size={block_size}"),
        format!("--blocks={blocks}"),
    ];
    Daemon::start(me()?.as_os_str(), args).map_err(|e| not_started("the target", &e))
}

/// The server of plain exchanges.
///
/// # Errors
/// If it does not start.
pub(crate) fn plain() -> Result<Daemon, Failure> {
    Daemon::start(me()?.as_os_str(), ["plain-server"])
        .map_err(|e| not_started("the server of plain exchanges", &e))
}

fn me() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| {
        Failure::operation(format_args!("cannot find this program: {e}"), "mount /proc")
    })
}

fn not_started(what: &str, e: &io::Error) -> Failure {
    Failure::operation(
        format_args!("cannot start {what}: {e}"),
        "see what it said before this",
    )
}
