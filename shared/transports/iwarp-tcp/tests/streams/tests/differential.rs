//! The same operations over TCP and in memory: the same answers, the same messages, the same octets afterwards, and
//! the same end when one of them breaks a rule. Operations that could meet are kept apart, for their order is free.

use super::loopback::{self, Loopback};
use super::{Patience, V4, listen, meet, pattern, same};
use kbtp_fabric::{
    Access, Event, LocalBuffer, PostError, RemoteBuffer, Stream, StreamError, WorkId, WorkOutcome,
    WorkRequest,
};
use kbtp_iwarp_tcp::{FpduSize, StreamOptions, TcpRdmaStream};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::collections::BTreeMap;

/// Operations in all, if `KBTP_DIFFERENTIAL_OPS` does not say how many.
const OPERATIONS: u64 = 100_000;
/// Each operation of a batch has a cell of both regions for itself.
const CELL: u64 = 8192;
const CELLS: u64 = 12;
/// Operations of one stream, before one that breaks a rule ends it.
const BATCHES: u64 = 150;
const BASE: u64 = 0x7000_0000;

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn word(&mut self) -> u64 {
        self.below(1 << 32) << 32 | self.below(1 << 32)
    }
}

/// An operation: where its cell begins, how far in, how long.
#[derive(Clone, Copy, Debug)]
struct Op {
    kind: Kind,
    at: u64,
    len: u64,
    words: [u64; 4],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    /// It invalidates an STag that the peer registers for it.
    SendInvalidate,
    Write,
    Read,
    FetchAdd,
    CmpSwap,
    /// Through an STag of this party that there is not.
    NoBuffer,
    /// Breaks a rule at the peer.
    BadRead,
    BadWrite,
    BadAtomic,
    BadInvalidate,
}

fn some(rng: &mut Rng, side: u64, cell: u64) -> Op {
    use Kind::{CmpSwap, FetchAdd, NoBuffer, Read, Send, SendInvalidate, Write};
    const KINDS: [Kind; 10] = [
        Send,
        Send,
        SendInvalidate,
        Write,
        Write,
        Read,
        Read,
        FetchAdd,
        CmpSwap,
        NoBuffer,
    ];
    let kind = KINDS[usize::try_from(rng.below(10)).unwrap()];
    let most = if matches!(kind, Send | SendInvalidate) {
        512
    } else {
        CELL
    };
    let len = match rng.below(4) {
        0 => rng.below(4),
        1 => rng.below(100),
        _ => rng.below(most),
    };
    let room = CELL - len.max(8);
    let into = rng.below(room + 1);
    let into = if matches!(kind, FetchAdd | CmpSwap) {
        into & !7
    } else {
        into
    };
    // Few different words, so that some compare equal.
    let word = |rng: &mut Rng| match rng.below(3) {
        0 => 0,
        1 => u64::MAX,
        _ => rng.word(),
    };
    Op {
        kind,
        at: (side * CELLS + cell) * CELL + into,
        len,
        words: [word(rng), word(rng), word(rng), word(rng)],
    }
}

struct End<S> {
    stream: S,
    region: Region,
    stag: Stag,
    error: Option<StreamError>,
}

/// What came of a batch, without what may differ: slots and STags.
#[derive(PartialEq, Eq, Debug, Default)]
struct Answers {
    refused: Vec<u64>,
    done: BTreeMap<u64, WorkOutcome>,
    messages: Vec<(Vec<u8>, bool, bool)>,
    error: Option<&'static str>,
    memory: u32,
}

fn end<S: Stream>(mut stream: S, seed: u64) -> End<S> {
    let len = 2 * CELLS * CELL;
    let region = Region::anonymous(len, &PageOptions::default()).unwrap();
    region
        .write(0, &pattern(seed, usize::try_from(len).unwrap()))
        .unwrap();
    let access = Access {
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
        remote_invalidate: false,
        local_write: true,
    };
    let stag = stream
        .register(&region, 0..len, TaggedOffset(BASE), access)
        .unwrap();
    End {
        stream,
        region,
        stag,
        error: None,
    }
}

/// The buffers of an operation, and others that are wrong.
struct Buffers {
    local: LocalBuffer,
    remote: RemoteBuffer,
    /// Of an STag that the peer does not have.
    wrong: RemoteBuffer,
    /// Beyond the peer's region.
    beyond: RemoteBuffer,
}

