//! What is written to block table and rings, word by word and in order, for a simulation that shows others the moments
//! in between: a simulated target does all of a call at once, a real one does not.
//!
//! Only with the feature `plants`, which nothing but `kbtp-sim` asks for, and only on a thread that asks for it. Without
//! the feature nothing of this is left.

use std::sync::atomic::AtomicU32;

/// A 32-bit word that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Its address.
    pub address: usize,
    /// What it held, as it lies in memory.
    pub before: u32,
    /// What it holds since.
    pub after: u32,
}

#[cfg(feature = "plants")]
thread_local! {
    static JOURNAL: std::cell::RefCell<Option<Vec<Written>>> =
        const { std::cell::RefCell::new(None) };
}

/// Begins to keep the journal of this thread, or ends it.
#[cfg(feature = "plants")]
pub fn keep(on: bool) {
    JOURNAL.with_borrow_mut(|journal| *journal = on.then(Vec::new));
}

/// Moves what was written since to `to`, oldest first.
#[cfg(feature = "plants")]
pub fn take(to: &mut Vec<Written>) {
    JOURNAL.with_borrow_mut(|journal| {
        if let Some(journal) = journal {
            to.append(journal);
        }
    });
}

/// A word is about to be written.
#[cfg(feature = "plants")]
pub(crate) fn note(word: &AtomicU32, after: u32) {
    JOURNAL.with_borrow_mut(|journal| {
        if let Some(journal) = journal {
            journal.push(Written {
                address: std::ptr::from_ref(word).addr(),
                before: word.load(std::sync::atomic::Ordering::Relaxed),
                after,
            });
        }
    });
}

/// Nothing.
#[cfg(not(feature = "plants"))]
#[inline]
pub(crate) const fn note(_: &AtomicU32, _: u32) {}
