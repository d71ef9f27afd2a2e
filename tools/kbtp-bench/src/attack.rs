//! Attacks on a target, each without end, from a process of its own that ends with its standard input.
//!
//! They speak through what the hostile suite stands on (`kbtp-harness`): whatever does not go as an attacker likes ends its
//! thread or its process, and the report shows an attack that did nothing.

use clap::ValueEnum;
use kbtp::{Failure, driver};
use kbtp_harness::{Peer, Segment, Session, Start, Who, alloc_store, fetched, load, store};
use kbtp_wire::rdmap::{RdmapOpcode, ReadRequest};
use kbtp_wire::{
    ByteLen, DataDescriptor, Grant, Handle, Operation, Request, RequestId, Stag, TaggedOffset,
};
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Connections that are silent at one time: more than there are places for.
const SILENT: usize = 600;

/// A kind of attack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Attack {
    /// None: a thread computes and gives way now and then, and nobody speaks to the target
    Burn,
    /// None: octets go over loopback from one thread to another, and nobody speaks to the target
    Traffic,
    /// Connections that say nothing, one after the other
    Silent,
    /// Sessions that come and go
    Churn,
    /// Sessions of one initiator that replace one another, with partitions
    Storm,
    /// Requests that are refused
    Errors,
    /// Requests as short as can be
    Short,
    /// All credits waiting on one handle
    Crowd,
    /// Loads that are asked for and not taken
    Deaf,
    /// RDMA Reads of large ranges
    Reads,
    /// RDMA Writes of nothing
    Writes,
    /// Allocations and frees at full depth
    Busy,
    /// Sessions that leave a thousand blocks to be freed
    Leave,
}

