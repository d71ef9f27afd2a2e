//! One WQE of a template.

use crate::key::Key;
use crate::memory::Spot;
use core::fmt;
use kbtp_mlx5::field::{RDMA_DATA_AT, SEND_DATA_AT};
use kbtp_mlx5::{Field, Opcode, limits::BASIC_BLOCK};

/// The name of a WQE: that of the design's tables.
pub type Name = &'static str;

/// A send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// Of the loopback queue pair: it waits, looks up, and decides.
    Worker,
    /// Of the client's queue pair: data and completions.
    Client,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Worker => "W",
            Self::Client => "C",
        })
    }
}

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cq {
    /// Of the client's requests.
    Receive,
    /// Of the client's queue pair's sends.
    Client,
    /// Of the loopback queue pair's sends.
    Worker,
}

impl fmt::Display for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Receive => "CQ_R",
            Self::Client => "CQ_C",
            Self::Worker => "CQ_W",
        })
    }
}

/// An address, as the WQE is armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// That of the spot.
    OfSpot,
    /// This one: some of its octets come from another WQE or from the request.
    Armed(u64),
    /// The row of the next lap of the slot before this one.
    Lap,
    /// The row of that lap and the page of the slot before, from an octet on; one further for the last of so many slots.
    Page(u16, u16),
}

/// What an operation does at the responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The key as armed.
    pub key: Key,
    /// The address as armed.
    pub address: Address,
    /// What is read or written there.
    pub spot: Spot,
}

/// A data segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its key.
    pub key: Key,
    /// Its address as armed.
    pub address: Address,
    /// What it names.
    pub spot: Spot,
    /// What it names instead, once the low octet of its address was written.
    pub instead: Option<Spot>,
}

/// How far a `SEND_EN` lets a queue run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// Up to a WQE of the slot, that one included.
    Through(Name),
    /// Up to so many basic blocks of the next slot.
    NextSlot(u8),
}

/// What a WQE is behind its control segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// WAIT for a CQE of the slot: which of its queue's.
    Wait(Cq, u8),
    /// The same of the slot before this one.
    WaitBefore(Cq, u8),
    /// `SEND_EN`.
    Enable(Queue, Bound),
    /// WAIT for data: remote stands for the key and address, with the condition "at once" and data and mask as here.
    WaitData {
        /// What is looked at.
        remote: Remote,
        /// Data, in memory order.
        data: [u8; 8],
        /// Mask, in memory order.
        mask: [u8; 8],
    },
    /// `RDMA_READ` scatters to the pieces, `RDMA_WRITE` gathers from them.
    Rdma(Remote, Vec<Piece>),
    /// So many segments that a NOP skips.
    Skipped(u8),
    /// SEND gathers from the pieces.
    Send(Vec<Piece>),
    /// `MASKED_CS` on 8 octets; operands in memory order.
    CompareSwap {
        /// The word.
        remote: Remote,
        /// Compared with.
        compare: [u8; 8],
        /// Which bits are compared.
        compare_mask: [u8; 8],
        /// Stored.
        swap: [u8; 8],
        /// Which bits are stored.
        swap_mask: [u8; 8],
        /// Where the old value goes.
        reply: Piece,
    },
    /// `MASKED_FA` on 8 octets.
    FetchAdd {
        /// The word.
        remote: Remote,
        /// Where the old value goes.
        reply: Piece,
    },
}

/// A WQE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Element {
    /// Its name.
    pub name: Name,
    /// Its opcode as armed.
    pub opcode: Opcode,
    /// What else a record may make of it.
    pub may_become: Vec<Opcode>,
    /// Whether it writes a CQE: always, whatever it becomes.
    pub signalled: bool,
    /// Whether it waits for reads and atomics before it.
    pub fenced: bool,
    /// The rest.
    pub shape: Shape,
}

impl Element {
    /// Segments of 16 octets, the control segment included.
    #[must_use]
    pub fn segments(&self) -> usize {
        1 + match &self.shape {
            Shape::Wait(..) | Shape::WaitBefore(..) | Shape::Enable(..) => 1,
            Shape::WaitData { .. } => 2,
            Shape::Skipped(segments) => usize::from(*segments),
            Shape::Rdma(_, pieces) => 1 + pieces.len(),
            Shape::Send(pieces) => pieces.len(),
            Shape::CompareSwap { .. } => 4,
            Shape::FetchAdd { .. } => 3,
        }
    }

