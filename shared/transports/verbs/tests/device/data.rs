//! Every operation, and what arrives.

use super::pair::{Block, Pair, SINK, SOURCE, addresses, options, send, take};
use kbtp_fabric::{Access, Atomics, Event, PostError, Stream, WorkId, WorkOutcome, WorkRequest};
use kbtp_verbs::StreamOptions;
use std::sync::atomic::Ordering;

//= test kbtp-9.2-messages
#[test]
fn sends_of_every_kind_arrive_both_ways() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        let tail = Block::new(&mut pair.here, 8192, Access::LOCAL_READ);
        let octets = tail.fill(1);
        for head in [0_usize, 1, 40, 64, 65, 500, 1500] {
            let head = vec![7; head];
            pair.here.post(WorkId(1), &send(&head), true).unwrap();
            let (slot, len) = pair.received_there();
            assert_eq!(len as usize, head.len());
            assert_eq!(pair.there.message(slot), head);
            pair.there.release(slot);
            assert_eq!(pair.done_here(1), WorkOutcome::Sent);
            let work = WorkRequest::Send {
                head: &head,
                tail: Some(tail.local(100, 2000)),
                solicited: true,
                invalidate: None,
            };
            pair.here.post(WorkId(2), &work, true).unwrap();
            let (slot, len) = pair.received_there();
            assert_eq!(len as usize, head.len() + 2000);
            let message = pair.there.message(slot);
            assert_eq!(message[..head.len()], head);
            assert_eq!(message[head.len()..], octets[100..2100]);
            pair.there.release(slot);
            assert_eq!(pair.done_here(2), WorkOutcome::Sent);
            pair.there.post(WorkId(3), &send(&head), false).unwrap();
            let (slot, _) = pair.received_here();
            assert_eq!(pair.here.message(slot), head);
            pair.here.release(slot);
            assert_eq!(pair.here.message(slot), b"");
        }
    }
}

#[test]
fn many_messages_arrive_in_order() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        let (mut sent, mut got) = (0_u32, 0_u32);
        // As many as there are slots, again and again: more would be more than the responder has receives for.
        while got < 600 {
            while sent < 600 && sent - got < 12 {
                let message = sent.to_be_bytes().repeat(1 + (sent as usize * 7) % 300);
                match pair.here.post(WorkId(9), &send(&message), false) {
                    Ok(()) => sent += 1,
                    Err(PostError::QueueFull) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let (slot, len) = pair.received_there();
            let message = pair.there.message(slot);
            assert_eq!(message.len(), len as usize);
            assert_eq!(len as usize, 4 * (1 + (got as usize * 7) % 300));
            assert!(message.chunks(4).all(|word| word == got.to_be_bytes()));
            pair.there.release(slot);
            got += 1;
        }
    }
}

#[test]
fn memory_that_no_peer_has_a_right_to_has_keys_of_its_own() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        let one = Block::new(&mut pair.here, 4096, Access::LOCAL);
        let other = Block::new(&mut pair.here, 4096, Access::LOCAL_READ);
        assert_ne!(one.stag, other.stag);
        let source = Block::new(&mut pair.there, 4096, SOURCE);
        let octets = source.fill(6);
        let read = |local| WorkRequest::Read {
            local,
            remote: source.remote(0),
        };
        pair.here
            .post(WorkId(1), &read(one.local(0, 4096)), true)
            .unwrap();
        assert_eq!(pair.done_here(1), WorkOutcome::Read);
        same(&one.octets(0, 4096), &octets);
        let refused = pair.here.post(WorkId(1), &read(other.local(0, 4096)), true);
        assert!(refused.is_err(), "it is not to be written");
    }
}

/// Compares long octet strings without printing them.
fn same(found: &[u8], wanted: &[u8]) {
    assert_eq!(found.len(), wanted.len());
    let wrong: Vec<usize> = (0..found.len())
        .filter(|at| found[*at] != wanted[*at])
        .collect();
    let (first, last) = (wrong.first(), wrong.last());
    assert!(
        wrong.is_empty(),
        "{} of {} are wrong, from {first:?} to {last:?}",
        wrong.len(),
        found.len()
    );
}

