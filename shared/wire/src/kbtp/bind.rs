//! BIND body: 16 octets after the common header.
//! Source: KBTP profile, P4.       Octets: 0..4 Ticket, 4..8 Data Length, 8..16 Block Offset.
//! With RECORD, the Completion Descriptor follows the body.

use crate::fixed::{be32, be64, put32, put64};
use crate::{BlockOffset, ByteLen, Ticket};

/// What a direct allocation took and wrote.
//= kbtp-p4-bind-layout
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// The ticket the FetchAdd on Head gave.
    pub ticket: Ticket,
    /// Octets written into the block.
    pub data_len: ByteLen,
    /// The block the ticket's slot held.
    pub block: BlockOffset,
}

impl Bind {
    /// Octets of a BIND body.
    pub const LEN: usize = 16;

    /// The body in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            ticket: Ticket(be32::<0, _>(octets)),
            data_len: ByteLen(be32::<4, _>(octets)),
            block: BlockOffset(be64::<8, _>(octets)),
        }
    }

    /// The octets of this body.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<0, _>(&mut octets, self.ticket.0);
        put32::<4, _>(&mut octets, self.data_len.0);
        put64::<8, _>(&mut octets, self.block.0);
        octets
    }
}
