//! What a run is like, drawn from its seed: each run leaves most things out and does some in excess, so that runs differ
//! more than one average run ever would.

use crate::rng::{Rng, mix};
use kbtp_iwarp::CopyFirst;

/// How octets are cut on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cuts {
    /// As they are sent.
    Whole,
    /// Into pieces of at most so many octets.
    Segments(usize),
    /// Anywhere.
    Random,
}

/// How often each fault comes, in ten thousandths of steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A direction of a connection carries nothing for a while.
    pub stall: u64,
    /// A connection is reset.
    pub reset: u64,
    /// An initiator goes without a word, and the target does not notice.
    pub half_open: u64,
    /// The target stops between two steps and starts again over the same memory.
    pub target_crash: u64,
    /// The memory is lost too.
    pub agent_crash: u64,
    /// An initiator stops and starts again.
    pub client_crash: u64,
    /// An initiator takes nothing for a while.
    pub slow_reader: u64,
    /// An octet is damaged on its way.
    pub corrupt: u64,
    /// The clock jumps to, or just before or behind, the next limit.
    pub jump: u64,
    /// The target drains, and is started again.
    pub drain: u64,
    /// An initiator opens a second session of its pair.
    pub replace: u64,
    /// The target's worker leaves a connection alone for a while, its timers too.
    pub late_worker: u64,
    /// The target is not woken for what has come.
    pub lost_wake: u64,
    /// An FPDU that no honest stream sends.
    pub forge: u64,
}

/// All options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed they came from.
    pub seed: u64,
    /// Steps: operations and faults.
    pub steps: u64,
    /// Initiators.
    pub clients: usize,
    /// Blocks F.
    pub blocks: u32,
    /// Octets of a block.
    pub block_size: u32,
    /// Handles that each initiator uses.
    pub hot_rows: u64,
    /// First handle of the table.
    pub table_base: u64,
    /// First ticket of the shared ring.
    pub first_ticket: u32,
    /// Generation that entries start with; 0: never bound.
    pub first_generation: u16,
    /// Quota wanted.
    pub quota: u32,
    /// Most quota the target grants; 0: any.
    pub max_quota: u32,
    /// Request Credits wanted.
    pub credits: u16,
    /// Max Inline wanted.
    pub max_inline: u32,
    /// Lease.
    pub lease_ms: u32,
    /// Ticket Timeout.
    pub ticket_timeout_ms: u32,
    /// DIRECT_LOAD is allowed and wanted.
    pub direct_load: bool,
    /// DIRECT_ALLOC is allowed and wanted.
    pub direct_alloc: bool,
    /// Tenants; 0: one without a name.
    pub tenants: usize,
    /// All tenants share one trust domain.
    pub shared_tenants: bool,
    /// HELLO must be authenticated.
    pub auth: bool,
    /// The target requires CRCs.
    pub target_crc: bool,
    /// Initiators require CRCs.
    pub client_crc: bool,
    /// Markers wanted by the target.
    pub target_markers: bool,
    /// Markers wanted by initiators.
    pub client_markers: bool,
    /// Longest ULPDU.
    pub max_ulpdu: u16,
    /// Copy-first mode of the target.
    pub copy_first: CopyFirst,
    /// Octets read ahead.
    pub staging: u32,
    /// RDMA Reads outstanding each way.
    pub read_depth: u16,
    /// Least and most latency, in nanoseconds.
    pub latency_ns: (u64, u64),
    /// Octets in flight in one direction.
    pub window: usize,
    /// Cuts.
    pub cuts: Cuts,
    /// Operations with a deadline, in thousandths.
    pub deadlines: u64,
    /// Messages that no honest initiator sends, in thousandths of operations.
    pub rogue: u64,
    /// Nanoseconds between steps, on average.
    pub gap_ns: u64,
    /// Faults.
    pub faults: Faults,
    /// Weights: load, direct load, alloc-store, direct allocation, store, free.
    pub weights: [u64; 6],
    /// Operations that make sense, in thousandths; the others are drawn blindly.
    pub sensible: u64,
    /// Stores that seal, in thousandths.
    pub seal: u64,
    /// Entries change as often as they can.
    pub churn: bool,
    /// First Message Sequence Number of streams.
    pub first_msn: u32,
    /// Writes to table and rings in the middle of which a peer reads them, in thousandths.
    pub tear: u64,
}

fn faults(rng: &mut Rng) -> Faults {
    let mut rate = |often: u64| {
        if rng.per_mille(400) {
            rng.within(1, often)
        } else {
            0
        }
    };
    Faults {
        stall: rate(150),
        reset: rate(60),
        half_open: rate(30),
        target_crash: rate(12),
        agent_crash: rate(6),
        client_crash: rate(30),
        slow_reader: rate(100),
        corrupt: rate(40),
        jump: rate(60),
        drain: rate(10),
        replace: rate(30),
        late_worker: rate(60),
        lost_wake: rate(40),
        forge: rate(60),
    }
}

