//! The end of a WQE: its reply is scattered, its CQE written; or it fails, and the queue pair with it.

use crate::cq::Report;
use crate::hazards::Reply;
use crate::model::Model;
use crate::qp::{Pending, Stage, Work};
use crate::trace::Deed;
use kbtp_device::Place;
use kbtp_mlx5::{Atomic, CqeOpcode, DataSegment, Signal, Syndrome};

impl Model {
    /// Completes the oldest WQE, whose answer is there.
    pub(crate) fn retire(&mut self, at: usize) -> bool {
        let Some(qp) = self.at_mut(at) else {
            return false;
        };
        let Some(mut pending) = qp.pending.pop_front() else {
            return false;
        };
        qp.answered = qp.answered.saturating_sub(1);
        if pending.is_read {
            qp.reads = qp.reads.saturating_sub(1);
        }
        let mut inline = None;
        let result = self.finish(at, &mut pending.work, &mut inline);
        match result {
            Ok(()) => self.completed(at, &pending, inline.as_deref()),
            Err(syndrome) => self.failed(at, &pending, syndrome),
        }
        let deed = result.map_or(Deed::Failed, |()| Deed::Completed);
        self.did(at, pending.index, deed);
        if let Some(octets) = inline {
            self.give(octets);
        }
        self.recycle(pending.work);
        true
    }

    /// Scatters what came back, if anything. A short reply may go to the CQE instead: it is left in `inline`.
    fn finish(
        &mut self,
        at: usize,
        work: &mut Work,
        inline: &mut Option<Vec<u8>>,
    ) -> Result<(), Syndrome> {
        match work {
            Work::Failed(syndrome) => Err(*syndrome),
            Work::Done | Work::Write { .. } | Work::Send { .. } | Work::Outside(_) => Ok(()),
            Work::Read {
                remote,
                len,
                to,
                data,
            } => {
                let octets = if let Some(octets) = data.take() {
                    octets
                } else {
                    let peer = self.peer_at(at).unwrap_or(usize::MAX);
                    let mut octets = self.take();
                    self.look(peer, *remote, u64::from(*len), true, &mut octets)?;
                    octets
                };
                self.reply(at, to, octets, inline)
            }
            Work::Atomic {
                atomic,
                to,
                reply,
                later,
                ..
            } => {
                let (order, old, to, later) = (self.hazards.reply, *reply, *to, later.take());
                self.write_word(atomic, later);
                let mut octets = self.take();
                let (reply, len) = reply_octets(atomic, order, old);
                octets.extend(reply.into_iter().take(len));
                self.reply(at, &[to], octets, inline)
            }
        }
    }

    fn reply(
        &mut self,
        at: usize,
        to: &[DataSegment],
        octets: Vec<u8>,
        inline: &mut Option<Vec<u8>>,
    ) -> Result<(), Syndrome> {
        if self.hazards.scatter_to_cqe && octets.len() <= 32 {
            *inline = Some(octets);
            return Ok(());
        }
        let asker = self.qp(at).ok_or(Syndrome::LOCAL_QP_OPERATION)?.asker();
        let result = self.scatter(asker, to, &octets);
        self.give(octets);
        result
    }

    /// The second half of a split atomic: the whole word is written, whatever was written to it since.
    fn write_word(&self, atomic: &Atomic, later: Option<(Place, u64)>) {
        if let Some((place, word)) = later {
            let octets = word.to_le_bytes();
            let len = usize::try_from(atomic.word_len()).unwrap_or(8);
            // It was there when the first half was done; memory in use is not taken away.
            let written = self
                .memory
                .write(place, octets.get(..len).unwrap_or(&octets));
            debug_assert!(written.is_ok());
        }
    }

    /// Writes the second halves of a queue's split atomics: what comes after them at the responder finds the new word.
    pub(crate) fn settle_atomics(&mut self, at: usize) {
        let Some(qp) = self.at_mut(at) else { return };
        let mut due = Vec::new();
        for pending in &mut qp.pending {
            if let Work::Atomic { atomic, later, .. } = &mut pending.work
                && let Some(later) = later.take()
            {
                due.push((*atomic, later));
            }
        }
        for (atomic, later) in due {
            self.write_word(&atomic, Some(later));
        }
    }

