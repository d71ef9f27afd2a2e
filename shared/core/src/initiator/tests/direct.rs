//! Direct Load and Direct Allocation, step by step.

use super::*;
use kbtp_wire::{Bind, RingCounter, RingSlot, Ticket};

const VALID: u16 = 1;
const SEALED: u16 = 2;
const BOUND: u16 = VALID | SEALED;

/// A direct load that expects Generation 1.
fn direct(handle: u64, len: u32) -> Request {
    Request::LoadDirect {
        handle: Handle(handle),
        generation: Generation::new(1),
        into: buffer(5, len),
    }
}

/// A direct load of whatever is bound.
fn direct_any(handle: u64) -> Request {
    Request::LoadDirect {
        handle: Handle(handle),
        generation: None,
        into: buffer(5, BLOCK),
    }
}

/// The entry is read and is this.
fn look(rig: &mut Rig, octets: &[u8; 16]) {
    let (scratch, from) = read_of(rig);
    assert_eq!(from.0, TABLE);
    rig.read(scratch, octets).unwrap();
}

/// The one read that was posted.
fn read_of(rig: &mut Rig) -> (LocalBuffer, (Stag, u64)) {
    let posted = rig.post();
    match posted.as_slice() {
        [Posted::Read { local, from }] => (*local, *from),
        other => panic!("one read was expected, not {other:?}"),
    }
}

//= test kbtp-6.6-direct-load-sequence
//= test kbtp-6.6-direct-load-valid
//= test kbtp-3.2-entry-address
#[test]
fn a_direct_load_reads_entry_block_entry_each_after_the_other() {
    let mut rig = Rig::open();
    rig.initiator.submit(direct(98, BLOCK), 7, NEVER).unwrap();
    let (scratch, from) = read_of(&mut rig);
    assert_eq!(from, (TABLE, 0x100 + 16 * 2));
    rig.read(scratch, &entry(BOUND, 1, 100, 0x3000)).unwrap();
    let (local, from) = read_of(&mut rig);
    assert_eq!(from, (POOL, 0x3000));
    assert_eq!(local, buffer(5, 100));
    rig.done(WorkOutcome::Read).unwrap();
    assert!(rig.finished().is_empty(), "not before the second look");
    let (scratch, from) = read_of(&mut rig);
    assert_eq!(from, (TABLE, 0x100 + 16 * 2));
    rig.read(scratch, &entry(BOUND, 1, 100, 0x3000)).unwrap();
    let done = rig.result().unwrap();
    assert_eq!((done.len, done.generation.get()), (ByteLen(100), 1));
    assert_eq!(rig.initiator.in_flight(), 0);
}

/// A read whose words are not of one moment may join a Block Offset to the Generation after it, and the last read that
/// Generation to the Block Offset of the binding after that: here 0 was the block of Generation 1 and is that of 5.
//= test kbtp-6.6-direct-load-valid
#[test]
fn a_direct_load_takes_no_block_whose_generation_it_did_not_know() {
    let mut rig = Rig::open();
    rig.initiator.submit(direct_any(100), 0, NEVER).unwrap();
    look(&mut rig, &entry(BOUND, 3, 100, 0));
    // Not the block: the entry once more. Had this read the offset of the next binding too, the last look would tell.
    look(&mut rig, &entry(BOUND, 3, 100, 0x1000));
    let (_, from) = read_of(&mut rig);
    assert_eq!(from, (POOL, 0x1000));
    rig.done(WorkOutcome::Read).unwrap();
    look(&mut rig, &entry(BOUND, 3, 100, 0x1000));
    assert_eq!(rig.result().unwrap().generation.get(), 3);
}

#[test]
fn a_direct_load_of_an_entry_that_never_stays_says_so() {
    let mut rig = Rig::open();
    rig.initiator.submit(direct_any(100), 0, NEVER).unwrap();
    for generation in 0..=u16::from(limits::DIRECT_LOAD_ATTEMPTS) {
        look(&mut rig, &entry(BOUND, 1 + 2 * generation, 100, 0));
    }
    let attempts = limits::DIRECT_LOAD_ATTEMPTS;
    assert_eq!(rig.result(), Err(Failure::Unstable { attempts }));
    assert!(rig.post().is_empty());
}

