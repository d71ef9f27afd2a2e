//! One error after the other: the segment that breaks a rule, and the Terminate it is answered with, octet by octet.
//! Here those of MPA and DDP; those of RDMAP are in `errors_rdmap`.

use super::*;
use kbtp_fabric::StreamError;
use kbtp_wire::ByteLen;
use kbtp_wire::ddp::{Msn, QueueNumber, TaggedHeader, UntaggedHeader};
use kbtp_wire::rdmap::{AtomicOperation, AtomicRequest, ReadRequest};

/// What of the offending segment the Terminate shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shows {
    /// Nothing: no bit of the three.
    Nothing,
    /// Segment length and DDP header: M and D.
    Ddp,
    /// The Read Request header too: M, D and R.
    Rdmap,
}

pub(super) fn tagged(opcode: u8, stag: Stag, offset: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let header = TaggedHeader {
        last,
        version: 1,
        ulp: 0x40 | opcode,
        stag,
        offset: TaggedOffset(offset),
    };
    [&header.encode()[..], payload].concat()
}

pub(super) fn untagged_at(
    opcode: u8,
    queue: u32,
    msn: u32,
    message_offset: u32,
    last: bool,
    payload: &[u8],
) -> Vec<u8> {
    let header = UntaggedHeader {
        last,
        version: 1,
        ulp: 0x40 | opcode,
        ulp_word: 0,
        queue: QueueNumber(queue),
        msn: Msn(msn),
        message_offset,
    };
    [&header.encode()[..], payload].concat()
}

pub(super) fn untagged(opcode: u8, queue: u32, payload: &[u8]) -> Vec<u8> {
    untagged_at(opcode, queue, 1, 0, true, payload)
}

/// The STags of the victim.
pub(super) struct Stags {
    pub(super) all: Stag,
    /// No rights for the peer.
    pub(super) own: Stag,
    /// At the top of the Tagged Offsets.
    pub(super) top: Stag,
    pub(super) retired: Stag,
}

pub(super) const BASE: u64 = 0x1000;
pub(super) const LEN: u64 = 4096;

/// A victim, its STags, and its region.
pub(super) fn victim() -> (Forged, Stags, Region) {
    victim_with(Config::default().registrations)
}

/// With so many entries for registrations, four of which are taken.
fn victim_with(registrations: u16) -> (Forged, Stags, Region) {
    let config = Config {
        receive_slots: 2,
        max_receive: 64,
        inbound_reads: 2,
        registrations,
        ..Config::default()
    };
    let mut forged = Forged::new(&config);
    let memory = region(LEN);
    let target = &mut forged.target;
    let stags = Stags {
        all: register(target, &memory, BASE, ALL_ACCESS),
        own: register(target, &memory, BASE, Access::LOCAL),
        top: register(target, &memory, u64::MAX - LEN, ALL_ACCESS),
        retired: register(target, &memory, BASE, ALL_ACCESS),
    };
    target.retire(stags.retired).unwrap();
    (forged, stags, memory)
}

pub(super) fn read_request(stag: Stag, offset: u64, len: u32) -> [u8; 28] {
    ReadRequest {
        sink_stag: Stag(0xAAAA_AAAA),
        sink_offset: TaggedOffset(0xBBBB),
        len: ByteLen(len),
        source_stag: stag,
        source_offset: TaggedOffset(offset),
    }
    .encode()
}

pub(super) fn atomic(stag: Stag, offset: u64) -> [u8; 52] {
    AtomicRequest {
        request_id: 7,
        stag,
        offset: TaggedOffset(offset),
        operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
    }
    .encode()
}

