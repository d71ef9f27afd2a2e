//! The KBTP client library.
//!
//! A [`Client`] is one session with a target: it loads blocks into [`Buffer`]s of the caller, stores them, frees them,
//! one at a time, pipelined, or in batches that keep the session's credits full. A [`BlockCache`] on top of it maps keys
//! to handles and evicts what was used least lately. With the feature `tokio`, `AsyncClient` is the same for tasks.
//! Below stand `kbtp-core` (the initiator's state machine, which has no clock and no socket) and a transport that
//! implements `kbtp_fabric::Stream`: [`Tcp`] here, or what a [`Dial`] gives.
//!
//! # A block
//!
//! ```
//! use kbtp_initiator::{Client, LoadOptions, Options, StoreOptions};
//!
//! # let target = kbtp_target::Target::start(kbtp_target::TargetConfig {
//! #     listen: vec!["127.0.0.1:0".parse()?],
//! #     admin: None,
//! #     ..kbtp_target::TargetConfig::default()
//! # })?;
//! # let address = target.address().ok_or("it listens")?.to_string();
//! let mut client = Client::connect(Options::new(address).quota(16))?;
//! let (first, _count) = client.handles();
//! let mut buffer = client.register(client.block_size())?;
//!
//! buffer.fill(b"keys and values of 16 tokens")?;
//! let stored = client.alloc_store(first, &mut buffer, &StoreOptions::default())?;
//!
//! let same = LoadOptions { generation: Some(stored.generation), ..LoadOptions::default() };
//! let loaded = client.load(first, &mut buffer, &same)?;
//! assert_eq!(loaded.len, stored.len);
//! assert_eq!(buffer.to_vec()?, b"keys and values of 16 tokens");
//! client.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A cache
//!
//! ```
//! use kbtp_initiator::{BlockCache, Client, Options};
//!
//! # let target = kbtp_target::Target::start(kbtp_target::TargetConfig {
//! #     listen: vec!["127.0.0.1:0".parse()?],
//! #     admin: None,
//! #     ..kbtp_target::TargetConfig::default()
//! # })?;
//! # let address = target.address().ok_or("it listens")?.to_string();
//! let mut cache = BlockCache::new(Client::connect(Options::new(address).quota(16))?);
//! let mut buffer = cache.client().register(cache.client().block_size())?;
//! for key in ["a", "ab", "abc"] {
//!     buffer.fill(key.as_bytes())?;
//!     cache.put(key.as_bytes(), &mut buffer)?;
//! }
//! // How much of a prompt is there already?
//! assert_eq!(cache.prefix_len(["a", "ab", "abc", "abcd"]), 3);
//! let hit = cache.get(b"ab", &mut buffer)?;
//! assert_eq!(hit.map(|hit| hit.len), Some(2));
//! assert_eq!(cache.get(b"abcd", &mut buffer)?, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Many at once
//!
//! Batches ([`Client::load_many`] and its like) borrow their buffers and return when all is over. Pipelined calls
//! ([`Client::submit_load`] and its like) take the buffer; [`Client::wait`], [`Client::wait_any`] and
//! [`Client::poll_any`] give it back with the result.
//!
//! # When something goes wrong
//!
//! [`ClientError`] names the operation and its values. An operation always ends, with its deadline at the latest, and its
//! buffer is then the caller's alone: what the target still sends for it is dropped. [`ClientError::outcome_unknown`] says
//! whether the target may have carried it out nevertheless. A broken connection is set up again by
//! [`Client::reconnect`], or by itself ([`Reconnect`]); [`Resumed`] says whether what was bound is still there.
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
mod table;
mod tcp;
#[cfg(test)]
mod testing;
mod verbs;

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
pub use verbs::Verbs;
