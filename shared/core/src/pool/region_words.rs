//! The atomics of a pool's metadata region.
//!
//! Every offset here follows from the geometry and an index below its bound, and the region was found long enough when
//! the pool was made: a word that is not there is a bug, and stops the process.

use super::Pool;
use super::entry::Words;
use super::ring::RingMemory;
use crate::BlockIndex;
use crate::geometry::{BLOCK_WORDS_LEN, COUNTER_STRIDE, SLOT_LEN};
use kbtp_memory::Region;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The words kept per block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockWord {
    /// Pins and FREED.
    Pins,
    /// Whose octets it holds.
    Content,
    /// Which ring it belongs to.
    Home,
}

/// A ring in the metadata region: Head and Tail on cache lines of their own, then the slots elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingIn<'a> {
    region: &'a Region,
    counters: u64,
    slots: u64,
}

impl<'a> RingIn<'a> {
    pub(super) fn new(region: &'a Region, counters: u64, slots: u64) -> Self {
        Self {
            region,
            counters,
            slots,
        }
    }
}

//= kbtp-3.3-counter-aligned
//= kbtp-3.3-counter-memory-order
//= kbtp-p10-native-counters
impl RingMemory for RingIn<'_> {
    type U32 = AtomicU32;
    type U64 = AtomicU64;

    fn head(&self) -> &AtomicU64 {
        word64(self.region, self.counters)
    }

    fn tail(&self) -> &AtomicU64 {
        word64(self.region, self.counters.wrapping_add(COUNTER_STRIDE))
    }

    fn word(&self, slot: u32, word: u32) -> &AtomicU32 {
        let octets = u64::from(slot) * SLOT_LEN + u64::from(word) * 4;
        word32(self.region, self.slots.wrapping_add(octets))
    }
}

impl Pool {
    /// A word of a block.
    pub(super) fn block_word(&self, block: BlockIndex, word: BlockWord) -> &AtomicU32 {
        let within = match word {
            BlockWord::Pins => 0,
            BlockWord::Content => 4,
            BlockWord::Home => 8,
        };
        let row = self
            .layout
            .block_words
            .wrapping_add(u64::from(block.0) * BLOCK_WORDS_LEN);
        word32(&self.meta, row.wrapping_add(within))
    }

    /// The first word of the entry in a row of the table: Flags and Generation.
    pub(super) fn control_word(&self, row: u64) -> &AtomicU32 {
        let at = self.layout.table.wrapping_add(row.wrapping_mul(SLOT_LEN));
        word32(&self.meta, at)
    }

    /// The words of the entry in a row of the table; `row` is below the number of handles.
    pub(super) fn entry_words(&self, row: u64) -> Words<'_, AtomicU32> {
        let at = self.layout.table.wrapping_add(row.wrapping_mul(SLOT_LEN));
        [0, 4, 8, 12].map(|octets| word32(&self.meta, at.wrapping_add(octets)))
    }
}

#[expect(clippy::expect_used, reason = "see the head of this file")]
fn word32(region: &Region, offset: u64) -> &AtomicU32 {
    region
        .u32_at(offset)
        .expect("a word of the metadata region")
}

//= kbtp-p10-native-counters
//= kbtp-3.3-counter-memory-order
#[expect(clippy::expect_used, reason = "see the head of this file")]
fn word64(region: &Region, offset: u64) -> &AtomicU64 {
    region
        .u64_at(offset)
        .expect("a counter of the metadata region")
}
