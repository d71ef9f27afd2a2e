//! One error after the other, as in `errors`: those of RDMAP, and of its extensions.

use super::errors::*;
use super::*;
use kbtp_wire::ByteLen;
use kbtp_wire::ddp::QueueNumber;
use kbtp_wire::rdmap::{RdmapControl, RdmapOpcode, ReadRequest};

#[test]
fn rdmap_operation_errors() {
    //= test rfc5040-7.2-version-valid
    //= test rfc5040-7.2-opcode-valid
    let with_control = |mut segment: Vec<u8>, control| {
        segment[1] = control;
        vec![segment]
    };
    for version in [0x03, 0x83, 0xC3] {
        refused(
            "RDMAP version",
            |_| with_control(untagged(3, 0, b"x"), version),
            (0, 2, 5),
            Shows::Ddp,
        );
    }
    refused(
        "RDMAP version, tagged",
        |s| with_control(tagged(0, s.all, BASE, true, b"x"), 0x80),
        (0, 2, 5),
        Shows::Ddp,
    );
    for opcode in 12..16 {
        refused(
            "reserved",
            |_| vec![untagged(opcode, 0, b"x")],
            (0, 2, 6),
            Shows::Ddp,
        );
    }
    // Every opcode on every queue but its own, and tagged.
    for opcode in RdmapOpcode::ALL {
        let number = RdmapControl::encode(opcode) & 15;
        for queue in 0..3 {
            if opcode.queue() != Some(QueueNumber(queue)) {
                refused(
                    "queue",
                    |_| vec![untagged(number, queue, b"x")],
                    (0, 2, 6),
                    Shows::Ddp,
                );
            }
        }
        if opcode != RdmapOpcode::Write {
            refused(
                "tagged",
                |s| vec![tagged(number, s.all, BASE, true, b"x")],
                (0, 2, 6),
                Shows::Ddp,
            );
        }
    }
    refused(
        "a ULPDU of 13 octets",
        |_| vec![vec![0xC1; 13]],
        (0, 2, 7),
        Shows::Nothing,
    );
    refused(
        "an untagged ULPDU of 17 octets",
        |_| vec![vec![0x41; 17]],
        (0, 2, 7),
        Shows::Nothing,
    );
}

#[test]
fn messages_of_the_wrong_length_are_refused() {
    //= test rfc7306-6.3-immediate-eight-octets
    for len in [0, 7, 9] {
        refused(
            "Immediate Data",
            |_| vec![untagged(8, 0, &vec![0; len])],
            (0, 2, 0xFF),
            Shows::Ddp,
        );
    }
    refused(
        "Read Request",
        |_| vec![untagged(1, 1, &[0; 27])],
        (0, 2, 0xFF),
        Shows::Ddp,
    );
    refused(
        "Atomic Request",
        |_| vec![untagged(10, 1, &[0; 51])],
        (0, 2, 0xFF),
        Shows::Ddp,
    );
    refused(
        "Terminate",
        |_| vec![untagged(7, 2, &[0; 3])],
        (0, 2, 0xFF),
        Shows::Ddp,
    );
}

#[test]
fn access_rights_are_checked() {
    //= test rfc5042-6.3.5-least-rights
    //= test rfc5040-7.2-invalidate-stag-valid
    //= test rfc5041-8.3.1-access-rights
    refused(
        "RDMA Write",
        |s| vec![tagged(0, s.own, BASE, true, b"x")],
        (0, 1, 2),
        Shows::Ddp,
    );
    refused(
        "RDMA Read",
        |s| vec![untagged(1, 1, &read_request(s.own, BASE, 8))],
        (0, 1, 2),
        Shows::Rdmap,
    );
    refused(
        "Atomic",
        |s| vec![untagged(10, 1, &atomic(s.own, BASE))],
        (0, 1, 2),
        Shows::Ddp,
    );
    refused(
        "RDMA Read of a retired STag",
        |s| vec![untagged(1, 1, &read_request(s.retired, BASE, 8))],
        (0, 1, 2),
        Shows::Rdmap,
    );
    for stag in [Stag(0), Stag(0x1234_5678)] {
        refused(
            "Send with Invalidate",
            |_| {
                let mut segment = untagged(4, 0, b"x");
                segment[2..6].copy_from_slice(&stag.0.to_be_bytes());
                vec![segment]
            },
            (0, 1, 9),
            Shows::Ddp,
        );
    }
    refused(
        "Send with SE and Invalidate without the right",
        |s| {
            let mut segment = untagged(6, 0, b"x");
            segment[2..6].copy_from_slice(&s.own.0.to_be_bytes());
            vec![segment]
        },
        (0, 1, 9),
        Shows::Ddp,
    );
}

