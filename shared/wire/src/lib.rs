//! Every octet layout of KBTP and of the protocols below it.
//!
//! No `std`, no allocation, no unsafe: octets in, values out, and back. Nothing outside this crate shifts or masks
//! a protocol field. Below it is nothing; above it stand `kbtp-memory`, `kbtp-fabric` and all the rest.
//!
//! KBTP's own structures are at the root; [`mpa`], [`ddp`] and [`rdmap`] have those of the RFCs. A decoder is total: any
//! octets give a value or a named error, and none is copied but headers.
//!
//! ```
//! use kbtp_wire::{ByteLen, Handle, Operation, Request, RequestId, Source};
//!
//! let request = Request {
//!     request_id: RequestId(1),
//!     handle: Handle(42),
//!     generation: None,
//!     record: None,
//!     operation: Operation::AllocStore {
//!         source: Source::Inline { declared: ByteLen(5), octets: b"block" },
//!         seal: true,
//!     },
//! };
//! let mut message = [0; 64];
//! let len = request.encode_into(&mut message)?;
//! assert_eq!(Request::decode(&message[..len]), Ok(request));
//! # Ok::<(), kbtp_wire::BufferTooSmall>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod ddp;
mod error;
pub mod fixed;
mod ids;
pub mod kbtp;
pub mod mpa;
mod octets;
pub mod rdmap;
mod ring_counter;
mod ring_slot;
mod table_entry;

pub use error::{BufferTooSmall, DecodeError};
pub use ids::{
    BlockOffset, ByteLen, Generation, Handle, RequestId, SlotOffset, Stag, TaggedOffset, Ticket,
};
pub use kbtp::*;
pub use ring_counter::{RingCounter, RingOrder, fetch_add};
pub use ring_slot::RingSlot;
pub use table_entry::TableEntry;
