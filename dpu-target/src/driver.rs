//! What touches the world: threads, sockets, clocks. The rest of the crate is told.

mod admin;
mod control;
mod memory;
mod overview;
mod worker;

use crate::config::{ConfigError, SpinPolicy, TargetConfig};
use crate::engine::{Engine, Times, Worker};
use crate::inbox::{Inbox, InboxSender, inbox};
use crate::lifecycle::{Lifecycle, Phase};
use crate::limits;
use crate::metrics::WorkerMetrics;
use crate::plane::Plane;
use crate::status::Status;
use admin::{AdminCommand, AdminServer};
use control::{ControlCommand, ControlThread};
use kbtp_core::{
    Audit, Directory, DirectoryConfig, DirectoryError, PoolError, Shared, TenantConfig, TenantKey,
};
use kbtp_iwarp_tcp::{Clock, ListenOptions, Listener, Poller, Spin, StreamOptions, TcpRdmaStream};
use kbtp_wire::AuthMode;
use memory::{Link, Memory};
use overview::{Facts, Overview};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use worker::{Command, WorkerThread};

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
}

/// Ends a target from any thread; clones do the same.
#[derive(Clone, Debug)]
pub struct ShutdownHandle {
    lifecycle: Arc<Lifecycle>,
    control: InboxSender<ControlCommand>,
    workers: Arc<[InboxSender<Command<TcpRdmaStream>>]>,
    drain: Arc<Shared>,
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

    /// Ends at once: streams are cut, sessions end, nothing in flight is waited for.
    pub fn kill(&self) {
        self.lifecycle.advance(Phase::Draining);
        self.drain.drain();
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
    control: Option<Thread<Link>>,
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
        raise_descriptor_limit(config.limits.sessions);
        let listeners = listen(&config)?;
        let addresses: Vec<_> = listeners.iter().map(Listener::local_addr).collect();
        let admin = config.admin.map(listen_admin).transpose()?;
        let memory = memory::open(&config)?;
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
                Ok(mut link) => {
                    if let Err(error) = link.detach() {
                        tracing::debug!(%error, "the agent was not told that the target ends");
                    }
                }
                Err(error) => note(Err(error)),
            }
        }
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

/// Everything that is made before the threads start.
struct Builder {
    config: TargetConfig,
    addresses: Vec<SocketAddr>,
    plane: Arc<Plane>,
    own: Arc<Worker>,
    counts: Arc<[Arc<Worker>]>,
    link: Link,
    /// Blocks bound that a recovery found.
    bound: u64,
    /// The control thread's.
    poller: Poller,
}

impl Builder {
    fn new(
        config: TargetConfig,
        addresses: Vec<SocketAddr>,
        memory: Memory,
    ) -> Result<Self, StartError> {
        let poller = Poller::new(Spin::Off).map_err(os("wait for events"))?;
        let shared = Shared::new(memory.pool);
        let bound = memory
            .recovered
            .as_ref()
            .map_or(0, |recovered| recovered.report.bound.into());
        let count = usize::from(config.worker_count(cores()));
        let worker = |index| {
            Arc::new(Worker {
                index,
                shared: shared.view(),
                metrics: WorkerMetrics::default(),
            })
        };
        let own = worker(count);
        let directory = match memory.recovered {
            None => Directory::new(directory_config(&config), &shared.pool)?,
            Some(recovered) => {
                tracing::info!(report = ?recovered.report, "the pool was recovered");
                let now = poller.clock().now();
                Directory::recover(directory_config(&config), &own.shared, recovered, now)?
            }
        };
        Ok(Self {
            config,
            addresses,
            plane: Arc::new(Plane::new(directory, poller.waker())),
            own,
            counts: (0..count).map(worker).collect(),
            link: memory.link,
            bound,
            poller,
        })
    }

