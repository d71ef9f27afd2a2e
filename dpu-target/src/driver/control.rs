//! The control thread: it accepts streams and deals them out, polls the directory, and listens to the agent.

use super::memory::Link;
use super::worker::Command;
use crate::engine::{Accepted, Millis, Worker};
use crate::inbox::{Inbox, InboxError, InboxSender};
use crate::lifecycle::{Lifecycle, Phase};
use crate::plane::Plane;
use crate::sources::{Sources, few_left, places_of};
use crate::strangers::{self, TURNED_AWAY};
use crate::transport::{Listening, Newcomer, Served};
use kbtp_control::AgentEvent;
use kbtp_fabric::Time;
use kbtp_iwarp_tcp::{Answer, Interest, ListenerCounters, Poller, entropy};
use kbtp_wire::{AuthMode, Challenge, PrivateData};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// Told to the control thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlCommand {
    /// Drain: tell the workers, and accept no more after the linger.
    Drain,
    /// The workers have ended: end.
    Stop,
}

/// The token of the agent's descriptor; listeners have their numbers.
const AGENT: u64 = 1 << 32;

/// Why the agent makes the target drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leave {
    /// It asked for that.
    Told,
    /// It is gone, or not to be understood.
    Lost,
}

/// What the control thread runs on.
pub(crate) struct ControlThread {
    pub(crate) listeners: Vec<Listening>,
    pub(crate) poller: Poller,
    pub(crate) inbox: Inbox<ControlCommand>,
    pub(crate) workers: Arc<[InboxSender<Command<Served>>]>,
    pub(crate) counts: Arc<[Arc<Worker>]>,
    /// The control thread's own counters.
    pub(crate) own: Arc<Worker>,
    pub(crate) plane: Arc<Plane>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) link: Link,
    pub(crate) auth: AuthMode,
    pub(crate) half_open_max: u64,
    pub(crate) sources: Arc<Sources>,
    pub(crate) sessions_max: u64,
    pub(crate) linger: Millis,
}

impl ControlThread {
    /// Runs until the workers have ended. Gives the link to the agent back, and whether the target ends because the
    /// agent was gone without a word.
    ///
    /// # Errors
    /// If the system gives no events any more.
    pub(crate) fn run(mut self) -> io::Result<(Link, bool)> {
        for (token, listener) in (0..).zip(&self.listeners) {
            if let Some(fd) = listener.descriptor() {
                self.poller.add(fd, token, Interest::READ)?;
            }
        }
        if let Some(fd) = self.link.event_fd() {
            self.poller.add(fd, AGENT, Interest::READ)?;
        }
        let mut accept_until = None;
        let mut agent_lost = false;
        let mut now = self.poller.clock().now();
        loop {
            let due = self.plane.schedule();
            let accepts = self.listeners.iter().filter_map(Listening::next_timeout);
            let log = strangers::settle(now);
            let until = accepts.chain(due).chain(accept_until).chain(log).min();
            now = self.poller.wait(until)?;
            while let Some(command) = self.inbox.next() {
                match command {
                    ControlCommand::Drain => {
                        self.tell_workers();
                        accept_until = Some(now.after_ms(self.linger));
                    }
                    ControlCommand::Stop => {
                        strangers::settle(Time(u64::MAX));
                        return Ok((self.link, agent_lost));
                    }
                }
            }
            if accept_until.is_some_and(|at| at <= now) {
                accept_until = None;
                self.stop_listening();
            }
            self.accept(now)?;
            if due.is_some_and(|at| at <= now) {
                let own = Arc::clone(&self.own);
                self.plane
                    .with(|directory| directory.poll(now, &own.shared));
            }
            let agent_stirs = self.poller.ready().any(|r| r.token == AGENT);
            let heard = if agent_stirs { self.hear_agent() } else { None };
            if let Some(leave) = heard
                && self.lifecycle.advance(Phase::Draining)
            {
                agent_lost = leave == Leave::Lost;
                self.own.shared.drain();
                self.tell_workers();
                accept_until = Some(now.after_ms(self.linger));
            }
        }
    }

    fn tell_workers(&self) {
        for (index, worker) in self.workers.iter().enumerate() {
            match worker.send(Command::Drain) {
                // One that has ended, because it was told to end at once, has nothing to drain.
                Ok(()) | Err(InboxError::Gone(_)) => {}
                Err(error) => {
                    tracing::error!(worker = index, %error, "a worker cannot be told to drain");
                }
            }
        }
    }

    fn stop_listening(&mut self) {
        for listener in self.listeners.drain(..) {
            if let Some(fd) = listener.descriptor()
                && let Err(error) = self.poller.remove(fd)
            {
                tracing::warn!(%error, "a listener was not watched");
            }
        }
    }

    /// Takes every stream whose startup is done.
    fn accept(&mut self, now: Time) -> io::Result<()> {
        let mut listeners = std::mem::take(&mut self.listeners);
        for listener in &mut listeners {
            let before = refused(listener);
            while let Some(accepted) = listener.progress(now, &mut |_| answer(self.auth))? {
                self.deal(accepted, now);
            }
            let more = refused(listener).saturating_sub(before);
            self.own.metrics.turned_away.add(more);
        }
        self.listeners = listeners;
        self.count_connections();
        Ok(())
    }

