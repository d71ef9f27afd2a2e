//! Requests and their completions, hostile ones included.

use super::*;

fn descriptor_of(octets: &[u8]) -> (u32, u64, u32) {
    let d = DataDescriptor::decode(octets.try_into().unwrap());
    (d.stag.0, d.offset.0, d.len.0)
}

//= test kbtp-5.1-header-layout
//= test kbtp-6.5-completion-by-send
#[test]
fn a_load_ends_with_its_completion_and_not_before() {
    let mut rig = Rig::open();
    let request = Request::Load {
        handle: Handle(103),
        generation: Generation::new(5),
        into: buffer(0xb0f, BLOCK),
        allow_unsealed: true,
        invalidate: false,
    };
    let op = rig.initiator.submit(request, 42, NEVER).unwrap();
    let (header, body, tail) = rig.message();
    assert_eq!(header.opcode, Opcode::Load.to_wire());
    assert_eq!(header.flags, RequestFlags::ALLOW_UNSEALED);
    assert_eq!((header.handle, header.status), (Handle(103), 0));
    assert_eq!(header.generation, Generation::new(5));
    assert_eq!(descriptor_of(&body), (0xb0f, 0x1000, BLOCK));
    assert_eq!(tail, None);
    assert!(rig.finished().is_empty());
    rig.receive(&ok(&header, 5, 100, 0x8000)).unwrap();
    let finished = rig.finished();
    assert_eq!(finished.len(), 1);
    assert_eq!((finished[0].op, finished[0].token), (op, 42));
    let done = finished[0].result.unwrap();
    assert_eq!((done.len, done.block), (ByteLen(100), BlockOffset(0x8000)));
    assert_eq!(rig.initiator.free_credits(), u32::from(CREDITS));
}

//= test kbtp-5.2-inline-descriptor-zero
#[test]
fn inline_data_follows_and_its_buffer_comes_back_when_it_is_sent() {
    let mut rig = Rig::open();
    let data = buffer(3, 64);
    let request = Request::AllocStore {
        handle: Handle(100),
        from: Source::Inline(data),
        seal: true,
    };
    rig.initiator.submit(request, 0, NEVER).unwrap();
    let (header, body, tail) = rig.message();
    assert_eq!(header.opcode, Opcode::AllocStore.to_wire());
    assert_eq!(header.flags, RequestFlags::INLINE.union(RequestFlags::SEAL));
    assert_eq!(descriptor_of(&body), (0, 0, 64));
    assert_eq!(tail, Some(data));
    // A completion that outruns the Send does not give the buffer back while it is being sent from.
    rig.receive(&ok(&header, 1, 64, 0)).unwrap();
    assert!(rig.finished().is_empty());
    let again = rig.receive(&ok(&header, 1, 64, 0));
    assert!(matches!(
        again,
        Err(SessionError::Peer(PeerError::NotOutstanding { .. }))
    ));

    let mut rig = Rig::open();
    rig.initiator.submit(request, 0, NEVER).unwrap();
    let (header, ..) = rig.message();
    rig.receive(&ok(&header, 1, 64, 0)).unwrap();
    rig.done(WorkOutcome::Sent).unwrap();
    assert_eq!(rig.result().unwrap().len, ByteLen(64));
    assert_eq!(rig.initiator.usage().bound, 1);
}

