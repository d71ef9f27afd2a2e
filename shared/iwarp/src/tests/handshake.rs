//! MPA startup: both roles, both revisions, the three RTR indications, and what can go wrong.

use super::*;
use crate::Handshake;
use kbtp_fabric::{CloseReason, LocalError, StreamError, WorkId, WorkRequest};
use kbtp_wire::mpa::RtrKinds;

const SEND: WorkRequest<'_> = WorkRequest::Send {
    head: b"hi",
    tail: None,
    solicited: false,
    invalidate: None,
};

#[test]
fn private_data_goes_both_ways() {
    //= test rfc6581-6-revision-1-accepted
    //= test rfc5044-7.1.2-initiator-sends-request
    //= test rfc5044-7.1-bound-at-full-operation
    for handshake in [Handshake::Enhanced, Handshake::Original] {
        let config = Config {
            handshake,
            ..Config::default()
        };
        let mut pair = Pair::new(&config, &Config::default());
        assert_eq!(pair.b.startup(), Startup::Pending);
        pair.settle();
        assert_eq!(pair.b.peer_private_data(), b"from a");
        assert_eq!(pair.a.startup(), Startup::Pending);
        pair.b.accept(b"from b", pair.now).unwrap();
        pair.settle();
        assert_eq!(pair.a.peer_private_data(), b"from b");
        assert_eq!(pair.a.startup(), Startup::Established);
    }
}

#[test]
fn private_data_has_the_room_that_the_form_leaves() {
    //= test rfc5044-7.1.2-initiator-sends-request
    for (handshake, room) in [(Handshake::Enhanced, 508), (Handshake::Original, 512)] {
        let config = Config {
            handshake,
            ..Config::default()
        };
        let with = |len| Connection::initiator(&config, [1; 32], &vec![7; len], Time(0));
        assert!(with(room).is_ok());
        let error = with(room + 1).unwrap_err();
        assert!(
            matches!(error, LocalError::Limit { limit, .. } if limit == room as u64),
            "{error:?}"
        );
    }
}

#[test]
fn the_request_waits_for_its_answer() {
    //= test rfc5044-7.1.2-responder-waits
    let mut pair = Pair::new(&Config::default(), &Config::default());
    assert!(pair.b.accept(b"", pair.now).is_err());
    pair.settle();
    assert!(!pair.b.wants_read());
    assert!(pair.b.recv_vec().is_empty());
    assert!(pair.b.accept(&[0; 509], pair.now).is_err());
    pair.b.accept(&[0; 508], pair.now).unwrap();
    assert!(pair.b.accept(b"", pair.now).is_err());
    assert!(pair.b.wants_read());
}

#[test]
fn a_rejection_carries_private_data() {
    //= test rfc5044-7.1.2-reply-tells
    //= test rfc5044-7.1.2-rejected
    let mut pair = Pair::new(&Config::default(), &Config::default());
    pair.settle();
    pair.b.reject(b"no", pair.now).unwrap();
    pair.settle();
    assert_eq!(pair.a.startup(), Startup::Rejected);
    assert_eq!(pair.a.peer_private_data(), b"no");
    assert!(matches!(
        pair.a.take_error(),
        Some(StreamError::Protocol { .. })
    ));
    assert_eq!(pair.b.startup(), Startup::Rejected);
    assert!(matches!(pair.b.take_error(), Some(StreamError::ClosedHere)));
}

#[test]
fn depths_are_those_of_the_scarcer_side() {
    let a = Config {
        outbound_reads: 10,
        inbound_reads: 3,
        ..Config::default()
    };
    let b = Config {
        outbound_reads: 5,
        inbound_reads: 7,
        ..Config::default()
    };
    let pair = Pair::established(&a, &b);
    //= test rfc6581-9.1-pass-ird-ord
    let said = |c: &Connection| {
        let (ird, ord) = c.peer_read_depths().unwrap();
        (ird.negotiated(), ord.negotiated())
    };
    assert_eq!(said(&pair.a), (Some(7), Some(3)));
    assert_eq!(said(&pair.b), (Some(3), Some(10)));
    let caps = |c: &Connection| {
        let caps = c.capabilities();
        (caps.outbound_reads, caps.inbound_reads)
    };
    assert_eq!(caps(&pair.a), (7, 3));
    assert_eq!(caps(&pair.b), (3, 7));
}

