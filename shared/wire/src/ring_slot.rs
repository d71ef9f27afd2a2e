//! Free-block ring slot: 16 octets, written only by the target.
//! Source: KBTP draft, section 3.3; byte order in memory: profile, P10.
//! Octets: 0..4 Sequence (Ticket), 4..8 Reserved (written as zero, not looked at), 8..16 Block Offset (all ones: empty).

use crate::fixed::{be32, be64, put32, put64};
use crate::{BlockOffset, Ticket};

/// One slot of the ring.
//= kbtp-3.3-slot-layout
//= kbtp-p10-big-endian-structures
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSlot {
    /// The ticket this slot was written for.
    pub sequence: Ticket,
    /// The free block; [`BlockOffset::EMPTY`] once consumed.
    pub block: BlockOffset,
}

impl RingSlot {
    /// Octets of a slot.
    pub const LEN: usize = 16;

    /// The slot in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            sequence: Ticket(be32::<0, _>(octets)),
            block: BlockOffset(be64::<8, _>(octets)),
        }
    }

    /// The octets of this slot.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<0, _>(&mut octets, self.sequence.0);
        put64::<8, _>(&mut octets, self.block.0);
        octets
    }

    /// The slot from its 32-bit words Sequence, Block Offset high, Block Offset low (words 0, 2 and 3).
    #[must_use]
    pub const fn from_words(sequence: u32, high: u32, low: u32) -> Self {
        Self {
            sequence: Ticket(sequence),
            block: BlockOffset(((high as u64) << 32) | low as u64),
        }
    }

    /// Whether the slot was consumed: its Block Offset is all ones.
    //= kbtp-3.3-empty-all-ones
    #[must_use]
    pub const fn is_consumed(&self) -> bool {
        self.block.0 == BlockOffset::EMPTY.0
    }

    /// The block for the allocation that holds `ticket`, if this slot holds it yet (draft, section 3.3, Allocation).
    //= kbtp-3.3-allocation-wait
    #[must_use]
    pub const fn block_for(&self, ticket: Ticket) -> Option<BlockOffset> {
        if self.sequence.0 == ticket.0 && !self.is_consumed() {
            Some(self.block)
        } else {
            None
        }
    }
}
