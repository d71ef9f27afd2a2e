//! Draft, sections 5.1 and 5.2; profile, P1 to P3: headers, flags, descriptors, completions.

use super::{
    ALLOC_STORE, ALLOW_UNSEALED, BIND, FREE, INLINE, INVALIDATE, LOAD, Message, RECORD, SEAL,
    STORE, length_only, subject,
};
use kbtp_harness::{Session, Who};
use kbtp_wire::{Generation, Status};

/// A body of the length that opcode and flags ask for; of nothing, so that the request changes nothing if it fails.
fn body(opcode: u8, flags: u16, data: &[u8]) -> Vec<u8> {
    let mut body = match opcode {
        FREE => Vec::new(),
        STORE | ALLOC_STORE if flags & INLINE != 0 => {
            length_only(u32::try_from(data.len()).unwrap()).to_vec()
        }
        _ => vec![0; 16],
    };
    if flags & RECORD != 0 {
        body.extend([0; 16]);
    }
    if flags & INLINE != 0 {
        body.extend_from_slice(data);
    }
    body
}

//= test kbtp-p3-header-of-request
//= test kbtp-5.1-request-id-echoed
//= test kbtp-5.1-header-layout
//= test kbtp-p3-completion-layout
#[test]
fn a_completion_has_its_octets() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(7);
    let message = Message {
        id: 0xfedc_ba98_7654_3210,
        ..Message::new(ALLOC_STORE, h)
            .flags(INLINE | SEAL)
            .body(&[&length_only(3), b"abc"])
    };
    s.raw.send(&message.octets());
    let octets = s.raw.recv().unwrap().octets;
    let mut expected = vec![1, 8, 0, 0];
    expected.extend(0xfedc_ba98_7654_3210_u64.to_be_bytes());
    expected.extend(h.0.to_be_bytes());
    expected.extend([0, 1, 0, 0]);
    expected.extend([0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(octets[..32], expected);
    assert_eq!(octets.len(), 40);
    let (loaded, data) = s.load(h);
    assert_eq!(octets[32..], loaded.block.0.to_be_bytes());
    assert_eq!(data, b"abc");
}

//= test kbtp-5.1-generation-current
//= test kbtp-p3-zero-unless-ok
#[test]
fn a_refused_request_is_told_the_generation_and_nothing_else() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    s.put(0, b"sealed");
    for (opcode, flags, status) in [
        (STORE, INLINE, Status::Sealed),
        (ALLOC_STORE, INLINE, Status::AlreadyValid),
        (LOAD, 0, Status::LengthError),
        (LOAD, SEAL, Status::BadRequest),
        (FREE, RECORD, Status::Unsupported),
    ] {
        let message = Message::new(opcode, h).flags(flags);
        let body = body(opcode, flags, b"x");
        let completion = s.ask_octets(&message.body(&[&body]).octets());
        assert_eq!(completion.status, status);
        assert_eq!(
            completion.generation.map(Generation::get),
            Some(1),
            "{status:?}"
        );
        assert_eq!(completion.block.0, 0, "{status:?}");
        // LENGTH_ERROR of a LOAD tells how much room is needed.
        let len = if status == Status::LengthError { 6 } else { 0 };
        assert_eq!(completion.data_len.0, len, "{status:?}");
    }
    let freed = s.free(h);
    //= test kbtp-p3-free-new-generation
    assert_eq!(
        (freed.status, freed.generation.unwrap().get()),
        (Status::Ok, 2)
    );
    assert_eq!((freed.data_len.0, freed.block.0), (0, 0));
    let absent = s.load(h).0;
    assert_eq!(
        (absent.status, absent.generation.unwrap().get()),
        (Status::NotValid, 2)
    );
}

