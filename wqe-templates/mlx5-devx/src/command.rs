//! A command: what is asked, in octets, and what came of it.
//! Source: rdma-core, `providers/mlx5/mlx5_ifc.h.`
//! Octets of a request: 0..2 Opcode, 6..8 Modifier; of an answer: 0 Status, 4..8 Syndrome, from 8 on what was made.

use crate::bits::Bits;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[expect(missing_docs, reason = "the names of the device's commands")]
pub enum Opcode {
    QueryHcaCap = 0x100,
    CreateMkey = 0x200,
    DestroyMkey = 0x202,
    CreateCq = 0x400,
    DestroyCq = 0x401,
    CreateQp = 0x500,
    DestroyQp = 0x501,
    Rst2Init = 0x502,
    Init2Rtr = 0x503,
    Rtr2Rts = 0x504,
    ToError = 0x507,
    ToReset = 0x50a,
    QueryQp = 0x50b,
    CreateGeneralObject = 0xa00,
    DestroyGeneralObject = 0xa03,
    AllowOtherVhcaAccess = 0xb16,
}

const OPCODE: Bits = Bits::new(0x00, 16);
const MODIFIER: Bits = Bits::new(0x30, 16);
/// The number of what a command is about: queue pair, completion queue, key index.
const NUMBER: Bits = Bits::new(0x48, 24);
const OBJECT: Bits = Bits::new(0x40, 32);

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    octets: Vec<u8>,
}

impl Command {
    /// Octets of an answer that carries a number at most.
    pub const ANSWER: usize = 16;

    /// A request of `len` octets.
    #[must_use]
    pub fn new(opcode: Opcode, len: usize) -> Self {
        let mut command = Self {
            octets: vec![0; len],
        };
        command.set(OPCODE, opcode as u64);
        command
    }

    /// One that is about a queue pair, a completion queue or a key.
    #[must_use]
    pub fn about(opcode: Opcode, number: u32, len: usize) -> Self {
        let mut command = Self::new(opcode, len);
        command.set(NUMBER, number);
        command
    }

    /// Writes a field.
    pub fn set(&mut self, field: Bits, value: impl Into<u64>) {
        field.set(&mut self.octets, value.into());
    }

    /// Writes the modifier.
    pub fn modifier(&mut self, value: u16) {
        self.set(MODIFIER, value);
    }

    /// Writes octets from an octet on, those of them that there is room for.
    pub fn put(&mut self, at: usize, octets: &[u8]) {
        let room = self.octets.get_mut(at..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(octets) {
            *to = *from;
        }
    }

    /// Appends octets.
    pub fn append(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
    }

    /// What it asks, by its number.
    #[must_use]
    pub fn opcode(&self) -> u16 {
        let [_, _, high, low] = OPCODE.get32(&self.octets).to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    /// Its octets.
    #[must_use]
    pub fn as_octets(&self) -> &[u8] {
        &self.octets
    }
}

/// A command that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}: status {status:#04x} ({}), syndrome {syndrome:#010x}", .opcode, Self::meaning(*.status))]
pub struct Refused {
    /// The command, by its number.
    pub opcode: u16,
    /// What kind of failure.
    pub status: u8,
    /// Which, to those who know the device's firmware.
    pub syndrome: u32,
}

impl Refused {
    const fn meaning(status: u8) -> &'static str {
        match status {
            0x01 => "internal error",
            0x02 => "no such operation",
            0x03 => "bad parameter",
            0x04 => "bad system state",
            0x05 => "bad resource",
            0x06 => "resource busy",
            0x08 => "limits exceeded",
            0x09 => "bad resource state",
            0x0a => "bad index",
            0x0f => "no resources",
            0x10 => "bad queue pair state",
            0x30 => "bad packet",
            0x40 => "bad size",
            0x50 => "bad input length",
            0x51 => "bad output length",
            _ => "unknown",
        }
    }
}

/// What an answer says.
///
/// # Errors
/// [`Refused`].
pub fn check(request: &Command, answer: &[u8]) -> Result<(), Refused> {
    let status = answer.first().copied().unwrap_or(0xff);
    if status == 0 {
        return Ok(());
    }
    Err(Refused {
        opcode: request.opcode(),
        status,
        syndrome: Bits::new(0x20, 32).get32(answer),
    })
}

/// The number of what was made: queue pair, completion queue, key index.
#[must_use]
pub fn number(answer: &[u8]) -> u32 {
    NUMBER.get32(answer)
}

/// The number of a general object that was made.
#[must_use]
pub fn object(answer: &[u8]) -> u32 {
    OBJECT.get32(answer)
}
