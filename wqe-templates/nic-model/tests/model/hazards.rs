//! Each hazard, alone: what happens to software that counts on more than is promised.

use crate::bare::{ALL, Bare, DATA, LOG_SEND, MANAGED, MASTER, Pair, done, failed, list};
use kbtp_device::{
    Device, DeviceEvent, KeyAttributes, Layout, Peer, PeerAccess, QpAttributes, Roles,
};
use kbtp_mlx5::{
    AccessRights, Atomic, Body, CqArm, Cqe, CqeIndex, DataList, DataSegment, Enable, Fence, Klm,
    KsmEntry, Mkey, Opcode, Payload, RemoteAddress, RepeatEntry, Signal, Syndrome, WaitCqe,
    WqeBuffer, WqeIndex,
};
use kbtp_nic_model::{Fetch, Hazards, Sampling, Schedule};

fn plain() -> Hazards {
    Hazards::default()
}

fn enable(bare: &mut Bare, master: &mut Pair, pair: &Pair, up_to: u16) {
    let body = Body::Enable(Enable {
        qpn: pair.qpn,
        up_to: WqeIndex(up_to),
    });
    let control = master.control(Opcode::SendEnable);
    master.post(&bare.region, control, &body);
    bare.ring(master).unwrap();
}

/// A WRITE that is patched to a NOP after it was enabled and before it runs: whether it is a NOP then.
fn patched_late(fetch: Fetch) -> bool {
    let hazards = Hazards { fetch, ..plain() };
    let mut bare = Bare::new(hazards, Schedule::Eager);
    let mut master = bare.looped(0, MASTER);
    let mut managed = bare.looped(
        1,
        Roles {
            master: true,
            ..MANAGED
        },
    );
    // It waits for a CQE of the master's that comes last.
    let control = managed.control(Opcode::Wait);
    let wait = Body::WaitCqe(WaitCqe {
        cqn: master.send_cqn,
        index: CqeIndex::truncate(1),
    });
    managed.post(&bare.region, control, &wait);
    let control = managed.control(Opcode::RdmaWrite);
    let body = Body::Write(bare.remote(0), Payload::Inline(b"x"));
    let at = managed.post(&bare.region, control, &body);
    enable(&mut bare, &mut master, &managed, 2);
    bare.run();
    bare.region.write(at + 3, &[0]).unwrap();
    let control = master.control(Opcode::Nop);
    bare.once(&mut master, control, &Body::Ignored(&[]));
    bare.read(0, 1) == [0]
}

#[test]
fn patches_after_the_enabling_are_lost() {
    assert!(!patched_late(Fetch::WhenEnabled));
    assert!(patched_late(Fetch::WhenRun));
}

/// A WQE is rewritten after it was enabled: what runs is made of both.
#[test]
fn a_wqe_may_be_read_in_pieces() {
    let mut mixed = 0;
    for seed in 0..20 {
        let hazards = Hazards {
            fetch: Fetch::Torn,
            ..plain()
        };
        let mut bare = Bare::new(hazards, Schedule::Eager);
        let mut pair = bare.looped(0, MASTER);
        for _ in 0..seed {
            let control = pair.control(Opcode::Nop);
            bare.once(&mut pair, control, &Body::Ignored(&[]));
        }
        let control = pair.control(Opcode::RdmaWrite);
        let body = Body::Write(bare.remote(0), Payload::Inline(&[1; 28]));
        let at = pair.post(&bare.region, control, &body);
        bare.ring(&pair).unwrap();
        bare.region.write(at + 36, &[2; 28]).unwrap();
        bare.run();
        let written = bare.read(0, 28);
        mixed += u8::from(written.contains(&1) && written.contains(&2));
    }
    assert!(mixed > 10, "{mixed}");
}

#[test]
fn index_and_queue_pair_are_those_of_the_place() {
    for (lenient, wrong_index) in [(false, true), (false, false), (true, true), (true, false)] {
        let hazards = Hazards {
            lenient_identity: lenient,
            ..plain()
        };
        let mut bare = Bare::new(hazards, Schedule::Eager);
        let mut pair = bare.looped(0, MASTER);
        let mut control = pair.control(Opcode::Nop);
        if wrong_index {
            control.index = WqeIndex(5);
        } else {
            control.qpn = kbtp_mlx5::Qpn::truncate(3);
        }
        let cqe = bare.once(&mut pair, control, &Body::Ignored(&[]));
        if lenient {
            done(&cqe);
        } else {
            assert_eq!(failed(&cqe), Syndrome::LOCAL_QP_OPERATION);
        }
    }
}

