//! Profile F: LOAD, STORE, `ALLOC_STORE` and FREE of whole blocks; all else is handed to software. A FREE clears the entry and
//! answers; the block goes back to the ring by software, once nobody sends it any more.

use super::parts::{
    POISON, POISON_LINE, bell, byte_count, compare_data, compare_free, compare_none, completion,
    copy, data_address, dispatch, enable, fetch_add, field, generation_operands, in_scratch,
    look_up, part, receive_check, receive_list, row, swap_copy, transfer, trash, wait, wait_data,
    wave_0,
};
use crate::element::{Address, Bound, Cq, Element, Queue, Remote, Shape};
use crate::key::Key;
use crate::memory::{Memory, Spot, scratch};
use crate::template::Template;
use kbtp_mlx5::field::{RDMA_DATA_AT, SEND_DATA_AT};
use kbtp_mlx5::{Field, Opcode};
use kbtp_wire::ByteLen;

/// The slot of profile F, for blocks of `block_size` octets: 56 WQEs of the loopback queue pair in 72 basic blocks, and 4 of
/// the client's in 7.
#[must_use]
pub fn full(block_size: ByteLen) -> Template {
    let mut worker = predicate(block_size.0);
    worker.extend(dispatch_wave());
    worker.extend(ticket_waves());
    worker.extend(ring_wave());
    worker.extend(entry_waves());
    Template {
        name: "profile F",
        worker,
        client: client(block_size.0),
        receive: receive_list(),
        capacity: u32::from(crate::limits::MESSAGE_CAPACITY),
        worker_stride: 72,
        client_stride: 7,
        head: 2,
    }
}

const W: Queue = Queue::Worker;
const C: Queue = Queue::Client;

fn predicate(block_size: u32) -> Vec<Element> {
    let mut wqes = vec![
        wait("WAITR", Cq::Receive, 0),
        enable("EN0", W, Bound::Through("EN1")),
    ];
    let both = [generation_operands("CASa"), generation_operands("CASf")].concat();
    wqes.extend(wave_0(&both));
    wqes.extend([
        wait("WT1", Cq::Worker, 0),
        enable("EN1", W, Bound::Through("EN2")),
        receive_check(),
        compare_data(block_size),
        compare_free(),
        compare_none(),
        wait("WT2", Cq::Worker, 1),
        enable("EN2", W, Bound::Through("EN3")),
    ]);
    wqes
}

/// The record, then copies that only STORE, `ALLOC_STORE` and FREE need: they run beside the data of a LOAD.
fn dispatch_wave() -> Vec<Element> {
    let opcode = |wqe| field(wqe, Field::OPCODE);
    let record = [
        opcode("C1"),
        opcode("C2"),
        opcode("C3"),
        opcode("C4"),
        opcode("BELL"),
        opcode("GO"),
        opcode("PW"),
        opcode("U0"),
        part("FA", Field::REMOTE_ADDRESS, 7, 1),
        opcode("BT1"),
        field("WD", Field::WAIT_CONDITION),
        opcode("X1"),
        opcode("W1"),
        opcode("U1"),
        opcode("U2"),
        part("NG", Field::REMOTE_ADDRESS, 4, 1),
        in_scratch(scratch::ENTRY, 2),
        part("U0", Field::local_address(RDMA_DATA_AT, 0), 7, 1),
        // What the completion says behind the Generation.
        part("C4", Field::local_address(SEND_DATA_AT, 4), 7, 1),
    ];
    let handle = |name, to| {
        copy(
            name,
            field("T", Field::REMOTE_ADDRESS),
            &[field(to, Field::REMOTE_ADDRESS)],
        )
    };
    vec![
        dispatch(&record),
        copy(
            "CPR",
            Spot::new(Memory::Wqe("C1"), 16, 32),
            &[
                Spot::new(Memory::Wqe("C3"), 16, 16),
                trash(4),
                Spot::new(Memory::Wqe("C3"), 36, 12),
            ],
        ),
        copy(
            "CPI2",
            field("C1", Field::REMOTE_KEY),
            &[field("C4", Field::IMMEDIATE)],
        ),
        handle("CPH0", "U0"),
        handle("CPH1", "U1"),
        handle("CPH2", "U2"),
        copy(
            "CPG",
            in_scratch(scratch::REPLY_GENERATION, 2),
            &[part("NG", Field::REMOTE_ADDRESS, 5, 2)],
        )
        .signalled(),
        wait("WT3", Cq::Worker, 2),
        enable("EN3", W, Bound::Through("PW")),
        bell(),
        enable("GO", C, Bound::Through("C2")).asleep(&[Opcode::SendEnable]),
        enable("PW", W, Bound::Through("EN4")).asleep(&[Opcode::SendEnable]),
        wait("WT4", Cq::Worker, 3),
        enable("EN4", W, Bound::Through("EN6")),
    ]
}

