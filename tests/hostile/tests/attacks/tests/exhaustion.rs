//! Floods, and peers that are slow or silent. RFC 5042, sections 6.4.1 to 6.4.4.

use super::{attacker, put, read_of, request};
use kbtp_fabric::CloseReason;
use kbtp_harness::{
    Peer, Raw, Segment, Session, Setup, Start, Subject, TenantSetup, Who, against, alloc_store,
    eventually, fetched, load, pattern, start, store,
};
use kbtp_wire::rdmap::RdmapOpcode;
use kbtp_wire::{ByteLen, DataDescriptor, Grant, Handle, Operation, Stag, Status, TaggedOffset};
use std::io::{ErrorKind, Write};
use std::net::TcpStream;

/// Those who do not get through in time are cut off soon.
fn impatient() -> Setup {
    Setup {
        handshake_ms: 300,
        half_open: 8,
        ..Setup::small()
    }
}

/// Whether the target has ended the connection; waits for it.
fn is_cut_off(peer: &mut Peer) -> bool {
    let mut octets = [0; 256];
    while peer.read_octets(&mut octets) > 0 {}
    true
}

#[test]
fn slow_loris_in_the_startup() {
    against(&impatient(), |ground| {
        let frame = Start::default().octets();
        // Nothing, half a frame, a whole frame and no HELLO, half a HELLO.
        let mut peers: Vec<_> = (0..4).map(|_| Peer::dial(ground.address())).collect();
        peers[1].octets(&frame[..13]);
        peers[2].octets(&frame);
        peers[3].octets(&frame);
        let hello = Who::new(1).hello(&kbtp_wire::Challenge([0; 32]));
        let fpdu = Segment::untagged(RdmapOpcode::Send, 1, &hello).fpdu();
        peers[3].octets(&fpdu[..40]);
        for peer in &mut peers {
            assert!(is_cut_off(peer));
        }
        // One octet now and then does not make it longer.
        let mut drip = Peer::dial(ground.address());
        for octet in &frame[..19] {
            drip.octets(&[*octet]);
            ground.victim.works(1);
        }
        assert!(is_cut_off(&mut drip));
    });
}

#[test]
fn slow_loris_in_the_middle_of_a_message() {
    against(&Setup::small(), |ground| {
        let (mut peer, grant) = attacker(ground.address());
        put(&mut peer, grant.handle_base, b"x");
        let data = pattern(1, 4000);
        let source = Session::inline(&data);
        let store = request(grant.handle_base, store(source, false));
        let mut octets = vec![0; store.encoded_len()];
        store.encode_into(&mut octets).unwrap();
        let fpdu = Segment::untagged(RdmapOpcode::Send, peer.next_send, &octets).fpdu();
        for piece in fpdu[..2000].chunks(500) {
            peer.octets(piece);
            ground.victim.works(1);
        }
        // And in the middle of a Write.
        let (mut other, grant) = Peer::open(ground.address(), &Who::new(2).direct().quota(2));
        let write = Segment::tagged(
            RdmapOpcode::Write,
            grant.partition_stag,
            grant.partition_offset.0,
            &data,
        );
        other.octets(&write.fpdu()[..1000]);
        ground.victim.works(2);
    });
}

