//! Profile, P5, P6 and P12: HELLO and HELLO_ACK.

use super::{FREE, LOAD, Message, STORE, subject};
use kbtp_harness::{Peer, Raw, Session, Setup, Start, Subject, Who, eventually, on_device, start};
use kbtp_wire::mpa::{EnhancedData, ReadDepth, RtrKinds};
use kbtp_wire::rdmap::ReadRequest;
use kbtp_wire::{ByteLen, Header, Stag, Status, TaggedOffset, tlv_type};

/// A HELLO as octets, right or wrong.
#[derive(Clone, Debug)]
struct Hello {
    header: Message,
    versions: [u8; 2],
    credits: u16,
    capabilities: u32,
    quota: u32,
    max_inline: u32,
    handles: u64,
    initiator: [u8; 16],
    tlvs: Vec<u8>,
    /// Octets at the end to leave out.
    cut: usize,
}

impl Hello {
    fn new(n: u8) -> Self {
        Self {
            header: Message::new(1, kbtp_wire::Handle(0)),
            versions: [1, 1],
            credits: 0,
            capabilities: 0,
            quota: 0,
            max_inline: 4096,
            handles: 0,
            initiator: [n; 16],
            tlvs: Vec::new(),
            cut: 0,
        }
    }

    fn tlv(mut self, kind: u16, value: &[u8]) -> Self {
        self.tlvs.extend(kind.to_be_bytes());
        self.tlvs
            .extend(u16::try_from(value.len()).unwrap().to_be_bytes());
        self.tlvs.extend_from_slice(value);
        self.tlvs.resize(self.tlvs.len().next_multiple_of(4), 0);
        self
    }

    fn octets(&self) -> Vec<u8> {
        let mut octets = self.header.octets();
        octets.extend(self.versions);
        octets.extend(self.credits.to_be_bytes());
        octets.extend(self.capabilities.to_be_bytes());
        octets.extend(self.quota.to_be_bytes());
        octets.extend(self.max_inline.to_be_bytes());
        octets.extend(self.handles.to_be_bytes());
        octets.extend(self.initiator);
        octets.extend_from_slice(&self.tlvs);
        octets.truncate(octets.len() - self.cut);
        octets
    }

    /// The HELLO_ACK, whole, and the stream it came on.
    fn say(&self, target: &dyn Subject) -> (Raw, Vec<u8>) {
        let mut raw = Raw::connect(target.address());
        raw.send(&self.octets());
        let ack = raw.recv().expect("a HELLO_ACK").octets;
        (raw, ack)
    }

    /// The status of HELLO_ACK. A refusal must have no body, and the end of the stream must follow it.
    fn status(&self, target: &dyn Subject) -> Status {
        let (mut raw, ack) = self.say(target);
        let header = Header::decode(ack.first_chunk().unwrap());
        assert_eq!((header.opcode, header.version, header.flags.0), (2, 1, 0));
        assert_eq!(
            header.request_id.0, self.header.id,
            "the Request ID is echoed"
        );
        let status = Status::from_wire(header.status).unwrap();
        if status != Status::Ok {
            assert_eq!(ack.len(), 24, "no body");
            raw.end();
        }
        status
    }
}

fn be32(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[24 + at..28 + at].try_into().unwrap())
}

fn be64(octets: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(octets[24 + at..32 + at].try_into().unwrap())
}

