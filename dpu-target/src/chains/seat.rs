//! One session on the device, and its requests that software serves: one at a time, in the order they came.
//!
//! ```text
//! slot n rings, or ends its queue ──► Core ──RDMA Read──► Reading ──data──► Core
//!                                      └──completion──► Answered ──its queue goes on, or starts again──► slot n + 1
//! ```

mod watch;

use super::{ChainCounts, Headers, Punt};
use kbtp_core::{ByDevice, SessionEnd, Shared, TargetSession};
use kbtp_device::{Allocation, Answer, Device, Master, Session, SetUpError, SlotRequest, Standing};
use kbtp_fabric::{Time, WorkId, WorkOutcome, WorkRequest};
use kbtp_mlx5::Syndrome;
use kbtp_wire::{
    BlockOffset, ByteLen, Completion, DataDescriptor, Handle, Header, Opcode, RequestFlags, Status,
    Ticket,
};
use watch::{WaitsFor, Watched};

/// What [`Seat::work`] works with.
pub(super) struct Hands<'a, D> {
    pub(super) device: &'a mut D,
    pub(super) master: &'a mut Master,
    pub(super) headers: &'a Headers,
    pub(super) withheld: bool,
    pub(super) core: &'a mut TargetSession,
    pub(super) now: Time,
    pub(super) shared: &'a Shared,
    pub(super) counts: &'a ChainCounts,
}

/// How far a request that software serves is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The core has it.
    Core,
    /// The client's data is on its way.
    Reading(WorkId),
    /// Its completion is on its way; the work to be reported done with it.
    Answered(Option<WorkId>),
    /// And its queue goes on.
    GoesOn(Option<WorkId>),
    /// Or is on its way to start again.
    Restarts(Option<WorkId>),
}

/// A request that software serves.
#[derive(Clone, Copy, Debug)]
struct Job {
    slot: u64,
    /// Its loopback queue failed.
    dead: bool,
    step: Step,
    /// Data that goes to the client before the completion.
    data: Option<(ByteLen, BlockOffset)>,
}

/// Slots that are told apart: more than a session has.
const SLOTS: usize = 64;

/// A session on the device.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) session: Session,
    quota: u32,
    /// The first slot that is not looked at after its completion.
    next: u64,
    /// Whether a slot, by its number modulo [`SLOTS`], may allocate by itself.
    may_alloc: [bool; SLOTS],
    /// The low half of the number of a slot that rang.
    rang: Option<u16>,
    failed: bool,
    /// A request was read that software is to serve; whether it ended its loopback queue.
    offered: Option<bool>,
    job: Option<Job>,
    request: SlotRequest,
    watched: Option<Watched>,
    /// A slot that waited too long for its block, and since when; its loopback queue was stopped.
    given_up: Option<(u64, Time)>,
}

/// The CQE of a slot's loopback queue after which nothing that a record decides is done yet and all copies have landed.
const COPIED: u8 = 4;
/// The one after which the next slot may have begun.
const NEXT_BEGUN: u8 = 8;
/// What may fail without harm before: look-ups of what a request says.
const LOOK_UPS: [&str; 7] = ["CKR", "GM", "D", "T", "DR", "P", "U0"];

fn place(slot: u64) -> usize {
    usize::try_from(slot % SLOTS as u64).unwrap_or(0)
}

fn local<E: core::error::Error + 'static>(error: &SetUpError<E>) -> SessionEnd {
    tracing::error!(%error, "a session's part of the device failed");
    SessionEnd::Local("the device refused")
}

impl Seat {
    pub(super) fn new(session: Session, quota: u32) -> Self {
        Self {
            next: session.armed(),
            session,
            quota,
            may_alloc: [false; SLOTS],
            rang: None,
            failed: false,
            offered: None,
            job: None,
            request: SlotRequest::default(),
            watched: None,
            given_up: None,
        }
    }

    #[cfg(test)]
    pub(super) fn with(self, of: impl FnOnce(Session) -> Session) -> Self {
        Self::new(of(self.session), self.quota)
    }

