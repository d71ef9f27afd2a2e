//! What a stream does when all is well.

use super::*;
use crate::{CopyFirst, limits};
use kbtp_fabric::{
    LocalBuffer, PostError, RemoteBuffer, StreamError, WorkId, WorkOutcome, WorkRequest,
};
use kbtp_wire::ByteLen;
use kbtp_wire::ddp::Msn;
use std::sync::atomic::Ordering;

pub(super) fn local(stag: Stag, offset: u64, len: u32) -> LocalBuffer {
    LocalBuffer {
        stag,
        offset: TaggedOffset(offset),
        len: ByteLen(len),
    }
}

pub(super) fn remote(stag: Stag, offset: u64) -> RemoteBuffer {
    RemoteBuffer {
        stag,
        offset: TaggedOffset(offset),
    }
}

pub(super) fn send(head: &[u8]) -> WorkRequest<'_> {
    WorkRequest::Send {
        head,
        tail: None,
        solicited: false,
        invalidate: None,
    }
}

pub(super) fn done(id: u64, outcome: WorkOutcome) -> Event {
    Event::Done {
        id: WorkId(id),
        outcome,
    }
}

pub(super) fn pattern(region: &Region, seed: u8) -> Vec<u8> {
    let octets: Vec<u8> = (0..region.len())
        .map(|at| (at * 7 + at / 251 + u64::from(seed)).to_le_bytes()[0])
        .collect();
    region.write(0, &octets).unwrap();
    octets
}

pub(super) fn contents(region: &Region) -> Vec<u8> {
    let mut octets = vec![0; usize::try_from(region.len()).unwrap()];
    region.read(0, &mut octets).unwrap();
    octets
}

#[test]
fn a_send_has_head_and_tail() {
    //= test rfc5041-5.4-length-delivered
    //= test rfc5041-4.3-rsvdulp-delivered
    let mut pair = Pair::default();
    let memory = region(4096);
    let octets = pattern(&memory, 1);
    let stag = register(&mut pair.a, &memory, 0x1000, Access::LOCAL_READ);
    let work = WorkRequest::Send {
        head: b"head",
        tail: Some(local(stag, 0x1010, 1000)),
        solicited: true,
        invalidate: None,
    };
    pair.a.post(WorkId(9), &work, true).unwrap();
    pair.settle();
    assert_eq!(events(&mut pair.a), [done(9, WorkOutcome::Sent)]);
    let got = events(&mut pair.b);
    let [
        Event::Received {
            slot,
            len: ByteLen(1004),
            solicited: true,
            invalidated: None,
        },
    ] = got[..]
    else {
        panic!("{got:?}");
    };
    let mut want = b"head".to_vec();
    want.extend_from_slice(&octets[16..1016]);
    assert_eq!(pair.b.message(slot), want);
    pair.b.release(slot);
    assert_eq!(pair.b.message(slot), b"");
}

#[test]
fn a_send_with_invalidate_ends_the_stag() {
    //= test rfc5040-5.3-invalidate-on-delivery
    let mut pair = Pair::default();
    let memory = region(4096);
    let stag = register(&mut pair.b, &memory, 0, ALL_ACCESS);
    let work = WorkRequest::Send {
        head: b"x",
        tail: None,
        solicited: false,
        invalidate: Some(stag),
    };
    pair.a.post(WorkId(1), &work, true).unwrap();
    pair.settle();
    assert!(matches!(
        events(&mut pair.b)[..],
        [Event::Received {
            invalidated: Some(got),
            ..
        }] if got == stag
    ));
    assert!(pair.b.invalidate(stag).is_err());
}

