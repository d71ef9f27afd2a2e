//! Ring counters Head and Tail: 64 bits in the target's memory byte order, changed only with FetchAdd.
//! Source: KBTP draft, section 3.3 (masked) and 9.2 (unmasked); RFC 7306, section 5.1.1.
//! Bits, masked form: 63..32 Ticket, n+3..0 Slot Offset, the bits between zero. Unmasked form: 63..32 Ticket, rest zero.

use crate::{SlotOffset, Ticket};

/// Octets of a ring slot, as a shift: a Slot Offset is the slot number times 16.
const SLOT_SHIFT: u32 = 4;

/// The masked add of RFC 7306, section 5.1.1: the value after adding `add` to `value` field by field. A bit set in
/// `mask` is the most significant bit of a field; the carry out of it is discarded. A mask of zero is a 64-bit add.
//= rfc7306-5.1.1-masked-add
#[must_use]
pub const fn fetch_add(value: u64, add: u64, mask: u64) -> u64 {
    // With the top bit of each field cleared, the sum of the rest cannot carry past that bit; the bit itself is then
    // the sum without carry of both top bits and the carry that arrived there.
    let low = (value & !mask).wrapping_add(add & !mask);
    low ^ ((value ^ add) & mask)
}

/// The binary order n of a ring of N = 2^n slots.
///
/// 0 to 27: the Slot Offset takes the low n+4 bits and needs n+4 < 32, because "bits 31 to n+4 are zero" must name at
/// least bit 31, which the Add Mask makes the top of the lower half.
///
/// The draft's Add Data puts one slot at bit 4, above a Slot Offset field of four bits: with n = 0 a FetchAdd counts in
/// bits 31 to 4, which should stay zero. [`RingCounter::slot_offset`] masks, so such a ring of one slot works for a
/// reader; [`for_blocks`](Self::for_blocks) never chooses it, because a device that takes the low half as an address
/// does not mask.
//= kbtp-3.3-ring-size
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RingOrder(u8);

impl RingOrder {
    /// The largest order.
    pub const MAX: Self = Self(27);

    /// The order n; `None` above 27.
    #[must_use]
    pub const fn new(n: u8) -> Option<Self> {
        if n <= Self::MAX.0 {
            Some(Self(n))
        } else {
            None
        }
    }

    /// The least order, from 1, whose ring holds `blocks` blocks; `None` if there is none.
    #[must_use]
    pub const fn for_blocks(blocks: u32) -> Option<Self> {
        let mut n = 1;
        while n <= Self::MAX.0 {
            if blocks <= 1 << n {
                return Some(Self(n));
            }
            n += 1;
        }
        None
    }

    /// n.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// N = 2^n, the number of slots.
    #[must_use]
    pub const fn slots(self) -> u32 {
        1 << self.0
    }

    /// Octets of the ring: 16 N.
    #[must_use]
    pub const fn ring_len(self) -> u64 {
        (self.slots() as u64) << SLOT_SHIFT
    }

    /// Where the slot of `ticket` lies: 16 * (ticket mod N).
    //= kbtp-9.2-slot-of-ticket
    #[must_use]
    pub const fn slot_of(self, ticket: Ticket) -> SlotOffset {
        SlotOffset((ticket.0 & (self.slots() - 1)) << SLOT_SHIFT)
    }

    const fn offset_mask(self) -> u32 {
        (self.slots() << SLOT_SHIFT) - 1
    }
}

/// The value of Head or Tail.
//= kbtp-3.3-counter-layout
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RingCounter(pub u64);

impl RingCounter {
    /// Add Data of every FetchAdd on a masked counter: one ticket, one slot.
    //= kbtp-3.3-add-data-mask
    pub const ADD_DATA: u64 = 0x0000_0001_0000_0010;

    /// Add Data of the unmasked form: one ticket (draft, section 9.2).
    //= kbtp-9.2-unmasked-counter
    pub const ADD_DATA_UNMASKED: u64 = 0x0000_0001_0000_0000;

    /// [`ADD_DATA`](Self::ADD_DATA), for callers that name the order's mask beside it.
    #[must_use]
    pub const fn add_data() -> u64 {
        Self::ADD_DATA
    }