#[test]
fn indices_wrap() {
    let mut bare = Bare::eager();
    let attributes = QpAttributes {
        roles: Roles {
            master: true,
            ..MANAGED
        },
        ..bare.attributes(1, true)
    };
    let mut pair = bare.make(1, &attributes);
    let mut master = bare.looped(0, MASTER);
    let (blocks, cqes) = ((1 << 16) - 3, (1 << 24) - 2);
    bare.model.set_indices(pair.qpn, blocks, 0).unwrap();
    bare.model.set_produced(pair.send_cqn, cqes).unwrap();
    bare.model
        .connect(pair.qpn, &Peer::Local(pair.qpn))
        .unwrap();
    bare.model.set_indices(pair.qpn, 0, 0).unwrap_err();
    pair.set_posted(blocks);
    // Each waits for the CQE of the one before.
    for number in 0..6 {
        let control = pair.control(Opcode::Wait);
        let index = CqeIndex::truncate(u32::try_from((cqes + number - 1) & 0xff_ffff).unwrap());
        let wait = WaitCqe {
            cqn: pair.send_cqn,
            index,
        };
        pair.post(&bare.region, control, &Body::WaitCqe(wait));
    }
    assert_eq!(pair.posted(), (1 << 16) + 3);
    for (up_to, produced) in [(u16::MAX, 2), (u16::MAX - 1, 2), (1, 4), (3, 6)] {
        enable(&mut bare, &mut master, &pair, up_to);
        bare.run();
        let total = bare.model.produced(pair.send_cqn).unwrap();
        assert_eq!(total, cqes + produced, "{up_to}");
    }
}

#[test]
fn a_queue_takes_no_more_than_it_holds() {
    let mut bare = Bare::eager();
    let mut master = bare.looped(0, MASTER);
    let managed = bare.looped(1, MANAGED);
    enable(&mut bare, &mut master, &managed, (1 << LOG_SEND) + 1);
    bare.run();
    let cqe = master.sends.next().unwrap();
    assert_eq!(failed(&cqe), Syndrome::LOCAL_QP_OPERATION);
}

#[test]
fn a_completion_queue_that_overruns_is_an_error() {
    for ignored in [true, false] {
        let mut bare = Bare::eager();
        let attributes = bare.attributes(0, ignored);
        let mut pair = bare.make(0, &attributes);
        bare.model
            .connect(pair.qpn, &Peer::Local(pair.qpn))
            .unwrap();
        for _ in 0..65 {
            let control = pair.control(Opcode::Nop);
            pair.post(&bare.region, control, &Body::Ignored(&[]));
            bare.ring(&pair).unwrap();
            bare.run();
        }
        let overran = std::iter::from_fn(|| bare.model.next_event())
            .any(|event| event == DeviceEvent::CqError(pair.send_cqn));
        assert_eq!(overran, !ignored);
        assert_eq!(bare.model.failure(pair.qpn).is_some(), !ignored);
    }
}

#[test]
fn a_wqe_across_the_end_of_the_ring_is_an_error() {
    let mut bare = Bare::eager();
    let mut pair = bare.looped(0, MASTER);
    for _ in 0..(1 << LOG_SEND) - 1 {
        let control = pair.control(Opcode::Nop);
        bare.once(&mut pair, control, &Body::Ignored(&[]));
    }
    let control = pair.control(Opcode::Nop);
    let wqe = WqeBuffer::encode(&control, &Body::Ignored(&[0; 64])).unwrap();
    let (first, _) = wqe.as_octets().split_at(64);
    pair.put(&bare.region, first);
    pair.set_posted(pair.posted() + 1);
    pair.record(&bare.region);
    bare.ring(&pair).unwrap();
    bare.run();
    let cqe = pair.sends.next().unwrap();
    assert_eq!(failed(&cqe), Syndrome::LOCAL_QP_OPERATION);
}

