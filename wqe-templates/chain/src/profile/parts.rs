//! Pieces that both profiles are made of.

use crate::element::{Address, Bound, Cq, Element, Name, Piece, Queue, Remote, Shape};
use crate::key::Key;
use crate::limits::MESSAGE_CAPACITY;
use crate::memory::{Memory, Spot, scratch};
use kbtp_mlx5::field::RDMA_DATA_AT;
use kbtp_mlx5::{Field, Opcode};

/// Armed address of a WQE whose address others write: outside every key's range.
pub(super) const POISON: u64 = u64::MAX;

/// The same where the last octet is never written.
pub(super) const POISON_LINE: u64 = u64::MAX << 8;

pub(super) const fn field(wqe: Name, field: Field) -> Spot {
    Spot::field(wqe, field)
}

/// Octets `at` to `at + len` of a field; the field's last octet if there are not so many.
pub(super) fn part(wqe: Name, of: Field, at: u16, len: u16) -> Spot {
    let last = Field::new(of.end().saturating_sub(1), 1);
    field(wqe, of.part(at, len).unwrap_or(last))
}

pub(super) const fn in_scratch(at: u16, len: u32) -> Spot {
    Spot::new(Memory::Scratch, at, len)
}

pub(super) const fn trash(len: u32) -> Spot {
    in_scratch(scratch::TRASH, len)
}

/// The address of a client WQE's data segment (one after the remote address).
pub(super) const fn data_address(wqe: Name) -> Spot {
    field(wqe, Field::local_address(RDMA_DATA_AT, 0))
}

/// The byte count of a client WQE's data segment.
pub(super) const fn byte_count(wqe: Name) -> Spot {
    field(wqe, Field::byte_count(RDMA_DATA_AT, 0))
}

pub(super) fn pieces(key: Key, spots: &[Spot]) -> Vec<Piece> {
    let piece = |spot: &Spot| Piece {
        key,
        address: Address::OfSpot,
        spot: *spot,
        instead: None,
    };
    spots.iter().map(piece).collect()
}

pub(super) const fn row(len: u32) -> Spot {
    Spot::new(Memory::Row, 0, len)
}

pub(super) fn element(name: Name, opcode: Opcode, shape: Shape) -> Element {
    Element {
        name,
        opcode,
        may_become: Vec::new(),
        signalled: false,
        fenced: false,
        shape,
    }
}

impl Element {
    pub(super) fn signalled(mut self) -> Self {
        self.signalled = true;
        self
    }

    pub(super) fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// Armed as a NOP; a record makes it one of these.
    pub(super) fn asleep(mut self, opcodes: &[Opcode]) -> Self {
        self.opcode = Opcode::Nop;
        self.may_become = opcodes.to_vec();
        self
    }
}

pub(super) fn wait(name: Name, cq: Cq, number: u8) -> Element {
    element(name, Opcode::Wait, Shape::Wait(cq, number))
}

pub(super) fn enable(name: Name, queue: Queue, bound: Bound) -> Element {
    element(name, Opcode::SendEnable, Shape::Enable(queue, bound))
}

pub(super) fn wait_data(name: Name, remote: Remote, data: [u8; 8], mask: [u8; 8]) -> Element {
    let shape = Shape::WaitData { remote, data, mask };
    element(name, Opcode::Wait, shape)
}

/// A READ at an address that others write; `armed` until they do.
pub(super) fn look_up(name: Name, key: Key, armed: u64, spot: Spot, to: &[Spot]) -> Element {
    let remote = Remote {
        key,
        address: Address::Armed(armed),
        spot,
    };
    let shape = Shape::Rdma(remote, pieces(Key::Rings, to));
    element(name, Opcode::RdmaRead, shape)
}

/// A READ within the rings and scratch lines.
pub(super) fn copy(name: Name, from: Spot, to: &[Spot]) -> Element {
    let remote = Remote {
        key: match from.memory {
            Memory::Cqe(..) => Key::Cqes,
            _ => Key::Rings,
        },
        address: Address::OfSpot,
        spot: from,
    };
    let shape = Shape::Rdma(remote, pieces(Key::Rings, to));
    element(name, Opcode::RdmaRead, shape)
}

