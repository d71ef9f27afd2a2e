//! Every bound of the target, with its reason. A peer meets the ones marked (peer); the rest bound our own work.

pub use kbtp_core::limits::{CREDITS_MAX, HANDLES_MAX, TENANT_NAME_MAX, TENANTS_MAX};

/// Handles when the configuration names none, at least. A range takes 64 of them however small its quota, so this lets
/// 64 pairs share a small pool, at 64 KiB of table.
pub const HANDLES_DEFAULT_MIN: u64 = 4096;

/// Sessions at most, over all workers: each has a handle range, and the core keeps so many.
pub const SESSIONS_MAX: u32 = kbtp_core::limits::RANGES_MAX;

/// Half-open streams at most. Each holds a descriptor and the memory of a session's stream.
pub const HALF_OPEN_MAX: u32 = 65_536;

/// One source may have this part of the half-open streams, so that one that floods leaves room for the rest.
pub const HALF_OPEN_SOURCES: usize = 4;

/// How old a stream without its HELLO is before it can be made to go for a new one, in milliseconds (peer).
pub const SILENT_GRACE_MS: u64 = kbtp_iwarp_tcp::limits::SILENT_GRACE_MS;

/// The last part of the half-open streams, of all and of a source: once only these are left, each new stream makes one that
/// is old enough go.
pub const HALF_OPEN_LAST: usize = 8;

/// Smallest block, in octets: the core's limit.
pub const BLOCK_SIZE_MIN: u64 = kbtp_core::limits::BLOCK_SIZE_MIN as u64;

/// Largest block, in octets: the core's limit.
pub const BLOCK_SIZE_MAX: u64 = kbtp_core::limits::BLOCK_SIZE_MAX as u64;

/// Blocks at most: the core's limit.
pub const BLOCKS_MAX: u64 = kbtp_core::limits::BLOCKS_MAX as u64;

/// Inline data at most, in octets: the core's limit.
pub const INLINE_MAX: u64 = kbtp_core::limits::INLINE_MAX as u64;

/// Workers at most. A worker costs a thread, an epoll and a share of the handle metrics; past the cores of the
/// largest machines in use more of them only take turns.
pub const WORKERS_MAX: u16 = 256;

/// Workers when the configuration names none: the cores, but no more than this. Past it the network card, not the
/// cores, bounds a target that moves blocks.
pub const WORKERS_DEFAULT_MAX: u16 = 16;

/// Listening addresses at most: one acceptor waits on all of them.
pub const LISTENERS_MAX: usize = 16;

/// Sessions one worker may hold when the configuration does not say otherwise (peer).
pub const SESSIONS_DEFAULT: u32 = 10_000;

/// Streams that have not yet completed their handshake and HELLO, over all workers, by default (peer). Each holds a
/// descriptor and a receive ring; an honest initiator is through in a round trip or two.
pub const HALF_OPEN_DEFAULT: u32 = 256;

/// Commands that may wait in a worker's inbox. Accepted streams (bounded by the half-open limit) and evictions
/// (bounded by one for each half-open stream) are all that is ever sent.
pub const INBOX_LEN: usize = 4096;

/// Streams served before the worker looks at its inbox and timers again.
pub const READY_BATCH: usize = 256;

/// Events one stream may have served before the next stream's turn, if they take less than [`TURN_NS`]. About one receive
/// ring: a stream that fills it again at once waits for the others.
pub const EVENTS_PER_TURN: u32 = 64;

/// How long one stream's turn lasts, in nanoseconds: a neighbour with one request under way waits for about one turn of
/// each stream that floods, and a load of 4 KiB takes 10 us by itself. A turn does a few requests even so; looking at
/// the clock costs 25 ns.
pub const TURN_NS: u64 = 40_000;

/// Octets that a stream reads ahead: all credits of the default in loads, and no more FPDUs than a turn has time for.
pub const READ_AHEAD: u32 = 4 << 10;