    pub(super) const fn rings(&mut self, low: u16) {
        self.rang = Some(low);
    }

    pub(super) const fn fails(&mut self) {
        self.failed = true;
    }

    pub(super) fn in_flight(&mut self) -> u64 {
        self.session.received().saturating_sub(self.next)
    }

    /// Whether it may be waiting for a block.
    pub(super) fn may_wait(&mut self) -> bool {
        let allocates = self.session.asked(self.next).map(|(opcode, _)| opcode);
        self.in_flight() > 0 && allocates == Some(Opcode::AllocStore.to_wire())
    }

    /// Where it stands, for a test that fails.
    #[cfg(test)]
    pub(super) fn show(&self) -> String {
        let (next, job, rang, failed) = (self.next, self.job, self.rang, self.failed);
        let standing = self.session.standing(next);
        format!("next {next}, {job:?}, rang {rang:?}, failed {failed}, {standing:?}")
    }

    /// Requests answered since the session began.
    pub(crate) const fn answered(&self) -> u64 {
        self.next
    }

    /// Whether the loopback queue is being started again: no request may come.
    pub(super) fn restarts(&self) -> bool {
        self.job
            .is_some_and(|job| matches!(job.step, Step::Restarts(_)))
    }

    fn may(&mut self, slot: u64) -> Option<&mut bool> {
        self.may_alloc.get_mut(place(slot))
    }

    /// Arms what is free. A slot may allocate by itself if the quota has room for it and for all others that may.
    pub(super) fn arm<D: Device>(
        &mut self,
        device: &mut D,
        headers: &Headers,
        usage: u32,
        withheld: bool,
    ) -> Result<u64, SetUpError<D::Error>> {
        let armed = self.session.armed();
        let others =
            (self.next..armed).filter(|slot| self.may_alloc.get(place(*slot)) == Some(&true));
        let mut spent = u64::from(usage).saturating_add(others.count() as u64);
        let Self {
            session,
            may_alloc,
            quota,
            ..
        } = self;
        session.arm_free_as(device, |slot| {
            let may = !withheld && spent < u64::from(*quota);
            spent = spent.saturating_add(u64::from(may));
            if let Some(place) = may_alloc.get_mut(place(slot)) {
                *place = may;
            }
            Some(headers.of(may, withheld))
        })
    }

