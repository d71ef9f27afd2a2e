//! Faults, and the lives of the target between them.

use crate::marks::Mark;
use crate::model::Why;
use crate::options::Options;
use crate::plan::{Fault, Step};
use crate::rng::Rng;
use crate::target::{Stage, Target};
use crate::world::{CLIENT, Event, TARGET, World, tell};
use kbtp_core::initiator::Initiator;
use kbtp_fabric::{CloseReason, Time};
use kbtp_wire::InitiatorId;
use std::sync::atomic::Ordering::Relaxed;

impl World {
    #[expect(clippy::too_many_lines, reason = "one arm for each kind of fault")]
    pub(crate) fn fault(&mut self, fault: Fault, step: &Step) {
        let rng = &mut Rng::new(step.salt);
        let link = self.clients[step.client].link;
        let done = match (fault, link) {
            (Fault::Stall, Some(link)) => {
                // Often until just about a Ticket Timeout later.
                let ticket = u64::from(self.o.ticket_timeout_ms) * 1_000_000;
                let until = if rng.per_mille(300) {
                    self.now.after_ns(rng.within(ticket / 2, ticket * 3 / 2))
                } else {
                    self.now.after_ns(rng.within(1_000, 30_000_000))
                };
                let side = rng.below(2) as usize;
                self.links[link].pipes[side].held_until = until;
                self.wake(link, side, until);
                true
            }
            (Fault::Reset, Some(link)) => {
                for side in [CLIENT, TARGET] {
                    let at = self.now.after_ns(rng.below(100_000));
                    self.links[link].pipes[side].reset_at = Some(at);
                    self.wake(link, side, at);
                }
                true
            }
            (Fault::HalfOpen, Some(link)) => {
                for pipe in &mut self.links[link].pipes {
                    pipe.void = true;
                }
                self.keep_alive(link);
                // Either the initiator is gone too, or it will find out by its own watchdog.
                if rng.per_mille(700) {
                    self.client_dies(step.client, link);
                    self.connect_in(step.client, rng.below(3_000_000));
                }
                true
            }
            (Fault::TargetCrash | Fault::AgentCrash, _) => {
                self.crash(fault == Fault::AgentCrash, rng);
                true
            }
            (Fault::ClientCrash, Some(link)) => {
                let now = self.now;
                self.links[link].pipes[TARGET].reset(now, &self.o, rng);
                let at = self.links[link].pipes[TARGET].next_at(false);
                self.wake(link, TARGET, at);
                self.client_dies(step.client, link);
                // Without its ID it cannot come back to its range, which must end then.
                if self.o.lease_ms != u32::MAX && rng.per_mille(300) {
                    self.clients[step.client].id = InitiatorId(rng.octets());
                }
                self.connect_in(step.client, rng.below(3_000_000));
                true
            }
            (Fault::SlowReader, Some(link)) => {
                let until = self.now.after_ns(rng.within(10_000, 20_000_000));
                self.clients[step.client].paused_until = until;
                self.wake(link, CLIENT, until);
                true
            }
            (Fault::Corrupt, Some(link)) => {
                // A damaged Tagged Offset within a partition misplaces octets there (docs/adr/0001): that is known.
                let side = if self.o.direct_alloc {
                    CLIENT
                } else {
                    rng.below(2) as usize
                };
                let link = &mut self.links[link];
                let settled = link
                    .t
                    .as_ref()
                    .is_some_and(|t| matches!(t.stage, Stage::Open));
                let can = self.o.crc() && settled;
                link.pipes[side].damage |= can;
                can
            }
            (Fault::Jump, _) => self.jump(rng),
            (Fault::Drain, _) => {
                self.target.shared.drain();
                let at = self.now.after_ns(rng.within(100_000, 20_000_000));
                self.at(at, Event::DrainOver(self.target_lives));
                true
            }
            (Fault::Replace, Some(link)) => {
                // The old connection is left as it is; whatever is in flight on it has no owner any more.
                self.client_dies(step.client, link);
                self.connect_in(step.client, 0);
                true
            }
            (_, None) => false,
        };
        if done {
            tell!(
                self,
                "#{} fault {fault:?}, initiator {}",
                step.number,
                step.client
            );
            self.out.faults[fault as usize] += 1;
            self.hash(step.salt);
        }
    }

