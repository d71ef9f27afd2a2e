//! RDMAP streams on TCP sockets: what `kbtp-iwarp` says about octets, done with sockets, clocks and entropy.
//!
//! A [`Poller`] waits for streams, wake-ups and times.
#![forbid(unsafe_code)]

mod driver;
pub mod entropy;
pub mod limits;
mod poller;

mod spin;

pub use driver::Clock;
pub use poller::{Interest, Poller, Ready, Waker};

pub use spin::Spin;
