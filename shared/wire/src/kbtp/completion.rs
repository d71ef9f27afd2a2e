//! COMPLETION: 40 octets, the target's answer to a request.
//! Source: KBTP profile, P3; draft, sections 5.1 and 6.5.
//! Octets: 0..24 common header (Flags 0), 24..28 Data Length, 28..32 Reserved (zero), 32..40 Block Offset.

use super::{Header, Opcode, RequestFlags, Status, VERSION};
use crate::fixed::{be32, be64, get, put, put32, put64};
use crate::{BlockOffset, ByteLen, DecodeError, Generation, Handle, RequestId};

/// How a request ended, and what it found.
//= kbtp-p3-completion-layout
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's.
    pub request_id: RequestId,
    /// The request's Block Handle.
    pub handle: Handle,
    /// The entry's current Generation; `None` if it was never bound or is not for this initiator to see.
    pub generation: Option<Generation>,
    /// How it ended.
    pub status: Status,
    /// The entry's Data Length, in octets.
    pub data_len: ByteLen,
    /// The entry's block.
    pub block: BlockOffset,
}

impl Completion {
    /// Octets of a COMPLETION message, header included.
    pub const LEN: usize = 40;

    /// A completion with a status that is not OK: Data Length and Block Offset zero. (`LENGTH_ERROR` of a LOAD
    /// carries the Data Length: set it.)
    //= kbtp-p3-zero-unless-ok
    #[must_use]
    pub const fn failed(
        request_id: RequestId,
        handle: Handle,
        generation: Option<Generation>,
        status: Status,
    ) -> Self {
        Self {
            request_id,
            handle,
            generation,
            status,
            data_len: ByteLen(0),
            block: BlockOffset(0),
        }
    }

    /// The completion in these octets.
    ///
    /// # Errors
    /// [`DecodeError`] if the header is not that of a version 1 COMPLETION, if a flag or a reserved bit is set, or if
    /// the Status is unknown.
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let header = Header::decode(&get::<0, { Header::LEN }, _>(octets));
        if header.opcode != Opcode::Completion.to_wire() {
            return Err(unknown("Opcode", u64::from(header.opcode)));
        }
        if header.version != VERSION {
            return Err(unknown("Version", u64::from(header.version)));
        }
        if !header.flags.is_empty() {
            return Err(not_zero("COMPLETION, Flags", u64::from(header.flags.0)));
        }
        let Some(status) = Status::from_wire(header.status) else {
            return Err(unknown("Status", u64::from(header.status)));
        };
        let reserved = be32::<28, _>(octets);
        if reserved != 0 {
            return Err(not_zero("COMPLETION, Reserved", u64::from(reserved)));
        }
        Ok(Self {
            request_id: header.request_id,
            handle: header.handle,
            generation: header.generation,
            status,
            data_len: ByteLen(be32::<24, _>(octets)),
            block: BlockOffset(be64::<32, _>(octets)),
        })
    }

    /// The completion in a received message.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), and [`DecodeError::Length`] unless the message has 40 octets.
    pub fn decode_message(message: &[u8]) -> Result<Self, DecodeError> {
        match message.as_array() {
            Some(octets) => Self::decode(octets),
            None => Err(wrong_length(message.len())),
        }
    }

    /// The octets of this completion.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let header = Header {
            version: VERSION,
            opcode: Opcode::Completion.to_wire(),
            flags: RequestFlags::NONE,
            request_id: self.request_id,
            handle: self.handle,
            generation: self.generation,
            status: self.status.to_wire(),
        };
        let mut octets = [0; Self::LEN];
        put::<0, { Header::LEN }, _>(&mut octets, header.encode());
        put32::<24, _>(&mut octets, self.data_len.0);
        put64::<32, _>(&mut octets, self.block.0);
        octets
    }
}

const fn wrong_length(len: usize) -> DecodeError {
    DecodeError::Length {
        what: "COMPLETION",
        len,
        expected: Completion::LEN,
    }
}

const fn not_zero(field: &'static str, value: u64) -> DecodeError {
    DecodeError::NotZero { field, value }
}

const fn unknown(field: &'static str, value: u64) -> DecodeError {
    DecodeError::Unknown { field, value }
}
