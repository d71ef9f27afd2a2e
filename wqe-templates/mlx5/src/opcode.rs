//! Opcodes of send WQEs and their modifiers.
//! Source: rdma-core, providers/mlx5/mlx5dv.h; DPDK, `drivers/common/mlx5/mlx5_prm.h` (WAIT, `RCV_EN`, `SEND_EN`, DUMP, MMO).

use core::fmt;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $shown:literal;)*) => {
        /// What a WQE does: the last octet of the first word of its control segment.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $value,)*
        }

        impl Opcode {
            /// Every opcode known here, in the order of their values.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The opcode with this value; `None` if it is not known here.
            #[must_use]
            pub const fn from_wire(value: u8) -> Option<Self> {
                Some(match value {
                    $($value => Self::$name,)*
                    _ => return None,
                })
            }
        }

        impl fmt::Display for Opcode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $(Self::$name => $shown,)*
                })
            }
        }
    };
}

opcodes! {
    /// Does nothing; completes in order.
    Nop = 0x00, "NOP";
    /// Send with Invalidate; the key is the control segment's immediate.
    SendInvalidate = 0x01, "SEND_INVAL";
    /// RDMA Write.
    RdmaWrite = 0x08, "RDMA_WRITE";
    /// RDMA Write with Immediate.
    RdmaWriteImmediate = 0x09, "RDMA_WRITE_IMM";
    /// Send.
    Send = 0x0a, "SEND";
    /// Send with Immediate.
    SendImmediate = 0x0b, "SEND_IMM";
    /// TCP segmentation. Named, not decoded: no chain uses it.
    Tso = 0x0e, "TSO";
    /// Waits for a CQE, for data in memory or for a time.
    Wait = 0x0f, "WAIT";
    /// RDMA Read.
    RdmaRead = 0x10, "RDMA_READ";
    /// 64-bit compare and swap.
    AtomicCs = 0x11, "ATOMIC_CS";
    /// 64-bit fetch and add.
    AtomicFa = 0x12, "ATOMIC_FA";
    /// Compare and swap under masks.
    MaskedCs = 0x14, "MASKED_CS";
    /// Fetch and add with field boundaries.
    MaskedFa = 0x15, "MASKED_FA";
    /// Lets a managed receive queue run up to an index.
    ReceiveEnable = 0x16, "RCV_EN";
    /// Lets a managed send queue run up to an index.
    SendEnable = 0x17, "SEND_EN";
    /// Reads memory and drops it. Named, not decoded.
    Dump = 0x23, "DUMP";
    /// Registers memory: changes an mkey.
    Umr = 0x25, "UMR";
    /// Memory to memory operations. Named, not decoded.
    Mmo = 0x2f, "MMO";
    /// The same within one device. Named, not decoded.
    LocalMmo = 0x32, "LOCAL_MMO";
}

impl Opcode {
    /// The value in the octet.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }
}

/// Modifier of [`Opcode::Wait`]: what is waited for. The modifier of a masked atomic is that of
/// [`Atomic::modifier`](crate::Atomic::modifier), of all others here zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum WaitFor {
    /// A CQE.
    Cqe = 0,
    /// Data in memory.
    Data = 1,
    /// A time. Named, not decoded.
    Time = 2,
}

impl WaitFor {
    /// The value in the octet.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }
}
