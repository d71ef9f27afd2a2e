//! STags of all sessions: none may come again.

use std::collections::BTreeSet;

/// STags that come twice in the whole campaign at most. They are drawn at random from 2^32, so among the some 20,000 of
/// 1,000 kills 0.05 are expected to come twice; four do once in five million campaigns.
const CHANCE: u64 = 3;

/// All that were seen.
#[derive(Debug, Default)]
pub(crate) struct Stags {
    all: BTreeSet<u32>,
    /// Those of each initiator's last session.
    last: Vec<BTreeSet<u32>>,
    /// How often one came that another session had.
    pub(crate) again: u64,
}

impl Stags {
    /// Takes those of a session of initiator `who`. None may be of the session before, and hardly any of another one.
    pub(crate) fn take(&mut self, who: usize, stags: impl Iterator<Item = u32>) {
        let now: BTreeSet<u32> = stags.collect();
        if self.last.len() <= who {
            self.last.resize(who + 1, BTreeSet::new());
        }
        let kept: Vec<_> = now.intersection(&self.last[who]).collect();
        assert!(kept.is_empty(), "initiator {who}: {kept:x?} come again");
        for stag in &now {
            self.again += u64::from(!self.all.insert(*stag));
        }
        assert!(
            self.again <= CHANCE,
            "{} of {} STags came twice",
            self.again,
            self.all.len()
        );
        self.last[who] = now;
    }

    /// How many there were.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Those of the target's sessions that are no more: forgotten as the last ones, not as ones that were.
    #[cfg(test)]
    fn seen(stags: &[u32]) -> Self {
        let mut all = Self::default();
        all.take(0, stags.iter().copied());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_ones_are_counted() {
        let mut stags = Stags::seen(&[1, 2, 3]);
        stags.take(0, 4..7);
        stags.take(1, 7..9);
        assert_eq!((stags.count(), stags.again), (8, 0));
    }

    #[test]
    #[should_panic(expected = "come again")]
    fn one_that_outlives_its_session_is_seen() {
        Stags::seen(&[1, 2, 3]).take(0, [9, 2].into_iter());
    }

    #[test]
    #[should_panic(expected = "came twice")]
    fn more_than_chance_are_seen() {
        let mut stags = Stags::seen(&[1, 2, 3, 4]);
        stags.take(1, [1, 2, 3, 4].into_iter());
    }
}
