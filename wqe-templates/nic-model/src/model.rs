//! The device: its objects, and one event at a time.

use crate::cq::{Cq, Posted, Report};
use crate::error::ModelError;
use crate::hazards::{Hazards, Schedule};
use crate::limits::MAX_EVENTS;
use crate::memory::{Extent, Memory};
use crate::qp::{Qp, State, WQE_LEN};
use crate::random::Random;
use crate::trace::{Deed, TraceEntry, WqeStep};
use kbtp_device::{DeviceEvent, MemoryId, Peer, Place, Session};
use kbtp_memory::Region;
use kbtp_mlx5::{Cqn, DataSegment, Mkey, Qpn, Syndrome, WqeIndex};
use std::collections::VecDeque;

pub(crate) const FIRST_QPN: u32 = 0x40;
pub(crate) const FIRST_CQN: u32 = 0x80;

/// Why a queue pair is in error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpFailure {
    /// The WQE that failed: where it lies in the send queue; `None` if software or a peer put the queue pair in error.
    pub index: Option<u16>,
    /// The syndrome of its CQE.
    pub syndrome: Syndrome,
}

/// A NIC that executes mlx5 work queues from the octets in memory.
///
/// Nothing happens by itself: [`step`](Self::step) does one thing, chosen by schedule and seed, so that the same calls in
/// the same order give the same octets. A queue pair that is connected to a remote peer hands its requests to
/// [`outgoing`](Self::outgoing).
#[derive(Debug)]
pub struct Model {
    pub(crate) memory: Memory,
    pub(crate) domains: u32,
    pub(crate) cqs: Vec<Option<Cq>>,
    pub(crate) qps: Vec<Option<Qp>>,
    pub(crate) failures: Vec<(Qpn, QpFailure)>,
    pub(crate) hazards: Hazards,
    pub(crate) schedule: Schedule,
    pub(crate) random: Random,
    /// Of 256: how often the random schedule goes on with what was started.
    pub(crate) eagerness: u16,
    pub(crate) time: u64,
    pub(crate) trace: Option<Vec<TraceEntry>>,
    last: Option<WqeStep>,
    pub(crate) events: VecDeque<DeviceEvent>,
    /// Octets that relaxed ordering holds back.
    pub(crate) late: Vec<(Place, Vec<u8>)>,
    /// Buffers to be used again.
    pub(crate) spare: Vec<Vec<u8>>,
    pub(crate) spare_lists: Vec<Vec<DataSegment>>,
    pub(crate) extents: Vec<Extent>,
    /// The WQE that is being started.
    pub(crate) wqe: Vec<u8>,
    start: usize,
}

impl Model {
    /// A device with these hazards, whose schedule follows from the seed.
    #[must_use]
    pub fn new(hazards: Hazards, schedule: Schedule, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let eagerness = [128, 12, 0, 240].get(random.below(4)).copied();
        Self {
            memory: Memory::default(),
            domains: 0,
            cqs: Vec::new(),
            qps: Vec::new(),
            failures: Vec::new(),
            hazards,
            schedule,
            random,
            eagerness: eagerness.unwrap_or(128),
            time: 0,
            trace: None,
            last: None,
            events: VecDeque::new(),
            late: Vec::new(),
            spare: Vec::new(),
            spare_lists: Vec::new(),
            extents: Vec::new(),
            wqe: vec![0; WQE_LEN],
            start: 0,
        }
    }

    /// Events since the start.
    #[must_use]
    pub const fn time(&self) -> u64 {
        self.time
    }

