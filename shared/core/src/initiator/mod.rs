//! The initiator of a session, without input or output of its own.
//!
//! The caller owns a [`Stream`](kbtp_fabric::Stream) and a clock. It sets the session up with
//! [`Initiator::new`], then repeats: post what [`work`](Initiator::work) gives (and call
//! [`posted`](Initiator::posted)), let the stream progress, hand its events to
//! [`handle_received`](Initiator::handle_received) and [`handle_done`](Initiator::handle_done), the time to
//! [`handle_timeout`](Initiator::handle_timeout), and take what ended from
//! [`poll_finished`](Initiator::poll_finished). Operations are [`submit`](Initiator::submit)ted once
//! [`terms`](Initiator::terms) gives the session's terms.
//!
//! What the target sends is hostile until it is checked: a completion is matched by its whole Request ID, its slot, its
//! handle and its state, and the first message that breaks a rule ends the session. Every operation submitted is
//! reported exactly once. After set-up nothing allocates.
//! Source: KBTP draft, sections 5 and 6; profile, P1 to P9.

mod bindings;
mod completion;
mod direct;
mod hello;
pub mod limits;
mod message;
mod report;
mod slot;
mod terms;
#[cfg(test)]
mod tests;
mod types;

pub use terms::Terms;
pub use types::{
    Done, Failure, Finished, NEVER, OpId, Operation, PeerError, Request, SessionError, Settings,
    Source, SubmitError, TenantKey, Usage, Work,
};

use bindings::Bindings;
use kbtp_fabric::{Atomics, Time, WorkId, WorkOutcome};
use kbtp_memory::Region;
use kbtp_wire::{Nonce, SessionCapabilities, Stag, TaggedOffset};
use message::{HEAD_LEN, encode_request, send};
use slot::{Act, Phase, Report, Slot, Step};
use std::collections::VecDeque;

/// Octets of scratch memory for each slot: a table entry or a ring slot.
const SCRATCH_PER_SLOT: u64 = 16;

/// The slot number in the Request ID of HELLO; no slot has it.
const HELLO_SLOT: u16 = u16::MAX;

/// Memory for the entries and ring slots that direct modes read, registered with
/// [`Access::LOCAL`](kbtp_fabric::Access::LOCAL).
#[derive(Clone, Debug)]
pub struct Scratch {
    /// The memory, at least [`Initiator::SCRATCH_LEN`] octets.
    pub region: Region,
    /// Its STag.
    pub stag: Stag,
    /// The Tagged Offset of its first octet.
    pub base: TaggedOffset,
}

/// Memory for completion records, registered so that the peer may write to it.
#[derive(Clone, Debug)]
pub struct Records {
    /// The memory, at least [`Initiator::RECORDS_LEN`] octets.
    pub region: Region,
    /// Its STag.
    pub stag: Stag,
    /// The Tagged Offset of its first octet.
    pub base: TaggedOffset,
}

/// Where a session stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// HELLO is to be posted.
    Hello,
    /// HELLO is posted, `HELLO_ACK` is to come.
    Waiting,
    /// Open.
    Open,
    /// Ended: nothing more goes out.
    Ended,
}

/// The initiator of one session over one stream.
#[derive(Debug)]
pub struct Initiator {
    state: State,
    settings: Settings,
    atomics: Atomics,
    hello: Vec<u8>,
    terms: Option<Terms>,
    scratch: Option<Scratch>,
    records: Option<Records>,
    slots: Vec<Slot>,
    idle: Vec<u16>,
    steps: VecDeque<Step>,
    finished: VecDeque<Finished>,
    /// Retired STags that nothing comes for any more.
    released: VecDeque<Stag>,
    head: [u8; HEAD_LEN],
    /// Of the next Request ID; the low 16 bits of an ID are the slot.
    next_sequence: u64,
    credits_held: u32,
    direct_loads: u32,
    usage: Usage,
    /// Which handles `usage` counts, as far as they are known one by one.
    bindings: Bindings,
    /// DIRECT_ALLOC was granted and no ticket was lost since.
    may_allocate: bool,
    /// No slot is due before this time.
    next_due: Time,
}

