//! Every operation at every kind of size, under every agreement.

use super::{Pair, V4, V6, octets, pattern};
use kbtp_fabric::{Event, Stream as _, StreamError, WorkOutcome, WorkRequest};
use kbtp_iwarp_tcp::{FpduSize, StreamOptions};
use std::sync::atomic::Ordering;

const MIB: usize = 1 << 20;

/// Around every boundary there is: pad, Markers, segments, FPDUs, and the sizes users have.
const SIZES: [usize; 22] = [
    0,
    1,
    2,
    3,
    4,
    5,
    63,
    507,
    508,
    512,
    513,
    1460,
    4096,
    65_507,
    65_521,
    65_522,
    65_535,
    65_536,
    131_072,
    MIB,
    16 * MIB - 1,
    16 * MIB,
];

/// Writes, reads and sends of the sizes.
//= test kbtp-9.1-rdmap-stream
fn exercise(pair: &mut Pair, sizes: &[usize]) {
    let mut id = 0;
    for &len in sizes {
        let data = pattern(len as u64, len);
        let at = 64 + (len as u64 & 7);
        pair.a.region.write(at, &data).unwrap();
        pair.b.region.fill(0, at + len as u64 + 8, 0xee).unwrap();
        id += 1;
        let write = WorkRequest::Write {
            local: pair.a.local(at, len),
            remote: pair.b.remote(at + 1),
            immediate: None,
        };
        pair.a.post(id, &write);
        assert_eq!(pair.outcome(id), WorkOutcome::Sent);

        // The read comes after the write, so that it brings back what was written.
        pair.a.region.fill(at, len as u64, 0).unwrap();
        id += 1;
        let read = WorkRequest::Read {
            local: pair.a.local(at, len),
            remote: pair.b.remote(at + 1),
        };
        pair.a.post(id, &read);
        assert_eq!(pair.outcome(id), WorkOutcome::Read, "{len}");
        assert!(octets(&pair.a.region, at, len) == data, "read of {len}");
        assert!(
            octets(&pair.b.region, at + 1, len) == data,
            "write of {len}"
        );
        // And not an octet beside.
        assert_eq!(octets(&pair.b.region, at, 1), [0xee]);
        assert_eq!(octets(&pair.b.region, at + 1 + len as u64, 7), [0xee; 7]);

        if len <= 8192 {
            id += 1;
            send(pair, id, at, &data);
        }
    }
}

/// A Send of `data`, which lies at `at` in A's region: some of it inline, the rest from there.
fn send(pair: &mut Pair, id: u64, at: u64, data: &[u8]) {
    let (head, tail) = data.split_at(data.len() / 3);
    let odd = data.len() % 2 == 1;
    let send = WorkRequest::Send {
        head,
        tail: (!tail.is_empty()).then(|| pair.a.local(at + head.len() as u64, tail.len())),
        solicited: odd,
        invalidate: None,
    };
    pair.a.post(id, &send);
    pair.until(|_, b| b.events.iter().any(|e| matches!(e, Event::Received { .. })));
    let solicited = |e: &Event| {
        matches!(
            e,
            Event::Received {
                solicited: true,
                ..
            }
        )
    };
    assert_eq!(pair.b.events.iter().any(solicited), odd);
    assert_eq!(pair.b.messages(), [data]);
}

fn atomics(pair: &mut Pair) {
    let word = pair.b.region.u64_at(8).unwrap();
    word.store(41, Ordering::Relaxed);
    let remote = pair.b.remote(8);
    pair.a.post(
        1000,
        &WorkRequest::FetchAdd {
            remote,
            add: 1,
            mask: 0,
        },
    );
    assert_eq!(pair.outcome(1000), WorkOutcome::Atomic(41));
    let swap = WorkRequest::CmpSwap {
        remote,
        compare: 42,
        compare_mask: u64::MAX,
        swap: 7,
        swap_mask: u64::MAX,
    };
    pair.a.post(1001, &swap);
    assert_eq!(pair.outcome(1001), WorkOutcome::Atomic(42));
    assert_eq!(pair.b.region.u64_at(8).unwrap().load(Ordering::Relaxed), 7);
}

#[test]
fn every_operation_at_every_size() {
    let mut pair = Pair::plain(17 * MIB as u64);
    exercise(&mut pair, &SIZES);
    atomics(&mut pair);
}