#[test]
fn a_wqe_enabled_in_part_is_an_error() {
    let mut bare = Bare::eager();
    let mut master = bare.looped(0, MASTER);
    let mut managed = bare.looped(1, MANAGED);
    let control = managed.control(Opcode::Nop);
    managed.post(&bare.region, control, &Body::Ignored(&[0; 64]));
    enable(&mut bare, &mut master, &managed, 1);
    bare.run();
    let cqe = managed.sends.next().unwrap();
    assert_eq!(failed(&cqe), Syndrome::LOCAL_QP_OPERATION);
}

#[test]
fn lengths_of_nothing_and_too_many_pieces_are_errors() {
    let mut bare = Bare::eager();
    let mut pair = bare.looped(0, MASTER);
    let control = pair.control(Opcode::Nop);
    pair.put(&bare.region, &control.encode());
    pair.record(&bare.region);
    bare.ring(&pair).unwrap();
    bare.run();
    let cqe = pair.sends.next().unwrap();
    assert_eq!(failed(&cqe), Syndrome::LOCAL_QP_OPERATION);

    for (count, fits) in [(30, true), (31, false)] {
        let mut bare = Bare::eager();
        let mut pair = bare.looped(0, MASTER);
        let pieces = vec![bare.piece(0, 1); count];
        let control = pair.control(Opcode::RdmaRead);
        let body = Body::Read(bare.remote(0), DataList::new(&pieces));
        let cqe = bare.once(&mut pair, control, &body);
        assert_eq!(matches!(cqe, Cqe::Completed(_)), fits);
    }
}

#[test]
fn messages_longer_than_the_queue_pairs_are_errors() {
    for (len, fits) in [(1 << 16, true), ((1 << 16) + 1, false)] {
        let mut bare = Bare::eager();
        let mut pair = bare.looped(0, MASTER);
        let from = [DataSegment::new(len, bare.all, 0).unwrap()];
        let control = pair.control(Opcode::RdmaWrite);
        let cqe = bare.once(
            &mut pair,
            control,
            &Body::Write(bare.remote(0), list(&from)),
        );
        if fits {
            done(&cqe);
        } else {
            assert_eq!(failed(&cqe), Syndrome::LOCAL_LENGTH);
        }
    }
}

#[test]
fn data_may_come_in_the_cqe_instead_of_memory() {
    let hazards = Hazards {
        scatter_to_cqe: true,
        ..plain()
    };
    let mut bare = Bare::new(hazards, Schedule::Eager);
    let mut pair = bare.looped(0, MASTER);
    bare.write(0, &[7; 33]);
    for (len, in_memory) in [(32, false), (33, true)] {
        let to = [bare.piece(100, len)];
        let control = pair.control(Opcode::RdmaRead);
        let body = Body::Read(bare.remote(0), DataList::new(&to));
        let cqe = done(&bare.once(&mut pair, control, &body));
        assert_eq!(bare.read(100, 1) == [7], in_memory);
        assert_eq!(cqe.op_own.format == 0, in_memory);
    }
}

/// A READ, then a WRITE of what it read: whether the WRITE waits.
fn write_after_read(fence: Fence) -> Vec<u8> {
    let mut bare = Bare::new(plain(), Schedule::Withhold);
    let mut pair = bare.looped(0, MASTER);
    bare.write(0, b"new");
    bare.write(100, b"old");
    let piece = [bare.piece(100, 3)];
    let control = pair.control(Opcode::RdmaRead);
    pair.post(
        &bare.region,
        control,
        &Body::Read(bare.remote(0), DataList::new(&piece)),
    );
    let mut control = pair.control(Opcode::RdmaWrite);
    control.fence = fence;
    pair.post(
        &bare.region,
        control,
        &Body::Write(bare.remote(200), list(&piece)),
    );
    bare.ring(&pair).unwrap();
    bare.run();
    bare.read(200, 3)
}

#[test]
fn a_write_gathers_before_a_read_has_scattered_unless_fenced() {
    for fence in [Fence::None, Fence::InitiatorSmall] {
        assert_eq!(write_after_read(fence), b"old");
    }
    for fence in [Fence::Fence, Fence::FenceAndSmall, Fence::StrongOrdering] {
        assert_eq!(write_after_read(fence), b"new");
    }
}

