//! The target's state and what it answers.

use super::BLOCK;
use kbtp_wire::{
    BlockOffset, ByteLen, Completion, DataDescriptor, EntryFlags, Generation, Grant, Handle,
    Header, Hello, HelloAck, InstanceId, KnownTlvs, Opcode, Operation, Request, RingCounter,
    RingOrder, RingSlot, SessionCapabilities, Source, Stag, Status, TableEntry, Ticket, fetch_add,
};

pub(crate) const TABLE: Stag = Stag(0x7ab1_e000);
pub(crate) const POOL: Stag = Stag(0x9001_0000);
pub(crate) const PARTITION: Stag = Stag(0x9a47_0000);
pub(crate) const RING: Stag = Stag(0x4146_0000);
pub(crate) const COUNTER: Stag = Stag(0xc047_0000);

/// First handle of the range.
const BASE: u64 = 1000;

/// What the target does otherwise than it should.
#[derive(Clone, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "switches of a test, each by itself"
)]
pub(crate) struct Script {
    /// Answers nothing until it is told otherwise; requests are kept.
    pub(crate) silent: bool,
    /// Answers HELLO so.
    pub(crate) refuse: Option<Status>,
    /// The stream breaks before this many further requests are carried out.
    pub(crate) break_before: Option<u32>,
    /// The stream breaks after this many further requests were carried out, before they are answered.
    pub(crate) break_after: Option<u32>,
    /// Answers the next request with these octets instead.
    pub(crate) answer: Option<Vec<u8>>,
    /// Answers the next ALLOC_STORE so, without doing it.
    pub(crate) fail_alloc: Option<Status>,
    /// The stream takes nothing more and has not ended yet, as while its Terminate is on its way.
    pub(crate) ending: bool,
    /// Nobody can connect.
    pub(crate) unreachable: u32,
    /// Ring slots stay empty.
    pub(crate) no_blocks: bool,
    /// The entry changes whenever it is read.
    pub(crate) restless: bool,
}

/// What the target asks of the stream.
pub(crate) enum Action {
    /// RDMA Write to the initiator.
    Write { to: Stag, at: u64, data: Vec<u8> },
    /// Send, invalidating an STag.
    Send(Vec<u8>, Option<Stag>),
    /// The stream breaks.
    Break,
}

/// RDMA Read of the initiator's memory; `None` if it fails.
pub(crate) type Fetch<'f> = dyn FnMut(Stag, u64, u32) -> Option<Vec<u8>> + 'f;

/// Why a request was not carried out.
enum Failed {
    Status(Status, Option<Generation>),
    /// The RDMA Read of the data failed.
    Read,
}

/// A target.
pub(crate) struct World {
    pub(crate) script: Script,
    pub(crate) instance: u8,
    pub(crate) blocks: u32,
    /// Blocks granted to the next session.
    pub(crate) quota: u32,
    pub(crate) table: Vec<TableEntry>,
    pub(crate) pool: Vec<u8>,
    pub(crate) ring: Vec<RingSlot>,
    pub(crate) head: u64,
    tail: u32,
    /// Request messages carried out, by opcode.
    pub(crate) counts: [u32; 9],
    /// HELLOs answered.
    pub(crate) sessions: u32,
    pub(crate) base: u64,
    pub(crate) hello_id: Option<[u8; 16]>,
}

impl World {
    pub(crate) fn new(blocks: u32) -> Self {
        let order = RingOrder::for_blocks(blocks).unwrap();
        let mut world = Self {
            script: Script::default(),
            instance: 1,
            blocks,
            quota: blocks,
            table: vec![TableEntry::UNBOUND; blocks as usize],
            pool: vec![0; (blocks * BLOCK) as usize],
            ring: Vec::new(),
            head: 0,
            tail: blocks,
            counts: [0; 9],
            sessions: 0,
            base: BASE,
            hello_id: None,
        };
        world.ring = (0..order.slots())
            .map(|s| RingSlot {
                sequence: if s < blocks {
                    Ticket(s)
                } else {
                    Ticket(s.wrapping_sub(order.slots()))
                },
                block: if s < blocks {
                    BlockOffset(u64::from(s * BLOCK))
                } else {
                    BlockOffset::EMPTY
                },
            })
            .collect();
        world
    }

    /// Forgets everything, as after a crash.
    pub(crate) fn crash(&mut self) {
        let (instance, sessions) = (self.instance + 1, self.sessions);
        *self = Self {
            instance,
            sessions,
            ..Self::new(self.blocks)
        };
    }

    /// The lease runs out: what is bound is freed, and the range may be granted again as it was.
    pub(crate) fn lapse(&mut self) {
        for index in 0..self.table.len() {
            let entry = self.table[index];
            if entry.is_valid() {
                self.table[index] = self.free(&entry);
            }
        }
    }

    pub(crate) fn bound(&self) -> usize {
        self.table.iter().filter(|e| e.is_valid()).count()
    }

