//! Faults that are put in on purpose, one at a time, to see whether the tests find them.
//!
//! Only with the feature `plants`, which nothing but `kbtp-sim` asks for, and only while one is switched on. Without
//! the feature `planted` is the constant `false`, and nothing of this is left. The same feature keeps the
//! [`journal`](crate::journal) of what is written to table and rings.

macro_rules! plants {
    ($($(#[doc = $text:literal])+ $name:ident,)*) => {
        /// A fault.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Plant { $($(#[doc = $text])+ $name,)* }

        impl Plant {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What it does, in words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => concat!($($text,)+),)* }
            }
        }
    };
}

plants! {
    /// A free writes its slot whether it is consumed or not.
    NoDeferral,
    /// An allocation takes what its slot holds, whatever the Sequence.
    NoSequenceCheck,
    /// A free writes the Sequence of its slot before the Block Offset.
    SequenceFirst,
    /// A slot is left as it is when its block is taken.
    NotConsumed,
    /// A bind writes Flags and Generation before Data Length and Block Offset.
    FlagsFirst,
    /// The entry is written before the data of the block is there.
    EntryBeforeData,
    /// A free returns the block before its entry says so.
    ReturnBeforeEntry,
    /// A free leaves the Generation as it is.
    GenerationKept,
    /// A store that seals leaves the entry unsealed.
    SealForgotten,
    /// A freed block goes back to its ring while loads still send it.
    PinsIgnored,
    /// Blocks go from one trust domain to another as they are.
    ZeroingForgotten,
    /// Blocks of other trust domains can be loaded.
    DomainsIgnored,
    /// A recovered pool has all blocks in its ring, bound ones too.
    RecoveredFree,
    /// The blocks of a partition are not marked as its own.
    HomeForgotten,
    /// One block more than the quota.
    QuotaOffByOne,
    /// A free leaves the usage as it is.
    UsageKept,
    /// More is promised than there is.
    QuotaSumIgnored,
    /// A resumed range seems to have nothing bound.
    ResumedEmpty,
    /// Leases never end.
    LeaseForgotten,
    /// Leases are over at once.
    LeaseIgnored,
    /// A second session of a pair begins beside the first one.
    ReplaceForgotten,
    /// Blocks of abandoned tickets are reclaimed while the initiator can still write them.
    ReclaimBeforeRevoke,
    /// Tickets are never abandoned.
    TimeoutForgotten,
    /// A BIND of an abandoned ticket is judged as any other.
    AbandonedForgotten,
    /// A BIND is not compared with the slot of its ticket.
    BindUnverified,
    /// A ticket stays open when it is bound.
    TicketKept,
    /// Requests on one handle take effect in any order.
    OrderIgnored,
    /// What a session held is not given back when its stream ends.
    HeldForgotten,
    /// Handles of others can be stored to.
    RangeIgnored,
    /// A bound handle can be bound again.
    AlreadyValidIgnored,
    /// A sealed block can be stored to.
    SealIgnored,
    /// An unsealed block is loaded as if it was sealed.
    UnsealedIgnored,
    /// The Generation of a request is not compared.
    GenerationIgnored,
    /// A load writes more than its buffer holds.
    SinkLengthIgnored,
    /// Inline data may be shorter than it says.
    InlineLengthIgnored,
    /// More requests than Request Credits are served.
    CreditsIgnored,
    /// A draining target serves on.
    DrainIgnored,
    /// INVALIDATE is not done.
    InvalidateForgotten,
    /// Initiator: a ring slot is believed when it is read once.
    SlotReadOnce,
    /// Initiator: a direct load does not read the entry again.
    EntryReadOnce,
    /// Initiator: a direct load believes the first read of the entry, and compares Generations only.
    GenerationAlone,
    /// Initiator: what was given up is reported once more when it ends.
    ReportedTwice,
    /// Initiator: one request more than its Request Credits.
    CreditsOverrun,
}

#[cfg(feature = "plants")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Switches one fault on in this process, or all off.
#[cfg(feature = "plants")]
pub fn plant(which: Option<Plant>) {
    let number = which.map_or(0, number);
    PLANTED.store(number, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(feature = "plants")]
const fn number(plant: Plant) -> u8 {
    // 0 stands for none.
    plant as u8 + 1
}

/// Whether it is switched on.
#[cfg(feature = "plants")]
pub(crate) fn planted(which: Plant) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == number(which)
}

/// Never.
#[cfg(not(feature = "plants"))]
#[inline]
pub(crate) const fn planted(_: Plant) -> bool {
    false
}
