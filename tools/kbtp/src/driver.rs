//! The one place of this command that reads the clock, waits for signals and asks the system for random octets.

use crate::failure::Failure;
use crate::output::note;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

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

/// Has a file that may not grow (`ulimit -f`) be an error of the write, as a full disk is: what failed can be put in order
/// then. Else SIGXFSZ ends the process. Call it before any thread is started: threads, and processes, inherit it.
pub(crate) fn take_limits_as_errors() {
    let mut set = SigSet::empty();
    set.add(Signal::SIGXFSZ);
    if let Err(error) = set.thread_block() {
        tracing::warn!(%error, "SIGXFSZ cannot be blocked");
    }
}

fn stop_set() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set
}

/// Whether an input that was read so gives nothing any more. One that cannot be read (it is a directory, its connection
/// was reset) has ended too: who held the other end is gone.
fn ended(read: &io::Result<usize>) -> bool {
    match read {
        Ok(octets) => *octets == 0,
        Err(e) => !matches!(
            e.kind(),
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
        ),
    }
}

/// What asks a process to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// SIGTERM or SIGINT.
    Signal(Signal),
    /// Its standard input has ended.
    Input,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Signal(signal) => signal.as_str(),
            Self::Input => "the end of standard input",
        })
    }
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

    /// Gives the signals their default action back, for as long as the process lives: the calling thread alone takes
    /// them from here on, as if nobody had asked for them.
    pub fn give_back(&self) {
        if let Err(error) = stop_set().thread_unblock() {
            tracing::error!(%error, "SIGTERM and SIGINT cannot be given back: only SIGKILL ends this process");
            return;
        }
        loop {
            nix::unistd::pause();
        }
    }

    /// The next one has its default action, on the calling thread; whether that could be had.
    fn open() -> bool {
        stop_set().thread_unblock().is_ok()
    }

    /// Ends the process by this signal, as if nobody had taken it.
    pub fn end_by(&self, signal: Signal) {
        if let Err(error) = nix::sys::signal::raise(signal) {
            tracing::error!(%error, "the signal cannot be raised again");
        }
        self.give_back();
    }

    /// Waits for one of them, or, if so wanted, for the end of standard input. Says which.
    ///
    /// # Errors
    /// [`Failure`] if the system refuses. Whoever waits no more must [give them back](Self::give_back): nobody else
    /// hears them.
    pub fn wait(&self, with_stdin: bool) -> Result<Stop, Failure> {
        self.wait_inner(with_stdin).map_err(|e| {
            Failure::operation(format_args!("cannot wait for signals: {e}"), "report this")
        })
    }

    fn wait_inner(&self, with_stdin: bool) -> io::Result<Stop> {
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
                let read = match self.fd.read_signal() {
                    Err(Errno::EINTR) => continue,
                    other => other?,
                };
                let which = read.and_then(|s| {
                    let number = i32::try_from(s.ssi_signo).ok()?;
                    Signal::try_from(number).ok()
                });
                return Ok(Stop::Signal(which.unwrap_or(Signal::SIGTERM)));
            }
            if watched == 2 && input && ended(&stdin.lock().read(&mut swallow)) {
                return Ok(Stop::Input);
            }
        }
    }
}

/// How long work has to come to its next step after a signal. A step takes milliseconds, unless it waits for somebody who
/// is stopped or gone: then it would wait for its own time limit, of 5 s and more.
const STEP_WAIT_MS: u16 = 3_000;

/// SIGTERM and SIGINT as a question that work asks between its steps, so that it can put things back before it ends.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<Asked>);

#[derive(Default)]
struct Asked {
    /// A signal came.
    came: AtomicBool,
    /// The work has seen that.
    heard: AtomicBool,
    /// What to do if it does not come to see it.
    abandon: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked")
            .field("came", &self.came)
            .field("heard", &self.heard)
            .finish_non_exhaustive()
    }
}

impl Interrupt {
    /// Takes the signals. Work that does not come to its next step in time is [abandoned](Self::on_abandon), and the
    /// second signal ends the process at once. Call it before any other thread is started.
    ///
    /// # Errors
    /// [`Failure`] if the system refuses.
    pub fn take() -> Result<Self, Failure> {
        let signals = StopSignals::take()?;
        let asked = Arc::new(Asked::default());
        let tell = Arc::clone(&asked);
        start("signals", move || {
            // If it cannot be waited for them, the first has its default action too.
            if let Ok(Stop::Signal(signal)) = signals.wait(false) {
                tell.came.store(true, Ordering::Relaxed);
                if StopSignals::open() && !tell.is_heard_in_time() {
                    tell.abandon(signal);
                    signals.end_by(signal);
                }
            }
            signals.give_back();
        })?;
        Ok(Self(asked))
    }

    /// What to do, on another thread, before the process ends because its work did not come to its next step.
    pub fn on_abandon(&self, act: impl FnOnce() + Send + 'static) {
        let mut slot = self
            .0
            .abandon
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Box::new(act));
    }

    /// Whether a signal came.
    #[must_use]
    pub fn came(&self) -> bool {
        let asked = self.0.came.load(Ordering::Relaxed);
        if asked {
            self.0.heard.store(true, Ordering::Relaxed);
        }
        asked
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

impl Asked {
    /// Waits as long as a step may take.
    fn is_heard_in_time(&self) -> bool {
        if let Err(error) = poll(&mut [], PollTimeout::from(STEP_WAIT_MS)) {
            tracing::debug!(%error, "the wait for the work was cut short");
        }
        self.heard.load(Ordering::Relaxed)
    }

    fn abandon(&self, signal: Signal) {
        note(&format!(
            "kbtp: {signal}: ended; the work had not come to its next step in {}s",
            STEP_WAIT_MS / 1_000
        ));
        let mut slot = self.abandon.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(act) = slot.take() {
            act();
        }
    }
}

/// Reads `out` until it ends, for as long as `wait`; whether it ended. What it gives is not kept.
pub(crate) fn ends_within(out: &mut (impl io::Read + AsFd), wait: Duration) -> io::Result<bool> {
    let began = now();
    let mut swallow = [0; 512];
    loop {
        let left = wait.saturating_sub(began.elapsed());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(out.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) => return Ok(false),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) if ended(&out.read(&mut swallow)) => return Ok(true),
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_has_ended_when_it_gives_nothing_or_cannot_be_read() {
        let error = |kind| Err(io::Error::from(kind));
        assert!(ended(&Ok(0)) && !ended(&Ok(1)));
        assert!(ended(&error(io::ErrorKind::IsADirectory)));
        assert!(ended(&error(io::ErrorKind::ConnectionReset)));
        assert!(!ended(&error(io::ErrorKind::Interrupted)));
        assert!(!ended(&error(io::ErrorKind::WouldBlock)));
    }

    #[test]
    fn ids_differ() {
        assert_ne!(random_id().unwrap(), random_id().unwrap());
    }
}