impl Buffers {
    fn of(op: &Op, here: Stag, there: Stag) -> Self {
        let remote = RemoteBuffer {
            stag: there,
            offset: TaggedOffset(BASE + op.at),
        };
        Self {
            local: LocalBuffer {
                stag: here,
                offset: TaggedOffset(BASE + op.at),
                len: ByteLen(u32::try_from(op.len).unwrap()),
            },
            remote,
            wrong: RemoteBuffer {
                stag: Stag(there.0 ^ 0x55),
                ..remote
            },
            beyond: RemoteBuffer {
                offset: TaggedOffset(BASE + 2 * CELLS * CELL - 1),
                ..remote
            },
        }
    }

    fn sent<'a>(&self, op: &Op, head: &'a [u8], invalidate: Option<Stag>) -> WorkRequest<'a> {
        WorkRequest::Send {
            head,
            tail: (op.len > 0).then_some(self.local),
            solicited: op.words[1] == 0,
            invalidate,
        }
    }

    /// What an operation posts, but one that names an STag made for it.
    fn work<'a>(&self, op: &Op, head: &'a [u8]) -> WorkRequest<'a> {
        let [a, b, c, d] = op.words;
        let (local, remote) = (self.local, self.remote);
        let bad = if a == 0 { self.wrong } else { self.beyond };
        let write = |remote| WorkRequest::Write {
            local,
            remote,
            immediate: None,
        };
        let add = |remote| WorkRequest::FetchAdd {
            remote,
            add: a,
            mask: b,
        };
        match op.kind {
            Kind::Send | Kind::SendInvalidate => self.sent(op, head, None),
            Kind::Write => write(remote),
            Kind::Read => WorkRequest::Read { local, remote },
            Kind::FetchAdd => add(remote),
            Kind::CmpSwap => WorkRequest::CmpSwap {
                remote,
                compare: a,
                compare_mask: b,
                swap: c,
                swap_mask: d,
            },
            Kind::NoBuffer => WorkRequest::Read {
                local: LocalBuffer {
                    stag: Stag(local.stag.0 ^ 0x55),
                    ..local
                },
                remote,
            },
            Kind::BadRead => WorkRequest::Read { local, remote: bad },
            Kind::BadWrite => write(bad),
            Kind::BadAtomic if a == 0 => add(self.wrong),
            Kind::BadAtomic => add(RemoteBuffer {
                offset: TaggedOffset(remote.offset.0 | 4),
                ..remote
            }),
            Kind::BadInvalidate => self.sent(op, head, Some(bad.stag)),
        }
    }
}

impl<S: Stream> End<S> {
    fn post(&mut self, id: u64, op: &Op, peer: &mut Self, answers: &mut Answers) {
        let buffers = Buffers::of(op, self.stag, peer.stag);
        let head = op.words[0].to_be_bytes();
        let mut work = buffers.work(op, &head);
        if op.kind == Kind::SendInvalidate {
            let access = Access {
                remote_invalidate: true,
                ..Access::LOCAL
            };
            let named = peer
                .stream
                .register(&peer.region, 0..8, TaggedOffset(0), access);
            work = buffers.sent(op, &head, Some(named.unwrap()));
        }
        match self.stream.post(WorkId(id), &work, true) {
            Ok(()) => {}
            Err(PostError::Local(_)) => answers.refused.push(id),
            Err(other) => panic!("{op:?}: {other}"),
        }
    }

    fn progress(&mut self, patience: &Patience, answers: &mut Answers) {
        if self.error.is_none() {
            self.error = self.stream.progress(patience.now()).err();
        }
        while let Some(event) = self.stream.next_event() {
            match event {
                Event::Done { id, outcome } => {
                    let twice = answers.done.insert(id.0, outcome);
                    assert_eq!(twice, None, "work is done once");
                }
                Event::Received {
                    slot,
                    solicited,
                    invalidated,
                    ..
                } => {
                    let message = self.stream.message(slot).to_vec();
                    answers
                        .messages
                        .push((message, solicited, invalidated.is_some()));
                    self.stream.release(slot);
                }
                Event::Immediate { .. } => panic!("nothing immediate was sent"),
            }
        }
    }

    fn error(&self) -> Option<&'static str> {
        self.error.as_ref().map(|error| match error {
            StreamError::PeerTerminated { .. } => "terminated by the peer",
            StreamError::Protocol { .. } => "the peer broke a rule",
            _ => "otherwise",
        })
    }
}

