//! What a responder does with a request, in the order of its requester's queue.

use crate::cq::Report;
use crate::hazards::{Sampling, Schedule};
use crate::limits::STEPS_PER_RETRY;
use crate::memory::Asker;
use crate::model::Model;
use crate::outside::Kind;
use crate::qp::{Stage, State, Work};
use crate::trace::Deed;
use crate::word::apply;
use kbtp_device::{PeerAccess, Place};
use kbtp_mlx5::{
    AccessRights, Atomic, CqeOpcode, DataSegment, Mkey, RemoteAddress, Syndrome, receive_list,
};
use std::sync::atomic::Ordering::SeqCst;

/// What came of a request.
pub(crate) enum Outcome {
    Done,
    /// The receiver is not ready.
    Later,
    Failed(Syndrome),
}

/// Octets of a receive WQE at most: 64 segments of 16.
const MAX_STRIDE: usize = 1024;

impl Model {
    /// Moves what was started on: a request to its responder, or a reply home. `false` if nothing can move.
    pub(crate) fn go_on(&mut self, at: usize) -> bool {
        let Some(qp) = self.qp(at) else { return false };
        let waiting = qp.pending.get(qp.answered);
        let can_request = !qp.refused && waiting.is_some_and(|one| one.stage != Stage::Sent);
        let front = qp.pending.front();
        let can_reply = front.is_some_and(|one| one.stage == Stage::Answered);
        let request_first = self.schedule == Schedule::Eager || self.random.chance(128);
        if request_first && can_request && self.respond(at) {
            return true;
        }
        if self.hazards.out_of_order && self.scatter_any(at) {
            return true;
        }
        if can_reply {
            return self.retire(at);
        }
        !request_first && can_request && self.respond(at)
    }

    /// Lets the responder see the first request that it has not.
    fn respond(&mut self, at: usize) -> bool {
        let Some(qp) = self.at_mut(at) else {
            return false;
        };
        let place = qp.answered;
        let Some(pending) = qp.pending.get_mut(place) else {
            return false;
        };
        if pending.stage == Stage::Answered {
            // It asks nothing of a responder.
            qp.answered += 1;
            return true;
        }
        let (solicited, id) = (pending.solicited, pending.id);
        let mut work = std::mem::replace(&mut pending.work, Work::Done);
        let outcome = match self.peer_at(at) {
            None => self.send_outside(at, id, solicited, &mut work),
            Some(peer) => match self.qp(peer) {
                Some(qp) if qp.state == State::Ready => self.serve(at, peer, solicited, &mut work),
                _ => Outcome::Failed(Syndrome::TRANSPORT_RETRY_EXCEEDED),
            },
        };
        let outside = self.peer_at(at).is_none();
        let Some(qp) = self.at_mut(at) else {
            return true;
        };
        match outcome {
            Outcome::Later => {
                let retry = qp.attributes.rnr_retry;
                let limit = STEPS_PER_RETRY.saturating_mul(u32::from(retry) + 1);
                qp.not_ready = qp.not_ready.saturating_add(1);
                if retry < 7 && qp.not_ready > limit {
                    work = Work::Failed(Syndrome::RNR_RETRY_EXCEEDED);
                    qp.halted = true;
                    qp.refused = true;
                    qp.answered += 1;
                }
            }
            Outcome::Done => {
                qp.not_ready = 0;
                qp.answered += 1;
            }
            Outcome::Failed(syndrome) => {
                // Requests behind it are never seen.
                work = Work::Failed(syndrome);
                qp.halted = true;
                qp.refused = true;
                qp.answered += 1;
            }
        }
        let stage = match (&work, qp.answered > place) {
            (_, false) => Stage::Issued,
            (Work::Failed(_), true) => Stage::Answered,
            (_, true) if outside => Stage::Sent,
            (_, true) => Stage::Answered,
        };
        let moved = stage != Stage::Issued;
        let Some(pending) = qp.pending.get_mut(place) else {
            return moved;
        };
        pending.stage = stage;
        pending.work = work;
        let index = pending.index;
        if moved {
            self.did(at, index, Deed::Responded);
        }
        moved
    }

