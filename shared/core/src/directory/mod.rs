//! Who may use what: tenants, handle ranges, quotas, leases, partitions. The control plane; the caller locks it.
//!
//! ```text
//!              open                        close, something bound
//! (no range) ───────► range with session ─────────────────────────► range on lease
//!     ▲                    │    ▲                                       │   │
//!     │   close, nothing   │    └───────────────── open ────────────────┘   │
//!     └────────────────────┴──────────────────────── lease over ────────────┘
//! ```

mod extents;
mod grant;
mod releasing;
mod tenants;
#[cfg(test)]
mod tests;
mod types;

pub(crate) use grant::{Allotment, Opened, Opening};
pub(crate) use tenants::TenantIndex;
pub use types::{
    DirectoryConfig, DirectoryError, DirectorySummary, RangeSummary, SessionId, TenantConfig,
};

use crate::limits::{CREDITS_MAX, INLINE_MAX, RANGES_MAX};
use crate::plants::{Plant, planted};
use crate::pool::{PartitionId, RangeRecord, RecordSlot};
use crate::stats::add;
use crate::{Pool, Recovered, Shared};
use extents::Extents;
use kbtp_fabric::Time;
use kbtp_wire::{Auth, AuthMode, Challenge, Handle, InitiatorId};
use releasing::{Dissolving, Releasing};
use std::collections::{BTreeMap, BTreeSet};
use tenants::Tenants;

/// Whose a range is (P8).
type Pair = (TenantIndex, InitiatorId);

/// The session that has a range.
#[derive(Clone, Copy, Debug)]
struct Live {
    id: SessionId,
    /// Usage it may reach.
    quota: u32,
    /// Blocks set aside for it: its quota, and with a partition also what it had bound outside of it.
    reserved: u32,
    partition: Option<PartitionId>,
}

/// A handle range.
#[derive(Debug)]
struct Range {
    slot: RecordSlot,
    first_row: u64,
    rows: u64,
    /// Handles bound, while no session is connected.
    bound: u32,
    live: Option<Live>,
    /// The session that has or had it; the number of none after a restart.
    last: SessionId,
    lease_ends: Option<Time>,
}

impl Range {
    /// Blocks of the pool that nobody else can be promised.
    //= kbtp-p8-quota-while-away
    fn reserved(&self) -> u32 {
        self.live.map_or(self.bound, |live| live.reserved)
    }
}

/// Tenants, handle ranges, quotas, leases. One for each target, behind the caller's mutex; touched when sessions
/// begin and end and when leases run out, never by a request.
#[derive(Debug)]
pub struct Directory {
    config: DirectoryConfig,
    tenants: Tenants,
    ranges: BTreeMap<Pair, Range>,
    extents: Extents,
    granules: u64,
    free_slots: BTreeSet<RecordSlot>,
    /// Partitions whose session has ended and whose blocks are not all back in the shared ring.
    dissolving: Vec<Dissolving>,
    retry_at: Option<Time>,
    /// Ranges whose lease is over and that still bind blocks.
    releasing: Releasing,
    pool_blocks: u32,
    table_base: Handle,
}

impl Directory {
    /// The directory of a newly formatted pool.
    ///
    /// # Errors
    /// [`DirectoryError`] names what is wrong in the configuration.
    pub fn new(config: DirectoryConfig, pool: &Pool) -> Result<Self, DirectoryError> {
        let directory = Self::make(config, pool)?;
        directory.prepare(pool);
        Ok(directory)
    }

    fn make(config: DirectoryConfig, pool: &Pool) -> Result<Self, DirectoryError> {
        check(&config)?;
        let tenants = Tenants::new(&config.tenants)?;
        Ok(Self {
            config,
            tenants,
            ranges: BTreeMap::new(),
            extents: Extents::new(pool.geometry().granules()),
            granules: pool.geometry().granules(),
            free_slots: (0..RANGES_MAX).map(RecordSlot).collect(),
            dissolving: Vec::new(),
            retry_at: None,
            releasing: Releasing::default(),
            pool_blocks: pool.geometry().blocks,
            table_base: pool.geometry().table_base_handle,
        })
    }

