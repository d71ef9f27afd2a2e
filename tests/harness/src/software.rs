//! The software engine on iWARP and TCP, in this process; its pool is its own or that of an agent beside it.

use crate::process::Scratch;
use crate::subject::{Audit, Count, Setup, Subject};
use kbtp_agent::{AgentConfig, AgentError, Server, Shutdown, ShutdownHandle};
use kbtp_target::{
    EngineChoice, Lease, NicChoice, SpinPolicy, Target, TargetConfig, TenantConfig, TenantKey,
};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// Such a target. The target ends before its agent does.
#[derive(Debug)]
pub(crate) struct Software {
    target: Target,
    _agent: Option<Agent>,
}

impl Software {
    /// With a pool of its own.
    pub(crate) fn start(setup: &Setup) -> Self {
        let target = Target::start(config(setup)).expect("a target starts");
        Self {
            target,
            _agent: None,
        }
    }

    /// With requests executed by chains on the model of a NIC.
    pub(crate) fn start_with_chains(setup: &Setup) -> Self {
        let config = TargetConfig {
            engine: EngineChoice::Chain,
            nic: Some(NicChoice::Model),
            workers: None,
            ..config(setup)
        };
        let target = Target::start(config).expect("a target starts");
        Self {
            target,
            _agent: None,
        }
    }

    /// With the pool of an agent, handed over through its socket.
    pub(crate) fn start_with_agent(setup: &Setup) -> Self {
        let agent = Agent::start(setup);
        let config = TargetConfig {
            agent: Some(agent.socket()),
            ..config(setup)
        };
        let target = Target::start(config).expect("a target starts");
        Self {
            target,
            _agent: Some(agent),
        }
    }
}

/// Name of its socket.
const SOCKET: &str = "agent.sock";

/// The address of an RDMA device that targets listen on instead of TCP: `KBTP_TEST_RDMA`.
pub(crate) fn device() -> Option<IpAddr> {
    let address = std::env::var("KBTP_TEST_RDMA").ok()?;
    Some(address.parse().expect("KBTP_TEST_RDMA is an address"))
}

/// Whether targets listen on an RDMA device, and not on TCP.
#[must_use]
pub fn on_device() -> bool {
    device().is_some()
}

/// An agent in a thread of this process, with a directory of its own for its socket.
#[derive(Debug)]
struct Agent {
    directory: Scratch,
    shutdown: ShutdownHandle,
    thread: Option<JoinHandle<Result<(), AgentError>>>,
}

impl Agent {
    fn start(setup: &Setup) -> Self {
        let directory = Scratch::new();
        let socket = directory.at(SOCKET);
        let config = AgentConfig::new(socket, setup.block_size, setup.blocks);
        let server = Server::bind(&config).expect("an agent listens");
        let (end, shutdown) = Shutdown::new().unwrap();
        let thread = std::thread::Builder::new()
            .name("agent".to_owned())
            .spawn(move || server.run(&end))
            .unwrap();
        Self {
            directory,
            shutdown,
            thread: Some(thread),
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.at(SOCKET)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shutdown.request();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            // A test that has failed says enough.
            assert!(
                std::thread::panicking() || matches!(ended, Ok(Ok(()))),
                "the agent did not end well: {ended:?}"
            );
        }
    }
}

fn config(setup: &Setup) -> TargetConfig {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (listen, rdma) = match device() {
        None => (vec![any], Vec::new()),
        Some(address) => (Vec::new(), vec![SocketAddr::new(address, 0)]),
    };
    let mut config = TargetConfig {
        allow_unauthenticated: !rdma.is_empty(),
        listen,
        rdma,
        admin: None,
        workers: Some(2),
        block_size: setup.block_size.into(),
        blocks: setup.blocks.into(),
        handles: setup.handles,
        default_quota: Some(setup.default_quota.into()),
        ticket_timeout: Duration::from_millis(setup.ticket_timeout_ms.into()),
        lease: match setup.lease_ms {
            u32::MAX => Lease::Forever,
            ms => Lease::For(Duration::from_millis(ms.into())),
        },
        credits: setup.credits,
        max_inline: setup.max_inline.into(),
        tenants: setup
            .tenants
            .iter()
            .map(|tenant| TenantConfig {
                name: tenant.name.to_owned(),
                key: Some(TenantKey::new(tenant.key.to_vec())),
                key_file: None,
                shared: tenant.shared,
            })
            .collect(),
        spin: SpinPolicy::Off,
        ..TargetConfig::default()
    };
    config.direct.load = setup.direct_load;
    config.direct.alloc = setup.direct_alloc;
    config.limits.half_open = setup.half_open;
    config.limits.sessions = setup.sessions;
    config.limits.handshake_timeout = Duration::from_millis(setup.handshake_ms);
    config.limits.drain_timeout = Duration::from_millis(setup.drain_ms);
    config.limits.drain_linger = Duration::from_millis(setup.linger_ms);
    config
}

impl Subject for Software {
    fn address(&self) -> SocketAddr {
        self.target.address().expect("it listens")
    }

    fn audit(&self) -> Audit {
        let status = self.target.status();
        let sum = |f: fn(&kbtp_target::SessionStatus) -> u64| status.sessions.iter().map(f).sum();
        Audit {
            sessions: status.sessions.len() as u64,
            half_open: self.metric("kbtp_half_open"),
            in_flight: sum(|session| session.in_flight),
            usage: sum(|session| session.usage),
            leases: status.leases.len() as u64,
            leased: status.leases.iter().map(|lease| lease.bound).sum(),
            quota: status.pool.quota_granted,
            blocks: status.pool.blocks,
            free: status.pool.blocks_free,
            partitioned: status.pool.blocks_partitioned,
            deferred: status.pool.blocks_deferred,
        }
    }

    fn count(&self) -> Count {
        let audit = self.target.audit();
        Count {
            blocks: audit.blocks,
            in_rings: audit.in_rings,
            deferred: audit.deferred,
            bound: audit.bound,
            elsewhere: audit.elsewhere,
            faults: audit.faults,
        }
    }

    fn metric(&self, series: &str) -> u64 {
        let text = self.target.metrics();
        text.lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("there is no metric {series} in\n{text}"))
    }

    fn drain(&self) {
        self.target.shutdown_handle().drain();
    }

    fn end(self: Box<Self>) {
        self.drain();
        let Self { target, _agent } = *self;
        target.join().expect("its threads end well");
    }
}
