//! The oracle: what every handle may hold, by what was asked for and what the block table was seen to say.
//!
//! After each call into the target the table is compared with its shadow. Each change is a point in time at which
//! operations took effect, and must be one that an operation under way explains. Every answer must agree with a state
//! that the entry had between question and answer. That is linearizability for each handle alone, and handles are
//! independent (locality), so it is the whole. No search is needed, since the table tells the order.

use crate::options::{GRANULE, Options};
use crate::stamp;
use kbtp_fabric::Time;
use std::collections::{BTreeMap, VecDeque};

/// A point in the order of all that was observed.
pub type Seq = u64;

/// An entry, as it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// VALID.
    pub valid: bool,
    /// SEALED.
    pub sealed: bool,
    /// Generation, 0 if it was never bound.
    pub generation: u16,
    /// Data Length.
    pub len: u32,
    /// Block Offset.
    pub block: u64,
}

impl State {
    fn decode(entry: &[u8]) -> Self {
        let half = |at: usize| u16::from_be_bytes([entry[at], entry[at + 1]]);
        let word = |at: usize| (u32::from(half(at)) << 16) | u32::from(half(at + 2));
        let flags = half(0);
        Self {
            valid: flags & 1 != 0,
            sealed: flags & 2 != 0,
            generation: half(2),
            len: word(4),
            block: (u64::from(word(8)) << 32) | u64::from(word(12)),
        }
    }
}

/// What an operation may do to an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Bind it.
    Alloc,
    /// Bind it, and if it was given up, bind it without data and free it again.
    AllocDirect,
    /// Change its data.
    Store,
    /// Unbind it.
    Free,
}

/// An operation that may still take effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending {
    /// Which.
    pub op: u64,
    /// On which connection.
    pub link: usize,
    /// How.
    pub effect: Effect,
    /// Octets.
    pub len: u32,
    /// With SEAL.
    pub seal: bool,
}

/// What became of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Pending,
    Done(Seq),
    Lost(Seq),
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct StoreNote {
    op: u64,
    len: u32,
    seal: bool,
    begun: Seq,
    fate: Fate,
    /// It may have left damaged octets.
    spoilt: bool,
}

impl StoreNote {
    /// Until when its octets may have come into the block; `None` if they never did.
    const fn over(&self) -> Option<Seq> {
        match self.fate {
            Fate::Failed => None,
            Fate::Pending => Some(Seq::MAX),
            Fate::Done(at) | Fate::Lost(at) => Some(at),
        }
    }
}

/// A change of an entry.
#[derive(Clone, Copy, Debug)]
struct Change {
    at: Seq,
    state: State,
    /// Several operations may have taken effect at once, so that there were states in between.
    coarse: bool,
}

/// One handle.
#[derive(Debug, Default)]
struct Row {
    history: VecDeque<Change>,
    pending: Vec<Pending>,
    /// All stores since the pool was made.
    stores: Vec<StoreNote>,
    /// The store that each sealed Generation holds, once it is known.
    sealed_by: Vec<(u16, Seq, u64)>,
}

impl Row {
    /// Whether the entry may have had such a state within a call that left it in the state `kept`: nobody saw it where a
    /// store came right behind another and brought the length back.
    fn passed_through(&self, since: Seq, kept: &State, is: impl Fn(&State) -> bool) -> bool {
        if !kept.valid || kept.sealed {
            return false;
        }
        let live = |note: &&StoreNote| !note.seal && note.over().is_some_and(|at| at > since);
        let mut stores = self.stores.iter().filter(live).rev();
        let behind = stores.find(|note| note.len == kept.len);
        behind.is_some_and(|_| {
            stores.any(|note| {
                is(&State {
                    len: note.len,
                    ..*kept
                })
            })
        })
    }
}

/// Why an entry may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A session of this connection was given something.
    Session(usize),
    /// Ranges were released.
    Release,
    /// A pool was recovered.
    Recover,
}

/// The range of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First row.
    pub first: u64,
    /// Rows.
    pub rows: u64,
}