//= test kbtp-5.1-generation-any
#[test]
fn zero_is_any_generation() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    s.put(0, b"first");
    s.free(h);
    s.put(0, b"third");
    for (generation, status) in [
        (0, Status::LengthError),
        (3, Status::LengthError),
        (1, Status::GenerationMismatch),
        (0xffff, Status::GenerationMismatch),
    ] {
        let message = Message {
            generation,
            ..Message::new(LOAD, h).body(&[&[0; 16]])
        };
        let completion = s.ask_octets(&message.octets());
        assert_eq!(completion.status, status, "{generation}");
        assert_eq!(
            completion.generation.map(Generation::get),
            Some(3),
            "the entry's"
        );
    }
}

/// Which flags an opcode takes, as P2 has it.
fn allowed(opcode: u8, flags: u16) -> bool {
    let takes = match opcode {
        LOAD => RECORD | INVALIDATE | ALLOW_UNSEALED,
        STORE | ALLOC_STORE => INLINE | SEAL | RECORD | INVALIDATE,
        FREE => RECORD,
        BIND => SEAL | RECORD,
        _ => 0,
    };
    flags & !takes == 0 && flags & (INLINE | INVALIDATE) != INLINE | INVALIDATE
}

//= test kbtp-p2-flags-by-opcode
//= test kbtp-p2-invalidate-not-inline
//= test kbtp-p2-record-needs-capability
//= test kbtp-5.1-flags
//= test kbtp-6.5-record-not-on-rdmap
#[test]
fn every_opcode_with_every_flag() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct());
    let h = s.h(0);
    let others = (5..16).map(|bit| 1 << bit);
    for opcode in [LOAD, STORE, ALLOC_STORE, FREE, BIND] {
        for flags in (0..0x20).chain(others.clone()) {
            let mut body = body(opcode, flags, b"x");
            // What is to be invalidated must be there.
            let buffer = (flags & INVALIDATE != 0 && flags & INLINE == 0).then(|| s.raw.buffer(1));
            if let (Some(buffer), Some(stag)) = (buffer, body.first_chunk_mut()) {
                *stag = buffer.stag.0.to_be_bytes();
            }
            let message = Message::new(opcode, h).flags(flags).body(&[&body]);
            let completion = s.ask_octets(&message.octets());
            let expected = if !allowed(opcode, flags) {
                Status::BadRequest
            } else if flags & RECORD != 0 {
                Status::Unsupported
            } else {
                match opcode {
                    ALLOC_STORE => Status::Ok,
                    BIND => Status::BadTicket,
                    _ => Status::NotValid,
                }
            };
            assert_eq!(
                completion.status, expected,
                "opcode {opcode}, flags {flags:#06x}"
            );
            if expected == Status::Ok {
                let sealed = s.entry(h).is_sealed();
                assert_eq!(sealed, flags & SEAL != 0);
                assert_eq!(s.free(h).status, Status::Ok);
            }
        }
    }
}

//= test kbtp-p1-reserved-unsupported
//= test kbtp-p7-unsupported
//= test kbtp-p12-extension-range
#[test]
fn opcodes_that_are_no_requests() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    for opcode in [0_u8].into_iter().chain(9..=255) {
        for body in [&[][..], &[0; 16], &[7; 33]] {
            let message = Message::new(opcode, h).body(&[body]);
            let completion = s.ask_octets(&message.octets());
            assert_eq!(
                completion.status,
                Status::Unsupported,
                "opcode {opcode:#04x}"
            );
        }
    }
    // HELLO_ACK and COMPLETION are not reserved, but no requests either.
    for opcode in [2, 8] {
        let completion = s.ask_octets(&Message::new(opcode, h).octets());
        assert_eq!(completion.status, Status::BadRequest, "opcode {opcode}");
    }
}