    /// Copies what the listeners have counted. Once they are gone, what they counted last stays.
    fn count_connections(&self) {
        if self.listeners.is_empty() {
            return;
        }
        let sum = |of: fn(&ListenerCounters) -> u64| {
            let counters = self.listeners.iter().map(Listening::counters);
            counters.fold(0, |n: u64, c| n.wrapping_add(of(&c)))
        };
        let sums = [
            sum(|c| c.established),
            sum(|c| c.over_half_open),
            sum(|c| c.over_source),
            sum(|c| c.made_room),
            sum(|c| c.rejected),
            sum(|c| c.failed),
            sum(|c| c.exhausted),
        ];
        for (counter, n) in self.own.metrics.connections.iter().zip(sums) {
            counter.set(n);
        }
    }

    /// Hands a stream to the worker that has the fewest.
    fn deal(&self, accepted: Newcomer, now: Time) {
        let peer = accepted.stream.peer_addr();
        let load = self.counts.iter().map(|w| w.metrics.load());
        let streams = load.clone().fold(0, u64::saturating_add);
        let sessions = self
            .counts
            .iter()
            .fold(0, |n, w| n + w.metrics.sessions.get());
        let half_open = streams.saturating_sub(sessions);
        let most = usize::try_from(self.half_open_max).unwrap_or(usize::MAX);
        let places = places_of(&peer, most);
        let source = kbtp_iwarp_tcp::source(&peer);
        if self.sources.are_few(source, places) {
            self.make_room(Some(source));
        } else if few_left(usize::try_from(half_open).unwrap_or(usize::MAX), most) {
            self.make_room(None);
        }
        if half_open >= self.half_open_max || streams >= self.sessions_max {
            if TURNED_AWAY.admits(now) {
                tracing::warn!(%peer, sessions, half_open, "a stream is refused: there are too many");
            }
            self.own.metrics.turned_away.increment();
            return;
        }
        let Some(place) = self.sources.take(&peer, places) else {
            if TURNED_AWAY.admits(now) {
                tracing::warn!(%peer, "a stream is refused: too many from there have not said HELLO");
            }
            self.own.metrics.turned_away.increment();
            return;
        };
        let private = accepted
            .reply_data
            .first_chunk()
            .and_then(|octets| PrivateData::decode(octets).ok());
        let Some(private) = private else {
            tracing::error!(%peer, "the private data that was sent cannot be read");
            return;
        };
        let least = load.enumerate().min_by_key(|(_, load)| *load);
        let Some((index, _)) = least else {
            return;
        };
        let (Some(worker), Some(count)) = (self.workers.get(index), self.counts.get(index)) else {
            return;
        };
        let command = Command::Accept(Box::new(Accepted {
            stream: accepted.stream,
            peer,
            auth: self.auth,
            challenge: private.challenge.0,
            place: Some(place),
        }));
        count.metrics.dealt.increment();
        if let Err(error) = worker.send(command) {
            if TURNED_AWAY.admits(now) {
                tracing::warn!(%peer, %error, "a stream is refused");
            }
            self.own.metrics.turned_away.increment();
            count.metrics.dealt.sub(1);
        }
    }

    /// Has the worker that has the most of them make one silent stream go, of this source if one is named. One wish at a
    /// time, so that an inbox never fills with them.
    fn make_room(&self, source: Option<IpAddr>) {
        let most = self
            .counts
            .iter()
            .zip(self.workers.iter())
            .max_by_key(|(count, _)| count.metrics.half_open.get());
        if let Some((count, worker)) = most
            && count.metrics.room_asked.get() == count.metrics.room_made.get()
            && worker.send(Command::MakeRoom(source)).is_ok()
        {
            count.metrics.room_asked.increment();
        }
    }

    /// Takes what the agent says; whether the target must drain, and why.
    fn hear_agent(&mut self) -> Option<Leave> {
        let mut drain = None;
        loop {
            match self.link.next_event() {
                Ok(None) => return drain,
                Ok(Some(AgentEvent::Draining(reason))) => {
                    tracing::warn!(?reason, "the agent stops: draining");
                    drain = Some(Leave::Told);
                }
                Ok(Some(_)) => {
                    tracing::error!("the agent is gone: draining");
                    self.unwatch_agent();
                    return drain.or(Some(Leave::Lost));
                }
                Err(error) => {
                    tracing::error!(%error, "the agent cannot be understood: draining");
                    self.unwatch_agent();
                    return drain.or(Some(Leave::Lost));
                }
            }
        }
    }

    /// The descriptor of an agent that is gone is readable for ever.
    fn unwatch_agent(&self) {
        if let Some(fd) = self.link.event_fd()
            && let Err(error) = self.poller.remove(fd)
        {
            tracing::warn!(%error, "the agent was not watched");
        }
    }
}

/// Connections a listener refused because too many were in their startup.
fn refused(listener: &Listening) -> u64 {
    let counters = listener.counters();
    counters.over_half_open.saturating_add(counters.over_source)
}

/// The answer to an MPA Request: the stream is accepted, with a challenge nobody has seen.
//= kbtp-p9-private-data
//= kbtp-p9-fresh-challenge
fn answer(auth: AuthMode) -> Answer {
    match entropy::random() {
        Ok(challenge) => Answer::Accept {
            private_data: PrivateData {
                auth_mode: auth,
                challenge: Challenge(challenge),
            }
            .encode()
            .to_vec(),
        },
        Err(error) => {
            tracing::error!(%error, "no randomness for a challenge: a stream is rejected");
            Answer::Reject {
                private_data: Vec::new(),
            }
        }
    }
}
