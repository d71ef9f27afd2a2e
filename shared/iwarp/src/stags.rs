//! The STags of one stream: registration, lookup, invalidation, retirement.
//!
//! Each stream has a table of its own, so an STag of another stream is simply invalid here; the codes for "STag not
//! associated with the stream" cannot arise. The low bits of an STag find its entry; the rest are a keyed permutation
//! of the entry's count of registrations, so that none can be guessed from others and none comes again for as long as can
//! be.
//!
//! There are 2^32 STags, and a stream that registers for each request has used them all after some hours. An entry
//! deals its numbers out in rounds: each round goes through one half of them in an order of its own, the next through
//! the other half. So an entry gives an STag again only when at least half of all the numbers it has lie between: with
//! 4,096 entries after 2^31 registrations of the stream (RFC 5042, section 6.1.1: "reused at as slow a rate as
//! possible"), and what a peer has seen of earlier rounds tells one bit of the next.
//!
//! A lookup is one comparison. Registering costs eight rounds of `SipHash` and no allocation.

use crate::plants::{Plant, planted};
use crate::siphash::SipKey;
use core::ops::Range;
use kbtp_fabric::{Access, LocalError};
use kbtp_memory::Region;
use kbtp_wire::{Stag, TaggedOffset};
use std::collections::VecDeque;

/// A registered buffer.
#[derive(Debug)]
struct Live {
    region: Region,
    base: u64,
    access: Access,
}

#[derive(Debug)]
enum Entry {
    Free,
    Live(Stag, Live),
    /// Given up: what comes for it is dropped.
    Retired(Stag),
}

/// Where octets named by an STag lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Entry of the table.
    pub(crate) entry: u16,
    /// Octet of the entry's region.
    pub(crate) at: u64,
    pub(crate) access: Access,
}

/// Why octets named by an STag cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPlace {
    /// No such STag on this stream.
    Invalid,
    /// Offset and length wrap at 2^64.
    Wrap,
    /// Outside the registered range.
    Bounds,
    /// The STag is retired.
    Retired,
}

/// How far an entry is in dealing out its STags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Draws {
    round: u32,
    /// Numbers dealt out in this round.
    dealt: u32,
}

/// The table.
#[derive(Debug)]
pub(crate) struct StagTable {
    entries: Box<[Entry]>,
    /// How far each entry is in dealing out its STags.
    draws: Box<[Draws]>,
    /// Entries to use next, oldest first.
    free: VecDeque<u16>,
    /// Entries that are live or retired.
    in_use: u64,
    key: SipKey,
    /// Added, bit by bit, to the entry number.
    cover: u32,
    entry_bits: u32,
}

impl StagTable {
    /// A table of `len` entries; `seed` must be unpredictable to the peer.
    pub(crate) fn new(len: u16, seed: &[u8; 32]) -> Self {
        let key = SipKey::from_seed(seed, false);
        let entry_bits = u32::from(len).next_power_of_two().trailing_zeros();
        let [_, _, _, _, a, b, c, d] = SipKey::from_seed(seed, true).hash(0).to_be_bytes();
        Self {
            entries: (0..len).map(|_| Entry::Free).collect(),
            draws: vec![Draws::default(); len.into()].into_boxed_slice(),
            free: (0..len).collect(),
            in_use: 0,
            key,
            cover: u32::from_be_bytes([a, b, c, d]) & ((1 << entry_bits) - 1),
            entry_bits,
        }
    }

    /// STags that are valid, and those that are retired.
    pub(crate) const fn in_use(&self) -> u64 {
        self.in_use
    }

    fn limit(&self) -> LocalError {
        LocalError::Limit {
            what: "registrations",
            limit: self.entries.len() as u64,
        }
    }

