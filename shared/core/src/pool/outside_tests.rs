//! What a device took, and did not use or did not tell of.

use super::ring::RingMemory;
use super::tests::{OURS, clean, pool};
use super::*;
use kbtp_wire::RingCounter;

#[test]
fn what_a_device_took_and_did_not_use_comes_back_once() {
    let pool = pool(2);
    pool.serve_by_device();
    // Not looked at yet: its slot still has the block.
    let unread = pool.take(Home::Shared).unwrap();
    // Consumed: the block is in nobody's hands.
    let ticket = pool.take(Home::Shared).unwrap();
    let block = pool.consume(Home::Shared, ticket, OURS).unwrap();
    let offset = pool.geometry.offset_of(block);
    pool.put_back_taken(ticket, Some(offset));
    // That one's slot is not read yet, so that the block is still to come for who takes it next.
    let waits = pool.take(Home::Shared).unwrap();
    pool.put_back_taken(waits, Some(BlockOffset(0x1234)));
    pool.put_back_taken(unread, None);
    pool.settle();
    let audit = clean(&pool);
    assert_eq!((audit.in_rings, audit.elsewhere), (2, 0), "{audit:?}");
    // Of a block that nobody knows there is nothing to give back.
    let lost = pool.take(Home::Shared).unwrap();
    let block = pool.consume(Home::Shared, lost, OURS).unwrap();
    pool.put_back_taken(lost, None);
    assert_eq!(clean(&pool).elsewhere, 1);
    pool.put_back_taken(lost, Some(pool.geometry.offset_of(block)));
    assert_eq!(clean(&pool).in_rings, 2);
}

/// A device's FetchAdd whose reply nobody got: told apart from what sessions hold, what waits, and what the device told of.
#[test]
fn a_ticket_that_nobody_knows_comes_back_and_no_other() {
    let pool = pool(4);
    pool.serve_by_device();
    let held = pool.take(Home::Shared).unwrap();
    let by_device = || pool.ring(Home::Shared).take().unwrap();
    let (lost, known) = (by_device(), by_device());
    // For this one there is a block only later.
    let fourth = pool.take(Home::Shared).unwrap();
    let block = pool.consume(Home::Shared, fourth, OURS).unwrap();
    let ring = pool.ring(Home::Shared);
    let counter = RingCounter(ring.memory.head().load(Relaxed));
    ring.memory
        .head()
        .store(counter.advanced(ring.order).0, Relaxed);
    let waits = counter.ticket();
    let mut open = pool.open_tickets();
    open.sort_by_key(|ticket| ticket.0);
    assert_eq!(open, [held, lost, known, waits]);
    assert_eq!(pool.put_back_lost(open, &[known]), 2);
    // The block of the lost one went to the one that waits, and came back from there; nobody gets it twice.
    assert!(!pool.open_tickets().contains(&lost));
    assert_eq!(pool.put_back_lost(pool.open_tickets(), &[known]), 0);
    pool.put_back(block);
    for ticket in [held, known] {
        let block = pool.consume_raw(Home::Shared, ticket).unwrap();
        pool.put_back(block);
    }
    pool.settle();
    assert_eq!(pool.open_tickets(), []);
    assert_eq!(clean(&pool).in_rings, 4);
}