#[test]
fn a_reader_that_takes_nothing() {
    let setup = Setup {
        block_size: 1 << 20,
        blocks: 32,
        default_quota: 4,
        ..Setup::small()
    };
    against(&setup, |ground| {
        let mut writer = Session::open(&*ground.subject, &Who::new(1));
        let handles: Vec<_> = (0..3).map(|n| writer.h(n)).collect();
        for n in 0..3 {
            writer.put(n, &pattern(n, 1 << 20));
        }
        // Within its credits: the target holds what it was asked for and no more.
        let sink = DataDescriptor {
            stag: Stag(9),
            offset: TaggedOffset(0),
            len: ByteLen(1 << 20),
        };
        let load = Operation::Load {
            sink,
            invalidate: false,
            allow_unsealed: false,
        };
        let (mut patient, grant) = Peer::open(ground.address(), &Who::new(2).quota(1));
        for n in 0..usize::from(grant.credits) {
            patient.request(&request(handles[n % 3], load));
        }
        // Without end: the target takes so many requests and then no more, or ends the session for its credits. What
        // it holds for one session is bounded either way.
        let (mut peer, _) = attacker(ground.address());
        let mut requests = Vec::new();
        // 16 MB: more than the kernel's buffers of both ends hold.
        for n in 0..250_000_u32 {
            let load = request(handles[(n % 3) as usize], load);
            let mut octets = vec![0; load.encoded_len()];
            load.encode_into(&mut octets).unwrap();
            requests
                .extend(Segment::untagged(RdmapOpcode::Send, peer.next_send + n, &octets).fpdu());
        }
        let accepted = peer.octets_without_waiting(&requests, || ground.victim.works(1));
        assert!(accepted < requests.len(), "the target takes no more");
        // The blocks it was to be sent are freed meanwhile and handed out again only once they were sent.
        for handle in &handles {
            assert_eq!(writer.free(*handle).status, Status::Ok);
        }
        for n in 0..3 {
            let data = pattern(100 + n, 1 << 20);
            writer.put(n, &data);
            assert!(writer.content(writer.h(n)).unwrap().1 == data);
        }
        ground.victim.works(2);
        // The patient one is sent what it asked for, old blocks and all.
        for n in 0..usize::from(grant.credits) {
            let Some(Segment::Tagged(header, mut data)) = patient.receive() else {
                panic!("the data of load {n}");
            };
            let mut last = header.last;
            while !last {
                let Some(Segment::Tagged(header, more)) = patient.receive() else {
                    panic!("the rest of load {n}");
                };
                data.extend(more);
                last = header.last;
            }
            assert!(
                data == pattern(n as u64 % 3, 1 << 20),
                "load {n} is of the block as it was"
            );
            assert_eq!(patient.completion().status, Status::Ok);
        }
        drop((peer, patient));
        writer.close();
    });
}

#[test]
fn direct_reads_that_are_not_taken() {
    let setup = Setup {
        block_size: 1 << 20,
        blocks: 32,
        default_quota: 4,
        ..Setup::small()
    };
    against(&setup, |ground| {
        let (mut peer, grant) = attacker(ground.address());
        for _ in 0..16 {
            peer.read(&read_of(grant.pool_stag, grant.partition_offset.0, 1 << 20));
        }
        ground.victim.works(3);
        // The session serves requests behind them once they are taken.
        peer.request(&request(grant.handle_base, Operation::Free));
        assert_eq!(peer.completion().status, Status::NotValid);
    });
}

#[test]
fn a_flood_of_hellos_that_are_not_said() {
    against(&impatient(), |ground| {
        let mut peers = Vec::new();
        // More streams than may be half open; the rest is turned away at once, in the startup or right after it.
        for wait in [false, true] {
            let before = ground.subject.metric("kbtp_streams_turned_away_total");
            for _ in 0..40 {
                let mut peer = Peer::dial(ground.address());
                peer.octets(&Start::default().octets());
                if wait {
                    peer.read_octets(&mut [0; 128]);
                }
                peers.push(peer);
            }
            eventually("streams are turned away", || {
                let audit = ground.subject.audit();
                assert!(audit.half_open <= 8, "{audit:?}");
                (ground.subject.metric("kbtp_streams_turned_away_total") > before).then_some(())
            });
        }
        ground.victim.works(2);
        for peer in &mut peers {
            assert!(is_cut_off(peer));
        }
        Session::open(&*ground.subject, &Who::new(1)).close();
    });
}

#[test]
fn a_flood_of_connections_that_say_nothing() {
    against(&impatient(), |ground| {
        let mut peers: Vec<_> = (0..100).map(|_| Peer::dial(ground.address())).collect();
        ground.victim.works(2);
        for peer in &mut peers {
            assert!(is_cut_off(peer));
        }
        Session::open(&*ground.subject, &Who::new(1)).close();
    });
}

/// Whoever connects and is silent holds nobody up, though the handshake's time-out is longer than any test waits.
//= test rfc5042-6.4.2-idle-reaped
#[test]
fn s6_4_2_silent_connections_make_room() {
    let setup = Setup {
        half_open: 16,
        handshake_ms: 600_000,
        ..Setup::small()
    };
    against(&setup, |ground| {
        let frame = Start::default().octets();
        for said in [&frame[..0], &frame[..13], &frame] {
            let mut silent: Vec<_> = (0..40)
                .map(|_| {
                    let mut peer = Peer::dial(ground.address());
                    peer.octets(said);
                    peer
                })
                .collect();
            // The first attempts may be turned away, as long as all places are taken by who has only just come.
            let session = eventually("a newcomer has a session", || {
                let mut peer = Peer::dial(ground.address());
                peer.octets(&frame);
                let reply = peer.try_reply()?;
                assert!(!reply.frame.flags.rejected);
                let hello = Who::new(1).hello(&peer.challenge);
                peer.send(&hello);
                matches!(peer.receive(), Some(Segment::Untagged(..))).then_some(peer)
            });
            drop(session);
            silent.clear();
        }
        ground.victim.works(1);
    });
}

