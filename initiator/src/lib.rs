//! The KBTP client library.
//!
//! A [`Client`] is one session with a target: it loads blocks into [`Buffer`]s of the caller, stores them, frees them,
//! one at a time or many in flight. A [`BlockCache`] on top of it maps keys to handles. Below it stand `kbtp-core` (the
//! initiator's state machine) and a transport that implements `kbtp_fabric::Stream`; [`Dial`] says which.
#![forbid(unsafe_code)]

#[cfg(feature = "tokio")]
mod async_client;
mod batch;
mod buffer;
mod cache;
mod client;
#[cfg(test)]
mod client_tests;
mod dial;
mod entropy;
mod error;
pub mod limits;
mod link;
mod ops;
mod options;
mod tcp;
#[cfg(test)]
mod testing;

#[cfg(feature = "tokio")]
pub use async_client::{All, AsyncClient, Output, Running};
pub use batch::{FreeItem, LoadItem, StoreItem};
pub use buffer::Buffer;
pub use cache::{BlockCache, CacheError, CacheStats, GetItem, Hit, PutItem};
pub use client::{Client, Resumed};
pub use dial::{Dial, Dialled};
pub use error::{ClientError, Ended, Rejected};
pub use kbtp_core::initiator::{Done, Operation, SessionError, SubmitError, Terms, Usage};
pub use kbtp_iwarp_tcp::Spin;
pub use kbtp_wire::{Generation, Handle, InitiatorId, Status};
pub use ops::{Completed, FreeOptions, LoadOptions, Op, StoreOptions};
pub use options::{Options, Reconnect};
pub use tcp::Tcp;
