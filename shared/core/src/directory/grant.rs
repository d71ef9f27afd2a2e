//! Granting a session: quota, handle range, partition (profile, P8; draft, section 3.4).

use super::releasing::Dissolving;
use super::{Directory, Live, Pair, Range, SessionId, TenantIndex};
use crate::Shared;
use crate::limits::{INITIATORS_KEPT, RANGES_MAX};
use crate::plants::{Plant, planted};
use crate::pool::{Domain, PartitionId, RangeRecord};
use crate::stats::add;
use kbtp_fabric::Time;
use kbtp_wire::{AtomicForm, InitiatorId, Status};

/// What a session that has proven its tenant wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) id: SessionId,
    pub(crate) tenant: TenantIndex,
    pub(crate) initiator: InitiatorId,
    /// Blocks wanted, 0: the default.
    pub(crate) quota: u32,
    /// Handles wanted, 0: as many as the quota.
    pub(crate) handles: u64,
    /// DIRECT_ALLOC, if it is wanted, allowed and possible.
    pub(crate) direct_alloc: Option<AtomicForm>,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opened {
    Granted(Allotment),
    /// The pair's earlier session must end first, or, if it has ended, what it had bound must be freed: ask again.
    Replace(SessionId),
    Refused(Status),
}

/// What a session got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allotment {
    pub(crate) domain: Domain,
    pub(crate) first_row: u64,
    pub(crate) rows: u64,
    pub(crate) quota: u32,
    /// Handles of the range that are bound already.
    pub(crate) bound: u32,
    pub(crate) partition: Option<PartitionId>,
    pub(crate) resumed: bool,
}

impl Directory {
    /// Grants a session what is left of what it wants, or tells which session it replaces. Cost: with DIRECT_ALLOC, as
    /// that of [`Pool::carve`](crate::Pool::carve); a pass over the tenants.
    pub(crate) fn open(&mut self, shared: &Shared, opening: &Opening) -> Opened {
        let pair = (opening.tenant, opening.initiator);
        if let Some(gone) = self.hasten_releasing(pair, shared) {
            return Opened::Replace(gone);
        }
        let before = self.ranges.get(&pair);
        //= kbtp-p8-second-session-replaces
        let live = before.and_then(|range| range.live);
        if let Some(live) = live.filter(|_| !planted(Plant::ReplaceForgotten)) {
            return Opened::Replace(live.id);
        }
        //= kbtp-p8-resume
        let resumed = before.is_some();
        let bound = before.map_or(0, |range| range.bound);
        let mut left = self.pool_blocks.saturating_sub(self.committed());
        if planted(Plant::QuotaSumIgnored) {
            left = self.pool_blocks;
        }
        let wanted = self.wanted_quota(opening.quota);
        let domain = self.tenants.domain(opening.tenant);
        let partition = partition_for(shared, opening, domain, wanted.max(bound).min(left), bound);
        //= kbtp-p8-quota-granted
        //= kbtp-p8-quota-on-resume
        let quota = match partition {
            Some((_, quota)) => quota,
            None => wanted.min(left.saturating_add(bound)).max(bound),
        };
        //= kbtp-p8-no-quota-no-space
        if quota == 0 {
            return Opened::Refused(Status::NoSpace);
        }
        let partition_id = partition.map(|(id, _)| id);
        let live = Live {
            id: opening.id,
            quota,
            reserved: if partition.is_some() {
                quota.saturating_add(bound)
            } else {
                quota
            },
            partition: partition_id,
        };
        let handles = if opening.handles == 0 {
            u64::from(quota)
        } else {
            opening.handles.min(self.most_handles(shared))
        };
        let placed = match self.ranges.get_mut(&pair) {
            Some(range) => {
                range.last = live.id;
                range.live = Some(live);
                range.lease_ends = None;
                Some((range.first_row, range.rows))
            }
            None => self.new_range(shared, pair, handles, live),
        };
        let Some((first_row, rows)) = placed else {
            if let Some(id) = partition_id {
                self.dissolving.push(Dissolving::new(id, quota));
                self.retry_at = Some(Time(0));
            }
            return Opened::Refused(Status::NoSpace);
        };
        Opened::Granted(Allotment {
            domain,
            first_row,
            rows,
            quota,
            bound: if planted(Plant::ResumedEmpty) {
                0
            } else {
                bound
            },
            partition: partition_id,
            resumed,
        })
    }

