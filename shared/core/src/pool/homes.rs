//! The home of a block, that is the ring it goes back to, while the partition that it is at home in may be dissolved.
//!
//! Who returns a block to a partition's ring counts itself first and reads the home then; who dissolves the partition
//! changes the homes first and reads the count then. One of them sees the other: either the block goes elsewhere, or the
//! partition stays until the block is in its ring. Both sides write one word and read the other, hence `SeqCst`.

use crate::sync::{Word32, fence};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};

/// Home of a block that belongs to the shared ring.
pub(super) const SHARED: u32 = 0;

/// Runs `free` if `home` is `expected`, and until it is done nobody [closes](close) that home. `None` if it is another.
pub(super) fn while_at<W: Word32, R>(
    home: &W,
    returning: &W,
    expected: u32,
    free: impl FnOnce() -> R,
) -> Option<R> {
    returning.fetch_add(1, AcqRel);
    fence(SeqCst);
    let freed = (home.load(Acquire) == expected).then(free);
    returning.fetch_sub(1, Release);
    freed
}

/// Sets those of `homes` that are `expected` to the shared ring; whether nobody is on the way to their old one any more.
/// If not, call again.
pub(super) fn close<'w, W: Word32 + 'w>(
    homes: impl Iterator<Item = &'w W>,
    returning: &W,
    expected: u32,
) -> bool {
    // Another partition may have been made of some of them by the time this is called again.
    for home in homes.filter(|home| home.load(Acquire) == expected) {
        home.store(SHARED, Release);
    }
    fence(SeqCst);
    // Acquire: what they wrote to the ring is seen.
    returning.load(Acquire) == 0
}
