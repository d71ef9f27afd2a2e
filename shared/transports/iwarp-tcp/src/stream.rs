//! An RDMAP Stream on a TCP socket.

use crate::driver::Clock;
use crate::limits::{PROGRESS_NS, PROGRESS_OCTETS, PROGRESS_ROUNDS};
use crate::socket::{self, TcpOptions};
use kbtp_fabric::{
    Access, Capabilities, CloseReason, Event, LocalError, PostError, Readiness, ReceiveSlot,
    Stream, StreamError, Time, WorkId, WorkRequest,
};
use kbtp_iwarp::{Action, Config, Connection, Startup};
use kbtp_memory::Region;
use kbtp_wire::{Stag, TaggedOffset, mpa};
use socket2::Socket;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

/// How long FPDUs are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FpduSize {
    /// As long as their length field and [`Config::max_ulpdu`] allow: fewest headers, CRCs and system calls. Right for
    /// every receiver that takes octets as TCP gives them.
    #[default]
    Largest,
    /// At most a TCP segment, as RFC 5044 (section 4.5) wants them for receivers that place segments out of order.
    Segment,
}

/// What a stream is set up with.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// The RDMA side.
    pub rdma: Config,
    /// The TCP side.
    pub tcp: TcpOptions,
    /// Length of FPDUs.
    pub fpdu: FpduSize,
}

impl StreamOptions {
    /// The configuration of a stream on `socket`, which is connected.
    pub(crate) fn config_for(&self, socket: &Socket) -> io::Result<Config> {
        let mut config = self.rdma.clone();
        //= rfc5044-5.1-mulpdu-of-segment
        if self.fpdu == FpduSize::Segment {
            // Whether the peer wants Markers is not known yet; leaving room for them costs 12 octets in 1460.
            let fits = mpa::max_ulpdu_len(socket.tcp_mss()?, true);
            config.max_ulpdu = config.max_ulpdu.min(fits);
        }
        Ok(config)
    }
}

/// What has passed through a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Octets sent, framing included.
    pub sent_octets: u64,
    /// Octets received, framing included.
    pub received_octets: u64,
    /// System calls that sent some.
    pub sends: u64,
    /// System calls that received some.
    pub receives: u64,
}

/// An RDMAP Stream on a TCP socket: what [`Connector`](crate::Connector) and [`Listener`](crate::Listener) give.
///
/// A batch of FPDUs goes out with one system call, its payload straight from the regions; payload comes in straight
/// into the regions. [`progress`](Stream::progress) works until the socket has nothing and takes nothing, but moves at
/// most about a megabyte in one call, so that one stream cannot starve its neighbours. What is left makes the
/// descriptor ready at once, as [`readiness`](Stream::readiness) and level-triggered waiting have it: no caller needs
/// to repeat it until it gives `false`, but after posting it must be called for the work to go out. Nothing is
/// allocated once the stream is established. Dropping a stream that was aborted resets the connection.
pub struct TcpRdmaStream {
    socket: Socket,
    core: Connection,
    peer: SocketAddr,
    /// Why sending failed: reported once what the peer sent before has been read, a Terminate perhaps.
    broken: Option<io::Error>,
    traffic: Traffic,
    /// The last read took all there was, and nothing has been read since.
    drained: bool,
    ended: bool,
    reset: bool,
}

impl fmt::Debug for TcpRdmaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpRdmaStream")
            .field("peer", &self.peer)
            .field("traffic", &self.traffic)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// What one system call on the socket came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// There was nothing to move.
    Nothing,
    /// So many octets, and there may be more.
    Some(usize),
    /// So many octets, and the socket has, or takes, no more now.
    Last(usize),
}

impl Moved {
    /// `octets` of `wanted`: a short read or write tells that the socket is at its end for now, without another
    /// system call.
    const fn of(octets: usize, wanted: usize) -> Self {
        if octets < wanted {
            Self::Last(octets)
        } else {
            Self::Some(octets)
        }
    }

