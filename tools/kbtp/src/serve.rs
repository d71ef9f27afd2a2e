//! `kbtp serve`: a target, until it is told to stop.

use crate::cli::ServeArgs;
use crate::config;
use crate::failure::Failure;
use crate::output;
use crate::own_target::{ended, not_started};
use crate::stopping::{Ask, Stopping};
use crate::units::octets;
use kbtp_target::{Status, Target};
use serde::Serialize;
use std::net::SocketAddr;

/// What is printed, on one line, once initiators can connect.
#[derive(Debug, Serialize)]
struct Ready {
    listen: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    instance: String,
    block_size: u64,
    blocks: u64,
    agent: String,
    pid: u32,
}

/// Runs the command until a signal, or the agent, ends it.
///
/// # Errors
/// [`Failure`] if the target cannot start, or does not end well.
pub(crate) fn run(args: &ServeArgs, json: bool) -> Result<(), Failure> {
    // Before any other thread: they inherit the blocked signals.
    let stopping = Stopping::watch(args.stop_with_stdin)?;
    let config = config::effective(args)?;
    let target = Target::start(config).map_err(|e| not_started(&e))?;
    let shutdown = target.shutdown_handle();
    stopping.serving(move |ask| match ask {
        Ask::InOrder => shutdown.drain(),
        Ask::AtOnce => shutdown.kill(),
    });
    let status = target.status();
    for (flag, asked, has) in [
        ("--block-size", args.block_size, status.pool.block_size),
        ("--blocks", args.blocks, status.pool.blocks),
    ] {
        if let Some(asked) = asked.filter(|asked| *asked != has) {
            tracing::warn!("{flag} {asked} has no effect: the agent's pool has {has}");
        }
    }
    let ready = ready(&target, &status);
    output::ready(json, &ready, || text(&ready, &status))?;
    ended(target)
}

fn ready(target: &Target, status: &Status) -> Ready {
    Ready {
        listen: target.addresses().to_vec(),
        admin: target.admin_address(),
        instance: status.instance.clone(),
        block_size: status.pool.block_size,
        blocks: status.pool.blocks,
        agent: status.agent.clone(),
        pid: std::process::id(),
    }
}

fn text(ready: &Ready, status: &Status) -> String {
    let listen: Vec<String> = ready.listen.iter().map(ToString::to_string).collect();
    let admin = ready.admin.map_or_else(String::new, |admin| {
        format!("status and metrics: http://{admin}/\n")
    });
    format!(
        "listening on {}: {} blocks of {} ({}), {} over {}, pool {}\n{admin}",
        listen.join(", "),
        ready.blocks,
        octets(ready.block_size),
        octets(ready.blocks.saturating_mul(ready.block_size)),
        status.build.engine,
        status.build.transport,
        ready.agent,
    )
}
