//! Draft, sections 6.5, 6.6 and 9.1; profile, P4: completions, the direct modes, BIND.

use super::subject;
use kbtp_harness::{
    Peer, Session, Setup, TenantSetup, Who, alloc_store, eventually, fetched, pattern, start,
};
use kbtp_wire::rdmap::{
    AtomicOperation, AtomicRequest, ProtectionCode, ReadRequest, TerminateCause,
};
use kbtp_wire::{
    BlockOffset, ByteLen, Generation, Handle, Operation, SessionCapabilities, Stag, Status,
    TaggedOffset, Ticket,
};
use std::sync::atomic::{AtomicBool, Ordering};

//= test kbtp-6.5-completion-by-send
//= test kbtp-9.1-sends
#[test]
fn a_load_is_a_write_and_then_a_send() {
    use kbtp_harness::Segment;
    use kbtp_wire::rdmap::{RdmapControl, RdmapOpcode};
    let target = subject();
    let (mut peer, grant) = Peer::open(target.address(), &Who::new(1));
    let h = grant.handle_base;
    let request = |operation| kbtp_wire::Request {
        request_id: kbtp_wire::RequestId(9),
        handle: h,
        generation: None,
        record: None,
        operation,
    };
    let source = Session::inline(b"a block");
    peer.request(&request(alloc_store(source, true)));
    assert_eq!(peer.completion().status, Status::Ok);
    let sink = kbtp_wire::DataDescriptor {
        stag: Stag(0x1234_5678),
        offset: TaggedOffset(0x9_8765_4321),
        len: ByteLen(100),
    };
    peer.request(&request(Operation::Load {
        sink,
        invalidate: true,
        allow_unsealed: false,
    }));
    let Some(Segment::Tagged(write, payload)) = peer.receive() else {
        panic!("the data comes first");
    };
    assert_eq!((write.stag, write.offset), (sink.stag, sink.offset));
    assert_eq!(
        RdmapControl::decode(write.ulp).opcode,
        Ok(RdmapOpcode::Write)
    );
    assert!(write.last && payload == b"a block");
    let Some(Segment::Untagged(send, payload)) = peer.receive() else {
        panic!("then the completion");
    };
    assert_eq!(
        RdmapControl::decode(send.ulp).opcode,
        Ok(RdmapOpcode::SendInvalidate)
    );
    assert_eq!((send.ulp_word, payload.len()), (sink.stag.0, 40));
}

//= test kbtp-6.5-record-not-on-rdmap
//= test kbtp-6.5-record-only-ordered
#[test]
fn records_are_not_offered() {
    let target = subject();
    let mut who = Who::new(1);
    who.capabilities = 7;
    let s = Session::open(&*target, &who);
    assert_eq!(s.grant.capabilities.0, 3, "DIRECT_LOAD and DIRECT_ALLOC");
}

/// What is tried with an STag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Try {
    Read,
    Write,
    Atomic,
}

//= test kbtp-6.6-direct-load-stags
//= test kbtp-3.2-target-writes-only
//= test kbtp-6.6-initiator-never-writes-slots
//= test kbtp-p6-ring-read-only
#[test]
fn each_stag_gives_one_right() {
    let target = subject();
    let cases = ["table", "pool", "partition", "ring", "counter"];
    for (n, name) in (1..).zip(cases) {
        for attempt in [Try::Read, Try::Write, Try::Atomic] {
            let (mut peer, grant) = Peer::open(target.address(), &Who::new(n).direct());
            let (stag, at, right) = match name {
                "table" => (grant.table_stag, grant.table_offset.0, Try::Read),
                "pool" => (grant.pool_stag, grant.partition_offset.0, Try::Read),
                "partition" => (grant.partition_stag, grant.partition_offset.0, Try::Write),
                "ring" => (grant.ring_stag, grant.ring_offset.0, Try::Read),
                _ => (grant.counter_stag, grant.head_offset.0, Try::Atomic),
            };
            match attempt {
                Try::Read => peer.read(&ReadRequest {
                    sink_stag: Stag(1),
                    sink_offset: TaggedOffset(0),
                    len: ByteLen(8),
                    source_stag: stag,
                    source_offset: TaggedOffset(at),
                }),
                Try::Write => peer.write(stag, at, &[0xff; 8]),
                Try::Atomic => peer.atomic(&AtomicRequest {
                    request_id: 5,
                    stag,
                    offset: TaggedOffset(at),
                    operation: AtomicOperation::FetchAdd { add: 0, mask: 0 },
                }),
            }
            if attempt == right {
                peer.request(&kbtp_wire::Request {
                    request_id: kbtp_wire::RequestId(1),
                    handle: grant.handle_base,
                    generation: None,
                    record: None,
                    operation: Operation::Free,
                });
                while matches!(
                    peer.receive().expect("it goes on"),
                    kbtp_harness::Segment::Tagged(..)
                ) {}
            } else {
                let expected = TerminateCause::Protection(ProtectionCode::AccessRights);
                assert_eq!(peer.terminated(), expected, "{attempt:?} of the {name}");
            }
        }
    }
    let count = target.count();
    assert_eq!(count.faults, Vec::<String>::new());
}