impl Options {
    /// The options of a seed.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "a table of options")]
    pub fn draw(seed: u64, steps: u64) -> Self {
        let rng = &mut Rng::new(mix(seed, 0x0b71_0a5e));
        let clients = rng.within(2, 8) as usize;
        let blocks = rng.pick(&[4, 5, 7, 8, 13, 16, 24, 32, 33, 64]);
        let share = (blocks / clients as u32).max(1);
        let direct_load = rng.per_mille(500);
        let tenants = if rng.per_mille(300) { 2 } else { 0 };
        let faulty = !rng.per_mille(150);
        let mut weights = [40, 10, 20, 10, 15, 14];
        for weight in &mut weights {
            *weight = match rng.below(6) {
                0 => 0,
                1 => *weight * 4,
                _ => *weight,
            };
        }
        // Something must be bound, and freed.
        weights[2] = weights[2].max(10);
        weights[5] = weights[5].max(5);
        // Entries that change as often as they can, and readers that see no end of it.
        let churn = direct_load && rng.per_mille(150);
        if churn {
            weights = [5, 60, 40, weights[3], 0, 40];
        }
        // Partitions that are small, with tickets that are taken and left: frees must wait for their slots.
        let direct_alloc = rng.per_mille(500);
        let pressure = direct_alloc && rng.per_mille(250);
        if pressure {
            weights = [10, weights[1].min(10), 30, 20, 5, 40];
        }
        let low = if churn {
            20_000
        } else {
            rng.pick(&[500, 2_000, 20_000])
        };
        Self {
            seed,
            steps,
            clients,
            blocks,
            block_size: rng.pick(&[4096, 4096, 4096, 8192, 16384]),
            hot_rows: if churn {
                rng.within(1, 2)
            } else {
                rng.within(1, 16)
            },
            table_base: rng.pick(&[0, 1, 1000, u64::MAX / 2]),
            first_ticket: match rng.below(3) {
                0 => 0,
                1 => u32::MAX - rng.below(40) as u32,
                _ => rng.next() as u32,
            },
            first_generation: rng.pick(&[0, 0, 65_520, 65_534, 65_535, 7]),
            quota: if pressure {
                rng.within(2, 4)
            } else {
                u64::from(rng.pick(&[0, 1, share, share, share + 1, share * 2, blocks]))
            } as u32,
            max_quota: rng.pick(&[0, 0, share, 2]),
            credits: if churn {
                16
            } else {
                rng.pick(&[1, 2, 3, 4, 8, 16])
            },
            max_inline: if churn {
                512
            } else {
                rng.pick(&[0, 64, 512, 4096])
            },
            lease_ms: rng.pick(&[0, 1, 5, 50, 1000, u32::MAX]),
            ticket_timeout_ms: if pressure {
                100
            } else {
                rng.pick(&[1, 2, 10, 100])
            },
            direct_load,
            direct_alloc,
            tenants,
            shared_tenants: rng.per_mille(500),
            auth: tenants > 0 && rng.per_mille(600),
            target_crc: rng.per_mille(800),
            client_crc: rng.per_mille(500),
            target_markers: rng.per_mille(150),
            client_markers: rng.per_mille(150),
            max_ulpdu: rng.pick(&[128, 512, 1454, 1454, 8192, 64_768]),
            copy_first: if direct_load || rng.per_mille(700) {
                CopyFirst::Writable
            } else {
                CopyFirst::Everything
            },
            staging: rng.pick(&[512, 4096, 16_384]),
            read_depth: rng.pick(&[1, 2, 4, 16]),
            latency_ns: (low, low * rng.pick(&[1, 2, 10])),
            window: rng.pick(&[2_000, 16_000, 65_536, 262_144]),
            cuts: match rng.below(4) {
                0 => Cuts::Whole,
                1 => Cuts::Segments(rng.pick(&[536, 1460])),
                _ => Cuts::Random,
            },
            deadlines: rng.pick(&[0, 0, 20, 200]),
            rogue: if pressure {
                rng.pick(&[10, 50])
            } else {
                rng.pick(&[0, 0, 10, 50])
            },
            gap_ns: if churn {
                500
            } else {
                rng.pick(&[500, 5_000, 50_000])
            },
            faults: if faulty {
                faults(rng)
            } else {
                Faults::default()
            },
            weights,
            sensible: rng.pick(&[500, 900, 980]),
            seal: if churn {
                1000
            } else {
                rng.pick(&[200, 500, 900])
            },
            churn,
            first_msn: match rng.below(3) {
                0 => u32::MAX - rng.below(60) as u32,
                _ => 1,
            },
            tear: rng.pick(&[0, 100, 500, 1000]),
        }
    }

    /// Rows of the table: a granule for each pair there may be while leases of old ones last.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        GRANULE * (self.clients as u64 * 2 + 2)
    }

    /// Whether CRCs are on: one party is enough.
    #[must_use]
    pub const fn crc(&self) -> bool {
        self.target_crc || self.client_crc
    }
}

/// Handles of a granule in a table as small as these.
pub const GRANULE: u64 = kbtp_core::limits::GRANULE_HANDLES_MIN;
