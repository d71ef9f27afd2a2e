//! Serving requests: intake, order, and what follows the end of posted work (draft, sections 5 and 6; profile, P7).

use super::hello::longest_message;
use super::outbox::{Outbox, Outgoing, Posted};
use super::requests::put_back;
use super::slots::{Op, Progress, Slot, SlotIndex, Slots, StashIndex, Stashes};
use super::tickets::Tickets;
use super::{Exposer, Grant, SessionEnd, SessionUsage};
use crate::Shared;
use crate::directory::Allotment;
use crate::limits::{OPS_PER_CREDIT, PARK_RETRY_NS};
use crate::plants::{Plant, planted};
use crate::pool::{Domain, Home};
use crate::stats::add;
use kbtp_fabric::{RemoteBuffer, Time, WorkOutcome};
use kbtp_wire::{
    BlockOffset, ByteLen, Completion, CompletionRecord, Generation, Handle, Header, Opcode,
    Operation, Request, RequestError, SessionCapabilities, Source, Stag, Status,
};
use std::collections::VecDeque;

/// A session that was granted.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) grant: Grant,
    pub(super) domain: Domain,
    pub(super) first_row: u64,
    pub(super) rows: u64,
    pub(super) pool_stag: Stag,
    /// Source of blocks that do not change.
    pub(super) sealed_stag: Stag,
    /// The stream lets this party read from its peer.
    can_read: bool,
    /// Handles of the range that are bound.
    pub(super) bound: u32,
    /// Allocations that count as usage and have bound nothing yet.
    pub(super) allocating: u32,
    /// Requests whose completion is not posted.
    outstanding: u16,
    longest: usize,
    pub(super) slots: Slots,
    pub(super) stashes: Stashes,
    /// Slots in [`Progress::Parked`], in the order they came.
    pub(super) parked: VecDeque<SlotIndex>,
    /// How many of those have a ticket.
    pub(super) parked_with_ticket: usize,
    parked_retry_at: Time,
    pub(super) tickets: Option<Tickets>,
}

/// What came of starting a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Answer it; it needs no slot.
    Answer(Completion),
    /// It goes on in a slot.
    Go(Progress),
    /// It goes on in a slot, with its inline data.
    Park(Progress),
}

/// What a request needs while it is worked on.
pub(super) struct Context<'a> {
    pub(super) now: Time,
    pub(super) shared: &'a Shared,
    pub(super) outbox: &'a mut Outbox,
}

impl Open {
    pub(super) fn new(
        grant: Grant,
        allotment: &Allotment,
        tickets: Option<Tickets>,
        pool_stag: Stag,
        sealed_stag: Stag,
        can_read: bool,
    ) -> Self {
        let per_credit = u16::try_from(OPS_PER_CREDIT).unwrap_or(1);
        let slots = grant.credits.saturating_mul(per_credit);
        let inline = usize::try_from(grant.max_inline).unwrap_or(usize::MAX);
        let credits = usize::from(grant.credits);
        Self {
            domain: allotment.domain,
            first_row: allotment.first_row,
            rows: allotment.rows,
            pool_stag,
            sealed_stag,
            can_read,
            bound: allotment.bound,
            allocating: 0,
            outstanding: 0,
            longest: longest_message(grant.max_inline),
            slots: Slots::new(slots),
            stashes: Stashes::new(grant.credits, inline),
            parked: VecDeque::with_capacity(credits),
            parked_with_ticket: 0,
            parked_retry_at: Time(0),
            tickets,
            grant,
        }
    }

    /// Most entries its outbox ever has.
    pub(super) fn outbox_entries(&self) -> usize {
        let credits = usize::from(self.grant.credits);
        credits
            .saturating_mul(OPS_PER_CREDIT.saturating_mul(2).saturating_add(1))
            .saturating_add(1)
    }

    pub(super) fn ready(&self) -> bool {
        self.slots.has_free()
    }

    /// Blocks in nobody's table or ring: held, or pinned.
    pub(super) fn held(&self) -> u32 {
        let held = |slot: &&Slot| matches!(slot.progress, Progress::ReadingNew { .. });
        u32::try_from(self.slots.iter().filter(held).count()).unwrap_or(u32::MAX)
    }

    /// Handles bound, tickets taken and not bound, and allocations under way.
    //= kbtp-3.4-usage-counted
    pub(super) fn usage(&self) -> u32 {
        self.parts_of_usage().total()
    }

