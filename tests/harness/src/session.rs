//! An initiator with a session: HELLO, requests, completions, the direct modes, each step where it can be seen.

use crate::raw::{Buffer, Raw, Received};
use crate::subject::{Subject, TenantSetup};
use hmac::{Hmac, KeyInit, Mac};
use kbtp_fabric::{CloseReason, RemoteBuffer, StreamError};
use kbtp_wire::{
    AtomicForm, Auth, Bind, BlockOffset, ByteLen, Challenge, Completion, DataDescriptor,
    Generation, Grant, Handle, Hello, HelloAck, InitiatorId, KnownTlvs, Nonce, Operation, Request,
    RequestId, RingCounter, RingSlot, SessionCapabilities, Source, Stag, Status, TableEntry,
    TaggedOffset, Ticket,
};
use sha2::Sha256;
use std::net::SocketAddr;

/// A descriptor of nothing.
pub const NO_DATA: DataDescriptor = DataDescriptor {
    stag: Stag(0),
    offset: TaggedOffset(0),
    len: ByteLen(0),
};

/// A buffer of the target.
#[must_use]
pub const fn remote(stag: Stag, offset: u64) -> RemoteBuffer {
    RemoteBuffer {
        stag,
        offset: TaggedOffset(offset),
    }
}

/// ALLOC_STORE.
#[must_use]
pub const fn alloc_store(source: Source<'_>, seal: bool) -> Operation<'_> {
    Operation::AllocStore { source, seal }
}

/// STORE.
#[must_use]
pub const fn store(source: Source<'_>, seal: bool) -> Operation<'_> {
    Operation::Store { source, seal }
}

/// LOAD, sealed or not, without INVALIDATE.
#[must_use]
pub const fn load(sink: DataDescriptor) -> Operation<'static> {
    Operation::Load {
        sink,
        invalidate: false,
        allow_unsealed: true,
    }
}

/// Data that the target reads, without INVALIDATE.
#[must_use]
pub const fn fetched(buffer: DataDescriptor) -> Source<'static> {
    Source::Remote {
        buffer,
        invalidate: false,
    }
}

/// Who asks for a session, and for what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    /// Initiator ID.
    pub initiator: [u8; 16],
    /// Tenant, and the key it is proven with.
    pub tenant: Option<TenantSetup>,
    /// Credits wanted.
    pub credits: u16,
    /// Capabilities wanted.
    pub capabilities: u32,
    /// Quota wanted.
    pub quota: u32,
    /// Max Inline wanted.
    pub max_inline: u32,
    /// Handles wanted.
    pub handles: u64,
    /// Nonce of the proof.
    pub nonce: [u8; 16],
}

impl Who {
    /// Initiator number `n`, who wants what the target gives, without direct modes.
    #[must_use]
    pub fn new(n: u64) -> Self {
        let mut initiator = [0x5a; 16];
        initiator[8..].copy_from_slice(&n.to_be_bytes());
        Self {
            initiator,
            tenant: None,
            credits: 0,
            capabilities: 0,
            quota: 0,
            max_inline: u32::MAX,
            handles: 0,
            nonce: [0x11; 16],
        }
    }

    /// The same with these capabilities.
    #[must_use]
    pub const fn with(mut self, capabilities: SessionCapabilities) -> Self {
        self.capabilities |= capabilities.0;
        self
    }

    /// The same with both direct modes.
    #[must_use]
    pub const fn direct(self) -> Self {
        self.with(SessionCapabilities::DIRECT_LOAD)
            .with(SessionCapabilities::DIRECT_ALLOC)
    }

    /// The same with this quota.
    #[must_use]
    pub const fn quota(mut self, blocks: u32) -> Self {
        self.quota = blocks;
        self
    }

    /// The same of this tenant.
    #[must_use]
    pub fn of(mut self, tenant: &TenantSetup) -> Self {
        self.tenant = Some(tenant.clone());
        self
    }

    /// The proof for `challenge`.
    #[must_use]
    pub fn auth(&self, challenge: &Challenge) -> Option<Auth> {
        let tenant = self.tenant.as_ref()?;
        let nonce = Nonce(self.nonce);
        let mut mac = Hmac::<Sha256>::new_from_slice(&tenant.key).unwrap();
        // The five parts as P9 lists them, written out so that they are not the product's own.
        mac.update(b"KBTP-AUTH-1");
        mac.update(&challenge.0);
        mac.update(&nonce.0);
        mac.update(&self.initiator);
        mac.update(tenant.name.as_bytes());
        Some(Auth {
            nonce,
            mac: mac.finalize().into_bytes().into(),
        })
    }

