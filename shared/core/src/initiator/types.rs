//! What goes into the initiator and what comes out of it.

use core::fmt;
use kbtp_fabric::{LocalBuffer, Time, WorkId, WorkRequest};
use kbtp_wire::{
    BlockOffset, ByteLen, DecodeError, Generation, Handle, InitiatorId, RequestId,
    SessionCapabilities, Stag, Status, Ticket,
};

pub use crate::TenantKey;

/// What to ask of the target in HELLO (profile, P5), and this party's own bounds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Initiator ID, a UUID; with the tenant it names the handle range (P8).
    pub initiator_id: InitiatorId,
    /// Tenant; may be empty towards a target without authentication.
    pub tenant: String,
    /// Its key; needed if the target authenticates.
    pub key: Option<TenantKey>,
    /// Name and version of the software, informative; may be empty.
    pub software: String,
    /// Request Credits wanted; 0: the target's default.
    pub request_credits: u16,
    /// Capabilities wanted.
    pub capabilities: SessionCapabilities,
    /// Quota wanted, in blocks; 0: the target's default.
    pub quota: u32,
    /// Longest inline data wanted, in octets.
    pub max_inline: ByteLen,
    /// Handles wanted; 0: as many as the quota.
    pub handles: u64,
    /// Direct loads in flight, at most [`MAX_DIRECT_LOADS`](super::limits::MAX_DIRECT_LOADS).
    pub max_direct_loads: u16,
}

impl Settings {
    /// The target's defaults, no direct modes, no authentication.
    #[must_use]
    pub const fn new(initiator_id: InitiatorId) -> Self {
        Self {
            initiator_id,
            tenant: String::new(),
            key: None,
            software: String::new(),
            request_credits: 0,
            capabilities: SessionCapabilities::NONE,
            quota: 0,
            max_inline: ByteLen(0),
            handles: 0,
            max_direct_loads: 16,
        }
    }
}

/// One operation to carry out. Buffers must stay registered, and the caller's hands off them, until the operation is
/// reported by [`Initiator::poll_finished`](super::Initiator::poll_finished).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Block Load (draft, section 6.1).
    Load {
        /// Which block.
        handle: Handle,
        /// The Generation it must have; `None`: any.
        generation: Option<Generation>,
        /// Where it goes; the target writes it with RDMA Write.
        into: LocalBuffer,
        /// Take an unsealed block too.
        allow_unsealed: bool,
        /// Have the target invalidate the STag of `into` when it completes.
        invalidate: bool,
    },
    /// Block Mapped Store (section 6.2).
    Store {
        /// Which block.
        handle: Handle,
        /// The Generation it must have; `None`: any.
        generation: Option<Generation>,
        /// The data.
        from: Source,
        /// Seal the block.
        seal: bool,
    },
    /// Block Unmapped Store (section 6.3).
    AllocStore {
        /// The handle to bind.
        handle: Handle,
        /// The data.
        from: Source,
        /// Seal the block.
        seal: bool,
    },
    /// Block Free (section 6.4).
    Free {
        /// Which block.
        handle: Handle,
        /// The Generation it must have; `None`: any.
        generation: Option<Generation>,
    },
    /// Direct Load (section 6.6): three dependent RDMA Reads, no Request Credit.
    LoadDirect {
        /// Which block.
        handle: Handle,
        /// The Generation it must have; `None`: any.
        generation: Option<Generation>,
        /// Where it goes, by this party's own RDMA Read.
        into: LocalBuffer,
    },
    /// Direct Allocation (section 6.6): `FetchAdd`, reads of the slot, RDMA Write, BIND.
    AllocDirect {
        /// The handle to bind.
        handle: Handle,
        /// The data.
        from: LocalBuffer,
        /// Seal the block.
        seal: bool,
    },
}

/// Where the data of a store comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Sent after the request.
    Inline(LocalBuffer),
    /// Read by the target with RDMA Read.
    Read {
        /// The data.
        from: LocalBuffer,
        /// Have the target invalidate its STag when it completes.
        invalidate: bool,
    },
}

impl Source {
    /// The data.
    #[must_use]
    pub const fn buffer(&self) -> LocalBuffer {
        match *self {
            Self::Inline(from) | Self::Read { from, .. } => from,
        }
    }
}

/// The kinds of operation, for reports and errors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Block Load.
    Load,
    /// Block Mapped Store.
    Store,
    /// Block Unmapped Store.
    AllocStore,
    /// Block Free.
    Free,
    /// Direct Load.
    LoadDirect,
    /// Direct Allocation.
    AllocDirect,
}