#[test]
fn store_and_free_say_what_they_are() {
    let mut rig = Rig::open();
    let from = Source::Read {
        from: buffer(4, BLOCK),
        invalidate: true,
    };
    let store = Request::Store {
        handle: Handle(101),
        generation: Generation::new(2),
        from,
        seal: false,
    };
    rig.initiator.submit(store, 1, NEVER).unwrap();
    let free = Request::Free {
        handle: Handle(102),
        generation: Generation::new(9),
    };
    rig.initiator.submit(free, 2, NEVER).unwrap();
    let (store, body, _) = rig.message();
    assert_eq!(store.opcode, Opcode::Store.to_wire());
    assert_eq!(store.flags, RequestFlags::INVALIDATE);
    assert_eq!(descriptor_of(&body), (4, 0x1000, BLOCK));
    let (free, body, _) = rig.message();
    assert_eq!(
        (free.opcode, free.flags),
        (Opcode::Free.to_wire(), RequestFlags::NONE)
    );
    assert!(body.is_empty());
    assert_ne!(store.request_id, free.request_id);
    // Completions come in any order, and a free has a new Generation.
    rig.receive(&ok(&free, 10, 0, 0)).unwrap();
    rig.initiator
        .handle_received(&ok(&store, 2, 0, 0), Some(Stag(4)))
        .unwrap();
    let finished = rig.finished();
    assert_eq!((finished[0].token, finished[1].token), (2, 1));
    assert_eq!(
        (finished[0].invalidated, finished[1].invalidated),
        (false, true)
    );
    assert_eq!(finished[0].result.unwrap().generation.get(), 10);
}

#[test]
fn a_status_is_reported_with_what_it_carries() {
    let mut rig = Rig::open();
    rig.initiator.submit(load(100), 0, NEVER).unwrap();
    let (header, ..) = rig.message();
    let completion = Completion {
        data_len: ByteLen(9999),
        ..Completion::failed(
            header.request_id,
            header.handle,
            Generation::new(3),
            Status::LengthError,
        )
    };
    rig.receive(&completion.encode()).unwrap();
    assert_eq!(
        rig.result(),
        Err(Failure::Status {
            status: Status::LengthError,
            generation: Generation::new(3),
            len: ByteLen(9999),
        })
    );
}

//= test kbtp-p7-over-credits-ends-session
#[test]
fn no_more_requests_than_credits_go_out() {
    let mut rig = Rig::open();
    for n in 0..CREDITS {
        rig.initiator
            .submit(load(100), u64::from(n), NEVER)
            .unwrap();
    }
    let busy = SubmitError::Busy {
        limit: u32::from(CREDITS),
    };
    assert_eq!(rig.initiator.submit(load(100), 9, NEVER), Err(busy));
    let (header, ..) = rig.message();
    rig.receive(&failed(&header, 0, Status::NotValid)).unwrap();
    rig.result().unwrap_err();
    rig.initiator.submit(load(100), 9, NEVER).unwrap();
    let sent = 1 + rig.post().len();
    assert_eq!(sent, usize::from(CREDITS) + 1);
}

//= test kbtp-3.4-quota-not-exceeded
#[test]
fn allocations_stay_within_the_quota() {
    let mut rig = Rig::granted(Grant {
        quota: 2,
        ..grant()
    });
    let alloc = |n: u64| Request::AllocStore {
        handle: Handle(100 + n),
        from: Source::Inline(buffer(1, 0)),
        seal: true,
    };
    rig.initiator.submit(alloc(0), 0, NEVER).unwrap();
    rig.initiator.submit(alloc(1), 1, NEVER).unwrap();
    let over = SubmitError::Quota { quota: 2 };
    assert_eq!(rig.initiator.submit(alloc(2), 2, NEVER), Err(over));
    let (first, ..) = rig.message();
    let (second, ..) = rig.message();
    rig.receive(&ok(&first, 1, 0, 0)).unwrap();
    rig.receive(&failed(&second, 1, Status::AlreadyValid))
        .unwrap();
    assert_eq!(rig.initiator.usage().at_most(), 1);
    rig.initiator.submit(alloc(2), 2, NEVER).unwrap();
    let free = Request::Free {
        handle: Handle(100),
        generation: None,
    };
    rig.initiator.submit(free, 3, NEVER).unwrap();
    let (_, _, _) = rig.message();
    let (header, ..) = rig.message();
    rig.receive(&ok(&header, 2, 0, 0)).unwrap();
    assert_eq!(
        rig.initiator.usage(),
        Usage {
            bound: 0,
            unsure: 0,
            pending: 1
        }
    );
}

