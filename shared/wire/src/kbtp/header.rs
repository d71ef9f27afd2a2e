//! Common header: 24 octets at the start of every message.
//! Source: KBTP draft, section 5.1.
//! Octets: 0 Version, 1 Opcode, 2..4 Flags, 4..12 Request ID, 12..20 Block Handle, 20..22 Generation, 22..24 Status.
//! Not checked here: anything. Every 24 octets are a header; [`Request`](crate::Request) and the other messages judge it.

use super::{Opcode, RequestFlags, Status};
use crate::fixed::{be16, be64, put16, put64};
use crate::{Generation, Handle, RequestId};

/// The Version of every message (draft, section 5.1; profile, P5).
//= kbtp-5.1-version-one
pub const VERSION: u8 = 1;

/// The common header, its numbers as they are on the wire.
//= kbtp-5.1-header-layout
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Version; 1 in a good message.
    pub version: u8,
    /// Opcode; see [`Opcode::from_wire`].
    pub opcode: u8,
    /// Flags, meant per opcode.
    pub flags: RequestFlags,
    /// Request ID.
    pub request_id: RequestId,
    /// Block Handle.
    pub handle: Handle,
    /// Expected Generation in a request (`None`: any), current one in a completion (`None`: never bound).
    //= kbtp-5.1-generation-any
    pub generation: Option<Generation>,
    /// Status; zero in a request. See [`Status::from_wire`].
    pub status: u16,
}

impl Header {
    /// Octets of a header.
    pub const LEN: usize = 24;

    /// A version 1 header of a request: Status 0.
    //= kbtp-5.1-status-zero-in-requests
    //= kbtp-p5-header-version
    #[must_use]
    pub const fn request(
        opcode: Opcode,
        flags: RequestFlags,
        request_id: RequestId,
        handle: Handle,
        generation: Option<Generation>,
    ) -> Self {
        Self {
            version: VERSION,
            opcode: opcode.to_wire(),
            flags,
            request_id,
            handle,
            generation,
            status: Status::Ok.to_wire(),
        }
    }

    /// The header in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            version: octets[0],
            opcode: octets[1],
            flags: RequestFlags(be16::<2, _>(octets)),
            request_id: RequestId(be64::<4, _>(octets)),
            handle: Handle(be64::<12, _>(octets)),
            generation: Generation::new(be16::<20, _>(octets)),
            status: be16::<22, _>(octets),
        }
    }

    /// The octets of this header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[0] = self.version;
        octets[1] = self.opcode;
        put16::<2, _>(&mut octets, self.flags.0);
        put64::<4, _>(&mut octets, self.request_id.0);
        put64::<12, _>(&mut octets, self.handle.0);
        put16::<20, _>(&mut octets, Generation::to_wire(self.generation));
        put16::<22, _>(&mut octets, self.status);
        octets
    }
}
