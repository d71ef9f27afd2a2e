//! Draft, sections 6.3 and 6.4: Block Unmapped Store and Block Free.

use super::subject;
use kbtp_harness::{
    Session, Setup, TenantSetup, Who, alloc_store, eventually, fetched, pattern, start,
};
use kbtp_wire::{Handle, Operation, SessionCapabilities, Status};

//= test kbtp-6.3-handle-in-range
//= test kbtp-p7-not-authorized
#[test]
fn only_handles_of_the_range_are_bound() {
    let target = subject();
    let mut a = Session::open(&*target, &Who::new(1));
    let mut b = Session::open(&*target, &Who::new(2));
    let base = a.grant.table_base.0;
    let outside = [
        b.h(0),
        Handle(a.grant.handle_base.0.wrapping_sub(1)),
        Handle(a.grant.handle_base.0 + a.grant.handle_count),
        Handle(base + a.grant.table_count),
        Handle(u64::MAX),
    ];
    for handle in outside {
        let completion = a.alloc(handle, b"x", true);
        assert_eq!(completion.status, Status::NotAuthorized, "{handle}");
        assert_eq!(a.free(handle).status, Status::NotAuthorized, "{handle}");
    }
    assert_eq!(b.content(b.h(0)), None);
    let last = a.h(a.grant.handle_count - 1);
    assert_eq!(a.alloc(last, b"x", true).status, Status::Ok);
}

//= test kbtp-6.3-handle-not-valid
//= test kbtp-p7-already-valid
//= test kbtp-6.3-completion
//= test kbtp-6.3-allocate
#[test]
fn a_bound_handle_is_not_bound_again() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    let first = s.alloc(h, b"first", false);
    assert_eq!(
        (first.status, first.generation.unwrap().get()),
        (Status::Ok, 1)
    );
    assert_eq!(target.audit().free, 63, "a block is taken");
    for data in [&b"second"[..], b""] {
        let second = s.alloc(h, data, true);
        assert_eq!(second.status, Status::AlreadyValid);
        assert_eq!(second.generation.unwrap().get(), 1);
    }
    assert_eq!(target.audit().free, 63);
    assert_eq!(s.content(h).unwrap().1, b"first");
    assert_eq!(s.load_len(h, 64, false).0.status, Status::NotSealed);
}

//= test kbtp-6.4-handle-in-range-valid
//= test kbtp-6.4-clear-entry
//= test kbtp-6.3-next-generation
#[test]
fn a_free_unbinds_and_counts_on() {
    let target = subject();
    let mut s = Session::open(
        &*target,
        &Who::new(1).with(SessionCapabilities::DIRECT_LOAD),
    );
    let h = s.h(0);
    assert_eq!(s.free(h).status, Status::NotValid);
    for round in 0..10_u16 {
        let stored = s.alloc(h, b"x", true);
        assert_eq!(stored.generation.unwrap().get(), 2 * round + 1);
        let freed = s.free(h);
        assert_eq!(
            (freed.status, freed.generation.unwrap().get()),
            (Status::Ok, 2 * round + 2)
        );
        let entry = s.entry(h);
        assert!(!entry.is_valid() && !entry.is_sealed());
        assert_eq!(entry.generation, freed.generation);
        let twice = s.free(h);
        assert_eq!(
            (twice.status, twice.generation),
            (Status::NotValid, freed.generation)
        );
    }
    assert_eq!(target.audit().free, 64);
}

//= test kbtp-6.4-handle-in-range-valid
#[test]
fn a_free_of_an_expected_generation() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1));
    let h = s.h(0);
    let stored = s.put(0, b"kept");
    let mut request = s.request(h, Operation::Free);
    request.generation = kbtp_wire::Generation::new(7);
    let refused = s.ask(&request);
    assert_eq!(
        (refused.status, refused.generation),
        (Status::GenerationMismatch, stored.generation)
    );
    assert_eq!(s.content(h).unwrap().1, b"kept");
    request.generation = stored.generation;
    assert_eq!(s.ask(&request).status, Status::Ok);
}

