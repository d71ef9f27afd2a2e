//! An initiator at work, who knows at any time what must be in its blocks and what may be.
#![expect(
    clippy::result_large_err,
    reason = "a rejected submission gives the buffer back"
)]

use crate::dice::Dice;
use crate::ledger::{Block, Change, Found, Kind, Ledger, Line, TORN};
use kbtp_initiator::{
    Buffer, Client, ClientError, Completed, FreeOptions, Generation, Handle, InitiatorId,
    LoadOptions, Op, Operation, Options, Rejected, Resumed, Spin, Status, StoreOptions,
    SubmitError,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Octets of a store that go with its request at most.
const MAX_INLINE: u32 = 512;
/// Operations in flight.
const DEPTH: usize = 6;

/// How work came to its end.
#[derive(Debug)]
pub enum End {
    /// The caller had enough.
    Enough,
    /// It cannot go on.
    Lost(ClientError),
    /// The target drains.
    Draining,
}

/// What is in flight on a handle.
#[derive(Clone, Copy, Debug)]
enum Flying {
    Change,
    Load(Block),
}

/// What was done, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Changes done.
    pub changes: u64,
    /// Allocations without the target, begun.
    pub direct_allocs: u64,
    /// Loads done.
    pub loads: u64,
    /// Loads without the target, begun.
    pub direct_loads: u64,
    /// Changes whose outcome was not known when the connection was lost.
    pub unknown: u64,
}

/// The initiator.
pub struct Hand {
    /// Its session.
    pub client: Client,
    /// What it knows.
    pub ledger: Ledger,
    /// What it did.
    pub tally: Tally,
    dice: Dice,
    /// The session was granted direct allocations, and none was refused since.
    direct_alloc: bool,
    buffers: Vec<Buffer>,
    flying: BTreeMap<Op, (u64, Flying)>,
    /// Told every line of the journal before it takes effect.
    journal: fn(Line),
}

impl std::fmt::Debug for Hand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hand")
            .field("client", &self.client)
            .field("flying", &self.flying)
            .finish_non_exhaustive()
    }
}

/// Options of initiator number `owner` for a target at `address`.
#[must_use]
pub fn options(address: &str, owner: u64) -> Options {
    let mut id = [0xe2; 16];
    id[8..].copy_from_slice(&owner.to_be_bytes());
    Options::new(address)
        .initiator_id(InitiatorId(id))
        .spin(Spin::Off)
        // Long data are read by the target, short data go with their request.
        .max_inline(MAX_INLINE)
}

impl Hand {
    /// A session with `options`, with a ledger of as many handles as the quota has blocks.
    #[must_use]
    pub fn new(owner: u64, options: Options) -> Self {
        let client = Client::connect(options).expect("a session");
        // A range may have more handles than the quota has blocks.
        let handles = client.handles().1.min(client.terms().grant.quota.into());
        let ledger = Ledger::new(owner, handles, client.block_size());
        Self::over(client, ledger)
    }

    /// Goes on where another process was, whose ledger this is.
    #[must_use]
    pub fn over(client: Client, ledger: Ledger) -> Self {
        let buffers = client.register_many(DEPTH, client.block_size()).unwrap();
        Self {
            dice: Dice::new(ledger.owner + 77),
            tally: Tally::default(),
            direct_alloc: client.terms().direct_alloc,
            flying: BTreeMap::new(),
            journal: |_| (),
            client,
            ledger,
            buffers,
        }
    }