//= test rfc5040-7.1-terminate-sent
//= test rfc5040-7.1-user-informed
//= test rfc5041-6.2.2-fatal-reported
//= test rfc5041-7.1-cease-placing
//= test rfc5044-8-nothing-after-error
//= test rfc5040-7-erroneous-stream
//= test rfc5040-5.4-terminate-untagged
//= test rfc5040-5.4-nothing-after-terminate
//= test rfc5040-7.1-first-error
/// Says the segments to a victim; the last must be answered by a Terminate of that layer, type and code that shows
/// that much of it, and nothing must be delivered.
pub(super) fn refused(
    what: &str,
    say: impl FnOnce(&Stags) -> Vec<Vec<u8>>,
    (layer, kind, code): (u8, u8, u8),
    shows: Shows,
) {
    let (mut forged, stags, memory) = victim();
    let segments = say(&stags);
    let (last, before) = segments.split_last().unwrap();
    for segment in before {
        forged.say(segment);
    }
    assert!(!forged.target.is_ended(), "{what}: too early");
    forged.say(last);

    let mut want = vec![layer << 4 | kind, code];
    want.extend_from_slice(match shows {
        Shows::Nothing => &[0, 0],
        Shows::Ddp => &[0xC0, 0],
        Shows::Rdmap => &[0xE0, 0],
    });
    if shows != Shows::Nothing {
        want.extend_from_slice(&u16::try_from(last.len()).unwrap().to_be_bytes());
        want.extend_from_slice(&last[..if last[0] & 0x80 != 0 { 14 } else { 18 }]);
    }
    if shows == Shows::Rdmap {
        want.extend_from_slice(&last[18..46]);
    }
    let terminate = untagged(7, 2, &want);
    let heard = forged.hear();
    assert_eq!(heard.last(), Some(&terminate), "{what}");
    assert_eq!(actions(&mut forged.target), [Action::EndSending], "{what}");

    // What comes behind an error is dropped.
    forged.say(&untagged(3, 0, b"more"));
    forged.target.handle_end(Time(0));
    assert_eq!(actions(&mut forged.target), [Action::Close], "{what}");
    assert!(
        matches!(
            forged.target.take_error(),
            Some(StreamError::Protocol { .. })
        ),
        "{what}"
    );
    assert!(events(&mut forged.target).is_empty(), "{what}: an event");
    let mut octets = vec![0; 4096];
    memory.read(0, &mut octets).unwrap();
    assert!(octets.iter().all(|o| *o == 0), "{what}: octets were placed");
}

#[test]
fn ddp_tagged_errors() {
    //= test rfc5041-7.1-error-report
    //= test rfc5041-7.1-one-more-message
    //= test rfc5041-4.2-stag-valid
    //= test rfc5041-8.3-exact-range
    //= test rfc5040-8.1.1-no-access-outside
    //= test rfc5042-6.2.1-no-access-outside
    //= test rfc5041-7.1-tagged
    //= test rfc5041-7.1-to-wrap
    //= test rfc5041-4.1-version
    let write = |stag, offset| tagged(0, stag, offset, true, &[9; 16]);
    refused(
        "unknown STag",
        |s| vec![write(Stag(s.all.0 ^ 1 << 31), BASE)],
        (1, 1, 0),
        Shows::Ddp,
    );
    refused(
        "below the base",
        |s| vec![write(s.all, BASE - 1)],
        (1, 1, 1),
        Shows::Ddp,
    );
    refused(
        "past the end",
        |s| vec![write(s.all, BASE + LEN - 15)],
        (1, 1, 1),
        Shows::Ddp,
    );
    refused(
        "wrap",
        |s| vec![write(s.top, u64::MAX - 8)],
        (1, 1, 3),
        Shows::Ddp,
    );
    refused(
        "version 0",
        |s| {
            let mut segment = write(s.all, BASE);
            segment[0] &= 0xFC;
            vec![segment]
        },
        (1, 1, 4),
        Shows::Ddp,
    );
}

#[test]
fn ddp_untagged_errors() {
    //= test rfc5041-7.1-untagged
    //= test rfc5041-4.1-version
    refused(
        "queue 4",
        |_| vec![untagged(3, 4, b"x")],
        (1, 2, 1),
        Shows::Ddp,
    );
    refused(
        "queue 2^32 - 1",
        |_| vec![untagged(3, u32::MAX, b"x")],
        (1, 2, 1),
        Shows::Ddp,
    );
    refused(
        "an Atomic Response unasked",
        |_| vec![untagged(11, 3, &[0; 12])],
        (1, 2, 2),
        Shows::Ddp,
    );
    refused(
        "MSN ahead",
        |_| vec![untagged_at(3, 0, 2, 0, true, b"x")],
        (1, 2, 3),
        Shows::Ddp,
    );
    refused(
        "MSN behind",
        |_| vec![untagged_at(3, 0, 0, 0, true, b"x")],
        (1, 2, 3),
        Shows::Ddp,
    );
}