    //= kbtp-p5-defaults
    fn wanted_quota(&self, wanted: u32) -> u32 {
        let wanted = if wanted == 0 {
            self.config.default_quota
        } else {
            wanted
        };
        match self.config.max_quota {
            0 => wanted,
            most => wanted.min(most),
        }
    }

    /// Most handles of one session: where its blocks are limited, the same part of the table as of the pool, else one
    /// session could take the whole table and leave the others blocks without handles.
    fn most_handles(&self, shared: &Shared) -> u64 {
        let geometry = shared.pool.geometry();
        let most = match self.config.max_quota {
            0 => return u64::MAX,
            most => u64::from(most),
        };
        let part = geometry.handles.saturating_mul(most);
        part.div_ceil(u64::from(geometry.blocks).max(1)).max(most)
    }

    /// Makes a range of `handles` handles, or as many as there are; its first row and rows.
    //= kbtp-p8-range-of-pair
    fn new_range(
        &mut self,
        shared: &Shared,
        pair: Pair,
        handles: u64,
        live: Live,
    ) -> Option<(u64, u64)> {
        let geometry = shared.pool.geometry();
        let granule = geometry.granule_handles();
        let most = self.room_of(pair.0)?;
        let slot = *self.free_slots.first()?;
        let (first, granules) = self.extents.take(handles.div_ceil(granule).min(most))?;
        let first_row = first.saturating_mul(granule);
        let rows = granules
            .saturating_mul(granule)
            .min(geometry.handles.saturating_sub(first_row));
        let domain = self.tenants.domain(pair.0);
        let record = RangeRecord {
            slot,
            tenant: self.tenants.name(pair.0).to_owned(),
            initiator: pair.1.0,
            first_row,
            rows,
            given_up: false,
        };
        if shared.pool.write_record(&record).is_err() {
            self.extents.give(first, granules);
            return None;
        }
        self.free_slots.remove(&slot);
        shared.pool.set_domain(first_row, rows, Some(domain));
        let range = Range {
            slot,
            first_row,
            rows,
            bound: 0,
            live: Some(live),
            last: live.id,
            lease_ends: None,
        };
        self.ranges.insert(pair, range);
        self.tenants.has_more(pair.0);
        Some((first_row, rows))
    }

    /// Granules that a new range of a tenant may have at most; `None` if it may have no range more.
    //= rfc5042-3-resource-control
    fn room_of(&self, tenant: TenantIndex) -> Option<u64> {
        let limit = self.config.max_initiators;
        if limit != 0 && self.tenants.ranges(tenant) >= limit {
            return None;
        }
        let halves = u64::try_from(self.tenants.configured())
            .unwrap_or(u64::MAX)
            .saturating_mul(2)
            .max(1);
        let least = u64::from(RANGES_MAX).min(self.granules) / halves;
        let kept = INITIATORS_KEPT.min(u32::try_from(least).unwrap_or(u32::MAX));
        let others = self.tenants.kept_for_others(tenant, kept);
        let slots = u64::try_from(self.free_slots.len()).unwrap_or(u64::MAX);
        let room = self.extents.free().saturating_sub(others);
        (room > 0 && slots > others).then_some(room)
    }
}

/// A partition of `quota` blocks, if one is wanted and there is one.
//= kbtp-3.4-own-ring
fn partition_for(
    shared: &Shared,
    opening: &Opening,
    domain: Domain,
    quota: u32,
    bound: u32,
) -> Option<(PartitionId, u32)> {
    let form = opening.direct_alloc?;
    // What is bound already counts as usage of the quota but does not lie in the partition.
    let id = if quota == 0 || quota < bound {
        None
    } else {
        shared.pool.carve(quota, form, domain)
    };
    //= kbtp-p8-contiguous-partition
    if id.is_none() {
        add(&shared.stats.partitions_refused, 1);
    }
    id.map(|id| (id, quota))
}
