//! What can be wrong with the octets of a work queue.

/// Octets that are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A field holds a value that has no meaning, or none that is known here.
    #[error("{field} has no meaning for the value {value:#x}")]
    Unknown {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// Fewer octets than the WQE's own length, or than its kind needs.
    #[error("{what}: {len} octets where {expected} belong")]
    Length {
        /// Which structure.
        what: &'static str,
        /// How many there are.
        len: usize,
        /// How many there must be at least.
        expected: usize,
    },
}

/// A WQE that would be longer than the 16 basic blocks a device takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a WQE of {octets} octets is longer than {}",
    crate::limits::MAX_WQE_LEN
)]
pub struct WqeTooLong {
    /// Octets it would have.
    pub octets: usize,
}
