//! Slots that software runs: how far the loopback queue is in one, the client's queue run WQE by WQE, and the loopback queue
//! started again when a request ended it.
//!
//! A slot that rang stands at its breakpoint, one whose loopback queue failed stays where it is. Either way C1 to C4 of the
//! client's queue are software's: C1 may write data, C3 may read some, C4 answers.

use crate::error::SetUpError;
use crate::limits::{LOG_BELLS, LOG_CQ, LOG_REQUESTS};
use crate::session::{CQ_LEN, bound_of};
use crate::{Answer, CqReader, Device, Master, Peer, Session, SlotRequest};
use kbtp_chain::element::{Bound, Cq, Element, Name, Queue};
use kbtp_chain::key::VIEW_STRIDE;
use kbtp_chain::memory::{Memory, Spot, scratch};
use kbtp_chain::{BuildError, Placement, Restart};
use kbtp_memory::AccessError;
use kbtp_mlx5::field::RDMA_DATA_AT;
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{Body, Control, Cqe, Field, Mkey, Opcode, Signal, Syndrome, WqeBuffer};
use kbtp_wire::{BlockOffset, ByteLen, Generation, Handle, RingCounter, Ticket};

/// How far the loopback queue is in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// CQEs of the slot that say success.
    pub done: u8,
    /// The WQE that failed after these, and why; `None` if none did, or none of this slot.
    pub failed: Option<(Name, Syndrome)>,
}

/// What a slot took from the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The handle that it is for.
    pub handle: Handle,
    /// The ticket; `None` if its FetchAdd did not succeed, or nobody knows.
    pub ticket: Option<Ticket>,
    /// The block, once it is known.
    pub block: Option<BlockOffset>,
    /// The entry was bound to it, and the device told of it. Between the two only the entry knows.
    pub bound: bool,
}

/// A slot that was armed when the loopback queue was reset: its header key, and its request if one had come.
#[derive(Debug)]
struct Kept {
    headers: [u8; 4],
    request: Option<SlotRequest>,
}

/// The loopback queue on its way to its next slot.
#[derive(Debug)]
pub(crate) struct Restarting {
    /// That slot.
    slot: u64,
    /// The CQE that says that the queue has come to the slot's place; `None` if it starts there.
    there: Option<u64>,
    kept: Vec<Kept>,
    received: u64,
}

const HEADERS: Spot = Spot::field("D", Field::REMOTE_KEY);

impl Session {
    fn cq(&self, cq: Cq, cqe: u64) -> CqReader {
        let (number, log) = match cq {
            Cq::Receive => (0, LOG_REQUESTS),
            Cq::Client => (1, LOG_CQ),
            Cq::Worker => (2, LOG_CQ),
        };
        CqReader::new(self.cqes.clone(), number * CQ_LEN, log, None).from(cqe)
    }

    /// How far the loopback queue is in slot `n`, which is the one it is in.
    #[must_use]
    pub fn standing(&self, n: u64) -> Standing {
        let template = self.template();
        let first = self.placement().cqe(template, Cq::Worker, n, 0);
        let mut cq = self.cq(Cq::Worker, first);
        let mut standing = Standing {
            done: 0,
            failed: None,
        };
        while usize::from(standing.done) < template.cqes(Cq::Worker) {
            match cq.next() {
                Some(Cqe::Completed(_)) => standing.done = standing.done.saturating_add(1),
                Some(Cqe::Failed(cqe)) => {
                    let name = self.name_of(n, cqe.wqe_counter);
                    standing.failed = name.map(|name| (name, cqe.syndrome));
                    break;
                }
                None => break,
            }
        }
        standing
    }

    /// The WQE of slot `n` of the loopback queue with this index.
    fn name_of(&self, n: u64, index: u16) -> Option<Name> {
        let template = self.template();
        let start = Placement::index(self.placement().block(template, Queue::Worker, n));
        let mut left = index.wrapping_sub(start.0);
        for element in &template.worker {
            if left == 0 {
                return Some(element.name);
            }
            left = left.checked_sub(Element::basic_blocks(element))?;
        }
        None
    }

    /// Has slot `n`, which is armed and which the loopback queue has not come to, look up its request's header under this key.
    ///
    /// # Errors
    /// [`AccessError`] if the template looks up none.
    pub fn set_headers(&self, n: u64, headers: Mkey) -> Result<(), AccessError> {
        self.put(n, HEADERS, &headers.0.to_be_bytes())
    }

