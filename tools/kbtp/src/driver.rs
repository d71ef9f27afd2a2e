//! The one place of this command that reads the clock, waits for signals and asks the system for random octets.

use crate::failure::Failure;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Instant;

/// The time now.
#[expect(
    clippy::disallowed_methods,
    reason = "a driver reads the clock for the rest"
)]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Starts a thread that nobody waits for.
///
/// # Errors
/// [`Failure`] if the system starts none.
pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|e| no_thread(&e))
}

/// Runs `body` on each item, a thread each, and gives the results in the order of the items.
///
/// # Errors
/// The first [`Failure`] of a thread, or that one could not be started.
pub fn in_parallel<T: Send, R: Send>(
    items: &mut [T],
    body: impl Fn(&mut T) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads = items
            .iter_mut()
            .map(|item| Builder::new().spawn_scoped(scope, move || body(item)))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|e| no_thread(&e))?;
        threads
            .into_iter()
            .map(|t| {
                t.join()
                    .map_err(|_| Failure::operation("a thread panicked", "report this"))?
            })
            .collect()
    })
}

fn no_thread(e: &io::Error) -> Failure {
    Failure::operation(
        format_args!("cannot start a thread: {e}"),
        "raise the limit of processes (ulimit -u)",
    )
}

/// Sixteen octets that nobody can guess.
///
/// # Errors
/// [`Failure`] if the system has none.
pub fn random_id() -> Result<[u8; 16], Failure> {
    let mut id = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut id))
        .map_err(|e| {
            Failure::operation(
                format_args!("cannot read /dev/urandom: {e}"),
                "make the device available to this process",
            )
        })?;
    Ok(id)
}

fn stop_set() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set
}

/// SIGTERM and SIGINT as something to wait for.
#[derive(Debug)]
pub struct StopSignals {
    fd: SignalFd,
}

impl StopSignals {
    /// Takes the signals from their default action, which would end the process. Call it before any thread is
    /// started: threads inherit it.
    ///
    /// # Errors
    /// [`Failure`] if the system refuses.
    pub fn take() -> Result<Self, Failure> {
        let set = stop_set();
        set.thread_block()
            .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC))
            .map(|fd| Self { fd })
            .map_err(|e| {
                Failure::operation(format_args!("cannot take signals: {e}"), "report this")
            })
    }

    /// Gives the calling thread the default action back.
    fn release(self) -> nix::Result<()> {
        drop(self.fd);
        stop_set().thread_unblock()
    }

    /// Waits for one of them, or, if so wanted, for the end of standard input. Says which.
    ///
    /// # Errors
    /// [`Failure`] if the system refuses.
    pub fn wait(&self, with_stdin: bool) -> Result<&'static str, Failure> {
        self.wait_inner(with_stdin).map_err(|e| {
            Failure::operation(format_args!("cannot wait for signals: {e}"), "report this")
        })
    }

    fn wait_inner(&self, with_stdin: bool) -> io::Result<&'static str> {
        let stdin = io::stdin();
        let mut swallow = [0; 512];
        loop {
            let mut fds = [
                PollFd::new(self.fd.as_fd(), PollFlags::POLLIN),
                PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            ];
            let watched = if with_stdin { 2 } else { 1 };
            match poll(
                fds.get_mut(..watched).unwrap_or_default(),
                PollTimeout::NONE,
            ) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            let [signal, input] = fds.map(|f| f.any() == Some(true));
            if signal {
                let which = self.fd.read_signal()?.and_then(|s| {
                    let number = i32::try_from(s.ssi_signo).ok()?;
                    Signal::try_from(number).ok()
                });
                return Ok(which.map_or("a signal", Signal::as_str));
            }
            if watched == 2 && input && stdin.lock().read(&mut swallow)? == 0 {
                return Ok("the end of standard input");
            }
        }
    }
}

/// SIGTERM and SIGINT as a question that work asks between its steps, so that it can put things back before it ends.
#[derive(Clone, Debug)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes the signals. The second one ends the process at once, for work that does not come to its next step. Call
    /// it before any other thread is started.
    ///
    /// # Errors
    /// [`Failure`] if the system refuses.
    pub fn take() -> Result<Self, Failure> {
        let signals = StopSignals::take()?;
        let asked = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&asked);
        start("signals", move || {
            if signals.wait(false).is_err() {
                return;
            }
            tell.store(true, Ordering::Relaxed);
            // From here on this thread alone takes them as if nobody had asked for them.
            if signals.release().is_ok() {
                loop {
                    nix::unistd::pause();
                }
            }
        })?;
        Ok(Self { asked })
    }

    /// Whether a signal came.
    #[must_use]
    pub fn came(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Failure`] if a signal came.
    pub fn check(&self, doing: impl std::fmt::Display) -> Result<(), Failure> {
        if !self.came() {
            return Ok(());
        }
        Err(Failure::operation(
            format_args!("interrupted {doing}"),
            "run the command again",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        assert_ne!(random_id().unwrap(), random_id().unwrap());
    }
}
