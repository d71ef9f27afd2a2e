//! Which key is stored under which handle, and which was used least lately. Every operation is O(1).

use kbtp_wire::Generation;
use std::hash::{BuildHasher, RandomState};

/// No entry.
const NONE: u32 = u32::MAX;

/// Buckets of a new index.
const FIRST_BUCKETS: usize = 64;

/// Where an entry stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It has no key.
    Free,
    /// Its key is being stored: found by the next store of the key, not by loads.
    Storing,
    /// Stored, and in the order of use.
    Stored,
    /// Stored, and not to be evicted: out of the order of use.
    Pinned,
}

#[derive(Debug)]
struct Entry {
    /// Kept when the entry is freed, so that its memory serves the next key.
    key: Vec<u8>,
    hash: u64,
    state: State,
    generation: Option<Generation>,
    len: u32,
    pins: u32,
    /// The handle may be bound: it must be freed before it is stored to.
    dirty: bool,
    /// The next entry of the same bucket, or of the free list.
    chain: u32,
    /// Towards the most lately used.
    newer: u32,
    /// Towards the least lately used.
    older: u32,
}

/// Keys and the numbers of their entries; entry number n is handle Handle Base + n.
#[derive(Debug)]
pub(super) struct Index<H = RandomState> {
    /// Grows as entries are first used: what a target claims as quota costs no memory by itself.
    entries: Vec<Entry>,
    /// Heads of the chains; a power of two.
    buckets: Vec<u32>,
    hasher: H,
    free: u32,
    newest: u32,
    oldest: u32,
    capacity: u32,
    /// Entries that are not free.
    live: u32,
}

impl Index {
    pub(super) fn new(capacity: u32) -> Self {
        Self::with_hasher(capacity, RandomState::new())
    }
}

impl<H: BuildHasher> Index<H> {
    pub(super) fn with_hasher(capacity: u32, hasher: H) -> Self {
        Self {
            entries: Vec::new(),
            buckets: vec![NONE; FIRST_BUCKETS],
            hasher,
            free: NONE,
            newest: NONE,
            oldest: NONE,
            capacity,
            live: 0,
        }
    }

