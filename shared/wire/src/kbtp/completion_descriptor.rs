//! Completion Descriptor: 16 octets naming a completion record slot of the initiator.
//! Source: KBTP draft, section 5.2; profile, P1.       Octets: 0..4 STag, 4..12 Tagged Offset, 12..16 Reserved (zero).

use crate::octets::{be32, be64, put32, put64};
use crate::{DecodeError, Stag, TaggedOffset};

/// Where a [`CompletionRecord`](crate::CompletionRecord) goes.
//= kbtp-5.2-completion-descriptor
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompletionDescriptor {
    /// The initiator's STag.
    pub stag: Stag,
    /// First octet of the slot.
    pub offset: TaggedOffset,
}

impl CompletionDescriptor {
    /// Octets of a Completion Descriptor.
    pub const LEN: usize = 16;

    /// The descriptor in these octets.
    ///
    /// # Errors
    /// [`DecodeError::NotZero`] if a reserved bit is set.
    //= kbtp-p1-completion-descriptor-reserved
    pub const fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let reserved = be32!(octets, 12);
        if reserved != 0 {
            return Err(DecodeError::NotZero {
                field: "Completion Descriptor, Reserved",
                value: reserved as u64,
            });
        }
        Ok(Self {
            stag: Stag(be32!(octets, 0)),
            offset: TaggedOffset(be64!(octets, 4)),
        })
    }

    /// The octets of this descriptor.
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32!(octets, 0, self.stag.0);
        put64!(octets, 4, self.offset.0);
        octets
    }
}
