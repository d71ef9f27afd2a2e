//! Setting up streams as the responder: accepting connections and answering MPA Requests, with bounds on what peers
//! that do not finish can hold.

use crate::limits::{ACCEPT_BURST, ACCEPT_PAUSE_MS, EPOLL_EVENTS};
use crate::poller::Interest;
use crate::socket;
use crate::stream::{StreamOptions, TcpRdmaStream};
use crate::{entropy, limits};
use kbtp_fabric::{CloseReason, LogBudget, Stream as _, Time};
use kbtp_iwarp::{Connection, Startup};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use socket2::Socket;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// The token of the listening socket in the listener's epoll; the others are slots.
const ACCEPT: u64 = u64::MAX;

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The streams. Their startup time-out bounds how long a peer may take for its MPA Request.
    pub stream: StreamOptions,
    /// Connections that have not finished their startup, at most.
    pub half_open: usize,
    /// Of those, at most so many from one source: an IPv4 address or an IPv6 network of 64 bits.
    pub half_open_per_source: usize,
    /// When all places are taken a new connection takes that of the oldest one, if it is as old as this, in milliseconds:
    /// of its own source where that has all it may have, else of the source that has the most.
    pub silent_grace_ms: u64,
    /// Connections the kernel holds before they are accepted.
    pub backlog: i32,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            stream: StreamOptions::default(),
            half_open: limits::HALF_OPEN,
            half_open_per_source: limits::HALF_OPEN_PER_SOURCE,
            silent_grace_ms: limits::SILENT_GRACE_MS,
            backlog: limits::BACKLOG,
        }
    }
}

/// An MPA Request that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who asks.
    pub peer: SocketAddr,
    /// Private Data of the request.
    pub private_data: &'a [u8],
}

/// The answer to an MPA Request; at most 508 octets of Private Data (512 to a request of revision 1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Take the stream.
    Accept {
        /// Private Data of the reply.
        private_data: Vec<u8>,
    },
    /// Reject it.
    Reject {
        /// Private Data of the reply.
        private_data: Vec<u8>,
    },
}

/// A stream whose startup is done. It can be handed to another thread.
#[derive(Debug)]
pub struct Accepted {
    /// The stream. What the peer sent right behind the startup may be in it already: take its events before waiting
    /// for its descriptor.
    pub stream: TcpRdmaStream,
    /// Private Data of the peer's request.
    pub request_data: Box<[u8]>,
    /// Private Data of the reply, as the caller gave it.
    pub reply_data: Box<[u8]>,
}

/// What became of the connections that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListenerCounters {
    /// Connections accepted.
    pub connections: u64,
    /// Streams established.
    pub established: u64,
    /// Reset at once: too many half-open.
    pub over_half_open: u64,
    /// Reset at once: too many half-open from one source.
    pub over_source: u64,
    /// Made to go in their startup, so that a new one had a place.
    pub made_room: u64,
    /// Rejected by the answer to their request.
    pub rejected: u64,
    /// Failed in their startup: timed out, closed, or malformed.
    pub failed: u64,
    /// Times the system had no descriptor or memory for a connection.
    pub exhausted: u64,
}

/// A connection in its startup.
#[derive(Debug)]
struct HalfOpen {
    stream: TcpRdmaStream,
    source: IpAddr,
    /// When it was accepted.
    since: Time,
    interest: Interest,
    /// The answer given.
    reply_data: Option<Box<[u8]>>,
    rejected: bool,
}

