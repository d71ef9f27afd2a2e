//! Where in a WQE the fields lie that another WQE may write to.
//! Source: the structures of this crate. Offsets count from the first octet of the WQE.

/// Some octets of a WQE.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Field {
    /// Its first octet.
    pub at: u16,
    /// How many.
    pub len: u16,
}

impl Field {
    /// The modifier of the opcode.
    pub const MODIFIER: Self = Self::new(0, 1);
    /// The index.
    pub const INDEX: Self = Self::new(1, 2);
    /// The opcode.
    pub const OPCODE: Self = Self::new(3, 1);
    /// The number of the queue pair.
    pub const QPN: Self = Self::new(4, 3);
    /// The length.
    pub const LENGTH: Self = Self::new(7, 1);
    /// Fence, completion and solicited bits.
    pub const MODES: Self = Self::new(11, 1);
    /// Immediate data, or the key to invalidate.
    pub const IMMEDIATE: Self = Self::new(12, 4);
    /// RDMA and atomics: the remote address.
    pub const REMOTE_ADDRESS: Self = Self::new(16, 8);
    /// RDMA and atomics: the remote key.
    pub const REMOTE_KEY: Self = Self::new(24, 4);
    /// `MASKED_CS` on 8 octets: swap.
    pub const SWAP: Self = Self::new(32, 8);
    /// `MASKED_CS` on 8 octets: compare.
    pub const COMPARE: Self = Self::new(40, 8);
    /// `MASKED_CS` on 8 octets: swap mask.
    pub const SWAP_MASK: Self = Self::new(48, 8);
    /// `MASKED_CS` on 8 octets: compare mask.
    pub const COMPARE_MASK: Self = Self::new(56, 8);
    /// WAIT for a CQE: its index.
    pub const WAIT_INDEX: Self = Self::new(24, 4);
    /// WAIT for a CQE: the queue.
    pub const WAIT_CQN: Self = Self::new(28, 4);
    /// `SEND_EN` and `RCV_EN`: the index.
    pub const ENABLE_INDEX: Self = Self::new(24, 4);
    /// `SEND_EN` and `RCV_EN`: the queue pair.
    pub const ENABLE_QPN: Self = Self::new(28, 4);
    /// WAIT for data: the condition.
    pub const WAIT_CONDITION: Self = Self::new(19, 1);
    /// WAIT for data: the key.
    pub const WAIT_KEY: Self = Self::new(20, 4);
    /// WAIT for data: the address.
    pub const WAIT_ADDRESS: Self = Self::new(24, 8);
    /// WAIT for data: the data.
    pub const WAIT_DATA: Self = Self::new(32, 8);
    /// WAIT for data: the mask.
    pub const WAIT_MASK: Self = Self::new(40, 8);

    /// `len` octets from `at`.
    #[must_use]
    pub const fn new(at: u16, len: u16) -> Self {
        Self { at, len }
    }

    /// Octets `from` to `from + len` of this field; `None` if it is shorter.
    #[must_use]
    pub const fn part(self, from: u16, len: u16) -> Option<Self> {
        match from.checked_add(len) {
            Some(end) if end <= self.len => Some(Self::new(self.at.saturating_add(from), len)),
            _ => None,
        }
    }

    /// The byte count of data segment `n` of a WQE whose first one lies at `first`.
    #[must_use]
    pub const fn byte_count(first: u16, n: u16) -> Self {
        Self::new(first.saturating_add(n.saturating_mul(16)), 4)
    }

    /// The local key of data segment `n` of a WQE whose first one lies at `first`.
    #[must_use]
    pub const fn local_key(first: u16, n: u16) -> Self {
        Self::new(
            first.saturating_add(n.saturating_mul(16)).saturating_add(4),
            4,
        )
    }

    /// The address of data segment `n` of a WQE whose first one lies at `first`.
    #[must_use]
    pub const fn local_address(first: u16, n: u16) -> Self {
        Self::new(
            first.saturating_add(n.saturating_mul(16)).saturating_add(8),
            8,
        )
    }

    /// The octet behind the last one.
    #[must_use]
    pub const fn end(self) -> u16 {
        self.at.saturating_add(self.len)
    }

    /// Whether both have an octet in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.at < other.end() && other.at < self.end()
    }

    /// Whether every octet of `other` is one of this field's.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.at <= other.at && other.end() <= self.end()
    }
}

/// Where the first data segment of a Send lies.
pub const SEND_DATA_AT: u16 = 16;
/// Where the first data segment of an RDMA operation lies.
pub const RDMA_DATA_AT: u16 = 32;
/// Where the data segment of an atomic with 16 octets of operands lies.
pub const ATOMIC_REPLY_AT: u16 = 48;
/// Where the data segment of `MASKED_CS` on 8 octets lies.
pub const MASKED_CS8_REPLY_AT: u16 = 64;
