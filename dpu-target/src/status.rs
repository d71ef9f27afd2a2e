//! What `/status` says: the target as a whole, for people and for `kbtp stat`. The names of the fields are a promise.

use crate::metrics::{BuildInfo, PoolGauges};
use kbtp_wire::kbtp::InitiatorId;
use serde::Serialize;

/// The target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Status {
    /// Version and way it runs.
    pub build: BuildInfo,
    /// `running`, `draining` or `stopped`.
    pub phase: &'static str,
    /// Nanoseconds since it started.
    pub uptime_ns: u64,
    /// Target Instance ID, as a UUID is written (P6).
    pub instance: String,
    /// Where initiators connect.
    pub listen: Vec<String>,
    /// `in-process`, or the agent's socket.
    pub agent: String,
    /// What the pool's memory is made of.
    pub pages: PagesStatus,
    /// Worker threads.
    pub workers: usize,
    /// Size of the pool and what is in it.
    pub pool: PoolGauges,
    /// Sessions now, in no order.
    pub sessions: Vec<SessionStatus>,
    /// Workers that did not answer in time, whose sessions are missing above.
    pub workers_silent: usize,
    /// Ranges kept for pairs without a session.
    pub leases: Vec<LeaseStatus>,
    /// What chains have done; none without a device.
    pub chains: Option<ChainStatus>,
}

/// What the chains of a device have done since the target started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ChainStatus {
    /// Sessions that they serve now.
    pub sessions: u64,
    /// Requests that they served.
    pub served: u64,
    /// Requests that software served instead, by reason.
    pub punts: Vec<(&'static str, u64)>,
    /// Of those, the ones that ended their loopback queue.
    pub traps: u64,
    /// Slots armed.
    pub armed: u64,
    /// Times software had to do something before a request could be answered.
    pub wakeups: u64,
    /// What requests that came to nothing had taken from the ring, given back.
    pub recovered: u64,
    /// Requests whose block did not come in time.
    pub given_up: u64,
    /// Sessions ended because a chain made no progress.
    pub stalled: u64,
}

/// What the pool's memory is made of, as it was had and not as it was wished.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PagesStatus {
    /// Octets of a page.
    pub page_size: u64,
    /// They are hugepages from the kernel's reserve.
    pub huge: bool,
    /// Octets locked in memory.
    pub locked: u64,
    /// The NUMA node it was asked to lie on.
    pub numa_node: Option<u32>,
    /// What was wished and not had, in words; empty if nothing.
    pub shortfall: String,
}

impl PagesStatus {
    pub(crate) fn of(report: &kbtp_control::PageReport) -> Self {
        Self {
            page_size: report.page_size,
            huge: report.huge,
            locked: report.locked,
            numa_node: report.numa_node,
            shortfall: report.shortfall.clone(),
        }
    }
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SessionStatus {
    /// The tenant's name; empty for the unnamed one.
    pub tenant: String,
    /// Initiator ID, as a UUID is written.
    pub initiator: String,
    /// Address of the other end.
    pub peer: String,
    /// The worker that serves it, or what its chains do not.
    pub worker: usize,
    /// What executes its requests: `software`, or `chain` with software for what chains do not.
    pub engine: &'static str,
    /// Its quota, in blocks.
    pub quota: u64,
    /// Blocks it has bound, and tickets it has taken and not bound.
    pub usage: u64,
    /// First handle of its range.
    pub handle_base: u64,
    /// Handles of its range.
    pub handle_count: u64,
    /// Capabilities granted.
    pub capabilities: Vec<&'static str>,
    /// Requests received and not answered.
    pub in_flight: u64,
    /// Requests answered.
    pub requests: u64,
    /// Nanoseconds since it began.
    pub age_ns: u64,
    /// STags of its stream that the target has registered; none if the transport does not tell.
    pub stags: Option<u64>,
}

/// A range that waits for its pair to come back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LeaseStatus {
    /// The tenant's name; empty for the unnamed one.
    pub tenant: String,
    /// Initiator ID, as a UUID is written.
    pub initiator: String,
    /// Blocks bound in the range.
    pub bound: u64,
    /// Nanoseconds until the range is freed; none: never.
    pub left_ns: Option<u64>,
}

/// What `/audit` says: where each block is, by a pass over rings and table. What moves meanwhile shows up as a fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct AuditStatus {
    /// Blocks of the pool, F.
    pub blocks: u32,
    /// In a slot of a ring, free.
    pub in_rings: u32,
    /// In a slot of a ring whose ticket is taken.
    pub awaited: u32,
    /// Freed, waiting for a slot.
    pub deferred: u32,
    /// Bound to a handle.
    pub bound: u32,
    /// Held by requests in flight.
    pub elsewhere: u32,
    /// Blocks found in two places, or outside the pool.
    pub faults: Vec<String>,
}

impl From<kbtp_core::Audit> for AuditStatus {
    fn from(audit: kbtp_core::Audit) -> Self {
        Self {
            blocks: audit.blocks,
            in_rings: audit.in_rings,
            awaited: audit.awaited,
            deferred: audit.deferred,
            bound: audit.bound,
            elsewhere: audit.elsewhere,
            faults: audit.faults,
        }
    }
}

/// The one form in which an ID is written, here, in logs, in maps and on the command line: that of a UUID.
pub(crate) fn uuid(id: &[u8; 16]) -> String {
    InitiatorId(*id).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_uuids() {
        let id = [
            0, 0x11, 0x22, 0x33, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff,
        ];
        assert_eq!(uuid(&id), "00112233-0405-0607-0809-0a0b0c0d0eff");
    }
}
