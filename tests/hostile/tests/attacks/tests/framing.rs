//! Broken MPA, DDP and RDMAP: each with the Terminate the RFC has for it.

use super::{Dice, atomic_at, attacker, read_of};
use kbtp_harness::{Peer, Segment, Setup, Start, Who, against, frame};
use kbtp_wire::Stag;
use kbtp_wire::ddp::{Msn, QueueNumber, TaggedHeader, UntaggedHeader};
use kbtp_wire::rdmap::{
    DdpTaggedCode, DdpUntaggedCode, HeaderControl, MpaCode, OperationCode, RdmapOpcode,
    TerminateCause, TerminateControl,
};

const SEND: u8 = 0x40 | 3;

fn send(change: impl FnOnce(&mut UntaggedHeader)) -> Segment {
    let mut header = UntaggedHeader {
        last: true,
        version: 1,
        ulp: SEND,
        ulp_word: 0,
        queue: QueueNumber(0),
        msn: Msn(2),
        message_offset: 0,
    };
    change(&mut header);
    Segment::Untagged(header, vec![0; 24])
}

fn write(change: impl FnOnce(&mut TaggedHeader)) -> Segment {
    let mut header = TaggedHeader {
        last: true,
        version: 1,
        ulp: 0x40,
        stag: Stag(0x1234),
        offset: kbtp_wire::TaggedOffset(0),
    };
    change(&mut header);
    Segment::Tagged(header, b"octets".to_vec())
}

//= test rfc5044-4.4-crc-verified
//= test rfc5044-8-errors-detected
//= test rfc5044-8-nothing-after-error
#[test]
fn a_wrong_crc() {
    against(&Setup::small(), |ground| {
        let mut dice = Dice(1);
        for _ in 0..40 {
            let (mut peer, grant) = attacker(ground.address());
            let mut octets = Segment::tagged(
                RdmapOpcode::Write,
                grant.partition_stag,
                grant.partition_offset.0,
                &[7; 300],
            )
            .fpdu();
            // Not the length: what the receiver then takes for an FPDU is not whole.
            let at = 2 + dice.below(octets.len() - 2);
            octets[at] ^= 1 << dice.below(8);
            peer.octets(&octets);
            // Behind it a request that would be answered if anything after the error were looked at.
            peer.send(&[0; 24]);
            assert_eq!(
                peer.terminated(),
                TerminateCause::Mpa(MpaCode::Crc),
                "octet {at}"
            );
        }
    });
}

//= test rfc5044-4.4-crc-verified
#[test]
fn a_wrong_crc_of_what_is_placed_as_it_comes() {
    against(&Setup::small(), |ground| {
        // Longer than what is read ahead, and in pieces, so that the CRC comes long after the header.
        for (field, cut) in [(true, 20), (true, 30_000), (false, 25_000)] {
            let who = Who::new(0xbad).direct().quota(16);
            let (mut peer, grant) = Peer::open(ground.address(), &who);
            let (stag, at) = (grant.partition_stag, grant.partition_offset.0);
            let mut octets = Segment::tagged(RdmapOpcode::Write, stag, at, &vec![7; 60_000]).fpdu();
            let wrong = if field { octets.len() - 1 } else { 50_000 };
            octets[wrong] ^= 1;
            peer.octets(&octets[..cut]);
            ground.victim.works(1);
            peer.octets(&octets[cut..]);
            peer.send(&[0; 24]);
            assert_eq!(peer.terminated(), TerminateCause::Mpa(MpaCode::Crc));
        }
    });
}

#[test]
fn the_longest_fpdu() {
    against(&Setup::small(), |ground| {
        let who = Who::new(0xbad).direct().quota(16);
        let (mut peer, grant) = Peer::open(ground.address(), &who);
        let (stag, at) = (grant.partition_stag, grant.partition_offset.0);
        // 65,535 octets of ULPDU fit its length field; the partition has room for them. It is taken or refused, whole.
        let data = vec![7; 65_535 - TaggedHeader::LEN];
        peer.segment(&Segment::tagged(RdmapOpcode::Write, stag, at, &data));
        peer.request(&super::request(
            grant.handle_base,
            kbtp_wire::Operation::Free,
        ));
        match peer.receive() {
            Some(Segment::Untagged(header, _)) => assert!(matches!(header.queue.0, 0 | 2)),
            other => panic!("an answer or a Terminate, not {other:?}"),
        }
    });
}