#[test]
fn writes_and_reads_of_all_sizes_arrive() {
    //= test rfc5041-5.2-placed
    //= test rfc5041-5.2-to-offset
    //= test rfc5041-4.1-tagged-flag
    //= test rfc5040-5.1-write-not-delivered
    //= test rfc5040-5.2.1-read-answered
    //= test rfc5040-5.2.2-response-delivered
    //= test rfc5040-5.2-read-two-messages
    for copy_first in [
        CopyFirst::Nothing,
        CopyFirst::ReadResponses,
        CopyFirst::Writable,
        CopyFirst::Everything,
    ] {
        let config = Config {
            copy_first,
            ..Config::default()
        };
        let mut pair = Pair::established(&config, &config);
        let len = 300_000;
        let mine = region(len);
        let theirs = region(len);
        let octets = pattern(&mine, 3);
        let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
        let their_stag = register(&mut pair.b, &theirs, 1 << 40, ALL_ACCESS);
        for (id, len) in [0, 1, 15, 257, 4096, 65_521, 65_536, 200_001]
            .into_iter()
            .enumerate()
        {
            theirs.fill(0, theirs.len(), 0xEE).unwrap();
            let id = id as u64;
            let write = WorkRequest::Write {
                local: local(my_stag, 5, len),
                remote: remote(their_stag, (1 << 40) + 9),
                immediate: None,
            };
            pair.a.post(WorkId(id), &write, true).unwrap();
            pair.settle();
            assert_eq!(events(&mut pair.a), [done(id, WorkOutcome::Sent)]);
            let len = len as usize;
            let got = contents(&theirs);
            assert_eq!(got[9..9 + len], octets[5..5 + len]);
            assert!(got[..9].iter().chain(&got[9 + len..]).all(|o| *o == 0xEE));
        }
        let octets = pattern(&theirs, 77);
        for (id, len) in [0, 1, 16, 5000, 65_536, 200_001].into_iter().enumerate() {
            mine.fill(0, mine.len(), 0xEE).unwrap();
            let id = id as u64;
            let read = WorkRequest::Read {
                local: local(my_stag, 3, len),
                remote: remote(their_stag, (1 << 40) + 21),
            };
            pair.a.post(WorkId(id), &read, true).unwrap();
            pair.settle();
            assert_eq!(events(&mut pair.a), [done(id, WorkOutcome::Read)]);
            let len = len as usize;
            let got = contents(&mine);
            assert_eq!(got[3..3 + len], octets[21..21 + len]);
            assert!(got[..3].iter().chain(&got[3 + len..]).all(|o| *o == 0xEE));
        }
        assert!(events(&mut pair.b).is_empty());
    }
}

#[test]
fn atomics_act_on_native_words_in_order() {
    //= test rfc7306-5-both-operations
    //= test rfc7306-5.2.1-in-order
    //= test rfc7306-5.2.1-answered
    //= test rfc7306-5.2.2-response-delivered
    //= test rfc7306-5.4-complete-on-response
    //= test rfc7306-5.1.1-native-order
    //= test rfc7306-5.2.2-responses-in-order
    let mut pair = Pair::default();
    let memory = region(4096);
    let word = memory.u64_at(16).unwrap();
    word.store(0x0000_0005_0000_0070, Ordering::Relaxed);
    let stag = register(&mut pair.b, &memory, 0, ALL_ACCESS);
    let at = remote(stag, 16);
    let add = WorkRequest::FetchAdd {
        remote: at,
        add: 0x0000_0001_0000_0010,
        mask: 1 << 63 | 1 << 31 | 1 << 6,
    };
    let swap = WorkRequest::CmpSwap {
        remote: at,
        compare: 0x0000_0006_0000_0000,
        compare_mask: u64::MAX,
        swap: 0xAB,
        swap_mask: 0xFF,
    };
    pair.a.post(WorkId(1), &add, true).unwrap();
    pair.a.post(WorkId(2), &swap, true).unwrap();
    pair.a.post(WorkId(3), &swap, true).unwrap();
    pair.settle();
    assert_eq!(
        events(&mut pair.a),
        [
            done(1, WorkOutcome::Atomic(0x0000_0005_0000_0070)),
            done(2, WorkOutcome::Atomic(0x0000_0006_0000_0000)),
            done(3, WorkOutcome::Atomic(0x0000_0006_0000_00AB)),
        ]
    );
    assert_eq!(word.load(Ordering::Relaxed), 0x0000_0006_0000_00AB);
}