    /// The clock jumps to the next limit, or a nanosecond before or behind it.
    fn jump(&mut self, rng: &mut Rng) -> bool {
        let mut limits: Vec<Time> = self.target.directory.next_timeout().into_iter().collect();
        for link in &self.links {
            let session = link.t.as_ref().and_then(|t| t.session.as_ref());
            limits.extend(session.and_then(kbtp_core::TargetSession::poll_timeout));
            let session = link.c.as_ref().and_then(|c| c.session.as_ref());
            limits.extend(session.and_then(Initiator::timeout));
        }
        limits.retain(|at| *at > self.now && *at < self.now.after_ms(10_000));
        limits.sort_unstable();
        if limits.is_empty() {
            return false;
        }
        let at = rng.pick(&limits).0;
        let at = match rng.below(3) {
            0 => at - 1,
            1 => at,
            _ => at + 1,
        };
        self.now = self.now.max(Time(at));
        true
    }

    // ---- The target's life ----

    fn crash(&mut self, memory_too: bool, rng: &mut Rng) {
        let in_flight: usize = self
            .links
            .iter()
            .filter_map(|link| link.t.as_ref()?.session.as_ref())
            .map(kbtp_core::TargetSession::under_way)
            .sum();
        self.cut_all(rng);
        self.target_up_at = self.now.after_ns(rng.below(2_000_000));
        if memory_too {
            let sessions = self.target.sessions;
            self.target = Target::format(&self.o, &mut self.rng);
            self.target.sessions = sessions;
            self.model.reset(self.target.whole_table());
            self.new_life();
        } else {
            if in_flight > 0 {
                self.out.marks.hit(Mark::RecoverInFlight);
            }
            self.restart();
        }
    }

    /// The target's ends of all connections are gone; the system resets them.
    fn cut_all(&mut self, rng: &mut Rng) {
        for number in 0..self.links.len() {
            if self.links[number].t.take().is_none() {
                continue;
            }
            self.model.ended(number, self.links[number].spoilt);
            let now = self.now;
            self.links[number].pipes[TARGET].void = true;
            self.links[number].pipes[CLIENT].reset(now, &self.o, rng);
            let at = self.links[number].pipes[CLIENT].next_at(false);
            self.wake(number, CLIENT, at);
        }
    }

    pub(crate) fn stop_drained(&mut self) {
        for number in 0..self.links.len() {
            if let Some(mut end) = self.links[number].t.take() {
                end.conn.close(CloseReason::Abort);
                self.target_ends(number, end);
                let now = self.now;
                self.links[number].pipes[CLIENT].reset(now, &self.o, &mut self.rng);
                let at = self.links[number].pipes[CLIENT].next_at(false);
                self.wake(number, CLIENT, at);
            }
        }
        self.target_up_at = self.now.after_ns(self.rng.below(1_000_000));
        self.restart();
    }

    /// Starts the next target over the memory of this one.
    fn restart(&mut self) {
        let bound = self.model.bound_in_all();
        if bound > 0 {
            self.out.marks.hit(Mark::RecoverBound);
        }
        let sessions = self.target.sessions;
        let (now, instance) = (self.now, self.target.shared.pool.instance());
        let fresh = Target::format(
            &Options {
                blocks: 1,
                ..self.o.clone()
            },
            &mut self.rng,
        );
        let old = std::mem::replace(&mut self.target, fresh);
        self.collect(&old);
        match Target::recover(old.into_memory(), &self.o, &mut self.rng, now, sessions) {
            Ok((target, found)) => {
                self.target = target;
                if found != bound {
                    self.fail(format!("{bound} handles were bound, {found} were found"));
                }
                if self.target.shared.pool.instance() != instance {
                    self.fail("a recovery that lost nothing changed the instance".into());
                }
                self.observe(Why::Recover, true);
                self.new_life();
            }
            Err(what) => self.fail(what),
        }
    }

    fn new_life(&mut self) {
        self.target_lives += 1;
        self.last_tail = self.target.tail();
        self.ranges_changed();
        self.audit();
        self.plan_directory();
        tell!(self, "the target starts again");
    }

    /// Takes over the marks that the counters of a target tell of.
    pub(crate) fn collect(&mut self, target: &Target) {
        let stats = &target.shared.stats;
        for (counter, mark) in [
            (&stats.frees_deferred, Mark::Deferred),
            (&stats.allocations_parked, Mark::Parked),
            (&stats.tickets_abandoned, Mark::Abandoned),
            (&stats.leases_expired, Mark::LeaseExpired),
            (&stats.partitions_refused, Mark::PartitionRefused),
        ] {
            // Their number does not matter, only that they came.
            for _ in 0..counter.load(Relaxed).min(1000) {
                self.out.marks.hit(mark);
            }
        }
    }
}
