//! A cache of blocks by key: which handle holds what is known in this process alone.

mod index;
#[cfg(test)]
mod tests;

use crate::buffer::Buffer;
use crate::client::{Client, Resumed};
use crate::dial::Dial;
use crate::error::ClientError;
use crate::limits::CACHE_ENTRIES;
use crate::ops::{FreeOptions, LoadOptions, Plan, StoreOptions};
use crate::table::Outcome;
use crate::tcp::Tcp;
use index::{Index, State};
use kbtp_core::initiator::{Done, NEVER, Operation};
use kbtp_fabric::Time;
use kbtp_wire::{Generation, Handle, Status};

/// Why a cache operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The operation at the target, or the connection.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Every block of the quota is pinned.
    #[error("all {capacity} blocks are pinned")]
    Full {
        /// Blocks the cache may hold.
        capacity: u32,
    },
    /// The key is pinned, and so not replaced.
    #[error("the key is pinned")]
    Pinned,
}

/// What a load from the cache found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// Octets now in the buffer.
    pub len: u32,
    /// The block's Generation.
    pub generation: Generation,
}

/// Counts since the cache was made, and what it holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Loads that found their key.
    pub hits: u64,
    /// Loads that did not, stale ones included.
    pub misses: u64,
    /// Loads whose block was gone or replaced at the target.
    pub stale: u64,
    /// Blocks stored.
    pub stores: u64,
    /// Stores that failed.
    pub failed_stores: u64,
    /// Blocks given up for others.
    pub evictions: u64,
    /// Octets loaded.
    pub octets_loaded: u64,
    /// Octets stored.
    pub octets_stored: u64,
    /// Keys it holds.
    pub keys: u32,
    /// Octets it holds.
    pub octets: u64,
}

/// One store of [`BlockCache::put_many`].
#[derive(Debug)]
pub struct PutItem<'i> {
    /// The key.
    pub key: &'i [u8],
    /// The data: a block at most.
    pub buffer: &'i mut Buffer,
    /// How it ended; `None` until it has.
    pub result: Option<Result<(), CacheError>>,
    entry: u32,
    step: Step,
}

impl<'i> PutItem<'i> {
    /// A store of the data of `buffer` under `key`.
    #[must_use]
    pub const fn new(key: &'i [u8], buffer: &'i mut Buffer) -> Self {
        Self {
            key,
            buffer,
            result: None,
            entry: 0,
            step: Step::Begin,
        }
    }
}

/// Where a store stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Not begun.
    Begin,
    /// The handle is being freed.
    Freeing,
    /// The block is being stored. `again`: the handle was found bound and freed already.
    Storing { again: bool },
}

/// One load of [`BlockCache::get_many`].
#[derive(Debug)]
pub struct GetItem<'i> {
    /// The key.
    pub key: &'i [u8],
    /// Where to.
    pub buffer: &'i mut Buffer,
    /// How it ended: `Some(Ok(None))` is a miss; `None` until it has.
    pub result: Option<Result<Option<Hit>, CacheError>>,
    entry: u32,
    generation: Option<Generation>,
}

impl<'i> GetItem<'i> {
    /// A load of `key` into `buffer`.
    #[must_use]
    pub const fn new(key: &'i [u8], buffer: &'i mut Buffer) -> Self {
        Self {
            key,
            buffer,
            result: None,
            entry: 0,
            generation: None,
        }
    }
}

/// A cache of blocks by key, least lately used out first, within the quota of one client.
///
/// Keys are octet strings and compared whole. Each key has a handle of the client's range, bound by an unmapped store
/// and sealed; loads name the Generation that the store gave, so that a block lost or replaced at the target is a miss
/// and never wrong data. A store that fails leaves no key behind. Which key is where is known only in this process:
/// what an earlier process left bound in the range is freed as its handles are needed.
#[derive(Debug)]
pub struct BlockCache<D: Dial = Tcp> {
    client: Client<D>,
    index: Index,
    direct: bool,
    stats: CacheStats,
}

