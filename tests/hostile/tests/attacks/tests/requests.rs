//! KBTP's own: forged handles, generations and tickets, lies about lengths, quota, RECORD.

use super::{Dice, attacker, put, request, request_of};
use kbtp_harness::{
    Peer, Segment, Session, Setup, Start, Who, against, alloc_store, fetched, load, pattern,
    remote, store,
};
use kbtp_wire::mpa::{EnhancedData, ReadDepth};
use kbtp_wire::rdmap::{
    DdpTaggedCode, OperationCode, ProtectionCode, RdmapOpcode, ReadRequest, TerminateCause,
    TerminateControl,
};
use kbtp_wire::{
    Bind, BlockOffset, ByteLen, CompletionDescriptor, DataDescriptor, Handle, Operation, Source,
    Stag, Status, TaggedOffset, Ticket,
};

fn bind(ticket: Ticket, block: BlockOffset, len: u32) -> Operation<'static> {
    let bind = Bind {
        ticket,
        data_len: ByteLen(len),
        block,
    };
    Operation::Bind { bind, seal: false }
}

//= test kbtp-p7-not-authorized
//= test kbtp-6.2-store-in-range
#[test]
fn forged_handles() {
    against(&Setup::small(), |ground| {
        let mut owner = Session::open(&*ground.subject, &Who::new(1).direct().quota(4));
        owner.put(0, b"of the owner");
        let before = owner.entry_octets(owner.h(0));
        let (mut peer, grant) = attacker(ground.address());
        let base = grant.table_base.0;
        let handles = [
            owner.h(0).0,
            owner.h(1).0,
            base.wrapping_sub(1),
            base + grant.table_count,
            grant.handle_base.0 + grant.handle_count,
            grant.handle_base.0.wrapping_sub(1),
            1 << 32,
            1 << 60,
            u64::MAX - 1,
            u64::MAX,
        ];
        for handle in handles.map(Handle) {
            let source = Session::inline(b"forged");
            for operation in [
                store(source, true),
                alloc_store(source, true),
                Operation::Free,
                bind(Ticket(0), grant.partition_offset.0.into_block(), 1),
            ] {
                peer.request(&request(handle, operation));
                let completion = peer.completion();
                assert_eq!(
                    completion.status,
                    Status::NotAuthorized,
                    "{handle} {operation:?}"
                );
            }
        }
        assert_eq!(owner.entry_octets(owner.h(0)), before);
        assert_eq!(owner.content(owner.h(0)).unwrap().1, b"of the owner");
        owner.close();
    });
}

/// A number as a Block Offset.
trait IntoBlock {
    fn into_block(self) -> BlockOffset;
}

impl IntoBlock for u64 {
    fn into_block(self) -> BlockOffset {
        BlockOffset(self)
    }
}

//= test kbtp-p7-generation-mismatch
#[test]
fn forged_generations() {
    against(&Setup::small(), |ground| {
        let (mut peer, grant) = attacker(ground.address());
        let handle = grant.handle_base;
        put(&mut peer, handle, b"one");
        for generation in [2, 3, 0x8001, 0xffff] {
            for operation in [
                Operation::Free,
                store(Session::inline(b"x"), true),
                load(kbtp_harness::NO_DATA),
            ] {
                peer.request(&request_of(handle, generation, operation));
                let completion = peer.completion();
                assert_eq!(completion.status, Status::GenerationMismatch);
                assert_eq!(completion.generation.unwrap().get(), 1, "the entry's");
            }
        }
    });
}

