//! UMR control segment: 48 octets after the control segment.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_wqe_umr_ctrl_seg`.
//! Octets: 0 Flags, 1..4 Reserved, 4..6 Length of the list in segments, 6..8 Offset in the translation table, or length of
//! the BSF in segments, 8..16 Which fields of the key context count, 16..48 Reserved (zero out, ignored in).

use kbtp_wire::fixed::{be16, be64, get, put, put16, put64};

/// Flags of a UMR, as they are on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct UmrFlags(pub u8);

impl UmrFlags {
    /// The list is in the WQE.
    pub const INLINE: Self = Self(1 << 7);
    /// Fail unless the key is free.
    pub const CHECK_FREE: Self = Self(1 << 5);
    /// Octets 6 to 8 are an offset in the translation table.
    pub const TRANSLATION_OFFSET: Self = Self(1 << 4);
    /// Fail unless the key belongs to this QP.
    pub const CHECK_QPN: Self = Self(1 << 3);

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Which fields of the key context count, as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct UmrMask(pub u64);

impl UmrMask {
    /// The length.
    pub const LEN: Self = Self(1 << 0);
    /// The start address.
    pub const START_ADDRESS: Self = Self(1 << 6);
    /// The key's tag.
    pub const MKEY: Self = Self(1 << 13);
    /// The QP it belongs to.
    pub const QPN: Self = Self(1 << 14);
    /// The right to write locally.
    pub const LOCAL_WRITE: Self = Self(1 << 18);
    /// The right to read remotely.
    pub const REMOTE_READ: Self = Self(1 << 19);
    /// The right to write remotely.
    pub const REMOTE_WRITE: Self = Self(1 << 20);
    /// The right to atomics.
    pub const ATOMIC: Self = Self(1 << 21);
    /// Whether it is free.
    pub const FREE: Self = Self(1 << 29);

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a UMR changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UmrControl {
    /// Flags.
    pub flags: UmrFlags,
    /// Length of the list, in segments of 16 octets.
    pub list_segments: u16,
    /// Offset in the translation table or length of the BSF, by the flags.
    pub offset: u16,
    /// What changes.
    pub mask: UmrMask,
}

impl UmrControl {
    /// Octets of the segment.
    pub const LEN: usize = 48;

    /// The segment in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        let [flags] = get::<0, 1, _>(octets);
        Self {
            flags: UmrFlags(flags),
            list_segments: be16::<4, _>(octets),
            offset: be16::<6, _>(octets),
            mask: UmrMask(be64::<8, _>(octets)),
        }
    }

    /// The octets of this segment.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put::<0, 1, _>(&mut octets, [self.flags.0]);
        put16::<4, _>(&mut octets, self.list_segments);
        put16::<6, _>(&mut octets, self.offset);
        put64::<8, _>(&mut octets, self.mask.0);
        octets
    }
}
