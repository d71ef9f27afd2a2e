//! Streams of our own stack on the host.

use crate::driver::Deadline;
use kbtp_iwarp_tcp::{
    Answer, ConnectError, ConnectOptions, Listener, Request, StreamOptions, TcpRdmaStream,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::Duration;

/// For a whole startup.
const PATIENCE: Duration = Duration::from_mins(1);

/// Connects to `to` and waits for the stream.
///
/// # Errors
/// As [`kbtp_iwarp_tcp::connect`] has them.
pub fn connect(to: SocketAddr, stream: &StreamOptions) -> Result<TcpRdmaStream, ConnectError> {
    let options = ConnectOptions {
        stream: stream.clone(),
        fall_back_to_original: false,
    };
    let ms = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
    kbtp_iwarp_tcp::connect(to, options, b"", ms).map(|connected| connected.stream)
}

/// Waits for the next stream and takes it.
///
/// # Errors
/// None comes.
pub fn accept(listener: &mut Listener) -> Result<TcpRdmaStream, Box<dyn Error>> {
    let deadline = Deadline::after(PATIENCE);
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
