//! What a peer can reach through an STag, and what it cannot.

use super::{End, Pair, V4, listen, meet, octets, pattern, same};
use kbtp_fabric::{
    Access, LocalBuffer, RemoteBuffer, Stream as _, StreamError, WorkOutcome, WorkRequest,
};
use kbtp_iwarp_tcp::StreamOptions;
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};

const LEN: u64 = 4096;

const NOTHING: Access = Access::LOCAL_READ;
const READ: Access = Access {
    remote_read: true,
    ..NOTHING
};
const WRITE: Access = Access {
    remote_write: true,
    ..NOTHING
};

/// What a peer may try on a buffer.
#[derive(Clone, Copy, Debug)]
enum Try {
    Write,
    Read,
    Add,
    Invalidate,
}

impl Try {
    fn work(self, local: LocalBuffer, remote: RemoteBuffer) -> WorkRequest<'static> {
        match self {
            Self::Write => WorkRequest::Write {
                local,
                remote,
                immediate: None,
            },
            Self::Read => WorkRequest::Read { local, remote },
            Self::Add => WorkRequest::FetchAdd {
                remote,
                add: 1,
                mask: 0,
            },
            Self::Invalidate => WorkRequest::Send {
                head: b"gone",
                tail: None,
                solicited: false,
                invalidate: Some(remote.stag),
            },
        }
    }
}

/// Registers a buffer of ones in the middle of a region, at Tagged Offset 1000.
fn buffer(end: &mut End, access: Access) -> (Region, Stag) {
    let region = Region::anonymous(3 * LEN, &PageOptions::default()).unwrap();
    region.fill(0, 3 * LEN, 1).unwrap();
    let stag = end
        .stream
        .register(&region, LEN..2 * LEN, TaggedOffset(1000), access)
        .unwrap();
    (region, stag)
}

/// A tries something on B's buffer of `len` octets at Tagged Offset `at`; whether it went well. Either way not an octet
/// outside the buffer changes.
fn try_it(attempt: Try, access: Access, at: u64, len: u32) -> bool {
    let mut pair = Pair::plain(2 * LEN);
    pair.a.region.fill(0, 2 * LEN, 2).unwrap();
    let (region, stag) = buffer(&mut pair.b, access);
    let local = LocalBuffer {
        stag: pair.a.stag,
        offset: TaggedOffset(0),
        len: ByteLen(len),
    };
    let remote = RemoteBuffer {
        stag,
        offset: TaggedOffset(at),
    };
    pair.a.post(1, &attempt.work(local, remote));
    // A second message shows what became of the first.
    let send = WorkRequest::Send {
        head: b"still there?",
        tail: None,
        solicited: false,
        invalidate: None,
    };
    pair.a.post(2, &send);
    let mut heard = false;
    pair.until(|a, b| {
        let answered = !matches!(attempt, Try::Read | Try::Add) || a.outcome(1).is_some();
        heard |= b.messages().iter().any(|m| m == b"still there?");
        (answered && heard) || (a.error.is_some() && b.error.is_some())
    });
    let edge = usize::try_from(LEN).unwrap();
    assert!(octets(&region, 0, edge).iter().all(|octet| *octet == 1));
    assert!(
        octets(&region, 2 * LEN, edge)
            .iter()
            .all(|octet| *octet == 1)
    );
    let refused = matches!(pair.a.error, Some(StreamError::PeerTerminated { .. }));
    assert_eq!(refused, pair.b.error.is_some(), "{:?}", pair.b.error);
    if refused {
        assert!(octets(&region, 0, 3 * edge).iter().all(|octet| *octet == 1));
        assert!(
            octets(&pair.a.region, 0, edge)
                .iter()
                .all(|octet| *octet == 2),
            "leaked"
        );
    }
    !refused
}

#[test]
fn each_right_allows_one_thing() {
    //= test rfc5042-6.3.5-least-rights
    let add = Access {
        remote_atomic: true,
        ..NOTHING
    };
    let invalidate = Access {
        remote_invalidate: true,
        ..NOTHING
    };
    let rights = [WRITE, READ, add, invalidate, NOTHING];
    let attempts = [Try::Write, Try::Read, Try::Add, Try::Invalidate];
    for (right, access) in rights.into_iter().enumerate() {
        for (attempt, what) in attempts.into_iter().enumerate() {
            let done = try_it(what, access, 1000, 8);
            assert_eq!(done, right == attempt, "{what:?} with {access:?}");
        }
    }
}

