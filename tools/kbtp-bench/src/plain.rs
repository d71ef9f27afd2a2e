//! The limit: the same octets between two processes over a plain TCP socket, with nothing but the request in front.
//!
//! An exchange begins with a [`Command`] as long as a KBTP request. The server is a process of its own, so that its CPU time is
//! its own; it ends when its standard input does, so that it cannot outlive the benchmark.

use crate::sample::Mover;
use kbtp::lane::{self, Run};
use kbtp::{Failure, driver};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Octets of a command: those of a request for a load on the wire, framing included.
const COMMAND_LEN: usize = 64;
/// Octets of the acknowledgement of a store: what a KBTP COMPLETION has.
const ACK_LEN: usize = 40;
/// Octets the server sends from and receives into, in turn: beyond the caches, as a pool is.
const POOL_LEN: usize = 64 << 20;
/// How long either end polls before it sleeps, as long as a target does at most.
const SPIN: Duration = Duration::from_micros(100);
/// Octets of one system call at most when a client streams. More make it no faster.
const WRITE_LEN: usize = 1 << 20;
/// Octets a client asks for at once when it streams.
const BATCH_LEN: u32 = 8 << 20;
/// Batches on their way when a client streams: one arrives while the next is asked for.
const BATCHES_AHEAD: u32 = 2;
/// How long a peer may be silent before the exchange is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which way the octets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From the server, as a load does.
    ToClient,
    /// To the server, as a store does.
    ToServer,
}

/// `count` pieces of `size` octets, that way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Command {
    way: Way,
    size: u32,
    count: u32,
}

impl Command {
    fn encode(self) -> [u8; COMMAND_LEN] {
        let mut octets = [0; COMMAND_LEN];
        let [way, size, count, ..] = octets.as_chunks_mut::<4>().0 else {
            return octets;
        };
        *way = u32::from(self.way == Way::ToServer).to_be_bytes();
        *size = self.size.to_be_bytes();
        *count = self.count.to_be_bytes();
        octets
    }

    fn decode(octets: &[u8; COMMAND_LEN]) -> io::Result<Self> {
        let [way, size, count, ..] = octets.as_chunks::<4>().0 else {
            return Err(io::Error::from(ErrorKind::InvalidData));
        };
        let way = match u32::from_be_bytes(*way) {
            0 => Way::ToClient,
            1 => Way::ToServer,
            _ => return Err(io::Error::from(ErrorKind::InvalidData)),
        };
        Ok(Self {
            way,
            size: u32::from_be_bytes(*size),
            count: u32::from_be_bytes(*count),
        })
    }
}

/// A socket that polls for a while before it sleeps.
#[derive(Debug)]
struct Polled {
    stream: TcpStream,
}

impl Polled {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream })
    }

    /// Calls `step` until it moves octets: polling at first, then sleeping until the socket is ready for `events`.
    fn until(
        &mut self,
        events: nix::poll::PollFlags,
        mut step: impl FnMut(&mut TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        use std::os::fd::AsFd as _;
        let began = driver::now();
        loop {
            match step(&mut self.stream) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => return other,
            }
            if began.elapsed() < SPIN {
                // Both ends may be on one core: then the other needs it to answer.
                std::thread::yield_now();
                continue;
            }
            let fd = nix::poll::PollFd::new(self.stream.as_fd(), events);
            let timeout = nix::poll::PollTimeout::try_from(PATIENCE)
                .map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
            if nix::poll::poll(&mut [fd], timeout)? == 0 {
                return Err(io::Error::from(ErrorKind::TimedOut));
            }
        }
    }

    /// Fills `to`. `Ok(false)` if the peer closed before the first octet.
    fn receive(&mut self, to: &mut [u8]) -> io::Result<bool> {
        let mut done = 0;
        while done < to.len() {
            let rest = to.get_mut(done..).unwrap_or_default();
            match self.until(nix::poll::PollFlags::POLLIN, |s| s.read(rest))? {
                0 if done == 0 => return Ok(false),
                0 => return Err(io::Error::from(ErrorKind::UnexpectedEof)),
                n => done += n,
            }
        }
        Ok(true)
    }

    fn send(&mut self, from: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < from.len() {
            let rest = from.get(done..).unwrap_or_default();
            done += self.until(nix::poll::PollFlags::POLLOUT, |s| s.write(rest))?;
        }
        Ok(())
    }
}

