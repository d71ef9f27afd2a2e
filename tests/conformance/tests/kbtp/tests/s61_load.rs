//! Draft, section 6.1: Block Load.

use super::subject;
use kbtp_harness::{Session, Setup, Who, pattern, start};
use kbtp_wire::{ByteLen, DataDescriptor, Operation, Status};

//= test kbtp-6.1-load-write
//= test kbtp-6.1-load-completion
#[test]
fn a_load_writes_the_data_and_no_more() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    for (n, len) in [(0, 1), (1, 2), (2, 511), (3, 4095), (4, 4096)] {
        let data = pattern(n, len);
        let stored = s.put(n, &data);
        let (loaded, octets) = s.load_len(s.h(n), 4096, false);
        assert_eq!(loaded.status, Status::Ok);
        assert_eq!(loaded.data_len.0 as usize, len);
        assert_eq!(
            (loaded.block, loaded.generation),
            (stored.block, stored.generation)
        );
        assert_eq!(octets[..len], data);
        assert!(
            octets[len..].iter().all(|o| *o == 0xee),
            "{len}: nothing after the data"
        );
    }
}

//= test kbtp-6.1-load-valid
//= test kbtp-p7-not-valid
#[test]
fn what_is_not_bound_is_not_loaded() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let (completion, octets) = s.load_len(s.h(0), 64, true);
    assert_eq!(
        (completion.status, completion.generation),
        (Status::NotValid, None)
    );
    assert_eq!(octets, [0xee; 64], "nothing is written");
}

//= test kbtp-6.1-load-sealed
//= test kbtp-p7-not-sealed
#[test]
fn an_unsealed_block_is_loaded_only_on_demand() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    s.alloc(h, b"open", false);
    let (completion, octets) = s.load_len(h, 64, false);
    assert_eq!(completion.status, Status::NotSealed);
    assert_eq!(octets, [0xee; 64]);
    let (completion, octets) = s.load_len(h, 64, true);
    assert_eq!(
        (completion.status, &octets[..4]),
        (Status::Ok, &b"open"[..])
    );
    s.store(h, b"shut", true);
    let (completion, octets) = s.load_len(h, 64, false);
    assert_eq!(
        (completion.status, &octets[..4]),
        (Status::Ok, &b"shut"[..])
    );
}

//= test kbtp-6.1-load-length
//= test kbtp-p7-length-error-load
#[test]
fn the_descriptor_must_have_room() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    s.put(0, &pattern(1, 1000));
    for room in [0_u32, 1, 999] {
        let (completion, octets) = s.load_len(s.h(0), room, false);
        assert_eq!(completion.status, Status::LengthError);
        assert_eq!(
            completion.data_len,
            ByteLen(1000),
            "it tells the room needed"
        );
        assert!(octets.iter().all(|o| *o == 0xee));
    }
    assert_eq!(s.load_len(s.h(0), 1000, false).1, pattern(1, 1000));
}

//= test kbtp-5.1-invalidate-data-descriptor
//= test kbtp-9.1-sends
#[test]
fn invalidate_invalidates_the_data_descriptor() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    s.put(0, b"once");
    let buffer = s.raw.buffer(64);
    let operation = Operation::Load {
        sink: buffer.descriptor(),
        invalidate: true,
        allow_unsealed: false,
    };
    let request = s.request(s.h(0), operation);
    s.send(&request);
    let (completion, invalidated) = s.completion_with();
    assert_eq!(
        (completion.status, invalidated),
        (Status::Ok, Some(buffer.stag))
    );
    assert_eq!(&s.raw.octets(&buffer)[..4], b"once");
    // The STag is gone: a load to it ends the stream, by this side's own rule.
    s.send(&request);
    s.end();
}

//= test kbtp-5.1-invalidate-data-descriptor
#[test]
fn a_failed_load_invalidates_too() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let buffer = s.raw.buffer(64);
    let operation = Operation::Load {
        sink: buffer.descriptor(),
        invalidate: true,
        allow_unsealed: false,
    };
    let request = s.request(s.h(0), operation);
    s.send(&request);
    let (completion, invalidated) = s.completion_with();
    assert_eq!(
        (completion.status, invalidated),
        (Status::NotValid, Some(buffer.stag))
    );
}

//= test kbtp-p7-not-authorized
#[test]
fn others_blocks_are_loaded_and_nothing_beyond_the_table() {
    let target = subject();
    let mut a = Session::open(&*target, &Who::new(1));
    let mut b = Session::open(&*target, &Who::new(2));
    a.put(0, b"of a");
    assert_eq!(
        b.content(a.h(0)).unwrap().1,
        b"of a",
        "one tenant, one trust domain"
    );
    let base = a.grant.table_base.0;
    let count = a.grant.table_count;
    for handle in [base.wrapping_sub(1), base + count, u64::MAX, u64::MAX / 2] {
        if (base..base + count).contains(&handle) {
            continue;
        }
        let completion = b.load(kbtp_wire::Handle(handle)).0;
        assert_eq!(
            (completion.status, completion.generation),
            (Status::NotAuthorized, None)
        );
    }
    assert_eq!(
        b.load(kbtp_wire::Handle(base + count - 1)).0.status,
        Status::NotValid
    );
}

//= test kbtp-9.1-loads-write-stores-read
#[test]
fn loads_of_large_blocks_arrive_before_their_completions() {
    let target = start(&Setup {
        block_size: 256 << 10,
        blocks: 8,
        default_quota: 4,
        ..Setup::small()
    });
    let mut s = Session::open(&*target, &Who::new(1));
    for n in 0..3 {
        s.put(n, &pattern(n, 256 << 10));
    }
    let buffers: Vec<_> = (0..3).map(|_| s.block_buffer()).collect();
    for round in 0..8_u64 {
        for (n, buffer) in (0..).zip(&buffers) {
            let operation = Operation::Load {
                sink: buffer.descriptor(),
                invalidate: false,
                allow_unsealed: false,
            };
            let request = s.request(s.h((n + round) % 3), operation);
            s.send(&request);
        }
        for _ in &buffers {
            let completion = s.completion();
            assert_eq!(
                (completion.status, completion.data_len.0),
                (Status::Ok, 256 << 10)
            );
        }
        for (n, buffer) in (0..).zip(&buffers) {
            assert!(s.raw.octets(buffer) == pattern((n + round) % 3, 256 << 10));
        }
    }
}

//= test kbtp-p7-zero-length-legal
#[test]
fn nothing_can_be_stored_and_loaded() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    assert_eq!(s.put(0, b"").data_len.0, 0);
    // No buffer is needed for nothing.
    let nowhere = DataDescriptor {
        len: ByteLen(0),
        ..kbtp_harness::NO_DATA
    };
    let load = Operation::Load {
        sink: nowhere,
        invalidate: false,
        allow_unsealed: false,
    };
    let request = s.request(h, load);
    let completion = s.ask(&request);
    assert_eq!((completion.status, completion.data_len.0), (Status::Ok, 0));
    assert_ne!(completion.block.0, u64::MAX);
    s.free(h);
    let empty = s.alloc_from(h, nowhere, false);
    assert_eq!(empty.status, Status::Ok, "nothing to read");
    assert_eq!(s.store(h, b"some", false).status, Status::Ok);
    assert_eq!(s.store(h, b"", true).status, Status::Ok);
    assert_eq!(s.content(h).unwrap().1, b"");
}
