//! What the model refuses.

use kbtp_device::{MemoryId, RingError};
use kbtp_mlx5::{Cqn, Mkey, Qpn};

/// Software asked for something that cannot be. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No such protection domain.
    #[error("there is no protection domain {0}")]
    Domain(u32),
    /// No such memory.
    #[error("memory {} is not known", .0.0)]
    Memory(MemoryId),
    /// No such key.
    #[error("there is no key {0}")]
    Key(Mkey),
    /// No such completion queue.
    #[error("there is no completion queue {0}")]
    Cq(Cqn),
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    Qp(Qpn),
    /// It is in use.
    #[error("{0} is in use")]
    InUse(&'static str),
    /// A queue pair is not in the state for it.
    #[error("queue pair {0} is not in the state for that")]
    State(Qpn),
    /// Something lies outside memory, or is larger than the device takes.
    #[error("{what}: {value:#x} is out of bounds")]
    Bounds {
        /// What.
        what: &'static str,
        /// How much.
        value: u64,
    },
    /// A ring lies where no device takes it.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The device has no more numbers.
    #[error("there are no more {0}")]
    Exhausted(&'static str),
}
