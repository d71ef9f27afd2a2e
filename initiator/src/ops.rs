//! Pipelined operations: how to say what to do, to begin it, and to claim it.
#![expect(
    clippy::result_large_err,
    reason = "a rejected submission gives the buffer back, and back-pressure must not allocate"
)]

use crate::buffer::{Buffer, Role};
use crate::client::Client;
use crate::dial::Dial;
use crate::error::{ClientError, Ended, Rejected};
use crate::table::{Owner, Place};
use kbtp_core::initiator::{Done, NEVER, Operation, Request, Source};
use kbtp_wire::{Generation, Handle, Stag};
use std::sync::Arc;
use std::time::Duration;

/// How to load a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadOptions {
    /// The Generation it must have; `None`: any. With the Generation that the store gave, a block that was replaced is
    /// never taken for the one stored.
    pub generation: Option<Generation>,
    /// Take an unsealed block too. Not for direct loads.
    pub allow_unsealed: bool,
    /// How long it may take; `None`: as the client's options say.
    pub timeout: Option<Duration>,
}

/// How to store a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreOptions {
    /// The Generation it must have; `None`: any. For stores to a bound handle only.
    pub generation: Option<Generation>,
    /// Seal it: it then does not change until it is freed, and others may load it.
    pub seal: bool,
    /// How long it may take; `None`: as the client's options say.
    pub timeout: Option<Duration>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            generation: None,
            seal: true,
            timeout: None,
        }
    }
}

/// How to free a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FreeOptions {
    /// The Generation it must have; `None`: any.
    pub generation: Option<Generation>,
    /// How long it may take; `None`: as the client's options say.
    pub timeout: Option<Duration>,
}

/// A pipelined operation, to be claimed by [`Client::wait`] or [`Client::wait_any`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Op {
    pub(crate) index: u32,
    pub(crate) stamp: u32,
}

/// A pipelined operation that ended.
#[derive(Debug)]
pub struct Completed {
    /// Which.
    pub op: Op,
    /// What it was.
    pub operation: Operation,
    /// On which handle.
    pub handle: Handle,
    /// How it ended.
    pub result: Result<Done, ClientError>,
    /// Its buffer (a free has none).
    pub buffer: Option<Buffer>,
}

/// What to launch, without its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) operation: Operation,
    pub(crate) handle: Handle,
    pub(crate) generation: Option<Generation>,
    /// Stores: seal. Loads: take an unsealed block too.
    pub(crate) flag: bool,
    pub(crate) timeout: Option<Duration>,
}

impl Plan {
    pub(crate) const fn load(handle: Handle, options: &LoadOptions, direct: bool) -> Self {
        Self {
            operation: if direct {
                Operation::LoadDirect
            } else {
                Operation::Load
            },
            handle,
            generation: options.generation,
            flag: options.allow_unsealed,
            timeout: options.timeout,
        }
    }

    pub(crate) const fn store(
        operation: Operation,
        handle: Handle,
        options: &StoreOptions,
    ) -> Self {
        Self {
            operation,
            handle,
            generation: options.generation,
            flag: options.seal,
            timeout: options.timeout,
        }
    }

    pub(crate) const fn free(handle: Handle, options: &FreeOptions) -> Self {
        Self {
            operation: Operation::Free,
            handle,
            generation: options.generation,
            flag: false,
            timeout: options.timeout,
        }
    }

    /// It found no room in time.
    pub(crate) const fn late(&self) -> ClientError {
        ClientError::Deadline {
            operation: self.operation,
            handle: self.handle,
            sent: false,
        }
    }

    pub(crate) const fn role(&self) -> Option<Role> {
        match self.operation {
            Operation::Load | Operation::LoadDirect => Some(Role::Sink),
            Operation::Store | Operation::AllocStore | Operation::AllocDirect => Some(Role::Source),
            _ => None,
        }
    }
}

impl Op {
    /// Its place among the client's operations.
    #[cfg(feature = "tokio")]
    pub(crate) const fn index(self) -> u32 {
        self.index
    }
}

impl<D: Dial> Client<D> {
    /// Starts a load into `buffer`, without waiting.
    ///
    /// # Errors
    /// [`Rejected`], with the buffer: nothing was sent. [`ClientError::is_busy`] if the session's credits are in use.
    pub fn submit_load(
        &mut self,
        handle: Handle,
        buffer: Buffer,
        options: &LoadOptions,
    ) -> Result<Op, Rejected> {
        self.submit(&Plan::load(handle, options, false), Some(buffer))
    }

