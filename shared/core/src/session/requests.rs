//! The five requests, each with its checks in the order of P7 (draft, sections 6.1 to 6.4 and 6.6).

use super::SessionEnd;
use super::open::{Context, Open, Step};
use super::outbox::{Outgoing, Posted};
use super::slots::{Ask, Data, Op, Progress, Slot, SlotIndex, StashIndex};
use crate::limits::BLOCK_WAIT_MS;
use crate::plants::{Plant, planted};
use crate::stats::add;
use crate::{BlockIndex, Shared};
use kbtp_fabric::{LocalBuffer, RemoteBuffer};
use kbtp_wire::{
    Bind, BlockOffset, ByteLen, Completion, DataDescriptor, EntryFlags, Generation, Stag, Status,
    TableEntry, TaggedOffset, Ticket,
};

impl Open {
    /// Starts a request whose turn it is.
    //= kbtp-p7-check-order
    //= kbtp-p7-failed-changes-nothing
    pub(super) fn start(
        &mut self,
        cx: &mut Context<'_>,
        op: &Op,
        inline: &[u8],
    ) -> Result<Step, SessionEnd> {
        let result = match op.ask {
            Ask::Load {
                sink,
                allow_unsealed,
            } => self.load(cx, op, &sink, allow_unsealed),
            Ask::Store { data, seal } => self.store(cx, op, data, seal, inline),
            Ask::AllocStore { data, .. } => self.alloc_store(cx, op, data, inline)?,
            Ask::Free => self.free(cx, op),
            Ask::Bind { bind, seal } => self.bind(cx, op, &bind, seal)?,
        };
        Ok(match result {
            Ok(step) => step,
            Err(status) => Step::Answer(self.failed(cx.shared, op, status)),
        })
    }

    // ---- LOAD ----

    fn load(
        &self,
        cx: &Context<'_>,
        op: &Op,
        sink: &DataDescriptor,
        allow_unsealed: bool,
    ) -> Result<Step, Status> {
        let pool = &cx.shared.pool;
        //= kbtp-p7-not-authorized
        let row = pool
            .geometry()
            .row(op.handle)
            .ok_or(Status::NotAuthorized)?;
        //= kbtp-p9-own-blocks-only
        let (entry, pinned) = pool.entry_for(row, self.domain).ok_or(Status::NotValid)?;
        let checked = check_load(op, &entry, sink, allow_unsealed);
        match (checked, pinned) {
            (Ok(()), Some(block)) if entry.data_len.0 > 0 => {
                Ok(Step::Go(Progress::Sending { block, entry }))
            }
            (Ok(()), None) => Err(Status::InternalError),
            (result, pinned) => {
                if let Some(block) = pinned {
                    pool.unpin(block);
                }
                //= kbtp-p7-zero-length-legal
                let mut completion =
                    Self::succeeded(op, entry.generation, entry.data_len, entry.block);
                if let Err(status) = result {
                    completion =
                        Completion::failed(op.request_id, op.handle, entry.generation, status);
                    //= kbtp-p7-length-error-load
                    if status == Status::LengthError {
                        completion.data_len = entry.data_len;
                    }
                }
                Ok(Step::Answer(completion))
            }
        }
    }

    /// RDMA Write of the block, then the completion, on the same stream.
    //= kbtp-6.1-load-write
    //= kbtp-9.1-loads-write-stores-read
    //= kbtp-6.1-load-completion
    pub(super) fn post_load(
        &self,
        cx: &mut Context<'_>,
        op: &Op,
        block: BlockIndex,
        entry: &TableEntry,
        posted: Posted,
    ) {
        let Ask::Load { sink, .. } = op.ask else {
            return;
        };
        add(&cx.shared.stats.loaded_octets, entry.data_len.get());
        // A block that is not sealed may be stored to while it is sent, and one in a partition may be written by the
        // initiator that has it, sealed or not: its CRC would be wrong then, and the stream of the reader would end.
        let source = if entry.is_sealed() && !cx.shared.pool.is_partitioned(block) {
            self.sealed_stag
        } else {
            self.pool_stag
        };
        cx.outbox.push(Outgoing::Write {
            local: local(source, entry.block, entry.data_len),
            remote: RemoteBuffer {
                stag: sink.stag,
                offset: sink.offset,
            },
        });
        let completion = Self::succeeded(op, entry.generation, entry.data_len, entry.block);
        Self::answer_posted(cx, op, completion, posted);
    }

