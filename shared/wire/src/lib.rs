//! Every octet layout of KBTP and of the protocols below it.
//!
//! No `std`, no allocation, no unsafe: octets in, values out, and back. Nothing outside this crate shifts or masks
//! a protocol field.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod ddp;
mod fixed;
mod ids;
pub mod mpa;
pub mod rdmap;

pub use ids::{
    BlockOffset, ByteLen, Generation, Handle, RequestId, SlotOffset, Stag, TaggedOffset, Ticket,
};