//= test kbtp-6.6-bind-verified
//= test kbtp-p7-bad-ticket
#[test]
fn forged_tickets() {
    against(&Setup::small(), |ground| {
        let mut owner = Session::open(&*ground.subject, &Who::new(1).direct().quota(4));
        let (ticket, block) = owner.take_block();
        let mut s = Session::open(&*ground.subject, &Who::new(0xbad).direct().quota(4));
        let own = s.grant.partition_offset.0;
        let h = s.h(0);
        // Of another session, of nobody, of one not taken, of blocks elsewhere.
        for (ticket, block) in [
            (ticket, block),
            (Ticket(0), BlockOffset(own)),
            (Ticket(1), BlockOffset(own + 4096)),
            (Ticket(u32::MAX), BlockOffset::EMPTY),
            (Ticket(0x8000_0000), BlockOffset(0)),
        ] {
            assert_eq!(s.bind(h, ticket, block, 1, true).status, Status::BadTicket);
            assert!(!s.entry(h).is_valid());
        }
        assert_eq!(
            owner.bind(owner.h(0), ticket, block, 1, true).status,
            Status::Ok
        );
        owner.close();
        s.close();
    });
}

//= test kbtp-p4-bind-not-valid
//= test kbtp-3.4-late-bind-rejected
#[test]
fn binds_twice_late_and_of_what_was_freed() {
    let setup = Setup {
        // The first ticket must not be over before it is bound, on a busy machine either.
        ticket_timeout_ms: 1_000,
        ..Setup::small()
    };
    against(&setup, |ground| {
        let mut s = Session::open(&*ground.subject, &Who::new(0xbad).direct().quota(2));
        let (t0, b0) = s.take_block();
        assert_eq!(s.bind(s.h(0), t0, b0, 5, true).status, Status::Ok);
        assert_eq!(s.bind(s.h(0), t0, b0, 5, true).status, Status::AlreadyValid);
        assert_eq!(
            s.bind(s.h(1), t0, b0, 5, true).status,
            Status::BadTicket,
            "one block, two handles"
        );
        s.free(s.h(0));
        assert_eq!(
            s.bind(s.h(0), t0, b0, 5, true).status,
            Status::BadTicket,
            "it is in the ring again"
        );
        // Of two blocks the other one; nobody has to be quick enough to read that.
        let t1 = s.take().ticket();
        let g = s.grant;
        let b1 = BlockOffset(2 * g.partition_offset.0 + u64::from(g.block_size.0) - b0.0);
        kbtp_harness::eventually("the ticket is abandoned", || {
            (ground.subject.metric("kbtp_tickets_abandoned_total") == 1).then_some(())
        });
        for _ in 0..3 {
            assert_eq!(
                s.bind(s.h(0), t1, b1, 5, true).status,
                Status::TicketAbandoned
            );
        }
        s.close();
    });
}

//= test kbtp-p7-length-error-inline
//= test kbtp-p7-length-error-store
#[test]
fn lies_about_lengths() {
    against(&Setup::small(), |ground| {
        let (mut peer, grant) = attacker(ground.address());
        let h = grant.handle_base;
        let data = pattern(1, 4096);
        for declared in [0, 1, 4095, 4097, 8192, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            for present in [0, 1, 2, 4096] {
                if declared == present {
                    continue;
                }
                let octets = &data[..usize::try_from(present).unwrap()];
                let source = Source::Inline {
                    declared: ByteLen(declared),
                    octets,
                };
                peer.request(&request(h, alloc_store(source, true)));
                assert_eq!(
                    peer.completion().status,
                    Status::LengthError,
                    "{declared} of {present}"
                );
            }
        }
        // Sinks and sources that cannot be: the target never asks for them, or its Write goes nowhere but to them.
        for len in [4097, u32::MAX] {
            let buffer = DataDescriptor {
                stag: Stag(1),
                offset: TaggedOffset(u64::MAX),
                len: ByteLen(len),
            };
            let source = fetched(buffer);
            peer.request(&request(h, alloc_store(source, true)));
            assert_eq!(peer.completion().status, Status::LengthError);
        }
        put(&mut peer, h, &data);
        let sink = DataDescriptor {
            stag: Stag(1),
            offset: TaggedOffset(u64::MAX),
            len: ByteLen(u32::MAX),
        };
        peer.request(&request(
            h,
            Operation::Load {
                sink,
                invalidate: false,
                allow_unsealed: false,
            },
        ));
        // A Tagged Offset that wraps is the initiator's own affair; the target does not stumble over it.
        kbtp_harness::eventually("an answer or the end", || match peer.receive() {
            Some(Segment::Tagged(..)) => None,
            Some(Segment::Untagged(..)) | None => Some(()),
        });
    });
}