#[test]
fn immediate_data_follows_its_write() {
    //= test rfc7306-6.3-immediate-untagged
    //= test rfc7306-6.3-immediate-in-order
    //= test rfc7306-6.3-immediate-eight-octets
    let mut pair = Pair::default();
    let mine = region(4096);
    let theirs = region(4096);
    let octets = pattern(&mine, 9);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let write = WorkRequest::Write {
        local: local(my_stag, 0, 4096),
        remote: remote(their_stag, 0),
        immediate: Some(0xDEAD_BEEF),
    };
    pair.a.post(WorkId(1), &write, true).unwrap();
    pair.settle();
    assert_eq!(
        events(&mut pair.b),
        [Event::Immediate { data: 0xDEAD_BEEF }]
    );
    assert_eq!(contents(&theirs), octets);
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Sent)]);
}

#[test]
fn immediates_hold_a_slot_until_they_are_taken() {
    //= test rfc7306-6.3-immediate-consumes-one
    //= test rfc5042-6.4.6-overflow-contained
    let b = Config {
        receive_slots: 2,
        ..Config::default()
    };
    let mut pair = Pair::established(&Config::default(), &b);
    let mine = region(4096);
    let stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let write = WorkRequest::Write {
        local: local(stag, 0, 0),
        remote: remote(Stag(0), 0),
        immediate: Some(1),
    };
    for round in 0..4 {
        pair.a.post(WorkId(round), &write, false).unwrap();
        pair.a.post(WorkId(round), &write, false).unwrap();
        pair.settle();
        assert_eq!(events(&mut pair.b).len(), 2, "round {round}");
    }
    for _ in 0..3 {
        pair.a.post(WorkId(9), &write, false).unwrap();
    }
    pair.settle();
    assert!(matches!(
        pair.b.take_error(),
        Some(StreamError::Protocol { reason }) if reason.contains("no buffer")
    ));
}

#[test]
fn completions_come_in_the_order_of_posting() {
    //= test rfc5040-5.5-read-complete-on-response
    //= test rfc5040-5.5-complete-after-ddp
    //= test rfc5040-5.5-completed-in-order
    let mut pair = Pair::default();
    let mine = region(4096);
    let theirs = region(4096);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 64),
        remote: remote(their_stag, 0),
    };
    pair.a.post(WorkId(1), &read, true).unwrap();
    pair.a.post(WorkId(2), &send(b"after"), true).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    assert!(
        events(&mut pair.a).is_empty(),
        "the Send waits for the Read"
    );
    pair.wire.push(&mut pair.b, &octets, pair.now);
    pair.settle();
    assert_eq!(
        events(&mut pair.a),
        [done(1, WorkOutcome::Read), done(2, WorkOutcome::Sent)]
    );
}

#[test]
fn no_more_reads_are_out_than_agreed() {
    //= test rfc5040-6.1-ird-ord-provided
    //= test rfc7306-5.2.2-request-buffers
    //= test rfc5040-5.2.2-read-queue-buffers
    //= test rfc5040-6.1-ord-not-exceeded
    let b = Config {
        inbound_reads: 2,
        ..Config::default()
    };
    let mut pair = Pair::established(&Config::default(), &b);
    let mine = region(4096);
    let theirs = region(4096);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 64),
        remote: remote(their_stag, 0),
    };
    for id in 0..10 {
        pair.a.post(WorkId(id), &read, true).unwrap();
    }
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    assert_eq!(ulpdus(&octets).len(), 2);
    pair.wire.push(&mut pair.b, &octets, pair.now);
    pair.settle();
    assert_eq!(events(&mut pair.a).len(), 10);
}

