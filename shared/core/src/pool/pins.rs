//! The pin word of a block: how many loads send from it, and whether it was freed meanwhile (docs/adr/0011).
//!
//! A FREE completes at once even while loads still send the block; the block goes back to its ring when the last of
//! them is done, so that no load ever sends octets of the block's next owner.
//!
//! ```text
//!         pin/unpin            freed, n pins       last unpin
//! n pins ◄────────► n±1 pins ────────────► FREED|n ────────► FREED|0 ──(one party wins)──► 0: back to the ring
//! ```
//!
//! Pins and FREED share one word, and a free updates the table entry before it sets FREED. A load pins, then reads the
//! entry again. Both are read-modify-writes of the same word, so one comes first: if the free, the load acquires its
//! entry update and sees that the block is gone; if the load, the free sees the pin and leaves the block to it. That
//! is the whole argument; no `SeqCst` is needed, since neither side decides by a second word alone. A pin that comes
//! too late (the block may be free, or another's by now) is harmless: it is taken back, and delays a return at most.

use super::entry::{self, Words};
use crate::sync::Word32;
use kbtp_wire::TableEntry;
use std::sync::atomic::Ordering::AcqRel;

/// The entry that bound the block is gone.
const FREED: u32 = 1 << 31;

/// What to do with a block after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Then {
    /// Nothing: others hold it, or it is bound.
    Keep,
    /// The caller, and nobody else, returns it to its ring.
    Return,
}

/// The entry, and its block pinned if it is VALID and `block_of` knows the block; `give_back` takes a block whose
/// return falls to this pin. Lock-free: each further turn needs another free and bind of the entry.
pub(crate) fn pin_bound<'w, W: Word32 + 'w, B: Copy>(
    words: Words<'_, W>,
    block_of: impl Fn(&TableEntry) -> Option<(B, &'w W)>,
    give_back: impl Fn(B),
) -> (TableEntry, Option<B>) {
    loop {
        let entry = entry::read(words);
        let Some((block, pins)) = block_of(&entry).filter(|_| entry.is_valid()) else {
            return (entry, None);
        };
        pin(pins);
        if entry::still(words, &entry) {
            return (entry, Some(block));
        }
        if unpin(pins) == Then::Return {
            give_back(block);
        }
    }
}

/// A load is about to send from the block; it must read the entry again now.
fn pin(word: &impl Word32) {
    // The count cannot reach FREED: it is bounded by all operations of all sessions, below 2^31.
    word.fetch_add(1, AcqRel);
}

/// The load is done with the block.
pub(crate) fn unpin(word: &impl Word32) -> Then {
    if word.fetch_sub(1, AcqRel) == FREED | 1 {
        claim(word)
    } else {
        Then::Keep
    }
}

/// The entry no longer binds the block (and says so already).
pub(crate) fn set_freed(word: &impl Word32) -> Then {
    if word.fetch_or(FREED, AcqRel) == 0 {
        claim(word)
    } else {
        Then::Keep
    }
}

/// FREED with no pins becomes 0 once, for one party; a late pin in between passes the duty on to its unpin.
fn claim(word: &impl Word32) -> Then {
    if word.exchange(FREED, 0) {
        Then::Return
    } else {
        Then::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_wire::{BlockOffset, ByteLen};
    use std::cell::RefCell;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn without_pins_the_free_returns_the_block() {
        let word = AtomicU32::new(0);
        assert_eq!(set_freed(&word), Then::Return);
        assert_eq!(word.into_inner(), 0);
    }

    #[test]
    fn with_pins_the_last_unpin_returns_it_once() {
        let word = AtomicU32::new(0);
        pin(&word);
        pin(&word);
        assert_eq!(set_freed(&word), Then::Keep);
        assert_eq!(unpin(&word), Then::Keep);
        assert_eq!(unpin(&word), Then::Return);
        assert_eq!(word.into_inner(), 0);
    }

    #[test]
    fn a_late_pin_takes_over_the_return() {
        let word = AtomicU32::new(FREED);
        pin(&word);
        assert_eq!(claim(&word), Then::Keep);
        assert_eq!(unpin(&word), Then::Return);
    }

    #[test]
    fn a_pin_of_a_free_block_changes_nothing() {
        let word = AtomicU32::new(0);
        pin(&word);
        assert_eq!(unpin(&word), Then::Keep);
    }

    /// Pins what a row binds while another party frees it in between; `claimed`: whether that party has finished. What
    /// was given back, and the pin word.
    fn pin_against_a_free(claimed: bool) -> (Vec<u32>, u32) {
        let entry: [AtomicU32; 4] = Default::default();
        let words = entry.each_ref();
        let first = entry::bound(None, BlockOffset(0x1000), ByteLen(1), true);
        entry::bind(words, &first);
        let word = AtomicU32::new(0);
        let given_back = RefCell::new(Vec::new());
        let block_of = |found: &TableEntry| {
            assert_eq!(*found, first);
            entry::unbind(words);
            if claimed {
                assert_eq!(set_freed(&word), Then::Return);
            } else {
                word.fetch_or(FREED, AcqRel);
            }
            Some((7, &word))
        };
        let valid_only = |found: &TableEntry| found.is_valid().then(|| block_of(found)).flatten();
        let (found, pinned) = pin_bound(words, valid_only, |block| {
            given_back.borrow_mut().push(block);
        });
        assert!(!found.is_valid());
        assert_eq!(pinned, None);
        (given_back.into_inner(), word.into_inner())
    }

    #[test]
    fn who_pins_a_block_that_is_freed_meanwhile_returns_it_if_nobody_else_does() {
        assert_eq!(pin_against_a_free(true), (vec![], 0));
        assert_eq!(pin_against_a_free(false), (vec![7], 0));
    }
}
