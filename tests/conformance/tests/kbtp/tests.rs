//! What the parts share.

mod model;
mod p5_p6_hello;
mod p7_status;
mod p8_sessions;
mod p9_auth;
mod s31_s32_table;
mod s33_ring;
mod s34_quota;
mod s5_messages;
mod s61_load;
mod s62_store;
mod s63_s64_alloc_free;
mod s65_s66_direct;
mod s91_binding;

use kbtp_harness::{Setup, Subject, start};
use kbtp_wire::{Generation, Handle, Header, RequestFlags, RequestId};

/// A small target with everything on.
fn subject() -> Box<dyn Subject> {
    start(&Setup::small())
}

/// A message as octets, right or wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Message {
    version: u8,
    opcode: u8,
    flags: u16,
    id: u64,
    handle: Handle,
    generation: u16,
    status: u16,
    /// What follows the header.
    body: Vec<u8>,
}

impl Message {
    /// A right header.
    fn new(opcode: u8, handle: Handle) -> Self {
        Self {
            version: 1,
            opcode,
            flags: 0,
            id: 0x0102_0304_0506_0708,
            handle,
            generation: 0,
            status: 0,
            body: Vec::new(),
        }
    }

    fn flags(mut self, flags: u16) -> Self {
        self.flags |= flags;
        self
    }

    fn body(mut self, parts: &[&[u8]]) -> Self {
        self.body = parts.concat();
        self
    }

    fn octets(&self) -> Vec<u8> {
        let header = Header {
            version: self.version,
            opcode: self.opcode,
            flags: RequestFlags(self.flags),
            request_id: RequestId(self.id),
            handle: self.handle,
            generation: Generation::new(self.generation),
            status: self.status,
        };
        let mut octets = header.encode().to_vec();
        octets.extend_from_slice(&self.body);
        octets
    }
}

/// A Data Descriptor of nothing but a length, in octets.
fn length_only(len: u32) -> [u8; 16] {
    let mut octets = [0; 16];
    octets[12..].copy_from_slice(&len.to_be_bytes());
    octets
}

const LOAD: u8 = 3;
const STORE: u8 = 4;
const ALLOC_STORE: u8 = 5;
const FREE: u8 = 6;
const BIND: u8 = 7;

const INLINE: u16 = 0x01;
const SEAL: u16 = 0x02;
const RECORD: u16 = 0x04;
const INVALIDATE: u16 = 0x08;
const ALLOW_UNSEALED: u16 = 0x10;
