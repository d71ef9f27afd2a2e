//! The target: its memory, its core, and the ends of connections it serves, worked as a target's worker works them.

use crate::options::{GRANULE, Options};
use crate::rng::Rng;
use kbtp_core::{
    Contents, Directory, DirectoryConfig, Geometry, Pool, SessionId, Shared, TargetSession,
    TenantConfig, TenantKey,
};
use kbtp_fabric::{ReceiveSlot, Time};
use kbtp_iwarp::{Config, Connection};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{AuthMode, BlockOffset, Handle, RingCounter, RingOrder, Ticket};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = 4096;
/// Octets around the regions that nobody may touch.
const MARGIN: u64 = PAGE;
const CANARY: u8 = 0xC5;
/// Octets of them that are looked at after every step.
const NEXT_TO: u64 = 64;
/// Where Head of the shared ring lies in the metadata region, and Tail behind it.
const HEAD: u64 = PAGE;
const TAIL: u64 = HEAD + 64;

const fn page_up(octets: u64) -> u64 {
    octets.div_ceil(PAGE) * PAGE
}

/// The octets of the block table in the metadata region: its last part.
fn table_at(geometry: &Geometry) -> u64 {
    geometry.meta_len() - page_up(geometry.handles * 16)
}

/// Where the shared ring lies: behind the words of the blocks, and before the partition rings and the table.
fn ring_at(geometry: &Geometry) -> u64 {
    let f = u64::from(geometry.blocks);
    let partition_rings = page_up(2 * f * 16);
    let ring = page_up(geometry.ring_order().ring_len());
    table_at(geometry) - partition_rings - ring
}

/// Memory that outlives a target.
#[derive(Debug)]
pub struct Memory {
    meta: Region,
    blocks: Region,
    geometry: Geometry,
}

impl Memory {
    /// Fresh memory.
    ///
    /// # Panics
    /// If the machine has none.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let geometry = Geometry {
            block_size: options.block_size,
            blocks: options.blocks,
            handles: options.rows(),
            table_base_handle: Handle(options.table_base),
            pool_base: BlockOffset(1 << 32),
        };
        let region = |len: u64| {
            let whole = Region::anonymous(len + 2 * MARGIN, &PageOptions::default()).unwrap();
            whole.fill(0, MARGIN, CANARY).unwrap();
            whole.fill(MARGIN + len, MARGIN, CANARY).unwrap();
            whole
        };
        Self {
            meta: region(geometry.meta_len()),
            blocks: region(geometry.pool_len()),
            geometry,
        }
    }

    fn inner(&self) -> (Region, Region) {
        let inner = |whole: &Region| whole.sub(MARGIN..whole.len() - MARGIN).unwrap();
        (inner(&self.meta), inner(&self.blocks))
    }

    /// Whether somebody wrote around the regions: `all` the octets there, or those next to them.
    #[must_use]
    pub fn canaries_dead(&self, all: bool) -> Option<&'static str> {
        const ALIVE: [u8; MARGIN as usize] = [CANARY; MARGIN as usize];
        let mut octets = [0; MARGIN as usize];
        let len = if all { MARGIN } else { NEXT_TO };
        let octets = &mut octets[..len as usize];
        for (region, name) in [(&self.meta, "metadata"), (&self.blocks, "pool")] {
            for at in [MARGIN - len, region.len() - MARGIN] {
                region.read(at, octets).unwrap();
                if *octets != ALIVE[..octets.len()] {
                    return Some(name);
                }
            }
        }
        None
    }
}

/// The target.
#[derive(Debug)]
pub struct Target {
    /// Its memory.
    pub memory: Memory,
    /// Pool and counters.
    pub shared: Shared,
    /// Ranges, quotas, leases.
    pub directory: Directory,
    /// Sessions so far.
    pub sessions: u64,
    /// It accepts connections.
    pub up: bool,
}

