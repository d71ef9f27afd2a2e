//! Where the pool comes from: a host agent across a socket, or one in this process; new, or as a target that is gone
//! left it.

use super::StartError;
use crate::config::{TargetConfig, Wish};
use crate::status::PagesStatus;
use kbtp_agent::{AgentConfig, Huge, InProcess, Lock, PageWish};
use kbtp_control::{AgentLink, ChannelOptions, PoolAttachment, RegionName, Role, TargetChannel};
use kbtp_core::{Contents, Geometry, Pool, PoolError, Recovered};
use kbtp_iwarp_tcp::entropy;
use kbtp_wire::{BlockOffset, Handle};

/// The side region of table, ring and directory.
const META: &str = "meta";

/// A link to the agent, whichever it is.
pub(crate) type Link = Box<dyn AgentLink + Send>;

/// A pool, and what a recovery found in it.
pub(crate) struct Memory {
    pub(crate) link: Link,
    pub(crate) pool: Pool,
    pub(crate) pages: PagesStatus,
    pub(crate) recovered: Option<Recovered>,
}

/// Attaches to the agent and takes the pool; the configuration has its shape then.
pub(crate) fn open(config: &mut TargetConfig) -> Result<Memory, StartError> {
    let mut link: Link = match &config.agent {
        Some(path) => Box::new(TargetChannel::connect(
            &ChannelOptions::new(path),
            Role::Target,
        )?),
        None => Box::new(in_process(config)?),
    };
    let attached = link.attach_pool()?;
    let pages = PagesStatus::of(&link.welcome().pages);
    tracing::info!(
        octets = attached.region.len(),
        page_size = pages.page_size,
        huge = pages.huge,
        locked = pages.locked,
        numa_node = pages.numa_node,
        shortfall = %pages.shortfall,
        "the pool's memory"
    );
    let geometry = geometry(config, &attached)?;
    geometry.validate().map_err(PoolError::from)?;
    let meta = link.attach_side(&RegionName::new(META)?, geometry.meta_len())?;
    let contents = if attached.fresh {
        Contents::Zeroed
    } else {
        Contents::Unknown
    };
    let pool = attached.region;
    let instance = entropy::random().map_err(StartError::Entropy)?;
    if !meta.fresh {
        match Pool::recover(meta.region.clone(), pool.clone(), instance) {
            Ok((pool, recovered)) => {
                return Ok(Memory {
                    link,
                    pool,
                    pages,
                    recovered: Some(recovered),
                });
            }
            // The target before this one ended before it had formatted the region.
            Err(PoolError::NotAPool { reason }) => {
                tracing::warn!(
                    reason,
                    "the agent's regions hold no pool: a new one is made"
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
    let pool = Pool::format(meta.region, pool, geometry, instance, contents)?;
    Ok(Memory {
        link,
        pool,
        pages,
        recovered: None,
    })
}

/// The agent's shape of the pool counts: it was there first.
fn geometry(config: &mut TargetConfig, attached: &PoolAttachment) -> Result<Geometry, StartError> {
    let shape = attached.geometry;
    if u64::from(shape.block_size) != config.block_size || u64::from(shape.blocks) != config.blocks
    {
        tracing::info!(
            block_size = shape.block_size,
            blocks = shape.blocks,
            "the pool has the agent's shape"
        );
    }
    config.take_shape(shape.block_size, shape.blocks)?;
    Ok(Geometry {
        block_size: shape.block_size,
        blocks: shape.blocks,
        handles: config.handle_count(),
        table_base_handle: Handle(0),
        pool_base: BlockOffset(attached.grant.base.0),
    })
}

fn in_process(config: &TargetConfig) -> Result<InProcess, StartError> {
    // The configuration was validated: both are within the core's limits, far below 2^32.
    let block_size = u32::try_from(config.block_size).unwrap_or(u32::MAX);
    let blocks = u32::try_from(config.blocks).unwrap_or(u32::MAX);
    let mut agent = AgentConfig::new("", block_size, blocks);
    let geometry = Geometry {
        block_size,
        blocks,
        handles: config.handle_count(),
        table_base_handle: Handle(0),
        pool_base: BlockOffset(0),
    };
    agent.side_limit = Some(geometry.meta_len());
    agent.pages = PageWish {
        huge: match config.pages.huge {
            Wish::Prefer => Huge::Prefer,
            Wish::Require => Huge::Require,
            Wish::Never => Huge::Never,
        },
        lock: match config.pages.lock {
            Wish::Prefer => Lock::Prefer,
            Wish::Require => Lock::Require,
            Wish::Never => Lock::Never,
        },
        numa_node: config.pages.numa_node,
    };
    Ok(InProcess::start(&agent)?)
}
