//! Ranges whose lease is over: what they bind is freed a part at a time.
//!
//! Freeing a block may zero it, and a range may bind a whole pool. The directory's mutex must not be held for as long as
//! that takes: a worker whose session begins or ends waits for it, and with it every session of that worker.

use super::{Directory, Pair, Range};
use crate::Shared;
use crate::limits::{RELEASE_OCTETS, RELEASE_PAUSE_MS, RELEASE_ROWS};
use crate::stats::add;
use kbtp_fabric::Time;
use std::collections::VecDeque;

/// A range that is being released: `range.bound` handles are bound still, none of them below row `next`.
#[derive(Debug)]
struct Going {
    pair: Pair,
    range: Range,
    next: u64,
}

/// All of them, in the order they came.
#[derive(Debug, Default)]
pub(super) struct Releasing {
    ranges: VecDeque<Going>,
    /// When it goes on.
    pub(super) at: Option<Time>,
}

impl Releasing {
    pub(super) fn push(&mut self, pair: Pair, range: Range) {
        let next = range.first_row;
        self.ranges.push_back(Going { pair, range, next });
    }

    /// Blocks that each of them still binds.
    pub(super) fn bound(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().map(|going| going.range.bound)
    }
}

impl Directory {
    /// Nobody gets this range back: what it has bound is freed from now on.
    pub(super) fn release(&mut self, pair: Pair) {
        if let Some(range) = self.ranges.remove(&pair) {
            self.releasing.push(pair, range);
        }
    }

    /// Frees some of what is to be freed, and plans the rest.
    pub(super) fn go_on_releasing(&mut self, now: Time, shared: &Shared) {
        let more = self.release_some(shared);
        self.releasing.at = more.then(|| now.after_ms(RELEASE_PAUSE_MS));
    }

    /// Frees all that a pair's earlier range has bound, so that a pair has one record at most. Cost: a pass over that
    /// range; only for a pair that comes back just after its lease was over.
    pub(super) fn finish_releasing(&mut self, pair: Pair, shared: &Shared) {
        while let Some(at) = self.releasing.ranges.iter().position(|g| g.pair == pair) {
            self.releasing.ranges.swap(0, at);
            self.release_some(shared);
        }
    }

    /// Frees what the first ranges have bound, within the bounds of a turn; whether anything is left.
    pub(super) fn release_some(&mut self, shared: &Shared) -> bool {
        let block_size = u64::from(shared.pool.geometry().block_size).max(1);
        let mut blocks = RELEASE_OCTETS.checked_div(block_size).unwrap_or(0).max(1);
        let mut rows = RELEASE_ROWS;
        while let Some(mut going) = self.releasing.ranges.pop_front() {
            if !free_some(shared, &mut going, &mut blocks, &mut rows) {
                self.releasing.ranges.push_front(going);
                return true;
            }
            self.forget(&going.range, shared);
        }
        false
    }

    /// The rows of a range that binds nothing are nobody's.
    fn forget(&mut self, range: &Range, shared: &Shared) {
        let pool = &shared.pool;
        pool.set_domain(range.first_row, range.rows, None);
        if pool.clear_record(range.slot).is_ok() {
            self.free_slots.insert(range.slot);
        }
        let granule = pool.geometry().granule_handles();
        self.extents
            .give(range.first_row / granule, range.rows.div_ceil(granule));
    }
}

/// Frees blocks of one range; whether none is left.
fn free_some(shared: &Shared, going: &mut Going, blocks: &mut u64, rows: &mut u64) -> bool {
    let pool = &shared.pool;
    let end = going.range.first_row.saturating_add(going.range.rows);
    while going.range.bound > 0 && going.next < end {
        if *blocks == 0 || *rows == 0 {
            return false;
        }
        *rows = rows.saturating_sub(1);
        let entry = pool.entry(going.next);
        let block = pool
            .geometry()
            .block_at(entry.block)
            .filter(|_| entry.is_valid());
        if let Some(block) = block {
            let (_, deferred) = pool.free(going.next, block);
            add(&shared.stats.frees_deferred, u64::from(deferred));
            add(&shared.stats.blocks_released, 1);
            going.range.bound = going.range.bound.saturating_sub(1);
            *blocks = blocks.saturating_sub(1);
        }
        going.next = going.next.saturating_add(1);
    }
    true
}
