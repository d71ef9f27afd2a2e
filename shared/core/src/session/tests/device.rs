//! A device serves requests on the pool, beside sessions that work in this crate (docs/adr/0021).

use super::rig::*;
use crate::{ByDevice, SessionEnd, SessionPhase};
use kbtp_wire::{ByteLen, Opcode, Operation, Status};

const H: u64 = TABLE_BASE;

#[test]
fn a_freed_block_is_kept_until_no_device_sends_it() {
    let mut rig = Rig::new(8, config());
    rig.shared.pool.serve_by_device();
    let (mut client, _) = rig.open(&hello(1));
    let pool = &rig.shared.pool;
    assert!(pool.is_one_domain());
    assert_eq!(pool.places().ring_order.slots(), 8);
    let first = client.call(&rig, H, 0, put(b"first")).block;
    let second = client.call(&rig, H + 1, 0, put(b"second")).block;
    for handle in [H, H + 1] {
        let freed = client.call(&rig, handle, 0, Operation::Free);
        assert_eq!(freed.status, Status::Ok);
    }
    assert_eq!(pool.freed(), 2);
    let usage = pool.usage();
    assert_eq!((usage.free, usage.deferred), (8, 2));
    let audit = rig.audit();
    assert_eq!((audit.in_rings, audit.deferred), (6, 2), "{audit:?}");
    // The first is being sent; what is not goes back.
    pool.return_freed(|block| block == first);
    assert_eq!(pool.freed(), 1);
    assert_eq!(rig.audit().in_rings, 7);
    pool.return_freed(|block| block == second);
    pool.return_freed(|_| panic!("none is left"));
    assert_eq!((pool.freed(), rig.at_rest().in_rings), (0, 8));
    rig.close(client);
}

#[test]
fn blocks_of_no_octets_are_counted() {
    let mut rig = Rig::new(8, config());
    let (mut client, _) = rig.open(&hello(1));
    let pool = &rig.shared.pool;
    client.call(&rig, H, 0, put(b""));
    assert_eq!(pool.empty(), 0, "nobody needs it");
    pool.serve_by_device();
    assert_eq!(pool.empty(), 1);
    let stored = client.call(&rig, H + 1, 0, put_unsealed(b""));
    assert_eq!(stored.status, Status::Ok);
    assert_eq!(pool.empty(), 2);
    let store = |octets| Operation::Store {
        source: inline(octets),
        seal: false,
    };
    client.call(&rig, H + 1, 0, store(b"some"));
    assert_eq!(pool.empty(), 1);
    client.call(&rig, H + 1, 0, store(b""));
    assert_eq!(pool.empty(), 2);
    for (handle, left) in [(H, 1), (H + 1, 0)] {
        client.call(&rig, handle, 0, Operation::Free);
        assert_eq!(pool.empty(), left);
    }
    pool.return_freed(|_| false);
    rig.at_rest();
    rig.close(client);
}

#[test]
fn what_a_device_did_is_counted() {
    let mut rig = Rig::new(8, config());
    let (mut client, _) = rig.open(&hello(1));
    client.call(&rig, H, 0, put(b"one"));
    let done = [
        (ByDevice::Load(ByteLen(7)), Opcode::Load, 1, 1),
        (ByDevice::Store(ByteLen(7)), Opcode::Store, 1, 1),
        (ByDevice::AllocStore(ByteLen(7)), Opcode::AllocStore, 2, 2),
        (ByDevice::Free, Opcode::Free, 1, 1),
        (ByDevice::Free, Opcode::Free, 2, 0),
    ];
    for (done, opcode, counted, bound) in done {
        client.session.served(&rig.shared, done);
        assert_eq!(rig.counted(opcode, Status::Ok), counted, "{done:?}");
        assert_eq!(client.session.usage().bound, bound, "{done:?}");
    }
    // The table has the truth.
    client.session.recount(&rig.shared);
    assert_eq!(client.session.usage().bound, 1);
    client.session.end(&rig.shared, SessionEnd::TooShort(3));
    assert_eq!(client.session.phase(), SessionPhase::Closing);
}
