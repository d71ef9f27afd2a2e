//! How an agent is told to stop.

use crate::AgentError;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Becomes readable when the agent is to stop. The first request has it drain, the second stop at once.
#[derive(Debug)]
pub struct Shutdown(Kind);

#[derive(Debug)]
enum Kind {
    Handle(Arc<EventFd>),
    Signals(SignalFd),
}

/// Asks for the stop, from any thread.
#[derive(Clone, Debug)]
pub struct ShutdownHandle(Arc<EventFd>);

impl Shutdown {
    /// A stop that a [`ShutdownHandle`] asks for.
    ///
    /// # Errors
    /// [`AgentError::Os`].
    pub fn new() -> Result<(Self, ShutdownHandle), AgentError> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_value_and_flags(0, flags)
            .map_err(|e| AgentError::os("cannot make an eventfd", e))?;
        let event = Arc::new(event);
        Ok((
            Self(Kind::Handle(Arc::clone(&event))),
            ShutdownHandle(event),
        ))
    }

    /// A stop that SIGTERM and SIGINT ask for. Blocks both for the calling thread and the threads it starts later: call
    /// it first, or a signal may end the process as if nobody cared.
    ///
    /// # Errors
    /// [`AgentError::Os`].
    pub fn on_signals() -> Result<Self, AgentError> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGTERM);
        signals.add(Signal::SIGINT);
        signals
            .thread_block()
            .map_err(|e| AgentError::os("cannot block SIGTERM and SIGINT", e))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&signals, flags)
            .map_err(|e| AgentError::os("cannot make a signalfd", e))?;
        Ok(Self(Kind::Signals(fd)))
    }

    /// How often a stop was asked for since the last call.
    pub(crate) fn take(&self) -> Result<u64, AgentError> {
        match &self.0 {
            Kind::Handle(event) => match event.read() {
                Ok(count) => Ok(count),
                Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
                Err(e) => Err(AgentError::os("cannot read the stop event", e)),
            },
            Kind::Signals(fd) => match fd.read_signal() {
                Ok(None) | Err(Errno::EINTR) => Ok(0),
                Ok(Some(_)) => Ok(1),
                Err(e) => Err(AgentError::os("cannot read the stop signals", e)),
            },
        }
    }
}

impl AsFd for Shutdown {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Handle(event) => event.as_fd(),
            Kind::Signals(fd) => fd.as_fd(),
        }
    }
}

impl ShutdownHandle {
    /// Asks the agent to drain and stop; asked again, to stop at once.
    pub fn request(&self) {
        // It fails only when 2^64 - 2 requests are unread, and then the agent has been asked.
        if let Err(error) = self.0.write(1) {
            tracing::debug!(%error, "the stop event is full");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_and_taken_once() {
        let (shutdown, handle) = Shutdown::new().unwrap();
        assert_eq!(shutdown.take().unwrap(), 0);
        handle.request();
        handle.clone().request();
        assert_eq!(shutdown.take().unwrap(), 2);
        assert_eq!(shutdown.take().unwrap(), 0);
    }

    #[test]
    fn a_signal_is_a_request() {
        let shutdown = Shutdown::on_signals().unwrap();
        // To this thread, which has it blocked: other threads of the test run are none of its business.
        nix::sys::signal::raise(Signal::SIGTERM).unwrap();
        assert_eq!(shutdown.take().unwrap(), 1);
        assert_eq!(shutdown.take().unwrap(), 0);
    }
}