    pub(super) fn parts_of_usage(&self) -> SessionUsage {
        SessionUsage {
            bound: self.bound,
            tickets: self.tickets.as_ref().map_or(0, Tickets::open),
            allocating: self.allocating,
        }
    }

    /// The ring its allocations come from.
    //= kbtp-3.4-shared-ring
    pub(super) fn home(&self) -> Home {
        self.tickets.as_ref().map_or(Home::Shared, Tickets::home)
    }

    /// A message of an open session.
    pub(super) fn take_message(
        &mut self,
        cx: &mut Context<'_>,
        message: &[u8],
    ) -> Result<(), SessionEnd> {
        //= kbtp-p7-too-long-ends-session
        if message.len() > self.longest {
            return Err(SessionEnd::TooLong {
                len: message.len(),
                limit: self.longest,
            });
        }
        //= kbtp-p7-over-credits-ends-session
        if self.outstanding >= self.grant.credits && !planted(Plant::CreditsIgnored) {
            return Err(SessionEnd::Credits(self.grant.credits));
        }
        let request = match Request::decode(message) {
            Ok(request) => request,
            //= kbtp-p7-too-short-ends-session
            Err(RequestError::TooShort { len }) => return Err(SessionEnd::TooShort(len)),
            Err(RequestError::Refused(refusal)) => {
                if refusal.header.opcode == Opcode::Hello.to_wire() {
                    return Err(SessionEnd::HelloOrder);
                }
                self.outstanding = self.outstanding.saturating_add(1);
                self.answer_refusal(cx, &refusal.header, refusal.status);
                return Ok(());
            }
            Err(_) => return Err(SessionEnd::HelloOrder),
        };
        self.outstanding = self.outstanding.saturating_add(1);
        let (mut op, inline) = Op::of(&request);
        // Nobody's memory is written to for a record that was not granted, not even to refuse it.
        op.record = op
            .record
            .filter(|_| self.grant.has(SessionCapabilities::RECORD_COMPLETION));
        if let Some(status) = self.not_granted(cx.shared, &request) {
            let completion = self.failed(cx.shared, &op, status);
            Self::answer(cx, &op, completion);
            return Ok(());
        }
        if self.slots.blocks(&op) {
            let stash = self.stashes.keep(inline);
            return self.enter(cx, op, Progress::Waiting { stash });
        }
        match self.start(cx, &op, inline)? {
            Step::Answer(completion) => Self::answer(cx, &op, completion),
            Step::Go(progress) => self.enter(cx, op, progress)?,
            Step::Park(progress) => {
                let progress = with_stash(progress, self.stashes.keep(inline));
                self.enter(cx, op, progress)?;
            }
        }
        self.settle(cx)
    }

    /// A request for a capability that was not granted, or while the target drains.
    fn not_granted(&self, shared: &Shared, request: &Request<'_>) -> Option<Status> {
        //= kbtp-p2-record-needs-capability
        //= kbtp-6.5-record-not-on-rdmap
        //= kbtp-6.5-record-only-ordered
        let direct = self.grant.has(SessionCapabilities::DIRECT_ALLOC)
            || request.operation.opcode() != Opcode::Bind;
        let records = self.grant.has(SessionCapabilities::RECORD_COMPLETION);
        // A peer with an IRD of zero has ruled out what such a store needs.
        let reads = matches!(
            request.operation,
            Operation::Store { source: Source::Remote { buffer, .. }, .. }
            | Operation::AllocStore { source: Source::Remote { buffer, .. }, .. }
            if buffer.len.0 > 0
        );
        //= kbtp-p7-unsupported
        if (request.record.is_some() && !records) || !direct || (reads && !self.can_read) {
            Some(Status::Unsupported)
        } else if shared.is_draining() && !planted(Plant::DrainIgnored) {
            //= kbtp-p7-shutting-down
            Some(Status::ShuttingDown)
        } else {
            None
        }
    }

    /// Takes a slot for a request and posts the work it waits for.
    fn enter(
        &mut self,
        cx: &mut Context<'_>,
        op: Op,
        progress: Progress,
    ) -> Result<(), SessionEnd> {
        let Some(slot) = self.slots.take(op, progress) else {
            return Err(SessionEnd::Local(
                "a message was given to a session that is not ready",
            ));
        };
        self.proceed(cx, slot);
        Ok(())
    }