    fn run(
        self,
        listeners: Vec<Listener>,
        admin: Option<TcpListener>,
    ) -> Result<Target, StartError> {
        let spin = match self.config.spin {
            SpinPolicy::Off => Spin::Off,
            SpinPolicy::Auto => Spin::Auto,
            SpinPolicy::For(d) => Spin::For(d),
        };
        let mut ends = Vec::new();
        let mut senders = Vec::new();
        for _ in self.counts.iter() {
            let poller = Poller::new(spin).map_err(os("wait for events"))?;
            let (tx, rx) = inbox(poller.waker());
            senders.push(tx);
            ends.push((poller, rx));
        }
        let senders: Arc<[InboxSender<Command<TcpRdmaStream>>]> = senders.into();
        let (control, control_inbox) = inbox(self.poller.waker());
        let shutdown = ShutdownHandle {
            lifecycle: Arc::new(Lifecycle::default()),
            control,
            workers: Arc::clone(&senders),
            drain: Arc::new(self.own.shared.view()),
        };
        let admin_address = admin
            .as_ref()
            .map(TcpListener::local_addr)
            .transpose()
            .map_err(os("read the address of the admin endpoint"))?;
        let overview = Arc::new(Overview {
            facts: Facts {
                listen: self.addresses.clone(),
                agent: self.config.agent.clone(),
                clock: Clock::new(),
                started: self.poller.clock().now(),
                recovered: self.bound,
            },
            workers: Arc::clone(&self.counts),
            own: Arc::clone(&self.own),
            inboxes: Arc::clone(&senders),
            plane: Arc::clone(&self.plane),
            lifecycle: Arc::clone(&shutdown.lifecycle),
        });
        // Dropping the target that is being made ends the threads that run already, if a later one cannot start.
        let mut target = Target {
            addresses: self.addresses.clone(),
            admin_address,
            shutdown,
            overview,
            workers: Vec::new(),
            control: None,
            admin: None,
        };
        self.spawn_workers(&mut target, ends)?;
        if let Some(listener) = admin {
            target.admin = Some(spawn_admin(listener, &target.overview)?);
        }
        self.spawn_control(&mut target, listeners, control_inbox)?;
        Ok(target)
    }

    fn spawn_workers(
        &self,
        target: &mut Target,
        ends: Vec<(Poller, Inbox<Command<TcpRdmaStream>>)>,
    ) -> Result<(), StartError> {
        let times = Times {
            handshake: millis(self.config.limits.handshake_timeout),
            drain: millis(self.config.limits.drain_timeout),
            linger: millis(self.config.limits.drain_linger),
        };
        for ((poller, inbox), worker) in ends.into_iter().zip(self.counts.iter()) {
            let thread = WorkerThread {
                engine: Engine::new(Arc::clone(worker), Arc::clone(&self.plane), times),
                inbox,
                poller,
                workers: Arc::clone(&target.shutdown.workers),
            };
            let guard = Guard::new(target.shutdown.clone());
            let run = move || guard.watch(|| thread.run());
            target
                .workers
                .push(spawn(format!("kbtp-worker-{}", worker.index), run)?);
        }
        Ok(())
    }

    fn spawn_control(
        self,
        target: &mut Target,
        listeners: Vec<Listener>,
        inbox: Inbox<ControlCommand>,
    ) -> Result<(), StartError> {
        let thread = ControlThread {
            listeners,
            poller: self.poller,
            inbox,
            workers: Arc::clone(&target.shutdown.workers),
            counts: self.counts,
            own: self.own,
            plane: self.plane,
            lifecycle: Arc::clone(&target.shutdown.lifecycle),
            link: self.link,
            auth: auth_mode(&self.config),
            half_open_max: self.config.limits.half_open.into(),
            sessions_max: self.config.limits.sessions.into(),
            linger: millis(self.config.limits.drain_linger),
        };
        let guard = Guard::new(target.shutdown.clone());
        let run = move || guard.watch(|| thread.run());
        target.control = Some(spawn("kbtp-control".to_owned(), run)?);
        Ok(())
    }
}

/// Ends the whole target if a thread of it fails: half a target would hold initiators that nobody serves.
struct Guard {
    shutdown: ShutdownHandle,
    failed: bool,
}

impl Guard {
    fn new(shutdown: ShutdownHandle) -> Self {
        Self {
            shutdown,
            failed: true,
        }
    }

    fn watch<T>(mut self, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let result = run();
        match &result {
            Ok(_) => self.failed = false,
            Err(error) => tracing::error!(%error, "a thread failed: the target ends"),
        }
        result
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // After a panic too.
        if self.failed {
            self.shutdown.kill();
        }
    }
}

fn spawn<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<Thread<T>, StartError> {
    std::thread::Builder::new()
        .name(name)
        .spawn(run)
        .map_err(os("start a thread"))
}