/// Carries out an attack until standard input ends.
///
/// # Errors
/// [`Failure`] if no thread can be started or nobody hears that it has begun.
pub(crate) fn run(attack: Attack, target: SocketAddr) -> Result<(), Failure> {
    // Storm and silence take several, that some are on their way while others wait.
    let threads = match attack {
        Attack::Silent | Attack::Storm => 2,
        _ => 1,
    };
    for number in 0..threads {
        driver::start("attacker", move || one(attack, target, number))?;
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{{}}")
        .and_then(|()| out.flush())
        .and_then(|()| io::stdin().read_to_end(&mut Vec::new()))
        .map(drop)
        .map_err(|e| Failure::operation(format_args!("an attacker: {e}"), "report this"))
}

fn one(attack: Attack, target: SocketAddr, number: u64) {
    let who = Who::new(0xbad_0000 + number);
    match attack {
        Attack::Burn => loop {
            for _ in 0..200 {
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        },
        // It fails only on a machine without loopback, or without room for a thread: the report shows an attack that does nothing.
        Attack::Traffic => traffic().unwrap_or(()),
        Attack::Silent => {
            let mut silent = VecDeque::new();
            loop {
                silent.push_back(Peer::dial(target));
                if silent.len() > SILENT {
                    silent.pop_front();
                }
            }
        }
        Attack::Churn => loop {
            come(target, &who.clone().quota(8));
        },
        Attack::Storm => {
            // All threads are the same initiator.
            let who = Who::new(0xbad_bad).direct().quota(64);
            loop {
                come(target, &who);
            }
        }
        Attack::Leave => {
            let who = who.quota(1024);
            loop {
                let Some((mut peer, grant)) = come(target, &who) else {
                    continue;
                };
                flood(&mut peer, grant, 1024, |n| {
                    let handle = Handle(grant.handle_base.0 + n);
                    (handle, alloc_store(Session::inline(b"left"), true))
                });
            }
        }
        _ => {
            let (mut peer, grant) = Peer::open(target, &who.direct().quota(64));
            session(attack, &mut peer, grant);
        }
    }
}

/// Sends to itself without end, in pieces as long as those of [`Attack::Writes`].
fn traffic() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut out = TcpStream::connect(listener.local_addr()?)?;
    let (mut sink, _) = listener.accept()?;
    let reader = driver::start("reader", move || {
        let mut octets = [0; 4096];
        while sink.read_exact(&mut octets).is_ok() {}
    });
    reader.map_err(|_| io::Error::other("no thread"))?;
    let octets = vec![0; 24 << 10];
    loop {
        out.write_all(&octets)?;
    }
}

/// A session, if it is granted; whoever is replaced or turned away tries again.
fn come(target: SocketAddr, who: &Who) -> Option<(Peer, Grant)> {
    let mut peer = Peer::dial(target);
    peer.octets(&Start::default().octets());
    peer.try_reply()?;
    let hello = who.hello(&peer.challenge);
    peer.send(&hello);
    let Some(Segment::Untagged(_, message)) = peer.receive() else {
        return None;
    };
    match kbtp_wire::HelloAck::decode(&message) {
        Ok(kbtp_wire::HelloAck::Granted { grant, .. }) => Some((peer, grant)),
        _ => None,
    }
}

/// What one session does without end.
fn session(attack: Attack, peer: &mut Peer, grant: Grant) {
    let first = grant.handle_base;
    let credits = u64::from(grant.credits);
    let at = |n: u64| Handle(first.0 + n % 64);
    loop {
        match attack {
            Attack::Errors => flood(peer, grant, credits, |_| {
                (Handle(u64::MAX), Operation::Free)
            }),
            Attack::Short => flood(peer, grant, credits, |n| (at(n), Operation::Free)),
            Attack::Busy => {
                let data = [7; 4096];
                let data = data
                    .get(..usize::try_from(grant.max_inline.0).unwrap_or(0).min(4096))
                    .unwrap_or(&[]);
                flood(peer, grant, 64, |n| {
                    (at(n), alloc_store(Session::inline(data), true))
                });
                flood(peer, grant, 64, |n| (at(n), Operation::Free));
            }
            Attack::Crowd => crowd(peer, grant),
            Attack::Deaf => {
                flood(peer, grant, 1, |n| {
                    (at(n), alloc_store(Session::inline(b"x"), false))
                });
                let sink = buffer(64 << 10);
                for n in 0..credits {
                    send(peer, n, first, load(sink));
                }
                loop {
                    std::thread::park();
                }
            }
            Attack::Reads => {
                for _ in 0..16 {
                    peer.read(&ReadRequest {
                        sink_stag: Stag(1),
                        sink_offset: TaggedOffset(0),
                        len: ByteLen(256 << 10),
                        source_stag: grant.pool_stag,
                        source_offset: grant.partition_offset,
                    });
                }
                let mut answered = 0;
                while answered < 16 {
                    match peer.receive() {
                        Some(Segment::Tagged(header, _)) => answered += u32::from(header.last),
                        Some(Segment::Untagged(..)) => {}
                        None => return,
                    }
                }
            }
            Attack::Writes => {
                let offset = grant.partition_offset.0;
                let write =
                    Segment::tagged(RdmapOpcode::Write, grant.partition_stag, offset, b"").fpdu();
                peer.octets(&write.repeat(1000));
            }
            _ => return,
        }
    }
}

/// Requests behind one that waits for data, which then comes.
fn crowd(peer: &mut Peer, grant: Grant) {
    let first = grant.handle_base;
    send(peer, 0, first, alloc_store(fetched(buffer(64)), false));
    for n in 1..u64::from(grant.credits) {
        let operation = match n % 3 {
            0 => Operation::Free,
            1 => store(Session::inline(b"x"), false),
            _ => alloc_store(Session::inline(b"y"), false),
        };
        send(peer, n, first, operation);
    }
    let mut answered = 0;
    while answered < grant.credits {
        match peer.receive() {
            Some(Segment::Untagged(header, payload)) if header.queue.0 == 1 => {
                let Some(read) = payload.first_chunk().map(ReadRequest::decode) else {
                    return;
                };
                let (stag, offset) = (read.sink_stag, read.sink_offset.0);
                peer.segment(&Segment::tagged(
                    RdmapOpcode::ReadResponse,
                    stag,
                    offset,
                    &[7; 64],
                ));
            }
            Some(Segment::Untagged(..)) => answered += 1,
            Some(Segment::Tagged(..)) => {}
            None => return,
        }
    }
    // What is left bound, if anything is.
    flood(peer, grant, 1, |_| (first, Operation::Free));
}

const fn buffer(len: u32) -> DataDescriptor {
    DataDescriptor {
        stag: Stag(5),
        offset: TaggedOffset(0),
        len: ByteLen(len),
    }
}

fn send(peer: &mut Peer, n: u64, handle: Handle, operation: Operation<'_>) {
    peer.request(&Request {
        request_id: RequestId(n),
        handle,
        generation: None,
        record: None,
        operation,
    });
}

/// Sends `count` requests, as many at a time as there are credits, and takes their completions.
fn flood<'a>(
    peer: &mut Peer,
    grant: Grant,
    count: u64,
    request: impl Fn(u64) -> (Handle, Operation<'a>),
) {
    let credits = u64::from(grant.credits).max(1);
    let mut sent = 0;
    while sent < count {
        let batch = credits.min(count - sent);
        for n in sent..sent + batch {
            let (handle, operation) = request(n);
            send(peer, n, handle, operation);
        }
        for _ in 0..batch {
            let _completion = peer.message();
        }
        sent += batch;
    }
}
