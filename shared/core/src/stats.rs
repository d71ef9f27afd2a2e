//! Counters of a target, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Opcodes counted: 0 to 8, all others as 0.
const OPCODES: usize = 9;
/// Statuses of P7.
const STATUSES: usize = 16;

/// Plain counters; each is exact, several read together need not be of one moment. Aligned so that the counters of two
/// workers never share a cache line (common processors fetch lines in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Stats {
    by_status: [[AtomicU64; STATUSES]; OPCODES],
    /// Octets of blocks sent to initiators.
    pub loaded_octets: AtomicU64,
    /// Octets stored into blocks, inline or by RDMA Read.
    pub stored_octets: AtomicU64,
    /// Sessions granted.
    pub sessions_granted: AtomicU64,
    /// Sessions refused, whatever the status.
    pub sessions_refused: AtomicU64,
    /// Sessions ended because the initiator broke a rule.
    pub sessions_broken: AtomicU64,
    /// DIRECT_ALLOC wanted and not granted, for want of a contiguous partition (P8).
    pub partitions_refused: AtomicU64,
    /// Tickets abandoned (draft, section 3.4).
    pub tickets_abandoned: AtomicU64,
    /// Allocations that had to wait for a slot or a block.
    pub allocations_parked: AtomicU64,
    /// Frees whose slot write was deferred (draft, section 3.3).
    pub frees_deferred: AtomicU64,
    /// Blocks freed because their range was released, not by FREE.
    pub blocks_released: AtomicU64,
    /// Ranges released because their lease ended.
    pub leases_expired: AtomicU64,
}

/// A copy of the counters by opcode and status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatsSnapshot {
    /// `by_status[opcode][status]`; opcode 0 counts the reserved ones.
    pub by_status: [[u64; STATUSES]; OPCODES],
}

impl Stats {
    /// Counts a request of `opcode` (as on the wire) that ended with `status` (as on the wire).
    pub fn count(&self, opcode: u8, status: u16) {
        let row = self
            .by_status
            .get(usize::from(opcode))
            .or_else(|| self.by_status.first());
        if let Some(counter) = row.and_then(|row| row.get(usize::from(status))) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests of `opcode` that ended with `status`.
    #[must_use]
    pub fn get(&self, opcode: u8, status: u16) -> u64 {
        let row = self.by_status.get(usize::from(opcode));
        row.and_then(|row| row.get(usize::from(status)))
            .map_or(0, |c| c.load(Ordering::Relaxed))
    }

    /// All counters by opcode and status.
    #[must_use]
    pub fn snapshot(&self) -> StatsSnapshot {
        let by_status = self
            .by_status
            .each_ref()
            .map(|row| row.each_ref().map(|c| c.load(Ordering::Relaxed)));
        StatsSnapshot { by_status }
    }
}

/// Adds to a counter; the order among counters is nobody's business.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
