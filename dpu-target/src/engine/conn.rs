//! One stream and its session.

use super::{Outside, Waiter, Worker};
use crate::chains::{Link, Nic};
use crate::limits;
use crate::metrics::EndReason;
use crate::plane::Plane;
use crate::sources::Place;
use crate::status::{SessionStatus, uuid};
use crate::strangers;
use kbtp_core::{Admission, Grant, Intake, SessionEnd, SessionId, SessionPhase, TargetSession};
use kbtp_fabric::{
    CloseReason, Event, PostError, ReceiveSlot, Stream, StreamError, Time, WorkOutcome, WorkRequest,
};
use kbtp_iwarp_tcp::Interest;
use kbtp_wire::{
    Completion, CompletionRecord, Header, HelloAck, RequestId, SessionCapabilities, Stag, Status,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// Where a stream is. It only moves down the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Its HELLO has not come.
    HalfOpen,
    /// Its HELLO waits until the session it replaces is gone.
    Replacing,
    /// It serves requests.
    Open,
    /// It closes, for this reason.
    Closing(EndReason),
}

/// How it stands with the session that a HELLO replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Replacement {
    /// There is none, or it was asked to go.
    None,
    /// It is to be asked to go.
    Evict(SessionId),
    /// It is gone: the HELLO can be admitted again.
    Gone,
}

/// What came of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// All is done that can be done now.
    Idle,
    /// There is more: it needs another turn.
    More,
    /// The stream has ended and its last event is taken.
    Ended(EndReason),
}

/// How long a turn lasts.
#[derive(Clone, Copy, Debug)]
struct Pace {
    now: Time,
    until: Time,
    /// Events left.
    budget: u32,
}

/// A stream and its session.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says something of its own, and may hold beside the others"
)]
pub(super) struct Conn<S> {
    pub(super) stream: S,
    pub(super) session: TargetSession,
    pub(super) peer: SocketAddr,
    pub(super) stage: Stage,
    /// The stage that timers and gauges know of.
    pub(super) noted: Stage,
    /// It stands in the queue of ready streams.
    pub(super) queued: bool,
    /// What its descriptor is watched for.
    pub(super) watched: Interest,
    /// The session it replaces.
    pub(super) replacement: Replacement,
    /// It had long enough to close: end it even if it does not report its end.
    pub(super) cut: bool,
    /// Its source's place among the half-open streams, while it is one.
    pub(super) place: Option<Place>,
    /// Who waits for it to be gone.
    pub(super) waiters: Vec<Waiter>,
    /// When it was accepted.
    pub(super) begun: Time,
    /// Requests answered.
    pub(super) requests: u64,
    /// Sends under way behind which a block is still being sent: each pins its block.
    pub(super) pins: u64,
    /// Tickets that the gauge knows of.
    pub(super) tickets: u32,
    /// Messages the session has not taken yet. The stream's receive ring bounds it: each holds a slot.
    waiting: VecDeque<(ReceiveSlot, u32)>,
    /// Requests taken and not answered, with the time they came. The credits bound it.
    asked: VecDeque<(RequestId, Time)>,
    /// The last post found the send queue full.
    full: bool,
    /// The stream's STag of the pool.
    pub(super) pool_stag: Stag,
    /// Its place on the device, if chains serve its session.
    pub(super) link: Option<Link>,
    /// It was granted and may be given one.
    wants_link: bool,
    /// Requests that the device has and that are not answered.
    on_device: u64,
    /// What [`attempt`](Self::attempt) came to, for the next turn to take.
    early: Option<Result<bool, StreamError>>,
}

