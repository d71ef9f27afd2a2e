//! Reading and writing a table entry that others read at the same time.
//! Source: KBTP draft, section 3.2 and sections 6.1 to 6.4; P10.
//!
//! An entry has one writer (the session of its handle range, or the directory when there is none) and any number of
//! readers, among them peers that read it by RDMA. Its four words are only ever atomics of 32 bits. The first word,
//! Flags and Generation, is the last one written when an entry is bound and the first one when it is unbound, so a
//! reader that finds the same first word before and after has read one entry. (It is fooled if 65,535 frees and
//! binds, a whole turn of the Generation, fall between its two reads.)

use crate::plants::{Plant, planted};
use crate::sync::{Word32, fence};
use kbtp_wire::{BlockOffset, ByteLen, EntryFlags, Generation, TableEntry};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The words of an entry: Flags and Generation, Data Length, Block Offset high, low.
pub(crate) type Words<'a, W> = [&'a W; 4];

/// Tries of a reader. An entry that changes under each of three was unbound at some moment in between: it can be
/// sealed once, and every other change of the first word passes through "not VALID".
const TRIES: u32 = 3;

/// The entry, all of one moment.
pub(crate) fn read<W: Word32>(words: Words<'_, W>) -> TableEntry {
    let mut entry = TableEntry::UNBOUND;
    for _ in 0..TRIES {
        entry = load(words);
        // Acquire fence: if the loads above saw a newer bind, the load below sees what it wrote before.
        fence(Acquire);
        if same(words, &entry) {
            return entry;
        }
    }
    TableEntry {
        flags: entry
            .flags
            .without(EntryFlags::VALID.union(EntryFlags::SEALED)),
        ..entry
    }
}

/// Whether the entry with this first word binds a block right now.
pub(crate) fn is_valid(control: &impl Word32) -> bool {
    TableEntry::from_words([u32::from_be(control.load(Relaxed)), 0, 0, 0]).is_valid()
}

/// Whether Flags and Generation are still those of `entry`, but that it may have been sealed since.
pub(crate) fn still<W: Word32>(words: Words<'_, W>, entry: &TableEntry) -> bool {
    let [control, ..] = words;
    let now = TableEntry::from_words([u32::from_be(control.load(Acquire)), 0, 0, 0]);
    now.generation == entry.generation && now.is_valid() == entry.is_valid()
}

/// Binds the entry: Data Length and Block Offset before Flags and Generation.
//= kbtp-3.2-bind-order
//= kbtp-3.2-data-length
pub(crate) fn bind<W: Word32>(words: Words<'_, W>, entry: &TableEntry) {
    // Release fence: a reader that sees a word written below also sees the entry unbound before.
    fence(Release);
    let [c, l, h, o] = words;
    let [control, len, high, low] = entry.to_words();
    if planted(Plant::FlagsFirst) {
        c.store(control.to_be(), Release);
    }
    l.store(len.to_be(), Relaxed);
    h.store(high.to_be(), Relaxed);
    o.store(low.to_be(), Relaxed);
    if planted(Plant::FlagsFirst) {
        return;
    }
    // Release: who sees VALID sees the words above and the data of the block.
    //= kbtp-6.3-entry-after-data
    c.store(control.to_be(), Release);
}

/// A store into a bound block: the new Data Length, then SEALED if asked for.
//= kbtp-6.2-update-entry
pub(crate) fn update<W: Word32>(words: Words<'_, W>, entry: &TableEntry) {
    let [c, l, ..] = words;
    let [control, len, ..] = entry.to_words();
    l.store(len.to_be(), Release);
    c.store(control.to_be(), Release);
}

/// Clears VALID and SEALED and counts the Generation on; returns the new one.
//= kbtp-6.4-clear-entry
pub(crate) fn unbind<W: Word32>(words: Words<'_, W>) -> Generation {
    let [c, ..] = words;
    let entry = TableEntry::from_words([u32::from_be(c.load(Relaxed)), 0, 0, 0]);
    let mut generation = next(entry.generation);
    if planted(Plant::GenerationKept) {
        generation = entry.generation.unwrap_or(generation);
    }
    let unbound = TableEntry {
        generation: Some(generation),
        ..TableEntry::UNBOUND
    };
    let [control, ..] = unbound.to_words();
    c.store(control.to_be(), Release);
    generation
}

/// The Generation after this one; the first one for an entry that was never bound.
//= kbtp-6.3-next-generation
//= kbtp-3.2-generation-never-zero
pub(crate) fn next(generation: Option<Generation>) -> Generation {
    generation.map_or(Generation::FIRST, Generation::next)
}

