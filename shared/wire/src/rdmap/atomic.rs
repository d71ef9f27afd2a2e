//! Atomic Request header (52 octets) and Atomic Response header (12 octets), each after the DDP header.
//! Source: RFC 7306, section 5.2.1 (Figures 4 and 5) and 5.2.2 (Figure 6; its 12 octets win over the "32 bytes" of
//! section 4).
//! Request octets: 0..4 reserved (28 bits) and `AOpCode` (4), 4..8 Request Identifier, 8..12 Remote STag,
//! 12..20 Remote TO, 20..28 Add or Swap Data, 28..36 Add or Swap Mask, 36..44 Compare Data, 44..52 Compare Mask.
//! Response octets: 0..4 Original Request Identifier, 4..12 Original Remote Data Value.
//!
//! Not checked here: that the Remote TO is a multiple of eight.

use crate::fixed::{get, put};
use crate::{Stag, TaggedOffset};

/// What an Atomic Request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOperation {
    /// Section 5.1.1.
    FetchAdd {
        /// Add Data.
        add: u64,
        /// Add Mask.
        mask: u64,
    },
    /// Section 5.1.2.
    CmpSwap {
        /// Compare Data.
        compare: u64,
        /// Compare Mask.
        compare_mask: u64,
        /// Swap Data.
        swap: u64,
        /// Swap Mask.
        swap_mask: u64,
    },
}

/// Atomic Request header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequest {
    /// Reflected in the response.
    pub request_id: u32,
    /// Whose word.
    pub stag: Stag,
    /// Where, a multiple of eight.
    pub offset: TaggedOffset,
    /// What to do with it.
    pub operation: AtomicOperation,
}

/// An `AOpCode` that is not assigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("Atomic Operation Code {code} is not assigned")]
pub struct UnknownAtomic {
    /// The code.
    pub code: u8,
}

const FETCH_ADD: u8 = 0;
const CMP_SWAP: u8 = 2;

impl AtomicRequest {
    /// Octets.
    pub const LEN: usize = 52;

    /// Decodes. Reserved bits, and for `FetchAdd` the compare fields, are ignored.
    ///
    /// # Errors
    /// [`UnknownAtomic`].
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, UnknownAtomic> {
        let [_, _, _, code] = get::<0, 4, _>(octets);
        let data = u64::from_be_bytes(get::<20, 8, _>(octets));
        let mask = u64::from_be_bytes(get::<28, 8, _>(octets));
        //= rfc7306-5.2.1-unsupported-code
        let operation = match code & 0x0F {
            FETCH_ADD => AtomicOperation::FetchAdd { add: data, mask },
            CMP_SWAP => AtomicOperation::CmpSwap {
                compare: u64::from_be_bytes(get::<36, 8, _>(octets)),
                compare_mask: u64::from_be_bytes(get::<44, 8, _>(octets)),
                swap: data,
                swap_mask: mask,
            },
            code => return Err(UnknownAtomic { code }),
        };
        Ok(Self {
            request_id: u32::from_be_bytes(get::<4, 4, _>(octets)),
            stag: Stag(u32::from_be_bytes(get::<8, 4, _>(octets))),
            offset: TaggedOffset(u64::from_be_bytes(get::<12, 8, _>(octets))),
            operation,
        })
    }

    /// The octets.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        //= rfc7306-5.2.1-unused-compare-fields
        let (code, data, mask, compare, compare_mask) = match self.operation {
            AtomicOperation::FetchAdd { add, mask } => (FETCH_ADD, add, mask, 0, u64::MAX),
            AtomicOperation::CmpSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => (CMP_SWAP, swap, swap_mask, compare, compare_mask),
        };
        let mut octets = [0; Self::LEN];
        put::<0, 4, _>(&mut octets, [0, 0, 0, code]);
        put::<4, 4, _>(&mut octets, self.request_id.to_be_bytes());
        put::<8, 4, _>(&mut octets, self.stag.0.to_be_bytes());
        put::<12, 8, _>(&mut octets, self.offset.0.to_be_bytes());
        put::<20, 8, _>(&mut octets, data.to_be_bytes());
        put::<28, 8, _>(&mut octets, mask.to_be_bytes());
        put::<36, 8, _>(&mut octets, compare.to_be_bytes());
        put::<44, 8, _>(&mut octets, compare_mask.to_be_bytes());
        octets
    }
}

