//! Repeat block: a strided key. A header, then as many entries as it says; the key's octets are those of entry after
//! entry, again and again, each entry a stride further at every repetition.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_wqe_umr_repeat_block_seg` and `_ent_seg`; qp.c (the operation 0x400).
//! Header, octets: 0..4 Octets of one repetition, 4..8 Operation (0x400), 8..12 Repetitions, 12..14 Reserved (zero out,
//! ignored in), 14..16 Entries. Entry, octets: 0..2 Stride, 2..4 Byte count, 4..8 Key, 8..16 Address.

use crate::{DecodeError, Mkey};
use kbtp_wire::fixed::{be16, be32, be64, put16, put32, put64};

/// The header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RepeatBlock {
    /// Octets of one repetition: the sum of the entries' byte counts.
    pub len: u32,
    /// How many repetitions.
    pub repetitions: u32,
    /// How many entries follow.
    pub entries: u16,
}

impl RepeatBlock {
    /// Octets of the header.
    pub const LEN: usize = 16;

    /// The operation that says "repeat block".
    pub const OPERATION: u32 = 0x400;

    /// The header in these octets.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] for another operation.
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let operation = be32::<4, _>(octets);
        if operation != Self::OPERATION {
            return Err(DecodeError::Unknown {
                field: "Operation of a repeat block",
                value: u64::from(operation),
            });
        }
        Ok(Self {
            len: be32::<0, _>(octets),
            repetitions: be32::<8, _>(octets),
            entries: be16::<14, _>(octets),
        })
    }

    /// The octets of this header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<0, _>(&mut octets, self.len);
        put32::<4, _>(&mut octets, Self::OPERATION);
        put32::<8, _>(&mut octets, self.repetitions);
        put16::<14, _>(&mut octets, self.entries);
        octets
    }
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RepeatEntry {
    /// How much further each repetition reads, in octets; 0: the same octets each time.
    pub stride: u16,
    /// Octets of one repetition.
    pub len: u16,
    /// The key they are under.
    pub mkey: Mkey,
    /// Where the first repetition reads.
    pub address: u64,
}

impl RepeatEntry {
    /// Octets of an entry.
    pub const LEN: usize = 16;

    /// The entry in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            stride: be16::<0, _>(octets),
            len: be16::<2, _>(octets),
            mkey: Mkey(be32::<4, _>(octets)),
            address: be64::<8, _>(octets),
        }
    }

    /// The octets of this entry.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put16::<0, _>(&mut octets, self.stride);
        put16::<2, _>(&mut octets, self.len);
        put32::<4, _>(&mut octets, self.mkey.0);
        put64::<8, _>(&mut octets, self.address);
        octets
    }
}
