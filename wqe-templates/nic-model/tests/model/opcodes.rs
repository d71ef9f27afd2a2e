//! Each opcode, alone.

use crate::bare::{Bare, DATA, MANAGED, MASTER, Pair, done, failed, list};
use kbtp_device::{Device, Roles};
use kbtp_mlx5::{
    AccessRights, Atomic, Body, Comparison, CqeIndex, CqeOpcode, DataList, DataSegment, Enable,
    Mkey, MkeyContext, OnMismatch, Opcode, Payload, RemoteAddress, Syndrome, UmrControl, UmrFlags,
    UmrMask, WaitCqe, WaitData, WqeIndex,
};
use kbtp_nic_model::{Hazards, Reply, Schedule};

fn one() -> (Bare, Pair) {
    let mut bare = Bare::eager();
    let pair = bare.looped(0, MASTER);
    (bare, pair)
}

#[test]
fn nop_completes_whatever_is_behind_it() {
    let (mut bare, mut pair) = one();
    for body in [&[][..], &[0xff; 32]] {
        let control = pair.control(Opcode::Nop);
        let cqe = done(&bare.once(&mut pair, control, &Body::Ignored(body)));
        assert_eq!(cqe.op_own.opcode, CqeOpcode::Request);
        assert_eq!((cqe.send_opcode, cqe.qpn), (0, pair.qpn));
    }
}

#[test]
fn write_read_and_back() {
    let (mut bare, mut pair) = one();
    bare.write(0, b"twenty octets of it.");
    let from = [bare.piece(0, 7), bare.piece(7, 13)];
    let control = pair.control(Opcode::RdmaWrite);
    let body = Body::Write(bare.remote(100), list(&from));
    done(&bare.once(&mut pair, control, &body));
    assert_eq!(bare.read(100, 20), b"twenty octets of it.");

    let to = [bare.piece(301, 1), bare.piece(300, 1), bare.piece(302, 18)];
    let control = pair.control(Opcode::RdmaRead);
    let body = Body::Read(bare.remote(100), DataList::new(&to));
    let cqe = done(&bare.once(&mut pair, control, &body));
    assert_eq!(cqe.byte_count, 20);
    assert_eq!(bare.read(300, 20), b"wtenty octets of it.");

    let control = pair.control(Opcode::RdmaWrite);
    let body = Body::Write(bare.remote(400), Payload::Inline(b"inline"));
    done(&bare.once(&mut pair, control, &body));
    assert_eq!(bare.read(400, 6), b"inline");
}

#[test]
fn sends_take_receives_in_order() {
    let mut bare = Bare::eager();
    let (mut one, mut other) = bare.two();
    for at in [1000, 1100] {
        let to = [bare.piece(at, 4), bare.piece(at + 50, 40)];
        other.receive(&bare.region, &to);
    }
    let mut control = one.control(Opcode::Send);
    control.solicited = true;
    done(&bare.once(&mut one, control, &Body::Send(Payload::Inline(b"message"))));
    let cqe = done(&other.receives.next().unwrap());
    assert_eq!(cqe.op_own.opcode, CqeOpcode::ReceivedSend);
    assert!(cqe.op_own.solicited);
    assert_eq!((cqe.byte_count, cqe.wqe_counter), (7, 0));
    assert_eq!(bare.read(1000, 4), b"mess");
    assert_eq!(bare.read(1050, 3), b"age");

    let mut control = one.control(Opcode::SendImmediate);
    control.immediate = 0x0102_0304;
    done(&bare.once(&mut one, control, &Body::Send(list(&[]))));
    let cqe = done(&other.receives.next().unwrap());
    assert_eq!(cqe.op_own.opcode, CqeOpcode::ReceivedSendImmediate);
    assert_eq!((cqe.byte_count, cqe.immediate), (0, 0x0102_0304));
}

#[test]
fn write_with_immediate_takes_a_receive_and_leaves_its_list() {
    let mut bare = Bare::eager();
    let (mut one, mut other) = bare.two();
    let to = [bare.piece(1000, 8)];
    other.receive(&bare.region, &to);
    let mut control = one.control(Opcode::RdmaWriteImmediate);
    control.immediate = 77;
    let body = Body::Write(bare.remote(500), Payload::Inline(b"data"));
    done(&bare.once(&mut one, control, &body));
    let cqe = done(&other.receives.next().unwrap());
    assert_eq!(cqe.op_own.opcode, CqeOpcode::ReceivedWriteImmediate);
    assert_eq!((cqe.byte_count, cqe.immediate), (4, 77));
    assert_eq!(bare.read(500, 4), b"data");
    assert_eq!(bare.read(1000, 8), [0; 8]);
}

