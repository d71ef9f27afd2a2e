//! Operands of atomic WQEs: the 16 or 32 octets after the remote-address segment. The reply goes to one data segment
//! behind them.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_wqe_atomic_seg`; openucx, src/uct/ib/mlx5 (masked ones and their
//! modifier); Linux, commit 5e80ba8ff0bd (what they do).
//!
//! | operation | octets |
//! |---|---|
//! | `ATOMIC_CS` | 0..8 Swap, 8..16 Compare |
//! | `ATOMIC_FA` | 0..8 Add, 8..16 zero |
//! | `MASKED_CS`, 8 octets | 0..8 Swap, 8..16 Compare, 16..24 Swap mask, 24..32 Compare mask |
//! | `MASKED_CS`, 4 octets | 0..4 Swap, 4..8 Compare, 8..12 Swap mask, 12..16 Compare mask |
//! | `MASKED_FA`, 8 octets | 0..8 Add, 8..16 Field boundary |
//! | `MASKED_FA`, 4 octets | 0..4 Add, 4..8 Field boundary, 8..16 zero |

use crate::{DecodeError, Opcode};
use kbtp_wire::fixed::{be32, be64, put32, put64};

/// An atomic operation and its operands, as numbers: the device works on memory in the host's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Atomic {
    /// `ATOMIC_CS`.
    CompareSwap {
        /// Stored if the word equals `compare`.
        swap: u64,
        /// Compared with.
        compare: u64,
    },
    /// `ATOMIC_FA`.
    FetchAdd {
        /// Added.
        add: u64,
    },
    /// `MASKED_CS` on 8 octets.
    MaskedCompareSwap8 {
        /// Stored where `swap_mask` is set, if the word equals `compare` where `compare_mask` is set.
        swap: u64,
        /// Compared with.
        compare: u64,
        /// Which bits are stored.
        swap_mask: u64,
        /// Which bits are compared.
        compare_mask: u64,
    },
    /// `MASKED_CS` on 4 octets.
    MaskedCompareSwap4 {
        /// As for 8 octets.
        swap: u32,
        /// As for 8 octets.
        compare: u32,
        /// As for 8 octets.
        swap_mask: u32,
        /// As for 8 octets.
        compare_mask: u32,
    },
    /// `MASKED_FA` on 8 octets.
    MaskedFetchAdd8 {
        /// Added, field by field.
        add: u64,
        /// The top bit of each field: no carry leaves it.
        boundary: u64,
    },
    /// `MASKED_FA` on 4 octets.
    MaskedFetchAdd4 {
        /// As for 8 octets.
        add: u32,
        /// As for 8 octets.
        boundary: u32,
    },
}

/// Modifier of a masked operation on 4 octets: 8 and log2(size) - 2.
const ON_4: u8 = 0x08;
/// Modifier of a masked operation on 8 octets.
const ON_8: u8 = 0x09;

impl Atomic {
    /// The most octets of operands.
    pub const MAX_LEN: usize = 32;