    /// The Add Mask: the top bits of the Ticket, of the lower half, and of the Slot Offset.
    //= kbtp-3.3-add-data-mask
    #[must_use]
    pub const fn add_mask(order: RingOrder) -> u64 {
        (1 << 63) | (1 << 31) | (1 << (order.0 as u32 + SLOT_SHIFT - 1))
    }

    /// A masked counter that stands at `ticket`: its slot is `ticket` mod N, as it is from the start for ever, since
    /// N divides 2^32.
    #[must_use]
    pub const fn at(ticket: Ticket, order: RingOrder) -> Self {
        Self(((ticket.0 as u64) << 32) | order.slot_of(ticket).0 as u64)
    }

    /// An unmasked counter that stands at `ticket`.
    //= kbtp-9.2-unmasked-counter
    #[must_use]
    pub const fn at_unmasked(ticket: Ticket) -> Self {
        Self((ticket.0 as u64) << 32)
    }

    /// Head of a new ring: Ticket 0, Slot Offset 0.
    //= kbtp-3.3-init-counters
    #[must_use]
    pub const fn initial_head() -> Self {
        Self(0)
    }

    /// Tail of a new ring of `blocks` free blocks: Ticket F, Slot Offset 16 * (F mod N). With F = N the Slot Offset is
    /// zero: the first free goes to slot 0, once its allocation has consumed it.
    //= kbtp-3.3-init-counters
    #[must_use]
    pub const fn initial_tail(blocks: u32, order: RingOrder) -> Self {
        Self::at(Ticket(blocks), order)
    }

    /// The Ticket, in bits 63 to 32. Both forms.
    #[must_use]
    pub const fn ticket(self) -> Ticket {
        let [a, b, c, d, ..] = self.0.to_be_bytes();
        Ticket(u32::from_be_bytes([a, b, c, d]))
    }

    /// The Slot Offset, in the low n+4 bits. Masked form only; see [`RingOrder::slot_of`] for the other.
    #[must_use]
    pub const fn slot_offset(self, order: RingOrder) -> SlotOffset {
        let [.., a, b, c, d] = self.0.to_be_bytes();
        // With n = 0 the low four bits are zero always.
        SlotOffset(u32::from_be_bytes([a, b, c, d]) & order.offset_mask())
    }

    /// The counter after one FetchAdd in masked form.
    #[must_use]
    pub const fn advanced(self, order: RingOrder) -> Self {
        Self(fetch_add(self.0, Self::ADD_DATA, Self::add_mask(order)))
    }

