//! The requests of a session that are under way, and their order per handle (profile, P8).
//!
//! A request that is answered at once never takes a slot. One that waits, reads or sends holds a slot until the stream
//! no longer needs its block. Requests on one handle take effect in the order sent (see [`Order`]).

use super::order::Order;
use crate::BlockIndex;
use crate::plants::{Plant, planted};
use kbtp_fabric::Time;
use kbtp_wire::{
    Bind, ByteLen, CompletionDescriptor, DataDescriptor, Generation, Handle, Opcode, Operation,
    Request, RequestId, Source, Stag, TableEntry, Ticket,
};

/// The number of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotIndex(pub(super) u16);

/// The number of a stash: a place for inline data that has to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StashIndex(pub(super) u16);

/// Where the data of a store comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Data {
    /// RDMA Read.
    Remote(DataDescriptor),
    /// The message; `declared` is what its descriptor says, `present` what follows.
    Inline { declared: ByteLen, present: usize },
}

impl Data {
    /// Octets of data, as the descriptor's Length says.
    pub(super) const fn len(&self) -> ByteLen {
        match self {
            Self::Remote(buffer) => buffer.len,
            Self::Inline { declared, .. } => *declared,
        }
    }
}

/// What a request asks for, without its inline octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Load {
        sink: DataDescriptor,
        allow_unsealed: bool,
    },
    Store {
        data: Data,
        seal: bool,
    },
    AllocStore {
        data: Data,
        seal: bool,
    },
    Free,
    Bind {
        bind: Bind,
        seal: bool,
    },
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Op {
    pub(super) request_id: RequestId,
    pub(super) handle: Handle,
    pub(super) generation: Option<Generation>,
    /// STag that the completion invalidates.
    pub(super) invalidate: Option<Stag>,
    /// Where its completion record goes, if it is to be completed by one.
    pub(super) record: Option<CompletionDescriptor>,
    pub(super) ask: Ask,
}

impl Op {
    /// The request, and the octets of inline data that follow it.
    pub(super) fn of<'a>(request: &Request<'a>) -> (Self, &'a [u8]) {
        let split = |source: Source<'a>| -> (Data, &'a [u8]) {
            match source {
                Source::Remote { buffer, .. } => (Data::Remote(buffer), &[]),
                Source::Inline { declared, octets } => (
                    Data::Inline {
                        declared,
                        present: octets.len(),
                    },
                    octets,
                ),
            }
        };
        let (ask, inline): (Ask, &[u8]) = match request.operation {
            Operation::Load {
                sink,
                allow_unsealed,
                ..
            } => (
                Ask::Load {
                    sink,
                    allow_unsealed,
                },
                &[],
            ),
            Operation::Store { source, seal } => {
                let (data, inline) = split(source);
                (Ask::Store { data, seal }, inline)
            }
            Operation::AllocStore { source, seal } => {
                let (data, inline) = split(source);
                (Ask::AllocStore { data, seal }, inline)
            }
            Operation::Free => (Ask::Free, &[]),
            Operation::Bind { bind, seal } => (Ask::Bind { bind, seal }, &[]),
        };
        let op = Self {
            request_id: request.request_id,
            handle: request.handle,
            generation: request.generation,
            invalidate: request.operation.invalidate(),
            record: request.record,
            ask,
        };
        (op, inline)
    }

    pub(super) const fn opcode(&self) -> Opcode {
        match self.ask {
            Ask::Load { .. } => Opcode::Load,
            Ask::Store { .. } => Opcode::Store,
            Ask::AllocStore { .. } => Opcode::AllocStore,
            Ask::Free => Opcode::Free,
            Ask::Bind { .. } => Opcode::Bind,
        }
    }

    /// Octets of inline data that follow it.
    pub(super) const fn inline_len(&self) -> usize {
        match self.ask {
            Ask::Store {
                data: Data::Inline { present, .. },
                ..
            }
            | Ask::AllocStore {
                data: Data::Inline { present, .. },
                ..
            } => present,
            _ => 0,
        }
    }

    const fn is_load(&self) -> bool {
        matches!(self.ask, Ask::Load { .. })
    }
}

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// An earlier request on its handle is under way.
    Waiting { stash: Option<StashIndex> },
    /// An ALLOC_STORE waits for its block: with a ticket for the end of a free, without one until `deadline`.
    Parked {
        stash: Option<StashIndex>,
        ticket: Option<Ticket>,
        deadline: Time,
    },
    /// The RDMA Read of an ALLOC_STORE is under way; the block is held.
    ReadingNew { block: BlockIndex },
    /// The RDMA Read of a STORE is under way into the block of this entry.
    ReadingBound { entry: TableEntry },
    /// A load sends from a pinned block.
    Sending {
        block: BlockIndex,
        entry: TableEntry,
    },
}

