//! Profile, P7: what ends a session, what a failure leaves, and the order of the checks.

use super::{ALLOC_STORE, BIND, FREE, INLINE, LOAD, Message, RECORD, STORE, length_only, subject};
use kbtp_fabric::CloseReason;
use kbtp_harness::{
    Peer, Raw, Session, Setup, Who, alloc_store, eventually, fetched, start, store,
};
use kbtp_wire::{BlockOffset, Handle, RequestId, Status, Ticket};

//= test kbtp-p7-status-values
#[test]
fn the_statuses_have_their_numbers() {
    let names = [
        "OK",
        "BAD_REQUEST",
        "UNSUPPORTED",
        "VERSION_MISMATCH",
        "NOT_AUTHORIZED",
        "NOT_VALID",
        "ALREADY_VALID",
        "NOT_SEALED",
        "SEALED",
        "GENERATION_MISMATCH",
        "LENGTH_ERROR",
        "NO_SPACE",
        "TICKET_ABANDONED",
        "BAD_TICKET",
        "SHUTTING_DOWN",
        "INTERNAL_ERROR",
    ];
    for (value, name) in (0..).zip(names) {
        assert_eq!(Status::from_wire(value).map(Status::name), Some(name));
    }
    assert_eq!(Status::from_wire(16), None);
}

//= test kbtp-p7-too-short-ends-session
#[test]
fn a_message_without_a_header_ends_the_session() {
    let target = subject();
    for len in [0, 1, 23] {
        let mut s = Session::open(&*target, &Who::new(1));
        s.raw.send(&vec![1; len]);
        assert!(s.raw.recv().is_err(), "{len} octets are not answered");
        let mut raw = Raw::connect(target.address());
        raw.send(&vec![1; len]);
        assert!(raw.recv().is_err(), "{len} octets in place of HELLO");
    }
}

//= test kbtp-p7-too-long-ends-session
#[test]
fn a_message_over_the_promised_receive_ends_the_session() {
    let target = subject();
    for max_inline in [0, 100, 4096] {
        let mut who = Who::new(1);
        who.max_inline = max_inline;
        let mut s = Session::open(&*target, &who);
        assert_eq!(s.grant.max_inline.0, max_inline);
        let longest = 24 + 32 + usize::try_from(max_inline).unwrap();
        let message = |len: usize| {
            let body = vec![0; len - 24];
            Message::new(FREE, Handle(0)).body(&[&body]).octets()
        };
        assert_eq!(
            s.ask_octets(&message(longest)).status,
            Status::BadRequest,
            "just fits"
        );
        s.raw.send(&message(longest + 1));
        assert!(s.raw.recv().is_err(), "{max_inline}");
    }
}

//= test kbtp-p7-over-credits-ends-session
#[test]
fn more_than_the_credits_ends_the_session() {
    let target = subject();
    let who = Who {
        credits: 3,
        ..Who::new(1)
    };
    let request = |n, grant: &kbtp_wire::Grant, peer_buffer| kbtp_wire::Request {
        request_id: RequestId(n),
        handle: Handle(grant.handle_base.0 + n),
        generation: None,
        record: None,
        operation: alloc_store(fetched(peer_buffer), true),
    };
    let buffer = kbtp_wire::DataDescriptor {
        len: kbtp_wire::ByteLen(8),
        ..kbtp_harness::NO_DATA
    };
    let (mut peer, grant) = Peer::open(target.address(), &who);
    assert_eq!(grant.credits, 3);
    // The peer leaves the target's RDMA Reads unanswered, so that the requests stay outstanding.
    for n in 0..3 {
        peer.request(&request(n, &grant, buffer));
    }
    // One at least: a target may read for one request after the other.
    peer.receive().expect("an RDMA Read Request");
    peer.request(&request(3, &grant, buffer));
    // The end comes without a completion.
    while let Some(segment) = peer.receive() {
        if let kbtp_harness::Segment::Untagged(header, _) = segment {
            assert_ne!(header.queue.0, 0, "no completion");
        }
    }
    eventually("the session is gone", || {
        (target.audit().sessions == 0).then_some(())
    });
    let count = target.count();
    assert_eq!((count.in_rings, count.bound, count.elsewhere), (64, 0, 0));
}

//= test kbtp-p7-read-failure
#[test]
fn a_read_that_fails_gives_its_block_back() {
    let target = start(&Setup {
        lease_ms: u32::MAX,
        ..Setup::small()
    });
    let mut s = Session::open(&*target, &Who::new(1));
    s.put(0, b"kept");
    s.alloc(s.h(2), b"unsealed", false);
    let buffer = s.raw.buffer(100);
    s.raw.release(buffer);
    let source = fetched(buffer.descriptor());
    let new = s.request(s.h(1), alloc_store(source, true));
    let old = s.request(s.h(2), store(source, true));
    s.send(&old);
    s.send(&new);
    s.end();
    eventually("the session is gone", || {
        (target.audit().sessions == 0).then_some(())
    });
    let count = target.count();
    assert_eq!(
        (count.in_rings, count.bound, count.elsewhere),
        (62, 2, 0),
        "{count:?}"
    );
    let mut s = Session::open(&*target, &Who::new(1));
    assert_eq!(s.content(s.h(0)).unwrap().1, b"kept");
    assert_eq!(s.content(s.h(1)), None);
    assert_eq!(s.load_len(s.h(2), 64, false).0.status, Status::NotSealed);
}

