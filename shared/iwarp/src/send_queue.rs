//! Work that this party posted, from post to completion, and the RDMA Reads and Atomics that wait for their answers.
//! Source: RFC 5040, section 5.5, rules 13 to 15 and 19; RFC 7306, section 5.4.
//!
//! Work completes in the order it was posted (rule 15): a Send behind an RDMA Read is reported after it. Posting and
//! completing are O(1) and allocate nothing.

use crate::plants::{Plant, planted};
use crate::ring::ByteRing;
use kbtp_fabric::{RemoteBuffer, WorkId, WorkOutcome};
use kbtp_wire::rdmap::{AtomicOperation, RdmapOpcode};
use kbtp_wire::{Stag, TaggedOffset};
use std::collections::VecDeque;

/// A buffer of this party.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Local {
    pub(crate) stag: Stag,
    pub(crate) offset: TaggedOffset,
    pub(crate) len: u32,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Send {
        opcode: RdmapOpcode,
        /// The Invalidate STag, or zero.
        invalidate: u32,
        /// Where the head lies in the ring of heads.
        head_at: u64,
        head_len: u32,
        tail: Option<Local>,
    },
    Write {
        local: Local,
        remote: RemoteBuffer,
        immediate: Option<u64>,
    },
    Read {
        local: Local,
        remote: RemoteBuffer,
    },
    Atomic {
        remote: RemoteBuffer,
        operation: AtomicOperation,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// Nothing or not all of it is framed.
    Queued,
    /// Framed; done when the stream is sent up to here.
    Framed { end: u64 },
    /// Sent to the peer; done when it answers.
    Waiting,
    /// Over.
    Over(WorkOutcome),
}

#[derive(Debug)]
struct Entry {
    id: WorkId,
    signaled: bool,
    work: Work,
    progress: Progress,
    /// Ring position up to which heads may be given back with this entry.
    heads_end: u64,
}

/// A request that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    Read {
        sink: Stag,
        /// Where the next octet must go.
        offset: TaggedOffset,
        left: u32,
        /// The sink is retired, and something of it was dropped.
        dropped: bool,
    },
    Atomic {
        request_id: u32,
    },
}

/// Work that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retired {
    /// Its poster wants to know.
    Report(WorkId, WorkOutcome),
    /// Its poster does not.
    Silent,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    entries: VecDeque<Entry>,
    depth: usize,
    /// Number of the first entry; numbers count from the start of the stream.
    first: u64,
    /// Number of the entry that is framed next.
    next: u64,
    heads: ByteRing,
    /// Requests out, oldest first, with the number of their entry. The RTR indication has none.
    awaited: VecDeque<(Awaited, Option<u64>)>,
    /// Completions reported and not yet taken.
    untaken: usize,
}

impl SendQueue {
    pub(crate) fn new(depth: u16, head_ring_len: u32, outbound_reads: u16) -> Self {
        Self {
            entries: VecDeque::with_capacity(depth.into()),
            depth: depth.into(),
            first: 0,
            next: 0,
            heads: ByteRing::new(usize::try_from(head_ring_len).unwrap_or(usize::MAX)),
            //= rfc7306-5.2.2-response-buffers
            // One more for the RTR indication.
            awaited: VecDeque::with_capacity(usize::from(outbound_reads) + 1),
            untaken: 0,
        }
    }

    /// Whether one more entry fits: what waits to be reported counts too, so that the events are bounded.
    pub(crate) fn has_room(&self) -> bool {
        //= rfc5042-6.4.3.2-cq-no-overflow
        //= rfc5040-8.1.1-no-shared-cq
        self.entries.len() + self.untaken < self.depth
    }

    pub(crate) const fn head_capacity(&self) -> usize {
        self.heads.capacity()
    }

    pub(crate) const fn head_room(&self) -> usize {
        self.heads.room()
    }

    /// Copies the head of a Send; [`head_room`](Self::head_room) said yes.
    pub(crate) fn store_head(&mut self, head: &[u8]) -> u64 {
        let at = self.heads.tail();
        self.heads.write(head);
        at
    }

    /// `len` octets of a head from `at` on.
    pub(crate) fn head(&self, at: u64, len: usize) -> (&[u8], &[u8]) {
        self.heads.read(at, len)
    }

    /// Appends; [`has_room`](Self::has_room) said yes.
    pub(crate) fn push(&mut self, id: WorkId, signaled: bool, work: Work) {
        self.entries.push_back(Entry {
            id,
            signaled,
            work,
            progress: Progress::Queued,
            heads_end: self.heads.tail(),
        });
    }