/// Octets a tenant's key must have. RFC 2104 discourages HMAC keys shorter than the hash's output of 32; 16 octets
/// of a random key still cannot be guessed.
pub const TENANT_KEY_MIN: usize = 16;

/// Octets a tenant's key may have. HMAC hashes longer ones anyway.
pub const TENANT_KEY_MAX: usize = 1024;

/// Octets of a key file at most: the longest key in hexadecimal, and as much again for space around it.
pub const KEY_FILE_MAX: u64 = 4096;

/// Connections of the admin endpoint at one time. A scraper, a health check and a person need three.
pub const ADMIN_CONNECTIONS: usize = 16;

/// Octets of an HTTP request head at most. Browsers send under 2 KiB.
pub const ADMIN_HEAD_LEN: usize = 8 * 1024;

/// How long an admin connection may take from accept to close, in milliseconds.
pub const ADMIN_TIMEOUT_MS: u64 = 5_000;

/// Longest bounded spin before an idle worker sleeps, in microseconds. Longer than this a sleep costs nothing
/// worth having.
pub const SPIN_MAX_US: u64 = 1_000;

/// How long a stream may take to close in order before it is cut, in milliseconds. Its last octets are in the peer's
/// hands after a round trip; a peer that does not answer the close (it may be idle, with nobody looking at the socket)
/// must not hold up a drain.
pub const CLOSE_WAIT_MS: u64 = 1_000;

/// How long a status report waits for the workers, in milliseconds: each answers within a turn of its loop.
pub const REPORT_WAIT_MS: u64 = 1_000;

/// How long a HELLO that replaces a live session waits for the old one to go, in milliseconds. The worker that holds
/// the old one answers within a turn of its loop unless it is starved.
pub const REPLACE_WAIT_MS: u64 = 2_000;

/// Octets of a request before its inline data at most: header and two descriptors (P7).
pub const REQUEST_HEAD_MAX: u32 = 24 + 32;

/// Octets of a HELLO that are taken: header, body, a Tenant of 255, Auth, and room for Software and extensions.
pub const HELLO_LEN_MAX: u32 = 1024;

/// Work requests a credit can have posted: two operations (see the core's limits), each a Write or Read and a Send.
pub const WORK_PER_CREDIT: u16 = 4;

/// Registrations of a session's stream: the pool; in direct modes table, pool, partition, ring and counters.
pub const REGISTRATIONS: u16 = 16;

/// Octets of the head ring for each work request: a COMPLETION of 40, and its bookkeeping.
pub const COMPLETION_ROOM: u32 = 64;

/// Octets of the head ring at least: one post may take a quarter of it, and a HELLO_ACK has up to 1,024.
pub const HEAD_RING_MIN: u32 = 4 * 1024;

/// Sessions that chains serve at one time; software serves those above. Each idle one is a WAIT that the device holds, and nobody
/// has published how many it can.
pub const CHAIN_SESSIONS: usize = 256;

/// Request Credits at most of a target with chains: slots of a session, but for two (`kbtp_device::Session::credits`).
pub const CHAIN_CREDITS: u16 = 24;

/// Octets of the name of an RDMA device: what the kernel gives one (`IB_DEVICE_NAME_MAX`), without its zero.
pub const DEVICE_NAME_MAX: usize = 63;

/// Events of the model of a device before others have their turn: some ten requests.
pub const CHAIN_STEPS: u32 = 2048;

/// How long a chain may stand where only the device can move it on, in milliseconds: it takes microseconds there.
pub const CHAIN_STALL_MS: u64 = 1_000;

/// How often it is looked whether chains move on, in milliseconds: a tenth of what one may stand.
pub const CHAIN_WATCH_MS: u64 = CHAIN_STALL_MS / 10;

/// How long chains that wait for blocks are left alone, in milliseconds: another thread may have freed some.
pub const CHAIN_LOOK_MS: u64 = 1;
