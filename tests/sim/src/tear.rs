//! The moments within a call of the target, which the simulation makes in one go.
//!
//! The journal of the core tells in which order a call wrote the words of table and rings. From it follow: whether that
//! order is the one the draft wants; what a peer may read by RDMA meanwhile, a read of 16 octets being no more atomic
//! than the text says; and what is left where the target dies between two writes.

use crate::marks::Mark;
use crate::model::Why;
use crate::target::{Stage, TEnd};
use crate::world::{TARGET, World, tell};
use kbtp_core::journal::Written;
use kbtp_iwarp::Connection;
use kbtp_wire::SessionCapabilities;
use std::sync::atomic::Ordering::Relaxed;

/// Octets of a table entry, and of a ring slot.
const UNIT: u64 = 16;
/// All ones: a slot that is empty.
const ONES: u32 = u32::MAX;

/// A word of the metadata region that was written.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// Its octet in the region.
    at: u64,
    before: u32,
    after: u32,
}

impl Write {
    const fn unit(&self) -> u64 {
        self.at / UNIT * UNIT
    }

    const fn word(&self) -> u64 {
        self.at % UNIT / 4
    }
}

/// What a call has written, in order.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    writes: Vec<Write>,
    taken: Vec<Written>,
}

impl Journal {
    /// Takes what the core has written down, as far as it lies in the metadata region, whose first octet is at `base`.
    fn fetch(&mut self, base: usize, len: u64) {
        self.writes.clear();
        #[cfg(feature = "plants")]
        {
            self.taken.clear();
            kbtp_core::journal::take(&mut self.taken);
        }
        for written in &self.taken {
            let at = written.address.wrapping_sub(base) as u64;
            if at < len {
                self.writes.push(Write {
                    at,
                    before: u32::from_be(written.before),
                    after: u32::from_be(written.after),
                });
            }
        }
    }
}

impl World {
    /// A session of `link`, whose stream may be `own`, has done something.
    pub(crate) fn after_call(&mut self, link: usize, own: Option<&mut Connection>) {
        let writes = self.take_journal();
        let why = Why::Session(link);
        if !writes.is_empty() {
            self.check_order(&writes, why);
            if self.rng.per_mille(self.o.tear) {
                self.tear(link, own, &writes);
            }
            if self.dies_within {
                self.die_within(link, &writes);
                return;
            }
        }
        self.observe(why, false);
    }

    /// The directory, or the end of a session, has done something.
    pub(crate) fn after_release(&mut self) {
        let writes = self.take_journal();
        self.check_order(&writes, Why::Release);
        self.observe(Why::Release, false);
    }

    fn take_journal(&mut self) -> Vec<Write> {
        let meta = self.target.shared.pool.meta_region();
        let base = meta
            .u32_at(0)
            .map_or(0, |word| std::ptr::from_ref(word).addr());
        let len = meta.len();
        self.journal.fetch(base, len);
        std::mem::take(&mut self.journal.writes)
    }

    /// What was written until now is not looked at.
    pub(crate) fn forget_journal(&mut self) {
        drop(self.take_journal());
    }

    fn word(&self, at: u64) -> u32 {
        let meta = self.target.shared.pool.meta_region();
        meta.u32_at(at)
            .map_or(0, |word| u32::from_be(word.load(Relaxed)))
    }

    fn set(&self, at: u64, value: u32) {
        if let Ok(word) = self.target.shared.pool.meta_region().u32_at(at) {
            word.store(value.to_be(), Relaxed);
        }
    }

    // ---- The order of writes ----

    /// The Block Offset of an entry before its Flags and Generation, the Block Offset of a slot before its Sequence, the
    /// entry before the return of its block.
    fn check_order(&mut self, writes: &[Write], why: Why) {
        let table = self.target.table_at();
        // Units that show a block since some write of this call.
        let mut shown: Vec<u64> = Vec::new();
        for (i, write) in writes.iter().enumerate() {
            let (unit, changed) = (write.unit(), write.before != write.after);
            let of_table = unit >= table;
            match write.word() {
                0 => {
                    let visible = !of_table || write.after >> 16 & 1 != 0;
                    shown.retain(|other| *other != unit);
                    if visible && changed {
                        shown.push(unit);
                        if !of_table {
                            self.check_return(&writes[..i], write, table, why);
                        }
                    }
                }
                2 | 3 if changed && shown.contains(&unit) => {
                    if !of_table && write.after == ONES {
                        // Consumed: whoever fills it next begins with the block again.
                        shown.retain(|other| *other != unit);
                    } else {
                        let what = if of_table { "an entry" } else { "a slot" };
                        self.fail(format!(
                            "{what} shows its block before it is whole, {why:?}"
                        ));
                    }
                }
                _ => {}
            }
        }
    }