//= test kbtp-p7-shutting-down
#[test]
fn a_draining_target_says_so() {
    let target = start(&Setup {
        linger_ms: 10_000,
        ..Setup::small()
    });
    let mut s = Session::open(&*target, &Who::new(1));
    s.put(0, b"x");
    target.drain();
    for status in [
        s.alloc(s.h(1), b"y", true).status,
        s.store(s.h(0), b"y", true).status,
        s.load(s.h(0)).0.status,
        s.free(s.h(0)).status,
    ] {
        assert_eq!(status, Status::ShuttingDown);
    }
    let refused = Session::try_open(&*target, &Who::new(2)).map(|_| ());
    assert_eq!(refused, Err(Status::ShuttingDown));
    // A malformed request is malformed all the same.
    let message = Message::new(FREE, s.h(0)).body(&[b"x"]);
    assert_eq!(s.ask_octets(&message.octets()).status, Status::BadRequest);
}

/// What can be wrong with a request, in the order of P7.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    BadRequest,
    Version,
    Unsupported,
    NotAuthorized,
    NotValid,
    AlreadyValid,
    Generation,
    NotSealed,
    Sealed,
    Length,
    NoSpace,
    Ticket,
}

impl Fault {
    const ALL: [Self; 12] = [
        Self::BadRequest,
        Self::Version,
        Self::Unsupported,
        Self::NotAuthorized,
        Self::NotValid,
        Self::AlreadyValid,
        Self::Generation,
        Self::NotSealed,
        Self::Sealed,
        Self::Length,
        Self::NoSpace,
        Self::Ticket,
    ];

    fn status(self) -> Status {
        match self {
            Self::BadRequest => Status::BadRequest,
            Self::Version => Status::VersionMismatch,
            Self::Unsupported => Status::Unsupported,
            Self::NotAuthorized => Status::NotAuthorized,
            Self::NotValid => Status::NotValid,
            Self::AlreadyValid => Status::AlreadyValid,
            Self::Generation => Status::GenerationMismatch,
            Self::NotSealed => Status::NotSealed,
            Self::Sealed => Status::Sealed,
            Self::Length => Status::LengthError,
            Self::NoSpace => Status::NoSpace,
            Self::Ticket => Status::BadTicket,
        }
    }

    /// Whether a request with this opcode can have it.
    fn goes_with(self, opcode: u8) -> bool {
        match self {
            Self::BadRequest
            | Self::Version
            | Self::Unsupported
            | Self::NotAuthorized
            | Self::Generation => true,
            Self::NotValid => matches!(opcode, LOAD | STORE | FREE),
            Self::AlreadyValid => matches!(opcode, ALLOC_STORE | BIND),
            Self::NotSealed => opcode == LOAD,
            Self::Sealed => opcode == STORE,
            Self::Length => opcode != FREE,
            Self::NoSpace => matches!(opcode, ALLOC_STORE | BIND),
            Self::Ticket => opcode == BIND,
        }
    }

    /// Whether one request can have both: a handle is bound or not, and what is sealed is not unsealed.
    fn goes_along(self, other: Self) -> bool {
        use Fault::{NotAuthorized, NotSealed, NotValid, Sealed};
        !matches!(
            (self, other),
            (NotValid, NotSealed | Sealed) | (NotAuthorized, NotValid | NotSealed)
        )
    }
}

/// The handles the requests are about.
struct Handles {
    sealed: Handle,
    unsealed: Handle,
    unbound: Handle,
    foreign_sealed: Handle,
    foreign_unbound: Handle,
    outside: Handle,
}

impl Handles {
    fn of(&self, opcode: u8, faults: &[Fault]) -> Handle {
        let has = |fault| faults.contains(&fault);
        if has(Fault::NotAuthorized) {
            return match opcode {
                LOAD => self.outside,
                STORE if has(Fault::Sealed) => self.foreign_sealed,
                ALLOC_STORE | BIND if has(Fault::AlreadyValid) => self.foreign_sealed,
                FREE => self.foreign_sealed,
                _ => self.foreign_unbound,
            };
        }
        match opcode {
            _ if has(Fault::NotValid) => self.unbound,
            LOAD if has(Fault::NotSealed) => self.unsealed,
            LOAD | FREE => self.sealed,
            STORE if has(Fault::Sealed) => self.sealed,
            STORE => self.unsealed,
            _ if has(Fault::AlreadyValid) => self.sealed,
            _ => self.unbound,
        }
    }
}