/// A READ, then a WRITE to where it reads: what the READ finds.
#[test]
fn a_read_may_find_what_is_written_after_it() {
    let found = |sampling| {
        let hazards = Hazards {
            sampling,
            ..plain()
        };
        let mut results = std::collections::BTreeSet::new();
        let mut bare = Bare::new(hazards, Schedule::Random);
        let mut pair = bare.looped(0, MASTER);
        for round in 0..50 {
            bare.write(0, b"old");
            let to = [bare.piece(100, 3)];
            let control = pair.control(Opcode::RdmaRead);
            let read = Body::Read(bare.remote(0), DataList::new(&to));
            pair.post(&bare.region, control, &read);
            let control = pair.control(Opcode::RdmaWrite);
            let write = Body::Write(bare.remote(0), Payload::Inline(b"new"));
            pair.post(&bare.region, control, &write);
            bare.ring(&pair).unwrap();
            bare.run();
            results.insert(bare.read(100, 3));
            assert!(pair.sends.next().is_some(), "{round}");
            assert!(pair.sends.next().is_some(), "{round}");
        }
        results.len()
    };
    assert_eq!(found(Sampling::Early), 1);
    assert_eq!(found(Sampling::Late), 2);
}

/// WQEs behind one that fails: the number of CQEs.
fn flushed(quiet: bool) -> u64 {
    let hazards = Hazards {
        quiet_flush: quiet,
        ..plain()
    };
    let mut bare = Bare::new(hazards, Schedule::Eager);
    let mut pair = bare.looped(0, MASTER);
    let mut control = pair.control(Opcode::RdmaWrite);
    control.signal = Signal::OnError;
    let nowhere = RemoteAddress {
        address: 0,
        rkey: Mkey(0),
    };
    let body = Body::Write(nowhere, Payload::Inline(b"x"));
    pair.post(&bare.region, control, &body);
    for signal in [Signal::OnError, Signal::Always] {
        let mut control = pair.control(Opcode::Nop);
        control.signal = signal;
        pair.post(&bare.region, control, &Body::Ignored(&[]));
    }
    // Whoever waits for a CQE is content with an error's.
    let mut waiter = bare.looped(1, MASTER);
    let control = waiter.control(Opcode::Wait);
    let wait = WaitCqe {
        cqn: pair.send_cqn,
        index: CqeIndex::truncate(1),
    };
    waiter.post(&bare.region, control, &Body::WaitCqe(wait));
    bare.ring(&waiter).unwrap();
    bare.ring(&pair).unwrap();
    bare.run();
    done(&waiter.sends.next().unwrap());
    assert_eq!(failed(&pair.sends.next().unwrap()), Syndrome::REMOTE_ACCESS);
    assert_eq!(failed(&pair.sends.next().unwrap()), Syndrome::FLUSHED);
    bare.model.produced(pair.send_cqn).unwrap()
}

#[test]
fn what_is_flushed_has_cqes_too() {
    assert_eq!(flushed(false), 3);
    assert_eq!(flushed(true), 2);
}

#[test]
fn a_receiver_that_is_not_ready_is_tried_again() {
    for (retry, gives_up) in [(7, false), (2, true)] {
        let mut bare = Bare::eager();
        let attributes = QpAttributes {
            rnr_retry: retry,
            ..bare.attributes(0, true)
        };
        let mut pair = bare.make(0, &attributes);
        bare.model
            .connect(pair.qpn, &Peer::Local(pair.qpn))
            .unwrap();
        let control = pair.control(Opcode::Send);
        pair.post(&bare.region, control, &Body::Send(Payload::Inline(b"m")));
        bare.ring(&pair).unwrap();
        for _ in 0..1000 {
            bare.model.step();
        }
        if gives_up {
            let cqe = pair.sends.next().unwrap();
            assert_eq!(failed(&cqe), Syndrome::RNR_RETRY_EXCEEDED);
            continue;
        }
        assert_eq!(pair.sends.next(), None);
        let to = [bare.piece(0, 1)];
        pair.receive(&bare.region, &to);
        bare.run();
        done(&pair.sends.next().unwrap());
        assert_eq!(bare.read(0, 1), b"m");
    }
}

