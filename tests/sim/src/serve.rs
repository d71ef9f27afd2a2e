//! One turn of the target's end of a connection, as a worker of the target gives it.

use crate::marks::Mark;
use crate::model::Range;
use crate::target::{Stage, TEnd};
use crate::world::{CLIENT, TARGET, World, tell};
use kbtp_core::{
    Admission, Intake, SessionConfig, SessionEnd, SessionId, SessionPhase, TargetSession,
};
use kbtp_fabric::{
    Access, Capabilities, CloseReason, Event, LocalError, PostError, StreamError, Time, WorkRequest,
};
use kbtp_iwarp::{Connection, Startup};
use kbtp_memory::Region;
use kbtp_wire::{PrivateData, SessionCapabilities, Stag, TaggedOffset};
use std::sync::atomic::Ordering::Relaxed;

/// A worker's timers are this late, in nanoseconds: it has other streams to serve.
const TIMER_SLACK_NS: u64 = 200_000;
/// Events of a turn.
const EVENTS: u32 = 64;

/// Registers with a connection as a session wants it.
struct Exposer<'a>(&'a mut Connection);

impl kbtp_core::Exposer for Exposer<'_> {
    fn expose(
        &mut self,
        region: &Region,
        range: std::ops::Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        self.0.register(region, range, base, access)
    }

    fn revoke(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.0.invalidate(stag)
    }
}

impl World {
    pub(crate) fn target_turn(&mut self, link: usize) {
        let Some(mut end) = self.links[link].t.take() else {
            return;
        };
        let now = self.now;
        if end.late_until > now {
            let until = end.late_until;
            self.links[link].t = Some(end);
            return self.wake(link, TARGET, until);
        }
        if end.keepalive.is_some_and(|at| at <= now) {
            end.keepalive = None;
            self.out.marks.hit(Mark::Keepalive);
            end.conn.handle_broken(std::io::ErrorKind::TimedOut.into());
        }
        if matches!(end.stage, Stage::Startup | Stage::HalfOpen) && end.hello_by <= now {
            Self::close(&mut end, CloseReason::Abort);
        }
        if let Some(session) = &mut end.session
            && session.poll_timeout().is_some_and(|at| at <= now)
        {
            let shared = &self.target.shared;
            let before = shared.stats.tickets_abandoned.load(Relaxed);
            let result = session.handle_timeout(now, shared, &mut Exposer(&mut end.conn));
            if shared.stats.tickets_abandoned.load(Relaxed) != before {
                self.links[link].abandoned_at.get_or_insert(now);
            }
            self.after_call(link, Some(&mut end.conn));
            self.take_end(link, &mut end, result);
        }
        let mut budget = EVENTS;
        loop {
            let stage = end.stage;
            let reset = end.reset;
            let moved = self.pump(link, TARGET, &mut end.conn, reset);
            if end.conn.is_ended() {
                return self.target_ends(link, end);
            }
            self.start_up(&mut end);
            if end.replaced_gone {
                end.replaced_gone = false;
                self.admit(link, &mut end);
            }
            let posted = self.serve(link, &mut end, &mut budget);
            if self.dying {
                self.links[link].t = Some(end);
                return self.finish_dying();
            }
            if budget == 0 || self.out.violation.is_some() {
                self.wake(link, TARGET, now);
                break;
            }
            if !posted && !moved && end.stage == stage {
                break;
            }
        }
        self.rest(link, &end);
        self.links[link].t = Some(end);
    }

    fn rest(&mut self, link: usize, end: &TEnd) {
        let session = end.session.as_ref();
        let slack = |at: Time| at.max(self.now.after_ns(TIMER_SLACK_NS));
        let hello = matches!(end.stage, Stage::Startup | Stage::HalfOpen).then_some(end.hello_by);
        let due = [
            Some(self.links[link].pipes[TARGET].next_at(end.conn.wants_read())),
            end.conn.next_timeout(),
            session.and_then(TargetSession::poll_timeout).map(slack),
            hello,
            end.keepalive,
        ];
        if let Some(at) = due.into_iter().flatten().min() {
            self.wake(link, TARGET, at);
        }
    }

    /// The startup of the stream, and of the session on it.
    fn start_up(&mut self, end: &mut TEnd) {
        let now = self.now;
        if end.stage != Stage::Startup {
            return;
        }
        if end.conn.startup() == Startup::Request {
            let data = PrivateData {
                auth_mode: end.auth,
                challenge: kbtp_wire::Challenge(end.challenge),
            };
            if end.conn.accept(&data.encode(), now).is_err() {
                self.fail("a stream cannot be accepted".into());
            }
        }
        if end.conn.startup() == Startup::Established {
            let pool = &self.target.shared.pool;
            let geometry = pool.geometry();
            let base = TaggedOffset(geometry.pool_base.0);
            let mut register = |access| {
                end.conn
                    .register(pool.block_region(), 0..geometry.pool_len(), base, access)
                    .unwrap_or_default()
            };
            let (pool_stag, sealed) = (register(Access::LOCAL), register(Access::LOCAL_READ));
            let capabilities: Capabilities = end.conn.capabilities();
            self.target.sessions += 1;
            let id = SessionId(self.target.sessions);
            let mut session = TargetSession::new(SessionConfig {
                id,
                auth: end.auth,
                challenge: end.challenge,
                pool_stag,
                capabilities,
            });
            session.send_sealed_from(sealed);
            end.id = Some(id);
            end.session = Some(session);
            end.stage = Stage::HalfOpen;
        }
    }

