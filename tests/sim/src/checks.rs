//! What must hold after every step: the table as the model has it, every block counted once, nobody's octets where they
//! do not belong. And at the end: all is as it was before anybody came.

use crate::marks::Mark;
use crate::model::{Range, Why};
use crate::target::{Stage, Target};
use crate::world::{Link, World};
use std::sync::atomic::Ordering::Relaxed;

impl World {
    /// Looks what a call into the target did to the table.
    pub(crate) fn observe(&mut self, why: Why, all: bool) {
        let target = &self.target;
        let before = self.model.seq;
        self.model.now = self.now;
        let result = self
            .model
            .observe(why, all, &mut |at, to| target.table(at, to));
        self.check(result);
        if self.model.seq != before {
            self.hash(self.model.seq);
            let usage = self.target.shared.pool.usage();
            if usage.free == usage.blocks {
                self.out.marks.hit(Mark::RingFull);
            } else if usage.free == 0 && usage.partitioned == 0 {
                self.out.marks.hit(Mark::RingEmpty);
            }
            if usage.free > usage.blocks || usage.deferred > usage.blocks {
                self.fail(format!("the counts of the pool cannot be: {usage:?}"));
            }
            let tail = self.target.tail();
            if tail < self.last_tail {
                self.out.marks.hit(Mark::TicketWrap);
            }
            let order = self.target.shared.pool.geometry().ring_order();
            if tail / order.slots() != self.last_tail / order.slots() {
                self.out.marks.hit(Mark::RingWrap);
            }
            self.last_tail = tail;
            self.look_for_strangers();
        }
        self.calls += 1;
        self.unaudited += 1;
        // What is rare is looked at closely.
        let deferred = self.target.shared.stats.frees_deferred.load(Relaxed);
        if deferred != self.deferred_seen {
            self.deferred_seen = deferred;
            self.unaudited = u64::MAX / 2;
        }
    }

    /// Blocks that were bound since hold no octets of another trust domain.
    fn look_for_strangers(&mut self) {
        let mut octets = Vec::new();
        for (row, state) in std::mem::take(&mut self.model.just_bound) {
            octets.resize(self.o.block_size as usize, 0);
            self.target.block(state.block, &mut octets);
            let (result, was) = self.model.strangers(row, &state, &octets);
            if was.of_another_domain {
                self.out.marks.hit(Mark::DomainChange);
                if was.had_octets && octets[state.len as usize..].iter().all(|o| *o == 0) {
                    self.out.marks.hit(Mark::Zeroed);
                }
            }
            self.check(result);
        }
    }

    /// Counts every block once, and compares what sessions have in use with what the table says.
    pub(crate) fn conserve(&mut self) {
        while let Some(Link {
            c: None, t: None, ..
        }) = self.links.get(self.first_alive)
        {
            self.first_alive += 1;
        }
        let audit = self.target.shared.pool.audit();
        let mut wrong = Vec::new();
        let (mut held, mut under_way, mut promised, mut of_sessions) = (0, 0, 0, 0);
        for (number, link) in self.links.iter().enumerate().skip(self.first_alive) {
            let end = link.t.as_ref();
            let Some((end, session)) = end.and_then(|t| Some((t, t.session.as_ref()?))) else {
                continue;
            };
            held += session.held();
            under_way += session.under_way() as u32;
            let Some(grant) = session.grant() else {
                continue;
            };
            let usage = session.usage();
            let bound = self.model.bound(number);
            promised += grant.quota;
            of_sessions += bound;
            // Who takes tickets for nothing exceeds its quota by itself; the target must only not give it more.
            let total = if link.fatal {
                usage.bound + usage.allocating
            } else {
                usage.total()
            };
            if total > grant.quota {
                wrong.push(format!("usage {usage:?} over quota: {grant:?}"));
            }
            if end.stage == Stage::Open && usage.bound != bound {
                wrong.push(format!(
                    "{usage:?}, but {bound} handles are bound: {grant:?}"
                ));
            }
        }
        let kept = self.model.bound_in_all().saturating_sub(of_sessions);
        if promised + kept > audit.blocks {
            wrong.push(format!(
                "{promised} blocks are promised and {kept} kept, of {}",
                audit.blocks
            ));
        }
        if !audit.faults.is_empty() || audit.bound != self.model.bound_in_all() {
            wrong.push(format!(
                "audit: {audit:?}, {} bound",
                self.model.bound_in_all()
            ));
        }
        if audit.elsewhere < held || audit.elsewhere > held + under_way {
            wrong.push(format!(
                "audit: {audit:?}, but sessions hold {held} and work on {under_way}"
            ));
        }
        if let Some(region) = self.target.memory.canaries_dead(false) {
            wrong.push(format!("somebody wrote beside the {region} region"));
        }
        if let Some(what) = wrong.pop() {
            self.fail(what);
        }
        if audit.elsewhere > held {
            self.out.marks.hit(Mark::FreedPinned);
        }
        if audit.deferred > 1 {
            self.out.marks.hit(Mark::DeferredSome);
        }
    }

    /// All of that, and every octet that must not have changed.
    pub(crate) fn audit(&mut self) {
        self.conserve();
        let committed = self.target.directory.summary().committed;
        if committed > self.o.blocks {
            self.fail(format!(
                "{committed} blocks are promised of {}",
                self.o.blocks
            ));
        }
        if let Some(region) = self.target.memory.canaries_dead(true) {
            self.fail(format!("somebody wrote beside the {region} region"));
        }
        // What is sealed lies in its block, as it was stored.
        let (mut octets, rows) = (Vec::new(), self.o.rows() as usize);
        for row in 0..rows {
            let state = self.model.state(row);
            if state.valid && state.sealed {
                octets.resize(state.len as usize, 0);
                self.target.block(state.block, &mut octets);
                let result = self.model.sealed_octets(row, state.generation, &octets);
                self.check(result.map_err(|what| format!("block of row {row}: {what}")));
            }
        }
    }

    /// Tells the model which ranges are nobody's any more.
    pub(crate) fn ranges_changed(&mut self) {
        let now = self.target.ranges();
        let gone: Vec<_> = self
            .known_ranges
            .iter()
            .copied()
            .filter(|known| !now.contains(known))
            .collect();
        self.known_ranges = now;
        for (first, rows) in gone {
            self.model.released(Range { first, rows });
        }
    }

    /// All is as it was before anybody came.
    pub(crate) fn baseline(&mut self) {
        self.audit();
        let target = std::mem::replace(&mut self.target, Target::format(&self.o, &mut self.rng));
        self.collect(&target);
        let usage = target.shared.pool.usage();
        let audit = target.shared.pool.audit();
        let summary = target.directory.summary();
        let clean = usage.free == usage.blocks
            && usage.deferred == 0
            && usage.partitioned == 0
            && audit.in_rings == audit.blocks
            && audit.awaited + audit.deferred + audit.bound + audit.elsewhere == 0
            && summary == kbtp_core::DirectorySummary::default();
        if !clean {
            self.fail(format!(
                "not all came back: {usage:?}, {audit:?}, {summary:?}"
            ));
        }
        for (count, mark) in [
            (self.model.wraps, Mark::GenerationWrap),
            (self.model.torn, Mark::TornUnsealed),
        ] {
            for _ in 0..count {
                self.out.marks.hit(mark);
            }
        }
    }
}