/// Carries out a batch, each side's operations, until all of it is done or the stream has ended.
fn run<S: Stream>(ends: &mut [End<S>; 2], first_id: u64, batch: &[Vec<Op>; 2]) -> [Answers; 2] {
    let mut answers = [Answers::default(), Answers::default()];
    let mut sends = [0, 0];
    let [a, b] = ends;
    for (side, ops) in batch.iter().enumerate() {
        let (here, there) = if side == 0 {
            (&mut *a, &mut *b)
        } else {
            (&mut *b, &mut *a)
        };
        for (id, op) in (first_id..).zip(ops) {
            here.post(id, op, there, &mut answers[side]);
            sends[1 - side] += usize::from(matches!(op.kind, Kind::Send | Kind::SendInvalidate));
        }
    }
    let patience = Patience::new();
    let all = |answers: &[Answers; 2]| {
        (0..2).all(|side| {
            let Answers {
                refused,
                done,
                messages,
                ..
            } = &answers[side];
            done.len() + refused.len() == batch[side].len() && messages.len() == sends[side]
        })
    };
    let bad = batch.iter().flatten().any(|op| is_bad(op.kind));
    loop {
        a.progress(&patience, &mut answers[0]);
        b.progress(&patience, &mut answers[1]);
        let ended = a.error.is_some() && b.error.is_some();
        if if bad { ended } else { all(&answers) || ended } {
            break;
        }
    }
    for (end, answers) in [a, b].into_iter().zip(&mut answers) {
        answers.error = end.error();
        answers.memory = end.region.crc32c(0, end.region.len(), 0).unwrap();
    }
    answers
}

const fn is_bad(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::BadRead | Kind::BadWrite | Kind::BadAtomic | Kind::BadInvalidate
    )
}

/// A batch: up to eight operations of each side, then a message that tells that what was before it has arrived.
fn batch(rng: &mut Rng) -> [Vec<Op>; 2] {
    [0, 1].map(|side| {
        let mut cells: Vec<u64> = (0..CELLS).collect();
        let mut ops = Vec::new();
        for _ in 0..rng.below(9) {
            let cell = cells.swap_remove(usize::try_from(rng.below(cells.len() as u64)).unwrap());
            ops.push(some(rng, side, cell));
        }
        ops.push(Op {
            kind: Kind::Send,
            at: 0,
            len: 0,
            words: [rng.word(); 4],
        });
        ops
    })
}

fn tcp(seed: u64) -> [TcpRdmaStream; 2] {
    let mut options = StreamOptions::default();
    options.rdma.markers = seed & 1 != 0;
    options.rdma.crc = seed & 2 == 0;
    if seed & 4 != 0 {
        options.fpdu = FpduSize::Segment;
    }
    let mut listener = listen(V4, options.clone());
    let (here, there) = meet(&mut listener, same(options));
    [here.stream, there.stream]
}

/// One stream of each kind, the same operations; how many they were.
fn compare(seed: u64) -> u64 {
    let rng = &mut Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut real: [End<TcpRdmaStream>; 2] = tcp(seed).map(|stream| end(stream, seed));
    let mut plain: [End<Loopback>; 2] = loopback::pair().map(|stream| end(stream, seed));
    let mut id = 0;
    for number in 0..BATCHES {
        let batch = batch(rng);
        let over_tcp = run(&mut real, id, &batch);
        let in_memory = run(&mut plain, id, &batch);
        assert_eq!(
            over_tcp, in_memory,
            "seed {seed}, batch {number}: {batch:?}"
        );
        id += batch.iter().map(|ops| ops.len() as u64).sum::<u64>();
    }
    // One that breaks a rule: both ends say so, and what was outstanding is flushed.
    let kinds = [
        Kind::BadRead,
        Kind::BadWrite,
        Kind::BadAtomic,
        Kind::BadInvalidate,
    ];
    let bad = Op {
        kind: kinds[usize::try_from(rng.below(4)).unwrap()],
        len: 64,
        words: [rng.below(2), 1, 1, 1],
        ..some(rng, 0, 1)
    };
    let last = [vec![bad], Vec::new()];
    let mut over_tcp = run(&mut real, id, &last);
    let mut in_memory = run(&mut plain, id, &last);
    if matches!(bad.kind, Kind::BadWrite | Kind::BadInvalidate) {
        // That it was sent says nothing of the peer; it may or may not be known before the end is.
        for answers in [&mut over_tcp, &mut in_memory] {
            answers[0].done.clear();
        }
    }
    assert_eq!(over_tcp, in_memory, "seed {seed}, the last: {bad:?}");
    assert!(in_memory[0].error.is_some() && in_memory[1].error.is_some());
    id + 1
}

#[test]
fn a_stream_over_tcp_does_as_one_in_memory() {
    let wanted =
        std::env::var("KBTP_DIFFERENTIAL_OPS").map_or(OPERATIONS, |text| text.parse().unwrap());
    let (mut done, mut seed) = (0, 0);
    while done < wanted {
        seed += 1;
        done += compare(seed);
    }
}