/// The entry that binds `block` next.
pub(crate) fn bound(
    before: Option<Generation>,
    block: BlockOffset,
    data_len: ByteLen,
    sealed: bool,
) -> TableEntry {
    TableEntry {
        flags: EntryFlags::VALID.with(EntryFlags::SEALED, sealed),
        generation: Some(next(before)),
        data_len,
        block,
    }
}

fn load<W: Word32>(words: Words<'_, W>) -> TableEntry {
    let [c, l, h, o] = words;
    let control = c.load(Acquire);
    TableEntry::from_words(
        [control, l.load(Relaxed), h.load(Relaxed), o.load(Relaxed)].map(u32::from_be),
    )
}

fn same<W: Word32>(words: Words<'_, W>, entry: &TableEntry) -> bool {
    let [control, ..] = words;
    let [before, ..] = entry.to_words();
    u32::from_be(control.load(Relaxed)) == before
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::atomic::Ordering;

    /// A word that another party writes between any two reads.
    struct Scripted(RefCell<Vec<u32>>);

    impl Scripted {
        /// Reads give these in turn, as many as there are.
        fn new(reads: &[u32]) -> Self {
            Self(RefCell::new(reads.iter().rev().copied().collect()))
        }

        fn left(&self) -> usize {
            self.0.borrow().len()
        }
    }

    impl Word32 for Scripted {
        fn load(&self, _: Ordering) -> u32 {
            self.0.borrow_mut().pop().unwrap().to_be()
        }
        fn store(&self, _: u32, _: Ordering) {
            panic!("a reader writes nothing");
        }
        fn fetch_add(&self, _: u32, _: Ordering) -> u32 {
            panic!("a reader writes nothing");
        }
        fn fetch_sub(&self, _: u32, _: Ordering) -> u32 {
            panic!("a reader writes nothing");
        }
        fn fetch_or(&self, _: u32, _: Ordering) -> u32 {
            panic!("a reader writes nothing");
        }
        fn exchange(&self, _: u32, _: u32) -> bool {
            panic!("a reader writes nothing");
        }
    }

    fn control(generation: u16) -> u32 {
        let entry = TableEntry {
            flags: EntryFlags::VALID.union(EntryFlags::SEALED),
            generation: Generation::new(generation),
            data_len: ByteLen(0),
            block: BlockOffset(0),
        };
        let [control, ..] = entry.to_words();
        control
    }

    /// Reads an entry whose first word is, read after read, of these generations; what is left of them.
    fn read_while(generations: [u16; 6]) -> (TableEntry, usize) {
        let first = Scripted::new(&generations.map(control));
        let [len, high, low] = [7, 1, 0x2000].map(|word| Scripted::new(&[word; 3]));
        (read([&first, &len, &high, &low]), first.left())
    }

    #[test]
    fn an_entry_that_stands_still_is_read_once() {
        let (entry, left) = read_while([5; 6]);
        assert!(entry.is_valid() && entry.is_sealed());
        assert_eq!(entry.generation, Generation::new(5));
        assert_eq!(entry.data_len, ByteLen(7));
        assert_eq!(entry.block, BlockOffset(0x1_0000_2000));
        assert_eq!(left, 4);
    }

    #[test]
    fn an_entry_that_changes_is_read_again() {
        let (entry, left) = read_while([5, 6, 7, 8, 9, 9]);
        assert!(entry.is_valid());
        assert_eq!((entry.generation, left), (Generation::new(9), 0));
    }

    /// It was unbound in between: a reader that is overtaken each time does not go on for ever.
    #[test]
    fn an_entry_that_changes_under_every_try_was_unbound() {
        let (entry, left) = read_while([5, 6, 7, 8, 9, 10]);
        assert_eq!(entry.flags, EntryFlags::NONE);
        assert_eq!((entry.generation, left), (Generation::new(9), 0));
    }

    /// A load that finds another Generation, or the entry unbound, sends nothing; a seal in between changes nothing.
    #[test]
    fn an_entry_is_still_the_same_if_it_was_only_sealed() {
        let entry = |flags, generation| TableEntry {
            flags,
            generation: Generation::new(generation),
            ..TableEntry::UNBOUND
        };
        let unsealed = EntryFlags::VALID;
        let sealed = unsealed.union(EntryFlags::SEALED);
        let before = entry(unsealed, 5);
        for (flags, generation, same) in [
            (unsealed, 5, true),
            (sealed, 5, true),
            (unsealed, 6, false),
            (EntryFlags::NONE, 5, false),
            (EntryFlags::NONE, 6, false),
        ] {
            let [now, ..] = entry(flags, generation).to_words();
            let first = Scripted::new(&[now]);
            let others = Scripted::new(&[]);
            let words = [&first, &others, &others, &others];
            assert_eq!(still(words, &before), same, "{flags:?} {generation}");
        }
    }
}