    /// The work to frame next.
    pub(crate) fn upcoming(&self) -> Option<Work> {
        self.at(self.next).map(|entry| entry.work)
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    fn at(&self, number: u64) -> Option<&Entry> {
        self.entries.get(self.index(number)?)
    }

    fn set(&mut self, number: u64, progress: Progress) {
        if let Some(entry) = self
            .index(number)
            .and_then(|index| self.entries.get_mut(index))
        {
            entry.progress = progress;
        }
    }

    /// The upcoming work is framed up to `end` of the stream and needs no answer.
    pub(crate) fn framed(&mut self, end: u64) {
        self.set(self.next, Progress::Framed { end });
        self.next += 1;
    }

    /// The upcoming work is framed and waits for `awaited`.
    pub(crate) fn framed_request(&mut self, awaited: Awaited) {
        self.set(self.next, Progress::Waiting);
        self.awaited.push_back((awaited, Some(self.next)));
        self.next += 1;
    }

    /// The RTR indication is out and is answered like a Read.
    pub(crate) fn await_rtr(&mut self) {
        let awaited = Awaited::Read {
            sink: Stag(0),
            offset: TaggedOffset(0),
            left: 0,
            dropped: false,
        };
        self.awaited.push_back((awaited, None));
    }

    /// Requests out.
    pub(crate) fn awaiting(&self) -> usize {
        self.awaited.len()
    }

    /// The request whose answer comes next.
    pub(crate) fn awaited(&self) -> Option<Awaited> {
        self.awaited.front().map(|(awaited, _)| *awaited)
    }

    pub(crate) fn update_awaited(&mut self, awaited: Awaited) {
        if let Some((front, _)) = self.awaited.front_mut() {
            *front = awaited;
        }
    }

    /// The oldest request is answered.
    pub(crate) fn answered(&mut self, outcome: WorkOutcome) {
        if let Some((_, Some(number))) = self.awaited.pop_front() {
            self.set(number, Progress::Over(outcome));
        }
    }

    /// Takes the oldest work if it is over, the stream being sent up to `sent`.
    pub(crate) fn retire(&mut self, sent: u64) -> Option<Retired> {
        let entry = self.entries.front()?;
        //= rfc5040-5.5-completed-in-order
        //= rfc5040-5.5-complete-after-ddp
        //= rfc7306-5.4-complete-on-response
        let outcome = match entry.progress {
            Progress::Framed { end } if end <= sent || planted(Plant::DoneEarly) => {
                WorkOutcome::Sent
            }
            Progress::Over(outcome) => outcome,
            _ => return None,
        };
        let entry = self.pop()?;
        if !entry.signaled {
            return Some(Retired::Silent);
        }
        self.untaken += 1;
        Some(Retired::Report(entry.id, outcome))
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.first += 1;
        self.next = self.next.max(self.first);
        self.heads.release_to(entry.heads_end);
        Some(entry)
    }

    /// Takes the oldest work because the stream is over.
    pub(crate) fn flush(&mut self) -> Option<WorkId> {
        self.awaited.clear();
        let entry = self.pop()?;
        self.untaken += 1;
        Some(entry.id)
    }

    /// A completion was taken.
    pub(crate) const fn taken(&mut self) {
        self.untaken = self.untaken.saturating_sub(1);
    }

    /// Whether nothing that is posted needs an answer of the peer.
    pub(crate) fn asks_nothing(&self) -> bool {
        self.awaited.is_empty()
            && !self.entries.iter().any(|entry| {
                entry.progress == Progress::Queued
                    && matches!(entry.work, Work::Read { .. } | Work::Atomic { .. })
            })
    }

    /// Whether nothing is posted that is not over.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.awaited.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read() -> Work {
        Work::Read {
            local: Local {
                stag: Stag(1),
                offset: TaggedOffset(0),
                len: 8,
            },
            remote: RemoteBuffer {
                stag: Stag(2),
                offset: TaggedOffset(0),
            },
        }
    }

    fn send(queue: &mut SendQueue, head: &[u8]) -> Work {
        Work::Send {
            opcode: RdmapOpcode::Send,
            invalidate: 0,
            head_at: queue.store_head(head),
            head_len: 3,
            tail: None,
        }
    }

    #[test]
    fn work_completes_in_the_order_it_was_posted() {
        //= test rfc5040-5.5-completed-in-order
        let mut queue = SendQueue::new(4, 64, 2);
        queue.push(WorkId(1), true, read());
        let work = send(&mut queue, b"abc");
        queue.push(WorkId(2), true, work);
        queue.framed_request(Awaited::Read {
            sink: Stag(1),
            offset: TaggedOffset(0),
            left: 8,
            dropped: false,
        });
        queue.framed(100);
        assert_eq!(queue.retire(100), None);
        queue.answered(WorkOutcome::Read);
        assert_eq!(
            queue.retire(100),
            Some(Retired::Report(WorkId(1), WorkOutcome::Read))
        );
        assert_eq!(
            queue.retire(100),
            Some(Retired::Report(WorkId(2), WorkOutcome::Sent))
        );
        assert_eq!(queue.retire(100), None);
        assert_eq!(queue.head_room(), 64);
        assert!(queue.is_idle());
    }

    #[test]
    fn untaken_completions_count_against_the_depth() {
        let mut queue = SendQueue::new(1, 64, 1);
        let work = send(&mut queue, b"abc");
        queue.push(WorkId(1), true, work);
        assert!(!queue.has_room());
        queue.framed(1);
        queue.retire(1);
        assert!(!queue.has_room());
        queue.taken();
        assert!(queue.has_room());
    }

    #[test]
    fn unsignaled_work_is_reported_only_if_flushed() {
        let mut queue = SendQueue::new(4, 64, 1);
        for id in 1..=2 {
            let work = send(&mut queue, b"abc");
            queue.push(WorkId(id), false, work);
        }
        queue.framed(1);
        assert_eq!(queue.retire(1), Some(Retired::Silent));
        assert_eq!(queue.flush(), Some(WorkId(2)));
        assert_eq!(queue.flush(), None);
    }
}
