//! RFC 5042, sections 6.1 to 6.5, clause by clause.

use super::{atomic_at, attacker, put, read_of, request};
use kbtp_harness::{
    Peer, Raw, Segment, Session, Setup, TenantSetup, Who, against, pattern, remote,
};
use kbtp_wire::rdmap::{
    DdpTaggedCode, DdpUntaggedCode, ProtectionCode, RdmapOpcode, TerminateCause,
};
use kbtp_wire::{Grant, Operation, Stag, Status};

const UNKNOWN_STAG: TerminateCause = TerminateCause::DdpTagged(DdpTaggedCode::InvalidStag);
const UNKNOWN_SOURCE: TerminateCause = TerminateCause::Protection(ProtectionCode::InvalidStag);

/// What is attacked, from a grant: a Tagged Offset, an STag with one, a length.
type Place = fn(&Grant) -> u64;
type Buffer = fn(&Grant) -> (Stag, u64);
type Length = fn(&Grant) -> u32;

//= test rfc5042-6.1.1-stream-scope
//= test rfc5040-8.1.1-stream-scope
#[test]
fn s6_1_1_an_stag_of_another_stream() {
    against(&Setup::small(), |ground| {
        let mut owner = Session::open(&*ground.subject, &Who::new(1).direct().quota(4));
        owner.put(0, b"of the owner");
        let own = owner.grant;
        let stags = [
            own.table_stag,
            own.pool_stag,
            own.partition_stag,
            own.ring_stag,
            own.counter_stag,
        ];
        for stag in stags {
            let at = own.partition_offset.0;
            let (mut peer, _) = attacker(ground.address());
            peer.write(stag, at, b"tampered");
            assert_eq!(peer.terminated(), UNKNOWN_STAG);
            let (mut peer, _) = attacker(ground.address());
            peer.read(&read_of(stag, at, 16));
            assert_eq!(peer.terminated(), UNKNOWN_SOURCE);
            let (mut peer, _) = attacker(ground.address());
            peer.atomic(&atomic_at(stag, own.head_offset.0));
            assert_eq!(peer.terminated(), UNKNOWN_SOURCE);
        }
        assert_eq!(owner.content(owner.h(0)).unwrap().1, b"of the owner");
        assert_eq!(
            owner.alloc_direct(owner.h(1), b"still", true).status,
            Status::Ok
        );
        owner.close();
    });
}

//= test rfc5040-8.1.1-stag-unpredictable
#[test]
fn s6_1_1_stags_are_not_guessed() {
    against(&Setup::small(), |ground| {
        // The STags of one session say nothing of those of the next.
        let mut seen = Vec::new();
        for _ in 0..20 {
            let s = Session::open(&*ground.subject, &Who::new(1).direct());
            let g = s.grant;
            seen.extend([
                g.table_stag,
                g.pool_stag,
                g.partition_stag,
                g.ring_stag,
                g.counter_stag,
            ]);
            s.close();
        }
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count, "none is used again");
        let steps: Vec<_> = seen.windows(2).map(|w| w[1].0 - w[0].0).collect();
        assert!(
            steps.iter().any(|step| *step > 1 << 20),
            "they are spread out"
        );
        // Guesses near a known one, and some others.
        let known = seen[0].0;
        for guess in (1..40).map(|n| known ^ n).chain([0, 1, u32::MAX]) {
            let (mut peer, grant) = attacker(ground.address());
            let own = [
                grant.table_stag,
                grant.pool_stag,
                grant.partition_stag,
                grant.ring_stag,
                grant.counter_stag,
            ];
            if own.contains(&Stag(guess)) {
                continue;
            }
            peer.write(Stag(guess), 0, b"guess");
            assert_eq!(peer.terminated(), UNKNOWN_STAG, "{guess:#x}");
        }
    });
}