#[test]
fn send_with_invalidate_ends_a_key_that_allows_it() {
    let mut bare = Bare::eager();
    let (mut one, mut other) = bare.two();
    let layout = kbtp_device::Layout::Plain(bare.place(DATA));
    let attributes = kbtp_device::KeyAttributes {
        remote_invalidate: true,
        ..kbtp_device::KeyAttributes::new(bare.domain, AccessRights::REMOTE_READ, 0, 64, layout)
    };
    let key = bare.model.create_key(&attributes).unwrap();
    let to = [bare.piece(1000, 8)];
    for _ in 0..2 {
        other.receive(&bare.region, &to);
    }
    let read = |bare: &mut Bare, one: &mut Pair| {
        let remote = RemoteAddress {
            address: 0,
            rkey: key,
        };
        let to = [bare.piece(64, 8)];
        let control = one.control(Opcode::RdmaRead);
        bare.once(one, control, &Body::Read(remote, DataList::new(&to)))
    };
    done(&read(&mut bare, &mut one));
    let mut control = one.control(Opcode::SendInvalidate);
    control.immediate = key.0;
    done(&bare.once(&mut one, control, &Body::Send(Payload::Inline(b"bye"))));
    let cqe = done(&other.receives.next().unwrap());
    assert_eq!(cqe.op_own.opcode, CqeOpcode::ReceivedSendInvalidate);
    assert_eq!(cqe.immediate, key.0);
    assert!(bare.model.is_free(key));
    assert_eq!(failed(&read(&mut bare, &mut one)), Syndrome::REMOTE_ACCESS);
    bare.model.revive_key(key).unwrap();
    assert!(!bare.model.is_free(key));
}

#[test]
fn send_with_invalidate_of_a_key_that_does_not_allow_it_is_an_error_of_both() {
    let mut bare = Bare::eager();
    let (mut one, mut other) = bare.two();
    let to = [bare.piece(1000, 8)];
    other.receive(&bare.region, &to);
    let mut control = one.control(Opcode::SendInvalidate);
    control.immediate = bare.all.0;
    let cqe = bare.once(&mut one, control, &Body::Send(Payload::Inline(b"bye")));
    assert_eq!(failed(&cqe), Syndrome::REMOTE_INVALID_REQUEST);
    let cqe = failed(&other.receives.next().unwrap());
    assert_eq!(cqe, Syndrome::LOCAL_ACCESS);
    assert!(bare.model.failure(other.qpn).is_some());
}

fn atomic(bare: &mut Bare, pair: &mut Pair, atomic: Atomic, word: u64) -> (Vec<u8>, Vec<u8>) {
    bare.write(200, &word.to_le_bytes());
    bare.write(208, &[0xee; 16]);
    let mut control = pair.control(atomic.opcode());
    control.modifier = atomic.modifier();
    let len = atomic.word_len();
    let to = bare.piece(208, len);
    let body = Body::Atomic(bare.remote(200), atomic, to);
    let cqe = done(&bare.once(pair, control, &body));
    assert_eq!(cqe.byte_count, len);
    (
        bare.read(200, 8),
        bare.read(208, usize::try_from(len).unwrap()),
    )
}