    // ---- STORE ----

    fn store(
        &self,
        cx: &Context<'_>,
        op: &Op,
        data: Data,
        seal: bool,
        inline: &[u8],
    ) -> Result<Step, Status> {
        let pool = &cx.shared.pool;
        let row = self.own_row(cx.shared, op)?;
        let entry = pool.entry(row);
        //= kbtp-6.2-store-valid-unsealed
        check_valid(op, &entry)?;
        //= kbtp-p7-sealed
        if entry.is_sealed() && !planted(Plant::SealIgnored) {
            //= kbtp-p7-sealed
            return Err(Status::Sealed);
        }
        self.check_length(cx.shared, data)?;
        //= kbtp-p7-internal-error
        let block = pool
            .geometry()
            .block_at(entry.block)
            .ok_or(Status::InternalError)?;
        match write_inline(cx.shared, block, data, inline) {
            Some(true) => Ok(Step::Answer(self.stored(
                cx.shared,
                op,
                &entry,
                data.len(),
                seal,
            ))),
            Some(false) => Err(Status::InternalError),
            None => Ok(Step::Go(Progress::ReadingBound { entry })),
        }
    }

    /// The data is in the block of a bound entry.
    fn stored(
        &self,
        shared: &Shared,
        op: &Op,
        entry: &TableEntry,
        data_len: ByteLen,
        seal: bool,
    ) -> Completion {
        let Ok(row) = self.own_row(shared, op) else {
            return self.failed(shared, op, Status::InternalError);
        };
        let seal = seal && !planted(Plant::SealForgotten);
        let flags = entry.flags.with(EntryFlags::SEALED, seal);
        let entry = TableEntry {
            flags,
            data_len,
            ..*entry
        };
        shared.pool.update(row, &entry);
        add(&shared.stats.stored_octets, data_len.get());
        Self::succeeded(op, entry.generation, data_len, entry.block)
    }

    // ---- ALLOC_STORE ----

    fn alloc_store(
        &mut self,
        cx: &mut Context<'_>,
        op: &Op,
        data: Data,
        inline: &[u8],
    ) -> Result<Result<Step, Status>, SessionEnd> {
        if let Some(tickets) = &mut self.tickets {
            tickets.look(cx.now, cx.shared)?;
        }
        if let Err(status) = self.check_alloc(cx.shared, op, data) {
            return Ok(Err(status));
        }
        self.allocating = self.allocating.saturating_add(1);
        let ticket = self.take_ticket(cx)?;
        Ok(Ok(
            match ticket.map(|ticket| self.take_block(cx.shared, ticket)) {
                Some(Some(block)) => self.block_is_there(cx.shared, op, block, inline),
                _ => Step::Park(Progress::Parked {
                    stash: None,
                    ticket,
                    deadline: cx.now.after_ms(BLOCK_WAIT_MS),
                }),
            },
        ))
    }

    fn check_alloc(&self, shared: &Shared, op: &Op, data: Data) -> Result<(), Status> {
        let row = self.own_row(shared, op)?;
        let entry = shared.pool.entry(row);
        //= kbtp-6.3-handle-not-valid
        check_unbound(op, &entry)?;
        self.check_length(shared, data)?;
        //= kbtp-3.4-over-quota-no-space
        let over = u32::from(planted(Plant::QuotaOffByOne));
        if self.usage() >= self.grant.quota.saturating_add(over) {
            Err(Status::NoSpace)
        } else {
            Ok(())
        }
    }

    //= kbtp-6.3-allocate
    fn take_ticket(&mut self, cx: &Context<'_>) -> Result<Option<Ticket>, SessionEnd> {
        match &mut self.tickets {
            Some(tickets) => tickets.take(cx.now, cx.shared),
            None => Ok(cx.shared.pool.take(self.home())),
        }
    }

    fn take_block(&self, shared: &Shared, ticket: Ticket) -> Option<BlockIndex> {
        shared.pool.consume(self.home(), ticket, self.domain)
    }