//= test rfc5042-6.2.1-no-access-outside
//= test rfc5040-8.1.1-no-access-outside
//= test rfc5041-8.3-exact-range
#[test]
fn s6_2_1_writes_outside_of_the_buffer() {
    let bounds = TerminateCause::DdpTagged(DdpTaggedCode::BaseOrBounds);
    let wraps = TerminateCause::DdpTagged(DdpTaggedCode::OffsetWrap);
    against(&Setup::small(), |ground| {
        let mut neighbour = Session::open(&*ground.subject, &Who::new(1).direct().quota(4));
        for n in 0..4 {
            neighbour.put(n, &pattern(n, 4096));
        }
        // Where, from the partition's first octet or its end.
        let cases: [(Place, usize, TerminateCause); 8] = [
            (|g| g.partition_offset.0 - 1, 1, bounds),
            (|g| g.partition_offset.0 - 1, 2, bounds),
            (|g| g.partition_offset.0 + g.partition_len, 1, bounds),
            (|g| g.partition_offset.0 + g.partition_len - 1, 2, bounds),
            (|g| g.partition_offset.0 + g.partition_len - 4, 8, bounds),
            (|_| 0, 1, bounds),
            (|_| u64::MAX, 2, wraps),
            (|_| u64::MAX - 100, 4096, wraps),
        ];
        for (at, octets, cause) in cases {
            let (mut peer, grant) = attacker(ground.address());
            peer.write(grant.partition_stag, at(&grant), &vec![0xff; octets]);
            assert_eq!(
                peer.terminated(),
                cause,
                "{octets} octets at {:#x}",
                at(&grant)
            );
        }
        for n in 0..4 {
            assert!(neighbour.content(neighbour.h(n)).unwrap().1 == pattern(n, 4096));
        }
        neighbour.close();
    });
}

//= test rfc5042-6.2.2-no-write-after-revoke
//= test rfc5040-8.1.1-no-write-after-revoke
//= test rfc5041-8.3.1-no-write-after-revoke
//= test rfc5042-10.2-invalidate-before-use
#[test]
fn s6_2_2_a_write_after_the_right_is_gone() {
    let setup = Setup {
        ticket_timeout_ms: 300,
        ..Setup::small()
    };
    against(&setup, |ground| {
        let (mut peer, grant) = attacker(ground.address());
        let order = u64::from(grant.ring_order.get());
        let mut take = atomic_at(grant.counter_stag, grant.head_offset.0);
        take.operation = kbtp_wire::rdmap::AtomicOperation::FetchAdd {
            add: 0x0000_0001_0000_0010,
            mask: 1 << 63 | 1 << 31 | 1 << (order + 3),
        };
        peer.atomic(&take);
        assert!(
            matches!(peer.receive(), Some(Segment::Untagged(..))),
            "a ticket"
        );
        // While it holds the ticket it may write; once that is abandoned it may not, and the block is another's.
        peer.write(grant.partition_stag, grant.partition_offset.0, b"in time");
        kbtp_harness::eventually("the ticket is abandoned", || {
            (ground.subject.metric("kbtp_tickets_abandoned_total") == 1).then_some(())
        });
        for n in 0..4 {
            put(
                &mut peer,
                kbtp_wire::Handle(grant.handle_base.0 + n),
                &pattern(n, 100),
            );
        }
        let mut other = Session::open(&*ground.subject, &Who::new(2));
        peer.write(grant.partition_stag, grant.partition_offset.0, b"too late");
        assert_eq!(peer.terminated(), UNKNOWN_STAG);
        other.put(0, b"x");
        other.close();
    });
}

