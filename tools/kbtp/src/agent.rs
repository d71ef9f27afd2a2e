//! `kbtp agent`: owns a pool and hands it to one target at a time.

use crate::cli::AgentArgs;
use crate::failure::{Failure, chain};
use crate::output;
use crate::own_target::REMEDIES;
use crate::stopping::{Ask, Stopping};
use crate::units::octets;
use kbtp_agent::{AgentConfig, AgentError, Server, Shutdown};
use serde::Serialize;
use std::path::Path;

/// What is printed, on one line, once a target can come.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    socket: &'a Path,
    block_size: u32,
    blocks: u32,
    pid: u32,
}

/// Runs the command until a signal asks it to stop.
///
/// # Errors
/// [`Failure`] if the agent cannot start or cannot go on.
pub(crate) fn run(args: &AgentArgs, json: bool) -> Result<(), Failure> {
    // First of all: threads inherit the blocked signals.
    let stopping = Stopping::watch(args.stop_with_stdin)?;
    let block_size = u32::try_from(args.block_size).map_err(|_| {
        Failure::usage(
            format_args!("a block of {}", octets(args.block_size)),
            "take at most 16MiB",
        )
    })?;
    let mut config = AgentConfig::new(&args.socket, block_size, args.blocks);
    config.grant_from.clone_from(&args.grant_from);
    config
        .validate()
        .map_err(|e| Failure::usage(e, "correct the flag of that name"))?;
    // Touching each page of the pool takes a while, with the socket there already.
    let server = Server::bind_telling(&config, |file| stopping.undo_with(move || file.remove()))
        .map_err(|e| failed(&args.socket, &e))?;
    let (shutdown, handle) = Shutdown::new().map_err(|e| failed(&args.socket, &e))?;
    // It counts: the second request has it end at once.
    stopping.serving(move |ask| match ask {
        Ask::InOrder | Ask::AtOnce => handle.request(),
    });
    let ready = Ready {
        socket: &args.socket,
        block_size,
        blocks: args.blocks,
        pid: std::process::id(),
    };
    output::ready(json, &ready, || {
        let len = u64::from(args.blocks) * u64::from(block_size);
        format!(
            "holding {} blocks of {} ({}) for a target at {}\n",
            args.blocks,
            octets(u64::from(block_size)),
            octets(len),
            args.socket.display()
        )
    })?;
    server.run(&shutdown).map_err(|e| failed(&args.socket, &e))
}

fn failed(socket: &Path, error: &AgentError) -> Failure {
    Failure::operation(
        format_args!("agent at {}: {}", socket.display(), chain(error)),
        REMEDIES,
    )
}