    /// What the progress of a slot asks for.
    pub(super) fn proceed(&mut self, cx: &mut Context<'_>, index: SlotIndex) {
        let Some(slot) = self.slots.get(index).copied() else {
            return;
        };
        let seq = self.slots.seq(index);
        match slot.progress {
            Progress::Waiting { .. } => {}
            Progress::Parked { ticket, .. } => {
                let with_ticket = usize::from(ticket.is_some());
                self.parked_with_ticket = self.parked_with_ticket.saturating_add(with_ticket);
                add(&cx.shared.stats.allocations_parked, 1);
                self.parked.push_back(index);
                self.parked_retry_at = cx.now.after_ns(PARK_RETRY_NS);
            }
            Progress::ReadingNew { block } => {
                let offset = cx.shared.pool.geometry().offset_of(block);
                self.post_read(cx, &slot.op, offset, Posted::Read { slot: index, seq });
            }
            Progress::ReadingBound { entry } => {
                self.post_read(cx, &slot.op, entry.block, Posted::Read { slot: index, seq });
            }
            Progress::Sending { block, entry } => {
                let posted = Posted::LoadEnd { slot: index, seq };
                self.post_load(cx, &slot.op, block, &entry, posted);
            }
        }
    }

    /// The end of posted work.
    pub(super) fn take_done(
        &mut self,
        cx: &mut Context<'_>,
        posted: Posted,
        outcome: WorkOutcome,
    ) -> Result<(), SessionEnd> {
        let (Posted::LoadEnd { slot: index, seq } | Posted::Read { slot: index, seq }) = posted
        else {
            return if outcome == WorkOutcome::Flushed {
                Err(SessionEnd::Flushed)
            } else {
                Ok(())
            };
        };
        if self.slots.seq(index) != seq {
            return Ok(());
        }
        let Some(slot) = self.slots.get(index).copied() else {
            return Ok(());
        };
        match (slot.progress, outcome) {
            (Progress::Sending { block, .. }, WorkOutcome::Sent | WorkOutcome::Flushed) => {
                self.slots.release(index);
                cx.shared.pool.unpin(block);
            }
            (Progress::ReadingNew { .. } | Progress::ReadingBound { .. }, WorkOutcome::Read) => {
                self.slots.release(index);
                let completion = self.data_is_there(cx, &slot);
                Self::answer(cx, &slot.op, completion);
            }
            //= kbtp-p7-read-failure
            (Progress::ReadingNew { block }, WorkOutcome::Flushed) => {
                self.slots.release(index);
                self.allocating = self.allocating.saturating_sub(1);
                if !planted(Plant::HeldForgotten) {
                    put_back(cx.shared, block);
                }
            }
            (Progress::ReadingBound { .. }, WorkOutcome::Flushed) => {
                self.slots.release(index);
            }
            _ => return Err(SessionEnd::Local("work ended as other work does")),
        }
        if outcome == WorkOutcome::Flushed {
            return Err(SessionEnd::Flushed);
        }
        self.settle(cx)
    }

    /// See [`TargetSession::handle_timeout`](super::TargetSession::handle_timeout).
    pub(super) fn take_timeout(
        &mut self,
        cx: &mut Context<'_>,
        exposer: &mut dyn Exposer,
    ) -> Result<(), SessionEnd> {
        if let Some(tickets) = &mut self.tickets {
            tickets.handle_timeout(cx.now, cx.shared, exposer)?;
        }
        self.settle(cx)
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let parked = (!self.parked.is_empty()).then_some(self.parked_retry_at);
        let tickets = self.tickets.as_ref().and_then(Tickets::look_at);
        parked.into_iter().chain(tickets).min()
    }

