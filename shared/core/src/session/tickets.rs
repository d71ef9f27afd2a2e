//! The tickets of a DIRECT_ALLOC session (draft, sections 3.4 and 6.6).
//!
//! The initiator takes tickets by FetchAdd on its Head, which the target sees only when it looks. Each ticket seen is
//! followed until it is bound or abandoned:
//!
//! ```text
//! seen ──BIND──► gone            seen ──Ticket Timeout──► abandoned ──block there──► gone, block back in the ring
//! ```
//!
//! Before the first ticket is abandoned, the STags of partition, ring and counter are revoked: from then on the Head
//! belongs to the target alone.

use super::{Exposer, SessionEnd};
use crate::Shared;
use crate::limits::SETTLE_RETRY_MS;
use crate::plants::{Plant, planted};
use crate::pool::{Home, PartitionId};
use crate::stats::add;
use kbtp_fabric::Time;
use kbtp_wire::{BlockOffset, RingOrder, Stag, Status, Ticket};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// Looks at Head within a Ticket Timeout: a ticket is abandoned at most a quarter late.
const LOOKS_PER_TIMEOUT: u64 = 4;

/// A ticket that the initiator took and did not bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Open {
    ticket: Ticket,
    /// When it was seen.
    since: Time,
    /// Abandoned; its block is not back yet.
    lost: bool,
}

/// The tickets of a partition.
#[derive(Debug)]
pub(super) struct Tickets {
    partition: PartitionId,
    order: RingOrder,
    timeout_ms: u32,
    /// STags of partition, ring and counter, until they are revoked.
    stags: Option<[Stag; 3]>,
    /// The next ticket that was not seen.
    next: Ticket,
    /// At most one for each slot: who has more open took tickets for blocks that cannot be. In the order they were
    /// taken, so that a BIND finds its own without a pass over them.
    open: VecDeque<Open>,
    /// Tickets that were abandoned, in the order they were taken. Once there is one the initiator takes no more, so they
    /// are as few as the open ones.
    abandoned: Vec<Ticket>,
    look_at: Option<Time>,
}

impl Tickets {
    /// Of a new partition; without STags it is only the target that allocates from it.
    pub(super) fn new(
        partition: PartitionId,
        order: RingOrder,
        timeout_ms: u32,
        stags: Option<[Stag; 3]>,
        now: Time,
    ) -> Self {
        let slots = usize::try_from(order.slots()).unwrap_or(usize::MAX);
        let mut tickets = Self {
            partition,
            order,
            timeout_ms,
            stags,
            next: Ticket(0),
            open: VecDeque::with_capacity(slots),
            abandoned: Vec::new(),
            look_at: None,
        };
        tickets.plan(now);
        tickets
    }

    pub(super) fn home(&self) -> Home {
        Home::Partition(self.partition)
    }

    pub(super) fn partition(&self) -> PartitionId {
        self.partition
    }

    /// Tickets taken by the initiator and not bound: they count as usage.
    //= kbtp-3.4-usage-counted
    pub(super) fn open(&self) -> u32 {
        u32::try_from(self.open.len()).unwrap_or(u32::MAX)
    }

    /// When to look again.
    pub(super) fn look_at(&self) -> Option<Time> {
        self.look_at
    }

    /// Looks which tickets the initiator took since.
    ///
    /// # Errors
    /// [`SessionEnd::Tickets`] if it has more open than there are slots.
    //= kbtp-3.4-over-quota-terminate
    pub(super) fn look(&mut self, now: Time, shared: &Shared) -> Result<(), SessionEnd> {
        let head = shared.pool.partition_head(self.partition);
        self.see(now, head)
    }

    fn see(&mut self, now: Time, head: Ticket) -> Result<(), SessionEnd> {
        let slots = self.order.slots();
        let taken = head.distance(self.next).saturating_add(self.open());
        if taken > slots {
            return Err(SessionEnd::Tickets { taken, slots });
        }
        while self.next != head {
            self.open.push_back(Open {
                ticket: self.next,
                since: now,
                lost: false,
            });
            self.next = self.next.next();
        }
        Ok(())
    }