    pub(super) const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Says how many entries may have a key from now on. Those that have one keep it.
    pub(super) const fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    /// The entry of `key`, whatever its state.
    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let mut at = self.bucket(hash).copied().unwrap_or(NONE);
        while let Some(entry) = self.get(at) {
            // The whole key decides: two keys may share a hash.
            if entry.hash == hash && entry.key == key {
                return Some(at);
            }
            at = entry.chain;
        }
        None
    }

    /// The entry of a key that is stored.
    pub(super) fn find_stored(&self, key: &[u8]) -> Option<u32> {
        self.find(key)
            .filter(|at| matches!(self.state(*at), State::Stored | State::Pinned))
    }

    pub(super) fn state(&self, at: u32) -> State {
        self.get(at).map_or(State::Free, |entry| entry.state)
    }

    pub(super) fn generation(&self, at: u32) -> Option<Generation> {
        self.get(at).and_then(|entry| entry.generation)
    }

    pub(super) fn data_len(&self, at: u32) -> u32 {
        self.get(at).map_or(0, |entry| entry.len)
    }

    pub(super) fn is_dirty(&self, at: u32) -> bool {
        self.get(at).is_some_and(|entry| entry.dirty)
    }

    /// A free entry, for `key`, which is not in the index; `None` if all are in use.
    pub(super) fn reserve(&mut self, key: &[u8]) -> Option<u32> {
        if self.live >= self.capacity {
            return None;
        }
        let at = if self.free == NONE {
            let at = u32::try_from(self.entries.len()).ok()?;
            self.entries.push(Entry {
                key: Vec::new(),
                hash: 0,
                state: State::Free,
                generation: None,
                len: 0,
                pins: 0,
                dirty: false,
                chain: NONE,
                newer: NONE,
                older: NONE,
            });
            at
        } else {
            let at = self.free;
            self.free = self.get(at).map_or(NONE, |entry| entry.chain);
            at
        };
        self.live = self.live.saturating_add(1);
        self.name(at, key);
        Some(at)
    }

    /// The least lately used entry that is not pinned.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// The least lately used entry that is not pinned, taken from its key for `key`. Its handle is bound.
    pub(super) fn evict(&mut self, key: &[u8]) -> Option<u32> {
        let at = self.oldest;
        if at == NONE {
            return None;
        }
        self.unlink(at);
        self.unname(at);
        self.set_dirty(at, true);
        self.name(at, key);
        Some(at)
    }

    /// A stored entry is to be stored anew under its own key.
    pub(super) fn restore(&mut self, at: u32) {
        self.unlink(at);
        if let Some(entry) = self.get_mut(at) {
            entry.state = State::Storing;
            entry.dirty = true;
            entry.pins = 0;
        }
    }

    /// The store of an entry succeeded: it can be found, as the most lately used.
    pub(super) fn stored(&mut self, at: u32, generation: Generation, len: u32) {
        if let Some(entry) = self.get_mut(at) {
            entry.state = State::Stored;
            entry.generation = Some(generation);
            entry.len = len;
            entry.dirty = false;
            entry.pins = 0;
        }
        self.link(at);
    }

    /// An entry was used.
    pub(super) fn touch(&mut self, at: u32) {
        if self.state(at) == State::Stored {
            self.unlink(at);
            self.link(at);
        }
    }

    /// An entry is not to be evicted until it is unpinned as often.
    pub(super) fn pin(&mut self, at: u32) {
        self.unlink(at);
        if let Some(entry) = self.get_mut(at) {
            entry.state = State::Pinned;
            entry.pins = entry.pins.saturating_add(1);
        }
    }

    pub(super) fn unpin(&mut self, at: u32) {
        let Some(entry) = self.get_mut(at) else {
            return;
        };
        if entry.state != State::Pinned {
            return;
        }
        entry.pins = entry.pins.saturating_sub(1);
        if entry.pins == 0 {
            entry.state = State::Stored;
            self.link(at);
        }
    }

    /// An entry has no key any more; `dirty`: its handle may be bound.
    pub(super) fn remove(&mut self, at: u32, dirty: bool) {
        if self.state(at) == State::Free {
            return;
        }
        self.unlink(at);
        self.unname(at);
        let free = self.free;
        if let Some(entry) = self.get_mut(at) {
            entry.state = State::Free;
            entry.chain = free;
            entry.dirty = dirty;
            self.free = at;
            self.live = self.live.saturating_sub(1);
        }
    }

    /// Forgets everything; nothing is bound any more.
    pub(super) fn clear(&mut self, capacity: u32) {
        self.entries.clear();
        self.buckets.fill(NONE);
        self.free = NONE;
        self.newest = NONE;
        self.oldest = NONE;
        self.live = 0;
        self.capacity = capacity;
    }

    fn get(&self, at: u32) -> Option<&Entry> {
        self.entries.get(usize::try_from(at).ok()?)
    }

    fn get_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(at).ok()?)
    }

    pub(super) fn set_dirty(&mut self, at: u32, dirty: bool) {
        if let Some(entry) = self.get_mut(at) {
            entry.dirty = dirty;
        }
    }

    fn slot(&self, hash: u64) -> usize {
        let mask = self.buckets.len().wrapping_sub(1) as u64;
        usize::try_from(hash & mask).unwrap_or(0)
    }

    fn bucket(&self, hash: u64) -> Option<&u32> {
        self.buckets.get(self.slot(hash))
    }

    fn set_bucket(&mut self, hash: u64, to: u32) -> u32 {
        let slot = self.slot(hash);
        self.buckets
            .get_mut(slot)
            .map_or(NONE, |head| std::mem::replace(head, to))
    }

    /// Gives an entry a key, to be stored.
    fn name(&mut self, at: u32, key: &[u8]) {
        if self.entries.len() > self.buckets.len() {
            self.spread();
        }
        let hash = self.hasher.hash_one(key);
        let chain = self.set_bucket(hash, at);
        if let Some(entry) = self.get_mut(at) {
            entry.key.clear();
            entry.key.extend_from_slice(key);
            entry.hash = hash;
            entry.state = State::Storing;
            entry.generation = None;
            entry.pins = 0;
            entry.chain = chain;
        }
    }

    /// Takes an entry off its bucket.
    fn unname(&mut self, at: u32) {
        let Some((hash, after)) = self.get(at).map(|entry| (entry.hash, entry.chain)) else {
            return;
        };
        let mut before = self.bucket(hash).copied().unwrap_or(NONE);
        if before == at {
            self.set_bucket(hash, after);
            return;
        }
        while let Some(entry) = self.get_mut(before) {
            if entry.chain == at {
                entry.chain = after;
                return;
            }
            before = entry.chain;
        }
    }

    /// Doubles the buckets: chains stay one entry long on the average.
    fn spread(&mut self) {
        let count = self.buckets.len().saturating_mul(2);
        self.buckets.clear();
        self.buckets.resize(count, NONE);
        for at in 0..u32::try_from(self.entries.len()).unwrap_or(NONE) {
            let Some((hash, state)) = self.get(at).map(|entry| (entry.hash, entry.state)) else {
                continue;
            };
            if state != State::Free {
                let chain = self.set_bucket(hash, at);
                if let Some(entry) = self.get_mut(at) {
                    entry.chain = chain;
                }
            }
        }
    }

    /// Puts an entry at the new end of the order of use.
    fn link(&mut self, at: u32) {
        let before = self.newest;
        if let Some(entry) = self.get_mut(at) {
            entry.older = before;
            entry.newer = NONE;
        }
        match self.get_mut(before) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    /// Takes an entry out of the order of use, if it is in it.
    fn unlink(&mut self, at: u32) {
        let Some((older, newer)) = self
            .get(at)
            .filter(|entry| entry.state == State::Stored)
            .map(|entry| (entry.older, entry.newer))
        else {
            return;
        };
        match self.get_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.get_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }
}

#[cfg(test)]
mod tests;