    /// Says anew which of the armed slots that have not begun may allocate by themselves.
    pub(super) fn allow<E: core::error::Error + 'static>(
        &mut self,
        headers: &Headers,
        usage: u32,
        withheld: bool,
    ) -> Result<(), SetUpError<E>> {
        let mut spent = usage;
        // The next one may have begun if its request has come.
        let begun = u64::from(self.in_flight() > 0);
        for slot in self.next.saturating_add(begun)..self.session.armed() {
            let allowed = !withheld && spent < self.quota;
            spent = spent.saturating_add(u32::from(allowed));
            if let Some(may) = self.may(slot) {
                let before = std::mem::replace(may, allowed);
                if before != allowed || withheld {
                    self.session
                        .set_headers(slot, headers.of(allowed, withheld))?;
                }
            }
        }
        Ok(())
    }

    /// The tickets that its slots have told of. Returns whether one may have one that it has not told of.
    pub(super) fn tickets(&mut self, to: &mut Vec<Ticket>) -> bool {
        let begun = self.next..self.session.received().min(self.next.saturating_add(2));
        let by_software = self.job.map(|job| job.slot);
        let mut takes = false;
        for slot in begun.filter(|slot| by_software != Some(*slot)) {
            let ticket = self.session.allocation(slot).and_then(|one| one.ticket);
            to.extend(ticket);
            takes |=
                self.session.takes_ticket(slot) && self.session.standing(slot).failed.is_none();
        }
        takes
    }

    /// The blocks that slots of this session may be sending; `None` for one that has not looked yet.
    pub(super) fn sends(&mut self, to: &mut Vec<Option<BlockOffset>>) {
        let received = self.session.received();
        let first = self.next;
        if first >= received {
            return;
        }
        let standing = self.session.standing(first);
        self.sends_in(first, standing, to);
        let second = first.saturating_add(1);
        if standing.done >= NEXT_BEGUN && second < received {
            let standing = self.session.standing(second);
            self.sends_in(second, standing, to);
        }
    }

    fn sends_in(&self, slot: u64, standing: Standing, to: &mut Vec<Option<BlockOffset>>) {
        let loads = self.session.asked(slot).map(|(opcode, _)| opcode);
        // What software sends the core has pinned.
        let by_software = self.job.is_some_and(|job| job.slot == slot);
        if loads == Some(Opcode::Load.to_wire()) && !by_software {
            let block = self.session.source(slot).filter(|_| standing.done > 0);
            // One that failed will send nothing.
            if standing.failed.is_none() {
                to.push(block);
            }
        }
    }

    /// Everything that can be done now. Returns whether anything was.
    pub(super) fn work<D: Device>(&mut self, hands: &mut Hands<'_, D>) -> Result<bool, SessionEnd> {
        if let Some(overdue) = self.overdue(hands.now) {
            self.end_wait(overdue, hands)?;
            return Ok(true);
        }
        let mut worked = self.look(hands)?;
        if self.session.client_failed() {
            return Ok(worked);
        }
        worked |= self.take(hands)?;
        worked |= self.go_on(hands)?;
        if self.restarts() {
            // What is armed is written again, where NOPs lie meanwhile.
            return Ok(worked);
        }
        let usage = hands.core.usage().total();
        let armed = self.arm(hands.device, hands.headers, usage, hands.withheld);
        let armed = armed.map_err(|error| local(&error))?;
        hands.counts.armed.add(armed);
        Ok(worked || armed > 0)
    }

    /// The oldest request was too long where it is.
    fn end_wait<D: Device>(
        &mut self,
        Watched { place, since }: Watched,
        hands: &mut Hands<'_, D>,
    ) -> Result<(), SessionEnd> {
        if place.waits == WaitsFor::Block {
            hands.counts.given_up.increment();
            self.given_up = Some((place.slot, since));
            let stopped = hands.device.stop(self.session.worker_qpn());
            return stopped.map_err(|source| {
                let what = "stopping a loopback queue pair";
                local(&SetUpError::Device { what, source })
            });
        }
        hands.counts.stalled.increment();
        tracing::error!(?place, "a chain makes no progress");
        Err(SessionEnd::Local("a chain makes no progress"))
    }

    /// Looks at slots whose completion went out.
    fn look<D: Device>(&mut self, hands: &mut Hands<'_, D>) -> Result<bool, SessionEnd> {
        let completed = self.session.completed();
        let worked = self.next < completed;
        while self.next < completed {
            let slot = self.next;
            match self.job {
                Some(job) if job.slot == slot => {
                    let (Step::GoesOn(id) | Step::Restarts(id)) = job.step else {
                        // Its queue has to go on first.
                        return Ok(worked);
                    };
                    if matches!(job.step, Step::Restarts(_)) {
                        return Ok(worked);
                    }
                    self.job = None;
                    self.next = slot.saturating_add(1);
                    if let Some(id) = id {
                        let done = WorkOutcome::Sent;
                        hands.core.handle_done(hands.now, hands.shared, id, done)?;
                    }
                }
                _ => {
                    self.next = slot.saturating_add(1);
                    self.count(slot, hands.core, hands.shared, hands.counts);
                }
            }
        }
        Ok(worked)
    }

    /// Counts a request that a chain served.
    fn count(&self, slot: u64, core: &mut TargetSession, shared: &Shared, counts: &ChainCounts) {
        let whole = ByteLen(shared.pool.geometry().block_size);
        let opcode = self.session.asked(slot).map_or(0, |(opcode, _)| opcode);
        let done = match Opcode::from_wire(opcode) {
            Some(Opcode::Load) => ByDevice::Load(ByteLen(self.session.loaded(slot))),
            Some(Opcode::Store) => ByDevice::Store(whole),
            Some(Opcode::AllocStore) => ByDevice::AllocStore(whole),
            _ => {
                if let Some((handle, block)) = self.session.unbinds(slot) {
                    shared.pool.unbound_by_device(handle, block);
                }
                ByDevice::Free
            }
        };
        core.served(shared, done);
        counts.served.increment();
    }

    /// The request that is for software, if there is one and all before it are done.
    pub(super) fn next_request(&mut self) -> Result<Option<SlotRequest>, SessionEnd> {
        // CQEs first: what they say is what has been done before.
        let completed = self.session.completed();
        if self.job.is_some() || self.session.client_failed() || self.next < completed {
            return Ok(None);
        }
        let slot = self.next;
        let [.., high, low] = slot.to_be_bytes();
        let rang = self.rang == Some(u16::from_be_bytes([high, low]));
        if !rang && !self.failed {
            return Ok(None);
        }
        let standing = self.session.standing(slot);
        let dead = match standing.failed {
            Some((name, syndrome)) => {
                let harmless = if self.gave_up(slot) {
                    standing.done <= watch::AT_BLOCK
                } else {
                    standing.done <= COPIED
                        && syndrome == Syndrome::REMOTE_ACCESS
                        && LOOK_UPS.contains(&name)
                };
                if !harmless {
                    tracing::error!(name, %syndrome, "a chain failed");
                    return Err(SessionEnd::Local("a chain failed"));
                }
                true
            }
            // Something of an earlier slot is still to come.
            None if !rang || standing.done < COPIED => return Ok(None),
            None => false,
        };
        let mut request = std::mem::take(&mut self.request);
        if !self.session.read_request(slot, &mut request) {
            return Err(SessionEnd::Local("a slot rang without a request"));
        }
        self.offered = Some(dead);
        Ok(Some(request))
    }

    fn gave_up(&self, slot: u64) -> bool {
        self.given_up.is_some_and(|(one, _)| one == slot)
    }

    /// Gives that request back: to be taken, or to be asked for again.
    pub(super) fn offer(&mut self, request: SlotRequest, may: bool) {
        self.request = request;
        if !may {
            self.offered = None;
        }
    }

    /// Takes the request that was offered.
    fn take<D: Device>(&mut self, hands: &mut Hands<'_, D>) -> Result<bool, SessionEnd> {
        let Some(dead) = self.offered.take() else {
            return Ok(false);
        };
        self.rang = None;
        self.failed = false;
        hands.counts.wakeups.increment();
        // As if it had come to the core at once: its time is over, but if there is a block for it by now it is served.
        let mut since = hands.now;
        if let Some((slot, then)) = self.given_up.take() {
            since = then;
            let taken = self.session.allocation(slot);
            if let Some((ticket, block)) = taken.and_then(|one| Some((one.ticket?, one.block))) {
                hands.shared.pool.put_back_taken(ticket, block);
                hands.counts.recovered.increment();
            }
        } else if dead {
            hands.counts.traps.increment();
        }
        self.job = Some(Job {
            slot: self.next,
            dead,
            step: Step::Core,
            data: None,
        });
        let (core, shared) = (&mut *hands.core, hands.shared);
        core.handle_message(since, shared, self.request.as_octets())
            .map(|_| true)
    }

    /// Whether no slot is between its start and the look at the entry.
    pub(super) fn has_looked(&mut self) -> bool {
        let received = self.session.received();
        let (first, second) = (self.next, self.next.saturating_add(1));
        let looked = |slot| {
            let standing = self.session.standing(slot);
            standing.done > 0 || standing.failed.is_some()
        };
        let begun = first < received && self.session.standing(first).done >= NEXT_BEGUN;
        (first >= received || looked(first)) && (!begun || second >= received || looked(second))
    }

    /// Moves the request that software serves on.
    fn go_on<D: Device>(&mut self, hands: &mut Hands<'_, D>) -> Result<bool, SessionEnd> {
        let mut worked = false;
        while let Some(mut job) = self.job {
            let moved = match job.step {
                Step::Core => self.post(&mut job, hands)?,
                Step::Reading(id) => match self.session.fetched(job.slot) {
                    None => false,
                    Some(there) => {
                        job.step = Step::Core;
                        let outcome = if there {
                            WorkOutcome::Read
                        } else {
                            WorkOutcome::Flushed
                        };
                        self.job = Some(job);
                        let (now, shared) = (hands.now, hands.shared);
                        hands.core.handle_done(now, shared, id, outcome)?;
                        true
                    }
                },
                // Its chain writes where the completion is gathered from.
                Step::Answered(_) if self.session.completed() <= job.slot => false,
                Step::Answered(id) => {
                    let usage = hands.core.usage().total();
                    self.allow(hands.headers, usage, hands.withheld)
                        .map_err(|error| local::<D::Error>(&error))?;
                    let (device, master) = (&mut *hands.device, &mut *hands.master);
                    let went = if job.dead {
                        self.session
                            .restart(device, master, job.slot.wrapping_add(1))
                    } else {
                        self.session.go_on(device, master, job.slot)
                    };
                    let went = went.map_err(|error| local(&error))?;
                    if went {
                        job.step = if job.dead {
                            Step::Restarts(id)
                        } else {
                            Step::GoesOn(id)
                        };
                    }
                    went
                }
                Step::Restarts(id) => {
                    let (device, master) = (&mut *hands.device, &mut *hands.master);
                    let went = self.session.restarted(device, master);
                    let went = went.map_err(|error| local(&error))?;
                    if went {
                        job.step = Step::GoesOn(id);
                        job.dead = false;
                    }
                    went
                }
                Step::GoesOn(_) => false,
            };
            self.job = Some(job);
            worked |= moved;
            if !moved {
                break;
            }
        }
        Ok(worked)
    }

    /// Posts what the core asks for, on the slot's own WQEs. Returns whether anything was.
    fn post<D: Device>(&self, job: &mut Job, hands: &mut Hands<'_, D>) -> Result<bool, SessionEnd> {
        let mut moved = false;
        while job.step == Step::Core
            && let Some(work) = hands.core.next_work()
        {
            let (device, master) = (&mut *hands.device, &mut *hands.master);
            let done = match work.request {
                WorkRequest::Write { local, .. } => {
                    job.data = Some((local.len, BlockOffset(local.offset.0)));
                    Ok(true)
                }
                WorkRequest::Read { local, .. } => {
                    let (slot, block) = (job.slot, BlockOffset(local.offset.0));
                    let began = self.session.fetch(device, master, slot, local.len, block);
                    if matches!(began, Ok(true)) {
                        job.step = Step::Reading(work.id);
                    }
                    began
                }
                WorkRequest::Send {
                    head, invalidate, ..
                } => {
                    let Ok(completion) = Completion::decode_message(head) else {
                        return Err(SessionEnd::Local("a slot can send completions only"));
                    };
                    let answer = answer(&completion, job.data, invalidate.is_some());
                    let id = work.signaled.then_some(work.id);
                    let sent = self.session.reply(device, master, job.slot, &answer);
                    if matches!(sent, Ok(true)) {
                        job.step = Step::Answered(id);
                        let reason = reason(self.request.as_octets(), hands.shared, &completion);
                        hands.counts.punt(reason);
                    }
                    sent
                }
                _ => return Err(SessionEnd::Local("a slot cannot do this work")),
            };
            if !done.map_err(|error| local(&error))? {
                break;
            }
            hands.core.work_posted();
            moved = true;
        }
        Ok(moved)
    }

    /// The session is over: what requests that came to nothing took from the ring, or from an entry, goes back. Returns whether
    /// one may have a ticket that nobody knows.
    pub(super) fn end(
        &mut self,
        core: &mut TargetSession,
        shared: &Shared,
        counts: &ChainCounts,
    ) -> bool {
        let mut takes = false;
        while self.next < self.session.completed() {
            let slot = self.next;
            self.next = slot.saturating_add(1);
            if self.job.is_none_or(|job| job.slot != slot) {
                self.count(slot, core, shared, counts);
            }
        }
        // Of two slots that have begun the first may lack only its completion.
        for slot in self.next..self.session.received() {
            if self.job.is_some_and(|job| job.slot == slot) {
                continue;
            }
            let allocation = self.session.allocation(slot);
            takes |= self.session.takes_ticket(slot);
            let bound = |taken: &Allocation| {
                let binds = |block| shared.pool.binds(taken.handle, block);
                taken.bound || taken.block.is_some_and(binds)
            };
            if let Some(taken) = allocation.filter(|taken| !bound(taken))
                && let Some(ticket) = taken.ticket
            {
                shared.pool.put_back_taken(ticket, taken.block);
                counts.recovered.increment();
            }
            // Another's handle it did not get to clear.
            let own = |handle: &Handle| {
                core.grant().is_some_and(|grant| {
                    let row = handle.0.checked_sub(grant.handle_base.0);
                    row.is_some_and(|row| row < grant.handle_count)
                })
            };
            if let Some((handle, block)) = self.session.unbinds(slot).filter(|(one, _)| own(one)) {
                shared.pool.unbound_by_device(handle, block);
            }
        }
        takes
    }
}

