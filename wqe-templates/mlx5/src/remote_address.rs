//! Remote-address segment: the 16 octets after the control segment of an RDMA or atomic WQE.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_wqe_raddr_seg`.
//! Octets: 0..8 Address, 8..12 Remote key, 12..16 Reserved (zero out, ignored in).

use crate::Mkey;
use kbtp_wire::fixed::{be32, be64, put32, put64};

/// Where at the responder an operation reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddress {
    /// The address.
    pub address: u64,
    /// The key.
    pub rkey: Mkey,
}

impl RemoteAddress {
    /// Octets of the segment.
    pub const LEN: usize = 16;

    /// The segment in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            address: be64::<0, _>(octets),
            rkey: Mkey(be32::<8, _>(octets)),
        }
    }

    /// The octets of this segment.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put64::<0, _>(&mut octets, self.address);
        put32::<8, _>(&mut octets, self.rkey.0);
        octets
    }
}