#[test]
fn a_direct_load_starts_over_while_the_entry_changes_and_then_says_so() {
    let mut rig = Rig::open();
    rig.initiator.submit(direct_any(100), 0, NEVER).unwrap();
    look(&mut rig, &entry(BOUND, 1, 100, 0));
    for attempt in 1..=u16::from(limits::DIRECT_LOAD_ATTEMPTS) {
        let at = u64::from(attempt - 1) * 0x1000;
        look(&mut rig, &entry(BOUND, attempt, 100, at));
        let (local, from) = read_of(&mut rig);
        assert_eq!(from, (POOL, at));
        assert_eq!(local.len, ByteLen(100));
        rig.done(WorkOutcome::Read).unwrap();
        look(&mut rig, &entry(BOUND, attempt + 1, 100, at + 0x1000));
    }
    let attempts = limits::DIRECT_LOAD_ATTEMPTS;
    assert_eq!(rig.result(), Err(Failure::Unstable { attempts }));
    assert!(rig.post().is_empty());
}

#[test]
fn a_direct_load_sees_a_free_between_its_looks() {
    let mut rig = Rig::open();
    rig.initiator.submit(direct(100, BLOCK), 0, NEVER).unwrap();
    let (scratch, _) = read_of(&mut rig);
    rig.read(scratch, &entry(BOUND, 1, 100, 0)).unwrap();
    read_of(&mut rig);
    rig.done(WorkOutcome::Read).unwrap();
    let (scratch, _) = read_of(&mut rig);
    rig.read(scratch, &entry(0, 2, 100, 0)).unwrap();
    assert_eq!(status_of(rig.result()), Status::NotValid);
}