//= test kbtp-p6-hello-ack-layout
//= test kbtp-p5-hello-layout
//= test kbtp-p6-request-id
//= test kbtp-p5-capability-bits
#[test]
fn a_hello_ack_has_its_octets() {
    let target = start(&Setup {
        lease_ms: 12_345,
        ticket_timeout_ms: 6_789,
        ..Setup::small()
    });
    let mut hello = Hello::new(1);
    hello.header.id = 0x1122_3344_5566_7788;
    (hello.credits, hello.quota, hello.max_inline, hello.handles) = (5, 6, 100, 70);
    hello.capabilities = 3;
    let (_raw, ack) = hello.say(&*target);
    assert_eq!(ack[..4], [1, 2, 0, 0]);
    assert_eq!(ack[4..12], 0x1122_3344_5566_7788_u64.to_be_bytes());
    assert_eq!(ack[12..24], [0; 12]);
    assert_eq!(be32(&ack, 0), 3, "Capabilities");
    assert_eq!(
        (be32(&ack, 4), be32(&ack, 8), be32(&ack, 12)),
        (4096, 64, 6)
    );
    let (base, count) = (be64(&ack, 16), be64(&ack, 24));
    let (table, handles) = (be64(&ack, 32), be64(&ack, 40));
    assert!(count >= 70 && base >= table && base + count <= table + handles);
    assert_eq!(handles, 4096);
    assert_eq!(
        ack[24 + 48..24 + 52],
        [0, 5, 3, u8::from(on_device())],
        "Credits, Ring Order, Atomic Form"
    );
    assert_eq!((be32(&ack, 52), be32(&ack, 56)), (100, 6_789));
    let stags = [60, 72, 76, 96, 100].map(|at| be32(&ack, at));
    assert!(stags.iter().all(|stag| *stag != 0), "{stags:x?}");
    assert_eq!(be64(&ack, 88), 6 * 4096, "Partition Length");
    assert_eq!(
        (
            be64(&ack, 80) % 4096,
            be64(&ack, 104) % 16,
            be64(&ack, 112) % 8
        ),
        (0, 0, 0)
    );
    assert_ne!(ack[24 + 120..24 + 136], [0; 16], "Target Instance ID");
    assert_eq!(
        (be32(&ack, 136), be32(&ack, 140)),
        (12_345, 0),
        "Lease, Reserved"
    );
}

//= test kbtp-p6-stags-zero-without-capability
//= test kbtp-p6-block-offset-always
//= test kbtp-p7-unsupported
#[test]
fn without_direct_modes_there_are_no_stags() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    assert_eq!(s.grant.capabilities.0, 0);
    let g = &s.grant;
    let stags = [
        g.table_stag,
        g.pool_stag,
        g.partition_stag,
        g.ring_stag,
        g.counter_stag,
    ];
    assert_eq!(stags.map(|stag| stag.0), [0; 5]);
    assert_eq!(g.partition_len, 0);
    let blocks: Vec<_> = (0..3).map(|n| s.put(n, b"x").block).collect();
    assert!(blocks[0] != blocks[1] && blocks[1] != blocks[2] && blocks[0] != blocks[2]);
    assert_eq!(s.load(s.h(1)).0.block, blocks[1]);
    let bind = s.bind(s.h(5), kbtp_wire::Ticket(0), blocks[0], 0, true);
    assert_eq!(bind.status, Status::Unsupported);
    for (n, load, alloc) in [(2, true, false), (3, false, true), (4, false, false)] {
        let target = start(&Setup {
            direct_load: load,
            direct_alloc: alloc,
            ..Setup::small()
        });
        let grant = Session::open(&*target, &Who::new(n).direct()).grant;
        assert_eq!(grant.capabilities.0, u32::from(load) + 2 * u32::from(alloc));
        assert_eq!(grant.table_stag.0 != 0 && grant.pool_stag.0 != 0, load);
        assert_eq!(grant.partition_stag.0 != 0 && grant.ring_stag.0 != 0, alloc);
    }
}

//= test kbtp-p5-defaults
#[test]
fn zero_wants_the_default() {
    let target = subject();
    let (_raw, ack) = Hello::new(1).say(&*target);
    assert_eq!(be32(&ack, 12), 8, "quota");
    assert_eq!(ack[24 + 48..24 + 50], [0, 16], "credits");
    assert!(be64(&ack, 24) >= 8, "handles: as many as the quota");
    let mut hello = Hello::new(2);
    (hello.credits, hello.quota, hello.max_inline) = (0xffff, 40, u32::MAX);
    let (_raw, ack) = hello.say(&*target);
    assert_eq!((be32(&ack, 12), be32(&ack, 52)), (40, 4096));
    assert_eq!(ack[24 + 48..24 + 50], [0, 16], "no more than there are");
    assert!(be64(&ack, 24) >= 40);
    let mut hello = Hello::new(3);
    hello.max_inline = 0;
    let (_raw, ack) = hello.say(&*target);
    assert_eq!(be32(&ack, 52), 0, "no inline data wanted, none granted");
}