    /// Basic blocks of 64 octets.
    #[must_use]
    pub fn basic_blocks(&self) -> u16 {
        let octets = self.segments() * kbtp_mlx5::limits::SEGMENT;
        u16::try_from(octets.div_ceil(BASIC_BLOCK)).unwrap_or(u16::MAX)
    }

    /// Its data segments; of an atomic, that of the reply.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        match &self.shape {
            Shape::Rdma(_, pieces) | Shape::Send(pieces) => pieces,
            Shape::CompareSwap { reply, .. } | Shape::FetchAdd { reply, .. } => {
                core::slice::from_ref(reply)
            }
            Shape::Wait(..)
            | Shape::WaitBefore(..)
            | Shape::Enable(..)
            | Shape::WaitData { .. }
            | Shape::Skipped(_) => &[],
        }
    }

    /// The octet that says whether its data segment with a choice names the one thing or the other; `None` if none has one.
    #[must_use]
    pub fn choice(&self) -> Option<Spot> {
        let first = match self.shape {
            Shape::Rdma(..) => RDMA_DATA_AT,
            Shape::Send(_) => SEND_DATA_AT,
            _ => return None,
        };
        let mut pieces = self.pieces().iter();
        let n = u16::try_from(pieces.position(|piece| piece.instead.is_some())?).ok()?;
        let low = Field::local_address(first, n).part(7, 1)?;
        Some(Spot::field(self.name, low))
    }

    /// What it does at the responder, or looks at.
    #[must_use]
    pub const fn remote(&self) -> Option<&Remote> {
        match &self.shape {
            Shape::Rdma(remote, _)
            | Shape::WaitData { remote, .. }
            | Shape::CompareSwap { remote, .. }
            | Shape::FetchAdd { remote, .. } => Some(remote),
            Shape::Wait(..)
            | Shape::WaitBefore(..)
            | Shape::Enable(..)
            | Shape::Send(_)
            | Shape::Skipped(_) => None,
        }
    }

    /// Every opcode it may have when it runs.
    pub fn opcodes(&self) -> impl Iterator<Item = Opcode> + '_ {
        core::iter::once(self.opcode).chain(self.may_become.iter().copied())
    }

    /// Whether it may have this opcode when it runs.
    #[must_use]
    pub fn may_be(&self, opcode: Opcode) -> bool {
        self.opcodes().any(|one| one == opcode)
    }

    /// Whether it may wait for a reply from the responder.
    #[must_use]
    pub fn has_reply(&self) -> bool {
        self.opcodes().any(has_reply)
    }

    /// What it reads and writes with this opcode. With `instead`, its pieces name what they do once the low octets of their
    /// addresses were written.
    #[must_use]
    pub fn accesses(&self, opcode: Opcode, instead: bool) -> Vec<Access> {
        let remote = |kind| {
            self.remote().map(|remote| Access {
                kind,
                spot: remote.spot,
                at_responder: opcode != Opcode::Wait,
            })
        };
        let locals = |kind| {
            self.pieces().iter().map(move |piece| Access {
                kind,
                spot: piece.instead.filter(|_| instead).unwrap_or(piece.spot),
                at_responder: false,
            })
        };
        match opcode {
            Opcode::RdmaRead => remote(Kind::Read)
                .into_iter()
                .chain(locals(Kind::Write))
                .collect(),
            Opcode::RdmaWrite | Opcode::RdmaWriteImmediate => remote(Kind::Write)
                .into_iter()
                .chain(locals(Kind::Read))
                .collect(),
            Opcode::Send | Opcode::SendInvalidate => locals(Kind::Read).collect(),
            Opcode::MaskedCs | Opcode::MaskedFa => remote(Kind::Atomic)
                .into_iter()
                .chain(locals(Kind::Write))
                .collect(),
            Opcode::Wait => remote(Kind::Read).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

/// Whether an operation waits for a reply from the responder before it completes, and scatters it.
#[must_use]
pub const fn has_reply(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::RdmaRead
            | Opcode::AtomicCs
            | Opcode::AtomicFa
            | Opcode::MaskedCs
            | Opcode::MaskedFa
    )
}

/// How octets are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read.
    Read,
    /// Written.
    Write,
    /// Read and written, as a whole word.
    Atomic,
}

/// A use of some octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// How.
    pub kind: Kind,
    /// Which.
    pub spot: Spot,
    /// Whether the responder does it, in the order of the queue pair's requests.
    pub at_responder: bool,
}
