//! Status: how a request ended.
//! Source: KBTP profile, P7. Octets 22..24 of the common header, 8..10 of a completion record.

use core::fmt;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// How a request ended (P7).
        //= kbtp-p7-status-values
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Status {
            $($(#[$doc])* $name = $value,)*
        }

        impl Status {
            /// Every status, in the order of their values.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The status with this value; `None` if the profile has none.
            #[must_use]
            pub const fn from_wire(value: u16) -> Option<Self> {
                match value {
                    $($value => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its name in the documents.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

statuses! {
    /// Done.
    Ok = 0, "OK";
    /// Malformed: wrong length for opcode and flags, non-zero Status or reserved field, flag not allowed.
    BadRequest = 1, "BAD_REQUEST";
    /// Reserved opcode, or a capability that was not granted.
    Unsupported = 2, "UNSUPPORTED";
    /// No common version, or a header Version that is not 1.
    VersionMismatch = 3, "VERSION_MISMATCH";
    /// Authentication failed; a handle outside the initiator's range, or for LOAD outside the table.
    NotAuthorized = 4, "NOT_AUTHORIZED";
    /// The handle is not bound, or not for this trust domain to load.
    NotValid = 5, "NOT_VALID";
    /// The handle is bound already.
    AlreadyValid = 6, "ALREADY_VALID";
    /// LOAD without `ALLOW_UNSEALED` of an unsealed block.
    NotSealed = 7, "NOT_SEALED";
    /// STORE to a sealed block.
    Sealed = 8, "SEALED";
    /// The request's Generation is not the entry's.
    GenerationMismatch = 9, "GENERATION_MISMATCH";
    /// A length over what it may be, or inline data that is not as long as it says.
    LengthError = 10, "LENGTH_ERROR";
    /// Quota exceeded, or no block.
    NoSpace = 11, "NO_SPACE";
    /// The ticket was abandoned (draft, section 3.4).
    TicketAbandoned = 12, "TICKET_ABANDONED";
    /// The ticket's slot does not hold that Block Offset.
    BadTicket = 13, "BAD_TICKET";
    /// The target drains.
    ShuttingDown = 14, "SHUTTING_DOWN";
    /// The target failed; the entry is unchanged.
    InternalError = 15, "INTERNAL_ERROR";
}

impl Status {
    /// Its value.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        self as u16
    }

    /// Whether it is `OK`.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    //= test kbtp-p7-status-values
    #[test]
    fn the_table_of_p7() {
        let table = "OK BAD_REQUEST UNSUPPORTED VERSION_MISMATCH NOT_AUTHORIZED NOT_VALID ALREADY_VALID NOT_SEALED \
                     SEALED GENERATION_MISMATCH LENGTH_ERROR NO_SPACE TICKET_ABANDONED BAD_TICKET SHUTTING_DOWN \
                     INTERNAL_ERROR";
        let mut value = 0;
        for name in table.split_whitespace() {
            let status = Status::from_wire(value).unwrap();
            assert_eq!(status.to_string(), name);
            assert_eq!(status.to_wire(), value);
            assert_eq!(status.is_ok(), value == 0);
            value += 1;
        }
        assert_eq!(usize::from(value), Status::ALL.len());
        for value in value..=u16::MAX {
            assert_eq!(Status::from_wire(value), None);
        }
    }
}
