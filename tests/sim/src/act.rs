//! One turn of an initiator's end of a connection: what came, what is to be done, what goes out.

use crate::client::{CEnd, EXTRA, Kind, Op};
use crate::marks::Mark;
use crate::model::{Effect, Pending, Range};
use crate::options::GRANULE;
use crate::plan::Step;
use crate::rng::{Rng, mix};
use crate::rogue::{NO_SLOT, ROGUE};
use crate::world::{CLIENT, Phase, WATCHDOG_NS, World, tell};
use kbtp_core::initiator::{Initiator, NEVER, Request, SessionError, Source, SubmitError};
use kbtp_fabric::{
    Access, Atomics, CloseReason, Event, LocalBuffer, PostError, StreamError, Time, WorkOutcome,
};
use kbtp_iwarp::Startup;
use kbtp_wire::{Generation, Handle, Nonce, RingCounter, Status};

impl World {
    pub(crate) fn client_turn(&mut self, link: usize) {
        let Some(mut end) = self.links[link].c.take() else {
            return;
        };
        let client = self.links[link].client;
        let now = self.now;
        let paused = self.clients[client].paused_until;
        if paused > now && self.phase == Phase::Steps {
            self.links[link].c = Some(end);
            return self.wake(link, CLIENT, paused);
        }
        loop {
            let reset = end.reset;
            let moved = self.pump(link, CLIENT, &mut end.conn, reset);
            if moved || !end.waits() {
                end.progress_at = now;
            }
            if end.conn.is_ended() {
                return self.client_ends(link, end);
            }
            self.begin_session(client, &mut end);
            let mut busy = self.take_events(link, &mut end);
            busy |= self.post_work(&mut end);
            if !end.closing && self.out.violation.is_none() {
                busy |= self.issue(link, &mut end);
                busy |= self.post_work(&mut end);
            }
            if self.phase == Phase::Close && !end.closing {
                Self::close_client(&mut end, CloseReason::Graceful);
                busy = true;
            }
            if !moved && !busy || self.out.violation.is_some() {
                break;
            }
        }
        let silent = Self::watchdog(&end) <= now;
        if silent {
            self.out.marks.hit(Mark::Watchdog);
            let of = &self.links[link];
            // A damaged length has its stream wait for octets that nobody sends.
            let known = of.silenced || of.fatal || of.hurt || end.ops.is_empty();
            if !known && end.progress_at > self.jumped_at {
                self.fail(format!(
                    "connection {link}: nothing was wrong with it, and for {WATCHDOG_NS} ns nothing came: {:?}",
                    end.ops
                ));
            }
            tell!(self, "connection {link}: the initiator gives it up");
            Self::close_client(&mut end, CloseReason::Abort);
            self.wake(link, CLIENT, now);
        } else {
            let waits = end.waits();
            let due = [
                Some(self.links[link].pipes[CLIENT].next_at(end.conn.wants_read())),
                end.conn.next_timeout(),
                end.session.as_ref().and_then(Initiator::timeout),
                waits.then(|| Self::watchdog(&end)),
            ];
            if let Some(at) = due.into_iter().flatten().min() {
                self.wake(link, CLIENT, at);
            }
        }
        self.links[link].c = Some(end);
    }

    fn close_client(end: &mut CEnd, how: CloseReason) {
        end.closing = true;
        end.reset |= how == CloseReason::Abort;
        end.conn.close(how);
    }