#[test]
fn too_much_inline_data_is_not_sent() {
    let mut rig = Rig::open();
    let request = Request::AllocStore {
        handle: Handle(100),
        from: Source::Inline(buffer(1, 65)),
        seal: true,
    };
    assert!(matches!(
        rig.initiator.submit(request, 0, NEVER),
        Err(SubmitError::TooLong {
            limit: ByteLen(64),
            ..
        })
    ));
    assert!(rig.post().is_empty());
}

/// A session with one load posted, and one queued behind it.
fn outstanding() -> (Rig, Header) {
    let mut rig = Rig::open();
    let request = Request::Load {
        handle: Handle(100),
        generation: Generation::new(5),
        into: buffer(1, 512),
        allow_unsealed: false,
        invalidate: false,
    };
    rig.initiator.submit(request, 0, NEVER).unwrap();
    let (header, ..) = rig.message();
    (rig, header)
}

/// Messages that are not the completion of `good`.
fn bad_completions(good: Header) -> Vec<(&'static str, Vec<u8>)> {
    let octets = ok(&good, 5, 512, 0);
    let with = |at: usize, value: u8| {
        let mut message = octets.clone();
        message[at] = value;
        message
    };
    let id = |id: u64| {
        let other = Header {
            request_id: RequestId(id),
            ..good
        };
        ok(&other, 5, 512, 0)
    };
    let other_handle = Header {
        handle: Handle(101),
        ..good
    };
    vec![
        ("short", octets[..39].to_vec()),
        ("long", [octets.clone(), vec![0]].concat()),
        ("empty", vec![]),
        ("version", with(0, 2)),
        ("opcode", with(1, 3)),
        ("hello ack", ack(good.request_id, grant())),
        ("flags", with(3, 1)),
        ("status", with(23, 200)),
        ("reserved", with(31, 1)),
        ("later id", id(good.request_id.0 + (1 << 16))),
        ("idle slot", id(good.request_id.0 ^ 1)),
        ("no slot", id(good.request_id.0 | 0xfff0)),
        ("hello's id", id(Initiator::HELLO_ID.0)),
        ("handle", ok(&other_handle, 5, 512, 0)),
        ("too long for the buffer", ok(&good, 5, 513, 0)),
        ("another generation", ok(&good, 6, 512, 0)),
        ("no generation", ok(&good, 0, 512, 0)),
    ]
}

#[test]
fn a_completion_that_breaks_a_rule_ends_the_session_and_matches_nothing() {
    let (_, good) = outstanding();
    for (what, message) in bad_completions(good) {
        let (mut rig, _) = outstanding();
        let result = rig.receive(&message);
        assert!(
            matches!(result, Err(SessionError::Peer(_))),
            "{what}: {result:?}"
        );
        assert!(rig.finished().is_empty(), "{what}");
        // What comes after does not count, the right answer included.
        rig.receive(&ok(&good, 5, 512, 0)).unwrap();
        assert!(rig.finished().is_empty(), "{what}");
        rig.initiator.handle_closed();
        assert_eq!(rig.result(), Err(Failure::Lost { sent: true }), "{what}");
        rig.initiator.handle_closed();
        assert!(rig.finished().is_empty(), "{what}");
    }
}

#[test]
fn a_completion_comes_once() {
    let (mut rig, header) = outstanding();
    rig.receive(&ok(&header, 5, 0, 0)).unwrap();
    rig.result().unwrap();
    assert!(rig.receive(&ok(&header, 5, 0, 0)).is_err());
}

#[test]
fn a_completion_of_a_request_that_is_not_sent_yet_ends_the_session() {
    let mut rig = Rig::open();
    let op = rig.initiator.submit(load(100), 0, NEVER).unwrap();
    let header = Header::request(
        Opcode::Load,
        RequestFlags::NONE,
        RequestId(op.0),
        Handle(100),
        None,
    );
    assert!(rig.receive(&ok(&header, 1, 0, 0)).is_err());
    rig.initiator.handle_closed();
    assert_eq!(rig.result(), Err(Failure::Lost { sent: false }));
}

