//! A target that a command starts for itself, in its own process, on a loopback port of its own.

use crate::failure::{Failure, chain};
use kbtp_target::{EngineChoice, JoinError, Lease, NicChoice, StartError, Target, TargetConfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Its pool, and what a session may have in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub(crate) block_size: u64,
    pub(crate) blocks: u64,
    pub(crate) credits: u16,
    /// Whether chains on the model of a NIC serve, and not software.
    pub(crate) chains: bool,
}

/// The target.
#[derive(Debug)]
pub(crate) struct OwnTarget {
    target: Target,
    addr: SocketAddr,
}

impl OwnTarget {
    /// Starts it. One initiator may have the whole pool.
    ///
    /// # Errors
    /// [`Failure`] names what is wrong with the pool, or what the system refused.
    pub(crate) fn start(pool: Pool) -> Result<Self, Failure> {
        let default = TargetConfig::default();
        let config = TargetConfig {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
            admin: None,
            block_size: pool.block_size,
            blocks: pool.blocks,
            default_quota: Some(pool.blocks),
            // Nobody comes back to it.
            lease: Lease::For(Duration::ZERO),
            credits: pool.credits.max(default.credits),
            max_inline: default.max_inline.min(pool.block_size),
            engine: if pool.chains {
                EngineChoice::Chain
            } else {
                EngineChoice::Software
            },
            nic: pool.chains.then_some(NicChoice::Model),
            ..default
        };
        let target = Target::start(config).map_err(|e| not_started(&e))?;
        let addr = target
            .address()
            .ok_or_else(|| Failure::operation("the target listens nowhere", "report this"))?;
        Ok(Self { target, addr })
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Drains it and waits for its end.
    ///
    /// # Errors
    /// [`Failure`] if it does not end well.
    pub(crate) fn stop(self) -> Result<(), Failure> {
        self.target.shutdown_handle().drain();
        ended(self.target)
    }
}

/// Waits for the end of a target.
///
/// # Errors
/// [`Failure`] if it does not end well.
pub(crate) fn ended(target: Target) -> Result<(), Failure> {
    target.join().map_err(|e| {
        let remedy = match e {
            JoinError::AgentGone => {
                "see the agent's log for why, and start it again before this target"
            }
            _ => "see what it said before this",
        };
        Failure::operation(
            format_args!("the target did not end well: {}", chain(&e)),
            remedy,
        )
    })
}

/// What helps against the errors of agent and target that do not say it themselves.
pub(crate) const REMEDIES: &str = "docs/operations.md lists messages and remedies";

/// Why a target did not start. A wrong configuration is wrong usage.
pub(crate) fn not_started(error: &StartError) -> Failure {
    match error {
        StartError::Config(e) => wrong_config(e),
        e => Failure::operation(
            format_args!("the target does not start: {}", chain(e)),
            REMEDIES,
        ),
    }
}

/// A wrong configuration, by key, value and remedy.
pub(crate) fn wrong_config(e: &kbtp_target::ConfigError) -> Failure {
    Failure::usage(
        format_args!("{} = {}: {}", e.key, e.value, e.problem),
        &e.remedy,
    )
}
