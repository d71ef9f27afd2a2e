//! The numbers the protocol names, each a type of its own.
//! Source: KBTP draft, sections 3 and 5; RFC 5040 (STag, Tagged Offset).
//!
//! They have no arithmetic but what the draft defines ([`Generation::next`], [`Ticket::distance`]).

use core::fmt;
use core::num::NonZeroU16;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $form:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $form, ")"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $form, self.0)
            }
        }
    };
}

number! {
    /// Steering Tag: names a registered buffer (RFC 5041, section 1.2).
    Stag(u32), "{:#010x}"
}
number! {
    /// Tagged Offset: an octet within the buffer an STag names (RFC 5041, section 1.2).
    TaggedOffset(u64), "{:#x}"
}
number! {
    /// Block Handle (draft, section 3.2).
    Handle(u64), "{}"
}
number! {
    /// Ticket of a ring counter, also a slot's Sequence (draft, section 3.3). Wraps at 2^32.
    Ticket(u32), "{}"
}
number! {
    /// Octet offset of a ring slot: 16 times the slot number (draft, section 3.3).
    SlotOffset(u32), "{:#x}"
}
number! {
    /// Block Offset: the Tagged Offset of a block in the pool (draft, sections 3.1 and P6).
    BlockOffset(u64), "{:#x}"
}
number! {
    /// A length in octets, as the wire carries it.
    ByteLen(u32), "{}"
}
number! {
    /// Request ID, chosen by the initiator and echoed (draft, section 5.1).
    RequestId(u64), "{:#x}"
}

impl Ticket {
    /// How far `self` is ahead of `earlier`, modulo 2^32.
    #[must_use]
    pub const fn distance(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// The ticket after this one, modulo 2^32.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl BlockOffset {
    /// What an empty (consumed) ring slot holds: all ones (draft, section 3.3).
    pub const EMPTY: Self = Self(u64::MAX);
}

impl ByteLen {
    /// The length as a 64-bit number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0 as u64
    }
}

/// Generation of a table entry: 1 to 65,535, never zero (draft, section 3.2).
///
/// In a request, "any" is `Option::<Generation>::None`, zero on the wire.
//= kbtp-3.2-generation-never-zero
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Generation(NonZeroU16);

impl Generation {
    /// The first generation an entry takes when it is bound.
    pub const FIRST: Self = Self(NonZeroU16::MIN);

    /// The generation with this number; `None` for zero, which no entry has.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        match NonZeroU16::new(number) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// The number, 1 to 65,535.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// The next generation: one more, skipping zero (draft, section 6.3).
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(n) => Self(n),
            None => Self::FIRST,
        }
    }

    /// The field on the wire: zero for `None` ("any", or an entry never bound).
    #[must_use]
    pub const fn to_wire(generation: Option<Self>) -> u16 {
        match generation {
            Some(g) => g.get(),
            None => 0,
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn numbers_are_shown_as_people_write_them() {
        let stag = Stag(0xab);
        assert_eq!(format!("{stag} {stag:?}"), "0x000000ab Stag(0x000000ab)");
        let block = BlockOffset(0x1000);
        assert_eq!(format!("{block} {block:?}"), "0x1000 BlockOffset(0x1000)");
        let ticket = Ticket(7);
        assert_eq!(format!("{ticket} {ticket:?}"), "7 Ticket(7)");
        assert_eq!(format!("{}", Generation::FIRST.next()), "2");
    }

    #[test]
    fn generation_skips_zero_when_it_wraps() {
        let last = Generation::new(u16::MAX).unwrap();
        assert_eq!(last.next(), Generation::FIRST);
        assert_eq!(Generation::FIRST.next().get(), 2);
    }

    #[test]
    fn ticket_distance_is_modular() {
        assert_eq!(Ticket(1).distance(Ticket(u32::MAX)), 2);
        assert_eq!(Ticket(u32::MAX).next(), Ticket(0));
    }
}
