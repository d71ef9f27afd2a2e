//! A worker's inbox: a bounded channel, and the waker of the poller that the worker waits on.

use crate::limits;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use kbtp_iwarp_tcp::Waker;

/// The sending half; clones send to the same worker.
#[derive(Debug)]
pub(crate) struct InboxSender<T> {
    queue: Sender<T>,
    waker: Waker,
}

impl<T> Clone for InboxSender<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            waker: self.waker.clone(),
        }
    }
}

/// The worker's half. Empty it each time the poller was woken.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    queue: Receiver<T>,
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

/// An inbox for the thread that waits on the poller of `waker`, and its sender.
pub(crate) fn inbox<T>(waker: Waker) -> (InboxSender<T>, Inbox<T>) {
    let (queue, rx) = crossbeam_channel::bounded(limits::INBOX_LEN);
    (InboxSender { queue, waker }, Inbox { queue: rx })
}

impl<T> InboxSender<T> {
    /// Puts a command into the inbox and wakes the worker. Never blocks.
    pub(crate) fn send(&self, command: T) -> Result<(), InboxError<T>> {
        self.queue.try_send(command).map_err(|e| match e {
            TrySendError::Full(c) => InboxError::Full(c),
            TrySendError::Disconnected(c) => InboxError::Gone(c),
        })?;
        self.waker.wake();
        Ok(())
    }
}

impl<T> Inbox<T> {
    /// The next command, if any.
    pub(crate) fn next(&self) -> Option<T> {
        self.queue.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_iwarp_tcp::{Poller, Spin};

    #[test]
    fn a_command_wakes_the_poller() {
        let mut poller = Poller::new(Spin::Off).unwrap();
        let (tx, rx) = inbox::<u32>(poller.waker());
        tx.send(7).unwrap();
        tx.clone().send(8).unwrap();
        poller.wait(None).unwrap();
        assert!(poller.woken());
        assert_eq!((rx.next(), rx.next(), rx.next()), (Some(7), Some(8), None));
    }

    #[test]
    fn a_full_inbox_gives_the_command_back() {
        let poller = Poller::new(Spin::Off).unwrap();
        let (tx, rx) = inbox::<usize>(poller.waker());
        for i in 0..limits::INBOX_LEN {
            tx.send(i).unwrap();
        }
        assert!(matches!(tx.send(9), Err(InboxError::Full(9))));
        drop(rx);
        assert!(matches!(tx.send(9), Err(InboxError::Gone(9))));
    }
}