//= test kbtp-p7-no-space
//= test kbtp-3.4-over-quota-no-space
#[test]
fn quota_overrun() {
    against(&Setup::small(), |ground| {
        let (mut peer, grant) = attacker(ground.address());
        // More than the quota within one batch, so that none has been answered when the next is looked at.
        let source = Session::inline(b"x");
        for n in 0..12 {
            let handle = Handle(grant.handle_base.0 + n);
            peer.request(&request(handle, alloc_store(source, false)));
        }
        let statuses: Vec<_> = (0..12).map(|_| peer.completion().status).collect();
        assert_eq!(
            statuses.iter().filter(|s| **s == Status::Ok).count(),
            4,
            "{statuses:?}"
        );
        assert_eq!(
            statuses.iter().filter(|s| **s == Status::NoSpace).count(),
            8
        );
        // The same by RDMA Reads that it never answers: they count while they are under way.
        let (mut slow, grant) = Peer::open(ground.address(), &Who::new(2).quota(3));
        let buffer = DataDescriptor {
            len: ByteLen(100),
            ..kbtp_harness::NO_DATA
        };
        let source = fetched(buffer);
        for n in 0..8 {
            let handle = Handle(grant.handle_base.0 + n);
            slow.request(&request(handle, alloc_store(source, false)));
        }
        for _ in 0..5 {
            assert_eq!(slow.completion().status, Status::NoSpace);
        }
    });
}

//= test kbtp-3.4-over-quota-no-space
//= test kbtp-3.4-ticket-timeout
#[test]
fn ticket_hoarding() {
    let setup = Setup {
        ticket_timeout_ms: 100,
        ..Setup::small()
    };
    against(&setup, |ground| {
        // All tickets there are: others have their own rings, and the hoard is taken back.
        let mut s = Session::open(&*ground.subject, &Who::new(0xbad).direct().quota(8));
        for _ in 0..8 {
            s.take();
        }
        let mut other = Session::open(&*ground.subject, &Who::new(1).direct().quota(8));
        for n in 0..8 {
            assert_eq!(
                other.alloc_direct(other.h(n), b"x", true).status,
                Status::Ok
            );
        }
        kbtp_harness::eventually("the hoard is abandoned", || {
            (ground.subject.metric("kbtp_tickets_abandoned_total") == 8).then_some(())
        });
        for n in 0..8 {
            s.put(n, b"by the target");
        }
        // More than there are slots: the session ends.
        let mut greedy = Session::open(&*ground.subject, &Who::new(2).direct().quota(4));
        for _ in 0..40 {
            if greedy.try_take().is_err() {
                break;
            }
        }
        greedy.end();
        other.close();
        s.close();
    });
}

//= test kbtp-3.3-add-data-mask
#[test]
fn a_counter_torn_by_other_adds() {
    against(&Setup::small(), |ground| {
        let mut dice = Dice(3);
        let some = [
            (u64::MAX, 0),
            (1, 0),
            (2, 0),
            (4, 0),
            (8, 0),
            (0x10, 0),
            (0x8000_0000_0000_0000, 0),
            (0x7fff_ffff_ffff_ffff, u64::MAX),
            (0x0000_0001_0000_0000, 0),
            (0x0000_0003_0000_0030, 0),
            (0xffff_ffff_0000_0000, 0),
            (0xffff_ffff, 0),
        ];
        let more: Vec<_> = (0..20).map(|_| (dice.next(), dice.next())).collect();
        for (n, (add, mask)) in (0..).zip(some.into_iter().chain(more)) {
            let mut s = Session::open(&*ground.subject, &Who::new(n).direct().quota(4));
            s.put(0, b"x");
            let head = remote(s.grant.counter_stag, s.grant.head_offset.0);
            let _before = s.raw.fetch_add(head, add, mask);
            // What becomes of its own session is its own affair: it may be ended, refused or kept waiting. Each way
            // to the ring is gone once: by the target, by BIND, by a free.
            let (bound, block) = (s.h(0), BlockOffset(s.grant.partition_offset.0));
            let source = Session::inline(b"torn");
            for operation in [
                alloc_store(source, true),
                bind(Ticket(1), block, 1),
                bind(Ticket(0), block, 1),
                alloc_store(source, true),
                Operation::Free,
            ] {
                let handle = if operation == Operation::Free {
                    bound
                } else {
                    s.h(1)
                };
                let request = s.request(handle, operation);
                s.send(&request);
            }
            let _answer_or_end = s.raw.recv();
            if n % 4 == 0 {
                ground.victim.works(1);
            }
            s.abort();
        }
    });
}

