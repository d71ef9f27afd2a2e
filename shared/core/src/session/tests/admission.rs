//! HELLO: who may come, what they get, and what stays when they go (P5, P6, P8, P9).

use super::rig::*;
use crate::limits::RELEASE_ROWS;
use crate::{
    Admission, Contents, Directory, DirectoryConfig, DirectoryError, Geometry, Pool, SessionEnd,
    SessionPhase, Shared,
};
use kbtp_fabric::{Atomics, Time};
use kbtp_wire::{
    AuthMode, ByteLen, Handle, Header, Hello, InstanceId, KnownTlvs, Opcode, Operation,
    RequestFlags, RequestId, SessionCapabilities, Stag, Status,
};

const H: u64 = TABLE_BASE;

//= test kbtp-p6-stags-zero-without-capability
//= test kbtp-p5-defaults
//= test kbtp-p6-request-id
//= test kbtp-p12-unknown-not-granted
#[test]
fn a_plain_session_gets_the_defaults() {
    let mut rig = Rig::new(8, config());
    let wants = Hello {
        credits: 0,
        quota: 0,
        handles: 0,
        max_inline: ByteLen(u32::MAX),
        capabilities: SessionCapabilities(0x8000_0000),
        ..hello(1)
    };
    let (client, grant) = rig.open(&wants);
    assert_eq!(grant.capabilities, SessionCapabilities::NONE);
    assert_eq!(
        (grant.credits, grant.quota, grant.max_inline),
        (64, 4, ByteLen(4096))
    );
    assert_eq!((grant.block_size, grant.pool_blocks), (ByteLen(BLOCK), 8));
    assert_eq!(
        (grant.handle_base, grant.table_base),
        (Handle(H), Handle(H))
    );
    assert!(grant.handle_count >= 4);
    assert_eq!((grant.table_count, grant.lease_ms), (1024, 10_000));
    assert_eq!(grant.instance, InstanceId([7; 16]));
    let stags = [grant.table_stag, grant.pool_stag, grant.partition_stag];
    assert_eq!(stags, [Stag(0); 3]);
    assert_eq!((grant.ring_stag, grant.counter_stag), (Stag(0), Stag(0)));
    assert!(client.stags.valid.is_empty());
    assert_eq!(client.session.phase(), SessionPhase::Open);
    let granted = client.session.grant().unwrap();
    assert_eq!((granted.tenant.as_str(), granted.initiator), ("", [1; 16]));
}

//= test kbtp-p5-hello-first
#[test]
fn hello_comes_first_and_only_it() {
    let mut rig = Rig::new(8, config());
    for (message, end) in [
        (vec![], SessionEnd::TooShort(0)),
        (vec![1; 23], SessionEnd::TooShort(23)),
        (vec![3; 64], SessionEnd::HelloOrder),
        (
            vec![1; 5000],
            SessionEnd::TooLong {
                len: 5000,
                limit: 4096,
            },
        ),
    ] {
        let mut client = rig.client();
        assert_eq!(client.give(&rig, &message), Err(end));
        rig.close(client);
    }
    // Nor may anything come before HELLO_ACK.
    let mut client = rig.client();
    let mut octets = vec![0; hello(1).encoded_len()];
    hello(1).encode_into(&mut octets).unwrap();
    client.give(&rig, &octets).unwrap();
    assert_eq!(client.session.phase(), SessionPhase::Admission);
    assert_eq!(client.give(&rig, &octets), Err(SessionEnd::HelloOrder));
    rig.close(client);
}