    /// Registers `range` of `region`; its first octet has Tagged Offset `base`.
    pub(crate) fn register(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        let outside = || LocalError::Range {
            what: "registration",
            start: range.start,
            end: range.end,
            len: region.len(),
        };
        let sub = region.sub(range.clone()).map_err(|_| outside())?;
        //= rfc5041-7.1-to-wrap
        // The Tagged Offset one past the last octet must be a number too, else the last octets could not be named.
        base.0.checked_add(sub.len()).ok_or_else(outside)?;
        let entry = self.free.pop_front().ok_or_else(|| self.limit())?;
        let stag = self.draw(entry);
        if let Some(place) = self.entries.get_mut(usize::from(entry)) {
            *place = Entry::Live(
                stag,
                Live {
                    region: sub,
                    base: base.0,
                    access,
                },
            );
            self.in_use += 1;
        }
        Ok(stag)
    }

    /// The next STag of an entry. Zero is left out: it means "none" to KBTP.
    fn draw(&mut self, entry: u16) -> Stag {
        // Of the bits that are drawn the highest is the half of this round.
        let order_bits = 31 - self.entry_bits;
        loop {
            let Draws { round, dealt } = self.advance(entry, order_bits);
            //= rfc5040-8.1.1-stag-unpredictable
            //= rfc5042-6.1.1-slow-reuse
            //= rfc5040-8.1.1-stag-sparse
            let number = self.key.permute(tweak(entry, round), order_bits, dealt);
            let high = u64::from(round & 1) << order_bits | u64::from(number);
            let low = u64::from(u32::from(entry) ^ self.cover);
            let stag = u32::try_from(high << self.entry_bits | low).unwrap_or(0);
            if stag != 0 {
                return Stag(stag);
            }
        }
    }

    /// Counts on; what is dealt out now.
    fn advance(&mut self, entry: u16, order_bits: u32) -> Draws {
        let Some(draws) = self.draws.get_mut(usize::from(entry)) else {
            return Draws::default();
        };
        if draws.dealt >> order_bits != 0 {
            draws.dealt = 0;
            draws.round = draws.round.wrapping_add(1);
        }
        let now = *draws;
        draws.dealt = draws.dealt.wrapping_add(1);
        now
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "masked to entry_bits, at most 12"
    )]
    const fn entry_of(&self, stag: Stag) -> u16 {
        ((stag.0 ^ self.cover) & ((1_u32 << self.entry_bits) - 1)) as u16
    }

    //= rfc5041-4.2-stag-valid
    //= rfc5041-8.2-stream-association
    //= rfc5040-8.1.1-stream-scope
    //= rfc5042-6.1.1-stream-scope
    //= rfc5042-6.4.5-no-shared-stag
    //= rfc5040-8.1.1-no-shared-stag
    fn get(&self, stag: Stag) -> Option<&Entry> {
        match self.entries.get(usize::from(self.entry_of(stag))) {
            Some(entry @ (Entry::Live(found, _) | Entry::Retired(found))) if *found == stag => {
                Some(entry)
            }
            _ => None,
        }
    }

    /// Finds `len` octets at `offset` of `stag`. The checks come in the order of RFC 5041, section 7.1, the wrap
    /// before the bounds it would defeat.
    pub(crate) fn find(
        &self,
        stag: Stag,
        offset: TaggedOffset,
        len: u64,
    ) -> Result<Place, NoPlace> {
        let live = match self.get(stag) {
            Some(Entry::Live(_, live)) => live,
            Some(Entry::Retired(_)) => return Err(NoPlace::Retired),
            _ => return Err(NoPlace::Invalid),
        };
        //= rfc5041-7.1-tagged
        //= rfc5041-8.3-exact-range
        //= rfc5040-8.1.1-no-access-outside
        //= rfc5042-6.2.1-no-access-outside
        let end = offset.0.checked_add(len).ok_or(NoPlace::Wrap)?;
        let at = offset.0.checked_sub(live.base).ok_or(NoPlace::Bounds)?;
        // `base + len` of a registration does not wrap.
        let outside = end > live.base.saturating_add(live.region.len());
        if outside && !planted(Plant::BoundsIgnored) {
            return Err(NoPlace::Bounds);
        }
        Ok(Place {
            entry: self.entry_of(stag),
            at,
            access: live.access,
        })
    }

    /// The region of an entry that is in use.
    pub(crate) fn region(&self, entry: u16) -> Option<&Region> {
        match self.entries.get(usize::from(entry)) {
            Some(Entry::Live(_, live)) => Some(&live.region),
            _ => None,
        }
    }

    /// Entry and region of an STag that is neither ended nor retired.
    pub(crate) fn live(&self, stag: Stag) -> Option<(u16, &Region)> {
        match self.get(stag) {
            Some(Entry::Live(_, live)) => Some((self.entry_of(stag), &live.region)),
            _ => None,
        }
    }

    /// Ends an STag.
    pub(crate) fn invalidate(&mut self, stag: Stag) -> Result<(), LocalError> {
        if self.get(stag).is_none() {
            return Err(LocalError::UnknownStag { stag });
        }
        let entry = self.entry_of(stag);
        if planted(Plant::StagKept) {
            return Ok(());
        }
        if let Some(place) = self.entries.get_mut(usize::from(entry)) {
            *place = Entry::Free;
            self.free.push_back(entry);
            self.in_use = self.in_use.saturating_sub(1);
        }
        Ok(())
    }

    /// Keeps an STag for a sink of octets nobody wants. Its entry stays taken while the stream lives or until the peer
    /// invalidates it.
    pub(crate) fn retire(&mut self, stag: Stag) -> Result<(), LocalError> {
        let (entry, _) = self.live(stag).ok_or(LocalError::UnknownStag { stag })?;
        if let Some(place) = self.entries.get_mut(usize::from(entry)) {
            *place = Entry::Retired(stag);
        }
        Ok(())
    }

    /// Whether the peer may invalidate `stag` with a Send.
    pub(crate) fn peer_may_invalidate(&self, stag: Stag) -> bool {
        match self.get(stag) {
            Some(Entry::Live(_, live)) => {
                live.access.remote_invalidate || planted(Plant::InvalidateUnchecked)
            }
            Some(Entry::Retired(_)) => true,
            _ => false,
        }
    }
}

