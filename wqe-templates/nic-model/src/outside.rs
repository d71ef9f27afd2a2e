//! The boundary to peers outside the model: requests out, answers and messages in. It is plain calls, so that whatever
//! carries them (memory of a test, a fabric stream) drives the model and not the other way round.

use crate::error::ModelError;
use crate::memory::Extent;
use crate::model::Model;
use crate::qp::{Stage, State, Work};
use crate::respond::Outcome;
use kbtp_mlx5::{Atomic, Qpn, RemoteAddress, Syndrome};

/// What a message is beside its octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A Send.
    Send,
    /// A Send with Immediate.
    Immediate(u32),
    /// A Send with Invalidate: the receiver's key.
    Invalidate(u32),
}

/// A request for a peer outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Names it in its answer.
    pub id: u64,
    /// Whether the peer's CQE is solicited.
    pub solicited: bool,
    /// What it asks for.
    pub work: OutgoingWork,
}

/// What a request asks for. Data is read from and written to the model's memory by whoever carries it; keys were checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutgoingWork {
    /// A message.
    Send {
        /// Its octets.
        message: Vec<u8>,
        /// What else it is.
        kind: Kind,
    },
    /// RDMA Write.
    Write {
        /// The data.
        local: Vec<Extent>,
        /// Where it goes.
        remote: RemoteAddress,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// RDMA Read.
    Read {
        /// Where the data goes.
        local: Vec<Extent>,
        /// Where it is.
        remote: RemoteAddress,
    },
    /// An atomic.
    Atomic {
        /// Where the old value goes: written by the model.
        local: Vec<Extent>,
        /// The word.
        remote: RemoteAddress,
        /// What is done to it.
        atomic: Atomic,
    },
}

impl Model {
    pub(crate) fn send_outside(
        &mut self,
        at: usize,
        id: u64,
        solicited: bool,
        work: &mut Work,
    ) -> Outcome {
        let Work::Outside(inner) = work else {
            return Outcome::Done;
        };
        let Some(sent) = inner.take() else {
            return Outcome::Done;
        };
        if let OutgoingWork::Atomic { local, .. } = &sent {
            // Kept for the answer.
            *inner = Some(OutgoingWork::Atomic {
                local: local.clone(),
                remote: RemoteAddress {
                    address: 0,
                    rkey: kbtp_mlx5::Mkey(0),
                },
                atomic: Atomic::FetchAdd { add: 0 },
            });
        }
        if let Some(qp) = self.at_mut(at) {
            qp.outgoing.push_back(Outgoing {
                id,
                solicited,
                work: sent,
            });
        }
        Outcome::Done
    }

    /// The next request of a queue pair for its peer outside, in order; `None` if there is none now.
    pub fn outgoing(&mut self, qpn: Qpn) -> Option<Outgoing> {
        let qp = self.qp_mut(qpn).ok()?;
        qp.outgoing.pop_front()
    }

    /// Answers a request: the data of a Read is in place, that of a Write or Send is no longer needed; of an atomic, the old
    /// value. An answer to a request that was flushed is dropped.
    ///
    /// # Errors
    /// [`ModelError::Qp`] if there is no such queue pair.
    pub fn answer(
        &mut self,
        qpn: Qpn,
        id: u64,
        answer: Result<Option<u64>, Syndrome>,
    ) -> Result<(), ModelError> {
        let order = self.hazards.reply;
        let qp = self.qp_mut(qpn)?;
        let found = qp.pending.iter_mut().find(|one| one.id == id);
        let Some(pending) = found.filter(|one| one.stage == Stage::Sent) else {
            return Ok(());
        };
        let work = std::mem::replace(&mut pending.work, Work::Done);
        pending.stage = Stage::Answered;
        match (answer, work) {
            (Ok(Some(old)), Work::Outside(Some(OutgoingWork::Atomic { local, atomic, .. }))) => {
                let (octets, len) = crate::retire::reply_octets(&atomic, order, old);
                let octets = octets.get(..len).unwrap_or(&octets);
                let placed = self.place(&local, octets, false);
                if placed.is_err() {
                    self.fail_answer(qpn, id, Syndrome::LOCAL_PROTECTION);
                }
            }
            (Ok(_), _) => {}
            (Err(syndrome), _) => self.fail_answer(qpn, id, syndrome),
        }
        Ok(())
    }

    fn fail_answer(&mut self, qpn: Qpn, id: u64, syndrome: Syndrome) {
        let Ok(qp) = self.qp_mut(qpn) else { return };
        // Requests behind it are never seen.
        qp.halted = true;
        qp.refused = true;
        for pending in qp.pending.iter_mut().filter(|one| one.id == id) {
            pending.work = Work::Failed(syndrome);
        }
    }

    /// A message of a peer outside. Gives `false` if no receive WQE is posted: offer it again later.
    ///
    /// # Errors
    /// What a requester would be told: the queue pair does not take it, or it is too long; it is in error then.
    pub fn deliver(&mut self, qpn: Qpn, message: &[u8], kind: Kind) -> Result<bool, Syndrome> {
        let at = Self::qp_at(qpn).ok_or(Syndrome::TRANSPORT_RETRY_EXCEEDED)?;
        let ready = self.qp(at).is_some_and(|qp| qp.state == State::Ready);
        if !ready {
            return Err(Syndrome::TRANSPORT_RETRY_EXCEEDED);
        }
        self.accept(at, message, kind, false)
    }

    /// The peer outside is gone.
    ///
    /// # Errors
    /// [`ModelError::Qp`] if there is no such queue pair.
    pub fn disconnect(&mut self, qpn: Qpn) -> Result<(), ModelError> {
        let at = Self::qp_at(qpn).ok_or(ModelError::Qp(qpn))?;
        self.qp_mut(qpn)?;
        self.set_error(at, None, Syndrome::TRANSPORT_RETRY_EXCEEDED);
        Ok(())
    }
}