    /// The directory of a recovered pool: its ranges keep their bindings, and their leases begin `now`. A range whose
    /// tenant is no longer configured keeps them too, out of everybody's reach, until its lease ends.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    //= kbtp-p8-lease-keeps-bindings
    pub fn recover(
        config: DirectoryConfig,
        shared: &Shared,
        recovered: Recovered,
        now: Time,
    ) -> Result<Self, DirectoryError> {
        let mut directory = Self::make(config, &shared.pool)?;
        for (record, bound) in recovered.ranges {
            directory.adopt(shared, &record, bound, now);
        }
        while directory.release_some(shared) {}
        directory.prepare(&shared.pool);
        Ok(directory)
    }

    /// The configuration it was made with.
    #[must_use]
    pub fn config(&self) -> &DirectoryConfig {
        &self.config
    }

    /// Releases ranges whose lease ended and dissolves partitions whose session ended. Call at
    /// [`next_timeout`](Self::next_timeout) or later. Cost: bounded by [`RELEASE_OCTETS`](crate::limits::RELEASE_OCTETS) of
    /// blocks; what is over has its turn the next time.
    pub fn poll(&mut self, now: Time, shared: &Shared) {
        shared.pool.settle();
        let over =
            |range: &Range| range.live.is_none() && range.lease_ends.is_some_and(|t| t <= now);
        let expired: Vec<Pair> = self
            .ranges
            .iter()
            .filter(|(_, range)| over(range))
            .map(|(pair, _)| *pair)
            .collect();
        for pair in expired {
            self.release(pair, shared);
            add(&shared.stats.leases_expired, 1);
        }
        self.go_on_releasing(now, shared);
        self.dissolve(now, shared);
    }

