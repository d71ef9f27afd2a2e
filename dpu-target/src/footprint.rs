//! The most memory a target may come to, whatever its peers do: a formula of its configuration and of the bounds in the
//! `limits.rs` of the crates below. `docs/memory.md` states it, and a test holds a target under attack against it.

use crate::config::{EngineChoice, TargetConfig};
use crate::driver::stream_config;
use crate::limits;
use kbtp_core::limits as core;

/// Octets of heap beside the pool and its `meta` region, at most, by what they are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryBound {
    /// What is there without any peer: threads, inboxes, pollers, the admin endpoint, the directory's tables.
    pub fixed: u64,
    /// Lists that follow the blocks: deferred frees, tickets, partitions that are found or go back.
    pub blocks: u64,
    /// A stream, from its accept on: what it may come to is set aside then.
    pub each_stream: u64,
    /// A session that was granted, beside its stream.
    pub each_session: u64,
    /// Streams at most: `limits.sessions` dealt to workers, half-open ones among them, and `limits.half_open` in
    /// their MPA startup for each address.
    pub streams: u64,
    /// Sessions at most: `limits.sessions`.
    pub sessions: u64,
    /// Look-up tables of chains and the model of their device; 0 without chains.
    pub chains: u64,
    /// A session's chains: queues, scratch lines, images of slots, what the model holds of them.
    pub each_chained: u64,
    /// Sessions with chains at most.
    pub chained: u64,
}

/// Heap of the process without workers, and tables of the directory: a map of 2^20 granules, 16,384 ranges.
const PROCESS: u64 = (8 << 20) + core::GRANULES_MAX * 4 + core::RANGES_MAX as u64 * RANGE;

/// A handle range in the directory: its entry, its tenant, the free slot of its record.
const RANGE: u64 = 256;

/// A worker: its inbox of [`limits::INBOX_LEN`] commands, its poller, its counters.
const WORKER: u64 = limits::INBOX_LEN as u64 * 96 + (64 << 10);

/// What `/status` says of one session, as text and before it is text.
const STATUS: u64 = 1536;

/// A block: its deferred free (16, lists grow by doubling), two slots of a ring whose tickets are followed (24 and 4 each),
/// its place in a run that is looked for or goes back.
const BLOCK: u64 = 192;

/// A stream in the engine: its token, its timers, its place, its session before it is granted, HELLO and HELLO_ACK.
const CONN: u64 = 8 << 10;

/// A credit in the engine: when its request came, and the slot of a message that waits. Lists grow by doubling.
const CREDIT: u64 = 2 * (16 + 8);

/// Tables that look requests up, and a model of a device that has nothing to do: measured (`docs/memory.md`).
const CHAINS: u64 = 32 << 20;

/// A session's chains without what its requests are received in: measured (`docs/memory.md`).
const CHAINED: u64 = 800 << 10;

/// Receive WQEs of a session's chains, each with room for the longest request.
const CHAIN_RECEIVES: u64 = 64;

impl MemoryBound {
    /// The bound for a configuration.
    #[must_use]
    pub fn of(config: &TargetConfig, workers: u16) -> Self {
        let sessions = u64::from(config.limits.sessions);
        let listeners = u64::try_from(config.listen.len()).unwrap_or(u64::MAX);
        let half_open = u64::from(config.limits.half_open);
        let inline = u32::try_from(config.max_inline).unwrap_or(u32::MAX);
        let admin = limits::ADMIN_CONNECTIONS as u64
            * (limits::ADMIN_HEAD_LEN as u64 + (64 << 10) + STATUS * sessions);
        let longest = u64::from(inline) + u64::from(limits::REQUEST_HEAD_MAX);
        let by_chains = config.engine == EngineChoice::Chain;
        let admin = if config.admin.is_some() { admin } else { 0 };
        Self {
            fixed: PROCESS + u64::from(workers) * WORKER + admin,
            blocks: config.blocks.saturating_mul(BLOCK) + u64::from(core::CARVE_WINDOW) * 32,
            each_stream: stream_config(config).memory() + CONN,
            each_session: core::session_memory(config.credits, inline)
                + u64::from(config.credits) * CREDIT,
            streams: sessions.saturating_add(half_open.saturating_mul(listeners)),
            sessions,
            chains: if by_chains { CHAINS } else { 0 },
            each_chained: CHAINED + CHAIN_RECEIVES * longest,
            chained: if by_chains {
                sessions.min(limits::CHAIN_SESSIONS as u64)
            } else {
                0
            },
        }
    }

    /// All of it together, in octets.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.fixed
            .saturating_add(self.blocks)
            .saturating_add(self.streams.saturating_mul(self.each_stream))
            .saturating_add(self.sessions.saturating_mul(self.each_session))
            .saturating_add(self.chains)
            .saturating_add(self.chained.saturating_mul(self.each_chained))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_of_anything_may_need_more() {
        let base = TargetConfig::default();
        let total = |change: fn(&mut TargetConfig)| {
            let mut config = base.clone();
            change(&mut config);
            MemoryBound::of(&config, 2).total()
        };
        let plain = total(|_| {});
        let more: [fn(&mut TargetConfig); 7] = [
            |c| c.limits.sessions += 1,
            |c| c.limits.half_open += 1,
            |c| c.blocks += 1,
            |c| c.credits += 1,
            |c| c.max_inline += 4096,
            |c| c.engine = EngineChoice::Chain,
            |c| c.listen.push(c.listen[0]),
        ];
        for change in more {
            assert!(total(change) > plain);
        }
        assert!(MemoryBound::of(&base, 3).total() > plain);
        assert!(total(|c| c.admin = None) < plain);
    }
}