impl<S: Stream> Conn<S> {
    pub(super) fn new(stream: S, session: TargetSession, peer: SocketAddr, now: Time) -> Self {
        Self {
            stream,
            session,
            peer,
            stage: Stage::HalfOpen,
            noted: Stage::HalfOpen,
            queued: false,
            watched: Interest::READ,
            replacement: Replacement::None,
            cut: false,
            place: None,
            waiters: Vec::new(),
            begun: now,
            requests: 0,
            pins: 0,
            tickets: 0,
            waiting: VecDeque::with_capacity(1),
            asked: VecDeque::new(),
            full: false,
            pool_stag: Stag::default(),
            link: None,
            wants_link: false,
            on_device: 0,
            early: None,
        }
    }

    /// Requests taken and not answered.
    pub(super) fn unanswered(&self) -> u64 {
        let asked = u64::try_from(self.asked.len()).unwrap_or(u64::MAX);
        asked.saturating_add(self.on_device)
    }

    /// Keeps the gauge of tickets true. Cost: a few loads.
    pub(super) fn note_tickets(&mut self, worker: &Worker) {
        let tickets = self.session.usage().tickets;
        if tickets != self.tickets {
            worker.metrics.tickets.add(u64::from(tickets));
            worker.metrics.tickets.sub(u64::from(self.tickets));
            self.tickets = tickets;
        }
    }

    /// Requests received and not answered.
    pub(super) fn in_flight(&self) -> usize {
        let on_device = usize::try_from(self.on_device).unwrap_or(usize::MAX);
        (self.asked.len() + self.waiting.len()).saturating_add(on_device)
    }

