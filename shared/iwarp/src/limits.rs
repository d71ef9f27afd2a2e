//! Bounds of this crate, each with its reason.

/// Work requests posted and not yet reported: four times what a KBTP session has in flight at most, 1024 requests, and
/// some for what is no request.
pub const MAX_SEND_QUEUE: u16 = 4 * 1024 + 64;

/// Receive slots of a stream: twice the Request Credits a KBTP target grants at most.
pub const MAX_RECEIVE_SLOTS: u16 = 4096;

/// Longest message a receive slot takes. KBTP's longest is a request with inline data; a slot is memory held all the
/// time, so a megabyte is generous.
pub const MAX_RECEIVE_LEN: u32 = 1 << 20;

/// Octets of all receive slots together.
pub const MAX_RECEIVE_OCTETS: u64 = 1 << 30;

/// Registrations of a stream, retired ones included. The low 12 bits of an STag find its entry, the other 20 are
/// drawn.
pub const MAX_REGISTRATIONS: u16 = 4096;

/// RDMA Reads and Atomics outstanding each way; the field of RFC 6581 has 14 bits, and one entry here is 64 octets.
pub const MAX_READ_DEPTH: u16 = 1024;

/// Octets read ahead when it is not known where they go: a batch of small FPDUs, and small enough that copying it
/// costs less than a system call.
pub const DEFAULT_STAGING_LEN: u32 = 16 << 10;

/// Octets read ahead once payload longer than the staging buffer came: room for the end of that FPDU, a short message
/// (a KBTP completion has 64 octets in all) and the next header, so that hardly any of the next payload is staged and
/// copied. As soon as a read fills it, the next is offered the whole buffer again.
pub const AHEAD_OF_LARGE: usize = 512;

/// Staging is at least one control FPDU with every header there is, and at most what a copy stays cheap for.
pub const MIN_STAGING_LEN: u32 = 512;
/// See [`MIN_STAGING_LEN`].
pub const MAX_STAGING_LEN: u32 = 1 << 20;

/// Octets framed ahead of the socket: a dozen FPDUs of 4 KiB, or one large one, which another stream waits for some tens of
/// microseconds at most; and still in the second-level cache, where the CRC has just read them, when the kernel copies them.
/// Twice as much was no faster.
pub const MAX_FRAMED_AHEAD: u64 = 48 << 10;

/// Ring of framed headers, trailers and copied payload: what is framed ahead, plus one FPDU of 64,768 octets with all
/// its Markers (65,288), rounded up to a power of two. [`MAX_FRAMED_AHEAD`] is checked before an FPDU is framed.
pub const TX_RING_LEN: usize = 256 << 10;

/// Pieces framed ahead: 21 large FPDUs of header, payload and trailer fill a gather list of 64 entries; the list is
/// filled anew for each send, so that twice as many pieces are plenty.
pub const MAX_CHUNKS: usize = 128;

/// Octets that wait in posted Sends (their heads). One post takes at most a quarter.
pub const DEFAULT_HEAD_RING_LEN: u32 = 256 << 10;
/// See [`DEFAULT_HEAD_RING_LEN`].
pub const MAX_HEAD_RING_LEN: u32 = 64 << 20;

/// Longest headers of an FPDU after its length: DDP Untagged (18) and Atomic Request (52).
pub const MAX_HEADERS_LEN: usize = 70;

/// Time for the startup frames, unless configured (RFC 5044, section 7.1.2, rule 10).
pub const DEFAULT_STARTUP_TIMEOUT_MS: u64 = 10_000;

/// Time for the peer to end its sending once this party has, unless configured.
pub const DEFAULT_CLOSE_TIMEOUT_MS: u64 = 5_000;
