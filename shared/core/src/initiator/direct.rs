//! Direct Load and Direct Allocation: one-sided operations in a row, each judged before the next.
//! Source: KBTP draft, sections 3.3, 3.4 and 6.6.

use super::limits::{DIRECT_LOAD_ATTEMPTS, TICKET_SHARE};
use super::message::{put_head, send};
use super::slot::{Act, Phase, Report, Slot, Taken};
use super::types::{Done, Failure, Finished, PeerError, Request};
use super::{Initiator, SCRATCH_PER_SLOT, Terms};
use crate::plants::{Plant, planted};
use kbtp_fabric::{LocalBuffer, RemoteBuffer, Time, WorkOutcome, WorkRequest};
use kbtp_wire::{
    AtomicForm, Bind, BlockOffset, ByteLen, Generation, Grant, Header, Opcode, RequestFlags,
    RequestId, RingCounter, RingSlot, Status, TableEntry, TaggedOffset, Ticket,
};
use std::sync::atomic::Ordering;

impl Initiator {
    /// The work of one act of a direct mode, and whether its end must be reported. `None` is a slot in a state that
    /// the act does not belong to; it is never planned.
    pub(super) fn build_direct(
        &mut self,
        act: Act,
        slot: &Slot,
        index: u16,
    ) -> Option<(WorkRequest<'_>, bool)> {
        let grant = self.terms.as_ref()?.grant;
        let request = match (act, slot.request, slot.phase) {
            (Act::ReadEntry, Request::LoadDirect { handle, .. }, _) => WorkRequest::Read {
                local: self.scratch_of(index)?,
                remote: RemoteBuffer {
                    stag: grant.table_stag,
                    offset: entry_offset(&grant, handle.0)?,
                },
            },
            (Act::ReadBlock, Request::LoadDirect { into, .. }, Phase::Block { entry, .. }) => {
                WorkRequest::Read {
                    local: LocalBuffer {
                        len: entry.data_len,
                        ..into
                    },
                    remote: RemoteBuffer {
                        stag: grant.pool_stag,
                        offset: TaggedOffset(entry.block.0),
                    },
                }
            }
            (Act::TakeTicket, ..) => take_ticket(&grant),
            (Act::ReadSlot, _, Phase::Seeking(taken) | Phase::Confirming(taken, _)) => {
                WorkRequest::Read {
                    local: self.scratch_of(index)?,
                    remote: RemoteBuffer {
                        stag: grant.ring_stag,
                        offset: TaggedOffset(
                            grant.ring_offset.0.checked_add(u64::from(taken.offset.0))?,
                        ),
                    },
                }
            }
            (Act::WriteBlock, Request::AllocDirect { from, .. }, Phase::Binding(_, block)) => {
                WorkRequest::Write {
                    local: from,
                    remote: RemoteBuffer {
                        stag: grant.partition_stag,
                        offset: TaggedOffset(block.0),
                    },
                    immediate: None,
                }
            }
            (Act::Bind, Request::AllocDirect { from, seal, .. }, Phase::Binding(ticket, block)) => {
                return self.build_bind(index, slot, ticket, from.len, block, seal);
            }
            (Act::TidyBind, _, Phase::Tidying(ticket, block)) => {
                return self.build_bind(index, slot, ticket, ByteLen(0), block, false);
            }
            //= kbtp-6.6-frees-use-free
            (Act::TidyFree, ..) => {
                let header = Header::request(
                    Opcode::Free,
                    RequestFlags::NONE,
                    RequestId(slot.request_id),
                    slot.request.handle(),
                    None,
                );
                let record = self.record_of(index, slot);
                let len = put_head(&mut self.head, header, None, record);
                return Some((send(self.head.get(..len)?, None), false));
            }
            _ => return None,
        };
        Some((request, true))
    }

