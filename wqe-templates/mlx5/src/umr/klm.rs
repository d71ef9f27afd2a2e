//! Entries of a key that is put together from others: KLM (each with a length) and KSM (all of one size).
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_wqe_umr_klm_seg`; openucx, `src/uct/ib/mlx5/dv/ib_mlx5dv_md.c` (KSM).
//! Octets: 0..4 Byte count (KSM: reserved, zero out, ignored in), 4..8 Key, 8..16 Address.

use crate::Mkey;
use kbtp_wire::fixed::{be32, be64, put32, put64};

/// A piece of another key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Klm {
    /// Its length in octets.
    pub len: u32,
    /// The other key.
    pub mkey: Mkey,
    /// Where in it the piece starts.
    pub address: u64,
}

impl Klm {
    /// Octets of an entry.
    pub const LEN: usize = 16;

    /// The entry in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            len: be32::<0, _>(octets),
            mkey: Mkey(be32::<4, _>(octets)),
            address: be64::<8, _>(octets),
        }
    }

    /// The octets of this entry.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put32::<0, _>(&mut octets, self.len);
        put32::<4, _>(&mut octets, self.mkey.0);
        put64::<8, _>(&mut octets, self.address);
        octets
    }
}

/// One entity of a key whose entities all have the size its context names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KsmEntry {
    /// The other key.
    pub mkey: Mkey,
    /// Where in it the entity starts.
    pub address: u64,
}

impl KsmEntry {
    /// Octets of an entry.
    pub const LEN: usize = Klm::LEN;

    /// The entry in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        let Klm { mkey, address, .. } = Klm::decode(octets);
        Self { mkey, address }
    }

    /// The octets of this entry.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let Self { mkey, address } = *self;
        Klm {
            len: 0,
            mkey,
            address,
        }
        .encode()
    }
}
