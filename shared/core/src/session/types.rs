//! What a session is told and what it tells.

use crate::SessionId;
use core::ops::Range;
use kbtp_fabric::{Access, Capabilities, LocalError, Stream, WorkId, WorkRequest};
use kbtp_memory::Region;
use kbtp_wire::{AuthMode, ByteLen, Handle, SessionCapabilities, Stag, TaggedOffset};

/// What a session is made with, when its stream is accepted.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// Its name; never reused.
    pub id: SessionId,
    /// Auth Mode sent.
    pub auth: AuthMode,
    /// Challenge sent: 32 fresh random octets.
    pub challenge: [u8; 32],
    /// The stream's STag of the whole pool, Tagged Offset = Block Offset, `Access::LOCAL`.
    pub pool_stag: Stag,
    /// What the stream can do.
    pub capabilities: Capabilities,
}

/// Registers parts of the target's regions with the session's stream. Every [`Stream`] is one.
pub trait Exposer {
    /// As [`Stream::register`].
    ///
    /// # Errors
    /// As [`Stream::register`].
    fn expose(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError>;

    /// As [`Stream::invalidate`]: no octet is read or written through the STag once this returns.
    ///
    /// # Errors
    /// As [`Stream::invalidate`].
    fn revoke(&mut self, stag: Stag) -> Result<(), LocalError>;
}

impl<S: Stream + ?Sized> Exposer for S {
    fn expose(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        self.register(region, range, base, access)
    }

    fn revoke(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.invalidate(stag)
    }
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intake {
    /// Taken; its receive slot can be released.
    Taken,
    /// It was a HELLO, taken too: call [`TargetSession::admit`](crate::TargetSession::admit) now.
    Admit,
}

/// What became of a HELLO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Answered: the HELLO_ACK is the next work. After a refusal [`TargetSession::phase`](crate::TargetSession::phase) is `Closing`.
    Answered,
    /// This session of the same pair is still connected: close its stream (P8), and call
    /// [`TargetSession::admit`](crate::TargetSession::admit) again once it was [finished](crate::TargetSession::finish).
    /// If it was finished before, what it had bound is being freed, a part at each call: call again, after others had
    /// their turn.
    Replace(SessionId),
}

/// Where a session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionPhase {
    /// Waits for HELLO.
    Hello,
    /// Has a HELLO; [`TargetSession::admit`](crate::TargetSession::admit) is due.
    Admission,
    /// Serves requests.
    Open,
    /// Close the stream in order once [`TargetSession::next_work`](crate::TargetSession::next_work) gives nothing more.
    Closing,
}

/// What a device did for a session by itself; octets of data where there are some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByDevice {
    /// A LOAD.
    Load(ByteLen),
    /// A STORE.
    Store(ByteLen),
    /// An `ALLOC_STORE`.
    AllocStore(ByteLen),
    /// A FREE; its block is kept by the pool.
    Free,
}

/// Why a session must end: close the stream, take its last events, call [`TargetSession::finish`](crate::TargetSession::finish).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The first message is no HELLO, or a later one is (P5).
    #[error("HELLO must come first and once")]
    HelloOrder,
    /// A message too short to hold a common header (P7).
    #[error("a message of {0} octets holds no header")]
    TooShort(usize),
    /// A message longer than the receive that was promised (P7).
    #[error("a message of {len} octets, {limit} were promised")]
    TooLong {
        /// Its length.
        len: usize,
        /// The longest there may be.
        limit: usize,
    },
    /// More than Request Credits outstanding (P7).
    #[error("more than {0} requests outstanding")]
    Credits(u16),
    /// Tickets taken beyond the ring (draft, section 3.4).
    #[error("{taken} tickets taken from a ring of {slots} slots")]
    Tickets {
        /// Tickets taken and not bound.
        taken: u32,
        /// Slots.
        slots: u32,
    },
    /// The stream ended under a request.
    #[error("the stream ended")]
    Flushed,
    /// This party failed.
    #[error("{0}")]
    Local(&'static str),
}

/// One work request to post.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Its name; give it back to [`TargetSession::handle_done`](crate::TargetSession::handle_done).
    pub id: WorkId,
    /// What to post.
    pub request: WorkRequest<'a>,
    /// Whether its end must be reported.
    pub signaled: bool,
}

/// What a session has of its quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionUsage {
    /// Handles bound.
    pub bound: u32,
    /// Tickets that its initiator took and did not bind, as far as they were seen.
    pub tickets: u32,
    /// Allocations under way that have bound nothing yet.
    pub allocating: u32,
}

impl SessionUsage {
    /// The whole, which the quota bounds (draft, section 3.4).
    #[must_use]
    pub const fn total(self) -> u32 {
        self.bound
            .saturating_add(self.tickets)
            .saturating_add(self.allocating)
    }
}

/// What a session was granted, for logs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Tenant.
    pub tenant: String,
    /// Initiator ID.
    pub initiator: [u8; 16],
    /// Quota, in blocks.
    pub quota: u32,
    /// First handle.
    pub handle_base: Handle,
    /// Handles.
    pub handle_count: u64,
    /// Request Credits.
    pub credits: u16,
    /// Max Inline, in octets.
    pub max_inline: u32,
    /// Capabilities granted.
    pub capabilities: SessionCapabilities,
    /// The range was resumed with its bindings (P8).
    pub resumed: bool,
}

impl Grant {
    /// Whether `capability` was granted.
    #[must_use]
    pub const fn has(&self, capability: SessionCapabilities) -> bool {
        self.capabilities.contains(capability)
    }
}
