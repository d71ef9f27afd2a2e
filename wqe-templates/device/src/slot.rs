//! A slot as software sees it when it rang: the request, read back from where its octets went, and the answer.

use crate::Session;
use kbtp_chain::element::Name;
use kbtp_chain::memory::{Memory, Spot, scratch};
use kbtp_chain::{BuildError, Builder};
use kbtp_memory::AccessError;
use kbtp_mlx5::field::RDMA_DATA_AT;
use kbtp_mlx5::{Field, Opcode};
use kbtp_wire::{BlockOffset, ByteLen, Generation, Status};

/// A request that a slot holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SlotRequest {
    octets: Vec<u8>,
}

impl SlotRequest {
    /// Its octets.
    #[must_use]
    pub fn as_octets(&self) -> &[u8] {
        &self.octets
    }
}

/// CQEs of a slot's loopback queue after which the predicate word has been compared.
const COMPARED: u8 = 2;

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
    pub(crate) fn spot(&self, n: u64, spot: Spot) -> Result<u64, BuildError> {
        let (template, placement) = (self.template(), self.placement());
        Builder::locate(template, placement, n, spot, "slot").map(Self::offset)
    }

    pub(crate) fn get<const N: usize>(&self, n: u64, spot: Spot) -> Option<[u8; N]> {
        let mut octets = [0; N];
        let at = self.spot(n, spot).ok()?;
        self.region.read(at, &mut octets).ok()?;
        Some(octets)
    }

    pub(crate) fn put(&self, n: u64, spot: Spot, octets: &[u8]) -> Result<(), AccessError> {
        // Every spot written here is one of a template: it has an address.
        let at = self.spot(n, spot).unwrap_or(u64::MAX);
        self.region.write(at, octets)
    }

    /// The request of slot `n`; `None` if none came or it is too long.
    #[must_use]
    pub fn request(&self, n: u64) -> Option<SlotRequest> {
        let mut request = SlotRequest::default();
        self.read_request(n, &mut request).then_some(request)
    }

    /// The same into one that is there already: no allocation once it has held one as long. Returns whether there was a request.
    pub fn read_request(&self, n: u64, request: &mut SlotRequest) -> bool {
        let octets = &mut request.octets;
        octets.clear();
        let read = self.read_pieces(n, octets);
        if read.is_none() {
            octets.clear();
        }
        read.is_some()
    }

    fn read_pieces(&self, n: u64, octets: &mut Vec<u8>) -> Option<()> {
        let len = usize::try_from(self.received_len(n)?).ok()?;
        for piece in &self.template().receive {
            let at = octets.len();
            let left = len.saturating_sub(at);
            let size = usize::try_from(piece.spot.len).ok()?.min(left);
            octets.resize(at.checked_add(size)?, 0);
            let from = self.spot(n, piece.spot).ok()?;
            self.region.read(from, octets.get_mut(at..)?).ok()?;
        }
        (octets.len() == len).then_some(())?;
        // The comparisons clear the Length where they hold; the first one's reply has it as it came.
        if self.standing(n).done >= COMPARED
            && let Some(length) = octets.get_mut(36..40)
        {
            let word: [u8; 8] = self.get(n, Spot::new(Memory::Scratch, scratch::REPLY, 8))?;
            let [a, b, c, .., top] = word;
            length.copy_from_slice(&[top, a, b, c]);
        }
        Some(())
    }

    /// Writes a request's octets where its receive WQE scattered them.
    pub(crate) fn write_request(&self, n: u64, request: &SlotRequest) -> Result<(), AccessError> {
        let mut rest = request.as_octets();
        for piece in &self.template().receive {
            let size = usize::try_from(piece.spot.len).unwrap_or(usize::MAX);
            let (now, then) = rest.split_at_checked(size).unwrap_or((rest, &[]));
            self.put(n, piece.spot, now)?;
            rest = then;
        }
        Ok(())
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