#[test]
fn reads_need_a_depth_and_a_writable_sink() {
    let b = Config {
        inbound_reads: 0,
        ..Config::default()
    };
    let mut pair = Pair::established(&Config::default(), &b);
    let mine = region(4096);
    let stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let read = WorkRequest::Read {
        local: local(stag, 0, 64),
        remote: remote(Stag(7), 0),
    };
    assert!(matches!(
        pair.a.post(WorkId(1), &read, true),
        Err(PostError::Unsupported { .. })
    ));
    let mut pair = Pair::default();
    let stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let read = WorkRequest::Read {
        local: local(stag, 0, 64),
        remote: remote(Stag(7), 0),
    };
    assert!(matches!(
        pair.a.post(WorkId(1), &read, true),
        Err(PostError::Unsupported { .. })
    ));
    let write = WorkRequest::Write {
        local: local(stag, 4090, 7),
        remote: remote(Stag(7), 0),
        immediate: None,
    };
    assert!(matches!(
        pair.a.post(WorkId(1), &write, true),
        Err(PostError::Local(kbtp_fabric::LocalError::Range { .. }))
    ));
}

#[test]
fn the_send_queue_is_bounded() {
    //= test rfc5042-6.4.3.2-cq-no-overflow
    //= test rfc5040-8.1.1-no-shared-cq
    let a = Config {
        send_queue: 3,
        head_ring_len: 16,
        ..Config::default()
    };
    let mut pair = Pair::established(&a, &Config::default());
    for id in 0..3 {
        pair.a.post(WorkId(id), &send(b"five!"), true).unwrap();
    }
    assert!(matches!(
        pair.a.post(WorkId(3), &send(b""), true),
        Err(PostError::QueueFull)
    ));
    pair.settle();
    assert!(matches!(
        pair.a.post(WorkId(3), &send(b""), true),
        Err(PostError::QueueFull)
    ));
    assert_eq!(events(&mut pair.a).len(), 3);
    // Now the heads are the bound.
    pair.a.post(WorkId(4), &send(b"ten octets"), true).unwrap();
    assert!(matches!(
        pair.a.post(WorkId(5), &send(b"ten octets"), true),
        Err(PostError::QueueFull)
    ));
    assert!(matches!(
        pair.a.post(WorkId(6), &send(&[0; 17]), true),
        Err(PostError::Local(_))
    ));
}

#[test]
fn message_sequence_numbers_wrap() {
    //= test rfc5041-4.3-msn
    let mut pair = Pair::default();
    for connection in [&mut pair.a, &mut pair.b] {
        connection.sending.set_msn(Msn(u32::MAX));
        connection.assembly.set_msn(Msn(u32::MAX));
    }
    let memory = region(4096);
    let stag = register(&mut pair.b, &memory, 0, ALL_ACCESS);
    for id in 0..3 {
        pair.a.post(WorkId(id), &send(b"x"), true).unwrap();
        let add = WorkRequest::FetchAdd {
            remote: remote(stag, 0),
            add: 1,
            mask: 0,
        };
        pair.a.post(WorkId(id), &add, true).unwrap();
    }
    pair.settle();
    assert_eq!(events(&mut pair.a).len(), 6);
    assert_eq!(events(&mut pair.b).len(), 3);
}

#[test]
fn octets_for_a_retired_stag_are_dropped() {
    let mut pair = Pair::default();
    let mine = region(65_536);
    let theirs = region(65_536);
    pattern(&mine, 1);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let write = WorkRequest::Write {
        local: local(my_stag, 0, 65_536),
        remote: remote(their_stag, 0),
        immediate: None,
    };
    pair.a.post(WorkId(1), &write, true).unwrap();
    // Half of it is here when the buffer is given up.
    let octets = pair.wire.pull(&mut pair.a, 30_000, pair.now);
    pair.wire.push(&mut pair.b, &octets, pair.now);
    pair.b.retire(their_stag).unwrap();
    theirs.fill(0, 65_536, 0xEE).unwrap();
    pair.settle();
    assert!(contents(&theirs).iter().all(|o| *o == 0xEE));
    // The stream goes on.
    pair.a.post(WorkId(2), &write, true).unwrap();
    pair.a.post(WorkId(3), &send(b"still here"), true).unwrap();
    pair.settle();
    assert_eq!(events(&mut pair.a).len(), 3);
    assert_eq!(events(&mut pair.b).len(), 1);
    assert!(contents(&theirs).iter().all(|o| *o == 0xEE));
}