    /// Where replies come in any order: scatters one of them before its turn.
    pub(crate) fn scatter_any(&mut self, at: usize) -> bool {
        let Some(qp) = self.qp(at) else { return false };
        let answered = qp.answered;
        let is_read = |one: &Pending| matches!(one.work, Work::Read { .. });
        let ready = |one: &Pending| one.stage == Stage::Answered && is_read(one);
        let mut places = qp.pending.iter().take(answered).enumerate();
        let count = places.by_ref().filter(|(_, one)| ready(one)).count();
        if count == 0 || self.peer_at(at).is_none() {
            return false;
        }
        let chosen = self.random.below(count);
        let Some(qp) = self.at_mut(at) else {
            return false;
        };
        let mut found = qp
            .pending
            .iter_mut()
            .take(answered)
            .filter(|one| ready(one));
        let Some(pending) = found.nth(chosen) else {
            return false;
        };
        let mut work = std::mem::replace(&mut pending.work, Work::Done);
        let id = pending.id;
        let mut inline = None;
        let result = self.finish(at, &mut work, &mut inline);
        self.recycle(work);
        if let (Err(syndrome), Some(qp)) = (result, self.at_mut(at)) {
            for pending in qp.pending.iter_mut().filter(|one| one.id == id) {
                pending.work = Work::Failed(syndrome);
            }
        }
        true
    }

    fn completed(&mut self, at: usize, pending: &Pending, inline: Option<&[u8]>) {
        if !pending.signal.on_success() {
            return;
        }
        let Some(qp) = self.qp(at) else { return };
        let report = Report {
            opcode: CqeOpcode::Request,
            qpn: qp.qpn,
            send_opcode: pending.opcode,
            wqe_counter: pending.index,
            byte_count: pending.byte_count,
            immediate: 0,
            syndrome: None,
            solicited: pending.signal == Signal::AlwaysWithEvent,
            data: inline,
        };
        self.post_cqe(qp.attributes.send_cq, &report);
    }

    fn failed(&mut self, at: usize, pending: &Pending, syndrome: Syndrome) {
        self.report_failure(at, pending.index, pending.opcode, syndrome);
        self.set_error(at, Some(pending.index), syndrome);
    }

    /// Reports a WQE that a queue pair in error does not run.
    pub(crate) fn flushed(&mut self, at: usize, index: u16, opcode: u8, signalled: bool) {
        self.did(at, index, Deed::Failed);
        if signalled || !self.hazards.quiet_flush {
            self.report_failure(at, index, opcode, Syndrome::FLUSHED);
        }
    }

    fn report_failure(&mut self, at: usize, index: u16, opcode: u8, syndrome: Syndrome) {
        let Some(qp) = self.qp(at) else { return };
        let report = Report {
            opcode: CqeOpcode::RequestError,
            qpn: qp.qpn,
            send_opcode: opcode,
            wqe_counter: index,
            byte_count: 0,
            immediate: 0,
            syndrome: Some(syndrome),
            solicited: false,
            data: None,
        };
        self.post_cqe(qp.attributes.send_cq, &report);
    }

    /// Takes the buffers of what is over.
    pub(crate) fn recycle(&mut self, work: Work) {
        match work {
            Work::Done | Work::Failed(_) | Work::Atomic { .. } | Work::Outside(_) => {}
            Work::Write { data, .. } | Work::Send { data, .. } => self.give(data),
            Work::Read { to, data, .. } => {
                self.return_list(to);
                if let Some(data) = data {
                    self.give(data);
                }
            }
        }
    }
}

/// The octets of an atomic's reply, and how many of them count.
pub(crate) fn reply_octets(atomic: &Atomic, order: Reply, word: u64) -> ([u8; 8], usize) {
    match (atomic.word_len(), order) {
        (4, _) => {
            let [.., a, b, c, d] = word.to_be_bytes();
            ([a, b, c, d, 0, 0, 0, 0], 4)
        }
        (_, Reply::Memory) => (word.to_le_bytes(), 8),
        (_, Reply::BigEndian) => (word.to_be_bytes(), 8),
    }
}
