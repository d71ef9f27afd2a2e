//! How a target is put together: sockets, pool, directory, threads.

use super::admin::{AdminCommand, AdminServer};
use super::control::{ControlCommand, ControlThread};
use super::memory::{Link, Memory};
use super::overview::{Facts, Overview};
use super::parting::Parting;
use super::worker::{Command, WorkerThread};
use super::{ShutdownHandle, StartError, Target, Thread, device, os};
use crate::chains::{Chains, Nic};
use crate::config::{EngineChoice, NicChoice, SpinPolicy, TargetConfig};
use crate::engine::{Engine, Times, Worker};
use crate::inbox::{Inbox, InboxSender, inbox};
use crate::lifecycle::Lifecycle;
use crate::limits;
use crate::metrics::{BuildInfo, WorkerMetrics};
use crate::plane::Plane;
use crate::sources::places_of;
use crate::status::PagesStatus;
use crate::transport::{Listening, Served};
use kbtp_core::{Directory, DirectoryConfig, Shared, TenantConfig, TenantKey};
use kbtp_iwarp_tcp::{
    Clock, Config as RdmaConfig, CopyFirst, ListenOptions, Listener, Poller, Spin, StreamOptions,
};
use kbtp_wire::AuthMode;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Everything that is made before the threads start.
pub(super) struct Builder {
    config: TargetConfig,
    addresses: Vec<SocketAddr>,
    plane: Arc<Plane>,
    own: Arc<Worker>,
    counts: Arc<[Arc<Worker>]>,
    link: Link,
    /// Blocks bound that a recovery found.
    bound: u64,
    pages: PagesStatus,
    /// The control thread's.
    poller: Poller,
}

impl Builder {
    pub(super) fn new(
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
            pages: memory.pages,
            poller,
        })
    }

    pub(super) fn run(
        self,
        listeners: Vec<Listening>,
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
        let senders: Arc<[InboxSender<Command<Served>>]> = senders.into();
        let (control, control_inbox) = inbox(self.poller.waker());
        let shutdown = ShutdownHandle {
            lifecycle: Arc::new(Lifecycle::default()),
            control,
            workers: Arc::clone(&senders),
            drain: Arc::new(self.own.shared.view()),
            parting: Arc::new(Parting::new(&self.link)?),
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
                pages: self.pages.clone(),
                build: match self.config.engine {
                    EngineChoice::Software => BuildInfo::SOFTWARE_IWARP_TCP,
                    EngineChoice::Chain => BuildInfo::CHAIN_IWARP_TCP,
                },
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
        ends: Vec<(Poller, Inbox<Command<Served>>)>,
    ) -> Result<(), StartError> {
        let times = Times {
            handshake: millis(self.config.limits.handshake_timeout),
            drain: millis(self.config.limits.drain_timeout),
            linger: millis(self.config.limits.drain_linger),
        };
        // There is one worker if there is a device.
        let mut nic = self.nic()?;
        for ((poller, inbox), worker) in ends.into_iter().zip(self.counts.iter()) {
            let engine = Engine::new(Arc::clone(worker), Arc::clone(&self.plane), times);
            let thread = WorkerThread {
                engine: engine.with_nic(nic.take()),
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

    /// The device, if chains are to serve; it was seen to do what they need.
    fn nic(&self) -> Result<Option<Nic>, StartError> {
        if self.config.engine != EngineChoice::Chain {
            return Ok(None);
        }
        let clock = self.poller.clock();
        let mut now = || clock.now().0;
        let model = match &self.config.nic {
            Some(NicChoice::Mlx5(name)) => return Err(device::mlx5(name, &mut now)),
            Some(NicChoice::Model) | None => device::model(&mut now)?,
        };
        let inline = u32::try_from(self.config.max_inline).unwrap_or(u32::MAX);
        let chains = Chains::new(model, &self.own.shared.pool, inline);
        chains
            .map(Some)
            .map_err(|error| StartError::Device(error.to_string()))
    }

    fn spawn_control(
        self,
        target: &mut Target,
        listeners: Vec<Listening>,
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
            sources: Arc::default(),
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

pub(super) fn listen(config: &TargetConfig) -> Result<Vec<Listening>, StartError> {
    let half_open = usize::try_from(config.limits.half_open).unwrap_or(usize::MAX);
    let bind = |address: &SocketAddr| {
        let options = ListenOptions {
            stream: stream_options(config),
            half_open,
            half_open_per_source: places_of(address, half_open),
            ..ListenOptions::default()
        };
        Listener::bind(*address, options).map_err(|source| StartError::Listen {
            address: *address,
            source,
        })
    };
    let tcp = config
        .listen
        .iter()
        .map(|address| bind(address).map(|listener| Listening::Tcp(Box::new(listener))));
    let rdma = config.rdma.iter().map(|address| {
        let options = kbtp_verbs::ListenOptions {
            stream: device_options(config),
            half_open,
            half_open_per_source: places_of(address, half_open),
            ..kbtp_verbs::ListenOptions::default()
        };
        kbtp_verbs::Listener::bind(*address, options)
            .map(|listener| Listening::Rdma(Box::new(listener)))
            .map_err(|source| StartError::Rdma {
                address: *address,
                source: source.into(),
            })
    });
    tcp.chain(rdma).collect()
}

/// As [`stream_config`], for a device.
fn device_options(config: &TargetConfig) -> kbtp_verbs::StreamOptions {
    let like = stream_config(config);
    kbtp_verbs::StreamOptions {
        send_work: like.send_queue.into(),
        receives: like.receive_slots.into(),
        receive_len: like.max_receive,
        registrations: like.registrations,
        startup_ms: like.startup_timeout_ms,
        ..kbtp_verbs::StreamOptions::default()
    }
}

fn stream_options(config: &TargetConfig) -> StreamOptions {
    StreamOptions {
        rdma: stream_config(config),
        ..StreamOptions::default()
    }
}

/// Streams with room for what a session may have in flight, and no more.
pub(crate) fn stream_config(config: &TargetConfig) -> RdmaConfig {
    let mut rdma = StreamOptions::default().rdma;
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
    rdma.staging_len = limits::READ_AHEAD;
    rdma.registrations = limits::REGISTRATIONS;
    rdma.copy_first = CopyFirst::Writable;
    // What is sent are completions, and one HELLO_ACK.
    rdma.head_ring_len = u32::from(rdma.send_queue)
        .saturating_mul(limits::COMPLETION_ROOM)
        .max(limits::HEAD_RING_MIN);
    rdma.startup_timeout_ms = millis(config.limits.handshake_timeout);
    rdma
}

pub(super) fn listen_admin(address: SocketAddr) -> Result<TcpListener, StartError> {
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
        max_quota: config
            .max_quota
            .map_or(0, |max| u32::try_from(max).unwrap_or(u32::MAX)),
        max_initiators: config.limits.initiators.unwrap_or(0),
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
pub(super) fn raise_descriptor_limit(sessions: u32) {
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
