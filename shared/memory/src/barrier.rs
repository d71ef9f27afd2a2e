//! Order between what this program writes and reads and what a device does, which is no thread: the processor's barriers for
//! threads are weaker on some.

use core::sync::atomic::{Ordering, fence};

/// All that was written to memory before is there for a device before anything that is written after, to memory or to a
/// device's registers.
#[inline]
pub fn to_device() {
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier, which reads and writes nothing. A fence orders for the other cores alone; devices are farther out.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}

/// What is read after is no older than what was read before: a word by which a device says that octets are there, then they.
#[inline]
pub fn from_device() {
    fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}