//= test kbtp-p5-hello-first
#[test]
fn hello_comes_first_and_once() {
    let target = subject();
    for opcode in [0, 2, LOAD, STORE, FREE, 8, 0x80, 0xff] {
        let mut raw = Raw::connect(target.address());
        raw.send(
            &Message::new(opcode, kbtp_wire::Handle(0))
                .body(&[&[0; 40]])
                .octets(),
        );
        assert!(
            raw.recv().is_err(),
            "opcode {opcode}: the session ends without an answer"
        );
    }
    let mut s = Session::open(&*target, &Who::new(1));
    s.raw.send(&Hello::new(1).octets());
    s.end();
    eventually("the session is gone", || {
        (target.audit().sessions == 0).then_some(())
    });
}

//= test kbtp-p5-hello-header
//= test kbtp-p6-body-only-if-ok
//= test kbtp-p6-refused-closes
//= test kbtp-p7-bad-request
#[test]
fn a_malformed_hello_is_refused() {
    let target = subject();
    let bad = |change: fn(&mut Hello)| {
        let mut hello = Hello::new(1);
        change(&mut hello);
        assert_eq!(hello.status(&*target), Status::BadRequest, "{hello:?}");
    };
    bad(|h| h.header.handle.0 = 1);
    bad(|h| h.header.generation = 1);
    bad(|h| h.header.status = 1);
    for bit in 0..16 {
        let mut hello = Hello::new(1);
        hello.header.flags = 1 << bit;
        assert_eq!(hello.status(&*target), Status::BadRequest, "flag {bit}");
    }
    bad(|h| h.cut = 1);
    bad(|h| h.cut = 40);
    bad(|h| h.versions = [2, 1]);
    bad(|h| h.tlvs = vec![0, 9, 0]);
    bad(|h| h.tlvs = vec![0, 9, 0, 1]);
    bad(|h| h.tlvs = vec![0, 9, 0, 1, 7, 0, 0, 1]);
    bad(|h| h.tlvs = vec![0, 2, 0, 4, 1, 2, 3, 4]);
    bad(|h| h.tlvs = vec![0, 1, 0, 1, 0xff, 0, 0, 0]);
}

//= test kbtp-p5-tlv-once
//= test kbtp-p5-tlv-types
//= test kbtp-p5-tlv-format
//= test kbtp-p5-unknown-tlvs-skipped
#[test]
fn tlvs() {
    let target = subject();
    let name = tlv_type::TENANT;
    let twice = Hello::new(1).tlv(name, b"a").tlv(name, b"a");
    assert_eq!(twice.status(&*target), Status::BadRequest);
    let auth = [0; 48];
    let twice = Hello::new(1).tlv(2, &auth).tlv(2, &auth);
    assert_eq!(twice.status(&*target), Status::BadRequest);
    // Types unknown, values of every length modulo 4, around known ones.
    let hello = Hello::new(1)
        .tlv(0, b"")
        .tlv(4, b"1")
        .tlv(0xffff, b"22")
        .tlv(3, "software \u{e9}".as_bytes())
        .tlv(0x8000, b"333")
        .tlv(5, b"4444")
        .tlv(3, b"twice");
    assert_eq!(hello.status(&*target), Status::Ok);
    let many = (0..32).fold(Hello::new(2), |hello, _| hello.tlv(99, b""));
    assert_eq!(many.status(&*target), Status::Ok);
    assert_eq!(
        many.tlv(99, b"").status(&*target),
        Status::BadRequest,
        "33 are too many"
    );
}

