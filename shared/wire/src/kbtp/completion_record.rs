//! Completion record: 24 octets the target writes to the Completion Descriptor's slot.
//! Source: KBTP draft, section 6.5; profile, P3 (Immediate Data).
//! Octets: 0..8 Request ID, 8..10 Status, 10..12 Generation, 12..16 Data Length, 16..24 Block Offset.

use super::{Completion, Status};
use crate::fixed::{be16, be32, be64, put16, put32, put64};
use crate::{BlockOffset, ByteLen, DecodeError, Generation, Handle, RequestId};

/// What a [`Completion`](crate::Completion) says, for bindings on which records are allowed.
//= kbtp-6.5-record-layout
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionRecord {
    /// The request's.
    pub request_id: RequestId,
    /// How it ended.
    pub status: Status,
    /// The entry's current Generation.
    pub generation: Option<Generation>,
    /// The entry's Data Length, in octets.
    pub data_len: ByteLen,
    /// The entry's block.
    pub block: BlockOffset,
}

impl CompletionRecord {
    /// Octets of a completion record.
    pub const LEN: usize = 24;

    /// What `completion` says, as a record.
    #[must_use]
    pub const fn of(completion: &Completion) -> Self {
        Self {
            request_id: completion.request_id,
            status: completion.status,
            generation: completion.generation,
            data_len: completion.data_len,
            block: completion.block,
        }
    }

    /// What it says, as a message about `handle`, which the initiator knows.
    #[must_use]
    pub const fn about(&self, handle: Handle) -> Completion {
        Completion {
            request_id: self.request_id,
            handle,
            generation: self.generation,
            status: self.status,
            data_len: self.data_len,
            block: self.block,
        }
    }

    /// The record in these octets.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] if the Status is unknown.
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let Some(status) = Status::from_wire(be16::<8, _>(octets)) else {
            return Err(DecodeError::Unknown {
                field: "Status",
                value: u64::from(be16::<8, _>(octets)),
            });
        };
        Ok(Self {
            request_id: RequestId(be64::<0, _>(octets)),
            status,
            generation: Generation::new(be16::<10, _>(octets)),
            data_len: ByteLen(be32::<12, _>(octets)),
            block: BlockOffset(be64::<16, _>(octets)),
        })
    }

    /// The octets of this record.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put64::<0, _>(&mut octets, self.request_id.0);
        put16::<8, _>(&mut octets, self.status.to_wire());
        put16::<10, _>(&mut octets, Generation::to_wire(self.generation));
        put32::<12, _>(&mut octets, self.data_len.0);
        put64::<16, _>(&mut octets, self.block.0);
        octets
    }

    /// The Immediate Data that announces the record of `request_id`: its low 32 bits.
    //= kbtp-p3-record-immediate
    #[must_use]
    pub const fn immediate(request_id: RequestId) -> u32 {
        let [.., a, b, c, d] = request_id.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}
