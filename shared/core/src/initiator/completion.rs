//! COMPLETION messages: which request they answer, and whether they can be its answer.
//! Source: KBTP draft, section 6.5; profile, P3 and P7.

use super::slot::{Act, Phase};
use super::types::{Done, Failure, PeerError, Request};
use super::{Initiator, Slot};
use kbtp_wire::{ByteLen, Completion, Generation, RequestId, Stag, Status};

impl Initiator {
    /// Takes a message in an open session: a COMPLETION of an outstanding request, or the session ends.
    //= kbtp-6.5-completion-by-send
    // The data of a load is trusted from here on only: the Send has been delivered, and with it every RDMA Write
    // before it (RFC 5040, section 5.5).
    pub(super) fn complete(
        &mut self,
        message: &[u8],
        invalidated: Option<Stag>,
    ) -> Result<(), PeerError> {
        let completion = Completion::decode_message(message)?;
        let id = completion.request_id;
        //= kbtp-p8-any-order
        let index = slot_index(id);
        let block_len = self.terms().map_or(ByteLen(0), |t| t.grant.block_size);
        let Some(slot) = self.slots.get(usize::from(index)).copied() else {
            return Err(PeerError::NotOutstanding { id });
        };
        if slot.request_id != id.0 || !slot.awaits_completion() {
            return Err(PeerError::NotOutstanding { id });
        }
        if slot.request.handle() != completion.handle {
            return Err(PeerError::WrongHandle {
                id,
                expected: slot.request.handle(),
                got: completion.handle,
            });
        }
        if let Some(stag) = invalidated
            && !slot.given_up()
            && slot.request.invalidates() != Some(stag)
        {
            return Err(PeerError::Invalidated { stag });
        }
        let result = outcome(&slot, &completion, block_len)?;
        self.answer(index, result, invalidated.is_some());
        Ok(())
    }

    /// The request of `index` is answered.
    fn answer(&mut self, index: u16, result: Result<Done, Failure>, invalidated: bool) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return;
        };
        if let Err(Failure::Status { status, .. }) = result
            && (slot.holds_ticket() || status == Status::TicketAbandoned)
        {
            // The target has invalidated the STags of the partition, or will once the ticket, which no BIND has used
            // up, is over its time: a FetchAdd or Write through them would end the stream.
            //= kbtp-3.4-direct-alloc-disabled
            self.may_allocate = false;
        }
        match slot.phase {
            Phase::Tidying(..) if result.is_ok() => {
                let id = self.take_id(index);
                if let Some(slot) = self.slots.get_mut(usize::from(index)) {
                    slot.request_id = id;
                }
                self.turn(index, Phase::Freeing, Act::TidyFree);
            }
            // The buffer is still being sent from: the caller gets it when that is over.
            _ if slot.reading => slot.answer = Some((result, invalidated)),
            _ => self.conclude(index, result, invalidated),
        }
    }
}

/// The slot that a Request ID names.
const fn slot_index(id: RequestId) -> u16 {
    let [.., high, low] = id.0.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// What the completion says about the operation, if it can be said of it.
fn outcome(
    slot: &Slot,
    completion: &Completion,
    block_len: ByteLen,
) -> Result<Result<Done, Failure>, PeerError> {
    let wrong = |what, value| PeerError::Completion {
        id: completion.request_id,
        what,
        value,
    };
    if !completion.status.is_ok() {
        let carries_len = completion.status == Status::LengthError
            && matches!(slot.request, Request::Load { .. });
        return Ok(Err(Failure::Status {
            status: completion.status,
            generation: completion.generation,
            len: if carries_len {
                completion.data_len
            } else {
                ByteLen(0)
            },
        }));
    }
    let Some(generation) = completion.generation else {
        return Err(wrong("Generation", 0));
    };
    let len = match slot.request {
        Request::Load { into, .. } => {
            if completion.data_len > into.len.min(block_len) {
                return Err(wrong("Data Length", completion.data_len.get()));
            }
            completion.data_len
        }
        Request::Store { from, .. } | Request::AllocStore { from, .. } => from.buffer().len,
        Request::AllocDirect { from, .. } => from.len,
        Request::Free { .. } | Request::LoadDirect { .. } => ByteLen(0),
    };
    if let Request::Load { .. } | Request::Store { .. } = slot.request
        && let Some(expected) = slot.request.generation()
        && expected != generation
    {
        return Err(wrong("Generation", u64::from(Generation::get(generation))));
    }
    Ok(Ok(Done {
        len,
        generation,
        block: completion.block,
    }))
}
