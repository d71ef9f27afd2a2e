//! BIND body: 16 octets after the common header.
//! Source: KBTP profile, P4.       Octets: 0..4 Ticket, 4..8 Data Length, 8..16 Block Offset.
//! With RECORD, the Completion Descriptor follows the body.

use crate::octets::{be32, be64, put32, put64};
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
    pub const fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            ticket: Ticket(be32!(octets, 0)),
            data_len: ByteLen(be32!(octets, 4)),
            block: BlockOffset(be64!(octets, 8)),
        }
    }

    /// The octets of this body.
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32!(octets, 0, self.ticket.0);
        put32!(octets, 4, self.data_len.0);
        put64!(octets, 8, self.block.0);
        octets
    }
}
