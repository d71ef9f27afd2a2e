//! A NIC in software that executes mlx5 work queues: the octets that the hardware would read, and nothing else.
//!
//! [`Model`] is a [`Device`](kbtp_device::Device): WQEs, CQEs, receive WQEs and doorbell records are octets in memory that
//! software registered; what a device keeps beside them (queue pairs, keys, how far each queue has got) is state of the
//! model. It runs one event at a time, by a [`Schedule`] and a seed, and may do all that a device may do to software that
//! counts on too much ([`Hazards`]). A client is another queue pair of the model, a [`Client`] in memory, or whatever a
//! `fabric` stream leads to ([`StreamConnection`]).
//!
//! What it is not: no packets, no retransmission, no timing. Where the device's own documentation is not public, the model
//! does what open source shows that drivers rely on, and the stricter of two readings; nobody has compared it with a device.
//! Below is `kbtp-device`; above it stand tests and the target's chain engine.
#![forbid(unsafe_code)]

mod access;
mod client;
mod connection;
mod cq;
mod device;
mod error;
mod hazards;
mod issue;
pub mod limits;
mod memory;
mod model;
mod outside;
mod qp;
mod random;
mod respond;
mod retire;
mod stream;
mod trace;
mod word;

pub use client::{Client, ClientKey, Received};
pub use connection::{Connection, Ended, FromPeer, Message, exchange};
pub use error::ModelError;
pub use hazards::{Fetch, Hazards, Reply, Sampling, Schedule};
pub use limits::PATIENCE;
pub use memory::Extent;
pub use model::{Model, QpFailure};
pub use outside::{Kind, Outgoing, OutgoingWork};
pub use stream::{OverStream, StreamConnection, StreamLink};
pub use trace::{Deed, TraceEntry, WqeStep};
pub use word::{apply, masked_add};