//= test kbtp-6.3-entry-after-data
#[test]
fn who_sees_valid_sees_the_data() {
    let target = start(&Setup {
        block_size: 64 << 10,
        ..Setup::small()
    });
    let mut writer = Session::open(&*target, &Who::new(1));
    let mut reader = Session::open(
        &*target,
        &Who::new(2).with(SessionCapabilities::DIRECT_LOAD),
    );
    let h = writer.h(0);
    for round in 0..50 {
        let data = pattern(round, 64 << 10);
        let buffer = writer.raw.filled(&data);
        let source = fetched(buffer.descriptor());
        let request = writer.request(h, alloc_store(source, true));
        writer.send(&request);
        // The reader looks on while the target reads and binds.
        let mut seen = false;
        let patience = kbtp_harness::Patience::new();
        while !seen {
            writer.raw.try_recv();
            let entry = reader.entry(h);
            if entry.is_valid() {
                assert!(entry.is_sealed());
                assert!(reader.block(entry.block, 64 << 10) == data, "round {round}");
                seen = true;
            }
            let _now = patience.now("the entry");
        }
        eventually("the free", || {
            writer.raw.try_recv();
            let free = writer.request(h, Operation::Free);
            writer.send(&free);
            loop {
                let completion = writer.completion();
                if completion.request_id == free.request_id {
                    return (completion.status == Status::Ok).then_some(());
                }
            }
        });
        writer.raw.release(buffer);
    }
}

//= test kbtp-3.3-free-entry-first
//= test kbtp-6.4-entry-before-return
#[test]
fn a_block_that_is_handed_out_again_is_no_longer_in_the_old_entry() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(1));
    let (old, new) = (s.h(0), s.h(1));
    for round in 0..100 {
        // Freed and handed out within one batch: one block, two handles.
        let first = s.alloc(old, b"old", true);
        assert_eq!(first.status, Status::Ok, "round {round}");
        let free = s.request(old, Operation::Free);
        s.send(&free);
        let (ticket, block) = s.take_block();
        assert_eq!(block, first.block, "there is but one");
        assert!(
            !s.entry(old).is_valid(),
            "round {round}: bound while the ring has its block"
        );
        assert_eq!(s.completion().status, Status::Ok);
        assert_eq!(s.bind(new, ticket, block, 0, true).status, Status::Ok);
        assert_eq!(s.free(new).status, Status::Ok);
    }
}

fn tenants() -> Setup {
    let tenant = |name, key| TenantSetup {
        name,
        key: [key; 32],
        shared: false,
    };
    Setup {
        blocks: 4,
        default_quota: 4,
        tenants: vec![tenant("blue", 1), tenant("red", 2)],
        ..Setup::small()
    }
}

//= test kbtp-6.4-clear-for-other-domain
//= test kbtp-p9-reads-as-zeros
#[test]
fn the_next_tenant_finds_zeros() {
    let setup = tenants();
    let target = start(&setup);
    let mut blue = Session::open(&*target, &Who::new(1).of(&setup.tenants[0]));
    for n in 0..4 {
        blue.put(n, &[0xb1; 4096]);
    }
    for n in 0..4 {
        blue.free(blue.h(n));
    }
    blue.close();
    eventually("the quota is back", || {
        (target.audit().quota == 0).then_some(())
    });
    // DIRECT_ALLOC shows what is in a block that nobody has written: BIND it with a length and load.
    let mut red = Session::open(&*target, &Who::new(2).of(&setup.tenants[1]).direct());
    for n in 0..4 {
        let (ticket, block) = red.take_block();
        let h = red.h(n);
        assert_eq!(red.bind(h, ticket, block, 4096, true).status, Status::Ok);
        assert!(
            red.content(h).unwrap().1.iter().all(|o| *o == 0),
            "block {block}"
        );
    }
}