    const fn octets(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Some(octets) | Self::Last(octets) => octets,
        }
    }
}

impl TcpRdmaStream {
    pub(crate) const fn new(socket: Socket, core: Connection, peer: SocketAddr) -> Self {
        Self {
            socket,
            core,
            peer,
            broken: None,
            traffic: Traffic {
                sent_octets: 0,
                received_octets: 0,
                sends: 0,
                receives: 0,
            },
            drained: false,
            ended: false,
            reset: false,
        }
    }

    /// The peer's address.
    #[must_use]
    pub const fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// This end's address.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket
            .local_addr()?
            .as_socket()
            .ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// What has passed through so far.
    #[must_use]
    pub const fn traffic(&self) -> Traffic {
        self.traffic
    }

    pub(crate) fn startup(&self) -> Startup {
        self.core.startup()
    }

    pub(crate) fn peer_private_data(&self) -> &[u8] {
        self.core.peer_private_data()
    }

    pub(crate) fn accept(&mut self, private_data: &[u8], now: Time) -> Result<(), LocalError> {
        self.core.accept(private_data, now)
    }

    pub(crate) fn reject(&mut self, private_data: &[u8], now: Time) -> Result<(), LocalError> {
        self.core.reject(private_data, now)
    }

    /// One send of what the core has ready.
    fn send_once(&mut self, now: Time) -> Moved {
        if self.broken.is_some() {
            return Moved::Nothing;
        }
        let gather = self.core.send_vec(now);
        let offered = gather.octets();
        if offered == 0 {
            return Moved::Nothing;
        }
        let sent = gather.send_to(self.socket.as_fd(), false);
        match sent {
            Ok(octets) => {
                self.traffic.sends += 1;
                self.traffic.sent_octets += octets as u64;
                self.core.handle_sent(octets, now);
                Moved::of(octets, offered)
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.broken = Some(error);
                }
                Moved::Last(0)
            }
        }
    }

    const fn reads(&self) -> bool {
        !self.ended && self.core.wants_read()
    }

    /// One receive to where the core wants it.
    fn receive_once(&mut self, now: Time) -> Moved {
        if !self.reads() {
            return Moved::Nothing;
        }
        let mut scatter = self.core.recv_vec();
        let wanted = scatter.octets();
        if wanted == 0 {
            return Moved::Nothing;
        }
        let received = scatter.read_from(self.socket.as_fd());
        match received {
            Ok(0) => {
                // Only a broken pipe may be the mere echo of the peer's end; a reset or a time-out reads as an end
                // too once a send has reported it.
                let echo = self
                    .broken
                    .as_ref()
                    .is_none_or(|error| error.kind() == io::ErrorKind::BrokenPipe);
                if echo {
                    self.core.handle_end(now);
                }
                self.tell_broken();
                Moved::Last(0)
            }
            Ok(octets) => {
                self.traffic.receives += 1;
                self.traffic.received_octets += octets as u64;
                self.core.handle_received(octets, now);
                Moved::of(octets, wanted)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.tell_broken();
                Moved::Last(0)
            }
            Err(error) => {
                self.core.handle_broken(self.broken.take().unwrap_or(error));
                Moved::Last(0)
            }
        }
    }

    /// Moves octets both ways until neither goes on, or this call's share is used up; whether any moved.
    pub(crate) fn pump(&mut self, now: Time) -> bool {
        if self.core.next_timeout().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
        }
        let mut moved = 0_usize;
        let clock = Clock::new();
        // The caller's `now` is the start: what it did since counts too.
        let until = now.after_ns(PROGRESS_NS);
        let (mut readable, mut writable) = (true, true);
        if std::mem::take(&mut self.drained) {
            // An answer, or a request, goes out without a look for more before it, which would be in vain. What has
            // come meanwhile is read by the next call.
            let sent = self.send_once(now);
            moved = sent.octets();
            readable = moved == 0;
            writable = !matches!(sent, Moved::Last(_));
        }
        for _ in 0..PROGRESS_ROUNDS {
            // Receiving comes first: it may make something to send, and the peer's wait is the longer one.
            let mut round = 0;
            if readable {
                let received = self.receive_once(now);
                readable = matches!(received, Moved::Some(_));
                self.drained = matches!(received, Moved::Last(_));
                round = received.octets();
            }
            if writable {
                let sent = self.send_once(now);
                writable = !matches!(sent, Moved::Last(_));
                round = round.saturating_add(sent.octets());
            }
            self.act();
            moved = moved.saturating_add(round);
            if round == 0 || moved >= PROGRESS_OCTETS || clock.now() >= until {
                break;
            }
        }
        self.notice_failure();
        moved > 0
    }

    /// Reports a failed send, now that there is nothing left to read.
    fn tell_broken(&mut self) {
        if let Some(error) = self.broken.take() {
            self.core.handle_broken(error);
        }
    }

    /// Where nothing is read, a broken connection would go unnoticed while epoll reports it again and again.
    fn notice_failure(&mut self) {
        if self.ended || self.reads() {
            return;
        }
        if let Ok(Some(error)) | Err(error) = self.socket.take_error() {
            self.broken.get_or_insert(error);
        }
        self.tell_broken();
        self.act();
    }

    /// Does with the socket what the core says.
    fn act(&mut self) {
        while let Some(action) = self.core.next_action() {
            match action {
                Action::EndSending => self.end_sending(),
                Action::Close => {
                    self.ended = true;
                    // The descriptor stays open until this stream is dropped; the peer need not wait for that. A
                    // reset is different: it can only come with the closing.
                    if !self.reset {
                        self.end_sending();
                    }
                }
            }
        }
    }

    fn end_sending(&self) {
        // It fails only if the connection is gone already, which the next read tells.
        if let Err(error) = self.socket.shutdown(Shutdown::Write) {
            tracing::debug!(peer = %self.peer, %error, "could not end sending");
        }
    }

    pub(crate) fn take_error(&mut self) -> Option<StreamError> {
        self.core.take_error()
    }
}