    /// Opcode and flags of the request of slot `n`, as they came.
    #[must_use]
    pub fn asked(&self, n: u64) -> Option<(u8, u16)> {
        let header = Field::REMOTE_ADDRESS.part(4, 4)?;
        let [_, opcode, high, low] = self.get(n, Spot::field("D", header))?;
        Some((opcode, u16::from_be_bytes([high, low])))
    }

    /// Octets that slot `n`, a LOAD which a chain served, wrote to its client.
    #[must_use]
    pub fn loaded(&self, n: u64) -> u32 {
        let len = self.get(n, Spot::field("C1", Field::byte_count(RDMA_DATA_AT, 0)));
        len.map_or(0, u32::from_be_bytes)
    }

    /// The block that slot `n`, a LOAD, sends from, once its entry was read.
    #[must_use]
    pub fn source(&self, n: u64) -> Option<BlockOffset> {
        let address = Field::local_address(RDMA_DATA_AT, 0);
        let block = self.get(n, Spot::field("C1", address))?;
        Some(BlockOffset(u64::from_be_bytes(block)))
    }

    /// Handle and block of slot `n`, a FREE that a chain served or began: it clears the handle's entry, and the block is
    /// software's to return. `None` of any other request.
    #[must_use]
    pub fn unbinds(&self, n: u64) -> Option<(Handle, BlockOffset)> {
        let [opcode] = self.get(n, Spot::field("U0", Field::OPCODE))?;
        (opcode == Opcode::RdmaWrite.to_wire()).then_some(())?;
        Some((self.handle(n)?, self.source(n)?))
    }

    /// The handle of the request of slot `n`.
    fn handle(&self, n: u64) -> Option<Handle> {
        let view = self.get(n, Spot::field("T", Field::REMOTE_ADDRESS))?;
        Some(Handle(u64::from_be_bytes(view) / VIEW_STRIDE))
    }

    /// What slot `n` took from the ring, of a session whose loopback queue has stopped; `None` if its chain allocates nothing.
    #[must_use]
    pub fn allocation(&self, n: u64) -> Option<Allocation> {
        let [opcode] = self.get(n, Spot::field("X1", Field::OPCODE))?;
        (opcode == Opcode::RdmaRead.to_wire()).then_some(())?;
        let done = self.standing(n).done;
        let counter = self.get(n, Spot::new(Memory::Scratch, scratch::TICKET, 8))?;
        let counter = RingCounter(u64::from_le_bytes(counter));
        Some(Allocation {
            handle: self.handle(n)?,
            ticket: (done > TICKET_TAKEN).then(|| counter.ticket()),
            block: self.taken_block(n),
            bound: done > ENTRY_WRITTEN,
        })
    }

    /// Whether slot `n` may have taken a ticket that nobody knows: between its FetchAdd and the reply.
    #[must_use]
    pub fn takes_ticket(&self, n: u64) -> bool {
        let opcode = self.get(n, Spot::field("X1", Field::OPCODE));
        opcode == Some([Opcode::RdmaRead.to_wire()]) && self.standing(n).done == TICKET_TAKEN
    }

    fn enable_client<D: Device>(
        &self,
        device: &mut D,
        master: &mut Master,
        n: u64,
        bound: Bound,
    ) -> Result<bool, SetUpError<D::Error>> {
        let placement = self.placement();
        let end = placement.end(self.template(), Queue::Client, bound, n);
        let end = end.ok_or(SetUpError::Build(BuildError::NoSlot))?;
        master.enable(device, self.client, Placement::index(end))
    }