impl Headers {
    const fn of(&self, may_alloc: bool, withheld: bool) -> kbtp_mlx5::Mkey {
        if withheld {
            self.nothing
        } else if may_alloc {
            self.all
        } else {
            self.no_alloc
        }
    }
}

fn answer(
    completion: &Completion,
    data: Option<(ByteLen, BlockOffset)>,
    invalidate: bool,
) -> Answer {
    Answer {
        status: completion.status,
        generation: completion.generation,
        data_len: completion.data_len,
        block: completion.block,
        data: data.is_some(),
        invalidate,
    }
}

/// Whether a request could bind a block of no octets.
pub(super) fn may_make_empty(message: &[u8]) -> bool {
    let opcode = message.get(1).copied().and_then(Opcode::from_wire);
    let len = match opcode {
        // Behind STag and Tagged Offset.
        Some(Opcode::Store | Opcode::AllocStore) => message.get(36..40),
        // Behind the Ticket.
        Some(Opcode::Bind) => message.get(28..32),
        _ => None,
    };
    len == Some(&[0; 4])
}

/// Why software had to serve a request.
fn reason(message: &[u8], shared: &Shared, completion: &Completion) -> Punt {
    let Some(header) = message.first_chunk().map(Header::decode) else {
        return Punt::Unknown;
    };
    let has = |flag: RequestFlags| header.flags.contains(flag);
    let data = message
        .get(Header::LEN..)
        .and_then(|rest| rest.first_chunk());
    let len = data.map(|octets| DataDescriptor::decode(octets).len.0);
    let whole = len == Some(shared.pool.geometry().block_size);
    match Opcode::from_wire(header.opcode) {
        Some(Opcode::Load | Opcode::Store | Opcode::AllocStore | Opcode::Free)
            if completion.status != Status::Ok =>
        {
            Punt::Refused
        }
        Some(Opcode::Free) => Punt::Free,
        Some(Opcode::Load | Opcode::Store | Opcode::AllocStore) if has(RequestFlags::INLINE) => {
            Punt::Inline
        }
        Some(Opcode::Load | Opcode::Store | Opcode::AllocStore) if has(RequestFlags::RECORD) => {
            Punt::Record
        }
        Some(Opcode::Load | Opcode::Store | Opcode::AllocStore) if !whole => Punt::Partial,
        Some(Opcode::Load | Opcode::Store | Opcode::AllocStore) => Punt::Other,
        _ => Punt::Unknown,
    }
}
