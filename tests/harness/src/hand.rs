//! An initiator at work, who knows at any time what must be in its blocks and what may be.
#![expect(
    clippy::result_large_err,
    reason = "a rejected submission gives the buffer back"
)]

use crate::common::Dice;
use crate::ledger::{Block, Change, Found, Ledger, Line, TORN};
use kbtp_initiator::{
    Buffer, Client, ClientError, Completed, FreeOptions, Generation, Handle, InitiatorId,
    LoadOptions, Op, Options, Rejected, Resumed, Spin, Status, StoreOptions,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Operations in flight.
const DEPTH: usize = 6;

/// How work came to its end.
#[derive(Debug)]
pub(crate) enum End {
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
pub(crate) struct Tally {
    pub(crate) changes: u64,
    pub(crate) direct_allocs: u64,
    pub(crate) loads: u64,
    pub(crate) direct_loads: u64,
    /// Changes whose outcome was not known when the connection was lost.
    pub(crate) unknown: u64,
}

/// The initiator.
pub(crate) struct Hand {
    pub(crate) client: Client,
    pub(crate) ledger: Ledger,
    pub(crate) tally: Tally,
    dice: Dice,
    buffers: Vec<Buffer>,
    flying: BTreeMap<Op, (u64, Flying)>,
    /// Told every line of the journal before it takes effect.
    journal: fn(Line),
}

/// Options of initiator number `owner` for a target at `address`.
pub(crate) fn options(address: &str, owner: u64) -> Options {
    let mut id = [0xe2; 16];
    id[8..].copy_from_slice(&owner.to_be_bytes());
    Options::new(address)
        .initiator_id(InitiatorId(id))
        .spin(Spin::Off)
        // Long data are read by the target, short data go with their request.
        .max_inline(512)
}

impl Hand {
    /// A session with `options`, with a ledger of as many handles as the quota has blocks.
    pub(crate) fn new(owner: u64, options: Options) -> Self {
        let client = Client::connect(options).expect("a session");
        // A range may have more handles than the quota has blocks.
        let handles = client.handles().1.min(client.terms().grant.quota.into());
        let ledger = Ledger::new(owner, handles, client.block_size());
        Self::over(client, ledger)
    }

    /// Goes on where another process was, whose ledger this is.
    pub(crate) fn over(client: Client, ledger: Ledger) -> Self {
        let buffers = client.register_many(DEPTH, client.block_size()).unwrap();
        Self {
            dice: Dice::new(ledger.owner + 77),
            tally: Tally::default(),
            flying: BTreeMap::new(),
            journal: |_| (),
            client,
            ledger,
            buffers,
        }
    }

    /// The same, which tells `journal` what it does.
    pub(crate) fn telling(self, journal: fn(Line)) -> Self {
        Self { journal, ..self }
    }

    /// A session again, with the target or its successor.
    pub(crate) fn resume(&mut self) -> Resumed {
        self.client.reconnect().expect("the session is resumed")
    }

    fn enter(&mut self, line: Line) {
        (self.journal)(line);
        line.enter(&mut self.ledger);
    }

    /// Stores, loads and frees, telling `each` when something was done, until that says no or the connection is lost.
    /// What is loaded must be right.
    pub(crate) fn work(&mut self, mut each: impl FnMut() -> bool) -> End {
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
    fn fresh(&mut self) -> (u64, Buffer) {
        let version = self.ledger.next_version();
        let mut buffer = self.buffers.pop().expect("a buffer is free");
        buffer.fill(&self.ledger.data(version)).unwrap();
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
                if matches!(flying, Flying::Change) {
                    self.enter(Line::Refused(handle));
                }
                let error = rejected.error;
                assert!(error.is_disconnected(), "{error}");
                Err(End::Lost(error))
            }
        }
    }

    fn launch_alloc(&mut self, handle: u64, direct: bool) -> Result<Op, Rejected> {
        let (version, buffer) = self.fresh();
        let sealed = self.dice.below(4) > 0;
        self.enter(Line::Begin(
            handle,
            Change::Alloc(Block { version, sealed }),
        ));
        let options = StoreOptions {
            seal: sealed,
            ..StoreOptions::default()
        };
        let at = self.at(handle);
        if direct && self.client.terms().direct_alloc {
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
        if direct && block.sealed && self.client.terms().direct_load {
            self.tally.direct_loads += 1;
            self.client.submit_load_direct(at, buffer, &options)
        } else {
            self.client.submit_load(at, buffer, &options)
        }
    }

    fn launch_change(&mut self, handle: u64, store: bool) -> Result<Op, Rejected> {
        let at = self.at(handle);
        if store {
            let (version, buffer) = self.fresh();
            self.enter(Line::Begin(handle, Change::Store(version)));
            let options = StoreOptions::default();
            self.client.submit_store(at, buffer, &options)
        } else {
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
                assert!(
                    data == self.ledger.data(block.version),
                    "handle {handle}: {block:?} was loaded wrong"
                );
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
        }
        if drains {
            End::Draining
        } else {
            End::Lost(error)
        }
    }

    /// Loads every handle and compares: what was done is there, what was in flight is there or not, and nothing is half
    /// there unless its store may leave it so.
    pub(crate) fn verify(&mut self) {
        assert!(self.flying.is_empty());
        let mut buffer = self.buffers.pop().expect("a buffer is free");
        for handle in 0..self.ledger.slots.len() as u64 {
            let found = self.look(handle, &mut buffer);
            self.ledger.found(handle, found.as_ref());
        }
        self.buffers.push(buffer);
        self.client.set_bound(self.ledger.bound());
    }

    fn look(&mut self, handle: u64, buffer: &mut Buffer) -> Option<Found> {
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
            Ok(done) => Some(Found {
                generation: done.generation,
                sealed: !unsealed,
                data: buffer.to_vec().unwrap(),
            }),
            Err(error) if error.status() == Some(Status::NotValid) => None,
            Err(error) => panic!("load of handle {handle}: {error}"),
        }
    }

    /// Frees all.
    pub(crate) fn clear(&mut self) {
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

/// Whether this is what a connection that is gone, or a network that is, does to an operation.
pub(crate) fn cut_off(error: &ClientError) -> bool {
    error.is_disconnected()
        || matches!(
            error,
            // The last of a direct allocation whose ticket was taken and whose slot cannot be read.
            ClientError::Deadline { .. } | ClientError::TicketTimeout { .. }
        )
}
