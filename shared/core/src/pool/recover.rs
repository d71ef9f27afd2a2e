//! Taking over the pool of a target that is gone.
//!
//! The block table and the range records are the truth: what a VALID entry binds stays bound, every other block is
//! free, and ring, partitions, pins and tickets are made anew.

use super::format::read_superblock;
use super::records::{RangeRecord, RecordSlot};
use super::region_words::BlockWord;
use super::{Home, Pool, PoolError, Recovered, RecoveryReport, entry};
use crate::BlockIndex;
use crate::plants::{Plant, planted};
use kbtp_memory::Region;
use std::sync::atomic::Ordering::Relaxed;

/// Claim of a block that no entry binds.
const FREE: u64 = u64::MAX;

impl Pool {
    /// Takes over the pool that a target which is gone left in two regions: bound blocks stay bound, all others are
    /// free, and the ring is rebuilt. Nobody else may use the regions. `fresh_instance` becomes the Target Instance
    /// ID if bound blocks were lost. Cost: one pass over the handle ranges and the blocks' words.
    ///
    /// An entry is dropped if its block lies outside the pool or is shorter than its Data Length; two entries that
    /// claim one block are both dropped, since either may hold the other's data.
    ///
    /// # Errors
    /// [`PoolError::NotAPool`] if the metadata region holds none, or [`PoolError`] as for `format`.
    //= kbtp-p6-instance-changes
    pub fn recover(
        meta: Region,
        blocks: Region,
        fresh_instance: [u8; 16],
    ) -> Result<(Self, Recovered), PoolError> {
        let (geometry, instance) = read_superblock(&meta)?;
        let mut pool = Self::over(meta, blocks, geometry, instance)?;
        let (records, damaged) = pool.read_records()?;
        let (records, overlapping) = pool.without_overlaps(records);
        let (claims, mut dropped) = pool.claim_blocks(&records);
        if !(damaged.is_empty() && overlapping.is_empty()) {
            dropped.extend(pool.strays(&records));
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut report = RecoveryReport {
            entries_dropped: count(dropped.len()).into(),
            ranges_dropped: count(damaged.len()).saturating_add(count(overlapping.len())),
            // A target that was killed while it wrote or cleared a record left it damaged; nothing was bound then.
            instance_changed: !(dropped.is_empty() && overlapping.is_empty()),
            ..RecoveryReport::default()
        };
        if report.instance_changed {
            // Before anything is dropped: whoever is killed now must leave its successor the new one.
            pool.instance = fresh_instance;
            pool.write_superblock()?;
        }
        for row in dropped {
            entry::unbind(pool.entry_words(row));
        }
        for slot in damaged.into_iter().chain(overlapping) {
            pool.clear_record(slot)?;
        }
        pool.reset_block_words();
        let free = claims
            .iter()
            .zip(0..geometry.blocks)
            .filter(|(claim, _)| **claim == FREE || planted(Plant::RecoveredFree));
        pool.ring(Home::Shared)
            .format(free.map(|(_, block)| geometry.offset_of(BlockIndex(block))));
        let ranges: Vec<_> = records
            .into_iter()
            .map(|record| {
                let rows = record.row_numbers();
                let bound = rows.filter(|row| pool.entry(*row).is_valid()).count();
                (record, count(bound))
            })
            .collect();
        report.bound = ranges.iter().map(|(_, bound)| *bound).sum();
        report.ranges = count(ranges.len());
        Ok((pool, Recovered { report, ranges }))
    }

    /// The records that lie within the table and share no handle with an earlier one, and the others.
    pub(super) fn without_overlaps(
        &self,
        mut records: Vec<RangeRecord>,
    ) -> (Vec<RangeRecord>, Vec<RecordSlot>) {
        records.sort_by_key(|record| record.first_row);
        let granule = self.geometry.granule_handles();
        let mut kept = Vec::with_capacity(records.len());
        let mut others = Vec::new();
        let mut next_free = 0;
        for record in records {
            let end = record.first_row.checked_add(record.rows);
            let end = end.filter(|end| *end <= self.geometry.handles);
            match end {
                Some(end)
                    if record.first_row >= next_free
                        && record.rows > 0
                        && record.first_row.is_multiple_of(granule) =>
                {
                    next_free = end;
                    kept.push(record);
                }
                _ => others.push(record.slot),
            }
        }
        (kept, others)
    }

    /// The row that binds each block, and the rows to be dropped.
    fn claim_blocks(&self, records: &[RangeRecord]) -> (Vec<u64>, Vec<u64>) {
        let blocks = usize::try_from(self.geometry.blocks).unwrap_or(usize::MAX);
        let mut claims = vec![FREE; blocks];
        let mut dropped = Vec::new();
        let mut twice = Vec::new();
        for row in records.iter().flat_map(RangeRecord::row_numbers) {
            let found = self.entry(row);
            if !found.is_valid() {
                continue;
            }
            let fits = found.data_len.0 <= self.geometry.block_size && found.generation.is_some();
            let block = self.geometry.block_at(found.block).filter(|_| fits);
            let claim = block.and_then(|b| claims.get_mut(usize::try_from(b.0).ok()?));
            match claim {
                None => dropped.push(row),
                Some(claim) if *claim == FREE => *claim = row,
                Some(claim) => {
                    dropped.push(row);
                    twice.push(*claim);
                }
            }
        }
        twice.sort_unstable();
        twice.dedup();
        for row in twice {
            let block = self.geometry.block_at(self.entry(row).block);
            dropped.push(row);
            if let Some(claim) = block.and_then(|b| claims.get_mut(usize::try_from(b.0).ok()?)) {
                *claim = FREE;
            }
        }
        (claims, dropped)
    }

    /// Bound rows that are in no range: who gets them next would find another's blocks there. Cost: a pass over the
    /// table.
    fn strays(&self, records: &[RangeRecord]) -> Vec<u64> {
        let mut gaps = Vec::new();
        let mut from = 0;
        for record in records {
            gaps.push(from..record.first_row);
            from = record.first_row.saturating_add(record.rows);
        }
        gaps.push(from..self.geometry.handles);
        let rows = gaps.into_iter().flatten();
        rows.filter(|row| self.entry(*row).is_valid()).collect()
    }

    /// No pins, no partitions. Whose octets a block holds stays known.
    fn reset_block_words(&self) {
        for block in (0..self.geometry.blocks).map(BlockIndex) {
            self.block_word(block, BlockWord::Pins).store(0, Relaxed);
            self.block_word(block, BlockWord::Home).store(0, Relaxed);
        }
    }
}