#[test]
fn a_read_into_a_retired_stag_is_flushed() {
    let mut pair = Pair::default();
    let mine = region(4096);
    let theirs = region(4096);
    pattern(&theirs, 1);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 4096),
        remote: remote(their_stag, 0),
    };
    pair.a.post(WorkId(1), &read, true).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    pair.a.retire(my_stag).unwrap();
    pair.wire.push(&mut pair.b, &octets, pair.now);
    pair.settle();
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Flushed)]);
    assert!(contents(&mine).iter().all(|o| *o == 0));
    assert!(!pair.a.is_ended());
}

#[test]
fn a_read_whose_sink_is_retired_half_way_is_flushed() {
    let mut pair = Pair::default();
    let mine = region(4096);
    let theirs = region(4096);
    pattern(&theirs, 1);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 4096),
        remote: remote(their_stag, 0),
    };
    pair.a.post(WorkId(1), &read, true).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    pair.wire.push(&mut pair.b, &octets, pair.now);
    let answer = pair.wire.pull(&mut pair.b, usize::MAX, pair.now);
    // All but the CRC; then the STag goes, and with it the check of a later segment.
    let (most, rest) = answer.split_at(answer.len() - 10);
    pair.wire.push(&mut pair.a, most, pair.now);
    pair.a.retire(my_stag).unwrap();
    mine.fill(0, 4096, 0xEE).unwrap();
    pair.wire.push(&mut pair.a, rest, pair.now);
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Flushed)]);
    assert!(contents(&mine).iter().all(|o| *o == 0xEE));
}

#[test]
fn an_stag_can_end_while_its_octets_go_out() {
    let mut pair = Pair::default();
    let mine = region(61_440);
    let theirs = region(61_440);
    let octets = pattern(&mine, 5);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let write = WorkRequest::Write {
        local: local(my_stag, 0, 61_440),
        remote: remote(their_stag, 0),
        immediate: None,
    };
    pair.a.post(WorkId(1), &write, true).unwrap();
    let first = pair.wire.pull(&mut pair.a, 10_000, pair.now);
    pair.a.invalidate(my_stag).unwrap();
    mine.fill(0, 61_440, 0xEE).unwrap();
    pair.wire.push(&mut pair.b, &first, pair.now);
    pair.settle();
    assert_eq!(contents(&theirs), octets);
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Sent)]);
}

#[test]
fn an_stag_that_ends_under_posted_work_ends_the_stream() {
    //= test rfc5040-7.1-local-error
    let mut pair = Pair::default();
    let mine = region(4096);
    let stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let write = WorkRequest::Write {
        local: local(stag, 0, 4096),
        remote: remote(Stag(1), 0),
        immediate: None,
    };
    pair.a.post(WorkId(1), &write, true).unwrap();
    pair.a.invalidate(stag).unwrap();
    pair.settle();
    assert!(matches!(
        pair.b.take_error(),
        Some(StreamError::PeerTerminated { reason }) if reason.contains("layer 0, type 0")
    ));
    assert!(matches!(
        pair.a.take_error(),
        Some(StreamError::Connection { .. })
    ));
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Flushed)]);
}

#[test]
fn a_source_that_changes_under_a_copied_answer_does_no_harm() {
    let mut pair = Pair::default();
    let mine = region(4096);
    let theirs = region(4096);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 4096),
        remote: remote(their_stag, 0),
    };
    pair.a.post(WorkId(1), &read, true).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    pair.wire.push(&mut pair.b, &octets, pair.now);
    let first = pair.wire.pull(&mut pair.b, 100, pair.now);
    theirs.fill(0, 4096, 0xEE).unwrap();
    pair.wire.push(&mut pair.a, &first, pair.now);
    pair.settle();
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Read)]);
}

