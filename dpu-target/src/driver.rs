//! What touches the world: threads, sockets, clocks. The rest of the crate is told.

mod admin;
mod build;
mod control;
mod device;
mod memory;
mod overview;
mod parting;
mod worker;

pub(crate) use build::stream_config;

use crate::config::{ConfigError, TargetConfig};
use crate::inbox::InboxSender;
use crate::lifecycle::{Lifecycle, Phase};
use crate::status::Status;
use crate::transport::{Listening, Served};
use admin::AdminCommand;
use build::Builder;
use control::ControlCommand;
use kbtp_core::{Audit, DirectoryError, PoolError, Shared};
use memory::Link;
use overview::Overview;
use parting::Parting;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use worker::Command;

/// Why a target does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The agent in this process has no memory to give.
    #[error(transparent)]
    Agent(#[from] kbtp_agent::AgentError),
    /// The agent cannot be reached or refuses.
    #[error(transparent)]
    Control(#[from] kbtp_control::ControlError),
    /// The pool cannot be made or recovered.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The directory cannot be made.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: choose another address or port, or end what has it")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The device does not do what chains need.
    #[error("the device cannot serve the pool: {0}")]
    Device(String),
    /// Chains may not serve with the device: T2, which was asked for, does not run.
    #[error(
        "chains (T2) may not serve with {device}: {why}; software (T0) would serve: start with engine = \"software\""
    )]
    Unfit {
        /// The device.
        device: String,
        /// What it lacks, or which steps of the calibration failed.
        why: String,
    },
    /// No RDMA device listens there.
    #[error(
        "cannot listen on {address} of an RDMA device: name an address that a device here has, or leave `rdma` empty and serve iWARP over TCP"
    )]
    Rdma {
        /// The address.
        address: SocketAddr,
        /// What the libraries or the device said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The system has no randomness.
    #[error("the system gives no randomness")]
    Entropy(#[source] io::Error),
    /// The system refuses something else.
    #[error("cannot {what}")]
    Os {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

fn os(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::Os { what, source }
}

/// A thread of the target that ended otherwise than it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// It panicked: a bug.
    #[error("the thread {0} panicked")]
    Panicked(String),
    /// The system gave it no events any more.
    #[error("the thread {name} could not go on")]
    Failed {
        /// Its name.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The agent was gone, and its pool with it: what was stored is lost.
    #[error("the agent was gone, and what was stored with it")]
    AgentGone,
}

/// Ends a target from any thread; clones do the same.
#[derive(Clone, Debug)]
pub struct ShutdownHandle {
    lifecycle: Arc<Lifecycle>,
    control: InboxSender<ControlCommand>,
    workers: Arc<[InboxSender<Command<Served>>]>,
    drain: Arc<Shared>,
    parting: Arc<Parting>,
}

impl ShutdownHandle {
    /// Drains: new HELLOs and requests are answered SHUTTING_DOWN, requests in flight finish, then streams close and
    /// [`Target::join`] returns. Bounded by `limits.drain_timeout`. Calling it again does nothing.
    pub fn drain(&self) {
        if self.lifecycle.advance(Phase::Draining) {
            tracing::info!("draining");
            self.drain.drain();
            if let Err(error) = self.control.send(ControlCommand::Drain) {
                tracing::error!(%error, "the control thread cannot be told to drain");
            }
        }
    }

    /// Ends at once: streams are cut, sessions end, nothing in flight is waited for, nor the agent.
    pub fn kill(&self) {
        self.lifecycle.advance(Phase::Draining);
        self.drain.drain();
        self.parting.kill();
        for worker in self.workers.iter() {
            // One that has ended needs no telling.
            let _ended = worker.send(Command::Kill);
        }
    }

    /// Where the target is in its life.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.lifecycle.phase()
    }
}

/// A running target. Dropping it [kills](ShutdownHandle::kill) it and waits for its threads.
#[derive(Debug)]
pub struct Target {
    addresses: Vec<SocketAddr>,
    admin_address: Option<SocketAddr>,
    shutdown: ShutdownHandle,
    overview: Arc<Overview>,
    workers: Vec<Thread<()>>,
    control: Option<Thread<(Link, bool)>>,
    admin: Option<(Thread<()>, InboxSender<AdminCommand>)>,
}

type Thread<T> = JoinHandle<io::Result<T>>;

impl Target {
    /// Starts a target: takes the pool, listens, starts the threads. Initiators can connect when it returns.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub fn start(mut config: TargetConfig) -> Result<Self, StartError> {
        config.load_keys()?;
        config.validate()?;
        config.fit_to_engine();
        build::raise_descriptor_limit(config.limits.sessions);
        let listeners = build::listen(&config)?;
        let addresses: Vec<_> = listeners.iter().map(Listening::local_addr).collect();
        let admin = config.admin.map(build::listen_admin).transpose()?;
        let memory = memory::open(&mut config)?;
        Builder::new(config, addresses, memory)?.run(listeners, admin)
    }

    /// The addresses it listens on, in the order of the configuration.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The first of its addresses.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses.first().copied()
    }

    /// Where the admin endpoint listens.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// A handle to end it with.
    #[must_use]
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.shutdown.clone()
    }

    /// What `/status` says. Waits for the workers, at most a second.
    #[must_use]
    pub fn status(&self) -> Status {
        self.overview.status()
    }

    /// What `/metrics` says.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.overview.metrics()
    }

    /// Looks at every block, slot and entry of the pool and says where each block is. What moves meanwhile shows up
    /// as a fault: for a target at rest. Cost: a pass over rings and table.
    #[must_use]
    pub fn audit(&self) -> Audit {
        self.overview.audit()
    }

    /// Waits until it has ended, because of a [`ShutdownHandle`] or of its agent.
    ///
    /// # Errors
    /// [`JoinError`], the first, if a thread ended otherwise than it should.
    pub fn join(mut self) -> Result<(), JoinError> {
        self.join_all()
    }

    fn join_all(&mut self) -> Result<(), JoinError> {
        let mut result = Ok(());
        let mut note = |ended: Result<(), JoinError>| {
            if result.is_ok() {
                result = ended;
            }
        };
        for worker in self.workers.drain(..) {
            note(join(worker));
        }
        self.shutdown.lifecycle.advance(Phase::Stopped);
        if let Some(control) = self.control.take() {
            // It may have failed; join tells.
            let _ended = self.shutdown.control.send(ControlCommand::Stop);
            match join(control) {
                Ok((mut link, agent_lost)) => {
                    if agent_lost {
                        note(Err(JoinError::AgentGone));
                    }
                    self.shutdown.parting.detach(&mut link);
                }
                Err(error) => note(Err(error)),
            }
        }
        // Handles outlive the target, and must not hold what an agent takes for one.
        self.shutdown.parting.close();
        if let Some((admin, inbox)) = self.admin.take() {
            let _ended = inbox.send(AdminCommand::Stop);
            note(join(admin));
        }
        if result.is_ok() {
            tracing::info!("the target has ended");
        }
        result
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // A target that was joined has no threads left; one that could not be made has some.
        if !self.workers.is_empty() || self.control.is_some() || self.admin.is_some() {
            self.shutdown.kill();
            if let Err(error) = self.join_all() {
                tracing::error!(%error, "the target did not end well");
            }
        }
    }
}

fn join<T>(thread: Thread<T>) -> Result<T, JoinError> {
    let name = thread.thread().name().unwrap_or("?").to_owned();
    match thread.join() {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(JoinError::Failed { name, source }),
        Err(_) => Err(JoinError::Panicked(name)),
    }
}
