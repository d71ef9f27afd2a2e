//! A session, seen from the target: octets in, work requests out.
//!
//! ```text
//! Hello ──HELLO──► Admission ──admit──► Open ──SessionEnd, or the stream ends──► finish
//!   │                  │
//!   └──malformed───────┴──refused──► Closing ──HELLO_ACK sent, stream closed──► finish
//! ```

mod hello;
mod open;
mod order;
mod outbox;
mod requests;
mod slots;
#[cfg(test)]
mod tests;
mod tickets;
mod types;

pub use kbtp_wire::AuthMode;
pub use types::{
    Admission, ByDevice, Exposer, Grant, Intake, SessionConfig, SessionEnd, SessionPhase,
    SessionUsage, Work,
};

use crate::plants::{Plant, planted};
use crate::{Directory, SessionId, Shared};
use hello::Asked;
use kbtp_fabric::{Time, WorkId, WorkOutcome};
use kbtp_wire::{Opcode, Stag, Status};
use open::{Context, Open};
use outbox::{Outbox, Posted};
use slots::Progress;

/// Where a session is, and what it has there.
#[derive(Debug)]
enum State {
    Hello,
    Admission(Box<Asked>),
    Open(Box<Open>),
    Closing,
}

/// One session, owned by one worker.
///
/// While the stream is open: give it each message when [`ready`](Self::ready); give it each ended work; then post
/// [`next_work`](Self::next_work) and confirm with [`work_posted`](Self::work_posted) until there is none; call
/// [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) is due. When the stream has
/// ended and its last event is taken, call [`finish`](Self::finish), always.
#[derive(Debug)]
pub struct TargetSession {
    config: SessionConfig,
    /// Source of sealed blocks.
    sealed_stag: Stag,
    state: State,
    outbox: Outbox,
    /// Why it must end, once it must.
    ended: Option<SessionEnd>,
}

impl TargetSession {
    /// A session on a stream that was just accepted. Cost: no allocation until it is admitted.
    #[must_use]
    pub fn new(config: SessionConfig) -> Self {
        Self {
            config,
            sealed_stag: config.pool_stag,
            state: State::Hello,
            outbox: Outbox::default(),
            ended: None,
        }
    }

    /// Has sealed blocks sent from another STag of the whole pool, Tagged Offset = Block Offset, registered with
    /// `Access::LOCAL_READ`: nobody writes them, so a stream need not copy them before it computes their CRC. Before it
    /// is admitted; until then they are sent from [`SessionConfig::pool_stag`].
    pub fn send_sealed_from(&mut self, stag: Stag) {
        self.sealed_stag = stag;
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.config.id
    }

    /// Where it is.
    #[must_use]
    pub fn phase(&self) -> SessionPhase {
        match self.state {
            _ if self.ended.is_some() => SessionPhase::Closing,
            State::Hello => SessionPhase::Hello,
            State::Admission(_) => SessionPhase::Admission,
            State::Open(_) => SessionPhase::Open,
            State::Closing => SessionPhase::Closing,
        }
    }

    /// What it was granted, once it is open.
    #[must_use]
    pub fn grant(&self) -> Option<&Grant> {
        match &self.state {
            State::Open(open) => Some(&open.grant),
            _ => None,
        }
    }

    /// Whether a message can be taken now. If not, keep it and ask again after the next event or timeout.
    #[must_use]
    pub fn ready(&self) -> bool {
        match &self.state {
            State::Open(open) => open.ready(),
            _ => true,
        }
    }

    /// Blocks that were taken from a ring and are bound by no entry yet.
    #[must_use]
    pub fn held(&self) -> u32 {
        match &self.state {
            State::Open(open) => open.held(),
            _ => 0,
        }
    }

    /// What it has of its quota. Cost: a few loads.
    #[must_use]
    pub fn usage(&self) -> SessionUsage {
        match &self.state {
            State::Open(open) => open.parts_of_usage(),
            _ => SessionUsage::default(),
        }
    }

    /// Requests under way: waiting, reading, or sending.
    #[must_use]
    pub fn under_way(&self) -> usize {
        match &self.state {
            State::Open(open) => open.slots.busy(),
            _ => 0,
        }
    }

    /// Takes a message. Its octets are not needed afterwards. Cost: no allocation once the session is open; inline
    /// data is copied once, into its block (twice if it has to wait for it).
    ///
    /// # Errors
    /// [`SessionEnd`] if the initiator broke a rule that ends the session.
    pub fn handle_message(
        &mut self,
        now: Time,
        shared: &Shared,
        message: &[u8],
    ) -> Result<Intake, SessionEnd> {
        self.alive()?;
        let result = match &mut self.state {
            State::Hello => self.take_hello(shared, message),
            State::Open(open) => {
                let mut cx = Context {
                    now,
                    shared,
                    outbox: &mut self.outbox,
                };
                open.take_message(&mut cx, message).map(|()| Intake::Taken)
            }
            // Before its HELLO_ACK an initiator has no credits.
            State::Admission(_) | State::Closing => Err(SessionEnd::HelloOrder),
        };
        self.note(shared, result)
    }

    /// Answers the HELLO that was taken. Cost: allocates the session's memory; with DIRECT_ALLOC, may draw the free
    /// blocks of the pool through its hands.
    ///
    /// # Errors
    /// [`SessionEnd::Local`] if no HELLO is waiting.
    pub fn admit(
        &mut self,
        now: Time,
        shared: &Shared,
        directory: &mut Directory,
        exposer: &mut dyn Exposer,
    ) -> Result<Admission, SessionEnd> {
        self.alive()?;
        let result = self.answer_hello(now, shared, directory, exposer);
        self.note(shared, result)
    }

