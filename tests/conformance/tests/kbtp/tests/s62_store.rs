//! Draft, section 6.2: Block Mapped Store.

use super::subject;
use kbtp_harness::{Session, Setup, Subject, Who, alloc_store, fetched, pattern, start, store};
use kbtp_wire::{ByteLen, SessionCapabilities, Source, Status};

//= test kbtp-6.2-store-data
//= test kbtp-6.2-update-entry
//= test kbtp-9.1-loads-write-stores-read
#[test]
fn a_store_takes_its_data_from_either_place() {
    let target = start(&Setup {
        block_size: 256 << 10,
        blocks: 8,
        default_quota: 4,
        ..Setup::small()
    });
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    let first = s.alloc(h, b"first", false);
    for len in [0, 1, 4095, 4096, 4097, 65_536, (256 << 10) - 1, 256 << 10] {
        let data = pattern(7, len);
        let buffer = s.raw.filled(&data);
        let source = fetched(buffer.descriptor());
        let request = s.request(h, store(source, false));
        let completion = s.ask(&request);
        assert_eq!(completion.status, Status::Ok, "{len}");
        assert_eq!(
            (completion.block, completion.generation),
            (first.block, first.generation)
        );
        assert_eq!(completion.data_len.0 as usize, len);
        assert!(s.load(h).1 == data, "{len}");
        s.raw.release(buffer);
    }
    for len in [0, 1, 4096] {
        let data = pattern(8, len);
        assert_eq!(s.store(h, &data, false).status, Status::Ok);
        assert!(s.load(h).1 == data, "inline {len}");
    }
}

//= test kbtp-6.2-store-valid-unsealed
//= test kbtp-p7-sealed
#[test]
fn only_a_bound_and_unsealed_block_is_stored_to() {
    let target = subject();
    let mut s = Session::open(
        &*target,
        &Who::new(1).with(SessionCapabilities::DIRECT_LOAD),
    );
    let h = s.h(0);
    assert_eq!(s.store(h, b"x", true).status, Status::NotValid);
    assert_eq!(s.entry_octets(h), [0; 16]);
    s.alloc(h, b"one", false);
    assert_eq!(s.store(h, b"two", true).status, Status::Ok);
    let sealed = s.entry_octets(h);
    for seal in [false, true] {
        assert_eq!(s.store(h, b"three", seal).status, Status::Sealed);
    }
    assert_eq!(s.entry_octets(h), sealed);
    assert_eq!(s.content(h).unwrap().1, b"two");
}

//= test kbtp-6.2-store-in-range
//= test kbtp-p7-not-authorized
#[test]
fn a_foreign_block_is_not_stored_to() {
    let target = subject();
    let mut a = Session::open(&*target, &Who::new(1));
    let mut b = Session::open(&*target, &Who::new(2));
    a.alloc(a.h(0), b"of a", false);
    let refused = b.store(a.h(0), b"of b", true);
    assert_eq!(refused.status, Status::NotAuthorized);
    assert_eq!(a.content(a.h(0)).unwrap().1, b"of a");
    assert_eq!(
        a.store(a.h(0), b"mine", true).status,
        Status::Ok,
        "not even sealed"
    );
}

//= test kbtp-5.1-invalidate-data-descriptor
#[test]
fn invalidate_invalidates_the_source() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    for op in ["alloc_store", "store"] {
        let buffer = s.raw.filled(op.as_bytes());
        let source = Source::Remote {
            buffer: buffer.descriptor(),
            invalidate: true,
        };
        let operation = if op == "store" {
            store(source, true)
        } else {
            alloc_store(source, false)
        };
        let request = s.request(h, operation);
        s.send(&request);
        let (completion, invalidated) = s.completion_with();
        assert_eq!(
            (completion.status, invalidated),
            (Status::Ok, Some(buffer.stag))
        );
        assert_eq!(s.content(h).unwrap().1, op.as_bytes());
    }
}

/// A session with an unsealed block in handle 0, on a target whose Max Inline is half a block.
fn with_edges(target: &dyn Subject) -> Session {
    let who = Who::new(1).with(SessionCapabilities::DIRECT_LOAD);
    let mut s = Session::open(target, &who);
    s.alloc(s.h(0), b"kept", false);
    s
}

fn half_inline() -> Box<dyn Subject> {
    start(&Setup {
        block_size: 8192,
        max_inline: 4096,
        ..Setup::small()
    })
}

/// STORE to handle 0 and ALLOC_STORE to handle 1; whether both end as they should, and change nothing if they fail.
fn both(s: &mut Session, source: Source<'_>, status: Status) {
    let (old, new) = (s.h(0), s.h(1));
    let before = (s.entry_octets(old), s.entry_octets(new));
    for (handle, operation) in [
        (old, store(source, false)),
        (new, alloc_store(source, false)),
    ] {
        let request = s.request(handle, operation);
        let completion = s.ask(&request);
        assert_eq!(completion.status, status, "{operation:?}");
        if status == Status::Ok {
            assert_eq!(completion.data_len, source.len());
        } else {
            assert_eq!((completion.data_len.0, completion.block.0), (0, 0));
            assert_eq!((s.entry_octets(old), s.entry_octets(new)), before);
            assert_eq!(s.content(old).unwrap().1, b"kept");
        }
    }
    if status == Status::Ok {
        s.free(new);
        s.store(old, b"kept", false);
    }
}

//= test kbtp-p7-length-error-store
#[test]
fn block_size_is_the_edge_of_what_is_read() {
    let target = half_inline();
    let mut s = with_edges(&*target);
    let buffer = s.raw.buffer(8193);
    for (len, status) in [
        (8193, Status::LengthError),
        (u32::MAX, Status::LengthError),
        (8192, Status::Ok),
        (8191, Status::Ok),
    ] {
        let mut descriptor = buffer.descriptor();
        descriptor.len.0 = len;
        both(&mut s, fetched(descriptor), status);
    }
}

//= test kbtp-p7-length-error-inline
//= test kbtp-5.2-inline-data-follows
#[test]
fn max_inline_is_the_edge_of_what_follows() {
    let target = half_inline();
    let mut s = with_edges(&*target);
    let data = pattern(1, 4096);
    for (declared, present, status) in [
        (4096, 4096, Status::Ok),
        (4095, 4095, Status::Ok),
        (4096, 4095, Status::LengthError),
        (4095, 4096, Status::LengthError),
        (0, 1, Status::LengthError),
        (1, 0, Status::LengthError),
        (4097, 4096, Status::LengthError),
        (8193, 4096, Status::LengthError),
        (u32::MAX, 0, Status::LengthError),
    ] {
        let source = Source::Inline {
            declared: ByteLen(declared),
            octets: &data[..present],
        };
        both(&mut s, source, status);
    }
}
