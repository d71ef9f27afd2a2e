//! RDMAP streams on TCP sockets: what `kbtp-iwarp` says about octets, done with sockets, clocks and entropy.
//!
//! A [`Poller`] waits for streams, wake-ups and times.
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
pub use listener::{Accepted, Answer, ListenOptions, Listener, ListenerCounters, Request};
pub use poller::{Interest, Poller, Ready, Waker};

pub use socket::TcpOptions;
pub use spin::Spin;
pub use stream::{FpduSize, StreamOptions, TcpRdmaStream, Traffic};