//= test kbtp-9.2-messages
#[test]
fn writes_and_reads_move_octets_and_only_those() {
    for address in addresses() {
        // Whole, and in pieces as on a device that registers little at a time.
        for max_registration in [u64::MAX, 16 << 10] {
            let small = max_registration < u64::MAX;
            let mut pair = Pair::new(
                address,
                StreamOptions {
                    max_registration,
                    ..options()
                },
            );
            let local = Block::new(&mut pair.here, 100_000, Access::LOCAL);
            let octets = local.fill(2);
            let len = if small { 16_000 } else { 90_000 };
            let sink = Block::new(&mut pair.there, if small { 16_384 } else { 100_000 }, SINK);
            for start in [0_u64, 1, 10_000, 8_191] {
                sink.region.zero(0, sink.region.len()).unwrap();
                let at = 17;
                let work = WorkRequest::Write {
                    local: local.local(start, len),
                    remote: sink.remote(at),
                    immediate: None,
                };
                pair.here.post(WorkId(1), &work, false).unwrap();
                pair.here.post(WorkId(2), &send(b"written"), true).unwrap();
                let (slot, _) = pair.received_there();
                pair.there.release(slot);
                let from = usize::try_from(start).unwrap();
                same(
                    &sink.octets(at, len as usize),
                    &octets[from..from + len as usize],
                );
                assert_eq!(sink.octets(0, 17), [0; 17]);
                pair.done_here(2);
            }
            let source = Block::new(
                &mut pair.there,
                if small { 16_384 } else { 100_000 },
                SOURCE,
            );
            let octets = source.fill(3);
            for start in [0_u64, 3, 9_000] {
                println!("{address}: a Read of {len} octets to {start}");
                local.region.zero(0, local.region.len()).unwrap();
                let work = WorkRequest::Read {
                    local: local.local(start, len),
                    remote: source.remote(5),
                };
                pair.here.post(WorkId(4), &work, true).unwrap();
                assert_eq!(pair.done_here(4), WorkOutcome::Read);
                same(
                    &local.octets(start, len as usize),
                    &octets[5..5 + len as usize],
                );
                let end = start + u64::from(len);
                let rest = usize::try_from(local.region.len() - end).unwrap();
                assert!(local.octets(end, rest).iter().all(|octet| *octet == 0));
            }
            let stags = pair.here.stags();
            pair.here.invalidate(local.stag).unwrap();
            assert_eq!(pair.here.stags().unwrap(), stags.unwrap() - 1);
            assert!(pair.here.invalidate(local.stag).is_err());
        }
    }
}

#[test]
fn a_write_with_immediate_arrives_after_its_data_where_the_device_has_it() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        let local = Block::new(&mut pair.here, 4096, Access::LOCAL);
        let octets = local.fill(4);
        let sink = Block::new(&mut pair.there, 4096, SINK);
        let work = WorkRequest::Write {
            local: local.local(0, 24),
            remote: sink.remote(0),
            immediate: Some(0xdead_beef),
        };
        if !pair.here.capabilities().write_with_immediate {
            let refused = pair.here.post(WorkId(1), &work, true);
            assert!(matches!(refused, Err(PostError::Unsupported { .. })));
            continue;
        }
        // More than there are receives: each is given back at once.
        for _ in 0..40 {
            pair.here.post(WorkId(1), &work, true).unwrap();
            let data = pair.until("an immediate", |pair| {
                take(&mut pair.at_there, |event| match event {
                    Event::Immediate { data } => Some(data),
                    _ => None,
                })
            });
            assert_eq!(data, 0xdead_beef);
            assert_eq!(sink.octets(0, 24), octets[..24]);
            sink.region.zero(0, 24).unwrap();
            pair.done_here(1);
        }
    }
}

#[test]
fn counters_are_unmasked_where_the_device_counts() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        let access = Access {
            remote_atomic: true,
            ..Access::LOCAL
        };
        let add = |remote, mask| WorkRequest::FetchAdd {
            remote,
            add: 0x1_0000_0000,
            mask,
        };
        if pair.here.capabilities().atomics == Atomics::None {
            let region = kbtp_memory::Region::anonymous(8, &kbtp_memory::PageOptions::default());
            let region = region.unwrap();
            let base = pair
                .there
                .tagged_base(&region, 0, kbtp_wire::TaggedOffset(0));
            assert!(pair.there.register(&region, 0..8, base, access).is_err());
            continue;
        }
        assert_eq!(pair.here.capabilities().atomics, Atomics::Unmasked);
        let counter = Block::new(&mut pair.there, 4096, access);
        let word = counter.region.u64_at(8).unwrap();
        for ticket in 0..100_u64 {
            pair.here
                .post(WorkId(1), &add(counter.remote(8), 0), true)
                .unwrap();
            assert_eq!(pair.done_here(1), WorkOutcome::Atomic(ticket << 32));
            assert_eq!(word.load(Ordering::Acquire), (ticket + 1) << 32);
        }
        // Several at once, each with a value of its own.
        for id in 10..14 {
            pair.here
                .post(WorkId(id), &add(counter.remote(8), 0), true)
                .unwrap();
        }
        for id in 10..14 {
            assert_eq!(pair.done_here(id), WorkOutcome::Atomic((90 + id) << 32));
        }
        let masked = pair.here.post(WorkId(2), &add(counter.remote(8), 1), true);
        assert!(matches!(masked, Err(PostError::Unsupported { .. })));
        let swap = |compare, mask| WorkRequest::CmpSwap {
            remote: counter.remote(8),
            compare,
            compare_mask: mask,
            swap: 5,
            swap_mask: mask,
        };
        pair.here
            .post(WorkId(3), &swap(104 << 32, u64::MAX), true)
            .unwrap();
        assert_eq!(pair.done_here(3), WorkOutcome::Atomic(104 << 32));
        assert_eq!(word.load(Ordering::Acquire), 5);
        assert!(pair.here.post(WorkId(3), &swap(5, 1), true).is_err());
    }
}