fn spawn_admin(
    listener: TcpListener,
    overview: &Arc<Overview>,
) -> Result<(Thread<()>, InboxSender<AdminCommand>), StartError> {
    let poller = Poller::new(Spin::Off).map_err(os("wait for events"))?;
    let (tx, rx) = inbox(poller.waker());
    let server = AdminServer::new(listener, rx, poller).map_err(os("serve the admin endpoint"))?;
    let overview = Arc::clone(overview);
    let run = move || {
        server.run(&*overview);
        Ok(())
    };
    Ok((spawn("kbtp-admin".to_owned(), run)?, tx))
}

fn listen(config: &TargetConfig) -> Result<Vec<Listener>, StartError> {
    let half_open = usize::try_from(config.limits.half_open).unwrap_or(usize::MAX);
    let bind = |address: &SocketAddr| {
        // On loopback everybody is one source.
        let sources = if address.ip().is_loopback() {
            1
        } else {
            limits::HALF_OPEN_SOURCES
        };
        let options = ListenOptions {
            stream: stream_options(config),
            half_open,
            half_open_per_source: (half_open / sources).max(1),
            ..ListenOptions::default()
        };
        Listener::bind(*address, options).map_err(|source| StartError::Listen {
            address: *address,
            source,
        })
    };
    config.listen.iter().map(bind).collect()
}

/// Streams with room for what a session may have in flight, and no more.
fn stream_options(config: &TargetConfig) -> StreamOptions {
    let mut options = StreamOptions::default();
    let rdma = &mut options.rdma;
    // One more than the credits: the message that breaks the rule arrives and ends the session with its reason.
    rdma.receive_slots = config.credits.saturating_add(1);
    let inline = u32::try_from(config.max_inline).unwrap_or(u32::MAX);
    rdma.max_receive = inline
        .saturating_add(limits::REQUEST_HEAD_MAX)
        .max(limits::HELLO_LEN_MAX);
    // A load is a Write and a Send, a store a Read and a Send; the HELLO_ACK comes on top.
    rdma.send_queue = config
        .credits
        .saturating_mul(limits::WORK_PER_CREDIT)
        .saturating_add(8);
    rdma.registrations = limits::REGISTRATIONS;
    // What is sent are completions, and one HELLO_ACK.
    rdma.head_ring_len = u32::from(rdma.send_queue)
        .saturating_mul(limits::COMPLETION_ROOM)
        .max(limits::HEAD_RING_MIN);
    rdma.startup_timeout_ms = millis(config.limits.handshake_timeout);
    options
}

fn listen_admin(address: SocketAddr) -> Result<TcpListener, StartError> {
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "the admin endpoint answers anybody who reaches it");
    }
    TcpListener::bind(address).map_err(|source| StartError::Listen { address, source })
}

fn directory_config(config: &TargetConfig) -> DirectoryConfig {
    let tenants = config.tenants.iter().map(|tenant| TenantConfig {
        name: tenant.name.clone(),
        key: tenant
            .key
            .as_ref()
            .map(|key| TenantKey::new(key.as_bytes())),
        shared: tenant.shared,
    });
    DirectoryConfig {
        tenants: tenants.collect(),
        default_quota: u32::try_from(config.quota_default()).unwrap_or(u32::MAX),
        max_quota: 0,
        lease_ms: config.lease.to_wire_ms(),
        ticket_timeout_ms: u32::try_from(millis(config.ticket_timeout)).unwrap_or(u32::MAX),
        direct_load: config.direct.load,
        direct_alloc: config.direct.alloc,
        credits_default: config.credits,
        credits_max: config.credits,
        inline_max: u32::try_from(config.max_inline).unwrap_or(u32::MAX),
    }
}

fn auth_mode(config: &TargetConfig) -> AuthMode {
    if config.auth_required() {
        AuthMode::Hmac
    } else {
        AuthMode::None
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// Cores this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A session costs a descriptor. Asks for as many as the sessions may need, and says so if they are not to be had.
fn raise_descriptor_limit(sessions: u32) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    /// Listeners, pollers, wake-ups, memory files, logs.
    const OWN: u64 = 128;
    let wanted = u64::from(sessions).saturating_add(OWN);
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    if soft >= wanted {
        return;
    }
    let to = wanted.min(hard);
    if let Err(errno) = setrlimit(Resource::RLIMIT_NOFILE, to, hard) {
        tracing::warn!(%errno, soft, "the limit on descriptors cannot be raised");
    } else if to < wanted {
        tracing::warn!(
            limit = to,
            sessions,
            "fewer descriptors than limits.sessions needs: raise the hard limit (ulimit -Hn)"
        );
    }
}