fn directory_config(options: &Options) -> DirectoryConfig {
    let tenants = (0..options.tenants).map(|tenant| TenantConfig {
        name: tenant_name(tenant),
        key: Some(tenant_key(tenant)),
        shared: options.shared_tenants,
    });
    DirectoryConfig {
        tenants: tenants.collect(),
        default_quota: (options.blocks / options.clients as u32).max(1),
        max_quota: options.max_quota,
        max_initiators: 0,
        lease_ms: options.lease_ms,
        ticket_timeout_ms: options.ticket_timeout_ms,
        direct_load: options.direct_load,
        direct_alloc: options.direct_alloc,
        credits_default: 4,
        credits_max: 16,
        inline_max: 4096,
    }
}

/// The name of a tenant.
#[must_use]
pub fn tenant_name(tenant: usize) -> String {
    format!("tenant {tenant}")
}

/// Its key.
#[must_use]
pub fn tenant_key(tenant: usize) -> TenantKey {
    TenantKey::new(format!("key {tenant}"))
}

/// The configuration of a stream of the target.
#[must_use]
pub fn stream_config(options: &Options) -> Config {
    Config {
        send_queue: 16 * 5 + 8,
        receive_slots: 17,
        max_receive: 4096 + 56,
        registrations: 16,
        outbound_reads: options.read_depth,
        inbound_reads: options.read_depth,
        crc: options.target_crc,
        markers: options.target_markers,
        max_ulpdu: options.max_ulpdu,
        copy_first: options.copy_first,
        staging_len: options.staging,
        head_ring_len: 16 << 10,
        ..Config::default()
    }
}

impl Target {
    /// A target over fresh memory.
    ///
    /// # Panics
    /// If the pool cannot be made: the options are wrong then.
    #[must_use]
    pub fn format(options: &Options, rng: &mut Rng) -> Self {
        let memory = Memory::new(options);
        let (meta, blocks) = memory.inner();
        if options.first_generation > 0 {
            let word = u32::from(options.first_generation).to_be();
            let table = table_at(&memory.geometry);
            for row in 0..options.rows() {
                meta.u32_at(table + row * 16).unwrap().store(word, Relaxed);
            }
        }
        let pool = Pool::format(
            meta,
            blocks,
            memory.geometry,
            rng.octets(),
            Contents::Zeroed,
        )
        .unwrap();
        let directory = Directory::new(directory_config(options), &pool).unwrap();
        let target = Self {
            memory,
            shared: Shared::new(pool),
            directory,
            sessions: 0,
            up: true,
        };
        target.set_tickets(options.first_ticket);
        target
    }

    /// The next target over the same memory; the handles that the recovery found bound.
    ///
    /// # Errors
    /// What the recovery says, or that it lost something.
    pub fn recover(
        memory: Memory,
        options: &Options,
        rng: &mut Rng,
        now: Time,
        sessions: u64,
    ) -> Result<(Self, u32), String> {
        let (meta, blocks) = memory.inner();
        let (pool, found) =
            Pool::recover(meta, blocks, rng.octets()).map_err(|error| error.to_string())?;
        let report = found.report.clone();
        if report.entries_dropped > 0 || report.ranges_dropped > 0 || report.instance_changed {
            return Err(format!("a recovery lost something: {report:?}"));
        }
        let shared = Shared::new(pool);
        let directory = Directory::recover(directory_config(options), &shared, found, now)
            .map_err(|error| error.to_string())?;
        let target = Self {
            memory,
            shared,
            directory,
            sessions,
            up: true,
        };
        target.set_tickets(options.first_ticket);
        Ok((target, report.bound))
    }