#[test]
fn atomics_work_on_little_endian_words() {
    let (mut bare, mut pair) = one();
    let old = 0x1122_3344_5566_7788_u64;
    let same = old.to_le_bytes().to_vec();
    let cs = |compare| Atomic::CompareSwap { swap: 9, compare };
    let (word, reply) = atomic(&mut bare, &mut pair, cs(old), old);
    assert_eq!((word, reply), (9_u64.to_le_bytes().to_vec(), same.clone()));
    let (word, reply) = atomic(&mut bare, &mut pair, cs(1), old);
    assert_eq!((word, reply), (same.clone(), same.clone()));
    let fa = Atomic::FetchAdd { add: u64::MAX };
    let (word, reply) = atomic(&mut bare, &mut pair, fa, old);
    assert_eq!(
        (word, reply),
        ((old - 1).to_le_bytes().to_vec(), same.clone())
    );
    let masked = Atomic::MaskedCompareSwap8 {
        swap: 0xaaaa_aaaa_aaaa_aaaa,
        compare: 0x88,
        swap_mask: 0xff00,
        compare_mask: 0xff,
    };
    let (word, reply) = atomic(&mut bare, &mut pair, masked, old);
    let new = 0x1122_3344_5566_aa88_u64;
    assert_eq!((word, reply), (new.to_le_bytes().to_vec(), same.clone()));
    // The lower half wraps, and nothing goes to the upper.
    let masked = Atomic::MaskedFetchAdd8 {
        add: 0x0000_0001_ffff_ffff,
        boundary: 1 << 31 | 1 << 63,
    };
    let (word, reply) = atomic(&mut bare, &mut pair, masked, old);
    let new = 0x1122_3345_5566_7787_u64;
    assert_eq!((word, reply), (new.to_le_bytes().to_vec(), same));
}

/// Words of four octets: the rest stays, and the reply is big-endian.
#[test]
fn atomics_on_four_octets() {
    let (mut bare, mut pair) = one();
    let old = 0x1122_3344_5566_7788_u64;
    let masked = Atomic::MaskedFetchAdd4 {
        add: 0x0001_0001,
        boundary: 1 << 15,
    };
    let (word, reply) = atomic(&mut bare, &mut pair, masked, old);
    assert_eq!(word, 0x1122_3344_5567_7789_u64.to_le_bytes());
    assert_eq!(reply, 0x5566_7788_u32.to_be_bytes());
    let masked = Atomic::MaskedCompareSwap4 {
        swap: 0,
        compare: 0x5500_0000,
        swap_mask: 0xff,
        compare_mask: 0xff00_0000,
    };
    let (word, reply) = atomic(&mut bare, &mut pair, masked, old);
    assert_eq!(word, 0x1122_3344_5566_7700_u64.to_le_bytes());
    assert_eq!(reply, 0x5566_7788_u32.to_be_bytes());
}

#[test]
fn replies_may_be_big_endian() {
    let hazards = Hazards {
        reply: Reply::BigEndian,
        ..Hazards::default()
    };
    let mut bare = Bare::new(hazards, Schedule::Eager);
    let mut pair = bare.looped(0, MASTER);
    let fa = Atomic::FetchAdd { add: 1 };
    let (word, reply) = atomic(&mut bare, &mut pair, fa, 0x0102);
    assert_eq!(word, 0x0103_u64.to_le_bytes());
    assert_eq!(reply, 0x0102_u64.to_be_bytes());
}

#[test]
fn wait_for_a_cqe_counts_from_the_first() {
    let mut bare = Bare::eager();
    let mut waiter = bare.looped(0, MASTER);
    let mut other = bare.looped(1, MASTER);
    let wait = |index| {
        Body::WaitCqe(WaitCqe {
            cqn: other.send_cqn,
            index: CqeIndex::truncate(index),
        })
    };
    let (first, second) = (wait(0), wait(1));
    for body in [&first, &second] {
        let control = waiter.control(Opcode::Wait);
        waiter.post(&bare.region, control, body);
    }
    bare.ring(&waiter).unwrap();
    bare.run();
    assert_eq!(waiter.sends.next(), None);
    let control = other.control(Opcode::Nop);
    bare.once(&mut other, control, &Body::Ignored(&[]));
    assert!(waiter.sends.next().is_some());
    assert_eq!(waiter.sends.next(), None);
    let control = other.control(Opcode::Nop);
    bare.once(&mut other, control, &Body::Ignored(&[]));
    assert!(waiter.sends.next().is_some());
}

