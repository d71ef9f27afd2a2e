//! One end of a stream with a buffer, which waits for what it expects.

use crate::driver::Deadline;
use kbtp_fabric::{
    Access, Atomics, CloseReason, Event, LocalBuffer, RemoteBuffer, Stream, WorkId, WorkOutcome,
    WorkRequest,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// How long any one thing may take on an emulated machine that shares its processors with a build.
const PATIENCE: Duration = Duration::from_mins(1);
/// The buffer: twice what is moved in one piece.
const LEN: u64 = 4 << 20;
/// Its Tagged Offset where the stream lets one choose: not zero, so that places in a buffer and offsets cannot be
/// mistaken for each other.
const BASE: TaggedOffset = TaggedOffset(0x7000_1000_0000);

/// What came from the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// A message.
    Message(Vec<u8>),
    /// Immediate Data.
    Immediate(u32),
}

/// An end of a stream.
#[derive(Debug)]
pub struct Party<S> {
    /// The stream.
    pub stream: S,
    /// The buffer.
    pub region: Region,
    stag: Stag,
    base: TaggedOffset,
    events: VecDeque<Event>,
    posted: u64,
}

impl<S: Stream> Party<S> {
    /// An end with its buffer, which the peer may read and write.
    ///
    /// # Errors
    /// There is no memory, or the stream takes no registration.
    pub fn new(mut stream: S) -> Outcome<Self> {
        let region = Region::anonymous(LEN, &PageOptions::default())?;
        let access = Access {
            remote_read: true,
            remote_write: true,
            remote_atomic: stream.capabilities().atomics != Atomics::None,
            local_write: true,
            ..Access::LOCAL_READ
        };
        let base = stream.tagged_base(&region, 0, BASE);
        let stag = stream.register(&region, 0..LEN, base, access)?;
        Ok(Self {
            stream,
            region,
            stag,
            base,
            events: VecDeque::new(),
            posted: 0,
        })
    }

    /// The octets from `at` on in the buffer, for this end's own work.
    #[must_use]
    pub const fn local(&self, at: u64, len: u32) -> LocalBuffer {
        LocalBuffer {
            stag: self.stag,
            offset: TaggedOffset(self.base.0 + at),
            len: ByteLen(len),
        }
    }

    /// The octet `at` of the buffer, as the peer must name it.
    #[must_use]
    pub const fn advertised(&self, at: u64) -> RemoteBuffer {
        RemoteBuffer {
            stag: self.stag,
            offset: TaggedOffset(self.base.0 + at),
        }
    }

    /// Sends `message`.
    ///
    /// # Errors
    /// The stream does not take it.
    pub fn send(&mut self, message: &[u8]) -> Outcome<()> {
        let send = WorkRequest::Send {
            head: message,
            tail: None,
            solicited: false,
            invalidate: None,
        };
        self.post(&send, false)?;
        Ok(())
    }

    /// Reads `len` octets of the peer's `remote` to `at`, and waits for them.
    ///
    /// # Errors
    /// It comes to nothing.
    pub fn read(&mut self, remote: RemoteBuffer, at: u64, len: u32) -> Outcome<()> {
        let local = self.local(at, len);
        let id = self.post(&WorkRequest::Read { local, remote }, true)?;
        self.done(id, WorkOutcome::Read)
    }

    /// Writes `len` octets from `at` to the peer's `remote`, and waits until they are on their way.
    ///
    /// # Errors
    /// It comes to nothing.
    pub fn write(&mut self, at: u64, len: u32, remote: RemoteBuffer) -> Outcome<()> {
        let write = WorkRequest::Write {
            local: self.local(at, len),
            remote,
            immediate: None,
        };
        let id = self.post(&write, true)?;
        self.done(id, WorkOutcome::Sent)
    }

    /// The next message.
    ///
    /// # Errors
    /// The stream ends, or something else comes.
    pub fn receive(&mut self) -> Outcome<Vec<u8>> {
        match self.hear()? {
            Heard::Message(message) => Ok(message),
            Heard::Immediate(data) => Err(format!("Immediate Data {data:#x}").into()),
        }
    }

    /// What comes next from the peer.
    ///
    /// # Errors
    /// The stream ends.
    pub fn hear(&mut self) -> Outcome<Heard> {
        match self.event()? {
            Event::Received { slot, .. } => {
                let message = self.stream.message(slot).to_vec();
                self.stream.release(slot);
                Ok(Heard::Message(message))
            }
            Event::Immediate { data } => Ok(Heard::Immediate(data)),
            other @ Event::Done { .. } => {
                Err(format!("expected a message, and met {other:?}").into())
            }
        }
    }

    /// Posts work and waits for its end, which must be `how`.
    ///
    /// # Errors
    /// It comes to something else.
    pub fn work(&mut self, work: &WorkRequest<'_>, how: WorkOutcome) -> Outcome<()> {
        let id = self.post(work, true)?;
        self.done(id, how)
    }

    fn post(&mut self, work: &WorkRequest<'_>, signaled: bool) -> Outcome<WorkId> {
        self.posted += 1;
        let id = WorkId(self.posted);
        self.stream.post(id, work, signaled)?;
        Ok(id)
    }

    /// Waits for the end of posted work. A message may come before.
    fn done(&mut self, id: WorkId, how: WorkOutcome) -> Outcome<()> {
        let mut others = VecDeque::new();
        loop {
            let event = self.event()?;
            match event {
                Event::Done { id: of, outcome } if of == id => {
                    others.append(&mut self.events);
                    self.events = others;
                    return if outcome == how {
                        Ok(())
                    } else {
                        Err(format!("{outcome:?} instead of {how:?}").into())
                    };
                }
                other => others.push_back(other),
            }
        }
    }

    /// The next event. The error is the stream's own once that has ended.
    fn event(&mut self) -> Outcome<Event> {
        let deadline = Deadline::after(PATIENCE);
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let moved = self.stream.progress(deadline.now()?)?;
            self.events
                .extend(std::iter::from_fn(|| self.stream.next_event()));
            if !moved && self.events.is_empty() {
                self.wait(deadline)?;
            }
        }
    }

    /// Waits until the stream ends, whatever comes before. How it ended.
    ///
    /// # Errors
    /// It does not.
    pub fn ending(&mut self) -> Outcome<kbtp_fabric::StreamError> {
        let deadline = Deadline::after(PATIENCE);
        loop {
            match self.stream.progress(deadline.now()?) {
                Err(end) => return Ok(end),
                Ok(_) => while self.stream.next_event().is_some() {},
            }
            self.wait(deadline)?;
        }
    }

    /// Closes the stream in order.
    ///
    /// # Errors
    /// It does not come to its end.
    pub fn close(mut self) -> Outcome<()> {
        self.stream.close(CloseReason::Graceful);
        self.ending()?;
        Ok(())
    }

    fn wait(&self, deadline: Deadline) -> Outcome<()> {
        let readiness = self.stream.readiness();
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLIN, readiness.read);
        flags.set(PollFlags::POLLOUT, readiness.write);
        let mut time = deadline.left();
        if let Some(at) = readiness.at {
            let ms = at.since_ns(deadline.now()?).div_ceil(1_000_000);
            time = time.min(PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
        }
        let mut fds = [PollFd::new(self.stream.descriptor(), flags)];
        match poll(&mut fds, time) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