//= kbtp-9.1-rdmap-stream
impl Stream for TcpRdmaStream {
    fn capabilities(&self) -> Capabilities {
        self.core.capabilities()
    }

    fn stags(&self) -> Option<u64> {
        Some(self.core.stags())
    }

    fn register(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        self.core.register(region, range, base, access)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.core.invalidate(stag)
    }

    fn retire(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.core.retire(stag)
    }

    fn post(
        &mut self,
        id: WorkId,
        work: &WorkRequest<'_>,
        signaled: bool,
    ) -> Result<(), PostError> {
        self.core.post(id, work, signaled)
    }

    fn progress(&mut self, now: Time) -> Result<bool, StreamError> {
        if self.ended {
            return self.take_error().map_or(Ok(false), Err);
        }
        let moved = self.pump(now);
        self.take_error().map_or(Ok(moved), Err)
    }

    fn next_event(&mut self) -> Option<Event> {
        self.core.next_event()
    }

    fn message(&self, slot: ReceiveSlot) -> &[u8] {
        self.core.message(slot)
    }

    fn release(&mut self, slot: ReceiveSlot) {
        self.core.release(slot);
    }

    fn readiness(&self) -> Readiness {
        Readiness {
            read: self.reads(),
            write: !self.ended && self.core.wants_write(),
            at: self.core.next_timeout(),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn close(&mut self, how: CloseReason) {
        self.reset |= how == CloseReason::Abort;
        self.core.close(how);
    }
}

impl Drop for TcpRdmaStream {
    fn drop(&mut self) {
        if self.reset {
            socket::reset_on_close(&self.socket);
        }
    }
}