    pub(crate) fn count(&self, opcode: Opcode) -> u32 {
        self.counts[usize::from(opcode.to_wire())]
    }

    fn order(&self) -> RingOrder {
        RingOrder::for_blocks(self.blocks).unwrap()
    }

    /// Answers HELLO.
    pub(crate) fn hello(&mut self, message: &[u8]) -> Action {
        let hello = Hello::decode(message).unwrap();
        self.hello_id = Some(hello.initiator.0);
        let request_id = hello.request_id;
        let ack = match self.script.refuse {
            Some(status) => HelloAck::Refused { request_id, status },
            None => HelloAck::Granted {
                request_id,
                grant: self.grant(&hello),
                tlvs: KnownTlvs::default(),
            },
        };
        self.sessions += 1;
        let mut octets = vec![0; ack.encoded_len()];
        ack.encode_into(&mut octets).unwrap();
        Action::Send(octets, None)
    }

    fn grant(&self, hello: &Hello<'_>) -> Grant {
        Grant {
            capabilities: hello
                .capabilities
                .without(SessionCapabilities::RECORD_COMPLETION),
            block_size: ByteLen(BLOCK),
            pool_blocks: self.blocks,
            quota: self.quota,
            handle_base: Handle(self.base),
            handle_count: u64::from(self.blocks),
            table_base: Handle(self.base),
            table_count: u64::from(self.blocks),
            credits: if hello.credits == 0 { 8 } else { hello.credits },
            ring_order: self.order(),
            max_inline: hello.max_inline,
            ticket_timeout_ms: 200,
            table_stag: TABLE,
            pool_stag: POOL,
            partition_stag: PARTITION,
            partition_len: u64::from(self.blocks * BLOCK),
            ring_stag: RING,
            counter_stag: COUNTER,
            instance: InstanceId([self.instance; 16]),
            lease_ms: u32::MAX,
            ..Grant::default()
        }
    }

    /// Octets that the initiator reads with RDMA Read.
    pub(crate) fn read(&mut self, stag: Stag, at: u64, len: u32) -> Vec<u8> {
        let (at, len) = (usize::try_from(at).unwrap(), len as usize);
        let octets: Vec<u8> = match stag {
            TABLE => {
                if self.script.restless {
                    let entry = &mut self.table[at / 16];
                    entry.generation = entry.generation.map(Generation::next);
                }
                self.table.iter().flat_map(TableEntry::encode).collect()
            }
            POOL => self.pool.clone(),
            RING if self.script.no_blocks => vec![0xff; self.ring.len() * 16],
            RING => self.ring.iter().flat_map(RingSlot::encode).collect(),
            other => panic!("{other} cannot be read"),
        };
        octets[at..at + len].to_vec()
    }

    pub(crate) fn write(&mut self, stag: Stag, at: u64, data: &[u8]) {
        assert_eq!(stag, PARTITION);
        let at = usize::try_from(at).unwrap();
        self.pool[at..at + data.len()].copy_from_slice(data);
    }

    pub(crate) fn fetch_add(&mut self, stag: Stag, add: u64, mask: u64) -> u64 {
        assert_eq!(stag, COUNTER);
        let before = self.head;
        self.head = fetch_add(before, add, mask);
        before
    }

    /// Carries a request out. `fetch` is RDMA Read of the initiator's memory.
    pub(crate) fn request(&mut self, message: &[u8], fetch: &mut Fetch<'_>) -> Vec<Action> {
        if countdown(&mut self.script.break_before) {
            return vec![Action::Break];
        }
        let header = Header::decode(message[..Header::LEN].try_into().unwrap());
        self.counts[usize::from(header.opcode)] += 1;
        if let Some(octets) = self.script.answer.take() {
            return vec![Action::Send(octets, None)];
        }
        let request = Request::decode(message).unwrap();
        let mut actions = Vec::new();
        let invalidate = request.operation.invalidate();
        let completion = match self.carry_out(&request, fetch, &mut actions) {
            Ok(completion) => completion,
            Err(Failed::Status(status, generation)) => Completion {
                generation,
                ..Completion::failed(header.request_id, header.handle, None, status)
            },
            Err(Failed::Read) => return vec![Action::Break],
        };
        if countdown(&mut self.script.break_after) {
            return vec![Action::Break];
        }
        actions.push(Action::Send(completion.encode().to_vec(), invalidate));
        actions
    }

