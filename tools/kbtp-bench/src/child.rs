//! The two processes that are measured: a target, and the server of the plain exchanges. Both are this program again.

use crate::attack::Attack;
use clap::ValueEnum as _;
use kbtp::Failure;
use kbtp::daemon::Daemon;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;

/// A target with a pool of `blocks` blocks of `block_size` octets.
///
/// # Errors
/// If it does not start.
pub(crate) fn target(block_size: u32, blocks: u64) -> Result<Daemon, Failure> {
    start(block_size, blocks, &[], &[])
}

fn start(
    block_size: u32,
    blocks: u64,
    more: &[&str],
    with: &[OsString],
) -> Result<Daemon, Failure> {
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
    let args = args
        .into_iter()
        .chain(more.iter().map(|&arg| arg.to_owned()));
    myself(with, args.map(OsString::from)).map_err(|e| not_started("the target", &e))
}

/// The server of plain exchanges.
///
/// # Errors
/// If it does not start.
pub(crate) fn plain() -> Result<Daemon, Failure> {
    myself(&[], ["plain-server".into()])
        .map_err(|e| not_started("the server of plain exchanges", &e))
}

/// A target with one worker, so that all its sessions share it, started with the command `with`, if there is one.
///
/// # Errors
/// If it does not start.
pub(crate) fn target_of_one_worker(
    block_size: u32,
    blocks: u64,
    with: &[OsString],
) -> Result<Daemon, Failure> {
    start(block_size, blocks, &["--workers=1"], with)
}

/// Attackers of `target`, started with the command `with`, if there is one.
///
/// # Errors
/// If they do not start.
pub(crate) fn attacker(
    attack: Attack,
    target: SocketAddr,
    with: &[OsString],
) -> Result<Daemon, Failure> {
    let name = attack.to_possible_value();
    let name = name.as_ref().map_or("", |name| name.get_name());
    let args = ["attacker", name, &target.to_string()].map(OsString::from);
    myself(with, args).map_err(|e| not_started("the attackers", &e))
}

/// This program with `args`, started with the command `with`, if there is one.
fn myself(with: &[OsString], args: impl IntoIterator<Item = OsString>) -> io::Result<Daemon> {
    let me = std::env::current_exe()?.into_os_string();
    let mut words = with.iter().cloned().chain([me]).chain(args);
    let program = words.next().unwrap_or_default();
    Daemon::start(&program, words)
}

fn not_started(what: &str, e: &io::Error) -> Failure {
    Failure::operation(
        format_args!("cannot start {what}: {e}"),
        "see what it said before this",
    )
}