#[test]
fn a_message_longer_than_its_receive_is_an_error_of_both() {
    let mut bare = Bare::eager();
    let (mut one, mut other) = bare.two();
    let to = [bare.piece(0, 3)];
    other.receive(&bare.region, &to);
    other.receive(&bare.region, &to);
    let control = one.control(Opcode::Send);
    let cqe = bare.once(&mut one, control, &Body::Send(Payload::Inline(b"long")));
    assert_eq!(failed(&cqe), Syndrome::REMOTE_INVALID_REQUEST);
    assert_eq!(
        failed(&other.receives.next().unwrap()),
        Syndrome::LOCAL_LENGTH
    );
    assert_eq!(failed(&other.receives.next().unwrap()), Syndrome::FLUSHED);
    assert_eq!(bare.read(0, 3), [0; 3]);
}

/// What a READ of 4 octets at `address` under `key` ends with.
fn reads(bare: &mut Bare, number: u64, key: Mkey, address: u64) -> Option<Syndrome> {
    let mut pair = bare.looped(number, MASTER);
    let to = [bare.piece(512, 4)];
    let control = pair.control(Opcode::RdmaRead);
    let remote = RemoteAddress { address, rkey: key };
    let cqe = bare.once(&mut pair, control, &Body::Read(remote, DataList::new(&to)));
    match cqe {
        Cqe::Completed(_) => None,
        Cqe::Failed(failed) => Some(failed.syndrome),
    }
}

#[test]
fn keys_are_checked() {
    let read = AccessRights::REMOTE_READ;
    let denied = Some(Syndrome::REMOTE_ACCESS);
    let fresh = || {
        let mut bare = Bare::eager();
        let key = bare.key(read, 100, 8, DATA);
        (bare, key)
    };
    for (address, wanted) in [
        (100, None),
        (104, None),
        (105, denied),
        (99, denied),
        (u64::MAX, denied),
    ] {
        let (mut bare, key) = fresh();
        assert_eq!(reads(&mut bare, 0, key, address), wanted, "{address}");
    }
    let (mut bare, key) = fresh();
    assert_eq!(
        reads(&mut bare, 0, Mkey(key.0 ^ 1), 100),
        denied,
        "another tag"
    );
    let (mut bare, _) = fresh();
    assert_eq!(
        reads(&mut bare, 0, Mkey(0x7777_0000), 100),
        denied,
        "no key"
    );
    let (mut bare, key) = fresh();
    bare.model.destroy_key(key).unwrap();
    assert_eq!(reads(&mut bare, 0, key, 100), denied, "no longer there");
    let (mut bare, _) = fresh();
    let key = bare.key(AccessRights::REMOTE_WRITE, 100, 8, DATA);
    assert_eq!(reads(&mut bare, 0, key, 100), denied, "another right");
    let (mut bare, _) = fresh();
    bare.domain = bare.model.create_domain().unwrap();
    let key = bare.key(read, 100, 8, DATA);
    bare.domain = kbtp_device::Domain(0);
    assert_eq!(reads(&mut bare, 0, key, 100), denied, "another domain");
    let (mut bare, _) = fresh();
    let other = bare.looped(1, MASTER);
    let layout = Layout::Plain(bare.place(DATA));
    let attributes = KeyAttributes {
        qpn: Some(other.qpn),
        ..KeyAttributes::new(bare.domain, read, 100, 8, layout)
    };
    let key = bare.model.create_key(&attributes).unwrap();
    assert_eq!(
        reads(&mut bare, 0, key, 100),
        denied,
        "another queue pair's"
    );
}