/// Takes pieces of memory in turn.
#[derive(Debug)]
struct Ring {
    octets: Vec<u8>,
    at: usize,
}

impl Ring {
    fn new(len: usize) -> Self {
        Self {
            octets: vec![0x5a; len],
            at: 0,
        }
    }

    /// The next `size` octets; from the start again when they would pass the end.
    fn next(&mut self, size: usize) -> &mut [u8] {
        if self.at + size > self.octets.len() {
            self.at = 0;
        }
        let from = self.at;
        self.at += size;
        self.octets.get_mut(from..from + size).unwrap_or_default()
    }
}

/// Serves plain exchanges on a loopback port, which it prints, until standard input ends.
///
/// # Errors
/// What the system says.
pub(crate) fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut out = io::stdout();
    writeln!(out, r#"{{"listen":["{}"]}}"#, listener.local_addr()?)?;
    out.flush()?;
    driver::start("accept", move || {
        for stream in listener.incoming() {
            // A client that goes away ends its connection only.
            let body = move || drop(stream.and_then(serve_one));
            if driver::start("plain", body).is_err() {
                return;
            }
        }
    })
    .map_err(|e| io::Error::other(e.to_string()))?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn serve_one(stream: TcpStream) -> io::Result<()> {
    let mut socket = Polled::new(stream)?;
    let mut pool = Ring::new(POOL_LEN);
    let mut octets = [0; COMMAND_LEN];
    while socket.receive(&mut octets)? {
        let command = Command::decode(&octets)?;
        let size = usize::try_from(command.size).unwrap_or(usize::MAX);
        if size > POOL_LEN {
            return Err(io::Error::from(ErrorKind::InvalidData));
        }
        for _ in 0..command.count {
            match command.way {
                Way::ToClient => socket.send(pool.next(size))?,
                Way::ToServer => {
                    if !socket.receive(pool.next(size))? {
                        return Ok(());
                    }
                }
            }
        }
        if command.way == Way::ToServer {
            socket.send(&[0; ACK_LEN])?;
        }
    }
    Ok(())
}

/// The other end.
#[derive(Debug)]
pub(crate) struct Client {
    socket: Polled,
    buffer: Ring,
    size: u32,
    /// Octets of one system call when it streams: as many pieces as are in flight may share one.
    chunk: u32,
}

impl Client {
    /// Connects, to move pieces of `size` octets into and out of a buffer of `depth` of them.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn connect(addr: SocketAddr, size: u32, depth: u16) -> io::Result<Self> {
        let len = usize::try_from(size).unwrap_or(usize::MAX);
        let all = len.saturating_mul(usize::from(depth));
        let chunk = all.min(WRITE_LEN.max(len));
        Ok(Self {
            socket: Polled::new(TcpStream::connect(addr)?)?,
            buffer: Ring::new(all),
            size,
            chunk: u32::try_from(chunk).unwrap_or(u32::MAX),
        })
    }

    /// One piece there (with its acknowledgement) or back (with its request).
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn ping_pong(&mut self, way: Way) -> io::Result<()> {
        self.command(way, self.size, 1)?;
        self.batch(way, self.size, 1)?;
        self.settle(way)
    }

    /// Streams for `window`; returns the octets moved and the time it took.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn stream(&mut self, way: Way, window: Duration) -> io::Result<(u64, Duration)> {
        let chunk = self.chunk;
        let batch = (BATCH_LEN / chunk.max(1)).max(1);
        let began = driver::now();
        let (mut batches, mut ahead) = (0_u64, 0_u32);
        loop {
            let more = began.elapsed() < window;
            while more && ahead < BATCHES_AHEAD {
                self.command(way, chunk, batch)?;
                if way == Way::ToServer {
                    self.batch(way, chunk, batch)?;
                }
                ahead += 1;
            }
            if ahead == 0 {
                let octets = batches * u64::from(batch) * u64::from(chunk);
                return Ok((octets, began.elapsed()));
            }
            if way == Way::ToClient {
                self.batch(way, chunk, batch)?;
            }
            self.settle(way)?;
            ahead -= 1;
            batches += 1;
        }
    }

    fn command(&mut self, way: Way, size: u32, count: u32) -> io::Result<()> {
        let command = Command { way, size, count };
        self.socket.send(&command.encode())
    }

    fn batch(&mut self, way: Way, size: u32, count: u32) -> io::Result<()> {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        for _ in 0..count {
            match way {
                Way::ToServer => self.socket.send(self.buffer.next(size))?,
                Way::ToClient => {
                    if !self.socket.receive(self.buffer.next(size))? {
                        return Err(io::Error::from(ErrorKind::UnexpectedEof));
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the acknowledgement of a batch that went to the server.
    fn settle(&mut self, way: Way) -> io::Result<()> {
        let mut ack = [0; ACK_LEN];
        if way == Way::ToServer && !self.socket.receive(&mut ack)? {
            return Err(io::Error::from(ErrorKind::UnexpectedEof));
        }
        Ok(())
    }
}

/// A client as what is measured: one piece at a time if the depth is one, else a stream.
#[derive(Debug)]
pub(crate) struct PlainMover {
    pub(crate) client: Client,
    pub(crate) way: Way,
    pub(crate) one_at_a_time: bool,
}

impl Mover for PlainMover {
    fn run(&mut self, window: Duration) -> Result<Run, Failure> {
        self.run_inner(window).map_err(|e| {
            Failure::operation(
                format_args!("the plain exchange failed: {e}"),
                "run it again on a machine with less load",
            )
        })
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

impl PlainMover {
    fn run_inner(&mut self, window: Duration) -> io::Result<Run> {
        let mut run = Run {
            operations: 0,
            octets: 0,
            elapsed: Duration::ZERO,
            latency: lane::latencies().map_err(|e| io::Error::other(e.to_string()))?,
        };
        if !self.one_at_a_time {
            (run.octets, run.elapsed) = self.client.stream(self.way, window)?;
            run.operations = run.octets / u64::from(self.client.size.max(1));
            return Ok(run);
        }
        let began = driver::now();
        let mut last = began;
        while last.duration_since(began) < window {
            self.client.ping_pong(self.way)?;
            let now = driver::now();
            lane::record(&mut run.latency, now.duration_since(last));
            run.operations += 1;
            run.octets += u64::from(self.client.size);
            last = now;
        }
        run.elapsed = last.duration_since(began);
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        driver::start("test", move || {
            let (stream, _) = listener.accept().unwrap();
            // The client goes away in the middle when the test ends.
            drop(serve_one(stream));
        })
        .unwrap();
        addr
    }

    #[test]
    fn commands_round_trip_and_strange_ones_are_refused() {
        for way in [Way::ToClient, Way::ToServer] {
            let command = Command {
                way,
                size: 4096,
                count: 7,
            };
            assert_eq!(Command::decode(&command.encode()).unwrap(), command);
        }
        assert!(Command::decode(&[9; COMMAND_LEN]).is_err());
    }

    #[test]
    fn octets_move_both_ways_and_the_exchange_can_go_on() {
        let mut client = Client::connect(server(), 4096, 4).unwrap();
        for way in [Way::ToClient, Way::ToServer] {
            client.ping_pong(way).unwrap();
            let (octets, _) = client.stream(way, Duration::from_millis(1)).unwrap();
            assert!(octets > 0 && octets.is_multiple_of(4096));
            client.ping_pong(way).unwrap();
        }
    }

    #[test]
    fn a_ring_gives_whole_pieces() {
        let mut ring = Ring::new(10);
        for _ in 0..5 {
            assert_eq!(ring.next(4).len(), 4);
        }
        assert!(ring.next(11).is_empty());
    }
}