    /// Looks again for the blocks of parked allocations, in the order they came. Cost: a few steps for each that has a
    /// ticket, is over its time or gets a block; the others behind the first that gets none are not looked at.
    pub(super) fn retry_parked(&mut self, cx: &mut Context<'_>) -> Result<(), SessionEnd> {
        cx.shared.pool.settle();
        let mut at = 0;
        let mut dry = false;
        let mut with_ticket = self.parked_with_ticket;
        while let Some(index) = self.parked.get(at).copied() {
            let Some(Slot {
                op,
                progress:
                    Progress::Parked {
                        stash,
                        ticket: had,
                        deadline,
                    },
            }) = self.slots.get(index).copied()
            else {
                self.parked.remove(at);
                continue;
            };
            with_ticket = with_ticket.saturating_sub(usize::from(had.is_some()));
            let ticket = match had {
                None if !dry => self.take_ticket(cx)?,
                had => had,
            };
            dry |= ticket.is_none();
            let block = ticket.and_then(|ticket| self.take_block(cx.shared, ticket));
            if block.is_none() && (ticket.is_some() || deadline > cx.now) {
                if had.is_none() && ticket.is_none() && with_ticket == 0 {
                    // Whoever came later has more time, and gets no ticket either.
                    break;
                }
                // A ticket that was taken is kept: its block will come.
                let taken = usize::from(had.is_none() && ticket.is_some());
                self.parked_with_ticket = self.parked_with_ticket.saturating_add(taken);
                let progress = Progress::Parked {
                    stash,
                    ticket,
                    deadline,
                };
                self.slots.set(index, progress);
                at = at.saturating_add(1);
                continue;
            }
            self.parked.remove(at);
            let had = usize::from(had.is_some());
            self.parked_with_ticket = self.parked_with_ticket.saturating_sub(had);
            self.unpark(cx, index, &op, stash, block);
        }
        Ok(())
    }

    /// A parked allocation has its block, or has waited long enough for one.
    fn unpark(
        &mut self,
        cx: &mut Context<'_>,
        index: SlotIndex,
        op: &Op,
        stash: Option<StashIndex>,
        block: Option<BlockIndex>,
    ) {
        let step = if let Some(block) = block {
            self.with_stashed(stash, op, |open, inline| {
                open.block_is_there(cx.shared, op, block, inline)
            })
        } else {
            //= kbtp-p7-no-space
            self.allocating = self.allocating.saturating_sub(1);
            Step::Answer(self.failed(cx.shared, op, Status::NoSpace))
        };
        self.stashes.release(stash);
        if let Step::Go(progress) = step {
            self.slots.set(index, progress);
            self.proceed(cx, index);
        } else if let Step::Answer(completion) = step {
            self.slots.release(index);
            Self::answer(cx, op, completion);
        }
    }

    /// The block of an ALLOC_STORE is there; its data is next.
    fn block_is_there(
        &mut self,
        shared: &Shared,
        op: &Op,
        block: BlockIndex,
        inline: &[u8],
    ) -> Step {
        let Ask::AllocStore { data, seal } = op.ask else {
            return Step::Answer(self.failed(shared, op, Status::InternalError));
        };
        match write_inline(shared, block, data, inline) {
            Some(written) => Step::Answer(self.bind_new(
                shared,
                op,
                block,
                written.then_some((data.len(), seal)),
            )),
            None if planted(Plant::EntryBeforeData) => {
                self.allocating = self.allocating.saturating_sub(1);
                self.bound = self.bound.saturating_add(1);
                let row = self.own_row(shared, op).unwrap_or_default();
                let entry = shared.pool.bind(row, block, data.len(), seal);
                Step::Go(Progress::ReadingBound { entry })
            }
            None => Step::Go(Progress::ReadingNew { block }),
        }
    }

    /// Writes the entry of an ALLOC_STORE whose data is in its block; without data returns the block.
    fn bind_new(
        &mut self,
        shared: &Shared,
        op: &Op,
        block: BlockIndex,
        data: Option<(ByteLen, bool)>,
    ) -> Completion {
        self.allocating = self.allocating.saturating_sub(1);
        if let (Ok(row), Some((len, seal))) = (self.own_row(shared, op), data) {
            self.bind_row(shared, op, row, block, len, seal)
        } else {
            put_back(shared, block);
            self.failed(shared, op, Status::InternalError)
        }
    }

