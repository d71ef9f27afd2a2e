//! Bounds of this crate, each with its reason.

/// Entries of a [`ReadVec`](crate::ReadVec) or [`WriteVec`](crate::WriteVec).
///
/// A batch of 16 FPDUs takes 3 entries each (header, payload, pad and CRC), and 64 entries are 1 KiB of stack. The
/// system's own limit is 1024.
pub const MAX_VEC_ENTRIES: usize = 64;

/// The longest region: half the user address space of the smallest 64-bit layout (47 bits), so that no length or
/// address computed from it can overflow.
pub const MAX_REGION_LEN: u64 = 1 << 46;