    /// The HELLO that says all this.
    #[must_use]
    pub fn hello(&self, challenge: &Challenge) -> Vec<u8> {
        let hello = Hello {
            request_id: RequestId(0x4845_4c4c_4f00_0000),
            min_version: 1,
            max_version: 1,
            credits: self.credits,
            capabilities: SessionCapabilities(self.capabilities),
            quota: self.quota,
            max_inline: ByteLen(self.max_inline),
            handles: self.handles,
            initiator: InitiatorId(self.initiator),
            tlvs: KnownTlvs {
                tenant: self.tenant.as_ref().map(|tenant| tenant.name),
                auth: self.auth(challenge),
                software: None,
            },
        };
        let mut octets = vec![0; hello.encoded_len()];
        hello.encode_into(&mut octets).unwrap();
        octets
    }
}

/// A session.
#[derive(Debug)]
pub struct Session {
    /// Its stream.
    pub raw: Raw,
    /// What it was granted.
    pub grant: Grant,
    next_id: u64,
}

impl Session {
    /// A session that the target grants.
    #[must_use]
    pub fn open(subject: &dyn Subject, who: &Who) -> Self {
        Self::at(subject.address(), who)
    }

    /// As [`open`](Self::open), at an address.
    #[must_use]
    pub fn at(address: SocketAddr, who: &Who) -> Self {
        match Self::try_at(address, who) {
            Ok(session) => session,
            Err(status) => panic!("{who:?} is refused: {status:?}"),
        }
    }

    /// A session, or the status it was refused with.
    ///
    /// # Errors
    /// The status of HELLO_ACK.
    pub fn try_open(subject: &dyn Subject, who: &Who) -> Result<Self, Status> {
        Self::try_at(subject.address(), who)
    }

    fn try_at(address: SocketAddr, who: &Who) -> Result<Self, Status> {
        let mut raw = Raw::connect(address);
        let hello = who.hello(&raw.private().challenge);
        match raw.hello(&hello) {
            Ok(grant) => Ok(Self {
                raw,
                grant,
                next_id: 1,
            }),
            Err(status) => {
                // A refusal is followed by the end of the stream.
                raw.end();
                Err(status)
            }
        }
    }

    /// Handle `n` of its range.
    #[must_use]
    pub fn h(&self, n: u64) -> Handle {
        assert!(n < self.grant.handle_count, "the range has handle {n}");
        Handle(self.grant.handle_base.0 + n)
    }