    /// Nothing is in flight: closing now loses nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight() == 0
            && self.session.next_work().is_none()
            && !matches!(self.stage, Stage::Replacing)
    }

    /// Ends the stream. The first reason counts; an abort overrides a graceful close.
    pub(super) fn close(&mut self, reason: EndReason, how: CloseReason) {
        if !matches!(self.stage, Stage::Closing(_)) {
            self.stage = Stage::Closing(reason);
            self.stream.close(how);
        } else if how == CloseReason::Abort {
            self.stream.close(how);
        }
    }

    /// Looks whether something has come; if so, a turn is due. Where something waits to be sent the socket is to say
    /// when it takes a good piece of it: trying on and on would send crumbs.
    pub(super) fn attempt(&mut self, now: Time) -> bool {
        if self.early.is_none() && !self.stream.readiness().write {
            let progress = self.stream.progress(now);
            self.early = (!matches!(progress, Ok(false))).then_some(progress);
        }
        self.early.is_some()
    }

    /// One turn: takes what came, posts what follows, as far as it goes without waiting and within the budget.
    pub(super) fn turn(
        &mut self,
        worker: &Worker,
        plane: &Plane,
        nic: &mut Option<Nic>,
        out: &mut impl Outside<S>,
    ) -> Turn {
        let now = out.now();
        let mut pace = Pace {
            now,
            until: now.after_ns(limits::TURN_NS),
            budget: limits::EVENTS_PER_TURN,
        };
        if self.session.poll_timeout().is_some_and(|at| at <= now) {
            let result = self
                .session
                .handle_timeout(now, &worker.shared, &mut self.stream);
            self.check(result, now);
        }
        if let (Some(_), Some(nic)) = (&self.link, nic.as_mut()) {
            return self.turn_on_device(worker, nic, out);
        }
        loop {
            self.full = false;
            let stage = self.stage;
            let early = self.early.take();
            if let Err(error) = early.unwrap_or_else(|| self.stream.progress(now)) {
                return self.ended(&error, worker, out);
            }
            if self.replacement == Replacement::Gone {
                self.replacement = Replacement::None;
                self.admit(worker, plane, out);
            }
            let posted = self.serve(&mut pace, worker, plane, nic, out);
            if self.cut && matches!(self.stage, Stage::Closing(_)) {
                return self.ended(&StreamError::ClosedHere, worker, out);
            }
            if self.wants_link && self.session.next_work().is_none() {
                self.wants_link = false;
                if let Some(nic) = nic.as_mut() {
                    self.take_seat(worker, nic, now);
                    if self.link.is_some() {
                        return self.turn_on_device(worker, nic, out);
                    }
                }
            }
            if pace.budget == 0 {
                return Turn::More;
            }
            // What was posted goes out now, and a close shows its end.
            if !posted && self.stage == stage {
                return Turn::Idle;
            }
            if out.now() >= pace.until && pace.budget < limits::EVENTS_PER_TURN {
                pace.budget = 0;
            }
        }
    }

    /// Takes events and messages until there is none, the budget is used up, or it is `until`. Returns whether the stream
    /// has something new to send.
    fn serve(
        &mut self,
        pace: &mut Pace,
        worker: &Worker,
        plane: &Plane,
        nic: &mut Option<Nic>,
        out: &mut impl Outside<S>,
    ) -> bool {
        let mut posted = false;
        loop {
            posted |= self.post(worker, out);
            // The HELLO is answered: what comes now may be for the device.
            if self.wants_link {
                return posted;
            }
            if pace.budget < limits::EVENTS_PER_TURN && out.now() >= pace.until {
                pace.budget = 0;
            }
            if pace.budget == 0 {
                return posted;
            }
            if !self.full
                && self.session.ready()
                && self.take_waiting(pace.now, worker, plane, nic, out)
            {
                pace.budget -= 1;
                continue;
            }
            let Some(event) = self.stream.next_event() else {
                return posted;
            };
            pace.budget -= 1;
            match event {
                Event::Received { slot, len, .. } => self.waiting.push_back((slot, len.0)),
                Event::Done { id, outcome } => {
                    if outcome == WorkOutcome::Sent && self.pins > 0 {
                        self.pins -= 1;
                        worker.metrics.pins.sub(1);
                    }
                    let result = self
                        .session
                        .handle_done(pace.now, &worker.shared, id, outcome);
                    self.check(result, pace.now);
                }
                // KBTP has no such message towards the target.
                Event::Immediate { .. } => self.close(EndReason::Protocol, CloseReason::Abort),
            }
        }
    }

    /// Gives the session a place on the device, if it is one for chains.
    fn take_seat(&mut self, worker: &Worker, nic: &mut Nic, now: Time) {
        if self.stream.capabilities().outbound_reads == 0 {
            return;
        }
        let waiting = self.waiting.iter().map(|(slot, _)| *slot);
        let (shared, stag) = (&worker.shared, self.pool_stag);
        match nic.open(shared, &self.session, stag, waiting) {
            Ok(Some(link)) => {
                self.link = Some(link);
                self.waiting.clear();
                worker.metrics.chains.sessions.add(1);
            }
            Ok(None) => {}
            Err(error) => {
                if strangers::FAILED.admits(now) {
                    tracing::error!(peer = %self.peer, %error, "a session has no place on the device: software serves it");
                }
            }
        }
    }

    /// One turn of a session that chains serve.
    fn turn_on_device(
        &mut self,
        worker: &Worker,
        nic: &mut Nic,
        out: &mut impl Outside<S>,
    ) -> Turn {
        let until = out.now().after_ns(limits::TURN_NS);
        loop {
            let now = out.now();
            let Some(link) = &mut self.link else {
                return Turn::Idle;
            };
            let id = link.id;
            if worker.shared.is_draining() && !nic.is_draining() {
                // Whoever asks now is told so.
                let drained = nic
                    .drain()
                    .map_err(|_| SessionEnd::Local("the device refused"));
                self.checked(worker, drained.map(|()| true), now);
            }
            let Some(link) = &mut self.link else {
                return Turn::Idle;
            };
            if let Some(Err(error)) = self.early.take() {
                return self.ended(&error, worker, out);
            }
            let carried = nic.carry(link, &mut self.stream, now);
            if let Some(error) = link.take_end() {
                return self.ended(&error, worker, out);
            }
            if self.cut && matches!(self.stage, Stage::Closing(_)) {
                return self.ended(&StreamError::ClosedHere, worker, out);
            }
            let mut moved = self.checked(worker, carried, now);
            moved |= nic.run();
            let (shared, counts) = (&worker.shared, &worker.metrics.chains);
            let done = nic.work(id, &mut self.session, now, shared, counts);
            moved |= self.checked(worker, done, now);
            nic.settle(&shared.pool, counts);
            let in_flight = nic.in_flight(id);
            worker.metrics.in_flight.add(in_flight);
            worker.metrics.in_flight.sub(self.on_device);
            self.on_device = in_flight;
            self.requests = nic.get(id).map_or(0, crate::chains::Seat::answered);
            if !moved {
                return Turn::Idle;
            }
            if now >= until {
                return Turn::More;
            }
        }
    }

    /// Whether anything was done; ends the session if `result` says so.
    fn checked(&mut self, worker: &Worker, result: Result<bool, SessionEnd>, now: Time) -> bool {
        match result {
            Ok(done) => done,
            Err(end) => {
                let closing = matches!(self.stage, Stage::Closing(_));
                self.session.end(&worker.shared, end);
                self.check(Err(end), now);
                !closing
            }
        }
    }

    /// Gives the session the oldest message that waits; whether there was one.
    fn take_waiting(
        &mut self,
        now: Time,
        worker: &Worker,
        plane: &Plane,
        nic: &mut Option<Nic>,
        out: &mut impl Outside<S>,
    ) -> bool {
        let Some((slot, _)) = self.waiting.pop_front() else {
            return false;
        };
        if matches!(self.stage, Stage::Closing(_)) {
            self.stream.release(slot);
            return true;
        }
        let message = self.stream.message(slot);
        if let Some(nic) = nic {
            // What chains have begun goes on until they have looked.
            while !nic.may_take(message) && nic.run() {}
        }
        if let (Stage::Open, Some(head)) = (self.stage, message.first_chunk()) {
            self.asked.push_back((Header::decode(head).request_id, now));
            worker.metrics.in_flight.add(1);
        }
        let result = self.session.handle_message(now, &worker.shared, message);
        self.stream.release(slot);
        match result {
            Ok(Intake::Taken) => {}
            Ok(Intake::Admit) => self.admit(worker, plane, out),
            Err(end) => self.check(Err(end), now),
        }
        true
    }

    /// Has the HELLO answered, or learns which session must go first.
    fn admit(&mut self, worker: &Worker, plane: &Plane, out: &mut impl Outside<S>) {
        let now = out.now();
        let refused = &worker.shared.stats.partitions_refused;
        let before = refused.load(Ordering::Relaxed);
        let result = plane.with(|directory| {
            self.session
                .admit(now, &worker.shared, directory, &mut self.stream)
        });
        match result {
            Ok(Admission::Answered) => {
                if self.session.phase() == SessionPhase::Open {
                    self.stage = Stage::Open;
                    self.wants_link = true;
                    self.begin(worker);
                    //= kbtp-p8-contiguous-partition
                    if refused.load(Ordering::Relaxed) != before
                        && strangers::NO_PARTITION.admits(now)
                    {
                        tracing::warn!(
                            peer = %self.peer,
                            "no contiguous partition is left: the session is granted without DIRECT_ALLOC"
                        );
                    }
                }
            }
            Ok(Admission::Replace(old)) => {
                self.stage = Stage::Replacing;
                self.replacement = Replacement::Evict(old);
            }
            Err(end) => self.check(Err(end), now),
        }
    }

    fn begin(&mut self, worker: &Worker) {
        let Some(grant) = self.session.grant() else {
            return;
        };
        let credits = usize::from(grant.credits);
        self.asked.reserve(credits);
        self.waiting.reserve(credits);
        tracing::info!(
            tenant = %grant.tenant,
            initiator = %uuid(&grant.initiator),
            peer = %self.peer,
            worker = worker.index,
            quota = grant.quota,
            handles = grant.handle_count,
            credits = grant.credits,
            capabilities = ?capabilities(grant),
            resumed = grant.resumed,
            "session begins"
        );
    }

    /// Posts the session's work as far as the stream takes it; whether it took any.
    fn post(&mut self, worker: &Worker, out: &impl Outside<S>) -> bool {
        let mut posted = false;
        while let Some(work) = self.session.next_work() {
            let answered = answered(&work.request);
            if self.stage == Stage::HalfOpen
                && let Some(status) = refusal(&work.request)
                && strangers::HELLO_REFUSED.admits(out.now())
            {
                tracing::warn!(peer = %self.peer, %status, "a HELLO is refused");
            }
            // A Send whose end is reported stands behind the Write of a block, and tells when the block is done with.
            let pins = work.signaled && matches!(work.request, WorkRequest::Send { .. });
            match self.stream.post(work.id, &work.request, work.signaled) {
                Ok(()) => {}
                Err(PostError::QueueFull) => {
                    self.full = true;
                    worker.metrics.send_queue_full.increment();
                    return posted;
                }
                // The stream reports its end with the next progress.
                Err(PostError::Closed) => return posted,
                Err(error) => {
                    if strangers::FAILED.admits(out.now()) {
                        tracing::error!(peer = %self.peer, %error, "the stream refused work of its session");
                    }
                    self.close(EndReason::Internal, CloseReason::Abort);
                    return posted;
                }
            }
            posted = true;
            self.session.work_posted();
            if pins {
                self.pins += 1;
                worker.metrics.pins.add(1);
            }
            if let Some(id) = answered {
                self.answered(id, worker, out);
            }
        }
        if self.session.phase() == SessionPhase::Closing && !matches!(self.stage, Stage::Closing(_))
        {
            self.close(EndReason::Refused, CloseReason::Graceful);
        }
        posted
    }

    /// The request `id` was answered.
    fn answered(&mut self, id: RequestId, worker: &Worker, out: &impl Outside<S>) {
        self.requests = self.requests.wrapping_add(1);
        // Most are answered in the order they came: the search ends at once.
        if let Some(at) = self.asked.iter().position(|(asked, _)| *asked == id)
            && let Some((_, came)) = self.asked.remove(at)
        {
            worker.metrics.in_flight.sub(1);
            worker.metrics.latency.observe_ns(out.now().since_ns(came));
        }
    }

    /// Ends the session if `result` says so.
    fn check(&mut self, result: Result<(), SessionEnd>, now: Time) {
        let Err(end) = result else {
            return;
        };
        let reason = match &end {
            SessionEnd::Local(what) => {
                if strangers::FAILED.admits(now) {
                    tracing::error!(peer = %self.peer, what, "a session failed");
                }
                EndReason::Internal
            }
            // The stream itself says why, with the next progress.
            SessionEnd::Flushed => return,
            broken => {
                if strangers::BROKE_PROTOCOL.admits(now) {
                    tracing::warn!(peer = %self.peer, reason = %broken, "an initiator broke the protocol");
                }
                EndReason::Protocol
            }
        };
        self.close(reason, CloseReason::Abort);
    }

    /// The stream has ended: takes its last events.
    fn ended(&mut self, error: &StreamError, worker: &Worker, out: &impl Outside<S>) -> Turn {
        while let Some(event) = self.stream.next_event() {
            match event {
                Event::Received { slot, .. } => self.stream.release(slot),
                Event::Done { id, outcome } => {
                    // The session ends in any case.
                    let _ended = self
                        .session
                        .handle_done(out.now(), &worker.shared, id, outcome);
                }
                Event::Immediate { .. } => {}
            }
        }
        if let Stage::Closing(reason) = self.stage {
            return Turn::Ended(reason);
        }
        let reason = match error {
            StreamError::PeerClosed => EndReason::PeerClosed,
            StreamError::PeerTerminated { .. } => EndReason::PeerTerminated,
            StreamError::Protocol { .. } => EndReason::TransportProtocol,
            StreamError::Connection { .. } => EndReason::Connection,
            _ => EndReason::Internal,
        };
        if !matches!(error, StreamError::PeerClosed) && strangers::STREAM_ENDED.admits(out.now()) {
            tracing::warn!(peer = %self.peer, %error, "a stream ended");
        }
        Turn::Ended(reason)
    }

    /// What `/status` says of it, once it is open.
    pub(super) fn status(&self, worker: usize, now: Time) -> Option<SessionStatus> {
        let grant = self.session.grant()?;
        Some(SessionStatus {
            tenant: grant.tenant.clone(),
            initiator: uuid(&grant.initiator),
            peer: self.peer.to_string(),
            worker,
            engine: if self.link.is_some() {
                "chain"
            } else {
                "software"
            },
            quota: u64::from(grant.quota),
            usage: u64::from(self.session.usage().total()),
            handle_base: grant.handle_base.0,
            handle_count: grant.handle_count,
            capabilities: capabilities(grant),
            in_flight: u64::try_from(self.in_flight()).unwrap_or(u64::MAX),
            requests: self.requests,
            age_ns: now.since_ns(self.begun),
            stags: self.stream.stags(),
        })
    }
}

