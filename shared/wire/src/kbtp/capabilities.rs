//! Capability bits of HELLO and HELLO_ACK: 32 bits.
//! Source: KBTP profile, P5 and P6; extension bits P12.

/// What a session may use beyond the four operations.
//= kbtp-p5-capability-bits
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SessionCapabilities(pub u32);

impl SessionCapabilities {
    /// None.
    pub const NONE: Self = Self(0);
    /// Direct Load (draft, section 6.6).
    pub const DIRECT_LOAD: Self = Self(0x1);
    /// Direct Allocation (draft, section 6.6).
    pub const DIRECT_ALLOC: Self = Self(0x2);
    /// Completion records (draft, section 6.5).
    pub const RECORD_COMPLETION: Self = Self(0x4);
    /// The bits left to extensions (P12).
    //= kbtp-p12-extension-range
    pub const EXTENSIONS: Self = Self(0xffff_0000);

    /// Whether every capability of `other` is in.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The capabilities of both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The capabilities in both: what was wanted and can be granted.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those of `self` that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_sets_have_is_in_their_union() {
        let (one, two, three) = (
            SessionCapabilities(0b01),
            SessionCapabilities(0b11),
            SessionCapabilities(0b10),
        );
        assert_eq!(one.union(two), two);
        assert_eq!(one.union(three), two);
    }

    //= test kbtp-p5-capability-bits
    //= test kbtp-p12-extension-range
    #[test]
    fn the_bits_are_those_of_p5_and_p12() {
        use SessionCapabilities as C;
        assert_eq!(
            (C::DIRECT_LOAD.0, C::DIRECT_ALLOC.0, C::RECORD_COMPLETION.0),
            (1, 2, 4)
        );
        assert!(C::EXTENSIONS.contains(C(0x1_0000)));
        assert_eq!(C::EXTENSIONS.intersection(C(0xffff)), C::NONE);
        assert_eq!(
            C(7).without(C::DIRECT_ALLOC),
            C::DIRECT_LOAD.union(C::RECORD_COMPLETION)
        );
    }
}
