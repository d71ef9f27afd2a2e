//! How a stream ends.

use super::flow::*;
use super::*;
use crate::limits;
use kbtp_fabric::{CloseReason, PostError, StreamError, WorkId, WorkOutcome, WorkRequest};

#[test]
fn closing_in_order_lets_everything_out() {
    //= test rfc5041-6.2.1-all-sent-before-close
    //= test rfc5041-6.2.1-no-transfer-after-close
    let mut pair = Pair::default();
    let mine = region(1 << 20);
    let theirs = region(1 << 20);
    let octets = pattern(&theirs, 8);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 1 << 20),
        remote: remote(their_stag, 0),
    };
    pair.a.post(WorkId(1), &read, true).unwrap();
    pair.a.post(WorkId(2), &send(b"last words"), true).unwrap();
    pair.a.close(CloseReason::Graceful);
    assert!(matches!(
        pair.a.post(WorkId(3), &send(b"too late"), true),
        Err(PostError::Closed)
    ));
    assert!(pair.a.take_error().is_none());
    pair.settle();
    assert_eq!(
        events(&mut pair.a),
        [done(1, WorkOutcome::Read), done(2, WorkOutcome::Sent)]
    );
    assert_eq!(contents(&mine), octets);
    let Some(Event::Received { slot, .. }) = pair.b.next_event() else {
        panic!("the last words");
    };
    assert!(pair.b.next_event().is_none());
    // As long as it holds them it may answer.
    pair.b.release(slot);
    pair.settle();
    assert!(matches!(pair.a.take_error(), Some(StreamError::ClosedHere)));
    assert!(matches!(pair.b.take_error(), Some(StreamError::PeerClosed)));
}

#[test]
fn a_peer_that_closes_too_cuts_nothing_off() {
    let mut pair = Pair::default();
    let mine = region(1 << 20);
    let theirs = region(1 << 20);
    let octets = pattern(&mine, 3);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let write = WorkRequest::Write {
        local: local(my_stag, 0, 1 << 20),
        remote: remote(their_stag, 0),
        immediate: None,
    };
    pair.a.post(WorkId(1), &write, true).unwrap();
    pair.a.post(WorkId(2), &send(b"last words"), true).unwrap();
    pair.a.close(CloseReason::Graceful);
    pair.b.close(CloseReason::Graceful);
    // The peer has nothing to send, so that its end comes before all this party sends has gone.
    pair.settle();
    assert_eq!(
        events(&mut pair.a),
        [done(1, WorkOutcome::Sent), done(2, WorkOutcome::Sent)]
    );
    assert_eq!(contents(&theirs), octets);
    assert!(matches!(events(&mut pair.b)[..], [Event::Received { .. }]));
    assert!(pair.a.take_error().is_some());
    assert!(matches!(pair.b.take_error(), Some(StreamError::ClosedHere)));
}

