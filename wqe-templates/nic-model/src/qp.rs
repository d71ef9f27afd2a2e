//! Queue pairs: what the device keeps of them beside their octets in memory.

use crate::hazards::Fetch;
use crate::memory::{Asker, Memory};
use crate::outside::{Kind, Outgoing, OutgoingWork};
use crate::random::Random;
use kbtp_device::{Peer, Place, QpAttributes};
use kbtp_mlx5::limits::{BASIC_BLOCK, MAX_BASIC_BLOCKS};
use kbtp_mlx5::{
    Atomic, CqeIndex, DataSegment, QpDoorbell, Qpn, RemoteAddress, Signal, Syndrome, WqeIndex,
};
use std::collections::VecDeque;

/// Octets of the longest WQE, rounded up to basic blocks.
pub(crate) const WQE_LEN: usize = MAX_BASIC_BLOCKS * BASIC_BLOCK;

const WORDS: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Reset,
    Ready,
    Error,
}

/// How far an operation has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The responder has not seen it.
    Issued,
    /// A peer outside the model has it.
    Sent,
    /// The responder has done it: its reply is to come.
    Answered,
}

#[derive(Debug)]
pub(crate) enum Work {
    /// Nothing is left but its completion.
    Done,
    Write {
        remote: RemoteAddress,
        data: Vec<u8>,
        immediate: Option<u32>,
    },
    Send {
        data: Vec<u8>,
        kind: Kind,
    },
    Read {
        remote: RemoteAddress,
        len: u32,
        to: Vec<DataSegment>,
        /// What the responder's memory held, if it has looked.
        data: Option<Vec<u8>>,
    },
    Atomic {
        remote: RemoteAddress,
        atomic: Atomic,
        to: DataSegment,
        /// The old value.
        reply: u64,
        /// A word that is still to be written.
        later: Option<(Place, u64)>,
    },
    /// For a peer outside the model, until it has it.
    Outside(Option<OutgoingWork>),
    /// It went wrong here or at the responder; nothing after it is done.
    Failed(Syndrome),
}

/// A WQE that was started and is not complete.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) index: u16,
    pub(crate) opcode: u8,
    pub(crate) signal: Signal,
    pub(crate) solicited: bool,
    pub(crate) byte_count: u32,
    pub(crate) stage: Stage,
    /// Whether it counts as an outstanding read.
    pub(crate) is_read: bool,
    pub(crate) id: u64,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) attributes: QpAttributes,
    pub(crate) state: State,
    pub(crate) peer: Option<Peer>,
    /// Basic blocks that may run, since the start.
    pub(crate) posted: u64,
    /// The next one to run.
    pub(crate) next: u64,
    cache: Vec<u8>,
    /// Which eight octets of a basic block are those of the cache.
    early: Vec<u8>,
    pub(crate) pending: VecDeque<Pending>,
    /// How many of them, from the front, the responder has seen.
    pub(crate) answered: usize,
    pub(crate) reads: u8,
    /// Something failed: no WQE starts any more.
    pub(crate) halted: bool,
    /// A responder refused a request: it sees none that come after.
    pub(crate) refused: bool,
    /// The WAIT that it stands at.
    pub(crate) blocked: Option<(usize, CqeIndex)>,
    pub(crate) received: u64,
    pub(crate) receive_enabled: u64,
    pub(crate) not_ready: u32,
    pub(crate) outgoing: VecDeque<Outgoing>,
    pub(crate) next_id: u64,
}

impl Qp {
    pub(crate) fn new(qpn: Qpn, attributes: QpAttributes) -> Self {
        let blocks = 1_usize << attributes.log_send;
        Self {
            qpn,
            attributes,
            state: State::Reset,
            peer: None,
            posted: 0,
            next: 0,
            cache: vec![0; blocks.saturating_mul(BASIC_BLOCK)],
            early: vec![0; blocks],
            pending: VecDeque::new(),
            answered: 0,
            reads: 0,
            halted: false,
            refused: false,
            blocked: None,
            received: 0,
            receive_enabled: 0,
            not_ready: 0,
            outgoing: VecDeque::new(),
            next_id: 0,
        }
    }

    pub(crate) const fn asker(&self) -> Asker {
        Asker {
            domain: self.attributes.domain,
            qpn: self.qpn,
        }
    }

    pub(crate) const fn blocks(&self) -> u64 {
        1 << self.attributes.log_send
    }

    pub(crate) fn index(block: u64) -> WqeIndex {
        let [.., high, low] = block.to_be_bytes();
        WqeIndex(u16::from_be_bytes([high, low]))
    }

    fn place(&self, block: u64) -> Place {
        let octets = (block % self.blocks()).saturating_mul(BASIC_BLOCK as u64);
        self.attributes.send_ring.plus(octets)
    }