//= test kbtp-5.2-data-descriptor
//= test kbtp-5.2-completion-descriptor
//= test kbtp-p7-bad-request
#[test]
fn every_length_but_the_right_one_is_refused() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    for (opcode, flags) in [
        (LOAD, 0),
        (LOAD, RECORD),
        (STORE, 0),
        (STORE, RECORD),
        (ALLOC_STORE, SEAL),
        (FREE, 0),
        (FREE, RECORD),
        (BIND, 0),
        (BIND, RECORD),
    ] {
        let right = body(opcode, flags, &[]).len();
        for len in 0..=40 {
            let message = Message::new(opcode, h).flags(flags).body(&[&vec![0; len]]);
            let status = s.ask_octets(&message.octets()).status;
            let case = format!("opcode {opcode}, flags {flags}, {len} octets");
            if len != right {
                assert_eq!(status, Status::BadRequest, "{case}");
            } else if opcode == ALLOC_STORE {
                assert_eq!(status, Status::Ok, "{case}");
                s.free(h);
            } else {
                assert_ne!(status, Status::BadRequest, "{case}");
            }
        }
    }
}

//= test kbtp-p7-bad-request
//= test kbtp-5.2-inline-descriptor-zero
//= test kbtp-5.2-completion-descriptor
//= test kbtp-5.1-status-zero-in-requests
#[test]
fn fields_that_must_be_zero() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    let inline = |s: &mut Session, at: usize| {
        let mut descriptor = length_only(1);
        descriptor[at] = 1;
        let message = Message::new(ALLOC_STORE, h)
            .flags(INLINE)
            .body(&[&descriptor, b"x"]);
        s.ask_octets(&message.octets()).status
    };
    for at in 0..12 {
        assert_eq!(
            inline(&mut s, at),
            Status::BadRequest,
            "octet {at} of the descriptor"
        );
    }
    for at in 12..16 {
        let mut record = [0; 16];
        record[at] = 1;
        let message = Message::new(FREE, h).flags(RECORD).body(&[&record]);
        assert_eq!(
            s.ask_octets(&message.octets()).status,
            Status::BadRequest,
            "Reserved"
        );
    }
    for status in [1, 0xff, 0x8000] {
        for opcode in [LOAD, STORE, ALLOC_STORE, FREE, BIND, 0, 0x77] {
            let body = body(opcode, 0, &[]);
            let message = Message {
                status,
                ..Message::new(opcode, h).body(&[&body])
            };
            assert_eq!(s.ask_octets(&message.octets()).status, Status::BadRequest);
        }
    }
}

//= test kbtp-5.1-version-one
//= test kbtp-p7-version-mismatch
//= test kbtp-p5-header-version
#[test]
fn every_version_but_one_is_refused() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    for version in (0..=255).filter(|version| *version != 1) {
        for opcode in [LOAD, FREE, 0x99] {
            let body = body(opcode, 0, &[]);
            let message = Message {
                version,
                ..Message::new(opcode, h).body(&[&body])
            };
            assert_eq!(
                s.ask_octets(&message.octets()).status,
                Status::VersionMismatch
            );
        }
    }
}

//= test kbtp-1.3-one-completion
//= test kbtp-p1-opcodes
#[test]
fn each_request_is_answered_once() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let mut asked = Vec::new();
    for n in 0..u64::from(s.grant.credits) {
        let (opcode, flags) = [
            (ALLOC_STORE, INLINE),
            (LOAD, 0),
            (FREE, 0),
            (0x60, 0),
            (STORE, INLINE),
        ][usize::try_from(n % 5).unwrap()];
        let body = body(opcode, flags, b"x");
        let h = s.h(n % 3);
        let message = Message {
            id: 1000 + n,
            ..Message::new(opcode, h).flags(flags).body(&[&body])
        };
        s.raw.send(&message.octets());
        asked.push(1000 + n);
    }
    let mut answered: Vec<_> = asked.iter().map(|_| s.completion().request_id.0).collect();
    answered.sort_unstable();
    assert_eq!(answered, asked);
    // Nothing more comes: the next completion is that of the next request.
    assert_eq!(s.load(s.h(7)).0.status, Status::NotValid);
}