//= test kbtp-p6-body-only-if-ok
//= test kbtp-p6-refused-closes
//= test kbtp-p7-version-mismatch
//= test kbtp-p7-bad-request
#[test]
fn a_hello_that_cannot_be_granted_is_refused_and_the_session_closes() {
    let mut rig = Rig::new(8, config());
    let old = Hello {
        min_version: 2,
        max_version: 3,
        ..hello(1)
    };
    let header = Header::request(
        Opcode::Hello,
        RequestFlags::NONE,
        RequestId(42),
        Handle(0),
        None,
    );
    let mut octets = vec![0; old.encoded_len()];
    old.encode_into(&mut octets).unwrap();
    for (message, status) in [
        (octets, Status::VersionMismatch),
        (header.encode().to_vec(), Status::BadRequest),
    ] {
        let mut client = rig.client();
        client.give(&rig, &message).unwrap();
        client.pump(&rig);
        let ack = client.received.pop_front().unwrap();
        assert_eq!(ack.len(), Header::LEN);
        assert_eq!(ack[22..24], status.to_wire().to_be_bytes());
        assert_eq!(client.session.phase(), SessionPhase::Closing);
        assert!(client.session.next_work().is_none());
        rig.close(client);
    }
    assert_eq!(rig.directory.summary().ranges, 0);
}