//= test kbtp-p7-version-mismatch
//= test kbtp-p5-header-version
#[test]
fn versions_must_meet() {
    let target = subject();
    for (versions, status) in [
        ([1, 1], Status::Ok),
        ([0, 1], Status::Ok),
        ([1, 255], Status::Ok),
        ([0, 255], Status::Ok),
        ([0, 0], Status::VersionMismatch),
        ([2, 2], Status::VersionMismatch),
        ([2, 255], Status::VersionMismatch),
    ] {
        let mut hello = Hello::new(1);
        hello.versions = versions;
        assert_eq!(hello.status(&*target), status, "{versions:?}");
    }
    let mut hello = Hello::new(1);
    hello.header.version = 2;
    hello.versions = [1, 2];
    assert_eq!(hello.status(&*target), Status::VersionMismatch);
    hello.header.status = 1;
    assert_eq!(
        hello.status(&*target),
        Status::BadRequest,
        "comes first in the order"
    );
}

//= test kbtp-p12-unknown-not-granted
//= test kbtp-p12-both-sides
//= test kbtp-p12-extension-range
#[test]
fn unknown_capabilities_are_not_granted() {
    let target = subject();
    for bit in 3..32 {
        let mut hello = Hello::new(1);
        hello.capabilities = 1 << bit;
        let (mut raw, ack) = hello.say(&*target);
        assert_eq!(be32(&ack, 0), 0, "bit {bit}");
        // And so its opcodes are not there.
        let message = Message::new(0x80, kbtp_wire::Handle(be64(&ack, 16)));
        raw.send(&message.octets());
        let octets = raw.recv().unwrap().octets;
        assert_eq!(octets[22..24], 2_u16.to_be_bytes());
    }
    let mut hello = Hello::new(2);
    hello.capabilities = u32::MAX;
    assert_eq!(be32(&hello.say(&*target).1, 0), 3);
}

//= test kbtp-p6-instance-changes
#[test]
fn an_instance_is_one_pool() {
    let instance = |target: &dyn Subject, n| Session::open(target, &Who::new(n)).grant.instance;
    let target = subject();
    assert_eq!(instance(&*target, 1), instance(&*target, 2));
    let other = subject();
    assert_ne!(
        instance(&*target, 3),
        instance(&*other, 1),
        "another pool, so blocks are lost"
    );
}

//= test kbtp-9.1-enhanced-connection
#[test]
fn the_stream_is_set_up_in_either_way() {
    let target = subject();
    for (n, start) in [
        (1, Start::default()),
        (
            2,
            Start {
                enhanced: None,
                ..Start::default()
            },
        ),
        (
            3,
            Start {
                markers: true,
                ..Start::default()
            },
        ),
    ] {
        let mut peer = Peer::dial(target.address());
        let reply = peer.start(&start);
        assert_eq!(reply.frame.flags.enhanced, start.enhanced.is_some());
        assert_eq!(reply.private.len(), 40);
        let grant = peer.hello(&Who::new(n)).unwrap();
        assert_eq!(grant.block_size.0, 4096);
    }
}

//= test kbtp-9.1-enhanced-connection
#[test]
fn the_stream_is_set_up_peer_to_peer() {
    let target = subject();
    for (n, kinds) in [(1, "send"), (2, "write"), (3, "read")] {
        let mut peer = Peer::dial(target.address());
        let kinds = RtrKinds {
            send: kinds == "send",
            write: kinds == "write",
            read: kinds == "read",
        };
        let depth = ReadDepth::clamped(4);
        let data = EnhancedData {
            ird: depth,
            ord: depth,
            peer_to_peer: Some(kinds),
        };
        let reply = peer.start(&Start {
            enhanced: Some(data),
            ..Start::default()
        });
        assert_eq!(reply.enhanced.unwrap().peer_to_peer, Some(kinds));
        // Ready To Receive: nothing, in one of three ways.
        if kinds.send {
            peer.send(&[]);
        } else if kinds.write {
            peer.write(Stag(0), 0, &[]);
        } else {
            peer.read(&ReadRequest {
                sink_stag: Stag(0),
                sink_offset: TaggedOffset(0),
                len: ByteLen(0),
                source_stag: Stag(0),
                source_offset: TaggedOffset(0),
            });
        }
        let grant = peer.hello(&Who::new(n)).unwrap();
        assert_eq!(grant.block_size.0, 4096);
    }
}
