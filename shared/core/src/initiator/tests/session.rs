//! Session set-up: what HELLO says, and which answers are taken.

use super::*;
use hmac::{Hmac, KeyInit, Mac};
use kbtp_wire::{Hello, RingOrder};
use proptest::prelude::*;
use sha2::Sha256;

fn hello_of(settings: Settings, private_data: &[u8]) -> Result<Vec<u8>, SessionError> {
    let nonce = Nonce([9; 16]);
    let mut initiator = Initiator::new(
        settings,
        private_data,
        nonce,
        Atomics::Masked,
        None,
        None,
        NEVER,
    )?;
    match initiator.work().unwrap().request {
        WorkRequest::Send { head, .. } => Ok(head.to_vec()),
        other => panic!("{other:?}"),
    }
}

//= test kbtp-p5-hello-layout
//= test kbtp-p5-tlv-types
#[test]
fn hello_asks_for_what_the_settings_say() {
    let message = hello_of(
        Settings {
            tenant: "blue".into(),
            software: "test 1".into(),
            request_credits: 9,
            quota: 5,
            handles: 6,
            max_inline: ByteLen(77),
            ..settings()
        },
        &private_data(0),
    )
    .unwrap();
    let hello = Hello::decode(&message).unwrap();
    assert_eq!((hello.min_version, hello.max_version), (1, 1));
    assert_eq!((hello.credits, hello.quota, hello.handles), (9, 5, 6));
    assert_eq!(hello.max_inline, ByteLen(77));
    assert_eq!(hello.initiator, InitiatorId([7; 16]));
    assert_eq!(hello.tlvs.tenant, Some("blue"));
    assert_eq!(hello.tlvs.software, Some("test 1"));
    assert_eq!(hello.tlvs.auth, None);
    // Without scratch memory there is nothing to ask direct modes for.
    assert_eq!(hello.capabilities, SessionCapabilities::NONE);
}

#[test]
fn hello_asks_for_direct_modes_only_where_the_stream_has_what_they_need() {
    //= test rfc7306-1.1-use-agreed
    let scratch = || {
        let pages = kbtp_memory::PageOptions::default();
        Some(Scratch {
            region: Region::anonymous(Initiator::SCRATCH_LEN, &pages).unwrap(),
            stag: SCRATCH,
            base: TaggedOffset(0),
        })
    };
    let all = SessionCapabilities(7);
    for (atomics, expected) in [
        (Atomics::None, SessionCapabilities::DIRECT_LOAD),
        (
            Atomics::Masked,
            all.without(SessionCapabilities::RECORD_COMPLETION),
        ),
    ] {
        let settings = Settings {
            capabilities: all,
            ..settings()
        };
        let nonce = Nonce([9; 16]);
        let data = private_data(0);
        let mut initiator =
            Initiator::new(settings, &data, nonce, atomics, scratch(), None, NEVER).unwrap();
        let WorkRequest::Send { head, .. } = initiator.work().unwrap().request else {
            panic!("HELLO is a Send");
        };
        assert_eq!(Hello::decode(head).unwrap().capabilities, expected);
    }
}

//= test kbtp-p9-mac-input
//= test kbtp-p9-tenant-and-auth
#[test]
fn hello_proves_the_tenant_s_key() {
    let with_key = Settings {
        tenant: "blue".into(),
        key: Some(TenantKey::new(b"secret")),
        ..settings()
    };
    let message = hello_of(with_key, &private_data(1)).unwrap();
    let auth = Hello::decode(&message).unwrap().tlvs.auth.unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(b"secret").unwrap();
    mac.update(b"KBTP-AUTH-1");
    mac.update(&[0xc4; 32]);
    mac.update(&[9; 16]);
    mac.update(&[7; 16]);
    mac.update(b"blue");
    assert_eq!(auth.nonce, Nonce([9; 16]));
    mac.verify_slice(&auth.mac).unwrap();
}

#[test]
fn a_session_is_not_begun_without_what_the_target_wants() {
    assert_eq!(
        hello_of(settings(), &private_data(1)),
        Err(SessionError::KeyMissing)
    );
    for data in [
        vec![],
        vec![0; 40],
        private_data(2),
        private_data(0)[..39].to_vec(),
    ] {
        assert!(matches!(
            hello_of(settings(), &data),
            Err(SessionError::Peer(_))
        ));
    }
    let long = Settings {
        tenant: "x".repeat(256),
        ..settings()
    };
    assert!(matches!(
        hello_of(long, &private_data(0)),
        Err(SessionError::Setting { len: 256, .. })
    ));
    assert_eq!(format!("{:?}", TenantKey::new(b"secret")), "TenantKey(..)");
}

#[test]
fn a_grant_opens_the_session() {
    let rig = Rig::open();
    let terms = rig.initiator.terms().unwrap();
    assert_eq!(terms.requests, CREDITS);
    assert!(terms.direct_load && terms.direct_alloc);
    assert_eq!(rig.initiator.free_credits(), u32::from(CREDITS));
}

#[test]
fn a_refusal_ends_the_session() {
    let mut rig = Rig::new(settings());
    rig.post();
    let refused = HelloAck::Refused {
        request_id: Initiator::HELLO_ID,
        status: Status::NotAuthorized,
    };
    let mut octets = vec![0; refused.encoded_len()];
    refused.encode_into(&mut octets).unwrap();
    let status = Status::NotAuthorized;
    assert_eq!(rig.receive(&octets), Err(SessionError::Refused { status }));
    assert!(rig.initiator.work().is_none());
    assert_eq!(
        rig.initiator.submit(load(100), 0, NEVER),
        Err(SubmitError::NotOpen)
    );
}

