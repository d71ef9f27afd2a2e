//! HELLO: the first message of a session; 64 octets and then TLVs.
//! Source: KBTP profile, P5.
//! Octets after the common header (Flags, Block Handle, Generation, Status 0): 0 Min Version, 1 Max Version, 2..4 Request
//! Credits wanted, 4..8 Capabilities wanted, 8..12 Quota wanted, 12..16 Max Inline wanted, 16..24 Handles wanted, 24..40
//! Initiator ID, 40.. TLVs.
//! Not checked here: the Auth value, and whether what is wanted can be had.

use super::request::{Refusal, RequestError};
use super::tlv::KnownTlvs;
use super::{Header, Opcode, RequestFlags, SessionCapabilities, Status, VERSION};
use crate::fixed::{be16, be32, be64, get, put, put16, put32, put64};
use crate::octets::put_front;
use crate::{BufferTooSmall, ByteLen, Handle, RequestId};
use core::fmt;

/// Initiator ID: a UUID, in network byte order (P5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InitiatorId(pub [u8; 16]);

impl fmt::Display for InitiatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, octet) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{octet:02x}")?;
        }
        Ok(())
    }
}

/// Octets of the body before its TLVs.
const BODY: usize = 40;

/// What an initiator asks for.
//= kbtp-p5-hello-layout
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello<'a> {
    /// Request ID, echoed in HELLO_ACK.
    pub request_id: RequestId,
    /// Lowest version the initiator speaks.
    pub min_version: u8,
    /// Highest version the initiator speaks.
    pub max_version: u8,
    /// Requests it wants outstanding; 0: the target's default.
    pub credits: u16,
    /// Capabilities wanted.
    pub capabilities: SessionCapabilities,
    /// Quota wanted, in blocks; 0: the target's default.
    pub quota: u32,
    /// Longest inline data wanted.
    pub max_inline: ByteLen,
    /// Handles wanted; 0: as many as the quota.
    pub handles: u64,
    /// Who asks.
    pub initiator: InitiatorId,
    /// Tenant, Auth, Software.
    pub tlvs: KnownTlvs<'a>,
}

impl<'a> Hello<'a> {
    /// Octets of a HELLO before its TLVs, header included.
    pub const LEN: usize = Header::LEN + BODY;

    /// The HELLO in a received message.
    ///
    /// Checks come in P7's order: a malformed HELLO is BAD_REQUEST whatever versions it names; then VERSION_MISMATCH,
    /// if its header is not of Version 1 or version 1 is not among those it speaks.
    ///
    /// # Errors
    /// [`RequestError::TooShort`] without a common header and [`RequestError::WrongOpcode`] for another message: both
    /// end the session. [`RequestError::Refused`] names the Status to answer with.
    //= kbtp-p5-hello-header
    pub fn decode(message: &'a [u8]) -> Result<Self, RequestError> {
        let Some((head, rest)) = message.split_first_chunk() else {
            return Err(RequestError::TooShort { len: message.len() });
        };
        let header = Header::decode(head);
        if header.opcode != Opcode::Hello.to_wire() {
            //= kbtp-p5-hello-first
            return Err(RequestError::WrongOpcode {
                opcode: header.opcode,
            });
        }
        let refuse = |status, reason| {
            RequestError::Refused(Refusal {
                status,
                header,
                reason,
            })
        };
        if header.handle.0 != 0 || header.generation.is_some() || header.status != 0 {
            return Err(refuse(Status::BadRequest, "a header field must be zero"));
        }
        if !header.flags.allowed_with(Opcode::Hello) {
            return Err(refuse(Status::BadRequest, "HELLO takes no flag"));
        }
        let Some((body, tlvs)) = rest.split_first_chunk() else {
            return Err(refuse(Status::BadRequest, "HELLO is too short"));
        };
        let tlvs = KnownTlvs::decode(tlvs)
            .map_err(|_| refuse(Status::BadRequest, "the TLVs are malformed"))?;
        let hello = Self::decode_body(header.request_id, body, tlvs);
        if hello.min_version > hello.max_version {
            return Err(refuse(
                Status::BadRequest,
                "Min Version is over Max Version",
            ));
        }
        //= kbtp-p7-version-mismatch
        if header.version != VERSION || !(hello.min_version..=hello.max_version).contains(&VERSION)
        {
            return Err(refuse(Status::VersionMismatch, "no common version"));
        }
        Ok(hello)
    }

    fn decode_body(request_id: RequestId, body: &[u8; BODY], tlvs: KnownTlvs<'a>) -> Self {
        Self {
            request_id,
            min_version: body[0],
            max_version: body[1],
            credits: be16::<2, _>(body),
            capabilities: SessionCapabilities(be32::<4, _>(body)),
            quota: be32::<8, _>(body),
            max_inline: ByteLen(be32::<12, _>(body)),
            handles: be64::<16, _>(body),
            initiator: InitiatorId(get::<24, 16, _>(body)),
            tlvs,
        }
    }

    /// Octets of this HELLO.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        Self::LEN.saturating_add(self.tlvs.encoded_len())
    }

    /// Puts this HELLO at the front of `out` and returns how many octets it took.
    ///
    /// # Errors
    /// [`BufferTooSmall`] if it does not fit.
    pub fn encode_into(&self, out: &mut [u8]) -> Result<usize, BufferTooSmall> {
        let short = BufferTooSmall {
            needed: self.encoded_len(),
            len: out.len(),
        };
        let header = Header::request(
            Opcode::Hello,
            RequestFlags::NONE,
            self.request_id,
            Handle(0),
            None,
        );
        let mut body = [0; BODY];
        body[0] = self.min_version;
        body[1] = self.max_version;
        put16::<2, _>(&mut body, self.credits);
        put32::<4, _>(&mut body, self.capabilities.0);
        put32::<8, _>(&mut body, self.quota);
        put32::<12, _>(&mut body, self.max_inline.0);
        put64::<16, _>(&mut body, self.handles);
        put::<24, 16, _>(&mut body, self.initiator.0);
        let out = put_front(out, &header.encode()).ok_or(short)?;
        let out = put_front(out, &body).ok_or(short)?;
        self.tlvs.encode_into(out).map_err(|_| short)?;
        Ok(short.needed)
    }
}
