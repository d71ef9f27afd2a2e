//! Arithmetic and tables, exhaustively or against another way to compute them.

use crate::common::{BLOCK, Setup};
use crate::drive::run;
use kbtp_chain::key::VIEW_STRIDE;
use kbtp_chain::record::{Outcome, Record, Variant};
use kbtp_chain::{full, load, table};
use kbtp_nic_model::{Schedule, masked_add};
use kbtp_wire::{ByteLen, EntryFlags, Generation, RingCounter, RingOrder, SlotOffset, Ticket};
use proptest::prelude::*;

/// Bit by bit, and in the closed form of the wire crate: for every order of a ring, at every edge.
#[test]
fn the_masked_add_of_a_counter() {
    for order in (1..=27).filter_map(RingOrder::new) {
        let mask = RingCounter::add_mask(order);
        let slots = u64::from(order.slots());
        let edges = [
            0,
            1,
            slots - 1,
            slots,
            u64::from(u32::MAX) - 1,
            u64::from(u32::MAX),
        ];
        for ticket in edges {
            let ticket = Ticket(u32::try_from(ticket & 0xffff_ffff).unwrap());
            let value = u64::from(ticket.0) << 32 | u64::from(order.slot_of(ticket).0);
            let next = masked_add(value, RingCounter::ADD_DATA, mask);
            let closed = kbtp_wire::fetch_add(value, RingCounter::ADD_DATA, mask);
            assert_eq!(next, closed, "order {}, {value:#x}", order.get());
            assert_eq!(next >> 32, u64::from(ticket.next().0));
            let offset = SlotOffset(u32::try_from(next & 0xffff_ffff).unwrap());
            assert_eq!(offset, order.slot_of(ticket.next()));
        }
    }
}

proptest! {
    #[test]
    fn the_masked_add_of_anything(value: u64, add: u64, mask: u64) {
        prop_assert_eq!(masked_add(value, add, mask), kbtp_wire::fetch_add(value, add, mask));
    }
}

/// Every version, opcode and flags: chains serve what the profile lists, and nothing else.
#[test]
fn headers_exhaustively() {
    for opcode in 0..=u8::MAX {
        for flags in 0..=u16::MAX {
            let address =
                u32::from_be_bytes([1, opcode, flags.to_be_bytes()[0], flags.to_be_bytes()[1]]);
            let variant = table::header(address);
            let may = match opcode {
                3 => flags & !0x18 == 0,
                4 | 5 => flags & !0x0a == 0,
                6 => flags == 0,
                _ => false,
            };
            assert_eq!(variant != 0, may, "{opcode} {flags:#x}");
            assert!(variant <= 13);
            // The target makes pages of the table only for opcodes that are served without flags.
            if may {
                assert_ne!(table::header(address & 0xffff_0000), 0);
            }
        }
    }
    for version in (0..=u8::MAX).filter(|version| *version != 1) {
        for opcode in 0..=u8::MAX {
            assert_eq!(
                table::header(u32::from_be_bytes([version, opcode, 0, 0])),
                0
            );
        }
    }
}

#[test]
fn generations_exhaustively() {
    for number in 0..=u16::MAX {
        let generation = Generation::new(number);
        let [a, b, c, d, rest @ ..] = table::generation(generation);
        assert_eq!(rest, [a, b, c, d]);
        let mask = if number == 0 { 0 } else { 0xff };
        assert_eq!(
            [a, b, c, d],
            [number.to_le_bytes()[0], number.to_le_bytes()[1], mask, mask]
        );
        let next = match number.wrapping_add(1) {
            0 => 1,
            next => next,
        };
        assert_eq!(table::next_generation(true, generation), next.to_be_bytes());
        assert_eq!(
            table::next_generation(false, generation),
            number.to_be_bytes()
        );
    }
}

/// All 12288 rows of both tables: what is not listed is the punt record, octet for octet.
#[test]
fn records_exhaustively() {
    for template in [full(ByteLen(BLOCK)), load(ByteLen(BLOCK))] {
        let punt = Record::punt(&template).encode();
        assert!(punt.len() as u64 <= VIEW_STRIDE);
        let mut served = 0;
        for with_data in [true, false] {
            for row in 0..3 << 12 {
                let [place, variant] = u16::to_be_bytes(row);
                let outcome = Outcome::ALL[usize::from(place >> 4)];
                let flags = EntryFlags(u16::from(place & 0xf));
                let possible = matches!(
                    (outcome, with_data),
                    (Outcome::Data, true) | (Outcome::NoData, false)
                );
                let action = Variant(variant).action(outcome, flags).filter(|_| possible);
                let record = table::record(&template, with_data, row);
                assert_eq!(record, Record::of(&template, action));
                let octets = record.encode();
                assert_eq!(octets.len(), punt.len());
                if octets != punt {
                    served += 1;
                    assert!(action.is_some());
                }
            }
        }
        // LOAD: sealed ones under four variants, unsealed ones under two; STORE and ALLOC_STORE: four variants each, of
        // unsealed, and of two kinds of unbound entries; FREE: two kinds of bound entries.
        let loads = 4 + 2;
        let all = loads + 4 + 2 * 4 + 2;
        assert_eq!(
            served,
            if template.find("U2").is_some() {
                all
            } else {
                loads
            }
        );
    }
}

/// The same seed, the same octets: a trace can be compared with one that was kept.
#[test]
fn a_run_is_the_same_for_the_same_seed() {
    let trace = |seed| {
        let mut drive = crate::drive::Drive::new(&Setup::new(Schedule::Random, seed, 1));
        drive.rig.model.start_trace();
        for _ in 0..5 {
            drive.one(0).unwrap();
        }
        let trace = drive.rig.model.take_trace();
        let lines: Vec<String> = trace.iter().map(ToString::to_string).collect();
        lines
    };
    let first = trace(4);
    assert!(first.len() > 200, "{}", first.len());
    assert!(first == trace(4));
    assert!(first != trace(5));
}

/// Over the wraps of WQE indices (16 bits) within one run: 896 slots of profile F.
#[test]
fn wqe_indices_wrap_under_a_session() {
    for schedule in [Schedule::Eager, Schedule::Withhold] {
        let drive =
            run(&Setup::new(schedule, 21, 1), 960).unwrap_or_else(|error| panic!("{error}"));
        assert!(drive.served.values().sum::<u64>() > 200);
    }
}

/// Over the wraps of the indices of each completion queue (24 bits): nine, three and one CQE a slot.
#[test]
fn cqe_indices_wrap_under_a_session() {
    for schedule in [Schedule::Random, Schedule::Eager, Schedule::Withhold] {
        for cqes in [9, 3, 1] {
            let mut setup = Setup::new(schedule, cqes, 1).readers(1);
            setup.first_slot = (1 << 24) / cqes - 20;
            let drive = run(&setup, 70).unwrap_or_else(|error| panic!("{cqes} a slot: {error}"));
            assert!(drive.served.values().sum::<u64>() > 10);
            let session = &drive.rig.parties[0].session;
            assert!(session.armed() > (1 << 24) / cqes + 10);
        }
    }
}
