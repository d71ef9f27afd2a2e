//! Every bound of the target, with its reason. A peer meets the ones marked (peer); the rest bound our own work.

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

/// Events one stream may have served before the next stream's turn. About one receive ring: a stream that fills it
/// again at once waits for the others.
pub const EVENTS_PER_TURN: u32 = 64;

/// Tenants at most: a HELLO looks its tenant up by name.
pub const TENANTS_MAX: usize = 4096;

/// Octets of a tenant's name at most (peer): what a HELLO TLV of ours sends, and what a metric label carries.
pub const TENANT_NAME_MAX: usize = 255;

/// Octets a tenant's key must have. RFC 2104 discourages HMAC keys shorter than the hash's output of 32; 16 octets
/// of a random key still cannot be guessed.
pub const TENANT_KEY_MIN: usize = 16;

/// Octets a tenant's key may have. HMAC hashes longer ones anyway.
pub const TENANT_KEY_MAX: usize = 1024;

/// Smallest block: one page is what memory is registered and zeroed in, yet the draft allows small caches, and
/// tests use them.
pub const BLOCK_SIZE_MIN: u64 = 64;

/// Largest block: its length is a 32-bit field, and a Data Descriptor names it whole.
pub const BLOCK_SIZE_MAX: u64 = 1 << 30;

/// Blocks at most: the slot offset is a 32-bit field holding 16 times the slot number (draft, section 3.3).
pub const BLOCKS_MAX: u64 = 1 << 27;

/// Handles at most: 16 octets of table each, so this is a table of 64 GiB.
pub const HANDLES_MAX: u64 = 1 << 32;

/// Request Credits at most: the field has 16 bits, and each credit costs a receive buffer and a request in flight.
pub const CREDITS_MAX: u16 = 4096;

/// Inline data at most: it is paid for in receive buffers, one for each credit, whether or not they are used.
pub const INLINE_MAX: u64 = 64 * 1024;

/// Connections of the admin endpoint at one time. A scraper, a health check and a person need three.
pub const ADMIN_CONNECTIONS: usize = 16;

/// Octets of an HTTP request head at most. Browsers send under 2 KiB.
pub const ADMIN_HEAD_LEN: usize = 8 * 1024;

/// How long an admin connection may take from accept to close, in milliseconds.
pub const ADMIN_TIMEOUT_MS: u64 = 5_000;

/// Longest bounded spin before an idle worker sleeps, in microseconds. Longer than this a sleep costs nothing
/// worth having.
pub const SPIN_MAX_US: u64 = 1_000;

/// How long a HELLO that replaces a live session waits for the old one to go, in milliseconds. The worker that holds
/// the old one answers within a turn of its loop unless it is starved.
pub const REPLACE_WAIT_MS: u64 = 2_000;