/// The oracle.
#[derive(Debug)]
pub struct Model {
    rows: Vec<Row>,
    shadow: Vec<u8>,
    hot: u64,
    table_base: u64,
    /// Now.
    pub seq: Seq,
    /// When the pool was made.
    pub made_at: Seq,
    /// Range of each connection, once it is granted.
    ranges: Vec<Option<Range>>,
    /// Tenant of each granule, by time.
    tenants: Vec<Vec<(Seq, Option<usize>)>>,
    one_domain: bool,
    /// Tickets of each connection that no BIND used up.
    stuck: BTreeMap<usize, u32>,
    block_size: u32,
    /// The Generation wrapped.
    pub wraps: u64,
    /// Unsealed loads that mixed stores.
    pub torn: u64,
    /// Unsealed loads that may hold damaged octets.
    pub spoilt: u64,
    /// The clock.
    pub now: Time,
    /// A call of the target was cut off: what it wrote last may be half of it.
    pub cut: bool,
    /// Entries that were bound since somebody looked.
    pub just_bound: Vec<(usize, State)>,
    /// The row that binds each block.
    binds: BTreeMap<u64, usize>,
    /// Rows that seemed to bind a block when another came to bind it.
    displaced: Vec<(u64, usize)>,
    /// Rows bound in each granule.
    bound: Vec<u32>,
    /// When the session of each granule ended.
    left_at: Vec<Option<Time>>,
    lease_ms: u32,
    /// Tenant of each operation, by its step.
    op_tenants: Vec<u8>,
    seed: u64,
    /// The last tenant that bound each block, and whether it put octets there.
    last_in: BTreeMap<u64, (usize, bool)>,
}

/// What a block was before it was bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Before {
    /// Its last owner is another trust domain.
    pub of_another_domain: bool,
    /// And left octets there.
    pub had_octets: bool,
}

/// What is wrong.
pub type Check = Result<(), String>;

fn granules(range: &Range) -> std::ops::Range<usize> {
    (range.first / GRANULE) as usize..(range.first + range.rows).div_ceil(GRANULE) as usize
}

const fn distance(from: u16, to: u16) -> u32 {
    if to >= from {
        (to - from) as u32
    } else {
        (to as u32 + 65_535) - from as u32
    }
}

impl Model {
    /// The oracle of a new pool whose table holds `table`.
    #[must_use]
    pub fn new(options: &Options, table: Vec<u8>) -> Self {
        let rows = options.rows() as usize;
        let mut model = Self {
            rows: (0..rows).map(|_| Row::default()).collect(),
            shadow: table,
            hot: options.hot_rows,
            table_base: options.table_base,
            seq: 1,
            made_at: 0,
            ranges: Vec::new(),
            tenants: vec![vec![(0, None)]; rows / GRANULE as usize],
            one_domain: options.tenants == 0 || options.shared_tenants,
            stuck: BTreeMap::new(),
            block_size: options.block_size,
            wraps: 0,
            torn: 0,
            spoilt: 0,
            now: Time(0),
            cut: false,
            just_bound: Vec::new(),
            binds: BTreeMap::new(),
            displaced: Vec::new(),
            bound: vec![0; rows / GRANULE as usize],
            left_at: vec![None; rows / GRANULE as usize],
            lease_ms: options.lease_ms,
            op_tenants: vec![u8::MAX; options.steps as usize],
            seed: options.seed,
            last_in: BTreeMap::new(),
        };
        model.begin();
        model
    }

    fn begin(&mut self) {
        self.binds.clear();
        self.last_in.clear();
        self.just_bound.clear();
        self.bound.fill(0);
        for at in 0..self.rows.len() {
            let state = self.state(at);
            let row = &mut self.rows[at];
            *row = Row::default();
            row.history.push_back(Change {
                at: self.seq,
                state,
                coarse: false,
            });
        }
    }

    /// The pool was lost and made anew.
    pub fn reset(&mut self, table: Vec<u8>) {
        self.seq += 1;
        self.made_at = self.seq;
        self.shadow = table;
        self.begin();
        for range in &mut self.ranges {
            *range = None;
        }
        for tenants in &mut self.tenants {
            tenants.push((self.seq, None));
        }
    }

    fn entry(&self, row: usize) -> &[u8] {
        &self.shadow[row * 16..row * 16 + 16]
    }

    /// The entry of a row.
    #[must_use]
    pub fn state(&self, row: usize) -> State {
        State::decode(self.entry(row))
    }

    /// The row of a handle.
    #[must_use]
    pub fn row(&self, handle: u64) -> Option<usize> {
        let row = usize::try_from(handle.checked_sub(self.table_base)?).ok()?;
        (row < self.rows.len()).then_some(row)
    }

    /// The range of a connection.
    #[must_use]
    pub fn range(&self, link: usize) -> Option<Range> {
        self.ranges.get(link).copied().flatten()
    }