impl Initiator {
    /// Octets of scratch memory for the most slots a session can have.
    pub const SCRATCH_LEN: u64 =
        SCRATCH_PER_SLOT * (limits::MAX_REQUESTS as u64 + limits::MAX_DIRECT_LOADS as u64);

    /// Octets of memory for the completion records of the most requests a session can have.
    pub const RECORDS_LEN: u64 =
        completion::RECORD_STRIDE * (limits::MAX_REQUESTS as u64 + limits::MAX_DIRECT_LOADS as u64);

    /// A session to be set up over a new stream.
    ///
    /// `private_data` is what came with the reply to the stream's set-up (P9), `nonce` 16 fresh random octets,
    /// `atomics` what the stream offers, `scratch` memory for the direct modes (without it none is asked for), `records`
    /// memory for completion records, where the stream has RDMA Write with Immediate (without it none is asked for),
    /// `deadline` when the target must have answered.
    ///
    /// # Errors
    /// [`SessionError`] if the private data is not a KBTP target's, authentication is wanted and no key is set, or a
    /// setting does not fit.
    pub fn new(
        settings: Settings,
        private_data: &[u8],
        nonce: Nonce,
        atomics: Atomics,
        scratch: Option<Scratch>,
        records: Option<Records>,
        deadline: Time,
    ) -> Result<Self, SessionError> {
        let mut capabilities = wanted(settings.capabilities, atomics, scratch.is_some());
        //= kbtp-6.5-record-only-ordered
        if records.is_none() {
            capabilities = capabilities.without(SessionCapabilities::RECORD_COMPLETION);
        }
        let settings = Settings {
            capabilities,
            max_direct_loads: settings.max_direct_loads.min(limits::MAX_DIRECT_LOADS),
            ..settings
        };
        let hello = hello::encode(&settings, private_data, nonce, Self::HELLO_ID)?;
        Ok(Self {
            state: State::Hello,
            settings,
            atomics,
            hello,
            terms: None,
            scratch,
            records,
            slots: Vec::new(),
            idle: Vec::new(),
            steps: VecDeque::new(),
            finished: VecDeque::new(),
            released: VecDeque::new(),
            head: [0; HEAD_LEN],
            next_sequence: 1,
            credits_held: 0,
            direct_loads: 0,
            usage: Usage::default(),
            bindings: Bindings::default(),
            may_allocate: false,
            next_due: deadline,
        })
    }

    /// The terms of the session; `None` until it is open.
    #[must_use]
    pub const fn terms(&self) -> Option<&Terms> {
        self.terms.as_ref()
    }

    /// Whether operations can be submitted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Blocks of the quota in use.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// Tells what the session starts with when a handle range is resumed (P8): what is bound in it. Which handles those are
    /// is not known then, whatever was.
    pub fn set_usage(&mut self, bound: u32, unsure: u32) {
        self.usage.bound = bound;
        self.usage.unsure = unsure;
        // A free of one that is in doubt would be taken off what is in doubt, of which there is none any more.
        self.bindings.forget();
    }

    /// Takes over the usage of the session before this one, if its handle range was resumed (P8): whatever was bound may
    /// be bound no more, since its lease may have run out.
    pub fn inherit_usage(&mut self, before: &Self) {
        self.set_usage(0, before.usage.bound.saturating_add(before.usage.unsure));
        self.bindings.inherit(&before.bindings);
    }