//= test kbtp-6.5-record-not-on-rdmap
//= test kbtp-p2-record-needs-capability
#[test]
fn record_on_rdmap() {
    against(&Setup::small(), |ground| {
        let (mut peer, grant) = attacker(ground.address());
        let h = grant.handle_base;
        put(&mut peer, h, b"x");
        let record = CompletionDescriptor {
            stag: grant.partition_stag,
            offset: grant.partition_offset,
        };
        for operation in [
            Operation::Free,
            load(kbtp_harness::NO_DATA),
            alloc_store(Session::inline(b"x"), true),
            bind(Ticket(0), BlockOffset(0), 0),
        ] {
            let request = kbtp_wire::Request {
                record: Some(record),
                ..request(h, operation)
            };
            peer.request(&request);
            assert_eq!(peer.completion().status, Status::Unsupported);
        }
    });
}

/// A Read Response of `len` octets to the place that `read` asked for, moved by the XOR of `stag` and `offset`.
fn answer(read: &ReadRequest, stag: u32, offset: u64, len: usize) -> Segment {
    let sink = Stag(read.sink_stag.0 ^ stag);
    let data = vec![0xff; len];
    Segment::tagged(
        RdmapOpcode::ReadResponse,
        sink,
        read.sink_offset.0 ^ offset,
        &data,
    )
}

type Answers = fn(&ReadRequest) -> Vec<Segment>;

/// Wrong answers to an RDMA Read of 100 octets.
const WRONG_ANSWERS: [(&str, Answers, TerminateCause); 6] = [
    (
        "more than was asked for",
        |read| vec![answer(read, 0, 0, 101)],
        TerminateCause::DdpTagged(DdpTaggedCode::BaseOrBounds),
    ),
    (
        "elsewhere in the pool",
        |read| vec![answer(read, 0, 4096, 100)],
        TerminateCause::DdpTagged(DdpTaggedCode::BaseOrBounds),
    ),
    (
        "to another STag",
        |read| vec![answer(read, 1, 0, 100)],
        TerminateCause::DdpTagged(DdpTaggedCode::InvalidStag),
    ),
    (
        "less than was asked for",
        |read| vec![answer(read, 0, 0, 99)],
        TerminateCause::Operation(OperationCode::Unspecified),
    ),
    (
        "as a Write",
        |read| {
            let (stag, offset) = (read.sink_stag, read.sink_offset.0);
            vec![Segment::tagged(
                RdmapOpcode::Write,
                stag,
                offset,
                &[0xff; 100],
            )]
        },
        TerminateCause::Protection(ProtectionCode::AccessRights),
    ),
    (
        "twice",
        |read| vec![answer(read, 0, 0, 100), answer(read, 0, 0, 100)],
        TerminateCause::Operation(OperationCode::UnexpectedOpcode),
    ),
];

