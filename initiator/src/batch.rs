//! Blocking operations: one, or many that keep the session's credits full.

use crate::buffer::Buffer;
use crate::client::Client;
use crate::dial::Dial;
use crate::error::ClientError;
use crate::ops::{FreeOptions, LoadOptions, Plan, StoreOptions};
use crate::table::Outcome;
use kbtp_core::initiator::{Done, NEVER, Operation};
use kbtp_wire::Handle;

/// One load of a batch.
#[derive(Debug)]
pub struct LoadItem<'b> {
    /// Which block.
    pub handle: Handle,
    /// How.
    pub options: LoadOptions,
    /// Where to.
    pub buffer: &'b mut Buffer,
    /// How it ended; `None` until the batch has run.
    pub result: Option<Result<Done, ClientError>>,
}

impl<'b> LoadItem<'b> {
    /// A load of any Generation.
    #[must_use]
    pub fn new(handle: Handle, buffer: &'b mut Buffer) -> Self {
        Self {
            handle,
            options: LoadOptions::default(),
            buffer,
            result: None,
        }
    }
}

/// One store of a batch.
#[derive(Debug)]
pub struct StoreItem<'b> {
    /// Which handle.
    pub handle: Handle,
    /// How.
    pub options: StoreOptions,
    /// The data.
    pub buffer: &'b mut Buffer,
    /// How it ended; `None` until the batch has run.
    pub result: Option<Result<Done, ClientError>>,
}

impl<'b> StoreItem<'b> {
    /// A store that seals.
    #[must_use]
    pub fn new(handle: Handle, buffer: &'b mut Buffer) -> Self {
        Self {
            handle,
            options: StoreOptions::default(),
            buffer,
            result: None,
        }
    }
}

/// One free of a batch.
#[derive(Debug)]
pub struct FreeItem {
    /// Which block.
    pub handle: Handle,
    /// How.
    pub options: FreeOptions,
    /// How it ended; `None` until the batch has run.
    pub result: Option<Result<Done, ClientError>>,
}

impl FreeItem {
    /// A free of any Generation.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self {
            handle,
            options: FreeOptions::default(),
            result: None,
        }
    }
}

/// What a batch needs of its items.
pub(crate) trait Item {
    /// The operation, unless there is none to be done.
    fn plan(&self, kind: Operation) -> Plan;
    fn buffer(&mut self) -> Option<&mut Buffer>;
    fn put(&mut self, result: Result<Done, ClientError>);
}

impl Item for LoadItem<'_> {
    fn plan(&self, kind: Operation) -> Plan {
        Plan::load(self.handle, &self.options, kind == Operation::LoadDirect)
    }

    fn buffer(&mut self) -> Option<&mut Buffer> {
        Some(self.buffer)
    }

    fn put(&mut self, result: Result<Done, ClientError>) {
        self.result = Some(result);
    }
}

impl Item for StoreItem<'_> {
    fn plan(&self, kind: Operation) -> Plan {
        Plan::store(kind, self.handle, &self.options)
    }

    fn buffer(&mut self) -> Option<&mut Buffer> {
        Some(self.buffer)
    }

    fn put(&mut self, result: Result<Done, ClientError>) {
        self.result = Some(result);
    }
}

impl Item for FreeItem {
    fn plan(&self, _kind: Operation) -> Plan {
        Plan::free(self.handle, &self.options)
    }

    fn buffer(&mut self) -> Option<&mut Buffer> {
        None
    }

    fn put(&mut self, result: Result<Done, ClientError>) {
        self.result = Some(result);
    }
}

impl<D: Dial> Client<D> {
    /// Loads a block into `buffer` and waits for it (draft, section 6.1). One round trip.
    ///
    /// With [`Reconnect::Automatic`](crate::Reconnect::Automatic), a load that a broken connection cut off is tried again
    /// once, if what was bound is still bound.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::is_missing`] if the block is not there.
    pub fn load(
        &mut self,
        handle: Handle,
        buffer: &mut Buffer,
        options: &LoadOptions,
    ) -> Result<Done, ClientError> {
        self.load_again(Operation::Load, handle, buffer, options)
    }