    /// Starts a direct load into `buffer`, without waiting.
    ///
    /// # Errors
    /// As [`submit_load`](Self::submit_load).
    pub fn submit_load_direct(
        &mut self,
        handle: Handle,
        buffer: Buffer,
        options: &LoadOptions,
    ) -> Result<Op, Rejected> {
        self.submit(&Plan::load(handle, options, true), Some(buffer))
    }

    /// Starts a store of the data of `buffer` to a bound handle, without waiting.
    ///
    /// # Errors
    /// As [`submit_load`](Self::submit_load).
    pub fn submit_store(
        &mut self,
        handle: Handle,
        buffer: Buffer,
        options: &StoreOptions,
    ) -> Result<Op, Rejected> {
        self.submit(
            &Plan::store(Operation::Store, handle, options),
            Some(buffer),
        )
    }

    /// Starts a store of the data of `buffer` to an unbound handle, without waiting.
    ///
    /// # Errors
    /// As [`submit_load`](Self::submit_load).
    pub fn submit_alloc_store(
        &mut self,
        handle: Handle,
        buffer: Buffer,
        options: &StoreOptions,
    ) -> Result<Op, Rejected> {
        let plan = Plan::store(Operation::AllocStore, handle, options);
        self.submit(&plan, Some(buffer))
    }

    /// Starts a direct allocation for the data of `buffer`, without waiting.
    ///
    /// # Errors
    /// As [`submit_load`](Self::submit_load).
    pub fn submit_alloc_direct(
        &mut self,
        handle: Handle,
        buffer: Buffer,
        options: &StoreOptions,
    ) -> Result<Op, Rejected> {
        let plan = Plan::store(Operation::AllocDirect, handle, options);
        self.submit(&plan, Some(buffer))
    }

    /// Starts a free, without waiting.
    ///
    /// # Errors
    /// As [`submit_load`](Self::submit_load).
    pub fn submit_free(&mut self, handle: Handle, options: &FreeOptions) -> Result<Op, Rejected> {
        self.submit(&Plan::free(handle, options), None)
    }

    pub(crate) fn submit(
        &mut self,
        plan: &Plan,
        mut buffer: Option<Buffer>,
    ) -> Result<Op, Rejected> {
        let index = match self.launch(plan, buffer.as_mut(), Owner::Pipelined(None)) {
            Ok(index) => index,
            Err(error) => return Err(Rejected { error, buffer }),
        };
        let mut stamp = 0;
        if let Some(entry) = self.table.entry(index) {
            stamp = entry.stamp;
            if let Place::Flying { owner, .. } = &mut entry.place {
                *owner = Owner::Pipelined(buffer);
            }
        }
        self.table.pipelined = self.table.pipelined.saturating_add(1);
        Ok(Op { index, stamp })
    }

    /// Sends what was submitted and takes what came, without waiting.
    pub fn poll(&mut self) {
        self.pump();
    }

    /// The next pipelined operation that ended, in the order they ended, without waiting; `None` if none has.
    pub fn poll_any(&mut self) -> Option<Completed> {
        if self.table.claimable.is_empty() {
            self.pump();
        }
        let index = self.table.claimable.pop_front()?;
        self.table.claim(index)
    }

    /// Waits for the next pipelined operation to end; `None` if none is in flight.
    ///
    /// # Errors
    /// [`ClientError::Os`] if waiting fails.
    pub fn wait_any(&mut self) -> Result<Option<Completed>, ClientError> {
        loop {
            if let Some(index) = self.table.claimable.pop_front() {
                return Ok(self.table.claim(index));
            }
            if self.table.pipelined == 0 {
                return Ok(None);
            }
            self.turn(NEVER)?;
        }
    }

    /// Waits for one pipelined operation to end.
    ///
    /// # Errors
    /// [`ClientError::UnknownOp`] if it is not in flight (claimed before), [`ClientError::Os`] if waiting fails. How the operation
    /// itself ended is in [`Completed`].
    pub fn wait(&mut self, op: Op) -> Result<Completed, ClientError> {
        loop {
            if let Some(completed) = self.try_claim(op)? {
                return Ok(completed);
            }
            self.turn(NEVER)?;
        }
    }

    /// Claims one pipelined operation if it has ended.
    ///
    /// # Errors
    /// [`ClientError::UnknownOp`].
    pub fn try_claim(&mut self, op: Op) -> Result<Option<Completed>, ClientError> {
        match self.table.entry(op.index) {
            Some(entry) if entry.stamp == op.stamp => {}
            _ => return Err(ClientError::UnknownOp),
        }
        let claimed = self.table.claim(op.index);
        if claimed.is_some() {
            self.table.claimable.retain(|index| *index != op.index);
        }
        Ok(claimed)
    }

