//! How streams end.

use super::{End, Pair, Patience, V4, listen, meet, octets, pattern, same};
use kbtp_fabric::{
    CloseReason, PostError, Stream as _, StreamError, WorkId, WorkOutcome, WorkRequest,
};
use kbtp_iwarp_tcp::StreamOptions;

fn send(text: &[u8]) -> WorkRequest<'_> {
    WorkRequest::Send {
        head: text,
        tail: None,
        solicited: false,
        invalidate: None,
    }
}

#[test]
fn a_graceful_close_brings_out_what_was_posted() {
    let mut pair = Pair::plain(4 << 20);
    let data = pattern(3, 3 << 20);
    pair.a.region.write(0, &data).unwrap();
    let write = WorkRequest::Write {
        local: pair.a.local(0, data.len()),
        remote: pair.b.remote(0),
        immediate: None,
    };
    pair.a.post(1, &write);
    pair.a.post(2, &send(b"last words"));
    pair.a.close(CloseReason::Graceful);
    assert!(matches!(
        pair.a.stream.post(WorkId(3), &send(b"too late"), true),
        Err(PostError::Closed)
    ));
    pair.until(|a, b| a.error.is_some() && b.error.is_some());
    assert!(
        matches!(pair.a.error, Some(StreamError::ClosedHere)),
        "{:?}",
        pair.a.error
    );
    assert!(
        matches!(pair.b.error, Some(StreamError::PeerClosed)),
        "{:?}",
        pair.b.error
    );
    assert_eq!(pair.a.outcome(1), Some(WorkOutcome::Sent));
    assert_eq!(pair.a.outcome(2), Some(WorkOutcome::Sent));
    assert_eq!(pair.b.messages(), [b"last words"]);
    assert!(octets(&pair.b.region, 0, data.len()) == data);
}

#[test]
fn both_may_close_at_once() {
    let mut pair = Pair::plain(4096);
    pair.a.post(1, &send(b"from a"));
    pair.b.post(1, &send(b"from b"));
    pair.a.close(CloseReason::Graceful);
    pair.b.close(CloseReason::Graceful);
    pair.until(|a, b| a.error.is_some() && b.error.is_some());
    assert_eq!(pair.a.messages(), [b"from b"]);
    assert_eq!(pair.b.messages(), [b"from a"]);
}

#[test]
fn an_ended_stream_reports_it_once_and_waits_for_nothing() {
    let mut pair = Pair::plain(4096);
    pair.a.close(CloseReason::Graceful);
    pair.until(|a, b| a.error.is_some() && b.error.is_some());
    let now = Patience::new().now();
    for end in [&mut pair.a, &mut pair.b] {
        assert!(matches!(end.stream.progress(now), Ok(false)));
        let readiness = end.stream.readiness();
        assert!(!readiness.read && !readiness.write && readiness.at.is_none());
        assert_eq!(end.stream.next_event(), None);
    }
}

#[test]
fn a_peer_that_does_not_end_its_side_is_waited_for_no_longer_than_allowed() {
    let mut options = StreamOptions::default();
    options.rdma.close_timeout_ms = 50;
    let mut pair = Pair::new(4096, V4, options, StreamOptions::default());
    pair.a.close(CloseReason::Graceful);
    // B does nothing at all.
    let patience = Patience::new();
    while pair.a.error.is_none() {
        pair.a.progress(patience.now());
    }
    assert!(!pair.a.stream.readiness().read);
}