/// A listening socket and the connections in their startup.
///
/// Watch [`as_fd`](AsFd::as_fd) for reading and call [`progress`](Self::progress) when it is ready or
/// [`next_timeout`](Self::next_timeout) has come.
pub struct Listener {
    socket: Socket,
    local: SocketAddr,
    epoll: Epoll,
    events: Box<[EpollEvent; EPOLL_EVENTS]>,
    options: ListenOptions,
    half_open: Vec<Option<HalfOpen>>,
    done: VecDeque<Accepted>,
    /// Accepting is paused until then.
    paused_until: Option<Time>,
    counters: ListenerCounters,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local", &self.local)
            .field("half_open", &self.half_open_now())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// What counts as one source: an IPv4 address, or the /64 of an IPv6 address.
#[must_use]
pub fn source(peer: &SocketAddr) -> IpAddr {
    match peer.ip().to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

static NOT_STARTED: LogBudget = LogBudget::new("could not start a stream");
static NOT_ANSWERED: LogBudget = LogBudget::new("could not answer an MPA Request");
static PAUSED: LogBudget = LogBudget::new("cannot accept connections for a while");
static MADE_ROOM: LogBudget =
    LogBudget::new("a connection that says nothing makes room for another");

/// The lines that connections can cause listeners to log. Whoever runs them says from time to time how many were left out.
pub static PEER_LOG: [&LogBudget; 4] = [&NOT_STARTED, &NOT_ANSWERED, &PAUSED, &MADE_ROOM];

impl Listener {
    /// Listens on `addr`. Port 0 takes a free one: see [`local_addr`](Self::local_addr). An IPv6 address serves IPv6
    /// only: listen twice to serve both.
    ///
    /// # Errors
    /// What the system says: the address is taken, or not ours.
    pub fn bind(addr: SocketAddr, options: ListenOptions) -> io::Result<Self> {
        let socket = socket::listen(&addr, &options.stream.tcp, options.backlog)?;
        let local = socket
            .local_addr()?
            .as_socket()
            .ok_or(io::ErrorKind::Unsupported)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&socket, Interest::READ.event(ACCEPT))?;
        Ok(Self {
            socket,
            local,
            epoll,
            events: Box::new([EpollEvent::empty(); EPOLL_EVENTS]),
            half_open: (0..options.half_open).map(|_| None).collect(),
            done: VecDeque::with_capacity(options.half_open),
            options,
            paused_until: None,
            counters: ListenerCounters::default(),
        })
    }

    /// The address it listens on.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What became of the connections so far.
    #[must_use]
    pub const fn counters(&self) -> ListenerCounters {
        self.counters
    }

    /// Connections in their startup now.
    #[must_use]
    pub fn half_open_now(&self) -> usize {
        self.half_open.iter().flatten().count()
    }

    /// When [`progress`](Self::progress) is due even if the descriptor is not ready.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let slots = self.half_open.iter().flatten();
        slots
            .filter_map(|half_open| half_open.stream.readiness().at)
            .chain(self.paused_until)
            .min()
    }