    fn begin_session(&mut self, client: usize, end: &mut CEnd) {
        if end.session.is_some() || end.conn.startup() != Startup::Established || end.closing {
            return;
        }
        let wrong_key = self.o.auth && self.rng.per_mille(20);
        let settings = self.clients[client].settings(&self.o, wrong_key);
        let scratch = end.scratch();
        let nonce = Nonce(self.rng.octets());
        let deadline = self.now.after_ms(6_000);
        let data = end.conn.peer_private_data().to_vec();
        match Initiator::new(
            settings,
            &data,
            nonce,
            Atomics::Masked,
            scratch,
            None,
            deadline,
        ) {
            Ok(session) => end.session = Some(session),
            Err(error) => self.fail(format!("no session can begin: {error}")),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each kind of event")]
    fn take_events(&mut self, link: usize, end: &mut CEnd) -> bool {
        let now = self.now;
        let mut busy = false;
        let Some(session) = &mut end.session else {
            return false;
        };
        let mut result = Ok(());
        let was_open = session.is_open();
        if session.timeout().is_some_and(|at| at <= now) {
            result = session.handle_timeout(now);
        }
        let mut refused = None;
        while result.is_ok() && !end.closing {
            let Some(event) = end.conn.next_event() else {
                break;
            };
            busy = true;
            match event {
                Event::Received {
                    slot, invalidated, ..
                } => {
                    let message = end.conn.message(slot);
                    let id = message.get(4..12).and_then(|o| o.try_into().ok());
                    let id = id.map_or(0, u64::from_be_bytes);
                    if id & ROGUE != 0 {
                        let status = u16::from_be_bytes([message[22], message[23]]);
                        let at = end.rogues.iter().position(|rogue| rogue.id == id);
                        let many = at.is_some_and(|at| end.rogues[at].many);
                        match at.filter(|_| !many).map(|at| end.rogues.remove(at)) {
                            None if many => {}
                            Some(rogue) if rogue.may.contains(&status) => {
                                self.out.marks.status(status);
                            }
                            other => refused = Some(format!("status {status} for {other:?}")),
                        }
                    } else {
                        result = session.handle_received(message, invalidated);
                    }
                    end.conn.release(slot);
                }
                Event::Done { id, outcome } => {
                    if let WorkOutcome::Atomic(head) = outcome {
                        let ticket = RingCounter(head).ticket();
                        let slots = session.terms().map_or(1, |t| t.grant.ring_order.slots());
                        if ticket.0 >= slots {
                            self.out.marks.hit(Mark::PartitionWrap);
                        }
                        if id == NO_SLOT {
                            end.hoarded.push((ticket, now));
                        }
                    }
                    result = session.handle_done(now, id, outcome);
                }
                Event::Immediate { data } => result = session.handle_immediate(data),
            }
        }
        if let Some(what) = refused {
            self.fail(what);
        }
        if !was_open && session.is_open() {
            let client = self.links[link].client;
            let bound = self.model.bound(link);
            session.set_usage(bound, 0);
            let instance = session.terms().map(|terms| terms.grant.instance.0);
            let known = self.clients[client].instance;
            if known.is_some() && known != instance {
                self.out.marks.hit(Mark::NewInstance);
            }
            self.clients[client].instance = instance;
        }
        self.take_finished(link, end);
        if let Err(error) = result {
            self.session_over(link, end, &error);
            busy = true;
        }
        busy
    }

    fn session_over(&mut self, link: usize, end: &mut CEnd, error: &SessionError) {
        match error {
            SessionError::Refused { status } => {
                self.out.marks.status(status.to_wire());
                let may = [Status::NoSpace, Status::ShuttingDown, Status::NotAuthorized];
                if !may.contains(status) {
                    self.fail(format!("a HELLO is refused with {status}"));
                }
            }
            SessionError::HelloTimeout => {}
            other => self.fail(format!(
                "connection {link}: the target broke a rule: {other}"
            )),
        }
        tell!(self, "connection {link}: {error}");
        Self::close_client(end, CloseReason::Abort);
    }

    fn take_finished(&mut self, link: usize, end: &mut CEnd) {
        let client = self.links[link].client;
        while let Some(finished) = end.session.as_mut().and_then(Initiator::poll_finished) {
            let Some(op) = end.ops.remove(&finished.token) else {
                self.fail(format!("an outcome of no operation: {finished:?}"));
                return;
            };
            if let Some((buffer, stag)) = op.buffer {
                let given_up = matches!(
                    finished.result,
                    Err(kbtp_core::initiator::Failure::GivenUp { .. }
                        | kbtp_core::initiator::Failure::TicketTimeout { .. })
                );
                // One that the peer has invalidated is gone already.
                let gone = if given_up {
                    end.given_up += 1;
                    end.conn.retire(stag)
                } else {
                    end.conn.invalidate(stag)
                };
                // Of what was lost with its stream nobody said what was invalidated.
                let lost = matches!(
                    finished.result,
                    Err(kbtp_core::initiator::Failure::Lost { .. })
                );
                if finished.result.is_ok() && op.invalidate && !finished.invalidated {
                    self.fail(format!("nobody invalidated what {op:?} asked for"));
                }
                if gone.is_ok() == finished.invalidated && !given_up && !lost {
                    self.fail(format!("{stag} is {gone:?} after {finished:?}"));
                }
                self.check_answer(link, &op, &finished);
                if self.clients[client].arena.canaries_dead(buffer) {
                    self.fail(format!("somebody wrote beside the buffer of {op:?}"));
                }
                self.clients[client].arena.give(buffer);
            } else {
                self.check_answer(link, &op, &finished);
            }
        }
        while let Some(stag) = end.session.as_mut().and_then(Initiator::poll_released) {
            self.out.marks.hit(Mark::GivenUp);
            // What the target invalidated as it was asked to is gone already.
            drop(end.conn.invalidate(stag));
        }
    }

    fn post_work(&mut self, end: &mut CEnd) -> bool {
        let mut posted = false;
        let Some(session) = &mut end.session else {
            return false;
        };
        while let Some(work) = session.work() {
            match end.conn.post(work.id, &work.request, work.signaled) {
                Ok(()) => session.posted(self.now),
                Err(PostError::QueueFull | PostError::Closed) => return posted,
                Err(error) => {
                    self.fail(format!("a stream refused work of an initiator: {error}"));
                    return posted;
                }
            }
            posted = true;
        }
        posted
    }

    /// An initiator's stream has ended.
    fn client_ends(&mut self, link: usize, mut end: Box<CEnd>) {
        let client = self.links[link].client;
        self.take_events(link, &mut end);
        if let Some(session) = &mut end.session {
            session.handle_closed();
        }
        self.take_finished(link, &mut end);
        if !end.ops.is_empty() {
            self.fail(format!("operations without an outcome: {:?}", end.ops));
        }
        let why = end.conn.take_error();
        let damaged = self.links[link].hurt;
        if let Some(StreamError::Protocol { reason }) = &why {
            self.out.marks.cause(reason);
        }
        if self.links[link].caught && matches!(why, Some(StreamError::PeerClosed)) {
            self.fail("a stream was broken, and nobody was told why".into());
        }
        self.damage_seen(link, CLIENT, why.as_ref());
        if let Some(StreamError::Protocol { reason }) = &why
            && !damaged
            && !self.links[link].caught
            && !self.links[link].fatal
            && !reason.contains("closed")
            // A store that was given up while the target had not read all of its data yet.
            && !reason.contains("retired")
        {
            self.fail(format!("the target's stream broke a rule: {reason}"));
        }
        tell!(
            self,
            "connection {link} ends at initiator {client}: {why:?}"
        );
        drop(end);
        self.links[link].pipes[CLIENT].void = true;
        if self.links[link].t.is_none() {
            self.model.ended(link, self.links[link].spoilt);
        }
        if self.clients[client].link == Some(link) {
            self.clients[client].link = None;
            self.clients[client].arena.give_all();
            let wait = self.rng.within(1_000, 2_000_000);
            self.connect_in(client, wait);
        }
    }

    // ---- Operations ----

    /// Submits what the initiator is to do, as far as there is room; whether anything was.
    fn issue(&mut self, link: usize, end: &mut CEnd) -> bool {
        let client = self.links[link].client;
        let mut some = false;
        if self.phase == Phase::Settle {
            return self.free_all(link, end);
        }
        loop {
            let open = end.session.as_ref().is_some_and(|session| {
                session.is_open() && session.free_credits() as usize > end.rogues.len()
            });
            if !open || end.closing {
                return some;
            }
            let Some(step) = self.clients[client].queue.front().copied() else {
                return some;
            };
            let rng = &mut Rng::new(step.salt);
            let done = if rng.per_mille(self.o.rogue) {
                self.say_rogue(link, end, &step, rng)
            } else {
                self.submit(link, end, &step, rng)
            };
            if !done {
                return some;
            }
            some = true;
            self.clients[client].queue.pop_front();
        }
    }

    /// Frees what is bound in the range, when leases never end.
    fn free_all(&mut self, link: usize, end: &mut CEnd) -> bool {
        let mut some = false;
        let Some(range) = self
            .model
            .range(link)
            .filter(|_| self.o.lease_ms == u32::MAX)
        else {
            return false;
        };
        if !end.ops.is_empty() {
            return false;
        }
        for row in range.first..range.first + range.rows {
            let row = row as usize;
            if !self.model.state(row).valid {
                continue;
            }
            let id = mix(self.model.seq, row as u64) & !ROGUE;
            let request = Request::Free {
                handle: Handle(self.o.table_base + row as u64),
                generation: None,
            };
            let op = Op {
                id,
                kind: Kind::Free,
                row: Some(row),
                generation: None,
                len: 0,
                seal: false,
                unsealed: false,
                invalidate: false,
                buffer: None,
                since: self.model.seq,
                at: self.now,
            };
            if !self.hand_in(link, end, request, op, NEVER) {
                break;
            }
            some = true;
        }
        some
    }

    fn hand_in(
        &mut self,
        link: usize,
        end: &mut CEnd,
        request: Request,
        op: Op,
        deadline: Time,
    ) -> bool {
        let Some(session) = &mut end.session else {
            return false;
        };
        match session.submit(request, op.id, deadline) {
            Ok(_) => {
                self.out.ops += 1;
                tell!(self, "connection {link}: {op:?}");
                let effect = match op.kind {
                    Kind::Load | Kind::DirectLoad => None,
                    Kind::Alloc => Some(Effect::Alloc),
                    Kind::AllocDirect => Some(Effect::AllocDirect),
                    Kind::Store => Some(Effect::Store),
                    Kind::Free => Some(Effect::Free),
                };
                let tenant = self.clients[self.links[link].client].tenant;
                self.model.note_tenant(op.id, tenant);
                if let (Some(effect), Some(row)) = (effect, op.row) {
                    let pending = Pending {
                        op: op.id,
                        link,
                        effect,
                        len: op.len,
                        seal: op.seal,
                    };
                    self.model.expect(row, pending);
                }
                end.ops.insert(op.id, op);
                true
            }
            Err(error) => {
                if let Some((buffer, stag)) = op.buffer {
                    drop(end.conn.invalidate(stag));
                    let client = self.links[link].client;
                    self.clients[client].arena.give(buffer);
                }
                // Busy: later. Everything else was refused for good, and counts as carried out.
                if !matches!(error, SubmitError::Busy { .. } | SubmitError::NotOpen) {
                    self.out.ops += 1;
                    return true;
                }
                false
            }
        }
    }

    /// A row of the kind that makes sense for the operation, if there is one near.
    fn choose_row(&self, link: usize, kind: Kind, rng: &mut Rng) -> usize {
        // Of a pool that is lost it has no range any more, and does not know it yet.
        let own = self.model.range(link).unwrap_or_else(|| self.lost_range());
        let sensible = rng.per_mille(self.o.sensible);
        let foreign = matches!(kind, Kind::Load | Kind::DirectLoad) && rng.per_mille(500)
            || rng.per_mille(if sensible { 0 } else { 200 });
        let granules = self.o.rows() / GRANULE;
        let mut row = own.first as usize + rng.below(self.o.hot_rows) as usize;
        for _ in 0..8 {
            let first = if foreign {
                rng.below(granules) * GRANULE
            } else {
                own.first
            };
            row = (first + rng.below(self.o.hot_rows)) as usize;
            let state = self.model.state(row);
            let good = match kind {
                Kind::Load | Kind::DirectLoad | Kind::Free => state.valid,
                Kind::Alloc | Kind::AllocDirect => !state.valid,
                Kind::Store => state.valid && !state.sealed,
            };
            if good || !sensible {
                break;
            }
        }
        row
    }

    /// A range for whom has lost its own.
    pub(crate) const fn lost_range(&self) -> Range {
        Range {
            first: self.o.rows() - GRANULE,
            rows: GRANULE,
        }
    }

    fn choose_kind(&self, rng: &mut Rng) -> Kind {
        let kinds = [
            Kind::Load,
            Kind::DirectLoad,
            Kind::Alloc,
            Kind::AllocDirect,
            Kind::Store,
            Kind::Free,
        ];
        let mut at = rng.below(self.o.weights.iter().sum());
        for (kind, weight) in kinds.into_iter().zip(self.o.weights) {
            if at < weight {
                return match kind {
                    Kind::DirectLoad if !self.o.direct_load => Kind::Load,
                    Kind::AllocDirect if !self.o.direct_alloc => Kind::Alloc,
                    kind => kind,
                };
            }
            at -= weight;
        }
        Kind::Load
    }

    /// Octets of an operation: of its data, or of the buffer of a load.
    fn choose_len(&self, kind: Kind, rng: &mut Rng) -> u32 {
        let block = u64::from(self.o.block_size);
        let loads = matches!(kind, Kind::Load | Kind::DirectLoad);
        let len = match rng.below(12) {
            _ if kind == Kind::Free => 0,
            _ if kind == Kind::Alloc && self.o.churn => rng.within(1, 64),
            0 if loads => rng.below(block),
            _ if loads => block,
            0 => 0,
            // A BIND alone, with no Write before it that a revoked STag would stop.
            1 | 2 if kind == Kind::AllocDirect => 0,
            1 => rng.within(1, 64),
            2..=4 => rng.within(1, block),
            5 if kind != Kind::AllocDirect && rng.per_mille(100) => block + rng.within(1, EXTRA),
            6..=8 => rng.within(1, 512).min(block),
            _ => block,
        };
        len as u32
    }

    /// Draws an operation and submits it; false if it must wait.
    fn submit(&mut self, link: usize, end: &mut CEnd, step: &Step, rng: &mut Rng) -> bool {
        let kind = self.choose_kind(rng);
        let row = self.choose_row(link, kind, rng);
        let known = self.model.state(row).generation;
        let generation = match rng.below(10) {
            _ if matches!(kind, Kind::Alloc | Kind::AllocDirect) => None,
            0..=2 => Generation::new(known),
            3 if rng.per_mille(300) => Generation::new(rng.next() as u16),
            _ => None,
        };
        let len = self.choose_len(kind, rng);
        let loads = matches!(kind, Kind::Load | Kind::DirectLoad);
        let drawn = Drawn {
            invalidate: rng.per_mille(200),
            inline: len <= self.o.max_inline && (self.o.churn || rng.per_mille(600)),
        };
        let mut op = Op {
            id: (step.number + 1) | (self.o.seed << 32) & !ROGUE,
            kind,
            row: Some(row),
            generation,
            len,
            seal: !loads && rng.per_mille(self.o.seal),
            unsealed: rng.per_mille(600),
            invalidate: drawn.invalidates(kind),
            buffer: None,
            since: self.model.seq,
            at: self.now,
        };
        let deadline = if rng.per_mille(self.o.deadlines) {
            self.now.after_ns(rng.within(1_000, 2_000_000))
        } else {
            NEVER
        };
        let mut local = None;
        if kind != Kind::Free {
            let arena = &mut self.clients[self.links[link].client].arena;
            local = arena.lend(&mut end.conn, &op, drawn.access(kind));
            let Some((buffer, lent)) = local else {
                return false;
            };
            op.buffer = Some((buffer, lent.stag));
        }
        let handle = Handle(self.o.table_base + row as u64);
        let request = drawn.request(&op, handle, local.map(|(_, lent)| lent));
        self.hand_in(link, end, request, op, deadline)
    }
}

/// What else is drawn for an operation.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    invalidate: bool,
    inline: bool,
}

impl Drawn {
    /// The rights that its buffer needs.
    const fn access(self, kind: Kind) -> Access {
        match kind {
            Kind::Load => Access {
                remote_write: true,
                remote_invalidate: self.invalidate,
                ..Access::LOCAL_READ
            },
            Kind::DirectLoad => Access::LOCAL,
            Kind::Alloc | Kind::Store if !self.inline => Access {
                remote_read: true,
                remote_invalidate: self.invalidate,
                ..Access::LOCAL_READ
            },
            _ => Access::LOCAL_READ,
        }
    }

