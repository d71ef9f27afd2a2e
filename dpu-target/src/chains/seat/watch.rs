//! Whether a session's request moves on, and what becomes of one that does not.
//!
//! | its chain waits for | after | then |
//! |---|---|---|
//! | a block: its ticket is not filled | as long as the core's ALLOC_STORE waits | the loopback queue is stopped, the ticket given back, and the core answers |
//! | the device alone | [`CHAIN_STALL_MS`](limits::CHAIN_STALL_MS) | the session ends |
//! | its initiator, or the core | | who looks after streams, or the core, says when |
//!
//! CQEs do not tell a WAIT that lets the client's queue go on (WT8, WT9) from what that queue then waits for: both count as
//! waiting for the initiator.

use super::{Seat, Step};
use crate::limits;
use kbtp_chain::element::Cq;
use kbtp_core::limits::BLOCK_WAIT_MS;
use kbtp_fabric::Time;

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitsFor {
    Device,
    Block,
    Others,
}

/// Where the oldest request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) slot: u64,
    /// CQEs of its loopback queue.
    done: u8,
    pub(super) waits: WaitsFor,
}

/// Where it was when somebody looked, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Watched {
    pub(super) place: Place,
    pub(super) since: Time,
}

/// The CQE before a slot's WAIT for its block.
pub(super) const AT_BLOCK: u8 = 6;
/// And the one before it waits for the client's queue pair.
const AT_DATA: u8 = 7;

impl Watched {
    fn due(&self) -> Option<Time> {
        let ms = match self.place.waits {
            //= kbtp-p7-no-space
            WaitsFor::Block => BLOCK_WAIT_MS,
            WaitsFor::Device => limits::CHAIN_STALL_MS,
            WaitsFor::Others => return None,
        };
        Some(self.since.after_ms(ms))
    }
}

impl Seat {
    /// Looks where the oldest request is. Returns when it will have been there too long. Cost: reads the slot's CQEs.
    pub(in crate::chains) fn watch(&mut self, now: Time) -> Option<Time> {
        let place = self.place();
        let before = self.watched.filter(|before| Some(before.place) == place);
        self.watched = before.or_else(|| place.map(|place| Watched { place, since: now }));
        self.watched?.due()
    }

    /// Where the oldest request is and was for too long.
    pub(super) fn overdue(&mut self, now: Time) -> Option<Watched> {
        let watched = self.watched?;
        watched.due().filter(|due| *due <= now)?;
        self.watched = None;
        (self.place() == Some(watched.place)).then_some(watched)
    }

    fn place(&mut self) -> Option<Place> {
        let slot = self.next;
        if self.in_flight() == 0 || self.session.client_failed() {
            return None;
        }
        let standing = self.session.standing(slot);
        let all = self.session.template().cqes(Cq::Worker);
        let software = self.rang.is_some() || self.offered.is_some();
        let waits = match (self.job, standing.done) {
            (Some(job), _) if matches!(job.step, Step::Restarts(_)) => WaitsFor::Device,
            (Some(_), _) => WaitsFor::Others,
            _ if software => WaitsFor::Others,
            (None, done) if usize::from(done) == all => WaitsFor::Others,
            _ if standing.failed.is_some() || self.given_up.is_some() => WaitsFor::Device,
            (None, AT_BLOCK) if self.session.allocation(slot).is_some() => WaitsFor::Block,
            (None, AT_DATA) if self.session.fetched(slot).is_none() => WaitsFor::Others,
            _ => WaitsFor::Device,
        };
        let done = standing.done;
        Some(Place { slot, done, waits })
    }
}