    /// Handles bound in the range of a connection.
    #[must_use]
    pub fn bound(&self, link: usize) -> u32 {
        self.range(link).map_or(0, |range| {
            let granules = granules(&range);
            self.bound[granules].iter().sum()
        })
    }

    /// Handles bound in all.
    #[must_use]
    pub fn bound_in_all(&self) -> u32 {
        self.binds.len() as u32
    }

    /// The row that binds a block.
    #[must_use]
    pub fn row_of(&self, block: u64) -> Option<usize> {
        self.binds.get(&block).copied()
    }

    /// A session was granted.
    pub fn granted(&mut self, link: usize, range: Range, tenant: usize) {
        if self.ranges.len() <= link {
            self.ranges.resize(link + 1, None);
        }
        self.ranges[link] = Some(range);
        self.left_at[granules(&range)].fill(None);
        self.seq += 1;
        for granule in range.first / GRANULE..(range.first + range.rows).div_ceil(GRANULE) {
            self.tenants[granule as usize].push((self.seq, Some(tenant)));
        }
    }

    /// The session of a connection is gone at the target: none of its operations takes effect any more. Where octets
    /// were damaged on their way to the target, a store that was under way may have left them in its block, which
    /// counts only for readers of unsealed blocks (docs/adr/0001).
    pub fn ended(&mut self, link: usize, spoilt: bool) {
        self.seq += 1;
        let now = self.seq;
        for row in &mut self.rows {
            let stores = &mut row.stores;
            row.pending.retain(|pending| {
                if pending.link == link {
                    let note = stores.iter_mut().find(|note| note.op == pending.op);
                    if let Some(note) = note
                        && note.fate == Fate::Pending
                    {
                        note.fate = Fate::Lost(now);
                        note.spoilt = spoilt;
                    }
                }
                pending.link != link
            });
        }
    }

    /// An operation may take effect from now on.
    pub fn expect(&mut self, row: usize, pending: Pending) {
        let begun = self.seq;
        let row = &mut self.rows[row];
        row.pending.push(pending);
        if pending.effect != Effect::Free {
            row.stores.push(StoreNote {
                op: pending.op,
                len: pending.len,
                seal: pending.seal,
                begun,
                fate: Fate::Pending,
                spoilt: false,
            });
        }
    }

    /// The session of a connection ends: the lease of its range begins.
    pub fn left(&mut self, link: usize) {
        if let Some(range) = self.range(link) {
            let now = self.now;
            for left in &mut self.left_at[granules(&range)] {
                left.get_or_insert(now);
            }
        }
    }

    /// The target begins anew: all leases do.
    pub fn all_left(&mut self, now: Time) {
        self.left_at.fill(Some(now));
    }

    /// An operation is of this tenant.
    pub fn note_tenant(&mut self, op: u64, tenant: usize) {
        let step = (op & 0xFFFF_FFFF).wrapping_sub(1) as usize;
        if let Some(place) = self.op_tenants.get_mut(step) {
            *place = tenant as u8;
        }
    }

    /// Whether a block that was just bound holds octets of another trust domain; and what it was before.
    pub fn strangers(&mut self, row: usize, state: &State, octets: &[u8]) -> (Check, Before) {
        let owner = self.tenants[row / GRANULE as usize].last();
        let Some(owner) = owner.and_then(|(_, owner)| *owner) else {
            return (Ok(()), Before::default());
        };
        let last = self.last_in.insert(state.block, (owner, state.len > 0));
        if self.one_domain {
            return (Ok(()), Before::default());
        }
        let other = last.is_some_and(|(last, _)| last != owner);
        let before = Before {
            of_another_domain: other,
            had_octets: other && last.is_some_and(|(_, had)| had),
        };
        for (number, chunk) in octets.chunks(64).enumerate() {
            let Some(op) = stamp::origin(chunk) else {
                break;
            };
            let step = (op & 0xFFFF_FFFF).wrapping_sub(1) as usize;
            let known = op >> 32 == self.seed & 0x7FFF_FFFF;
            let tenant = self.op_tenants.get(step).filter(|_| known);
            let foreign = tenant.is_some_and(|t| *t != u8::MAX && usize::from(*t) != owner);
            if foreign && stamp::begins(op, number, chunk) {
                return (
                    Err(format!(
                        "row {row} of tenant {owner}: octet {} of block {:#x} is of store {op:#x}, of another trust domain",
                        number * 64,
                        state.block
                    )),
                    before,
                );
            }
        }
        (Ok(()), before)
    }

