//! Every bound of this crate, with its reason.

/// Smallest block: a page, so that a Block Offset has twelve zero bits and never looks like an empty slot.
pub const BLOCK_SIZE_MIN: u32 = 4 << 10;

/// Largest block: above it a zeroing or a copy would hold a worker for milliseconds.
pub const BLOCK_SIZE_MAX: u32 = 16 << 20;

/// Most blocks: a Slot Offset has n + 4 bits and the ring's Add Mask bit n + 3 must stay below bit 31 (draft, 3.3).
pub const BLOCKS_MAX: u32 = 1 << 27;

/// Most handles: 64 GiB of table.
pub const HANDLES_MAX: u64 = 1 << 32;

/// Fewest handles of a granule, the unit in which handle ranges are given out.
pub const GRANULE_HANDLES_MIN: u64 = 64;

/// Most granules: the map from granule to trust domain is an array of this many words, 4 MiB.
pub const GRANULES_MAX: u64 = 1 << 20;

/// Most handle ranges alive at once, with or without a session: each has a record in the metadata region.
pub const RANGES_MAX: u32 = 1 << 14;

/// Ranges that are kept for each tenant, of one granule each, so that no other tenant takes them by coming with one
/// Initiator ID after the other. Fewer where that would be more than half of all records or half of the table.
pub const INITIATORS_KEPT: u32 = 64;

/// Octets of a range record; holds the longest tenant name.
pub const RANGE_RECORD_LEN: u64 = 512;

/// Most tenants: they are searched once a session.
pub const TENANTS_MAX: usize = 4096;

/// Longest tenant name, in octets.
pub const TENANT_NAME_MAX: usize = 255;

/// Most partitions of DIRECT_ALLOC sessions at once: each has a Head and a Tail in the metadata region.
pub const PARTITIONS_MAX: u32 = 256;

/// Free blocks that are looked at for a partition, from the next one on, or twice as many as the partition is to have:
/// some milliseconds, for which sessions that begin or end wait. A pool that has more free blocks and was long in use may
/// have a run that is not found; the next session that asks looks further.
pub const CARVE_WINDOW: u32 = 1 << 16;

/// Request Credits of a session that wants the default: enough to fill a 25 Gb/s link with 64 KiB blocks at 1 ms.
pub const CREDITS_DEFAULT: u16 = 64;

/// Most Request Credits of a session: bounds its memory and the scan for earlier requests on a handle.
pub const CREDITS_MAX: u16 = 1024;

/// Operation slots per credit. A load leaves its slot when the stream no longer needs the block, which may be after
/// the initiator saw the completion and sent again.
pub const OPS_PER_CREDIT: usize = 2;

/// Octets of heap an open session has, at most, without a partition (which adds 32 for each of its slots): two operation
/// slots a credit with their search keys, five outbox entries, a stash for inline data that has to wait. The stashes
/// are touched only when data waits in them.
#[must_use]
pub const fn session_memory(credits: u16, max_inline: u32) -> u64 {
    const SLOT: u64 = 256;
    const OUTBOX_ENTRY: u64 = 96;
    let credits = credits as u64;
    credits * (OPS_PER_CREDIT as u64 * SLOT + 5 * OUTBOX_ENTRY + max_inline as u64) + 4096
}

/// Max Inline of a session that wants no particular one.
pub const INLINE_DEFAULT: u32 = 4096;

/// Largest Max Inline: inline data is copied, and one receive holds it whole.
pub const INLINE_MAX: u32 = 64 << 10;

/// How long an ALLOC_STORE waits for a block within the quota before NO_SPACE: the blocks of its quota are held by
/// loads that other initiators are slow to take.
pub const BLOCK_WAIT_MS: u64 = 1_000;

/// How often a parked allocation looks again, in nanoseconds: the free it waits for is a few stores away.
pub const PARK_RETRY_NS: u64 = 20_000;

/// How often a partition that cannot be dissolved yet, or an abandoned ticket whose block has not come, is looked at.
pub const SETTLE_RETRY_MS: u64 = 10;

/// Octets of blocks that are freed in one go when leases are over: some milliseconds of zeroing, for which sessions that
/// begin or end wait.
pub const RELEASE_OCTETS: u64 = 64 << 20;

/// Rows of the table looked at in one go when leases are over: under a millisecond.
pub const RELEASE_ROWS: u64 = 1 << 16;

/// Pause between two such goes.
pub const RELEASE_PAUSE_MS: u64 = 1;

/// Deferred slot writes of the shared ring kept without growing the list; each list grows up to its ring's blocks.
pub const DEFERRED_RESERVE: usize = 256;

/// Longest HELLO, in octets: the body, a tenant's name, the proof, and room for the TLVs of extensions.
pub const HELLO_MAX: usize = 4096;