#[test]
fn queue_pairs_take_only_what_they_allow() {
    for (access, wanted) in [
        (PeerAccess::ALL, None),
        (
            PeerAccess {
                read: false,
                ..PeerAccess::ALL
            },
            Some(Syndrome::REMOTE_INVALID_REQUEST),
        ),
    ] {
        let mut bare = Bare::eager();
        let attributes = QpAttributes {
            access,
            ..bare.attributes(0, true)
        };
        let mut pair = bare.make(0, &attributes);
        bare.model
            .connect(pair.qpn, &Peer::Local(pair.qpn))
            .unwrap();
        let to = [bare.piece(0, 4)];
        let control = pair.control(Opcode::RdmaRead);
        let body = Body::Read(bare.remote(0), DataList::new(&to));
        let cqe = bare.once(&mut pair, control, &body);
        assert_eq!(matches!(cqe, Cqe::Completed(_)), wanted.is_none());
    }
}

#[test]
fn keys_made_of_keys() {
    let mut bare = Bare::eager();
    bare.write(0, b"AAAABBBBCCCCDDDD");
    let read = AccessRights::REMOTE_READ;
    let klm = |len, at| Klm {
        len,
        mkey: bare.all,
        address: DATA + at,
    };
    let pieces = [klm(2, 12), klm(6, 0), klm(8, 4)];
    let list = KeyAttributes::new(bare.domain, read, 0, 16, Layout::List(&pieces));
    let entry = |at| KsmEntry {
        mkey: bare.all,
        address: DATA + at,
    };
    let entries = [entry(8), entry(0)];
    let equal = Layout::Equal {
        log_size: 2,
        entries: &entries,
    };
    let equal = KeyAttributes::new(bare.domain, read, 0x100, 8, equal);
    let strided = [
        RepeatEntry {
            stride: 4,
            len: 1,
            mkey: bare.all,
            address: DATA,
        },
        RepeatEntry {
            stride: 0,
            len: 1,
            mkey: bare.all,
            address: DATA + 1,
        },
    ];
    let strided = Layout::Repeat {
        repetitions: 4,
        entries: &strided,
    };
    let strided = KeyAttributes::new(bare.domain, read, 8, 8, strided);
    let list = bare.model.create_key(&list).unwrap();
    let equal = bare.model.create_key(&equal).unwrap();
    let strided = bare.model.create_key(&strided).unwrap();
    for (number, (key, address, wanted)) in [
        (list, 1, b"DAAA"),
        (list, 0, b"DDAA"),
        (equal, 0x102, b"CCAA"),
        (strided, 8, b"AABA"),
        (strided, 11, b"ACAD"),
    ]
    .into_iter()
    .enumerate()
    {
        let number = u64::try_from(number % 4).unwrap();
        assert_eq!(reads(&mut bare, number, key, address), None);
        assert_eq!(bare.read(512, 4), wanted);
    }
}

/// Each level is a key of one piece.
#[test]
fn keys_are_nested_only_so_deep() {
    let mut bare = Bare::eager();
    let read = AccessRights::REMOTE_READ;
    let mut key = bare.all;
    for level in 0..5 {
        let piece = [Klm {
            len: 16,
            mkey: key,
            address: 0,
        }];
        let attributes = KeyAttributes::new(bare.domain, read, 0, 16, Layout::List(&piece));
        key = bare.model.create_key(&attributes).unwrap();
        let fits = level < 4;
        assert_eq!(
            reads(&mut bare, level % 4, key, 0).is_none(),
            fits,
            "{level}"
        );
    }
}

#[test]
fn what_comes_after_a_refused_request_is_not_done() {
    for schedule in [Schedule::Random, Schedule::Eager, Schedule::Withhold] {
        let mut bare = Bare::new(plain(), schedule);
        let mut pair = bare.looped(0, MASTER);
        let to = [bare.piece(512, 4)];
        let nowhere = RemoteAddress {
            address: 0,
            rkey: Mkey(0),
        };
        let control = pair.control(Opcode::RdmaRead);
        pair.post(
            &bare.region,
            control,
            &Body::Read(nowhere, DataList::new(&to)),
        );
        let control = pair.control(Opcode::RdmaWrite);
        let body = Body::Write(bare.remote(0), Payload::Inline(b"x"));
        pair.post(&bare.region, control, &body);
        bare.ring(&pair).unwrap();
        bare.run();
        assert_eq!(bare.read(0, 1), [0], "{schedule:?}");
    }
}