#[test]
fn connection_churn() {
    against(
        &Setup {
            half_open: 256,
            ..Setup::small()
        },
        |ground| {
            for n in 0..60_u64 {
                drop(TcpStream::connect(ground.address()));
                drop(Peer::connect(ground.address()));
                // Gone in the middle of its HELLO's answer.
                let mut peer = Peer::connect(ground.address());
                let hello = Who::new(n).direct().hello(&peer.challenge);
                peer.send(&hello);
                drop(peer);
                // Gone with requests under way, and one that came back while the old one was still there.
                let mut peer = Peer::connect(ground.address());
                if let Ok(grant) = peer.hello(&Who::new(1000 + n % 4).direct().quota(2)) {
                    let source = Session::inline(b"x");
                    let store = alloc_store(source, true);
                    peer.request(&request(grant.handle_base, store));
                    let buffer = DataDescriptor {
                        stag: Stag(1),
                        offset: TaggedOffset(0),
                        len: ByteLen(9),
                    };
                    let source = fetched(buffer);
                    let next = Handle(grant.handle_base.0 + 1);
                    peer.request(&request(next, alloc_store(source, true)));
                }
                let raw = Raw::connect(ground.address());
                raw.close(if n % 2 == 0 {
                    CloseReason::Abort
                } else {
                    CloseReason::Graceful
                });
            }
            ground.victim.works(1);
        },
    );
}

#[test]
fn sessions_that_do_nothing() {
    // RFC 5042, section 6.4.2: they hold what they were granted, and no more can be had than there is.
    against(
        &Setup {
            sessions: 20,
            ..Setup::small()
        },
        |ground| {
            let mut idle = Vec::new();
            while let Ok(session) =
                Session::try_open(&*ground.subject, &Who::new(idle.len() as u64).quota(4))
            {
                idle.push(session);
                assert!(idle.len() <= 15);
            }
            assert_eq!(idle.len(), 15, "60 blocks beside the victim's four");
            // The number of streams is bounded too.
            let mut streams: Vec<_> = (0..10).map(|_| Peer::dial(ground.address())).collect();
            for peer in &mut streams {
                peer.octets(&Start::default().octets());
            }
            eventually("streams are turned away", || {
                (ground.subject.metric("kbtp_streams_turned_away_total") > 0).then_some(())
            });
            ground.victim.works(1);
            for session in idle {
                session.close();
            }
        },
    );
}

#[test]
fn errors_without_end() {
    // RFC 5042, section 6.4.4: the slow paths that do not end the stream.
    against(&Setup::small(), |ground| {
        let mut s = Session::open(&*ground.subject, &Who::new(1));
        for round in 0..2000_u64 {
            let message = [&[1, 0xee, 0xff, 0xff][..], &round.to_be_bytes(), &[0; 12]].concat();
            s.raw.send(&message);
            assert_eq!(s.completion().status, Status::Unsupported);
        }
        ground.victim.works(1);
        s.close();
    });
}

/// As many requests as there may be, all on one handle and all behind one that never ends.
#[test]
fn a_crowd_on_one_handle() {
    let setup = Setup {
        credits: 1024,
        ..Setup::small()
    };
    against(&setup, |ground| {
        let (mut peer, grant) = attacker(ground.address());
        assert_eq!(grant.credits, 1024);
        let buffer = DataDescriptor {
            stag: Stag(5),
            offset: TaggedOffset(0),
            len: ByteLen(64),
        };
        let never = alloc_store(fetched(buffer), false);
        peer.request(&request(grant.handle_base, never));
        for n in 1..grant.credits {
            let operation = match n % 3 {
                0 => load(buffer),
                1 => store(Session::inline(b"x"), false),
                _ => Operation::Free,
            };
            peer.request(&request(grant.handle_base, operation));
        }
        eventually("they are all there", || {
            (ground.subject.audit().in_flight >= 1024).then_some(())
        });
        ground.victim.works(2);
    });
}