    /// Writes the entry of a block whose data is in place.
    //= kbtp-3.2-data-length
    //= kbtp-6.3-entry-after-data
    //= kbtp-6.3-completion
    fn bind_row(
        &mut self,
        shared: &Shared,
        op: &Op,
        row: u64,
        block: BlockIndex,
        data_len: ByteLen,
        seal: bool,
    ) -> Completion {
        let entry = shared.pool.bind(row, block, data_len, seal);
        self.bound = self.bound.saturating_add(1);
        add(&shared.stats.stored_octets, data_len.get());
        Self::succeeded(op, entry.generation, data_len, entry.block)
    }

    /// The RDMA Read of a store has ended.
    pub(super) fn data_is_there(&mut self, cx: &Context<'_>, slot: &Slot) -> Completion {
        let (Ask::Store { data, seal } | Ask::AllocStore { data, seal }) = slot.op.ask else {
            return self.failed(cx.shared, &slot.op, Status::InternalError);
        };
        match slot.progress {
            Progress::ReadingBound { entry } => {
                self.stored(cx.shared, &slot.op, &entry, data.len(), seal)
            }
            Progress::ReadingNew { block } => {
                self.bind_new(cx.shared, &slot.op, block, Some((data.len(), seal)))
            }
            _ => self.failed(cx.shared, &slot.op, Status::InternalError),
        }
    }

    // ---- FREE ----

    fn free(&mut self, cx: &Context<'_>, op: &Op) -> Result<Step, Status> {
        let pool = &cx.shared.pool;
        //= kbtp-6.4-handle-in-range-valid
        let row = self.own_row(cx.shared, op)?;
        let entry = pool.entry(row);
        check_valid(op, &entry)?;
        let block = pool
            .geometry()
            .block_at(entry.block)
            .ok_or(Status::InternalError)?;
        let (generation, deferred) = pool.free(row, block);
        add(&cx.shared.stats.frees_deferred, u64::from(deferred));
        //= kbtp-3.4-usage-released
        if !planted(Plant::UsageKept) {
            self.bound = self.bound.saturating_sub(1);
        }
        //= kbtp-p3-free-new-generation
        let none = (ByteLen(0), BlockOffset(0));
        Ok(Step::Answer(Self::succeeded(
            op,
            Some(generation),
            none.0,
            none.1,
        )))
    }

    // ---- BIND ----

    //= kbtp-p4-bind-completed
    fn bind(
        &mut self,
        cx: &Context<'_>,
        op: &Op,
        bind: &Bind,
        seal: bool,
    ) -> Result<Result<Step, Status>, SessionEnd> {
        if let Some(tickets) = &mut self.tickets {
            tickets.look(cx.now, cx.shared)?;
        }
        Ok(self.bind_checked(cx.shared, op, bind, seal))
    }

    //= kbtp-6.6-bind-verified
    //= kbtp-6.6-bind-order
    fn bind_checked(
        &mut self,
        shared: &Shared,
        op: &Op,
        bind: &Bind,
        seal: bool,
    ) -> Result<Step, Status> {
        let row = self.own_row(shared, op)?;
        //= kbtp-p4-bind-not-valid
        check_unbound(op, &shared.pool.entry(row))?;
        if bind.data_len.0 > shared.pool.geometry().block_size {
            return Err(Status::LengthError);
        }
        if self.usage() > self.grant.quota {
            return Err(Status::NoSpace);
        }
        let tickets = self.tickets.as_mut().ok_or(Status::Unsupported)?;
        match tickets.check(shared, bind.ticket, bind.block) {
            Status::Ok => {}
            status => return Err(status),
        }
        let home = tickets.home();
        // The slot holds the ticket's block, so it is there to consume.
        let block = shared
            .pool
            .consume(home, bind.ticket, self.domain)
            .ok_or(Status::InternalError)?;
        tickets.bound(bind.ticket);
        Ok(Step::Answer(self.bind_row(
            shared,
            op,
            row,
            block,
            bind.data_len,
            seal,
        )))
    }

    // ---- Shared by all ----