    //= kbtp-6.6-bind-after-write
    /// BIND follows the RDMA Write on the same stream at once: the Send is delivered after the Write is placed
    /// (RFC 5040, section 5.5).
    fn build_bind(
        &mut self,
        index: u16,
        slot: &Slot,
        ticket: Ticket,
        data_len: ByteLen,
        block: BlockOffset,
        seal: bool,
    ) -> Option<(WorkRequest<'_>, bool)> {
        let header = Header::request(
            Opcode::Bind,
            RequestFlags::NONE.with(RequestFlags::SEAL, seal),
            RequestId(slot.request_id),
            slot.request.handle(),
            None,
        );
        let bind = Bind {
            ticket,
            data_len,
            block,
        };
        let record = self.record_of(index, slot);
        let len = put_head(&mut self.head, header, Some(bind.encode()), record);
        Some((send(self.head.get(..len)?, None), false))
    }

    /// Posted work of a direct mode ended: what comes next.
    //= kbtp-6.6-direct-load-sequence
    pub(super) fn step_direct(
        &mut self,
        now: Time,
        index: u16,
        outcome: WorkOutcome,
    ) -> Result<(), PeerError> {
        let Some(slot) = self.slots.get(usize::from(index)).copied() else {
            return Ok(());
        };
        let words = match outcome {
            WorkOutcome::Atomic(_) => [0; 4],
            _ => self.scratch_words(index).unwrap_or_default(),
        };
        match (slot.phase, outcome) {
            (
                Phase::Entry { .. } | Phase::Block { .. } | Phase::Check { .. },
                WorkOutcome::Read,
            ) if slot.given_up() => {
                self.conclude(index, Err(Failure::Lost { sent: false }), false);
            }
            (Phase::Entry { attempt, known }, WorkOutcome::Read) => {
                let entry = TableEntry::from_words(words);
                self.first_entry(index, &slot, attempt, known, entry);
            }
            (Phase::Block { attempt, entry }, WorkOutcome::Read)
                if planted(Plant::EntryReadOnce) =>
            {
                return self.second_entry(index, &slot, attempt, entry, entry);
            }
            (Phase::Block { attempt, entry }, WorkOutcome::Read) => {
                self.turn(index, Phase::Check { attempt, entry }, Act::ReadEntry);
            }
            (Phase::Check { attempt, entry }, WorkOutcome::Read) => {
                let again = TableEntry::from_words(words);
                return self.second_entry(index, &slot, attempt, entry, again);
            }
            (Phase::Taking { posted_at }, WorkOutcome::Atomic(head)) => {
                return self.taken(now, index, posted_at, RingCounter(head));
            }
            // The target may have revoked the STags by now: another read through them would end the stream.
            //= kbtp-3.4-direct-alloc-disabled
            (Phase::Seeking(taken) | Phase::Confirming(taken, _), WorkOutcome::Read)
                if now >= taken.reclaim_at =>
            {
                self.expire_ticket(now, index);
            }
            (Phase::Seeking(taken), WorkOutcome::Read) => {
                match ring_slot(words).block_for(taken.ticket) {
                    Some(block) if planted(Plant::SlotReadOnce) => {
                        return self.confirmed(now, index, &slot, taken, block);
                    }
                    Some(block) => {
                        self.turn(index, Phase::Confirming(taken, block), Act::ReadSlot);
                    }
                    // A free is still writing this slot: read again. One read a round trip.
                    None => self.turn(index, slot.phase, Act::ReadSlot),
                }
            }
            (Phase::Confirming(taken, block), WorkOutcome::Read) => {
                //= kbtp-6.6-slot-read-twice
                if ring_slot(words).block_for(taken.ticket) == Some(block) {
                    return self.confirmed(now, index, &slot, taken, block);
                }
                self.turn(index, Phase::Seeking(taken), Act::ReadSlot);
            }
            _ => return Err(PeerError::Outcome("a direct operation")),
        }
        Ok(())
    }

