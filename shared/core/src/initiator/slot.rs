//! A slot: one operation in flight, and where it stands.
//!
//! ```text
//! Idle -> Queued -> Sent -> Idle                                        LOAD, STORE, ALLOC_STORE, FREE
//! Idle -> Entry -> Block -> Check -> Idle                               Direct Load
//!         |   ^------------------'  entry changed
//!         '---^  Generation not known before
//! Idle -> Taking -> Seeking <-> Confirming -> Binding -> Idle           Direct Allocation
//!                      '------------'-> Tidying -> Freeing -> Idle      given up with a ticket in hand
//! ```

use super::types::{Done, Failure, NEVER, OpId, Request};
use kbtp_fabric::{Time, WorkId};
use kbtp_wire::{BlockOffset, Generation, Handle, SlotOffset, TableEntry, Ticket};

/// A ticket in hand: what its `FetchAdd` gave, and how long it is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    pub(super) ticket: Ticket,
    pub(super) offset: SlotOffset,
    /// From here on nothing is written through it any more.
    pub(super) write_until: Time,
    /// From here on the target may have reclaimed it.
    pub(super) reclaim_at: Time,
}

/// Where an operation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// No operation.
    Idle,
    /// The request is not posted yet.
    Queued,
    /// The request is posted; its COMPLETION is to come.
    Sent,
    /// Direct Load: read of the entry that names the block, if its Generation is known already.
    Entry {
        attempt: u8,
        known: Option<Generation>,
    },
    /// Direct Load: read of the block.
    Block { attempt: u8, entry: TableEntry },
    /// Direct Load: second read of the entry.
    Check { attempt: u8, entry: TableEntry },
    /// Direct Allocation: `FetchAdd` on Head.
    Taking { posted_at: Time },
    /// Direct Allocation: read of the slot until it is the ticket's.
    Seeking(Taken),
    /// Direct Allocation: one more read of the slot.
    Confirming(Taken, BlockOffset),
    /// Direct Allocation: RDMA Write and BIND.
    Binding(Ticket, BlockOffset),
    /// The ticket of an allocation given up is bound without data, so that the target need not reclaim it.
    Tidying(Ticket, BlockOffset),
    /// The handle so bound is freed.
    Freeing,
}

/// What can be posted for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Act {
    /// The request message.
    Request,
    /// RDMA Read of the table entry.
    ReadEntry,
    /// RDMA Read of the block.
    ReadBlock,
    /// `FetchAdd` on Head.
    TakeTicket,
    /// RDMA Read of the ring slot.
    ReadSlot,
    /// RDMA Write of the block.
    WriteBlock,
    /// BIND.
    Bind,
    /// BIND of zero octets.
    TidyBind,
    /// FREE after it.
    TidyFree,
}

impl Act {
    /// Its number in a [`WorkId`].
    const fn number(self) -> u64 {
        self as u64
    }
}

/// Work of a slot, in the order it is to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) slot: u16,
    /// The slot's stamp when it was planned; void if the slot's has changed.
    pub(super) stamp: u32,
    pub(super) act: Act,
}

impl Step {
    /// Octets from the top: stamp (32), zero (8), act (8), slot (16).
    pub(super) const fn work_id(self) -> WorkId {
        WorkId(((self.stamp as u64) << 32) | (self.act.number() << 16) | self.slot as u64)
    }

    /// Whether `id` names work of the slot `(index, stamp)`.
    pub(super) const fn slot_of(id: WorkId) -> (u16, u32) {
        let [s0, s1, s2, s3, _, _, i0, i1] = id.0.to_be_bytes();
        (
            u16::from_be_bytes([i0, i1]),
            u32::from_be_bytes([s0, s1, s2, s3]),
        )
    }
}

/// Whether an operation was reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// Not yet.
    Due,
    /// Before its end, with its buffer untouched: the slot only waits for the peer.
    Early,
    /// Before its end, and its buffer was taken away.
    TakenAway,
}

/// One operation in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Changes whenever what was planned becomes void.
    pub(super) stamp: u32,
    /// The Request ID of the message in flight, or to be sent.
    pub(super) request_id: u64,
    /// The name its submitter knows.
    pub(super) op: OpId,
    pub(super) token: u64,
    pub(super) request: Request,
    pub(super) phase: Phase,
    /// Whether the work of `phase` is posted. Only what is posted can have an effect, or be answered.
    pub(super) posted: bool,
    pub(super) deadline: Time,
    /// A Send or Write that still reads the operation's buffer.
    pub(super) reading: bool,
    pub(super) report: Report,
    /// The answer, held back while `reading`.
    pub(super) answer: Option<(Result<Done, Failure>, bool)>,
}

impl Slot {
    pub(super) const IDLE: Self = Self {
        stamp: 0,
        request_id: 0,
        op: OpId(0),
        token: 0,
        request: Request::Free {
            handle: Handle(0),
            generation: None,
        },
        phase: Phase::Idle,
        posted: false,
        deadline: NEVER,
        reading: false,
        report: Report::Due,
        answer: None,
    };

    /// Whether it is reported already.
    pub(super) fn given_up(&self) -> bool {
        self.report != Report::Due
    }

    /// Whether it holds a Request Credit. An allocation holds one from the start, so that its BIND never waits.
    pub(super) const fn holds_credit(&self) -> bool {
        !matches!(self.phase, Phase::Idle) && !matches!(self.request, Request::LoadDirect { .. })
    }

    /// Whether a message with its Request ID is posted and not answered.
    pub(super) const fn awaits_completion(&self) -> bool {
        self.posted
            && matches!(
                self.phase,
                Phase::Sent | Phase::Binding(..) | Phase::Tidying(..) | Phase::Freeing
            )
            && self.answer.is_none()
    }

    /// Whether it has a ticket that only a BIND uses up.
    pub(super) const fn holds_ticket(&self) -> bool {
        matches!(self.phase, Phase::Binding(..) | Phase::Tidying(..))
    }

    /// When this slot wants to be looked at by itself.
    pub(super) fn due(&self) -> Time {
        let deadline = if self.given_up() {
            NEVER
        } else {
            self.deadline
        };
        match self.phase {
            Phase::Idle => NEVER,
            Phase::Seeking(taken) | Phase::Confirming(taken, _) => {
                let limit = if self.given_up() {
                    taken.reclaim_at
                } else {
                    taken.write_until
                };
                deadline.min(limit)
            }
            _ => deadline,
        }
    }
}
