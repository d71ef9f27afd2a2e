//! Setting up streams as the responder.

use crate::connector::{agreed, limited_reads};
use crate::end::End;
use crate::limits::{REPLY_DATA, RETRIES};
use crate::options::ListenOptions;
use crate::probe::quirks_of;
use crate::quirks::Quirks;
use crate::stream::{Facts, VerbsStream};
use kbtp_fabric::Time;
use kbtp_verbs_sys::{AsyncEvent, CmEvent, CmEventKind, CmId, ConnectParameters, VerbsError};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// The token of the listening identifier in the listener's epoll, and that of its device's events; the others are slots.
const ACCEPT: u64 = u64::MAX;
const DEVICE: u64 = u64::MAX - 1;
/// Events that are looked at in one go.
const EVENTS: usize = 64;

/// A connection that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who asks.
    pub peer: SocketAddr,
    /// Private Data of the request; InfiniBand and RoCE pad it with zeros.
    pub private_data: &'a [u8],
}

/// The answer to a request; at most 196 octets of Private Data (148 with a rejection).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Take the stream.
    Accept {
        /// Private Data of the reply.
        private_data: Vec<u8>,
    },
    /// Reject it.
    Reject {
        /// Private Data of the rejection.
        private_data: Vec<u8>,
    },
}

/// A stream whose startup is done. It can be handed to another thread.
#[derive(Debug)]
pub struct Accepted {
    /// The stream. What the peer sent right behind the startup may be in it already: take its events before waiting for
    /// its descriptor.
    pub stream: VerbsStream,
    /// Private Data of the peer's request.
    pub request_data: Box<[u8]>,
    /// Private Data of the reply, as the caller gave it.
    pub reply_data: Box<[u8]>,
}

/// What became of the connections that came, and what the device said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListenerCounters {
    /// Connections asked for.
    pub connections: u64,
    /// Streams established.
    pub established: u64,
    /// Rejected: too many half-open.
    pub over_half_open: u64,
    /// Rejected: too many half-open from one source.
    pub over_source: u64,
    /// Rejected by the answer to their request.
    pub rejected: u64,
    /// Failed in their startup, or for want of something of this machine's.
    pub failed: u64,
    /// Times a port of the device went down.
    pub ports_down: u64,
    /// Times a port of the device came up.
    pub ports_up: u64,
    /// Times a GID of the device changed.
    pub gid_changes: u64,
}

/// A connection that was accepted and is not established yet.
#[derive(Debug)]
struct HalfOpen {
    end: Box<End>,
    facts: Facts,
    source: IpAddr,
    until: Time,
    request_data: Box<[u8]>,
    reply_data: Box<[u8]>,
}