    /// The entry is read: the block next, if it can be.
    ///
    /// The words of a read need not be of one moment, nor be read in their order: a Block Offset of the binding before may
    /// stand beside this Generation. What a read says of the block counts only if its Generation was seen by an earlier
    /// read, or told by the caller, and is seen by a later one: the entry was the same all that while (docs/adr/0014).
    fn first_entry(
        &mut self,
        index: u16,
        slot: &Slot,
        attempt: u8,
        known: Option<Generation>,
        entry: TableEntry,
    ) {
        let Request::LoadDirect {
            generation, into, ..
        } = slot.request
        else {
            return;
        };
        let status = if !entry.is_valid() {
            Some(Status::NotValid)
        } else if generation.is_some() && generation != entry.generation {
            Some(Status::GenerationMismatch)
        } else if !entry.is_sealed() {
            Some(Status::NotSealed)
        } else {
            None
        };
        if let Some(status) = status {
            let failure = Failure::Status {
                status,
                generation: entry.generation,
                len: ByteLen(0),
            };
            self.conclude(index, Err(failure), false);
        } else if entry.generation != generation.or(known) && !planted(Plant::GenerationAlone) {
            let attempt = attempt.saturating_add(u8::from(known.is_some()));
            if attempt > DIRECT_LOAD_ATTEMPTS {
                self.unstable(index);
                return;
            }
            let known = entry.generation;
            self.turn(index, Phase::Entry { attempt, known }, Act::ReadEntry);
        } else if entry.data_len.0 == 0 || entry.data_len > into.len || !self.plausible(&entry) {
            // Nothing to read, or nothing that may be read: these 16 octets need not have been read at once, so what
            // they say holds only if a second read says the same.
            self.turn(index, Phase::Check { attempt, entry }, Act::ReadEntry);
        } else {
            self.turn(index, Phase::Block { attempt, entry }, Act::ReadBlock);
        }
    }

    /// The entry is read again: what was read between counts if nothing changed.
    //= kbtp-6.6-direct-load-valid
    fn second_entry(
        &mut self,
        index: u16,
        slot: &Slot,
        attempt: u8,
        first: TableEntry,
        second: TableEntry,
    ) -> Result<(), PeerError> {
        let same = planted(Plant::GenerationAlone) && first.generation == second.generation;
        if first != second && !same {
            if attempt >= DIRECT_LOAD_ATTEMPTS {
                self.unstable(index);
            } else {
                let known = first.generation.filter(|g| Some(*g) == second.generation);
                self.first_entry(index, slot, attempt.saturating_add(1), known, second);
            }
            return Ok(());
        }
        let (Request::LoadDirect { into, .. }, Some(generation)) =
            (slot.request, second.generation)
        else {
            return Err(PeerError::Ring {
                what: "a bound table entry's Generation",
                value: 0,
            });
        };
        if !self.plausible(&second) {
            return Err(PeerError::Ring {
                what: "a table entry's Block Offset",
                value: second.block.0,
            });
        }
        let result = if second.data_len > into.len {
            Err(Failure::Status {
                status: Status::LengthError,
                generation: second.generation,
                len: second.data_len,
            })
        } else {
            Ok(Done {
                len: second.data_len,
                generation,
                block: second.block,
            })
        };
        self.conclude(index, result, false);
        Ok(())
    }

    /// The entry changes too often.
    fn unstable(&mut self, index: u16) {
        let attempts = DIRECT_LOAD_ATTEMPTS;
        self.conclude(index, Err(Failure::Unstable { attempts }), false);
    }

    /// Whether a block can lie where the entry says: no longer than a block, and all of it at an offset.
    fn plausible(&self, entry: &TableEntry) -> bool {
        let block_size = self
            .terms
            .as_ref()
            .map_or(ByteLen(0), |t| t.grant.block_size);
        entry.data_len <= block_size
            && entry.block != BlockOffset::EMPTY
            && entry.block.0.checked_add(block_size.get()).is_some()
    }

