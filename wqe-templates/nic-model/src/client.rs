//! A client in memory: it sends requests, answers RDMA Reads and Writes to its keys, and keeps what it receives.

use crate::connection::{Connection, Ended, FromPeer, Message};
use crate::memory::Extent;
use crate::model::Model;
use crate::outside::{Kind, Outgoing, OutgoingWork};
use crate::word::apply;
use kbtp_fabric::Time;
use kbtp_memory::Region;
use kbtp_mlx5::{Atomic, RemoteAddress, Syndrome};
use std::collections::VecDeque;

/// A key of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientKey {
    /// The key, as it is on the wire.
    pub key: u32,
    /// First address.
    pub start: u64,
    /// Octets.
    pub len: u64,
    /// Where they lie in the client's region.
    pub at: u64,
    /// Whether the target may read and write them.
    pub read: bool,
    /// Whether the target may write them.
    pub write: bool,
    /// Whether it is valid: a Send with Invalidate ends it.
    pub valid: bool,
}

/// A message that the client got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// Its octets.
    pub octets: Vec<u8>,
    /// The key of the client that it invalidated.
    pub invalidated: Option<u32>,
    /// Immediate data.
    pub immediate: Option<u32>,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    region: Region,
    keys: Vec<ClientKey>,
    requests: VecDeque<Outgoing>,
    answers: VecDeque<FromPeer>,
    messages: VecDeque<(Vec<u8>, Kind)>,
    received: VecDeque<Received>,
    invalidated: Vec<u32>,
    broken: bool,
    /// Requests of the target that are answered at each [`Connection::progress`].
    pace: usize,
    buffer: Vec<u8>,
}

impl Client {
    /// A client with this memory and no keys yet. `pace` is how many of the target's requests it answers at a time.
    #[must_use]
    pub const fn new(region: Region, pace: usize) -> Self {
        Self {
            region,
            keys: Vec::new(),
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            messages: VecDeque::new(),
            received: VecDeque::new(),
            invalidated: Vec::new(),
            broken: false,
            pace,
            buffer: Vec::new(),
        }
    }

    /// From now on it answers so many of the target's requests at a time; none if 0.
    pub const fn set_pace(&mut self, pace: usize) {
        self.pace = pace;
    }

    /// Its memory.
    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Makes a key, or one of the same name anew.
    pub fn set_key(&mut self, key: ClientKey) {
        self.keys.retain(|one| one.key != key.key);
        self.keys.push(key);
    }

    /// Sends a message.
    pub fn send(&mut self, octets: &[u8], kind: Kind) {
        self.messages.push_back((octets.to_vec(), kind));
    }

    /// The next message that it got.
    pub fn receive(&mut self) -> Option<Received> {
        self.received.pop_front()
    }