//= test kbtp-p7-not-authorized-hello
//= test kbtp-p9-mac-input
//= test kbtp-p9-constant-time
#[test]
fn only_the_right_proof_opens_a_session() {
    let tenants = vec![
        tenant("red", false),
        tenant("blue", false),
        crate::TenantConfig {
            name: "keyless".into(),
            key: None,
            shared: false,
        },
    ];
    let mut rig = Rig::new(
        8,
        DirectoryConfig {
            tenants,
            ..config()
        },
    );
    let mut ask = |tenant, auth, initiator| {
        let mut hello = hello(initiator);
        hello.tlvs = KnownTlvs {
            tenant,
            auth,
            software: None,
        };
        let mut client = rig.client_with(AuthMode::Hmac, Atomics::None);
        let status = client.hello(&mut rig, &hello).map(|_| ());
        rig.close(client);
        status
    };
    let refused = Err(Status::NotAuthorized);
    assert_eq!(ask(Some("red"), Some(proof("red", 1)), 1), Ok(()));
    assert_eq!(ask(Some("blue"), Some(proof("blue", 1)), 1), Ok(()));
    assert_eq!(ask(Some("red"), Some(proof("blue", 1)), 1), refused);
    assert_eq!(ask(Some("red"), Some(proof("red", 2)), 1), refused);
    assert_eq!(ask(Some("red"), None, 1), refused);
    assert_eq!(ask(None, Some(proof("red", 1)), 1), refused);
    assert_eq!(ask(Some("green"), Some(proof("green", 1)), 1), refused);
    // The key that stands in for a missing one opens nothing.
    let mut zeros = proof("keyless", 1);
    let key = crate::TenantKey::new([0; 32]);
    zeros.mac = crate::auth::mac(
        &key,
        &kbtp_wire::Challenge([5; 32]),
        &zeros.nonce,
        &kbtp_wire::InitiatorId([1; 16]),
        "keyless",
    );
    assert_eq!(ask(Some("keyless"), Some(zeros), 1), refused);
    for bit in [0, 100, 255] {
        let mut wrong = proof("red", 1);
        wrong.mac[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(ask(Some("red"), Some(wrong), 1), refused);
    }
    // Without authentication a name must be known all the same.
    let mut client = rig.client();
    assert_eq!(
        client.hello(&mut rig, &hello(1)).unwrap_err(),
        Status::NotAuthorized
    );
}

//= test kbtp-p8-quota-granted
//= test kbtp-p8-no-quota-no-space
//= test kbtp-3.4-quota-sum
#[test]
fn quotas_never_sum_over_the_pool() {
    let mut rig = Rig::new(8, config());
    let wants = |n, quota| Hello { quota, ..hello(n) };
    let (first, grant) = rig.open(&wants(1, 5));
    assert_eq!(grant.quota, 5);
    let (second, grant) = rig.open(&wants(2, 5));
    assert_eq!(grant.quota, 3, "what is left");
    let mut third = rig.client();
    assert_eq!(
        third.hello(&mut rig, &wants(3, 1)).unwrap_err(),
        Status::NoSpace
    );
    assert_eq!(rig.directory.summary().committed, 8);
    rig.close(first);
    rig.close(second);
    rig.close(third);
    let most = DirectoryConfig {
        max_quota: 2,
        ..config()
    };
    let mut rig = Rig::new(8, most);
    assert_eq!(rig.open(&wants(1, 5)).1.quota, 2);
}

//= test kbtp-p8-range-of-pair
//= test kbtp-p8-lease-keeps-bindings
//= test kbtp-p8-resume
//= test kbtp-p8-quota-while-away
//= test kbtp-p8-quota-on-resume
#[test]
fn a_pair_that_comes_back_finds_its_bindings() {
    let mut rig = Rig::new(8, config());
    let (mut client, _) = rig.open(&hello(1));
    client.call(&rig, H, 0, put(b"kept"));
    client.call(&rig, H + 63, 0, put(b"kept"));
    rig.close(client);
    assert_eq!(
        rig.directory.summary().committed,
        2,
        "what is bound, no more"
    );
    let (_other, grant) = rig.open(&Hello {
        quota: 100,
        ..hello(2)
    });
    assert_eq!((grant.quota, grant.handle_base), (6, Handle(H + 64)));
    rig.advance_ms(9_999);
    let now = rig.now;
    rig.directory.poll(now, &rig.shared);
    let (mut client, grant) = rig.open(&hello(1));
    assert_eq!(
        (grant.quota, grant.handle_base),
        (2, Handle(H)),
        "nothing is left to grow by"
    );
    assert!(client.session.grant().unwrap().resumed);
    assert_eq!(client.call(&rig, H, 1, load(0, 4)).status, Status::Ok);
    assert_eq!(
        client.call(&rig, H + 1, 0, put(b"x")).status,
        Status::NoSpace
    );
    client.call(&rig, H, 0, Operation::Free);
    assert_eq!(client.call(&rig, H + 1, 0, put(b"x")).status, Status::Ok);
}

//= test kbtp-p8-quota-on-resume
#[test]
fn a_quota_is_never_less_than_what_is_bound() {
    let mut rig = Rig::new(8, config());
    let (mut client, _) = rig.open(&hello(1));
    for n in 0..3 {
        client.call(&rig, H + n, 0, put(b"x"));
    }
    rig.close(client);
    let (client, grant) = rig.open(&Hello {
        quota: 1,
        ..hello(1)
    });
    assert_eq!((grant.quota, rig.directory.summary().committed), (3, 3));
    rig.close(client);
    let (_client, grant) = rig.open(&Hello {
        quota: 5,
        ..hello(1)
    });
    assert_eq!((grant.quota, rig.directory.summary().committed), (5, 5));
}

//= test kbtp-p8-lease-keeps-bindings
//= test kbtp-p8-lease-for-ever
//= test kbtp-p8-empty-range-released
#[test]
fn leases_end_when_they_should() {
    for lease_ms in [0, 500, u32::MAX] {
        let mut rig = Rig::new(
            8,
            DirectoryConfig {
                lease_ms,
                ..config()
            },
        );
        let (mut client, grant) = rig.open(&hello(1));
        assert_eq!(grant.lease_ms, lease_ms);
        client.call(&rig, H, 0, put(b"x"));
        rig.close(client);
        let (empty, _) = rig.open(&hello(2));
        rig.close(empty);
        let ranges = u32::from(lease_ms != 0);
        assert_eq!(
            rig.directory.summary().ranges,
            ranges,
            "and the empty one is gone"
        );
        assert_eq!(rig.at_rest().bound, ranges);
        let due = rig.directory.next_timeout();
        assert_eq!(due, (lease_ms == 500).then(|| rig.now.after_ms(500)));
        rig.now = due.unwrap_or(Time(u64::MAX));
        let now = rig.now;
        rig.directory.poll(now, &rig.shared);
        let kept = u32::from(lease_ms == u32::MAX);
        assert_eq!(rig.directory.summary().ranges, kept);
        assert_eq!(rig.at_rest().bound, kept);
        if kept == 0 {
            // The next one there starts with nothing, and sees that it was free meanwhile.
            let (mut client, grant) = rig.open(&hello(3));
            assert_eq!(grant.handle_base, Handle(H));
            let found = client.call(&rig, H, 0, load(0, 1));
            assert_eq!(found.status, Status::NotValid);
            assert_eq!(client.call(&rig, H, 2, put(b"y")).status, Status::Ok);
        }
    }
}

//= test kbtp-p8-second-session-replaces
#[test]
fn a_second_session_of_a_pair_replaces_the_first() {
    let mut rig = Rig::new(8, config());
    let (mut first, _) = rig.open(&hello(1));
    first.call(&rig, H, 0, put(b"x"));
    first.send(&rig, H, 0, load(0, 1));
    first.post();
    let mut second = rig.client();
    let mut octets = vec![0; hello(1).encoded_len()];
    hello(1).encode_into(&mut octets).unwrap();
    second.give(&rig, &octets).unwrap();
    assert_eq!(
        second.admit(&mut rig),
        Admission::Replace(first.session.id())
    );
    assert_eq!(
        second.admit(&mut rig),
        Admission::Replace(first.session.id())
    );
    assert!(second.session.next_work().is_none());
    rig.close(first);
    assert_eq!(second.admit(&mut rig), Admission::Answered);
    second.pump(&rig);
    assert_eq!(second.received.pop_front().unwrap().len(), 168);
    assert_eq!(second.call(&rig, H, 1, load(0, 1)).status, Status::Ok);
    assert_eq!(rig.directory.summary().sessions, 1);
}

#[test]
fn handles_run_out_before_they_are_given_twice() {
    let mut rig = Rig::new(64, config());
    let wants = |n, handles| Hello {
        quota: 1,
        handles,
        ..hello(n)
    };
    let (_a, grant) = rig.open(&wants(1, 1000));
    assert_eq!(grant.handle_count, 1024, "in whole granules");
    let mut b = rig.client();
    assert_eq!(
        b.hello(&mut rig, &wants(2, 1)).unwrap_err(),
        Status::NoSpace
    );
    assert_eq!(
        rig.directory.summary().committed,
        1,
        "a refusal promises nothing"
    );
    let mut rig = Rig::new(64, config());
    let (_a, _) = rig.open(&wants(1, 900));
    let (_b, grant) = rig.open(&wants(2, 900));
    assert_eq!(
        (grant.handle_base, grant.handle_count),
        (Handle(H + 960), 64),
        "what is left"
    );
}

//= test kbtp-p6-instance-changes
#[test]
fn a_restarted_target_knows_its_pairs() {
    let tenants = vec![tenant("red", false), tenant("blue", false)];
    let config = DirectoryConfig {
        tenants,
        ..config()
    };
    let mut rig = Rig::new(12, config.clone());
    let mut red = hello(1);
    red.tlvs.tenant = Some("red");
    let mut blue = hello(1);
    blue.tlvs.tenant = Some("blue");
    let (mut client, _) = rig.open(&red);
    client.call(&rig, H, 0, put(b"red"));
    let (mut other, grant) = rig.open(&blue);
    let theirs = grant.handle_base.0;
    other.call(&rig, theirs, 0, put(b"blue"));
    let (idle, _) = rig.open(&Hello {
        quota: 1,
        ..Hello {
            initiator: hello(9).initiator,
            ..red
        }
    });
    // Killed: nobody says goodbye.
    let meta = rig.shared.pool.meta_region().clone();
    let data = rig.shared.pool.block_region().clone();
    drop((client, other, idle, rig));

    let (pool, recovered) = Pool::recover(meta, data, [9; 16]).unwrap();
    assert_eq!((recovered.report.bound, recovered.report.ranges), (2, 3));
    let shared = Shared::new(pool);
    // Blue is gone from the configuration meanwhile.
    let only_red = DirectoryConfig {
        tenants: vec![tenant("red", false)],
        ..config
    };
    let directory = Directory::recover(only_red, &shared, recovered, Time(5)).unwrap();
    let mut rig = Rig::over(shared, directory, Time(5));
    assert_eq!(rig.directory.summary().ranges, 2, "the empty range is gone");
    let mut client = rig.client();
    assert_eq!(
        client.hello(&mut rig, &blue).unwrap_err(),
        Status::NotAuthorized
    );
    let (mut client, grant) = rig.open(&red);
    assert_eq!(
        (grant.handle_base, grant.instance),
        (Handle(H), InstanceId([7; 16]))
    );
    assert_eq!(client.call(&rig, H, 1, load(0, 3)).status, Status::Ok);
    assert_eq!(client.read_memory(0, 3), b"red");
    let hidden = client.call(&rig, theirs, 0, load(0, 9));
    assert_eq!((hidden.status, hidden.generation), (Status::NotValid, None));
    rig.advance_ms(10_000);
    let now = rig.now;
    rig.directory.poll(now, &rig.shared);
    assert_eq!(
        (rig.at_rest().bound, rig.directory.summary().ranges),
        (1, 1)
    );
}

//= test kbtp-6.6-direct-load-stags
//= test kbtp-3.2-target-writes-only
//= test kbtp-3.2-entry-address
//= test kbtp-p6-block-offset-tagged
#[test]
fn direct_load_reads_table_and_pool_where_all_trust_each_other() {
    let wants = Hello {
        capabilities: SessionCapabilities::DIRECT_LOAD,
        ..hello(1)
    };
    let mut rig = Rig::new(8, config());
    let (mut client, grant) = rig.open(&wants);
    assert_eq!(grant.capabilities, SessionCapabilities::DIRECT_LOAD);
    let stored = client.call(&rig, H + 3, 0, put(b"direct"));
    let entry_at = grant.table_offset.0 + 16 * 3;
    let (region, at) = client
        .stags
        .place(grant.table_stag, entry_at, |a| a.remote_read)
        .unwrap();
    let mut entry = [0; 16];
    region.read(at, &mut entry).unwrap();
    let entry = kbtp_wire::TableEntry::decode(&entry);
    assert_eq!((entry.block, entry.data_len), (stored.block, ByteLen(6)));
    let read = |a: &kbtp_fabric::Access| a.remote_read;
    let (region, at) = client
        .stags
        .place(grant.pool_stag, entry.block.0, read)
        .unwrap();
    let mut data = [0; 6];
    region.read(at, &mut data).unwrap();
    assert_eq!(&data, b"direct");
    for (_, _, _, access) in client.stags.valid.values() {
        assert!(access.remote_read);
        assert!(!access.remote_write && !access.remote_atomic && !access.remote_invalidate);
    }
}

//= test kbtp-6.6-direct-trusted-only
//= test kbtp-p9-direct-own-blocks-only
#[test]
fn direct_load_is_not_for_strangers_nor_where_it_cannot_be() {
    let wants = Hello {
        capabilities: SessionCapabilities::DIRECT_LOAD,
        ..hello(1)
    };
    let strangers = vec![tenant("", false), tenant("b", false)];
    let friends = vec![tenant("", true), tenant("b", true)];
    for (config, left, granted) in [
        (
            DirectoryConfig {
                tenants: strangers,
                ..config()
            },
            None,
            false,
        ),
        (
            DirectoryConfig {
                tenants: friends,
                ..config()
            },
            None,
            true,
        ),
        (
            DirectoryConfig {
                direct_load: false,
                ..config()
            },
            None,
            false,
        ),
        (config(), Some(1), false),
    ] {
        let mut rig = Rig::new(8, config);
        let mut client = rig.client();
        client.stags.left = left;
        let grant = client.hello(&mut rig, &wants).unwrap();
        let has = grant
            .capabilities
            .contains(SessionCapabilities::DIRECT_LOAD);
        assert_eq!(has, granted);
        assert_eq!(
            client.stags.valid.is_empty(),
            !granted,
            "nothing stays exposed"
        );
    }
}

/// DIRECT_LOAD shows free blocks too, and a killed target may have left anybody's octets in them.
//= test kbtp-p9-direct-own-blocks-only
//= test kbtp-p9-reads-as-zeros
#[test]
fn a_pool_shown_to_one_tenant_holds_no_octets_of_another() {
    for (successor, kept) in [("red", true), ("blue", false)] {
        let tenants = vec![tenant("red", false), tenant("blue", false)];
        let mut rig = Rig::new(
            8,
            DirectoryConfig {
                tenants,
                ..config()
            },
        );
        let mut red = hello(1);
        red.tlvs.tenant = Some("red");
        let (mut client, _) = rig.open(&red);
        client.write_memory(0, b"secret");
        let alloc = Operation::AllocStore {
            source: remote(0, 6),
            seal: true,
        };
        client.send(&rig, H, 0, alloc);
        client.post();
        // The data is in the block, and the target is killed before it is bound.
        let meta = rig.shared.pool.meta_region().clone();
        let data = rig.shared.pool.block_region().clone();
        data.write(0, b"secret").unwrap();
        drop((client, rig));

        let (pool, recovered) = Pool::recover(meta, data.clone(), [9; 16]).unwrap();
        let shared = Shared::new(pool);
        let config = DirectoryConfig {
            tenants: vec![tenant(successor, false)],
            ..config()
        };
        let directory = Directory::recover(config, &shared, recovered, Time(5)).unwrap();
        let mut found = [0; 6];
        data.read(0, &mut found).unwrap();
        assert_eq!(&found == b"secret", kept, "{successor}");
        assert_eq!(directory.summary().ranges, 0);
    }
}

#[test]
fn wrong_configurations_are_named() {
    let geometry = geometry(8);
    let (meta, data) = regions(&geometry);
    let pool = Pool::format(meta, data, geometry, [0; 16], Contents::Zeroed).unwrap();
    let make = |config| Directory::new(config, &pool).map(|_| ());
    let bad = |key| move |e: &DirectoryError| matches!(e, DirectoryError::Config { key: k, .. } if *k == key);
    let credits = DirectoryConfig {
        credits_max: 2000,
        ..config()
    };
    assert!(make(credits).is_err_and(|e| bad("credits_max")(&e)));
    let credits = DirectoryConfig {
        credits_max: 10,
        credits_default: 11,
        ..config()
    };
    assert!(make(credits).is_err_and(|e| bad("credits_default")(&e)));
    let inline = DirectoryConfig {
        inline_max: 1 << 20,
        ..config()
    };
    assert!(make(inline).is_err_and(|e| bad("inline_max")(&e)));
    let quota = DirectoryConfig {
        default_quota: 0,
        ..config()
    };
    assert!(make(quota).is_err_and(|e| bad("default_quota")(&e)));
    for tenants in [
        vec![tenant("a", false), tenant("a", true)],
        vec![tenant(&"x".repeat(256), false)],
    ] {
        let error = make(DirectoryConfig {
            tenants,
            ..config()
        })
        .unwrap_err();
        assert!(matches!(error, DirectoryError::Tenant { .. }));
    }
}

/// A range as long as the table, with a block at each end of it.
fn long_range(rig: &mut Rig) -> u64 {
    let rows = 2 * RELEASE_ROWS + 64;
    let geometry = Geometry {
        handles: rows,
        ..geometry(8)
    };
    let (meta, data) = regions(&geometry);
    let pool = Pool::format(meta, data, geometry, [7; 16], Contents::Zeroed).unwrap();
    let directory = Directory::new(config(), &pool).unwrap();
    *rig = Rig::over(Shared::new(pool), directory, Time(1));
    let wants = Hello {
        handles: rows,
        ..hello(1)
    };
    let (mut client, _) = rig.open(&wants);
    for row in [0, rows - 1] {
        assert_eq!(client.call(rig, H + row, 0, put(b"x")).status, Status::Ok);
    }
    rig.close(client);
    rig.now = rig.directory.next_timeout().unwrap();
    rig.directory.poll(rig.now, &rig.shared);
    rows
}

/// Sessions that begin or end wait for it, so it must not take as long as the range is.
#[test]
fn a_range_is_released_a_part_at_a_time() {
    let mut rig = Rig::new(8, config());
    long_range(&mut rig);
    let mut polls = 1;
    let mut bound = vec![rig.at_rest().bound];
    while let Some(due) = rig.directory.next_timeout() {
        assert!(due > rig.now, "the mutex is free meanwhile");
        let summary = rig.directory.summary();
        let left = *bound.last().unwrap();
        assert_eq!((summary.ranges, summary.committed), (0, left));
        rig.now = due;
        rig.directory.poll(rig.now, &rig.shared);
        bound.push(rig.at_rest().bound);
        polls += 1;
    }
    assert_eq!((polls, bound), (3, vec![1, 1, 0]));
    // Quota and handles are there again.
    let (_, grant) = rig.open(&Hello {
        quota: 8,
        handles: u64::MAX,
        ..hello(2)
    });
    assert_eq!((grant.quota, grant.handle_count), (8, grant.table_count));
}

#[test]
fn a_pair_that_returns_while_its_range_is_released_finds_a_new_one() {
    let mut rig = Rig::new(8, config());
    let rows = long_range(&mut rig);
    let wants = Hello {
        quota: 8,
        handles: rows,
        ..hello(1)
    };
    // The mutex is free after each part, and the session is told to ask again.
    let mut client = rig.client();
    let mut octets = vec![0; wants.encoded_len()];
    wants.encode_into(&mut octets).unwrap();
    client.give(&rig, &octets).unwrap();
    assert!(matches!(client.admit(&mut rig), Admission::Replace(_)));
    assert_eq!(rig.at_rest().bound, 1);
    assert_eq!(client.admit(&mut rig), Admission::Answered);
    assert_eq!(rig.at_rest().bound, 0);
    client.pump(&rig);
    client.received.pop_front().unwrap();
    let grant = client.session.grant().unwrap();
    assert_eq!((grant.quota, grant.handle_count), (8, rows));
    assert!(!grant.resumed);
    let last = client.call(&rig, H + rows - 1, 0, load(0, 1));
    assert_eq!(last.status, Status::NotValid);
    assert_eq!(client.call(&rig, H, 0, put(b"y")).status, Status::Ok);
    rig.directory.poll(rig.now, &rig.shared);
    assert_eq!(rig.at_rest().bound, 1);
}

/// A lease that was over stays over, and no part of the range comes back to life.
#[test]
fn a_target_killed_while_it_releases_a_range_revives_no_part_of_it() {
    let mut rig = Rig::new(8, config());
    long_range(&mut rig);
    assert_eq!(rig.at_rest().bound, 1, "killed in the middle");
    let meta = rig.shared.pool.meta_region().clone();
    let data = rig.shared.pool.block_region().clone();
    drop(rig);
    let (pool, recovered) = Pool::recover(meta.clone(), data.clone(), [9; 16]).unwrap();
    assert_eq!(recovered.report.bound, 1);
    assert!(!recovered.report.instance_changed, "no live block is lost");
    let shared = Shared::new(pool);
    let directory = Directory::recover(config(), &shared, recovered, Time(5)).unwrap();
    let mut rig = Rig::over(shared, directory, Time(5));
    assert_eq!(
        (rig.at_rest().bound, rig.directory.summary().ranges),
        (0, 0)
    );
    // Who comes next in that record and those rows is not taken for given up.
    let (mut client, _) = rig.open(&Hello {
        handles: u64::MAX,
        ..hello(1)
    });
    assert_eq!(client.call(&rig, H, 0, put(b"new")).status, Status::Ok);
    drop((client, rig));
    let (pool, recovered) = Pool::recover(meta, data, [9; 16]).unwrap();
    let shared = Shared::new(pool);
    let directory = Directory::recover(config(), &shared, recovered, Time(6)).unwrap();
    let rig = Rig::over(shared, directory, Time(6));
    assert_eq!(
        (rig.at_rest().bound, rig.directory.summary().ranges),
        (1, 1)
    );
}

/// HELLO of an initiator of one of two tenants.
fn of_tenant(tenant: &'static str, initiator: u8, handles: u64) -> Hello<'static> {
    let mut hello = Hello {
        quota: 1,
        handles,
        ..hello(initiator)
    };
    hello.tlvs.tenant = Some(tenant);
    hello
}

//= test rfc5042-3-resource-control
#[test]
fn one_tenant_does_not_use_up_the_ranges_of_another() {
    let both = DirectoryConfig {
        tenants: vec![tenant("red", false), tenant("blue", false)],
        ..config()
    };
    // 16 granules; half of them are kept, four for each.
    let mut rig = Rig::new(64, both.clone());
    let mut taken = Vec::new();
    let mut refused = 0;
    for initiator in 0..20 {
        let mut client = rig.client();
        match client.hello(&mut rig, &of_tenant("red", initiator, 64)) {
            Ok(grant) => assert_eq!(grant.handle_count, 64),
            Err(status) => {
                assert_eq!(status, Status::NoSpace);
                refused += 1;
            }
        }
        taken.push(client);
    }
    assert_eq!(refused, 20 - 12);
    let before = rig.directory.summary().committed;
    for initiator in 0..4 {
        let (client, grant) = rig.open(&of_tenant("blue", initiator, 64));
        assert_eq!(grant.handle_count, 64);
        taken.push(client);
    }
    assert_eq!(rig.directory.summary().committed, before + 4);
    // What one gives back the other can have, as long as each could have its part.
    for client in taken {
        rig.close(client);
    }
    let (_blue, _) = rig.open(&of_tenant("blue", 1, 64));
    let (_red, grant) = rig.open(&of_tenant("red", 1, u64::MAX));
    assert_eq!(grant.handle_count, 64 * (16 - 1 - 3));
    // Who is alone has everything.
    let mut rig = Rig::new(64, config());
    for initiator in 0..16 {
        rig.open(&Hello {
            quota: 1,
            ..hello(initiator)
        });
    }
}

//= test rfc5042-3-resource-control
#[test]
fn a_tenant_has_so_many_initiators_with_sessions_or_leases() {
    let two = DirectoryConfig {
        tenants: vec![tenant("red", false), tenant("blue", false)],
        max_initiators: 2,
        ..config()
    };
    let mut rig = Rig::new(64, two.clone());
    let (mut first, grant) = rig.open(&of_tenant("red", 1, 64));
    let handle = grant.handle_base.0;
    first.call(&rig, handle, 0, put(b"leased"));
    rig.close(first);
    let (second, _) = rig.open(&of_tenant("red", 2, 64));
    let refused = |rig: &mut Rig, initiator| {
        let mut client = rig.client();
        client.hello(rig, &of_tenant("red", initiator, 64)).err()
    };
    assert_eq!(refused(&mut rig, 3), Some(Status::NoSpace));
    assert_eq!(refused(&mut rig, 1), None, "one that is known comes back");
    let (_blue, _) = rig.open(&of_tenant("blue", 3, 64));
    rig.close(second);
    assert_eq!(
        refused(&mut rig, 3),
        None,
        "an empty range is gone with its session"
    );
    // A restart counts those that are on lease.
    let meta = rig.shared.pool.meta_region().clone();
    let data = rig.shared.pool.block_region().clone();
    drop(rig);
    let (pool, recovered) = Pool::recover(meta, data, [9; 16]).unwrap();
    let shared = Shared::new(pool);
    let directory = Directory::recover(two, &shared, recovered, Time(5)).unwrap();
    let mut rig = Rig::over(shared, directory, Time(5));
    assert_eq!(refused(&mut rig, 4), None);
    assert_eq!(refused(&mut rig, 5), Some(Status::NoSpace));
    rig.advance_ms(10_000);
    let now = rig.now;
    rig.directory.poll(now, &rig.shared);
    assert_eq!(refused(&mut rig, 5), None, "the lease is over");
}

/// Else it would leave the others blocks without handles.
#[test]
fn where_quotas_are_limited_no_session_takes_the_whole_table() {
    let mut rig = Rig::new(
        8,
        DirectoryConfig {
            max_quota: 2,
            ..config()
        },
    );
    let greedy = |initiator| Hello {
        handles: u64::MAX,
        ..hello(initiator)
    };
    for initiator in 1..=4 {
        let (_, grant) = rig.open(&greedy(initiator));
        assert_eq!((grant.quota, grant.handle_count), (2, 256));
    }
}