#[test]
fn an_answer_that_answers_something_else_ends_the_session() {
    let mut rig = Rig::new(settings());
    let early = rig.receive(&ack(Initiator::HELLO_ID, grant()));
    assert!(matches!(
        early,
        Err(SessionError::Peer(PeerError::NotOutstanding { .. }))
    ));

    let mut rig = Rig::new(settings());
    rig.post();
    let other = rig.receive(&ack(RequestId(1), grant()));
    assert!(matches!(
        other,
        Err(SessionError::Peer(PeerError::NotOutstanding { .. }))
    ));

    let mut rig = Rig::new(settings());
    rig.post();
    let invalidating = rig
        .initiator
        .handle_received(&ack(Initiator::HELLO_ID, grant()), Some(Stag(1)));
    assert!(matches!(
        invalidating,
        Err(SessionError::Peer(PeerError::Invalidated { .. }))
    ));
}

#[test]
fn hello_is_not_waited_for_for_ever() {
    let mut rig = Rig::new(settings());
    rig.post();
    assert_eq!(rig.initiator.timeout(), Some(NOW.after_ms(100)));
    assert_eq!(rig.initiator.handle_timeout(NOW.after_ms(99)), Ok(()));
    assert_eq!(
        rig.initiator.handle_timeout(NOW.after_ms(100)),
        Err(SessionError::HelloTimeout)
    );
}

/// A field, and what makes it one that cannot be.
type Spoilt = (&'static str, fn(&mut Grant));

/// What makes the good grant one that cannot be, by the field that is told.
const BAD: [Spoilt; 19] = [
    ("Capabilities", |g| {
        //= test kbtp-p12-both-sides
        g.capabilities = SessionCapabilities(0x1_0000);
    }),
    ("Block Size", |g| g.block_size = ByteLen(0)),
    ("Pool Blocks", |g| g.pool_blocks = 0),
    ("Allocation Quota", |g| g.quota = 0),
    ("Allocation Quota", |g| g.quota = 17),
    ("Request Credits", |g| g.credits = 0),
    ("Handle Count", |g| g.handle_count = 0),
    ("Handle Base + Handle Count", |g| {
        g.handle_base = Handle(u64::MAX);
    }),
    ("Handle Base", |g| g.handle_base = Handle(95)),
    ("Handle Base", |g| g.handle_count = 29),
    ("Table Handle Count", |g| g.table_count = 0),
    ("Table Handle Count", |g| {
        g.table_offset = TaggedOffset(u64::MAX - 511);
    }),
    ("Table Handle Count", |g| g.table_count = u64::MAX / 2),
    ("Partition Length", |g| g.partition_len -= 1),
    ("Partition Length", |g| {
        g.partition_offset = TaggedOffset(u64::MAX);
    }),
    ("Ring Order", |g| g.ring_order = RingOrder::new(2).unwrap()),
    ("Ring Offset", |g| {
        g.ring_offset = TaggedOffset(u64::MAX - 127);
    }),
    ("Head Offset", |g| g.head_offset = TaggedOffset(0x44)),
    ("Ticket Timeout", |g| g.ticket_timeout_ms = 0),
];

//= test kbtp-p6-grant-plausible
#[test]
fn a_grant_that_cannot_be_ends_the_session() {
    for (field, spoil) in BAD {
        let mut grant = grant();
        spoil(&mut grant);
        let mut rig = Rig::new(settings());
        rig.post();
        match rig.receive(&ack(Initiator::HELLO_ID, grant)) {
            Err(SessionError::Peer(PeerError::Geometry { what, .. })) => assert_eq!(what, field),
            other => panic!("{field}: {other:?}"),
        }
        assert!(!rig.initiator.is_open());
    }
}

#[test]
fn a_grant_of_everything_costs_no_more_memory_than_the_limits() {
    let rig = Rig::granted(Grant {
        capabilities: SessionCapabilities::DIRECT_LOAD,
        block_size: ByteLen(u32::MAX),
        pool_blocks: u32::MAX,
        quota: u32::MAX,
        handle_base: Handle(0),
        handle_count: u64::MAX / 32,
        table_base: Handle(0),
        table_count: u64::MAX / 32,
        credits: u16::MAX,
        max_inline: ByteLen(u32::MAX),
        table_offset: TaggedOffset(0),
        ..grant()
    });
    let terms = rig.initiator.terms().unwrap();
    assert_eq!(terms.requests, limits::MAX_REQUESTS);
    // No more inline data than this party asked for: the target's word is not enough to post megabytes.
    assert_eq!(terms.max_inline, ByteLen(64));
    let slots = usize::from(limits::MAX_REQUESTS) + 2;
    assert_eq!(rig.initiator.slots.len(), slots);
    assert!(rig.initiator.finished.capacity() < 2 * slots + 2);
}

proptest! {
    /// Whatever comes instead of HELLO_ACK, nothing panics, and only the right answer opens.
    #[test]
    fn arbitrary_answers_are_refused_or_right(
        cut in 0_usize..200,
        changes in prop::collection::vec((0_usize..168, any::<u8>()), 0..4),
    ) {
        let mut octets = ack(Initiator::HELLO_ID, grant());
        for (at, value) in &changes {
            octets[*at] = *value;
        }
        octets.truncate(cut);
        let mut rig = Rig::new(settings());
        rig.post();
        let result = rig.receive(&octets);
        prop_assert_eq!(result.is_ok(), rig.initiator.is_open());
        if rig.initiator.is_open() {
            prop_assert!(octets.len() >= 168);
            prop_assert!(rig.initiator.slots.len() <= 1024 + 64);
        } else {
            prop_assert!(rig.initiator.submit(load(100), 0, NEVER).is_err());
        }
    }
}