    /// Operations of a connection that may bind.
    #[must_use]
    pub fn allocating(&self, link: usize) -> u32 {
        let is_one = |p: &&Pending| {
            p.link == link && matches!(p.effect, Effect::Alloc | Effect::AllocDirect)
        };
        self.rows
            .iter()
            .map(|row| row.pending.iter().filter(is_one).count() as u32)
            .sum()
    }

    /// The most of its quota that a session can have had in use at some time since.
    #[must_use]
    pub fn usage_at_most(&self, link: usize, since: Seq) -> u32 {
        let Some(range) = self.range(link) else {
            return 0;
        };
        let changes: usize = (range.first..range.first + range.rows)
            .map(|row| {
                let history = &self.rows[row as usize].history;
                history.iter().rev().take_while(|c| c.at > since).count()
            })
            .sum();
        let stuck = self.stuck.get(&link).copied().unwrap_or(0);
        self.bound(link) + self.allocating(link) + changes as u32 + stuck
    }

    /// A BIND failed, and its ticket counts until the target has reclaimed its block.
    pub fn ticket_stuck(&mut self, link: usize) {
        *self.stuck.entry(link).or_default() += 1;
    }

    /// An operation was answered: `done` if it took effect, else it never will.
    pub fn answered(&mut self, row: usize, op: u64, done: bool) {
        self.seq += 1;
        let row = &mut self.rows[row];
        row.pending.retain(|pending| pending.op != op);
        if let Some(note) = row.stores.iter_mut().rfind(|note| note.op == op) {
            note.fate = if done {
                Fate::Done(self.seq)
            } else {
                Fate::Failed
            };
        }
    }

