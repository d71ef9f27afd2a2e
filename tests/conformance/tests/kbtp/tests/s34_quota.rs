//! Draft, section 3.4: quotas, tickets and what becomes of abandoned ones.

use super::subject;
use kbtp_harness::{Peer, Session, Setup, Who, eventually, start};
use kbtp_wire::rdmap::{DdpTaggedCode, ProtectionCode, TerminateCause};
use kbtp_wire::{Status, Ticket};

/// A target on which tickets are abandoned soon.
fn impatient() -> Setup {
    Setup {
        ticket_timeout_ms: 40,
        ..Setup::small()
    }
}

fn abandoned(target: &dyn kbtp_harness::Subject, tickets: u64) {
    eventually("abandoned tickets", || {
        (target.metric("kbtp_tickets_abandoned_total") >= tickets).then_some(())
    });
}

//= test kbtp-3.4-quota-sum
//= test kbtp-p8-quota-granted
//= test kbtp-p8-no-quota-no-space
#[test]
fn quotas_never_sum_over_the_pool() {
    let target = subject();
    let open = |n, quota| Session::try_open(&*target, &Who::new(n).quota(quota));
    let a = open(1, 40).unwrap();
    let b = open(2, 20).unwrap();
    let c = open(3, 20).unwrap();
    let quotas = [&a, &b, &c].map(|s| s.grant.quota);
    assert_eq!(quotas, [40, 20, 4], "less if less is left");
    assert_eq!(open(4, 1).map(|_| ()), Err(Status::NoSpace));
    assert_eq!(target.audit().quota, 64);
    b.close();
    eventually("the quota is back", || {
        (target.audit().quota == 44).then_some(())
    });
    assert_eq!(open(4, 0).unwrap().grant.quota, 8, "the default");
}

//= test kbtp-3.4-usage-counted
//= test kbtp-3.4-usage-released
//= test kbtp-3.4-over-quota-no-space
//= test kbtp-p7-no-space
#[test]
fn handles_and_tickets_count_and_frees_give_back() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(4));
    s.put(0, b"a");
    s.put(1, b"b");
    let (t2, b2) = s.take_block();
    let (t3, b3) = s.take_block();
    let over = s.alloc(s.h(4), b"x", true);
    assert_eq!(
        over.status,
        Status::NoSpace,
        "two handles and two tickets are four"
    );
    assert_eq!(over.generation, None);
    assert_eq!(s.bind(s.h(2), t2, b2, 0, true).status, Status::Ok);
    assert_eq!(
        s.alloc(s.h(4), b"x", true).status,
        Status::NoSpace,
        "a BIND moves, it adds nothing"
    );
    s.free(s.h(0));
    assert_eq!(s.alloc(s.h(4), b"x", true).status, Status::Ok);
    assert_eq!(s.alloc(s.h(5), b"x", true).status, Status::NoSpace);
    assert_eq!(s.bind(s.h(3), t3, b3, 0, true).status, Status::Ok);
    assert_eq!(target.audit().usage, 4);
}

//= test kbtp-3.4-over-quota-no-space
#[test]
fn a_ticket_over_the_quota_is_not_bound() {
    let target = subject();
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(3));
    s.put(0, b"a");
    s.put(1, b"b");
    let (ticket, block) = s.take_block();
    // The ring has four slots but the quota is three: no block will come to this one.
    let over = s.take();
    assert_eq!(over.ticket(), Ticket(3));
    assert_eq!(
        s.bind(s.h(2), ticket, block, 0, true).status,
        Status::NoSpace
    );
    assert!(!s.entry(s.h(2)).is_valid());
    // A free makes room for both of them.
    s.free(s.h(0));
    assert_eq!(s.bind(s.h(2), ticket, block, 0, true).status, Status::Ok);
}