/// The new entry's first word, whether the handle is the session's, and the ticket.
fn ticket_waves() -> Vec<Element> {
    let mut probe = look_up(
        "U0",
        Key::OwnWord,
        POISON,
        Spot::new(Memory::Entry, 0, 4),
        &[trash(4)],
    );
    if let Shape::Rdma(_, pieces) = &mut probe.shape {
        // A FREE clears the entry here: the record turns the probe into a WRITE of the new word.
        for piece in pieces {
            piece.instead = Some(in_scratch(scratch::ENTRY, 4));
        }
    }
    let offset = in_scratch(scratch::TICKET, 4);
    let ticket = in_scratch(scratch::TICKET + 4, 4);
    let low = |wqe, of: Field| (wqe, Field::new(of.at + 4, 4));
    let slot = |name, (to, of)| swap_copy(name, offset, to, of);
    vec![
        look_up(
            "NG",
            Key::NextGeneration,
            0,
            row(2),
            &[in_scratch(scratch::ENTRY + 2, 2)],
        ),
        probe
            .fenced()
            .asleep(&[Opcode::RdmaRead, Opcode::RdmaWrite]),
        fetch_add("FA", in_scratch(scratch::TICKET, 8))
            .fenced()
            .signalled(),
        wait("WT6", Cq::Worker, 4),
        enable("EN6", W, Bound::Through("EN7")),
        slot("BS1", low("WD", Field::WAIT_ADDRESS)),
        slot("BS2", low("X1", Field::REMOTE_ADDRESS)),
        slot("BS3", low("W1", Field::REMOTE_ADDRESS)),
        swap_copy("BT1", ticket, "WD", Field::WAIT_DATA)
            .asleep(&[Opcode::RdmaRead])
            .signalled(),
        wait("WT7", Cq::Worker, 5),
        enable("EN7", W, Bound::Through("EN9")),
    ]
}

/// The ring slot of the ticket, and the block from it.
fn ring_wave() -> Vec<Element> {
    let in_slot = |key, at, len| Remote {
        key,
        address: Address::Armed(0),
        spot: Spot::new(Memory::RingSlot, at, len),
    };
    let block_offset = Spot::new(Memory::RingSlot, 8, 8);
    let ones = in_scratch(scratch::ONES, 8);
    let high = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
    vec![
        wait_data("WD", in_slot(Key::Sequence, 0, 8), high, high),
        look_up(
            "X1",
            Key::BlockOffset,
            0,
            block_offset,
            &[data_address("C3")],
        )
        .asleep(&[Opcode::RdmaRead]),
        look_up("W1", Key::BlockOffset, 0, block_offset, &[ones])
            .fenced()
            .asleep(&[Opcode::RdmaWrite])
            .signalled(),
        wait("WT8", Cq::Worker, 6),
        enable("EC3", C, Bound::Through("C3")),
        wait("WTC", Cq::Client, 1),
        enable("EN9", W, Bound::Through("END")),
    ]
}

/// Whether the data came; then the entry, its first word last.
fn entry_waves() -> Vec<Element> {
    let cqe = Spot::new(Memory::Cqe(Cq::Client, 1), 63, 1);
    let data_len = in_scratch(scratch::BLOCK_SIZE, 4);
    vec![
        copy("CK1", cqe, &[part("CK2", Field::REMOTE_ADDRESS, 6, 1)]).signalled(),
        wait("WTD", Cq::Worker, 7),
        enable("END", W, Bound::NextSlot(2)),
        look_up("CK2", Key::Completed, 0xff00, row(4), &[trash(4)]),
        copy("CPB", data_address("C3"), &[in_scratch(scratch::BLOCK, 8)]),
        look_up(
            "U1",
            Key::OwnBinding,
            POISON_LINE,
            Spot::new(Memory::Entry, 4, 12),
            &[data_len, data_address("C3")],
        )
        .asleep(&[Opcode::RdmaWrite]),
        look_up(
            "U2",
            Key::OwnWord,
            POISON_LINE,
            Spot::new(Memory::Entry, 0, 4),
            &[in_scratch(scratch::ENTRY, 4)],
        )
        .asleep(&[Opcode::RdmaWrite])
        .signalled(),
        wait("WT9", Cq::Worker, 8),
        enable("EC4", C, Bound::NextSlot(0)),
    ]
}

fn client(block_size: u32) -> Vec<Element> {
    let generation = in_scratch(scratch::REPLY_GENERATION, 2);
    // Status, Block Size, the reserved word and the block lie side by side.
    let mut told = completion(
        "C4",
        &[
            in_scratch(scratch::ENTRY + 2, 2),
            in_scratch(scratch::STATUS, scratch::TAIL_LEN),
        ],
    );
    if let Shape::Send(pieces) = &mut told.shape
        && let Some(tail) = pieces.last_mut()
    {
        // That of a FREE says nothing of a block: the record turns to zeros.
        tail.instead = Some(in_scratch(scratch::NOTHING, scratch::TAIL_LEN));
    }
    vec![
        transfer("C1", block_size).asleep(&[Opcode::RdmaWrite]),
        completion(
            "C2",
            &[
                generation,
                in_scratch(scratch::STATUS, 2),
                byte_count("C1"),
                in_scratch(scratch::ZEROS, 4),
                data_address("C1"),
            ],
        ),
        transfer("C3", block_size)
            .asleep(&[Opcode::RdmaRead])
            .signalled(),
        told,
    ]
}