    /// Compares the table with what it was; `all` rows, or those that initiators use.
    ///
    /// # Errors
    /// A change that nothing explains.
    pub fn observe(
        &mut self,
        why: Why,
        all: bool,
        table: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Check {
        let span = if all { GRANULE } else { self.hot } as usize * 16;
        let mut now = [0; GRANULE as usize * 16];
        for granule in 0..self.rows.len() / GRANULE as usize {
            let at = granule * GRANULE as usize * 16;
            let now = &mut now[..span];
            table(at, now);
            if now == &self.shadow[at..at + span] {
                continue;
            }
            for (i, entry) in now.chunks_exact(16).enumerate() {
                let row = at / 16 + i;
                if entry != self.entry(row) {
                    let before = self.state(row);
                    self.shadow[row * 16..row * 16 + 16].copy_from_slice(entry);
                    self.changed(row, before, why).map_err(|what| {
                        format!(
                            "row {row}: {what}: {:?} after {before:?}, {why:?}",
                            self.state(row)
                        )
                    })?;
                }
            }
        }
        // Only now: a block may have gone from one entry to another in one call.
        for (block, row) in std::mem::take(&mut self.displaced) {
            let state = self.state(row);
            if state.valid && state.block == block {
                return Err(format!("block {block:#x} is bound twice, {why:?}"));
            }
        }
        Ok(())
    }

    fn changed(&mut self, at: usize, before: State, why: Why) -> Check {
        self.seq += 1;
        let now = self.state(at);
        let turns = distance(before.generation, now.generation);
        if now.generation < before.generation {
            self.wraps += 1;
        }
        if now.generation == 0 && !self.cut {
            return Err("the Generation is zero".into());
        }
        if (turns % 2 == 1) == (before.valid == now.valid) {
            return Err("VALID and Generation do not agree".into());
        }
        if now.sealed && !now.valid {
            return Err("SEALED without VALID".into());
        }
        if now.valid && now.len > self.block_size {
            return Err("the Data Length is over the block size".into());
        }
        let mut coarse = false;
        match why {
            Why::Recover => return Err("a recovery changed the entry".into()),
            Why::Release if before.valid && turns == 1 => self.lease_over(at)?,
            Why::Release => return Err("a release did not just unbind the entry".into()),
            Why::Session(link) => {
                let range = self.range(link);
                if range.is_none_or(|r| !(r.first..r.first + r.rows).contains(&(at as u64))) {
                    return Err("the entry is in the range of another".into());
                }
                coarse = self.explained(at, link, before, now, turns)?;
            }
        }
        self.rows[at].history.push_back(Change {
            at: self.seq,
            state: now,
            coarse,
        });
        self.rebind(at, before, now);
        if now.valid && turns > 0 {
            self.just_bound.push((at, now));
        }
        Ok(())
    }

    fn rebind(&mut self, at: usize, before: State, now: State) {
        let count = &mut self.bound[at / GRANULE as usize];
        *count = *count + u32::from(now.valid) - u32::from(before.valid);
        // Another entry may bind the block by now.
        if before.valid && self.binds.get(&before.block) == Some(&at) {
            self.binds.remove(&before.block);
        }
        if now.valid
            && let Some(other) = self.binds.insert(now.block, at)
            && other != at
        {
            self.displaced.push((now.block, other));
        }
    }

    /// Whether the range of a row may be released.
    fn lease_over(&self, at: usize) -> Check {
        let left = self.left_at[at / GRANULE as usize];
        let over = left.is_some_and(|left| {
            self.lease_ms == 0
                || self.lease_ms != u32::MAX && left.after_ms(u64::from(self.lease_ms)) <= self.now
        });
        if over {
            Ok(())
        } else {
            Err(format!(
                "a range was released before its lease was over: left at {left:?}, now {:?}",
                self.now
            ))
        }
    }

    /// Whether operations under way explain a change; whether several may have.
    fn explained(
        &self,
        at: usize,
        link: usize,
        before: State,
        now: State,
        turns: u32,
    ) -> Result<bool, String> {
        let pending: Vec<_> = self.rows[at]
            .pending
            .iter()
            .filter(|p| p.link == link)
            .collect();
        let count =
            |of: &dyn Fn(Effect) -> bool| pending.iter().filter(|p| of(p.effect)).count() as u32;
        // The first turn of an entry that is not VALID is a bind, and they alternate.
        let binds = turns.div_ceil(2) - u32::from(before.valid && turns % 2 == 1);
        let frees = turns - binds;
        if binds > count(&|e| matches!(e, Effect::Alloc | Effect::AllocDirect)) {
            return Err("nobody asked for a bind".into());
        }
        if frees > count(&|e| matches!(e, Effect::Free | Effect::AllocDirect)) {
            return Err("nobody asked for a free".into());
        }
        let stored = |sealed_before: bool| {
            pending.iter().any(|p| {
                p.effect == Effect::Store
                    && p.len == now.len
                    && (now.sealed == (p.seal || sealed_before) || self.cut && !now.sealed)
            })
        };
        if now.valid && turns == 0 {
            if before.sealed {
                return Err("a sealed entry changed".into());
            }
            if before.block != now.block {
                return Err("a store moved the block".into());
            }
            if !stored(false) {
                return Err("nobody asked for such a store".into());
            }
        } else if now.valid {
            let bound = pending.iter().any(|p| match p.effect {
                Effect::Alloc => p.len == now.len && p.seal == now.sealed,
                Effect::AllocDirect => {
                    p.len == now.len && p.seal == now.sealed || now.len == 0 && !now.sealed
                }
                _ => false,
            });
            if !bound && !stored(false) {
                return Err("nobody asked for such a bind".into());
            }
        }
        Ok(pending.len() > 1)
    }

    /// Whether the entry had such a state from `since` until now.
    #[must_use]
    pub fn was(&self, row: usize, since: Seq, state: impl Fn(&State) -> bool) -> bool {
        let row = &self.rows[row];
        for change in row.history.iter().rev() {
            if change.coarse && change.at > since
                || state(&change.state)
                || row.passed_through(since, &change.state, &state)
            {
                return true;
            }
            if change.at <= since {
                return false;
            }
        }
        false
    }

    /// Whether the entry came to such a state after `since`.
    #[must_use]
    pub fn became(&self, row: usize, since: Seq, state: impl Fn(&State) -> bool) -> bool {
        let history = &self.rows[row].history;
        history
            .iter()
            .rev()
            .take_while(|change| change.at > since)
            .any(|change| change.coarse || state(&change.state))
    }

    /// States of a row from `since` on, in words.
    #[must_use]
    pub fn tell(&self, row: usize, since: Seq) -> String {
        let history = &self.rows[row].history;
        let from = history.partition_point(|change| change.at <= since);
        let states: Vec<_> = history.iter().skip(from.saturating_sub(1)).collect();
        format!(
            "since {since}: {states:?}, under way {:?}",
            self.rows[row].pending
        )
    }

    /// Whether a tenant could see the row at some time since.
    #[must_use]
    pub fn visible(&self, row: usize, tenant: usize, since: Seq) -> bool {
        self.owned(row, since, |owner| {
            owner.is_some_and(|owner| self.one_domain || owner == tenant)
        })
    }

    /// Whether a tenant could not see the row at some time since.
    #[must_use]
    pub fn hidden(&self, row: usize, tenant: usize, since: Seq) -> bool {
        self.owned(row, since, |owner| {
            owner.is_none_or(|owner| !self.one_domain && owner != tenant)
        })
    }

    fn owned(&self, row: usize, since: Seq, is: impl Fn(Option<usize>) -> bool) -> bool {
        let tenants = &self.tenants[row / GRANULE as usize];
        let from = tenants.partition_point(|(at, _)| *at <= since);
        tenants
            .iter()
            .skip(from.saturating_sub(1))
            .any(|(_, owner)| is(*owner))
    }

    /// A range was released: its granules are nobody's.
    pub fn released(&mut self, range: Range) {
        self.seq += 1;
        for granule in range.first / GRANULE..(range.first + range.rows).div_ceil(GRANULE) {
            self.tenants[granule as usize].push((self.seq, None));
        }
    }

    /// The octets of a load of a sealed block are exactly those of the store that sealed it.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn sealed_octets(&mut self, at: usize, generation: u16, octets: &[u8]) -> Check {
        if octets.is_empty() {
            return Ok(());
        }
        let row = &mut self.rows[at];
        // The same Generation comes again after a whole turn: the window of changes tells them apart.
        let bound_at = row
            .history
            .iter()
            .rev()
            .take_while(|c| distance(c.state.generation, generation) < 60_000)
            .filter(|c| c.state.generation == generation && c.state.valid)
            .map(|c| c.at)
            .last()
            .unwrap_or(0);
        let known = row
            .sealed_by
            .iter()
            .rev()
            .find(|(g, since, _)| *g == generation && *since == bound_at)
            .map(|known| known.2);
        let sealed_it = |note: &StoreNote| {
            note.seal && note.fate != Fate::Failed && note.len as usize == octets.len()
        };
        // Too short to say where they come from: any store that may have put them there.
        let likely =
            |note: &&StoreNote| sealed_it(note) && stamp::differs(note.op, octets).is_none();
        let op = known.or_else(|| stamp::origin(octets)).unwrap_or_else(|| {
            let likely = row.stores.iter().rfind(likely);
            likely.map_or(0, |note| note.op)
        });
        if let Some(differs) = stamp::differs(op, octets) {
            return Err(format!(
                "Generation {generation}: octet {differs} of {} is not that of store {op:#x} (known {known:?})",
                octets.len()
            ));
        }
        if known.is_none() {
            let note = row.stores.iter().find(|note| note.op == op);
            if !note.is_some_and(sealed_it) {
                return Err(format!(
                    "Generation {generation} holds store {op:#x}, which did not seal it: {note:?}"
                ));
            }
            row.sealed_by.push((generation, bound_at, op));
        }
        Ok(())
    }