    /// Head gave a ticket.
    fn taken(
        &mut self,
        now: Time,
        index: u16,
        posted_at: Time,
        head: RingCounter,
    ) -> Result<(), PeerError> {
        let Some(terms) = self.terms else {
            return Ok(());
        };
        let grant = terms.grant;
        let ticket = head.ticket();
        // Masked or not, the slot is that of the ticket; a counter that says otherwise is not one.
        let expected = match grant.atomic_form {
            AtomicForm::Masked => RingCounter::at(ticket, grant.ring_order),
            AtomicForm::Unmasked => RingCounter::at_unmasked(ticket),
        };
        if head != expected {
            return Err(PeerError::Ring {
                what: "Head",
                value: head.0,
            });
        }
        let timeout_ns = u64::from(grant.ticket_timeout_ms).saturating_mul(1_000_000);
        let taken = Taken {
            ticket,
            offset: grant.ring_order.slot_of(ticket),
            write_until: posted_at.after_ns(timeout_ns / 256 * TICKET_SHARE),
            reclaim_at: posted_at.after_ns(timeout_ns),
        };
        self.turn(index, Phase::Seeking(taken), Act::ReadSlot);
        self.next_due = self.next_due.min(taken.write_until);
        // It may have come so late that it is of no use any more.
        self.expire_ticket(now, index);
        Ok(())
    }

    /// The slot holds the block for the ticket, twice read: write and bind it.
    fn confirmed(
        &mut self,
        now: Time,
        index: u16,
        slot: &Slot,
        taken: Taken,
        block: BlockOffset,
    ) -> Result<(), PeerError> {
        let Some(terms) = self.terms else {
            return Ok(());
        };
        if !in_partition(&terms.grant, block) {
            return Err(PeerError::Ring {
                what: "a ring slot's Block Offset",
                value: block.0,
            });
        }
        if !slot.given_up() && (now >= taken.write_until || !self.may_allocate) {
            self.report_ticket(index, taken);
        }
        let given_up = self
            .slots
            .get(usize::from(index))
            .is_some_and(Slot::given_up);
        if given_up {
            self.turn(index, Phase::Tidying(taken.ticket, block), Act::TidyBind);
            return Ok(());
        }
        let Request::AllocDirect { from, .. } = slot.request else {
            return Ok(());
        };
        let phase = Phase::Binding(taken.ticket, block);
        if from.len.0 > 0 {
            self.turn(index, phase, Act::WriteBlock);
            self.plan(index, Act::Bind);
        } else {
            self.turn(index, phase, Act::Bind);
        }
        Ok(())
    }

    /// What an operation given up leaves to do. Loads wait for the read that is posted; a ticket in hand is used up, so
    /// that the target need not reclaim it, which would cost the session its direct allocations (draft, section 3.4).
    pub(super) fn leave_direct(&mut self, index: u16) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return;
        };
        match slot.phase {
            Phase::Entry { .. } | Phase::Block { .. } | Phase::Check { .. } if !slot.posted => {
                self.conclude(index, Err(Failure::Lost { sent: false }), false);
            }
            Phase::Binding(ticket, block) if !slot.posted => {
                // The Write may be posted, but its buffer is being taken away: nothing of it is to be bound.
                slot.stamp = slot.stamp.wrapping_add(1);
                self.turn(index, Phase::Tidying(ticket, block), Act::TidyBind);
            }
            _ => {}
        }
    }

    /// Looks whether the ticket of a slot has run out.
    //= kbtp-3.4-ticket-timeout
    pub(super) fn expire_ticket(&mut self, now: Time, index: u16) {
        let Some(slot) = self.slots.get(usize::from(index)).copied() else {
            return;
        };
        let (Phase::Seeking(taken) | Phase::Confirming(taken, _)) = slot.phase else {
            return;
        };
        if !slot.given_up() && now >= taken.write_until {
            self.report_ticket(index, taken);
        }
        if now >= taken.reclaim_at {
            self.may_allocate = false;
            self.conclude(
                index,
                Err(Failure::TicketTimeout {
                    ticket: taken.ticket,
                }),
                false,
            );
        }
    }

    /// Reports that a ticket ran out; the slot goes on until the ticket is used up or reclaimed.
    fn report_ticket(&mut self, index: u16, taken: Taken) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return;
        };
        slot.report = Report::Early;
        self.finished.push_back(Finished {
            op: slot.op,
            token: slot.token,
            operation: slot.request.operation(),
            handle: slot.request.handle(),
            result: Err(Failure::TicketTimeout {
                ticket: taken.ticket,
            }),
            invalidated: false,
        });
    }

    /// Moves a slot to its next phase, whose work is to be posted.
    pub(super) fn turn(&mut self, index: u16, phase: Phase, act: Act) {
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            slot.phase = phase;
            slot.posted = false;
        }
        self.plan(index, act);
    }

    /// The scratch memory of a slot.
    fn scratch_of(&self, index: u16) -> Option<LocalBuffer> {
        let scratch = self.scratch.as_ref()?;
        let offset = scratch_offset(index);
        Some(LocalBuffer {
            stag: scratch.stag,
            offset: TaggedOffset(scratch.base.0.checked_add(offset)?),
            len: ByteLen(16),
        })
    }

    /// The four words that a read left in the scratch memory of a slot.
    fn scratch_words(&self, index: u16) -> Option<[u32; 4]> {
        let region = &self.scratch.as_ref()?.region;
        let mut words = [0; 4];
        for (word, at) in words.iter_mut().zip((scratch_offset(index)..).step_by(4)) {
            *word = u32::from_be(region.u32_at(at).ok()?.load(Ordering::Acquire));
        }
        Some(words)
    }
}

