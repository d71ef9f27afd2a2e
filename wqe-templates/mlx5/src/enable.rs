//! How far a managed queue may run: the segment of `SEND_EN` and `RCV_EN`.
//! Source: DPDK, `drivers/common/mlx5/mlx5_prm.h`, `mlx5_wqe_qseg`.
//! Octets: 0..8 Reserved, 8..12 Producer index (low 16 bits), 12..16 QPN. Reserved bits are zero out, ignored in.

use crate::{Qpn, WqeIndex};
use kbtp_wire::fixed::{be32, put32};

/// Lets the queue of a pair run up to an index, this one excluded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Enable {
    /// The queue pair.
    pub qpn: Qpn,
    /// What lies below may run. A send queue counts basic blocks, a receive queue counts WQEs.
    pub up_to: WqeIndex,
}

impl Enable {
    /// Octets of the segment.
    pub const LEN: usize = 16;

    /// The segment in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        let [.., high, low] = be32::<8, _>(octets).to_be_bytes();
        Self {
            qpn: Qpn::truncate(be32::<12, _>(octets)),
            up_to: WqeIndex(u16::from_be_bytes([high, low])),
        }
    }

    /// The octets of this segment.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<8, _>(&mut octets, u32::from(self.up_to.0));
        put32::<12, _>(&mut octets, self.qpn.get());
        octets
    }
}
