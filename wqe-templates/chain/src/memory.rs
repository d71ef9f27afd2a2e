//! Octets that chains read and write, named without their addresses.

use crate::element::{Cq, Name};
use core::fmt;
use kbtp_mlx5::Field;

/// A piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// A WQE of the slot.
    Wqe(Name),
    /// A WQE of the slot before this one.
    Before(Name),
    /// The slot's scratch line.
    Scratch,
    /// That of the slot before this one.
    ScratchBefore,
    /// What a request has behind its descriptor; nobody reads it.
    Sink,
    /// Where the doorbell of a punt is written; nobody reads it.
    Mailbox,
    /// The doorbell record that says how many receive WQEs of the client's queue pair are posted.
    Doorbell,
    /// The table entry of the request's handle.
    Entry,
    /// The ring slot that the request's ticket names.
    RingSlot,
    /// The counter that the request advances.
    Counter,
    /// The block of the request.
    Block,
    /// The client's buffer.
    Buffer,
    /// A CQE of the slot: which of its queue's.
    Cqe(Cq, u8),
    /// A row of a look-up table; nobody writes it while chains run.
    Row,
}

/// Some octets of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// Which memory.
    pub memory: Memory,
    /// First octet.
    pub at: u16,
    /// How many.
    pub len: u32,
}

impl Spot {
    /// `len` octets of `memory` from `at`.
    #[must_use]
    pub const fn new(memory: Memory, at: u16, len: u32) -> Self {
        Self { memory, at, len }
    }

    /// A field of a WQE.
    #[must_use]
    pub const fn field(wqe: Name, field: Field) -> Self {
        Self::new(Memory::Wqe(wqe), field.at, field.len as u32)
    }

    /// The octet behind the last one.
    #[must_use]
    pub fn end(self) -> u64 {
        u64::from(self.at) + u64::from(self.len)
    }

    /// Whether both have an octet in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.memory == other.memory
            && u64::from(self.at) < other.end()
            && u64::from(other.at) < self.end()
    }

    /// The eight-octet words it touches: what a compare and swap on one of its octets rewrites.
    #[must_use]
    pub fn words(self) -> Self {
        let at = self.at & !7;
        let len = self.end().next_multiple_of(8) - u64::from(at);
        Self {
            at,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// Whether what is written here is never read: order does not matter.
    #[must_use]
    pub fn is_discarded(self) -> bool {
        match self.memory {
            Memory::Sink | Memory::Mailbox => true,
            Memory::Scratch => {
                self.at >= scratch::TRASH && self.end() <= u64::from(scratch::TRASH_END)
            }
            _ => false,
        }
    }
}

/// Where things lie in a scratch line. The ones that a record chooses between by one octet of an address are all here.
pub mod scratch {
    /// Start of a COMPLETION: Version, Opcode, Flags, Request ID.
    pub const HEAD: u16 = 0;
    /// Octets of it.
    pub const HEAD_LEN: u32 = 12;
    /// Reply of the first compare and swap: what the predicate word was.
    pub const REPLY: u16 = 16;
    /// The entry's Generation in that reply.
    pub const REPLY_GENERATION: u16 = REPLY + 3;
    /// What nobody needs, from here...
    pub const TRASH: u16 = 32;
    /// ...to here.
    pub const TRASH_END: u16 = 96;
    /// Reply of the FetchAdd, in the memory's byte order: Slot Offset, then Ticket.
    pub const TICKET: u16 = 96;
    /// The entry's first word as it will be: Flags, Generation.
    pub const ENTRY: u16 = 104;
    /// A Block Offset of all ones: consumed.
    pub const ONES: u16 = 112;
    /// Status: what a COMPLETION says behind the Generation begins here...
    pub const STATUS: u16 = 122;
    /// ...and has so many octets.
    pub const TAIL_LEN: u32 = 18;
    /// Block Size, behind Status.
    pub const BLOCK_SIZE: u16 = 124;
    /// The reserved word of a COMPLETION, behind Block Size.
    pub const ZEROS: u16 = 128;
    /// The Block Offset of a COMPLETION, behind the reserved word.
    pub const BLOCK: u16 = 132;
    /// Zeros: the same of a COMPLETION that says nothing of a block.
    pub const NOTHING: u16 = 144;
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_discarded() {
            return f.write_str("-");
        }
        match self.memory {
            Memory::Wqe(name) => write!(f, "{name}")?,
            Memory::Before(name) => write!(f, "before.{name}")?,
            Memory::Scratch => f.write_str("scratch")?,
            Memory::ScratchBefore => f.write_str("before.scratch")?,
            Memory::Sink => f.write_str("sink")?,
            Memory::Mailbox => f.write_str("mailbox")?,
            Memory::Doorbell => f.write_str("receives")?,
            Memory::Entry => f.write_str("entry")?,
            Memory::RingSlot => f.write_str("ring slot")?,
            Memory::Counter => f.write_str("counter")?,
            Memory::Block => return f.write_str("block"),
            Memory::Buffer => return f.write_str("client's buffer"),
            Memory::Cqe(cq, n) => write!(f, "{cq}[{n}]")?,
            Memory::Row => return f.write_str("row"),
        }
        match self.len {
            1 => write!(f, "[{}]", self.at),
            _ => write!(f, "[{}..{}]", self.at, self.end()),
        }
    }
}
