//! Streams over RDMA devices: what runs in the guest.

use crate::driver::Deadline;
use crate::party::Party;
use crate::peer::{answer, drive};
use kbtp_fabric::{Atomics, Stream as _};
use kbtp_verbs::{Answer, ConnectOptions, ListenOptions, Listener, Request, VerbsStream, connect};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// For a peer to come: it is another machine that boots, perhaps.
const COMES: Duration = Duration::from_mins(3);
/// For a connection.
const STARTUP_MS: u64 = 60_000;

fn accept(listener: &mut Listener) -> Outcome<VerbsStream> {
    let deadline = Deadline::after(COMES);
    loop {
        let now = deadline.now()?;
        let mut answer = |_: &Request<'_>| Answer::Accept {
            private_data: Vec::new(),
        };
        if let Some(accepted) = listener.progress(now, &mut answer)? {
            return Ok(accepted.stream);
        }
        let mut time = deadline.left();
        if let Some(at) = listener.next_timeout() {
            let ms = at.since_ns(now).div_ceil(1_000_000);
            time = time.min(PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
        }
        match poll(
            &mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)],
            time,
        ) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Answers `streams` drivers, one after the other, and says how each stream ended.
///
/// # Errors
/// There is no device at `at`, or nobody comes.
pub fn serve(at: SocketAddr, streams: u32, out: &mut impl Write) -> Outcome<()> {
    let mut listener = Listener::bind(at, ListenOptions::default())?;
    writeln!(out, "listening on {}", listener.device())?;
    out.flush()?;
    for _ in 0..streams {
        let mut party = Party::new(accept(&mut listener)?)?;
        writeln!(out, "a stream on {}", party.stream.device())?;
        match answer(&mut party) {
            Ok(orders) => writeln!(out, "closed after {orders} orders")?,
            Err(error) => writeln!(out, "ended: {error}")?,
        }
        out.flush()?;
    }
    Ok(())
}

/// Drives the peer at `to`, `rounds` times over one stream.
///
/// # Errors
/// The first thing that is not as it should be.
pub fn drive_at(to: SocketAddr, rounds: u32, out: &mut impl Write) -> Outcome<()> {
    let stream = connect(to, ConnectOptions::default(), b"", STARTUP_MS)?.stream;
    let mut party = Party::new(stream)?;
    writeln!(out, "a stream on {}", party.stream.device())?;
    out.flush()?;
    let has_all = party.stream.capabilities().atomics != Atomics::None;
    for _ in 0..rounds {
        let done = drive(&mut party, has_all)?;
        writeln!(out, "done: {done}")?;
        out.flush()?;
    }
    party.close()
}
