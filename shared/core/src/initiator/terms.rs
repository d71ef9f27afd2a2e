//! The terms of a session: what HELLO_ACK grants, once it is known to be possible.
//! Source: KBTP profile, P6; draft, sections 3 and 4.

use super::bindings::Bindings;
use super::limits::MAX_REQUESTS;
use super::slot::Slot;
use super::types::{NEVER, PeerError, SessionError, Settings};
use super::{Initiator, State, limits};
use kbtp_fabric::Atomics;
use kbtp_wire::{
    AtomicForm, ByteLen, Grant, HelloAck, RequestId, SessionCapabilities, Stag, TableEntry,
};
use std::collections::VecDeque;

/// What an open session may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The grant, as the target gave it. Its numbers were checked against each other.
    pub grant: Grant,
    /// Requests in flight: the Request Credits granted, or this party's own bound if that is less.
    pub requests: u16,
    /// Longest inline data: the least of what was granted and asked for.
    pub max_inline: ByteLen,
    /// Direct loads can be submitted.
    pub direct_load: bool,
    /// Direct allocations can be submitted, as long as no ticket is lost.
    pub direct_alloc: bool,
}

impl Initiator {
    /// Takes the answer to HELLO.
    pub(super) fn open(
        &mut self,
        message: &[u8],
        invalidated: Option<Stag>,
    ) -> Result<(), SessionError> {
        let ack = HelloAck::decode(message).map_err(PeerError::Malformed)?;
        if let Some(stag) = invalidated {
            return Err(PeerError::Invalidated { stag }.into());
        }
        let (HelloAck::Granted { request_id, .. } | HelloAck::Refused { request_id, .. }) = ack;
        // An answer before the question is posted answers something else.
        if request_id != Self::HELLO_ID || self.state != State::Waiting {
            return Err(PeerError::NotOutstanding { id: request_id }.into());
        }
        let grant = match ack {
            HelloAck::Refused { status, .. } => return Err(SessionError::Refused { status }),
            HelloAck::Granted { grant, .. } => grant,
        };
        let terms = check(&grant, &self.settings, self.atomics)?;
        self.settle(terms);
        Ok(())
    }

    /// Makes room for all that the session may have in flight.
    fn settle(&mut self, terms: Terms) {
        let direct = if terms.direct_load {
            self.settings.max_direct_loads
        } else {
            0
        };
        let count = terms.requests.saturating_add(direct);
        let capacity = usize::from(count);
        self.slots = vec![Slot::IDLE; capacity];
        self.idle = (0..count).rev().collect();
        self.steps = VecDeque::with_capacity(capacity.saturating_mul(limits::STEPS_PER_SLOT));
        self.finished = VecDeque::with_capacity(capacity);
        self.released = VecDeque::with_capacity(capacity);
        self.may_allocate = terms.direct_alloc;
        self.bindings = Bindings::of(terms.grant.handle_base, terms.grant.handle_count);
        self.terms = Some(terms);
        self.state = State::Open;
        self.next_due = NEVER;
    }

    /// The Request ID of HELLO.
    pub(super) const HELLO_ID: RequestId = RequestId(super::HELLO_SLOT as u64);
}

/// The terms that `grant` makes, if it can be.
//= kbtp-p6-grant-plausible
fn check(grant: &Grant, settings: &Settings, atomics: Atomics) -> Result<Terms, PeerError> {
    let wrong = |what, value| Err(PeerError::Geometry { what, value });
    //= kbtp-p12-both-sides
    let unasked = grant.capabilities.without(settings.capabilities);
    if unasked != SessionCapabilities::NONE {
        return wrong("Capabilities", u64::from(grant.capabilities.0));
    }
    if grant.block_size.0 == 0 {
        return wrong("Block Size", 0);
    }
    if grant.pool_blocks == 0 {
        return wrong("Pool Blocks", 0);
    }
    if grant.quota == 0 || grant.quota > grant.pool_blocks {
        return wrong("Allocation Quota", u64::from(grant.quota));
    }
    if grant.credits == 0 {
        return wrong("Request Credits", 0);
    }
    check_handles(grant)?;
    let direct_load = grant
        .capabilities
        .contains(SessionCapabilities::DIRECT_LOAD);
    if direct_load {
        check_table(grant)?;
    }
    let direct_alloc = grant
        .capabilities
        .contains(SessionCapabilities::DIRECT_ALLOC);
    if direct_alloc {
        check_partition(grant)?;
    }
    let form_fits = matches!(
        (grant.atomic_form, atomics),
        (AtomicForm::Masked, Atomics::Masked)
            | (AtomicForm::Unmasked, Atomics::Masked | Atomics::Unmasked)
    );
    let wanted = if settings.request_credits == 0 {
        MAX_REQUESTS
    } else {
        settings.request_credits.min(MAX_REQUESTS)
    };
    Ok(Terms {
        grant: *grant,
        requests: grant.credits.min(wanted),
        max_inline: grant.max_inline.min(settings.max_inline),
        direct_load,
        direct_alloc: direct_alloc && form_fits,
    })
}

/// The handle range lies within the table and within 64 bits.
fn check_handles(grant: &Grant) -> Result<(), PeerError> {
    let wrong = |what, value| Err(PeerError::Geometry { what, value });
    if grant.handle_count == 0 {
        return wrong("Handle Count", 0);
    }
    let (Some(end), Some(table_end)) = (
        grant.handle_base.0.checked_add(grant.handle_count),
        grant.table_base.0.checked_add(grant.table_count),
    ) else {
        return wrong("Handle Base + Handle Count", grant.handle_base.0);
    };
    // Without DIRECT_LOAD the table is the target's own affair, and it may leave it out.
    if grant.table_count > 0 && (grant.handle_base < grant.table_base || end > table_end) {
        return wrong("Handle Base", grant.handle_base.0);
    }
    Ok(())
}

/// Every entry of the table has a Tagged Offset.
fn check_table(grant: &Grant) -> Result<(), PeerError> {
    let entry_len = TableEntry::LEN as u64;
    let end = grant
        .table_count
        .checked_mul(entry_len)
        .and_then(|len| grant.table_offset.0.checked_add(len));
    if grant.table_count == 0 || end.is_none() {
        return Err(PeerError::Geometry {
            what: "Table Handle Count",
            value: grant.table_count,
        });
    }
    Ok(())
}

/// Partition, ring and Head fit each other and 64 bits (draft, sections 3.3 and 3.4).
fn check_partition(grant: &Grant) -> Result<(), PeerError> {
    let wrong = |what, value| Err(PeerError::Geometry { what, value });
    let blocks = u64::from(grant.quota);
    // Both are 32-bit numbers: the product fits.
    let least = blocks.saturating_mul(grant.block_size.get());
    if grant.partition_len < least
        || grant
            .partition_offset
            .0
            .checked_add(grant.partition_len)
            .is_none()
    {
        return wrong("Partition Length", grant.partition_len);
    }
    if u64::from(grant.ring_order.slots()) < blocks {
        return wrong("Ring Order", u64::from(grant.ring_order.get()));
    }
    if grant
        .ring_offset
        .0
        .checked_add(grant.ring_order.ring_len())
        .is_none()
    {
        return wrong("Ring Offset", grant.ring_offset.0);
    }
    if !grant.head_offset.0.is_multiple_of(8) || grant.head_offset.0.checked_add(8).is_none() {
        return wrong("Head Offset", grant.head_offset.0);
    }
    if grant.ticket_timeout_ms == 0 {
        return wrong("Ticket Timeout", 0);
    }
    Ok(())
}
