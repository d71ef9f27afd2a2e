//! RDMAP Control Field: the first octet that DDP keeps for its ULP.
//! Source: RFC 5040, section 4.1 (Figures 3 and 4); RFC 7306, section 4.1 (Figure 2).
//! Bits: 0..2 RV, 2..4 reserved, 4..8 opcode.
//!
//! Not checked here: the version, and whether the DDP Segment fits the opcode.

use crate::ddp::QueueNumber;

/// The version of RFC 5040 and RFC 7306. Version 0, of the RDMA Consortium, is not spoken here.
pub const RDMAP_VERSION: u8 = 1;

/// RDMA opcodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RdmapOpcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data.
    Immediate = 8,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited = 9,
    /// Atomic Request.
    AtomicRequest = 10,
    /// Atomic Response.
    AtomicResponse = 11,
}

impl RdmapOpcode {
    /// All of them, in order of number.
    pub const ALL: [Self; 12] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
        Self::Immediate,
        Self::ImmediateSolicited,
        Self::AtomicRequest,
        Self::AtomicResponse,
    ];

    /// The opcode with this number; `None` for a reserved one.
    #[inline]
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            8 => Self::Immediate,
            9 => Self::ImmediateSolicited,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            _ => return None,
        })
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The queue its messages go to; `None` if they go to Tagged Buffers.
    #[inline]
    #[must_use]
    pub const fn queue(self) -> Option<QueueNumber> {
        //= rfc5040-4.1-usage
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Immediate
            | Self::ImmediateSolicited => Some(QueueNumber::SEND),
            Self::ReadRequest | Self::AtomicRequest => Some(QueueNumber::READ_REQUEST),
            Self::Terminate => Some(QueueNumber::TERMINATE),
            Self::AtomicResponse => Some(QueueNumber::ATOMIC_RESPONSE),
        }
    }
}

//= rfc5040-4.1-control-field
/// The RDMAP Control Field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmapControl {
    /// RV, two bits.
    pub version: u8,
    /// The opcode; an error holds the number of a reserved one.
    pub opcode: Result<RdmapOpcode, u8>,
}

impl RdmapControl {
    /// Decodes; every octet is one. Reserved bits are not checked.
    #[inline]
    #[must_use]
    pub const fn decode(octet: u8) -> Self {
        let number = octet & 0x0F;
        Self {
            version: octet >> 6,
            opcode: match RdmapOpcode::from_number(number) {
                Some(opcode) => Ok(opcode),
                None => Err(number),
            },
        }
    }

    /// The octet for `opcode`, in the version spoken here.
    #[inline]
    #[must_use]
    pub const fn encode(opcode: RdmapOpcode) -> u8 {
        //= rfc5040-4.1-version
        //= rfc5040-4.1-reserved-bits
        //= rfc7306-4.1-version
        (RDMAP_VERSION << 6) | opcode.number()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_octet_decodes() {
        for octet in 0..=u8::MAX {
            let control = RdmapControl::decode(octet);
            //= test rfc5040-4.1-reserved-bits
            assert_eq!(control.version, octet / 64);
            match control.opcode {
                Ok(opcode) => assert_eq!(opcode.number(), octet & 15),
                Err(number) => assert!(number > 11 && number == octet & 15),
            }
        }
    }

    #[test]
    fn figures_4_and_2() {
        //= test rfc5040-4.1-usage
        // (opcode, tagged, queue), from the two tables.
        let table = [
            (0b0000, true, None),
            (0b0001, false, Some(1)),
            (0b0010, true, None),
            (0b0011, false, Some(0)),
            (0b0100, false, Some(0)),
            (0b0101, false, Some(0)),
            (0b0110, false, Some(0)),
            (0b0111, false, Some(2)),
            (0b1000, false, Some(0)),
            (0b1001, false, Some(0)),
            (0b1010, false, Some(1)),
            (0b1011, false, Some(3)),
        ];
        for ((number, tagged, queue), opcode) in table.into_iter().zip(RdmapOpcode::ALL) {
            assert_eq!(RdmapOpcode::from_number(number), Some(opcode));
            assert_eq!(opcode.queue().is_none(), tagged);
            assert_eq!(opcode.queue().map(|q| q.0), queue);
            assert_eq!(
                RdmapControl::decode(RdmapControl::encode(opcode)),
                RdmapControl {
                    version: 1,
                    opcode: Ok(opcode)
                }
            );
        }
    }
}