#[test]
fn sources_of_reads_are_checked() {
    //= test rfc5040-7.2-read-source-stag
    //= test rfc5040-5.2.1-read-source-validated
    //= test rfc5040-7.2-read-source-range
    let read = |stag, offset, len| vec![untagged(1, 1, &read_request(stag, offset, len))];
    refused("STag", |_| read(Stag(99), BASE, 8), (0, 1, 0), Shows::Rdmap);
    refused("below", |s| read(s.all, 0, 8), (0, 1, 1), Shows::Rdmap);
    refused(
        "beyond",
        |s| read(s.all, BASE, 4097),
        (0, 1, 1),
        Shows::Rdmap,
    );
    refused(
        "far beyond",
        |s| read(s.all, BASE, u32::MAX),
        (0, 1, 1),
        Shows::Rdmap,
    );
    refused(
        "wrap",
        |s| read(s.top, u64::MAX - 1, 8),
        (0, 1, 4),
        Shows::Rdmap,
    );
}

#[test]
fn words_of_atomics_are_checked() {
    //= test rfc7306-5.1.1-aligned
    //= test rfc7306-5.1.2-aligned
    //= test rfc7306-8.1-terminate-sent
    //= test rfc7306-8.2-request-validated
    //= test rfc7306-5.2.1-unsupported-code
    let ask = |stag, offset| vec![untagged(10, 1, &atomic(stag, offset))];
    refused("STag", |_| ask(Stag(99), BASE), (0, 1, 0), Shows::Ddp);
    refused(
        "beyond",
        |s| ask(s.all, BASE + LEN - 7),
        (0, 1, 1),
        Shows::Ddp,
    );
    refused("wrap", |s| ask(s.top, u64::MAX - 3), (0, 1, 4), Shows::Ddp);
    refused(
        "not aligned",
        |s| ask(s.all, BASE + 4),
        (0, 2, 7),
        Shows::Ddp,
    );
    refused(
        "Swap, which is not assigned",
        |s| {
            let mut octets = atomic(s.all, BASE);
            octets[3] = 1;
            vec![untagged(10, 1, &octets)]
        },
        (0, 2, 6),
        Shows::Ddp,
    );
}

#[test]
fn a_zero_length_read_is_not_checked_and_is_answered() {
    //= test rfc5041-5.2-zero-length-one-segment
    //= test rfc5040-5.2.1-zero-read-not-validated
    //= test rfc5040-4.4-sink-copied
    let (mut forged, ..) = victim();
    forged.say(&untagged(1, 1, &read_request(Stag(0), u64::MAX, 0)));
    assert_eq!(
        forged.hear(),
        [tagged(2, Stag(0xAAAA_AAAA), 0xBBBB, true, &[])]
    );
}

#[test]
fn a_read_that_loses_its_source_shows_how_far_it_came() {
    //= test rfc5040-4.8-terminated-headers
    let config = Config {
        max_ulpdu: 128,
        ..Config::default()
    };
    let mut forged = Forged::new(&config);
    let memory = region(1 << 20);
    let stag = register(&mut forged.target, &memory, 0, ALL_ACCESS);
    forged.say(&untagged(1, 1, &read_request(stag, 0, 1 << 20)));
    let first = forged.hear();
    let done = u64::try_from(first.len()).unwrap() * 114;
    assert!(done > 0 && done < 1 << 20);
    forged.target.invalidate(stag).unwrap();
    // What was framed is still sent; then comes the Terminate.
    let rest = forged.hear();
    let (terminate, rest) = rest.split_last().unwrap();
    let done = done + u64::try_from(rest.len()).unwrap() * 114;
    let request = ReadRequest {
        sink_stag: Stag(0xAAAA_AAAA),
        sink_offset: TaggedOffset(0xBBBB + done),
        len: ByteLen((1 << 20) - u32::try_from(done).unwrap()),
        source_stag: stag,
        source_offset: TaggedOffset(done),
    };
    let mut want = vec![0x01, 0, 0xE0, 0, 0, 46];
    want.extend_from_slice(&untagged(1, 1, &[]));
    want.extend_from_slice(&request.encode());
    assert_eq!(*terminate, untagged(7, 2, &want));
}