#[test]
fn each_rtr_indication_opens_the_responder() {
    //= test rfc6581-5-nothing-before-rtr
    //= test rfc6581-9.2-rtr-send
    //= test rfc5044-7.1.2-responder-first-fpdu
    let none = RtrKinds::default();
    for kinds in [
        RtrKinds { send: true, ..none },
        RtrKinds {
            write: true,
            ..none
        },
        RtrKinds { read: true, ..none },
    ] {
        let config = Config {
            handshake: Handshake::PeerToPeer(kinds),
            ..Config::default()
        };
        // Peer-to-peer: the responder may speak first, once the indication is here.
        let mut pair = Pair::established(&config, &Config::default());
        assert!(events(&mut pair.b).is_empty(), "the RTR is no event");
        pair.b.post(WorkId(1), &SEND, true).unwrap();
        pair.settle();
        assert!(matches!(events(&mut pair.a)[..], [Event::Received { .. }]));
        pair.a.post(WorkId(2), &SEND, true).unwrap();
        pair.settle();
        assert_eq!(events(&mut pair.a).len(), 1);
        assert_eq!(events(&mut pair.b).len(), 2);
    }
}

#[test]
fn a_responder_is_silent_until_it_was_spoken_to() {
    //= test rfc5044-7.1.2-responder-first-fpdu
    let mut pair = Pair::default();
    pair.b.post(WorkId(1), &SEND, true).unwrap();
    pair.settle();
    assert!(events(&mut pair.a).is_empty());
    assert!(!pair.b.wants_write());
    pair.a.post(WorkId(2), &SEND, false).unwrap();
    pair.settle();
    assert_eq!(events(&mut pair.a).len(), 1);
}

#[test]
fn no_common_rtr_is_told_with_a_terminate() {
    //= test rfc6581-9.2-rtr-generated
    let write = RtrKinds {
        write: true,
        ..RtrKinds::default()
    };
    let read = RtrKinds {
        read: true,
        ..RtrKinds::default()
    };
    let a = Config {
        handshake: Handshake::PeerToPeer(write),
        ..Config::default()
    };
    let b = Config {
        rtr: read,
        ..Config::default()
    };
    let mut pair = Pair::new(&a, &b);
    pair.settle();
    pair.b.accept(b"", pair.now).unwrap();
    pair.settle();
    assert_eq!(pair.a.startup(), Startup::Failed);
    let Some(StreamError::PeerTerminated { reason }) = pair.b.take_error() else {
        panic!("the responder is told");
    };
    assert!(reason.contains("layer 2, type 0, code 0x07"), "{reason}");
}

#[test]
fn frames_that_are_no_startup_close_the_connection() {
    //= test rfc5044-7.1.2-malformed-closes
    let mut bad = Vec::new();
    bad.push(b"GET / HTTP/1.1\r\n\r\n..".to_vec());
    let mut frame = b"MPA ID Rep Frame".to_vec();
    frame.extend_from_slice(&[0x40, 1, 0, 0]);
    bad.push(frame.clone());
    frame[..16].copy_from_slice(b"MPA ID Req Frame");
    frame[17] = 3;
    bad.push(frame);
    for octets in bad {
        let mut wire = Wire::new();
        let mut target = Connection::responder(&Config::default(), [0; 32], Time(0)).unwrap();
        wire.push(&mut target, &octets, Time(0));
        assert_eq!(target.startup(), Startup::Failed);
        assert_eq!(actions(&mut target), [Action::Close]);
        assert!(wire.pull(&mut target, usize::MAX, Time(0)).is_empty());
        assert!(matches!(
            target.take_error(),
            Some(StreamError::Protocol { .. })
        ));
        assert!(target.take_error().is_none());
    }
}

#[test]
fn a_startup_has_a_time_limit() {
    //= test rfc5044-7.1.2-timeout
    let config = Config {
        startup_timeout_ms: 5,
        ..Config::default()
    };
    let mut target = Connection::responder(&config, [0; 32], Time(1_000_000)).unwrap();
    let due = target.next_timeout().unwrap();
    assert_eq!(due, Time(6_000_000));
    target.handle_timeout(Time(5_999_999));
    assert!(!target.is_ended());
    target.handle_timeout(due);
    assert!(target.is_ended());
    assert_eq!(target.startup(), Startup::Failed);
    assert_eq!(target.next_timeout(), None);
}

