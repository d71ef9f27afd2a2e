//! Profile, P8: sessions, handle ranges, leases, and the order of requests.

use kbtp_harness::{
    Session, Setup, Subject, Who, alloc_store, eventually, fetched, load, pattern, start, store,
};
use kbtp_wire::{Operation, RequestId, SessionCapabilities, Status};

fn with_lease(lease_ms: u32) -> Box<dyn Subject> {
    start(&Setup {
        lease_ms,
        ..Setup::small()
    })
}

fn gone(target: &dyn Subject) {
    eventually("the sessions are gone", || {
        (target.audit().sessions == 0).then_some(())
    });
}

//= test kbtp-p8-resume
//= test kbtp-p8-range-of-pair
//= test kbtp-p8-lease-keeps-bindings
#[test]
fn a_range_outlives_its_connection() {
    let target = with_lease(60_000);
    let mut s = Session::open(&*target, &Who::new(1));
    assert_eq!(s.grant.lease_ms, 60_000);
    s.put(0, b"sealed");
    s.alloc(s.h(1), b"unsealed", false);
    s.put(2, b"freed");
    s.free(s.h(2));
    let (base, count) = (s.grant.handle_base, s.grant.handle_count);
    for how in ["in order", "at once"] {
        if how == "in order" {
            s.close();
        } else {
            s.abort();
        }
        gone(&*target);
        let audit = target.audit();
        assert_eq!(
            (audit.leases, audit.leased, audit.quota),
            (1, 2, 2),
            "{how}"
        );
        // Another pair gets another range.
        let other = Session::open(&*target, &Who::new(2));
        assert_ne!(other.grant.handle_base, base);
        other.close();
        gone(&*target);
        s = Session::open(&*target, &Who::new(1));
        assert_eq!(
            (s.grant.handle_base, s.grant.handle_count),
            (base, count),
            "{how}"
        );
        let (sealed, octets) = s.load_len(s.h(0), 6, false);
        assert_eq!((sealed.status, &octets[..]), (Status::Ok, &b"sealed"[..]));
        assert_eq!(sealed.generation.unwrap().get(), 1);
        assert_eq!(s.load_len(s.h(1), 64, false).0.status, Status::NotSealed);
        let absent = s.load(s.h(2)).0;
        assert_eq!(
            (absent.status, absent.generation.unwrap().get()),
            (Status::NotValid, 2)
        );
        assert_eq!(target.audit().leases, 0);
    }
    assert_eq!(s.store(s.h(1), b"stored to", true).status, Status::Ok);
}

//= test kbtp-p8-lease-keeps-bindings
#[test]
fn a_lease_ends() {
    let target = with_lease(30);
    let mut s = Session::open(
        &*target,
        &Who::new(1).with(SessionCapabilities::DIRECT_LOAD),
    );
    let handle = s.h(0);
    s.put(0, b"gone soon");
    s.close();
    eventually("the lease is over", || {
        (target.metric("kbtp_leases_expired_total") == 1).then_some(())
    });
    let audit = target.audit();
    assert_eq!((audit.leases, audit.free, audit.quota), (0, 64, 0));
    let mut s = Session::open(
        &*target,
        &Who::new(2).with(SessionCapabilities::DIRECT_LOAD),
    );
    assert_eq!(s.load(handle).0.status, Status::NotValid);
}

//= test kbtp-p8-lease-for-ever
#[test]
fn no_lease_and_one_for_ever() {
    let target = with_lease(0);
    let mut s = Session::open(&*target, &Who::new(1));
    assert_eq!(s.grant.lease_ms, 0);
    s.put(0, b"x");
    s.close();
    gone(&*target);
    let audit = target.audit();
    assert_eq!((audit.leases, audit.free), (0, 64), "freed at once");
    let mut s = Session::open(&*target, &Who::new(1));
    assert_eq!(s.content(s.h(0)), None);

    let target = with_lease(u32::MAX);
    let mut s = Session::open(&*target, &Who::new(1));
    assert_eq!(s.grant.lease_ms, u32::MAX);
    s.put(0, b"x");
    s.close();
    gone(&*target);
    assert_eq!(target.audit().leased, 1);
    let mut s = Session::open(&*target, &Who::new(1));
    assert_eq!(s.content(s.h(0)).unwrap().1, b"x");
}

//= test kbtp-p8-empty-range-released
#[test]
fn an_empty_range_is_released() {
    let target = with_lease(u32::MAX);
    let mut s = Session::open(&*target, &Who::new(1));
    s.put(0, b"x");
    s.free(s.h(0));
    s.close();
    gone(&*target);
    let audit = target.audit();
    assert_eq!((audit.leases, audit.quota, audit.free), (0, 0, 64));
}

