//! A slot as software sees it when it rang: the request, read back from where its octets went, and the answer.

use crate::Session;
use kbtp_chain::element::Name;
use kbtp_chain::limits::MESSAGE_CAPACITY;
use kbtp_chain::memory::{Memory, Spot, scratch};
use kbtp_chain::{BuildError, Builder};
use kbtp_memory::AccessError;
use kbtp_mlx5::field::RDMA_DATA_AT;
use kbtp_mlx5::{Field, Opcode};
use kbtp_wire::{BlockOffset, ByteLen, Generation, Status};

/// A request that a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRequest {
    octets: [u8; MESSAGE_CAPACITY as usize],
    len: usize,
}

impl SlotRequest {
    /// Its octets, but for Status (octets 22 to 24), which nobody keeps: zeros stand there.
    #[must_use]
    pub fn as_octets(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or(&self.octets)
    }
}

/// What software lets a slot answer: data if there is any, then a COMPLETION.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Status.
    pub status: Status,
    /// The entry's Generation.
    pub generation: Option<Generation>,
    /// Data Length, and octets that are written to the client's buffer.
    pub data_len: ByteLen,
    /// Block Offset, and where the data is.
    pub block: BlockOffset,
    /// Whether data is written to the client's buffer before the completion; never of zero octets.
    pub data: bool,
    /// Whether the completion invalidates the client's key.
    pub invalidate: bool,
}

impl Session {
    /// Where some octets of slot `n` lie in the session's memory.
    fn spot(&self, n: u64, spot: Spot) -> Result<u64, BuildError> {
        let (template, placement) = (self.template(), self.placement());
        Builder::locate(template, placement, n, spot, "slot").map(Self::offset)
    }

    fn get<const N: usize>(&self, n: u64, spot: Spot) -> Option<[u8; N]> {
        let mut octets = [0; N];
        let at = self.spot(n, spot).ok()?;
        self.region.read(at, &mut octets).ok()?;
        Some(octets)
    }

    fn put(&self, n: u64, spot: Spot, octets: &[u8]) -> Result<(), AccessError> {
        // Every spot written here is one of a template: it has an address.
        let at = self.spot(n, spot).unwrap_or(u64::MAX);
        self.region.write(at, octets)
    }

    /// The request of slot `n`, which rang; `None` if none came or it is too long.
    #[must_use]
    pub fn request(&self, n: u64) -> Option<SlotRequest> {
        let len = usize::try_from(self.received_len(n)?).ok()?;
        let mut octets = [0; MESSAGE_CAPACITY as usize];
        let mut at = 0_usize;
        for piece in &self.template().receive {
            let size = usize::try_from(piece.spot.len).ok()?;
            let to = octets.get_mut(at..at.checked_add(size)?)?;
            let from = self.spot(n, piece.spot).ok()?;
            self.region.read(from, to).ok()?;
            at = at.checked_add(size)?;
        }
        octets.get_mut(22..24)?.fill(0);
        // The comparisons clear the Length where they hold; the first one's reply has it as it came.
        let word: [u8; 8] = self.get(n, Spot::new(Memory::Scratch, scratch::REPLY, 8))?;
        let [a, b, c, .., top] = word;
        octets.get_mut(36..40)?.copy_from_slice(&[top, a, b, c]);
        (len <= octets.len()).then_some(())?;
        octets.get_mut(len..)?.fill(0);
        Some(SlotRequest { octets, len })
    }

    /// The block that slot `n` was to fill: where its READ of the client's data places it. Of a slot that ended in an error
    /// after it took a block from the ring (its last CQE before the data is there), this is that block, which is then in no
    /// entry and in no ring slot; before that it is whatever the entry named. `None` if no request came so far.
    #[must_use]
    pub fn taken_block(&self, n: u64) -> Option<BlockOffset> {
        let address = Spot::field("C3", Field::local_address(RDMA_DATA_AT, 0));
        let block = u64::from_be_bytes(self.get(n, address)?);
        (block != u64::MAX).then_some(BlockOffset(block))
    }

    /// Writes the answer of slot `n`, which rang: [`resume`](Self::resume) sends it.
    ///
    /// # Errors
    /// [`AccessError`] if the template has no places for it.
    pub fn answer(&self, n: u64, answer: &Answer) -> Result<(), AccessError> {
        let wqe = |name: Name, field| Spot::field(name, field);
        let in_scratch = |at, len| Spot::new(Memory::Scratch, at, len);
        let generation = Generation::to_wire(answer.generation);
        let status = answer.status.to_wire();
        let len = Field::byte_count(RDMA_DATA_AT, 0);
        let block = Field::local_address(RDMA_DATA_AT, 0);
        let send = if answer.invalidate {
            Opcode::SendInvalidate
        } else {
            Opcode::Send
        };
        let data = if answer.data {
            Opcode::RdmaWrite
        } else {
            Opcode::Nop
        };
        self.put(
            n,
            in_scratch(scratch::REPLY_GENERATION, 2),
            &generation.to_be_bytes(),
        )?;
        self.put(n, in_scratch(scratch::STATUS, 2), &status.to_be_bytes())?;
        self.put(n, wqe("C1", len), &answer.data_len.0.to_be_bytes())?;
        self.put(n, wqe("C1", block), &answer.block.0.to_be_bytes())?;
        self.put(n, wqe("C1", Field::OPCODE), &[data.to_wire()])?;
        self.put(n, wqe("C2", Field::OPCODE), &[send.to_wire()])
    }
}
