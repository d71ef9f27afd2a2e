//! Atomics behind two small traits, so that the lock-free parts run over a region and, in their loom tests, over
//! loom's atomics: the same code both times. Under `cfg(shuttle)` the words are those of the region, and before each use
//! of one another thread may go on: then whole sessions run in schedules that a seed decides.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::atomic::fence;

/// As [`std::sync::atomic::fence`]. Shuttle's threads run one at a time, so that there is nothing to order.
#[cfg(shuttle)]
pub(crate) fn fence(order: Ordering) {
    std::sync::atomic::fence(order);
    turn();
}

/// Another thread may go on here.
#[cfg(shuttle)]
pub(crate) fn turn() {
    shuttle::thread::yield_now();
}

/// Nothing.
#[cfg(not(shuttle))]
#[inline]
pub(crate) const fn turn() {}

/// Who is told of each use of a word: the tests that follow a model.
#[cfg(test)]
#[cfg(shuttle)]
pub(crate) mod watch {
    use std::cell::Cell;

    /// A word was read, or written.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Used {
        /// Thread of shuttle.
        pub(crate) thread: usize,
        /// Where the word is.
        pub(crate) address: usize,
        /// Whether it was written.
        pub(crate) written: bool,
        /// What was read, or what it is since.
        pub(crate) value: u64,
    }

    thread_local! {
        // Shuttle's threads are parts of one thread of the system.
        static WATCHER: Cell<Option<fn(Used)>> = const { Cell::new(None) };
    }

    /// From now on this one is told, before any other thread goes on.
    pub(crate) fn tell(watcher: Option<fn(Used)>) {
        WATCHER.set(watcher);
    }

    pub(super) fn used(address: usize, written: bool, value: u64) {
        if let Some(watcher) = WATCHER.get() {
            let thread = shuttle::current::me().into();
            watcher(Used {
                thread,
                address,
                written,
                value,
            });
        }
    }
}

/// A word was read.
#[cfg(test)]
#[cfg(shuttle)]
fn read<W>(word: &W, value: impl Into<u64>) {
    watch::used(std::ptr::from_ref(word).addr(), false, value.into());
}

/// A word was written.
#[cfg(test)]
#[cfg(shuttle)]
fn written<W>(word: &W, value: impl Into<u64>) {
    watch::used(std::ptr::from_ref(word).addr(), true, value.into());
}

/// Nothing.
#[cfg(not(all(test, shuttle)))]
#[inline]
const fn read<W, V: Copy>(_: &W, _: V) {}

/// Nothing.
#[cfg(not(all(test, shuttle)))]
#[inline]
const fn written<W, V: Copy>(_: &W, _: V) {}

#[cfg(loom)]
pub(crate) use loom::sync::atomic::fence;

#[cfg(loom)]
use loom::sync::Mutex as Inner;
#[cfg(shuttle)]
use shuttle::sync::Mutex as Inner;
#[cfg(not(any(loom, shuttle)))]
use std::sync::Mutex as Inner;

/// A 32-bit word that others use at the same time.
pub(crate) trait Word32 {
    /// As [`AtomicU32::load`].
    fn load(&self, order: Ordering) -> u32;
    /// As [`AtomicU32::store`].
    fn store(&self, value: u32, order: Ordering);
    /// As [`AtomicU32::fetch_add`].
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// As [`AtomicU32::fetch_sub`].
    fn fetch_sub(&self, value: u32, order: Ordering) -> u32;
    /// As [`AtomicU32::fetch_or`].
    fn fetch_or(&self, value: u32, order: Ordering) -> u32;
    /// As [`AtomicU32::compare_exchange`] with `AcqRel` and `Relaxed`; whether it was exchanged.
    fn exchange(&self, old: u32, new: u32) -> bool;
}

/// A 64-bit word that others use at the same time.
pub(crate) trait Word64 {
    /// As [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
    /// As [`AtomicU64::store`].
    fn store(&self, value: u64, order: Ordering);
    /// As [`AtomicU64::compare_exchange`] with `AcqRel` and `Acquire`: the value before if it was exchanged.
    ///
    /// # Errors
    /// The value found, if it was another.
    fn exchange(&self, old: u64, new: u64) -> Result<u64, u64>;
}

macro_rules! words {
    ($u32:ty, $u64:ty, $note:expr) => {
        impl Word32 for $u32 {
            fn load(&self, order: Ordering) -> u32 {
                turn();
                let value = self.load(order);
                read(self, value);
                value
            }
            fn store(&self, value: u32, order: Ordering) {
                turn();
                $note(self, value);
                self.store(value, order);
                written(self, value);
            }
            fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
                turn();
                let before = self.fetch_add(value, order);
                written(self, before.wrapping_add(value));
                before
            }
            fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
                turn();
                let before = self.fetch_sub(value, order);
                written(self, before.wrapping_sub(value));
                before
            }
            fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
                turn();
                let before = self.fetch_or(value, order);
                written(self, before | value);
                before
            }
            fn exchange(&self, old: u32, new: u32) -> bool {
                turn();
                let exchanged =
                    self.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
                match exchanged {
                    Ok(_) => written(self, new),
                    Err(found) => read(self, found),
                }
                exchanged.is_ok()
            }
        }

        impl Word64 for $u64 {
            fn load(&self, order: Ordering) -> u64 {
                turn();
                let value = self.load(order);
                read(self, value);
                value
            }
            fn store(&self, value: u64, order: Ordering) {
                turn();
                self.store(value, order);
                written(self, value);
            }
            fn exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
                turn();
                let exchanged =
                    self.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
                match exchanged {
                    Ok(_) => written(self, new),
                    Err(found) => read(self, found),
                }
                exchanged
            }
        }
    };
}

words!(AtomicU32, AtomicU64, crate::journal::note);
#[cfg(loom)]
words!(
    loom::sync::atomic::AtomicU32,
    loom::sync::atomic::AtomicU64,
    |_, _| ()
);

/// A mutex for what happens rarely. A panic of another holder does not spread: what it guards is valid between any
/// two statements.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(Inner<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Inner::new(value))
    }

    /// Runs `f` with the value.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut guard = match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        f(&mut guard)
    }
}
