//! Bounds of the client, each with its reason.

use std::time::Duration;

/// How long an operation may take unless the caller says otherwise: far over what a healthy target needs for the largest
/// block, and short enough for a serving system to fall back to computing the block itself.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long connecting and HELLO may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Pipelined operations are kept until they are claimed: so many times what the session allows in flight, so that a
/// caller may submit on while it has not looked at what ended yet.
pub const UNCLAIMED_FACTOR: usize = 2;

/// Attempts of an automatic reconnect, unless the caller says otherwise. With the pauses below they take some 3 s.
pub const RECONNECT_ATTEMPTS: u32 = 8;

/// The first pause between attempts; each is twice the one before.
pub const RECONNECT_FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause between attempts.
pub const RECONNECT_LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long [`Client::close`](crate::Client::close) waits for the target to take the end of the stream.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Keys of a [`BlockCache`](crate::BlockCache) at most: what a 32-bit index with a spare value can name, and more than a
/// pool has blocks.
pub const CACHE_ENTRIES: u64 = 1 << 31;

/// Rounds of posting and taking events before the clock is read again: a transport that answers at once (in memory)
/// must not hold deadlines up, and one round is all that a network needs.
pub const STEPS_PER_PUMP: u32 = 16;