#[test]
fn every_agreement_on_crcs_and_markers_on_both_families() {
    let sizes = [0, 1, 5, 508, 4096, 65_536, 200_001];
    for bits in 0..16_u8 {
        let options = |crc: u8, markers: u8| {
            let mut options = StreamOptions::default();
            options.rdma.crc = bits & crc != 0;
            options.rdma.markers = bits & markers != 0;
            options
        };
        for at in [V4, V6] {
            let mut pair = Pair::new(1 << 20, at, options(1, 2), options(4, 8));
            exercise(&mut pair, &sizes);
            atomics(&mut pair);
        }
    }
}

//= test rfc5044-5.1-mulpdu-of-segment
#[test]
fn fpdus_of_one_segment() {
    let options = StreamOptions {
        fpdu: FpduSize::Segment,
        ..StreamOptions::default()
    };
    let mut pair = Pair::new(2 << 20, V4, options.clone(), options);
    exercise(&mut pair, &[0, 1, 4096, 65_536, MIB]);
}

#[test]
fn a_send_invalidates_what_it_names() {
    let mut pair = Pair::plain(4096);
    let send = WorkRequest::Send {
        head: b"done with it",
        tail: None,
        solicited: false,
        invalidate: Some(pair.b.stag),
    };
    pair.a.post(1, &send);
    pair.until(|_, b| !b.events.is_empty());
    let stag = pair.b.stag;
    assert!(matches!(
        pair.b.events[0],
        Event::Received { invalidated: Some(invalidated), .. } if invalidated == stag
    ));
    assert!(pair.b.stream.invalidate(stag).is_err());
}

#[test]
fn much_in_flight_both_ways_keeps_its_order() {
    let mut pair = Pair::plain(4 << 20);
    let len = 100_000;
    for round in 0..20_u64 {
        for n in 0..8_u64 {
            let id = round * 8 + n;
            let data = pattern(id, len);
            let at = n * 2 * len as u64;
            pair.a.region.write(at, &data).unwrap();
            pair.b.region.write(at + len as u64, &data).unwrap();
            let write = WorkRequest::Write {
                local: pair.a.local(at, len),
                remote: pair.b.remote(at),
                immediate: None,
            };
            pair.a.post(id, &write);
            let number = id.to_be_bytes();
            let send = WorkRequest::Send {
                head: &number,
                tail: None,
                solicited: false,
                invalidate: None,
            };
            pair.a.post(10_000 + id, &send);
            let back = WorkRequest::Write {
                local: pair.b.local(at + len as u64, len),
                remote: pair.a.remote(at + len as u64),
                immediate: None,
            };
            pair.b.post(id, &back);
            pair.b.post(10_000 + id, &send);
        }
        let mut seen = (0, 0);
        pair.until(|a, b| {
            // A message tells that the writes before it are in place (RFC 5040, section 5.5).
            for (end, count, shift) in [(a, &mut seen.0, len as u64), (b, &mut seen.1, 0)] {
                for message in end.messages() {
                    let id = round * 8 + *count;
                    assert_eq!(message, id.to_be_bytes());
                    let at = *count * 2 * len as u64 + shift;
                    assert!(octets(&end.region, at, len) == pattern(id, len), "{id}");
                    *count += 1;
                }
            }
            seen == (8, 8)
        });
        let id = 10_000 + round * 8 + 7;
        pair.until(|a, b| a.outcome(id).is_some() && b.outcome(id).is_some());
    }
}

#[test]
fn a_slow_reader_holds_the_writer_up_and_loses_nothing() {
    let mut pair = Pair::plain(64 << 20);
    let data = pattern(1, 32 << 20);
    pair.a.region.write(0, &data).unwrap();
    let write = WorkRequest::Write {
        local: pair.a.local(0, data.len()),
        remote: pair.b.remote(0),
        immediate: None,
    };
    pair.a.post(1, &write);
    // Only the writer runs, until the socket takes no more for a while.
    let patience = super::Patience::new();
    let mut quiet = 0;
    while quiet < 1000 {
        quiet = if pair.a.progress(patience.now()) {
            0
        } else {
            quiet + 1
        };
    }
    let held = pair.a.stream.traffic().sent_octets;
    assert!(held < data.len() as u64, "all {held} octets went to nobody");
    assert!(pair.a.stream.readiness().write);
    assert_eq!(pair.a.outcome(1), None);
    // A send after the write tells when all is there.
    let send = WorkRequest::Send {
        head: b"all",
        tail: None,
        solicited: false,
        invalidate: None,
    };
    pair.a.post(2, &send);
    pair.until(|_, b| !b.events.is_empty());
    assert!(octets(&pair.b.region, 0, data.len()) == data);
}

