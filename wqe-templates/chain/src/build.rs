//! From a template to octets: everything a slot's memory holds before its receive WQE is posted, in the order it is
//! written.

use crate::element::{Address, Cq, Element, Piece, Queue, Remote, Shape};
use crate::key::Key;
use crate::limits::SCRATCH_LINE;
use crate::memory::{Memory, Spot, scratch};
use crate::placement::Placement;
use crate::template::Template;
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{
    Atomic, Body, Comparison, Control, DataList, DataSegment, Enable, Fence, OnMismatch, Opcode,
    Payload, RemoteAddress, Signal, WaitCqe, WaitData, WaitFor, WqeBuffer,
};
use kbtp_wire::{ByteLen, RingCounter};

/// What the longest NOP skips.
const SKIPPED: [u8; 1008] = [0; 1008];

/// Why a template does not become octets.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A WQE is named that the template does not have, or a `SEND_EN` names one of another queue.
    #[error("{0}: there is no such WQE, or not in that queue")]
    Name(&'static str),
    /// A data segment has no octets, or too many.
    #[error("{0}: a data segment has no octets, or too many")]
    Length(&'static str),
    /// A WQE is too long.
    #[error("{0}: {1}")]
    TooLong(&'static str, kbtp_mlx5::WqeTooLong),
    /// The address of something that has none before the slot runs.
    #[error("{0}: the address of {1} is not known when the slot is armed")]
    Address(&'static str, String),
    /// The rings hold no slot.
    #[error("the rings are too small for one slot")]
    NoSlot,
    /// The WQEs of a queue take more basic blocks than the slot has.
    #[error("queue {0}: {1} basic blocks are more than the slot's {2}")]
    Stride(Queue, u16, u16),
}

/// Something done to arm a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Octets are written, in the address space of [`Key::Rings`].
    Write {
        /// Where.
        address: u64,
        /// What.
        octets: Vec<u8>,
    },
    /// All before is visible to the device before anything after.
    Barrier,
    /// The receive WQE is posted: from here a request may come.
    PostReceive(Vec<DataSegment>),
}

/// Builds slots of one session.
#[derive(Clone, Debug)]
pub struct Builder<'a> {
    template: &'a Template,
    placement: &'a Placement,
    block_size: ByteLen,
}

impl<'a> Builder<'a> {
    /// Of this template, at this place.
    ///
    /// # Errors
    /// [`BuildError::NoSlot`] or [`BuildError::Stride`] if slots do not fit.
    pub fn new(
        template: &'a Template,
        placement: &'a Placement,
        block_size: ByteLen,
    ) -> Result<Self, BuildError> {
        for queue in [Queue::Worker, Queue::Client] {
            let blocks = template
                .queue(queue)
                .iter()
                .map(Element::basic_blocks)
                .sum();
            let stride = template.stride(queue);
            if blocks > stride {
                return Err(BuildError::Stride(queue, blocks, stride));
            }
        }
        if placement.slots(template) == 0 {
            return Err(BuildError::NoSlot);
        }
        Ok(Self {
            template,
            placement,
            block_size,
        })
    }

    /// What arms slot `n`, in order.
    ///
    /// # Errors
    /// [`BuildError`] if the template makes no sense.
    pub fn arm(&self, n: u64) -> Result<Vec<Step>, BuildError> {
        let mut steps = Vec::new();
        for (queue, element) in self.template.elements() {
            let address = self.address(n, Spot::new(Memory::Wqe(element.name), 0, 1), "")?;
            let octets = self.wqe(n, queue, element)?.as_octets().to_vec();
            steps.push(Step::Write { address, octets });
        }
        for queue in [Queue::Worker, Queue::Client] {
            self.fill(n, queue, &mut steps)?;
        }
        steps.push(Step::Write {
            address: self.scratch(n),
            octets: self.scratch_line(),
        });
        steps.push(Step::Barrier);
        steps.push(Step::PostReceive(self.list(
            n,
            "receive",
            &self.template.receive,
        )?));
        Ok(steps)
    }

    /// One WQE of slot `n`.
    ///
    /// # Errors
    /// [`BuildError`] if it makes no sense.
    pub fn wqe(&self, n: u64, queue: Queue, element: &Element) -> Result<WqeBuffer, BuildError> {
        let name = element.name;
        let offset = self.template.offset(name).ok_or(BuildError::Name(name))?;
        let block = self.placement.block(self.template, queue, n);
        let index = Placement::index(block.wrapping_add(u64::from(offset)));
        let mut control = Control::new(element.opcode, self.placement.queue(queue).qpn, index);
        if element.signalled {
            control.signal = Signal::Always;
        }
        if element.fenced {
            control.fence = Fence::FenceAndSmall;
        }
        let encoded = |control: &Control, body: &Body<'_>| {
            WqeBuffer::encode(control, body).map_err(|error| BuildError::TooLong(name, error))
        };
        match &element.shape {
            Shape::Wait(cq, number) => encoded(&control, &self.wait(n, *cq, *number)),
            Shape::WaitBefore(cq, number) => {
                encoded(&control, &self.wait(n.wrapping_sub(1), *cq, *number))
            }
            Shape::Enable(queue, bound) => {
                let end = self.placement.end(self.template, *queue, *bound, n);
                let end = end.ok_or(BuildError::Name(name))?;
                let enable = Enable {
                    qpn: self.placement.queue(*queue).qpn,
                    up_to: Placement::index(end),
                };
                encoded(&control, &Body::Enable(enable))
            }
            Shape::WaitData { remote, data, mask } => {
                control.modifier = WaitFor::Data.to_wire();
                let remote = self.remote(n, name, remote)?;
                let wait = WaitData {
                    comparison: Comparison::AlwaysTrue,
                    invert: false,
                    lkey: remote.rkey,
                    address: remote.address,
                    on_mismatch: OnMismatch::Retry,
                    data: *data,
                    mask: *mask,
                };
                encoded(&control, &Body::WaitData(wait))
            }
            Shape::Rdma(remote, pieces) => self.rdma(n, control, element, remote, pieces),
            Shape::Skipped(segments) => {
                let len = usize::from(*segments).saturating_mul(kbtp_mlx5::limits::SEGMENT);
                let rest = SKIPPED.get(..len).ok_or(BuildError::Length(name))?;
                encoded(&control, &Body::Ignored(rest))
            }
            Shape::Send(pieces) => {
                let list = self.list(n, name, pieces)?;
                encoded(&control, &Body::Send(Payload::List(DataList::new(&list))))
            }
            Shape::CompareSwap { .. } | Shape::FetchAdd { .. } => self.atomic(n, control, element),
        }
    }

    fn wait(&self, n: u64, cq: Cq, number: u8) -> Body<'static> {
        let cqe = self.placement.cqe(self.template, cq, n, number);
        Body::WaitCqe(WaitCqe {
            cqn: self.placement.cq(cq).cqn,
            index: Placement::cqe_index(cqe),
        })
    }

    /// A READ, or what a record turns into another operation; a WRITE if it is armed as one.
    fn rdma(
        &self,
        n: u64,
        mut control: Control,
        element: &Element,
        remote: &Remote,
        pieces: &[Piece],
    ) -> Result<WqeBuffer, BuildError> {
        let name = element.name;
        if name == "BELL" {
            control.immediate = self.placement.bell(n);
        }
        if remote.spot.memory == Memory::Doorbell {
            control.immediate = crate::lap::receives(n);
        }
        let list = self.list(n, name, pieces)?;
        let (remote, list) = (self.remote(n, name, remote)?, DataList::new(&list));
        let body = match element.opcode {
            Opcode::RdmaWrite => Body::Write(remote, Payload::List(list)),
            _ => Body::Read(remote, list),
        };
        WqeBuffer::encode(&control, &body).map_err(|error| BuildError::TooLong(name, error))
    }

    fn atomic(
        &self,
        n: u64,
        mut control: Control,
        element: &Element,
    ) -> Result<WqeBuffer, BuildError> {
        let name = element.name;
        let (remote, reply, atomic) = match &element.shape {
            Shape::CompareSwap {
                remote,
                compare,
                compare_mask,
                swap,
                swap_mask,
                reply,
            } => {
                // The device takes the word for a number in the host's byte order: little-endian.
                let atomic = Atomic::MaskedCompareSwap8 {
                    swap: u64::from_le_bytes(*swap),
                    compare: u64::from_le_bytes(*compare),
                    swap_mask: u64::from_le_bytes(*swap_mask),
                    compare_mask: u64::from_le_bytes(*compare_mask),
                };
                (remote, reply, atomic)
            }
            Shape::FetchAdd { remote, reply } => {
                let atomic = Atomic::MaskedFetchAdd8 {
                    add: RingCounter::ADD_DATA,
                    boundary: RingCounter::add_mask(self.placement.sizes.ring),
                };
                (remote, reply, atomic)
            }
            _ => return Err(BuildError::Name(name)),
        };
        control.modifier = atomic.modifier();
        let remote = self.remote(n, name, remote)?;
        let reply = self.segment(n, name, reply)?;
        WqeBuffer::encode(&control, &Body::Atomic(remote, atomic, reply))
            .map_err(|error| BuildError::TooLong(name, error))
    }

    pub(crate) fn scratch(&self, n: u64) -> u64 {
        let line = n % self.placement.slots(self.template).max(1);
        let octets = line.wrapping_mul(u64::from(SCRATCH_LINE));
        self.placement.scratch.wrapping_add(octets)
    }

    /// What a scratch line holds before its request comes.
    pub(crate) fn scratch_line(&self) -> Vec<u8> {
        let mut line = vec![0; usize::from(SCRATCH_LINE)];
        let mut put = |at: u16, octets: &[u8]| {
            let at = usize::from(at);
            if let Some(place) = line.get_mut(at..at.saturating_add(octets.len())) {
                place.copy_from_slice(octets);
            }
        };
        let opcode = kbtp_wire::Opcode::Completion.to_wire();
        put(scratch::HEAD, &[kbtp_wire::VERSION, opcode]);
        put(scratch::ONES, &[0xff; 8]);
        put(scratch::BLOCK_SIZE, &self.block_size.0.to_be_bytes());
        line
    }

    /// NOPs behind the slot's WQEs and, behind the last slot of a lap, to the end of the ring.
    fn fill(&self, n: u64, queue: Queue, steps: &mut Vec<Step>) -> Result<(), BuildError> {
        let used: u16 = self
            .template
            .queue(queue)
            .iter()
            .map(Element::basic_blocks)
            .sum();
        let from = self
            .placement
            .block(self.template, queue, n)
            .wrapping_add(u64::from(used));
        let to = self
            .placement
            .block(self.template, queue, n.wrapping_add(1));
        for block in from..to {
            let index = Placement::index(block);
            let control = Control::new(Opcode::Nop, self.placement.queue(queue).qpn, index);
            let nop = WqeBuffer::encode(&control, &Body::Ignored(&[]))
                .map_err(|error| BuildError::TooLong("NOP", error))?;
            let mut octets = nop.as_octets().to_vec();
            octets.resize(BASIC_BLOCK, 0);
            steps.push(Step::Write {
                address: self.placement.address(queue, block),
                octets,
            });
        }
        Ok(())
    }

    fn remote(&self, n: u64, name: &'static str, of: &Remote) -> Result<RemoteAddress, BuildError> {
        Ok(RemoteAddress {
            address: match of.address {
                Address::Armed(address) => address,
                Address::OfSpot => self.address(n, of.spot, name)?,
                Address::Lap => crate::lap::lap_address(n),
                Address::Page(at, slots) => crate::lap::page_address(n, at, slots),
            },
            // The client's key is not known yet.
            rkey: match of.key {
                Key::Client => kbtp_mlx5::Mkey(0),
                key => self.placement.key(key),
            },
        })
    }

    fn list(
        &self,
        n: u64,
        name: &'static str,
        pieces: &[Piece],
    ) -> Result<Vec<DataSegment>, BuildError> {
        pieces
            .iter()
            .map(|piece| self.segment(n, name, piece))
            .collect()
    }

    fn segment(
        &self,
        n: u64,
        name: &'static str,
        piece: &Piece,
    ) -> Result<DataSegment, BuildError> {
        let address = match piece.address {
            Address::Armed(address) => address,
            _ => self.address(n, piece.spot, name)?,
        };
        let key = self.placement.key(piece.key);
        DataSegment::new(piece.spot.len, key, address).ok_or(BuildError::Length(name))
    }

    /// The address of something of slot `n`.
    ///
    /// # Errors
    /// [`BuildError::Address`] for what has none before the slot runs.
    pub fn address(&self, n: u64, spot: Spot, name: &'static str) -> Result<u64, BuildError> {
        Self::locate(self.template, self.placement, n, spot, name)
    }

    /// The same without a builder; `name` is only told in the error.
    ///
    /// # Errors
    /// [`BuildError::Address`] for what has none before the slot runs.
    pub fn locate(
        template: &Template,
        placement: &Placement,
        n: u64,
        spot: Spot,
        name: &'static str,
    ) -> Result<u64, BuildError> {
        let line = n % placement.slots(template).max(1);
        let base = match spot.memory {
            Memory::Wqe(wqe) | Memory::Before(wqe) => {
                let n = match spot.memory {
                    Memory::Before(_) => n.wrapping_sub(1),
                    _ => n,
                };
                let (queue, _) = template.find(wqe).ok_or(BuildError::Name(wqe))?;
                let offset = template.offset(wqe).ok_or(BuildError::Name(wqe))?;
                let block = placement.block(template, queue, n);
                placement.address(queue, block.wrapping_add(u64::from(offset)))
            }
            Memory::Scratch => placement
                .scratch
                .wrapping_add(line.wrapping_mul(u64::from(SCRATCH_LINE))),
            Memory::ScratchBefore => {
                let line = n.wrapping_sub(1) % placement.slots(template).max(1);
                let at = line.wrapping_mul(u64::from(SCRATCH_LINE));
                placement.scratch.wrapping_add(at)
            }
            Memory::Sink => placement
                .sink
                .wrapping_add(line.wrapping_mul(u64::from(template.capacity))),
            Memory::Mailbox => placement.mailbox,
            Memory::Cqe(cq, number) => {
                let cqe = placement.cqe(template, cq, n, number);
                placement.cqe_address(cq, cqe)
            }
            _ => return Err(BuildError::Address(name, spot.to_string())),
        };
        Ok(base.wrapping_add(u64::from(spot.at)))
    }
}