    /// A Request ID that was not used.
    pub fn id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(0x1d00_0000_0000_0000 | self.next_id)
    }

    /// A request on `handle`, of any generation.
    pub fn request<'a>(&mut self, handle: Handle, operation: Operation<'a>) -> Request<'a> {
        Request {
            request_id: self.id(),
            handle,
            generation: None,
            record: None,
            operation,
        }
    }

    /// Sends a request.
    pub fn send(&mut self, request: &Request<'_>) {
        self.raw.send(&octets(request));
    }

    /// The next completion.
    pub fn completion(&mut self) -> Completion {
        self.completion_with().0
    }

    /// The next completion, and the STag that it invalidated.
    pub fn completion_with(&mut self) -> (Completion, Option<Stag>) {
        let received = self.raw.recv().expect("the session goes on");
        let completion = Completion::decode_message(&received.octets)
            .unwrap_or_else(|error| panic!("no completion: {error}: {:02x?}", received.octets));
        (completion, received.invalidated)
    }

    /// Sends a request and takes its completion, the only one outstanding.
    pub fn ask(&mut self, request: &Request<'_>) -> Completion {
        self.ask_octets(&octets(request))
    }

    /// Sends any octets with a header and takes the completion.
    pub fn ask_octets(&mut self, message: &[u8]) -> Completion {
        self.raw.send(message);
        let completion = self.completion();
        let id = u64::from_be_bytes(message[4..12].try_into().unwrap());
        let handle = u64::from_be_bytes(message[12..20].try_into().unwrap());
        assert_eq!(completion.request_id.0, id, "the Request ID is echoed");
        assert_eq!(completion.handle.0, handle, "the Block Handle is echoed");
        completion
    }

    /// ALLOC_STORE or STORE of inline data, in octets as the wire has them.
    #[must_use]
    pub fn inline(data: &[u8]) -> Source<'_> {
        Source::Inline {
            declared: ByteLen(u32::try_from(data.len()).unwrap()),
            octets: data,
        }
    }

    /// ALLOC_STORE of inline data.
    pub fn alloc(&mut self, handle: Handle, data: &[u8], seal: bool) -> Completion {
        let source = Self::inline(data);
        let request = self.request(handle, Operation::AllocStore { source, seal });
        self.ask(&request)
    }

    /// ALLOC_STORE that must succeed, sealed: its completion.
    pub fn put(&mut self, n: u64, data: &[u8]) -> Completion {
        let handle = self.h(n);
        let completion = if data.len() <= usize::try_from(self.grant.max_inline.0).unwrap() {
            self.alloc(handle, data, true)
        } else {
            let buffer = self.raw.filled(data);
            let completion = self.alloc_from(handle, buffer.descriptor(), true);
            self.raw.release(buffer);
            completion
        };
        assert_eq!(completion.status, Status::Ok, "{completion:?}");
        completion
    }

    /// ALLOC_STORE of data that the target reads.
    pub fn alloc_from(&mut self, handle: Handle, buffer: DataDescriptor, seal: bool) -> Completion {
        let source = Source::Remote {
            buffer,
            invalidate: false,
        };
        let request = self.request(handle, Operation::AllocStore { source, seal });
        self.ask(&request)
    }

    /// STORE of inline data.
    pub fn store(&mut self, handle: Handle, data: &[u8], seal: bool) -> Completion {
        let source = Self::inline(data);
        let request = self.request(handle, Operation::Store { source, seal });
        self.ask(&request)
    }

    /// LOAD into a fresh buffer of `len` octets; the buffer's octets after it.
    pub fn load_len(
        &mut self,
        handle: Handle,
        len: u32,
        allow_unsealed: bool,
    ) -> (Completion, Vec<u8>) {
        let buffer = self.raw.buffer(len);
        let fill = vec![0xee; usize::try_from(len).unwrap()];
        self.raw.fill(&buffer, &fill);
        let operation = Operation::Load {
            sink: buffer.descriptor(),
            invalidate: false,
            allow_unsealed,
        };
        let request = self.request(handle, operation);
        let completion = self.ask(&request);
        let octets = self.raw.octets(&buffer);
        self.raw.release(buffer);
        (completion, octets)
    }

    /// LOAD, sealed or not, into a buffer of a block: the completion, and the data if it is OK.
    pub fn load(&mut self, handle: Handle) -> (Completion, Vec<u8>) {
        let (completion, mut octets) = self.load_len(handle, self.grant.block_size.0, true);
        octets.truncate(usize::try_from(completion.data_len.0).unwrap());
        (completion, octets)
    }

    /// What is in a handle: its generation and data, or `None` if it is not bound.
    pub fn content(&mut self, handle: Handle) -> Option<(Generation, Vec<u8>)> {
        let (completion, octets) = self.load(handle);
        match completion.status {
            Status::Ok => Some((completion.generation.expect("bound"), octets)),
            Status::NotValid => None,
            other => panic!("{other:?}"),
        }
    }

    /// FREE.
    pub fn free(&mut self, handle: Handle) -> Completion {
        let request = self.request(handle, Operation::Free);
        self.ask(&request)
    }

    /// BIND.
    pub fn bind(
        &mut self,
        handle: Handle,
        ticket: Ticket,
        block: BlockOffset,
        data_len: u32,
        seal: bool,
    ) -> Completion {
        let bind = Bind {
            ticket,
            data_len: ByteLen(data_len),
            block,
        };
        let request = self.request(handle, Operation::Bind { bind, seal });
        self.ask(&request)
    }

    /// The 16 octets of a table entry, by RDMA Read.
    pub fn entry_octets(&mut self, handle: Handle) -> [u8; 16] {
        let row = handle.0 - self.grant.table_base.0;
        let at = remote(self.grant.table_stag, self.grant.table_offset.0 + 16 * row);
        self.raw
            .read(at, 16)
            .expect("the table can be read")
            .try_into()
            .unwrap()
    }

    /// A table entry, by RDMA Read.
    pub fn entry(&mut self, handle: Handle) -> TableEntry {
        TableEntry::decode(&self.entry_octets(handle))
    }

    /// Octets of a block, by RDMA Read of the Pool STag.
    pub fn block(&mut self, block: BlockOffset, len: u32) -> Vec<u8> {
        let at = remote(self.grant.pool_stag, block.0);
        self.raw.read(at, len).expect("the pool can be read")
    }

    /// The 16 octets of slot `s` of its ring, by RDMA Read.
    pub fn slot_octets(&mut self, s: u32) -> [u8; 16] {
        let at = self.grant.ring_offset.0 + 16 * u64::from(s);
        let at = remote(self.grant.ring_stag, at);
        self.raw
            .read(at, 16)
            .expect("the ring can be read")
            .try_into()
            .unwrap()
    }

    /// Slot `s` of its ring.
    pub fn slot(&mut self, s: u32) -> RingSlot {
        RingSlot::decode(&self.slot_octets(s))
    }

    /// Takes a ticket: FetchAdd on Head, and what it gives.
    pub fn take(&mut self) -> RingCounter {
        self.try_take().expect("Head is there to be counted up")
    }

    /// As [`take`](Self::take), where it may be refused.
    ///
    /// # Errors
    /// The end of the stream.
    pub fn try_take(&mut self) -> Result<RingCounter, StreamError> {
        let head = remote(self.grant.counter_stag, self.grant.head_offset.0);
        // The numbers of section 3.3, written out so that they are not the product's own.
        let order = u32::from(self.grant.ring_order.get());
        let (add, mask) = match self.grant.atomic_form {
            AtomicForm::Masked => (
                0x0000_0001_0000_0010,
                (1 << 63) | (1 << 31) | (1_u64 << (order + 3)),
            ),
            AtomicForm::Unmasked => (0x0000_0001_0000_0000, 0),
        };
        Ok(RingCounter(self.raw.fetch_add(head, add, mask)?))
    }

    /// Takes a ticket and waits for its block (draft, section 6.6).
    pub fn take_block(&mut self) -> (Ticket, BlockOffset) {
        let counter = self.take();
        let ticket = counter.ticket();
        // The same in either form: 16 * (ticket mod N).
        let slot_number = self.grant.ring_order.slot_of(ticket).0 / 16;
        let block = crate::eventually("a block for a ticket", || {
            let block = self.slot(slot_number).block_for(ticket)?;
            // Once more, to confirm both values.
            (self.slot(slot_number).block_for(ticket) == Some(block)).then_some(block)
        });
        (ticket, block)
    }

    /// Writes into a block of its partition.
    pub fn write_block(&mut self, block: BlockOffset, data: &[u8]) {
        let sink = remote(self.grant.partition_stag, block.0);
        self.raw.write(data, sink);
    }

    /// A direct allocation: ticket, block, data, BIND. The completion.
    pub fn alloc_direct(&mut self, handle: Handle, data: &[u8], seal: bool) -> Completion {
        let (ticket, block) = self.take_block();
        self.write_block(block, data);
        let len = u32::try_from(data.len()).unwrap();
        self.bind(handle, ticket, block, len, seal)
    }

    /// Waits for the end of the stream.
    pub fn end(&mut self) -> StreamError {
        self.raw.end()
    }

    /// Ends it in order.
    pub fn close(self) {
        self.raw.close(CloseReason::Graceful);
    }

    /// Ends it at once.
    pub fn abort(self) {
        self.raw.close(CloseReason::Abort);
    }

    /// A buffer of one block.
    pub fn block_buffer(&mut self) -> Buffer {
        self.raw.buffer(self.grant.block_size.0)
    }
}

impl Raw {
    /// Sends a HELLO; what was granted.
    ///
    /// # Errors
    /// The status it was refused with.
    pub fn hello(&mut self, hello: &[u8]) -> Result<Grant, Status> {
        self.send(hello);
        let Received { octets, .. } = self.recv().expect("a HELLO is answered");
        match HelloAck::decode(&octets).expect("a HELLO_ACK") {
            HelloAck::Granted { grant, .. } => Ok(grant),
            HelloAck::Refused { status, .. } => Err(status),
        }
    }
}

/// The octets of a request.
fn octets(request: &Request<'_>) -> Vec<u8> {
    let mut octets = vec![0; request.encoded_len()];
    request.encode_into(&mut octets).unwrap();
    octets
}
