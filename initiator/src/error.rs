//! What can go wrong, by who has to act.

use kbtp_core::initiator::{Failure, Finished, Operation, SessionError, SubmitError};
use kbtp_fabric::{LocalError, StreamError};
use kbtp_memory::{AccessError, MapError};
use kbtp_wire::{ByteLen, Generation, Handle, Status, Ticket};
use std::fmt;
use std::io;
use std::sync::Arc;

/// How a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The session: the target refused it, or broke the protocol.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Work could not be posted.
    #[error("work could not be posted: {0}")]
    Post(String),
    /// The caller closed it.
    #[error("closed here")]
    Closed,
}

/// What an operation, or the client, failed with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The target answered the operation with a Status (profile, P7).
    #[error("{operation} of handle {handle}: {status}{}", Found(*generation, *len))]
    Status {
        /// Which operation.
        operation: Operation,
        /// On which handle.
        handle: Handle,
        /// The answer.
        status: Status,
        /// The entry's Generation, if the answer carries one.
        generation: Option<Generation>,
        /// The block's Data Length with `LENGTH_ERROR` of a load, else zero.
        len: ByteLen,
    },
    /// Its time ran out.
    #[error("{operation} of handle {handle}: no answer in time{}", Maybe(*sent))]
    Deadline {
        /// Which operation.
        operation: Operation,
        /// On which handle.
        handle: Handle,
        /// Whether the target may still carry it out.
        sent: bool,
    },
    /// The caller gave it up.
    #[error("{operation} of handle {handle}: cancelled{}", Maybe(*sent))]
    Cancelled {
        /// Which operation.
        operation: Operation,
        /// On which handle.
        handle: Handle,
        /// Whether the target may still carry it out.
        sent: bool,
    },
    /// The connection was lost under it. With `sent`, its outcome is unknown.
    #[error("{operation} of handle {handle}: the connection was lost ({cause}){}", Maybe(*sent))]
    Disconnected {
        /// Which operation.
        operation: Operation,
        /// On which handle.
        handle: Handle,
        /// Whether the target may have carried it out.
        sent: bool,
        /// How it was lost.
        cause: Arc<Ended>,
    },
    /// A direct load saw the entry change each time it tried.
    #[error("direct load of handle {handle}: the entry changed under each of {attempts} attempts")]
    Unstable {
        /// Which handle.
        handle: Handle,
        /// How often it tried.
        attempts: u8,
    },
    /// The ring gave no block for a ticket within the Ticket Timeout.
    #[error("direct allocation for handle {handle}: no block for ticket {ticket} in time")]
    TicketTimeout {
        /// Which handle.
        handle: Handle,
        /// The ticket.
        ticket: Ticket,
    },
    /// The operation was not taken; nothing was sent.
    #[error("{operation} of handle {handle}: {reason}")]
    Rejected {
        /// Which operation.
        operation: Operation,
        /// On which handle.
        handle: Handle,
        /// Why.
        reason: SubmitError,
    },
    /// There is no connection: reconnect.
    #[error("not connected: {cause}")]
    NotConnected {
        /// How it was lost.
        cause: Arc<Ended>,
    },
    /// The connection could not be set up.
    #[error("connecting to {address}: {source}")]
    Connect {
        /// To where.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The session could not be set up.
    #[error("setting up the session with {address}: {source}")]
    Session {
        /// With whom.
        address: String,
        /// Why not.
        #[source]
        source: SessionError,
    },
    /// The stream ended while the session was set up.
    #[error("setting up the session with {address}: {source}")]
    Stream {
        /// With whom.
        address: String,
        /// Why.
        #[source]
        source: StreamError,
    },
    /// More pipelined operations than are kept: claim some that ended.
    #[error("{limit} operations are in flight or unclaimed")]
    Unclaimed {
        /// How many may be.
        limit: usize,
    },
    /// There is no such pipelined operation: it was claimed already, or belongs to another client.
    #[error("there is no such operation in flight")]
    UnknownOp,
    /// A limit or fault of this party.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// Octets outside a buffer.
    #[error("{what}: {source}")]
    Buffer {
        /// What was to be done.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: AccessError,
    },
    /// A length that no buffer can have.
    #[error("{what}: {len} octets, where {limit} are possible")]
    Length {
        /// What was to be done.
        what: &'static str,
        /// Octets.
        len: u64,
        /// At most.
        limit: u64,
    },
    /// The system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

impl ClientError {
    /// The Status that the target answered with.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. }
            | Self::Session {
                source: SessionError::Refused { status },
                ..
            } => Some(*status),
            _ => None,
        }
    }

    /// Whether the block is not there (any more): not bound, or bound anew since.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(
            self.status(),
            Some(Status::NotValid | Status::GenerationMismatch)
        )
    }

    /// Whether the operation was not taken for want of a free slot: try again when something has ended.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(
            self,
            Self::Unclaimed { .. }
                | Self::Rejected {
                    reason: SubmitError::Busy { .. },
                    ..
                }
        )
    }

    /// Whether the connection is gone.
    #[must_use]
    pub const fn is_disconnected(&self) -> bool {
        matches!(
            self,
            Self::Disconnected { .. }
                | Self::NotConnected { .. }
                | Self::Rejected {
                    reason: SubmitError::NotOpen,
                    ..
                }
        )
    }

    /// Whether the target may have carried the operation out, or still may, without this party knowing.
    #[must_use]
    pub const fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            Self::Deadline { sent: true, .. }
                | Self::Cancelled { sent: true, .. }
                | Self::Disconnected { sent: true, .. }
        )
    }

    /// What a failure of `finished` is to the caller.
    pub(crate) fn of(finished: &Finished, failure: Failure, cause: Option<&Arc<Ended>>) -> Self {
        let (operation, handle) = (finished.operation, finished.handle);
        match failure {
            Failure::Status {
                status,
                generation,
                len,
            } => Self::Status {
                operation,
                handle,
                status,
                generation,
                len,
            },
            Failure::GivenUp {
                sent,
                deadline: true,
            } => Self::Deadline {
                operation,
                handle,
                sent,
            },
            Failure::GivenUp { sent, .. } => Self::Cancelled {
                operation,
                handle,
                sent,
            },
            Failure::Unstable { attempts } => Self::Unstable { handle, attempts },
            Failure::TicketTimeout { ticket } => Self::TicketTimeout { handle, ticket },
            Failure::Lost { sent } => Self::Disconnected {
                operation,
                handle,
                sent,
                cause: cause.map_or_else(|| Arc::new(Ended::Closed), Arc::clone),
            },
            // The core's list may grow; what is new is shown by its own words.
            other => Self::Disconnected {
                operation,
                handle,
                sent: true,
                cause: Arc::new(Ended::Post(format!("{other:?}"))),
            },
        }
    }
}

/// An operation that was not taken, and the buffer that was to go with it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Rejected {
    /// Why not.
    #[source]
    pub error: ClientError,
    /// The buffer, untouched.
    pub buffer: Option<crate::Buffer>,
}

/// `, generation 3, 4096 octets`, as far as known.
struct Found(Option<Generation>, ByteLen);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(generation) = self.0 {
            write!(f, ", generation {generation}")?;
        }
        if self.1.0 > 0 {
            write!(f, ", {} octets", self.1)?;
        }
        Ok(())
    }
}

/// `; the target may have carried it out`, if so.
struct Maybe(bool);

impl fmt::Display for Maybe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 {
            "; the target may have carried it out"
        } else {
            "; nothing was sent that changes anything"
        })
    }
}
