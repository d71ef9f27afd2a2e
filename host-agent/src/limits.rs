//! The bounds of the agent, each with its reason. Those of the control protocol are in `kbtp_control::limits`.

use std::time::Duration;

/// Smallest block, and what each block is a multiple of: a page, as the targets' tables need it.
pub const BLOCK_SIZE_MIN: u32 = 4 << 10;

/// Largest block that a target serves.
pub const BLOCK_SIZE_MAX: u32 = 16 << 20;

/// Most blocks: what a free-block ring can list (draft, section 3.3: a Slot Offset stays below bit 31).
pub const BLOCKS_MAX: u32 = 1 << 27;

/// Tagged Offset of the pool's first octet, 2^40. Not zero, so that a zeroed table entry names no block; a multiple of
/// any block size; and the largest pool (2^51 octets) ends far below 2^64.
pub const POOL_BASE: u64 = 1 << 40;

/// Octets that all side regions may have together unless the configuration says otherwise: the pool's length, for a
/// table is a small part of its pool, but at least this much.
pub const SIDE_LIMIT_MIN: u64 = 1 << 30;

/// How long a stopping agent waits for its target to drain, unless configured: the target's own sessions get 20 s.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the agent leaves callers waiting when it cannot accept one (no descriptor free).
pub const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Attempts to draw an STag that is neither zero nor in use: with 17 in use each fails once in 2^28.
pub const STAG_DRAWS: u32 = 8;
