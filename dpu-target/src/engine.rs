//! The software engine of one worker: streams in, sessions, work out. It owns no socket, clock or thread: the driver
//! tells it what is ready and what time it is, and takes what it wants done [outside](Outside).
//!
//! A stream is served in *turns*: at most [`limits::EVENTS_PER_TURN`] events, then the next stream that has work. A
//! stream that has more goes to the end of the queue, so that none starves another.

mod conn;
#[cfg(test)]
mod tests;

use crate::chains::Nic;
use crate::limits;
use crate::metrics::{EndReason, WorkerMetrics};
use crate::plane::Plane;
use crate::slab::Slab;
use crate::sources::Place;
use crate::status::SessionStatus;
use crate::strangers;
use crate::timers::{TimerKey, Timers};
use conn::{Conn, Replacement, Stage, Turn};
use kbtp_core::{SessionConfig, SessionId, Shared, TargetSession};
use kbtp_fabric::{Access, CloseReason, Stream, Time};
use kbtp_iwarp_tcp::Interest;
use kbtp_wire::{AuthMode, TaggedOffset};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What all engines of a target share, and each one's own counters.
#[derive(Debug)]
pub(crate) struct Worker {
    /// Its number.
    pub(crate) index: usize,
    /// Pool and the core's counters of this worker.
    pub(crate) shared: Shared,
    /// This crate's counters of this worker.
    pub(crate) metrics: WorkerMetrics,
}

/// Milliseconds.
pub(crate) type Millis = u64;

/// How long things may take, from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) handshake: Millis,
    pub(crate) drain: Millis,
    pub(crate) linger: Millis,
}

/// Who waits for a session to be gone: a stream of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub(crate) worker: usize,
    pub(crate) token: u64,
}

/// A stream that was accepted: it is established and its private data is sent.
#[derive(Debug)]
pub(crate) struct Accepted<S> {
    pub(crate) stream: S,
    pub(crate) peer: SocketAddr,
    pub(crate) auth: AuthMode,
    pub(crate) challenge: [u8; 32],
    /// What it holds until its HELLO is answered.
    pub(crate) place: Option<Place>,
}

/// What the engine wants from the world.
pub(crate) trait Outside<S> {
    /// The time now.
    fn now(&self) -> Time;
    /// Watch the stream under `token`.
    ///
    /// # Errors
    /// If it cannot be watched.
    fn watch(&mut self, token: u64, stream: &S, interest: Interest) -> std::io::Result<()>;
    /// Watch it for something else.
    ///
    /// # Errors
    /// If it is not watched.
    fn rewatch(&mut self, token: u64, stream: &S, interest: Interest) -> std::io::Result<()>;
    /// Watch it no more.
    fn unwatch(&mut self, stream: &S);
    /// Have the worker that has `session` close it and tell `waiter`. False if it cannot be told.
    fn evict(&mut self, session: SessionId, waiter: Waiter) -> bool;
    /// Tell `waiter` that the session it waited for is gone.
    fn evicted(&mut self, waiter: Waiter);
}

/// How a drain stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Drain {
    /// No drain.
    No,
    /// Answering SHUTTING_DOWN; streams stay open until the first time, all is over at the second.
    Linger(Time),
    /// Streams close as they become idle, all is over at this time.
    Closing(Time),
    /// All is over: streams are cut.
    Over,
}

/// The engine of one worker.
#[derive(Debug)]
pub(crate) struct Engine<S> {
    worker: Arc<Worker>,
    plane: Arc<Plane>,
    times: Times,
    streams: Slab<Conn<S>>,
    sessions: HashMap<SessionId, u64>,
    /// Streams that have not said HELLO, oldest first.
    silent: VecDeque<u64>,
    /// Streams whose turn it is.
    ready: VecDeque<u64>,
    /// Streams that have had a turn and have more: whoever becomes ready now comes before them.
    again: VecDeque<u64>,
    timers: Timers,
    drain: Drain,
    next_session: u64,
    /// The stream that was served last: the likeliest to ask next.
    last: Option<u64>,
    /// The device whose chains serve sessions, if there is one.
    nic: Option<Nic>,
    /// Streams whose sessions they serve.
    chained: Vec<u64>,
}

impl<S: Stream> Engine<S> {
    pub(crate) fn new(worker: Arc<Worker>, plane: Arc<Plane>, times: Times) -> Self {
        Self {
            worker,
            plane,
            times,
            streams: Slab::new(),
            sessions: HashMap::new(),
            silent: VecDeque::new(),
            ready: VecDeque::new(),
            again: VecDeque::new(),
            timers: Timers::default(),
            drain: Drain::No,
            next_session: 0,
            last: None,
            nic: None,
            chained: Vec::new(),
        }
    }