    /// A slot shows its block: no entry binds it any more.
    fn check_return(&mut self, before: &[Write], write: &Write, table: u64, why: Why) {
        let half = |word: u64| {
            let of_it = |w: &&Write| w.at == write.unit() + word * 4;
            before.iter().rfind(of_it).map_or_else(
                || u64::from(self.word(write.unit() + word * 4)),
                |w| u64::from(w.after),
            )
        };
        let block = half(2) << 32 | half(3);
        let Some(row) = self.model.row_of(block) else {
            return;
        };
        let entry = table + row as u64 * UNIT;
        let unbound = before
            .iter()
            .any(|w| w.at == entry && w.after >> 16 & 1 == 0);
        if !unbound {
            self.fail(format!(
                "block {block:#x} is free while row {row} still binds it, {why:?}"
            ));
        }
    }

    // ---- Reads meanwhile ----

    /// Has a peer that reads table or ring read in the middle of a call. Each word of what is being written then is as
    /// it was at some moment of the call.
    #[expect(clippy::too_many_lines, reason = "one moment, made and unmade")]
    fn tear(&mut self, link: usize, own: Option<&mut Connection>, writes: &[Write]) {
        let cut = self.rng.below(writes.len() as u64) as usize;
        let unit = writes[cut].unit();
        let of_table = unit >= self.target.table_at();
        let reads = |end: &TEnd| {
            let grant = end
                .session
                .as_ref()
                .and_then(kbtp_core::TargetSession::grant);
            end.stage == Stage::Open
                && grant.is_some_and(|g| {
                    g.has(if of_table {
                        SessionCapabilities::DIRECT_LOAD
                    } else {
                        SessionCapabilities::DIRECT_ALLOC
                    })
                })
        };
        let now = self.now;
        let readers: Vec<usize> = (0..self.links.len())
            .filter(|at| {
                let other = &self.links[*at];
                let open = other
                    .t
                    .as_ref()
                    .map_or_else(|| *at == link && own.is_some(), |t| reads(t));
                open && other.pipes[TARGET].in_flight > 0
            })
            .collect();
        if readers.is_empty() {
            return;
        }
        let reader = self.rng.pick(&readers);
        if !self.links[reader].pipes[TARGET].hurry(now) {
            return;
        }
        for write in writes[cut + 1..].iter().rev() {
            self.set(write.at, write.before);
        }
        let of_unit: Vec<&Write> = writes.iter().filter(|w| w.unit() == unit).collect();
        for word in 0..4 {
            let at = unit + word * 4;
            let moments: Vec<u32> = of_unit
                .iter()
                .filter(|w| w.at == at)
                .flat_map(|w| [w.before, w.after])
                .collect();
            if !moments.is_empty() {
                let value = self.rng.pick(&moments);
                self.set(at, value);
            }
        }
        let moved = if reader == link
            && let Some(conn) = own
        {
            self.pump(link, TARGET, conn, false)
        } else if let Some(mut end) = self.links[reader].t.take() {
            let reset = end.reset;
            let moved = self.pump(reader, TARGET, &mut end.conn, reset);
            self.links[reader].t = Some(end);
            self.wake(reader, TARGET, now);
            moved
        } else {
            false
        };
        for write in writes {
            self.set(write.at, write.after);
        }
        if moved {
            tell!(
                self,
                "connection {reader} is read from in the middle of a write of connection {link}"
            );
            self.out.marks.hit(if of_table {
                Mark::TornEntry
            } else {
                Mark::TornSlot
            });
        }
    }

    // ---- Death in between ----

    /// The target dies between two writes of this call.
    fn die_within(&mut self, link: usize, writes: &[Write]) {
        // What an unbound block held is cleared after its entry says so, and is not written down: that stays.
        let table = self.target.table_at();
        let unbinds = |w: &Write| {
            w.unit() >= table && w.word() == 0 && w.before >> 16 & 1 > w.after >> 16 & 1
        };
        let least = writes.iter().rposition(unbinds).map_or(0, |at| at + 1);
        let left = self.rng.within(least as u64, writes.len() as u64) as usize;
        for write in writes[left..].iter().rev() {
            self.set(write.at, write.before);
        }
        tell!(
            self,
            "the target dies in a call for connection {link}, after {left} of {} writes",
            writes.len()
        );
        if left > 0 && left < writes.len() {
            self.out.marks.hit(Mark::DiedWithin);
        }
        self.model.cut = true;
        self.observe(Why::Session(link), false);
        self.model.cut = false;
        self.dying = true;
    }
}
