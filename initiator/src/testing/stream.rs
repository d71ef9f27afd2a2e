//! The initiator's end of a stream to a [`World`].

use super::world::{Action, World};
use crate::dial::{Dial, Dialled};
use crate::error::ClientError;
use crate::options::Options;
use kbtp_fabric::{
    Access, Atomics, Capabilities, CloseReason, Event, LocalBuffer, LocalError, PostError,
    Readiness, ReceiveSlot, Stream, StreamError, Time, WorkId, WorkOutcome, WorkRequest,
};
use kbtp_memory::Region;
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Connects to a [`World`].
#[derive(Clone)]
pub(crate) struct FakeDial {
    pub(crate) world: Arc<Mutex<World>>,
}

impl Dial for FakeDial {
    type Stream = FakeStream;

    fn dial(
        &mut self,
        options: &Options,
        _now: Time,
        _deadline: Time,
    ) -> Result<Dialled<FakeStream>, ClientError> {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        if world.script.unreachable > 0 {
            world.script.unreachable -= 1;
            return Err(ClientError::Connect {
                address: options.address().into(),
                source: std::io::ErrorKind::ConnectionRefused.into(),
            });
        }
        drop(world);
        let mut private_data = b"KBTP\x01\x00\x00\x00".to_vec();
        private_data.extend([3; 32]);
        Ok(Dialled {
            stream: FakeStream::new(Arc::clone(&self.world)),
            private_data,
        })
    }
}

struct Registered {
    region: Region,
    range: Range<u64>,
    base: u64,
    access: Access,
}

pub(crate) struct FakeStream {
    world: Arc<Mutex<World>>,
    stags: BTreeMap<Stag, Registered>,
    retired: BTreeSet<Stag>,
    next_stag: u32,
    events: VecDeque<Event>,
    messages: BTreeMap<u32, Vec<u8>>,
    next_slot: u32,
    /// Requests that a silent target has not looked at.
    waiting: VecDeque<Vec<u8>>,
    hello: bool,
    broken: bool,
    closed: bool,
    /// Readable while the target has something to do.
    bell: (UnixStream, UnixStream),
    /// Octets that were dropped, for they went to a retired STag.
    pub(crate) dropped: usize,
}

impl FakeStream {
    fn new(world: Arc<Mutex<World>>) -> Self {
        let bell = UnixStream::pair().unwrap();
        bell.1.set_nonblocking(true).unwrap();
        Self {
            world,
            stags: BTreeMap::new(),
            retired: BTreeSet::new(),
            next_stag: 0x100,
            events: VecDeque::new(),
            messages: BTreeMap::new(),
            next_slot: 0,
            waiting: VecDeque::new(),
            hello: false,
            broken: false,
            closed: false,
            bell,
            dropped: 0,
        }
    }

    /// STags that take room: valid and retired ones.
    pub(crate) fn registered(&self) -> usize {
        self.stags.len() + self.retired.len()
    }

    fn octets(&self, buffer: LocalBuffer) -> Vec<u8> {
        self.local(buffer.stag, buffer.offset.0, buffer.len.0)
            .expect("a local buffer is registered")
    }

    fn local(&self, stag: Stag, at: u64, len: u32) -> Option<Vec<u8>> {
        let registered = self.stags.get(&stag)?;
        let start = at.checked_sub(registered.base)? + registered.range.start;
        assert!(start + u64::from(len) <= registered.range.end);
        let mut octets = vec![0; len as usize];
        registered.region.read(start, &mut octets).unwrap();
        Some(octets)
    }

