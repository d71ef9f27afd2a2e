//! One connection: a stream and the initiator of its session, moved together.

use crate::error::{ClientError, Ended};
use crate::limits::STEPS_PER_PUMP;
use kbtp_core::initiator::{Initiator, Records, Scratch, Settings};
use kbtp_fabric::{Access, CloseReason, Event, PostError, Readiness, Stream, StreamError, Time};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{Nonce, SessionCapabilities, Stag, TaggedOffset};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names connections of this process, so that no STag of one is taken for another's.
static EPOCHS: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(crate) struct Link<S> {
    /// None once this party has cut it: the peer is to learn of that now, not when there is a new one.
    stream: Option<S>,
    pub(crate) initiator: Initiator,
    pub(crate) epoch: u64,
    ended: Option<Arc<Ended>>,
    /// What [`attempt`](Self::attempt) came to, for the next step to take.
    early: Option<Result<bool, StreamError>>,
}

impl<S: Stream> Link<S> {
    /// A connection whose session is yet to be set up.
    pub(crate) fn new(
        mut stream: S,
        private_data: &[u8],
        settings: Settings,
        nonce: Nonce,
        deadline: Time,
    ) -> Result<Self, LinkError> {
        let region = Region::anonymous(Initiator::SCRATCH_LEN, &PageOptions::default())?;
        let base = TaggedOffset(0);
        let stag = stream.register(&region, 0..Initiator::SCRATCH_LEN, base, Access::LOCAL)?;
        let scratch = Scratch { region, stag, base };
        let wanted = settings
            .capabilities
            .contains(SessionCapabilities::RECORD_COMPLETION);
        let records = if wanted && stream.capabilities().write_with_immediate {
            Some(records(&mut stream)?)
        } else {
            None
        };
        let atomics = stream.capabilities().atomics;
        let initiator = Initiator::new(
            settings,
            private_data,
            nonce,
            atomics,
            Some(scratch),
            records,
            deadline,
        )?;
        Ok(Self {
            stream: Some(stream),
            initiator,
            epoch: EPOCHS.fetch_add(1, Ordering::Relaxed),
            ended: None,
            early: None,
        })
    }

    /// The stream, unless this party has cut it.
    pub(crate) const fn stream(&mut self) -> Option<&mut S> {
        self.stream.as_mut()
    }

    /// How it ended, if it has.
    pub(crate) const fn ended(&self) -> Option<&Arc<Ended>> {
        self.ended.as_ref()
    }

    /// Moves everything as far as it goes without waiting; whether it stopped before that, to look at the clock.
    pub(crate) fn pump(&mut self, now: Time) -> bool {
        for _ in 0..STEPS_PER_PUMP {
            if self.ended.is_some() {
                return false;
            }
            match self.step(now) {
                // What the events asked for goes out at once; a full send queue waits for the stream to move.
                Ok(moved) if moved && self.initiator.work().is_some() => {}
                Ok(_) => return false,
                Err(ended) => self.end(ended),
            }
        }
        true
    }

    /// Posts, moves, takes events and the time, once.
    fn step(&mut self, now: Time) -> Result<bool, Ended> {
        let mut moved = self.post(now)?;
        let Some(stream) = &mut self.stream else {
            return Err(Ended::Closed);
        };
        let progress = match self.early.take() {
            // What was posted since must go out.
            Some(Ok(early)) if moved => stream.progress(now).map(|more| early | more),
            Some(early) => early,
            None => stream.progress(now),
        };
        moved |= self.events(now)?;
        moved |= progress?;
        self.initiator.handle_timeout(now)?;
        Ok(moved)
    }

    /// Looks whether something has come; if so, [`pump`](Self::pump) has something to do. Where something waits to be
    /// sent the socket is to say when it takes a good piece of it: trying on and on would send crumbs.
    pub(crate) fn attempt(&mut self, now: Time) -> bool {
        if self.ended.is_some() || self.early.is_some() {
            return true;
        }
        let Some(stream) = &mut self.stream else {
            return true;
        };
        if stream.readiness().write {
            return false;
        }
        let progress = stream.progress(now);
        let moved = !matches!(progress, Ok(false));
        self.early = moved.then_some(progress);
        moved
    }