#[test]
fn wait_for_data_looks_again() {
    let (mut bare, mut pair) = one();
    let (low, all) = (0xffff, u64::MAX);
    for (comparison, data, mask, invert, before, after) in [
        (Comparison::Equal, 9, low, false, 8, 9),
        (Comparison::Bigger, 9, low, false, 9, 10),
        (Comparison::Smaller, 9, low, false, 9, 8),
        (Comparison::Equal, 9, low, true, 9, 8),
        // Above the mask anything may be.
        (
            Comparison::Equal,
            9,
            low,
            false,
            0xaa << 56 | 8,
            0xaa << 56 | 9,
        ),
        // Numbers wrap.
        (Comparison::CyclicBigger, all, all, false, all - 1, 3),
        (Comparison::CyclicSmaller, 3, all, false, 3, all),
    ] {
        let body = Body::WaitData(WaitData {
            comparison,
            invert,
            lkey: bare.all,
            address: DATA + 64,
            on_mismatch: OnMismatch::Retry,
            data: u64::to_be_bytes(data),
            mask: u64::to_be_bytes(mask),
        });
        bare.write(64, &u64::to_be_bytes(before));
        let mut control = pair.control(Opcode::Wait);
        control.modifier = 1;
        pair.post(&bare.region, control, &body);
        bare.ring(&pair).unwrap();
        bare.run();
        assert_eq!(pair.sends.next(), None, "{body:?}");
        bare.write(64, &u64::to_be_bytes(after));
        bare.run();
        done(&pair.sends.next().expect("over"));
    }
}

#[test]
fn wait_for_data_may_fail_instead() {
    let (mut bare, mut pair) = one();
    let body = Body::WaitData(WaitData {
        comparison: Comparison::Equal,
        invert: false,
        lkey: bare.all,
        address: DATA,
        on_mismatch: OnMismatch::Error,
        data: [1; 8],
        mask: [0xff; 8],
    });
    let mut control = pair.control(Opcode::Wait);
    control.modifier = 1;
    let cqe = bare.once(&mut pair, control, &body);
    assert_eq!(failed(&cqe), Syndrome::LOCAL_QP_OPERATION);
}

fn enable(pair: &Pair, up_to: u16) -> Body<'static> {
    Body::Enable(Enable {
        qpn: pair.qpn,
        up_to: WqeIndex(up_to),
    })
}

#[test]
fn send_enable_lets_a_managed_queue_run_so_far() {
    let mut bare = Bare::eager();
    let mut master = bare.looped(0, MASTER);
    let mut managed = bare.looped(1, MANAGED);
    for _ in 0..3 {
        let control = managed.control(Opcode::Nop);
        managed.post(&bare.region, control, &Body::Ignored(&[]));
    }
    // A doorbell does not start it.
    bare.ring(&managed).unwrap();
    bare.run();
    assert_eq!(managed.sends.next(), None);
    for (up_to, runs) in [(2, 2), (1, 0), (2, 0), (3, 1)] {
        let control = master.control(Opcode::SendEnable);
        let body = enable(&managed, up_to);
        done(&bare.once(&mut master, control, &body));
        for _ in 0..runs {
            done(&managed.sends.next().expect("it ran"));
        }
        assert_eq!(managed.sends.next(), None);
    }
}

#[test]
fn receive_enable_lets_managed_receives_be_used() {
    let mut bare = Bare::eager();
    let mut master = bare.looped(0, MASTER);
    let roles = Roles {
        managed_receive: true,
        master: true,
        ..Roles::default()
    };
    let mut pair = bare.looped(1, roles);
    let to = [bare.piece(1000, 8)];
    pair.receive(&bare.region, &to);
    let control = pair.control(Opcode::Send);
    pair.post(&bare.region, control, &Body::Send(Payload::Inline(b"m")));
    bare.ring(&pair).unwrap();
    bare.run();
    assert_eq!(pair.receives.next(), None);
    let control = master.control(Opcode::ReceiveEnable);
    let body = enable(&pair, 1);
    done(&bare.once(&mut master, control, &body));
    done(&pair.receives.next().expect("it came"));
    done(&pair.sends.next().expect("it went"));
}