/// The peer ends its sending and goes on reading: it gets the answers to all it has asked for.
#[test]
fn a_peer_that_has_said_its_last_word_is_answered() {
    //= test rfc5044-7.2-end-told
    //= test rfc5041-6.2.1-half-closed
    let mut pair = Pair::default();
    let mine = region(1 << 20);
    let theirs = region(1 << 20);
    let octets = pattern(&mine, 3);
    let my_stag = register(&mut pair.b, &mine, 0, Access::LOCAL_READ);
    let their_stag = register(&mut pair.a, &theirs, 0, ALL_ACCESS);
    for id in 0..3 {
        pair.a.post(WorkId(id), &send(b"asks"), false).unwrap();
    }
    pair.a.close(CloseReason::Graceful);
    pair.settle();
    assert!(!pair.b.is_ended(), "three messages are held");
    let slots: Vec<_> = events(&mut pair.b)
        .into_iter()
        .map(|event| match event {
            Event::Received { slot, .. } => slot,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(slots.len(), 3);
    for (id, slot) in (0..).zip(slots) {
        // While it looks at a message nothing ends, however often the stream is looked at.
        pair.settle();
        let write = WorkRequest::Write {
            local: local(my_stag, 0, 1 << 20),
            remote: remote(their_stag, 0),
            immediate: None,
        };
        pair.b.release(slot);
        pair.b.post(WorkId(id), &write, true).unwrap();
        pair.b.post(WorkId(id), &send(b"answer"), true).unwrap();
        pair.settle();
        let sent = [done(id, WorkOutcome::Sent), done(id, WorkOutcome::Sent)];
        assert_eq!(events(&mut pair.b), sent);
    }
    assert_eq!(contents(&theirs), octets);
    assert_eq!(events(&mut pair.a).len(), 3);
    assert!(matches!(pair.b.take_error(), Some(StreamError::PeerClosed)));
    assert!(matches!(pair.a.take_error(), Some(StreamError::ClosedHere)));
}

/// A peer that has ended its sending and takes nothing does not hold the stream.
#[test]
fn a_peer_that_has_said_its_last_word_is_not_waited_for() {
    let mut pair = Pair::default();
    pair.a.post(WorkId(1), &send(b"asks"), false).unwrap();
    pair.a.close(CloseReason::Graceful);
    pair.settle();
    let Some(Event::Received { slot, .. }) = pair.b.next_event() else {
        panic!("a message");
    };
    pair.b.post(WorkId(2), &send(b"answer"), true).unwrap();
    pair.b.release(slot);
    let at = pair.b.next_timeout().unwrap();
    assert_eq!(at, Time(limits::DEFAULT_CLOSE_TIMEOUT_MS * 1_000_000));
    pair.b.handle_timeout(at);
    assert_eq!(events(&mut pair.b), [done(2, WorkOutcome::Flushed)]);
    assert!(matches!(pair.b.take_error(), Some(StreamError::PeerClosed)));
}

/// There is nothing to say to its last message: the end comes with the next look at the timers.
#[test]
fn a_last_word_without_an_answer_is_the_end() {
    let mut pair = Pair::default();
    pair.a.post(WorkId(1), &send(b"asks"), false).unwrap();
    pair.a.close(CloseReason::Graceful);
    pair.settle();
    let Some(Event::Received { slot, .. }) = pair.b.next_event() else {
        panic!("a message");
    };
    pair.b.release(slot);
    let at = pair.b.next_timeout().unwrap();
    assert!(at <= pair.now);
    pair.b.handle_timeout(pair.now);
    assert!(matches!(pair.b.take_error(), Some(StreamError::PeerClosed)));
    assert_eq!(actions(&mut pair.b), [Action::Close]);
}

/// Nothing that needs an answer can be asked of it any more, and what stands before that still goes out.
#[test]
fn a_peer_that_has_said_its_last_word_is_not_read_from() {
    //= test rfc5041-6.2.1-close-other-half
    let mut pair = Pair::default();
    let mine = region(64);
    let my_stag = register(&mut pair.b, &mine, 0, Access::LOCAL);
    pair.a.post(WorkId(1), &send(b"asks"), false).unwrap();
    pair.a.close(CloseReason::Graceful);
    pair.settle();
    pair.b.post(WorkId(2), &send(b"answer"), true).unwrap();
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 64),
        remote: remote(Stag(7), 0),
    };
    assert!(matches!(
        pair.b.post(WorkId(3), &read, true),
        Err(PostError::Closed)
    ));
    pair.settle();
    assert!(matches!(
        events(&mut pair.b)[..],
        [
            Event::Received { .. },
            Event::Done {
                id: WorkId(2),
                outcome: WorkOutcome::Sent
            }
        ]
    ));
    assert!(matches!(events(&mut pair.a)[..], [Event::Received { .. }]));
    assert!(pair.b.is_ended());
}