    /// The same, with another seed for what it does.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        let dice = Dice::new(seed);
        Self { dice, ..self }
    }

    /// The same, which tells `journal` what it does.
    #[must_use]
    pub fn telling(self, journal: fn(Line)) -> Self {
        Self { journal, ..self }
    }

    /// A session again, with the target or its successor.
    pub fn resume(&mut self) -> Resumed {
        self.try_resume().expect("the session is resumed")
    }

    /// The same.
    ///
    /// # Errors
    /// There is still no session.
    pub fn try_resume(&mut self) -> Result<Resumed, ClientError> {
        let resumed = self.client.reconnect()?;
        self.direct_alloc = self.client.terms().direct_alloc;
        Ok(resumed)
    }

    fn enter(&mut self, line: Line) {
        (self.journal)(line);
        line.enter(&mut self.ledger);
    }

    /// Stores, loads and frees, telling `each` when something was done, until that says no or the connection is lost.
    /// What is loaded must be right.
    pub fn work(&mut self, mut each: impl FnMut() -> bool) -> End {
        let mut end = None;
        loop {
            while end.is_none() && self.flying.len() < DEPTH {
                end = self.launch().err();
            }
            let Some(completed) = self.client.wait_any().unwrap() else {
                return end.unwrap_or(End::Enough);
            };
            if let Some(lost) = self.settle(completed) {
                end = end.or(Some(lost));
            } else if end.is_none() && !each() {
                end = Some(End::Enough);
            }
        }
    }

    /// A handle on which there is no operation.
    fn idle(&mut self) -> u64 {
        let handles = self.ledger.slots.len() as u64;
        loop {
            let handle = self.dice.below(handles);
            if !self.flying.values().any(|(h, _)| *h == handle) {
                return handle;
            }
        }
    }

    fn at(&self, handle: u64) -> Handle {
        Handle(self.client.handles().0.0 + handle)
    }

    /// New data in a buffer; their version.
    fn fresh(&mut self, handle: u64) -> (u64, Buffer) {
        let version = self.ledger.next_version();
        let mut buffer = self.buffers.pop().expect("a buffer is free");
        buffer.fill(&self.ledger.data(handle, version)).unwrap();
        (version, buffer)
    }

    /// Starts an operation.
    fn launch(&mut self) -> Result<(), End> {
        let handle = self.idle();
        let choice = self.dice.below(10);
        let (flying, submitted) = match self.ledger.slot(handle).block {
            None => (Flying::Change, self.launch_alloc(handle, choice < 6)),
            Some(block) if choice < 5 && block.version != TORN => (
                Flying::Load(block),
                self.launch_load(handle, block, choice < 3),
            ),
            Some(block) => (
                Flying::Change,
                self.launch_change(handle, !block.sealed && choice < 9),
            ),
        };
        match submitted {
            Ok(op) => {
                self.flying.insert(op, (handle, flying));
                Ok(())
            }
            Err(rejected) => {
                self.buffers.extend(rejected.buffer);
                self.enter(match flying {
                    Flying::Change => Line::Refused(handle),
                    Flying::Load(_) => Line::Looked(handle),
                });
                let error = rejected.error;
                if ticket_lost(&error) {
                    self.direct_alloc = false;
                    return Ok(());
                }
                assert!(error.is_disconnected(), "{error}");
                Err(End::Lost(error))
            }
        }
    }

    fn launch_alloc(&mut self, handle: u64, direct: bool) -> Result<Op, Rejected> {
        let (version, buffer) = self.fresh(handle);
        let direct = direct && self.direct_alloc;
        let short = buffer.len() <= MAX_INLINE;
        let kind = match (direct, short) {
            (true, _) => Kind::Bind,
            (false, true) => Kind::InlineAlloc,
            (false, false) => Kind::Alloc,
        };
        let sealed = self.dice.below(4) > 0;
        self.enter(Line::Starts(handle, kind));
        self.enter(Line::Begin(
            handle,
            Change::Alloc(Block { version, sealed }),
        ));
        let options = StoreOptions {
            seal: sealed,
            ..StoreOptions::default()
        };
        let at = self.at(handle);
        if direct {
            self.tally.direct_allocs += 1;
            self.client.submit_alloc_direct(at, buffer, &options)
        } else {
            self.client.submit_alloc_store(at, buffer, &options)
        }
    }

    fn launch_load(&mut self, handle: u64, block: Block, direct: bool) -> Result<Op, Rejected> {
        let buffer = self.buffers.pop().expect("a buffer is free");
        let options = LoadOptions {
            allow_unsealed: !block.sealed,
            ..LoadOptions::default()
        };
        let at = self.at(handle);
        let direct = direct && block.sealed && self.client.terms().direct_load;
        let kind = if direct { Kind::DirectLoad } else { Kind::Load };
        self.enter(Line::Starts(handle, kind));
        if direct {
            self.tally.direct_loads += 1;
            self.client.submit_load_direct(at, buffer, &options)
        } else {
            self.client.submit_load(at, buffer, &options)
        }
    }

    fn launch_change(&mut self, handle: u64, store: bool) -> Result<Op, Rejected> {
        let at = self.at(handle);
        if store {
            let (version, buffer) = self.fresh(handle);
            let short = buffer.len() <= MAX_INLINE;
            let kind = if short {
                Kind::InlineStore
            } else {
                Kind::Store
            };
            self.enter(Line::Starts(handle, kind));
            self.enter(Line::Begin(handle, Change::Store(version)));
            let options = StoreOptions::default();
            self.client.submit_store(at, buffer, &options)
        } else {
            self.enter(Line::Starts(handle, Kind::Free));
            self.enter(Line::Begin(handle, Change::Free));
            self.client.submit_free(at, &FreeOptions::default())
        }
    }

    /// Takes what became of an operation; the end it means, if it does.
    fn settle(&mut self, completed: Completed) -> Option<End> {
        let landed = self.flying.remove(&completed.op);
        let (handle, flying) = landed.unwrap_or_else(|| panic!("never launched: {completed:?}"));
        let end = match completed.result {
            Ok(done) => {
                self.check(handle, flying, done.generation, completed.buffer.as_ref());
                None
            }
            Err(error) => Some(self.failed(handle, flying, error)),
        };
        self.buffers.extend(completed.buffer);
        end
    }

    /// An operation was done.
    fn check(
        &mut self,
        handle: u64,
        flying: Flying,
        generation: Generation,
        buffer: Option<&Buffer>,
    ) {
        match flying {
            Flying::Change => {
                self.tally.changes += 1;
                self.enter(Line::Done(handle, generation));
            }
            Flying::Load(block) => {
                self.tally.loads += 1;
                let known = self.ledger.slot(handle).generation;
                assert_eq!(Some(generation), known, "handle {handle}");
                let data = buffer.expect("a load has a buffer").to_vec().unwrap();
                if let Some(wrong) = self.ledger.wrong(handle, block.version, &data) {
                    panic!("handle {handle}: {block:?} was loaded wrong: {wrong}");
                }
                self.enter(Line::Looked(handle));
            }
        }
    }

    /// An operation failed, which only the end of the session may bring about.
    fn failed(&mut self, handle: u64, flying: Flying, error: ClientError) -> End {
        let drains = error.status() == Some(Status::ShuttingDown);
        let lost = cut_off(&error);
        assert!(drains || lost, "{flying:?} of handle {handle}: {error}");
        if matches!(flying, Flying::Change) {
            if error.outcome_unknown() {
                self.tally.unknown += 1;
            } else {
                self.enter(Line::Refused(handle));
            }
        } else {
            self.enter(Line::Looked(handle));
        }
        if drains {
            End::Draining
        } else {
            End::Lost(error)
        }
    }

    /// Loads every handle and compares: what was done is there, what was in flight is there or not, and nothing is half
    /// there unless its store may leave it so.
    pub fn verify(&mut self) {
        self.try_verify(|| ()).unwrap();
    }

    /// The same; calls `served` when the first load was answered.
    ///
    /// # Errors
    /// The connection was lost, or the target drains; what was looked at before is known now.
    pub fn try_verify(&mut self, served: impl FnOnce()) -> Result<(), ClientError> {
        assert!(self.flying.is_empty());
        let mut buffer = self.buffers.pop().expect("a buffer is free");
        let looked = self.look_at_all(&mut buffer, served);
        self.buffers.push(buffer);
        looked?;
        self.client.set_bound(self.ledger.bound());
        Ok(())
    }

    /// Loads one handle, whatever is there.
    ///
    /// # Errors
    /// The connection was lost, or the target drains.
    pub fn try_look(&mut self, handle: u64) -> Result<(), ClientError> {
        let mut buffer = self.buffers.pop().expect("a buffer is free");
        let looked = self.look(handle, &mut buffer);
        self.buffers.push(buffer);
        looked.map(|_| ())
    }

    fn look_at_all(
        &mut self,
        buffer: &mut Buffer,
        served: impl FnOnce(),
    ) -> Result<(), ClientError> {
        let mut served = Some(served);
        for handle in 0..self.ledger.slots.len() as u64 {
            let found = self.look(handle, buffer)?;
            if let Some(served) = served.take() {
                served();
            }
            self.ledger.found(handle, found.as_ref());
        }
        Ok(())
    }

    fn look(&mut self, handle: u64, buffer: &mut Buffer) -> Result<Option<Found>, ClientError> {
        let at = self.at(handle);
        let mut options = LoadOptions {
            timeout: Some(Duration::from_secs(20)),
            ..LoadOptions::default()
        };
        let mut loaded = self.client.load(at, buffer, &options);
        let unsealed = matches!(&loaded, Err(e) if e.status() == Some(Status::NotSealed));
        if unsealed {
            options.allow_unsealed = true;
            loaded = self.client.load(at, buffer, &options);
        }
        match loaded {
            Ok(done) => Ok(Some(Found {
                generation: done.generation,
                sealed: !unsealed,
                data: buffer.to_vec().unwrap(),
            })),
            Err(error) if error.status() == Some(Status::NotValid) => Ok(None),
            Err(error) if cut_off(&error) || error.status() == Some(Status::ShuttingDown) => {
                Err(error)
            }
            Err(error) => panic!("load of handle {handle}: {error}"),
        }
    }

    /// Frees all.
    pub fn clear(&mut self) {
        for handle in 0..self.ledger.slots.len() as u64 {
            if self.ledger.slot(handle).block.is_some() {
                let at = self.at(handle);
                self.ledger.begin(handle, Change::Free);
                let freed = self.client.free(at, &FreeOptions::default()).unwrap();
                self.ledger.done(handle, freed.generation);
            }
        }
    }
}