    /// The same with a device whose chains serve sessions.
    pub(crate) fn with_nic(mut self, nic: Option<Nic>) -> Self {
        self.nic = nic;
        self
    }

    /// Whether a drain has emptied it: the worker ends.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.drain, Drain::Closing(_) | Drain::Over) && self.streams.len() == 0
    }

    /// When the driver may sleep until: `None` for ever, a time that has come if there is work.
    pub(crate) fn wait_until(&mut self) -> Option<Time> {
        if self.ready.is_empty() && self.again.is_empty() {
            self.timers.next_at()
        } else {
            Some(Time(0))
        }
    }

    /// Takes a new stream.
    pub(crate) fn accept(&mut self, mut accepted: Accepted<S>, out: &mut impl Outside<S>) {
        if self.drain == Drain::Over {
            self.worker.metrics.ended(EndReason::Drained);
            self.worker.metrics.gone.increment();
            return;
        }
        let pool = &self.worker.shared.pool;
        let region = pool.block_region();
        let base = TaggedOffset(pool.geometry().pool_base.0);
        let len = pool.geometry().pool_len();
        let mut register = |access| accepted.stream.register(region, 0..len, base, access);
        // Unsealed blocks change while they are sent, sealed ones do not: the stream copies only the former first.
        let stags =
            register(Access::LOCAL).and_then(|pool| Ok((pool, register(Access::LOCAL_READ)?)));
        let (pool_stag, sealed_stag) = match stags {
            Ok(stags) => stags,
            Err(error) => {
                if strangers::FAILED.admits(out.now()) {
                    tracing::error!(peer = %accepted.peer, %error, "a stream cannot have the pool registered");
                }
                self.worker.metrics.ended(EndReason::Internal);
                self.worker.metrics.gone.increment();
                return;
            }
        };
        self.next_session += 1;
        let worker = u64::try_from(self.worker.index).unwrap_or(u64::MAX);
        let id = session_id(worker, self.next_session);
        let mut session = TargetSession::new(SessionConfig {
            id,
            auth: accepted.auth,
            challenge: accepted.challenge,
            pool_stag,
            capabilities: accepted.stream.capabilities(),
        });
        session.send_sealed_from(sealed_stag);
        let now = out.now();
        let mut conn = Conn::new(accepted.stream, session, accepted.peer, now);
        conn.place = accepted.place;
        conn.pool_stag = pool_stag;
        let Some(token) = self.streams.insert(conn) else {
            if strangers::FAILED.admits(now) {
                tracing::error!("no token is left for a stream");
            }
            self.worker.metrics.gone.increment();
            return;
        };
        self.sessions.insert(id, token);
        //= rfc5044-7.1.2-user-timeout
        let deadline = now.after_ms(self.times.handshake);
        self.timers.set(TimerKey::Handshake(token), deadline);
        self.worker.metrics.half_open.add(1);
        self.silent.push_back(token);
        let interest = Interest::READ;
        let Some(conn) = self.streams.get_mut(token) else {
            return;
        };
        if let Err(error) = out.watch(token, &conn.stream, interest) {
            if strangers::FAILED.admits(now) {
                tracing::error!(peer = %conn.peer, %error, "a stream cannot be watched");
            }
            conn.stream.close(CloseReason::Abort);
            self.end(token, EndReason::Internal, out);
            return;
        }
        conn.watched = interest;
        self.enqueue(token);
    }

    /// The stream is ready. The one that was served last comes after all others.
    pub(crate) fn ready(&mut self, token: u64) {
        if self.last == Some(token) {
            self.enqueue_again(token);
        } else {
            self.enqueue(token);
        }
    }

    /// Looks whether the stream that was served last has something; then it is ready.
    pub(crate) fn attempt(&mut self, now: Time) -> bool {
        let found = self.last.and_then(|token| {
            let conn = self.streams.get_mut(token)?;
            conn.attempt(now).then_some(token)
        });
        if let Some(token) = found {
            self.enqueue(token);
        }
        found.is_some()
    }

    fn enqueue(&mut self, token: u64) {
        if let Some(conn) = self.streams.get_mut(token)
            && !conn.queued
        {
            conn.queued = true;
            self.ready.push_back(token);
        }
    }

    /// Behind those that become ready before the next run.
    fn enqueue_again(&mut self, token: u64) {
        if let Some(conn) = self.streams.get_mut(token)
            && !conn.queued
        {
            conn.queued = true;
            self.again.push_back(token);
        }
    }

    /// Closes `session` because a new one of its pair takes its place, and tells `waiter` when it is gone.
    pub(crate) fn evict(&mut self, session: SessionId, waiter: Waiter, out: &mut impl Outside<S>) {
        let conn = self
            .sessions
            .get(&session)
            .copied()
            .and_then(|token| Some((token, self.streams.get_mut(token)?)));
        match conn {
            // It went of itself.
            None => out.evicted(waiter),
            Some((token, conn)) => {
                conn.waiters.push(waiter);
                //= kbtp-p8-second-session-replaces
                conn.close(EndReason::Replaced, CloseReason::Abort);
                self.enqueue(token);
            }
        }
    }

    /// The session that the stream `token` waited for is gone.
    pub(crate) fn evicted(&mut self, token: u64) {
        if let Some(conn) = self.streams.get_mut(token)
            && matches!(conn.stage, Stage::Replacing)
        {
            conn.replacement = Replacement::Gone;
            self.enqueue(token);
        }
    }

    /// Makes the oldest stream go that has not said HELLO, of this source if one is named, if it is old enough. Cost: a pass
    /// over those streams.
    //= rfc5042-6.4.2-idle-reaped
    pub(crate) fn make_room(&mut self, source: Option<IpAddr>, now: Time) {
        self.worker.metrics.room_made.increment();
        let streams = &mut self.streams;
        let found = self.silent.iter().copied().find(|token| {
            streams.get_mut(*token).is_some_and(|conn| {
                conn.stage == Stage::HalfOpen
                    && conn.begun.after_ms(limits::SILENT_GRACE_MS) <= now
                    && source.is_none_or(|from| kbtp_iwarp_tcp::source(&conn.peer) == from)
            })
        });
        if let Some(token) = found
            && let Some(conn) = self.streams.get_mut(token)
        {
            conn.close(EndReason::MadeRoom, CloseReason::Abort);
            self.enqueue(token);
        }
    }

    /// Begins to drain: requests and HELLOs are answered SHUTTING_DOWN (the core sees that in its shared state).
    pub(crate) fn drain(&mut self, now: Time) {
        if self.drain == Drain::No {
            self.drain = Drain::Linger(now.after_ms(self.times.drain));
            let linger = now.after_ms(self.times.linger);
            self.timers.set(TimerKey::Drain, linger);
            if let Some(nic) = &mut self.nic
                && let Err(error) = nic.drain()
            {
                tracing::error!(%error, "the device serves what the core should refuse");
            }
        }
    }

    /// Ends at once: streams are cut, their sessions finished.
    pub(crate) fn kill(&mut self, out: &mut impl Outside<S>) {
        self.drain = Drain::Closing(out.now());
        self.advance_drain(out);
    }

    /// Fires what is due and gives each stream that is ready a turn.
    pub(crate) fn run(&mut self, out: &mut impl Outside<S>) {
        // Most of the time there is no timer, and no look at the clock.
        while self.timers.next_at().is_some()
            && let Some(key) = self.timers.pop_due(out.now())
        {
            self.fire(key, out);
        }
        self.ready.append(&mut self.again);
        for _ in 0..limits::READY_BATCH.min(self.ready.len()) {
            let Some(token) = self.ready.pop_front() else {
                break;
            };
            self.turn(token, out);
        }
        self.tend_chains(out);
    }

    fn fire(&mut self, key: TimerKey, out: &mut impl Outside<S>) {
        match key {
            TimerKey::Stream(token) => self.enqueue(token),
            TimerKey::Handshake(token) | TimerKey::Replace(token) | TimerKey::Close(token) => {
                let Some(conn) = self.streams.get_mut(token) else {
                    return;
                };
                match (key, conn.stage) {
                    (TimerKey::Handshake(_), Stage::HalfOpen) => {
                        conn.close(EndReason::HandshakeTimeout, CloseReason::Abort);
                    }
                    (TimerKey::Replace(_), Stage::Replacing) => {
                        if strangers::FAILED.admits(out.now()) {
                            tracing::error!(peer = %conn.peer, "the session to be replaced did not end in time");
                        }
                        conn.close(EndReason::Internal, CloseReason::Abort);
                    }
                    (TimerKey::Close(_), Stage::Closing(_)) => {
                        conn.stream.close(CloseReason::Abort);
                        conn.cut = true;
                    }
                    _ => return,
                }
                self.enqueue(token);
            }
            TimerKey::Drain => self.advance_drain(out),
            TimerKey::Chains => {
                if let Some(nic) = &mut self.nic {
                    nic.run();
                    if let Some(due) = nic.watch(out.now()) {
                        self.timers.set_no_later(TimerKey::Chains, due);
                    }
                }
            }
        }
    }

    /// What chains of any session did may be somebody's turn, and freed blocks somebody's blocks.
    fn tend_chains(&mut self, out: &mut impl Outside<S>) {
        let Some(nic) = &mut self.nic else { return };
        let pool = &self.worker.shared.pool;
        nic.settle(pool, &self.worker.metrics.chains);
        if nic.could_resume(pool)
            && self
                .streams
                .iter()
                .all(|(_, conn)| conn.session.under_way() == 0)
        {
            nic.resume();
        }
        let wait = if nic.waits(pool) {
            Some(limits::CHAIN_LOOK_MS)
        } else {
            nic.is_busy().then_some(limits::CHAIN_WATCH_MS)
        };
        if let Some(ms) = wait {
            let soon = out.now().after_ms(ms);
            self.timers.set_no_later(TimerKey::Chains, soon);
        }
        if nic.take_moved() {
            for at in 0..self.chained.len() {
                if let Some(token) = self.chained.get(at).copied() {
                    self.enqueue_again(token);
                }
            }
        }
    }

    fn advance_drain(&mut self, out: &mut impl Outside<S>) {
        match self.drain {
            Drain::Linger(over) => {
                self.drain = Drain::Closing(over);
                self.timers.set(TimerKey::Drain, over);
                for token in self.streams.tokens() {
                    self.close_if_idle(token);
                }
            }
            Drain::Closing(_) => {
                self.drain = Drain::Over;
                for token in self.streams.tokens() {
                    if let Some(conn) = self.streams.get_mut(token) {
                        conn.close(EndReason::Drained, CloseReason::Abort);
                        conn.cut = true;
                        self.turn(token, out);
                    }
                }
            }
            Drain::No | Drain::Over => {}
        }
    }

    fn close_if_idle(&mut self, token: u64) {
        if let Some(conn) = self.streams.get_mut(token)
            && !matches!(conn.stage, Stage::Closing(_))
            && conn.is_idle()
        {
            conn.close(EndReason::Drained, CloseReason::Graceful);
            self.enqueue(token);
        }
    }

    /// One turn of one stream, and what follows from it.
    fn turn(&mut self, token: u64, out: &mut impl Outside<S>) {
        let Some(conn) = self.streams.get_mut(token) else {
            return;
        };
        conn.queued = false;
        self.last = Some(token);
        let stats = &self.worker.shared.stats;
        let abandoned = stats.tickets_abandoned.load(Ordering::Relaxed);
        let was_chained = conn.link.is_some();
        let turn = conn.turn(&self.worker, &self.plane, &mut self.nic, out);
        if conn.link.is_some() && !was_chained {
            self.chained.push(token);
        }
        conn.note_tickets(&self.worker);
        let lost = stats.tickets_abandoned.load(Ordering::Relaxed) - abandoned;
        if lost > 0 {
            conn::log_abandoned(&conn.session, conn.peer, lost, out.now());
        }
        if conn.stage != conn.noted {
            self.note_stage(token, out);
        }
        self.ask_to_go(token, out);
        match turn {
            Turn::Ended(reason) => self.end(token, reason, out),
            Turn::More => {
                self.enqueue_again(token);
                self.rest(token, out);
            }
            Turn::Idle => {
                if matches!(self.drain, Drain::Closing(_)) {
                    self.close_if_idle(token);
                }
                self.rest(token, out);
            }
        }
    }

    /// Sets timers and gauges by the stage the stream has come to.
    fn note_stage(&mut self, token: u64, out: &mut impl Outside<S>) {
        let now = out.now();
        let Some(conn) = self.streams.get_mut(token) else {
            return;
        };
        let before = std::mem::replace(&mut conn.noted, conn.stage);
        if before == Stage::HalfOpen {
            self.silent.retain(|silent| *silent != token);
        }
        let stage = conn.stage;
        if !matches!(stage, Stage::HalfOpen | Stage::Replacing) {
            conn.place = None;
        }
        self.count(before, stage);
        match stage {
            Stage::HalfOpen => {}
            Stage::Replacing => {
                let at = now.after_ms(limits::REPLACE_WAIT_MS);
                self.timers.set(TimerKey::Replace(token), at);
            }
            Stage::Open | Stage::Closing(_) => {
                self.timers.clear(TimerKey::Handshake(token));
                self.timers.clear(TimerKey::Replace(token));
            }
        }
        if matches!(stage, Stage::Closing(_)) {
            let at = now.after_ms(limits::CLOSE_WAIT_MS);
            self.timers.set(TimerKey::Close(token), at);
        }
    }

    /// Moves one stream from a gauge to another.
    fn count(&self, from: Stage, to: Stage) {
        let gauge = |stage| match stage {
            Stage::HalfOpen | Stage::Replacing => Some(&self.worker.metrics.half_open),
            Stage::Open => Some(&self.worker.metrics.sessions),
            Stage::Closing(_) => None,
        };
        if let Some(gauge) = gauge(from) {
            gauge.sub(1);
        }
        if let Some(gauge) = gauge(to) {
            gauge.add(1);
        }
    }

    /// Has the session that this stream's HELLO replaces evicted.
    fn ask_to_go(&mut self, token: u64, out: &mut impl Outside<S>) {
        let Some(conn) = self.streams.get_mut(token) else {
            return;
        };
        let Replacement::Evict(old) = conn.replacement else {
            return;
        };
        conn.replacement = Replacement::None;
        let waiter = Waiter {
            worker: self.worker.index,
            token,
        };
        if !out.evict(old, waiter) {
            if strangers::FAILED.admits(out.now()) {
                tracing::error!(peer = %conn.peer, "the session to be replaced cannot be told");
            }
            conn.close(EndReason::Internal, CloseReason::Abort);
            self.enqueue(token);
        }
    }

    /// What the stream waits for until its next turn.
    fn rest(&mut self, token: u64, out: &mut impl Outside<S>) {
        let Some(conn) = self.streams.get_mut(token) else {
            return;
        };
        let readiness = conn.stream.readiness();
        let due = [readiness.at, conn.session.poll_timeout()];
        if let Some(at) = due.into_iter().flatten().min() {
            self.timers.set_no_later(TimerKey::Stream(token), at);
        }
        let interest = Interest::from(readiness);
        if interest != conn.watched {
            match out.rewatch(token, &conn.stream, interest) {
                Ok(()) => conn.watched = interest,
                Err(error) => {
                    if strangers::FAILED.admits(out.now()) {
                        tracing::error!(peer = %conn.peer, %error, "a stream cannot be watched any more");
                    }
                    conn.close(EndReason::Internal, CloseReason::Abort);
                    self.enqueue(token);
                }
            }
        }
    }

    /// The stream has ended and its last event is taken.
    fn end(&mut self, token: u64, reason: EndReason, out: &mut impl Outside<S>) {
        let Some(mut conn) = self.streams.remove(token) else {
            return;
        };
        for key in [
            TimerKey::Stream(token),
            TimerKey::Handshake(token),
            TimerKey::Replace(token),
            TimerKey::Close(token),
        ] {
            self.timers.clear(key);
        }
        self.sessions.remove(&conn.session.id());
        if conn.noted == Stage::HalfOpen {
            self.silent.retain(|silent| *silent != token);
        }
        self.count(conn.noted, Stage::Closing(reason));
        self.worker.metrics.in_flight.sub(conn.unanswered());
        self.worker.metrics.pins.sub(conn.pins);
        self.worker.metrics.tickets.sub(u64::from(conn.tickets));
        out.unwatch(&conn.stream);
        // The stream goes first: then nothing touches a block any more.
        drop(conn.stream);
        if let (Some(link), Some(nic)) = (conn.link.take(), &mut self.nic) {
            self.chained.retain(|chained| *chained != token);
            nic.disconnect(&link);
            let (shared, counts) = (&self.worker.shared, &self.worker.metrics.chains);
            nic.unseat(link.id, &mut conn.session, shared, counts);
            counts.sessions.sub(1);
        }
        let now = out.now();
        conn::log_end(
            &conn.session,
            conn.peer,
            reason,
            (conn.begun, now),
            conn.requests,
        );
        self.worker.metrics.ended(reason);
        self.worker.metrics.gone.increment();
        self.plane
            .with(|directory| conn.session.finish(now, &self.worker.shared, directory));
        for waiter in conn.waiters {
            out.evicted(waiter);
        }
    }

    /// What `/status` says of its sessions. Cost: allocates.
    pub(crate) fn report(&self, now: Time) -> Vec<SessionStatus> {
        self.streams
            .iter()
            .filter_map(|(_, conn)| conn.status(self.worker.index, now))
            .collect()
    }
}

/// Sessions are named by their worker in the high 16 bits and their number there: no two are alike.
const fn session_id(worker: u64, number: u64) -> SessionId {
    SessionId(worker << 48 | (number & ((1 << 48) - 1)))
}

/// The worker that has the session.
pub(crate) fn worker_of(session: SessionId) -> usize {
    usize::try_from(session.0 >> 48).unwrap_or(usize::MAX)
}