//= test kbtp-6.6-direct-load-sequence
#[test]
fn a_direct_load_reads_entry_block_entry() {
    let target = subject();
    let mut writer = Session::open(&*target, &Who::new(1));
    let mut reader = Session::open(
        &*target,
        &Who::new(2).with(SessionCapabilities::DIRECT_LOAD),
    );
    for n in 0..4 {
        let data = pattern(n, 1000 + usize::try_from(n).unwrap());
        writer.put(n, &data);
        let before = reader.entry(writer.h(n));
        let block = reader.block(before.block, before.data_len.0);
        let after = reader.entry(writer.h(n));
        assert_eq!(before, after);
        assert!(before.is_valid() && before.is_sealed());
        assert_eq!(block, data);
        // A free shows in the generation.
        writer.free(writer.h(n));
        assert_ne!(reader.entry(writer.h(n)).generation, before.generation);
    }
}

/// Binds and frees `handle` without end; the data of each binding follows from its generation.
fn churn(s: &mut Session, handle: Handle, stop: &AtomicBool) {
    let mut generation = Generation::FIRST;
    while !stop.load(Ordering::Relaxed) {
        let data = pattern(generation.get().into(), 4096);
        let stored = s.alloc(handle, &data, true);
        assert_eq!(stored.generation, Some(generation));
        // Bound for a moment, mostly longer than a reader needs, sometimes not.
        for _ in 0..generation.get() % 7 {
            assert_eq!(s.load(handle).0.status, Status::Ok);
        }
        let freed = s.free(handle);
        assert_eq!(freed.generation, Some(generation.next()));
        generation = generation.next().next();
    }
}

/// Runs `read` beside a session that churns, until it has found the block bound often enough. `read` gives generation
/// and data of what it found valid.
fn beside_churn(mut read: impl FnMut(&mut Session, Handle) -> Option<(u16, Vec<u8>)>) {
    let target = subject();
    // One block for all bindings: what is read late is overwritten.
    let mut writer = Session::open(&*target, &Who::new(1).quota(1));
    let mut reader = Session::open(
        &*target,
        &Who::new(2).with(SessionCapabilities::DIRECT_LOAD),
    );
    let handle = writer.h(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| churn(&mut writer, handle, &stop));
        let mut found = 0;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("a block that is bound", || {
                if let Some((generation, data)) = read(&mut reader, handle) {
                    assert!(
                        data == pattern(generation.into(), 4096),
                        "generation {generation}"
                    );
                    found += 1;
                }
                (found == 100).then_some(())
            });
        }));
        stop.store(true, Ordering::Relaxed);
        assert!(result.is_ok(), "see above");
    });
}

//= test kbtp-6.6-direct-load-valid
//= test kbtp-6.6-direct-load-sequence
//= test kbtp-3.2-bind-order
#[test]
fn a_direct_load_that_finds_the_entry_unchanged_has_the_data() {
    beside_churn(|s, handle| {
        let before = s.entry(handle);
        if !before.is_valid() || !before.is_sealed() {
            return None;
        }
        let data = s.block(before.block, before.data_len.0);
        let after = s.entry(handle);
        let same = after.is_valid() && after.is_sealed() && after.generation == before.generation;
        same.then(|| (before.generation.unwrap().get(), data))
    });
}

//= test kbtp-6.1-load-write
#[test]
fn a_load_has_the_data_of_its_generation() {
    beside_churn(|s, handle| {
        let (generation, data) = s.content(handle)?;
        Some((generation.get(), data))
    });
}

//= test kbtp-6.6-bind-order
//= test kbtp-p4-bind-layout
//= test kbtp-p4-bind-completed
//= test kbtp-9.1-atomics
#[test]
fn a_direct_allocation() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(4));
    for n in 0..4 {
        let (ticket, block) = s.take_block();
        assert_eq!(u64::from(ticket.0), n);
        let data = pattern(n, 3000);
        s.write_block(block, &data);
        let bound = s.bind(s.h(n), ticket, block, 3000, n % 2 == 0);
        assert_eq!(bound.status, Status::Ok);
        assert_eq!((bound.block, bound.data_len.0), (block, 3000));
        assert_eq!(bound.generation.unwrap().get(), 1);
        let entry = s.entry(s.h(n));
        assert_eq!((entry.block, entry.data_len.0), (block, 3000));
        assert_eq!(entry.is_sealed(), n % 2 == 0);
        assert!(s.slot(ticket.0 % 4).is_consumed());
        assert_eq!(s.content(s.h(n)).unwrap().1, data);
    }
    // What was bound without SEAL can be stored to, and all is freed as usual.
    assert_eq!(s.store(s.h(1), b"stored", true).status, Status::Ok);
    for n in 0..4 {
        assert_eq!(s.free(s.h(n)).status, Status::Ok);
    }
}

