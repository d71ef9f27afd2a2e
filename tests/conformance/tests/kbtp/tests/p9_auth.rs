//! Profile, P9: private data, authentication, tenants.

use super::subject;
use kbtp_harness::{
    Peer, Raw, Session, Setup, Start, Subject, TenantSetup, Who, eventually, start,
};
use kbtp_wire::{AuthMode, Challenge, Status};

fn tenant(name: &'static str, key: u8, shared: bool) -> TenantSetup {
    TenantSetup {
        name,
        key: [key; 32],
        shared,
    }
}

fn with(tenants: &[TenantSetup]) -> Box<dyn Subject> {
    start(&Setup {
        tenants: tenants.to_vec(),
        lease_ms: 60_000,
        ..Setup::small()
    })
}

//= test kbtp-p9-private-data
#[test]
fn the_private_data_has_its_octets() {
    for (target, mode) in [(subject(), 0), (with(&[tenant("a", 1, false)]), 1)] {
        let mut peer = Peer::dial(target.address());
        let reply = peer.start(&Start::default());
        assert_eq!(reply.private.len(), 40);
        assert_eq!(reply.private[..8], [b'K', b'B', b'T', b'P', 1, mode, 0, 0]);
    }
}

//= test kbtp-p9-fresh-challenge
#[test]
fn each_stream_has_a_challenge_of_its_own() {
    let target = subject();
    let mut challenges: Vec<_> = (0..20)
        .map(|_| Raw::connect(target.address()).private().challenge.0)
        .collect();
    challenges.sort_unstable();
    challenges.dedup();
    assert_eq!(challenges.len(), 20);
    for octet in 0..32 {
        assert!(
            challenges.iter().any(|c| c[octet] != challenges[0][octet]),
            "octet {octet}"
        );
    }
}

//= test kbtp-p9-tenant-and-auth
//= test kbtp-p9-auth-layout
//= test kbtp-p9-mac-input
//= test kbtp-p7-not-authorized-hello
#[test]
fn only_the_right_proof_opens_a_session() {
    let blue = tenant("blue", 1, false);
    let red = tenant("red", 2, false);
    let target = with(&[blue.clone(), red.clone()]);
    let raw = Raw::connect(target.address());
    assert_eq!(raw.private().auth_mode, AuthMode::Hmac);
    drop(raw);
    let right = Who::new(1).of(&blue);
    Session::open(&*target, &right).close();
    let refused = |who: &Who| Session::try_open(&*target, who).map(|_| ());
    let wrong_key = TenantSetup {
        key: [9; 32],
        ..blue.clone()
    };
    let others_key = TenantSetup {
        key: red.key,
        ..blue.clone()
    };
    let unknown = tenant("green", 1, false);
    for who in [
        Who::new(1),
        Who::new(1).of(&wrong_key),
        Who::new(1).of(&others_key),
        Who::new(1).of(&unknown),
    ] {
        assert_eq!(refused(&who), Err(Status::NotAuthorized), "{who:?}");
    }
    // Each octet of the proof counts, and so does each part it is made of.
    for octet in 0..48 {
        let mut raw = Raw::connect(target.address());
        let mut hello = right.hello(&raw.private().challenge);
        let at = hello.len() - 48 + octet;
        hello[at] ^= 0x10;
        assert_eq!(
            raw.hello(&hello).map(|_| ()),
            Err(Status::NotAuthorized),
            "octet {octet}"
        );
    }
    let mut raw = Raw::connect(target.address());
    let mut hello = right.hello(&raw.private().challenge);
    hello[24 + 24] ^= 1;
    assert_eq!(
        raw.hello(&hello).map(|_| ()),
        Err(Status::NotAuthorized),
        "another initiator"
    );
    let mut raw = Raw::connect(target.address());
    let other = Challenge(raw.private().challenge.0.map(|o| o ^ 1));
    assert_eq!(
        raw.hello(&right.hello(&other)).map(|_| ()),
        Err(Status::NotAuthorized)
    );
}