    /// The row of a handle of this session's range.
    //= kbtp-p7-not-authorized
    //= kbtp-6.2-store-in-range
    //= kbtp-6.3-handle-in-range
    fn own_row(&self, shared: &Shared, op: &Op) -> Result<u64, Status> {
        let row = shared.pool.geometry().row(op.handle);
        let own = self.first_row..self.first_row.saturating_add(self.rows);
        row.filter(|row| own.contains(row) || planted(Plant::RangeIgnored))
            .ok_or(Status::NotAuthorized)
    }

    fn check_length(&self, shared: &Shared, data: Data) -> Result<(), Status> {
        //= kbtp-p7-length-error-store
        let too_long = data.len().0 > shared.pool.geometry().block_size;
        //= kbtp-p7-length-error-inline
        let wrong = match data {
            Data::Remote(_) => false,
            Data::Inline { declared, present } => {
                declared.0 > self.grant.max_inline
                    || declared.get() != present as u64 && !planted(Plant::InlineLengthIgnored)
            }
        };
        if too_long || wrong {
            Err(Status::LengthError)
        } else {
            Ok(())
        }
    }

    pub(super) fn post_read(
        &self,
        cx: &mut Context<'_>,
        op: &Op,
        block: BlockOffset,
        posted: Posted,
    ) {
        let (Ask::Store {
            data: Data::Remote(buffer),
            ..
        }
        | Ask::AllocStore {
            data: Data::Remote(buffer),
            ..
        }) = op.ask
        else {
            return;
        };
        cx.outbox.push(Outgoing::Read {
            local: local(self.pool_stag, block, buffer.len),
            remote: RemoteBuffer {
                stag: buffer.stag,
                offset: buffer.offset,
            },
            posted,
        });
    }
}

/// Returns a held block.
pub(super) fn put_back(shared: &Shared, block: BlockIndex) {
    let deferred = shared.pool.put_back(block);
    add(&shared.stats.frees_deferred, u64::from(deferred));
}

/// The checks of a LOAD after those of its handle.
//= kbtp-6.1-load-valid
//= kbtp-6.1-load-sealed
//= kbtp-6.1-load-length
fn check_load(
    op: &Op,
    entry: &TableEntry,
    sink: &DataDescriptor,
    allow_unsealed: bool,
) -> Result<(), Status> {
    check_valid(op, entry)?;
    //= kbtp-p7-not-sealed
    if !entry.is_sealed() && !allow_unsealed && !planted(Plant::UnsealedIgnored) {
        return Err(Status::NotSealed);
    }
    if entry.data_len.0 > sink.len.0 && !planted(Plant::SinkLengthIgnored) {
        return Err(Status::LengthError);
    }
    Ok(())
}

//= kbtp-p7-not-valid
fn check_valid(op: &Op, entry: &TableEntry) -> Result<(), Status> {
    if entry.is_valid() {
        check_generation(op, entry.generation)
    } else {
        Err(Status::NotValid)
    }
}

//= kbtp-p7-already-valid
fn check_unbound(op: &Op, entry: &TableEntry) -> Result<(), Status> {
    if entry.is_valid() && !planted(Plant::AlreadyValidIgnored) {
        Err(Status::AlreadyValid)
    } else {
        check_generation(op, entry.generation)
    }
}

//= kbtp-p7-generation-mismatch
//= kbtp-5.1-generation-any
fn check_generation(op: &Op, found: Option<Generation>) -> Result<(), Status> {
    match op.generation {
        Some(expected) if Some(expected) != found && !planted(Plant::GenerationIgnored) => {
            Err(Status::GenerationMismatch)
        }
        _ => Ok(()),
    }
}

/// Writes inline data, or none if there is none: whether that could be done; `None` if the data has to be read.
//= kbtp-6.2-store-data
//= kbtp-p7-zero-length-legal
fn write_inline(shared: &Shared, block: BlockIndex, data: Data, inline: &[u8]) -> Option<bool> {
    match data {
        Data::Remote(buffer) if buffer.len.0 > 0 => None,
        Data::Remote(_) => Some(true),
        Data::Inline { present, .. } => {
            Some(inline.len() == present && shared.pool.write(block, inline))
        }
    }
}

fn local(stag: Stag, block: BlockOffset, len: ByteLen) -> LocalBuffer {
    LocalBuffer {
        stag,
        offset: TaggedOffset(block.0),
        len,
    }
}