#[test]
fn a_message_for_which_there_is_no_slot_ends_the_stream() {
    //= test rfc5041-7.1-untagged
    let mut options = StreamOptions::default();
    options.rdma.receive_slots = 4;
    let mut pair = Pair::new(4096, V4, StreamOptions::default(), options);
    let send = WorkRequest::Send {
        head: b"message",
        tail: None,
        solicited: false,
        invalidate: None,
    };
    for id in 0..4 {
        pair.a.post(id, &send);
    }
    pair.until(|_, b| b.events.len() == 4);
    assert_eq!(pair.b.messages().len(), 4);
    for id in 4..8 {
        pair.a.post(id, &send);
    }
    pair.until(|_, b| b.events.len() == 4);
    // Nothing is released this time.
    pair.a.post(8, &send);
    pair.until(|a, b| a.error.is_some() && b.error.is_some());
    assert!(
        matches!(pair.a.error, Some(StreamError::PeerTerminated { .. })),
        "{:?}",
        pair.a.error
    );
    assert_eq!(
        pair.b.messages().len(),
        4,
        "what was delivered stays readable"
    );
}

#[test]
fn an_idle_stream_waits_for_reading_alone() {
    let mut pair = Pair::plain(4096);
    let send = WorkRequest::Send {
        head: b"x",
        tail: None,
        solicited: false,
        invalidate: None,
    };
    pair.a.post(1, &send);
    pair.until(|a, b| a.outcome(1).is_some() && !b.messages().is_empty());
    let patience = super::Patience::new();
    for end in [&mut pair.a, &mut pair.b] {
        while end.progress(patience.now()) {}
        let readiness = end.stream.readiness();
        assert!(readiness.read && !readiness.write);
        assert_eq!(readiness.at, None, "an idle stream has no timer");
    }
    let calls = (pair.a.stream.traffic(), pair.b.stream.traffic());
    let soon = pair.poller.clock().now().after_ms(20);
    pair.wait(soon);
    assert_eq!(pair.poller.ready().len(), 0);
    assert_eq!(calls, (pair.a.stream.traffic(), pair.b.stream.traffic()));
}

#[test]
fn an_answer_goes_out_first_and_what_came_meanwhile_is_read_next() {
    let mut pair = Pair::plain(4096);
    let send = |head| WorkRequest::Send {
        head,
        tail: None,
        solicited: false,
        invalidate: None,
    };
    pair.a.post(1, &send(b"question"));
    pair.until(|_, b| !b.messages().is_empty());
    let patience = super::Patience::new();
    while pair.b.progress(patience.now()) {}
    // More comes, and there is something to send: that goes first, and is all of that call.
    pair.a.post(2, &send(b"another"));
    assert!(pair.a.progress(patience.now()));
    pair.b.post(1, &send(b"answer"));
    let before = pair.b.stream.traffic();
    assert!(pair.b.progress(patience.now()));
    let after = pair.b.stream.traffic();
    assert_eq!(
        (after.sends, after.receives),
        (before.sends + 1, before.receives)
    );
    // The next call reads, though there is something to send again.
    pair.b.post(2, &send(b"one more"));
    pair.b.progress(patience.now());
    assert_eq!(pair.b.messages(), [b"another"]);
    pair.until(|a, _| {
        let answers = a.events.iter();
        answers
            .filter(|e| matches!(e, Event::Received { .. }))
            .count()
            == 2
    });
}

#[test]
fn a_large_write_takes_few_system_calls() {
    let mut pair = Pair::plain(MIB as u64);
    let before = pair.a.stream.traffic();
    let write = WorkRequest::Write {
        local: pair.a.local(0, MIB),
        remote: pair.b.remote(0),
        immediate: None,
    };
    pair.a.post(1, &write);
    assert_eq!(pair.outcome(1), WorkOutcome::Sent);
    let traffic = pair.a.stream.traffic();
    // 17 FPDUs, each with a call of its own, and one more for each that the socket takes a part of.
    let sends = traffic.sends - before.sends;
    assert!(sends <= 34, "{sends} system calls for one write of 1 MiB");
    let overhead = traffic.sent_octets - before.sent_octets - MIB as u64;
    assert!(overhead <= 17 * 24, "{overhead} octets of framing");
}
