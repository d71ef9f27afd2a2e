//! Completion Descriptor: 16 octets naming a completion record slot of the initiator.
//! Source: KBTP draft, section 5.2; profile, P1.       Octets: 0..4 STag, 4..12 Tagged Offset, 12..16 Reserved (zero).

use crate::fixed::{be32, be64, put32, put64};
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
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let reserved = be32::<12, _>(octets);
        if reserved != 0 {
            return Err(DecodeError::NotZero {
                field: "Completion Descriptor, Reserved",
                value: u64::from(reserved),
            });
        }
        Ok(Self {
            stag: Stag(be32::<0, _>(octets)),
            offset: TaggedOffset(be64::<4, _>(octets)),
        })
    }

    /// The octets of this descriptor.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<0, _>(&mut octets, self.stag.0);
        put64::<4, _>(&mut octets, self.offset.0);
        octets
    }
}