//= test rfc5042-6.2.1-no-access-outside
//= test rfc5040-7.2-read-source-range
//= test rfc5040-7.2-read-source-stag
#[test]
fn s6_3_1_reads_outside_of_the_buffer() {
    let bounds = TerminateCause::Protection(ProtectionCode::BaseOrBounds);
    let wraps = TerminateCause::Protection(ProtectionCode::OffsetWrap);
    against(&Setup::small(), |ground| {
        let cases: [(Buffer, Length, TerminateCause); 9] = [
            (|g| (g.ring_stag, g.ring_offset.0 - 1), |_| 16, bounds),
            (
                |g| (g.ring_stag, g.ring_offset.0),
                |g| 16 * g.ring_order.slots() + 1,
                bounds,
            ),
            (
                |g| (g.ring_stag, g.ring_offset.0 + g.ring_order.ring_len()),
                |_| 1,
                bounds,
            ),
            (|g| (g.ring_stag, u64::MAX - 3), |_| 16, wraps),
            (|g| (g.ring_stag, 0), |_| u32::MAX, bounds),
            (|g| (g.table_stag, g.table_offset.0 - 1), |_| 1, bounds),
            (
                |g| (g.table_stag, g.table_offset.0 + 16 * g.table_count - 8),
                |_| 16,
                bounds,
            ),
            (|g| (g.table_stag, g.table_offset.0), |_| u32::MAX, bounds),
            (
                |g| (g.table_stag, u64::MAX - u64::from(u32::MAX) + 2),
                |_| u32::MAX,
                wraps,
            ),
        ];
        for (source, len, cause) in cases {
            let (mut peer, grant) = attacker(ground.address());
            let ((stag, at), len) = (source(&grant), len(&grant));
            peer.read(&read_of(stag, at, len));
            assert_eq!(peer.terminated(), cause, "{len} octets at {at:#x}");
        }
    });
}

//= test rfc5042-10.2-no-stale-data
#[test]
fn s6_3_2_stale_data() {
    let tenant = |name, key| TenantSetup {
        name,
        key: [key; 32],
        shared: false,
    };
    let setup = Setup {
        tenants: vec![tenant("victim", 1), tenant("first", 2), tenant("second", 3)],
        ..Setup::small()
    };
    against(&setup, |ground| {
        let eventually_with = |who: &Who| {
            kbtp_harness::eventually("the quota is back", || {
                let s = Session::try_open(&*ground.subject, who).ok()?;
                let direct = s.grant.partition_len > 0 || who.capabilities == 0;
                (s.grant.quota == who.quota && direct).then_some(s)
            })
        };
        for round in 0..6_u64 {
            let (from, to) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
            // All blocks but the victim's, so that whatever the second gets was the first's.
            let mut first = eventually_with(&Who::new(1).of(&setup.tenants[from]).quota(60));
            for n in 0..60 {
                first.put(n, &[0x5e; 4096]);
            }
            // Once freed one by one, once with its session.
            if round % 3 == 0 {
                for n in 0..60 {
                    first.free(first.h(n));
                }
            }
            first.close();
            // The victim's four blocks leave a run of eight somewhere.
            let mut second = eventually_with(&Who::new(2).of(&setup.tenants[to]).direct().quota(8));
            for n in 0..8 {
                let (ticket, block) = second.take_block();
                let h = second.h(n);
                assert_eq!(second.bind(h, ticket, block, 4096, true).status, Status::Ok);
                let (_, data) = second.content(h).unwrap();
                assert!(data.iter().all(|o| *o == 0), "round {round}");
            }
            second.close();
        }
    });
}

//= test rfc5042-10.2-no-stale-data
#[test]
fn s6_3_2_stale_data_the_target_never_saw() {
    let tenant = |name, key| TenantSetup {
        name,
        key: [key; 32],
        shared: false,
    };
    let setup = Setup {
        tenants: vec![tenant("victim", 1), tenant("first", 2), tenant("second", 3)],
        ..Setup::small()
    };
    against(&setup, |ground| {
        // Written one-sidedly into all blocks of partitions: with tickets and without, never bound.
        for n in 0..6 {
            let who = Who::new(n).of(&setup.tenants[1]).direct().quota(8);
            let (mut peer, grant) = Peer::open(ground.address(), &who);
            let at = grant.partition_offset.0;
            assert_eq!(grant.partition_len, 8 * 4096);
            peer.write(grant.partition_stag, at, &vec![0x5e; 8 * 4096]);
            // The answer says that what came before was placed.
            peer.request(&request(grant.handle_base, Operation::Free));
            assert_eq!(peer.completion().status, Status::NotValid);
        }
        kbtp_harness::eventually("the first are gone", || {
            (ground.subject.audit().sessions == 1).then_some(())
        });
        let who = Who::new(1).of(&setup.tenants[2]).quota(60);
        let mut second = Session::open(&*ground.subject, &who);
        let mut direct = Vec::new();
        second.put(0, b"x");
        second.close();
        for n in 0..4 {
            let who = Who::new(10 + n).of(&setup.tenants[2]).direct().quota(8);
            let mut s = kbtp_harness::eventually("a partition", || {
                let s = Session::try_open(&*ground.subject, &who).ok()?;
                (s.grant.partition_len == 8 * 4096).then_some(s)
            });
            for n in 0..8 {
                let (ticket, block) = s.take_block();
                let h = s.h(n);
                assert_eq!(s.bind(h, ticket, block, 4096, true).status, Status::Ok);
                assert!(s.content(h).unwrap().1.iter().all(|o| *o == 0), "{block}");
            }
            direct.push(s);
        }
        for s in direct {
            s.close();
        }
    });
}