    /// The opcode.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::CompareSwap { .. } => Opcode::AtomicCs,
            Self::FetchAdd { .. } => Opcode::AtomicFa,
            Self::MaskedCompareSwap8 { .. } | Self::MaskedCompareSwap4 { .. } => Opcode::MaskedCs,
            Self::MaskedFetchAdd8 { .. } | Self::MaskedFetchAdd4 { .. } => Opcode::MaskedFa,
        }
    }

    /// The modifier of the opcode.
    #[must_use]
    pub const fn modifier(&self) -> u8 {
        match self {
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => 0,
            Self::MaskedCompareSwap4 { .. } | Self::MaskedFetchAdd4 { .. } => ON_4,
            Self::MaskedCompareSwap8 { .. } | Self::MaskedFetchAdd8 { .. } => ON_8,
        }
    }

    /// Octets of the word at the responder, and of the reply.
    #[must_use]
    pub const fn word_len(&self) -> u32 {
        match self {
            Self::MaskedCompareSwap4 { .. } | Self::MaskedFetchAdd4 { .. } => 4,
            _ => 8,
        }
    }

    /// Octets of the operands: 16, or 32 for `MASKED_CS` on 8 octets.
    #[must_use]
    pub const fn operands_len(&self) -> usize {
        operands_len(self.opcode(), self.modifier())
    }

    /// The operation with this opcode and modifier. Of `octets` the first 16 or 32 count.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] if the opcode is not that of an atomic, or has no such modifier.
    pub fn decode(
        opcode: Opcode,
        modifier: u8,
        octets: &[u8; Self::MAX_LEN],
    ) -> Result<Self, DecodeError> {
        Ok(match (opcode, modifier) {
            (Opcode::AtomicCs, 0) => Self::CompareSwap {
                swap: be64::<0, _>(octets),
                compare: be64::<8, _>(octets),
            },
            (Opcode::AtomicFa, 0) => Self::FetchAdd {
                add: be64::<0, _>(octets),
            },
            (Opcode::MaskedCs, ON_8) => Self::MaskedCompareSwap8 {
                swap: be64::<0, _>(octets),
                compare: be64::<8, _>(octets),
                swap_mask: be64::<16, _>(octets),
                compare_mask: be64::<24, _>(octets),
            },
            (Opcode::MaskedCs, ON_4) => Self::MaskedCompareSwap4 {
                swap: be32::<0, _>(octets),
                compare: be32::<4, _>(octets),
                swap_mask: be32::<8, _>(octets),
                compare_mask: be32::<12, _>(octets),
            },
            (Opcode::MaskedFa, ON_8) => Self::MaskedFetchAdd8 {
                add: be64::<0, _>(octets),
                boundary: be64::<8, _>(octets),
            },
            (Opcode::MaskedFa, ON_4) => Self::MaskedFetchAdd4 {
                add: be32::<0, _>(octets),
                boundary: be32::<4, _>(octets),
            },
            _ => {
                return Err(DecodeError::Unknown {
                    field: "Modifier of an atomic",
                    value: u64::from(modifier) << 8 | u64::from(opcode.to_wire()),
                });
            }
        })
    }

    /// The octets of the operands; [`operands_len`](Self::operands_len) of them count.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::MAX_LEN] {
        let mut octets = [0; Self::MAX_LEN];
        match *self {
            Self::CompareSwap { swap, compare } => {
                put64::<0, _>(&mut octets, swap);
                put64::<8, _>(&mut octets, compare);
            }
            Self::FetchAdd { add } => put64::<0, _>(&mut octets, add),
            Self::MaskedCompareSwap8 {
                swap,
                compare,
                swap_mask,
                compare_mask,
            } => {
                put64::<0, _>(&mut octets, swap);
                put64::<8, _>(&mut octets, compare);
                put64::<16, _>(&mut octets, swap_mask);
                put64::<24, _>(&mut octets, compare_mask);
            }
            Self::MaskedCompareSwap4 {
                swap,
                compare,
                swap_mask,
                compare_mask,
            } => {
                put32::<0, _>(&mut octets, swap);
                put32::<4, _>(&mut octets, compare);
                put32::<8, _>(&mut octets, swap_mask);
                put32::<12, _>(&mut octets, compare_mask);
            }
            Self::MaskedFetchAdd8 { add, boundary } => {
                put64::<0, _>(&mut octets, add);
                put64::<8, _>(&mut octets, boundary);
            }
            Self::MaskedFetchAdd4 { add, boundary } => {
                put32::<0, _>(&mut octets, add);
                put32::<4, _>(&mut octets, boundary);
            }
        }
        octets
    }
}

/// Octets of the operands of an atomic with this opcode and modifier.
pub(crate) const fn operands_len(opcode: Opcode, modifier: u8) -> usize {
    match (opcode, modifier) {
        (Opcode::MaskedCs, ON_8) => 32,
        _ => 16,
    }
}
