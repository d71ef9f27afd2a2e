//! The two transports a target listens on, as one: iWARP on TCP sockets, and RDMA devices.

use kbtp_fabric::{
    Access, Capabilities, CloseReason, Event, LocalError, PostError, Readiness, ReceiveSlot,
    Stream, StreamError, Time, WorkId, WorkRequest,
};
use kbtp_iwarp_tcp::{Answer, Listener, ListenerCounters, Request, TcpRdmaStream};
use kbtp_memory::Region;
use kbtp_wire::{Stag, TaggedOffset};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};

/// A stream of either transport.
#[derive(Debug)]
pub(crate) enum Served {
    /// iWARP on a TCP socket.
    Tcp(Box<TcpRdmaStream>),
    /// A queue pair of an RDMA device.
    Rdma(Box<kbtp_verbs::VerbsStream>),
}

macro_rules! either {
    ($self:ident, $stream:ident => $what:expr) => {
        match $self {
            Self::Tcp($stream) => $what,
            Self::Rdma($stream) => $what,
        }
    };
}

impl Served {
    /// The peer's address.
    pub(crate) const fn peer_addr(&self) -> SocketAddr {
        either!(self, stream => stream.peer_addr())
    }
}

impl Stream for Served {
    fn capabilities(&self) -> Capabilities {
        either!(self, stream => stream.capabilities())
    }

    fn stags(&self) -> Option<u64> {
        either!(self, stream => stream.stags())
    }

    fn tagged_base(&self, region: &Region, start: u64, wanted: TaggedOffset) -> TaggedOffset {
        either!(self, stream => stream.tagged_base(region, start, wanted))
    }

    fn register(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        either!(self, stream => stream.register(region, range, base, access))
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), LocalError> {
        either!(self, stream => stream.invalidate(stag))
    }

    fn retire(&mut self, stag: Stag) -> Result<(), LocalError> {
        either!(self, stream => stream.retire(stag))
    }

    fn post(
        &mut self,
        id: WorkId,
        work: &WorkRequest<'_>,
        signaled: bool,
    ) -> Result<(), PostError> {
        either!(self, stream => stream.post(id, work, signaled))
    }

    fn progress(&mut self, now: Time) -> Result<bool, StreamError> {
        either!(self, stream => stream.progress(now))
    }

    fn next_event(&mut self) -> Option<Event> {
        either!(self, stream => stream.next_event())
    }

    fn message(&self, slot: ReceiveSlot) -> &[u8] {
        either!(self, stream => stream.message(slot))
    }

    fn release(&mut self, slot: ReceiveSlot) {
        either!(self, stream => stream.release(slot));
    }

    fn readiness(&self) -> Readiness {
        either!(self, stream => stream.readiness())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        either!(self, stream => stream.descriptor())
    }

    fn close(&mut self, how: CloseReason) {
        either!(self, stream => stream.close(how));
    }
}

/// A stream whose startup is done, and what was said in it.
pub(crate) struct Newcomer {
    pub(crate) stream: Served,
    /// Private Data of the reply.
    pub(crate) reply_data: Box<[u8]>,
}

/// A listener of either transport.
#[derive(Debug)]
pub(crate) enum Listening {
    /// On a TCP socket.
    Tcp(Box<Listener>),
    /// On an address of an RDMA device.
    Rdma(Box<kbtp_verbs::Listener>),
    /// On a device that is gone.
    Gone(SocketAddr, ListenerCounters),
}

impl Listening {
    /// The address it listens on.
    pub(crate) const fn local_addr(&self) -> SocketAddr {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Rdma(listener) => listener.local_addr(),
            Self::Gone(address, _) => *address,
        }
    }

    /// What to wait on; nothing once its device is gone.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tcp(listener) => Some(listener.as_fd()),
            Self::Rdma(listener) => Some(listener.as_fd()),
            Self::Gone(..) => None,
        }
    }

    /// When [`progress`](Self::progress) is due even if the descriptor is not ready.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        match self {
            Self::Tcp(listener) => listener.next_timeout(),
            Self::Rdma(listener) => listener.next_timeout(),
            Self::Gone(..) => None,
        }
    }

    /// What became of the connections so far.
    pub(crate) fn counters(&self) -> ListenerCounters {
        match self {
            Self::Tcp(listener) => listener.counters(),
            Self::Rdma(listener) => {
                let counters = listener.counters();
                ListenerCounters {
                    connections: counters.connections,
                    established: counters.established,
                    over_half_open: counters.over_half_open,
                    over_source: counters.over_source,
                    rejected: counters.rejected,
                    failed: counters.failed,
                    ..ListenerCounters::default()
                }
            }
            Self::Gone(_, counters) => *counters,
        }
    }

    /// Goes on as far as it goes without waiting; an established stream, if there is one. A device that is gone ends its
    /// own listener and nothing else.
    ///
    /// # Errors
    /// What the system says of the TCP socket.
    pub(crate) fn progress(
        &mut self,
        now: Time,
        answer: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> io::Result<Option<Newcomer>> {
        let listener = match self {
            Self::Tcp(listener) => {
                let accepted = listener.progress(now, answer)?;
                return Ok(accepted.map(|accepted| Newcomer {
                    stream: Served::Tcp(Box::new(accepted.stream)),
                    reply_data: accepted.reply_data,
                }));
            }
            Self::Rdma(listener) => listener,
            Self::Gone(..) => return Ok(None),
        };
        let mut answered = |request: &kbtp_verbs::Request<'_>| {
            let request = Request {
                peer: request.peer,
                private_data: request.private_data,
            };
            match answer(&request) {
                Answer::Accept { private_data } => kbtp_verbs::Answer::Accept { private_data },
                Answer::Reject { private_data } => kbtp_verbs::Answer::Reject { private_data },
            }
        };
        match listener.progress(now, &mut answered) {
            Ok(accepted) => Ok(accepted.map(|accepted| Newcomer {
                stream: Served::Rdma(Box::new(accepted.stream)),
                reply_data: accepted.reply_data,
            })),
            Err(error) => {
                let (address, counters) = (self.local_addr(), self.counters());
                tracing::error!(%address, %error, "the target no longer listens there");
                *self = Self::Gone(address, counters);
                Ok(None)
            }
        }
    }
}
