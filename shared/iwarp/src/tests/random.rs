//! Random work on both sides, cut at random, with Markers and CRCs on and off, against an oracle.

use super::*;
use crate::CopyFirst;
use kbtp_fabric::{LocalBuffer, RemoteBuffer, WorkId, WorkOutcome, WorkRequest};
use kbtp_wire::{ByteLen, fetch_add};
use proptest::prelude::*;
use std::collections::VecDeque;

const LEN: u64 = 240 << 10;
const BASE: u64 = 0x7000;

#[derive(Clone, Debug)]
enum Op {
    Send { head: u16, tail: u32 },
    Write { at: u32, len: u32, immediate: bool },
    Read { at: u32, len: u32 },
    Add { at: u8, add: u64, mask: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![0_u32..64, 0_u32..3000, 0_u32..80_000];
    prop_oneof![
        (0_u16..600, prop_oneof![Just(0), 0_u32..3000])
            .prop_map(|(head, tail)| Op::Send { head, tail }),
        (0_u32..60_000, len.clone(), any::<bool>()).prop_map(|(at, len, immediate)| Op::Write {
            at,
            len,
            immediate
        }),
        (0_u32..60_000, len).prop_map(|(at, len)| Op::Read { at, len }),
        (any::<u8>(), any::<u64>(), any::<u64>()).prop_map(|(at, add, mask)| Op::Add {
            at,
            add,
            mask
        }),
    ]
}

/// One side: its memory for sources and sinks of its own, and what the other side may reach.
struct Side {
    own: Region,
    own_stag: Stag,
    reached: Region,
    reached_stag: Stag,
    counters: Region,
    counters_stag: Stag,
}

impl Side {
    fn new(at: &mut Connection, seed: u8) -> Self {
        let own = region(LEN);
        let reached = region(LEN);
        let counters = region(4096);
        let octets: Vec<u8> = (0..LEN)
            .map(|i| (i * 31 + i / 255 + u64::from(seed)).to_le_bytes()[0])
            .collect();
        own.write(0, &octets).unwrap();
        let own_stag = register(at, &own, 0, Access::LOCAL);
        let reached_stag = register(at, &reached, BASE, ALL_ACCESS);
        let counters_stag = register(at, &counters, 0, ALL_ACCESS);
        Self {
            own,
            own_stag,
            reached,
            reached_stag,
            counters,
            counters_stag,
        }
    }
}

/// What a side expects to see, in order.
#[derive(Default)]
struct Expected {
    /// At the peer: messages and Immediate Data.
    arrivals: VecDeque<Arrival>,
    /// Here: completions.
    outcomes: VecDeque<(u64, Want)>,
}

enum Arrival {
    Message(Vec<u8>),
    Immediate(u32),
}

enum Want {
    Sent,
    Read { sink: u64, octets: Vec<u8> },
    Atomic(u64),
}

fn slice(of: &Region, at: u64, len: u32) -> Vec<u8> {
    let mut octets = vec![0; len as usize];
    of.read(at, &mut octets).unwrap();
    octets
}

/// The oracle of one direction: what the reached memory and the counters of the other side hold when all is done.
struct Oracle {
    reached: Vec<u8>,
    counters: [u64; 256],
}

/// Posts `op` at `from` against `to`; `false` if it did not fit now.
#[expect(clippy::too_many_lines, reason = "one arm an operation")]
fn post(
    from: &mut Connection,
    mine: &Side,
    theirs: &Side,
    oracle: &mut Oracle,
    expected: &mut Expected,
    (id, op): (u64, &Op),
) -> bool {
    let local = |at: u64, len| LocalBuffer {
        stag: mine.own_stag,
        offset: TaggedOffset(at),
        len: ByteLen(len),
    };
    let there = |at: u64| RemoteBuffer {
        stag: theirs.reached_stag,
        offset: TaggedOffset(BASE + at),
    };
    let head: Vec<u8>;
    let (work, arrival, want) = match *op {
        Op::Send { head: len, tail } => {
            head = (0..len)
                .map(|i| (u64::from(i) + id).to_le_bytes()[0])
                .collect();
            let mut message = head.clone();
            message.extend(slice(&mine.own, 7, tail));
            let work = WorkRequest::Send {
                head: &head,
                tail: (tail > 0).then(|| local(7, tail)),
                solicited: false,
                invalidate: None,
            };
            (work, Some(Arrival::Message(message)), Want::Sent)
        }
        Op::Write { at, len, immediate } => {
            let data = u32::try_from(id).unwrap();
            let work = WorkRequest::Write {
                local: local(3, len),
                remote: there(at.into()),
                immediate: immediate.then_some(data),
            };
            (
                work,
                immediate.then_some(Arrival::Immediate(data)),
                Want::Sent,
            )
        }
        Op::Read { at, len } => {
            // Writes end below 140,000: a read of it is what it was at first.
            let at = 150_000 + u64::from(at) % 1000;
            let len = len.min(79_000);
            let work = WorkRequest::Read {
                local: local(80 << 10, len),
                remote: there(at),
            };
            let octets = slice(&theirs.reached, at, len);
            let want = Want::Read {
                sink: 80 << 10,
                octets,
            };
            (work, None, want)
        }
        Op::Add { at, add, mask } => {
            let work = WorkRequest::FetchAdd {
                remote: RemoteBuffer {
                    stag: theirs.counters_stag,
                    offset: TaggedOffset(u64::from(at) * 8),
                },
                add,
                mask,
            };
            let before = oracle.counters[usize::from(at)];
            (work, None, Want::Atomic(before))
        }
    };
    match from.post(WorkId(id), &work, true) {
        Ok(()) => {}
        Err(kbtp_fabric::PostError::QueueFull) => return false,
        Err(error) => panic!("{op:?}: {error}"),
    }
    match *op {
        Op::Write { at, len, .. } => {
            let at = at as usize;
            let from = slice(&mine.own, 3, len);
            oracle.reached[at..at + from.len()].copy_from_slice(&from);
        }
        Op::Add { at, add, mask } => {
            let counter = &mut oracle.counters[usize::from(at)];
            *counter = fetch_add(*counter, add, mask);
        }
        _ => {}
    }
    expected.arrivals.extend(arrival);
    expected.outcomes.push_back((id, want));
    true
}

/// Takes the events of `at`, which expects `mine` of its own work and `theirs` from the peer.
fn take(at: &mut Connection, side: &Side, mine: &mut Expected, theirs: &mut Expected) {
    while let Some(event) = at.next_event() {
        match event {
            Event::Received { slot, .. } => {
                let Some(Arrival::Message(want)) = theirs.arrivals.pop_front() else {
                    panic!("a message that was not sent");
                };
                assert_eq!(at.message(slot), want);
                at.release(slot);
            }
            Event::Immediate { data } => {
                let Some(Arrival::Immediate(want)) = theirs.arrivals.pop_front() else {
                    panic!("Immediate Data that was not sent");
                };
                assert_eq!(data, want);
            }
            Event::Done { id, outcome } => {
                let (want_id, want) = mine.outcomes.pop_front().unwrap();
                assert_eq!(id, WorkId(want_id));
                match (outcome, want) {
                    (WorkOutcome::Sent, Want::Sent) => {}
                    (WorkOutcome::Atomic(got), Want::Atomic(want)) => assert_eq!(got, want),
                    (WorkOutcome::Read, Want::Read { sink, octets }) => {
                        // Later reads use the same sink: only the last is still there to be compared.
                        let last = !mine
                            .outcomes
                            .iter()
                            .any(|(_, want)| matches!(want, Want::Read { .. }));
                        if last {
                            let len = u32::try_from(octets.len()).unwrap();
                            assert_eq!(slice(&side.own, sink, len), octets);
                        }
                    }
                    (outcome, _) => panic!("{outcome:?}"),
                }
            }
        }
    }
}

fn config(markers: bool, crc: bool, max_ulpdu: u16, staging: u32, copy_first: CopyFirst) -> Config {
    Config {
        markers,
        crc,
        max_ulpdu,
        staging_len: staging,
        copy_first,
        send_queue: 16,
        receive_slots: 64,
        inbound_reads: 3,
        outbound_reads: 5,
        ..Config::default()
    }
}

fn configs() -> impl Strategy<Value = Config> {
    (
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(128), Just(1454), Just(64_768), 128_u16..=64_768],
        prop_oneof![Just(512), Just(16_384)],
        prop_oneof![
            Just(CopyFirst::Nothing),
            Just(CopyFirst::ReadResponses),
            Just(CopyFirst::Writable),
            Just(CopyFirst::Everything)
        ],
    )
        .prop_map(|(markers, crc, ulpdu, staging, copy)| config(markers, crc, ulpdu, staging, copy))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    //= test rfc5040-5.5-send-delivered-in-order
    //= test rfc5040-5.3-send-in-order
    //= test rfc5040-5.5-submitted-in-order
    //= test rfc5040-5.1-write-in-order
    //= test rfc5041-5.2-segmented
    //= test rfc5041-5.2-mo-offset
    //= test rfc5041-5.3-transmit-in-order
    //= test rfc5041-5.3-delivered-once-in-order
    //= test rfc5041-5.4-delivered-when-complete
    //= test rfc5044-5.1-alignment-lost
    //= test rfc5044-5.2-boundaries-by-length
    //= test rfc5044-3-ulpdu-with-length
    #[test]
    fn everything_arrives_whatever_the_cuts(
        a in configs(), b in configs(),
        ops in prop::collection::vec((any::<bool>(), op()), 1..40),
        cuts in prop::collection::vec(prop_oneof![1_usize..40, 1_usize..3000, 1_usize..200_000], 1..20),
    ) {
        let mut pair = Pair::established(&a, &b);
        let side_a = Side::new(&mut pair.a, 1);
        let side_b = Side::new(&mut pair.b, 2);
        let fill: Vec<u8> = (0..LEN).map(|i| (i * 13 + i / 254).to_le_bytes()[0]).collect();
        side_a.reached.write(0, &fill).unwrap();
        side_b.reached.write(0, &fill).unwrap();
        let oracle = || Oracle { reached: fill.clone(), counters: [0; 256] };
        let (mut to_b, mut to_a) = (oracle(), oracle());
        let (mut by_a, mut by_b) = (Expected::default(), Expected::default());
        // The initiator speaks first.
        post(&mut pair.a, &side_a, &side_b, &mut to_b, &mut by_a, (0, &Op::Send { head: 1, tail: 0 }));

        let mut cuts = cuts.iter().cycle();
        for (id, (at_a, op)) in ops.iter().enumerate() {
            let id = id as u64 + 1;
            let mut tries = 0;
            loop {
                let posted = if *at_a {
                    post(&mut pair.a, &side_a, &side_b, &mut to_b, &mut by_a, (id, op))
                } else {
                    post(&mut pair.b, &side_b, &side_a, &mut to_a, &mut by_b, (id, op))
                };
                pair.step(*cuts.next().unwrap());
                take(&mut pair.a, &side_a, &mut by_a, &mut by_b);
                take(&mut pair.b, &side_b, &mut by_b, &mut by_a);
                if posted {
                    break;
                }
                tries += 1;
                prop_assert!(tries < 200_000, "the queue never empties");
            }
        }
        let mut idle = 0;
        while idle < 2 {
            let moved = pair.step(*cuts.next().unwrap());
            take(&mut pair.a, &side_a, &mut by_a, &mut by_b);
            take(&mut pair.b, &side_b, &mut by_b, &mut by_a);
            idle = if moved { 0 } else { idle + 1 };
        }
        for expected in [&by_a, &by_b] {
            prop_assert!(expected.arrivals.is_empty());
            prop_assert!(expected.outcomes.is_empty());
        }
        for (side, oracle) in [(&side_b, &to_b), (&side_a, &to_a)] {
            prop_assert!(slice(&side.reached, 0, u32::try_from(LEN).unwrap()) == oracle.reached);
            for at in 0..256 {
                let word = side.counters.u64_at(at * 8).unwrap();
                prop_assert_eq!(
                    word.load(std::sync::atomic::Ordering::Relaxed),
                    oracle.counters[usize::try_from(at).unwrap()]
                );
            }
        }
        prop_assert!(!pair.a.is_ended() && !pair.b.is_ended());
    }

