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
    Event, LocalBuffer, PostError, ReceiveSlot, RemoteBuffer, Stream, StreamError, Time, WorkId,
    WorkOutcome, WorkRequest,
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

/// What a queue pair's connection keeps beside its stream: which memory the stream knows, messages that wait, answers.
#[derive(Debug, Default)]
pub struct StreamLink {
    registered: Vec<Registered>,
    held: VecDeque<(ReceiveSlot, Kind)>,
    answers: VecDeque<FromPeer>,
    received: u64,
    sent: u64,
    ended: Option<StreamError>,
}

/// A link with its stream.
#[derive(Debug)]
pub struct OverStream<'a, S> {
    link: &'a mut StreamLink,
    stream: &'a mut S,
}

/// A stream with its link.
#[derive(Debug)]
pub struct StreamConnection<S> {
    stream: S,
    link: StreamLink,
}

impl<S: Stream> StreamConnection<S> {
    /// Over an established stream.
    #[must_use]
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            link: StreamLink::default(),
        }
    }

    /// As [`StreamLink::add`].
    pub fn add(&mut self, memory: MemoryId, stag: Stag, base: TaggedOffset) {
        self.link.add(memory, stag, base);
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

    fn over(&mut self) -> OverStream<'_, S> {
        self.link.over(&mut self.stream)
    }
}

impl StreamLink {
    /// Says that a region which the model knows as `memory` is registered with the stream: whole, its first octet at Tagged
    /// Offset `base`. A pool is, with the right to place Reads in it and none for the peer.
    pub fn add(&mut self, memory: MemoryId, stag: Stag, base: TaggedOffset) {
        self.registered.push(Registered { memory, stag, base });
    }

    /// With its stream: what [`exchange`](crate::exchange) takes.
    pub const fn over<'a, S>(&'a mut self, stream: &'a mut S) -> OverStream<'a, S> {
        OverStream { link: self, stream }
    }

    /// Takes over a message that was received before the queue pair was connected.
    pub fn adopt(&mut self, slot: ReceiveSlot) {
        self.received = self.received.wrapping_add(1);
        self.held.push_back((slot, Kind::Send));
    }

    /// The oldest message that no receive WQE has taken.
    #[must_use]
    pub fn oldest(&self) -> Option<ReceiveSlot> {
        self.held.front().map(|(slot, _)| *slot)
    }

    /// Messages received for which none was sent.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.received.saturating_sub(self.sent)
    }

    /// Whether the stream has ended.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Why the stream ended; once.
    pub const fn take_end(&mut self) -> Option<StreamError> {
        self.ended.take()
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
                self.received = self.received.wrapping_add(1);
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

impl<S: Stream> Connection for OverStream<'_, S> {
    fn post(&mut self, _model: &Model, work: Outgoing) -> Option<Outgoing> {
        let Outgoing { id, solicited, .. } = work;
        let sends = matches!(work.work, OutgoingWork::Send { .. });
        let posted = match self.link.request(&work.work, solicited) {
            Some(request) => self.stream.post(WorkId(id), &request, true),
            None => Err(PostError::Unsupported {
                operation: "this operation",
            }),
        };
        match posted {
            Ok(()) => {
                self.link.sent = self.link.sent.wrapping_add(u64::from(sends));
                None
            }
            Err(PostError::QueueFull) => Some(work),
            Err(_) => {
                let answer = Err(Syndrome::LOCAL_QP_OPERATION);
                self.link.answers.push_back(FromPeer { id, answer });
                None
            }
        }
    }

    fn progress(&mut self, _model: &Model, now: Time) -> Result<bool, Ended> {
        if self.link.ended.is_some() {
            return Err(Ended);
        }
        let moved = self.stream.progress(now);
        let progress = moved.as_ref().map_or(true, |moved| *moved);
        self.link.ended = moved.err();
        let mut events = false;
        while let Some(event) = self.stream.next_event() {
            self.link.event(&event);
            events = true;
        }
        // What came before the end is taken first.
        Ok(progress || events)
    }

    fn answer(&mut self) -> Option<FromPeer> {
        self.link.answers.pop_front()
    }

    fn message(&self) -> Option<Message<'_>> {
        let (slot, kind) = self.link.held.front()?;
        Some(Message {
            octets: self.stream.message(*slot),
            kind: *kind,
        })
    }

    fn taken(&mut self) {
        if let Some((slot, _)) = self.link.held.pop_front() {
            self.stream.release(slot);
        }
    }
}

impl<S: Stream> Connection for StreamConnection<S> {
    fn post(&mut self, model: &Model, work: Outgoing) -> Option<Outgoing> {
        self.over().post(model, work)
    }

    fn progress(&mut self, model: &Model, now: Time) -> Result<bool, Ended> {
        self.over().progress(model, now)
    }

    fn answer(&mut self) -> Option<FromPeer> {
        self.link.answers.pop_front()
    }

    fn message(&self) -> Option<Message<'_>> {
        let (slot, kind) = self.link.held.front()?;
        Some(Message {
            octets: self.stream.message(*slot),
            kind: *kind,
        })
    }

    fn taken(&mut self) {
        self.over().taken();
    }
}