/// It asks, ends its sending and reads on: it is answered, and then its session is over.
//= test rfc5041-6.2.1-half-closed
#[test]
fn a_peer_that_has_said_its_last_word() {
    against(&Setup::small(), |ground| {
        let (mut peer, grant) = attacker(ground.address());
        for _ in 0..grant.credits {
            peer.request(&request(grant.handle_base, Operation::Free));
        }
        peer.finish_sending();
        for _ in 0..grant.credits {
            assert_eq!(peer.completion().status, Status::NotValid);
        }
        assert_eq!(peer.receive(), None);
        // One that takes nothing of what it asked for does not hold its session for ever.
        let (mut deaf, grant) = attacker(ground.address());
        for n in 0..u32::from(grant.credits) {
            deaf.read(&read_of(
                grant.pool_stag,
                grant.partition_offset.0 + u64::from(n),
                64,
            ));
        }
        deaf.finish_sending();
        ground.victim.works(1);
    });
}

/// One tenant comes with one Initiator ID after the other; the others still find handles.
//= test rfc5042-3-resource-control
#[test]
fn s6_4_1_one_tenant_takes_all_the_ranges() {
    let tenant = |name, key| TenantSetup {
        name,
        key: [key; 32],
        shared: false,
    };
    let setup = Setup {
        tenants: vec![tenant("victim", 1), tenant("greedy", 2), tenant("late", 3)],
        handles: Some(64 * 48),
        sessions: 1000,
        half_open: 64,
        ..Setup::small()
    };
    against(&setup, |ground| {
        let of = |n, tenant: usize| Who::new(n).of(&setup.tenants[tenant]).quota(1);
        let mut greedy = Vec::new();
        let refused = loop {
            match Session::try_open(&*ground.subject, &of(greedy.len() as u64, 1)) {
                Ok(session) => greedy.push(session),
                Err(status) => break status,
            }
        };
        assert_eq!(refused, Status::NoSpace);
        // Of 48 granules a sixth each is kept for the two others; the victim has taken one of its own.
        assert_eq!(greedy.len(), 48 - 8 - 8);
        let late: Vec<_> = (0..8)
            .map(|n| Session::open(&*ground.subject, &of(n, 2)))
            .collect();
        for session in greedy.into_iter().chain(late) {
            session.close();
        }
    });
}

/// A peer with a session that has asked for a block of a megabyte as often as its credits allow and takes nothing of
/// it.
fn stuck(target: &dyn Subject, who: &Who, handle: Handle) -> (Peer, Grant) {
    let loaded = || target.metric("kbtp_octets_loaded_total");
    let before = loaded();
    let (mut peer, grant) = Peer::open(target.address(), who);
    let sink = DataDescriptor {
        stag: Stag(9),
        offset: TaggedOffset(0),
        len: ByteLen(u32::MAX),
    };
    for _ in 0..grant.credits {
        peer.request(&request(handle, load(sink)));
    }
    let megabytes = u64::from(grant.credits) << 20;
    eventually("all loads are under way", || {
        (loaded() >= before + megabytes).then_some(())
    });
    (peer, grant)
}

/// Takes what a stuck peer asked for; whether all of it is `data`.
fn unstick(peer: &mut Peer, grant: &Grant, data: &[u8]) {
    for n in 0..grant.credits {
        let mut loaded = Vec::new();
        loop {
            let Some(Segment::Tagged(header, payload)) = peer.receive() else {
                panic!("the data of load {n}");
            };
            loaded.extend(payload);
            if header.last {
                break;
            }
        }
        assert!(loaded == data, "load {n} is of the block as it was");
        assert_eq!(peer.completion().status, Status::Ok);
    }
}

/// Blocks of a megabyte: a few of them fill every buffer on the way.
fn large() -> Setup {
    Setup {
        block_size: 1 << 20,
        blocks: 32,
        default_quota: 4,
        ..Setup::small()
    }
}

#[test]
fn a_lease_that_ends_under_a_slow_reader() {
    let setup = Setup {
        lease_ms: 20,
        ..large()
    };
    against(&setup, |ground| {
        let mut owner = Session::open(&*ground.subject, &Who::new(1).quota(8));
        let data = pattern(1, 1 << 20);
        owner.put(0, &data);
        let (mut peer, grant) = stuck(&*ground.subject, &Who::new(2).quota(1), owner.h(0));
        owner.close();
        eventually("the lease is over", || {
            (ground.subject.metric("kbtp_leases_expired_total") == 1).then_some(())
        });
        // All that is left is taken and written: not the block that is still sent.
        let mut other = Session::open(&*ground.subject, &Who::new(3).quota(32));
        for n in 0..u64::from(other.grant.quota) - 1 {
            other.put(n, &pattern(50 + n, 1000));
        }
        unstick(&mut peer, &grant, &data);
        for n in 0..u64::from(other.grant.quota) - 1 {
            assert!(other.content(other.h(n)).unwrap().1 == pattern(50 + n, 1000));
            other.free(other.h(n));
        }
        other.close();
    });
}