#[test]
fn a_peer_that_closed_is_asked_for_nothing_more() {
    let mut pair = Pair::default();
    let mine = region(4096);
    let theirs = region(4096);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 4096),
        remote: remote(their_stag, 0),
    };
    pair.a.post(WorkId(1), &read, true).unwrap();
    pair.a.close(CloseReason::Graceful);
    pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    pair.a.handle_end(pair.now);
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Flushed)]);
    assert!(pair.a.is_ended());
}

#[test]
fn closing_in_order_waits_for_what_still_comes_in() {
    //= test rfc5041-6.2.1-inbound-after-own-end
    let mut pair = Pair::default();
    let mine = region(1 << 20);
    let theirs = region(1 << 20);
    let octets = pattern(&theirs, 8);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 1 << 20),
        remote: remote(their_stag, 0),
    };
    pair.a.post(WorkId(1), &read, true).unwrap();
    pair.a.close(CloseReason::Graceful);
    // A slow path: the answer takes several times as long as a peer that says nothing is waited for.
    while pair.step(64 << 10) {
        pair.now = pair.now.after_ms(limits::DEFAULT_CLOSE_TIMEOUT_MS - 1);
        pair.a.handle_timeout(pair.now);
    }
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Read)]);
    assert_eq!(contents(&mine), octets);
    assert!(matches!(pair.a.take_error(), Some(StreamError::ClosedHere)));
}

#[test]
fn closing_in_order_lasts_as_long_as_something_goes_out() {
    //= test rfc5041-6.2.1-all-sent-before-close
    let mut pair = Pair::default();
    let mine = region(1 << 20);
    let theirs = region(1 << 20);
    let octets = pattern(&mine, 8);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let write = WorkRequest::Write {
        local: local(my_stag, 0, 1 << 20),
        remote: remote(their_stag, 0),
        immediate: None,
    };
    pair.a.post(WorkId(1), &write, true).unwrap();
    pair.a.close(CloseReason::Graceful);
    // A slow path, one way: the peer says nothing all the while.
    loop {
        let part = pair.wire.pull(&mut pair.a, 64 << 10, pair.now);
        if part.is_empty() {
            break;
        }
        pair.wire.push(&mut pair.b, &part, pair.now);
        pair.now = pair.now.after_ms(limits::DEFAULT_CLOSE_TIMEOUT_MS - 1);
        pair.a.handle_timeout(pair.now);
    }
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Sent)]);
    assert_eq!(contents(&theirs), octets);
    pair.settle();
    assert!(matches!(pair.a.take_error(), Some(StreamError::ClosedHere)));
}

#[test]
fn closing_in_order_does_not_last_if_nothing_goes_out() {
    let mut pair = Pair::default();
    pair.a.post(WorkId(1), &send(b"stuck"), true).unwrap();
    pair.a.close(CloseReason::Graceful);
    let timeout = limits::DEFAULT_CLOSE_TIMEOUT_MS;
    pair.a.send_vec(pair.now);
    pair.now = pair.now.after_ms(timeout - 1);
    // A socket that takes nothing.
    pair.a.handle_sent(0, pair.now);
    pair.a.handle_timeout(pair.now);
    assert!(!pair.a.is_ended());
    pair.now = pair.now.after_ms(1);
    pair.a.handle_timeout(pair.now);
    assert!(pair.a.is_ended());
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Flushed)]);
}

#[test]
fn closing_in_order_waits_for_no_peer_that_only_talks() {
    let mut pair = Pair::default();
    let mine = region(4096);
    let theirs = region(4096);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let read = WorkRequest::Read {
        local: local(my_stag, 0, 4096),
        remote: remote(their_stag, 0),
    };
    pair.a.post(WorkId(1), &read, true).unwrap();
    pair.a.close(CloseReason::Graceful);
    // The request is lost on its way; other messages keep coming.
    pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    for _ in 0..8 {
        pair.b.post(WorkId(1), &send(b"still here"), false).unwrap();
        let octets = pair.wire.pull(&mut pair.b, usize::MAX, pair.now);
        if pair.a.is_ended() {
            break;
        }
        pair.wire.push(&mut pair.a, &octets, pair.now);
        pair.now = pair.now.after_ms(limits::DEFAULT_CLOSE_TIMEOUT_MS - 1);
        pair.a.handle_timeout(pair.now);
    }
    assert!(pair.a.is_ended());
}

