//! Ranges whose lease is over, and partitions whose session has ended: what they have is freed a part at a time.
//!
//! Freeing a block may zero it, and one initiator may have a whole pool. The directory's mutex must not be held for as long as
//! that takes: a worker whose session begins or ends waits for it, and with it every session of that worker.

use super::{Directory, Pair, Range, SessionId};
use crate::limits::{RELEASE_OCTETS, RELEASE_PAUSE_MS, RELEASE_ROWS, SETTLE_RETRY_MS};
use crate::pool::PartitionId;
use crate::stats::add;
use crate::{Pool, Shared};
use kbtp_fabric::Time;
use kbtp_wire::BlockOffset;
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

/// A partition that goes back to the shared ring.
#[derive(Debug)]
pub(super) struct Dissolving {
    id: PartitionId,
    /// Blocks it holds back until it is gone.
    pub(super) blocks: u32,
    /// Those that are not back yet; none before loads have stopped sending what was freed.
    rest: Option<Vec<BlockOffset>>,
}

impl Dissolving {
    pub(super) const fn new(id: PartitionId, blocks: u32) -> Self {
        Self {
            id,
            blocks,
            rest: None,
        }
    }

    /// Returns as many blocks as `turn` still has; whether there are more.
    fn go_on(&mut self, pool: &Pool, turn: &mut u64) -> bool {
        if self.rest.is_none() {
            self.rest = pool.dissolve(self.id).map(|mut free| {
                free.reverse();
                free
            });
        }
        let Some(rest) = &mut self.rest else {
            return true;
        };
        while *turn > 0
            && let Some(block) = rest.pop()
        {
            pool.take_back(block);
            *turn = turn.saturating_sub(1);
        }
        !rest.is_empty()
    }
}

/// Blocks that are freed in one go.
fn turn(pool: &Pool) -> u64 {
    let block_size = u64::from(pool.geometry().block_size).max(1);
    RELEASE_OCTETS.checked_div(block_size).unwrap_or(0).max(1)
}

impl Directory {
    /// Returns some of the blocks of partitions whose session has ended, and plans the rest.
    pub(super) fn dissolve(&mut self, now: Time, shared: &Shared) {
        let mut turn = turn(&shared.pool);
        self.dissolving
            .retain_mut(|going| going.go_on(&shared.pool, &mut turn));
        let pause = if turn == 0 {
            RELEASE_PAUSE_MS
        } else {
            SETTLE_RETRY_MS
        };
        self.retry_at = (!self.dissolving.is_empty()).then(|| now.after_ms(pause));
    }

    /// Nobody gets this range back: what it has bound is freed from now on.
    pub(super) fn release(&mut self, pair: Pair, shared: &Shared) {
        if let Some(range) = self.ranges.remove(&pair) {
            self.tenants.has_less(pair.0);
            // Whoever recovers the pool goes on with it. Should the mark not be made, a target that is killed now leaves
            // its successor the lease to run once more.
            let _marked = shared.pool.give_up_record(range.slot);
            self.releasing.push(pair, range);
        }
    }

    /// Frees some of what is to be freed, and plans the rest.
    pub(super) fn go_on_releasing(&mut self, now: Time, shared: &Shared) {
        let more = self.release_some(shared);
        self.releasing.at = more.then(|| now.after_ms(RELEASE_PAUSE_MS));
    }

    /// Frees some of what an earlier range of a pair that comes back has bound, before what others had: the session that
    /// had it, if there is more. So a pair has one record at most, and finds its quota whole. Cost: within the bounds of a
    /// turn.
    pub(super) fn hasten_releasing(&mut self, pair: Pair, shared: &Shared) -> Option<SessionId> {
        let place = |ranges: &VecDeque<Going>| ranges.iter().position(|g| g.pair == pair);
        let at = place(&self.releasing.ranges)?;
        self.releasing.ranges.swap(0, at);
        self.release_some(shared);
        let rest = place(&self.releasing.ranges).and_then(|at| self.releasing.ranges.get(at))?;
        Some(rest.range.last)
    }

    /// Frees what the first ranges have bound, within the bounds of a turn; whether anything is left.
    pub(super) fn release_some(&mut self, shared: &Shared) -> bool {
        let mut blocks = turn(&shared.pool);
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
