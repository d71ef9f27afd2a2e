//! The client's operations: in flight, and ended but not claimed yet.

use crate::buffer::{Buffer, Role};
use crate::error::{ClientError, Ended};
use crate::limits::UNCLAIMED_FACTOR;
use crate::ops::{Completed, Op};
use kbtp_core::initiator::{Done, Failure, Finished, OpId, Operation, Terms};
use kbtp_wire::{Handle, Stag};
use std::collections::VecDeque;
use std::sync::Arc;

/// How an operation ended, and what that means for its buffer.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<Done, ClientError>,
    /// The registration of its buffer that is no more.
    pub(crate) forget: Option<Role>,
    pub(crate) operation: Operation,
    pub(crate) handle: Handle,
}

impl Outcome {
    /// Does to the buffer what the operation did to it.
    pub(crate) fn apply(&self, buffer: Option<&mut Buffer>) {
        let Some(buffer) = buffer else {
            return;
        };
        if let Some(role) = self.forget {
            buffer.forget(role);
        }
        if let (Ok(done), Operation::Load | Operation::LoadDirect) = (&self.result, self.operation)
        {
            buffer.loaded(done.len);
        }
    }
}

impl Outcome {
    /// As [`apply`](Self::apply); the result then.
    pub(crate) fn apply_to(self, buffer: &mut Buffer) -> Result<Done, ClientError> {
        self.apply(Some(buffer));
        self.result
    }
}

/// Who waits for an operation.
#[derive(Debug)]
pub(crate) enum Owner {
    /// A batch: the number of the item. Its buffer is borrowed by the batch.
    Batch(usize),
    /// A pipelined operation, with its buffer.
    Pipelined(Option<Buffer>),
    #[cfg(feature = "tokio")]
    /// Nobody any more: the buffer is kept until nothing touches it.
    Nobody(Option<Buffer>),
}

#[derive(Debug)]
pub(crate) enum Place {
    Free,
    Flying {
        op: OpId,
        /// The STag to retire if it is given up.
        lent: Option<(Role, Stag)>,
        owner: Owner,
    },
    Ended(Outcome, Option<Buffer>),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) stamp: u32,
    pub(crate) place: Place,
}

/// All operations of a client.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) entries: Vec<Entry>,
    pub(crate) free: Vec<u32>,
    /// Pipelined operations that ended, in order.
    pub(crate) claimable: VecDeque<u32>,
    /// Items of the running batch that ended.
    batch: VecDeque<(usize, Outcome)>,
    /// Counts operations that ended.
    ended: u64,
    /// Pipelined operations in flight.
    pub(crate) pipelined: usize,
}

impl Table {
    pub(crate) fn new(terms: &Terms) -> Self {
        let mut table = Self {
            entries: Vec::new(),
            free: Vec::new(),
            claimable: VecDeque::new(),
            batch: VecDeque::new(),
            ended: 0,
            pipelined: 0,
        };
        table.fit(terms);
        table
    }

    /// Makes room for what a session with these terms may have in flight. Only ever grows.
    pub(crate) fn fit(&mut self, terms: &Terms) {
        let slots = usize::from(terms.requests)
            .saturating_add(usize::from(kbtp_core::initiator::limits::MAX_DIRECT_LOADS));
        let capacity = slots.saturating_mul(UNCLAIMED_FACTOR);
        let more = capacity.saturating_sub(self.entries.len());
        self.free.reserve(capacity);
        self.claimable.reserve(capacity);
        self.batch.reserve(capacity);
        for _ in 0..more {
            let Ok(index) = u32::try_from(self.entries.len()) else {
                return;
            };
            self.free.push(index);
            self.entries.push(Entry {
                stamp: 0,
                place: Place::Free,
            });
        }
    }

    /// How many operations have ended so far.
    pub(crate) const fn ended(&self) -> u64 {
        self.ended
    }

    /// The next item of the running batch that ended.
    pub(crate) fn next_of_batch(&mut self) -> Option<(usize, Outcome)> {
        self.batch.pop_front()
    }

    pub(crate) fn entry(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(index).ok()?)
    }

    /// Numbers of the pipelined operations that ended and are not claimed.
    #[cfg(feature = "tokio")]
    pub(crate) fn claimable(&self) -> impl Iterator<Item = u32> + '_ {
        self.claimable.iter().copied()
    }

    /// Takes the report of an operation. Gives the STag to retire, if the operation was given up.
    pub(crate) fn settle(
        &mut self,
        finished: &Finished,
        cause: Option<&Arc<Ended>>,
    ) -> Option<Stag> {
        let index = u32::try_from(finished.token).ok()?;
        let entry = self.entry(index)?;
        let Place::Flying { op, lent, owner } = std::mem::replace(&mut entry.place, Place::Free)
        else {
            return None;
        };
        debug_assert_eq!(op, finished.op, "a token names one operation at a time");
        // A ticket that ran out leaves its buffer alone: nothing was posted with it.
        let given_up = matches!(finished.result, Err(Failure::GivenUp { .. }));
        let gone = finished.invalidated || given_up;
        let outcome = Outcome {
            result: finished
                .result
                .map_err(|failure| ClientError::of(finished, failure, cause)),
            forget: lent.filter(|_| gone).map(|(role, _)| role),
            operation: finished.operation,
            handle: finished.handle,
        };
        match owner {
            Owner::Pipelined(mut buffer) => {
                outcome.apply(buffer.as_mut());
                entry.place = Place::Ended(outcome, buffer);
                self.claimable.push_back(index);
                self.pipelined = self.pipelined.saturating_sub(1);
            }
            Owner::Batch(item) => {
                self.release(index);
                self.batch.push_back((item, outcome));
            }
            #[cfg(feature = "tokio")]
            Owner::Nobody(mut buffer) => {
                outcome.apply(buffer.as_mut());
                self.release(index);
            }
        }
        self.ended = self.ended.wrapping_add(1);
        lent.filter(|_| given_up).map(|(_, stag)| stag)
    }

    fn release(&mut self, index: u32) {
        if let Some(entry) = self.entry(index) {
            entry.place = Place::Free;
            entry.stamp = entry.stamp.wrapping_add(1);
        }
        self.free.push(index);
    }

    /// Takes an operation that ended out.
    pub(crate) fn claim(&mut self, index: u32) -> Option<Completed> {
        let entry = self.entry(index)?;
        let stamp = entry.stamp;
        match std::mem::replace(&mut entry.place, Place::Free) {
            Place::Ended(outcome, buffer) => {
                self.release(index);
                Some(Completed {
                    op: Op { index, stamp },
                    operation: outcome.operation,
                    handle: outcome.handle,
                    result: outcome.result,
                    buffer,
                })
            }
            other => {
                entry.place = other;
                None
            }
        }
    }
}