/// What is sent from where it lies ends the stream if it changes on the way; what is copied first does not.
#[test]
fn payload_is_copied_as_far_as_asked_for() {
    let writable = Access::LOCAL;
    let fixed = Access::LOCAL_READ;
    for (copy_first, access, copied) in [
        (CopyFirst::Nothing, writable, false),
        (CopyFirst::ReadResponses, writable, false),
        (CopyFirst::Writable, writable, true),
        (CopyFirst::Writable, fixed, false),
        (CopyFirst::Everything, fixed, true),
    ] {
        let config = Config {
            copy_first,
            ..Config::default()
        };
        let mut pair = Pair::established(&config, &Config::default());
        let mine = region(4096);
        let theirs = region(4096);
        let my_stag = register(&mut pair.a, &mine, 0, access);
        let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
        let write = WorkRequest::Write {
            local: local(my_stag, 0, 4096),
            remote: remote(their_stag, 0),
            immediate: None,
        };
        pair.a.post(WorkId(1), &write, true).unwrap();
        let first = pair.wire.pull(&mut pair.a, 100, pair.now);
        mine.fill(0, 4096, 0xEE).unwrap();
        pair.wire.push(&mut pair.b, &first, pair.now);
        pair.settle();
        let arrived = !pair.b.is_ended();
        assert_eq!(arrived, copied, "{copy_first:?} {access:?}");
        if arrived {
            assert_eq!(contents(&theirs), [0; 4096], "as it was");
        }
    }
}

#[test]
fn large_payload_is_hardly_read_ahead_of() {
    let mut pair = Pair::default();
    let mine = region(1 << 20);
    let theirs = region(1 << 20);
    let octets = pattern(&mine, 4);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let write = WorkRequest::Write {
        local: local(my_stag, 0, 50_000),
        remote: remote(their_stag, 0),
        immediate: None,
    };
    assert_eq!(pair.b.recv_vec().octets(), 16_384);
    pair.a.post(WorkId(1), &write, true).unwrap();
    pair.a.post(WorkId(2), &send(&[1; 40]), true).unwrap();
    pair.a.post(WorkId(3), &write, true).unwrap();
    let sent = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    // The first header, and of its payload what came with it.
    pair.wire.push(&mut pair.b, &sent[..1000], pair.now);
    let list = pair.b.recv_vec();
    assert_eq!(list.entries(), 2);
    assert_eq!(list.octets(), 50_000 - (1000 - 16) + limits::AHEAD_OF_LARGE);
    pair.wire.push(&mut pair.b, &sent[1000..], pair.now);
    assert_eq!(contents(&theirs)[..50_000], octets[..50_000]);
    assert_eq!(pair.b.recv_vec().octets(), limits::AHEAD_OF_LARGE);
    // Many small messages get the whole buffer again.
    for id in 0..40 {
        pair.a.post(WorkId(id), &send(&[1; 40]), false).unwrap();
    }
    pair.settle();
    assert_eq!(pair.b.recv_vec().octets(), 16_384);
    assert_eq!(events(&mut pair.b).len(), 41);
}

#[test]
fn answers_and_posted_work_take_turns() {
    let mut pair = Pair::default();
    let mine = region(4096);
    let theirs = region(4096);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 8),
        remote: remote(their_stag, 0),
    };
    for id in 0..4 {
        pair.a.post(WorkId(id), &read, true).unwrap();
    }
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    pair.wire.push(&mut pair.b, &octets, pair.now);
    for id in 0..4 {
        pair.b.post(WorkId(id), &send(b"mine"), true).unwrap();
    }
    let octets = pair.wire.pull(&mut pair.b, usize::MAX, pair.now);
    let opcodes: Vec<u8> = ulpdus(&octets).iter().map(|u| u[1] & 15).collect();
    assert_eq!(opcodes, [2, 3, 2, 3, 2, 3, 2, 3]);
}
