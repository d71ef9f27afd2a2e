//! Key context segment: 64 octets, in a UMR after its control segment; the same layout as the first 64 octets of the key
//! context (mkc) of a command.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_wqe_mkey_context_seg`; `mlx5_ifc.h`, mkc.
//! Octets: 0 Free (bit 6), 2 Rights, 4..8 QPN (24) and tag (8), 12..16 Flags (8) and PD (24), 16..24 Start address,
//! 24..32 Length, 52..56 Length of the translation list in segments, 59 Log2 of the page size; the rest zero out, ignored in.

use crate::Qpn;
use kbtp_wire::fixed::{be32, be64, get, put, put32, put64};

/// What a key allows, as it is on the wire. The two low bits are the low bits of the access mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AccessRights(pub u8);

impl AccessRights {
    /// UMRs may change it.
    pub const UMR: Self = Self(1 << 7);
    /// Atomics.
    pub const ATOMIC: Self = Self(1 << 6);
    /// Remote writes.
    pub const REMOTE_WRITE: Self = Self(1 << 5);
    /// Remote reads.
    pub const REMOTE_READ: Self = Self(1 << 4);
    /// Local writes: scatter.
    pub const LOCAL_WRITE: Self = Self(1 << 3);
    /// Local reads: gather.
    pub const LOCAL_READ: Self = Self(1 << 2);

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is allowed.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MkeyContext {
    /// Nobody may use it yet.
    pub free: bool,
    /// What it allows.
    pub rights: AccessRights,
    /// The one QP that may use it; [`Qpn::MAX`] for any.
    pub qpn: Qpn,
    /// The low eight bits of the key.
    pub tag: u8,
    /// Flags of the octet before the protection domain, as they are on the wire.
    pub flags: u8,
    /// Protection domain: 24 bits count.
    pub pd: u32,
    /// Its first address.
    pub start: u64,
    /// Its length in octets.
    pub len: u64,
    /// Length of the translation list, in segments of 16 octets.
    pub list_segments: u32,
    /// Log2 of the page or entity size.
    pub log_page_size: u8,
}

impl MkeyContext {
    /// Octets of the segment.
    pub const LEN: usize = 64;

    const FREE: u8 = 1 << 6;
    const PD_MASK: u32 = 0x00ff_ffff;

    /// The segment in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        let [free] = get::<0, 1, _>(octets);
        let [rights] = get::<2, 1, _>(octets);
        let [tag] = get::<7, 1, _>(octets);
        let [flags] = get::<12, 1, _>(octets);
        let [log_page_size] = get::<59, 1, _>(octets);
        Self {
            free: free & Self::FREE != 0,
            rights: AccessRights(rights),
            qpn: Qpn::truncate(be32::<4, _>(octets) >> 8),
            tag,
            flags,
            pd: be32::<12, _>(octets) & Self::PD_MASK,
            start: be64::<16, _>(octets),
            len: be64::<24, _>(octets),
            list_segments: be32::<52, _>(octets),
            log_page_size,
        }
    }

    /// The octets of this segment.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put::<0, 1, _>(&mut octets, [if self.free { Self::FREE } else { 0 }]);
        put::<2, 1, _>(&mut octets, [self.rights.0]);
        put32::<4, _>(&mut octets, self.qpn.get() << 8 | u32::from(self.tag));
        put32::<12, _>(&mut octets, self.pd & Self::PD_MASK);
        put::<12, 1, _>(&mut octets, [self.flags]);
        put64::<16, _>(&mut octets, self.start);
        put64::<24, _>(&mut octets, self.len);
        put32::<52, _>(&mut octets, self.list_segments);
        put::<59, 1, _>(&mut octets, [self.log_page_size]);
        octets
    }
}