#[test]
fn what_was_not_asked_for_ends_the_session() {
    let (mut rig, header) = outstanding();
    let invalidating = rig
        .initiator
        .handle_received(&ok(&header, 5, 0, 0), Some(Stag(1)));
    assert!(matches!(
        invalidating,
        Err(SessionError::Peer(PeerError::Invalidated { stag: Stag(1) }))
    ));
    let (mut rig, _) = outstanding();
    assert!(rig.initiator.handle_immediate(7).is_err());
    assert!(!rig.initiator.is_open());
}

#[test]
fn a_deadline_gives_up_and_the_credit_waits_for_the_peer() {
    let mut rig = Rig::open();
    rig.initiator
        .submit(load(100), 1, NOW.after_ms(10))
        .unwrap();
    rig.initiator
        .submit(load(101), 2, NOW.after_ms(20))
        .unwrap();
    let (header, ..) = rig.message();
    assert_eq!(rig.initiator.timeout(), Some(NOW.after_ms(10)));
    rig.after_ms(9);
    assert!(rig.finished().is_empty());
    rig.after_ms(1);
    let gone = Failure::GivenUp {
        sent: true,
        deadline: true,
    };
    assert_eq!(rig.result(), Err(gone));
    assert_eq!(rig.initiator.timeout(), Some(NOW.after_ms(20)));
    assert_eq!(rig.initiator.free_credits(), u32::from(CREDITS) - 2);
    // The second was never posted: it is over at once, and never goes out.
    rig.after_ms(10);
    let unsent = Failure::GivenUp {
        sent: false,
        deadline: true,
    };
    assert_eq!(rig.result(), Err(unsent));
    assert!(rig.post().is_empty());
    assert_eq!(rig.initiator.free_credits(), u32::from(CREDITS) - 1);
    assert_eq!(rig.initiator.poll_released(), Some(Stag(1)));
    assert_eq!(rig.initiator.poll_released(), None);
    // The late answer is no error, and is not reported again. Only now is the target done with the buffer.
    rig.receive(&ok(&header, 1, 0, 0)).unwrap();
    assert!(rig.finished().is_empty());
    assert_eq!(rig.initiator.free_credits(), u32::from(CREDITS));
    assert_eq!(rig.initiator.timeout(), None);
    assert_eq!(rig.initiator.poll_released(), Some(Stag(1)));
}

#[test]
fn giving_up_is_for_operations_in_flight() {
    let mut rig = Rig::open();
    let op = rig.initiator.submit(load(100), 1, NEVER).unwrap();
    let (header, ..) = rig.message();
    assert!(rig.initiator.give_up(op));
    assert!(!rig.initiator.give_up(op));
    let gone = Failure::GivenUp {
        sent: true,
        deadline: false,
    };
    assert_eq!(rig.result(), Err(gone));
    rig.receive(&ok(&header, 1, 0, 0)).unwrap();
    let second = rig.initiator.submit(load(100), 2, NEVER).unwrap();
    assert!(!rig.initiator.give_up(op), "its slot is another's now");
    assert!(rig.initiator.give_up(second));
}

#[test]
fn an_allocation_given_up_still_counts_if_it_succeeds() {
    let mut rig = Rig::open();
    let request = Request::AllocStore {
        handle: Handle(100),
        from: Source::Inline(buffer(1, 0)),
        seal: true,
    };
    let op = rig.initiator.submit(request, 0, NEVER).unwrap();
    let (header, ..) = rig.message();
    rig.initiator.give_up(op);
    assert_eq!(
        rig.initiator.usage(),
        Usage {
            pending: 1,
            ..Usage::default()
        }
    );
    rig.receive(&ok(&header, 1, 0, 0)).unwrap();
    assert_eq!(
        rig.initiator.usage(),
        Usage {
            bound: 1,
            ..Usage::default()
        }
    );
}