/// Atomic Response header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponse {
    /// The identifier of the request.
    pub request_id: u32,
    /// The value before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Octets.
    pub const LEN: usize = 12;

    /// Decodes; every input is valid.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            request_id: u32::from_be_bytes(get::<0, 4, _>(octets)),
            original: u64::from_be_bytes(get::<4, 8, _>(octets)),
        }
    }

    /// The octets.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put::<0, 4, _>(&mut octets, self.request_id.to_be_bytes());
        put::<4, 8, _>(&mut octets, self.original.to_be_bytes());
        octets
    }
}

/// What `CmpSwap` leaves in memory where it found `value`; the same value if the comparison fails.
#[must_use]
pub const fn masked_swap(
    value: u64,
    compare: u64,
    compare_mask: u64,
    swap: u64,
    swap_mask: u64,
) -> u64 {
    //= rfc7306-5.1.2-cmpswap
    if (compare ^ value) & compare_mask == 0 {
        (value & !swap_mask) | (swap & swap_mask)
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn operation() -> impl Strategy<Value = AtomicOperation> {
        prop_oneof![
            any::<[u64; 2]>().prop_map(|[add, mask]| AtomicOperation::FetchAdd { add, mask }),
            any::<[u64; 4]>().prop_map(|[compare, compare_mask, swap, swap_mask]| {
                AtomicOperation::CmpSwap {
                    compare,
                    compare_mask,
                    swap,
                    swap_mask,
                }
            }),
        ]
    }

    #[test]
    fn fetch_add_fills_the_unused_fields() {
        //= test rfc7306-5.2.1-unused-compare-fields
        let octets = AtomicRequest {
            request_id: 7,
            stag: Stag(8),
            offset: TaggedOffset(16),
            operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
        }
        .encode();
        assert_eq!(octets[..4], [0, 0, 0, 0]);
        assert_eq!(octets[36..44], [0; 8]);
        assert_eq!(octets[44..], [0xFF; 8]);
    }

    #[test]
    fn unassigned_codes_are_refused() {
        //= test rfc7306-5.2.1-unsupported-code
        let mut octets = [0; AtomicRequest::LEN];
        for code in 0..16 {
            octets[3] = 0xF0 | code;
            let got = AtomicRequest::decode(&octets);
            if code == 0 || code == 2 {
                assert!(got.is_ok());
            } else {
                assert_eq!(got, Err(UnknownAtomic { code }));
            }
        }
    }

    #[test]
    fn compare_and_swap_swaps_masked_bits_only() {
        //= test rfc7306-5.1.2-cmpswap
        assert_eq!(
            masked_swap(0xAB_CD, 0xAB_00, 0xFF_00, 0x12_34, 0x00_FF),
            0xAB_34
        );
        assert_eq!(
            masked_swap(0xAB_CD, 0xAC_00, 0xFF_00, 0x12_34, 0x00_FF),
            0xAB_CD
        );
        // No compare bit: it always matches.
        assert_eq!(masked_swap(1, 2, 0, 3, u64::MAX), 3);
    }

    proptest! {
        #[test]
        fn request_round_trip(request_id in any::<u32>(), stag in any::<u32>(), offset in any::<u64>(), operation in operation()) {
            let request = AtomicRequest { request_id, stag: Stag(stag), offset: TaggedOffset(offset), operation };
            prop_assert_eq!(AtomicRequest::decode(&request.encode()), Ok(request));
        }

        #[test]
        fn response_round_trip(octets in any::<[u8; 12]>()) {
            prop_assert_eq!(AtomicResponse::decode(&octets).encode(), octets);
        }

        #[test]
        fn swap_follows_the_pseudocode(value in any::<u64>(), compare in any::<u64>(), hit in any::<bool>(), masks in any::<[u64; 3]>()) {
            let [compare_mask, swap, swap_mask] = masks;
            let compare = if hit { (value & compare_mask) | (compare & !compare_mask) } else { compare };
            let got = masked_swap(value, compare, compare_mask, swap, swap_mask);
            for bit in 0..64 {
                let at = |word: u64| word >> bit & 1;
                let matches = (0..64).all(|b| compare_mask >> b & 1 == 0 || compare >> b & 1 == value >> b & 1);
                let want = if matches && at(swap_mask) == 1 { at(swap) } else { at(value) };
                prop_assert_eq!(at(got), want);
            }
        }
    }
}