#[test]
fn a_stuck_session_is_replaced() {
    against(&large(), |ground| {
        let mut owner = Session::open(&*ground.subject, &Who::new(1));
        owner.put(0, &pattern(1, 1 << 20));
        let who = Who::new(2).quota(2);
        let mut peers: Vec<_> = (0..4)
            .map(|_| stuck(&*ground.subject, &who, owner.h(0)).0)
            .collect();
        let mut last = Session::open(&*ground.subject, &who);
        last.put(0, b"the last one is served");
        for peer in &mut peers {
            assert!(is_cut_off(peer));
        }
        last.close();
        owner.close();
    });
}

#[test]
fn a_storm_of_one_pair() {
    against(&Setup::small(), |ground| {
        // Eight at once, each of which throws out the others.
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                scope.spawn(move || {
                    for n in 0..25 {
                        let mut raw = Raw::connect(ground.address());
                        let mut who = Who::new(1).quota(3);
                        if (thread + n) % 3 == 0 {
                            who = who.direct();
                        }
                        raw.send(&who.hello(&raw.private().challenge));
                        // It is answered, or thrown out before it was.
                        let _answer = raw.recv();
                    }
                });
            }
        });
        let mut last = Session::open(&*ground.subject, &Who::new(1).quota(3));
        last.put(0, b"x");
        last.close();
    });
}

#[test]
fn a_drain_does_not_wait_for_the_stuck() {
    let setup = Setup {
        drain_ms: 300,
        ..large()
    };
    let target = start(&setup);
    let mut owner = Session::open(&*target, &Who::new(1));
    owner.put(0, &pattern(1, 1 << 20));
    let (mut peer, _) = stuck(&*target, &Who::new(2), owner.h(0));
    target.end();
    owner.end();
    assert!(is_cut_off(&mut peer));
}

#[test]
fn many_sessions_at_once() {
    let setup = Setup {
        blocks: 512,
        handles: Some(64 * 512),
        sessions: 400,
        half_open: 400,
        ..Setup::small()
    };
    against(&setup, |ground| {
        let mut sessions: Vec<_> = (0..120)
            .map(|n| Session::open(&*ground.subject, &Who::new(n).quota(2)))
            .collect();
        for (n, s) in (0..).zip(&mut sessions) {
            s.put(0, &pattern(n, 1000));
            s.put(1, &pattern(n + 1000, 50));
        }
        for (n, s) in (0..).zip(&mut sessions) {
            assert!(s.content(s.h(0)).unwrap().1 == pattern(n, 1000));
            assert!(s.content(s.h(1)).unwrap().1 == pattern(n + 1000, 50));
        }
        assert_eq!(ground.subject.audit().sessions, 121);
        for s in sessions {
            s.abort();
        }
    });
}

#[test]
fn wrong_proofs_without_end() {
    let tenant = |name, key| TenantSetup {
        name,
        key: [key; 32],
        shared: false,
    };
    let setup = Setup {
        tenants: vec![tenant("victim", 1)],
        ..Setup::small()
    };
    against(&setup, |ground| {
        for n in 0..200_u8 {
            let guess = TenantSetup {
                key: [n.wrapping_add(2); 32],
                ..setup.tenants[0].clone()
            };
            let refused = Session::try_open(&*ground.subject, &Who::new(n.into()).of(&guess));
            assert_eq!(refused.map(|_| ()), Err(Status::NotAuthorized));
        }
    });
}

/// Sends what the other side takes without waiting for more room than comes while `meanwhile` is done twice.
trait WithoutWaiting {
    fn octets_without_waiting(&mut self, octets: &[u8], meanwhile: impl FnMut()) -> usize;
}

impl WithoutWaiting for Peer {
    fn octets_without_waiting(&mut self, octets: &[u8], mut meanwhile: impl FnMut()) -> usize {
        let mut socket = self.socket().try_clone().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut sent = 0;
        let mut refused = 0;
        while sent < octets.len() && refused < 3 {
            match socket.write(&octets[sent..]) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    refused += 1;
                    meanwhile();
                }
                // The target has ended the session.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                    ) =>
                {
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        socket.set_nonblocking(false).unwrap();
        sent
    }
}
