//! A fabric stream as what a queue pair is connected to: the client of a chain over real RDMAP.
//!
//! | the queue pair | the stream |
//! |---|---|
//! | SEND, `SEND_INVAL` | Send, with Invalidate; the message is gathered |
//! | `RDMA_WRITE`, `RDMA_READ` | RDMA Write and Read of the registered region that the data lies in: no copy |
//! | masked atomics of 8 octets | `FetchAdd` with Add Mask, `CmpSwap` |
//! | receive WQE | a receive slot of the stream is held until there is one, then copied and released |
//!
//! A Send with Immediate has no counterpart, and neither has data in more than one piece.

use crate::connection::{Connection, Ended, FromPeer, Message};
use crate::memory::Extent;
use crate::model::Model;
use crate::outside::{Kind, Outgoing, OutgoingWork};
use kbtp_device::MemoryId;
use kbtp_fabric::{
    Event, LocalBuffer, PostError, ReceiveSlot, RemoteBuffer, Stream, Time, WorkId, WorkOutcome,
    WorkRequest,
};
use kbtp_mlx5::{Atomic, RemoteAddress, Syndrome};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::collections::VecDeque;

/// Memory of the model that is registered with the stream.
#[derive(Clone, Copy, Debug)]
struct Registered {
    memory: MemoryId,
    stag: Stag,
    base: TaggedOffset,
}

/// A stream, and which memory it knows.
#[derive(Debug)]
pub struct StreamConnection<S> {
    stream: S,
    registered: Vec<Registered>,
    held: VecDeque<(ReceiveSlot, Kind)>,
    answers: VecDeque<FromPeer>,
    ended: bool,
}

impl<S: Stream> StreamConnection<S> {
    /// Over an established stream.
    #[must_use]
    pub const fn new(stream: S) -> Self {
        Self {
            stream,
            registered: Vec::new(),
            held: VecDeque::new(),
            answers: VecDeque::new(),
            ended: false,
        }
    }

    /// Says that a region which the model knows as `memory` is registered with the stream: whole, its first octet at Tagged
    /// Offset `base`. A pool is, with the right to place Reads in it and none for the peer.
    pub fn add(&mut self, memory: MemoryId, stag: Stag, base: TaggedOffset) {
        self.registered.push(Registered { memory, stag, base });
    }

    /// The stream.
    #[must_use]
    pub const fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream.
    pub const fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// The stream again; messages that no receive WQE took are in it.
    pub fn into_stream(self) -> S {
        self.stream
    }

    fn local(&self, extents: &[Extent]) -> Option<LocalBuffer> {
        let [extent] = extents else { return None };
        let found = self
            .registered
            .iter()
            .find(|one| one.memory == extent.place.memory)?;
        Some(LocalBuffer {
            stag: found.stag,
            offset: TaggedOffset(found.base.0.checked_add(extent.place.offset)?),
            len: ByteLen(u32::try_from(extent.len).ok()?),
        })
    }

    fn request<'a>(&self, work: &'a OutgoingWork, solicited: bool) -> Option<WorkRequest<'a>> {
        let buffer = |remote: &RemoteAddress| RemoteBuffer {
            stag: Stag(remote.rkey.0),
            offset: TaggedOffset(remote.address),
        };
        Some(match work {
            OutgoingWork::Send { message, kind } => WorkRequest::Send {
                head: message,
                tail: None,
                solicited,
                invalidate: match kind {
                    Kind::Send => None,
                    Kind::Invalidate(key) => Some(Stag(*key)),
                    Kind::Immediate(_) => return None,
                },
            },
            OutgoingWork::Write {
                local,
                remote,
                immediate,
            } => WorkRequest::Write {
                local: self.local(local)?,
                remote: buffer(remote),
                immediate: *immediate,
            },
            OutgoingWork::Read { local, remote } => WorkRequest::Read {
                local: self.local(local)?,
                remote: buffer(remote),
            },
            OutgoingWork::Atomic { remote, atomic, .. } => match *atomic {
                Atomic::MaskedFetchAdd8 { add, boundary } => WorkRequest::FetchAdd {
                    remote: buffer(remote),
                    add,
                    mask: boundary,
                },
                Atomic::MaskedCompareSwap8 {
                    swap,
                    compare,
                    swap_mask,
                    compare_mask,
                } => WorkRequest::CmpSwap {
                    remote: buffer(remote),
                    compare,
                    compare_mask,
                    swap,
                    swap_mask,
                },
                _ => return None,
            },
        })
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::Received {
                slot, invalidated, ..
            } => {
                let kind = invalidated.map_or(Kind::Send, |stag| Kind::Invalidate(stag.0));
                self.held.push_back((slot, kind));
            }
            // No chain's client writes with immediate data.
            Event::Immediate { .. } => {}
            Event::Done { id, outcome } => self.answers.push_back(FromPeer {
                id: id.0,
                answer: match outcome {
                    WorkOutcome::Sent | WorkOutcome::Read => Ok(None),
                    WorkOutcome::Atomic(word) => Ok(Some(word)),
                    WorkOutcome::Flushed => Err(Syndrome::REMOTE_ABORTED),
                },
            }),
        }
    }
}

impl<S: Stream> Connection for StreamConnection<S> {
    fn post(&mut self, _model: &Model, work: Outgoing) -> Option<Outgoing> {
        let Outgoing { id, solicited, .. } = work;
        let posted = match self.request(&work.work, solicited) {
            Some(request) => self.stream.post(WorkId(id), &request, true),
            None => Err(PostError::Unsupported {
                operation: "this operation",
            }),
        };
        match posted {
            Ok(()) => None,
            Err(PostError::QueueFull) => Some(work),
            Err(_) => {
                let answer = Err(Syndrome::LOCAL_QP_OPERATION);
                self.answers.push_back(FromPeer { id, answer });
                None
            }
        }
    }

    fn progress(&mut self, _model: &Model, now: Time) -> Result<bool, Ended> {
        if self.ended {
            return Err(Ended);
        }
        let moved = self.stream.progress(now);
        self.ended = moved.is_err();
        let mut events = false;
        while let Some(event) = self.stream.next_event() {
            self.event(&event);
            events = true;
        }
        // What came before the end is taken first.
        Ok(moved.unwrap_or(true) || events)
    }

    fn answer(&mut self) -> Option<FromPeer> {
        self.answers.pop_front()
    }

    fn message(&self) -> Option<Message<'_>> {
        let (slot, kind) = self.held.front()?;
        Some(Message {
            octets: self.stream.message(*slot),
            kind: *kind,
        })
    }

    fn taken(&mut self) {
        if let Some((slot, _)) = self.held.pop_front() {
            self.stream.release(slot);
        }
    }
}