#[test]
fn ddp_untagged_errors_of_place_and_version() {
    //= test rfc5041-7.1-untagged
    //= test rfc5041-4.1-version
    refused(
        "MO ahead",
        |_| vec![untagged_at(3, 0, 1, 1, true, b"x")],
        (1, 2, 4),
        Shows::Ddp,
    );
    refused(
        "MO behind",
        |_| {
            vec![
                untagged_at(3, 0, 1, 0, false, b"first"),
                untagged_at(3, 0, 1, 4, true, b"second"),
            ]
        },
        (1, 2, 4),
        Shows::Ddp,
    );
    refused(
        "too long",
        |_| vec![untagged(3, 0, &[1; 65])],
        (1, 2, 5),
        Shows::Ddp,
    );
    refused(
        "too long in two",
        |_| {
            vec![
                untagged_at(3, 0, 1, 0, false, &[1; 40]),
                untagged_at(3, 0, 1, 40, true, &[1; 25]),
            ]
        },
        (1, 2, 5),
        Shows::Ddp,
    );
    refused(
        "a Read Request too long",
        |_| vec![untagged(1, 1, &[0; 53])],
        (1, 2, 5),
        Shows::Ddp,
    );
    refused(
        "version 2",
        |_| {
            let mut segment = untagged(3, 0, b"x");
            segment[0] = 0x42;
            vec![segment]
        },
        (1, 2, 6),
        Shows::Ddp,
    );
}

#[test]
fn more_sends_than_slots_are_refused() {
    //= test rfc5041-7.1-no-buffer-is-a-fault
    //= test rfc5040-5.3-send-consumes-one
    let (mut forged, ..) = victim();
    for msn in 1..=2 {
        forged.say(&untagged_at(3, 0, msn, 0, true, b"x"));
    }
    let third = untagged_at(3, 0, 3, 0, true, b"x");
    forged.say(&third);
    let heard = forged.hear();
    assert_eq!(heard[0][18..24], [0x12, 2, 0xC0, 0, 0, 19]);
    // The two that fitted are there.
    assert_eq!(events(&mut forged.target).len(), 2);
}

#[test]
fn more_reads_than_the_ird_are_refused() {
    //= test rfc5040-8.1.1-read-cap
    //= test rfc5042-6.4.3.3-read-cap
    //= test rfc5040-6.1-ird-not-exceeded
    //= test rfc5040-6.1-ird-ord-provided
    let (mut forged, stags, _memory) = victim();
    for msn in 1..=3 {
        forged.say(&untagged_at(
            1,
            1,
            msn,
            0,
            true,
            &read_request(stags.all, BASE, 8),
        ));
    }
    assert_eq!(forged.hear()[0][18..24], [0x12, 2, 0xC0, 0, 0, 46]);
}

#[test]
fn a_wrong_crc_delivers_nothing() {
    //= test rfc5040-6.2.1-terminate-on-error
    //= test rfc5044-8-codes-told
    //= test rfc5044-8-no-close-by-mpa
    //= test rfc5044-4.4-crc-implemented
    //= test rfc5044-6-verified-first
    //= test rfc5044-4.4-crc-verified
    let good = fpdu(&untagged(3, 0, &[5; 40]));
    for at in 2..good.len() {
        for whole in [true, false] {
            let (mut forged, ..) = victim();
            // A first FPDU that is right, so that the responder may speak.
            forged.say(&tagged(0, Stag(0), 0, true, &[]));
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            if whole {
                forged.wire.push(&mut forged.target, &bad, Time(0));
            } else {
                for octet in &bad {
                    forged.wire.push(&mut forged.target, &[*octet], Time(0));
                }
            }
            assert!(events(&mut forged.target).is_empty());
            let heard = forged.hear();
            assert_eq!(heard, [untagged(7, 2, &[0x20, 2, 0, 0])], "octet {at}");
        }
    }
}