/// A compare and swap of the predicate word; operands in memory order.
pub(super) fn compare_swap(
    name: Name,
    compare: [u8; 8],
    compare_mask: [u8; 8],
    swap: [u8; 8],
    swap_mask: [u8; 8],
    reply: Spot,
) -> Element {
    let reply = Piece {
        key: Key::Rings,
        address: Address::OfSpot,
        spot: reply,
        instead: None,
    };
    let shape = Shape::CompareSwap {
        remote: Remote {
            key: Key::Rings,
            address: Address::OfSpot,
            spot: field("P", Field::REMOTE_ADDRESS),
        },
        compare,
        compare_mask,
        swap,
        swap_mask,
        reply,
    };
    element(name, Opcode::MaskedCs, shape)
}

/// The FetchAdd of a ring counter; of the dummy one as armed.
pub(super) fn fetch_add(name: Name, reply: Spot) -> Element {
    let remote = Remote {
        key: Key::Counters,
        address: Address::Armed(crate::key::DUMMY_AT),
        spot: Spot::new(Memory::Counter, 0, 8),
    };
    let reply = Piece {
        key: Key::Rings,
        address: Address::OfSpot,
        spot: reply,
        instead: None,
    };
    element(name, Opcode::MaskedFa, Shape::FetchAdd { remote, reply })
}

/// An operation of the client's queue pair on the client's buffer and a block.
pub(super) fn transfer(name: Name, len: u32) -> Element {
    let remote = Remote {
        key: Key::Client,
        address: Address::Armed(POISON),
        spot: Spot::new(Memory::Buffer, 0, len),
    };
    let block = Piece {
        key: Key::Pool,
        address: Address::Armed(POISON),
        spot: Spot::new(Memory::Block, 0, len),
        instead: None,
    };
    element(name, Opcode::Nop, Shape::Rdma(remote, vec![block]))
}

/// A COMPLETION, gathered.
pub(super) fn completion(name: Name, tail: &[Spot]) -> Element {
    let head = [
        in_scratch(scratch::HEAD, scratch::HEAD_LEN),
        part("D", Field::REMOTE_ADDRESS, 0, 1),
        part("T", Field::REMOTE_ADDRESS, 0, 7),
    ];
    let all: Vec<Spot> = head.iter().chain(tail).copied().collect();
    let shape = Shape::Send(pieces(Key::RingsClient, &all));
    element(name, Opcode::Nop, shape)
        .asleep(&[Opcode::Send, Opcode::SendInvalidate])
        .signalled()
}

/// Operand `of` of a compare and swap, octets `k` and `k + 1` of the word in memory order: the operand is big-endian, the
/// word little-endian, so octet k is the operand's octet 7 - k.
fn operand(wqe: Name, of: Field, k: u16) -> Spot {
    part(wqe, of, 6_u16.saturating_sub(k), 2)
}

/// The operands that the row of a Generation sets in a compare and swap: comparison and mask of octets 3 and 4.
pub(super) fn generation_operands(wqe: Name) -> [Spot; 2] {
    [
        operand(wqe, Field::COMPARE, 3),
        operand(wqe, Field::COMPARE_MASK, 3),
    ]
}

/// Where the octets of a request go.
pub(super) fn receive_list() -> Vec<Piece> {
    let data_len = 40;
    let spots = [
        part("D", Field::REMOTE_ADDRESS, 4, 4),
        in_scratch(4, 8),
        part("D", Field::REMOTE_ADDRESS, 0, 1),
        part("T", Field::REMOTE_ADDRESS, 0, 7),
        part("GM", Field::REMOTE_ADDRESS, 5, 2),
        // Status: an address with one that is not zero is in nobody's range.
        part("D", Field::REMOTE_ADDRESS, 2, 2),
        field("C1", Field::REMOTE_KEY),
        field("C1", Field::REMOTE_ADDRESS),
        part("P", Field::REMOTE_ADDRESS, 7, 1),
        part("P", Field::REMOTE_ADDRESS, 0, 3),
        Spot::new(Memory::Sink, 0, u32::from(MESSAGE_CAPACITY - data_len)),
    ];
    pieces(Key::RingsClient, &spots)
}