/// Names the order of one round of one entry.
const fn tweak(entry: u16, round: u32) -> u64 {
    (round as u64) << 16 | entry as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_memory::PageOptions;
    use std::collections::BTreeSet;

    fn region() -> Region {
        Region::anonymous(8192, &PageOptions::default()).unwrap()
    }

    fn table(len: u16) -> StagTable {
        StagTable::new(len, &[7; 32])
    }

    #[test]
    fn octets_are_found_within_bounds_only() {
        //= test rfc5041-7.1-tagged
        //= test rfc5041-7.1-to-wrap
        let region = region();
        let mut table = table(4);
        let base = 0x1_0000;
        let stag = table
            .register(&region, 4096..8192, TaggedOffset(base), Access::LOCAL)
            .unwrap();
        let find = |offset, len| table.find(stag, TaggedOffset(offset), len);
        assert_eq!(find(base, 4096).unwrap().at, 0);
        assert_eq!(find(base + 4095, 1).unwrap().at, 4095);
        assert_eq!(find(base + 4096, 0).unwrap().at, 4096);
        assert_eq!(find(base - 1, 1), Err(NoPlace::Bounds));
        assert_eq!(find(base + 4095, 2), Err(NoPlace::Bounds));
        assert_eq!(find(u64::MAX, 1), Err(NoPlace::Wrap));
        assert_eq!(find(u64::MAX - 1, 1), Err(NoPlace::Bounds));
        assert_eq!(
            table.find(Stag(stag.0 ^ 1 << 20), TaggedOffset(base), 1),
            Err(NoPlace::Invalid)
        );
    }

    #[test]
    fn registrations_are_checked_and_bounded() {
        let region = region();
        let mut table = table(2);
        assert!(matches!(
            table.register(&region, 0..8193, TaggedOffset(0), Access::LOCAL),
            Err(LocalError::Range { end: 8193, .. })
        ));
        assert!(matches!(
            table.register(
                &region,
                0..8192,
                TaggedOffset(u64::MAX - 8000),
                Access::LOCAL
            ),
            Err(LocalError::Range { .. })
        ));
        let one = table
            .register(&region, 0..1, TaggedOffset(0), Access::LOCAL)
            .unwrap();
        table
            .register(&region, 0..1, TaggedOffset(0), Access::LOCAL)
            .unwrap();
        assert!(matches!(
            table.register(&region, 0..1, TaggedOffset(0), Access::LOCAL),
            Err(LocalError::Limit { limit: 2, .. })
        ));
        table.invalidate(one).unwrap();
        assert!(
            table
                .register(&region, 0..1, TaggedOffset(0), Access::LOCAL)
                .is_ok()
        );
    }

    #[test]
    fn no_stag_comes_twice() {
        let region = region();
        for len in [1, 3, 16] {
            let mut table = table(len);
            let mut seen = BTreeSet::new();
            for _ in 0..20_000 {
                let stag = table
                    .register(&region, 0..1, TaggedOffset(0), Access::LOCAL)
                    .unwrap();
                assert!(stag.0 != 0 && seen.insert(stag.0));
                table.invalidate(stag).unwrap();
                assert!(table.invalidate(stag).is_err());
            }
        }
    }

    /// All STags of an entry, dealt out twice over.
    //= test rfc5042-6.1.1-slow-reuse
    #[test]
    fn a_stream_that_has_used_all_its_stags_goes_on_and_takes_the_longest_unused() {
        let mut table = table(u16::MAX);
        let half = 1 << 15;
        let mut last: Vec<Option<u32>> = vec![None; 2 << 15];
        let mut orders = Vec::new();
        for count in 0..4 * half {
            let stag = table.draw(5);
            assert_eq!(stag.0 & 0xffff, 5 ^ table.cover);
            let before = last[stag.0 as usize >> 16].replace(count);
            assert!(before.is_none_or(|before| count - before > half), "{count}");
            if count % half < 4 {
                orders.push(stag.0 >> 16 & (half - 1));
            }
        }
        // All but zero, if the entry has it, were dealt out, and the rounds of a half differ in their order.
        assert!(last.iter().filter(|at| at.is_none()).count() <= 1);
        assert_ne!(orders[..4], orders[8..12]);
        assert_ne!(orders[4..8], orders[12..]);
    }

    #[test]
    fn a_small_table_lasts_as_long() {
        let region = region();
        let mut table = table(1);
        table.draws[0] = Draws {
            round: u32::MAX,
            dealt: (1 << 31) - 1,
        };
        for _ in 0..4 {
            let stag = table
                .register(&region, 0..1, TaggedOffset(0), Access::LOCAL)
                .unwrap();
            table.invalidate(stag).unwrap();
        }
        assert_eq!((table.draws[0].round, table.draws[0].dealt), (0, 3));
    }

    #[test]
    fn a_retired_stag_is_a_sink_until_the_peer_invalidates_it() {
        let region = region();
        let mut table = table(1);
        let stag = table
            .register(&region, 0..8, TaggedOffset(0), Access::LOCAL)
            .unwrap();
        assert!(!table.peer_may_invalidate(stag));
        table.retire(stag).unwrap();
        assert_eq!(table.find(stag, TaggedOffset(9), 9), Err(NoPlace::Retired));
        assert!(table.retire(stag).is_err());
        assert!(table.peer_may_invalidate(stag));
        assert_eq!(table.in_use(), 1);
        table.invalidate(stag).unwrap();
        assert_eq!(table.in_use(), 0);
        assert_eq!(table.find(stag, TaggedOffset(0), 1), Err(NoPlace::Invalid));
    }
}
