//! Counting every block once.

use super::{Audit, Home, Pool};
use kbtp_wire::BlockOffset;

/// Faults listed; more are counted only by their effect.
const FAULTS_LISTED: usize = 16;

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
        let mut visit = |faults: &mut Vec<String>, offset: BlockOffset, place: &str| {
            let index = self.geometry.block_at(offset);
            let mark = index.and_then(|b| seen.get_mut(usize::try_from(b.0).ok()?));
            let problem = match mark {
                None => "is no block",
                Some(mark) if *mark => "is in two places",
                Some(mark) => {
                    *mark = true;
                    return 1;
                }
            };
            if faults.len() < FAULTS_LISTED {
                faults.push(format!("{offset}, {place}, {problem}"));
            }
            0
        };
        let shared = self.ring(Home::Shared).blocks().map(|b| (b, false));
        let deferred = self.deferred.blocks().into_iter().map(|b| (b, true));
        for (block, waits) in shared.chain(deferred).chain(self.partitioned_blocks()) {
            if waits {
                audit.deferred += visit(&mut audit.faults, block, "deferred");
            } else {
                audit.in_rings += visit(&mut audit.faults, block, "in a ring");
            }
        }
        for row in 0..self.geometry.handles {
            let entry = self.entry(row);
            if entry.is_valid() {
                audit.bound += visit(&mut audit.faults, entry.block, "bound");
            }
        }
        let placed = audit.in_rings + audit.deferred + audit.bound;
        audit.elsewhere = self.geometry.blocks.saturating_sub(placed);
        audit
    }
}
