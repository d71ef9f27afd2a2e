//! Atomic operations on a word in memory.

use kbtp_mlx5::Atomic;

/// The word after an operation on it.
#[must_use]
pub fn apply(atomic: &Atomic, old: u64) -> u64 {
    match *atomic {
        Atomic::CompareSwap { swap, compare } => {
            if old == compare {
                swap
            } else {
                old
            }
        }
        Atomic::FetchAdd { add } => old.wrapping_add(add),
        Atomic::MaskedCompareSwap8 {
            swap,
            compare,
            swap_mask,
            compare_mask,
        } => compare_swap(old, swap, compare, swap_mask, compare_mask),
        Atomic::MaskedCompareSwap4 {
            swap,
            compare,
            swap_mask,
            compare_mask,
        } => compare_swap(
            old,
            swap.into(),
            compare.into(),
            swap_mask.into(),
            compare_mask.into(),
        ),
        Atomic::MaskedFetchAdd8 { add, boundary } => masked_add(old, add, boundary),
        Atomic::MaskedFetchAdd4 { add, boundary } => {
            // The carry out of bit 31 goes nowhere.
            masked_add(old, add.into(), u64::from(boundary) | 1 << 31) & u64::from(u32::MAX)
        }
    }
}

const fn compare_swap(old: u64, swap: u64, compare: u64, swap_mask: u64, compare_mask: u64) -> u64 {
    if (old ^ compare) & compare_mask == 0 {
        old & !swap_mask | swap & swap_mask
    } else {
        old
    }
}

/// Adds bit by bit, as the device's documentation has it: a carry is dropped behind every bit of `boundary`.
#[must_use]
pub const fn masked_add(old: u64, add: u64, boundary: u64) -> u64 {
    let (mut sum, mut carry, mut bit) = (0, 0, 0);
    while bit < 64 {
        let here = (old >> bit & 1) + (add >> bit & 1) + carry;
        sum |= (here & 1) << bit;
        carry = if boundary >> bit & 1 == 1 {
            0
        } else {
            here >> 1
        };
        bit += 1;
    }
    sum
}