    /// Takes the end of posted work. Ends of work that was not `signaled` are welcome too.
    ///
    /// # Errors
    /// [`SessionEnd`] if the session cannot go on; go on giving it what else has ended.
    pub fn handle_done(
        &mut self,
        now: Time,
        shared: &Shared,
        id: WorkId,
        outcome: WorkOutcome,
    ) -> Result<(), SessionEnd> {
        let result = match &mut self.state {
            State::Open(open) => {
                let mut cx = Context {
                    now,
                    shared,
                    outbox: &mut self.outbox,
                };
                open.take_done(&mut cx, Posted::of(id), outcome)
            }
            _ if outcome == WorkOutcome::Flushed => Err(SessionEnd::Flushed),
            _ => Ok(()),
        };
        self.note(shared, result)
    }

    /// The next work to post; the same one until [`work_posted`](Self::work_posted). None once the session has ended.
    #[must_use]
    pub fn next_work(&self) -> Option<Work<'_>> {
        if self.ended.is_some() {
            None
        } else {
            self.outbox.front()
        }
    }

    /// The work of [`next_work`](Self::next_work) was posted.
    pub fn work_posted(&mut self) {
        if self.outbox.pop()
            && let State::Open(open) = &mut self.state
        {
            open.completed();
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Open(open) if self.ended.is_none() => open.poll_timeout(),
            _ => None,
        }
    }

    /// Looks again at what waits, and abandons tickets that are over their time.
    ///
    /// # Errors
    /// [`SessionEnd`] if the session cannot go on.
    pub fn handle_timeout(
        &mut self,
        now: Time,
        shared: &Shared,
        exposer: &mut dyn Exposer,
    ) -> Result<(), SessionEnd> {
        self.alive()?;
        let result = match &mut self.state {
            State::Open(open) => {
                let mut cx = Context {
                    now,
                    shared,
                    outbox: &mut self.outbox,
                };
                open.take_timeout(&mut cx, exposer)
            }
            _ => Ok(()),
        };
        self.note(shared, result)
    }

    /// The stream has ended and its last event is taken, so it touches no block any more: returns every block the
    /// session holds, and gives range and quota back to the directory. Also for a session that was never admitted.
    pub fn finish(self, now: Time, shared: &Shared, directory: &mut Directory) {
        let State::Open(open) = self.state else {
            return;
        };
        for slot in open.slots.iter() {
            if planted(Plant::HeldForgotten) {
                continue;
            }
            match slot.progress {
                Progress::Sending { block, .. } => shared.pool.unpin(block),
                //= kbtp-p7-read-failure
                Progress::ReadingNew { block } => requests::put_back(shared, block),
                // The tickets of a partition go with it.
                Progress::Parked {
                    ticket: Some(ticket),
                    ..
                } if open.tickets.is_none() => {
                    shared.pool.orphan(ticket);
                }
                Progress::Parked { .. }
                | Progress::Waiting { .. }
                | Progress::ReadingBound { .. } => {}
            }
        }
        directory.close(now, shared, self.config.id, open.bound);
    }

    /// A device served a request of this session, and the completion is on its way (docs/adr/0021): counts it.
    pub fn served(&mut self, shared: &Shared, done: ByDevice) {
        let State::Open(open) = &mut self.state else {
            return;
        };
        let stats = &shared.stats;
        let (opcode, octets) = match done {
            ByDevice::Load(octets) => (Opcode::Load, Some((&stats.loaded_octets, octets))),
            ByDevice::Store(octets) => (Opcode::Store, Some((&stats.stored_octets, octets))),
            ByDevice::AllocStore(octets) => {
                open.bound = open.bound.saturating_add(1);
                (Opcode::AllocStore, Some((&stats.stored_octets, octets)))
            }
            ByDevice::Free => {
                open.bound = open.bound.saturating_sub(1);
                (Opcode::Free, None)
            }
        };
        stats.count(opcode.to_wire(), Status::Ok.to_wire());
        if let Some((counter, octets)) = octets {
            crate::stats::add(counter, octets.get());
        }
    }

    /// Counts the session's bound handles anew, after a device ended in the middle of a request. Cost: a pass over its range.
    pub fn recount(&mut self, shared: &Shared) {
        if let State::Open(open) = &mut self.state {
            let rows = open.first_row..open.first_row.saturating_add(open.rows);
            let bound = rows.filter(|row| shared.pool.is_bound(*row)).count();
            open.bound = u32::try_from(bound).unwrap_or(u32::MAX);
        }
    }

    /// Ends the session because its initiator broke a rule that somebody else looks after.
    pub fn end(&mut self, shared: &Shared, end: SessionEnd) {
        let _noted = self.note::<()>(shared, Err(end));
    }

    fn alive(&self) -> Result<(), SessionEnd> {
        self.ended.map_or(Ok(()), Err)
    }

    /// Remembers why the session must end.
    fn note<T>(&mut self, shared: &Shared, result: Result<T, SessionEnd>) -> Result<T, SessionEnd> {
        if let Err(end) = &result
            && self.ended.is_none()
        {
            self.ended = Some(*end);
            if !matches!(end, SessionEnd::Flushed | SessionEnd::Local(_)) {
                crate::stats::add(&shared.stats.sessions_broken, 1);
            }
        }
        result
    }
}
