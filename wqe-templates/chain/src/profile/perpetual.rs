//! Profile L with slots that arm themselves: a slot that has let its data go arms the slot before it, whose completion has
//! gone out, for its next lap, and posts its receive WQE. Nothing is left to software while requests are LOADs that are served.

use super::load::loads;
use super::parts::{element, enable, part, pieces};
use crate::element::{Address, Bound, Cq, Element, Name, Piece, Queue, Remote, Shape};
use crate::key::Key;
use crate::lap::{CLIENT_PAGE, CLIENT_PAGE_SLOTS, CLIENT_STRIDE, PAGE_SLOTS, WORKER_STRIDE};
use crate::memory::{Memory, Spot, scratch};
use crate::template::Template;
use kbtp_mlx5::field::RDMA_DATA_AT;
use kbtp_mlx5::{Field, Opcode};
use kbtp_wire::ByteLen;

/// WQEs of the loopback queue whose index the first of two READs writes: so many pieces that both are of one size.
const HALF: usize = 18;

/// Segments to the end of the slot.
const SKIPPED: u8 = 59;

/// The slot of profile L that arms itself, for blocks of `block_size` octets: 29 WQEs of the loopback queue pair in 64 basic
/// blocks, the last of them a NOP of fifteen, and 2 of the client's in 4.
#[must_use]
pub fn perpetual(block_size: ByteLen) -> Template {
    let mut template = loads(block_size, Bound::Through("END"));
    let own = template.worker.iter().map(|one| one.name);
    let names: Vec<Name> = own
        .chain([
            "WTC", "RST", "LAP", "IDX1", "IDX2", "IDXC", "DB", "END", "PAD",
        ])
        .collect();
    let (first, second) = names.split_at(HALF.min(names.len()));
    let index = |name: &Name| before(name, Field::INDEX, 0, 1);
    let enables = |name: &Name| before(name, Field::ENABLE_INDEX, 2, 1);
    let mut rest: Vec<Spot> = second.iter().map(index).collect();
    rest.extend(
        ["EN0", "EN1", "EN2", "EN3", "PW", "END"]
            .iter()
            .map(enables),
    );
    let first: Vec<Spot> = first.iter().map(index).collect();
    let client = [index(&"C1"), index(&"C2"), enables(&"GO")];
    let half = u16::try_from(HALF).unwrap_or(u16::MAX);
    let page = |name, from, slots, spots: &[Spot]| {
        read(name, Key::Pages, Address::Page(from, slots), spots)
    };
    template.worker.extend([
        element("WTC", Opcode::Wait, Shape::WaitBefore(Cq::Client, 0)),
        read("RST", Key::Reset, Address::Armed(0), &reset()),
        read("LAP", Key::Laps, Address::Lap, &lap()),
        page("IDX1", 0, 0, &first),
        page("IDX2", half, PAGE_SLOTS, &rest),
        page("IDXC", CLIENT_PAGE, CLIENT_PAGE_SLOTS, &client),
        doorbell(),
        enable("END", Queue::Worker, Bound::NextSlot(2)),
        // One NOP to the next slot, since each has an index.
        element("PAD", Opcode::Nop, Shape::Skipped(SKIPPED)),
    ]);
    template.name = "profile L, perpetual";
    template.worker_stride = WORKER_STRIDE;
    template.client_stride = CLIENT_STRIDE;
    template
}

/// Octets of a field of a WQE of the slot before.
fn before(wqe: Name, of: Field, at: u16, len: u16) -> Spot {
    let spot = part(wqe, of, at, len);
    Spot {
        memory: Memory::Before(wqe),
        ..spot
    }
}

fn read(name: Name, key: Key, address: Address, spots: &[Spot]) -> Element {
    let len = spots.iter().map(|spot| spot.len).sum();
    let remote = Remote {
        key,
        address,
        spot: Spot::new(Memory::Row, 0, len),
    };
    let shape = Shape::Rdma(remote, pieces(Key::Rings, spots));
    element(name, Opcode::RdmaRead, shape)
}

/// What requests, look-ups and records wrote.
fn reset() -> [Spot; 17] {
    let whole = |wqe, of: Field| before(wqe, of, 0, of.len);
    let opcode = |wqe| whole(wqe, Field::OPCODE);
    let address = |wqe| whole(wqe, Field::REMOTE_ADDRESS);
    let with_key = |wqe| Spot {
        len: 12,
        ..address(wqe)
    };
    let operand = |of: Field| before("CASa", of, 3, 2);
    [
        address("D"),
        address("T"),
        address("GM"),
        address("DR"),
        with_key("P"),
        operand(Field::COMPARE),
        operand(Field::COMPARE_MASK),
        opcode("C1"),
        with_key("C1"),
        whole("C1", Field::byte_count(RDMA_DATA_AT, 0)),
        whole("C1", Field::local_address(RDMA_DATA_AT, 0)),
        opcode("C2"),
        whole("C2", Field::IMMEDIATE),
        opcode("BELL"),
        opcode("GO"),
        opcode("PW"),
        // What software answered, if it did.
        Spot::new(Memory::ScratchBefore, scratch::STATUS, 2),
    ]
}

/// What is a number of the lap, in the order of a lap's row.
fn lap() -> [Spot; 11] {
    let waits = |wqe| before(wqe, Field::WAIT_INDEX, 1, 2);
    let low = |wqe, of: Field, at| before(wqe, of, at, 1);
    [
        waits("WT1"),
        waits("WT2"),
        waits("WT3"),
        waits("WAITR"),
        waits("WTC"),
        before("LAP", Field::REMOTE_ADDRESS, 5, 2),
        low("BELL", Field::IMMEDIATE, 2),
        low("DB", Field::IMMEDIATE, 2),
        low("IDX1", Field::REMOTE_ADDRESS, 5),
        low("IDX2", Field::REMOTE_ADDRESS, 5),
        low("IDXC", Field::REMOTE_ADDRESS, 5),
    ]
}

/// Posts the receive WQE of the slot before, once it is armed: a WRITE to the doorbell record.
fn doorbell() -> Element {
    let remote = Remote {
        key: Key::Doorbell,
        address: Address::Armed(0),
        spot: Spot::new(Memory::Doorbell, 0, 4),
    };
    let from: Vec<Piece> = pieces(Key::Rings, &[part("DB", Field::IMMEDIATE, 0, 4)]);
    element("DB", Opcode::RdmaWrite, Shape::Rdma(remote, from))
        .fenced()
        .signalled()
}