/// Sends each segment on a stream of its own: the Terminate has the cause.
fn each_is_terminated(cases: &[(Segment, TerminateCause)]) {
    against(&Setup::small(), |ground| {
        for (segment, cause) in cases {
            let (mut peer, _) = attacker(ground.address());
            peer.segment(segment);
            assert_eq!(peer.terminated(), *cause, "{segment:?}");
        }
    });
}

//= test rfc5041-7.1-untagged
//= test rfc5041-7.1-tagged
//= test rfc5041-7.2-error-numbers
#[test]
fn broken_ddp_headers() {
    use DdpUntaggedCode::{InvalidMessageOffset, InvalidQueue, InvalidVersion, MsnRange};
    use TerminateCause::{DdpTagged, DdpUntagged};
    each_is_terminated(&[
        (send(|h| h.version = 0), DdpUntagged(InvalidVersion)),
        (send(|h| h.version = 2), DdpUntagged(InvalidVersion)),
        (
            send(|h| h.queue = QueueNumber(4)),
            DdpUntagged(InvalidQueue),
        ),
        (
            send(|h| h.queue = QueueNumber(u32::MAX)),
            DdpUntagged(InvalidQueue),
        ),
        // Again, skipped, zero, far.
        (send(|h| h.msn = Msn(1)), DdpUntagged(MsnRange)),
        (send(|h| h.msn = Msn(3)), DdpUntagged(MsnRange)),
        (send(|h| h.msn = Msn(0)), DdpUntagged(MsnRange)),
        (send(|h| h.msn = Msn(u32::MAX)), DdpUntagged(MsnRange)),
        (
            send(|h| h.message_offset = 1),
            DdpUntagged(InvalidMessageOffset),
        ),
        (
            send(|h| h.message_offset = u32::MAX),
            DdpUntagged(InvalidMessageOffset),
        ),
        (
            write(|h| h.version = 3),
            DdpTagged(DdpTaggedCode::InvalidVersion),
        ),
        (write(|_| ()), DdpTagged(DdpTaggedCode::InvalidStag)),
    ]);
}

//= test rfc5040-7.2-opcode-valid
//= test rfc5040-7.2-version-valid
#[test]
fn broken_rdmap_headers() {
    let version = TerminateCause::Operation(OperationCode::InvalidVersion);
    let opcode = TerminateCause::Operation(OperationCode::UnexpectedOpcode);
    let unasked = Segment::tagged(RdmapOpcode::ReadResponse, Stag(1), 0, &[]);
    each_is_terminated(&[
        (send(|h| h.ulp = 0x03), version),
        (send(|h| h.ulp = 0x83), version),
        // Reserved ones.
        (send(|h| h.ulp = 0x4c), opcode),
        (send(|h| h.ulp = 0x4f), opcode),
        // A Write, a Read Request and a Terminate to the queue of Sends.
        (send(|h| h.ulp = 0x40), opcode),
        (send(|h| h.ulp = 0x41), opcode),
        (send(|h| h.ulp = 0x47), opcode),
        (unasked, opcode),
    ]);
}

//= test rfc5040-4.8-terminated-headers
//= test rfc5040-4.8-terminate-header
//= test rfc5040-7.1-terminate-sent
#[test]
fn a_terminate_quotes_the_header() {
    against(&Setup::small(), |ground| {
        let (mut peer, _) = attacker(ground.address());
        let segment = write(|_| ());
        peer.segment(&segment);
        let Some(Segment::Untagged(header, payload)) = peer.receive() else {
            panic!("a Terminate")
        };
        assert_eq!((header.queue.0, header.msn.0, header.ulp), (2, 1, 0x47));
        let control = TerminateControl::decode(*payload.first_chunk().unwrap());
        let all = HeaderControl {
            segment_len: true,
            ddp_header: true,
            rdmap_header: false,
        };
        assert_eq!((control.cause.triple(), control.headers), ((1, 1, 0), all));
        let ulpdu = segment.ulpdu();
        assert_eq!(
            payload[4..6],
            u16::try_from(ulpdu.len()).unwrap().to_be_bytes()
        );
        assert_eq!(payload[6..20], ulpdu[..14]);
        assert!(peer.receive().is_none(), "nothing after a Terminate");
    });
}

