//! Data Descriptor: 16 octets naming a buffer of the initiator.
//! Source: KBTP draft, section 5.2.       Octets: 0..4 STag, 4..12 Tagged Offset, 12..16 Length.
//! Not checked here: that STag and Tagged Offset are zero with INLINE (the request's decoder does).

use crate::octets::{be32, be64, put32, put64};
use crate::{ByteLen, Stag, TaggedOffset};

/// A buffer of the initiator: where a load goes, or what a store reads.
//= kbtp-5.2-data-descriptor
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataDescriptor {
    /// The initiator's STag.
    pub stag: Stag,
    /// First octet.
    pub offset: TaggedOffset,
    /// Octets.
    pub len: ByteLen,
}

impl DataDescriptor {
    /// Octets of a Data Descriptor.
    pub const LEN: usize = 16;

    /// The descriptor in these octets.
    #[must_use]
    pub const fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            stag: Stag(be32!(octets, 0)),
            offset: TaggedOffset(be64!(octets, 4)),
            len: ByteLen(be32!(octets, 12)),
        }
    }

    /// The octets of this descriptor.
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32!(octets, 0, self.stag.0);
        put64!(octets, 4, self.offset.0);
        put32!(octets, 12, self.len.0);
        octets
    }
}