#[test]
fn nothing_is_reached_beyond_the_ends_of_a_buffer() {
    //= test rfc5042-6.2.1-no-access-outside
    let last = 1000 + LEN - 8;
    for (at, len, inside) in [
        (1000, 8, true),
        (last, 8, true),
        (last + 1, 8, false),
        (999, 8, false),
        (0, 8, false),
        (1000 + LEN, 1, false),
        (u64::MAX, 1, false),
        (u64::MAX - 7, 8, false),
        (1000, u32::try_from(LEN).unwrap() + 1, false),
    ] {
        assert_eq!(
            try_it(Try::Write, WRITE, at, len),
            inside,
            "write {len} at {at}"
        );
        assert_eq!(
            try_it(Try::Read, READ, at, len),
            inside,
            "read {len} at {at}"
        );
    }
}

#[test]
fn an_stag_is_good_on_its_own_stream_and_its_misuse_ends_the_other_alone() {
    //= test rfc5042-6.1.1-stream-scope
    //= test rfc5042-6.4.6-overflow-contained
    let mut listener = listen(V4, StreamOptions::default());
    let mut next = || {
        let (here, there) = meet(&mut listener, same(StreamOptions::default()));
        Pair::of(End::new(here.stream, LEN), End::new(there.stream, LEN))
    };
    let (mut good, mut bad) = (next(), next());
    let write = |pair: &Pair, stag| WorkRequest::Write {
        local: pair.a.local(0, 64),
        remote: RemoteBuffer {
            stag,
            offset: TaggedOffset(0),
        },
        immediate: None,
    };
    let stolen = good.b.stag;
    assert_ne!(stolen, bad.b.stag);
    let theft = write(&bad, stolen);
    bad.a.post(1, &theft);
    bad.until(|a, b| a.error.is_some() && b.error.is_some());
    assert!(matches!(
        bad.a.error,
        Some(StreamError::PeerTerminated { .. })
    ));
    let own = write(&good, stolen);
    good.a.post(1, &own);
    assert_eq!(good.outcome(1), WorkOutcome::Sent);
    let read = WorkRequest::Read {
        local: good.a.local(64, 64),
        remote: good.b.remote(0),
    };
    good.a.post(2, &read);
    assert_eq!(good.outcome(2), WorkOutcome::Read);
}

/// A writes for a while into B's buffer; B ends the STag in the middle. Nothing changes any more.
fn ended_in_the_middle(end: fn(&mut End, Stag)) -> Pair {
    let len = 8 << 20;
    let mut pair = Pair::plain(len);
    let data = pattern(2, usize::try_from(len).unwrap());
    pair.a.region.write(0, &data).unwrap();
    let write = WorkRequest::Write {
        local: pair.a.local(0, data.len()),
        remote: pair.b.remote(0),
        immediate: None,
    };
    pair.a.post(1, &write);
    // Into the middle of a segment, too: what was read so far is no multiple of anything.
    pair.until(|_, b| b.stream.traffic().received_octets > 2_000_000);
    let stag = pair.b.stag;
    end(&mut pair.b, stag);
    let crc = |pair: &Pair| pair.b.region.crc32c(0, len, 0).unwrap();
    let before = crc(&pair);
    let send = WorkRequest::Send {
        head: b"after",
        tail: None,
        solicited: false,
        invalidate: None,
    };
    pair.a.post(2, &send);
    let mut got = 0;
    pair.until(|a, b| {
        got += b.messages().len();
        got > 0 || (a.error.is_some() && b.error.is_some())
    });
    //= test rfc5042-6.2.2-no-write-after-revoke
    assert_eq!(crc(&pair), before);
    pair
}

#[test]
fn an_invalidated_buffer_does_not_change_and_the_stream_ends() {
    let pair = ended_in_the_middle(|b, stag| b.stream.invalidate(stag).unwrap());
    assert!(
        matches!(pair.a.error, Some(StreamError::PeerTerminated { .. })),
        "{:?}",
        pair.a.error
    );
}

#[test]
fn a_retired_buffer_does_not_change_and_the_stream_goes_on() {
    let mut pair = ended_in_the_middle(|b, stag| b.stream.retire(stag).unwrap());
    assert!(pair.a.error.is_none(), "{:?}", pair.a.error);
    assert!(pair.b.error.is_none(), "{:?}", pair.b.error);
    let stag = pair.b.stag;
    assert!(pair.b.stream.retire(stag).is_err());
    // Both ends are as good as before.
    let back = WorkRequest::Send {
        head: b"fine",
        tail: None,
        solicited: false,
        invalidate: None,
    };
    pair.b.post(1, &back);
    let mut got = Vec::new();
    pair.until(|a, _| {
        got.extend(a.messages());
        !got.is_empty()
    });
    assert_eq!(got, [b"fine"]);
}
