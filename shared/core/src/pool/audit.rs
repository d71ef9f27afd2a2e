//! Counting every block once.

use super::{Audit, Home, Pool, entry};
use kbtp_wire::{BlockOffset, TableEntry};

/// Faults listed; more are counted only by their effect.
const FAULTS_LISTED: usize = 16;

/// Where the audit found a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Free,
    Awaited,
    Deferred,
    Bound,
}

pub(super) const fn in_slot((block, free): (BlockOffset, bool)) -> (BlockOffset, Place) {
    (block, if free { Place::Free } else { Place::Awaited })
}

pub(super) const fn deferred(block: BlockOffset) -> (BlockOffset, Place) {
    (block, Place::Deferred)
}

impl Pool {
    /// Looks at every slot, entry and block and counts each block once. For tests, `kbtp doctor` and shutdown: what
    /// moves meanwhile shows up as a fault. Cost: a pass over rings and table; allocates an octet for each block.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let blocks = usize::try_from(self.geometry.blocks).unwrap_or(usize::MAX);
        let mut audit = Audit {
            blocks: self.geometry.blocks,
            ..Audit::default()
        };
        let mut seen = vec![false; blocks];
        let shared = self.ring(Home::Shared).blocks().map(in_slot);
        let waiting = self.deferred.blocks().into_iter().chain(self.kept());
        let waiting = waiting.map(deferred);
        // Most rows bind nothing: one word says so.
        let bound = (0..self.geometry.handles)
            .filter(|row| entry::is_valid(self.control_word(*row)))
            .map(|row| self.entry(row))
            .filter(TableEntry::is_valid);
        let bound = bound.map(|entry| (entry.block, Place::Bound));
        for (offset, place) in shared
            .chain(waiting)
            .chain(self.partitioned_blocks())
            .chain(bound)
        {
            let index = self.geometry.block_at(offset);
            let mark = index.and_then(|b| seen.get_mut(usize::try_from(b.0).ok()?));
            let problem = match mark {
                None => "is no block",
                Some(true) => "is in two places",
                Some(mark) => {
                    *mark = true;
                    let count = match place {
                        Place::Free => &mut audit.in_rings,
                        Place::Awaited => &mut audit.awaited,
                        Place::Deferred => &mut audit.deferred,
                        Place::Bound => &mut audit.bound,
                    };
                    *count = count.saturating_add(1);
                    continue;
                }
            };
            if audit.faults.len() < FAULTS_LISTED {
                audit.faults.push(format!("{offset}, {place:?}, {problem}"));
            }
        }
        let placed = audit.in_rings + audit.awaited + audit.deferred + audit.bound;
        audit.elsewhere = self.geometry.blocks.saturating_sub(placed);
        audit
    }
}