    /// When [`poll`](Self::poll) has something to do next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let leases = self.ranges.values().filter(|range| range.live.is_none());
        leases
            .filter_map(|range| range.lease_ends)
            .chain(self.retry_at)
            .chain(self.releasing.at)
            .min()
    }

    /// Totals.
    #[must_use]
    pub fn summary(&self) -> DirectorySummary {
        let live = || self.ranges.values().filter_map(|range| range.live);
        DirectorySummary {
            ranges: count(self.ranges.len()),
            sessions: count(live().count()),
            committed: self.committed(),
            partitions: count(
                live().filter(|live| live.partition.is_some()).count() + self.dissolving.len(),
            ),
        }
    }

    /// Every range. Cost: allocates.
    #[must_use]
    pub fn ranges(&self) -> Vec<RangeSummary> {
        let summary = |((tenant, initiator), range): (&Pair, &Range)| RangeSummary {
            tenant: self.tenants.name(*tenant).to_owned(),
            initiator: initiator.0,
            base: Handle(self.table_base.0.saturating_add(range.first_row)),
            count: range.rows,
            quota: range.live.map_or(range.bound, |live| live.quota),
            bound: range.live.is_none().then_some(range.bound),
            session: range.live.map(|live| live.id),
            lease_ends: range.lease_ends,
        };
        self.ranges.iter().map(summary).collect()
    }

    /// The tenant a HELLO proves to be.
    pub(crate) fn authenticate(
        &self,
        mode: AuthMode,
        challenge: &Challenge,
        initiator: &InitiatorId,
        name: Option<&str>,
        auth: Option<&Auth>,
    ) -> Option<TenantIndex> {
        self.tenants
            .authenticate(mode, challenge, initiator, name, auth)
    }

    pub(crate) fn tenant_name(&self, tenant: TenantIndex) -> &str {
        self.tenants.name(tenant)
    }

    /// Whether the whole pool is one trust domain, so that DIRECT_LOAD reaches nobody else's blocks.
    //= kbtp-6.6-direct-trusted-only
    pub(crate) fn one_domain(&self) -> bool {
        self.tenants.one_domain()
    }

    /// A session that was granted has ended, with so many handles bound; it holds no block.
    //= kbtp-p8-lease-keeps-bindings
    pub(crate) fn close(&mut self, now: Time, shared: &Shared, id: SessionId, bound: u32) {
        let is_its = |range: &Range| range.live.is_some_and(|live| live.id == id);
        let Some((pair, range)) = self.ranges.iter_mut().find(|(_, range)| is_its(range)) else {
            return;
        };
        let pair = *pair;
        let live = range.live.take();
        range.bound = bound;
        //= kbtp-p8-lease-for-ever
        range.lease_ends = match self.config.lease_ms {
            _ if planted(Plant::LeaseForgotten) => None,
            u32::MAX => None,
            ms => Some(now.after_ms(u64::from(ms))),
        };
        let over = bound == 0 || self.config.lease_ms == 0 || planted(Plant::LeaseIgnored);
        if let Some(Live {
            partition: Some(partition),
            quota,
            ..
        }) = live
        {
            self.dissolving.push(Dissolving::new(partition, quota));
            self.dissolve(now, shared);
        }
        //= kbtp-p8-empty-range-released
        if over {
            self.release(pair, shared);
            self.go_on_releasing(now, shared);
        }
    }

    /// Sum of what is promised; at most F.
    //= kbtp-3.4-quota-sum
    fn committed(&self) -> u32 {
        let held_back = self.dissolving.iter().map(|going| going.blocks);
        let sum = self
            .ranges
            .values()
            .map(Range::reserved)
            .chain(held_back)
            .chain(self.releasing.bound())
            .map(u64::from)
            .sum();
        u32::try_from(u64::min(sum, u64::from(self.pool_blocks))).unwrap_or(u32::MAX)
    }

    /// Sets the pool to the trust domains there are.
    fn prepare(&self, pool: &Pool) {
        pool.set_isolation(!self.tenants.one_domain());
        //= kbtp-p9-direct-own-blocks-only
        if let Some(domain) = self
            .tenants
            .only_domain()
            .filter(|_| self.config.direct_load)
        {
            pool.clear_foreign(domain);
        }
    }

    fn adopt(&mut self, shared: &Shared, record: &RangeRecord, bound: u32, now: Time) {
        //= kbtp-p8-empty-range-released
        if bound == 0 {
            if shared.pool.clear_record(record.slot).is_err() {
                self.free_slots.remove(&record.slot);
            }
            return;
        }
        let tenant = self.tenants.of_record(&record.tenant);
        let domain = self.tenants.domain(tenant);
        let granule = shared.pool.geometry().granule_handles();
        self.extents
            .take_at(record.first_row / granule, record.rows.div_ceil(granule));
        self.free_slots.remove(&record.slot);
        shared
            .pool
            .set_domain(record.first_row, record.rows, Some(domain));
        let lease_ends = match self.config.lease_ms {
            u32::MAX => None,
            ms => Some(now.after_ms(u64::from(ms))),
        };
        let range = Range {
            slot: record.slot,
            first_row: record.first_row,
            rows: record.rows,
            bound,
            live: None,
            last: SessionId(u64::MAX),
            lease_ends,
        };
        let pair = (tenant, InitiatorId(record.initiator));
        if record.given_up {
            self.releasing.push(pair, range);
            return;
        }
        // Two records of one pair cannot be; if memory says so, the one with more bound wins.
        let loser = match self.ranges.insert(pair, range) {
            Some(other) if other.bound > bound => self.ranges.insert(pair, other),
            other => other,
        };
        match loser {
            None => self.tenants.has_more(tenant),
            Some(loser) => self.releasing.push(pair, loser),
        }
    }
}

fn check(config: &DirectoryConfig) -> Result<(), DirectoryError> {
    let wrong = |key, value: u64, problem| {
        Err(DirectoryError::Config {
            key,
            value,
            problem,
        })
    };
    if config.credits_max == 0 || config.credits_max > CREDITS_MAX {
        return wrong(
            "credits_max",
            config.credits_max.into(),
            "must be 1 to 1024",
        );
    }
    if config.credits_default == 0 || config.credits_default > config.credits_max {
        let value = config.credits_default.into();
        return wrong("credits_default", value, "must be 1 to credits_max");
    }
    if config.inline_max > INLINE_MAX {
        return wrong(
            "inline_max",
            config.inline_max.into(),
            "must be at most 65536",
        );
    }
    if config.default_quota == 0 {
        return wrong("default_quota", 0, "must be at least 1");
    }
    Ok(())
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