#[test]
fn an_idle_stream_closes_at_once() {
    let mut pair = Pair::default();
    pair.a.close(CloseReason::Graceful);
    assert_eq!(actions(&mut pair.a), [Action::EndSending]);
    assert!(!pair.a.is_ended());
    // A peer that never answers is given up.
    let at = pair.a.next_timeout().unwrap();
    assert_eq!(at, Time(limits::DEFAULT_CLOSE_TIMEOUT_MS * 1_000_000));
    pair.a.handle_timeout(at);
    assert_eq!(actions(&mut pair.a), [Action::Close]);
    assert!(matches!(pair.a.take_error(), Some(StreamError::ClosedHere)));
}

#[test]
fn an_abort_flushes_what_is_posted() {
    //= test rfc5040-6.2.1-outstanding-in-error
    let mut pair = Pair::default();
    pair.a.post(WorkId(1), &send(b"x"), false).unwrap();
    pair.a.post(WorkId(2), &send(b"y"), true).unwrap();
    pair.a.close(CloseReason::Abort);
    assert!(pair.a.send_vec(pair.now).is_empty());
    assert_eq!(
        events(&mut pair.a),
        [done(1, WorkOutcome::Flushed), done(2, WorkOutcome::Flushed)]
    );
    assert_eq!(actions(&mut pair.a), [Action::Close]);
    assert!(matches!(pair.a.take_error(), Some(StreamError::ClosedHere)));
}

#[test]
fn a_broken_connection_is_the_end() {
    //= test rfc5040-6.2.1-outstanding-in-error
    //= test rfc5041-6.2.2-outstanding-in-error
    //= test rfc5041-7-errors-passed-up
    let mut pair = Pair::default();
    pair.a.post(WorkId(1), &send(b"x"), true).unwrap();
    pair.a
        .handle_broken(std::io::ErrorKind::ConnectionReset.into());
    assert!(matches!(
        pair.a.take_error(),
        Some(StreamError::Connection { .. })
    ));
    assert_eq!(events(&mut pair.a), [done(1, WorkOutcome::Flushed)]);
}

#[test]
fn an_end_in_the_middle_of_a_message_is_an_error() {
    //= test rfc5044-8-errors-detected
    for keep in [1, 19, 40] {
        let mut pair = Pair::default();
        pair.a.post(WorkId(1), &send(&[7; 64]), true).unwrap();
        let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
        pair.wire.push(&mut pair.b, &octets[..keep], pair.now);
        pair.b.handle_end(pair.now);
        assert!(matches!(
            pair.b.take_error(),
            Some(StreamError::Protocol { reason }) if reason.contains("middle")
        ));
    }
}

#[test]
fn an_end_in_the_middle_of_a_write_is_an_error() {
    let config = Config {
        max_ulpdu: 128,
        ..Config::default()
    };
    let mut pair = Pair::established(&config, &config);
    let mine = region(4096);
    let theirs = region(4096);
    let my_stag = register(&mut pair.a, &mine, 0, Access::LOCAL_READ);
    let their_stag = register(&mut pair.b, &theirs, 0, ALL_ACCESS);
    let write = WorkRequest::Write {
        local: local(my_stag, 0, 4096),
        remote: remote(their_stag, 0),
        immediate: None,
    };
    pair.a.post(WorkId(1), &write, true).unwrap();
    let octets = pair.wire.pull(&mut pair.a, usize::MAX, pair.now);
    // Two whole FPDUs of it.
    let two = 2 * (ulpdus(&octets)[0].len() + 6 + 2);
    pair.wire.push(&mut pair.b, &octets[..two], pair.now);
    pair.b.handle_end(pair.now);
    assert!(matches!(
        pair.b.take_error(),
        Some(StreamError::Protocol { reason }) if reason.contains("middle")
    ));
}