    /// Takes a ticket for the target itself; `None` if no block is free.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub(super) fn take(
        &mut self,
        now: Time,
        shared: &Shared,
    ) -> Result<Option<Ticket>, SessionEnd> {
        let Some(ticket) = shared.pool.take(self.home()) else {
            return Ok(None);
        };
        // Those between are the initiator's.
        self.see(now, ticket)?;
        self.next = ticket.next();
        Ok(Some(ticket))
    }

    /// Whether a BIND of this ticket with this block may go on.
    //= kbtp-6.6-bind-verified
    pub(super) fn check(&self, shared: &Shared, ticket: Ticket, block: BlockOffset) -> Status {
        //= kbtp-3.4-late-bind-rejected
        let abandoned = self
            .abandoned
            .binary_search_by_key(&self.age(ticket), |lost| self.age(*lost));
        if abandoned.is_ok() && !planted(Plant::AbandonedForgotten) {
            return Status::TicketAbandoned;
        }
        //= kbtp-p7-bad-ticket
        let slot = shared.pool.partition_slot(self.partition, ticket);
        let holds = slot.block_for(ticket) == Some(block) || planted(Plant::BindUnverified);
        if self.place(ticket).is_some() && holds {
            Status::Ok
        } else {
            Status::BadTicket
        }
    }

    /// The ticket is bound.
    pub(super) fn bound(&mut self, ticket: Ticket) {
        // Mostly the oldest: then no other moves.
        if let Some(at) = self.place(ticket).filter(|_| !planted(Plant::TicketKept)) {
            self.open.remove(at);
        }
    }

    /// Where an open ticket is.
    fn place(&self, ticket: Ticket) -> Option<usize> {
        let found = self
            .open
            .binary_search_by_key(&self.age(ticket), |open| self.age(open.ticket));
        found.ok()
    }

    /// What tickets are sorted by in the order they were taken, across the turn of their numbers.
    fn age(&self, ticket: Ticket) -> Reverse<u32> {
        Reverse(self.next.distance(ticket))
    }

    /// Abandons tickets over their time, and reclaims blocks of abandoned ones.
    ///
    /// # Errors
    /// [`SessionEnd`] if the initiator took too many tickets, or an STag cannot be revoked: the connection must end
    /// then, before any block is reclaimed.
    //= kbtp-3.4-ticket-timeout
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        shared: &Shared,
        exposer: &mut dyn Exposer,
    ) -> Result<(), SessionEnd> {
        if self.look_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        self.look(now, shared)?;
        let timeout = u64::from(self.timeout_ms);
        let over = |open: &Open| !open.lost && open.since.after_ms(timeout) <= now;
        if self.open.iter().any(over) && !planted(Plant::TimeoutForgotten) {
            if !planted(Plant::ReclaimBeforeRevoke) {
                self.revoke(shared, now, exposer)?;
            }
            for open in self.open.iter_mut().filter(|open| over(open)) {
                open.lost = true;
                self.abandoned.push(open.ticket);
                add(&shared.stats.tickets_abandoned, 1);
            }
        }
        self.reclaim(shared);
        self.plan(now);
        Ok(())
    }

    /// No RDMA Write of the initiator reaches the partition, and no FetchAdd its Head, once this returns.
    //= kbtp-3.4-invalidate-before-reclaim
    //= kbtp-3.4-direct-alloc-disabled
    //= rfc5042-10.2-invalidate-before-use
    fn revoke(
        &mut self,
        shared: &Shared,
        now: Time,
        exposer: &mut dyn Exposer,
    ) -> Result<(), SessionEnd> {
        for stag in self.stags.take().into_iter().flatten() {
            exposer
                .revoke(stag)
                .map_err(|_| SessionEnd::Local("an STag of the partition cannot be revoked"))?;
        }
        // What it took until then.
        self.look(now, shared)
    }

    /// Consumes the slots of lost tickets and returns their blocks with new tickets.
    //= kbtp-3.4-reclaim-new-ticket
    //= kbtp-3.4-usage-released
    fn reclaim(&mut self, shared: &Shared) {
        if self.open.iter().any(|open| open.lost) {
            shared.pool.settle_partition(self.partition);
            // Until a free has filled the slot there is no block to reclaim, and the ticket stays.
            let partition = self.partition;
            self.open
                .retain(|open| !(open.lost && shared.pool.reclaim(partition, open.ticket)));
        }
    }

    fn plan(&mut self, now: Time) {
        self.look_at = if self.open.iter().any(|open| open.lost) {
            Some(now.after_ms(SETTLE_RETRY_MS))
        } else if self.stags.is_some() || !self.open.is_empty() {
            let ns = u64::from(self.timeout_ms).saturating_mul(1_000_000) / LOOKS_PER_TIMEOUT;
            Some(now.after_ns(ns.max(1)))
        } else {
            None
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets() -> Tickets {
        let order = RingOrder::new(6).unwrap();
        Tickets::new(PartitionId(0), order, 1000, None, Time(0))
    }

    #[test]
    fn open_tickets_are_found_whichever_were_bound_before_and_across_the_turn() {
        for first in [0, u32::MAX - 20] {
            let mut tickets = tickets();
            tickets.next = Ticket(first);
            tickets
                .see(Time(1), Ticket(first.wrapping_add(40)))
                .unwrap();
            let of = |n: u32| Ticket(first.wrapping_add(n));
            let mut left: Vec<u32> = (0..40).collect();
            while !left.is_empty() {
                let bound = left.swap_remove(left.len() / 2);
                tickets.bound(of(bound));
                for n in 0..40 {
                    let open = tickets.place(of(n)).is_some();
                    assert_eq!(open, left.contains(&n), "{n} of {first}");
                }
                tickets.bound(of(bound));
                assert_eq!(tickets.open.len(), left.len());
            }
            for other in [40, 41, u32::MAX] {
                assert_eq!(tickets.place(of(other)), None);
            }
        }
    }

    /// A ticket is abandoned at most a quarter of its time late; who has none to watch is not woken.
    //= test kbtp-3.4-ticket-timeout
    #[test]
    fn it_looks_four_times_within_a_timeout() {
        let order = RingOrder::new(6).unwrap();
        let new = |stags| Tickets::new(PartitionId(2), order, 1000, stags, Time(5));
        assert_eq!(new(None).look_at(), None);
        let stags = [1, 2, 3].map(Stag);
        let mut tickets = new(Some(stags));
        assert_eq!(tickets.look_at(), Some(Time(5).after_ms(250)));
        tickets.stags = None;
        tickets.plan(Time(6));
        assert_eq!(tickets.look_at(), None);
        tickets.see(Time(7), Ticket(1)).unwrap();
        tickets.plan(Time(7));
        assert_eq!(tickets.look_at(), Some(Time(7).after_ms(250)));
        tickets.open[0].lost = true;
        tickets.plan(Time(8));
        assert_eq!(tickets.look_at(), Some(Time(8).after_ms(SETTLE_RETRY_MS)));
        assert_eq!(tickets.partition(), PartitionId(2));
        assert_eq!(tickets.home(), Home::Partition(PartitionId(2)));
    }

    //= test kbtp-3.4-over-quota-terminate
    #[test]
    fn no_more_tickets_are_open_than_there_are_slots() {
        let mut tickets = tickets();
        tickets.see(Time(1), Ticket(64)).unwrap();
        assert_eq!(tickets.open(), 64);
        let end = tickets.see(Time(1), Ticket(65)).unwrap_err();
        assert!(
            matches!(
                end,
                SessionEnd::Tickets {
                    taken: 65,
                    slots: 64
                }
            ),
            "{end:?}"
        );
        assert_eq!(tickets.open(), 64);
        tickets.bound(Ticket(3));
        tickets.see(Time(1), Ticket(65)).unwrap();
        assert_eq!(tickets.open(), 64);
    }
}
