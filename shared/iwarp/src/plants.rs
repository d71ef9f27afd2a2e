//! Faults that are put in on purpose, one at a time, to see whether the tests find them.
//!
//! Only with the feature `plants`, which nothing but `kbtp-sim` asks for, and only while one is switched on. Without
//! the feature `planted` is the constant `false`, and nothing of this is left. With it a stream can also begin with
//! another Message Sequence Number than 1, so that the numbers wrap early.

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
    /// CRCs are not looked at.
    CrcIgnored,
    /// Payload that changes is not copied before it is sent.
    CopyForgotten,
    /// Sends and Writes are told to be done when they are framed, before they are sent.
    DoneEarly,
    /// The Message Sequence Number of a segment is not compared.
    MsnIgnored,
    /// The Message Offset of a segment is not compared.
    OffsetIgnored,
    /// Octets may lie outside the registration they name.
    BoundsIgnored,
    /// A registration that is not for RDMA Writes can be written.
    WriteRightsIgnored,
    /// A registration that is not for RDMA Reads can be read.
    ReadRightsIgnored,
    /// An STag that was invalidated is still good.
    StagKept,
    /// Sends invalidate any STag.
    InvalidateUnchecked,
    /// The peer may have more RDMA Reads outstanding than was agreed on.
    DepthIgnored,
    /// This party has more RDMA Reads outstanding than was agreed on.
    OrdIgnored,
    /// The fields of a counter carry into each other.
    MaskIgnored,
    /// The answer to an RDMA Read may come for another place.
    ResponseUnchecked,
    /// A stream that is broken ends without a Terminate.
    TerminateForgotten,
    /// What is framed of a registration that ends is lost.
    SpillForgotten,
    /// Requests are answered in the opposite order.
    AnswersReversed,
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

/// Has a stream that is not established yet count its messages from `first` on, as its peer must too.
#[cfg(feature = "plants")]
pub fn begin_at(connection: &mut crate::Connection, first: u32) {
    let msn = kbtp_wire::ddp::Msn(first);
    connection.sending.set_msn(msn);
    // The queue of Terminates stays: its one message has number 1.
    let [sends, requests, _, responses] = &mut connection.assembly.msn;
    for place in [sends, requests, responses] {
        *place = msn;
    }
}
