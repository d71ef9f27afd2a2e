//! The control plane: the directory behind one mutex. Sessions take it when they begin and end, the control thread when
//! a lease runs out; no request takes it.

use kbtp_core::Directory;
use kbtp_fabric::Time;
use kbtp_iwarp_tcp::Waker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Nothing is due.
const NEVER: u64 = u64::MAX;

/// The directory, shared by workers and the control thread.
#[derive(Debug)]
pub(crate) struct Plane {
    directory: Mutex<Directory>,
    /// When the control thread will next look, in nanoseconds.
    scheduled: AtomicU64,
    control: Waker,
}

impl Plane {
    /// `control` wakes the thread that calls [`scheduled`](Self::schedule).
    pub(crate) fn new(directory: Directory, control: Waker) -> Self {
        let plane = Self {
            directory: Mutex::new(directory),
            scheduled: AtomicU64::new(NEVER),
            control,
        };
        plane.with(|_| ());
        plane
    }

    /// Runs `f` on the directory, alone. If that makes something due earlier than the control thread thinks, wakes it.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Directory) -> R) -> R {
        // A worker that panicked ends the target (see the driver); until then the others go on with the directory,
        // whose functions leave it consistent before they can panic.
        let mut directory = self
            .directory
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut directory);
        let due = directory.next_timeout().map_or(NEVER, |t| t.0);
        drop(directory);
        if due < self.scheduled.load(Ordering::Acquire) {
            self.control.wake();
        }
        result
    }

    /// When the directory wants to be polled next. The control thread waits until then or until it is woken.
    pub(crate) fn schedule(&self) -> Option<Time> {
        let directory = self
            .directory
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let due = directory.next_timeout();
        // Under the lock: whoever makes something due earlier afterwards sees this time and wakes the thread.
        self.scheduled
            .store(due.map_or(NEVER, |t| t.0), Ordering::Release);
        due
    }
}