//= test kbtp-p7-too-long-ends-session
#[test]
fn messages_longer_than_any_receive() {
    against(&Setup::small(), |ground| {
        let too_long = TerminateCause::DdpUntagged(DdpUntaggedCode::MessageTooLong);
        let (mut peer, _) = attacker(ground.address());
        let Segment::Untagged(header, _) = send(|_| ()) else {
            unreachable!()
        };
        peer.segment(&Segment::Untagged(header, vec![0; 60_000]));
        assert_eq!(peer.terminated(), too_long);
        // In many segments, each of them small.
        let (mut peer, _) = attacker(ground.address());
        for n in 0..100 {
            let segment = send(|h| {
                h.last = false;
                h.message_offset = n * 1000;
            });
            let Segment::Untagged(header, _) = segment else {
                unreachable!()
            };
            peer.segment(&Segment::Untagged(header, vec![0; 1000]));
        }
        assert_eq!(peer.terminated(), too_long);
        // Control messages are longer than their buffers too.
        for opcode in [
            RdmapOpcode::ReadRequest,
            RdmapOpcode::AtomicRequest,
            RdmapOpcode::Terminate,
        ] {
            let (mut peer, _) = attacker(ground.address());
            peer.segment(&Segment::untagged(opcode, 1, &[0; 1000]));
            assert_eq!(peer.terminated(), too_long, "{opcode:?}");
        }
    });
}

#[test]
fn fpdus_without_a_header() {
    against(&Setup::small(), |ground| {
        let broken = TerminateCause::Operation(OperationCode::CatastrophicStream);
        for ulpdu in [&[][..], &[0xc1], &[0x41; 13], &[0x41; 17], &[0xc1; 13]] {
            let (mut peer, _) = attacker(ground.address());
            peer.octets(&frame(ulpdu));
            assert_eq!(peer.terminated(), broken, "{} octets", ulpdu.len());
        }
    });
}

//= test rfc7306-8.2-request-validated
//= test rfc7306-5.1.1-aligned
#[test]
fn atomics_where_there_are_none() {
    use TerminateCause::{Operation, Protection};
    use kbtp_wire::rdmap::{AtomicRequest, ProtectionCode};
    against(&Setup::small(), |ground| {
        let attempt = |change: &dyn Fn(&kbtp_wire::Grant) -> Vec<u8>| {
            let (mut peer, grant) = attacker(ground.address());
            let octets = change(&grant);
            peer.segment(&Segment::untagged(RdmapOpcode::AtomicRequest, 1, &octets));
            peer.terminated()
        };
        let rights = Protection(ProtectionCode::AccessRights);
        let bounds = Protection(ProtectionCode::BaseOrBounds);
        assert_eq!(
            attempt(&|g| atomic_at(g.table_stag, g.table_offset.0).encode().to_vec()),
            rights
        );
        assert_eq!(
            attempt(&|g| atomic_at(g.ring_stag, g.ring_offset.0).encode().to_vec()),
            rights
        );
        assert_eq!(
            attempt(&|g| atomic_at(g.partition_stag, g.partition_offset.0)
                .encode()
                .to_vec()),
            rights
        );
        // Head is eight octets: beside it is nothing, and within it no other word begins.
        for off in [8, 64, 4096] {
            assert_eq!(
                attempt(&|g| atomic_at(g.counter_stag, g.head_offset.0 + off)
                    .encode()
                    .to_vec()),
                bounds
            );
            assert_eq!(
                attempt(&|g| atomic_at(g.counter_stag, g.head_offset.0 - off)
                    .encode()
                    .to_vec()),
                bounds
            );
        }
        for off in 1..8 {
            let cause = attempt(&|g| {
                atomic_at(g.counter_stag, g.head_offset.0 + off)
                    .encode()
                    .to_vec()
            });
            assert!(
                cause == bounds || cause == Operation(OperationCode::CatastrophicStream),
                "{cause:?}"
            );
        }
        let unknown = attempt(&|g| {
            let mut octets = atomic_at(g.counter_stag, g.head_offset.0).encode();
            octets[3] |= 1;
            assert!(AtomicRequest::decode(&octets).is_err());
            octets.to_vec()
        });
        assert_eq!(unknown, Operation(OperationCode::UnexpectedOpcode));
        let wrap = attempt(&|g| atomic_at(g.counter_stag, u64::MAX - 3).encode().to_vec());
        assert_eq!(wrap, Protection(ProtectionCode::OffsetWrap));
    });
}

