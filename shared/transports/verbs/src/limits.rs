//! Bounds of this crate, each with its reason.

/// Work requests of a stream that a send queue holds, if the device has that many: a Write and a Send for each of the 256
/// requests that a session may have in flight, and as many again for what is done and not yet reported.
pub const SEND_WORK: u32 = 1024;

/// Receive slots of a stream: a session's credits and one.
pub const RECEIVES: u32 = 257;

/// Octets of a receive slot: requests without inline data, completions, and HELLO_ACK with its TLVs.
pub const RECEIVE_LEN: u32 = 1024;

/// Registrations of a stream.
pub const REGISTRATIONS: u16 = 4096;

/// Octets in which the heads of messages wait until the device has read them: 512 completions of 40 octets and some, or
/// what the queue holds of longer ones. A longer queue of long heads waits, as for a full send queue.
pub const STAGING: u32 = 64 << 10;

/// Longest head of a message: HELLO and HELLO_ACK with all their TLVs.
pub const HEAD_LEN: usize = 16 << 10;

/// Writes that go unreported between two that are: the send queue is freed by what is reported.
pub const UNREPORTED_WRITES: u32 = 64;

/// RDMA Reads and Atomics outstanding, each way: devices have 16 or more, and a queue of 16 fills a path of 100 Gbit/s
/// and 10 µs with blocks of 8 KiB.
pub const READS: u8 = 16;

/// Longest RDMA Write or Read: a gigabyte, as the lengths of the protocol's descriptors go to four.
pub const MESSAGE: u32 = 1 << 30;

/// Buffers of one work request: a head and a tail that lies in two pieces of a long region.
pub const BUFFERS: u32 = 3;

/// Completions that one call of `progress` takes before its stream gives way to others.
pub const PROGRESS_COMPLETIONS: usize = 256;
/// Completions that are taken at once: they stay in four cache lines of sixteen.
pub const POLL_BATCH: usize = 16;
/// Looks at an empty completion queue between two at the connection's descriptors: each of those is a system call, and
/// the memory of a queue is free to look at.
pub const LOOKS_PER_CALL: u32 = 8;

/// How long the setting up of a connection may take, in milliseconds.
pub const STARTUP_MS: u64 = 10_000;
/// How long the connection manager looks for an address, and for a route, in milliseconds.
pub const RESOLVE_MS: u32 = 3_000;
/// How long an end in order waits for the peer's answer, in milliseconds.
pub const CLOSE_MS: u64 = 2_000;

/// Quiet time after which the peer is asked for a sign of life, in milliseconds: as over TCP.
pub const KEEPALIVE_IDLE_MS: u64 = 10_000;

/// On iWARP, how long after its first message an initiator that hears nothing sends an empty Write, in milliseconds; then
/// twice as long, and so on. A responder in the Linux kernel (siw) may overlook the first message if it comes right behind the
/// connection's reply, and looks again when more comes.
pub const NUDGE_MS: u64 = 40;
/// Longest pause between two of them.
pub const NUDGE_MAX_MS: u64 = 1_000;

/// Times a packet is sent again before the peer is given up, and a message for want of a receive (7 is for ever: the
/// protocol's credits see to it that there is one).
pub const RETRIES: u8 = 7;

/// Connections in their startup at most, and of those from one source: as over TCP.
pub const HALF_OPEN: usize = 64;
/// See [`HALF_OPEN`].
pub const HALF_OPEN_PER_SOURCE: usize = 16;
/// Connections the kernel holds for us.
pub const BACKLOG: i32 = 128;

/// Longest Private Data: InfiniBand's reply has 196 octets, its request 56.
pub const REPLY_DATA: usize = 196;
/// See [`REPLY_DATA`].
pub const REQUEST_DATA: usize = 56;

/// How long each step of a device's probe may take, in milliseconds. A step that takes longer has failed, and what it was
/// about is not used.
pub const PROBE_MS: u64 = 2_000;
