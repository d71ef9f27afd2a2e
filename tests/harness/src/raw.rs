//! An initiator that knows RDMA and nothing else: it sends any octets as a Send.

use crate::patience::Patience;
use kbtp_fabric::{
    Access, CloseReason, Event, LocalBuffer, RemoteBuffer, Stream, StreamError, WorkId,
    WorkOutcome, WorkRequest,
};
use kbtp_iwarp_tcp::{ConnectOptions, Connector, Interest, Poller, Spin};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{ByteLen, DataDescriptor, PrivateData, Stag, TaggedOffset};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// Octets an initiator has for its buffers.
const ARENA: u64 = 4 << 20;
/// Tagged Offset of the first; far from zero, so that a lost offset shows.
const BASE: u64 = 0x7000_0000_0000;

/// A message that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// Its octets.
    pub octets: Vec<u8>,
    /// The STag it invalidated.
    pub invalidated: Option<Stag>,
}

/// A stream of any transport.
trait AnyStream: Stream + std::fmt::Debug + Send {}

impl<S: Stream + std::fmt::Debug + Send> AnyStream for S {}

/// A registered buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Its STag.
    pub stag: Stag,
    /// Where it begins in the arena.
    at: u64,
    /// Its Tagged Offset.
    offset: TaggedOffset,
    /// Its octets.
    pub len: u32,
}

impl Buffer {
    /// It as a Data Descriptor.
    #[must_use]
    pub const fn descriptor(&self) -> DataDescriptor {
        DataDescriptor {
            stag: self.stag,
            offset: self.offset,
            len: ByteLen(self.len),
        }
    }

    const fn local(&self) -> LocalBuffer {
        LocalBuffer {
            stag: self.stag,
            offset: self.offset,
            len: ByteLen(self.len),
        }
    }
}

/// The initiator.
#[derive(Debug)]
pub struct Raw {
    stream: Box<dyn AnyStream>,
    poller: Poller,
    arena: Region,
    used: u64,
    inbox: VecDeque<Received>,
    outcomes: HashMap<WorkId, WorkOutcome>,
    next_work: u64,
    ended: Option<StreamError>,
    /// What the target said when it accepted the stream.
    pub private_data: Box<[u8]>,
}

