//! Draft, section 3.3: the free-block ring, as DIRECT_ALLOC shows it.

use super::subject;
use kbtp_harness::{Session, Who, eventually, pattern, remote};
use kbtp_wire::{BlockOffset, Status, Ticket};
use std::collections::BTreeSet;

fn slot(sequence: u32, block: u64) -> [u8; 16] {
    let mut octets = [0; 16];
    octets[..4].copy_from_slice(&sequence.to_be_bytes());
    octets[8..].copy_from_slice(&block.to_be_bytes());
    octets
}

fn word(octets: [u8; 16]) -> u64 {
    u64::from_be_bytes(octets[8..].try_into().unwrap())
}

//= test kbtp-3.3-init-slots
//= test kbtp-3.3-init-counters
//= test kbtp-3.3-ring-size
//= test kbtp-3.3-slot-layout
//= test kbtp-3.3-empty-all-ones
#[test]
fn a_new_ring_lists_its_blocks_then_empty_slots() {
    let target = subject();
    for (n, quota, order) in [(1, 5, 3), (2, 8, 3), (3, 1, 1), (4, 9, 4)] {
        let mut s = Session::open(&*target, &Who::new(n).direct().quota(quota));
        assert_eq!((s.grant.quota, s.grant.ring_order.get()), (quota, order));
        let slots = 1_u32 << order;
        let mut blocks = BTreeSet::new();
        for i in 0..quota {
            let octets = s.slot_octets(i);
            let block = word(octets);
            assert_eq!(octets, slot(i, block));
            blocks.insert(block);
        }
        let offset = s.grant.partition_offset.0;
        let all: BTreeSet<_> = (0..u64::from(quota)).map(|b| offset + b * 4096).collect();
        assert_eq!(blocks, all, "each block of the partition once");
        for i in quota..slots {
            assert_eq!(s.slot_octets(i), slot(i.wrapping_sub(slots), u64::MAX));
        }
        assert_eq!(s.take().0, 0, "Head begins at Ticket 0, Slot Offset 0");
        // Tail begins at Ticket F and slot F mod N: that is where the first free goes.
        let (h, first) = (s.h(0), BlockOffset(word(s.slot_octets(0))));
        assert_eq!(s.bind(h, Ticket(0), first, 0, true).status, Status::Ok);
        s.free(h);
        assert_eq!(s.slot_octets(quota % slots), slot(quota, first.0));
        s.close();
    }
}

//= test kbtp-3.3-counter-layout
//= test kbtp-3.3-add-data-mask
//= test kbtp-3.3-allocation-ticket
//= test kbtp-3.3-mark-consumed
//= test kbtp-3.3-free-write
//= test kbtp-p10-native-counters
#[test]
fn tickets_and_slots_advance_together_and_wrap() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(5));
    let h = s.h(3);
    for ticket in 0..40_u32 {
        let counter = s.take().0;
        assert_eq!(counter >> 32, u64::from(ticket));
        assert_eq!(
            counter & 0xffff_ffff,
            u64::from(16 * (ticket % 8)),
            "bits 31 to n+4 are zero"
        );
        let octets = eventually("the ticket's block", || {
            let octets = s.slot_octets(ticket % 8);
            (octets[..4] == ticket.to_be_bytes() && word(octets) != u64::MAX).then_some(octets)
        });
        let block = BlockOffset(word(octets));
        assert_eq!(
            s.slot_octets(ticket % 8),
            octets,
            "nobody takes what a ticket holds"
        );
        let data = pattern(ticket.into(), 64);
        s.write_block(block, &data);
        assert_eq!(
            s.bind(h, Ticket(ticket), block, 64, true).status,
            Status::Ok
        );
        assert_eq!(word(s.slot_octets(ticket % 8)), u64::MAX, "consumed");
        assert_eq!(s.content(h).unwrap().1, data);
        s.free(h);
        let freed = ticket + 5;
        assert_eq!(s.slot_octets(freed % 8), slot(freed, block.0));
    }
}