#[test]
fn a_read_response_is_what_was_asked_for() {
    //= test rfc5040-5.2.2-response-matches
    //= test rfc5041-4.1-last-flag
    use kbtp_fabric::{LocalBuffer, RemoteBuffer, WorkId, WorkOutcome, WorkRequest};
    type Change = fn(Stag, Stag) -> (Vec<u8>, Option<(u8, u8, u8)>);
    let cases: [(&str, Change); 8] = [
        ("right", |sink, _| {
            (tagged(2, sink, 8, true, &[1; 32]), None)
        }),
        ("another STag", |_, other| {
            (tagged(2, other, 8, true, &[1; 32]), Some((1, 1, 0)))
        }),
        ("another offset", |sink, _| {
            (tagged(2, sink, 9, true, &[1; 32]), Some((1, 1, 1)))
        }),
        ("too long", |sink, _| {
            (tagged(2, sink, 8, true, &[1; 33]), Some((1, 1, 1)))
        }),
        ("ends early", |sink, _| {
            (tagged(2, sink, 8, true, &[1; 31]), Some((0, 2, 0xFF)))
        }),
        ("does not end", |sink, _| {
            (tagged(2, sink, 8, false, &[1; 32]), Some((0, 2, 0xFF)))
        }),
        ("an Atomic Response instead", |_, _| {
            (untagged(11, 3, &[0; 12]), Some((1, 2, 2)))
        }),
        ("a Write into the sink", |sink, _| {
            (tagged(0, sink, 8, true, &[1; 32]), Some((0, 1, 2)))
        }),
    ];
    for (what, change) in cases {
        let mut forged = Forged::new(&Config::default());
        forged.say(&tagged(0, Stag(0), 0, true, &[]));
        let memory = region(4096);
        let sink = register(&mut forged.target, &memory, 0, Access::LOCAL);
        let other = register(&mut forged.target, &memory, 0, Access::LOCAL);
        let read = WorkRequest::Read {
            local: LocalBuffer {
                stag: sink,
                offset: TaggedOffset(8),
                len: ByteLen(32),
            },
            remote: RemoteBuffer {
                stag: Stag(1),
                offset: TaggedOffset(0),
            },
        };
        forged.target.post(WorkId(1), &read, true).unwrap();
        forged.hear();
        let (segment, error) = change(sink, other);
        forged.say(&segment);
        let heard = forged.hear();
        match error {
            None => assert_eq!(
                events(&mut forged.target),
                [Event::Done {
                    id: WorkId(1),
                    outcome: WorkOutcome::Read
                }],
                "{what}"
            ),
            Some((layer, kind, code)) => {
                assert_eq!(heard[0][18..20], [layer << 4 | kind, code], "{what}");
                assert!(events(&mut forged.target).is_empty(), "{what}");
            }
        }
    }
}

#[test]
fn a_read_response_without_octets_names_no_place() {
    //= test rfc5040-5.2.2-response-matches
    use kbtp_fabric::{LocalBuffer, RemoteBuffer, WorkId, WorkOutcome, WorkRequest};
    for (stag, offset) in [(Stag(0), 0), (Stag(0xDEAD), 8), (Stag(0), 77)] {
        let mut forged = Forged::new(&Config::default());
        forged.say(&tagged(0, Stag(0), 0, true, &[]));
        let memory = region(4096);
        let sink = register(&mut forged.target, &memory, 0, Access::LOCAL);
        let read = WorkRequest::Read {
            local: LocalBuffer {
                stag: sink,
                offset: TaggedOffset(8),
                len: ByteLen(0),
            },
            remote: RemoteBuffer {
                stag: Stag(1),
                offset: TaggedOffset(0),
            },
        };
        forged.target.post(WorkId(1), &read, true).unwrap();
        forged.hear();
        forged.say(&tagged(2, stag, offset, true, &[]));
        let done = Event::Done {
            id: WorkId(1),
            outcome: WorkOutcome::Read,
        };
        assert_eq!(events(&mut forged.target), [done], "{stag} {offset}");
    }
}

#[test]
fn an_atomic_response_carries_the_identifier_of_its_request() {
    //= test rfc7306-5.2.2-request-id
    use kbtp_fabric::{RemoteBuffer, WorkId, WorkRequest};
    let mut forged = Forged::new(&Config::default());
    forged.say(&tagged(0, Stag(0), 0, true, &[]));
    let add = WorkRequest::FetchAdd {
        remote: RemoteBuffer {
            stag: Stag(1),
            offset: TaggedOffset(0),
        },
        add: 1,
        mask: 0,
    };
    forged.target.post(WorkId(1), &add, true).unwrap();
    let request = forged.hear().remove(0);
    let mut response = request[18 + 4..18 + 8].to_vec();
    response[0] ^= 1;
    response.extend_from_slice(&[0; 8]);
    forged.say(&untagged(11, 3, &response));
    assert_eq!(forged.hear()[0][18..20], [0x02, 0xFF]);
}