//= test rfc5042-6.3.5-least-rights
//= test rfc5041-8.3.1-access-rights
#[test]
fn s6_3_5_a_read_into_a_write_buffer() {
    let rights = TerminateCause::Protection(ProtectionCode::AccessRights);
    against(&Setup::small(), |ground| {
        let (mut peer, grant) = attacker(ground.address());
        // A Read of nothing exposes nothing and is answered, whatever the STag.
        peer.read(&read_of(grant.partition_stag, grant.partition_offset.0, 0));
        let Some(Segment::Tagged(_, payload)) = peer.receive() else {
            panic!("a Read Response")
        };
        assert!(payload.is_empty());
        peer.read(&read_of(grant.partition_stag, grant.partition_offset.0, 1));
        assert_eq!(peer.terminated(), rights);
        for (table, what) in [(true, "table"), (false, "pool")] {
            let (mut peer, grant) = attacker(ground.address());
            if table {
                peer.write(grant.table_stag, grant.table_offset.0, &[0xff; 16]);
            } else {
                peer.write(grant.pool_stag, grant.partition_offset.0, &[0xff; 16]);
            }
            assert_eq!(peer.terminated(), rights, "{what}");
        }
        let (mut peer, grant) = attacker(ground.address());
        peer.write(grant.ring_stag, grant.ring_offset.0, &[0xff; 16]);
        assert_eq!(peer.terminated(), rights, "ring");
        let (mut peer, grant) = attacker(ground.address());
        peer.write(grant.counter_stag, grant.head_offset.0, &[0; 8]);
        assert_eq!(peer.terminated(), rights, "Head");
    });
}

//= test rfc5042-6.3.6-no-shared-write
#[test]
fn s6_3_6_no_two_peers_may_write_one_buffer() {
    against(&Setup::small(), |ground| {
        let sessions: Vec<_> = (1..8)
            .map(|n| Session::open(&*ground.subject, &Who::new(n).direct().quota(5)))
            .collect();
        let mut ranges: Vec<_> = sessions
            .iter()
            .map(|s| s.grant.partition_offset.0..s.grant.partition_offset.0 + s.grant.partition_len)
            .collect();
        ranges.sort_unstable_by_key(|range| range.start);
        assert!(
            ranges.windows(2).all(|w| w[0].end <= w[1].start),
            "{ranges:x?}"
        );
        for s in sessions {
            s.close();
        }
    });
}

//= test rfc5042-6.4.3.3-read-queue-not-shared
//= test rfc5040-6.1-ird-not-exceeded
//= test rfc5040-8.1.2-read-queue-not-shared
#[test]
fn s6_4_3_3_more_reads_than_the_queue_is_deep() {
    let setup = Setup {
        block_size: 1 << 20,
        blocks: 16,
        default_quota: 4,
        ..Setup::small()
    };
    against(&setup, |ground| {
        let mut other = Session::open(&*ground.subject, &Who::new(1).direct().quota(2));
        other.put(0, b"x");
        let mut peer = Peer::dial(ground.address());
        let reply = peer.start(&kbtp_harness::Start::default());
        let depth = reply.enhanced.unwrap().ird.negotiated().unwrap();
        let grant = peer.hello(&Who::new(2).direct()).unwrap();
        // The answers are large and not taken, so that the requests stay where they are.
        for _ in 0..depth + 64 {
            peer.read(&read_of(grant.pool_stag, grant.partition_offset.0, 1 << 20));
        }
        ground.victim.works(1);
        assert_eq!(other.entry(other.h(0)).data_len.0, 1, "others read on");
        let cause = peer.terminated();
        assert_eq!(
            cause,
            TerminateCause::DdpUntagged(DdpUntaggedCode::NoBuffer)
        );
        other.close();
    });
}