    /// Loads a block with RDMA Reads of the target's table and pool (draft, section 6.6): three round trips, four if
    /// no Generation is expected, and none of the target's processor. The block must be sealed.
    ///
    /// # Errors
    /// As [`load`](Self::load); [`ClientError::Unstable`] if the entry changed under each attempt.
    pub fn load_direct(
        &mut self,
        handle: Handle,
        buffer: &mut Buffer,
        options: &LoadOptions,
    ) -> Result<Done, ClientError> {
        self.load_again(Operation::LoadDirect, handle, buffer, options)
    }

    fn load_again(
        &mut self,
        kind: Operation,
        handle: Handle,
        buffer: &mut Buffer,
        options: &LoadOptions,
    ) -> Result<Done, ClientError> {
        let mut item = LoadItem {
            handle,
            options: *options,
            buffer,
            result: None,
        };
        let first = self.one(kind, &mut item);
        let cut_off = matches!(first, Err(ClientError::Disconnected { .. }));
        if !cut_off {
            return first;
        }
        match self.ensure_open(self.deadline(options.timeout)) {
            Ok(resumed) if resumed.is_none_or(|resumed| resumed.bindings_kept()) => {
                self.one(kind, &mut item)
            }
            _ => first,
        }
    }

    /// Stores the data of `buffer` to a bound, unsealed handle and waits for the answer (draft, section 6.2).
    ///
    /// # Errors
    /// [`ClientError`]. Where [`ClientError::outcome_unknown`], the block may hold old or new data; it is never tried again here.
    pub fn store(
        &mut self,
        handle: Handle,
        buffer: &mut Buffer,
        options: &StoreOptions,
    ) -> Result<Done, ClientError> {
        self.store_one(Operation::Store, handle, buffer, options)
    }

    /// Binds an unbound handle to a free block with the data of `buffer` and waits for the answer (draft, section
    /// 6.3). Keep the Generation it gives, and load with it.
    ///
    /// # Errors
    /// [`ClientError`]. Where [`ClientError::outcome_unknown`], the handle may be bound: free it before the next use.
    pub fn alloc_store(
        &mut self,
        handle: Handle,
        buffer: &mut Buffer,
        options: &StoreOptions,
    ) -> Result<Done, ClientError> {
        self.store_one(Operation::AllocStore, handle, buffer, options)
    }

    /// As [`alloc_store`](Self::alloc_store), by taking a block from the initiator's own ring and writing it with RDMA
    /// Write (draft, section 6.6): four round trips, and the target's processor only for the BIND.
    ///
    /// # Errors
    /// As [`alloc_store`](Self::alloc_store); [`ClientError::TicketTimeout`] if the ring gave no block in time.
    pub fn alloc_direct(
        &mut self,
        handle: Handle,
        buffer: &mut Buffer,
        options: &StoreOptions,
    ) -> Result<Done, ClientError> {
        self.store_one(Operation::AllocDirect, handle, buffer, options)
    }

    fn store_one(
        &mut self,
        kind: Operation,
        handle: Handle,
        buffer: &mut Buffer,
        options: &StoreOptions,
    ) -> Result<Done, ClientError> {
        let mut item = StoreItem {
            handle,
            options: *options,
            buffer,
            result: None,
        };
        self.one(kind, &mut item)
    }

