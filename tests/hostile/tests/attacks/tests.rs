//! What the kinds share.

mod exhaustion;
mod framing;
mod mutations;
mod requests;
mod rfc5042;
mod rfc5042_disclosure;
mod table;

use kbtp_harness::{Peer, Session, Who, alloc_store};
use kbtp_wire::rdmap::{AtomicOperation, AtomicRequest, ReadRequest};
use kbtp_wire::{
    ByteLen, Generation, Grant, Handle, Operation, Request, RequestId, Stag, Status, TaggedOffset,
};
use std::net::SocketAddr;

/// An attacker with a session and both direct modes.
fn attacker(address: SocketAddr) -> (Peer, Grant) {
    Peer::open(address, &Who::new(0xbad).direct().quota(4))
}

/// A request of an attacker.
fn request(handle: Handle, operation: Operation<'_>) -> Request<'_> {
    Request {
        request_id: RequestId(0x666),
        handle,
        generation: None,
        record: None,
        operation,
    }
}

/// A request of an expected generation.
fn request_of(handle: Handle, generation: u16, operation: Operation<'_>) -> Request<'_> {
    Request {
        generation: Generation::new(generation),
        ..request(handle, operation)
    }
}

/// Stores a sealed block on an attacker's session.
fn put(peer: &mut Peer, handle: Handle, data: &[u8]) -> kbtp_wire::Completion {
    let source = Session::inline(data);
    peer.request(&request(handle, alloc_store(source, true)));
    let completion = peer.completion();
    assert_eq!(completion.status, Status::Ok);
    completion
}

/// An RDMA Read Request of `len` octets at `offset` of `stag`.
fn read_of(stag: Stag, offset: u64, len: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: Stag(0x0bad_0bad),
        sink_offset: TaggedOffset(0),
        len: ByteLen(len),
        source_stag: stag,
        source_offset: TaggedOffset(offset),
    }
}

/// A FetchAdd of nothing at `offset` of `stag`.
fn atomic_at(stag: Stag, offset: u64) -> AtomicRequest {
    AtomicRequest {
        request_id: 7,
        stag,
        offset: TaggedOffset(offset),
        operation: AtomicOperation::FetchAdd { add: 0, mask: 0 },
    }
}

/// A stream of numbers, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).unwrap()).unwrap()
    }
}
