//! What can be wrong with octets, and with a buffer to put octets in.

/// Octets that are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Too few or too many octets.
    #[error("{what}: {len} octets where {expected} belong")]
    Length {
        /// Which structure.
        what: &'static str,
        /// How many there are.
        len: usize,
        /// How many there must be (at least, if more may follow).
        expected: usize,
    },
    /// A field that must be zero is not.
    #[error("{field} is {value:#x} and must be zero")]
    NotZero {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// A field holds a value that no edition of the protocol known here gives a meaning.
    #[error("{field} has no meaning for the value {value:#x}")]
    Unknown {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// A TLV list that breaks a rule.
    #[error("TLV list: {0}")]
    Tlv(#[from] crate::TlvError),
}

/// A caller's buffer is too small for what is to be encoded. Nothing useful is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{needed} octets do not fit a buffer of {len}")]
pub struct BufferTooSmall {
    /// Octets needed.
    pub needed: usize,
    /// Octets there are.
    pub len: usize,
}