/// A slot that is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub(super) op: Op,
    pub(super) progress: Progress,
}

/// The slots of a session, and the order of their requests; none is allocated after it is made.
#[derive(Debug)]
pub(super) struct Slots {
    uses: Box<[Option<Slot>]>,
    free: Vec<SlotIndex>,
    order: Order,
}

impl Slots {
    pub(super) fn new(count: u16) -> Self {
        Self {
            uses: vec![None; usize::from(count)].into(),
            free: (0..count).rev().map(SlotIndex).collect(),
            order: Order::new(count),
        }
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Slots taken.
    pub(super) fn busy(&self) -> usize {
        self.uses.len().saturating_sub(self.free.len())
    }

    /// Whether a request that came now on this handle would have to wait.
    //= kbtp-p8-order-per-handle
    pub(super) fn blocks(&self, op: &Op) -> bool {
        self.busy() > 0
            && !planted(Plant::OrderIgnored)
            && self.order.blocks(op.handle, op.is_load())
    }

    /// A request that waited and has its turn now; call until there is none.
    pub(super) fn next_turn(&mut self) -> Option<SlotIndex> {
        self.order.next_turn()
    }

    /// Takes a slot; `None` if there is none.
    pub(super) fn take(&mut self, op: Op, progress: Progress) -> Option<SlotIndex> {
        let index = self.free.pop()?;
        if let Some(slot) = self.uses.get_mut(usize::from(index.0)) {
            *slot = Some(Slot { op, progress });
            let waits = matches!(progress, Progress::Waiting { .. });
            self.order.join(index, op.handle, op.is_load(), waits);
        }
        Some(index)
    }

    pub(super) fn get(&self, index: SlotIndex) -> Option<&Slot> {
        self.uses.get(usize::from(index.0)).and_then(Option::as_ref)
    }

    pub(super) fn set(&mut self, index: SlotIndex, progress: Progress) {
        if let Some(Some(slot)) = self.uses.get_mut(usize::from(index.0)) {
            slot.progress = progress;
        }
    }

    /// The number of this use of the slot, by which ends of work of an earlier use are known.
    pub(super) fn seq(&self, index: SlotIndex) -> u64 {
        self.order.seq(index)
    }

    /// Frees a slot.
    pub(super) fn release(&mut self, index: SlotIndex) -> Option<Slot> {
        let slot = self.uses.get_mut(usize::from(index.0))?.take()?;
        self.order.leave(index);
        self.free.push(index);
        Some(slot)
    }

    /// Every taken slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.uses.iter().flatten()
    }
}

/// Places for inline data that waits, one for each credit.
#[derive(Debug, Default)]
pub(super) struct Stashes {
    octets: Box<[u8]>,
    each: usize,
    free: Vec<StashIndex>,
}

impl Stashes {
    /// Cost: the memory is reserved, and used only once data waits in it.
    pub(super) fn new(count: u16, each: usize) -> Self {
        Self {
            octets: vec![0; usize::from(count).saturating_mul(each)].into(),
            each,
            free: (0..count).rev().map(StashIndex).collect(),
        }
    }

    /// Keeps inline data; `None` if there is none to keep, or if it is too long to be valid.
    pub(super) fn keep(&mut self, inline: &[u8]) -> Option<StashIndex> {
        if inline.is_empty() || inline.len() > self.each {
            return None;
        }
        let index = self.free.pop()?;
        let at = usize::from(index.0).saturating_mul(self.each);
        let place = self.octets.get_mut(at..at.saturating_add(inline.len()))?;
        place.copy_from_slice(inline);
        Some(index)
    }

    /// The data kept, `len` octets.
    pub(super) fn get(&self, index: StashIndex, len: usize) -> &[u8] {
        let at = usize::from(index.0).saturating_mul(self.each);
        self.octets.get(at..at.saturating_add(len)).unwrap_or(&[])
    }

    pub(super) fn release(&mut self, index: Option<StashIndex>) {
        self.free.extend(index);
    }
}