    /// Does a request at a queue pair of this device.
    fn serve(&mut self, from: usize, peer: usize, solicited: bool, work: &mut Work) -> Outcome {
        // What comes after an atomic at its responder finds the new word; and atomics of all are one after the other.
        if !self.hazards.split_atomics {
        } else if let Work::Atomic { .. } = work {
            for at in 0..self.qps.len() {
                self.settle_atomics(at);
            }
        } else {
            self.settle_atomics(from);
        }
        match work {
            Work::Done | Work::Failed(_) | Work::Outside(_) => Outcome::Done,
            Work::Write {
                remote,
                data,
                immediate,
            } => self.serve_write((from, peer), *remote, data, *immediate, solicited),
            Work::Send { data, kind } => self.serve_send(peer, data, *kind, solicited),
            Work::Read {
                remote, len, data, ..
            } => {
                let early = match self.hazards.sampling {
                    Sampling::Early => true,
                    Sampling::Late => false,
                    Sampling::Either => self.random.chance(128),
                };
                let mut sampled = self.take();
                match self.look(peer, *remote, (*len).into(), early, &mut sampled) {
                    Ok(()) if early => *data = Some(sampled),
                    Ok(()) => self.give(sampled),
                    Err(syndrome) => return self.refuse(from, peer, syndrome),
                }
                Outcome::Done
            }
            Work::Atomic {
                remote,
                atomic,
                reply,
                later,
                ..
            } => match self.serve_atomic(peer, *remote, atomic) {
                Ok((old, new)) => {
                    *reply = old;
                    *later = new;
                    Outcome::Done
                }
                Err(syndrome) => self.refuse(from, peer, syndrome),
            },
        }
    }

    /// A request that a key does not allow: the responder's queue pair goes to error too, unless it is the requester's own,
    /// whose turn comes when the reply does.
    fn refuse(&mut self, from: usize, peer: usize, syndrome: Syndrome) -> Outcome {
        if from != peer {
            self.set_error(peer, None, Syndrome::LOCAL_ACCESS);
        }
        Outcome::Failed(syndrome)
    }

    /// Octets at the responder; with `early`, as they are now.
    pub(crate) fn look(
        &mut self,
        peer: usize,
        remote: RemoteAddress,
        len: u64,
        read: bool,
        to: &mut Vec<u8>,
    ) -> Result<(), Syndrome> {
        let asker = self.allowed(peer, |access| access.read)?;
        let mut extents = std::mem::take(&mut self.extents);
        extents.clear();
        let (key, need) = (remote.rkey, AccessRights::REMOTE_READ);
        let found = self
            .memory
            .translate(asker, key, remote.address, len, need, &mut extents);
        let result = match found {
            Ok(()) if read => self.append(&extents, to),
            other => other,
        };
        self.extents = extents;
        result.map_err(|_| Syndrome::REMOTE_ACCESS)
    }

    /// Who a peer's requests are looked up for, if it takes such ones.
    fn allowed(&self, peer: usize, may: impl Fn(&PeerAccess) -> bool) -> Result<Asker, Syndrome> {
        let qp = self.qp(peer).ok_or(Syndrome::REMOTE_OPERATION)?;
        if may(&qp.attributes.access) {
            Ok(qp.asker())
        } else {
            Err(Syndrome::REMOTE_INVALID_REQUEST)
        }
    }

    fn serve_write(
        &mut self,
        (from, peer): (usize, usize),
        remote: RemoteAddress,
        data: &[u8],
        immediate: Option<u32>,
        solicited: bool,
    ) -> Outcome {
        let asker = match self.allowed(peer, |access| access.write) {
            Ok(asker) => asker,
            Err(syndrome) => return self.refuse(from, peer, syndrome),
        };
        let receives = self.qp(peer).map_or(0, |qp| qp.receives(&self.memory));
        if immediate.is_some() && receives == 0 {
            return Outcome::Later;
        }
        let mut extents = std::mem::take(&mut self.extents);
        extents.clear();
        let (key, need) = (remote.rkey, AccessRights::REMOTE_WRITE);
        let len = data.len() as u64;
        let relaxed = self.memory.is_relaxed(key);
        // A WRITE of nothing looks at no key.
        let result = if len == 0 {
            Ok(())
        } else {
            self.memory
                .translate(asker, key, remote.address, len, need, &mut extents)
                .and_then(|()| self.place(&extents, data, relaxed))
        };
        self.extents = extents;
        if result.is_err() {
            return self.refuse(from, peer, Syndrome::REMOTE_ACCESS);
        }
        if let Some(immediate) = immediate {
            let opcode = CqeOpcode::ReceivedWriteImmediate;
            self.received(peer, opcode, data.len(), immediate, solicited, None);
        }
        Outcome::Done
    }

