//! RDMA Read Request header: 28 octets after the DDP header.
//! Source: RFC 5040, section 4.4 (Figure 6).
//! Octets: 0..4 `SinkSTag`, 4..12 `SinkTO`, 12..16 RDMARDSZ, 16..20 `SrcSTag`, 20..28 `SrcTO`.

use crate::fixed::{get, put};
use crate::{ByteLen, Stag, TaggedOffset};

/// The header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// Buffer of the requester, copied to the response without interpretation.
    pub sink_stag: Stag,
    /// Where in it.
    pub sink_offset: TaggedOffset,
    /// How much.
    pub len: ByteLen,
    /// Buffer of the responder.
    pub source_stag: Stag,
    /// Where in it.
    pub source_offset: TaggedOffset,
}

impl ReadRequest {
    /// Octets.
    pub const LEN: usize = 28;

    /// Decodes; every input is valid.
    #[inline]
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            sink_stag: Stag(u32::from_be_bytes(get::<0, 4, _>(octets))),
            sink_offset: TaggedOffset(u64::from_be_bytes(get::<4, 8, _>(octets))),
            len: ByteLen(u32::from_be_bytes(get::<12, 4, _>(octets))),
            source_stag: Stag(u32::from_be_bytes(get::<16, 4, _>(octets))),
            source_offset: TaggedOffset(u64::from_be_bytes(get::<20, 8, _>(octets))),
        }
    }

    //= rfc5040-4.4-read-request-header
    /// The octets.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put::<0, 4, _>(&mut octets, self.sink_stag.0.to_be_bytes());
        put::<4, 8, _>(&mut octets, self.sink_offset.0.to_be_bytes());
        put::<12, 4, _>(&mut octets, self.len.0.to_be_bytes());
        put::<16, 4, _>(&mut octets, self.source_stag.0.to_be_bytes());
        put::<20, 8, _>(&mut octets, self.source_offset.0.to_be_bytes());
        octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn octets_lie_where_figure_6_has_them() {
        let request = ReadRequest {
            sink_stag: Stag(0x0102_0304),
            sink_offset: TaggedOffset(0x0506_0708_090A_0B0C),
            len: ByteLen(0x0D0E_0F10),
            source_stag: Stag(0x1112_1314),
            source_offset: TaggedOffset(0x1516_1718_191A_1B1C),
        };
        let counted: std::vec::Vec<u8> = (1..=28).collect();
        assert_eq!(request.encode()[..], counted[..]);
    }

    proptest! {
        #[test]
        fn round_trip(octets in any::<[u8; 28]>()) {
            prop_assert_eq!(ReadRequest::decode(&octets).encode(), octets);
        }
    }
}
