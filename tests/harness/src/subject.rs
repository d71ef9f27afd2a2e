//! The target under test, whatever it is made of.

use crate::software;
use std::fmt;
use std::net::SocketAddr;

/// A tenant of a target under test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantSetup {
    /// Its name.
    pub name: &'static str,
    /// Its key.
    pub key: [u8; 32],
    /// Whether its blocks are for the other shared tenants too.
    pub shared: bool,
}

/// What a test wants its target to be. Each field is a word of the documents; how an engine is told is its own matter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Block Size.
    pub block_size: u32,
    /// Pool Blocks F.
    pub blocks: u32,
    /// Handles of the table; none: four for each block.
    pub handles: Option<u64>,
    /// Quota of who wants none in particular.
    pub default_quota: u32,
    /// Request Credits of who wants none in particular, and the most there are.
    pub credits: u16,
    /// Max Inline at most.
    pub max_inline: u32,
    /// Ticket Timeout, in milliseconds.
    pub ticket_timeout_ms: u32,
    /// Lease in milliseconds, `u32::MAX` for ever.
    pub lease_ms: u32,
    /// DIRECT_LOAD may be granted.
    pub direct_load: bool,
    /// DIRECT_ALLOC may be granted.
    pub direct_alloc: bool,
    /// Tenants; with none nobody is authenticated.
    pub tenants: Vec<TenantSetup>,
    /// Streams whose HELLO is not answered, at most.
    pub half_open: u32,
    /// Streams at most.
    pub sessions: u32,
    /// Time from accept to HELLO, in milliseconds.
    pub handshake_ms: u64,
    /// How long a drain goes on answering, in milliseconds.
    pub linger_ms: u64,
    /// How long a drain waits for requests in flight, in milliseconds.
    pub drain_ms: u64,
}

impl Setup {
    /// A small pool of 4 KiB blocks with everything on, nobody authenticated.
    #[must_use]
    pub fn small() -> Self {
        Self {
            block_size: 4096,
            blocks: 64,
            // Room for many ranges: they are given out in granules of 64 handles.
            handles: Some(4096),
            default_quota: 8,
            credits: 16,
            max_inline: 4096,
            ticket_timeout_ms: 10_000,
            lease_ms: 0,
            direct_load: true,
            direct_alloc: true,
            tenants: Vec::new(),
            half_open: 64,
            sessions: 256,
            handshake_ms: 10_000,
            linger_ms: 50,
            drain_ms: 10_000,
        }
    }
}

/// What the target says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Audit {
    /// Sessions now.
    pub sessions: u64,
    /// Streams whose HELLO is not answered.
    pub half_open: u64,
    /// Requests received and not answered.
    pub in_flight: u64,
    /// Blocks bound by sessions and tickets taken, as sessions count them.
    pub usage: u64,
    /// Ranges kept without a session.
    pub leases: u64,
    /// Blocks bound in those.
    pub leased: u64,
    /// Quota granted.
    pub quota: u64,
    /// F.
    pub blocks: u64,
    /// Blocks in the ring of all.
    pub free: u64,
    /// Blocks of the partitions.
    pub partitioned: u64,
    /// Freed blocks that wait for a slot.
    pub deferred: u64,
}

/// Where every block is, counted one by one; of a target at rest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// F.
    pub blocks: u32,
    /// In a ring.
    pub in_rings: u32,
    /// Waiting for a slot.
    pub deferred: u32,
    /// Bound.
    pub bound: u32,
    /// In none of these places.
    pub elsewhere: u32,
    /// In two places, or no block.
    pub faults: Vec<String>,
}

/// A running target. Dropping it ends it at once.
pub trait Subject: fmt::Debug + Send + Sync {
    /// Where it listens.
    fn address(&self) -> SocketAddr;
    /// What it says of itself.
    fn audit(&self) -> Audit;
    /// Counts every block. Only a target at rest counts right.
    fn count(&self) -> Count;
    /// A counter of its metrics, by name and labels.
    fn metric(&self, series: &str) -> u64;
    /// Begins to drain.
    fn drain(&self);
    /// Drains and waits for the end.
    fn end(self: Box<Self>);
}

/// Starts a target on loopback, the one that `KBTP_SUBJECT` names: `software`, which is also the default, is the
/// software engine on iWARP and TCP with a pool of its own; `software-agent` the same with an agent's pool; `chain` has
/// requests executed by chains on the model of a NIC. It is watched:
/// [`faults`](crate::faults) tells of its panics and errors.
#[must_use]
pub fn start(setup: &Setup) -> Box<dyn Subject> {
    crate::watch::watch();
    let name = std::env::var("KBTP_SUBJECT").unwrap_or_else(|_| "software".to_owned());
    match name.as_str() {
        "software" => Box::new(software::Software::start(setup)),
        "software-agent" => Box::new(software::Software::start_with_agent(setup)),
        "chain" => Box::new(software::Software::start_with_chains(setup)),
        other => panic!("KBTP_SUBJECT = {other}: there is no such way to run a target"),
    }
}
