//! Request flags and table-entry flags: 16 bits each.
//! Source: KBTP draft, sections 5.1 (requests) and 3.2 (entries); profile, P2.

use super::Opcode;
use core::fmt;

macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $flag:ident = $bit:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub u16);

        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);
            $($(#[$fdoc])* pub const $flag: Self = Self($bit);)*

            /// Whether every flag of `other` is set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The flags of both.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// `other` if `on`, and what was set before.
            #[must_use]
            pub const fn with(self, other: Self, on: bool) -> Self {
                if on { self.union(other) } else { self }
            }

            /// The flags of `self` that are not in `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Whether no bit is set.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut rest = *self;
                let mut separator = "";
                $(if rest.contains(Self::$flag) {
                    write!(f, "{separator}{}", stringify!($flag))?;
                    rest = rest.without(Self::$flag);
                    separator = "|";
                })*
                if !rest.is_empty() {
                    write!(f, "{separator}{:#06x}", rest.0)?;
                } else if separator.is_empty() {
                    f.write_str("0")?;
                }
                Ok(())
            }
        }
    };
}

flag_set! {
    /// Flags of a request (draft, section 5.1).
    //= kbtp-5.1-flags
    RequestFlags {
        /// Data follows the request.
        INLINE = 0x0001;
        /// Seal the block after the store.
        SEAL = 0x0002;
        /// Complete with a completion record; a Completion Descriptor is present.
        RECORD = 0x0004;
        /// Complete with Send with Invalidate of the Data Descriptor's STag.
        INVALIDATE = 0x0008;
        /// A load may return an unsealed block.
        ALLOW_UNSEALED = 0x0010;
    }
}

flag_set! {
    /// Flags of a table entry (draft, section 3.2).
    //= kbtp-3.2-entry-layout
    EntryFlags {
        /// The handle is bound.
        VALID = 0x0001;
        /// The block no longer changes until it is freed.
        SEALED = 0x0002;
    }
}

impl RequestFlags {
    /// The flags an opcode takes (P2).
    //= kbtp-p2-flags-by-opcode
    #[must_use]
    pub const fn of_opcode(opcode: Opcode) -> Self {
        match opcode {
            Opcode::Load => Self::RECORD
                .union(Self::INVALIDATE)
                .union(Self::ALLOW_UNSEALED),
            Opcode::Store | Opcode::AllocStore => Self::INLINE
                .union(Self::SEAL)
                .union(Self::RECORD)
                .union(Self::INVALIDATE),
            Opcode::Free => Self::RECORD,
            Opcode::Bind => Self::SEAL.union(Self::RECORD),
            Opcode::Hello | Opcode::HelloAck | Opcode::Completion => Self::NONE,
        }
    }

    /// Whether these flags may go with `opcode`: none it does not take, and not INVALIDATE with INLINE (P2).
    //= kbtp-p2-invalidate-not-inline
    #[must_use]
    pub const fn allowed_with(self, opcode: Opcode) -> bool {
        self.without(Self::of_opcode(opcode)).is_empty()
            && !self.contains(Self::INVALIDATE.union(Self::INLINE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    //= test kbtp-p2-flags-by-opcode
    //= test kbtp-p2-invalidate-not-inline
    //= test kbtp-5.1-flags
    #[test]
    fn the_table_of_p2_for_every_value_of_the_field() {
        // Bits as in the draft: INLINE 1, SEAL 2, RECORD 4, INVALIDATE 8, ALLOW_UNSEALED 16.
        let table = [
            (Opcode::Load, 4 | 8 | 16),
            (Opcode::Store, 1 | 2 | 4 | 8),
            (Opcode::AllocStore, 1 | 2 | 4 | 8),
            (Opcode::Free, 4),
            (Opcode::Bind, 2 | 4),
            (Opcode::Hello, 0),
            (Opcode::HelloAck, 0),
            (Opcode::Completion, 0),
        ];
        for (opcode, mask) in table {
            for value in 0..=u16::MAX {
                let allowed = value & !mask == 0 && value & 9 != 9;
                assert_eq!(
                    RequestFlags(value).allowed_with(opcode),
                    allowed,
                    "{opcode} {value:#x}"
                );
            }
        }
    }

    #[test]
    fn names() {
        assert_eq!(RequestFlags(0).to_string(), "0");
        assert_eq!(RequestFlags(0x8005).to_string(), "INLINE|RECORD|0x8000");
        assert_eq!(EntryFlags(3).to_string(), "VALID|SEALED");
    }
}