    /// Messages that it got and that were not taken.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.received.len()
    }

    /// Keys that the target invalidated, in order.
    #[must_use]
    pub fn invalidated(&self) -> &[u32] {
        &self.invalidated
    }

    /// Whether a request of the target broke the connection.
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Breaks the connection.
    pub fn disconnect(&mut self) {
        self.broken = true;
    }

    /// Where `len` octets at a remote address lie in the region.
    fn find(
        &self,
        remote: &RemoteAddress,
        len: u64,
        may: impl Fn(&ClientKey) -> bool,
    ) -> Result<u64, Syndrome> {
        let key = self
            .keys
            .iter()
            .find(|one| one.key == remote.rkey.0 && one.valid && may(one));
        let key = key.ok_or(Syndrome::REMOTE_ACCESS)?;
        let within = remote.address.checked_sub(key.start);
        let within =
            within.filter(|within| within.checked_add(len).is_some_and(|end| end <= key.len));
        let at = within.and_then(|within| key.at.checked_add(within));
        at.ok_or(Syndrome::REMOTE_ACCESS)
    }

    fn serve(&mut self, model: &Model, work: OutgoingWork) -> Result<Option<u64>, Syndrome> {
        match work {
            OutgoingWork::Send { message, kind } => self.take_message(message, kind),
            OutgoingWork::Write {
                local,
                remote,
                immediate,
            } => {
                let at = self.find(&remote, total(&local), |key| key.write)?;
                self.copy(model, &local, at, Way::ToClient)?;
                if let Some(immediate) = immediate {
                    self.received.push_back(Received {
                        octets: Vec::new(),
                        invalidated: None,
                        immediate: Some(immediate),
                    });
                }
                Ok(None)
            }
            OutgoingWork::Read { local, remote } => {
                let at = self.find(&remote, total(&local), |key| key.read)?;
                self.copy(model, &local, at, Way::ToTarget)?;
                Ok(None)
            }
            OutgoingWork::Atomic { remote, atomic, .. } => self.atomic(&remote, &atomic).map(Some),
        }
    }

    fn take_message(&mut self, octets: Vec<u8>, kind: Kind) -> Result<Option<u64>, Syndrome> {
        let (invalidated, immediate) = match kind {
            Kind::Send => (None, None),
            Kind::Immediate(data) => (None, Some(data)),
            Kind::Invalidate(key) => (Some(key), None),
        };
        if let Some(key) = invalidated {
            let found = self.keys.iter_mut().find(|one| one.key == key);
            let found = found.filter(|one| one.valid);
            found.ok_or(Syndrome::REMOTE_INVALID_REQUEST)?.valid = false;
            self.invalidated.push(key);
        }
        self.received.push_back(Received {
            octets,
            invalidated,
            immediate,
        });
        Ok(None)
    }

    fn atomic(&self, remote: &RemoteAddress, atomic: &Atomic) -> Result<u64, Syndrome> {
        let len = atomic.word_len();
        let at = self.find(remote, len.into(), |key| key.read && key.write)?;
        let mut octets = [0; 8];
        let size = usize::try_from(len).unwrap_or(8);
        let word = octets.get_mut(..size).unwrap_or(&mut []);
        let denied = |_| Syndrome::REMOTE_ACCESS;
        self.region.read(at, word).map_err(denied)?;
        let old = u64::from_le_bytes(octets);
        let new = apply(atomic, old).to_le_bytes();
        let word = new.get(..size).unwrap_or(&new);
        self.region.write(at, word).map_err(denied)?;
        Ok(old)
    }

    fn copy(&mut self, model: &Model, local: &[Extent], at: u64, way: Way) -> Result<(), Syndrome> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.copy_with(model, local, at, way, &mut buffer);
        self.buffer = buffer;
        // The model's side was checked: what fails is memory that is gone.
        result.ok_or(Syndrome::REMOTE_OPERATION)
    }

    fn copy_with(
        &self,
        model: &Model,
        local: &[Extent],
        mut at: u64,
        way: Way,
        buffer: &mut Vec<u8>,
    ) -> Option<()> {
        for extent in local {
            let region = model.region(extent.place.memory)?;
            buffer.clear();
            buffer.resize(usize::try_from(extent.len).ok()?, 0);
            let here = (region, extent.place.offset);
            let there = (&self.region, at);
            let (from, to) = match way {
                Way::ToClient => (here, there),
                Way::ToTarget => (there, here),
            };
            from.0.read(from.1, buffer).ok()?;
            to.0.write(to.1, buffer).ok()?;
            at = at.checked_add(extent.len)?;
        }
        Some(())
    }
}

#[derive(Clone, Copy)]
enum Way {
    ToClient,
    ToTarget,
}

fn total(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.len).sum()
}

impl Connection for Client {
    fn post(&mut self, _model: &Model, work: Outgoing) -> Option<Outgoing> {
        self.requests.push_back(work);
        None
    }

    fn progress(&mut self, model: &Model, _now: Time) -> Result<bool, Ended> {
        let mut moved = false;
        for _ in 0..self.pace {
            if self.broken {
                break;
            }
            let Some(Outgoing { id, work, .. }) = self.requests.pop_front() else {
                break;
            };
            let answer = self.serve(model, work);
            self.broken = answer.is_err();
            self.answers.push_back(FromPeer { id, answer });
            moved = true;
        }
        // What broke it is told first.
        if self.broken && self.answers.is_empty() {
            return Err(Ended);
        }
        Ok(moved)
    }

    fn answer(&mut self) -> Option<FromPeer> {
        self.answers.pop_front()
    }

    fn message(&self) -> Option<Message<'_>> {
        let (octets, kind) = self.messages.front()?;
        Some(Message {
            octets,
            kind: *kind,
        })
    }

    fn taken(&mut self) {
        self.messages.pop_front();
    }
}
