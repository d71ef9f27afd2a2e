//! Faults, and the lives of the target between them.

use crate::forge::{Forgery, Wrong};
use crate::marks::Mark;
use crate::model::Why;
use crate::options::Options;
use crate::plan::{Fault, Step};
use crate::rng::Rng;
use crate::target::{Stage, Target};
use crate::world::{CLIENT, Event, Link, TARGET, World, tell};
use kbtp_core::initiator::Initiator;
use kbtp_fabric::{CloseReason, Time};
use kbtp_iwarp::Connection;
use kbtp_wire::rdmap::TerminateCause;
use kbtp_wire::{Grant, InitiatorId, Stag, TaggedOffset};
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
                self.links[link].silenced = true;
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
            // In the middle of what it does next, or between two things.
            (Fault::TargetCrash, _) if cfg!(feature = "plants") && rng.per_mille(500) => {
                self.dies_within = true;
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
                self.model.seq += 1;
                self.drained
                    .get_or_insert((self.target_lives, self.model.seq));
                let at = self.now.after_ns(rng.within(100_000, 20_000_000));
                self.at(at, Event::DrainOver(self.target_lives));
                true
            }
            (Fault::LateWorker, Some(link)) => {
                let ticket = u64::from(self.o.ticket_timeout_ms) * 1_000_000;
                let ns = if rng.per_mille(300) {
                    rng.within(ticket / 2, ticket * 3 / 2)
                } else {
                    rng.within(1_000, 30_000_000)
                };
                let until = self.now.after_ns(ns);
                let end = self.links[link].t.as_mut();
                end.map(|t| t.late_until = until).is_some()
            }
            (Fault::LostWake, Some(link)) => {
                self.links[link].lose_wake = true;
                self.links[link].silenced = true;
                true
            }
            (Fault::Forge, Some(link)) => self.forge(link, rng),
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
        self.jumped_at = self.now;
        true
    }

    // ---- The target's life ----

    /// Ends a life that ended in the middle of a call.
    pub(crate) fn finish_dying(&mut self) {
        let rng = &mut self.rng.clone();
        self.crash(false, rng);
    }

    fn crash(&mut self, memory_too: bool, rng: &mut Rng) {
        self.dying = false;
        self.dies_within = false;
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
                self.model.all_left(self.now);
                self.observe(Why::Recover, true);
                self.new_life();
            }
            Err(what) => self.fail(what),
        }
    }

    fn new_life(&mut self) {
        self.target_lives += 1;
        self.drained = None;
        self.model.all_left(self.now);
        // What making it wrote is nobody's call.
        self.forget_journal();
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

// ---- Forged FPDUs ----

impl World {
    /// Has an FPDU forged that is wrong in one thing; whether that can be.
    fn forge(&mut self, link: usize, rng: &mut Rng) -> bool {
        let open = |link: &Link| {
            let c = link.c.as_ref();
            c.and_then(|c| c.session.as_ref().filter(|_| !c.closing))
                .and_then(Initiator::terms)
                .map(|terms| terms.grant)
        };
        let Some(grant) = open(&self.links[link]) else {
            return false;
        };
        let now = &self.links[link];
        if now.forged.is_some() || now.hurt || now.pipes[TARGET].framer.is_none() {
            return false;
        }
        // STags of other streams mean nothing on this one.
        let others = self.links.iter().enumerate().filter(|(at, _)| *at != link);
        let others = others.filter_map(|(_, other)| open(other));
        let foreign: Vec<_> = others
            .flat_map(|g| [g.table_stag, g.partition_stag, g.ring_stag, g.counter_stag])
            .filter(|stag| stag.0 != 0)
            .collect();
        let [to_client, to_target] = &now.pipes;
        let asked = to_client.framer.as_ref().map_or(0, |framer| framer.reads);
        let answered = to_target.framer.as_ref().map_or(0, |f| f.answers);
        let sink = to_client.framer.as_ref().filter(|_| asked > answered);
        // In another block, where another Read may be answered; but no answer goes on behind its first octet.
        let elsewhere = sink.map(|framer| Forgery::ResponseElsewhere {
            stag: framer.sink.0,
            offset: TaggedOffset((framer.sink.1.0 ^ u64::from(self.o.block_size)) | 1),
        });
        let elsewhere = elsewhere.filter(|_| rng.per_mille(500));
        let forgery = elsewhere.unwrap_or_else(|| {
            self.choose_forgery(&grant, now.abandoned_at.is_some(), &foreign, rng)
        });
        let link = &mut self.links[link];
        link.forged = Some(forgery);
        link.pipes[TARGET].forgery = Some(forgery);
        true
    }

    #[expect(clippy::too_many_lines, reason = "a table of what can be wrong")]
    fn choose_forgery(
        &self,
        grant: &Grant,
        abandoned: bool,
        foreign: &[Stag],
        rng: &mut Rng,
    ) -> Forgery {
        let stranger = match foreign {
            [] => Stag(rng.next() as u32 | 1),
            some => rng.pick(some),
        };
        let at = TaggedOffset(0x1000);
        let (bounds, wrap) = (TaggedOffset(0), TaggedOffset(u64::MAX - 3));
        let place = |stag: Stag, offset: TaggedOffset, wrong: Wrong| {
            [
                Forgery::Write {
                    stag,
                    offset,
                    wrong,
                },
                Forgery::Read {
                    stag,
                    offset,
                    wrong,
                },
                Forgery::Atomic {
                    stag,
                    offset,
                    wrong,
                },
            ]
        };
        let mut from = vec![
            Forgery::TaggedVersion,
            Forgery::UntaggedVersion,
            Forgery::RdmapVersion,
            Forgery::ReservedOpcode,
            Forgery::Response,
            Forgery::NoSuchQueue,
            Forgery::SequenceAhead,
            Forgery::SequenceBehind,
            Forgery::Offset,
            Forgery::TooLong { octets: 4200 },
            Forgery::TooManyReads {
                reads: self.o.read_depth + 1,
            },
            Forgery::AtomicResponse,
            Forgery::Invalidate { stag: stranger },
            Forgery::TooShort,
            Forgery::WrongQueue,
            Forgery::ShortRead,
            Forgery::UnknownAtomic,
            Forgery::Terminate,
        ];
        from.extend(place(stranger, at, Wrong::Stag));
        if grant.table_stag.0 != 0 {
            let (table, pool) = (grant.table_stag, grant.pool_stag);
            let [write, _, atomic] = place(table, grant.table_offset, Wrong::Rights);
            from.extend([write, atomic, Forgery::Invalidate { stag: table }]);
            from.extend(place(pool, bounds, Wrong::Bounds));
            from.extend(place(table, wrap, Wrong::Wrap));
            let octets = grant.table_count * 16;
            let end = TaggedOffset(grant.table_offset.0 + octets - 4);
            from.extend(place(table, end, Wrong::Bounds));
        }
        if grant.partition_stag.0 != 0 && !abandoned {
            let (partition, offset) = (grant.partition_stag, grant.partition_offset);
            let end = TaggedOffset(offset.0 + grant.partition_len - 4);
            let [_, read, atomic] = place(partition, offset, Wrong::Rights);
            from.extend([read, atomic, Forgery::Invalidate { stag: partition }]);
            from.extend(place(partition, end, Wrong::Bounds));
            from.extend(place(partition, wrap, Wrong::Wrap));
            let [write, _, atomic] = place(grant.ring_stag, grant.ring_offset, Wrong::Rights);
            from.extend([write, atomic]);
            let [write, read, _] = place(grant.counter_stag, grant.head_offset, Wrong::Rights);
            from.extend([write, read]);
        }
        // What was revoked, before its blocks change hands.
        if grant.partition_stag.0 != 0 && abandoned && rng.per_mille(900) {
            let [write, ..] = place(grant.partition_stag, grant.partition_offset, Wrong::Stag);
            let [_, read, _] = place(grant.ring_stag, grant.ring_offset, Wrong::Stag);
            let [.., atomic] = place(grant.counter_stag, grant.head_offset, Wrong::Stag);
            from = vec![write, write, read, atomic];
        }
        rng.pick(&from)
    }

    /// Whether nothing was wrong with a stream so far.
    pub(crate) fn is_whole(conn: &Connection) -> bool {
        let told = format!("{conn:?}");
        told.contains("state: Established") && told.contains("ending: None")
    }

    /// A forged FPDU has come to the target's end of a stream, all of it, and nothing was wrong before.
    pub(crate) fn check_forged(&mut self, link: usize, conn: &Connection) {
        let Some(forgery) = self.links[link].forged else {
            return;
        };
        if self.links[link].hurt {
            return;
        }
        let told = format!("{conn:?}");
        if self.links[link].abandoned_at.is_some() && told.contains("invalid STag") {
            // Or for what came just before, and was too late for its ticket.
            self.links[link].caught = true;
            return;
        }
        let causes = forgery.causes();
        let found = if causes.is_empty() {
            told.contains("PeerTerminated")
        } else {
            let named = |cause: &TerminateCause| told.contains(&cause.to_string());
            causes.iter().any(named)
        };
        tell!(self, "connection {link}: {forgery:?} came: {told}");
        if found {
            self.links[link].caught = !causes.is_empty();
        } else {
            self.fail(format!(
                "connection {link}: {forgery:x?} came, and the stream is {told}, not ended for any of {causes:?}"
            ));
        }
    }
}