    fn serve_send(&mut self, peer: usize, data: &[u8], kind: Kind, solicited: bool) -> Outcome {
        match self.accept(peer, data, kind, solicited) {
            Ok(true) => Outcome::Done,
            Ok(false) => Outcome::Later,
            Err(syndrome) => Outcome::Failed(syndrome),
        }
    }

    /// Takes a message into the next receive WQE of a queue pair; `false` if there is none.
    ///
    /// # Errors
    /// What the sender is told. The queue pair is in error then.
    pub(crate) fn accept(
        &mut self,
        peer: usize,
        data: &[u8],
        kind: Kind,
        solicited: bool,
    ) -> Result<bool, Syndrome> {
        let qp = self.qp(peer).ok_or(Syndrome::REMOTE_OPERATION)?;
        if qp.receives(&self.memory) == 0 {
            return Ok(false);
        }
        let asker = qp.asker();
        let (place, stride) = qp.receive_place();
        let mut wqe = [0; MAX_STRIDE];
        let stride = usize::try_from(stride).unwrap_or(MAX_STRIDE);
        let wqe = wqe.get_mut(..stride).unwrap_or(&mut []);
        let read = self.memory.read(place, wqe);
        debug_assert!(read.is_ok());
        let mut list = self.spare_lists.pop().unwrap_or_default();
        let decoded = receive_list(wqe).try_for_each(|segment| {
            list.push(segment?);
            Ok::<(), kbtp_mlx5::DecodeError>(())
        });
        let inline = self.hazards.scatter_to_cqe && data.len() <= 32;
        let scattered = match decoded {
            Err(_) => Err(Syndrome::LOCAL_QP_OPERATION),
            Ok(()) if inline => Ok(()),
            Ok(()) => self.scatter(asker, &list, data),
        };
        self.return_list(list);
        let invalidated = match kind {
            Kind::Invalidate(key) => self.memory.invalidate(asker, Mkey(key)).is_ok(),
            Kind::Send | Kind::Immediate(_) => true,
        };
        let (mine, theirs) = match (scattered, invalidated) {
            (Ok(()), true) => {
                let (opcode, immediate) = match kind {
                    Kind::Send => (CqeOpcode::ReceivedSend, 0),
                    Kind::Immediate(data) => (CqeOpcode::ReceivedSendImmediate, data),
                    Kind::Invalidate(key) => (CqeOpcode::ReceivedSendInvalidate, key),
                };
                let shown = inline.then_some(data);
                self.received(peer, opcode, data.len(), immediate, solicited, shown);
                return Ok(true);
            }
            (Ok(()), false) => (Syndrome::LOCAL_ACCESS, Syndrome::REMOTE_INVALID_REQUEST),
            (Err(Syndrome::LOCAL_LENGTH), _) => {
                (Syndrome::LOCAL_LENGTH, Syndrome::REMOTE_INVALID_REQUEST)
            }
            (Err(syndrome), _) => (syndrome, Syndrome::REMOTE_OPERATION),
        };
        self.receive_failed(peer, mine);
        self.set_error(peer, None, mine);
        Err(theirs)
    }

    fn received(
        &mut self,
        peer: usize,
        opcode: CqeOpcode,
        len: usize,
        immediate: u32,
        solicited: bool,
        data: Option<&[u8]>,
    ) {
        self.report_receive(peer, opcode, len, immediate, None, solicited, data);
    }

