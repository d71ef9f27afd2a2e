//! A template: what one slot of a session's queues holds, without addresses and keys.
//!
//! A slot serves one request. Its receive WQE scatters the request's octets into WQEs of the slot; these look up what the
//! request asks for and write the opcodes of others, which lie there as NOPs.

use crate::element::{Bound, Cq, Element, Name, Piece, Queue, Shape};
use crate::memory::{Memory, Spot};

/// Who writes octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The request, scattered by the receive WQE.
    Request,
    /// A WQE of the slot.
    Element(Name),
}

/// Octets of a WQE that are written while the slot runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patch {
    /// Who writes.
    pub source: Source,
    /// Where in what the source reads the octets come from: in the message, or in the responder's memory.
    pub from: u32,
    /// Which octets.
    pub target: Spot,
}

/// A slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    /// What it is for.
    pub name: &'static str,
    /// WQEs of the loopback queue pair, in order.
    pub worker: Vec<Element>,
    /// WQEs of the client's queue pair, in order.
    pub client: Vec<Element>,
    /// Where a request's octets go.
    pub receive: Vec<Piece>,
    /// Octets that a request may have: what the receive list holds.
    pub capacity: u32,
    /// Basic blocks of a slot of the loopback queue pair: those of its WQEs, and NOPs behind them.
    pub worker_stride: u16,
    /// The same of the client's queue pair.
    pub client_stride: u16,
    /// WQEs of the loopback queue pair that the slot before this one enables.
    pub head: u8,
}

impl Template {
    /// The same for requests of up to so many octets, inline data included: what follows header and descriptor lies in the sink,
    /// for software. Never less than before.
    #[must_use]
    pub fn with_capacity(mut self, octets: u32) -> Self {
        let more = octets.saturating_sub(self.capacity);
        if let Some(sink) = self.receive.last_mut() {
            sink.spot.len = sink.spot.len.saturating_add(more);
            self.capacity = self.capacity.saturating_add(more);
        }
        self
    }

    /// The WQEs of a queue, in order.
    #[must_use]
    pub fn queue(&self, queue: Queue) -> &[Element] {
        match queue {
            Queue::Worker => &self.worker,
            Queue::Client => &self.client,
        }
    }

    /// Basic blocks of a slot of a queue.
    #[must_use]
    pub const fn stride(&self, queue: Queue) -> u16 {
        match queue {
            Queue::Worker => self.worker_stride,
            Queue::Client => self.client_stride,
        }
    }

    /// Every WQE with its queue: the loopback queue pair's, then the client's.
    pub fn elements(&self) -> impl Iterator<Item = (Queue, &Element)> {
        let of = |queue: Queue| self.queue(queue).iter().map(move |one| (queue, one));
        of(Queue::Worker).chain(of(Queue::Client))
    }

    /// The WQE with this name.
    #[must_use]
    pub fn find(&self, name: Name) -> Option<(Queue, &Element)> {
        self.elements().find(|(_, one)| one.name == name)
    }

    /// The WQE with this name, to change it.
    #[must_use]
    pub fn find_mut(&mut self, name: Name) -> Option<&mut Element> {
        self.worker
            .iter_mut()
            .chain(&mut self.client)
            .find(|one| one.name == name)
    }

    /// Where a WQE starts, in basic blocks from the start of the slot.
    #[must_use]
    pub fn offset(&self, name: Name) -> Option<u16> {
        let (queue, _) = self.find(name)?;
        let before = self.queue(queue).iter().take_while(|one| one.name != name);
        Some(before.map(Element::basic_blocks).sum())
    }

    /// Where what a `SEND_EN` enables ends, in basic blocks from the start of the slot of the queue it enables. More than a
    /// stride: in the next slot.
    #[must_use]
    pub fn bound(&self, queue: Queue, bound: Bound) -> Option<u16> {
        match bound {
            Bound::Through(name) => {
                let (of, element) = self.find(name)?;
                (of == queue).then_some(())?;
                self.offset(name)?.checked_add(element.basic_blocks())
            }
            Bound::NextSlot(blocks) => self.stride(queue).checked_add(u16::from(blocks)),
        }
    }

    /// The WQEs of a queue that write CQEs, in order.
    pub fn signalled(&self, queue: Queue) -> impl Iterator<Item = Name> {
        let signalled = self.queue(queue).iter().filter(|one| one.signalled);
        signalled.map(|one| one.name)
    }

    /// CQEs that a slot puts into a completion queue.
    #[must_use]
    pub fn cqes(&self, cq: Cq) -> usize {
        match cq {
            Cq::Receive => 1,
            Cq::Client => self.signalled(Queue::Client).count(),
            Cq::Worker => self.signalled(Queue::Worker).count(),
        }
    }

    /// The `SEND_EN`s, in order, each with what it enables: as built, and those that a record makes.
    pub fn enables(&self) -> impl Iterator<Item = (Name, Queue, Bound)> {
        self.worker.iter().filter_map(|one| match one.shape {
            Shape::Enable(queue, bound) => Some((one.name, queue, bound)),
            _ => None,
        })
    }

    /// Every WQE octet that is written while the slot runs, and by whom. Compare and swap on a WQE counts as a patch of the
    /// whole word.
    #[must_use]
    pub fn patches(&self) -> Vec<Patch> {
        let mut patches = Vec::new();
        scatter(Source::Request, 0, &self.receive, &mut patches);
        for (_, element) in self.elements() {
            let source = Source::Element(element.name);
            let from = element
                .remote()
                .map_or(0, |remote| u32::from(remote.spot.at));
            if element.has_reply() {
                scatter(source, from, element.pieces(), &mut patches);
            }
            let word = match element.shape {
                Shape::CompareSwap { remote, .. } | Shape::FetchAdd { remote, .. } => remote.spot,
                _ => continue,
            };
            if let Memory::Wqe(_) = word.memory {
                patches.push(Patch {
                    source,
                    from: 0,
                    target: word,
                });
            }
        }
        patches
    }
}

fn scatter(source: Source, from: u32, pieces: &[Piece], patches: &mut Vec<Patch>) {
    let mut from = from;
    for piece in pieces {
        if let Memory::Wqe(_) = piece.spot.memory {
            patches.push(Patch {
                source,
                from,
                target: piece.spot,
            });
        }
        from = from.saturating_add(piece.spot.len);
    }
}
