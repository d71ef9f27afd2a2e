//! Every octet layout of KBTP and of the protocols below it.
//!
//! No `std`, no allocation, no unsafe: octets in, values out, and back. Nothing outside this crate shifts or masks
//! a protocol field.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod ddp;
mod error;
mod fixed;
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