impl Operation {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Store => "store",
            Self::AllocStore => "alloc-store",
            Self::Free => "free",
            Self::LoadDirect => "direct load",
            Self::AllocDirect => "direct allocation",
        }
    }

    /// Whether carrying it out twice is the same as once.
    #[must_use]
    pub const fn is_idempotent(self) -> bool {
        matches!(self, Self::Load | Self::LoadDirect)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Request {
    /// What kind of operation it is.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        match self {
            Self::Load { .. } => Operation::Load,
            Self::Store { .. } => Operation::Store,
            Self::AllocStore { .. } => Operation::AllocStore,
            Self::Free { .. } => Operation::Free,
            Self::LoadDirect { .. } => Operation::LoadDirect,
            Self::AllocDirect { .. } => Operation::AllocDirect,
        }
    }

    /// Its handle.
    #[must_use]
    pub const fn handle(&self) -> Handle {
        match *self {
            Self::Load { handle, .. }
            | Self::Store { handle, .. }
            | Self::AllocStore { handle, .. }
            | Self::Free { handle, .. }
            | Self::LoadDirect { handle, .. }
            | Self::AllocDirect { handle, .. } => handle,
        }
    }

    /// The Generation it expects.
    #[must_use]
    pub const fn generation(&self) -> Option<Generation> {
        match *self {
            Self::Load { generation, .. }
            | Self::Store { generation, .. }
            | Self::Free { generation, .. }
            | Self::LoadDirect { generation, .. } => generation,
            Self::AllocStore { .. } | Self::AllocDirect { .. } => None,
        }
    }

    /// The STag of its buffer.
    pub(super) const fn stag(&self) -> Option<Stag> {
        match self {
            Self::Load { into, .. } | Self::LoadDirect { into, .. } => Some(into.stag),
            Self::Store { from, .. } | Self::AllocStore { from, .. } => Some(from.buffer().stag),
            Self::AllocDirect { from, .. } => Some(from.stag),
            Self::Free { .. } => None,
        }
    }

    /// Whether it binds a handle, and so counts against the quota.
    pub(super) const fn allocates(&self) -> bool {
        matches!(self, Self::AllocStore { .. } | Self::AllocDirect { .. })
    }

    /// The STag that the target is asked to invalidate.
    pub(super) const fn invalidates(&self) -> Option<Stag> {
        match *self {
            Self::Load {
                into,
                invalidate: true,
                ..
            } => Some(into.stag),
            Self::Store {
                from:
                    Source::Read {
                        from,
                        invalidate: true,
                    },
                ..
            }
            | Self::AllocStore {
                from:
                    Source::Read {
                        from,
                        invalidate: true,
                    },
                ..
            } => Some(from.stag),
            _ => None,
        }
    }
}

/// Names an operation in flight: its first Request ID, never used twice in a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct OpId(pub(super) u64);

/// An operation that ended. Each operation submitted gives exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// Which.
    pub op: OpId,
    /// The number its submitter gave it.
    pub token: u64,
    /// What it was.
    pub operation: Operation,
    /// On which handle.
    pub handle: Handle,
    /// How it ended.
    pub result: Result<Done, Failure>,
    /// The STag of its buffer was invalidated by the target, as asked: register the buffer anew before its next use.
    pub invalidated: bool,
}

/// What a successful operation found or made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Loads: octets now in the buffer. Stores: octets stored. Free: zero.
    pub len: ByteLen,
    /// The entry's Generation; after a free, the new one.
    pub generation: Generation,
    /// The block (zero after a free).
    pub block: BlockOffset,
}

/// How an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The target answered with this Status, or a direct mode found what the target would have answered so.
    Status {
        /// The Status, not OK.
        status: Status,
        /// The entry's Generation, if the answer carries one.
        generation: Option<Generation>,
        /// The entry's Data Length with `LENGTH_ERROR` of a load, else zero.
        len: ByteLen,
    },
    /// Its deadline passed, or the caller gave it up. Retire the STag of its buffer before using the buffer again.
    GivenUp {
        /// Whether the target may still carry it out.
        sent: bool,
        /// By the deadline, not by the caller.
        deadline: bool,
    },
    /// The stream or the session ended first.
    Lost {
        /// Whether the target may have carried it out.
        sent: bool,
    },
    /// A direct load saw the entry change each time.
    Unstable {
        /// How often it tried.
        attempts: u8,
    },
    /// The ring did not give a block for the ticket within the Ticket Timeout.
    TicketTimeout {
        /// The ticket.
        ticket: Ticket,
    },
}

