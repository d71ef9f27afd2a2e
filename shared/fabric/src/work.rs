//! Work requests and what comes of them.

use crate::{LocalBuffer, RemoteBuffer};
use kbtp_wire::{ByteLen, Stag};

/// Names a work request to its poster; the stream only echoes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct WorkId(pub u64);

/// One operation to post. A stream takes it whole or refuses it; posted work takes effect in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkRequest<'a> {
    /// Send, with Invalidate if `invalidate` names a peer's STag (RFC 5040, section 5.2). The message is `head`
    /// followed by the octets of `tail`. `head` is copied when posted; `tail` must stay until the work is done.
    Send {
        /// First octets of the message.
        head: &'a [u8],
        /// The rest of the message, if any.
        tail: Option<LocalBuffer>,
        /// Ask for an event at the peer (Solicited Event).
        solicited: bool,
        /// The peer's STag to invalidate.
        invalidate: Option<Stag>,
    },
    /// RDMA Write of `local` to `remote`; with `immediate` only where the capabilities offer it.
    Write {
        /// Source.
        local: LocalBuffer,
        /// Destination.
        remote: RemoteBuffer,
        /// Immediate Data delivered after the Write.
        immediate: Option<u32>,
    },
    /// RDMA Write with Immediate of a few octets of the poster's, copied when posted; only where the capabilities offer it.
    WriteImmediate {
        /// What to write.
        octets: &'a [u8],
        /// Destination.
        remote: RemoteBuffer,
        /// Immediate Data delivered after the Write.
        immediate: u32,
    },
    /// RDMA Read of `remote` into `local`.
    Read {
        /// Destination.
        local: LocalBuffer,
        /// Source.
        remote: RemoteBuffer,
    },
    /// FetchAdd of `add` with `mask` at `remote` (RFC 7306, section 5.1.1); a mask of zero is an ordinary add.
    FetchAdd {
        /// The peer's counter, aligned to 8 octets.
        remote: RemoteBuffer,
        /// Add Data.
        add: u64,
        /// Add Mask: each set bit discards the carry out of that bit.
        mask: u64,
    },
    /// CmpSwap at `remote` (RFC 7306, section 5.1.2).
    CmpSwap {
        /// The peer's word, aligned to 8 octets.
        remote: RemoteBuffer,
        /// Compare Data.
        compare: u64,
        /// Compare Mask.
        compare_mask: u64,
        /// Swap Data.
        swap: u64,
        /// Swap Mask.
        swap_mask: u64,
    },
}

/// A received message, held by the stream until [`release`](crate::Stream::release)d.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReceiveSlot(pub u32);

/// How posted work ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkOutcome {
    /// Send or RDMA Write: the stream no longer needs the local buffer. It does not say that the peer has the data.
    Sent,
    /// Read: the data is in the local buffer.
    Read,
    /// FetchAdd or CmpSwap: the value before the operation.
    Atomic(u64),
    /// The stream ended first. The local buffer is no longer touched.
    Flushed,
}

/// What a stream reports, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A message arrived: read it with [`message`](crate::Stream::message), then release the slot.
    Received {
        /// Where it lies.
        slot: ReceiveSlot,
        /// Its length.
        len: ByteLen,
        /// The peer asked for an event.
        solicited: bool,
        /// The STag of this party that the message invalidated.
        invalidated: Option<Stag>,
    },
    /// A Write with Immediate, or Immediate Data, arrived.
    Immediate {
        /// The 32 (of 64, on RDMAP: the low) bits.
        data: u32,
    },
    /// Posted work ended.
    Done {
        /// Which.
        id: WorkId,
        /// How.
        outcome: WorkOutcome,
    },
}