//= test kbtp-3.3-free-deferred
//= test kbtp-3.3-free-no-overwrite
//= test kbtp-3.3-allocation-wait
#[test]
fn a_free_waits_for_the_slot_of_a_slow_allocator() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(4));
    assert_eq!(s.grant.ring_order.get(), 2);
    // Ticket 0 is taken and rests; ticket 1 is bound by the target and freed: Tail is at ticket 4, slot 0.
    let (ticket, resting) = s.take_block();
    assert_eq!(ticket, Ticket(0));
    let freed = s.put(1, b"freed").block;
    assert_eq!(
        s.free(s.h(1)).status,
        Status::Ok,
        "the free itself does not wait"
    );
    assert_eq!(s.slot_octets(0), slot(0, resting.0), "not overwritten");
    assert_eq!(target.metric("kbtp_frees_deferred_total"), 1);
    // Two more tickets, then the one whose slot is still that of ticket 0.
    let (second, _) = s.take_block();
    let (third, _) = s.take_block();
    assert_eq!((second, third), (Ticket(2), Ticket(3)));
    let waiting = s.take();
    assert_eq!((waiting.ticket(), waiting.0 & 0xff), (Ticket(4), 0));
    assert_eq!(s.slot(0).block_for(Ticket(4)), None, "to be read again");
    let h = s.h(0);
    assert_eq!(s.bind(h, ticket, resting, 0, true).status, Status::Ok);
    let octets = eventually("the deferred free", || {
        let octets = s.slot_octets(0);
        (octets[..4] == 4_u32.to_be_bytes()).then_some(octets)
    });
    assert_eq!(octets, slot(4, freed.0));
}

//= test kbtp-3.3-no-block-lost-or-twice
#[test]
fn no_block_is_lost_or_handed_out_twice() {
    let target = subject();
    let mut direct = Session::open(&*target, &Who::new(1).direct().quota(7));
    let mut plain = Session::open(&*target, &Who::new(2).quota(9));
    let mut bound: Vec<Vec<Option<BlockOffset>>> = vec![vec![None; 7], vec![None; 9]];
    for round in 0..400_u64 {
        let choice = pattern(round, 3);
        let who = usize::from(choice[0] & 1);
        let s = if who == 0 { &mut direct } else { &mut plain };
        let n = usize::from(choice[1]) % bound[who].len();
        let h = s.h(n as u64);
        if let Some(block) = bound[who][n].take() {
            let (completion, data) = s.load(h);
            assert_eq!(
                (completion.block, data),
                (block, block.0.to_be_bytes().to_vec())
            );
            assert_eq!(s.free(h).status, Status::Ok);
        } else {
            let completion = if who == 0 && choice[2] & 1 == 0 {
                s.alloc_direct(h, &[0; 8], false)
            } else {
                s.alloc(h, &[0; 8], false)
            };
            assert_eq!(completion.status, Status::Ok, "round {round}");
            let block = completion.block;
            let twice = bound.iter().flatten().any(|other| *other == Some(block));
            assert!(!twice, "round {round}: {block} is in use");
            bound[who][n] = Some(block);
            s.store(h, &block.0.to_be_bytes(), false);
        }
    }
    direct.close();
    plain.close();
    eventually("the sessions are gone", || {
        (target.audit().sessions == 0).then_some(())
    });
    let count = target.count();
    assert_eq!(count.faults, Vec::<String>::new());
    assert_eq!(count.in_rings, count.blocks);
}

//= test kbtp-3.3-counter-not-read
//= test kbtp-p6-ring-read-only
//= test rfc7306-5-atomic-buffers-apart
#[test]
fn counters_are_counted_up_and_never_read() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct());
    let head = remote(s.grant.counter_stag, s.grant.head_offset.0);
    s.raw.read(head, 8).expect_err("a counter is not read");
    //= test kbtp-3.3-counter-aligned
    assert_eq!(s.grant.head_offset.0 % 8, 0);
}
