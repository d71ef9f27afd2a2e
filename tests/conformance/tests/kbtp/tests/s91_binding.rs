//! Draft, section 9.1: KBTP on RDMAP, DDP and MPA.

use super::subject;
use kbtp_harness::{Peer, Segment, Session, Start, Who, alloc_store, load, pattern, remote};
use kbtp_wire::rdmap::{RdmapControl, RdmapOpcode};
use kbtp_wire::{
    ByteLen, Completion, DataDescriptor, HelloAck, Operation, Request, RequestId, Stag, Status,
    TaggedOffset,
};

fn octets(request: &Request<'_>) -> Vec<u8> {
    let mut octets = vec![0; request.encoded_len()];
    request.encode_into(&mut octets).unwrap();
    octets
}

fn request(id: u64, handle: kbtp_wire::Handle, operation: Operation<'_>) -> Request<'_> {
    Request {
        request_id: RequestId(id),
        handle,
        generation: None,
        record: None,
        operation,
    }
}

/// A message in pieces, with RDMAP opcode `opcode`.
fn pieces(opcode: RdmapOpcode, msn: u32, message: &[u8], len: usize) -> Vec<Segment> {
    let count = message.len().div_ceil(len);
    let mut offset = 0;
    let pieces = message.chunks(len).enumerate().map(|(n, piece)| {
        let Segment::Untagged(mut header, _) = Segment::untagged(opcode, msn, &[]) else {
            panic!("a Send is untagged");
        };
        header.message_offset = offset;
        header.last = n + 1 == count;
        offset += u32::try_from(piece.len()).unwrap();
        Segment::Untagged(header, piece.to_vec())
    });
    pieces.collect()
}

//= test kbtp-9.1-sends
//= test kbtp-9.1-rdmap-stream
#[test]
fn messages_come_solicited_and_in_segments() {
    let target = subject();
    for (n, opcode) in [(1, RdmapOpcode::Send), (2, RdmapOpcode::SendSolicited)] {
        for len in [1, 7, 100, 5000] {
            let mut peer = Peer::connect(target.address());
            let hello = Who::new(n).hello(&peer.challenge);
            for segment in pieces(opcode, 1, &hello, len) {
                peer.segment(&segment);
            }
            let ack = peer.message();
            let Ok(HelloAck::Granted { grant, .. }) = HelloAck::decode(&ack) else {
                panic!("{opcode:?} in pieces of {len}");
            };
            let data = pattern(n, 1000);
            let store = request(
                1,
                grant.handle_base,
                alloc_store(Session::inline(&data), true),
            );
            for segment in pieces(opcode, 2, &octets(&store), len) {
                peer.segment(&segment);
            }
            assert_eq!(
                peer.completion().status,
                Status::Ok,
                "{opcode:?} in pieces of {len}"
            );
            let sink = DataDescriptor {
                stag: Stag(1),
                offset: TaggedOffset(0),
                len: ByteLen(1000),
            };
            let load = request(2, grant.handle_base, load(sink));
            for segment in pieces(opcode, 3, &octets(&load), len) {
                peer.segment(&segment);
            }
            let Some(Segment::Tagged(_, loaded)) = peer.receive() else {
                panic!("the data");
            };
            assert!(loaded == data);
            assert_eq!(peer.completion().status, Status::Ok);
        }
    }
}

//= test kbtp-9.1-rdmap-stream
#[test]
fn octets_come_as_tcp_brings_them() {
    let target = subject();
    let mut peer = Peer::dial(target.address());
    let start = Start::default().octets();
    for octet in &start {
        peer.octets(&[*octet]);
    }
    peer.reply();
    let hello = Who::new(1).hello(&peer.challenge);
    for octet in Segment::untagged(RdmapOpcode::Send, 1, &hello).fpdu() {
        peer.octets(&[octet]);
    }
    let ack = peer.message();
    let Ok(HelloAck::Granted { grant, .. }) = HelloAck::decode(&ack) else {
        panic!("a grant");
    };
    // A burst: many FPDUs in one piece, cut at odd places.
    let mut burst = Vec::new();
    for n in 0..8 {
        let handle = kbtp_wire::Handle(grant.handle_base.0 + u64::from(n));
        let data = pattern(n.into(), 300);
        let store = request(n.into(), handle, alloc_store(Session::inline(&data), true));
        burst.extend(Segment::untagged(RdmapOpcode::Send, 2 + n, &octets(&store)).fpdu());
    }
    for piece in burst.chunks(101) {
        peer.octets(piece);
    }
    let mut ids: Vec<_> = (0..8)
        .map(|_| {
            let completion = peer.completion();
            assert_eq!(completion.status, Status::Ok);
            completion.request_id.0
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
}

//= test kbtp-9.1-sends
#[test]
fn each_message_of_the_target_is_one_send() {
    let target = subject();
    let mut peer = Peer::connect(target.address());
    let hello = Who::new(1).direct().hello(&peer.challenge);
    peer.send(&hello);
    for (msn, len) in [
        (1, HelloAck::LEN),
        (2, Completion::LEN),
        (3, Completion::LEN),
    ] {
        let Some(Segment::Untagged(header, payload)) = peer.receive() else {
            panic!("a Send");
        };
        assert_eq!(
            RdmapControl::decode(header.ulp).opcode,
            Ok(RdmapOpcode::Send)
        );
        assert_eq!(
            (header.queue.0, header.msn.0, header.message_offset),
            (0, msn, 0)
        );
        assert!(header.last && header.ulp_word == 0);
        assert_eq!(payload.len(), len);
        peer.send(&octets(&request(9, kbtp_wire::Handle(0), Operation::Free)));
    }
}

//= test kbtp-9.1-fetchadd-masked
//= test kbtp-9.1-atomics
#[test]
fn fetch_add_adds_under_its_mask() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(4));
    assert_eq!(s.grant.atomic_form, kbtp_wire::AtomicForm::Masked);
    let head = remote(s.grant.counter_stag, s.grant.head_offset.0);
    // Nothing added: what is there, and it stays.
    for _ in 0..3 {
        assert_eq!(s.raw.fetch_add(head, 0, 0).unwrap(), 0);
    }
    // A ring of four: the slot's carry is dropped at bit 5, the ticket's at bit 63, the low half's at bit 31.
    for n in 0..4_u64 {
        assert_eq!(s.take().0, (n << 32) | (16 * n));
    }
    assert_eq!(s.raw.fetch_add(head, 0, 0).unwrap(), 4 << 32);
}

//= test kbtp-9.1-atomics
//= test kbtp-3.3-allocation-ticket
#[test]
fn tickets_of_many_adds_under_way_are_all_different() {
    use kbtp_wire::rdmap::{AtomicOperation, AtomicRequest, AtomicResponse};
    let target = subject();
    let (mut peer, grant) = Peer::open(target.address(), &Who::new(1).direct().quota(16));
    let mask = 1 << 63 | 1 << 31 | 1 << (u32::from(grant.ring_order.get()) + 3);
    for request_id in 0..16 {
        peer.atomic(&AtomicRequest {
            request_id,
            stag: grant.counter_stag,
            offset: grant.head_offset,
            operation: AtomicOperation::FetchAdd {
                add: 0x0000_0001_0000_0010,
                mask,
            },
        });
    }
    for n in 0..16 {
        let Some(Segment::Untagged(header, payload)) = peer.receive() else {
            panic!("an Atomic Response");
        };
        let response = AtomicResponse::decode(payload[..].try_into().unwrap());
        assert_eq!((header.queue.0, header.msn.0), (3, n + 1));
        assert_eq!(response.request_id, n, "in the order of the requests");
        assert_eq!(response.original, (u64::from(n) << 32) | u64::from(16 * n));
    }
}