    /// Frees a handle and waits for the answer (draft, section 6.4).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn free(&mut self, handle: Handle, options: &FreeOptions) -> Result<Done, ClientError> {
        let mut item = FreeItem {
            handle,
            options: *options,
            result: None,
        };
        self.one(Operation::Free, &mut item)
    }

    /// Loads many blocks, with as many requests in flight as the session allows. Returns how many were loaded; each
    /// item says how it ended. No allocation.
    ///
    /// # Errors
    /// [`ClientError::Os`] if waiting fails, [`ClientError`] if there is no connection; items without a result were not begun.
    pub fn load_many(&mut self, items: &mut [LoadItem<'_>]) -> Result<usize, ClientError> {
        self.run(Operation::Load, items)
    }

    /// As [`load_many`](Self::load_many), with direct loads.
    ///
    /// # Errors
    /// As [`load_many`](Self::load_many).
    pub fn load_direct_many(&mut self, items: &mut [LoadItem<'_>]) -> Result<usize, ClientError> {
        self.run(Operation::LoadDirect, items)
    }

    /// Stores many blocks to bound handles.
    ///
    /// # Errors
    /// As [`load_many`](Self::load_many).
    pub fn store_many(&mut self, items: &mut [StoreItem<'_>]) -> Result<usize, ClientError> {
        self.run(Operation::Store, items)
    }

    /// Stores many blocks to unbound handles.
    ///
    /// # Errors
    /// As [`load_many`](Self::load_many).
    pub fn alloc_store_many(&mut self, items: &mut [StoreItem<'_>]) -> Result<usize, ClientError> {
        self.run(Operation::AllocStore, items)
    }

    /// As [`alloc_store_many`](Self::alloc_store_many), with direct allocations.
    ///
    /// # Errors
    /// As [`load_many`](Self::load_many).
    pub fn alloc_direct_many(&mut self, items: &mut [StoreItem<'_>]) -> Result<usize, ClientError> {
        self.run(Operation::AllocDirect, items)
    }

    /// Frees many handles.
    ///
    /// # Errors
    /// As [`load_many`](Self::load_many).
    pub fn free_many(&mut self, items: &mut [FreeItem]) -> Result<usize, ClientError> {
        self.run(Operation::Free, items)
    }

    /// One operation, waited for.
    fn one<I: Item>(&mut self, kind: Operation, item: &mut I) -> Result<Done, ClientError> {
        let mut slot = One { item, result: None };
        self.run(kind, std::slice::from_mut(&mut slot))?;
        slot.result.unwrap_or(Err(ClientError::UnknownOp))
    }

    /// Runs a batch to its end: every item launched gets a result before this returns, whatever happens, because the
    /// batch borrows their buffers.
    pub(crate) fn run<I: Item>(
        &mut self,
        kind: Operation,
        items: &mut [I],
    ) -> Result<usize, ClientError> {
        let Some(first) = items.first().map(|item| item.plan(kind)) else {
            return Ok(0);
        };
        let give_up_at = self.deadline(first.timeout);
        self.ensure_open(give_up_at)?;
        let (mut next, mut flying, mut good) = (0, 0_usize, 0);
        let mut failed = None;
        loop {
            while failed.is_none()
                && let Some(item) = items.get_mut(next)
            {
                let plan = item.plan(kind);
                match self.launch_item(&plan, item.buffer(), next) {
                    Ok(()) => flying = flying.saturating_add(1),
                    // Something of this batch will end and make room; or what others left in flight will.
                    Err(error) if error.is_busy() && (flying > 0 || self.now() < give_up_at) => {
                        break;
                    }
                    Err(error) if error.is_busy() => item.put(Err(plan.late())),
                    Err(error) => item.put(Err(error)),
                }
                next = next.saturating_add(1);
            }
            if flying == 0 && (failed.is_some() || next >= items.len()) {
                return failed.map_or(Ok(good), Err);
            }
            let until = if flying == 0 { give_up_at } else { NEVER };
            if let Err(error) = self.turn(until) {
                // Without a way to wait there is no way on: what is in flight is cut off.
                self.cut_off();
                failed = Some(error);
            }
            while let Some((index, outcome)) = self.table.next_of_batch() {
                flying = flying.saturating_sub(1);
                good += usize::from(outcome.result.is_ok());
                finish(items.get_mut(index), outcome);
            }
        }
    }
}

fn finish<I: Item>(item: Option<&mut I>, outcome: Outcome) {
    let Some(item) = item else {
        return;
    };
    outcome.apply(item.buffer());
    item.put(outcome.result);
}

/// A batch of one that keeps its result by itself.
struct One<'i, I> {
    item: &'i mut I,
    result: Option<Result<Done, ClientError>>,
}

impl<I: Item> Item for One<'_, I> {
    fn plan(&self, kind: Operation) -> Plan {
        self.item.plan(kind)
    }

    fn buffer(&mut self) -> Option<&mut Buffer> {
        self.item.buffer()
    }

    fn put(&mut self, result: Result<Done, ClientError>) {
        self.result = Some(result);
    }
}