impl<D: Dial> BlockCache<D> {
    /// A cache over `client`, with as many blocks as its quota and its handle range allow.
    #[must_use]
    pub fn new(client: Client<D>) -> Self {
        Self {
            index: Index::new(capacity(&client)),
            direct: false,
            stats: CacheStats::default(),
            client,
        }
    }

    /// Whether to load with RDMA Reads of the pool where the session allows it (draft, section 6.6).
    #[must_use]
    pub fn direct_loads(self, wanted: bool) -> Self {
        Self {
            direct: wanted,
            ..self
        }
    }

    /// The client below. Its handles belong to the cache: do not store to them.
    #[must_use]
    pub const fn client(&self) -> &Client<D> {
        &self.client
    }

    /// The client again; what is stored stays bound.
    #[must_use]
    pub fn into_client(self) -> Client<D> {
        self.client
    }

    /// Blocks it may hold.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.index.capacity()
    }

    /// Counts.
    #[must_use]
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Whether `key` is stored, as far as this process knows. No trip, and no use in the order of eviction.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.index.find_stored(key).is_some()
    }

    /// Octets stored under `key`, as far as this process knows.
    #[must_use]
    pub fn data_len(&self, key: &[u8]) -> Option<u32> {
        let at = self.index.find_stored(key)?;
        Some(self.index.data_len(at))
    }

    /// How many of `keys`, from the first on, are stored without a gap: the longest prefix that need not be computed.
    pub fn prefix_len<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> usize {
        keys.into_iter()
            .take_while(|key| self.contains(key.as_ref()))
            .count()
    }

    /// Keeps `key` from being evicted until it is unpinned as often. Whether it is stored.
    pub fn pin(&mut self, key: &[u8]) -> bool {
        let found = self.index.find_stored(key);
        if let Some(at) = found {
            self.index.pin(at);
        }
        found.is_some()
    }

    /// Undoes one [`pin`](Self::pin). Whether the key is stored.
    pub fn unpin(&mut self, key: &[u8]) -> bool {
        let found = self.index.find_stored(key);
        if let Some(at) = found {
            self.index.unpin(at);
        }
        found.is_some()
    }

    /// Stores the data of `buffer` under `key`, in place of what is there. One round trip, two if another block must go.
    ///
    /// # Errors
    /// [`CacheError`]: the key is not stored then.
    pub fn put(&mut self, key: &[u8], buffer: &mut Buffer) -> Result<(), CacheError> {
        let mut item = PutItem::new(key, buffer);
        self.put_many(std::slice::from_mut(&mut item))?;
        item.result.unwrap_or(Ok(()))
    }

    /// Loads what is stored under `key` into `buffer`; `None` if nothing is.
    ///
    /// # Errors
    /// [`CacheError::Client`]; the key stays stored unless the target says that it is not.
    pub fn get(&mut self, key: &[u8], buffer: &mut Buffer) -> Result<Option<Hit>, CacheError> {
        let mut item = GetItem::new(key, buffer);
        self.get_many(std::slice::from_mut(&mut item))?;
        item.result.unwrap_or(Ok(None))
    }

    /// Frees what is stored under `key`. Whether something was.
    ///
    /// # Errors
    /// [`CacheError::Client`]: the key is not stored any more all the same.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, CacheError> {
        let Some(at) = self.index.find_stored(key) else {
            return Ok(false);
        };
        let options = FreeOptions {
            generation: self.index.generation(at),
            timeout: None,
        };
        let handle = self.handle(at);
        let freed = self.client.free(handle, &options);
        let clean = match &freed {
            Ok(_) => true,
            Err(error) => error.status() == Some(Status::NotValid),
        };
        self.forget(at, !clean);
        self.after_reconnect();
        match freed {
            Err(error) if !error.is_missing() => Err(error.into()),
            freed => Ok(freed.is_ok()),
        }
    }

    /// Sets the session up anew. If bindings were lost, the cache is empty afterwards.
    ///
    /// # Errors
    /// [`CacheError::Client`]: there is still no connection.
    pub fn reconnect(&mut self) -> Result<Resumed, CacheError> {
        let resumed = self.client.reconnect()?;
        self.resumed(resumed);
        Ok(resumed)
    }

    /// Stores many blocks, with as many requests in flight as the session allows; the same key twice is stored twice,
    /// in order. Returns how many were stored.
    ///
    /// # Errors
    /// [`CacheError::Client`] if there is no connection or waiting fails; items without a result were not begun.
    pub fn put_many(&mut self, items: &mut [PutItem<'_>]) -> Result<usize, CacheError> {
        self.open()?;
        let give_up_at = self.client.deadline(None);
        let (mut next, mut flying) = (0, 0_usize);
        loop {
            while let Some(item) = items.get_mut(next) {
                match self.begin_put(item, next, flying, give_up_at) {
                    Begun::Flying => flying = flying.saturating_add(1),
                    Begun::Over => {}
                    Begun::Later => break,
                }
                next = next.saturating_add(1);
            }
            if flying == 0 && next >= items.len() {
                break;
            }
            let waited = self.wait(flying, give_up_at);
            while let Some((number, outcome)) = self.client.table.next_of_batch() {
                let Some(item) = items.get_mut(number) else {
                    continue;
                };
                if !self.go_on(item, number, outcome) {
                    flying = flying.saturating_sub(1);
                }
            }
            waited?;
        }
        self.after_reconnect();
        Ok(items
            .iter()
            .filter(|item| matches!(item.result, Some(Ok(()))))
            .count())
    }

    /// Loads many blocks, with as many requests in flight as the session allows. Returns how many were found.
    ///
    /// # Errors
    /// [`CacheError::Client`] if there is no connection or waiting fails; items without a result were not begun.
    pub fn get_many(&mut self, items: &mut [GetItem<'_>]) -> Result<usize, CacheError> {
        self.open()?;
        let give_up_at = self.client.deadline(None);
        let (mut next, mut flying) = (0, 0_usize);
        loop {
            while let Some(item) = items.get_mut(next) {
                match self.begin_get(item, next, flying, give_up_at) {
                    Begun::Flying => flying = flying.saturating_add(1),
                    Begun::Over => {}
                    Begun::Later => break,
                }
                next = next.saturating_add(1);
            }
            if flying == 0 && next >= items.len() {
                break;
            }
            let waited = self.wait(flying, give_up_at);
            while let Some((number, outcome)) = self.client.table.next_of_batch() {
                flying = flying.saturating_sub(1);
                if let Some(item) = items.get_mut(number) {
                    self.got(item, outcome);
                }
            }
            waited?;
        }
        self.after_reconnect();
        Ok(items
            .iter()
            .filter(|item| matches!(item.result, Some(Ok(Some(_)))))
            .count())
    }

    /// A session is open, and the index knows what it lost.
    fn open(&mut self) -> Result<(), CacheError> {
        let deadline = self.client.deadline(None);
        let open = self.client.ensure_open(deadline);
        self.after_reconnect();
        open?;
        Ok(())
    }

    fn after_reconnect(&mut self) {
        if let Some(resumed) = self.client.take_resumed() {
            self.resumed(resumed);
        }
    }

    fn resumed(&mut self, resumed: Resumed) {
        let capacity = capacity(&self.client);
        if resumed.bindings_kept() {
            // The quota may be another one: over it nothing can be stored, and something is to be evicted.
            self.index.set_capacity(capacity);
        } else {
            self.index.clear(capacity);
            self.stats.keys = 0;
            self.stats.octets = 0;
        }
    }

    /// Waits for something to end. An error leaves nothing in flight.
    fn wait(&mut self, flying: usize, give_up_at: Time) -> Result<(), CacheError> {
        let until = if flying == 0 { give_up_at } else { NEVER };
        let waited = self.client.turn(until);
        if waited.is_err() {
            // Without a way to wait there is no way on, and the buffers of what is in flight are only borrowed.
            self.client.cut_off();
        }
        Ok(waited?)
    }

    /// Begins a store: finds it a handle, and frees or stores to it.
    fn begin_put(
        &mut self,
        item: &mut PutItem<'_>,
        number: usize,
        flying: usize,
        give_up_at: Time,
    ) -> Begun {
        if self.client.free_credits() == 0 && self.client.is_connected() {
            if flying > 0 || self.client.now() < give_up_at {
                return Begun::Later;
            }
            // Credits are held by requests given up that the target does not answer.
            let (first, _) = self.client.handles();
            let plan = Plan::store(Operation::AllocStore, first, &StoreOptions::default());
            return self.put_over(item, Err(plan.late().into()));
        }
        let at = match self.place(item.key) {
            Ok(Some(at)) => at,
            // A store of this batch holds the key, or the last handle.
            Ok(None) if flying > 0 => return Begun::Later,
            Ok(None) => {
                let capacity = self.index.capacity();
                return self.put_over(item, Err(CacheError::Full { capacity }));
            }
            Err(error) => return self.put_over(item, Err(error)),
        };
        item.entry = at;
        let launched = if self.index.is_dirty(at) {
            self.launch_free(item, number)
        } else {
            self.launch_store(item, number, false)
        };
        match launched {
            Ok(()) => Begun::Flying,
            Err(error) => {
                let dirty = self.index.is_dirty(at);
                self.index.remove(at, dirty);
                self.put_over(item, Err(error.into()))
            }
        }
    }

    /// An entry for `key`, in state `Storing`; `None` if one comes free when a store in flight ends.
    fn place(&mut self, key: &[u8]) -> Result<Option<u32>, CacheError> {
        if let Some(at) = self.index.find(key) {
            return match self.index.state(at) {
                State::Pinned => Err(CacheError::Pinned),
                State::Stored => {
                    self.uncount(at);
                    self.index.restore(at);
                    Ok(Some(at))
                }
                State::Storing | State::Free => Ok(None),
            };
        }
        if let Some(at) = self.index.reserve(key) {
            return Ok(Some(at));
        }
        let Some(victim) = self.index.oldest() else {
            return Ok(None);
        };
        self.uncount(victim);
        self.stats.evictions = self.stats.evictions.saturating_add(1);
        Ok(self.index.evict(key))
    }

    fn launch_free(&mut self, item: &mut PutItem<'_>, number: usize) -> Result<(), ClientError> {
        let plan = Plan::free(self.handle(item.entry), &FreeOptions::default());
        item.step = Step::Freeing;
        self.client.launch_item(&plan, None, number)
    }

    fn launch_store(
        &mut self,
        item: &mut PutItem<'_>,
        number: usize,
        again: bool,
    ) -> Result<(), ClientError> {
        let handle = self.handle(item.entry);
        let plan = Plan::store(Operation::AllocStore, handle, &StoreOptions::default());
        item.step = Step::Storing { again };
        self.client.launch_item(&plan, Some(item.buffer), number)
    }

    /// What a store does after one of its requests ended; whether it goes on.
    fn go_on(&mut self, item: &mut PutItem<'_>, number: usize, outcome: Outcome) -> bool {
        let at = item.entry;
        let status = outcome.result.as_ref().err().and_then(ClientError::status);
        let launched = match (item.step, &outcome.result) {
            (Step::Freeing, Ok(_)) => {
                self.index.set_dirty(at, false);
                self.launch_store(item, number, true)
            }
            (Step::Freeing, Err(_)) if status == Some(Status::NotValid) => {
                self.index.set_dirty(at, false);
                self.launch_store(item, number, true)
            }
            // An earlier process left it bound.
            (Step::Storing { again: false }, Err(_)) if status == Some(Status::AlreadyValid) => {
                self.index.set_dirty(at, true);
                self.launch_free(item, number)
            }
            _ => {
                let result = outcome.apply_to(item.buffer);
                self.end_put(item, result);
                return false;
            }
        };
        match launched {
            Ok(()) => true,
            Err(error) => {
                self.end_put(item, Err(error));
                false
            }
        }
    }

    fn end_put(&mut self, item: &mut PutItem<'_>, result: Result<Done, ClientError>) {
        let at = item.entry;
        let result = match result {
            Ok(done) => {
                self.index.stored(at, done.generation, done.len.0);
                self.stats.stores = self.stats.stores.saturating_add(1);
                self.stats.octets_stored = self.stats.octets_stored.saturating_add(done.len.get());
                self.stats.keys = self.stats.keys.saturating_add(1);
                self.stats.octets = self.stats.octets.saturating_add(done.len.get());
                Ok(())
            }
            Err(error) => {
                let bound = error.outcome_unknown() || error.status() == Some(Status::AlreadyValid);
                let dirty = bound || self.index.is_dirty(at);
                self.index.remove(at, dirty);
                Err(error.into())
            }
        };
        self.put_over(item, result);
    }

    fn put_over(&mut self, item: &mut PutItem<'_>, result: Result<(), CacheError>) -> Begun {
        if result.is_err() {
            self.stats.failed_stores = self.stats.failed_stores.saturating_add(1);
        }
        item.result = Some(result);
        Begun::Over
    }

    /// Begins a load, or finds that there is nothing to load.
    fn begin_get(
        &mut self,
        item: &mut GetItem<'_>,
        number: usize,
        flying: usize,
        give_up_at: Time,
    ) -> Begun {
        let Some(at) = self.index.find_stored(item.key) else {
            self.stats.misses = self.stats.misses.saturating_add(1);
            item.result = Some(Ok(None));
            return Begun::Over;
        };
        let options = LoadOptions {
            generation: self.index.generation(at),
            ..LoadOptions::default()
        };
        let direct = self.direct && self.client.terms().direct_load;
        let plan = Plan::load(self.handle(at), &options, direct);
        item.entry = at;
        item.generation = options.generation;
        match self.client.launch_item(&plan, Some(item.buffer), number) {
            Ok(()) => {
                self.index.touch(at);
                Begun::Flying
            }
            Err(error) if error.is_busy() && (flying > 0 || self.client.now() < give_up_at) => {
                Begun::Later
            }
            Err(error) => {
                let error = if error.is_busy() { plan.late() } else { error };
                item.result = Some(Err(error.into()));
                Begun::Over
            }
        }
    }

    /// A load ended.
    fn got(&mut self, item: &mut GetItem<'_>, outcome: Outcome) {
        let result = outcome.apply_to(item.buffer);
        item.result = Some(match result {
            Ok(done) => {
                self.stats.hits = self.stats.hits.saturating_add(1);
                self.stats.octets_loaded = self.stats.octets_loaded.saturating_add(done.len.get());
                Ok(Some(Hit {
                    len: done.len.0,
                    generation: done.generation,
                }))
            }
            Err(error) if error.is_missing() => {
                self.stats.misses = self.stats.misses.saturating_add(1);
                self.stats.stale = self.stats.stale.saturating_add(1);
                // Unless the same batch has found that out already.
                let at = item.entry;
                if self.index.find_stored(item.key) == Some(at)
                    && self.index.generation(at) == item.generation
                {
                    let bound = error.status() == Some(Status::GenerationMismatch);
                    self.forget(at, bound);
                }
                Ok(None)
            }
            Err(error) => Err(error.into()),
        });
    }

    /// A stored entry is no more.
    fn forget(&mut self, at: u32, dirty: bool) {
        self.uncount(at);
        self.index.remove(at, dirty);
    }

    /// A stored entry does not count any more.
    fn uncount(&mut self, at: u32) {
        self.stats.keys = self.stats.keys.saturating_sub(1);
        let len = u64::from(self.index.data_len(at));
        self.stats.octets = self.stats.octets.saturating_sub(len);
    }

    /// The handle of an entry: within the range, as the capacity is no more than its count.
    fn handle(&self, at: u32) -> Handle {
        let (base, _) = self.client.handles();
        Handle(base.0.saturating_add(u64::from(at)))
    }
}

/// What became of an item at its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begun {
    /// It is in flight.
    Flying,
    /// It is over already.
    Over,
    /// It has to wait for one in flight.
    Later,
}

/// Blocks a cache over `client` may hold.
fn capacity<D: Dial>(client: &Client<D>) -> u32 {
    let (_, handles) = client.handles();
    let most = handles
        .min(u64::from(client.terms().grant.quota))
        .min(CACHE_ENTRIES);
    u32::try_from(most).unwrap_or(u32::MAX)
}