    /// Gives a pipelined operation up: it ends at once, as [`ClientError::Cancelled`] unless it had ended already, and its
    /// buffer comes back when it is claimed. Nothing is written to the buffer any more; what the target still sends is
    /// dropped. Whether the target carries it out is not known.
    ///
    /// A store that the target has not read yet is cut off by ending the stream (the target's read of a buffer taken
    /// away breaks the protocol): leave it in flight where that matters.
    ///
    /// # Errors
    /// [`ClientError::UnknownOp`].
    pub fn cancel(&mut self, op: Op) -> Result<(), ClientError> {
        let id = match self.table.entry(op.index) {
            Some(entry) if entry.stamp == op.stamp => match &entry.place {
                Place::Flying { op, .. } => *op,
                _ => return Ok(()),
            },
            _ => return Err(ClientError::UnknownOp),
        };
        self.link.initiator.give_up(id);
        self.pump();
        Ok(())
    }

    /// Leaves a pipelined operation to itself: its buffer is kept until nothing touches it, then dropped.
    #[cfg(feature = "tokio")]
    pub(crate) fn disown(&mut self, op: Op) {
        let Some(entry) = self.table.entry(op.index).filter(|e| e.stamp == op.stamp) else {
            return;
        };
        if let Place::Flying { owner, .. } = &mut entry.place {
            if let Owner::Pipelined(buffer) = owner {
                *owner = Owner::Nobody(buffer.take());
                self.table.pipelined = self.table.pipelined.saturating_sub(1);
            }
        } else {
            drop(self.try_claim(op));
        }
    }

    /// Operations in flight, those given up and still unanswered included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.link.initiator.in_flight()
    }

    /// Requests that can be submitted now.
    #[must_use]
    pub fn free_credits(&self) -> u32 {
        self.link.initiator.free_credits()
    }

    /// Begins an operation: finds it a place, lends its buffer, hands it to the initiator.
    fn launch(
        &mut self,
        plan: &Plan,
        buffer: Option<&mut Buffer>,
        owner: Owner,
    ) -> Result<u32, ClientError> {
        if let Some(cause) = self.link.ended() {
            return Err(ClientError::NotConnected {
                cause: Arc::clone(cause),
            });
        }
        let index = self
            .table
            .free
            .last()
            .copied()
            .ok_or(ClientError::Unclaimed {
                limit: self.table.entries.len(),
            })?;
        let deadline = self.deadline(plan.timeout);
        let (request, lent) = self.request(plan, buffer)?;
        let op = self
            .link
            .initiator
            .submit(request, u64::from(index), deadline)
            .map_err(|reason| ClientError::Rejected {
                operation: plan.operation,
                handle: plan.handle,
                reason,
            })?;
        self.table.free.pop();
        if let Some(entry) = self.table.entry(index) {
            entry.place = Place::Flying { op, lent, owner };
        }
        Ok(index)
    }

    /// Begins an item of a batch.
    pub(crate) fn launch_item(
        &mut self,
        plan: &Plan,
        buffer: Option<&mut Buffer>,
        item: usize,
    ) -> Result<(), ClientError> {
        self.launch(plan, buffer, Owner::Batch(item)).map(|_| ())
    }

    /// The request of a plan, its buffer registered.
    fn request(
        &mut self,
        plan: &Plan,
        buffer: Option<&mut Buffer>,
    ) -> Result<(Request, Option<(Role, Stag)>), ClientError> {
        let (handle, generation) = (plan.handle, plan.generation);
        let (Some(role), Some(buffer)) = (plan.role(), buffer) else {
            return Ok((Request::Free { handle, generation }, None));
        };
        let invalidate = self.options.invalidate;
        let epoch = self.link.epoch;
        let Some(stream) = self.link.stream() else {
            return Err(ClientError::NotConnected {
                cause: Arc::new(Ended::Closed),
            });
        };
        let lent = buffer.lend(stream, epoch, &self.returned, role, invalidate)?;
        let from = if lent.len <= self.terms().max_inline {
            Source::Inline(lent)
        } else {
            Source::Read {
                from: lent,
                invalidate,
            }
        };
        let seal = plan.flag;
        let request = match plan.operation {
            Operation::Load => Request::Load {
                handle,
                generation,
                into: lent,
                allow_unsealed: plan.flag,
                invalidate,
            },
            Operation::LoadDirect => Request::LoadDirect {
                handle,
                generation,
                into: lent,
            },
            Operation::Store => Request::Store {
                handle,
                generation,
                from,
                seal,
            },
            Operation::AllocDirect => Request::AllocDirect {
                handle,
                from: lent,
                seal,
            },
            _ => Request::AllocStore { handle, from, seal },
        };
        Ok((request, Some((role, lent.stag))))
    }
}
