//! Enhanced RDMA connection establishment data: the first 4 octets of the Private Data when S is set.
//! Source: RFC 6581, section 9.   Bits: 0 A, 1 B, 2..16 IRD, 16 C, 17 D, 18..32 ORD.

/// A 14-bit IRD or ORD; all ones asks the peer not to negotiate it (RFC 6581, section 9.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReadDepth(u16);

impl ReadDepth {
    /// The ULP settles this depth, not MPA.
    pub const NOT_NEGOTIATED: Self = Self(0x3FFF);
    /// Deepest that can be negotiated.
    pub const MAX: Self = Self(0x3FFE);

    /// The depth `number`, at most [`ReadDepth::MAX`].
    #[must_use]
    pub const fn clamped(number: u16) -> Self {
        if number < Self::MAX.0 {
            Self(number)
        } else {
            Self::MAX
        }
    }

    /// The number; `None` if it is not negotiated.
    #[must_use]
    pub const fn negotiated(self) -> Option<u16> {
        if self.0 == Self::NOT_NEGOTIATED.0 {
            None
        } else {
            Some(self.0)
        }
    }
}

/// Which Ready To Receive indications a party can send or take: a zero-length Send, RDMA Write or RDMA Read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RtrKinds {
    /// B: a zero-length Send (FULPDU).
    pub send: bool,
    /// C: a zero-length RDMA Write.
    pub write: bool,
    /// D: a zero-length RDMA Read.
    pub read: bool,
}

/// The enhanced data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EnhancedData {
    /// Inbound RDMA Read Queue Depth of the sender.
    pub ird: ReadDepth,
    /// Outbound RDMA Read Queue Depth of the sender.
    pub ord: ReadDepth,
    /// A with B, C, D: the peer-to-peer model; `None` for client-server.
    pub peer_to_peer: Option<RtrKinds>,
}

const A: u16 = 0x8000;
const B: u16 = 0x4000;
const C: u16 = 0x8000;
const D: u16 = 0x4000;
const DEPTH: u16 = 0x3FFF;

impl EnhancedData {
    /// Octets.
    pub const LEN: usize = 4;

    /// Decodes; every input is valid. Without A the other three bits are ignored.
    #[must_use]
    pub const fn decode(octets: [u8; Self::LEN]) -> Self {
        let [i0, i1, o0, o1] = octets;
        let first = u16::from_be_bytes([i0, i1]);
        let second = u16::from_be_bytes([o0, o1]);
        //= rfc6581-9.2-bcd-ignored-without-a
        let peer_to_peer = if first & A == 0 {
            None
        } else {
            Some(RtrKinds {
                send: first & B != 0,
                write: second & C != 0,
                read: second & D != 0,
            })
        };
        Self {
            ird: ReadDepth(first & DEPTH),
            ord: ReadDepth(second & DEPTH),
            peer_to_peer,
        }
    }

    /// The octets.
    #[must_use]
    pub const fn encode(self) -> [u8; Self::LEN] {
        let mut first = self.ird.0;
        let mut second = self.ord.0;
        if let Some(rtr) = self.peer_to_peer {
            first |= A;
            if rtr.send {
                first |= B;
            }
            if rtr.write {
                second |= C;
            }
            if rtr.read {
                second |= D;
            }
        }
        //= rfc6581-9-network-order
        let [i0, i1] = first.to_be_bytes();
        let [o0, o1] = second.to_be_bytes();
        [i0, i1, o0, o1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bits_lie_where_the_figure_has_them() {
        let data = EnhancedData {
            ird: ReadDepth::clamped(8),
            ord: ReadDepth::clamped(9),
            peer_to_peer: Some(RtrKinds {
                send: true,
                write: false,
                read: true,
            }),
        };
        assert_eq!(data.encode(), [0xC0, 8, 0x40, 9]);
    }

    #[test]
    fn rtr_bits_without_a_are_ignored() {
        //= test rfc6581-9.2-bcd-ignored-without-a
        assert_eq!(EnhancedData::decode([0x40, 1, 0xC0, 2]).peer_to_peer, None);
    }

    #[test]
    fn all_ones_is_not_negotiated() {
        let data = EnhancedData::decode([0x3F, 0xFF, 0x3F, 0xFE]);
        assert_eq!(data.ird.negotiated(), None);
        assert_eq!(data.ord.negotiated(), Some(0x3FFE));
        assert_eq!(ReadDepth::clamped(0x3FFF), ReadDepth::MAX);
    }

    proptest! {
        #[test]
        fn round_trip(ird in 0_u16..0x4000, ord in 0_u16..0x4000, rtr in any::<Option<(bool, bool, bool)>>()) {
            let data = EnhancedData {
                ird: ReadDepth(ird),
                ord: ReadDepth(ord),
                peer_to_peer: rtr.map(|(send, write, read)| RtrKinds { send, write, read }),
            };
            prop_assert_eq!(EnhancedData::decode(data.encode()), data);
        }
    }
}