    #[test]
    fn no_octets_of_a_peer_do_harm(
        octets in prop::collection::vec(any::<u8>(), 0..400),
        ulpdus in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90), 0..12),
        plausible in any::<bool>(),
        cut in 1_usize..60,
    ) {
        let mut forged = Forged::new(&Config { receive_slots: 4, ..Config::default() });
        let memory = region(4096);
        register(&mut forged.target, &memory, 0, ALL_ACCESS);
        let mut stream = Vec::new();
        for mut ulpdu in ulpdus {
            if plausible && ulpdu.len() > 18 {
                // Right versions, a queue and an MSN that are likely.
                ulpdu[0] = ulpdu[0] & 0xC0 | 1;
                ulpdu[1] = 0x40 | ulpdu[1] & 15;
                ulpdu[6..9].fill(0);
                ulpdu[9] &= 3;
                ulpdu[10..13].fill(0);
                ulpdu[13] &= 3;
                ulpdu[14..18].fill(0);
            }
            stream.extend(fpdu(&ulpdu));
        }
        stream.extend(octets);
        for part in stream.chunks(cut) {
            forged.wire.push(&mut forged.target, part, Time(0));
            forged.wire.pull(&mut forged.target, 50, Time(0));
            while let Some(event) = forged.target.next_event() {
                if let Event::Received { slot, .. } = event {
                    forged.target.release(slot);
                }
            }
        }
        forged.target.handle_end(Time(0));
        while !forged.wire.pull(&mut forged.target, usize::MAX, Time(0)).is_empty() {}
        if let Some(at) = forged.target.next_timeout() {
            forged.target.handle_timeout(at);
        }
        prop_assert!(forged.target.is_ended());
    }
}