    /// The counter after one Fetch and Add in unmasked form.
    #[must_use]
    pub const fn advanced_unmasked(self) -> Self {
        Self(self.0.wrapping_add(Self::ADD_DATA_UNMASKED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One bit after the other, as the RFC describes the operation.
    fn bit_by_bit(value: u64, add: u64, mask: u64) -> u64 {
        let mut sum = 0;
        let mut carry = 0;
        for bit in 0..64 {
            let digit = ((value >> bit) & 1) + ((add >> bit) & 1) + carry;
            sum |= (digit & 1) << bit;
            carry = if (mask >> bit) & 1 == 1 {
                0
            } else {
                digit >> 1
            };
        }
        sum
    }

    proptest! {
        //= test rfc7306-5.1.1-masked-add
        #[test]
        fn masked_add_is_the_bit_by_bit_one(value: u64, add: u64, mask: u64, sparse: u64) {
            prop_assert_eq!(fetch_add(value, add, mask), bit_by_bit(value, add, mask));
            let sparse = mask & sparse;
            prop_assert_eq!(fetch_add(value, add, sparse), bit_by_bit(value, add, sparse));
            prop_assert_eq!(fetch_add(value, add, 0), value.wrapping_add(add));
            prop_assert_eq!(fetch_add(value, add, u64::MAX), value ^ add);
        }

        //= test kbtp-3.3-counter-layout
        //= test kbtp-3.3-add-data-mask
        #[test]
        fn any_counter_advances_both_fields_alone(ticket: u32, n in 1_u8..=27) {
            let order = RingOrder::new(n).unwrap();
            let before = RingCounter::at(Ticket(ticket), order);
            let after = before.advanced(order);
            prop_assert_eq!(before.ticket(), Ticket(ticket));
            prop_assert_eq!(before.slot_offset(order), order.slot_of(Ticket(ticket)));
            prop_assert_eq!(after, RingCounter::at(Ticket(ticket).next(), order));
            // Bits 31 to n+4 stay zero.
            prop_assert_eq!(u64::from(after.slot_offset(order).0), after.0 & 0xffff_ffff);
        }

        //= test kbtp-9.2-unmasked-counter
        //= test kbtp-9.2-slot-of-ticket
        #[test]
        fn the_unmasked_form_agrees_with_the_masked_one(ticket: u32, n in 1_u8..=27) {
            let order = RingOrder::new(n).unwrap();
            let masked = RingCounter::at(Ticket(ticket), order).advanced(order);
            let unmasked = RingCounter::at_unmasked(Ticket(ticket)).advanced_unmasked();
            prop_assert_eq!(unmasked.ticket(), masked.ticket());
            prop_assert_eq!(unmasked.0 & 0xffff_ffff, 0);
            prop_assert_eq!(order.slot_of(unmasked.ticket()), masked.slot_offset(order));
        }
    }

    #[test]
    fn masked_add_of_all_eight_bit_values_under_all_eight_bit_masks() {
        for mask in 0..=u64::from(u8::MAX) {
            for value in (0..=u64::from(u8::MAX)).step_by(3) {
                for add in (0..=u64::from(u8::MAX)).step_by(5) {
                    // Once at the bottom, once so that the top field ends at bit 63.
                    for shift in [0, 56] {
                        let (v, a, m) = (value << shift, add << shift, mask << shift);
                        assert_eq!(fetch_add(v, a, m), bit_by_bit(v, a, m));
                    }
                }
            }
        }
    }

    //= test kbtp-3.3-add-data-mask
    #[test]
    fn the_mask_is_derived_from_the_order() {
        let mask = |n| RingCounter::add_mask(RingOrder::new(n).unwrap());
        assert_eq!(mask(1), 0x8000_0000_8000_0010);
        assert_eq!(mask(10), 0x8000_0000_8000_2000);
        assert_eq!(mask(27), 0x8000_0000_c000_0000);
        assert_eq!(RingCounter::add_data(), (1 << 32) + 16);
    }

    //= test kbtp-3.3-counter-layout
    #[test]
    fn a_small_ring_walks_its_slots_round_and_round() {
        let order = RingOrder::new(2).unwrap();
        let mut head = RingCounter::initial_head();
        for ticket in 0..9 {
            assert_eq!(head.ticket(), Ticket(ticket));
            assert_eq!(head.slot_offset(order), SlotOffset(16 * (ticket % 4)));
            head = head.advanced(order);
        }
    }

    #[test]
    fn ticket_and_slot_wrap_without_touching_each_other() {
        let order = RingOrder::new(3).unwrap();
        let last = RingCounter::at(Ticket(u32::MAX), order);
        assert_eq!(last.0, 0xffff_ffff_0000_0070);
        assert_eq!(last.advanced(order), RingCounter(0));
    }

    //= test kbtp-3.3-init-counters
    #[test]
    fn initial_tail_points_past_the_last_free_block() {
        let order = RingOrder::new(3).unwrap();
        assert_eq!(RingCounter::initial_tail(5, order).0, 0x0000_0005_0000_0050);
        assert_eq!(RingCounter::initial_tail(8, order).0, 0x0000_0008_0000_0000);
        assert_eq!(RingCounter::initial_head().0, 0);
    }

    //= test kbtp-3.3-ring-size
    #[test]
    fn orders() {
        let order = |blocks| RingOrder::for_blocks(blocks).map(RingOrder::get);
        assert_eq!(order(0), Some(1));
        assert_eq!(order(1), Some(1));
        assert_eq!(order(2), Some(1));
        assert_eq!(order(3), Some(2));
        assert_eq!(order(1024), Some(10));
        assert_eq!(order(1025), Some(11));
        assert_eq!(order(1 << 27), Some(27));
        assert_eq!(order((1 << 27) + 1), None);
        assert_eq!(RingOrder::new(28), None);
        assert_eq!(RingOrder::MAX.ring_len(), 1 << 31);
    }

    #[test]
    fn a_ring_of_one_slot_stays_at_its_slot() {
        let order = RingOrder::new(0).unwrap();
        let mut head = RingCounter::initial_head();
        for ticket in 0..1000 {
            assert_eq!(
                (head.ticket(), head.slot_offset(order)),
                (Ticket(ticket), SlotOffset(0))
            );
            head = head.advanced(order);
        }
    }
}
