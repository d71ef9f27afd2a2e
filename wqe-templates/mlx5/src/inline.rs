//! Inline segment: data in the WQE itself, in place of data segments.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_wqe_inl_data_seg`; Linux, include/linux/mlx5/qp.h (10 bits of length).
//! Octets: 0..4 Length with bit 31 set, then the data, zero-padded to a multiple of 16 octets.

use crate::data::INLINE;
use kbtp_wire::fixed::{be32, put32};

/// The word before inline data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InlineHeader {
    len: u16,
}

impl InlineHeader {
    /// Octets of the word.
    pub const LEN: usize = 4;

    /// The most octets of data.
    pub const MAX_DATA: u16 = 0x3ff;

    /// For `len` octets of data; `None` above [`MAX_DATA`](Self::MAX_DATA).
    #[must_use]
    pub const fn new(len: u16) -> Option<Self> {
        if len <= Self::MAX_DATA {
            Some(Self { len })
        } else {
            None
        }
    }

    /// The word in these octets; `None` without the mark of inline data, which makes it the start of a data segment.
    /// Bits between length and mark are ignored.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Option<Self> {
        let word = be32::<0, _>(octets);
        let [.., high, low] = word.to_be_bytes();
        let len = u16::from_be_bytes([high, low]) & Self::MAX_DATA;
        (word & INLINE != 0).then_some(Self { len })
    }

    /// The octets of this word.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<0, _>(&mut octets, INLINE | u32::from(self.len));
        octets
    }

    /// Octets of data that follow.
    #[must_use]
    pub const fn data_len(&self) -> u16 {
        self.len
    }
}