    /// Lets WQEs run up to an index; `false` if there would be more than the ring holds. What lies behind does nothing.
    pub(crate) fn enable(
        &mut self,
        memory: &Memory,
        up_to: WqeIndex,
        fetch: Fetch,
        random: &mut Random,
    ) -> bool {
        let ahead = u64::from(up_to.distance(Self::index(self.posted)));
        if ahead == 0 || ahead >= 1 << 15 {
            return true;
        }
        let end = self.posted.saturating_add(ahead);
        if end.saturating_sub(self.next) > self.blocks() {
            return false;
        }
        let from = self.posted;
        self.posted = end;
        if fetch == Fetch::WhenRun {
            return true;
        }
        // In runs: to the end of the ring, then from its start.
        let mut block = from;
        while block < end {
            let run = (self.blocks() - block % self.blocks()).min(end - block);
            let at = self.place(block);
            if let Some(cache) = self.cached(block, run) {
                // The ring was checked to lie in memory when the queue pair was made.
                let read = memory.read(at, cache);
                debug_assert!(read.is_ok());
            }
            block += run;
        }
        for block in from..end {
            let early = match fetch {
                Fetch::WhenEnabled | Fetch::WhenRun => break,
                Fetch::Either => {
                    if random.chance(128) {
                        u8::MAX
                    } else {
                        0
                    }
                }
                Fetch::Torn => random.next().to_be_bytes().first().copied().unwrap_or(0),
            };
            let slot = usize::try_from(block % self.blocks()).ok();
            if let Some(bits) = slot.and_then(|slot| self.early.get_mut(slot)) {
                *bits = early;
            }
        }
        true
    }

    fn cached(&mut self, block: u64, count: u64) -> Option<&mut [u8]> {
        let from = usize::try_from(block % self.blocks()).ok()?;
        let count = usize::try_from(count).ok()?;
        let from = from.checked_mul(BASIC_BLOCK)?;
        let end = from.checked_add(count.checked_mul(BASIC_BLOCK)?)?;
        self.cache.get_mut(from..end)
    }

    /// The octets of `count` basic blocks from `block`, as the device has them.
    pub(crate) fn fetch(
        &mut self,
        memory: &Memory,
        block: u64,
        count: usize,
        fetch: Fetch,
        to: &mut [u8],
    ) {
        let at = self.place(block);
        let start = usize::try_from(block % self.blocks()).unwrap_or(0);
        if fetch != Fetch::WhenEnabled {
            let read = memory.read(at, to);
            debug_assert!(read.is_ok());
        }
        if fetch == Fetch::WhenRun {
            return;
        }
        let from = start.saturating_mul(BASIC_BLOCK);
        let cache = self.cache.get(from..).unwrap_or(&[]);
        if fetch == Fetch::WhenEnabled {
            for (to, from) in to.chunks_mut(BASIC_BLOCK).zip(cache.chunks(BASIC_BLOCK)) {
                let len = to.len().min(from.len());
                if let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) {
                    to.copy_from_slice(from);
                }
            }
            return;
        }
        let early = self.early.get(start..).unwrap_or(&[]);
        let blocks = to.chunks_mut(BASIC_BLOCK).zip(cache.chunks(BASIC_BLOCK));
        for ((to, from), bits) in blocks.zip(early).take(count) {
            for (word, (to, from)) in (0..WORDS).zip(to.chunks_mut(8).zip(from.chunks(8))) {
                if bits >> word & 1 == 1 {
                    to.copy_from_slice(from);
                }
            }
        }
    }

    /// Receive WQEs that software posted and nobody used.
    pub(crate) fn receives(&self, memory: &Memory) -> u64 {
        let mut record = [0; QpDoorbell::LEN];
        if memory.read(self.attributes.doorbell, &mut record).is_err() {
            return 0;
        }
        let posted = WqeIndex(QpDoorbell::decode(&record).receive);
        let ahead = u64::from(posted.distance(Self::index(self.received)));
        // More than the ring holds: software wrote nonsense, or nothing.
        let posted = if ahead > 1 << self.attributes.log_receive {
            0
        } else {
            ahead
        };
        if self.attributes.roles.managed_receive {
            posted.min(self.receive_enabled.saturating_sub(self.received))
        } else {
            posted
        }
    }

    /// Lets managed receives be used up to an index.
    pub(crate) fn enable_receives(&mut self, up_to: WqeIndex) {
        let ahead = u64::from(up_to.distance(Self::index(self.receive_enabled)));
        if ahead < 1 << 15 {
            self.receive_enabled = self.receive_enabled.saturating_add(ahead);
        }
    }

    /// The place and length of the next receive WQE.
    pub(crate) const fn receive_place(&self) -> (Place, u64) {
        let stride = 1 << self.attributes.log_stride;
        let size = 1 << self.attributes.log_receive;
        let at = (self.received % size) << self.attributes.log_stride;
        (self.attributes.receive_ring.plus(at), stride)
    }

    pub(crate) fn push(&mut self, pending: Pending) {
        if pending.is_read {
            self.reads = self.reads.saturating_add(1);
        }
        self.pending.push_back(pending);
    }

    /// As it was made.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.qpn, self.attributes);
    }
}
