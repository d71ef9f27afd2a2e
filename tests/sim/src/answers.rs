//! Whether an answer can be, by the states that its handle had between question and answer.

use crate::client::{Kind, Op, STALE};
use crate::marks::Mark;
use crate::model::State;
use crate::world::{World, tell};
use kbtp_core::initiator::{Done, Failure, Finished};
use kbtp_fabric::Time;
use kbtp_wire::{Generation, Status};

/// How long an allocation waits for a block before it may fail within the quota, in nanoseconds.
const BLOCK_WAIT_NS: u64 = kbtp_core::limits::BLOCK_WAIT_MS * 1_000_000;

impl World {
    #[expect(clippy::too_many_lines, reason = "one arm for each kind of outcome")]
    pub(crate) fn check_answer(&mut self, link: usize, op: &Op, finished: &Finished) {
        tell!(
            self,
            "connection {link}: {:#x} {:?} -> {:?}",
            op.id,
            op.kind,
            finished.result
        );
        let Some(row) = op.row else {
            return;
        };
        let word = match &finished.result {
            Ok(done) => u64::from(done.generation.get()) << 32 | done.len.get(),
            Err(Failure::Status { status, .. }) => u64::from(status.to_wire()) << 48,
            Err(_) => 1 << 62,
        };
        self.hash(op.id ^ word);
        if op.since < self.model.made_at {
            // An answer about a pool that is lost.
            return;
        }
        let result = match finished.result {
            Ok(done) => {
                self.out.marks.status(0);
                let drained = self
                    .drained
                    .is_some_and(|(life, seq)| life == self.links[link].life && op.since >= seq);
                let late = |at: Time| op.kind == Kind::AllocDirect && op.at > at;
                if self.links[link].abandoned_at.is_some_and(late) {
                    Err("a ticket was abandoned before, which ends direct allocation".into())
                } else if drained && op.kind != Kind::DirectLoad {
                    Err("the target was draining".into())
                } else {
                    self.check_done(op, row, &done, self.links[link].client)
                }
            }
            Err(Failure::Status {
                status,
                generation,
                len,
            }) => {
                self.out.marks.status(status.to_wire());
                if op.kind == Kind::AllocDirect {
                    self.out.marks.hit(Mark::TicketUnbound);
                    self.model.ticket_stuck(link);
                }
                self.check_status(link, op, row, status, generation, len.0)
            }
            Err(Failure::GivenUp { sent, .. } | Failure::Lost { sent }) => {
                if !sent && op.kind != Kind::AllocDirect {
                    self.model.answered(row, op.id, false);
                }
                Ok(())
            }
            Err(Failure::Unstable { .. }) => {
                self.out.marks.hit(Mark::Unstable);
                if self.model.became(row, op.since, |_| true) {
                    Ok(())
                } else {
                    Err("nothing changed".into())
                }
            }
            Err(Failure::TicketTimeout { .. }) => {
                self.out.marks.hit(Mark::TicketTimeout);
                Ok(())
            }
            Err(other) => Err(format!("{other:?}")),
        };
        let settled = matches!(finished.result, Ok(_) | Err(Failure::Status { .. }));
        if let Err(what) = result {
            let told = self.model.tell(row, op.since);
            self.fail(format!(
                "connection {link}: {op:?} gave {:?}: {what}; row {row} {told}",
                finished.result
            ));
        }
        if settled && !matches!(op.kind, Kind::Load | Kind::DirectLoad) {
            self.model.answered(row, op.id, finished.result.is_ok());
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each kind of operation")]
    fn check_done(
        &mut self,
        op: &Op,
        row: usize,
        done: &Done,
        client: usize,
    ) -> Result<(), String> {
        let generation = done.generation.get();
        let len = done.len.0;
        if op.generation.is_some_and(|g| g != done.generation) && op.kind != Kind::Free {
            return Err("another Generation was asked for".into());
        }
        let of_data = |s: &State| {
            s.valid && s.generation == generation && s.len == len && s.block == done.block.0
        };
        match op.kind {
            Kind::Load | Kind::DirectLoad => {
                let direct = op.kind == Kind::DirectLoad;
                if direct {
                    self.out.marks.hit(Mark::Stable);
                }
                let unsealed = op.unsealed && !direct;
                let good = |s: &State| of_data(s) && (s.sealed || unsealed);
                if !self.model.was(row, op.since, good) {
                    return Err("the entry never was so".into());
                }
                let tenant = self.clients[client].tenant;
                if !self.model.visible(row, tenant, op.since) {
                    return Err("the block is of another trust domain".into());
                }
                let Some((buffer, _)) = op.buffer else {
                    return Err("no buffer".into());
                };
                let mut octets = vec![0; op.len as usize];
                self.clients[client].arena.read(buffer, &mut octets);
                let (octets, rest) = octets.split_at(len as usize);
                if !direct && rest.iter().any(|octet| *octet != STALE) {
                    return Err("more than the data was written".into());
                }
                let sealed = |s: &State| of_data(s) && s.sealed;
                let only_sealed = !unsealed
                    || !self.model.was(row, op.since, |s| of_data(s) && !s.sealed)
                        && self.model.was(row, op.since, sealed);
                if only_sealed {
                    self.model.sealed_octets(row, generation, octets)
                } else {
                    self.model.unsealed_octets(row, op.since, octets)
                }
            }
            Kind::Alloc | Kind::AllocDirect => {
                if len != op.len {
                    return Err("another length was stored".into());
                }
                if op.kind == Kind::AllocDirect {
                    self.out.marks.hit(Mark::BoundDirect);
                }
                let good = |s: &State| of_data(s) && s.sealed == op.seal;
                if self.model.became(row, op.since, good) {
                    Ok(())
                } else {
                    Err("the entry did not become so".into())
                }
            }
            Kind::Store => {
                if len != op.len {
                    return Err("another length was stored".into());
                }
                // A store that changes neither length nor flags is not to be seen in the table.
                let good = |s: &State| of_data(s) && s.sealed == op.seal;
                if self.model.was(row, op.since, good) {
                    Ok(())
                } else {
                    Err("the entry did not become so".into())
                }
            }
            Kind::Free => {
                let good = |s: &State| !s.valid && s.generation == generation;
                if self.model.became(row, op.since, good) {
                    Ok(())
                } else {
                    Err("the entry did not become so".into())
                }
            }
        }
    }

    fn check_status(
        &mut self,
        link: usize,
        op: &Op,
        row: usize,
        status: Status,
        generation: Option<Generation>,
        len: u32,
    ) -> Result<(), String> {
        let client = self.links[link].client;
        let tenant = self.clients[client].tenant;
        let carried = Generation::to_wire(generation);
        let loads = matches!(op.kind, Kind::Load | Kind::DirectLoad);
        let was = |is: &dyn Fn(&State) -> bool| self.model.was(row, op.since, is);
        let never = |what: &str| Err(format!("the entry never was {what}"));
        let mine = self
            .model
            .range(link)
            .is_some_and(|r| (r.first..r.first + r.rows).contains(&(row as u64)));
        match status {
            Status::NotValid => {
                let hidden = loads && carried == 0 && self.model.hidden(row, tenant, op.since);
                if hidden
                    || was(&|s| {
                        !s.valid && (s.generation == carried || op.kind == Kind::DirectLoad)
                    })
                {
                    Ok(())
                } else {
                    never("unbound")
                }
            }
            Status::AlreadyValid if !loads && was(&|s| s.valid) => Ok(()),
            Status::NotSealed if loads && was(&|s| s.valid && !s.sealed) => Ok(()),
            Status::Sealed if op.kind == Kind::Store && was(&|s| s.sealed) => Ok(()),
            Status::GenerationMismatch
                if op.generation.is_some()
                    && op.generation != generation
                    && was(&|s| s.valid && s.generation == carried) =>
            {
                Ok(())
            }
            Status::LengthError if loads => {
                if was(&|s| s.valid && s.len == len && len > op.len) {
                    Ok(())
                } else {
                    never("so long")
                }
            }
            Status::LengthError if op.len > self.o.block_size => Ok(()),
            Status::NotAuthorized if !mine && !loads => Ok(()),
            Status::ShuttingDown
                if self.target.shared.is_draining() || self.draining_seen(link) =>
            {
                Ok(())
            }
            Status::NoSpace if matches!(op.kind, Kind::Alloc | Kind::AllocDirect) => {
                let quota = self.quota(link);
                let most = self.model.usage_at_most(link, op.since);
                if most >= quota || self.now.since_ns(op.at) >= BLOCK_WAIT_NS {
                    Ok(())
                } else {
                    Err(format!(
                        "at most {most} of the quota of {quota} were in use"
                    ))
                }
            }
            Status::TicketAbandoned if op.kind == Kind::AllocDirect => Ok(()),
            other => Err(format!("{other} cannot be")),
        }
    }

    /// The target of this connection drained, and is another by now.
    fn draining_seen(&self, link: usize) -> bool {
        self.links[link].t.is_none()
    }

    fn quota(&self, link: usize) -> u32 {
        let session = self.links[link].t.as_ref().and_then(|t| t.session.as_ref());
        let grant = session.and_then(kbtp_core::TargetSession::grant);
        grant.map_or(0, |grant| grant.quota)
    }
}