    /// Octets arrive for an STag; whether there is one.
    fn place(&mut self, stag: Stag, at: u64, data: &[u8], by_peer: bool) -> bool {
        let Some(registered) = self.stags.get(&stag) else {
            self.dropped += data.len();
            return self.retired.contains(&stag);
        };
        assert!(!by_peer || registered.access.remote_write);
        assert!(by_peer || registered.access.local_write);
        let start = at - registered.base + registered.range.start;
        assert!(start + data.len() as u64 <= registered.range.end);
        registered.region.write(start, data).unwrap();
        true
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Write { to, at, data } => {
                if !self.place(to, at, &data, true) {
                    self.broken = true;
                }
            }
            Action::Send(message, invalidated) => {
                if let Some(stag) = invalidated {
                    if let Some(registered) = self.stags.remove(&stag) {
                        assert!(registered.access.remote_invalidate);
                    } else if !self.retired.contains(&stag) {
                        self.broken = true;
                        return;
                    }
                }
                let slot = self.next_slot;
                self.next_slot += 1;
                self.events.push_back(Event::Received {
                    slot: ReceiveSlot(slot),
                    len: ByteLen(u32::try_from(message.len()).unwrap()),
                    solicited: false,
                    invalidated,
                });
                self.messages.insert(slot, message);
            }
            Action::Break => self.broken = true,
        }
    }

    /// The target takes what waits for it.
    fn serve(&mut self) -> bool {
        let mut any = false;
        let shared = Arc::clone(&self.world);
        while !self.broken {
            let mut world = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if self.hello && world.script.silent {
                break;
            }
            let Some(message) = self.waiting.pop_front() else {
                break;
            };
            any = true;
            if !self.hello {
                self.hello = true;
                let action = world.hello(&message);
                self.act(action);
                continue;
            }
            let stags = &self.stags;
            let mut fetch = |stag: Stag, at: u64, len: u32| {
                let registered = stags.get(&stag)?;
                assert!(registered.access.remote_read);
                let mut octets = vec![0; len as usize];
                let start = at - registered.base + registered.range.start;
                registered.region.read(start, &mut octets).unwrap();
                Some(octets)
            };
            let actions = world.request(&message, &mut fetch);
            drop(world);
            for action in actions {
                self.act(action);
            }
        }
        any
    }

    /// Makes the descriptor readable until the next progress.
    pub(crate) fn ring(&mut self) {
        self.bell.0.write_all(b"!").unwrap();
    }
}

impl Stream for FakeStream {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            atomics: Atomics::Masked,
            write_with_immediate: false,
            send_with_invalidate: true,
            outbound_reads: 16,
            inbound_reads: 16,
            max_receive: ByteLen(512),
            max_message: ByteLen(u32::MAX),
        }
    }

    fn register(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        let stag = Stag(self.next_stag);
        self.next_stag += 1;
        self.stags.insert(
            stag,
            Registered {
                region: region.clone(),
                range,
                base: base.0,
                access,
            },
        );
        Ok(stag)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), LocalError> {
        let known = self.stags.remove(&stag).is_some() || self.retired.remove(&stag);
        known.then_some(()).ok_or(LocalError::UnknownStag { stag })
    }

    fn retire(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.invalidate(stag)?;
        self.retired.insert(stag);
        Ok(())
    }

    fn post(
        &mut self,
        id: WorkId,
        work: &WorkRequest<'_>,
        signaled: bool,
    ) -> Result<(), PostError> {
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        let ending = world.script.ending;
        drop(world);
        if self.closed || self.broken || ending {
            return Err(PostError::Closed);
        }
        let outcome = match *work {
            WorkRequest::Send { head, tail, .. } => {
                let mut message = head.to_vec();
                message.extend(tail.map(|tail| self.octets(tail)).unwrap_or_default());
                self.waiting.push_back(message);
                WorkOutcome::Sent
            }
            WorkRequest::Write { local, remote, .. } => {
                let data = self.octets(local);
                let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
                world.write(remote.stag, remote.offset.0, &data);
                WorkOutcome::Sent
            }
            WorkRequest::Read { local, remote } => {
                let world = Arc::clone(&self.world);
                let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
                let data = world.read(remote.stag, remote.offset.0, local.len.0);
                assert!(self.place(local.stag, local.offset.0, &data, false));
                WorkOutcome::Read
            }
            WorkRequest::FetchAdd { remote, add, mask } => {
                let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
                WorkOutcome::Atomic(world.fetch_add(remote.stag, add, mask))
            }
            WorkRequest::WriteImmediate { .. } => panic!("an initiator writes no records"),
            WorkRequest::CmpSwap { .. } => panic!("KBTP has no CmpSwap"),
        };
        if signaled {
            self.events.push_back(Event::Done { id, outcome });
        }
        self.ring();
        Ok(())
    }

    fn progress(&mut self, _now: Time) -> Result<bool, StreamError> {
        let mut bell = [0; 64];
        while matches!(self.bell.1.read(&mut bell), Ok(n) if n == bell.len()) {}
        let any = self.serve() || !self.events.is_empty();
        if self.closed {
            return Err(StreamError::ClosedHere);
        }
        if self.broken {
            self.closed = true;
            return Err(StreamError::Connection {
                source: std::io::ErrorKind::ConnectionReset.into(),
            });
        }
        Ok(any)
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn message(&self, slot: ReceiveSlot) -> &[u8] {
        self.messages.get(&slot.0).map_or(&[], Vec::as_slice)
    }

    fn release(&mut self, slot: ReceiveSlot) {
        self.messages.remove(&slot.0);
    }

    fn readiness(&self) -> Readiness {
        Readiness {
            read: true,
            write: false,
            at: None,
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.1.as_fd()
    }

    fn close(&mut self, _how: CloseReason) {
        self.closed = true;
        self.ring();
    }
}
