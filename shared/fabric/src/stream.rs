//! One RDMAP Stream, as its user sees it.

use crate::{Access, Capabilities, Event, ReceiveSlot, Time, WorkId, WorkRequest};
use core::ops::Range;
use kbtp_memory::Region;
use kbtp_wire::{Stag, TaggedOffset};
use std::os::fd::BorrowedFd;

/// This party's own fault or limit: nothing the peer did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// A limit of `limits.rs` or of the device is reached.
    #[error("{what}: the limit of {limit} is reached")]
    Limit {
        /// What there is no more of.
        what: &'static str,
        /// How many there may be.
        limit: u64,
    },
    /// A range outside its region.
    #[error("{what}: octets {start}..{end} lie outside a region of {len}")]
    Range {
        /// What was to be done.
        what: &'static str,
        /// First octet.
        start: u64,
        /// One past the last.
        end: u64,
        /// Length of the region.
        len: u64,
    },
    /// An STag that this stream does not have.
    #[error("{stag} is not an STag of this stream")]
    UnknownStag {
        /// The STag.
        stag: Stag,
    },
    /// The operating system refused.
    #[error("{what}")]
    Os {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
}

/// Why work was not taken. Nothing was posted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The send queue is full: let the stream progress and post again.
    #[error("the send queue is full")]
    QueueFull,
    /// The stream has ended.
    #[error("the stream has ended")]
    Closed,
    /// The stream has no such operation.
    #[error("this stream does not offer {operation}")]
    Unsupported {
        /// Which.
        operation: &'static str,
    },
    /// A buffer or STag of this party is wrong.
    #[error(transparent)]
    Local(#[from] LocalError),
}

/// How a stream ended. After it, [`Stream::next_event`] flushes what was posted, then gives nothing more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer closed it in order.
    #[error("the peer closed the stream")]
    PeerClosed,
    /// The peer sent a Terminate message (RFC 5040, section 4.8).
    #[error("the peer terminated the stream: {reason}")]
    PeerTerminated {
        /// Layer, error type and code, in words.
        reason: String,
    },
    /// The peer broke a rule, and this party told it so with a Terminate where the RFC has one.
    #[error("the peer broke the protocol: {reason}")]
    Protocol {
        /// Which rule, in words.
        reason: String,
    },
    /// The connection broke, or the peer was silent too long.
    #[error("the connection broke: {source}")]
    Connection {
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// This party closed it.
    #[error("closed here")]
    ClosedHere,
}

/// How this party ends a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// In order: what was posted goes out first.
    Graceful,
    /// At once.
    Abort,
}

/// What a stream waits for on its file descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// Wake when it can be read.
    pub read: bool,
    /// Wake when it can be written.
    pub write: bool,
    /// Wake at this time even so (a timer of the stream).
    pub at: Option<Time>,
}

/// One RDMAP Stream or reliable connection, established.
///
/// The order of calls: `progress` when the descriptor is ready or a timer is due, `next_event` until it gives
/// `None`, `post` as needed, `progress` again to send. A stream belongs to one thread at a time.
pub trait Stream {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// STags registered now, those retired too; none if it does not count them. For status pages.
    fn stags(&self) -> Option<u64> {
        None
    }

    /// The Tagged Offset at which a peer finds octet `start` of `region` once it is registered: the one that is wanted,
    /// but on a device that has no other than its own. [`register`](Self::register) takes it as its base.
    fn tagged_base(&self, region: &Region, start: u64, wanted: TaggedOffset) -> TaggedOffset {
        let _ = (region, start);
        wanted
    }

    /// Registers `range` of `region` with this stream and names it with a fresh, unguessable STag. The octet
    /// `range.start` has Tagged Offset `base`.
    ///
    /// # Errors
    /// [`LocalError`] if the range is outside the region or there are too many registrations.
    fn register(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError>;

    /// Invalidates an STag of this party: no octet is read or written through it once this returns, and a peer that
    /// uses it ends the stream.
    ///
    /// # Errors
    /// [`LocalError::UnknownStag`] if it was not valid.
    fn invalidate(&mut self, stag: Stag) -> Result<(), LocalError>;

    /// Retires an STag of this party: the buffer is not touched once this returns, but what the peer still writes to
    /// it is dropped instead of ending the stream. For an operation that was given up. Where the transport cannot do
    /// that, the stream is closed.
    ///
    /// # Errors
    /// [`LocalError::UnknownStag`] if it was not valid.
    fn retire(&mut self, stag: Stag) -> Result<(), LocalError>;

    /// Posts work. `signaled` work is reported by [`Event::Done`] when it ends; the rest only if it is flushed.
    ///
    /// # Errors
    /// [`PostError`]: nothing was posted.
    fn post(&mut self, id: WorkId, work: &WorkRequest<'_>, signaled: bool)
    -> Result<(), PostError>;

    /// Moves octets both ways as far as they go without waiting, and runs the timers due at `now`.
    /// Returns whether anything moved.
    ///
    /// # Errors
    /// [`StreamError`] once, when the stream ends; take the last events then.
    fn progress(&mut self, now: Time) -> Result<bool, StreamError>;

    /// The next event, in order; `None` if there is none now.
    fn next_event(&mut self) -> Option<Event>;

    /// The octets of a received message; empty for a slot that is not held.
    fn message(&self, slot: ReceiveSlot) -> &[u8];

    /// Gives a receive slot back to the stream, so that the peer may send again.
    fn release(&mut self, slot: ReceiveSlot);

    /// What to wait for before the next `progress`.
    fn readiness(&self) -> Readiness;

    /// The descriptor to wait on.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Ends the stream; `progress` until it reports the end.
    fn close(&mut self, how: CloseReason);
}
