//! The clock, and ports of the host: what is asked of the system here.

use kbtp_fabric::Time;
use kbtp_iwarp_tcp::Clock;
use nix::poll::PollTimeout;
use std::io;
use std::net::TcpListener;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A time by which something must have happened.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    clock: Clock,
    end: Time,
}

impl Deadline {
    /// `time` from now.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        let clock = Clock::new();
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            clock,
            end: clock.now().after_ns(ns),
        }
    }

    /// What is left of it, for waiting.
    #[must_use]
    pub fn left(&self) -> PollTimeout {
        let ms = self.end.since_ns(self.clock.now()).div_ceil(1_000_000);
        PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
    }

    /// The time now, if it has not passed.
    ///
    /// # Errors
    /// It has.
    pub fn now(&self) -> Result<Time, String> {
        let now = self.clock.now();
        if now < self.end {
            Ok(now)
        } else {
            Err("what was waited for did not happen in time".to_owned())
        }
    }
}

/// Seconds on the monotone clock.
#[must_use]
pub fn seconds() -> f64 {
    Duration::from_nanos(Clock::new().now().0).as_secs_f64()
}

/// Starts a thread; who joins it has what it came to.
///
/// # Panics
/// The system starts none.
#[expect(clippy::expect_used, reason = "a test's own thread")]
pub fn in_background<R: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> R + Send + 'static,
) -> JoinHandle<R> {
    let thread = Builder::new().name(name.to_owned());
    thread.spawn(body).expect("a thread")
}

/// A TCP port of loopback that is free now.
///
/// # Errors
/// There is none.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