//= test kbtp-p8-second-session-replaces
#[test]
fn a_second_session_replaces_the_first() {
    let target = with_lease(0);
    let mut first = Session::open(&*target, &Who::new(1));
    first.put(0, b"kept although the lease is none");
    for round in 0..5 {
        let mut second = Session::open(&*target, &Who::new(1));
        assert_eq!(second.grant.handle_base, first.grant.handle_base);
        first.end();
        assert_eq!(target.audit().sessions, 1, "round {round}");
        first = second;
        second = Session::open(&*target, &Who::new(2));
        second.close();
    }
    // Nobody but the pair itself replaces it.
    assert_eq!(
        target.metric("kbtp_session_ends_total{reason=\"replaced\"}"),
        5
    );
}

//= test kbtp-p8-quota-while-away
//= test kbtp-p8-quota-on-resume
#[test]
fn a_quota_shrinks_to_what_is_bound_and_grows_again() {
    let target = with_lease(u32::MAX);
    let mut a = Session::open(&*target, &Who::new(1).quota(40));
    for n in 0..10 {
        a.put(n, b"a");
    }
    a.close();
    gone(&*target);
    assert_eq!(target.audit().quota, 10);
    let b = Session::open(&*target, &Who::new(2).quota(64));
    assert_eq!(b.grant.quota, 54, "what the away one does not hold");
    let mut a = Session::open(&*target, &Who::new(1).quota(40));
    assert_eq!(a.grant.quota, 10, "nothing is left but what it has");
    assert_eq!(a.alloc(a.h(11), b"x", true).status, Status::NoSpace);
    a.close();
    eventually("a is gone", || (target.audit().sessions == 1).then_some(()));
    b.close();
    gone(&*target);
    let mut a = Session::open(&*target, &Who::new(1).quota(40));
    assert_eq!(a.grant.quota, 40);
    assert_eq!(a.alloc(a.h(11), b"x", true).status, Status::Ok);
    for n in 0..10 {
        assert_eq!(a.content(a.h(n)).unwrap().1, b"a");
    }
}

//= test kbtp-p8-resume
//= test kbtp-3.4-usage-counted
//= test kbtp-6.4-return-to-its-ring
#[test]
fn a_direct_session_resumes_with_what_it_had_bound() {
    let target = with_lease(u32::MAX);
    let who = Who::new(1).direct().quota(4);
    let mut s = Session::open(&*target, &who);
    let old = [
        s.alloc_direct(s.h(0), &pattern(0, 4096), true).block,
        s.put(1, &pattern(1, 4096)).block,
    ];
    // One ticket is taken and not bound: its block is nobody's when the session ends.
    s.take_block();
    s.close();
    gone(&*target);
    let audit = target.audit();
    assert_eq!((audit.leased, audit.free, audit.quota), (2, 62, 2));
    let mut s = Session::open(&*target, &who);
    assert_eq!((s.grant.quota, s.grant.partition_len), (4, 4 * 4096));
    let partition = s.grant.partition_offset.0;
    let partition = partition..partition + s.grant.partition_len;
    assert!(
        old.iter().all(|block| !partition.contains(&block.0)),
        "a partition of free blocks"
    );
    // Two are bound, so that two more are to be had: one way or the other.
    let direct = s.alloc_direct(s.h(2), &pattern(2, 100), true);
    assert_eq!(
        (direct.status, partition.contains(&direct.block.0)),
        (Status::Ok, true)
    );
    let third = s.put(3, &pattern(3, 100));
    assert!(partition.contains(&third.block.0));
    assert_eq!(s.alloc(s.h(4), b"x", true).status, Status::NoSpace);
    for (n, len) in [(0, 4096), (1, 4096), (2, 100), (3, 100)] {
        assert!(s.content(s.h(n)).unwrap().1 == pattern(n, len));
    }
    // What it had bound before goes to the ring of all, and its unit can be used for the partition.
    s.free(s.h(0));
    let fourth = s.put(4, b"x");
    assert!(partition.contains(&fourth.block.0));
    for n in 1..5 {
        s.free(s.h(n));
    }
    s.close();
    gone(&*target);
    assert_eq!(target.audit().free, 64);
    assert_eq!(target.count().faults, Vec::<String>::new());
}

