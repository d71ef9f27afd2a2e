//! Faults that are put in on purpose, one at a time, to see whether the tests find them.
//!
//! Only with the feature `plants`, which nothing but `kbtp-sim` asks for, and only while one is switched on. Without
//! the feature `planted` is the constant `false`, and nothing of this is left.

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Plant {
    /// CRCs are not looked at.
    CrcIgnored = 1,
    /// Payload that changes is not copied before it is sent.
    CopyForgotten,
    /// Sends and Writes are told to be done when they are framed, before they are sent.
    DoneEarly,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::CrcIgnored, Self::CopyForgotten, Self::DoneEarly];
}

#[cfg(feature = "plants")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Switches one fault on in this process, or all off.
#[cfg(feature = "plants")]
pub fn plant(which: Option<Plant>) {
    let number = which.map_or(0, |plant| plant as u8);
    PLANTED.store(number, std::sync::atomic::Ordering::Relaxed);
}

/// Whether it is switched on.
#[cfg(feature = "plants")]
pub(crate) fn planted(which: Plant) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == which as u8
}

/// Never.
#[cfg(not(feature = "plants"))]
#[inline]
pub(crate) const fn planted(_: Plant) -> bool {
    false
}