impl Raw {
    /// Connects and sets up the stream.
    #[must_use]
    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).expect("the target takes a stream")
    }

    /// As [`connect`](Self::connect), where it may fail.
    ///
    /// # Errors
    /// What the transport says.
    pub fn try_connect(address: SocketAddr) -> Result<Self, Box<dyn std::error::Error>> {
        let patience = Patience::new();
        let mut poller = Poller::new(Spin::Off).unwrap();
        if crate::software::device().is_some() {
            let options = kbtp_verbs::ConnectOptions::default();
            let connected = kbtp_verbs::connect(address, options, b"", 10_000)?;
            return Ok(Self::new(
                Box::new(connected.stream),
                connected.private_data,
                poller,
            ));
        }
        let mut connector = Connector::start(address, ConnectOptions::default(), b"")?;
        let connected = loop {
            let now = patience.now("the stream's set-up");
            if let Some(connected) = connector.progress(now)? {
                break connected;
            }
            let readiness = connector.readiness();
            let fd = connector.descriptor().expect("it goes on");
            poller.add(fd, 0, readiness.into()).unwrap();
            poller.wait(Some(patience.end)).unwrap();
            poller.remove(fd).unwrap();
        };
        Ok(Self::new(
            Box::new(connected.stream),
            connected.private_data,
            poller,
        ))
    }

    fn new(stream: Box<dyn AnyStream>, private_data: Box<[u8]>, poller: Poller) -> Self {
        poller.add(stream.descriptor(), 0, Interest::READ).unwrap();
        Self {
            stream,
            poller,
            arena: Region::anonymous(ARENA, &PageOptions::default()).unwrap(),
            used: 0,
            inbox: VecDeque::new(),
            outcomes: HashMap::new(),
            next_work: 1,
            ended: None,
            private_data,
        }
    }

    /// The private data, understood.
    #[must_use]
    pub fn private(&self) -> PrivateData {
        let octets = self.private_data.first_chunk().expect("40 octets");
        PrivateData::decode(octets).expect("private data of KBTP")
    }

    /// Registers `len` fresh octets with every right there is.
    pub fn buffer(&mut self, len: u32) -> Buffer {
        let access = Access {
            remote_read: true,
            remote_write: true,
            remote_atomic: false,
            remote_invalidate: true,
            local_write: true,
        };
        self.buffer_with(len, access)
    }

    /// Registers `len` fresh octets.
    pub fn buffer_with(&mut self, len: u32, access: Access) -> Buffer {
        let at = self.used;
        let end = at + u64::from(len.max(1));
        assert!(
            end <= ARENA,
            "the arena is full: release what is not needed"
        );
        self.used = end.next_multiple_of(64);
        let offset = self
            .stream
            .tagged_base(&self.arena, at, TaggedOffset(BASE + at));
        let access = Access {
            // Some devices have no key that a peer can invalidate.
            remote_invalidate: access.remote_invalidate
                && self.stream.capabilities().send_with_invalidate,
            ..access
        };
        let stag = self
            .stream
            .register(&self.arena, at..end, offset, access)
            .unwrap();
        Buffer {
            stag,
            at,
            offset,
            len,
        }
    }

    /// Registers a buffer that holds `octets`.
    pub fn filled(&mut self, octets: &[u8]) -> Buffer {
        let buffer = self.buffer(u32::try_from(octets.len()).unwrap());
        self.fill(&buffer, octets);
        buffer
    }

    /// Writes into a buffer.
    pub fn fill(&self, buffer: &Buffer, octets: &[u8]) {
        self.arena.write(buffer.at, octets).unwrap();
    }

    /// What a buffer holds.
    #[must_use]
    pub fn octets(&self, buffer: &Buffer) -> Vec<u8> {
        let mut octets = vec![0; usize::try_from(buffer.len).unwrap()];
        self.arena.read(buffer.at, &mut octets).unwrap();
        octets
    }

    /// Takes a buffer back; the last one's octets can be used again.
    pub fn release(&mut self, buffer: Buffer) {
        self.stream.invalidate(buffer.stag).unwrap();
        self.forget(buffer);
    }

    /// As [`release`](Self::release), of a buffer whose STag the target has invalidated.
    pub fn forget(&mut self, buffer: Buffer) {
        let end = buffer.at + u64::from(buffer.len.max(1));
        if end.next_multiple_of(64) == self.used {
            self.used = buffer.at;
        }
    }

    /// Posts work and lets it go out.
    pub fn post(&mut self, work: &WorkRequest<'_>) -> WorkId {
        let id = WorkId(self.next_work);
        self.next_work += 1;
        let patience = Patience::new();
        loop {
            // Nobody waits for the end of a Send: its octets are copied.
            let signaled = !matches!(work, WorkRequest::Send { .. });
            match self.stream.post(id, work, signaled) {
                // If it is closed, the end of the stream tells what happened.
                Ok(()) | Err(kbtp_fabric::PostError::Closed) => break,
                Err(kbtp_fabric::PostError::QueueFull) => self.wait(&patience, "room to post"),
                Err(error) => panic!("work that cannot be posted: {error}"),
            }
        }
        self.step(patience.now("posting"));
        id
    }

    /// Sends a message.
    pub fn send(&mut self, octets: &[u8]) {
        self.post(&WorkRequest::Send {
            head: octets,
            tail: None,
            solicited: false,
            invalidate: None,
        });
    }

    /// The next message, or how the stream ended.
    ///
    /// # Errors
    /// The end of the stream, told without words where it was told before.
    pub fn recv(&mut self) -> Result<Received, StreamError> {
        self.until("a message", |raw| raw.inbox.pop_front())
    }

    /// Messages that are here already.
    pub fn try_recv(&mut self) -> Option<Received> {
        if self.ended.is_none() {
            self.step(Patience::new().now("messages"));
        }
        self.inbox.pop_front()
    }

    /// Waits for the end of the stream; messages that come before it are dropped.
    pub fn end(&mut self) -> StreamError {
        loop {
            match self.recv() {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    /// RDMA Read.
    ///
    /// # Errors
    /// The end of the stream: what was read is refused.
    pub fn read(&mut self, source: RemoteBuffer, len: u32) -> Result<Vec<u8>, StreamError> {
        let sink = self.buffer(len);
        let work = WorkRequest::Read {
            local: sink.local(),
            remote: source,
        };
        let id = self.post(&work);
        match self.outcome(id)? {
            WorkOutcome::Read => {}
            other => panic!("a Read ended as {other:?}"),
        }
        let octets = self.octets(&sink);
        self.release(sink);
        Ok(octets)
    }

    /// RDMA Write. That it was sent says nothing of what the target made of it.
    pub fn write(&mut self, octets: &[u8], sink: RemoteBuffer) {
        let source = self.filled(octets);
        self.post(&WorkRequest::Write {
            local: source.local(),
            remote: sink,
            immediate: None,
        });
    }

    /// FetchAdd: what was there before.
    ///
    /// # Errors
    /// The end of the stream: it is refused.
    pub fn fetch_add(
        &mut self,
        remote: RemoteBuffer,
        add: u64,
        mask: u64,
    ) -> Result<u64, StreamError> {
        let id = self.post(&WorkRequest::FetchAdd { remote, add, mask });
        match self.outcome(id)? {
            WorkOutcome::Atomic(before) => Ok(before),
            other => panic!("a FetchAdd ended as {other:?}"),
        }
    }

    fn outcome(&mut self, id: WorkId) -> Result<WorkOutcome, StreamError> {
        let outcome = self.until("the end of work", |raw| raw.outcomes.remove(&id))?;
        if outcome == WorkOutcome::Flushed {
            return Err(self.end());
        }
        Ok(outcome)
    }

    /// Ends the stream and waits until it has ended.
    pub fn close(mut self, how: CloseReason) {
        self.stream.close(how);
        self.end();
    }

    /// Moves on until there is what is looked for, or the stream has ended.
    fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, StreamError> {
        let patience = Patience::new();
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if let Some(error) = self.ended.take() {
                self.ended = Some(StreamError::ClosedHere);
                return Err(error);
            }
            if !self.step(patience.now(what)) {
                self.wait(&patience, what);
            }
        }
    }

    fn wait(&mut self, patience: &Patience, what: &str) {
        let readiness = self.stream.readiness();
        self.poller
            .modify(self.stream.descriptor(), 0, readiness.into())
            .unwrap();
        let until = readiness.at.map_or(patience.end, |at| at.min(patience.end));
        self.poller.wait(Some(until)).unwrap();
        self.step(patience.now(what));
    }

    /// Moves octets and takes events; whether there were any.
    fn step(&mut self, now: kbtp_fabric::Time) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let mut moved = match self.stream.progress(now) {
            Ok(moved) => moved,
            Err(error) => {
                self.ended = Some(error);
                true
            }
        };
        while let Some(event) = self.stream.next_event() {
            moved = true;
            match event {
                Event::Received {
                    slot, invalidated, ..
                } => {
                    let octets = self.stream.message(slot).to_vec();
                    self.stream.release(slot);
                    self.inbox.push_back(Received {
                        octets,
                        invalidated,
                    });
                }
                Event::Done { id, outcome } => {
                    self.outcomes.insert(id, outcome);
                }
                Event::Immediate { data } => panic!("Immediate Data {data:#x}: KBTP has none here"),
            }
        }
        moved
    }
}
