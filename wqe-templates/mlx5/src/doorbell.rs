//! Doorbell records: words in memory that tell the device how far software has got, and where in a UAR page it is told to
//! look.
//! Source: rdma-core, providers/mlx5/mlx5dv.h (`MLX5_RCV_DBR`, `MLX5_SND_DBR`, `MLX5_CQ_DOORBELL`), cq.c (`mlx5_arm_cq`).
//! QP, octets: 0..4 Receive counter, 4..8 Send counter (16 bits each). CQ, octets: 0..4 Consumer index (24 bits),
//! 4..8 Arm: sequence (29..28), solicited only (24), consumer index (23..0). The rest zero out, ignored in.

use crate::{CqeIndex, Cqn, WqeIndex};
use kbtp_wire::fixed::{be32, put32, put64};

/// Where in a UAR page the first eight octets of a control segment are written to ring a send queue (`BlueFlame`).
pub const UAR_SEND: usize = 0x800;

/// Where in a UAR page a completion queue is armed.
pub const UAR_CQ: usize = 0x20;

/// The record of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QpDoorbell {
    /// Receive WQEs posted.
    pub receive: u16,
    /// Basic blocks of the send queue posted.
    pub send: WqeIndex,
}

impl QpDoorbell {
    /// Octets of the record.
    pub const LEN: usize = 8;
    /// Where the receive counter lies.
    pub const RECEIVE_AT: usize = 0;
    /// Where the send counter lies.
    pub const SEND_AT: usize = 4;

    /// The record in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        let low = |word: u32| {
            let [.., high, low] = word.to_be_bytes();
            u16::from_be_bytes([high, low])
        };
        Self {
            receive: low(be32::<{ Self::RECEIVE_AT }, _>(octets)),
            send: WqeIndex(low(be32::<{ Self::SEND_AT }, _>(octets))),
        }
    }

    /// The octets of this record.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<{ Self::RECEIVE_AT }, _>(&mut octets, u32::from(self.receive));
        put32::<{ Self::SEND_AT }, _>(&mut octets, u32::from(self.send.0));
        octets
    }
}

/// How a completion queue is armed for its next event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CqArm {
    /// Counts the times it was armed; two bits count.
    pub sequence: u8,
    /// Only solicited CQEs, and errors, make an event.
    pub solicited_only: bool,
    /// The next CQE software looks at.
    pub consumer: CqeIndex,
}

impl CqArm {
    const SOLICITED_ONLY: u32 = 1 << 24;

    fn from_word(word: u32) -> Self {
        let [top, ..] = word.to_be_bytes();
        Self {
            sequence: top >> 4 & 3,
            solicited_only: word & Self::SOLICITED_ONLY != 0,
            consumer: CqeIndex::truncate(word),
        }
    }

    fn to_word(self) -> u32 {
        let solicited = if self.solicited_only {
            Self::SOLICITED_ONLY
        } else {
            0
        };
        u32::from(self.sequence & 3) << 28 | solicited | self.consumer.get()
    }

    /// What is written to [`UAR_CQ`]: the arm word and the number of the queue.
    #[must_use]
    pub fn ring(self, cqn: Cqn) -> [u8; 8] {
        let mut octets = [0; 8];
        let doorbell = u64::from(self.to_word()) << 32 | u64::from(cqn.get());
        put64::<0, _>(&mut octets, doorbell);
        octets
    }
}

/// The record of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CqDoorbell {
    /// The next CQE software looks at.
    pub consumer: CqeIndex,
    /// How it was armed last.
    pub arm: CqArm,
}

impl CqDoorbell {
    /// Octets of the record.
    pub const LEN: usize = 8;

    /// The record in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            consumer: CqeIndex::truncate(be32::<0, _>(octets)),
            arm: CqArm::from_word(be32::<4, _>(octets)),
        }
    }

    /// The octets of this record.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<0, _>(&mut octets, self.consumer.get());
        put32::<4, _>(&mut octets, self.arm.to_word());
        octets
    }
}