#[test]
fn a_damaged_header_is_a_crc_error_and_places_nothing() {
    let (mut forged, stags, memory) = victim();
    forged.say(&tagged(0, Stag(0), 0, true, &[]));
    let mut bad = fpdu(&tagged(0, stags.all, BASE, true, &[9; 64]));
    // The STag.
    bad[5] ^= 1;
    for octet in &bad {
        forged.wire.push(&mut forged.target, &[*octet], Time(0));
    }
    assert_eq!(forged.hear(), [untagged(7, 2, &[0x20, 2, 0, 0])]);
    let mut octets = [0; 64];
    memory.read(0, &mut octets).unwrap();
    assert_eq!(octets, [0; 64]);
}

#[test]
fn an_fpdu_that_is_here_as_a_whole_is_checked_before_it_is_placed() {
    let (mut forged, stags, memory) = victim();
    let mut bad = fpdu(&tagged(0, stags.all, BASE, true, &[9; 64]));
    // An octet of the payload.
    bad[30] ^= 1;
    forged.wire.push(&mut forged.target, &bad, Time(0));
    assert!(forged.target.is_ended());
    let mut octets = [1; 64];
    memory.read(0, &mut octets).unwrap();
    assert_eq!(octets, [0; 64]);
}

#[test]
fn a_first_fpdu_that_is_damaged_gets_no_answer() {
    //= test rfc5044-7.1.2-responder-first-fpdu
    let (mut forged, ..) = victim();
    let mut bad = fpdu(&untagged(3, 0, b"x"));
    *bad.last_mut().unwrap() ^= 1;
    forged.wire.push(&mut forged.target, &bad, Time(0));
    assert!(forged.hear().is_empty());
    assert_eq!(actions(&mut forged.target), [Action::Close]);
}

#[test]
fn a_zero_length_write_needs_no_stag() {
    //= test rfc5041-5.2-zero-length-unchecked
    let (mut forged, ..) = victim();
    forged.say(&tagged(0, Stag(0xFFFF_FFFF), u64::MAX, true, &[]));
    assert!(forged.hear().is_empty());
    assert!(!forged.target.is_ended());
}

#[test]
fn the_peers_terminate_ends_the_stream_in_words() {
    //= test rfc5040-5.4-terminate-buffer
    //= test rfc5040-5.4-terminate-delivered
    let (mut forged, ..) = victim();
    forged.say(&untagged(7, 2, &[0x11, 0x01, 0, 0]));
    assert_eq!(actions(&mut forged.target), [Action::Close]);
    assert!(forged.hear().is_empty());
    assert!(matches!(
        forged.target.take_error(),
        Some(StreamError::PeerTerminated { reason }) if reason.contains("base or bounds")
    ));
}

#[test]
fn an_stag_that_ends_while_octets_for_it_come_in_is_invalid() {
    //= test rfc5040-8.1.1-no-write-after-revoke
    //= test rfc5041-8.3.1-no-write-after-revoke
    //= test rfc5042-6.2.2-no-write-after-revoke
    //= test rfc5041-8.3-establish-and-revoke
    //= test rfc5040-8.1.1-establish-and-revoke
    // No entry is free, so that the one that ends is the next to be used.
    let (mut forged, stags, memory) = victim_with(4);
    let segment = tagged(0, stags.all, BASE, true, &[9; 1024]);
    let octets = fpdu(&segment);
    forged
        .wire
        .push(&mut forged.target, &octets[..500], Time(0));
    forged.target.invalidate(stags.all).unwrap();
    memory.fill(0, LEN, 0).unwrap();
    // Its entry is used anew at once.
    register(&mut forged.target, &memory, BASE, ALL_ACCESS);
    forged
        .wire
        .push(&mut forged.target, &octets[500..], Time(0));
    let mut want = vec![0x11, 0, 0xC0, 0];
    want.extend_from_slice(&u16::try_from(segment.len()).unwrap().to_be_bytes());
    want.extend_from_slice(&segment[..14]);
    assert_eq!(forged.hear(), [untagged(7, 2, &want)]);
    let mut octets = vec![0; 4096];
    memory.read(0, &mut octets).unwrap();
    assert!(octets.iter().all(|o| *o == 0));
}