    /// Has the shared ring, which is new and begins with ticket 0, begin with `first`.
    fn set_tickets(&self, first: u32) {
        let meta = self.shared.pool.meta_region();
        let geometry = self.shared.pool.geometry();
        let order: RingOrder = geometry.ring_order();
        let ring = ring_at(geometry);
        // The tickets of a slot are those that are its number modulo N.
        let first = first & !(order.slots() - 1);
        let counter = |at| meta.u64_at(at).unwrap();
        assert_eq!(counter(HEAD).load(Relaxed), 0, "the layout is another");
        for at in [HEAD, TAIL] {
            let ticket = RingCounter(counter(at).load(Relaxed)).ticket();
            let moved = RingCounter::at(Ticket(ticket.0.wrapping_add(first)), order);
            counter(at).store(moved.0, Relaxed);
        }
        for slot in 0..order.slots() {
            let word = meta.u32_at(ring + u64::from(slot) * 16).unwrap();
            let sequence = u32::from_be(word.load(Relaxed));
            assert_eq!(
                sequence & (order.slots() - 1),
                slot,
                "the layout is another"
            );
            word.store(sequence.wrapping_add(first).to_be(), Relaxed);
        }
    }

    /// The octet of the metadata region at which the table begins.
    #[must_use]
    pub fn table_at(&self) -> u64 {
        table_at(&self.memory.geometry)
    }

    /// Tail of the shared ring.
    #[must_use]
    pub fn tail(&self) -> u32 {
        let meta = self.shared.pool.meta_region();
        let tail = meta.u64_at(TAIL).map_or(0, |tail| tail.load(Relaxed));
        RingCounter(tail).ticket().0
    }

    /// Copies octets of the table, from octet `at` of it on.
    pub fn table(&self, at: usize, to: &mut [u8]) {
        let table = table_at(&self.memory.geometry);
        let meta = self.shared.pool.meta_region();
        meta.read(table + at as u64, to).unwrap_or_default();
    }

    /// The whole table.
    #[must_use]
    pub fn whole_table(&self) -> Vec<u8> {
        let mut octets = vec![0; self.memory.geometry.handles as usize * 16];
        self.table(0, &mut octets);
        octets
    }

    /// Octets of a block.
    pub fn block(&self, offset: u64, to: &mut [u8]) {
        let at = offset.wrapping_sub(self.memory.geometry.pool_base.0);
        self.shared
            .pool
            .block_region()
            .read(at, to)
            .unwrap_or_default();
    }

    /// Rows of the ranges that there are.
    #[must_use]
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let base = self.memory.geometry.table_base_handle.0;
        let ranges = self.directory.ranges();
        ranges.iter().map(|r| (r.base.0 - base, r.count)).collect()
    }

    /// The memory, for the next target.
    #[must_use]
    pub fn into_memory(self) -> Memory {
        self.memory
    }
}

// Ranges are whole granules.
const _: () = assert!(GRANULE.is_multiple_of(64));

/// Where an end is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The startup of the stream.
    Startup,
    /// HELLO is to come.
    HalfOpen,
    /// It waits for the session it replaces.
    Replacing,
    /// It serves.
    Open,
    /// It closes.
    Closing,
}

/// The target's end of a connection.
#[derive(Debug)]
pub struct TEnd {
    /// The stream.
    pub conn: Connection,
    /// The session, once the stream is established.
    pub session: Option<TargetSession>,
    /// Where it is.
    pub stage: Stage,
    /// The session it waits for is gone.
    pub replaced_gone: bool,
    /// Connections that wait for it to be gone.
    pub waiters: Vec<usize>,
    /// Messages that the session has not taken.
    pub waiting: VecDeque<ReceiveSlot>,
    /// It was aborted.
    pub reset: bool,
    /// Auth Mode and challenge sent.
    pub auth: AuthMode,
    /// Challenge sent.
    pub challenge: [u8; 32],
    /// Its session.
    pub id: Option<SessionId>,
    /// HELLO must be here by then.
    pub hello_by: Time,
    /// The peer is gone without a word: noticed then.
    pub keepalive: Option<Time>,
    /// Its worker has other things to do until then.
    pub late_until: Time,
    /// Requests taken and completions posted.
    pub taken: u32,
    /// See `taken`.
    pub completed: u32,
    /// HELLO_ACK is posted.
    pub acknowledged: bool,
}
