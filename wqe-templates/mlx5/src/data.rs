//! Data segment: one piece of local memory that a WQE gathers from or scatters to.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_wqe_data_seg`, and qp.c (a count of zero).
//! Octets: 0..4 Byte count (bit 31 set: inline data follow instead; zero: 2^31), 4..8 Local key, 8..16 Address.

use crate::{DecodeError, Mkey};
use kbtp_wire::fixed::{be32, be64, put32, put64};

/// Bit 31 of a byte count: what follows is data, not an address.
pub(crate) const INLINE: u32 = 1 << 31;

/// How long a piece of memory is: 1 to 2^31 octets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ByteCount(u32);

impl ByteCount {
    /// The most octets: written as zero.
    pub const MAX: u32 = 1 << 31;

    /// The count; `None` for 0 (which the device reads as 2^31) and above 2^31.
    #[must_use]
    pub const fn new(octets: u32) -> Option<Self> {
        if octets == 0 || octets > Self::MAX {
            None
        } else {
            Some(Self(octets))
        }
    }

    /// The octets.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A piece of local memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DataSegment {
    /// Its length.
    pub len: ByteCount,
    /// Its key.
    pub lkey: Mkey,
    /// Its address.
    pub address: u64,
}

impl DataSegment {
    /// Octets of the segment.
    pub const LEN: usize = 16;

    /// The end of a receive WQE's list that has room left: count zero with the invalid key.
    pub const TERMINATOR: [u8; Self::LEN] = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// `len` octets at `address` under `lkey`; `None` unless `len` is 1 to 2^31.
    #[must_use]
    pub const fn new(len: u32, lkey: Mkey, address: u64) -> Option<Self> {
        match ByteCount::new(len) {
            Some(len) => Some(Self { len, lkey, address }),
            None => None,
        }
    }

    /// The segment in these octets.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] for the mark of inline data.
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let count = be32::<0, _>(octets);
        let len = match count {
            0 => ByteCount(ByteCount::MAX),
            _ => match count & INLINE {
                0 => ByteCount(count),
                _ => {
                    return Err(DecodeError::Unknown {
                        field: "Byte count",
                        value: u64::from(count),
                    });
                }
            },
        };
        Ok(Self {
            len,
            lkey: Mkey(be32::<4, _>(octets)),
            address: be64::<8, _>(octets),
        })
    }

    /// The octets of this segment.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<0, _>(&mut octets, self.len.0 & !INLINE);
        put32::<4, _>(&mut octets, self.lkey.0);
        put64::<8, _>(&mut octets, self.address);
        octets
    }
}