#[test]
fn an_established_stream_has_no_timer() {
    let pair = Pair::default();
    assert_eq!(pair.a.next_timeout(), None);
    assert_eq!(pair.b.next_timeout(), None);
}

#[test]
fn the_first_fpdu_can_be_held_back() {
    let config = Config {
        first_send_delay_ms: 2,
        ..Config::default()
    };
    let mut pair = Pair::established(&config, &Config::default());
    assert_eq!(pair.a.next_timeout(), None);
    pair.a.post(WorkId(1), &SEND, true).unwrap();
    pair.settle();
    assert!(events(&mut pair.b).is_empty());
    let at = pair.a.next_timeout().unwrap();
    assert_eq!(at, Time(2_000_000));
    pair.now = at;
    pair.a.handle_timeout(at);
    pair.settle();
    assert_eq!(events(&mut pair.b).len(), 1);
}

#[test]
fn work_before_the_startup_is_refused() {
    let mut pair = Pair::new(&Config::default(), &Config::default());
    assert!(pair.a.post(WorkId(1), &SEND, true).is_err());
    pair.a.close(CloseReason::Graceful);
    assert!(pair.a.is_ended());
    assert_eq!(pair.a.startup(), Startup::Failed);
}

#[test]
fn a_peer_that_hangs_up_during_the_startup_is_an_error() {
    let mut target = Connection::responder(&Config::default(), [0; 32], Time(0)).unwrap();
    let mut wire = Wire::new();
    wire.push(&mut target, b"MPA ID", Time(0));
    target.handle_end(Time(0));
    assert!(matches!(
        target.take_error(),
        Some(StreamError::Protocol { .. })
    ));
    assert_eq!(target.startup(), Startup::Failed);
}

#[test]
fn crcs_are_off_only_if_both_say_so() {
    //= test rfc5044-4.4-crc-suppression
    //= test rfc5044-4.1-crc-not-checked
    //= test rfc5044-4.4-crc-if-either
    let on = Config::default();
    let off = Config {
        crc: false,
        ..Config::default()
    };
    for (a, b, checked) in [
        (&on, &off, true),
        (&off, &on, true),
        (&off, &off, false),
        (&on, &on, true),
    ] {
        let mut pair = Pair::established(a, b);
        pair.a.post(WorkId(1), &SEND, true).unwrap();
        let mut octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
        // An octet of the CRC.
        *octets.last_mut().unwrap() ^= 1;
        pair.wire.push(&mut pair.b, &octets, pair.now);
        assert_eq!(events(&mut pair.b).is_empty(), checked);
    }
}

#[test]
fn what_goes_to_logs_names_no_stag() {
    let mut target = Connection::responder(&Config::default(), [0; 32], Time(0)).unwrap();
    let memory = region(4096);
    let stag = register(&mut target, &memory, 0, ALL_ACCESS);
    let text = format!("{target:?}");
    assert!(text.contains("AwaitRequest"), "{text}");
    assert!(
        !text.contains(&stag.to_string()) && text.len() < 200,
        "{text}"
    );
}

#[test]
fn an_end_during_the_startup_says_whether_a_frame_was_cut_off() {
    //= test rfc5044-8-errors-detected
    let mut request = b"MPA ID Req Frame".to_vec();
    // C, revision 2, S; 12 octets: IRD and ORD 4, and Private Data.
    request.extend_from_slice(&[0x50, 2, 0, 12, 0, 4, 0, 4]);
    request.extend_from_slice(b"whatever");
    for cut in 0..=request.len() {
        let mut target = Connection::responder(&Config::default(), [3; 32], Time(0)).unwrap();
        Wire::new().push(&mut target, &request[..cut], Time(0));
        target.handle_end(Time(0));
        let Some(StreamError::Protocol { reason }) = target.take_error() else {
            panic!("cut at {cut}");
        };
        let whole = cut == 0 || cut == request.len();
        assert_eq!(
            reason.contains("during the startup"),
            whole,
            "{cut}: {reason}"
        );
        assert_eq!(reason.contains("middle of a message"), !whole, "{cut}");
    }
}
