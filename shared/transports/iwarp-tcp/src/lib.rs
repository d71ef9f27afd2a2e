//! RDMAP streams on TCP sockets: what `kbtp-iwarp` says about octets, done with sockets, clocks and entropy.
//!
//! A [`Listener`] and a [`Connector`] (or [`connect`], which waits) set up a [`TcpRdmaStream`], which implements
//! [`Stream`](kbtp_fabric::Stream). A [`Poller`] waits for streams, for wake-ups from other threads and for times.
//! Below stand `kbtp-iwarp` (the protocol) and `kbtp-memory` (every system call on regions); above, the programs.
//!
//! ```
//! use kbtp_fabric::{Event, Stream, WorkId, WorkRequest};
//! use kbtp_iwarp_tcp::{Answer, Clock, ConnectOptions, ListenOptions, Listener, Request, connect};
//!
//! let mut listener = Listener::bind("127.0.0.1:0".parse()?, ListenOptions::default())?;
//! let to = listener.local_addr();
//! let client = std::thread::spawn(move || connect(to, ConnectOptions::default(), b"", 5_000));
//! let (clock, mut answer) = (Clock::new(), |_: &Request<'_>| Answer::Accept { private_data: Vec::new() });
//! let mut there = loop {
//!     // A program waits for the listener's descriptor with a poller instead of asking again and again.
//!     if let Some(accepted) = listener.progress(clock.now(), &mut answer)? {
//!         break accepted.stream;
//!     }
//! };
//! let mut here = client.join().expect("the thread did not panic")?.stream;
//! let send = WorkRequest::Send { head: b"a request", tail: None, solicited: false, invalidate: None };
//! here.post(WorkId(1), &send, false)?;
//! here.progress(clock.now())?;
//! while !matches!(there.next_event(), Some(Event::Received { .. })) {
//!     there.progress(clock.now())?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod connector;
mod driver;
pub mod entropy;
pub mod limits;
mod listener;
mod poller;
mod socket;
mod spin;
mod stream;

pub use connector::{ConnectError, ConnectOptions, Connected, Connector, connect};
pub use driver::Clock;
pub use kbtp_iwarp::{Config, CopyFirst, Handshake};
pub use listener::{
    Accepted, Answer, ListenOptions, Listener, ListenerCounters, PEER_LOG, Request, source,
};
pub use poller::{Interest, Poller, Ready, Waker};
pub use socket::TcpOptions;
pub use spin::Spin;
pub use stream::{FpduSize, StreamOptions, TcpRdmaStream, Traffic};
