//! RFC 5042, sections 6.2.3 and 6.3.3 to 6.4.3: what can be seen and taken through STags that are valid.

use super::{atomic_at, attacker, put, read_of, request};
use kbtp_harness::{Peer, Segment, Session, Setup, TenantSetup, Who, against, eventually, pattern};
use kbtp_wire::rdmap::{
    AtomicOperation, DdpTaggedCode, ProtectionCode, RdmapOpcode, TerminateCause,
};
use kbtp_wire::{Grant, Handle, Operation, SessionCapabilities, Stag, Status};

const UNKNOWN_STAG: TerminateCause = TerminateCause::DdpTagged(DdpTaggedCode::InvalidStag);
const UNKNOWN_SOURCE: TerminateCause = TerminateCause::Protection(ProtectionCode::InvalidStag);
const BOUNDS: TerminateCause = TerminateCause::Protection(ProtectionCode::BaseOrBounds);

/// What is attacked, from the attacker's grant and its neighbour's.
type Buffer = fn(&Grant, &Grant) -> (Stag, u64);
type Counter = fn(&Grant, &Grant) -> u64;

fn two_tenants() -> Setup {
    let tenant = |name, key| TenantSetup {
        name,
        key: [key; 32],
        shared: false,
    };
    Setup {
        tenants: vec![tenant("victim", 1), tenant("first", 2), tenant("second", 3)],
        ..Setup::small()
    }
}

/// Every STag of a grant, with the place it is good for.
fn stags(grant: &Grant) -> Vec<(Stag, u64)> {
    let all = [
        (grant.table_stag, grant.table_offset.0),
        (grant.pool_stag, grant.partition_offset.0),
        (grant.partition_stag, grant.partition_offset.0),
        (grant.ring_stag, grant.ring_offset.0),
        (grant.counter_stag, grant.head_offset.0),
    ];
    all.into_iter().filter(|(stag, _)| stag.0 != 0).collect()
}

//= test rfc5042-6.3.6-no-shared-write
//= test kbtp-6.6-direct-trusted-only
#[test]
fn s6_2_3_no_aliases_for_peers_that_do_not_trust_each_other() {
    let setup = two_tenants();
    against(&setup, |ground| {
        let open = |n, tenant: usize| {
            let who = Who::new(n).of(&setup.tenants[tenant]).direct().quota(4);
            Peer::open(ground.address(), &who)
        };
        let (mut one, first) = open(1, 1);
        let (mut two, second) = open(2, 2);
        for grant in [&first, &second] {
            // An STag of the pool or the table would alias everybody's partition and entries.
            assert!(
                !grant
                    .capabilities
                    .contains(SessionCapabilities::DIRECT_LOAD)
            );
            assert_eq!((grant.pool_stag, grant.table_stag), (Stag(0), Stag(0)));
            assert_eq!(stags(grant).len(), 3);
        }
        let end = |grant: &Grant| grant.partition_offset.0 + grant.partition_len;
        assert!(
            end(&first) <= second.partition_offset.0 || end(&second) <= first.partition_offset.0
        );
        // Each writes what is its own, with the Tagged Offset of the other's too.
        one.write(first.partition_stag, first.partition_offset.0, b"mine");
        two.write(second.partition_stag, first.partition_offset.0, b"tampered");
        let cause = TerminateCause::DdpTagged(DdpTaggedCode::BaseOrBounds);
        assert_eq!(two.terminated(), cause);
        let put = put(&mut one, first.handle_base, b"still mine");
        assert_eq!(put.status, Status::Ok);
    });
}

//= test rfc5042-6.3.5-least-rights
#[test]
fn s6_3_6_of_two_aliases_each_has_its_own_right() {
    let setup = Setup {
        ticket_timeout_ms: 30,
        ..Setup::small()
    };
    against(&setup, |ground| {
        // Pool and Partition STag of one session alias: one reads, the other writes, and neither lends its right.
        let (mut peer, grant) = attacker(ground.address());
        let at = grant.partition_offset.0;
        peer.write(grant.partition_stag, at, b"written");
        peer.read(&read_of(grant.pool_stag, at, 7));
        let Some(Segment::Tagged(_, octets)) = peer.receive() else {
            panic!("a Read Response")
        };
        assert_eq!(octets, b"written");
        // When the one is revoked the other stays as it was.
        let order = u64::from(grant.ring_order.get());
        let mut take = atomic_at(grant.counter_stag, grant.head_offset.0);
        take.operation = AtomicOperation::FetchAdd {
            add: 0x0000_0001_0000_0010,
            mask: 1 << 63 | 1 << 31 | 1 << (order + 3),
        };
        peer.atomic(&take);
        assert!(matches!(peer.receive(), Some(Segment::Untagged(..))));
        eventually("the ticket is abandoned", || {
            (ground.subject.metric("kbtp_tickets_abandoned_total") == 1).then_some(())
        });
        peer.read(&read_of(grant.pool_stag, at, 7));
        assert!(matches!(peer.receive(), Some(Segment::Tagged(..))));
        peer.write(grant.partition_stag, at, b"too late");
        assert_eq!(peer.terminated(), UNKNOWN_STAG);
    });
}

//= test rfc5042-6.1.1-stream-scope
#[test]
fn s6_3_3_access_after_the_session() {
    against(&Setup::small(), |ground| {
        // What was granted goes with its stream, whether it closed, was replaced, or was cut.
        for how in 0..3 {
            let who = Who::new(0xbad).direct().quota(4);
            let (mut old, before) = Peer::open(ground.address(), &who);
            put(&mut old, before.handle_base, b"x");
            match how {
                0 => old.finish_sending(),
                1 => {}
                _ => old.octets(&[0; 64]),
            }
            if how != 1 {
                let _end = old.end();
                drop(old);
            }
            for (stag, at) in stags(&before) {
                let (mut peer, _) = Peer::open(ground.address(), &who);
                peer.read(&read_of(stag, at, 8));
                assert_eq!(peer.terminated(), UNKNOWN_SOURCE, "{how}");
                let (mut peer, _) = Peer::open(ground.address(), &who);
                peer.write(stag, at, b"12345678");
                assert_eq!(peer.terminated(), UNKNOWN_STAG, "{how}");
            }
        }
    });
}