//= test rfc5040-5.4-nothing-after-terminate
#[test]
fn a_terminate_of_the_peer() {
    against(&Setup::small(), |ground| {
        for payload in [
            &[0, 0, 0, 0][..],
            &[0x12, 3, 0xe0, 0],
            &[0xff; 4],
            &[0x11, 0, 0x80, 0, 0, 9],
        ] {
            let (mut peer, _) = attacker(ground.address());
            peer.segment(&Segment::untagged(RdmapOpcode::Terminate, 1, payload));
            assert_eq!(peer.end(), None, "it is not answered with another");
        }
        // Too short to be one.
        let (mut peer, _) = attacker(ground.address());
        peer.segment(&Segment::untagged(RdmapOpcode::Terminate, 1, &[1]));
        peer.end();
    });
}

//= test rfc5044-7.1.2-malformed-closes
#[test]
fn broken_startup_frames() {
    against(&Setup::small(), |ground| {
        let right = Start::default().octets();
        let mut cases: Vec<Vec<u8>> = (0..16)
            .map(|at| {
                let mut o = right.clone();
                o[at] ^= 0x20;
                o
            })
            .collect();
        for revision in [0, 3, 0xff] {
            let mut octets = right.clone();
            octets[17] = revision;
            cases.push(octets);
        }
        let mut long = right.clone();
        long[18..20].copy_from_slice(&513_u16.to_be_bytes());
        long.extend([0; 513]);
        cases.push(long);
        // A revision 2 frame that says it has enhanced data and has none.
        let mut short = right.clone();
        short[18..20].copy_from_slice(&3_u16.to_be_bytes());
        cases.push(short);
        cases.push(b"GET / HTTP/1.1\r\nHost: target\r\n\r\n".to_vec());
        for octets in cases {
            let mut peer = Peer::dial(ground.address());
            peer.octets(&octets);
            let mut reply = [0; 64];
            let read = peer.read_octets(&mut reply);
            assert_eq!(read, 0, "closed without a reply: {:02x?}", &octets[..20]);
        }
        // The reply in place of the request.
        let mut peer = Peer::dial(ground.address());
        let mut octets = right;
        octets[..16].copy_from_slice(b"MPA ID Rep Frame");
        peer.octets(&octets);
        assert_eq!(peer.read_octets(&mut [0; 64]), 0);
    });
}

//= test rfc5044-4.3-markers-on-demand
//= test rfc5044-4.3-marker-interval
#[test]
fn a_peer_that_wants_markers() {
    // The target's own octets carry them then; the peer takes them out and finds every FPDU whole.
    against(&Setup::small(), |ground| {
        let mut peer = Peer::dial(ground.address());
        peer.start(&Start {
            markers: true,
            ..Start::default()
        });
        let grant = peer.hello(&Who::new(0xbad)).unwrap();
        let data = vec![0x6b; 4096];
        super::put(&mut peer, grant.handle_base, &data);
        for _ in 0..20 {
            let sink = kbtp_wire::DataDescriptor {
                stag: Stag(3),
                offset: kbtp_wire::TaggedOffset(0),
                len: kbtp_wire::ByteLen(4096),
            };
            let load = kbtp_wire::Operation::Load {
                sink,
                invalidate: false,
                allow_unsealed: false,
            };
            peer.request(&super::request(grant.handle_base, load));
            let Some(Segment::Tagged(_, payload)) = peer.receive() else {
                panic!("the data")
            };
            assert!(payload == data);
            peer.completion();
        }
        // Markers nobody asked for are octets like others: the framing is lost, and the CRC tells.
        let (mut peer, _) = attacker(ground.address());
        let mut octets = send(|_| ()).fpdu();
        octets.splice(0..0, [0, 0, 0, 0]);
        peer.octets(&octets);
        peer.finish_sending();
        peer.end();
    });
}

#[test]
fn everything_cut_off_anywhere() {
    against(&Setup::small(), |ground| {
        let mut script = Start::default().octets();
        let hello = Who::new(0xbad)
            .direct()
            .hello(&kbtp_wire::Challenge([0; 32]));
        script.extend(Segment::untagged(RdmapOpcode::Send, 1, &hello).fpdu());
        script.extend(send(|_| ()).fpdu());
        script.extend(
            Segment::untagged(
                RdmapOpcode::ReadRequest,
                1,
                &read_of(Stag(1), 0, 0).encode(),
            )
            .fpdu(),
        );
        for end in 0..script.len() {
            let mut peer = Peer::dial(ground.address());
            peer.octets(&script[..end]);
            peer.finish_sending();
            let mut sink = [0; 4096];
            while peer.read_octets(&mut sink) > 0 {}
        }
    });
}