    fn carry_out(
        &mut self,
        request: &Request<'_>,
        fetch: &mut Fetch<'_>,
        actions: &mut Vec<Action>,
    ) -> Result<Completion, Failed> {
        let index = place(request.handle.0.wrapping_sub(self.base));
        let Some(entry) = self.table.get(index).copied() else {
            return Err(Failed::Status(Status::NotAuthorized, None));
        };
        let fail = |status| Failed::Status(status, entry.generation);
        let allocates = matches!(
            request.operation,
            Operation::AllocStore { .. } | Operation::Bind { .. }
        );
        if entry.is_valid() == allocates {
            return Err(fail(if allocates {
                Status::AlreadyValid
            } else {
                Status::NotValid
            }));
        }
        if request.generation.is_some() && request.generation != entry.generation {
            return Err(fail(Status::GenerationMismatch));
        }
        let new = match &request.operation {
            Operation::Load {
                sink,
                allow_unsealed,
                ..
            } => {
                actions.push(self.load(&entry, sink, *allow_unsealed)?);
                entry
            }
            Operation::Store { source, seal } => {
                if entry.is_sealed() {
                    return Err(fail(Status::Sealed));
                }
                let data = data_of(source, fetch).ok_or(Failed::Read)?;
                self.write(PARTITION, entry.block.0, &data);
                TableEntry {
                    data_len: len_of(&data),
                    flags: entry.flags.with(EntryFlags::SEALED, *seal),
                    ..entry
                }
            }
            Operation::AllocStore { source, seal } => {
                if let Some(status) = self.script.fail_alloc.take() {
                    return Err(fail(status));
                }
                self.alloc(&entry, source, *seal, fetch)?
            }
            Operation::Bind { bind, seal } => {
                let block = self.consume(bind.ticket);
                let block = block.ok_or_else(|| fail(Status::BadTicket))?;
                assert_eq!(block, bind.block);
                bound(&entry, bind.data_len, block, *seal)
            }
            Operation::Free => self.free(&entry),
        };
        self.table[index] = new;
        Ok(Completion {
            request_id: request.request_id,
            handle: request.handle,
            generation: new.generation,
            status: Status::Ok,
            data_len: new.data_len,
            block: new.block,
        })
    }

    fn load(
        &mut self,
        entry: &TableEntry,
        sink: &DataDescriptor,
        allow_unsealed: bool,
    ) -> Result<Action, Failed> {
        let fail = |status| Failed::Status(status, entry.generation);
        if !entry.is_sealed() && !allow_unsealed {
            return Err(fail(Status::NotSealed));
        }
        if entry.data_len > sink.len {
            return Err(fail(Status::LengthError));
        }
        Ok(Action::Write {
            to: sink.stag,
            at: sink.offset.0,
            data: self.read(POOL, entry.block.0, entry.data_len.0),
        })
    }

    fn alloc(
        &mut self,
        entry: &TableEntry,
        source: &Source<'_>,
        seal: bool,
        fetch: &mut Fetch<'_>,
    ) -> Result<TableEntry, Failed> {
        let fail = |status| Failed::Status(status, entry.generation);
        if source.len() > ByteLen(BLOCK) {
            return Err(fail(Status::LengthError));
        }
        let data = data_of(source, fetch).ok_or(Failed::Read)?;
        let mask = RingCounter::add_mask(self.order());
        let head = self.fetch_add(COUNTER, RingCounter::ADD_DATA, mask);
        let block = self.consume(RingCounter(head).ticket());
        let block = block.ok_or_else(|| fail(Status::NoSpace))?;
        self.write(PARTITION, block.0, &data);
        Ok(bound(entry, len_of(&data), block, seal))
    }

    fn free(&mut self, entry: &TableEntry) -> TableEntry {
        let slot = self.order().slot_of(Ticket(self.tail)).0 / 16;
        self.ring[slot as usize] = RingSlot {
            sequence: Ticket(self.tail),
            block: entry.block,
        };
        self.tail += 1;
        TableEntry {
            generation: entry.generation.map(Generation::next),
            ..TableEntry::UNBOUND
        }
    }

    fn consume(&mut self, ticket: Ticket) -> Option<BlockOffset> {
        let slot = self.order().slot_of(ticket).0 / 16;
        let slot = &mut self.ring[slot as usize];
        let block = slot.block_for(ticket)?;
        slot.block = BlockOffset::EMPTY;
        Some(block)
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn len_of(data: &[u8]) -> ByteLen {
    ByteLen(u32::try_from(data.len()).unwrap())
}

fn bound(entry: &TableEntry, data_len: ByteLen, block: BlockOffset, seal: bool) -> TableEntry {
    TableEntry {
        flags: EntryFlags::VALID.with(EntryFlags::SEALED, seal),
        generation: Some(entry.generation.map_or(Generation::FIRST, Generation::next)),
        data_len,
        block,
    }
}

fn data_of(source: &Source<'_>, fetch: &mut Fetch<'_>) -> Option<Vec<u8>> {
    match source {
        Source::Inline { octets, .. } => Some(octets.to_vec()),
        Source::Remote { buffer, .. } => fetch(buffer.stag, buffer.offset.0, buffer.len.0),
    }
}

/// Counts down to the time that something happens.
fn countdown(left: &mut Option<u32>) -> bool {
    match left {
        None => false,
        Some(0) => {
            *left = None;
            true
        }
        Some(n) => {
            *n -= 1;
            false
        }
    }
}