#[test]
fn a_direct_load_answers_as_the_target_would() {
    let cases = [
        (entry(0, 3, 10, 0), None, Status::NotValid),
        (entry(SEALED, 3, 10, 0), None, Status::NotValid),
        (entry(VALID, 3, 10, 0), None, Status::NotSealed),
        (
            entry(BOUND, 3, 10, 0),
            Generation::new(2),
            Status::GenerationMismatch,
        ),
        (
            entry(VALID, 3, 10, 0),
            Generation::new(2),
            Status::GenerationMismatch,
        ),
    ];
    for (octets, generation, status) in cases {
        let mut rig = Rig::open();
        let request = Request::LoadDirect {
            handle: Handle(100),
            generation,
            into: buffer(5, BLOCK),
        };
        rig.initiator.submit(request, 0, NEVER).unwrap();
        let (scratch, _) = read_of(&mut rig);
        rig.read(scratch, &octets).unwrap();
        match rig.result() {
            Err(Failure::Status {
                status: got,
                generation,
                ..
            }) => {
                assert_eq!((got, generation), (status, Generation::new(3)));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn nothing_is_read_that_does_not_fit_and_a_second_look_decides() {
    // Longer than the buffer: a Status, once a second look says the same.
    let mut rig = Rig::open();
    rig.initiator.submit(direct(100, 64), 0, NEVER).unwrap();
    for _ in 0..2 {
        let (scratch, from) = read_of(&mut rig);
        assert_eq!(from.0, TABLE);
        rig.read(scratch, &entry(BOUND, 1, 65, 0)).unwrap();
    }
    assert_eq!(status_of(rig.result()), Status::LengthError);

    // Nowhere a block can be: the target is at fault.
    let nowhere = [
        entry(BOUND, 1, BLOCK + 1, 0),
        entry(BOUND, 1, 64, u64::MAX),
        entry(BOUND, 1, 64, u64::MAX - 63),
    ];
    for octets in nowhere {
        let mut rig = Rig::open();
        rig.initiator
            .submit(direct(100, 2 * BLOCK), 0, NEVER)
            .unwrap();
        let (scratch, _) = read_of(&mut rig);
        rig.read(scratch, &octets).unwrap();
        let (scratch, from) = read_of(&mut rig);
        assert_eq!(from.0, TABLE);
        let result = rig.read(scratch, &octets);
        assert!(matches!(
            result,
            Err(SessionError::Peer(PeerError::Ring { .. }))
        ));
        rig.initiator.handle_closed();
        assert!(matches!(rig.result(), Err(Failure::Lost { .. })));
    }

    // A torn first look is not: the second is the truth.
    let mut rig = Rig::open();
    rig.initiator.submit(direct(100, BLOCK), 0, NEVER).unwrap();
    let (scratch, _) = read_of(&mut rig);
    rig.read(scratch, &entry(BOUND, 1, u32::MAX, 0)).unwrap();
    let (scratch, _) = read_of(&mut rig);
    rig.read(scratch, &entry(BOUND, 1, 0, 0)).unwrap();
    let (scratch, _) = read_of(&mut rig);
    rig.read(scratch, &entry(BOUND, 1, 0, 0)).unwrap();
    assert_eq!(rig.result().unwrap().len, ByteLen(0));
}

#[test]
fn direct_loads_are_bounded_and_need_the_table() {
    let mut rig = Rig::open();
    for handle in [95, 128, u64::MAX] {
        let outside = SubmitError::OutsideTable {
            handle: Handle(handle),
        };
        assert_eq!(
            rig.initiator.submit(direct(handle, 1), 0, NEVER),
            Err(outside)
        );
    }
    rig.initiator.submit(direct(96, 1), 0, NEVER).unwrap();
    rig.initiator.submit(direct(127, 1), 0, NEVER).unwrap();
    let busy = SubmitError::Busy { limit: 2 };
    assert_eq!(rig.initiator.submit(direct(96, 1), 0, NEVER), Err(busy));
    // They take no credit.
    assert_eq!(rig.initiator.free_credits(), u32::from(CREDITS));
    let mut rig = Rig::granted(Grant {
        capabilities: SessionCapabilities::NONE,
        ..grant()
    });
    let none = SubmitError::NotGranted("DIRECT_LOAD");
    assert_eq!(rig.initiator.submit(direct(96, 1), 0, NEVER), Err(none));
}

#[test]
fn a_direct_load_given_up_waits_for_its_read_only() {
    let mut rig = Rig::open();
    let op = rig.initiator.submit(direct(100, BLOCK), 0, NEVER).unwrap();
    let (scratch, _) = read_of(&mut rig);
    rig.initiator.give_up(op);
    assert!(matches!(
        rig.result(),
        Err(Failure::GivenUp { sent: false, .. })
    ));
    assert_eq!(rig.initiator.in_flight(), 1);
    rig.read(scratch, &entry(BOUND, 1, 64, 0)).unwrap();
    assert_eq!(rig.initiator.in_flight(), 0);
    assert!(rig.post().is_empty());
    assert!(rig.finished().is_empty());
}

#[test]
fn a_direct_load_given_up_under_its_read_of_the_block_ends_with_that_read() {
    // A stream reports the read as flushed whose octets it had to drop.
    for outcome in [WorkOutcome::Flushed, WorkOutcome::Read] {
        let mut rig = Rig::open();
        let op = rig.initiator.submit(direct(100, BLOCK), 0, NEVER).unwrap();
        let (scratch, _) = read_of(&mut rig);
        rig.read(scratch, &entry(BOUND, 1, 64, 0)).unwrap();
        read_of(&mut rig);
        rig.initiator.give_up(op);
        rig.result().unwrap_err();
        assert_eq!(rig.initiator.poll_released(), None);
        rig.done(outcome).unwrap();
        assert_eq!(rig.initiator.in_flight(), 0);
        assert_eq!(rig.initiator.poll_released(), Some(Stag(5)));
    }
}

fn alloc(handle: u64, len: u32) -> Request {
    Request::AllocDirect {
        handle: Handle(handle),
        from: buffer(6, len),
        seal: true,
    }
}

fn slot(sequence: u32, block: u64) -> [u8; 16] {
    RingSlot {
        sequence: Ticket(sequence),
        block: BlockOffset(block),
    }
    .encode()
}

fn head(ticket: u32) -> WorkOutcome {
    let order = grant().ring_order;
    WorkOutcome::Atomic(RingCounter::at(Ticket(ticket), order).0)
}

/// An allocation of `len` octets whose `FetchAdd` gave `ticket`, and the read of its slot.
//= test kbtp-9.1-fetchadd-masked
fn with_ticket(rig: &mut Rig, len: u32, ticket: u32) -> (OpId, LocalBuffer) {
    let op = rig.initiator.submit(alloc(101, len), 1, NEVER).unwrap();
    let posted = rig.post();
    let add = Posted::FetchAdd {
        at: (COUNTER, 0x40),
        add: 0x1_0000_0010,
        mask: (1 << 63) | (1 << 31) | (1 << 6),
    };
    assert_eq!(posted, [add]);
    rig.done(head(ticket)).unwrap();
    let (scratch, from) = read_of(rig);
    assert_eq!(from, (RING, 0x200 + 16 * u64::from(ticket % 8)));
    (op, scratch)
}

/// The slot's block, read twice.
fn give_block(rig: &mut Rig, scratch: LocalBuffer, ticket: u32, block: u64) {
    rig.read(scratch, &slot(ticket, block)).unwrap();
    let (scratch, _) = read_of(rig);
    rig.read(scratch, &slot(ticket, block)).unwrap();
}

fn bind_of(message: (Header, Vec<u8>, Option<LocalBuffer>)) -> (Header, Bind) {
    let (header, body, tail) = message;
    assert_eq!((header.opcode, tail), (Opcode::Bind.to_wire(), None));
    (header, Bind::decode(body.as_slice().try_into().unwrap()))
}

//= test kbtp-6.6-direct-alloc-fetchadd
//= test kbtp-6.6-bind-after-write
//= test kbtp-3.3-add-data-mask
//= test kbtp-3.3-allocation-wait
//= test kbtp-6.6-slot-read-twice
#[test]
fn a_direct_allocation_takes_waits_confirms_writes_and_binds() {
    let mut rig = Rig::open();
    let (_, scratch) = with_ticket(&mut rig, 100, 13);
    // The slot of the last lap, then one whose block is not there yet, then the right one, torn, and right.
    rig.read(scratch, &slot(5, 0x11000)).unwrap();
    let (scratch, _) = read_of(&mut rig);
    rig.read(scratch, &slot(13, u64::MAX)).unwrap();
    let (scratch, _) = read_of(&mut rig);
    rig.read(scratch, &slot(13, 0x11000)).unwrap();
    let (scratch, _) = read_of(&mut rig);
    rig.read(scratch, &slot(13, 0x12000)).unwrap();
    let (scratch, _) = read_of(&mut rig);
    give_block(&mut rig, scratch, 13, 0x12000);
    let write = rig.post_one().unwrap();
    assert_eq!(
        write,
        Posted::Write {
            local: buffer(6, 100),
            to: (PARTITION, 0x12000)
        }
    );
    // The BIND follows at once: the stream keeps it behind the Write.
    let message = rig.message();
    let (header, bind) = bind_of(message);
    assert_eq!(
        (header.flags, header.handle),
        (RequestFlags::SEAL, Handle(101))
    );
    assert_eq!(bind.ticket, Ticket(13));
    assert_eq!(
        (bind.data_len, bind.block),
        (ByteLen(100), BlockOffset(0x12000))
    );
    rig.done(WorkOutcome::Sent).unwrap();
    rig.receive(&ok(&header, 1, 100, 0x12000)).unwrap();
    assert_eq!(rig.result().unwrap().block, BlockOffset(0x12000));
    assert_eq!(rig.initiator.usage().bound, 1);
}

#[test]
fn no_data_needs_no_write() {
    let mut rig = Rig::open();
    let (_, scratch) = with_ticket(&mut rig, 0, 0);
    give_block(&mut rig, scratch, 0, 0x10000);
    let message = rig.message();
    let (header, bind) = bind_of(message);
    assert_eq!(bind.data_len, ByteLen(0));
    rig.receive(&failed(&header, 1, Status::AlreadyValid))
        .unwrap();
    assert_eq!(status_of(rig.result()), Status::AlreadyValid);
    assert_eq!(rig.initiator.usage().at_least(), 0);
}

#[test]
fn a_ring_that_cannot_be_ends_the_session() {
    for outcome in [
        WorkOutcome::Atomic(0x1_0000_0020),
        WorkOutcome::Atomic(0x1_0000_0018),
        WorkOutcome::Atomic(0x1_8000_0010),
        WorkOutcome::Read,
    ] {
        let mut rig = Rig::open();
        rig.initiator.submit(alloc(100, 1), 0, NEVER).unwrap();
        rig.post();
        assert!(rig.done(outcome).is_err(), "{outcome:?}");
        assert!(!rig.initiator.is_open());
    }
    for block in [0, 0xf000, 0x10001, 0x18000, u64::MAX - 1] {
        let mut rig = Rig::open();
        let (_, scratch) = with_ticket(&mut rig, 1, 0);
        rig.read(scratch, &slot(0, block)).unwrap();
        let (scratch, _) = read_of(&mut rig);
        let result = rig.read(scratch, &slot(0, block));
        assert!(matches!(
            result,
            Err(SessionError::Peer(PeerError::Ring { .. }))
        ));
        assert!(
            rig.post().is_empty(),
            "nothing is written outside the partition"
        );
    }
}

//= test kbtp-3.4-ticket-timeout
#[test]
fn a_ticket_without_a_block_runs_out_and_direct_allocation_with_it() {
    let mut rig = Rig::open();
    let (_, scratch) = with_ticket(&mut rig, 1, 0);
    rig.after_ms(749);
    assert!(rig.finished().is_empty());
    rig.after_ms(1);
    let ticket = Ticket(0);
    assert_eq!(rig.result(), Err(Failure::TicketTimeout { ticket }));
    // It still looks for the block, to give it back.
    rig.read(scratch, &slot(1, 0)).unwrap();
    read_of(&mut rig);
    assert!(rig.initiator.may_allocate_direct());
    rig.after_ms(250);
    assert!(!rig.initiator.may_allocate_direct());
    assert_eq!(rig.initiator.in_flight(), 0);
    assert!(rig.finished().is_empty());
    let lost = SubmitError::NotGranted("DIRECT_ALLOC");
    assert_eq!(rig.initiator.submit(alloc(100, 1), 0, NEVER), Err(lost));
    // Its buffer was never posted: the caller has it, and its STag.
    assert_eq!(rig.initiator.poll_released(), None);
    // The read that was posted ends without harm.
    rig.done(WorkOutcome::Read).unwrap();
}

//= test kbtp-3.4-ticket-timeout
//= test kbtp-3.4-direct-alloc-disabled
#[test]
fn nothing_is_read_for_a_ticket_that_the_target_may_have_reclaimed() {
    // The answer to the FetchAdd comes too late.
    let mut rig = Rig::open();
    rig.initiator.submit(alloc(101, 1), 1, NEVER).unwrap();
    assert_eq!(rig.post().len(), 1);
    rig.now = rig.now.after_ms(1000);
    rig.done(head(3)).unwrap();
    let ticket = Ticket(3);
    assert_eq!(rig.result(), Err(Failure::TicketTimeout { ticket }));
    assert!(rig.post().is_empty());
    assert_eq!(rig.initiator.in_flight(), 0);
    assert!(!rig.initiator.may_allocate_direct());

    // Either read of the slot does, and is handled before the timer.
    for confirming in [false, true] {
        let mut rig = Rig::open();
        let (_, mut scratch) = with_ticket(&mut rig, 100, 3);
        if confirming {
            rig.read(scratch, &slot(3, 0x13000)).unwrap();
            (scratch, _) = read_of(&mut rig);
        }
        rig.now = rig.now.after_ms(1000);
        rig.read(scratch, &slot(3, 0x13000)).unwrap();
        assert_eq!(rig.result(), Err(Failure::TicketTimeout { ticket }));
        assert!(rig.post().is_empty());
        assert_eq!(rig.initiator.in_flight(), 0);
    }
}

#[test]
fn nothing_is_written_through_a_ticket_that_is_running_out() {
    let mut rig = Rig::open();
    let (_, scratch) = with_ticket(&mut rig, 100, 3);
    // The block comes late, and its read is handled before the timer.
    rig.now = rig.now.after_ms(750);
    give_block(&mut rig, scratch, 3, 0x13000);
    let ticket = Ticket(3);
    assert_eq!(rig.result(), Err(Failure::TicketTimeout { ticket }));
    let message = rig.message();
    assert_eq!(bind_of(message).1.data_len, ByteLen(0));
    assert!(rig.post().is_empty());
}

//= test kbtp-6.6-frees-use-free
#[test]
fn an_allocation_given_up_uses_its_ticket_up_and_frees_the_handle() {
    let mut rig = Rig::open();
    let (op, scratch) = with_ticket(&mut rig, 100, 3);
    rig.initiator.give_up(op);
    assert!(matches!(
        rig.result(),
        Err(Failure::GivenUp { sent: false, .. })
    ));
    give_block(&mut rig, scratch, 3, 0x13000);
    let message = rig.message();
    let (header, bind) = bind_of(message);
    assert_eq!((bind.ticket, bind.data_len), (Ticket(3), ByteLen(0)));
    assert_eq!(header.flags, RequestFlags::NONE);
    rig.receive(&ok(&header, 1, 0, 0x13000)).unwrap();
    let (free, body, _) = rig.message();
    assert_eq!(
        (free.opcode, free.handle),
        (Opcode::Free.to_wire(), Handle(101))
    );
    assert!(body.is_empty());
    assert_ne!(free.request_id, header.request_id);
    rig.receive(&ok(&free, 2, 0, 0)).unwrap();
    assert_eq!(rig.initiator.in_flight(), 0);
    assert_eq!(rig.initiator.usage(), Usage::default());
    assert!(rig.finished().is_empty());
    assert!(rig.initiator.may_allocate_direct());
}

#[test]
fn an_allocation_given_up_between_write_and_bind_binds_no_data() {
    let mut rig = Rig::open();
    let (op, scratch) = with_ticket(&mut rig, 100, 3);
    give_block(&mut rig, scratch, 3, 0x13000);
    rig.post_one().unwrap();
    rig.initiator.give_up(op);
    assert!(matches!(
        rig.result(),
        Err(Failure::GivenUp { sent: false, .. })
    ));
    let message = rig.message();
    assert_eq!(bind_of(message).1.data_len, ByteLen(0));
    rig.done(WorkOutcome::Sent).unwrap();

    // After the BIND it is too late: it may be bound.
    let mut rig = Rig::open();
    let (op, scratch) = with_ticket(&mut rig, 100, 3);
    give_block(&mut rig, scratch, 3, 0x13000);
    rig.post_one().unwrap();
    let message = rig.message();
    let (header, _) = bind_of(message);
    rig.initiator.give_up(op);
    assert!(matches!(
        rig.result(),
        Err(Failure::GivenUp { sent: true, .. })
    ));
    rig.receive(&ok(&header, 1, 100, 0)).unwrap();
    assert_eq!(rig.initiator.usage().bound, 1);
    assert!(rig.post().is_empty());
}

#[test]
fn an_abandoned_ticket_ends_direct_allocation() {
    let mut rig = Rig::open();
    let (_, scratch) = with_ticket(&mut rig, 0, 3);
    give_block(&mut rig, scratch, 3, 0x13000);
    let message = rig.message();
    let (header, _) = bind_of(message);
    rig.receive(&failed(&header, 0, Status::TicketAbandoned))
        .unwrap();
    assert_eq!(status_of(rig.result()), Status::TicketAbandoned);
    assert!(!rig.initiator.may_allocate_direct());
}

//= test kbtp-3.4-quota-not-exceeded
//= test kbtp-3.4-direct-alloc-disabled
#[test]
fn a_ticket_that_its_bind_did_not_use_up_stays_in_the_quota_and_ends_direct_allocation() {
    for status in [Status::AlreadyValid, Status::NotAuthorized] {
        let mut rig = Rig::open();
        let (_, scratch) = with_ticket(&mut rig, 0, 3);
        give_block(&mut rig, scratch, 3, 0x13000);
        let message = rig.message();
        let (header, _) = bind_of(message);
        rig.receive(&failed(&header, 1, status)).unwrap();
        assert_eq!(status_of(rig.result()), status);
        let usage = rig.initiator.usage();
        assert_eq!((usage.at_least(), usage.at_most()), (0, 1));
        // The target revokes the STags when the ticket is over its time.
        let gone = SubmitError::NotGranted("DIRECT_ALLOC");
        assert_eq!(rig.initiator.submit(alloc(101, 1), 0, NEVER), Err(gone));
    }
}

#[test]
fn a_direct_allocation_beyond_the_quota_would_wait_for_ever() {
    let mut rig = Rig::open();
    rig.initiator.set_usage(7, 1);
    let over = SubmitError::Quota { quota: 8 };
    assert_eq!(rig.initiator.submit(alloc(100, 1), 0, NEVER), Err(over));
    let long = SubmitError::TooLong {
        what: "the block",
        len: ByteLen(BLOCK + 1),
        limit: ByteLen(BLOCK),
    };
    let mut rig = Rig::open();
    assert_eq!(
        rig.initiator.submit(alloc(100, BLOCK + 1), 0, NEVER),
        Err(long)
    );
}

//= test kbtp-9.2-slot-of-ticket
#[test]
fn unmasked_counters_hold_the_ticket_alone() {
    let mut rig = Rig::granted(Grant {
        atomic_form: kbtp_wire::AtomicForm::Unmasked,
        ..grant()
    });
    rig.initiator.submit(alloc(100, 0), 0, NEVER).unwrap();
    let add = Posted::FetchAdd {
        at: (COUNTER, 0x40),
        add: 1 << 32,
        mask: 0,
    };
    assert_eq!(rig.post(), [add]);
    rig.done(WorkOutcome::Atomic(11 << 32)).unwrap();
    let (_, from) = read_of(&mut rig);
    assert_eq!(from, (RING, 0x200 + 16 * 3));
}