    /// Whether the target is asked to invalidate the buffer's STag.
    const fn invalidates(self, kind: Kind) -> bool {
        match kind {
            Kind::Load => self.invalidate,
            Kind::Alloc | Kind::Store => self.invalidate && !self.inline,
            _ => false,
        }
    }

    const fn source(self, from: LocalBuffer) -> Source {
        if self.inline {
            Source::Inline(from)
        } else {
            Source::Read {
                from,
                invalidate: self.invalidate,
            }
        }
    }

    fn request(self, op: &Op, handle: Handle, local: Option<LocalBuffer>) -> Request {
        let (generation, seal) = (op.generation, op.seal);
        match (op.kind, local) {
            (Kind::Load, Some(into)) => Request::Load {
                handle,
                generation,
                into,
                allow_unsealed: op.unsealed,
                invalidate: self.invalidate,
            },
            (Kind::DirectLoad, Some(into)) => Request::LoadDirect {
                handle,
                generation,
                into,
            },
            (Kind::Alloc, Some(local)) => Request::AllocStore {
                handle,
                from: self.source(local),
                seal,
            },
            (Kind::AllocDirect, Some(from)) => Request::AllocDirect { handle, from, seal },
            (Kind::Store, Some(local)) => Request::Store {
                handle,
                generation,
                from: self.source(local),
                seal,
            },
            _ => Request::Free { handle, generation },
        }
    }
}