/// Why an operation was not taken. Nothing was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// There is no session (yet, or any more).
    #[error("there is no open session")]
    NotOpen,
    /// The handle is outside the table that direct loads read.
    #[error("handle {handle} is outside the block table")]
    OutsideTable {
        /// The handle.
        handle: Handle,
    },
    /// All Request Credits or slots are in use: take finished operations, then try again.
    #[error("all {limit} requests the session allows are in flight")]
    Busy {
        /// How many may be.
        limit: u32,
    },
    /// The capability was not granted, or was lost.
    #[error("the session has no {0}")]
    NotGranted(&'static str),
    /// One more block would exceed the Allocation Quota (draft, section 3.4).
    #[error("the quota of {quota} blocks is used up")]
    Quota {
        /// The quota granted.
        quota: u32,
    },
    /// Too long for what it is to go through.
    #[error("{what}: {len} octets where at most {limit} go")]
    TooLong {
        /// Inline data, or a block.
        what: &'static str,
        /// Octets.
        len: ByteLen,
        /// At most.
        limit: ByteLen,
    },
}

/// Why a session could not be set up, or ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The target said no in `HELLO_ACK`.
    #[error("the target refused the session: {status}")]
    Refused {
        /// Why.
        status: Status,
    },
    /// The target broke a rule.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// No `HELLO_ACK` in time.
    #[error("no HELLO_ACK came in time")]
    HelloTimeout,
    /// The target authenticates, and there is no key.
    #[error("the target wants authentication, and no key is set")]
    KeyMissing,
    /// A setting does not fit its field.
    #[error("{what} has {len} octets; at most {limit} go")]
    Setting {
        /// Which.
        what: &'static str,
        /// Octets.
        len: usize,
        /// At most.
        limit: usize,
    },
}

/// A rule the target broke. The session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// Octets that are not what they should be.
    #[error("malformed message: {0}")]
    Malformed(#[from] DecodeError),
    /// Private data that no KBTP target sends (profile, P9).
    #[error("the reply's private data is not that of a KBTP target: {0}")]
    PrivateData(&'static str),
    /// A completion of a request that is not outstanding: never sent, or completed already.
    #[error("a completion for request {id}, which is not outstanding")]
    NotOutstanding {
        /// The Request ID that came.
        id: RequestId,
    },
    /// An answer to another request, or about another handle.
    #[error("the answer to request {id} names handle {got}, not {expected}")]
    WrongHandle {
        /// The request.
        id: RequestId,
        /// Its handle.
        expected: Handle,
        /// The completion's.
        got: Handle,
    },
    /// A completion that contradicts its request.
    #[error("the completion of request {id}: {what} is {value}")]
    Completion {
        /// The request.
        id: RequestId,
        /// Which field.
        what: &'static str,
        /// What it holds.
        value: u64,
    },
    /// An invalidation that was not asked for.
    #[error("{stag} was invalidated without being asked for")]
    Invalidated {
        /// The STag.
        stag: Stag,
    },
    /// `HELLO_ACK` grants what cannot be.
    #[error("HELLO_ACK: {what} is {value}, which cannot be")]
    Geometry {
        /// Which field.
        what: &'static str,
        /// What it holds.
        value: u64,
    },
    /// A ring counter or slot that cannot be.
    #[error("{what} holds {value:#x}, which cannot be")]
    Ring {
        /// Which.
        what: &'static str,
        /// What it holds.
        value: u64,
    },
    /// Immediate Data that announces the record of no request that waits for one.
    #[error("Immediate Data {data:#010x} was not asked for")]
    Immediate {
        /// The data.
        data: u32,
    },
    /// The stream reported work of another kind than was posted.
    #[error("{0} ended otherwise than posted")]
    Outcome(&'static str),
}

/// Work to post: hand it to the stream, then call [`Initiator::posted`](super::Initiator::posted).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work<'a> {
    /// Its name.
    pub id: WorkId,
    /// What to post.
    pub request: WorkRequest<'a>,
    /// Whether its end must be reported.
    pub signaled: bool,
}

/// Blocks of the quota in use, as far as this party knows (draft, section 3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Handles bound for certain.
    pub bound: u32,
    /// Handles that may be bound: their allocation or their free was lost with a stream.
    pub unsure: u32,
    /// Allocations in flight.
    pub pending: u32,
}

impl Usage {
    /// At least so many blocks are in use.
    #[must_use]
    pub const fn at_least(&self) -> u32 {
        self.bound.saturating_add(self.pending)
    }

    /// At most so many blocks are in use.
    #[must_use]
    pub const fn at_most(&self) -> u32 {
        self.at_least().saturating_add(self.unsure)
    }
}

/// A time no clock reaches: no deadline.
pub const NEVER: Time = Time(u64::MAX);