//= test rfc5042-6.2.1-no-access-outside
#[test]
fn s6_3_4_nothing_unintended_beside_what_is_exposed() {
    // Range records, the shared ring, other rings and other Heads lie in the region of ring, counter and table; their STags
    // show none of it.
    against(&Setup::small(), |ground| {
        let mut neighbour = Session::open(&*ground.subject, &Who::new(1).direct().quota(4));
        let theirs = neighbour.grant;
        let first = neighbour.alloc_direct(neighbour.h(0), b"theirs", true);
        assert_eq!(first.status, Status::Ok);
        let places: [Buffer; 7] = [
            |own, theirs| (own.ring_stag, theirs.ring_offset.0),
            |own, _| (own.ring_stag, own.ring_offset.0 - 16),
            |own, _| (own.ring_stag, own.ring_offset.0 + own.ring_order.ring_len()),
            |own, theirs| (own.ring_stag, theirs.head_offset.0),
            |own, _| (own.table_stag, own.table_offset.0 + 16 * own.table_count),
            |own, _| (own.table_stag, own.head_offset.0),
            |own, _| (own.pool_stag, own.partition_offset.0.wrapping_add(1 << 40)),
        ];
        for (n, place) in places.into_iter().enumerate() {
            let (mut peer, grant) = attacker(ground.address());
            let (stag, at) = place(&grant, &theirs);
            peer.read(&read_of(stag, at, 16));
            assert_eq!(peer.terminated(), BOUNDS, "{n}");
        }
        // Counters: its own Head and no octet more, neither its own Tail nor another's Head.
        let counters: [Counter; 4] = [
            |own, _| own.head_offset.0 + 8,
            |own, _| own.head_offset.0 - 8,
            |own, _| own.head_offset.0 + 64,
            |_, theirs| theirs.head_offset.0,
        ];
        for (n, at) in counters.into_iter().enumerate() {
            let (mut peer, grant) = attacker(ground.address());
            let mut add = atomic_at(grant.counter_stag, at(&grant, &theirs));
            add.operation = AtomicOperation::FetchAdd {
                add: 1 << 32,
                mask: 0,
            };
            peer.atomic(&add);
            assert_eq!(peer.terminated(), BOUNDS, "{n}");
        }
        assert_eq!(
            neighbour.take().ticket().0,
            1,
            "its Head is where it left it"
        );
        assert_eq!(neighbour.content(neighbour.h(0)).unwrap().1, b"theirs");
        neighbour.abort();
    });
}

//= test rfc5042-6.4.3.1-fair-share
#[test]
fn s6_4_3_1_receive_buffers_that_are_begun_and_never_full() {
    against(&Setup::small(), |ground| {
        let mut other = Session::open(&*ground.subject, &Who::new(1));
        // Each begins a message of several segments and never ends it: a receive buffer is in use for it.
        let begun: Vec<_> = (0..20)
            .map(|n| {
                let mut peer = Peer::connect(ground.address());
                if n % 2 == 0 {
                    let who = Who::new(100 + n).quota(1);
                    peer.hello(&who).unwrap();
                }
                let segment = Segment::untagged(RdmapOpcode::Send, peer.next_send, &[1; 200]);
                let Segment::Untagged(mut header, payload) = segment else {
                    unreachable!()
                };
                header.last = false;
                peer.segment(&Segment::Untagged(header, payload));
                peer
            })
            .collect();
        for n in 0..5 {
            other.put(n, &pattern(n, 4096));
        }
        ground.victim.works(2);
        // A peer's own buffers: as many messages as it has credits are taken, and the next ends its session alone.
        let (mut peer, grant) = attacker(ground.address());
        let source = kbtp_wire::DataDescriptor {
            stag: Stag(5),
            offset: kbtp_wire::TaggedOffset(0),
            len: kbtp_wire::ByteLen(64),
        };
        for _ in 0..=grant.credits {
            // The first waits for its data, the others for the first.
            let store = kbtp_harness::alloc_store(kbtp_harness::fetched(source), true);
            peer.request(&request(grant.handle_base, store));
        }
        while peer.receive().is_some() {}
        ground.victim.works(1);
        drop(begun);
        other.close();
    });
}

//= test rfc5042-6.4.3.2-cq-no-overflow
#[test]
fn s6_4_3_2_messages_as_short_as_can_be() {
    against(&Setup::small(), |ground| {
        let (mut peer, grant) = attacker(ground.address());
        // Writes of nothing complete nothing, Reads of nothing are answered one by one.
        let mut burst = Vec::new();
        for n in 0..20_000_u64 {
            let at = grant.partition_offset.0 + n % grant.partition_len;
            burst.extend(Segment::tagged(RdmapOpcode::Write, grant.partition_stag, at, b"").fpdu());
        }
        peer.octets(&burst);
        for _ in 0..2_000 {
            peer.read(&read_of(Stag(0), 0, 0));
            let Some(Segment::Tagged(_, payload)) = peer.receive() else {
                panic!("a Read Response")
            };
            assert!(payload.is_empty());
        }
        let nothing = Handle(grant.handle_base.0);
        peer.request(&request(nothing, Operation::Free));
        assert_eq!(peer.completion().status, Status::NotValid);
        ground.victim.works(1);
    });
}
