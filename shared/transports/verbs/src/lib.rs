//! RDMA streams on devices: RoCE version 2, InfiniBand and iWARP, through libibverbs and librdmacm.
//!
//! A [`Listener`] and a [`Connector`] (or [`connect`], which waits) set up a [`VerbsStream`], which implements
//! [`Stream`](kbtp_fabric::Stream) over one reliable connection. [`choice`] is the rule that names device, port and GID;
//! [`probe`] tries out what a device really does. Below stand `kbtp-verbs-sys`, which opens the libraries when they are
//! first needed, and `kbtp-memory`; above, the programs. Without the libraries, or without a device, everything here
//! fails with an error that says so, and a program goes on with iWARP over TCP.
//!
//! ```
//! use kbtp_verbs::{ConnectOptions, connect};
//!
//! match connect("192.0.2.1:7471".parse()?, ConnectOptions::default(), b"", 100) {
//!     Ok(connected) => println!("{} carries it", connected.stream.device()),
//!     Err(error) => println!("no RDMA: {error}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod bare;
pub mod choice;
mod connector;
mod driver;
mod end;
mod keys;
pub mod limits;
mod listener;
mod options;
pub mod probe;
mod quirks;
mod sends;
mod stream;

pub use connector::{ConnectError, Connected, Connector, candidates, connect};
pub use listener::{Accepted, Answer, Listener, ListenerCounters, Request};
pub use options::{ConnectOptions, ListenOptions, StreamOptions};
pub use quirks::Quirks;
pub use stream::VerbsStream;
