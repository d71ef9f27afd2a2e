//! Why something could not be set up.

use kbtp_chain::BuildError;
use kbtp_memory::{AccessError, MapError};

/// Keys, queues or tables could not be made. What was made before stays until the device ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetUpError<E: core::error::Error + 'static> {
    /// The device refused.
    #[error("{what}: {source}")]
    Device {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        #[source]
        source: E,
    },
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// A table, ring or pool lies outside its region.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The template does not become octets.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A request came while a loopback queue was started again: what it asked for may be spoilt.
    #[error("a request came while a loopback queue was started again")]
    Raced,
    /// A size is out of bounds.
    #[error("{what}: {value} is out of bounds")]
    Size {
        /// Which.
        what: &'static str,
        /// How much.
        value: u64,
    },
}

impl<E: core::error::Error + 'static> SetUpError<E> {
    /// The device refused `what`.
    pub(crate) const fn device(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Device { what, source }
    }
}