//= test kbtp-3.4-own-ring
//= test kbtp-3.4-shared-ring
//= test kbtp-6.4-return-to-its-ring
//= test rfc5042-6.3.4-exact-bounds
#[test]
fn a_direct_session_has_blocks_of_its_own() {
    let target = subject();
    let mut a = Session::open(&*target, &Who::new(1).direct().quota(6));
    let mut b = Session::open(&*target, &Who::new(2).direct().quota(6));
    let mut c = Session::open(&*target, &Who::new(3).quota(6));
    let mut d = Session::open(&*target, &Who::new(4).quota(6));
    for s in [&a, &b] {
        assert_eq!(s.grant.partition_len, 6 * 4096);
        assert_ne!(s.grant.partition_stag.0, 0);
    }
    assert!(
        a.grant.partition_offset.0 + a.grant.partition_len <= b.grant.partition_offset.0
            || b.grant.partition_offset.0 + b.grant.partition_len <= a.grant.partition_offset.0
    );
    let mut seen = Vec::new();
    for round in 0..8 {
        for s in [&mut a, &mut b] {
            let partition = s.grant.partition_offset.0;
            let partition = partition..partition + s.grant.partition_len;
            let block = s.put(0, b"own").block.0;
            assert!(partition.contains(&block), "round {round}");
            s.free(s.h(0));
        }
        // What one frees another may get: they share a ring.
        for s in [&mut c, &mut d] {
            let block = s.put(0, b"shared").block.0;
            for s in [&a, &b] {
                let partition = s.grant.partition_offset.0;
                assert!(!(partition..partition + s.grant.partition_len).contains(&block));
            }
            seen.push(block);
            s.free(s.h(0));
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(
        seen.len(),
        16,
        "the ring of all is first in, first out: {seen:x?}"
    );
}

//= test kbtp-3.4-ticket-timeout
//= test kbtp-3.4-late-bind-rejected
//= test kbtp-3.4-reclaim-new-ticket
//= test kbtp-3.4-usage-released
#[test]
fn an_abandoned_ticket_is_reclaimed() {
    let target = start(&impatient());
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(2));
    assert_eq!(s.grant.ticket_timeout_ms, 40);
    let (ticket, block) = s.take_block();
    s.put(0, b"bound in time, so not abandoned");
    assert_eq!(s.alloc(s.h(1), b"x", true).status, Status::NoSpace);
    abandoned(&*target, 1);
    let late = s.bind(s.h(1), ticket, block, 0, true);
    assert_eq!(late.status, Status::TicketAbandoned);
    assert_eq!(late.generation, None, "nothing is bound");
    // Its unit and its block are back.
    let again = s.alloc(s.h(1), b"again", true);
    assert_eq!((again.status, again.block), (Status::Ok, block));
    assert_eq!(
        s.bind(s.h(2), ticket, block, 0, true).status,
        Status::TicketAbandoned
    );
    assert_eq!(target.metric("kbtp_tickets_abandoned_total"), 1);
}

//= test kbtp-3.4-invalidate-before-reclaim
//= test kbtp-3.4-direct-alloc-disabled
#[test]
fn a_late_write_does_not_reach_the_block() {
    let target = start(&impatient());
    let (mut peer, grant) = Peer::open(target.address(), &Who::new(1).direct().quota(2));
    let take = kbtp_wire::rdmap::AtomicRequest {
        request_id: 1,
        stag: grant.counter_stag,
        offset: grant.head_offset,
        operation: kbtp_wire::rdmap::AtomicOperation::FetchAdd {
            add: 0x0000_0001_0000_0010,
            mask: 1 << 63 | 1 << 31 | 1 << 4,
        },
    };
    peer.atomic(&take);
    peer.receive().expect("the ticket");
    abandoned(&*target, 1);
    peer.write(grant.partition_stag, grant.partition_offset.0, b"late");
    assert_eq!(
        peer.terminated(),
        TerminateCause::DdpTagged(DdpTaggedCode::InvalidStag)
    );
    // As for the write, so for Head.
    let (mut peer, grant) = Peer::open(target.address(), &Who::new(2).direct().quota(2));
    let take = kbtp_wire::rdmap::AtomicRequest {
        stag: grant.counter_stag,
        offset: grant.head_offset,
        ..take
    };
    peer.atomic(&take);
    peer.receive().expect("the ticket");
    abandoned(&*target, 2);
    peer.atomic(&take);
    assert_eq!(
        peer.terminated(),
        TerminateCause::Protection(ProtectionCode::InvalidStag)
    );
}

//= test kbtp-3.4-direct-alloc-disabled
#[test]
fn a_session_goes_on_without_direct_allocation() {
    let target = start(&impatient());
    let mut s = Session::open(&*target, &Who::new(1).direct().quota(3));
    s.take_block();
    abandoned(&*target, 1);
    for round in 0..5 {
        for n in 0..3 {
            assert_eq!(
                s.put(n, b"by the target").status,
                Status::Ok,
                "round {round}"
            );
        }
        for n in 0..3 {
            assert_eq!(s.free(s.h(n)).status, Status::Ok);
        }
    }
    s.close();
    eventually("the session is gone", || {
        (target.audit().sessions == 0).then_some(())
    });
    let count = target.count();
    assert_eq!((count.in_rings, count.faults.len()), (64, 0), "{count:?}");
}
