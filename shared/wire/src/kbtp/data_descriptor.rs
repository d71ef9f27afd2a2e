//! Data Descriptor: 16 octets naming a buffer of the initiator.
//! Source: KBTP draft, section 5.2.       Octets: 0..4 STag, 4..12 Tagged Offset, 12..16 Length.
//! Not checked here: that STag and Tagged Offset are zero with INLINE (the request's decoder does).

use crate::fixed::{be32, be64, put32, put64};
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
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            stag: Stag(be32::<0, _>(octets)),
            offset: TaggedOffset(be64::<4, _>(octets)),
            len: ByteLen(be32::<12, _>(octets)),
        }
    }

    /// The octets of this descriptor.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<0, _>(&mut octets, self.stag.0);
        put64::<4, _>(&mut octets, self.offset.0);
        put32::<12, _>(&mut octets, self.len.0);
        octets
    }
}