    /// Every octet of a load of an unsealed block comes from a store that was the last one or overlapped the load.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn unsealed_octets(&mut self, at: usize, since: Seq, octets: &[u8]) -> Check {
        if octets.is_empty() {
            return Ok(());
        }
        let row = &self.rows[at];
        // The last store that was answered before the load began, and what it overwrote.
        let last = row
            .stores
            .iter()
            .filter(|n| matches!(n.fate, Fate::Done(at) if at <= since))
            .max_by_key(|n| n.begun);
        let allowed: Vec<(u64, usize)> = row
            .stores
            .iter()
            .filter_map(|note| {
                let over = note.over()?;
                let dead = last.filter(|last| last.op != note.op && over <= last.begun);
                Some((note.op, dead.map_or(0, |last| last.len as usize)))
            })
            .filter(|(_, from)| *from < octets.len())
            .collect();
        let spoilt = |op: u64| row.stores.iter().any(|note| note.op == op && note.spoilt);
        if allowed.iter().any(|(op, _)| spoilt(*op)) {
            self.spoilt += 1;
            return Ok(());
        }
        if let Some(differs) = stamp::differs_from_all(&allowed, octets) {
            return Err(format!(
                "octet {differs} of {} comes from none of the stores {allowed:x?} (it seems to be of {:x?})",
                octets.len(),
                stamp::origin(&octets[differs / 64 * 64..])
            ));
        }
        let of_one = |(op, _): &(u64, usize)| stamp::differs(*op, octets).is_none();
        self.torn += u64::from(!allowed.iter().any(of_one));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
