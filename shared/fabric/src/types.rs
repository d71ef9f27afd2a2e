//! Where data lies, who may touch it, and what a stream can do.

use kbtp_wire::{ByteLen, Stag, TaggedOffset};

/// A point on the monotone clock of the party that reads it, in nanoseconds. The cores are told the time; only a
/// driver reads a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time `ms` milliseconds later, saturating.
    #[must_use]
    pub const fn after_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// The time `ns` nanoseconds later, saturating.
    #[must_use]
    pub const fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to `self`, zero if `earlier` is later.
    #[must_use]
    pub const fn since_ns(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// What may be done with a registered buffer through its STag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "rights are independent of each other: every combination means something"
)]
pub struct Access {
    /// The peer may RDMA Read it.
    pub remote_read: bool,
    /// The peer may RDMA Write it.
    pub remote_write: bool,
    /// The peer may FetchAdd and CmpSwap on it.
    pub remote_atomic: bool,
    /// The peer may invalidate the STag with Send with Invalidate.
    pub remote_invalidate: bool,
    /// This party's own RDMA Reads may place data in it, and its receives too.
    pub local_write: bool,
}

impl Access {
    /// Source of this party's Sends and RDMA Writes only: the peer has no right to it.
    pub const LOCAL_READ: Self = Self {
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
        remote_invalidate: false,
        local_write: false,
    };

    /// Source and sink of this party's own operations: the peer has no right to it.
    pub const LOCAL: Self = Self {
        local_write: true,
        ..Self::LOCAL_READ
    };
}

/// A buffer of this party, named by an STag of its own stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalBuffer {
    /// The STag that [`Stream::register`](crate::Stream::register) gave.
    pub stag: Stag,
    /// First octet.
    pub offset: TaggedOffset,
    /// Octets.
    pub len: ByteLen,
}

/// A buffer of the peer: an STag it advertised and a Tagged Offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBuffer {
    /// The peer's STag.
    pub stag: Stag,
    /// First octet.
    pub offset: TaggedOffset,
}

/// Atomic operations a stream offers to its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomics {
    /// None.
    None,
    /// FetchAdd with an Add Mask (RFC 7306, section 5.1.1).
    Masked,
    /// The unmasked Fetch and Add of InfiniBand (draft, section 9.2).
    Unmasked,
}

/// What a stream can do, known once it is established.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Atomic operations on both sides of the stream.
    pub atomics: Atomics,
    /// RDMA Write with Immediate whose receipt implies that earlier Writes are visible (draft, section 6.5).
    pub write_with_immediate: bool,
    /// Send with Invalidate.
    pub send_with_invalidate: bool,
    /// RDMA Reads and Atomics this party may have outstanding (ORD).
    pub outbound_reads: u16,
    /// RDMA Reads and Atomics the peer may have outstanding (IRD).
    pub inbound_reads: u16,
    /// Longest message this party can receive in a Send, in octets.
    pub max_receive: ByteLen,
    /// Longest RDMA Write or Read, in octets.
    pub max_message: ByteLen,
}