//= test kbtp-p7-read-failure
#[test]
fn reads_that_are_answered_wrongly() {
    against(&Setup::small(), |ground| {
        for (what, answers, cause) in WRONG_ANSWERS {
            let (mut peer, grant) = attacker(ground.address());
            let buffer = DataDescriptor {
                stag: Stag(5),
                offset: TaggedOffset(0),
                len: ByteLen(100),
            };
            peer.request(&request(
                grant.handle_base,
                alloc_store(fetched(buffer), true),
            ));
            let Some(Segment::Untagged(header, payload)) = peer.receive() else {
                panic!("{what}: the target reads")
            };
            assert_eq!(header.queue.0, 1);
            let read = ReadRequest::decode(payload.first_chunk().unwrap());
            for answer in answers(&read) {
                peer.segment(&answer);
            }
            let mut found = None;
            while let Some(segment) = peer.receive() {
                if let Segment::Untagged(header, payload) = segment
                    && header.queue.0 == 2
                {
                    let octets = *payload.first_chunk().unwrap();
                    found = Some(TerminateControl::decode(octets).cause);
                }
            }
            assert_eq!(found, Some(cause), "{what}");
        }
    });
}

#[test]
fn absurd_wishes() {
    against(&Setup::small(), |ground| {
        let quota = ground.subject.audit().quota;
        for (quota, handles, credits) in [
            (u32::MAX, u64::MAX, u16::MAX),
            (1, u64::MAX, 1),
            (1, 1 << 63, 1),
            (1, 4097, 1),
            (u32::MAX, 1, 1),
            (0, 0, 0),
        ] {
            let who = Who {
                quota,
                handles,
                credits,
                ..Who::new(0xbad).direct()
            };
            match Session::try_open(&*ground.subject, &who) {
                Ok(s) => {
                    assert!(s.grant.quota <= 60 && s.grant.handle_count <= s.grant.table_count);
                    assert!((1..=16).contains(&s.grant.credits));
                    s.close();
                }
                Err(status) => assert_eq!(status, Status::NoSpace, "{who:?}"),
            }
            let _audit = ground.alone();
        }
        assert_eq!(ground.subject.audit().quota, quota);
    });
}

#[test]
fn a_hello_without_end() {
    against(&Setup::small(), |ground| {
        for len in [1025, 4000] {
            let mut peer = Peer::connect(ground.address());
            let mut hello = Who::new(0xbad).hello(&peer.challenge);
            while hello.len() + 4 <= len {
                hello.extend([0x77, 0x77, 0, 0]);
            }
            hello.resize(len, 0);
            peer.send(&hello);
            while let Some(segment) = peer.receive() {
                if let Segment::Untagged(header, payload) = segment {
                    let refused = header.queue.0 == 0 && payload[22..24] == [0, 1];
                    assert!(refused || header.queue.0 == 2, "{len}: no session");
                }
            }
        }
    });
}

#[test]
fn a_peer_that_lets_nothing_be_read() {
    // IRD 0: the target may not read at all. What needs a Read is UNSUPPORTED; what does not goes on.
    against(&Setup::small(), |ground| {
        let mut peer = Peer::dial(ground.address());
        let none = EnhancedData {
            ird: ReadDepth::clamped(0),
            ord: ReadDepth::clamped(0),
            peer_to_peer: None,
        };
        let reply = peer.start(&Start {
            enhanced: Some(none),
            ..Start::default()
        });
        assert_eq!(reply.enhanced.unwrap().ord, ReadDepth::clamped(0));
        let grant = peer.hello(&Who::new(0xbad).direct()).unwrap();
        put(&mut peer, grant.handle_base, b"inline");
        let buffer = DataDescriptor {
            stag: Stag(1),
            offset: TaggedOffset(0),
            len: ByteLen(10),
        };
        let next = Handle(grant.handle_base.0 + 1);
        peer.request(&request(next, alloc_store(fetched(buffer), true)));
        match peer.receive() {
            Some(Segment::Untagged(header, payload)) => {
                assert_eq!(header.queue.0, 0, "no Read Request");
                assert_eq!(payload[22..24], Status::Unsupported.to_wire().to_be_bytes());
            }
            other => panic!("{other:?} in place of a completion"),
        }
        put(&mut peer, next, b"inline again");
    });
}