/// A listening address of one RDMA device, and the connections in their startup.
///
/// Watch [`as_fd`](AsFd::as_fd) for reading and call [`progress`](Self::progress) when it is ready or
/// [`next_timeout`](Self::next_timeout) has come.
pub struct Listener {
    id: CmId,
    local: SocketAddr,
    device: String,
    quirks: Quirks,
    epoll: Epoll,
    options: ListenOptions,
    half_open: Vec<Option<HalfOpen>>,
    done: VecDeque<Accepted>,
    counters: ListenerCounters,
    removed: bool,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local", &self.local)
            .field("device", &self.device)
            .field("quirks", &self.quirks)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// What counts as one source: an IPv4 address, or the /64 of an IPv6 address.
fn source(peer: &SocketAddr) -> IpAddr {
    match peer.ip().to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

fn os(what: &'static str) -> impl FnOnce(Errno) -> VerbsError {
    move |errno| VerbsError::Os {
        what,
        source: errno.into(),
    }
}

impl Listener {
    /// Listens on `addr`, an address that one RDMA device has. Port 0 takes a free one: see
    /// [`local_addr`](Self::local_addr). The device is tried out first, unless this process has done so before.
    ///
    /// # Errors
    /// [`VerbsError`]: no device has the address, the address is one of all devices (0.0.0.0, ::), or it is taken.
    pub fn bind(addr: SocketAddr, options: ListenOptions) -> Result<Self, VerbsError> {
        if addr.ip().is_unspecified() {
            return Err(VerbsError::Unsupported {
                what: "address of its own in 0.0.0.0 or ::, which stand for every device: listen on the address of one",
            });
        }
        let mut id = CmId::new()?;
        id.reuse_address()?;
        if addr.is_ipv6() {
            id.ipv6_only()?;
        }
        id.bind(addr)?;
        let device = id.context()?.name();
        let quirks = quirks_of(&id)?;
        id.listen(options.backlog)?;
        let local = id.local_addr().unwrap_or(addr);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os("making an epoll"))?;
        let watch = |fd: BorrowedFd<'_>, token| {
            epoll
                .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))
                .map_err(os("watching a listener"))
        };
        watch(id.fd(), ACCEPT)?;
        let context = id.context()?;
        context.make_async_nonblocking()?;
        watch(context.async_fd(), DEVICE)?;
        Ok(Self {
            local,
            device,
            quirks,
            epoll,
            half_open: (0..options.half_open).map(|_| None).collect(),
            done: VecDeque::with_capacity(options.half_open),
            options,
            counters: ListenerCounters::default(),
            removed: false,
            id,
        })
    }

    /// The address it listens on.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The kernel's name for its device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What its device does.
    #[must_use]
    pub const fn quirks(&self) -> Quirks {
        self.quirks
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
        self.half_open.iter().flatten().map(|half| half.until).min()
    }

    /// Goes on with every connection as far as it goes without waiting. `answer` is asked once for each request. Gives an
    /// established stream; call again until there is none.
    ///
    /// # Errors
    /// [`VerbsError`] if it can no longer wait for events, or its device is gone; the trouble of a single connection is
    /// counted, not reported.
    pub fn progress(
        &mut self,
        now: Time,
        answer: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> Result<Option<Accepted>, VerbsError> {
        if let Some(accepted) = self.done.pop_front() {
            return Ok(Some(accepted));
        }
        let mut ready = [EpollEvent::empty(); EVENTS];
        let found = match self.epoll.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(found) => found,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(os("waiting for connections")(errno)),
        };
        for event in ready.iter().take(found) {
            match event.data() {
                ACCEPT => self.accept(now, answer)?,
                DEVICE => self.hear_device()?,
                slot => self.advance(usize::try_from(slot).unwrap_or(usize::MAX), now),
            }
        }
        for slot in 0..self.half_open.len() {
            let place = self.half_open.get_mut(slot);
            if let Some(place) = place.filter(|p| p.as_ref().is_some_and(|h| h.until <= now)) {
                *place = None;
                self.counters.failed += 1;
            }
        }
        if self.removed {
            return Err(VerbsError::Os {
                what: "the RDMA device was removed",
                source: io::ErrorKind::NotConnected.into(),
            });
        }
        Ok(self.done.pop_front())
    }

    /// Takes what the device has to say.
    fn hear_device(&mut self) -> Result<(), VerbsError> {
        while let Some(event) = self.id.context()?.next_async_event()? {
            let device = &self.device;
            match event {
                AsyncEvent::PortActive(port) => {
                    self.counters.ports_up += 1;
                    tracing::info!(device, port, "a port came up");
                }
                AsyncEvent::PortDown(port) => {
                    self.counters.ports_down += 1;
                    tracing::warn!(device, port, "a port went down");
                }
                AsyncEvent::GidChange(port) => {
                    self.counters.gid_changes += 1;
                    tracing::info!(device, port, "a GID changed");
                }
                AsyncEvent::DeviceFatal => {
                    self.removed = true;
                    tracing::error!(device, "the device failed");
                }
                AsyncEvent::QueuePair(kind) => {
                    tracing::debug!(device, kind, "a queue pair's event");
                }
                AsyncEvent::Other(kind) => tracing::debug!(device, kind, "a device's event"),
            }
        }
        Ok(())
    }

    fn accept(
        &mut self,
        now: Time,
        answer: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> Result<(), VerbsError> {
        for _ in 0..EVENTS {
            let Some(mut event) = self.id.next_event()? else {
                return Ok(());
            };
            match event.kind {
                CmEventKind::ConnectRequest => {}
                CmEventKind::DeviceRemoved => {
                    self.removed = true;
                    continue;
                }
                _ => continue,
            }
            self.counters.connections += 1;
            match event.request.take() {
                Some(Ok(id)) => {
                    if let Err(error) = self.begin(id, &event, now, answer) {
                        self.counters.failed += 1;
                        tracing::warn!(device = %self.device, %error, "could not start a stream");
                    }
                }
                Some(Err(error)) => {
                    self.counters.failed += 1;
                    tracing::warn!(device = %self.device, %error, "could not take a connection");
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Where a new connection of `from` may wait.
    fn place(&mut self, from: IpAddr) -> Option<usize> {
        let waiting = self.half_open.iter().flatten();
        let of_source = waiting.filter(|half| half.source == from).count();
        if of_source >= self.options.half_open_per_source {
            self.counters.over_source += 1;
            return None;
        }
        let free = self.half_open.iter().position(Option::is_none);
        if free.is_none() {
            self.counters.over_half_open += 1;
        }
        free
    }

    fn begin(
        &mut self,
        mut id: CmId,
        event: &CmEvent,
        now: Time,
        answer: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> Result<(), VerbsError> {
        let peer = id.peer_addr().ok_or(VerbsError::Unsupported {
            what: "address of a peer",
        })?;
        let from = source(&peer);
        //= rfc5042-3-resource-control
        let Some(slot) = self.place(from) else {
            return id.reject(&[]);
        };
        let asked = Request {
            peer,
            private_data: &event.private_data,
        };
        let reply = match answer(&asked) {
            Answer::Accept { private_data } => private_data,
            Answer::Reject { private_data } => {
                self.counters.rejected += 1;
                return id.reject(&private_data);
            }
        };
        if reply.len() > REPLY_DATA {
            return Err(VerbsError::Attribute {
                attribute: "private_data_len of a reply",
                wanted: reply.len() as u64,
                limit: REPLY_DATA as u64,
            });
        }
        let mut end = End::new(id, &self.options.stream, self.quirks)?;
        let (inbound, outbound) = limited_reads(&end, self.options.stream.reads)?;
        let (inbound, outbound) = (
            agreed(inbound, event.responder_resources),
            agreed(outbound, event.initiator_depth),
        );
        end.id.accept(&ConnectParameters {
            private_data: &reply,
            responder_resources: inbound,
            initiator_depth: outbound,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
        })?;
        let token = slot as u64;
        self.epoll
            .add(end.id.fd(), EpollEvent::new(EpollFlags::EPOLLIN, token))
            .map_err(os("watching a connection"))?;
        let facts = Facts {
            device: self.device.clone(),
            peer,
            local: end.id.local_addr().unwrap_or(self.local),
            outbound_reads: u16::from(outbound),
            inbound_reads: u16::from(inbound),
            receive_len: self.options.stream.receive_len,
            keepalive_ms: self.options.stream.keepalive_idle_ms,
            nudges: false,
        };
        if let Some(place) = self.half_open.get_mut(slot) {
            *place = Some(HalfOpen {
                end: Box::new(end),
                facts,
                source: from,
                until: now.after_ms(self.options.stream.startup_ms),
                request_data: event.private_data.clone().into(),
                reply_data: reply.into(),
            });
        }
        Ok(())
    }

    /// Goes on with the connection in `slot`.
    fn advance(&mut self, slot: usize, now: Time) {
        let Some(place) = self.half_open.get_mut(slot) else {
            return;
        };
        let Some(mut half) = place.take() else {
            return;
        };
        let event = match half.end.id.next_event() {
            Ok(Some(event)) => event,
            Ok(None) => {
                *place = Some(half);
                return;
            }
            Err(error) => {
                self.counters.failed += 1;
                tracing::warn!(%error, "a connection's events cannot be read");
                return;
            }
        };
        if event.kind != CmEventKind::Established {
            self.counters.failed += 1;
            let peer = half.facts.peer;
            tracing::info!(%peer, status = event.status, "a stream's startup failed");
            return;
        }
        if let Err(error) = self.epoll.delete(half.end.id.fd()) {
            tracing::error!(%error, "could not release a connection");
            self.counters.failed += 1;
            return;
        }
        self.counters.established += 1;
        self.done.push_back(Accepted {
            stream: VerbsStream::new(*half.end, half.facts, now),
            request_data: half.request_data,
            reply_data: half.reply_data,
        });
    }
}

impl AsFd for Listener {
    /// Ready for reading when [`progress`](Listener::progress) has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_no_address() {
        for any in ["0.0.0.0:0", "[::]:0"] {
            let error = Listener::bind(any.parse().unwrap(), ListenOptions::default()).unwrap_err();
            assert!(
                error.to_string().contains("listen on the address of one"),
                "{error}"
            );
        }
    }

    #[test]
    fn without_a_device_listening_fails_with_words() {
        let here = "192.0.2.1:0".parse().unwrap();
        let error = Listener::bind(here, ListenOptions::default()).unwrap_err();
        assert!(!error.to_string().is_empty());
    }

    #[test]
    fn sources_are_addresses_or_networks() {
        let of = |text: &str| source(&text.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.7:9"), "192.0.2.7");
        assert_eq!(of("[2001:db8:1:2:3:4:5:6]:9"), "2001:db8:1:2::");
    }
}