    fn receive_failed(&mut self, peer: usize, syndrome: Syndrome) {
        let opcode = CqeOpcode::ResponderError;
        self.report_receive(peer, opcode, 0, 0, Some(syndrome), false, None);
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "they are the fields of a receive's CQE"
    )]
    fn report_receive(
        &mut self,
        peer: usize,
        opcode: CqeOpcode,
        len: usize,
        immediate: u32,
        syndrome: Option<Syndrome>,
        solicited: bool,
        data: Option<&[u8]>,
    ) {
        let Some(qp) = self.at_mut(peer) else { return };
        let [.., high, low] = qp.received.to_be_bytes();
        qp.received = qp.received.wrapping_add(1);
        let cqn = qp.attributes.receive_cq;
        let report = Report {
            opcode,
            qpn: qp.qpn,
            send_opcode: 0,
            wqe_counter: u16::from_be_bytes([high, low]),
            byte_count: u32::try_from(len).unwrap_or(u32::MAX),
            immediate,
            syndrome,
            solicited,
            data,
        };
        self.post_cqe(cqn, &report);
    }

    /// Flushes what a queue pair in error has posted to receive with.
    pub(crate) fn flush_receives(&mut self, at: usize) {
        let mut left = self.qp(at).map_or(0, |qp| qp.receives(&self.memory));
        while left > 0 {
            self.receive_failed(at, Syndrome::FLUSHED);
            left -= 1;
        }
    }

    /// The old word, and what is to be written to it later if not at once.
    fn serve_atomic(
        &mut self,
        peer: usize,
        remote: RemoteAddress,
        atomic: &Atomic,
    ) -> Result<(u64, Option<(Place, u64)>), Syndrome> {
        let asker = self.allowed(peer, |access| access.atomic)?;
        let len = u64::from(atomic.word_len());
        if !remote.address.is_multiple_of(len) && !self.hazards.lenient_alignment {
            return Err(Syndrome::REMOTE_INVALID_REQUEST);
        }
        let mut extents = std::mem::take(&mut self.extents);
        extents.clear();
        let (key, need) = (remote.rkey, AccessRights::ATOMIC);
        let found = self
            .memory
            .translate(asker, key, remote.address, len, need, &mut extents);
        // A word in two pieces is no word.
        let place = match (found, &extents[..]) {
            (Ok(()), [extent]) => Some(extent.place),
            _ => None,
        };
        self.extents = extents;
        let place = place.ok_or(Syndrome::REMOTE_ACCESS)?;
        let split = self.hazards.split_atomics;
        let old = self.modify(place, atomic, split);
        let old = old.ok_or(Syndrome::REMOTE_ACCESS)?;
        Ok((old, split.then(|| (place, apply(atomic, old)))))
    }

    /// Reads a word and, unless it is split, writes the new one: one operation to all who use atomics too.
    fn modify(&self, place: Place, atomic: &Atomic, split: bool) -> Option<u64> {
        let region = self.memory.region(place.memory)?;
        if atomic.word_len() == 4 {
            let word = region.u32_at(place.offset).ok()?;
            let new = |old: u32| u32::try_from(apply(atomic, u32::from_le(old).into())).ok();
            let old = if split {
                word.load(SeqCst)
            } else {
                let swapped = word.fetch_update(SeqCst, SeqCst, |old| new(old).map(u32::to_le));
                swapped.ok()?
            };
            return Some(u32::from_le(old).into());
        }
        let Ok(word) = region.u64_at(place.offset) else {
            return self.modify_octets(place, atomic, split);
        };
        let old = if split {
            word.load(SeqCst)
        } else {
            let new = |old| Some(apply(atomic, u64::from_le(old)).to_le());
            word.fetch_update(SeqCst, SeqCst, new).ok()?
        };
        Some(u64::from_le(old))
    }

    /// The same where the word is not aligned in memory: no longer one operation.
    fn modify_octets(&self, place: Place, atomic: &Atomic, split: bool) -> Option<u64> {
        let mut octets = [0; 8];
        self.memory.read(place, &mut octets).ok()?;
        let old = u64::from_le_bytes(octets);
        if !split {
            let new = apply(atomic, old).to_le_bytes();
            self.memory.write(place, &new).ok()?;
        }
        Some(old)
    }

    /// Gives a list of segments back.
    pub(crate) fn return_list(&mut self, mut list: Vec<DataSegment>) {
        list.clear();
        self.spare_lists.push(list);
    }
}