#[test]
fn relaxed_octets_land_after_the_cqe() {
    let mut bare = Bare::new(plain(), Schedule::Withhold);
    let (mut one, mut other) = bare.two();
    let layout = Layout::Plain(bare.place(DATA));
    let attributes = KeyAttributes {
        relaxed_ordering: true,
        ..KeyAttributes::new(bare.domain, ALL, 0, 64, layout)
    };
    let key = bare.model.create_key(&attributes).unwrap();
    let to = [DataSegment::new(8, key, 0).unwrap()];
    other.receive(&bare.region, &to);
    let control = one.control(Opcode::Send);
    one.post(&bare.region, control, &Body::Send(Payload::Inline(b"late")));
    bare.ring(&one).unwrap();
    while other.receives.peek().is_none() {
        assert!(bare.model.step());
    }
    assert_eq!(bare.read(0, 4), [0; 4]);
    bare.run();
    assert_eq!(bare.read(0, 4), b"late");
}

#[test]
fn replies_may_be_scattered_in_any_order() {
    let last = |out_of_order| {
        let mut seen = std::collections::BTreeSet::new();
        let hazards = Hazards {
            out_of_order,
            ..plain()
        };
        let mut bare = Bare::new(hazards, Schedule::Random);
        let mut pair = bare.looped(0, MASTER);
        bare.write(0, b"12");
        for _ in 0..60 {
            let to = [bare.piece(100, 1)];
            for at in [0, 1] {
                let control = pair.control(Opcode::RdmaRead);
                let body = Body::Read(bare.remote(at), DataList::new(&to));
                pair.post(&bare.region, control, &body);
            }
            bare.ring(&pair).unwrap();
            bare.run();
            seen.insert(bare.read(100, 1));
            while pair.sends.next().is_some() {}
        }
        seen.len()
    };
    assert_eq!(last(false), 1);
    assert_eq!(last(true), 2);
}

#[test]
fn nops_with_a_modifier() {
    for lenient in [false, true] {
        let hazards = Hazards {
            lenient_nop: lenient,
            ..plain()
        };
        let mut bare = Bare::new(hazards, Schedule::Eager);
        let mut pair = bare.looped(0, MASTER);
        let mut control = pair.control(Opcode::Nop);
        control.modifier = 1;
        let cqe = bare.once(&mut pair, control, &Body::Ignored(&[]));
        assert_eq!(matches!(cqe, Cqe::Completed(_)), lenient);
    }
}

/// An atomic, and a WRITE of another queue pair to its word meanwhile.
#[test]
fn what_is_written_under_an_atomic_may_be_lost() {
    let kept = |split| {
        let hazards = Hazards {
            split_atomics: split,
            ..plain()
        };
        let mut kept = 0;
        let mut bare = Bare::new(hazards, Schedule::Random);
        let mut one = bare.looped(0, MASTER);
        let mut other = bare.looped(1, MASTER);
        for _ in 0..40 {
            bare.write(0, &[0; 8]);
            let fa = Atomic::FetchAdd { add: 1 };
            let control = one.control(Opcode::AtomicFa);
            let to = bare.piece(64, 8);
            one.post(&bare.region, control, &Body::Atomic(bare.remote(0), fa, to));
            let control = other.control(Opcode::RdmaWrite);
            let body = Body::Write(bare.remote(4), Payload::Inline(&[9]));
            other.post(&bare.region, control, &body);
            bare.ring(&one).unwrap();
            bare.ring(&other).unwrap();
            bare.run();
            let word = bare.read(0, 8);
            assert_eq!(word[0], 1);
            kept += u8::from(word[4] == 9);
            while one.sends.next().is_some() || other.sends.next().is_some() {}
        }
        kept
    };
    assert_eq!(kept(false), 40);
    assert!(kept(true) < 40);
}

#[test]
fn atomics_are_aligned() {
    let atomic = |at, lenient| {
        let hazards = Hazards {
            lenient_alignment: lenient,
            ..plain()
        };
        let mut bare = Bare::new(hazards, Schedule::Eager);
        let mut pair = bare.looped(0, MASTER);
        let control = pair.control(Opcode::AtomicFa);
        let to = bare.piece(64, 8);
        let body = Body::Atomic(bare.remote(at), Atomic::FetchAdd { add: 1 }, to);
        let cqe = bare.once(&mut pair, control, &body);
        (matches!(cqe, Cqe::Completed(_)), bare.read(at, 1))
    };
    assert_eq!(atomic(8, false), (true, vec![1]));
    assert_eq!(atomic(4, false), (false, vec![0]));
    assert_eq!(atomic(4, true), (true, vec![1]));
}