    /// A COMPLETION was posted: the initiator may send again.
    pub(super) fn completed(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Starts what no longer has to wait.
    fn settle(&mut self, cx: &mut Context<'_>) -> Result<(), SessionEnd> {
        if let Some(tickets) = &self.tickets {
            cx.shared.pool.settle_partition(tickets.partition());
        }
        if !self.parked.is_empty() {
            self.retry_parked(cx)?;
            self.parked_retry_at = cx.now.after_ns(PARK_RETRY_NS);
        }
        while let Some(index) = self.slots.next_turn() {
            self.resume(cx, index)?;
        }
        Ok(())
    }

    /// Starts a request that waited.
    fn resume(&mut self, cx: &mut Context<'_>, index: SlotIndex) -> Result<(), SessionEnd> {
        let Some(Slot {
            op,
            progress: Progress::Waiting { stash },
        }) = self.slots.get(index).copied()
        else {
            return Ok(());
        };
        let step = self.with_stashed(stash, &op, |open, inline| open.start(cx, &op, inline))?;
        match step {
            Step::Answer(completion) => {
                self.stashes.release(stash);
                self.slots.release(index);
                Self::answer(cx, &op, completion);
            }
            Step::Go(progress) => {
                self.stashes.release(stash);
                self.slots.set(index, progress);
                self.proceed(cx, index);
            }
            Step::Park(progress) => {
                self.slots.set(index, with_stash(progress, stash));
                self.proceed(cx, index);
            }
        }
        Ok(())
    }

    /// Queues the answer to a request.
    //= kbtp-1.3-one-completion
    pub(super) fn answer(cx: &mut Context<'_>, op: &Op, completion: Completion) {
        Self::answer_posted(cx, op, completion, Posted::Plain);
    }

    pub(super) fn answer_posted(
        cx: &mut Context<'_>,
        op: &Op,
        completion: Completion,
        posted: Posted,
    ) {
        cx.shared
            .stats
            .count(op.opcode().to_wire(), completion.status.to_wire());
        cx.outbox.push(match (op.record, op.invalidate) {
            //= kbtp-6.5-record-instead
            (Some(to), None) => Outgoing::Record {
                octets: CompletionRecord::of(&completion).encode(),
                remote: RemoteBuffer {
                    stag: to.stag,
                    offset: to.offset,
                },
                immediate: CompletionRecord::immediate(op.request_id),
                posted,
            },
            // A Write invalidates nothing: who asked for that, too, gets a message (docs/spec/readings.md).
            (_, invalidate) => Outgoing::Complete {
                octets: completion.encode(),
                invalidate: invalidate.filter(|_| !planted(Plant::InvalidateForgotten)),
                posted,
            },
        });
    }

    fn answer_refusal(&self, cx: &mut Context<'_>, header: &Header, status: Status) {
        cx.shared.stats.count(header.opcode, status.to_wire());
        let generation = self.visible_generation(cx.shared, header.handle);
        let completion = Completion::failed(header.request_id, header.handle, generation, status);
        cx.outbox.push(Outgoing::Complete {
            octets: completion.encode(),
            invalidate: None,
            posted: Posted::Plain,
        });
    }

    /// The answer to a request that fails: the entry's current Generation, if it is this tenant's to see.
    //= kbtp-5.1-generation-current
    //= kbtp-p3-zero-unless-ok
    pub(super) fn failed(&self, shared: &Shared, op: &Op, status: Status) -> Completion {
        let generation = self.visible_generation(shared, op.handle);
        Completion::failed(op.request_id, op.handle, generation, status)
    }

    fn visible_generation(&self, shared: &Shared, handle: Handle) -> Option<Generation> {
        let row = shared.pool.geometry().row(handle)?;
        // In this order: a row may go to another domain at any time.
        let entry = shared.pool.entry(row);
        let own = shared.pool.is_of(row, self.domain);
        own.then_some(entry.generation).flatten()
    }

    /// The answer to a request that succeeded.
    //= kbtp-p3-header-of-request
    //= kbtp-5.1-request-id-echoed
    //= kbtp-3.1-block-offset-is-address
    //= kbtp-p6-block-offset-always
    pub(super) fn succeeded(
        op: &Op,
        generation: Option<Generation>,
        data_len: ByteLen,
        block: BlockOffset,
    ) -> Completion {
        Completion {
            request_id: op.request_id,
            handle: op.handle,
            generation,
            status: Status::Ok,
            data_len,
            block,
        }
    }

    /// Runs `f` with the inline data that was kept. The stashes are lent out meanwhile, so `f` cannot keep more.
    pub(super) fn with_stashed<R>(
        &mut self,
        stash: Option<StashIndex>,
        op: &Op,
        f: impl FnOnce(&mut Self, &[u8]) -> R,
    ) -> R {
        let stashes = std::mem::take(&mut self.stashes);
        let inline = stash.map_or(&[][..], |index| stashes.get(index, op.inline_len()));
        let result = f(self, inline);
        self.stashes = stashes;
        result
    }
}

fn with_stash(progress: Progress, kept: Option<StashIndex>) -> Progress {
    match progress {
        Progress::Parked {
            ticket, deadline, ..
        } => Progress::Parked {
            stash: kept,
            ticket,
            deadline,
        },
        other => other,
    }
}