//= test kbtp-p8-contiguous-partition
#[test]
fn without_a_contiguous_partition_there_is_no_direct_allocation() {
    // 64 blocks; every fourth stays bound while its pair is away, so that no run of four is left.
    let kept = with_lease(u32::MAX);
    let mut s = Session::open(&*kept, &Who::new(1).quota(64));
    let mut blocks: Vec<_> = (0..64).map(|n| (s.put(n, b"x").block.0, n)).collect();
    blocks.sort_unstable();
    for (i, (_, n)) in (0..).zip(&blocks) {
        if i % 4 != 0 {
            s.free(s.h(*n));
        }
    }
    s.close();
    gone(&*kept);
    let refused = Session::open(&*kept, &Who::new(2).direct().quota(4)).grant;
    assert_eq!(
        (refused.quota, refused.capabilities),
        (4, SessionCapabilities::DIRECT_LOAD)
    );
    assert_eq!((refused.partition_stag.0, refused.partition_len), (0, 0));
    assert_eq!(kept.metric("kbtp_partitions_refused_total"), 1);
    gone(&*kept);
    let granted = Session::open(&*kept, &Who::new(3).direct().quota(3)).grant;
    assert_eq!(granted.partition_len, 3 * 4096);
}

//= test kbtp-p8-order-per-handle
#[test]
fn requests_on_a_handle_take_effect_in_order() {
    let target = start(&Setup {
        block_size: 64 << 10,
        ..Setup::small()
    });
    let mut s = Session::open(&*target, &Who::new(1));
    let sizes = [64 << 10, 10, 40_000, 1];
    for round in 0..20_u64 {
        let h = s.h(round % 3);
        // Slow and fast ones in one batch: data that is read, data that is here, and what depends on each.
        let buffers: Vec<_> = (0..)
            .zip(sizes)
            .map(|(i, len)| s.raw.filled(&pattern(round + i, len)))
            .collect();
        let inline = pattern(round, 9);
        let remote = |i: usize| fetched(buffers[i].descriptor());
        let sink = s.block_buffer();
        let second = s.block_buffer();
        let load = |sink: &kbtp_harness::Buffer| load(sink.descriptor());
        let operations = [
            (alloc_store(remote(0), false), Status::Ok, 64 << 10),
            (store(Session::inline(&inline), false), Status::Ok, 9),
            (load(&sink), Status::Ok, 9),
            (store(remote(2), true), Status::Ok, 40_000),
            (store(remote(1), true), Status::Sealed, 0),
            (load(&second), Status::Ok, 40_000),
            (alloc_store(remote(3), true), Status::AlreadyValid, 0),
            (Operation::Free, Status::Ok, 0),
            (Operation::Free, Status::NotValid, 0),
            (alloc_store(remote(3), true), Status::Ok, 1),
            (Operation::Free, Status::Ok, 0),
        ];
        let mut expected = Vec::new();
        for (operation, status, len) in operations {
            let request = s.request(h, operation);
            s.send(&request);
            expected.push((request.request_id, status, len));
        }
        let mut completions: Vec<(RequestId, Status, u32)> = expected
            .iter()
            .map(|_| s.completion())
            .map(|c| (c.request_id, c.status, c.data_len.0))
            .collect();
        completions.sort_unstable_by_key(|(id, ..)| *id);
        assert_eq!(completions, expected, "round {round}");
        assert_eq!(s.raw.octets(&sink)[..9], inline);
        assert!(s.raw.octets(&second)[..40_000] == pattern(round + 2, 40_000));
        for buffer in [second, sink].into_iter().chain(buffers.into_iter().rev()) {
            s.raw.release(buffer);
        }
    }
}

//= test kbtp-p8-any-order
#[test]
fn different_handles_do_not_wait_for_each_other() {
    let target = start(&Setup {
        block_size: 64 << 10,
        ..Setup::small()
    });
    let mut s = Session::open(&*target, &Who::new(1));
    let buffer = s.raw.filled(&pattern(1, 64 << 10));
    let mut expected = Vec::new();
    for n in 0..8 {
        let source = if n % 2 == 0 {
            fetched(buffer.descriptor())
        } else {
            Session::inline(b"fast")
        };
        let request = s.request(s.h(n), alloc_store(source, true));
        s.send(&request);
        expected.push(request.request_id);
    }
    let mut answered: Vec<_> = (0..8).map(|_| s.completion().request_id).collect();
    answered.sort_unstable();
    assert_eq!(answered, expected);
    for n in 0..8 {
        let (_, data) = s.content(s.h(n)).unwrap();
        assert!(if n % 2 == 0 {
            data == pattern(1, 64 << 10)
        } else {
            data == b"fast"
        });
    }
}