    /// Operations in flight, those given up and not answered yet included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len().saturating_sub(self.idle.len())
    }

    /// Requests that can be submitted now: free Request Credits.
    #[must_use]
    pub fn free_credits(&self) -> u32 {
        let limit = self.terms.as_ref().map_or(0, Terms::credits);
        limit.saturating_sub(self.credits_held)
    }

    /// Whether direct allocations can be submitted: granted, and not lost since with an abandoned ticket.
    #[must_use]
    pub const fn may_allocate_direct(&self) -> bool {
        self.may_allocate
    }

    /// Takes an operation. It is reported by [`poll_finished`](Self::poll_finished) with `token`, at the latest after
    /// `deadline`. No allocation.
    ///
    /// # Errors
    /// [`SubmitError`]: nothing was taken.
    pub fn submit(
        &mut self,
        request: Request,
        token: u64,
        deadline: Time,
    ) -> Result<OpId, SubmitError> {
        self.admit(&request)?;
        let unreported = self.finished.len();
        let busy = SubmitError::Busy {
            limit: u32::try_from(self.slots.len()).unwrap_or(u32::MAX),
        };
        // Room for its report is reserved too, so that the queue of reports never grows.
        if self.in_flight().saturating_add(unreported) >= self.slots.len() {
            return Err(busy);
        }
        let index = self.idle.pop().ok_or(busy)?;
        let (phase, act) = match request {
            Request::LoadDirect { .. } => {
                let (attempt, known) = (1, None);
                (Phase::Entry { attempt, known }, Act::ReadEntry)
            }
            Request::AllocDirect { .. } => (Phase::Taking { posted_at: NEVER }, Act::TakeTicket),
            _ => (Phase::Queued, Act::Request),
        };
        let request_id = self.take_id(index);
        let op = OpId(request_id);
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return Err(busy);
        };
        *slot = Slot {
            stamp: slot.stamp.wrapping_add(1),
            request_id,
            op,
            token,
            request,
            phase,
            deadline,
            ..Slot::IDLE
        };
        if slot.holds_credit() {
            self.credits_held = self.credits_held.saturating_add(1);
        } else {
            self.direct_loads = self.direct_loads.saturating_add(1);
        }
        if request.allocates() {
            self.usage.pending = self.usage.pending.saturating_add(1);
        }
        self.next_due = self.next_due.min(deadline);
        self.plan(index, act);
        Ok(op)
    }

    /// Whether `request` may be submitted at all, and now.
    fn admit(&self, request: &Request) -> Result<(), SubmitError> {
        let (State::Open, Some(terms)) = (self.state, self.terms.as_ref()) else {
            return Err(SubmitError::NotOpen);
        };
        let grant = &terms.grant;
        if let Request::LoadDirect { handle, .. } = request {
            if !terms.direct_load {
                return Err(SubmitError::NotGranted("DIRECT_LOAD"));
            }
            if !terms.in_table(*handle) {
                return Err(SubmitError::OutsideTable { handle: *handle });
            }
            let limit = u32::from(self.settings.max_direct_loads);
            return if self.direct_loads < limit {
                Ok(())
            } else {
                Err(SubmitError::Busy { limit })
            };
        }
        if let Request::AllocDirect { from, .. } = request {
            if !self.may_allocate {
                return Err(SubmitError::NotGranted("DIRECT_ALLOC"));
            }
            if from.len > grant.block_size {
                return Err(SubmitError::TooLong {
                    what: "the block",
                    len: from.len,
                    limit: grant.block_size,
                });
            }
        }
        if let Request::Store { from, .. } | Request::AllocStore { from, .. } = request
            && let Source::Inline(data) = from
            && data.len > terms.max_inline
        {
            return Err(SubmitError::TooLong {
                what: "inline data",
                len: data.len,
                limit: terms.max_inline,
            });
        }
        //= kbtp-3.4-quota-not-exceeded
        // A direct allocation beyond the quota would wait for a block that never comes, so it is judged by the most
        // that can be in use; the target judges the rest itself, so they are only stopped when it is certain.
        let in_use = match request {
            Request::AllocDirect { .. } => self.usage.at_most(),
            Request::AllocStore { .. } => self.usage.at_least(),
            _ => 0,
        };
        if request.allocates() && in_use >= grant.quota {
            return Err(SubmitError::Quota { quota: grant.quota });
        }
        let limit = terms.credits();
        if self.credits_held >= limit {
            return Err(SubmitError::Busy { limit });
        }
        Ok(())
    }

    /// Gives an operation up: it is reported at once as [`Failure::GivenUp`], and its slot waits for the peer. Retire
    /// the STag of its buffer before using the buffer again. Returns whether it was in flight.
    pub fn give_up(&mut self, op: OpId) -> bool {
        let [.., high, low] = op.0.to_be_bytes();
        let index = u16::from_be_bytes([high, low]);
        match self.slots.get(usize::from(index)) {
            Some(slot) if slot.op == op && slot.phase != Phase::Idle && !slot.given_up() => {
                self.abandon(index, false);
                true
            }
            _ => false,
        }
    }

    /// The next work to post; the same again until [`posted`](Self::posted) says that the stream took it.
    pub fn work(&mut self) -> Option<Work<'_>> {
        match self.state {
            State::Hello => {
                return Some(Work {
                    id: WorkId(u64::from(HELLO_SLOT)),
                    request: send(&self.hello, None),
                    signaled: false,
                });
            }
            State::Waiting | State::Ended => return None,
            State::Open => {}
        }
        while let Some(&step) = self.steps.front() {
            let current = self.slots.get(usize::from(step.slot));
            if current.is_some_and(|slot| slot.stamp == step.stamp && slot.phase != Phase::Idle) {
                return self.build(step);
            }
            self.steps.pop_front();
        }
        None
    }

    /// The work of `step`.
    fn build(&mut self, step: Step) -> Option<Work<'_>> {
        let slot = *self.slots.get(usize::from(step.slot))?;
        let (request, signaled) = match step.act {
            Act::Request => {
                let record = self.record_of(step.slot, &slot);
                let (len, tail) = encode_request(&slot, record, &mut self.head);
                (send(self.head.get(..len)?, tail), tail.is_some())
            }
            _ => self.build_direct(step.act, &slot, step.slot)?,
        };
        Some(Work {
            id: step.work_id(),
            request,
            signaled,
        })
    }

    /// The stream took what [`work`](Self::work) gave.
    pub fn posted(&mut self, now: Time) {
        if self.state == State::Hello {
            self.state = State::Waiting;
            return;
        }
        let Some(step) = self.steps.pop_front() else {
            return;
        };
        let Some(slot) = self.slots.get_mut(usize::from(step.slot)) else {
            return;
        };
        match step.act {
            Act::Request => {
                slot.phase = Phase::Sent;
                slot.posted = true;
                slot.reading = matches!(
                    slot.request,
                    Request::Store { from: Source::Inline(b), .. }
                    | Request::AllocStore { from: Source::Inline(b), .. } if b.len.0 > 0
                );
            }
            Act::TakeTicket => {
                slot.phase = Phase::Taking { posted_at: now };
                slot.posted = true;
            }
            // The BIND after it makes the operation posted.
            Act::WriteBlock => slot.reading = true,
            Act::ReadEntry
            | Act::ReadBlock
            | Act::ReadSlot
            | Act::Bind
            | Act::TidyBind
            | Act::TidyFree => slot.posted = true,
        }
    }

    /// A message arrived; `invalidated` is the STag it invalidated, if any. Every error ends the session: close the
    /// stream, then call [`handle_closed`](Self::handle_closed).
    ///
    /// # Errors
    /// [`SessionError::Refused`] or the rule the target broke.
    pub fn handle_received(
        &mut self,
        message: &[u8],
        invalidated: Option<Stag>,
    ) -> Result<(), SessionError> {
        let result = match self.state {
            State::Hello | State::Waiting => self.open(message, invalidated),
            State::Open => self.complete(message, invalidated).map_err(Into::into),
            State::Ended => Ok(()),
        };
        if result.is_err() {
            self.state = State::Ended;
        }
        result
    }

    /// Posted work ended.
    ///
    /// # Errors
    /// The rule the target broke; see [`handle_received`](Self::handle_received).
    pub fn handle_done(
        &mut self,
        now: Time,
        id: WorkId,
        outcome: WorkOutcome,
    ) -> Result<(), SessionError> {
        if self.state != State::Open {
            return Ok(());
        }
        let (index, stamp) = Step::slot_of(id);
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return Ok(());
        };
        if slot.stamp != stamp || slot.phase == Phase::Idle {
            // Work of an operation that is over: a Write given up with its operation.
            return Ok(());
        }
        if outcome == WorkOutcome::Flushed {
            // The stream has ended, and will say so; or it dropped what was read into a buffer taken away.
            if slot.report == Report::TakenAway && matches!(slot.phase, Phase::Block { .. }) {
                self.conclude(index, Err(Failure::Lost { sent: false }), false);
            }
            return Ok(());
        }
        if outcome == WorkOutcome::Sent {
            slot.reading = false;
            if let Some((result, invalidated)) = slot.answer {
                self.conclude(index, result, invalidated);
            }
            return Ok(());
        }
        let result = self.step_direct(now, index, outcome);
        if result.is_err() {
            self.state = State::Ended;
        }
        result.map_err(Into::into)
    }

    /// Immediate Data arrived: the completion record of the request that it names is written.
    ///
    /// # Errors
    /// [`PeerError`]: no such request waits for a record, or the record does not fit it. The session ends; see
    /// [`handle_received`](Self::handle_received).
    pub fn handle_immediate(&mut self, data: u32) -> Result<(), SessionError> {
        let result = match self.state {
            State::Hello | State::Waiting => Err(PeerError::Immediate { data }),
            State::Open => self.complete_by_record(data),
            State::Ended => Ok(()),
        };
        if result.is_err() {
            self.state = State::Ended;
        }
        result.map_err(Into::into)
    }

    /// Time has passed: gives up what is due.
    ///
    /// # Errors
    /// [`SessionError::HelloTimeout`]: the session ends.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), SessionError> {
        if now < self.next_due {
            return Ok(());
        }
        match self.state {
            State::Hello | State::Waiting => {
                self.state = State::Ended;
                return Err(SessionError::HelloTimeout);
            }
            State::Ended => return Ok(()),
            State::Open => {}
        }
        for index in 0..self.slots.len() {
            let Ok(index) = u16::try_from(index) else {
                break;
            };
            self.expire(now, index);
        }
        self.next_due = self.slots.iter().map(Slot::due).min().unwrap_or(NEVER);
        Ok(())
    }

    /// Gives up the operation of one slot if its time has come.
    fn expire(&mut self, now: Time, index: u16) {
        let Some(slot) = self.slots.get(usize::from(index)) else {
            return;
        };
        if slot.phase == Phase::Idle {
            return;
        }
        if !slot.given_up() && slot.deadline <= now {
            self.abandon(index, true);
        }
        self.expire_ticket(now, index);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    pub const fn timeout(&self) -> Option<Time> {
        if self.next_due.0 == NEVER.0 {
            None
        } else {
            Some(self.next_due)
        }
    }

    /// The stream ended: everything in flight is reported as lost.
    pub fn handle_closed(&mut self) {
        self.state = State::Ended;
        self.steps.clear();
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get(index).copied() else {
                break;
            };
            let Ok(index) = u16::try_from(index) else {
                break;
            };
            if slot.phase == Phase::Idle {
                continue;
            }
            let (result, invalidated) = slot.answer.unwrap_or_else(|| {
                let sent = slot.awaits_completion();
                (Err(Failure::Lost { sent }), false)
            });
            self.conclude(index, result, invalidated);
        }
        self.next_due = NEVER;
    }

    /// The next operation that ended.
    pub fn poll_finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// The next STag that was retired with its operation, and that nothing will come for any more: invalidate it, so
    /// that it takes no room. Take what [`poll_finished`](Self::poll_finished) gives first.
    pub fn poll_released(&mut self) -> Option<Stag> {
        self.released.pop_front()
    }

    /// Queues work of a slot.
    fn plan(&mut self, index: u16, act: Act) {
        if let Some(slot) = self.slots.get(usize::from(index)) {
            self.steps.push_back(Step {
                slot: index,
                stamp: slot.stamp,
                act,
            });
        }
    }

    /// A fresh Request ID for slot `index`.
    const fn take_id(&mut self, index: u16) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence = sequence.wrapping_add(1);
        Self::id(sequence, index)
    }

    /// The Request ID of a sequence number and a slot. At a billion requests a second the 48 bits last three days:
    /// long enough that none is used twice while another is outstanding.
    const fn id(sequence: u64, index: u16) -> u64 {
        (sequence << 16) | index as u64
    }
}

/// The capabilities worth asking for: direct modes need scratch memory, and DIRECT_ALLOC atomics.
const fn wanted(
    settings: SessionCapabilities,
    atomics: Atomics,
    scratch: bool,
) -> SessionCapabilities {
    let mut wanted = settings;
    if !scratch || matches!(atomics, Atomics::None) {
        //= rfc7306-1.1-use-agreed
        wanted = wanted.without(SessionCapabilities::DIRECT_ALLOC);
    }
    if !scratch {
        wanted = wanted.without(SessionCapabilities::DIRECT_LOAD);
    }
    wanted
}