#[test]
fn many_reads_at_once_through_windows_and_without() {
    for address in addresses() {
        for windows in [false, true] {
            let mut pair = Pair::new(address, options());
            let windows = windows && pair.there.capabilities().send_with_invalidate;
            let access = Access {
                remote_invalidate: windows,
                ..SOURCE
            };
            for round in 0..10 {
                let local = Block::new(&mut pair.here, 1 << 18, Access::LOCAL);
                let lens = [65_536_u32, 10, 40_000, 1];
                let sources: Vec<_> = (0..)
                    .zip(lens)
                    .map(|(seed, len)| {
                        let block = Block::new(&mut pair.there, u64::from(len), access);
                        let octets = block.fill(seed + round);
                        (block, octets)
                    })
                    .collect();
                pair.there.post(WorkId(7), &send(b"ready"), true).unwrap();
                let (slot, _) = pair.received_here();
                pair.here.release(slot);
                for ((id, len), (source, _)) in (0_u64..).zip(lens).zip(&sources) {
                    let work = WorkRequest::Read {
                        local: local.local(id << 16, len),
                        remote: source.remote(0),
                    };
                    pair.here.post(WorkId(id), &work, true).unwrap();
                }
                for ((id, len), (_, octets)) in (0_u64..).zip(lens).zip(&sources) {
                    assert_eq!(
                        pair.done_here(id),
                        WorkOutcome::Read,
                        "{windows} {round} {len}"
                    );
                    same(&local.octets(id << 16, len as usize), octets);
                }
                pair.here.invalidate(local.stag).unwrap();
                for (source, _) in sources {
                    pair.there.invalidate(source.stag).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_key_of_a_window_is_invalidated_by_the_peer_where_there_are_windows() {
    for address in addresses() {
        let mut pair = Pair::new(address, options());
        let access = Access {
            remote_invalidate: true,
            ..SINK
        };
        if !pair.there.capabilities().send_with_invalidate {
            let region = kbtp_memory::Region::anonymous(64, &kbtp_memory::PageOptions::default());
            let region = region.unwrap();
            let base = pair
                .there
                .tagged_base(&region, 0, kbtp_wire::TaggedOffset(0));
            assert!(pair.there.register(&region, 0..64, base, access).is_err());
            continue;
        }
        let local = Block::new(&mut pair.here, 4096, Access::LOCAL);
        let octets = local.fill(5);
        for _ in 0..20 {
            let sink = Block::new(&mut pair.there, 4096, access);
            // The binding is done before what is sent after it.
            pair.there.post(WorkId(7), &send(b"bound"), true).unwrap();
            let (slot, _) = pair.received_here();
            pair.here.release(slot);
            let write = WorkRequest::Write {
                local: local.local(0, 1000),
                remote: sink.remote(8),
                immediate: None,
            };
            pair.here.post(WorkId(1), &write, false).unwrap();
            let work = WorkRequest::Send {
                head: b"done",
                tail: None,
                solicited: false,
                invalidate: Some(sink.stag),
            };
            pair.here.post(WorkId(2), &work, true).unwrap();
            let (slot, invalidated) = pair.until("a message", |pair| {
                take(&mut pair.at_there, |event| match event {
                    Event::Received {
                        slot, invalidated, ..
                    } => Some((slot, invalidated)),
                    _ => None,
                })
            });
            assert_eq!(invalidated, Some(sink.stag));
            assert_eq!(sink.octets(8, 1000), octets[..1000]);
            pair.there.release(slot);
            pair.there.invalidate(sink.stag).unwrap();
        }
    }
}