//= test rfc5042-6.4.5-no-shared-stag
//= test rfc5040-7.2-invalidate-stag-valid
//= test rfc5040-8.1.1-no-shared-stag
#[test]
fn s6_4_5_remote_invalidate() {
    let no = TerminateCause::Protection(ProtectionCode::StagCannotBeInvalidated);
    against(&Setup::small(), |ground| {
        let mut owner = Session::open(&*ground.subject, &Who::new(1).direct());
        let g = owner.grant;
        let foreign = [
            g.table_stag,
            g.pool_stag,
            g.partition_stag,
            g.ring_stag,
            g.counter_stag,
        ];
        let invalidate = |which: usize, own: bool| {
            let (mut peer, grant) = attacker(ground.address());
            let mine = [
                grant.table_stag,
                grant.pool_stag,
                grant.partition_stag,
                grant.ring_stag,
                grant.counter_stag,
            ];
            let stag = if own { mine[which] } else { foreign[which] };
            let segment = Segment::untagged(RdmapOpcode::SendInvalidate, peer.next_send, &[0; 24]);
            let Segment::Untagged(mut header, payload) = segment else {
                unreachable!()
            };
            header.ulp_word = stag.0;
            peer.segment(&Segment::Untagged(header, payload));
            peer.terminated()
        };
        for which in 0..5 {
            assert_eq!(
                invalidate(which, true),
                no,
                "its own, which the target did not offer up"
            );
            let cause = invalidate(which, false);
            let unknown = TerminateCause::Protection(ProtectionCode::InvalidStag);
            assert!(cause == no || cause == unknown, "{cause:?}");
        }
        assert_eq!(
            owner.alloc_direct(owner.h(0), b"as before", true).status,
            Status::Ok
        );
        owner.close();
    });
}

//= test rfc5042-6.4.3.2-cq-no-overflow
//= test rfc5042-6.4.6-overflow-contained
//= test rfc5042-6.4.3.1-fair-share
#[test]
fn s6_4_6_more_messages_than_receives() {
    against(&Setup::small(), |ground| {
        let (mut peer, grant) = attacker(ground.address());
        let mut other = Session::open(&*ground.subject, &Who::new(1));
        // Minimum-length messages as fast as they go, and nothing taken back.
        let free = request(grant.handle_base, Operation::Free);
        let mut octets = vec![0; free.encoded_len()];
        free.encode_into(&mut octets).unwrap();
        let mut burst = Vec::new();
        for n in 0..4000 {
            burst.extend(Segment::untagged(RdmapOpcode::Send, peer.next_send + n, &octets).fpdu());
        }
        peer.octets(&burst);
        assert_eq!(other.put(0, b"others go on").status, Status::Ok);
        ground.victim.works(1);
        other.close();
    });
}

//= test rfc5042-3-no-assumed-trust
//= test rfc5042-3-resource-control
#[test]
fn s6_5_nobody_raises_its_own_rights() {
    against(&Setup::small(), |ground| {
        // Without direct modes there is nothing to reach, whatever is asked for.
        let mut plain = Raw::connect(ground.address());
        let grant = plain
            .hello(&Who::new(1).hello(&plain.private().challenge))
            .unwrap();
        assert_eq!(grant.capabilities.0, 0);
        plain
            .read(remote(Stag(0), 0), 16)
            .expect_err("no STag, no access");
        let _quota_given_back = ground.alone();
        // More quota than there is is not to be had, and what is had counts for all sessions of the pair together.
        let first = Session::open(&*ground.subject, &Who::new(2).quota(u32::MAX));
        assert_eq!(first.grant.quota, 60);
        assert_eq!(
            Session::try_open(&*ground.subject, &Who::new(3)).map(|_| ()),
            Err(Status::NoSpace)
        );
        let second = Session::open(&*ground.subject, &Who::new(2).quota(u32::MAX));
        assert!(second.grant.quota <= 60);
        second.close();
    });
}