    /// Takes events and messages until there is none; whether the stream has something new to send.
    fn serve(&mut self, link: usize, end: &mut TEnd, budget: &mut u32) -> bool {
        let mut posted = false;
        loop {
            if self.dying {
                return posted;
            }
            let (some, full) = self.post(end);
            posted |= some;
            if *budget == 0 || end.session.is_none() {
                return posted;
            }
            let ready = end.session.as_ref().is_some_and(TargetSession::ready);
            if !full && ready && self.take_waiting(link, end) {
                *budget -= 1;
                continue;
            }
            let Some(event) = end.conn.next_event() else {
                return posted;
            };
            *budget -= 1;
            match event {
                Event::Received { slot, .. } => end.waiting.push_back(slot),
                Event::Done { id, outcome } => {
                    if let Some(session) = &mut end.session {
                        let shared = &self.target.shared;
                        let result = session.handle_done(self.now, shared, id, outcome);
                        self.after_call(link, Some(&mut end.conn));
                        self.take_end(link, end, result);
                    }
                }
                Event::Immediate { .. } => Self::close(end, CloseReason::Abort),
            }
        }
    }

    fn take_waiting(&mut self, link: usize, end: &mut TEnd) -> bool {
        let Some(slot) = end.waiting.pop_front() else {
            return false;
        };
        if let (Some(session), true) = (&mut end.session, end.stage != Stage::Closing) {
            let shared = &self.target.shared;
            let pinned = self.telling.then(|| shared.pool.usage());
            let result = session.handle_message(self.now, shared, end.conn.message(slot));
            self.after_call(link, Some(&mut end.conn));
            if let (Some(before), Ok(_)) = (pinned, &result) {
                let after = self.target.shared.pool.usage();
                if before != after {
                    tell!(self, "connection {link}: pool {after:?}");
                }
            }
            match result {
                Ok(Intake::Taken) => self.count_request(end),
                Ok(Intake::Admit) => self.admit(link, end),
                Err(why) => self.take_end(link, end, Err(why)),
            }
        }
        end.conn.release(slot);
        true
    }

    /// No more requests are outstanding than the session has credits for.
    fn count_request(&mut self, end: &mut TEnd) {
        let grant = end.session.as_ref().and_then(TargetSession::grant);
        let Some(credits) = grant.map(|grant| u32::from(grant.credits)) else {
            return;
        };
        end.taken += 1;
        let outstanding = end.taken - end.completed;
        if outstanding > credits {
            self.fail(format!(
                "{outstanding} requests are served at a time, with {credits} Request Credits"
            ));
        }
    }

    fn admit(&mut self, link: usize, end: &mut TEnd) {
        let Some(session) = &mut end.session else {
            return;
        };
        let target = &mut self.target;
        let result = session.admit(
            self.now,
            &target.shared,
            &mut target.directory,
            &mut Exposer(&mut end.conn),
        );
        match result {
            Ok(Admission::Answered) => {
                if session.phase() == SessionPhase::Open
                    && let Some(grant) = session.grant()
                {
                    end.stage = Stage::Open;
                    let first = grant.handle_base.0 - self.o.table_base;
                    let range = Range {
                        first,
                        rows: grant.handle_count,
                    };
                    if grant.resumed {
                        self.out.marks.hit(Mark::Resumed);
                    }
                    if grant.has(SessionCapabilities::DIRECT_ALLOC) {
                        self.out.marks.hit(Mark::PartitionGranted);
                    }
                    let client = self.links[link].client;
                    let tenant = self.clients[client].tenant;
                    tell!(
                        self,
                        "connection {link}: granted {:?}",
                        end.session.as_ref().and_then(TargetSession::grant)
                    );
                    self.model.granted(link, range, tenant);
                    self.ranges_changed();
                }
                self.after_release();
            }
            Ok(Admission::Replace(old)) => {
                end.stage = Stage::Replacing;
                self.out.marks.hit(Mark::Replaced);
                let other = self
                    .links
                    .iter()
                    .position(|other| other.t.as_ref().is_some_and(|t| t.id == Some(old)));
                match other {
                    None => self.fail(format!("{old:?} is to be replaced and is not there")),
                    Some(other) => {
                        tell!(self, "connection {link} replaces {other}");
                        if let Some(t) = &mut self.links[other].t {
                            t.waiters.push(link);
                            t.reset = true;
                            t.stage = Stage::Closing;
                            t.conn.close(CloseReason::Abort);
                        }
                        self.wake(other, TARGET, self.now);
                    }
                }
            }
            Err(why) => self.take_end(link, end, Err(why)),
        }
    }