    /// Keeps a trace from now on.
    pub fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// The trace since it was started or last taken.
    pub fn take_trace(&mut self) -> Vec<TraceEntry> {
        self.trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Which WQE the last [`step`](Self::step) moved on; `None` if it did something else, or nothing.
    #[must_use]
    pub const fn last_step(&self) -> Option<WqeStep> {
        self.last
    }

    pub(crate) fn did(&mut self, at: usize, index: u16, deed: Deed) {
        self.last = self.qp(at).map(|qp| WqeStep {
            qpn: qp.qpn,
            index: WqeIndex(index),
            deed,
        });
    }

    /// The region that a memory is.
    #[must_use]
    pub fn region(&self, memory: MemoryId) -> Option<&Region> {
        self.memory.region(memory)
    }

    /// Why a queue pair went to error; `None` if it did not.
    #[must_use]
    pub fn failure(&self, qpn: Qpn) -> Option<QpFailure> {
        let mut failures = self.failures.iter();
        failures
            .find(|(failed, _)| *failed == qpn)
            .map(|(_, how)| *how)
    }

    /// Takes a key into use again that a peer's message ended, as software does with a UMR.
    ///
    /// # Errors
    /// [`ModelError::Key`] if there is none.
    pub fn revive_key(&mut self, key: Mkey) -> Result<(), ModelError> {
        let done = self.memory.set_free(key, false);
        done.map_err(|_| ModelError::Key(key))
    }

    /// Whether a key is free: a peer's message ended it.
    #[must_use]
    pub fn is_free(&self, key: Mkey) -> bool {
        self.memory.is_free(key)
    }

    /// CQEs that a completion queue has had since the start.
    ///
    /// # Errors
    /// [`ModelError::Cq`] if there is none.
    pub fn produced(&self, cqn: Cqn) -> Result<u64, ModelError> {
        let at = Self::cq_at(cqn).ok_or(ModelError::Cq(cqn))?;
        let cq = self.cqs.get(at).and_then(Option::as_ref);
        cq.map(|cq| cq.produced).ok_or(ModelError::Cq(cqn))
    }

    /// Starts queues at high indices, so that a test need not run long to see them wrap: a queue pair that has run nothing
    /// yet is as if so many basic blocks had run and so many receive WQEs been used.
    ///
    /// # Errors
    /// [`ModelError`] if there is none, or it has run something.
    pub fn set_indices(&mut self, qpn: Qpn, blocks: u64, received: u64) -> Result<(), ModelError> {
        let qp = self.qp_mut(qpn)?;
        if qp.posted != 0 || qp.received != 0 || qp.state == State::Error {
            return Err(ModelError::State(qpn));
        }
        qp.posted = blocks;
        qp.next = blocks;
        qp.received = received;
        qp.receive_enabled = received;
        Ok(())
    }

    /// The same for a completion queue that has no CQEs yet.
    ///
    /// # Errors
    /// [`ModelError`] if there is none, or it has CQEs.
    pub fn set_produced(&mut self, cqn: Cqn, produced: u64) -> Result<(), ModelError> {
        let at = Self::cq_at(cqn).ok_or(ModelError::Cq(cqn))?;
        let cq = self.cqs.get_mut(at).and_then(Option::as_mut);
        match cq.ok_or(ModelError::Cq(cqn))? {
            cq if cq.produced == 0 => {
                cq.produced = produced;
                Ok(())
            }
            _ => Err(ModelError::InUse("a completion queue with CQEs")),
        }
    }

    /// The same for all queues of a session of which no slot is armed: it starts with slot `first`.
    ///
    /// # Errors
    /// [`ModelError`] if they are not of this model, or have run something.
    pub fn started_at(&mut self, session: Session, first: u64) -> Result<Session, ModelError> {
        let at = session.indices_at(first);
        self.set_indices(session.worker_qpn(), at.worker, 0)?;
        self.set_indices(session.client_qpn(), at.client, at.received)?;
        for (cqn, cqes) in at.cqes {
            self.set_produced(cqn, cqes)?;
        }
        Ok(session.starting_at(first))
    }

    pub(crate) fn qp_at(qpn: Qpn) -> Option<usize> {
        usize::try_from(qpn.get().checked_sub(FIRST_QPN)?).ok()
    }

    pub(crate) fn cq_at(cqn: Cqn) -> Option<usize> {
        usize::try_from(cqn.get().checked_sub(FIRST_CQN)?).ok()
    }

    pub(crate) fn qp_mut(&mut self, qpn: Qpn) -> Result<&mut Qp, ModelError> {
        let at = Self::qp_at(qpn).ok_or(ModelError::Qp(qpn))?;
        let qp = self.qps.get_mut(at).and_then(Option::as_mut);
        qp.ok_or(ModelError::Qp(qpn))
    }

    pub(crate) fn qp(&self, at: usize) -> Option<&Qp> {
        self.qps.get(at)?.as_ref()
    }

    pub(crate) fn at_mut(&mut self, at: usize) -> Option<&mut Qp> {
        self.qps.get_mut(at)?.as_mut()
    }

    /// Where the peer of a queue pair is; `None` if it is outside.
    pub(crate) fn peer_at(&self, at: usize) -> Option<usize> {
        match self.qp(at)?.peer? {
            Peer::Local(qpn) => Self::qp_at(qpn),
            Peer::Remote(_) => None,
        }
    }

    pub(crate) fn event(&mut self, event: DeviceEvent) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        }
    }

    /// Writes a CQE. A queue pair whose CQE is lost goes to error.
    pub(crate) fn post_cqe(&mut self, cqn: Cqn, report: &Report<'_>) {
        let cq = Self::cq_at(cqn).and_then(|at| self.cqs.get_mut(at)?.as_mut());
        let Some(cq) = cq else { return };
        let first = !cq.failed;
        match cq.post(&self.memory, report) {
            Posted::Quiet => {}
            Posted::Event => self.event(DeviceEvent::Completion(cqn)),
            Posted::Overrun => {
                if first {
                    self.event(DeviceEvent::CqError(cqn));
                }
                if let Some(at) = Self::qp_at(report.qpn) {
                    self.set_error(at, None, Syndrome::LOCAL_QP_OPERATION);
                }
            }
        }
    }

    /// Puts a queue pair in error: its receives are flushed at once, its sends one by one.
    pub(crate) fn set_error(&mut self, at: usize, index: Option<u16>, syndrome: Syndrome) {
        let Some(qp) = self.at_mut(at) else { return };
        if qp.state == State::Error {
            return;
        }
        qp.state = State::Error;
        let qpn = qp.qpn;
        self.settle_atomics(at);
        self.failures.push((qpn, QpFailure { index, syndrome }));
        self.event(DeviceEvent::QpError(qpn));
        self.flush_receives(at);
    }

    /// Does one thing, if there is anything to do: starts a WQE, or moves one on that was started. Returns whether it did.
    pub fn step(&mut self) -> bool {
        self.time = self.time.wrapping_add(1);
        self.last = None;
        if !self.late.is_empty() && self.schedule == Schedule::Random && self.random.chance(64) {
            return self.land();
        }
        let count = self.qps.len();
        self.start = match self.schedule {
            // Turns, so that nobody starves.
            Schedule::Eager => self.start.wrapping_add(1),
            Schedule::Random | Schedule::Withhold => self.random.below(count),
        };
        for turn in 0..count {
            let at = self.start.wrapping_add(turn).checked_rem(count);
            if at.is_some_and(|at| self.advance(at)) {
                return true;
            }
        }
        self.land()
    }

    /// Runs until there is nothing to do; `None` if there still is after `limit` events.
    pub fn run(&mut self, limit: u64) -> Option<u64> {
        (0..limit).find(|_| !self.step())
    }

    fn advance(&mut self, at: usize) -> bool {
        let Some(qp) = self.qp(at) else { return false };
        match qp.state {
            State::Reset => return false,
            State::Error => return self.flush(at),
            State::Ready => {}
        }
        let started = !qp.pending.is_empty();
        let on = match self.schedule {
            Schedule::Eager => true,
            Schedule::Withhold => false,
            Schedule::Random => self.random.chance(self.eagerness),
        };
        if started && on && self.go_on(at) {
            return true;
        }
        self.issue(at) || self.go_on(at)
    }

    /// Lets some octets land that relaxed ordering held back.
    fn land(&mut self) -> bool {
        if self.late.is_empty() {
            return false;
        }
        let at = self.random.below(self.late.len());
        let (place, octets) = self.late.swap_remove(at);
        // The place was found by a key when the octets came; memory may be gone since.
        let landed = self.memory.write(place, &octets);
        self.give(octets);
        landed.is_ok() || !self.late.is_empty()
    }

    /// A buffer, empty.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.spare.push(buffer);
    }
}