    fn post(&mut self, now: Time) -> Result<bool, Ended> {
        let mut posted = false;
        let Some(stream) = &mut self.stream else {
            return Ok(false);
        };
        while let Some(work) = self.initiator.work() {
            match stream.post(work.id, &work.request, work.signaled) {
                Ok(()) => self.initiator.posted(now),
                // One that is closed says why at a progress to come; while its Terminate is on its way that may take a
                // while.
                Err(PostError::QueueFull | PostError::Closed) => break,
                Err(error) => return Err(Ended::Post(error.to_string())),
            }
            posted = true;
        }
        Ok(posted)
    }

    fn events(&mut self, now: Time) -> Result<bool, Ended> {
        let mut any = false;
        let Some(stream) = &mut self.stream else {
            return Ok(false);
        };
        while let Some(event) = stream.next_event() {
            any = true;
            match event {
                Event::Received {
                    slot, invalidated, ..
                } => {
                    let message = stream.message(slot);
                    let taken = self.initiator.handle_received(message, invalidated);
                    stream.release(slot);
                    taken?;
                }
                Event::Immediate { data } => self.initiator.handle_immediate(data)?,
                Event::Done { id, outcome } => self.initiator.handle_done(now, id, outcome)?,
            }
        }
        Ok(any)
    }

    /// How it ended, for its owner to keep.
    pub(crate) fn into_ended(self) -> Option<Arc<Ended>> {
        self.ended
    }

    /// Ends it: what is in flight is lost.
    pub(crate) fn end(&mut self, ended: Ended) {
        if self.ended.is_some() {
            return;
        }
        tracing::debug!(%ended, "the connection ended");
        // One that has ended by itself has told its peer so, perhaps why: that must not be overtaken by a reset.
        if !matches!(ended, Ended::Stream(_))
            && let Some(mut stream) = self.stream.take()
        {
            stream.close(CloseReason::Abort);
        }
        self.initiator.handle_closed();
        self.ended = Some(Arc::new(ended));
    }

    /// Takes a buffer away from an operation that was given up. What the peer still sends to it is dropped.
    pub(crate) fn retire(&mut self, stag: Stag) {
        if self.ended.is_none()
            && let Some(stream) = &mut self.stream
        {
            // One that the peer has invalidated meanwhile is as good as retired.
            drop(stream.retire(stag));
        }
    }

    /// A retired STag has served.
    pub(crate) fn invalidate(&mut self, stag: Stag) {
        if self.ended.is_none()
            && let Some(stream) = &mut self.stream
        {
            // The peer may have invalidated it with its completion.
            drop(stream.invalidate(stag));
        }
    }

    /// When to move again even if nothing comes.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        let at = self.stream.as_ref().and_then(|s| s.readiness().at);
        match (at, self.initiator.timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// What its stream waits for, and where; none once it is cut.
    pub(crate) fn waits(&self) -> Option<(BorrowedFd<'_>, Readiness)> {
        let stream = self.stream.as_ref()?;
        Some((stream.descriptor(), stream.readiness()))
    }

    /// Ends the stream in order; whether it has ended.
    pub(crate) fn close(&mut self, now: Time) -> bool {
        let Some(stream) = &mut self.stream else {
            return true;
        };
        stream.close(CloseReason::Graceful);
        match stream.progress(now) {
            Ok(_) => false,
            Err(StreamError::ClosedHere | StreamError::PeerClosed) => {
                self.end(Ended::Closed);
                true
            }
            Err(error) => {
                self.end(Ended::Stream(error));
                true
            }
        }
    }
}

/// Memory that the target writes completion records to.
fn records<S: Stream>(stream: &mut S) -> Result<Records, LinkError> {
    let region = Region::anonymous(Initiator::RECORDS_LEN, &PageOptions::default())?;
    let base = TaggedOffset(0);
    let access = Access {
        remote_write: true,
        ..Access::LOCAL
    };
    let stag = stream.register(&region, 0..Initiator::RECORDS_LEN, base, access)?;
    Ok(Records { region, stag, base })
}

/// Why a connection's session could not be begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Memory(#[from] kbtp_memory::MapError),
    #[error(transparent)]
    Local(#[from] kbtp_fabric::LocalError),
    #[error(transparent)]
    Session(#[from] kbtp_core::initiator::SessionError),
}

impl LinkError {
    /// As the client reports it.
    pub(crate) fn at(self, address: &str) -> ClientError {
        match self {
            Self::Memory(error) => error.into(),
            Self::Local(error) => error.into(),
            Self::Session(source) => ClientError::Session {
                address: address.into(),
                source,
            },
        }
    }
}