/// A request with these faults and no others.
fn request(
    opcode: u8,
    faults: &[Fault],
    handles: &Handles,
    ticket: (Ticket, BlockOffset),
) -> Message {
    let has = |fault| faults.contains(&fault);
    let mut message = Message::new(opcode, handles.of(opcode, faults));
    message.body = match opcode {
        // The blocks hold six octets.
        LOAD => length_only(if has(Fault::Length) { 5 } else { 6 }).to_vec(),
        STORE | ALLOC_STORE => {
            message.flags |= INLINE;
            length_only(if has(Fault::Length) { 4097 } else { 1 }).to_vec()
        }
        BIND => {
            let block = if has(Fault::Ticket) {
                BlockOffset(ticket.1.0 ^ 4096)
            } else {
                ticket.1
            };
            let len = if has(Fault::Length) { 4097_u32 } else { 1 };
            let mut body = ticket.0.0.to_be_bytes().to_vec();
            body.extend(len.to_be_bytes());
            body.extend(block.0.to_be_bytes());
            body
        }
        _ => Vec::new(),
    };
    if has(Fault::Unsupported) {
        message.flags |= RECORD;
        message.body.extend([0; 16]);
    }
    if matches!(opcode, STORE | ALLOC_STORE) {
        message.body.push(b'x');
    }
    if has(Fault::BadRequest) {
        message.status = 9;
    }
    if has(Fault::Version) {
        message.version = 2;
    }
    if has(Fault::Generation) {
        message.generation = 0x7777;
    }
    message
}

/// Every set of one or two faults that a request with `opcode` can have.
fn faulty(opcode: u8) -> Vec<Vec<Fault>> {
    let mut sets = Vec::new();
    let own = Fault::ALL
        .into_iter()
        .filter(|fault| fault.goes_with(opcode));
    for first in own.clone() {
        sets.push(vec![first]);
        for second in own.clone().filter(|second| first < *second) {
            if first.goes_along(second) {
                sets.push(vec![first, second]);
            }
        }
    }
    sets
}

/// Asks all of them, and that none of them changes anything.
fn check(
    s: &mut Session,
    opcodes: &[u8],
    handles: &Handles,
    ticket: (Ticket, BlockOffset),
    full: bool,
) -> usize {
    let rows = |s: &mut Session| {
        [
            handles.sealed,
            handles.unsealed,
            handles.unbound,
            handles.foreign_sealed,
        ]
        .map(|handle| s.entry_octets(handle))
    };
    let before = rows(s);
    let mut asked = 0;
    for opcode in opcodes {
        for faults in faulty(*opcode) {
            if faults.contains(&Fault::NoSpace) != full {
                continue;
            }
            let message = request(*opcode, &faults, handles, ticket);
            let completion = s.ask_octets(&message.octets());
            assert_eq!(
                completion.status,
                faults[0].status(),
                "opcode {opcode}: {faults:?}"
            );
            assert_eq!(
                rows(s),
                before,
                "opcode {opcode}: {faults:?}: nothing changes"
            );
            asked += 1;
        }
    }
    asked
}

//= test kbtp-p7-check-order
//= test kbtp-p7-failed-changes-nothing
//= test kbtp-p7-generation-mismatch
//= test kbtp-p7-already-valid
#[test]
fn of_two_faults_the_first_is_answered() {
    let target = subject();
    let mut other = Session::open(&*target, &Who::new(1).quota(4));
    other.put(0, b"foreig");
    // Three of four: two handles and a ticket.
    let mut s = Session::open(&*target, &Who::new(2).direct().quota(4));
    s.put(0, b"sealed");
    s.alloc(s.h(1), b"unseal", false);
    let ticket = s.take_block();
    let handles = Handles {
        sealed: s.h(0),
        unsealed: s.h(1),
        unbound: s.h(2),
        foreign_sealed: other.h(0),
        foreign_unbound: other.h(1),
        outside: Handle(s.grant.table_base.0 + s.grant.table_count),
    };
    let free = target.audit().free;
    let opcodes = [LOAD, STORE, ALLOC_STORE, FREE, BIND];
    let asked = check(&mut s, &opcodes, &handles, ticket, false);
    assert!(asked > 120, "{asked}");
    assert_eq!(target.audit().free, free);
    // At the quota, and for BIND over it: a ring of four with a quota of three.
    let mut s = Session::open(&*target, &Who::new(3).direct().quota(3));
    s.put(0, b"sealed");
    s.alloc(s.h(1), b"unseal", false);
    let ticket = s.take_block();
    let handles = Handles {
        sealed: s.h(0),
        unsealed: s.h(1),
        unbound: s.h(2),
        ..handles
    };
    let asked = check(&mut s, &[ALLOC_STORE], &handles, ticket, true);
    s.take();
    let asked = asked + check(&mut s, &[BIND], &handles, ticket, true);
    assert!(asked > 12, "{asked}");
    assert_eq!(
        s.slot(ticket.0.0 % 4).block_for(ticket.0),
        Some(ticket.1),
        "the ticket is whole"
    );
    s.raw.close(CloseReason::Graceful);
}