/// The request that this work answers, if it is a COMPLETION or a completion record.
fn answered(work: &WorkRequest<'_>) -> Option<RequestId> {
    match work {
        WorkRequest::Send { head, .. } => {
            let octets: &[u8; Completion::LEN] = head.first_chunk()?;
            Completion::decode(octets).ok().map(|c| c.request_id)
        }
        WorkRequest::WriteImmediate { octets, .. } => {
            let octets: &[u8; CompletionRecord::LEN] = octets.first_chunk()?;
            CompletionRecord::decode(octets).ok().map(|c| c.request_id)
        }
        _ => None,
    }
}

/// What a session was granted, by name.
fn capabilities(grant: &Grant) -> Vec<&'static str> {
    let names = [
        ("direct_load", SessionCapabilities::DIRECT_LOAD),
        ("direct_alloc", SessionCapabilities::DIRECT_ALLOC),
        ("record_completion", SessionCapabilities::RECORD_COMPLETION),
    ];
    let granted = names
        .iter()
        .filter(|(_, capability)| grant.has(*capability));
    granted.map(|(name, _)| *name).collect()
}

/// Why a HELLO_ACK of the target refuses the session, if this work is one that does.
fn refusal(work: &WorkRequest<'_>) -> Option<Status> {
    let WorkRequest::Send { head, .. } = work else {
        return None;
    };
    match HelloAck::decode(head) {
        Ok(HelloAck::Refused { status, .. }) => Some(status),
        _ => None,
    }
}

/// One line for tickets that were abandoned.
pub(super) fn log_abandoned(session: &TargetSession, peer: SocketAddr, tickets: u64, now: Time) {
    if let Some(grant) = session.grant()
        && strangers::TICKETS_ABANDONED.admits(now)
    {
        tracing::warn!(
            tenant = %grant.tenant,
            initiator = %uuid(&grant.initiator),
            %peer,
            tickets,
            "tickets abandoned: direct allocation is off for the rest of the session"
        );
    }
}

/// One line for the end of a session.
pub(super) fn log_end(
    session: &TargetSession,
    peer: SocketAddr,
    reason: EndReason,
    (begun, now): (Time, Time),
    requests: u64,
) {
    let reason = reason.label();
    let age_ns = now.since_ns(begun);
    let Some(grant) = session.grant() else {
        if strangers::NO_SESSION.admits(now) {
            tracing::info!(%peer, reason, "stream ends without a session");
        }
        return;
    };
    tracing::info!(
        tenant = %grant.tenant,
        initiator = %uuid(&grant.initiator),
        %peer,
        reason,
        age_ms = age_ns / 1_000_000,
        requests,
        "session ends"
    );
}
