//! A sans-IO RDMAP Stream: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040, RFC 7306) in one object.
//!
//! It owns no socket, clock, thread or randomness. A transport asks where the next octets go, reads them there and
//! says how many came; asks what to send, writes it and says how many went. Above it stands `kbtp-iwarp-tcp`; beside
//! it `kbtp-fabric` gives the types.
//!
//! Octets of payload never pass through a buffer of this crate: a header names the place of its payload, and the next
//! read goes there; payload to send is gathered from where it lies. See `docs/adr/0001-placement-before-crc.md` for
//! what that means for the CRC.
//!
//! ```
//! use kbtp_iwarp::{Config, Connection, Startup};
//! use kbtp_fabric::Time;
//!
//! let config = Config::default();
//! let mut connection = Connection::initiator(&config, [7; 32], b"hello", Time(0))?;
//! // The MPA Request Frame: 20 octets, 4 of IRD and ORD, and the Private Data.
//! assert_eq!(connection.send_vec(Time(0)).octets(), 29);
//! connection.handle_sent(29, Time(0));
//! assert_eq!(connection.startup(), Startup::Pending);
//! # Ok::<(), kbtp_fabric::LocalError>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod config;
mod connection;
mod deliver;
mod ending;
mod inbound;
mod incoming;
mod inspect;
pub mod limits;
mod opening;
mod outgoing;
#[doc(hidden)]
pub mod plants;
mod post;
mod ring;
mod send_queue;
mod siphash;
mod slots;
mod stags;
mod startup;
mod state;
mod terminate;
#[cfg(test)]
mod tests;
mod transmit;

pub use config::{Config, CopyFirst, Handshake};
pub use connection::{Action, Connection, Startup};