const fn scratch_offset(index: u16) -> u64 {
    index as u64 * SCRATCH_PER_SLOT
}

const fn ring_slot(words: [u32; 4]) -> RingSlot {
    let [sequence, _, high, low] = words;
    RingSlot::from_words(sequence, high, low)
}

/// The FetchAdd that takes a ticket.
//= kbtp-6.6-direct-alloc-fetchadd
//= kbtp-3.3-add-data-mask
//= kbtp-9.1-fetchadd-masked
const fn take_ticket(grant: &Grant) -> WorkRequest<'static> {
    let remote = RemoteBuffer {
        stag: grant.counter_stag,
        offset: grant.head_offset,
    };
    match grant.atomic_form {
        AtomicForm::Masked => WorkRequest::FetchAdd {
            remote,
            add: RingCounter::ADD_DATA,
            mask: RingCounter::add_mask(grant.ring_order),
        },
        AtomicForm::Unmasked => WorkRequest::FetchAdd {
            remote,
            add: RingCounter::ADD_DATA_UNMASKED,
            mask: 0,
        },
    }
}

/// Where the entry of a handle lies; `None` outside the table.
//= kbtp-3.2-entry-address
pub(super) fn entry_offset(grant: &Grant, handle: u64) -> Option<TaggedOffset> {
    let number = handle.checked_sub(grant.table_base.0)?;
    if number >= grant.table_count {
        return None;
    }
    let octets = number.checked_mul(TableEntry::LEN as u64)?;
    Some(TaggedOffset(grant.table_offset.0.checked_add(octets)?))
}

/// Whether `block` is a whole block of the initiator's partition.
fn in_partition(grant: &Grant, block: BlockOffset) -> bool {
    let block_size = grant.block_size.get();
    block
        .0
        .checked_sub(grant.partition_offset.0)
        .is_some_and(|at| {
            at.is_multiple_of(block_size)
                && at
                    .checked_add(block_size)
                    .is_some_and(|end| end <= grant.partition_len)
        })
}

impl Terms {
    /// Requests that may be outstanding.
    pub(super) fn credits(&self) -> u32 {
        u32::from(self.requests) + u32::from(planted(Plant::CreditsOverrun))
    }

    /// Whether a handle lies in the table that direct loads read.
    #[must_use]
    pub fn in_table(&self, handle: kbtp_wire::Handle) -> bool {
        entry_offset(&self.grant, handle.0).is_some()
    }
}