#[test]
fn an_abort_resets_the_connection_and_flushes_both_ends() {
    let mut pair = Pair::plain(32 << 20);
    // More than the sockets hold, so that it is surely under way.
    let write = WorkRequest::Write {
        local: pair.a.local(0, 32 << 20),
        remote: pair.b.remote(0),
        immediate: None,
    };
    pair.a.post(1, &write);
    let read = WorkRequest::Read {
        local: pair.b.local(0, 4096),
        remote: pair.a.remote(0),
    };
    pair.b.post(7, &read);
    pair.until(|a, b| {
        a.stream.traffic().sent_octets > 1 << 20 && b.stream.traffic().received_octets > 1 << 20
    });
    let Pair { mut a, mut b, .. } = pair;
    a.close(CloseReason::Abort);
    let patience = Patience::new();
    while a.error.is_none() {
        a.progress(patience.now());
    }
    assert!(
        matches!(a.error, Some(StreamError::ClosedHere)),
        "{:?}",
        a.error
    );
    assert_eq!(a.outcome(1), Some(WorkOutcome::Flushed));
    drop(a);
    while b.error.is_none() {
        b.progress(patience.now());
    }
    b.progress(patience.now());
    assert!(
        matches!(&b.error, Some(StreamError::Connection { source })
            if source.kind() == std::io::ErrorKind::ConnectionReset),
        "{:?}",
        b.error
    );
    assert_eq!(b.outcome(7), Some(WorkOutcome::Flushed));
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_message_delivers_nothing() {
    let mut pair = Pair::plain(32 << 20);
    let data = pattern(9, 32 << 20);
    pair.a.region.write(0, &data).unwrap();
    let write = WorkRequest::Write {
        local: pair.a.local(0, data.len()),
        remote: pair.b.remote(0),
        immediate: None,
    };
    pair.a.post(1, &write);
    pair.a.post(2, &send(b"done"));
    pair.until(|_, b| b.stream.traffic().received_octets > 4 << 20);
    let Pair { a, mut b, .. } = pair;
    // A process that dies closes its sockets with octets unsent.
    drop(a);
    let patience = Patience::new();
    while b.error.is_none() {
        b.progress(patience.now());
    }
    assert!(b.messages().is_empty());
    assert!(!matches!(b.error, Some(StreamError::ClosedHere)));
    let posted = b.stream.post(WorkId(1), &send(b"anyone?"), true);
    assert!(matches!(posted, Err(PostError::Closed)));
}

#[test]
fn a_peer_that_stalls_is_given_up() {
    let mut options = StreamOptions::default();
    options.tcp.user_timeout_ms = 300;
    let mut listener = listen(V4, StreamOptions::default());
    let (here, there) = meet(&mut listener, same(options));
    let mut a = End::new(here.stream, 64 << 20);
    let b = End::new(there.stream, 64 << 20);
    let write = WorkRequest::Write {
        local: a.local(0, 64 << 20),
        remote: b.remote(0),
        immediate: None,
    };
    a.post(1, &write);
    // B is alive and takes nothing: only A's own limit ends this.
    let mut pair = Pair::of(a, b);
    let patience = Patience::new();
    while pair.a.error.is_none() {
        let now = patience.now();
        if !pair.a.progress(now) {
            let readiness = pair.a.stream.readiness();
            let fd = pair.a.stream.descriptor();
            pair.poller.modify(fd, 0, readiness.into()).unwrap();
            pair.poller.wait(Some(patience.end)).unwrap();
        }
    }
    assert!(
        matches!(&pair.a.error, Some(StreamError::Connection { source })
            if source.kind() == std::io::ErrorKind::TimedOut),
        "{:?}",
        pair.a.error
    );
    assert_eq!(pair.a.outcome(1), Some(WorkOutcome::Flushed));
}

#[test]
fn a_write_to_an_invalid_stag_ends_both_ends_with_a_terminate() {
    let mut pair = Pair::plain(4096);
    let stag = pair.b.stag;
    pair.b.stream.invalidate(stag).unwrap();
    let write = WorkRequest::Write {
        local: pair.a.local(0, 64),
        remote: pair.b.remote(0),
        immediate: None,
    };
    pair.a.post(1, &write);
    pair.until(|a, b| a.error.is_some() && b.error.is_some());
    //= test rfc5040-7.1-terminate-sent
    assert!(
        matches!(pair.b.error, Some(StreamError::Protocol { .. })),
        "{:?}",
        pair.b.error
    );
    assert!(
        matches!(pair.a.error, Some(StreamError::PeerTerminated { .. })),
        "{:?}",
        pair.a.error
    );
}