//= test kbtp-p9-fresh-challenge
#[test]
fn a_hello_that_was_heard_opens_nothing() {
    let blue = tenant("blue", 1, false);
    let target = with(std::slice::from_ref(&blue));
    let mut raw = Raw::connect(target.address());
    let hello = Who::new(1).of(&blue).hello(&raw.private().challenge);
    raw.hello(&hello).expect("the first time");
    let mut replay = Raw::connect(target.address());
    assert_eq!(replay.hello(&hello).map(|_| ()), Err(Status::NotAuthorized));
    // Nor does it replace the session it was heard from.
    assert_eq!(target.audit().sessions, 1);
}

//= test kbtp-p9-own-blocks-only
//= test kbtp-p7-not-valid-foreign
#[test]
fn another_tenants_block_looks_absent() {
    let tenants = [
        tenant("blue", 1, false),
        tenant("red", 2, false),
        tenant("grey", 3, true),
    ];
    let target = with(&tenants);
    let mut sessions: Vec<_> = (1..)
        .zip(&tenants)
        .map(|(n, tenant)| Session::open(&*target, &Who::new(n).of(tenant)))
        .collect();
    for s in &mut sessions {
        s.put(0, b"own");
        s.put(1, b"freed");
        s.free(s.h(1));
    }
    let handles: Vec<_> = sessions.iter().map(|s| (s.h(0), s.h(1), s.h(2))).collect();
    for (i, s) in sessions.iter_mut().enumerate() {
        for (j, (bound, freed, never)) in handles.iter().enumerate() {
            let loads = [bound, freed, never].map(|handle| s.load(*handle).0);
            if i == j {
                assert_eq!(loads[0].status, Status::Ok);
                assert_eq!(loads[1].generation.unwrap().get(), 2);
                continue;
            }
            for load in loads {
                assert_eq!(
                    (load.status, load.generation),
                    (Status::NotValid, None),
                    "{i} of {j}"
                );
                assert_eq!((load.data_len.0, load.block.0), (0, 0));
            }
            // Nor do refusals of other requests tell the generation.
            let store = s.store(*bound, b"x", false);
            assert_eq!(
                (store.status, store.generation),
                (Status::NotAuthorized, None)
            );
            let free = s.free(*freed);
            assert_eq!(
                (free.status, free.generation),
                (Status::NotAuthorized, None)
            );
        }
    }
}

//= test kbtp-p9-own-blocks-only
#[test]
fn shared_tenants_load_each_others_blocks() {
    let tenants = [
        tenant("a", 1, true),
        tenant("b", 2, true),
        tenant("c", 3, false),
    ];
    let target = with(&tenants);
    let mut sessions: Vec<_> = (1..)
        .zip(&tenants)
        .map(|(n, tenant)| Session::open(&*target, &Who::new(n).of(tenant)))
        .collect();
    for s in &mut sessions {
        s.put(0, b"own");
    }
    let handles: Vec<_> = sessions.iter().map(|s| s.h(0)).collect();
    for (i, s) in sessions.iter_mut().enumerate() {
        for (j, handle) in handles.iter().enumerate() {
            let shared = i == j || (i < 2 && j < 2);
            let status = s.load(*handle).0.status;
            assert_eq!(
                status,
                if shared { Status::Ok } else { Status::NotValid },
                "{i} of {j}"
            );
            if i != j {
                assert_eq!(s.store(*handle, b"x", true).status, Status::NotAuthorized);
            }
        }
    }
}

//= test kbtp-p8-range-of-pair
#[test]
fn a_pair_is_tenant_and_initiator() {
    let tenants = [tenant("blue", 1, false), tenant("red", 2, false)];
    let target = with(&tenants);
    let mut blue = Session::open(&*target, &Who::new(7).of(&tenants[0]));
    blue.put(0, b"blue");
    // The same Initiator ID of another tenant neither replaces nor resumes.
    let mut red = Session::open(&*target, &Who::new(7).of(&tenants[1]));
    assert_ne!(blue.grant.handle_base, red.grant.handle_base);
    assert_eq!(red.content(red.h(0)), None);
    assert_eq!(blue.content(blue.h(0)).unwrap().1, b"blue");
    blue.close();
    eventually("blue is gone", || {
        (target.audit().sessions == 1).then_some(())
    });
    let mut blue = Session::open(&*target, &Who::new(7).of(&tenants[0]));
    assert_eq!(blue.content(blue.h(0)).unwrap().1, b"blue");
}