    /// Posts the session's work; whether the stream took any, and whether it is full.
    fn post(&mut self, end: &mut TEnd) -> (bool, bool) {
        let mut posted = false;
        let Some(session) = &mut end.session else {
            return (false, false);
        };
        while let Some(work) = session.next_work() {
            let answers = matches!(work.request, WorkRequest::Send { .. });
            match end.conn.post(work.id, &work.request, work.signaled) {
                Ok(()) => {
                    // The first one is HELLO_ACK.
                    end.completed += u32::from(answers && end.acknowledged);
                    end.acknowledged |= answers;
                }
                Err(PostError::QueueFull) => return (posted, true),
                Err(PostError::Closed) => return (posted, false),
                Err(error) => {
                    self.fail(format!("a stream refused work of its session: {error}"));
                    return (posted, false);
                }
            }
            posted = true;
            session.work_posted();
        }
        if session.phase() == SessionPhase::Closing && end.stage != Stage::Closing {
            Self::close(end, CloseReason::Graceful);
        }
        (posted, false)
    }

    fn close(end: &mut TEnd, how: CloseReason) {
        end.stage = Stage::Closing;
        end.reset |= how == CloseReason::Abort;
        end.conn.close(how);
    }

    /// Ends the session if `result` says so.
    fn take_end(&mut self, link: usize, end: &mut TEnd, result: Result<(), SessionEnd>) {
        match result {
            Ok(()) | Err(SessionEnd::Flushed) => {}
            Err(why) => {
                tell!(self, "connection {link}: the session must end: {why}");
                self.out.marks.hit(match why {
                    SessionEnd::TooShort(_) => Mark::EndTooShort,
                    SessionEnd::TooLong { .. } => Mark::EndTooLong,
                    SessionEnd::Credits(_) => Mark::EndCredits,
                    SessionEnd::HelloOrder => Mark::EndHelloOrder,
                    _ => Mark::EndTickets,
                });
                if matches!(why, SessionEnd::Local(_)) || !self.links[link].fatal {
                    self.fail(format!("connection {link}: a session failed: {why}"));
                }
                Self::close(end, CloseReason::Abort);
            }
        }
    }

    /// A connection has ended at the target.
    pub(crate) fn target_ends(&mut self, link: usize, mut end: Box<TEnd>) {
        // It would have to die at once, and not go on.
        let dies_within = std::mem::take(&mut self.dies_within);
        while let Some(event) = end.conn.next_event() {
            if let (Event::Done { id, outcome }, Some(session)) = (event, &mut end.session) {
                let shared = &self.target.shared;
                // The session ends in any case.
                let _ended = session.handle_done(self.now, shared, id, outcome);
                self.after_call(link, None);
            }
        }
        let why = end.conn.take_error();
        match &why {
            Some(StreamError::Protocol { reason }) => {
                self.out.marks.hit(Mark::TerminateSent);
                self.out.marks.cause(reason);
            }
            Some(StreamError::PeerTerminated { .. }) => {
                self.out.marks.hit(Mark::TerminateReceived);
            }
            _ => {}
        }
        if let Some(StreamError::Protocol { reason }) = &why
            && !self.links[link].hurt
            && !self.links[link].caught
            && !self.links[link].fatal
            && !reason.contains("closed")
            // What was on its way when a ticket was over its time.
            && !((reason.contains("not one of this stream")
                || reason.contains("was invalidated while"))
                && end.session.as_ref().is_some_and(|s| s.grant().is_some_and(|g| g.has(SessionCapabilities::DIRECT_ALLOC)))
                && self.target.shared.stats.tickets_abandoned.load(Relaxed) > 0)
        {
            self.fail(format!("an initiator's stream broke a rule: {reason}"));
        }
        self.damage_seen(link, TARGET, why.as_ref());
        tell!(self, "connection {link} ends at the target: {why:?}");
        let TEnd {
            conn,
            session,
            waiters,
            ..
        } = *end;
        drop(conn);
        self.links[link].pipes[TARGET].void = true;
        if let Some(session) = session {
            let target = &mut self.target;
            let shared = &target.shared;
            self.model.now = self.now;
            self.model.left(link);
            session.finish(self.now, shared, &mut target.directory);
            self.after_release();
        }
        self.model.ended(link, self.links[link].spoilt);
        self.ranges_changed();
        self.plan_directory();
        for waiter in waiters {
            if let Some(t) = &mut self.links[waiter].t
                && t.stage == Stage::Replacing
            {
                t.replaced_gone = true;
                self.wake(waiter, TARGET, self.now);
            }
        }
        self.wake(link, CLIENT, self.now);
        self.dies_within = dies_within;
    }

    /// A stream that was damaged must have ended for it, unless it ended otherwise before.
    pub(crate) fn damage_seen(&mut self, link: usize, side: usize, why: Option<&StreamError>) {
        if self.links[link].damaged[side] {
            self.links[link].damaged[side] = false;
            if matches!(why, Some(StreamError::Protocol { .. })) {
                self.out.marks.hit(Mark::Corrupted);
            }
        }
    }
}

const _: () = assert!(CLIENT == 0 && TARGET == 1, "sides index pipes");