#[test]
fn only_masters_wait_and_enable_and_only_managed_queues_are() {
    for lenient in [false, true] {
        let hazards = Hazards {
            lenient_roles: lenient,
            ..plain()
        };
        let mut bare = Bare::new(hazards, Schedule::Eager);
        let mut nobody = bare.looped(0, Roles::default());
        let control = nobody.control(Opcode::Wait);
        let wait = WaitCqe {
            cqn: nobody.send_cqn,
            index: CqeIndex::truncate(CqeIndex::MAX),
        };
        let cqe = bare.once(&mut nobody, control, &Body::WaitCqe(wait));
        assert_eq!(matches!(cqe, Cqe::Completed(_)), lenient);

        let mut bare = Bare::new(hazards, Schedule::Eager);
        let mut master = bare.looped(0, MASTER);
        let plain = bare.looped(1, Roles::default());
        for opcode in [Opcode::SendEnable, Opcode::ReceiveEnable] {
            let control = master.control(opcode);
            let body = Body::Enable(Enable {
                qpn: plain.qpn,
                up_to: WqeIndex(0),
            });
            let cqe = bare.once(&mut master, control, &body);
            assert_eq!(matches!(cqe, Cqe::Completed(_)), lenient);
        }
    }
}

#[test]
fn a_doorbell_without_its_record_is_not_seen() {
    let mut bare = Bare::eager();
    let mut pair = bare.looped(0, MASTER);
    let control = pair.control(Opcode::Nop);
    let wqe = WqeBuffer::encode(&control, &Body::Ignored(&[])).unwrap();
    pair.put(&bare.region, wqe.as_octets());
    bare.ring(&pair).unwrap();
    bare.run();
    assert_eq!(pair.sends.next(), None);
    pair.record(&bare.region);
    bare.run();
    assert_eq!(pair.sends.next(), None);
    bare.ring(&pair).unwrap();
    bare.run();
    done(&pair.sends.next().unwrap());
}

#[test]
fn events_are_asked_for() {
    let mut bare = Bare::eager();
    let mut pair = bare.looped(0, MASTER);
    let event = DeviceEvent::Completion(pair.send_cqn);
    let nop = |bare: &mut Bare, pair: &mut Pair, signal| {
        let mut control = pair.control(Opcode::Nop);
        control.signal = signal;
        bare.once(pair, control, &Body::Ignored(&[]));
        bare.model.next_event()
    };
    let arm = |bare: &mut Bare, pair: &Pair, solicited_only| {
        let consumer = u32::try_from(pair.sends.consumed()).unwrap();
        let how = CqArm {
            solicited_only,
            consumer: CqeIndex::truncate(consumer),
            ..CqArm::default()
        };
        bare.model.arm_cq(pair.send_cqn, how).unwrap();
    };
    assert_eq!(nop(&mut bare, &mut pair, Signal::Always), None);
    arm(&mut bare, &pair, false);
    assert_eq!(nop(&mut bare, &mut pair, Signal::Always), Some(event));
    assert_eq!(nop(&mut bare, &mut pair, Signal::Always), None);
    arm(&mut bare, &pair, true);
    assert_eq!(nop(&mut bare, &mut pair, Signal::Always), None);
    assert_eq!(
        nop(&mut bare, &mut pair, Signal::AlwaysWithEvent),
        Some(event)
    );
    // Armed too late: the CQE that software has not seen is an event at once.
    arm(&mut bare, &pair, false);
    assert_eq!(bare.model.next_event(), None);
    let control = pair.control(Opcode::Nop);
    pair.post(&bare.region, control, &Body::Ignored(&[]));
    bare.ring(&pair).unwrap();
    bare.run();
    assert_eq!(bare.model.next_event(), Some(event));
    arm(&mut bare, &pair, false);
    assert_eq!(bare.model.next_event(), Some(event));
}