    /// Reads `len` octets (not zero) of the client's buffer into a block: C3 of slot `n`. Whether it could begin: if not, nothing
    /// is done.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn fetch<D: Device>(
        &self,
        device: &mut D,
        master: &mut Master,
        n: u64,
        len: ByteLen,
        block: BlockOffset,
    ) -> Result<bool, SetUpError<D::Error>> {
        if !master.has_room() {
            return Ok(false);
        }
        let remote: [u8; 12] = self
            .get(
                n,
                Spot::new(Memory::Wqe("C1"), Field::REMOTE_ADDRESS.at, 12),
            )
            .unwrap_or_default();
        self.put(n, opcode_of("C1"), &[Opcode::Nop.to_wire()])?;
        self.put(n, opcode_of("C2"), &[Opcode::Nop.to_wire()])?;
        let from = Spot::new(Memory::Wqe("C3"), Field::REMOTE_ADDRESS.at, 12);
        self.put(n, from, &remote)?;
        self.put_data(n, "C3", len, block)?;
        self.put(n, opcode_of("C3"), &[Opcode::RdmaRead.to_wire()])?;
        self.enable_client(device, master, n, Bound::Through("C3"))
    }

    /// Whether what [`fetch`](Self::fetch) asked for is there; `None` if neither that nor an error is known yet.
    #[must_use]
    pub fn fetched(&self, n: u64) -> Option<bool> {
        let cqe = self.placement().cqe(self.template(), Cq::Client, n, 1);
        let cqe = self.cq(Cq::Client, cqe).peek()?;
        Some(matches!(cqe, Cqe::Completed(_)))
    }

    /// Answers the request of slot `n`: data by C1, if there is any, then the completion by C4. Whether it could: if not, nothing
    /// is done.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn reply<D: Device>(
        &self,
        device: &mut D,
        master: &mut Master,
        n: u64,
        answer: &Answer,
    ) -> Result<bool, SetUpError<D::Error>> {
        if !master.has_room() {
            return Ok(false);
        }
        let nop = [Opcode::Nop.to_wire()];
        if answer.data {
            self.put_data(n, "C1", answer.data_len, answer.block)?;
            self.put(n, opcode_of("C1"), &[Opcode::RdmaWrite.to_wire()])?;
        } else {
            self.put(n, opcode_of("C1"), &nop)?;
        }
        // A chain that failed may have left its own here. What has run does not run again.
        self.put(n, opcode_of("C2"), &nop)?;
        self.put(n, opcode_of("C3"), &nop)?;
        let in_scratch = |at, len| Spot::new(Memory::Scratch, at, len);
        let generation = Generation::to_wire(answer.generation).to_be_bytes();
        self.put(n, in_scratch(scratch::ENTRY + 2, 2), &generation)?;
        let status = answer.status.to_wire().to_be_bytes();
        self.put(n, in_scratch(scratch::STATUS, 2), &status)?;
        let len = answer.data_len.0.to_be_bytes();
        self.put(n, in_scratch(scratch::BLOCK_SIZE, 4), &len)?;
        let block = answer.block.0.to_be_bytes();
        self.put(n, in_scratch(scratch::BLOCK, 8), &block)?;
        // A FREE's chain that failed may have turned it elsewhere.
        let choice = self.template().find("C4").and_then(|(_, c4)| c4.choice());
        if let Some(choice) = choice {
            let [_, low] = scratch::STATUS.to_be_bytes();
            self.put(n, choice, &[low])?;
        }
        let send = if answer.invalidate {
            let key = Spot::field("C1", Field::REMOTE_KEY);
            let key: [u8; 4] = self.get(n, key).unwrap_or_default();
            self.put(n, Spot::field("C4", Field::IMMEDIATE), &key)?;
            Opcode::SendInvalidate
        } else {
            Opcode::Send
        };
        self.put(n, opcode_of("C4"), &[send.to_wire()])?;
        self.enable_client(device, master, n, Bound::NextSlot(0))
    }

    fn put_data(
        &self,
        n: u64,
        name: Name,
        len: ByteLen,
        block: BlockOffset,
    ) -> Result<(), AccessError> {
        let count = Field::byte_count(RDMA_DATA_AT, 0);
        self.put(n, Spot::field(name, count), &len.0.to_be_bytes())?;
        let address = Field::local_address(RDMA_DATA_AT, 0);
        self.put(n, Spot::field(name, address), &block.0.to_be_bytes())
    }

    /// Lets the loopback queue, which stands at the breakpoint of slot `n`, go on to the next slot; gives the receive WQE of its
    /// bell back. Whether there was room.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn go_on<D: Device>(
        &mut self,
        device: &mut D,
        master: &mut Master,
        n: u64,
    ) -> Result<bool, SetUpError<D::Error>> {
        if !master.has_room() {
            return Ok(false);
        }
        let (placement, template) = (self.placement(), self.template());
        let end = bound_of(template, "PW");
        let end = end.and_then(|bound| placement.end(template, Queue::Worker, bound, n));
        let end = end.ok_or(SetUpError::Build(BuildError::NoSlot))?;
        self.bells = self.bells.wrapping_add(1);
        self.write_bells()?;
        master.enable(device, self.worker, Placement::index(end))
    }

    /// Starts the loopback queue again, which a request of the slot before `n` ended: it is reset, and what is armed from slot `n`
    /// on is armed once more, with the requests that have come. [`restarted`](Self::restarted) says when it runs. No request
    /// may come meanwhile: if one does the session is over. Whether there was room.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn restart<D: Device>(
        &mut self,
        device: &mut D,
        master: &mut Master,
        n: u64,
    ) -> Result<bool, SetUpError<D::Error>> {
        if !master.has_room() {
            return Ok(false);
        }
        let received = self.received();
        let kept = (n..self.armed).map(|slot| Kept {
            headers: self.get(slot, HEADERS).unwrap_or_default(),
            request: (slot < received).then(|| self.request(slot)).flatten(),
        });
        let kept = kept.collect();
        let refused = SetUpError::device("resetting a loopback queue pair");
        device.reset(self.worker).map_err(refused)?;
        // What it flushed is counted before new CQEs come.
        let template = self.template();
        let dead = self
            .placement()
            .cqe(template, Cq::Worker, n.wrapping_sub(1), 0);
        let mut cq = self.cq(Cq::Worker, dead);
        while cq.next().is_some() {}
        let produced = cq.consumed();
        let place = n.checked_rem(self.images.slots()).unwrap_or(0);
        let there = (place > 0).then_some(produced);
        let each = template.cqes(Cq::Worker) as u64;
        let first = produced.wrapping_add(u64::from(place > 0));
        self.images.restart(Restart {
            slot: n.wrapping_sub(place),
            cqes: first.wrapping_sub(n.wrapping_mul(each)),
        });
        self.bells = 1 << LOG_BELLS;
        self.write_bells()?;
        let connected = device.connect(self.worker, &Peer::Local(self.worker));
        connected.map_err(SetUpError::device("connecting a loopback queue pair"))?;
        if place > 0 {
            let end = self.placement().block(self.template(), Queue::Worker, n);
            self.write_nops(end)?;
            device.barrier();
            master.enable(device, self.worker, Placement::index(end))?;
        }
        self.restarting = Some(Box::new(Restarting {
            slot: n,
            there,
            kept,
            received,
        }));
        Ok(true)
    }

    /// NOPs from the start of the loopback queue's ring; the last one says that they are done.
    fn write_nops<E: core::error::Error + 'static>(&self, end: u64) -> Result<(), SetUpError<E>> {
        for block in 0..end {
            let index = Placement::index(block);
            let mut control = Control::new(Opcode::Nop, self.worker, index);
            if block + 1 == end {
                control.signal = Signal::Always;
            }
            let nop = WqeBuffer::encode(&control, &Body::Ignored(&[]))
                .map_err(|error| SetUpError::Build(BuildError::TooLong("NOP", error)))?;
            let at = Self::offset(self.placement().worker.address) + block * BASIC_BLOCK as u64;
            self.region.write(at, nop.as_octets())?;
        }
        Ok(())
    }

    /// Whether the loopback queue runs again after a [`restart`](Self::restart); call until it does.
    ///
    /// # Errors
    /// [`SetUpError`]; [`SetUpError::Raced`] if a request came meanwhile: the session is over.
    pub fn restarted<D: Device>(
        &mut self,
        device: &mut D,
        master: &mut Master,
    ) -> Result<bool, SetUpError<D::Error>> {
        let Some(on_its_way) = self.restarting.take() else {
            return Ok(true);
        };
        let there = on_its_way.there;
        let there = there.is_none_or(|cqe| self.cq(Cq::Worker, cqe).peek().is_some());
        if !there || !master.has_room() {
            self.restarting = Some(on_its_way);
            return Ok(false);
        }
        for (slot, kept) in (on_its_way.slot..).zip(&on_its_way.kept) {
            if let Some(([worker, ..], _)) = self.images.arm(slot) {
                let at = Self::offset(worker.address);
                self.region.write(at, &worker.octets)?;
            }
            self.put(slot, HEADERS, &kept.headers)?;
            if let Some(request) = &kept.request {
                self.write_request(slot, request)?;
            }
        }
        self.write_head(self.armed)?;
        if self.received() != on_its_way.received {
            return Err(SetUpError::Raced);
        }
        device.barrier();
        self.start_at(device, master, on_its_way.slot)
    }
}

/// The CQE of a slot's FetchAdd.
const TICKET_TAKEN: u8 = 4;
/// The CQE of the entry's first word.
const ENTRY_WRITTEN: u8 = 8;

fn opcode_of(name: Name) -> Spot {
    Spot::field(name, Field::OPCODE)
}
