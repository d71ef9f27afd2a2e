//! Numbers of the device's objects and positions in its queues, each a type of its own.
//! Source: rdma-core, providers/mlx5/mlx5dv.h; DPDK, `drivers/common/mlx5/mlx5_prm.h` (widths of the indices).

use core::fmt;

macro_rules! number24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// The highest value.
            pub const MAX: u32 = 0x00ff_ffff;

            /// The number; `None` above 24 bits.
            #[must_use]
            pub const fn new(value: u32) -> Option<Self> {
                if value <= Self::MAX { Some(Self(value)) } else { None }
            }

            /// The low 24 bits of `value`.
            #[must_use]
            pub const fn truncate(value: u32) -> Self {
                Self(value & Self::MAX)
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

number24! {
    /// Number of a queue pair.
    Qpn
}
number24! {
    /// Number of a completion queue.
    Cqn
}
number24! {
    /// Position of a CQE, counted from the first one of its queue, modulo 2^24.
    CqeIndex
}

/// A memory key, local or remote: index (24) and tag (8).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mkey(pub u32);

impl Mkey {
    /// The key that ends the list of a receive WQE.
    pub const INVALID: Self = Self(0x100);
}

impl fmt::Debug for Mkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mkey({:#010x})", self.0)
    }
}

impl fmt::Display for Mkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Position in a send queue: basic blocks counted from its first one, modulo 2^16 whatever the size of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct WqeIndex(pub u16);

impl WqeIndex {
    /// How far `self` is ahead of `earlier`, modulo 2^16.
    #[must_use]
    pub const fn distance(self, earlier: Self) -> u16 {
        self.0.wrapping_sub(earlier.0)
    }
}

impl CqeIndex {
    /// Whether a queue that holds `count` CQEs since its start has the one at this index: the comparison is signed and
    /// modulo 2^24, so an index up to 2^23 behind counts as there.
    #[must_use]
    pub const fn is_reached(self, count: u64) -> bool {
        // The newest CQE is number count - 1; with none, it is one before the first.
        let [.., a, b, c] = count.to_be_bytes();
        let newest = u32::from_be_bytes([0, a, b, c]).wrapping_sub(1);
        newest.wrapping_sub(self.0) & Self::MAX < 1 << 23
    }
}
