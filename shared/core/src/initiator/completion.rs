//! COMPLETION messages and completion records: which request they answer, and whether they can be its answer.
//! Source: KBTP draft, section 6.5; profile, P3 and P7.

use super::slot::{Act, Phase};
use super::types::{Done, Failure, PeerError, Request};
use super::{Initiator, Records, Slot};
use kbtp_wire::{
    ByteLen, Completion, CompletionDescriptor, CompletionRecord, Generation, RequestId,
    SessionCapabilities, Stag, Status, TaggedOffset,
};

/// Octets from one record to the next: 24, and eight more, so that none lies across two lines of a cache.
pub(super) const RECORD_STRIDE: u64 = 32;

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
        self.take_completion(&Completion::decode_message(message)?, invalidated)
    }

    /// Takes the completion record that `data` announces.
    //= kbtp-9.2-record-with-immediate
    //= kbtp-p3-record-immediate
    // Its octets, and the data of a load, are trusted from here on: Immediate Data is delivered after the Writes before it.
    pub(super) fn complete_by_record(&mut self, data: u32) -> Result<(), PeerError> {
        let [.., high, low] = data.to_be_bytes();
        let index = u16::from_be_bytes([high, low]);
        let slot = self.slots.get(usize::from(index)).copied();
        let waits = |slot: &Slot| {
            CompletionRecord::immediate(RequestId(slot.request_id)) == data
                && slot.awaits_completion()
        };
        let (Some(slot), Some(records)) = (slot.filter(waits), self.granted_records()) else {
            return Err(PeerError::Immediate { data });
        };
        let mut octets = [0; CompletionRecord::LEN];
        // One copy, so that what is judged is what is used.
        let read = records
            .region
            .read(u64::from(index) * RECORD_STRIDE, &mut octets);
        read.map_err(|_| PeerError::Immediate { data })?;
        let completion = CompletionRecord::decode(&octets)?.about(slot.request.handle());
        self.take_completion(&completion, None)
    }

    fn granted_records(&self) -> Option<&Records> {
        let granted = self.terms()?.grant.capabilities;
        let records = self.records.as_ref()?;
        granted
            .contains(SessionCapabilities::RECORD_COMPLETION)
            .then_some(records)
    }

    /// Where the record of a slot's request goes; `None` if a message completes it: one whose STag is to be invalidated, for a
    /// Write cannot do that.
    pub(super) fn record_of(&self, index: u16, slot: &Slot) -> Option<CompletionDescriptor> {
        if slot.request.invalidates().is_some() {
            return None;
        }
        let records = self.granted_records()?;
        let at = u64::from(index) * RECORD_STRIDE;
        Some(CompletionDescriptor {
            stag: records.stag,
            offset: TaggedOffset(records.base.0.checked_add(at)?),
        })
    }

    fn take_completion(
        &mut self,
        completion: &Completion,
        invalidated: Option<Stag>,
    ) -> Result<(), PeerError> {
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
        let result = outcome(&slot, completion, block_len)?;
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
