//! Profile L: LOAD of whole blocks, for sessions that only read; all else is handed to software.

use super::parts::{
    bell, byte_count, compare_data, compare_none, completion, data_address, dispatch, enable,
    field, generation_operands, in_scratch, receive_check, receive_list, transfer, wait, wave_0,
};
use crate::element::{Bound, Cq, Queue};
use crate::memory::scratch;
use crate::template::Template;
use kbtp_mlx5::{Field, Opcode};
use kbtp_wire::ByteLen;

/// The slot of profile L, for blocks of `block_size` octets: 20 WQEs of the loopback queue pair in
/// 25 basic blocks and 2 of the client's in 4.
#[must_use]
pub fn load(block_size: ByteLen) -> Template {
    loads(block_size, Bound::NextSlot(2))
}

/// The same with a breakpoint that lets something else run.
pub(super) fn loads(block_size: ByteLen, then: Bound) -> Template {
    let w = Queue::Worker;
    let opcode = |wqe| field(wqe, Field::OPCODE);
    let mut worker = vec![
        wait("WAITR", Cq::Receive, 0),
        enable("EN0", w, Bound::Through("EN1")),
    ];
    worker.extend(wave_0(&generation_operands("CASa")));
    worker.extend([
        wait("WT1", Cq::Worker, 0),
        enable("EN1", w, Bound::Through("EN2")),
        receive_check(),
        compare_data(block_size.0),
        compare_none(),
        wait("WT2", Cq::Worker, 1),
        enable("EN2", w, Bound::Through("EN3")),
        dispatch(&["C1", "C2", "BELL", "GO", "PW"].map(opcode)),
        wait("WT3", Cq::Worker, 2),
        enable("EN3", w, Bound::Through("PW")),
        bell(),
        enable("GO", Queue::Client, Bound::NextSlot(0)).asleep(&[Opcode::SendEnable]),
        enable("PW", w, then).asleep(&[Opcode::SendEnable]),
    ]);
    Template {
        name: "profile L",
        worker,
        client: vec![
            transfer("C1", block_size.0).asleep(&[Opcode::RdmaWrite]),
            completion(
                "C2",
                &[
                    in_scratch(scratch::REPLY_GENERATION, 2),
                    in_scratch(scratch::STATUS, 2),
                    byte_count("C1"),
                    in_scratch(scratch::ZEROS, 4),
                    data_address("C1"),
                ],
            ),
        ],
        receive: receive_list(),
        capacity: u32::from(crate::limits::MESSAGE_CAPACITY),
        worker_stride: 25,
        client_stride: 4,
        head: 2,
    }
}