/// That one initiator may have each of the target's `blocks`, and directly, may work with them for so many `rounds`, and gives
/// them back: nothing has leaked. All quota is there; `settles` waits until nothing is in flight and so many blocks are bound.
///
/// # Panics
/// If something has leaked.
pub fn takes_all(address: &str, blocks: u32, rounds: u32, settles: impl Fn(u32)) {
    let wanted = options(address, 999)
        .quota(blocks)
        .direct_load(true)
        .direct_alloc(true);
    let mut last = Hand::new(999, wanted);
    let terms = *last.client.terms();
    assert_eq!(terms.grant.quota, blocks);
    assert!(terms.direct_alloc, "a partition of the whole pool");
    let mut done = 0;
    let end = last.work(|| {
        done += 1;
        done < rounds
    });
    assert!(matches!(end, End::Enough), "{end:?}");
    last.verify();
    settles(last.ledger.bound());
    last.clear();
    last.client.close().unwrap();
    settles(0);
}

/// Whether the session has lost its direct allocations: a ticket was given up, because the target drains or the time of
/// the ticket ran out on a busy machine. Whoever has not claimed that operation yet does not know.
fn ticket_lost(error: &ClientError) -> bool {
    let granted = |reason: &SubmitError| matches!(reason, SubmitError::NotGranted(_));
    matches!(error, ClientError::Rejected { operation: Operation::AllocDirect, reason, .. } if granted(reason))
}

/// Whether this is what a connection that is gone, or a network that is, does to an operation.
#[must_use]
pub fn cut_off(error: &ClientError) -> bool {
    error.is_disconnected()
        || matches!(
            error,
            // The last of a direct allocation whose ticket was taken and whose slot cannot be read.
            ClientError::Deadline { .. } | ClientError::TicketTimeout { .. }
        )
}
