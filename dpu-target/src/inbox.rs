//! A worker's inbox: a bounded channel, and an eventfd that wakes the worker's epoll.

use crate::limits;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The sending half; clones send to the same worker.
#[derive(Debug)]
pub(crate) struct InboxSender<T> {
    queue: Sender<T>,
    wake: Arc<EventFd>,
}

impl<T> Clone for InboxSender<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            wake: Arc::clone(&self.wake),
        }
    }
}

/// The worker's half.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    queue: Receiver<T>,
    wake: Arc<EventFd>,
}

/// Why a command did not reach the worker. The command comes back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InboxError<T> {
    /// The worker has [`limits::INBOX_LEN`] commands waiting.
    #[error("the worker's inbox is full")]
    Full(T),
    /// The worker has ended.
    #[error("the worker has ended")]
    Gone(T),
}

/// An inbox and its sender.
///
/// # Errors
/// If the system has no eventfd to give.
pub(crate) fn inbox<T>() -> io::Result<(InboxSender<T>, Inbox<T>)> {
    let (tx, rx) = crossbeam_channel::bounded(limits::INBOX_LEN);
    let wake = Arc::new(EventFd::from_flags(
        EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC,
    )?);
    Ok((
        InboxSender {
            queue: tx,
            wake: Arc::clone(&wake),
        },
        Inbox { queue: rx, wake },
    ))
}

impl<T> InboxSender<T> {
    /// Puts a command into the inbox and wakes the worker. Never blocks.
    pub(crate) fn send(&self, command: T) -> Result<(), InboxError<T>> {
        self.queue.try_send(command).map_err(|e| match e {
            TrySendError::Full(c) => InboxError::Full(c),
            TrySendError::Disconnected(c) => InboxError::Gone(c),
        })?;
        self.wake();
        Ok(())
    }

    /// Wakes the worker without a command.
    pub(crate) fn wake(&self) {
        // It fails only with EAGAIN, when the counter is about to overflow: then the worker is awake already.
        let _awake = self.wake.write(1);
    }
}

impl<T> Inbox<T> {
    /// The descriptor that is readable when there may be commands.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the descriptor quiet. Call it before [`next`](Self::next), or a command sent in between is slept over.
    pub(crate) fn acknowledge(&self) {
        // EAGAIN: nobody woke us.
        let _quiet = self.wake.read();
    }

    /// The next command, if any.
    pub(crate) fn next(&self) -> Option<T> {
        self.queue.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn readable<T>(inbox: &Inbox<T>) -> bool {
        let mut fds = [PollFd::new(inbox.descriptor(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn a_command_wakes_and_acknowledging_quiets() {
        let (tx, rx) = inbox::<u32>().unwrap();
        assert!(!readable(&rx));
        tx.send(7).unwrap();
        tx.clone().send(8).unwrap();
        assert!(readable(&rx));
        rx.acknowledge();
        assert!(!readable(&rx));
        assert_eq!((rx.next(), rx.next(), rx.next()), (Some(7), Some(8), None));
    }

    #[test]
    fn a_full_inbox_gives_the_command_back() {
        let (tx, rx) = inbox::<usize>().unwrap();
        for i in 0..limits::INBOX_LEN {
            tx.send(i).unwrap();
        }
        assert!(matches!(tx.send(9), Err(InboxError::Full(9))));
        drop(rx);
        assert!(matches!(tx.send(9), Err(InboxError::Gone(9))));
    }
}
