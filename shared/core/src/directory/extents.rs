//! Which granules of the block table are nobody's: runs, first fit.

use std::collections::BTreeMap;

/// The free granules: first granule of each run, and its length. No two runs touch.
#[derive(Debug)]
pub(super) struct Extents {
    runs: BTreeMap<u64, u64>,
    free: u64,
}

impl Extents {
    pub(super) fn new(granules: u64) -> Self {
        Self {
            runs: BTreeMap::from([(0, granules)]),
            free: granules,
        }
    }

    /// Granules that are nobody's.
    pub(super) const fn free(&self) -> u64 {
        self.free
    }

    /// Takes `wanted` granules, at least one: the first run that holds them, or else the longest run whole. The first
    /// granule and how many, or `None` if there is none. Cost: a pass over the runs.
    pub(super) fn take(&mut self, wanted: u64) -> Option<(u64, u64)> {
        let wanted = wanted.max(1);
        let fit = self.runs.iter().find(|(_, len)| **len >= wanted);
        let (first, len) = fit.or_else(|| self.runs.iter().rev().max_by_key(|(_, len)| **len))?;
        let (first, len) = (*first, *len);
        let taken = wanted.min(len);
        self.runs.remove(&first);
        self.free = self.free.saturating_sub(taken);
        if len > taken {
            self.runs
                .insert(first.saturating_add(taken), len.saturating_sub(taken));
        }
        Some((first, taken))
    }

    /// Takes these granules, whatever runs they lie in; for ranges found at recovery.
    pub(super) fn take_at(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        let before = self
            .runs
            .range(..end)
            .map(|(f, l)| (*f, f.saturating_add(*l)));
        let touched: Vec<_> = before.filter(|(_, run_end)| *run_end > first).collect();
        for (run, run_end) in touched {
            self.runs.remove(&run);
            let taken = run_end.min(end).saturating_sub(run.max(first));
            self.free = self.free.saturating_sub(taken);
            if run < first {
                self.runs.insert(run, first.saturating_sub(run));
            }
            if run_end > end {
                self.runs.insert(end, run_end.saturating_sub(end));
            }
        }
    }

    /// Returns granules that were taken.
    pub(super) fn give(&mut self, first: u64, count: u64) {
        self.free = self.free.saturating_add(count);
        let mut first = first;
        let mut count = count;
        if let Some(after) = self.runs.remove(&first.saturating_add(count)) {
            count = count.saturating_add(after);
        }
        if let Some((before, len)) = self.runs.range(..first).next_back().map(|(f, l)| (*f, *l))
            && before.saturating_add(len) == first
        {
            first = before;
            count = count.saturating_add(len);
        }
        self.runs.insert(first, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_are_split_and_joined() {
        let mut extents = Extents::new(10);
        assert_eq!(extents.take(3), Some((0, 3)));
        assert_eq!(extents.take(3), Some((3, 3)));
        assert_eq!(extents.take(0), Some((6, 1)));
        extents.give(0, 3);
        assert_eq!(
            extents.take(4),
            Some((0, 3)),
            "the longest, if none is long enough"
        );
        assert_eq!(extents.take(9), Some((7, 3)));
        assert_eq!(extents.take(1), None);
        for granule in [4, 0, 9, 2, 6, 8, 1, 3, 7, 5] {
            extents.give(granule, 1);
        }
        assert_eq!(extents.runs, BTreeMap::from([(0, 10)]));
        extents.take_at(2, 3);
        extents.take_at(9, 1);
        assert_eq!(extents.runs, BTreeMap::from([(0, 2), (5, 4)]));
        assert_eq!(extents.free(), 6);
        extents.take_at(0, 2);
        assert_eq!(extents.runs, BTreeMap::from([(5, 4)]));
        extents.take_at(5, 4);
        assert_eq!(extents.take(1), None);
    }

    proptest! {
        #[test]
        fn granules_are_given_out_once(steps in prop::collection::vec((any::<bool>(), 1_u64..6), 0..60)) {
            let mut extents = Extents::new(16);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (take, n) in steps {
                if take {
                    held.extend(extents.take(n));
                } else if !held.is_empty() {
                    let (first, count) = held.swap_remove(usize::try_from(n).unwrap() % held.len());
                    extents.give(first, count);
                }
                let mut all: Vec<u64> = held.iter().flat_map(|(f, c)| *f..f + c).collect();
                all.extend(extents.runs.iter().flat_map(|(f, c)| *f..f + c));
                all.sort_unstable();
                prop_assert_eq!(&all, &(0..16).collect::<Vec<_>>());
                prop_assert_eq!(extents.free(), extents.runs.values().sum::<u64>());
            }
        }
    }
}
