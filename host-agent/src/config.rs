//! What an agent is told.

use crate::AgentError;
use crate::limits::{
    BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, BLOCKS_MAX, DRAIN_TIMEOUT, POOL_BASE, SIDE_LIMIT_MIN,
};
use kbtp_control::PoolGeometry;
use kbtp_memory::{Huge, PageOptions};
use std::path::PathBuf;
use std::time::Duration;

/// Whether memory shall be locked, so that it is never paged out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lock {
    /// If the system lets us; the report says so if not.
    #[default]
    Prefer,
    /// Locked, or no start.
    Require,
    /// Not locked.
    Never,
}

/// What memory is wished for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageWish {
    /// Hugepages.
    pub huge: Huge,
    /// Locked pages.
    pub lock: Lock,
    /// The NUMA node of the NIC.
    pub numa_node: Option<u32>,
}

/// An agent's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentConfig {
    /// The control socket. Its directory exists already.
    pub socket: PathBuf,
    /// A user whose target is served, besides root and the agent's own. Needs an agent that runs as root.
    pub allowed_uid: Option<u32>,
    /// Octets of a block, 4 KiB to 16 MiB, a multiple of 4 KiB.
    pub block_size: u32,
    /// Blocks (F), 1 to 2^27.
    pub blocks: u32,
    /// Pages of pool and side regions.
    pub pages: PageWish,
    /// Octets of all side regions together at most; `None`: the pool's length, at least 1 GiB.
    pub side_limit: Option<u64>,
    /// An mlx5 device, by the kernel's name for it, from whose function the pool may be granted to another function: a target on
    /// the processor of that NIC. `None`: to processes of this machine alone.
    pub grant_from: Option<String>,
    /// How long the target has to drain when the agent is told to stop.
    pub drain_timeout: Duration,
}

impl AgentConfig {
    /// A pool of `blocks` blocks of `block_size` octets, granted at `socket`; the rest as it is by default.
    pub fn new(socket: impl Into<PathBuf>, block_size: u32, blocks: u32) -> Self {
        Self {
            socket: socket.into(),
            allowed_uid: None,
            block_size,
            blocks,
            pages: PageWish::default(),
            side_limit: None,
            grant_from: None,
            drain_timeout: DRAIN_TIMEOUT,
        }
    }

    /// Whether such an agent can be.
    ///
    /// # Errors
    /// [`AgentError::Config`] names the first setting that is wrong, and what it may be.
    pub fn validate(&self) -> Result<(), AgentError> {
        let size = self.block_size;
        if !(BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(&size)
            || !size.is_multiple_of(BLOCK_SIZE_MIN)
        {
            return Err(AgentError::Config {
                key: "block_size",
                value: size.to_string(),
                remedy: format!("take a multiple of {BLOCK_SIZE_MIN} up to {BLOCK_SIZE_MAX}"),
            });
        }
        if !(1..=BLOCKS_MAX).contains(&self.blocks) {
            return Err(AgentError::Config {
                key: "blocks",
                value: self.blocks.to_string(),
                remedy: format!("take 1 to {BLOCKS_MAX}"),
            });
        }
        Ok(())
    }

    /// The pool's shape.
    #[must_use]
    pub const fn geometry(&self) -> PoolGeometry {
        PoolGeometry {
            block_size: self.block_size,
            blocks: self.blocks,
        }
    }

    pub(crate) fn side_limit(&self) -> u64 {
        self.side_limit
            .unwrap_or_else(|| self.geometry().len().max(SIDE_LIMIT_MIN))
    }

    pub(crate) fn page_options(&self) -> PageOptions {
        PageOptions {
            huge: self.pages.huge,
            lock: self.pages.lock != Lock::Never,
            numa_node: self.pages.numa_node,
            // Memory that is missing shows now and not in the middle of a store.
            populate: true,
        }
    }
}

// The largest pool keeps its end below 2^64.
const _: () = assert!(POOL_BASE.is_multiple_of(BLOCK_SIZE_MAX as u64));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_setting_is_named() {
        let with = |block_size, blocks| AgentConfig::new("/x", block_size, blocks).validate();
        assert!(with(4096, 1).is_ok());
        assert!(with(16 << 20, 1 << 27).is_ok());
        for (size, blocks, key) in [
            (0, 1, "block_size"),
            (4095, 1, "block_size"),
            (5000, 1, "block_size"),
            ((16 << 20) + 4096, 1, "block_size"),
            (4096, 0, "blocks"),
            (4096, (1 << 27) + 1, "blocks"),
        ] {
            let error = with(size, blocks).unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }

    #[test]
    fn side_regions_may_be_as_long_as_the_pool_but_a_gibibyte_always() {
        let mut config = AgentConfig::new("/x", 4096, 1);
        assert_eq!(config.side_limit(), SIDE_LIMIT_MIN);
        config.block_size = 16 << 20;
        config.blocks = 1 << 10;
        assert_eq!(config.side_limit(), 16 << 30);
        config.side_limit = Some(7);
        assert_eq!(config.side_limit(), 7);
    }
}
