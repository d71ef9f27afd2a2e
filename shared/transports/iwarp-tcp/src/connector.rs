//! Setting up a stream as the initiator: TCP connection, MPA Request, MPA Reply.

use crate::driver::Clock;
use crate::socket;
use crate::stream::{StreamOptions, TcpRdmaStream};
use crate::{Interest, entropy};
use kbtp_fabric::{LocalError, Readiness, Stream as _, StreamError, Time};
use kbtp_iwarp::{Connection, Handshake, Startup};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The stream. Its handshake says which MPA revision is asked for.
    pub stream: StreamOptions,
    /// If the peer closes the connection without an answer to a revision 2 request, try again with revision 1, as
    /// RFC 6581 (section 10) allows: a peer of RFC 5044 alone does that.
    pub fall_back_to_original: bool,
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The system refused, or the TCP connection failed.
    #[error("{what}: {source}")]
    Os {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The peer rejected the stream in its MPA Reply.
    #[error("the peer rejected the stream")]
    Rejected {
        /// The Private Data of its reply.
        private_data: Box<[u8]>,
    },
    /// The MPA startup failed: time ran out, or the peer closed or broke the rules.
    #[error("the startup failed: {0}")]
    Startup(#[source] StreamError),
    /// Time ran out.
    #[error("no stream within the time given")]
    TimedOut,
    /// An option is out of bounds, or the Private Data is too long.
    #[error(transparent)]
    Local(#[from] LocalError),
}

fn os(what: &'static str) -> impl FnOnce(io::Error) -> ConnectError {
    move |source| ConnectError::Os { what, source }
}

/// A stream and what its peer said when it was set up.
#[derive(Debug)]
pub struct Connected {
    /// The stream, established.
    pub stream: TcpRdmaStream,
    /// Private Data of the peer's MPA Reply.
    pub private_data: Box<[u8]>,
}

/// Where an attempt is.
#[derive(Debug)]
enum State {
    /// The TCP connection is on its way.
    Tcp(Socket),
    /// The startup frames are.
    Mpa(Box<TcpRdmaStream>),
    /// It has failed or succeeded.
    Over,
}

/// One attempt to set up a stream, step by step: [`progress`](Self::progress) when the descriptor is ready or the time
/// has come. The startup has its own limit of time, TCP's own attempt the user time-out of
/// [`TcpOptions`](crate::TcpOptions); drop it to give up sooner. [`connect`] does it all in one call.
#[derive(Debug)]
pub struct Connector {
    state: State,
    addr: SocketAddr,
    options: ConnectOptions,
    private_data: Box<[u8]>,
}

impl Connector {
    /// Starts to connect to `addr`; `private_data` goes into the MPA Request (at most 508 octets, 512 in revision 1).
    ///
    /// # Errors
    /// [`ConnectError`] if it fails at once.
    pub fn start(
        addr: SocketAddr,
        options: ConnectOptions,
        private_data: &[u8],
    ) -> Result<Self, ConnectError> {
        let socket = socket::connect(&addr, &options.stream.tcp).map_err(os("connecting"))?;
        Ok(Self {
            state: State::Tcp(socket),
            addr,
            options,
            private_data: private_data.into(),
        })
    }

    /// Goes on as far as it goes without waiting; the stream once it is established.
    ///
    /// # Errors
    /// [`ConnectError`] if the attempt has failed; it is over then.
    pub fn progress(&mut self, now: Time) -> Result<Option<Connected>, ConnectError> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Tcp(socket) => {
                    if !is_connected(&socket).map_err(os("connecting"))? {
                        self.state = State::Tcp(socket);
                        return Ok(None);
                    }
                    self.state = State::Mpa(Box::new(self.mpa(socket, now)?));
                }
                State::Mpa(mut stream) => {
                    stream.pump(now);
                    match stream.startup() {
                        Startup::Established => {
                            let private_data = stream.peer_private_data().into();
                            return Ok(Some(Connected {
                                stream: *stream,
                                private_data,
                            }));
                        }
                        Startup::Rejected => {
                            let private_data = stream.peer_private_data().into();
                            return Err(ConnectError::Rejected { private_data });
                        }
                        Startup::Failed => {
                            let silent = stream.traffic().received_octets == 0;
                            let error = stream.take_error().unwrap_or(StreamError::ClosedHere);
                            self.after_failure(error, silent)?;
                        }
                        Startup::Pending | Startup::Request => {
                            self.state = State::Mpa(stream);
                            return Ok(None);
                        }
                    }
                }
                State::Over => return Err(ConnectError::Startup(StreamError::ClosedHere)),
            }
        }
    }

    /// The startup frames on a connected socket.
    fn mpa(&self, socket: Socket, now: Time) -> Result<TcpRdmaStream, ConnectError> {
        let config = self
            .options
            .stream
            .config_for(&socket)
            .map_err(os("segment size"))?;
        let seed = entropy::random().map_err(os("randomness"))?;
        let core = Connection::initiator(&config, seed, &self.private_data, now)?;
        Ok(TcpRdmaStream::new(socket, core, self.addr))
    }

    /// Tries again in revision 1 if that is asked for and may help.
    fn after_failure(&mut self, error: StreamError, silent: bool) -> Result<(), ConnectError> {
        // A peer that said nothing has closed the connection, in order or with a reset, or is mute.
        let timed_out = matches!(
            &error,
            StreamError::Connection { source } if source.kind() == io::ErrorKind::TimedOut
        );
        let handshake = &mut self.options.stream.rdma.handshake;
        if !self.options.fall_back_to_original
            || *handshake == Handshake::Original
            || !silent
            || timed_out
        {
            return Err(ConnectError::Startup(error));
        }
        // RFC 6581, section 10, on the case "enhanced MPA initiator only".
        *handshake = Handshake::Original;
        let tcp = &self.options.stream.tcp;
        let socket = socket::connect(&self.addr, tcp).map_err(os("connecting"))?;
        self.state = State::Tcp(socket);
        Ok(())
    }

    /// What to wait for before the next [`progress`](Self::progress).
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        match &self.state {
            State::Tcp(_) => Readiness {
                read: false,
                write: true,
                at: None,
            },
            State::Mpa(stream) => stream.readiness(),
            State::Over => Readiness {
                read: false,
                write: false,
                at: None,
            },
        }
    }

    /// The descriptor to wait on. With a fall-back it may change in [`progress`](Self::progress); `None` once the
    /// attempt is over.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Tcp(socket) => Some(socket.as_fd()),
            State::Mpa(stream) => Some(stream.descriptor()),
            State::Over => None,
        }
    }
}

/// Whether a connecting socket has got there.
fn is_connected(socket: &Socket) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Connects to `addr` and waits for the stream, at most `timeout_ms` milliseconds.
///
/// # Errors
/// [`ConnectError`].
pub fn connect(
    addr: SocketAddr,
    options: ConnectOptions,
    private_data: &[u8],
    timeout_ms: u64,
) -> Result<Connected, ConnectError> {
    let clock = Clock::new();
    let deadline = clock.now().after_ms(timeout_ms);
    let mut connector = Connector::start(addr, options, private_data)?;
    loop {
        let now = clock.now();
        if let Some(connected) = connector.progress(now)? {
            return Ok(connected);
        }
        if now >= deadline {
            return Err(ConnectError::TimedOut);
        }
        let readiness = connector.readiness();
        let until = readiness.at.map_or(deadline, |at| at.min(deadline));
        let Some(fd) = connector.descriptor() else {
            return Err(ConnectError::TimedOut);
        };
        let interest = Interest::from(readiness);
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLIN, interest.read);
        flags.set(PollFlags::POLLOUT, interest.write);
        let wait = PollTimeout::try_from(until.since_ns(now).div_ceil(1_000_000))
            .unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, flags)], wait) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(os("waiting")(errno.into())),
        }
    }
}
