//! Faults that are put in on purpose, one at a time, to see whether the tests find them.
//!
//! Only with the feature `plants`, which nothing but `kbtp-sim` asks for, and only while one is switched on. Without
//! the feature `planted` is the constant `false`, and nothing of this is left.

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Plant {
    /// A free writes its slot whether it is consumed or not.
    NoDeferral = 1,
    /// An allocation takes what its slot holds, whatever the Sequence.
    NoSequenceCheck,
    /// The entry is written before the data of the block is there.
    EntryBeforeData,
    /// A free leaves the Generation as it is.
    GenerationKept,
    /// One block more than the quota.
    QuotaOffByOne,
    /// Blocks of abandoned tickets are reclaimed while the initiator can still write them.
    ReclaimBeforeRevoke,
    /// A freed block goes back to its ring while loads still send it.
    PinsIgnored,
    /// Leases never end.
    LeaseForgotten,
    /// Blocks of other trust domains can be loaded.
    DomainsIgnored,
    /// A sealed block can be stored to.
    SealIgnored,
    /// Requests on one handle take effect in any order.
    OrderIgnored,
    /// What a session held is not given back when its stream ends.
    HeldForgotten,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::NoDeferral,
        Self::NoSequenceCheck,
        Self::EntryBeforeData,
        Self::GenerationKept,
        Self::QuotaOffByOne,
        Self::ReclaimBeforeRevoke,
        Self::PinsIgnored,
        Self::LeaseForgotten,
        Self::DomainsIgnored,
        Self::SealIgnored,
        Self::OrderIgnored,
        Self::HeldForgotten,
    ];
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
