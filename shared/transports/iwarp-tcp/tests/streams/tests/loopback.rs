//! Two ends of a stream in memory: each operation is carried out when it is posted, as plainly as the text has it. It
//! is what the transport is compared with, so that nothing of the transport is used here.

use kbtp_fabric::{
    Access, Atomics, Capabilities, CloseReason, Event, LocalBuffer, LocalError, PostError,
    Readiness, ReceiveSlot, RemoteBuffer, Stream, StreamError, Time, WorkId, WorkOutcome,
    WorkRequest,
};
use kbtp_memory::Region;
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::Ordering;

struct Registered {
    region: Region,
    range: Range<u64>,
    base: u64,
    access: Access,
}

impl Registered {
    /// Where in the region `len` octets at a Tagged Offset lie.
    fn at(&self, offset: TaggedOffset, len: u64) -> Option<u64> {
        let at = offset.0.checked_sub(self.base)?;
        let room = (self.range.end - self.range.start).checked_sub(at)?;
        (len <= room).then(|| self.range.start + at)
    }
}

#[derive(Default)]
struct Side {
    stags: BTreeMap<Stag, Registered>,
    events: VecDeque<Event>,
    messages: VecDeque<Vec<u8>>,
    error: Option<StreamError>,
    ended: bool,
}

impl Side {
    /// The octets that a peer's operation names, if it may.
    fn reach(
        &self,
        remote: RemoteBuffer,
        len: u64,
        right: fn(&Access) -> bool,
    ) -> Option<(&Region, u64)> {
        let named = self.stags.get(&remote.stag).filter(|r| right(&r.access))?;
        Some((&named.region, named.at(remote.offset, len)?))
    }

    /// Takes a message, if what it invalidates may be.
    fn deliver(
        &mut self,
        message: Vec<u8>,
        solicited: bool,
        invalidate: Option<Stag>,
    ) -> Option<WorkOutcome> {
        if let Some(stag) = invalidate {
            self.stags
                .get(&stag)
                .filter(|named| named.access.remote_invalidate)?;
            self.stags.remove(&stag);
        }
        // The slot is named when the event is taken.
        self.events.push_back(Event::Received {
            slot: ReceiveSlot(0),
            len: ByteLen(u32::try_from(message.len()).unwrap()),
            solicited,
            invalidated: invalidate,
        });
        self.messages.push_back(message);
        Some(WorkOutcome::Sent)
    }

    fn own(&self, local: LocalBuffer) -> Result<(&Region, u64), PostError> {
        let unknown = LocalError::UnknownStag { stag: local.stag };
        let named = self.stags.get(&local.stag).ok_or(unknown)?;
        let outside = LocalError::Range {
            what: "a buffer",
            start: local.offset.0,
            end: local.offset.0.saturating_add(local.len.get()),
            len: named.range.end - named.range.start,
        };
        let at = named.at(local.offset, local.len.get()).ok_or(outside)?;
        Ok((&named.region, at))
    }
}

/// One end.
pub(super) struct Loopback {
    sides: Rc<RefCell<[Side; 2]>>,
    me: usize,
    held: BTreeMap<u32, Vec<u8>>,
    next_slot: u32,
    next_stag: u32,
    bell: UnixStream,
}

/// Both ends.
pub(super) fn pair() -> [Loopback; 2] {
    let sides = Rc::new(RefCell::new([Side::default(), Side::default()]));
    let (a, b) = UnixStream::pair().unwrap();
    [(0, a), (1, b)].map(|(me, bell)| Loopback {
        sides: Rc::clone(&sides),
        me,
        held: BTreeMap::new(),
        next_slot: 0,
        next_stag: 0x100 + u32::try_from(me).unwrap(),
        bell,
    })
}

/// Adds field by field: no carry out of a bit that `mask` has. One bit after the other, as RFC 7306 describes it.
fn masked_add(old: u64, add: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let total = (old >> bit & 1) + (add >> bit & 1) + carry;
        sum |= (total & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { total >> 1 };
    }
    sum
}

fn octets((region, at): (&Region, u64), len: ByteLen) -> Vec<u8> {
    let mut octets = vec![0; usize::try_from(len.0).unwrap()];
    region.read(at, &mut octets).unwrap();
    octets
}

fn copy(from: (&Region, u64), to: (&Region, u64), len: u64) {
    to.0.copy_from(from.0, from.1, to.1, len).unwrap();
}