/// The look-ups that both profiles start with: from the request's octets to the predicate word.
pub(super) fn wave_0(generation: &[Spot]) -> Vec<Element> {
    // The last octets of the CQE, from the byte count: its high octets trap when they are not zero.
    let cqe = Spot::new(Memory::Cqe(Cq::Receive, 0), 44, 20);
    vec![
        copy(
            "CKR",
            cqe,
            &[
                part("DR", Field::REMOTE_ADDRESS, 2, 3),
                part("DR", Field::REMOTE_ADDRESS, 6, 1),
                trash(15),
                part("DR", Field::REMOTE_ADDRESS, 5, 1),
            ],
        ),
        look_up(
            "GM",
            Key::Generation,
            0,
            row(u32::try_from(generation.len().saturating_mul(2)).unwrap_or(0)),
            generation,
        ),
        look_up(
            "D",
            Key::Header,
            0xff << 56,
            row(1),
            &[part("P", Field::REMOTE_ADDRESS, 6, 1)],
        ),
        copy(
            "CPI",
            field("C1", Field::REMOTE_KEY),
            &[field("C2", Field::IMMEDIATE)],
        ),
        look_up(
            "T",
            Key::Table,
            POISON_LINE,
            Spot::new(Memory::Entry, 0, 16),
            &[
                trash(1),
                part("P", Field::REMOTE_ADDRESS, 5, 1),
                part("P", Field::REMOTE_ADDRESS, 3, 2),
                byte_count("C1"),
                data_address("C1"),
            ],
        )
        .signalled(),
    ]
}

/// The key of the records, from the receive's CQE. Armed so that only an octet that is never written is in range.
pub(super) fn receive_check() -> Element {
    look_up(
        "DR",
        Key::Received,
        0x0000_ffff_ffff_ff00,
        row(4),
        &[field("P", Field::REMOTE_KEY)],
    )
}

/// Length equal to Block Size and Generation as asked: outcome 1. Like the other two it clears what came from the request
/// and the entry's Generation, so that the word becomes the address of a record.
pub(super) fn compare_data(block_size: u32) -> Element {
    let [top, a, b, c] = block_size.to_be_bytes();
    // The mask of the Generation is set until its row says "any".
    compare_swap(
        "CASa",
        [a, b, c, 0, 0, 0, 0, top],
        [0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff],
        [0, 0, 0, 0, 0, 0x10, 0, 0],
        [0xff, 0xff, 0xff, 0xff, 0xff, 0x30, 0, 0xff],
        in_scratch(scratch::REPLY, 8),
    )
}

/// No Data Descriptor and Generation as asked: outcome 2.
pub(super) fn compare_free() -> Element {
    compare_swap(
        "CASf",
        [0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff],
        [0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff],
        [0, 0, 0, 0, 0, 0x20, 0, 0],
        [0xff, 0xff, 0xff, 0xff, 0xff, 0x30, 0, 0xff],
        trash(8),
    )
}

/// Neither: outcome 0.
pub(super) fn compare_none() -> Element {
    compare_swap(
        "CASb",
        [0; 8],
        [0, 0, 0, 0, 0, 0x30, 0, 0],
        [0; 8],
        [0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff],
        trash(8),
    )
    .signalled()
}

/// The doorbell of a punt: Write with Immediate to the queue pair itself.
pub(super) fn bell() -> Element {
    let remote = Remote {
        key: Key::Rings,
        address: Address::OfSpot,
        spot: Spot::new(Memory::Mailbox, 0, 4),
    };
    let from = pieces(Key::Rings, &[field("BELL", Field::IMMEDIATE)]);
    element("BELL", Opcode::Nop, Shape::Rdma(remote, from)).asleep(&[Opcode::RdmaWriteImmediate])
}

/// The record: an octet or some for each place, in this order.
pub(super) fn dispatch(places: &[Spot]) -> Element {
    let len = places.iter().map(|spot| spot.len).sum();
    look_up("P", Key::Punt, POISON, row(len), places).signalled()
}

/// Reads a little-endian number and places its octets the other way round.
pub(super) fn swap_copy(name: Name, from: Spot, to: Name, of: Field) -> Element {
    let octets = [3, 2, 1, 0].map(|octet| part(to, of, octet, 1));
    copy(name, from, &octets)
}
