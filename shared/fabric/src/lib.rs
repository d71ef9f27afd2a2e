//! The RDMA service a KBTP party needs, as types and one trait, in the terms of RFC 5040.
//!
//! A [`Stream`] is one RDMAP Stream (or reliable connection). Its user registers [`Region`](kbtp_memory::Region)s with it, posts
//! [`WorkRequest`]s, lets it [`progress`](Stream::progress), and takes [`Event`]s. The transports implement it; the
//! state machines of `kbtp-core` emit [`WorkRequest`]s and take [`Event`]s without knowing which transport runs.
#![forbid(unsafe_code)]

mod log_budget;
mod stream;
mod types;
mod work;

pub use log_budget::LogBudget;
pub use stream::{CloseReason, LocalError, PostError, Readiness, Stream, StreamError};
pub use types::{Access, Atomics, Capabilities, LocalBuffer, RemoteBuffer, Time};
pub use work::{Event, ReceiveSlot, WorkId, WorkOutcome, WorkRequest};