impl Loopback {
    /// Carries out an operation; `None` if the peer does not allow it.
    fn perform(
        &self,
        sides: &mut [Side; 2],
        work: &WorkRequest<'_>,
    ) -> Result<Option<WorkOutcome>, PostError> {
        let [a, b] = sides;
        let (here, there) = if self.me == 0 { (a, b) } else { (b, a) };
        Ok(match *work {
            WorkRequest::Send {
                head,
                tail,
                solicited,
                invalidate,
            } => {
                let tail = match tail {
                    Some(tail) => octets(here.own(tail)?, tail.len),
                    None => Vec::new(),
                };
                there.deliver([head, &tail].concat(), solicited, invalidate)
            }
            WorkRequest::Write { local, remote, .. } => {
                let from = here.own(local)?;
                let to = there.reach(remote, local.len.get(), |access| access.remote_write);
                to.map(|to| {
                    copy(from, to, local.len.get());
                    WorkOutcome::Sent
                })
            }
            WorkRequest::WriteImmediate { .. } => {
                return Err(PostError::Unsupported {
                    operation: "RDMA Write with Immediate",
                });
            }
            WorkRequest::Read { local, remote } => {
                let to = here.own(local)?;
                let from = there.reach(remote, local.len.get(), |access| access.remote_read);
                from.map(|from| {
                    copy(from, to, local.len.get());
                    WorkOutcome::Read
                })
            }
            WorkRequest::FetchAdd { remote, add, mask } => there
                .reach(remote, 8, |access| access.remote_atomic)
                .and_then(|(region, at)| region.u64_at(at).ok())
                .map(|word| {
                    let old = word.load(Ordering::Relaxed);
                    word.store(masked_add(old, add, mask), Ordering::Relaxed);
                    WorkOutcome::Atomic(old)
                }),
            WorkRequest::CmpSwap {
                remote,
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => there
                .reach(remote, 8, |access| access.remote_atomic)
                .and_then(|(region, at)| region.u64_at(at).ok())
                .map(|word| {
                    let old = word.load(Ordering::Relaxed);
                    if (old ^ compare) & compare_mask == 0 {
                        let new = old & !swap_mask | swap & swap_mask;
                        word.store(new, Ordering::Relaxed);
                    }
                    WorkOutcome::Atomic(old)
                }),
        })
    }
}

impl Stream for Loopback {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            atomics: Atomics::Masked,
            write_with_immediate: false,
            send_with_invalidate: true,
            outbound_reads: 16,
            inbound_reads: 16,
            max_receive: ByteLen(8192),
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
        self.next_stag += 2;
        let registered = Registered {
            region: region.clone(),
            range,
            base: base.0,
            access,
        };
        self.sides.borrow_mut()[self.me]
            .stags
            .insert(stag, registered);
        Ok(stag)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), LocalError> {
        let removed = self.sides.borrow_mut()[self.me].stags.remove(&stag);
        removed.map(|_| ()).ok_or(LocalError::UnknownStag { stag })
    }

    fn retire(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.invalidate(stag)
    }

    fn post(
        &mut self,
        id: WorkId,
        work: &WorkRequest<'_>,
        signaled: bool,
    ) -> Result<(), PostError> {
        let mut sides = self.sides.borrow_mut();
        if sides[self.me].ended {
            return Err(PostError::Closed);
        }
        let done = self.perform(&mut sides, work)?;
        if done.is_none() {
            let reason = String::new();
            sides[self.me].error = Some(StreamError::PeerTerminated {
                reason: reason.clone(),
            });
            sides[1 - self.me].error = Some(StreamError::Protocol { reason });
            sides.iter_mut().for_each(|side| side.ended = true);
        }
        if signaled || done.is_none() {
            let outcome = done.unwrap_or(WorkOutcome::Flushed);
            sides[self.me].events.push_back(Event::Done { id, outcome });
        }
        Ok(())
    }

    fn progress(&mut self, _now: Time) -> Result<bool, StreamError> {
        let error = self.sides.borrow_mut()[self.me].error.take();
        error.map_or(Ok(false), Err)
    }

    fn next_event(&mut self) -> Option<Event> {
        let side = &mut self.sides.borrow_mut()[self.me];
        let mut event = side.events.pop_front()?;
        if let Event::Received { slot, .. } = &mut event {
            *slot = ReceiveSlot(self.next_slot);
            self.held.insert(self.next_slot, side.messages.pop_front()?);
            self.next_slot += 1;
        }
        Some(event)
    }

    fn message(&self, slot: ReceiveSlot) -> &[u8] {
        self.held.get(&slot.0).map_or(&[], Vec::as_slice)
    }

    fn release(&mut self, slot: ReceiveSlot) {
        self.held.remove(&slot.0);
    }

    fn readiness(&self) -> Readiness {
        Readiness {
            read: false,
            write: false,
            at: None,
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn close(&mut self, _how: CloseReason) {
        self.sides.borrow_mut()[self.me].error = Some(StreamError::ClosedHere);
    }
}