/// Once each handle in doubt was freed, or said not to be bound, the whole quota is there again; and what was said of
/// other handles changes nothing.
#[test]
fn what_was_in_doubt_is_settled_by_a_free_whatever_its_answer() {
    let mut rig = Rig::open();
    let (one, two, three) = (Handle(100), Handle(101), Handle(102));
    let alloc = |handle| Request::AllocStore {
        handle,
        from: Source::Inline(buffer(1, 0)),
        seal: true,
    };
    let free = |handle| Request::Free {
        handle,
        generation: None,
    };
    let answer = |rig: &mut Rig, request, status: Status| {
        rig.initiator.submit(request, 0, NEVER).unwrap();
        let (header, ..) = rig.message();
        let message = match status {
            Status::Ok => ok(&header, 1, 0, 0),
            status => failed(&header, 1, status),
        };
        rig.receive(&message).unwrap();
        rig.finished();
        let usage = rig.initiator.usage();
        (usage.bound, usage.unsure)
    };
    assert_eq!(answer(&mut rig, alloc(one), Status::Ok), (1, 0));
    rig.initiator.submit(alloc(two), 0, NEVER).unwrap();
    rig.initiator.submit(free(one), 0, NEVER).unwrap();
    rig.post();
    rig.initiator.handle_closed();
    let before = rig.initiator;
    assert_eq!((before.usage().bound, before.usage().unsure), (0, 2));
    let mut rig = Rig::open();
    rig.initiator.inherit_usage(&before);
    // Nobody was in doubt of this one.
    assert_eq!(answer(&mut rig, free(three), Status::NotValid), (0, 2));
    assert_eq!(answer(&mut rig, free(two), Status::NotValid), (0, 1));
    assert_eq!(answer(&mut rig, free(two), Status::NotValid), (0, 1));
    assert_eq!(answer(&mut rig, alloc(two), Status::Ok), (1, 1));
    assert_eq!(answer(&mut rig, free(one), Status::Ok), (1, 0));
    assert_eq!(answer(&mut rig, free(one), Status::NotValid), (1, 0));
    // What was bound for certain may have gone with its lease.
    assert_eq!(answer(&mut rig, free(two), Status::NotValid), (0, 0));
    // An allocation that works settles what was in doubt of its handle.
    rig.initiator.submit(alloc(three), 0, NEVER).unwrap();
    rig.post();
    rig.initiator.handle_closed();
    let before = rig.initiator;
    let mut rig = Rig::open();
    rig.initiator.inherit_usage(&before);
    assert_eq!(answer(&mut rig, alloc(three), Status::Ok), (1, 0));
}

#[test]
fn what_a_lost_stream_leaves_is_counted_as_unsure() {
    let mut rig = Rig::open();
    rig.initiator.set_usage(3, 0);
    let alloc = Request::AllocStore {
        handle: Handle(100),
        from: Source::Inline(buffer(1, 0)),
        seal: true,
    };
    let free = Request::Free {
        handle: Handle(101),
        generation: None,
    };
    rig.initiator.submit(alloc, 0, NEVER).unwrap();
    rig.initiator.submit(free, 1, NEVER).unwrap();
    rig.post();
    rig.initiator.submit(alloc, 2, NEVER).unwrap();
    rig.initiator.handle_closed();
    let sent: Vec<_> = rig.finished().iter().map(|f| f.result).collect();
    let lost = |sent| Err(Failure::Lost { sent });
    assert_eq!(sent, [lost(true), lost(true), lost(false)]);
    // At least two of the three are bound still, and the free and the first allocation are in doubt.
    assert_eq!(
        rig.initiator.usage(),
        Usage {
            bound: 2,
            unsure: 2,
            pending: 0
        }
    );
}