//= test kbtp-6.6-bind-verified
//= test kbtp-p7-bad-ticket
//= test kbtp-p4-bind-not-valid
//= test kbtp-p7-length-error-store
#[test]
fn a_bind_is_verified() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(4));
    let (t0, b0) = s.take_block();
    let (t1, b1) = s.take_block();
    let h = s.h(0);
    let unmoved = |s: &mut Session| {
        assert_eq!(s.entry_octets(h), [0; 16]);
        assert_eq!(s.slot(0).block_for(t0), Some(b0));
        assert_eq!(s.slot(1).block_for(t1), Some(b1));
    };
    for (ticket, block) in [
        (t0, b1),
        (t1, b0),
        (t0, BlockOffset(b0.0 + 1)),
        (t0, BlockOffset(0)),
        (t0, BlockOffset::EMPTY),
        (Ticket(2), b0),
        (Ticket(4), b0),
        (Ticket(u32::MAX), BlockOffset::EMPTY),
        // The slot after, whose ticket nobody has taken yet.
        (Ticket(2), s.slot(2).block),
    ] {
        let completion = s.bind(h, ticket, block, 10, true);
        assert_eq!(completion.status, Status::BadTicket, "{ticket} {block}");
        assert_eq!((completion.data_len.0, completion.block.0), (0, 0));
        unmoved(&mut s);
    }
    assert_eq!(s.bind(h, t0, b0, 4097, true).status, Status::LengthError);
    unmoved(&mut s);
    assert_eq!(s.bind(h, t0, b0, 4096, true).status, Status::Ok);
    assert_eq!(s.bind(h, t1, b1, 0, true).status, Status::AlreadyValid);
    assert_eq!(
        s.bind(s.h(1), t0, b0, 0, true).status,
        Status::BadTicket,
        "twice"
    );
    assert_eq!(s.bind(s.h(1), t1, b1, 0, true).status, Status::Ok);
}

//= test kbtp-6.6-frees-use-free
#[test]
fn direct_and_target_allocations_mix() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(3));
    for round in 0..30_u64 {
        let data = pattern(round, 100);
        let direct = s.alloc_direct(s.h(0), &data, true);
        let inline = s.alloc(s.h(1), &data, true);
        let buffer = s.raw.filled(&data);
        let read = s.alloc_from(s.h(2), buffer.descriptor(), true);
        s.raw.release(buffer);
        let statuses = [&direct, &inline, &read].map(|c| c.status);
        assert_eq!(statuses, [Status::Ok; 3], "round {round}");
        for n in 0..3 {
            assert_eq!(s.content(s.h(n)).unwrap().1, data);
            assert_eq!(s.free(s.h(n)).status, Status::Ok);
        }
    }
}

//= test kbtp-6.6-direct-trusted-only
//= test kbtp-p9-direct-own-blocks-only
#[test]
fn direct_modes_by_trust() {
    let tenant = |name, key, shared| TenantSetup {
        name,
        key: [key; 32],
        shared,
    };
    let open = |tenants: Vec<TenantSetup>, n: usize| {
        let setup = Setup {
            tenants: tenants.clone(),
            ..Setup::small()
        };
        let target = start(&setup);
        Session::open(&*target, &Who::new(1).of(&tenants[n]).direct()).grant
    };
    let apart = vec![tenant("a", 1, false), tenant("b", 2, false)];
    let grant = open(apart, 0);
    assert!(
        !grant
            .capabilities
            .contains(SessionCapabilities::DIRECT_LOAD)
    );
    assert_eq!((grant.table_stag.0, grant.pool_stag.0), (0, 0));
    // A partition is the tenant's own.
    assert!(
        grant
            .capabilities
            .contains(SessionCapabilities::DIRECT_ALLOC)
    );
    let shared = vec![tenant("a", 1, true), tenant("b", 2, true)];
    assert!(
        open(shared, 1)
            .capabilities
            .contains(SessionCapabilities::DIRECT_LOAD)
    );
    let alone = vec![tenant("a", 1, false)];
    assert!(
        open(alone, 0)
            .capabilities
            .contains(SessionCapabilities::DIRECT_LOAD)
    );
    let half = vec![tenant("a", 1, true), tenant("b", 2, false)];
    assert!(
        !open(half, 0)
            .capabilities
            .contains(SessionCapabilities::DIRECT_LOAD)
    );
}

//= test kbtp-6.3-completion
#[test]
fn a_store_by_read_and_a_store_inline_look_the_same() {
    let target = subject();
    let mut s = Session::open(
        &*target,
        &Who::new(1).with(SessionCapabilities::DIRECT_LOAD),
    );
    let data = pattern(1, 200);
    let inline = s.alloc(s.h(0), &data, true);
    let buffer = s.raw.filled(&data);
    let source = fetched(buffer.descriptor());
    let request = s.request(s.h(1), alloc_store(source, true));
    let read = s.ask(&request);
    assert_eq!(
        (inline.status, inline.generation, inline.data_len),
        (read.status, read.generation, read.data_len)
    );
    assert_eq!(s.entry_octets(s.h(0))[..8], s.entry_octets(s.h(1))[..8]);
}
