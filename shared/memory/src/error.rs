//! What can go wrong with a region: at set-up, and on access.

use std::io;

/// A region could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The length is zero, or more than this machine can map.
    #[error("a region of {len} octets cannot be mapped")]
    Length {
        /// Octets asked for.
        len: u64,
    },
    /// The file that was handed over is shorter than the region it should hold.
    #[error("the file has {have} octets, the region needs {need}")]
    FileTooShort {
        /// Octets in the file.
        have: u64,
        /// Octets the region needs.
        need: u64,
    },
    /// The file that was handed over may shrink: an access past its end would kill this process.
    #[error("the file is not sealed against shrinking")]
    NotSealed,
    /// Hugepages were required and there are none.
    #[error("hugepages are required: {source}")]
    NoHugePages {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

/// An access outside the rules of its region. Nothing was touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Octets outside the region.
    #[error("{len} octets at {offset} lie outside a region of {region_len}")]
    Bounds {
        /// First octet.
        offset: u64,
        /// Octets.
        len: u64,
        /// Length of the region.
        region_len: u64,
    },
    /// An atomic word that is not aligned to its size.
    #[error("offset {offset} is not aligned to {align} octets")]
    Misaligned {
        /// Offset of the word.
        offset: u64,
        /// Alignment it needs.
        align: u64,
    },
    /// A gather or scatter list is full.
    #[error("the list is full at {limit} entries")]
    ListFull {
        /// How many it holds.
        limit: usize,
    },
}