    /// Goes on with every connection as far as it goes without waiting. `answer` is asked once for each MPA Request.
    /// Gives an established stream; call again until there is none.
    ///
    /// # Errors
    /// What the system says if it can no longer wait for events; the trouble of a single connection is counted, not
    /// reported.
    pub fn progress(
        &mut self,
        now: Time,
        answer: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> io::Result<Option<Accepted>> {
        if let Some(accepted) = self.done.pop_front() {
            return Ok(Some(accepted));
        }
        let found = match self.epoll.wait(&mut *self.events, EpollTimeout::ZERO) {
            Ok(found) => found,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        for i in 0..found {
            let Some(token) = self.events.get(i).map(EpollEvent::data) else {
                break;
            };
            match usize::try_from(token) {
                Ok(slot) if token != ACCEPT => self.advance(slot, now, answer),
                _ => self.accept(now)?,
            }
        }
        self.run_timers(now, answer)?;
        Ok(self.done.pop_front())
    }

    fn run_timers(
        &mut self,
        now: Time,
        answer: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> io::Result<()> {
        if self.paused_until.is_some_and(|at| at <= now) {
            self.paused_until = None;
            self.epoll
                .modify(&self.socket, &mut Interest::READ.event(ACCEPT))?;
        }
        for slot in 0..self.half_open.len() {
            let due = self
                .half_open
                .get(slot)
                .and_then(Option::as_ref)
                .and_then(|half_open| half_open.stream.readiness().at)
                .is_some_and(|at| at <= now);
            if due {
                self.advance(slot, now, answer);
            }
        }
        Ok(())
    }

    /// Takes what connections have come, as far as the bounds allow.
    fn accept(&mut self, now: Time) -> io::Result<()> {
        for _ in 0..ACCEPT_BURST {
            let (socket, peer) = match self.socket.accept() {
                Ok((socket, peer)) => match peer.as_socket() {
                    Some(peer) => (socket, peer),
                    None => continue,
                },
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => return Ok(()),
                    // A connection that was gone before it was accepted.
                    Some(Errno::ECONNABORTED | Errno::EINTR | Errno::EPROTO) => continue,
                    // Out of descriptors or memory: the connection stays in the backlog, and would be reported again
                    // and again until something is freed.
                    _ => return self.pause(now, &error),
                },
            };
            self.counters.connections += 1;
            let source = source(&peer);
            let from_source = self
                .half_open
                .iter()
                .flatten()
                .filter(|half_open| half_open.source == source)
                .count();
            let over_source = from_source >= self.options.half_open_per_source;
            let free = self.half_open.iter().position(Option::is_none);
            //= rfc5042-3-resource-control
            let place = match free.filter(|_| !over_source) {
                Some(slot) => Some(slot),
                None => self.make_room(over_source.then_some(source), now),
            };
            if let Some(slot) = place {
                match self.begin(socket, peer, slot, now) {
                    Ok(half_open) => {
                        if let Some(place) = self.half_open.get_mut(slot) {
                            *place = Some(half_open);
                        }
                    }
                    Err(error) => {
                        self.counters.failed += 1;
                        if NOT_STARTED.admits(now) {
                            tracing::warn!(%peer, %error, "could not start a stream");
                        }
                    }
                }
            } else {
                let counters = &mut self.counters;
                let counter = if over_source {
                    &mut counters.over_source
                } else {
                    &mut counters.over_half_open
                };
                *counter += 1;
                socket::reset(socket);
            }
        }
        Ok(())
    }

    /// Lets go of the oldest connection of a source, or of the source that has the most, if it is old enough; its place.
    /// Cost: a pass over the places, and sorting them by source.
    //= rfc5042-6.4.2-idle-reaped
    fn make_room(&mut self, of: Option<IpAddr>, now: Time) -> Option<usize> {
        let of = of.or_else(|| {
            let mut sources: Vec<_> = self.half_open.iter().flatten().map(|h| h.source).collect();
            sources.sort_unstable();
            let most = sources
                .chunk_by(PartialEq::eq)
                .max_by_key(|run| run.len())?;
            most.first().copied()
        })?;
        let grace = self.options.silent_grace_ms;
        let old = |half_open: &HalfOpen| half_open.since.after_ms(grace) <= now;
        let (slot, _) = self
            .half_open
            .iter()
            .enumerate()
            .filter_map(|(slot, place)| Some((slot, place.as_ref()?)))
            .filter(|(_, half_open)| half_open.source == of && old(half_open))
            .min_by_key(|(_, half_open)| half_open.since)?;
        let mut gone = self.half_open.get_mut(slot)?.take()?;
        self.counters.made_room += 1;
        if MADE_ROOM.admits(now) {
            tracing::info!(peer = %gone.stream.peer_addr(), "a connection that says nothing makes room for another");
        }
        gone.stream.close(CloseReason::Abort);
        Some(slot)
    }

    fn pause(&mut self, now: Time, error: &io::Error) -> io::Result<()> {
        self.counters.exhausted += 1;
        if PAUSED.admits(now) {
            tracing::warn!(%error, "cannot accept connections for a while");
        }
        self.paused_until = Some(now.after_ms(ACCEPT_PAUSE_MS));
        let nothing = Interest {
            read: false,
            write: false,
        };
        self.epoll
            .modify(&self.socket, &mut nothing.event(ACCEPT))?;
        Ok(())
    }

    fn begin(
        &self,
        socket: Socket,
        peer: SocketAddr,
        slot: usize,
        now: Time,
    ) -> Result<HalfOpen, Box<dyn std::error::Error>> {
        socket::prepare(&socket, &self.options.stream.tcp)?;
        let config = self.options.stream.config_for(&socket)?;
        let core = Connection::responder(&config, entropy::random()?, now)?;
        let interest = Interest::READ;
        self.epoll.add(&socket, interest.event(slot as u64))?;
        Ok(HalfOpen {
            stream: TcpRdmaStream::new(socket, core, peer),
            source: source(&peer),
            since: now,
            interest,
            reply_data: None,
            rejected: false,
        })
    }

    /// Goes on with the connection in `slot`.
    fn advance(&mut self, slot: usize, now: Time, answer: &mut dyn FnMut(&Request<'_>) -> Answer) {
        let Some(place) = self.half_open.get_mut(slot) else {
            return;
        };
        // An event may be of a connection that ended earlier in the same batch.
        let Some(mut half_open) = place.take() else {
            return;
        };
        half_open.stream.pump(now);
        if matches!(half_open.stream.startup(), Startup::Request) && half_open.reply_data.is_none()
        {
            if let Err(error) = half_open.answer(now, answer) {
                if NOT_ANSWERED.admits(now) {
                    tracing::error!(peer = %half_open.stream.peer_addr(), %error, "could not answer an MPA Request");
                }
                self.end(half_open);
                return;
            }
            half_open.stream.pump(now);
        }
        match half_open.stream.startup() {
            Startup::Pending | Startup::Request => self.keep(slot, half_open),
            // The reply, or the rejection, may still be on its way out.
            Startup::Established | Startup::Rejected if half_open.stream.readiness().write => {
                self.keep(slot, half_open);
            }
            Startup::Established => self.finish(half_open),
            Startup::Rejected | Startup::Failed => self.end(half_open),
        }
    }

    /// Puts a connection back to wait for what it needs next.
    fn keep(&mut self, slot: usize, mut half_open: HalfOpen) {
        let interest = Interest::from(half_open.stream.readiness());
        if interest != half_open.interest {
            half_open.interest = interest;
            let mut event = interest.event(slot as u64);
            if let Err(errno) = self.epoll.modify(half_open.stream.descriptor(), &mut event) {
                tracing::error!(%errno, "could not watch a connection");
                self.end(half_open);
                return;
            }
        }
        if let Some(place) = self.half_open.get_mut(slot) {
            *place = Some(half_open);
        }
    }

    fn finish(&mut self, half_open: HalfOpen) {
        if let Err(errno) = self.epoll.delete(half_open.stream.descriptor()) {
            tracing::error!(%errno, "could not release a connection");
            self.end(half_open);
            return;
        }
        self.counters.established += 1;
        self.done.push_back(Accepted {
            request_data: half_open.stream.peer_private_data().into(),
            reply_data: half_open.reply_data.unwrap_or_default(),
            stream: half_open.stream,
        });
    }

    /// Lets go of a connection that came to nothing; closing its socket takes it off the epoll too.
    fn end(&mut self, mut half_open: HalfOpen) {
        let peer = half_open.stream.peer_addr();
        if half_open.rejected {
            self.counters.rejected += 1;
            tracing::info!(%peer, "rejected a stream");
        } else {
            self.counters.failed += 1;
            let error = half_open.stream.take_error();
            tracing::info!(%peer, error = error.as_ref().map(tracing::field::display), "a stream's startup failed");
        }
    }
}

impl HalfOpen {
    /// Asks for an answer to the peer's request and gives it.
    fn answer(
        &mut self,
        now: Time,
        answer: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> Result<(), kbtp_fabric::LocalError> {
        let request = Request {
            peer: self.stream.peer_addr(),
            private_data: self.stream.peer_private_data(),
        };
        let data = match answer(&request) {
            Answer::Accept { private_data } => {
                self.stream.accept(&private_data, now)?;
                private_data
            }
            Answer::Reject { private_data } => {
                self.rejected = true;
                self.stream.reject(&private_data, now)?;
                private_data
            }
        };
        self.reply_data = Some(data.into());
        Ok(())
    }
}

impl AsFd for Listener {
    /// Ready for reading when [`progress`](Listener::progress) has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