#[test]
fn a_peer_that_closed_first_is_told_and_left() {
    let (mut forged, ..) = victim();
    forged.say(&untagged(3, 9, b"x"));
    forged.target.handle_end(Time(0));
    assert!(!forged.target.is_ended());
    assert!(!forged.target.wants_read());
    assert_eq!(forged.hear().len(), 1);
    assert_eq!(actions(&mut forged.target), [Action::Close]);
    assert!(forged.target.is_ended());
}

#[test]
fn whatever_comes_after_an_error_is_read_and_dropped() {
    //= test rfc5044-8-nothing-after-error
    //= test rfc5040-6.2.1-terminate-gets-out
    //= test rfc5041-7.1-cease-placing
    let (mut forged, ..) = victim();
    forged.say(&untagged(3, 9, b"x"));
    // So that the peer's TCP can take the Terminate and close.
    let much = vec![0x55; 200_000];
    let taken = forged.wire.push(&mut forged.target, &much, Time(0));
    assert_eq!(taken, much.len());
    assert_eq!(forged.hear().len(), 1);
    assert_eq!(
        forged.wire.push(&mut forged.target, &much, Time(0)),
        much.len()
    );
}

#[test]
fn an_error_of_an_answer_stops_the_placing_of_what_comes_in() {
    //= test rfc5041-7.1-cease-placing
    let (mut forged, stags, memory) = victim();
    let source = region(4096);
    let stag = register(&mut forged.target, &source, 0, ALL_ACCESS);
    forged.say(&untagged(1, 1, &read_request(stag, 0, 4096)));
    let write = fpdu(&tagged(0, stags.all, BASE, true, &[9; 4096]));
    forged
        .wire
        .push(&mut forged.target, &write[..1000], Time(0));
    forged.target.invalidate(stag).unwrap();
    assert_eq!(forged.hear()[0][18..20], [0x01, 0]);
    memory.fill(0, LEN, 0).unwrap();
    forged
        .wire
        .push(&mut forged.target, &write[1000..], Time(0));
    let mut octets = vec![1; 4096];
    memory.read(0, &mut octets).unwrap();
    assert!(octets.iter().all(|o| *o == 0));
}

#[test]
fn a_terminate_that_cannot_go_out_is_given_up() {
    let (mut forged, ..) = victim();
    forged.say(&untagged(3, 9, b"x"));
    assert!(forged.target.wants_write());
    let at = forged.target.next_timeout().unwrap();
    forged.target.handle_timeout(at);
    assert_eq!(actions(&mut forged.target), [Action::Close]);
    assert!(matches!(
        forged.target.take_error(),
        Some(StreamError::Protocol { .. })
    ));
}

#[test]
fn markers_that_lie_are_told() {
    //= test rfc5044-8-marker-mismatch
    //= test rfc5044-8-errors-detected
    let config = Config {
        markers: true,
        ..Config::default()
    };
    let mut pair = Pair::established(&Config::default(), &config);
    let message = vec![3; 600];
    let send = kbtp_fabric::WorkRequest::Send {
        head: &message,
        tail: None,
        solicited: false,
        invalidate: None,
    };
    // A first one, so that the responder may speak.
    let first = kbtp_fabric::WorkRequest::Send {
        head: b"x",
        tail: None,
        solicited: false,
        invalidate: None,
    };
    pair.a.post(kbtp_fabric::WorkId(1), &first, false).unwrap();
    pair.settle();
    pair.a.post(kbtp_fabric::WorkId(2), &send, false).unwrap();
    let mut octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    // The first FPDU with its Marker took 32 octets: the next Marker comes 480 octets on.
    assert_eq!(octets[480..484], [0, 0, 1, 0xE0]);
    octets[483] ^= 0x10;
    let end = octets.len() - 4;
    let crc = crc32c::crc32c(&octets[..end]);
    octets[end..].copy_from_slice(&crc_to_wire(crc));
    pair.wire.push(&mut pair.b, &octets, pair.now);
    assert_eq!(events(&mut pair.b).len(), 1);
    pair.settle();
    assert!(matches!(
        pair.a.take_error(),
        Some(StreamError::PeerTerminated { reason }) if reason.contains("layer 2, type 0, code 0x03")
    ));
}
