//! Opcodes: the second octet of the common header.
//! Source: KBTP profile, P1; extension range P12. Not checked here: direction, and what a session granted.

use core::fmt;

/// What a message is.
//= kbtp-p1-opcodes
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// First message of a session, from the initiator (P5).
    Hello = 0x01,
    /// The target's answer to HELLO (P6).
    HelloAck = 0x02,
    /// Block Load (draft, section 6.1).
    Load = 0x03,
    /// Block Mapped Store (draft, section 6.2).
    Store = 0x04,
    /// Block Unmapped Store (draft, section 6.3).
    AllocStore = 0x05,
    /// Block Free (draft, section 6.4).
    Free = 0x06,
    /// End of a direct allocation (draft, section 6.6; P4).
    Bind = 0x07,
    /// The target's answer to a request (P3).
    Completion = 0x08,
}

impl Opcode {
    /// Every opcode of version 1, in the order of their values.
    pub const ALL: [Self; 8] = [
        Self::Hello,
        Self::HelloAck,
        Self::Load,
        Self::Store,
        Self::AllocStore,
        Self::Free,
        Self::Bind,
        Self::Completion,
    ];

    /// First of the values left to extensions (P12).
    pub const FIRST_EXTENSION: u8 = 0x80;

    /// The opcode with this value; `None` if it is reserved.
    #[must_use]
    pub const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            0x01 => Self::Hello,
            0x02 => Self::HelloAck,
            0x03 => Self::Load,
            0x04 => Self::Store,
            0x05 => Self::AllocStore,
            0x06 => Self::Free,
            0x07 => Self::Bind,
            0x08 => Self::Completion,
            _ => return None,
        })
    }

    /// Its value.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// Whether `value` is left to extensions (P12), which need a granted capability.
    //= kbtp-p12-extension-range
    #[must_use]
    pub const fn is_extension(value: u8) -> bool {
        value >= Self::FIRST_EXTENSION
    }

    /// Its name in the documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hello => "HELLO",
            Self::HelloAck => "HELLO_ACK",
            Self::Load => "LOAD",
            Self::Store => "STORE",
            Self::AllocStore => "ALLOC_STORE",
            Self::Free => "FREE",
            Self::Bind => "BIND",
            Self::Completion => "COMPLETION",
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn names_are_those_of_the_documents() {
        let names = "HELLO HELLO_ACK LOAD STORE ALLOC_STORE FREE BIND COMPLETION";
        let shown = Opcode::ALL.map(|opcode| opcode.to_string());
        assert_eq!(shown.join(" "), names);
    }

    //= test kbtp-p1-opcodes
    #[test]
    fn every_value_has_the_opcode_of_the_table_or_none() {
        for value in 0..=u8::MAX {
            match Opcode::from_wire(value) {
                Some(opcode) => {
                    assert_eq!(opcode.to_wire(), value);
                    assert_eq!(Opcode::ALL[usize::from(value) - 1], opcode);
                }
                None => assert!(value == 0 || value >= 9),
            }
        }
    }

    //= test kbtp-p12-extension-range
    #[test]
    fn the_extension_range_is_the_upper_half() {
        assert!(!Opcode::is_extension(0x7f));
        assert!(Opcode::is_extension(0x80));
        assert!(Opcode::is_extension(0xff));
    }
}
