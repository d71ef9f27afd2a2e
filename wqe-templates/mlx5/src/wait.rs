//! What a WAIT waits for: a CQE, or data in memory.
//! Source: DPDK, `drivers/common/mlx5/mlx5_prm.h` (`mlx5_wqe_qseg`, `mlx5_wqe_wseg`, conditions); openucx/ucc,
//! `src/components/tl/mlx5/tl_mlx5_wqe.c` (memory order of data and mask, what a mismatch does).
//! CQE, octets: 0..8 Reserved, 8..12 Index, 12..16 CQN. The device counts CQEs of any status.
//! Data, octets: 0..4 Condition (low octet), 4..8 Local key, 8..16 Address and, in its low three bits, what a mismatch
//! does, 16..24 Data, 24..32 Mask. Data and mask are in the byte order of the memory they are compared with.
//! Reserved bits are zero out and ignored in.

use crate::{CqeIndex, Cqn, DecodeError, Mkey};
use kbtp_wire::fixed::{be32, be64, get, put, put32, put64};

/// Waits until a completion queue has the CQE at an index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WaitCqe {
    /// The queue.
    pub cqn: Cqn,
    /// The CQE, counted from the first one ever.
    pub index: CqeIndex,
}

impl WaitCqe {
    /// Octets of the segment.
    pub const LEN: usize = 16;

    /// The segment in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            cqn: Cqn::truncate(be32::<12, _>(octets)),
            index: CqeIndex::truncate(be32::<8, _>(octets)),
        }
    }

    /// The octets of this segment.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<8, _>(&mut octets, self.index.get());
        put32::<12, _>(&mut octets, self.cqn.get());
        octets
    }
}

/// How the eight octets in memory are compared with the data, under the mask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Comparison {
    /// Not at all: the wait is over at once.
    AlwaysTrue = 0,
    /// They are equal.
    Equal = 1,
    /// Memory is bigger.
    Bigger = 2,
    /// Memory is smaller.
    Smaller = 3,
    /// Memory is bigger, modulo.
    CyclicBigger = 4,
    /// Memory is smaller, modulo.
    CyclicSmaller = 5,
}

impl Comparison {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::AlwaysTrue,
            1 => Self::Equal,
            2 => Self::Bigger,
            3 => Self::Smaller,
            4 => Self::CyclicBigger,
            5 => Self::CyclicSmaller,
            _ => return None,
        })
    }
}

/// What a mismatch does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum OnMismatch {
    /// Look again.
    Retry = 0,
    /// Complete with an error.
    Error = 1,
}

/// Waits for data in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WaitData {
    /// The comparison.
    pub comparison: Comparison,
    /// Whether it must fail instead of hold.
    pub invert: bool,
    /// Key of the memory.
    pub lkey: Mkey,
    /// Its address: a multiple of eight, whose low three bits are not written.
    pub address: u64,
    /// What a mismatch does.
    pub on_mismatch: OnMismatch,
    /// Compared with, in memory order.
    pub data: [u8; 8],
    /// Which bits count, in memory order.
    pub mask: [u8; 8],
}

impl WaitData {
    /// Octets of the segment.
    pub const LEN: usize = 32;

    const INVERT: u8 = 0x10;
    const ACTION: u64 = 7;

    /// The segment in these octets.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] for a condition or an action on mismatch that is not known here.
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let [condition] = get::<3, 1, _>(octets);
        let address = be64::<8, _>(octets);
        let unknown = |field, value| DecodeError::Unknown { field, value };
        Ok(Self {
            comparison: Comparison::from_bits(condition & !Self::INVERT)
                .ok_or_else(|| unknown("Condition", u64::from(condition)))?,
            invert: condition & Self::INVERT != 0,
            lkey: Mkey(be32::<4, _>(octets)),
            address: address & !Self::ACTION,
            on_mismatch: match address & Self::ACTION {
                0 => OnMismatch::Retry,
                1 => OnMismatch::Error,
                action => return Err(unknown("Action on mismatch", action)),
            },
            data: get::<16, 8, _>(octets),
            mask: get::<24, 8, _>(octets),
        })
    }

    /// The octets of this segment.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        let invert = if self.invert { Self::INVERT } else { 0 };
        put::<3, 1, _>(&mut octets, [self.comparison as u8 | invert]);
        put32::<4, _>(&mut octets, self.lkey.0);
        let address = self.address & !Self::ACTION | u64::from(self.on_mismatch as u8);
        put64::<8, _>(&mut octets, address);
        put::<16, 8, _>(&mut octets, self.data);
        put::<24, 8, _>(&mut octets, self.mask);
        octets
    }
}