#[test]
fn umr_changes_a_key() {
    let (mut bare, mut pair) = one();
    let rights = AccessRights::UMR.with(AccessRights::REMOTE_READ);
    let key = bare.key(rights, 0, 16, DATA);
    bare.write(0, b"0123456789abcdef");
    let read = |bare: &mut Bare, pair: &mut Pair, address, key| {
        let remote = RemoteAddress { address, rkey: key };
        let to = [bare.piece(512, 4)];
        let control = pair.control(Opcode::RdmaRead);
        bare.once(pair, control, &Body::Read(remote, DataList::new(&to)))
    };
    let context = |free, start, len, tag| MkeyContext {
        free,
        rights: AccessRights::default(),
        qpn: kbtp_mlx5::Qpn::truncate(u32::MAX),
        tag,
        flags: 0,
        pd: 0,
        start,
        len,
        list_segments: 0,
        log_page_size: 0,
    };
    let umr = |bare: &mut Bare, pair: &mut Pair, flags, mask, context| {
        let mut control = pair.control(Opcode::Umr);
        control.immediate = key.0;
        let body = UmrControl {
            flags,
            list_segments: 0,
            offset: 0,
            mask,
        };
        bare.once(pair, control, &Body::Umr(body, context, &[]))
    };
    done(&read(&mut bare, &mut pair, 4, key));
    assert_eq!(bare.read(512, 4), b"4567");
    let mask = UmrMask::START_ADDRESS.with(UmrMask::MKEY);
    let new = context(false, 0x1000, 16, 0x77);
    done(&umr(&mut bare, &mut pair, UmrFlags::default(), mask, new));
    let renamed = Mkey(key.0 & !0xff | 0x77);
    done(&read(&mut bare, &mut pair, 0x1008, renamed));
    assert_eq!(bare.read(512, 4), b"89ab");
    // What software calls a local invalidation: the key becomes free.
    let free = context(true, 0, 0, 0x77);
    let mask = UmrMask::FREE.with(UmrMask::MKEY);
    done(&umr(&mut bare, &mut pair, UmrFlags::default(), mask, free));
    let cqe = read(&mut bare, &mut pair, 0x1008, renamed);
    assert_eq!(failed(&cqe), Syndrome::REMOTE_ACCESS);
}

#[test]
fn umr_makes_a_strided_key() {
    let (mut bare, mut pair) = one();
    let key = bare.key(
        AccessRights::UMR.with(AccessRights::REMOTE_READ),
        0,
        16,
        DATA,
    );
    bare.write(0, b"AABBCCDD");
    let block = kbtp_mlx5::RepeatBlock {
        len: 4,
        repetitions: 4,
        entries: 2,
    };
    let entry = |stride, len, at| kbtp_mlx5::RepeatEntry {
        stride,
        len,
        mkey: bare.all,
        address: DATA + at,
    };
    let entries = [
        block.encode(),
        entry(2, 2, 0).encode(),
        entry(0, 2, 64).encode(),
    ];
    let umr = UmrControl {
        flags: UmrFlags::INLINE,
        list_segments: 3,
        offset: 0,
        mask: UmrMask::default(),
    };
    let context = MkeyContext::decode(&[0; 64]);
    bare.write(64, b"--");
    let mut control = pair.control(Opcode::Umr);
    control.immediate = key.0;
    done(&bare.once(&mut pair, control, &Body::Umr(umr, context, &entries)));
    let remote = RemoteAddress {
        address: 0,
        rkey: key,
    };
    let to = [bare.piece(512, 16)];
    let control = pair.control(Opcode::RdmaRead);
    done(&bare.once(&mut pair, control, &Body::Read(remote, DataList::new(&to))));
    assert_eq!(bare.read(512, 16), b"AA--BB--CC--DD--");
}

/// What no chain uses is an error, not ignored.
#[test]
fn opcodes_that_are_not_modelled_fail() {
    for opcode in [Opcode::Tso, Opcode::Dump, Opcode::Mmo, Opcode::LocalMmo] {
        let (mut bare, mut pair) = one();
        let control = pair.control(opcode);
        let cqe = bare.once(&mut pair, control, &Body::Ignored(&[0; 48]));
        assert_eq!(failed(&cqe), Syndrome::LOCAL_QP_OPERATION);
    }
    let (mut bare, mut pair) = one();
    let mut octets = [0; 64];
    octets[3] = 0x7e;
    pair.put(&bare.region, &octets);
    pair.record(&bare.region);
    bare.ring(&pair).unwrap();
    bare.run();
    assert_eq!(
        failed(&pair.sends.next().unwrap()),
        Syndrome::LOCAL_QP_OPERATION
    );
}

/// Nothing that a device does not find in its segments is assumed.
#[test]
fn data_segments_of_nothing_are_two_gib() {
    let (mut bare, mut pair) = one();
    let whole = DataSegment::new(1 << 31, bare.all, DATA).unwrap();
    assert_eq!(whole.encode()[..4], [0; 4]);
    let control = pair.control(Opcode::RdmaWrite);
    let body = Body::Write(bare.remote(0), list(std::slice::from_ref(&whole)));
    let cqe = bare.once(&mut pair, control, &body);
    assert_eq!(failed(&cqe), Syndrome::LOCAL_LENGTH);
}
