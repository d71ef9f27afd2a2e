//! Why an agent does not start, or stops. Each text names the thing and the remedy.

use kbtp_control::ControlError;

/// Why an agent does not start, or stops.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A setting cannot be.
    #[error("{key} = {value}: {remedy}")]
    Config {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: String,
        /// What to set instead.
        remedy: String,
    },
    /// The memory for a region is not to be had.
    #[error("no memory of {len} octets for {name}: {remedy}")]
    Memory {
        /// Which region.
        name: String,
        /// Its octets.
        len: u64,
        /// What to do.
        remedy: String,
        /// What the system said.
        #[source]
        source: kbtp_memory::MapError,
    },
    /// The machine has not so much memory. Asking for it all the same would have the kernel kill somebody.
    #[error(
        "no memory of {len} octets for {name}: the system has {available} available; take a smaller pool, or free memory"
    )]
    TooLarge {
        /// Which region.
        name: String,
        /// Its octets.
        len: u64,
        /// What the system has.
        available: u64,
    },
    /// The memory must be locked and cannot be.
    #[error("{name}: {shortfall}")]
    NotLocked {
        /// Which region.
        name: String,
        /// What it lacks and the remedy.
        shortfall: String,
    },
    /// The pool cannot be granted from the function of a device.
    #[error(
        "the pool cannot be granted from {device}: {reason}; leave that device out to grant it within this machine alone"
    )]
    Function {
        /// The device.
        device: String,
        /// What the system or the device said.
        reason: String,
    },
    /// The control socket.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operating system refused.
    #[error("{what}")]
    Os {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
}

impl AgentError {
    pub(crate) fn os(what: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::Os {
            what,
            source: source.into(),
        }
    }
}
