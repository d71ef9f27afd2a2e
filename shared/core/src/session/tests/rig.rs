//! A target and its initiators in one thread: every posted work request is done here, when the test says so.

use crate::session::{Admission, Exposer, Intake, SessionConfig, SessionEnd, TargetSession};
use crate::{
    Audit, Contents, Directory, DirectoryConfig, Geometry, Pool, SessionId, Shared, TenantConfig,
    TenantKey,
};
use core::ops::Range;
use kbtp_fabric::{
    Access, Atomics, Capabilities, LocalBuffer, LocalError, RemoteBuffer, Time, WorkId,
    WorkOutcome, WorkRequest,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{
    Auth, AuthMode, BlockOffset, ByteLen, Challenge, Completion, DataDescriptor, Generation, Grant,
    Handle, Hello, HelloAck, InitiatorId, KnownTlvs, Nonce, Opcode, Operation, Request, RequestId,
    SessionCapabilities, Source, Stag, Status, TaggedOffset,
};
use std::collections::{BTreeMap, VecDeque};

pub(super) const BLOCK: u32 = 4096;
pub(super) const TABLE_BASE: u64 = 1 << 20;
pub(super) const POOL_STAG: Stag = Stag(1);
/// The initiator's only buffer.
pub(super) const PEER_STAG: Stag = Stag(0x77);
const PEER_LEN: u64 = 1 << 20;

/// Pool, directory and clock.
pub(super) struct Rig {
    pub(super) shared: Shared,
    pub(super) directory: Directory,
    pub(super) now: Time,
    next_id: u64,
}

/// What a worker of a target has at hand.
pub(super) trait Node {
    fn now(&self) -> Time;
    fn shared(&self) -> &Shared;
}

impl Node for Rig {
    fn now(&self) -> Time {
        self.now
    }

    fn shared(&self) -> &Shared {
        &self.shared
    }
}

pub(super) fn geometry(blocks: u32) -> Geometry {
    Geometry {
        block_size: BLOCK,
        blocks,
        handles: 1024,
        table_base_handle: Handle(TABLE_BASE),
        pool_base: BlockOffset(0x4000_0000),
    }
}

pub(super) fn config() -> DirectoryConfig {
    DirectoryConfig {
        default_quota: 4,
        direct_load: true,
        direct_alloc: true,
        ticket_timeout_ms: 1000,
        lease_ms: 10_000,
        ..DirectoryConfig::default()
    }
}

pub(super) fn tenant(name: &str, shared: bool) -> TenantConfig {
    TenantConfig {
        name: name.to_owned(),
        key: Some(TenantKey::new(name)),
        shared,
    }
}

/// The regions of a pool, to recover it from.
pub(super) fn regions(geometry: &Geometry) -> (Region, Region) {
    let options = PageOptions::default();
    (
        Region::anonymous(geometry.meta_len(), &options).unwrap(),
        Region::anonymous(geometry.pool_len(), &options).unwrap(),
    )
}

impl Rig {
    pub(super) fn new(blocks: u32, config: DirectoryConfig) -> Self {
        let geometry = geometry(blocks);
        let (meta, data) = regions(&geometry);
        let pool = Pool::format(meta, data, geometry, [7; 16], Contents::Zeroed).unwrap();
        let directory = Directory::new(config, &pool).unwrap();
        Self {
            shared: Shared::new(pool),
            directory,
            now: Time(1),
            next_id: 1,
        }
    }

    pub(super) fn over(shared: Shared, directory: Directory, now: Time) -> Self {
        Self {
            shared,
            directory,
            now,
            next_id: 1000,
        }
    }

    pub(super) fn client(&mut self) -> Client {
        self.client_with(AuthMode::None, Atomics::Masked)
    }

    pub(super) fn client_with(&mut self, auth: AuthMode, atomics: Atomics) -> Client {
        self.next_id += 1;
        Client::new(SessionId(self.next_id - 1), auth, atomics)
    }

    /// A session over a stream that has RDMA Write with Immediate.
    pub(super) fn open_on_infiniband(&mut self, hello: &Hello<'_>) -> (Client, Grant) {
        self.next_id += 1;
        let id = SessionId(self.next_id - 1);
        let mut client = Client::on(id, AuthMode::None, Atomics::Unmasked, true);
        let status = client.hello(self, hello);
        (client, status.unwrap())
    }

    /// A session that was granted what `hello` wants.
    pub(super) fn open(&mut self, hello: &Hello<'_>) -> (Client, Grant) {
        let mut client = self.client();
        let status = client.hello(self, hello);
        (client, status.unwrap())
    }

    pub(super) fn close(&mut self, mut client: Client) {
        client.flush(self);
        client
            .session
            .finish(self.now, &self.shared, &mut self.directory);
    }

    pub(super) fn advance_ms(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
    }

    /// The audit, without faults.
    pub(super) fn audit(&self) -> Audit {
        let audit = self.shared.pool.audit();
        assert_eq!(audit.faults, Vec::<String>::new());
        audit
    }

    /// Every block is in a ring or bound.
    pub(super) fn at_rest(&self) -> Audit {
        let audit = self.audit();
        let moving = (audit.elsewhere, audit.deferred, audit.awaited);
        assert_eq!(moving, (0, 0, 0), "{audit:?}");
        audit
    }

    pub(super) fn counted(&self, opcode: Opcode, status: Status) -> u64 {
        self.shared.stats.get(opcode.to_wire(), status.to_wire())
    }
}

/// What a session exposed.
#[derive(Debug, Default)]
pub(super) struct Stags {
    pub(super) valid: BTreeMap<u32, (Region, Range<u64>, TaggedOffset, Access)>,
    pub(super) revoked: Vec<Stag>,
    next: u32,
    /// Registrations that are still possible.
    pub(super) left: Option<u32>,
}

impl Exposer for Stags {
    fn expose(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        if self.left == Some(0) {
            return Err(LocalError::Limit {
                what: "registrations",
                limit: 0,
            });
        }
        self.left = self.left.map(|left| left - 1);
        self.next += 1;
        let stag = Stag(0x100 + self.next);
        assert!(range.end <= region.len());
        self.valid
            .insert(stag.0, (region.clone(), range, base, access));
        Ok(stag)
    }

    fn revoke(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.revoked.push(stag);
        self.valid
            .remove(&stag.0)
            .map(|_| ())
            .ok_or(LocalError::UnknownStag { stag })
    }
}

impl Stags {
    /// Where the octet at a Tagged Offset lies, if the right is there.
    pub(super) fn place(
        &self,
        stag: Stag,
        at: u64,
        right: fn(&Access) -> bool,
    ) -> Option<(&Region, u64)> {
        let (region, range, base, access) = self.valid.get(&stag.0)?;
        let place = range.start + at.checked_sub(base.0)?;
        (right(access) && place < range.end).then_some((region, place))
    }
}

/// Work that was posted and not done.
#[derive(Debug)]
enum Pending {
    Send(Vec<u8>, Option<Stag>),
    Write(LocalBuffer, RemoteBuffer),
    Read(LocalBuffer, RemoteBuffer),
    Record(Vec<u8>, RemoteBuffer, u32),
}

/// One initiator and its session.
pub(super) struct Client {
    pub(super) session: TargetSession,
    pub(super) stags: Stags,
    pub(super) memory: Region,
    posted: VecDeque<(WorkId, bool, Pending)>,
    pub(super) received: VecDeque<Vec<u8>>,
    pub(super) invalidated: Vec<Stag>,
    /// Immediate Data that came.
    pub(super) immediates: Vec<u32>,
    next_request: u64,
}

pub(super) fn hello(initiator: u8) -> Hello<'static> {
    Hello {
        request_id: RequestId(42),
        min_version: 1,
        max_version: 1,
        credits: 8,
        capabilities: SessionCapabilities::NONE,
        quota: 0,
        max_inline: ByteLen(256),
        handles: 64,
        initiator: InitiatorId([initiator; 16]),
        tlvs: KnownTlvs::default(),
    }
}

pub(super) fn proof(name: &str, initiator: u8) -> Auth {
    let nonce = Nonce([3; 16]);
    let key = TenantKey::new(name);
    let mac = crate::auth::mac(
        &key,
        &Challenge([5; 32]),
        &nonce,
        &InitiatorId([initiator; 16]),
        name,
    );
    Auth { nonce, mac }
}

impl Client {
    pub(super) fn new(id: SessionId, auth: AuthMode, atomics: Atomics) -> Self {
        Self::on(id, auth, atomics, false)
    }

    fn on(id: SessionId, auth: AuthMode, atomics: Atomics, write_with_immediate: bool) -> Self {
        let session = TargetSession::new(SessionConfig {
            id,
            auth,
            challenge: [5; 32],
            pool_stag: POOL_STAG,
            capabilities: Capabilities {
                atomics,
                write_with_immediate,
                send_with_invalidate: true,
                outbound_reads: 16,
                inbound_reads: 16,
                max_receive: ByteLen(1 << 16),
                max_message: ByteLen(u32::MAX),
            },
        });
        Self {
            session,
            stags: Stags::default(),
            memory: Region::anonymous(PEER_LEN, &PageOptions::default()).unwrap(),
            posted: VecDeque::new(),
            received: VecDeque::new(),
            invalidated: Vec::new(),
            immediates: Vec::new(),
            next_request: 1,
        }
    }

    /// Sends HELLO and takes HELLO_ACK: the grant, or why not.
    #[expect(
        clippy::unwrap_in_result,
        reason = "what is unwrapped is the rig's own"
    )]
    pub(super) fn hello(&mut self, rig: &mut Rig, hello: &Hello<'_>) -> Result<Grant, Status> {
        let mut octets = vec![0; hello.encoded_len()];
        hello.encode_into(&mut octets).unwrap();
        match self
            .session
            .handle_message(rig.now, &rig.shared, &octets)
            .unwrap()
        {
            Intake::Admit => assert_eq!(self.admit(rig), Admission::Answered),
            Intake::Taken => {}
        }
        self.pump(rig);
        let ack = self.received.pop_front().unwrap();
        match HelloAck::decode(&ack).unwrap() {
            HelloAck::Granted {
                request_id, grant, ..
            } => {
                assert_eq!(request_id, hello.request_id);
                Ok(grant)
            }
            HelloAck::Refused { status, .. } => Err(status),
        }
    }

    pub(super) fn admit(&mut self, rig: &mut Rig) -> Admission {
        self.session
            .admit(rig.now, &rig.shared, &mut rig.directory, &mut self.stags)
            .unwrap()
    }

    /// Hands the session a message.
    pub(super) fn give(&mut self, rig: &impl Node, octets: &[u8]) -> Result<(), SessionEnd> {
        self.session
            .handle_message(rig.now(), rig.shared(), octets)
            .map(|_| ())
    }

    /// Sends a request; its Request ID.
    pub(super) fn send(
        &mut self,
        rig: &impl Node,
        handle: u64,
        generation: u16,
        operation: Operation<'_>,
    ) -> RequestId {
        let request_id = RequestId(self.next_request);
        self.next_request += 1;
        let request = Request {
            request_id,
            handle: Handle(handle),
            generation: Generation::new(generation),
            record: None,
            operation,
        };
        let mut octets = vec![0; request.encoded_len()];
        request.encode_into(&mut octets).unwrap();
        self.give(rig, &octets).unwrap();
        request_id
    }

    /// Sends a request and takes its completion.
    pub(super) fn call(
        &mut self,
        rig: &impl Node,
        handle: u64,
        generation: u16,
        operation: Operation<'_>,
    ) -> Completion {
        let id = self.send(rig, handle, generation, operation);
        self.pump(rig);
        let completion = self.next_completion().expect("a completion");
        assert_eq!(
            (completion.request_id, completion.handle),
            (id, Handle(handle))
        );
        completion
    }

    pub(super) fn next_completion(&mut self) -> Option<Completion> {
        self.received
            .pop_front()
            .map(|message| Completion::decode_message(&message).unwrap())
    }

    /// The statuses of all completions received.
    pub(super) fn statuses(&mut self) -> Vec<(u64, Status)> {
        std::iter::from_fn(|| self.next_completion())
            .map(|c| (c.request_id.0, c.status))
            .collect()
    }

    /// Posts everything there is to post.
    pub(super) fn post(&mut self) {
        while let Some(work) = self.session.next_work() {
            let pending = match work.request {
                WorkRequest::Send {
                    head,
                    tail: None,
                    solicited: false,
                    invalidate,
                } => Pending::Send(head.to_vec(), invalidate),
                WorkRequest::Write {
                    local,
                    remote,
                    immediate: None,
                } => Pending::Write(local, remote),
                WorkRequest::Read { local, remote } => Pending::Read(local, remote),
                WorkRequest::WriteImmediate {
                    octets,
                    remote,
                    immediate,
                } => Pending::Record(octets.to_vec(), remote, immediate),
                other => panic!("{other:?}"),
            };
            self.posted.push_back((work.id, work.signaled, pending));
            self.session.work_posted();
        }
    }

    /// Does the first posted work; whether there was any.
    pub(super) fn step(&mut self, rig: &impl Node) -> bool {
        let Some((id, signaled, pending)) = self.posted.pop_front() else {
            return false;
        };
        let pool = &rig.shared().pool;
        let base = pool.geometry().pool_base.0;
        let outcome = match pending {
            Pending::Send(message, invalidate) => {
                self.received.push_back(message);
                self.invalidated.extend(invalidate);
                WorkOutcome::Sent
            }
            Pending::Record(octets, remote, immediate) => {
                assert_eq!(remote.stag, PEER_STAG);
                self.memory.write(remote.offset.0, &octets).unwrap();
                self.immediates.push(immediate);
                WorkOutcome::Sent
            }
            Pending::Write(local, remote) => {
                assert_eq!((local.stag, remote.stag), (POOL_STAG, PEER_STAG));
                let from = local.offset.0 - base;
                self.memory
                    .copy_from(pool.block_region(), from, remote.offset.0, local.len.get())
                    .unwrap();
                WorkOutcome::Sent
            }
            Pending::Read(local, remote) => {
                assert_eq!((local.stag, remote.stag), (POOL_STAG, PEER_STAG));
                let to = local.offset.0 - base;
                pool.block_region()
                    .copy_from(&self.memory, remote.offset.0, to, local.len.get())
                    .unwrap();
                WorkOutcome::Read
            }
        };
        if signaled {
            self.session
                .handle_done(rig.now(), rig.shared(), id, outcome)
                .unwrap();
        }
        true
    }

    /// Posts and does everything until there is nothing left.
    pub(super) fn pump(&mut self, rig: &impl Node) {
        loop {
            self.post();
            if !self.step(rig) {
                return;
            }
        }
    }

    pub(super) fn timeout(&mut self, rig: &impl Node) -> Result<(), SessionEnd> {
        self.session
            .handle_timeout(rig.now(), rig.shared(), &mut self.stags)
    }

    /// The stream ends: what was posted is flushed.
    pub(super) fn flush(&mut self, rig: &impl Node) {
        while let Some((id, _, _)) = self.posted.pop_front() {
            let end = self
                .session
                .handle_done(rig.now(), rig.shared(), id, WorkOutcome::Flushed);
            assert!(end.is_err());
        }
    }

    pub(super) fn write_memory(&self, at: u64, data: &[u8]) {
        self.memory.write(at, data).unwrap();
    }

    pub(super) fn read_memory(&self, at: u64, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        self.memory.read(at, &mut octets).unwrap();
        octets
    }
}

pub(super) const fn buffer(at: u64, len: u32) -> DataDescriptor {
    DataDescriptor {
        stag: PEER_STAG,
        offset: TaggedOffset(at),
        len: ByteLen(len),
    }
}

pub(super) const fn load(at: u64, len: u32) -> Operation<'static> {
    Operation::Load {
        sink: buffer(at, len),
        invalidate: false,
        allow_unsealed: false,
    }
}

pub(super) const fn load_unsealed(at: u64, len: u32) -> Operation<'static> {
    Operation::Load {
        sink: buffer(at, len),
        invalidate: false,
        allow_unsealed: true,
    }
}

pub(super) fn inline(octets: &[u8]) -> Source<'_> {
    Source::Inline {
        declared: ByteLen(u32::try_from(octets.len()).unwrap()),
        octets,
    }
}

pub(super) const fn remote(at: u64, len: u32) -> Source<'static> {
    Source::Remote {
        buffer: buffer(at, len),
        invalidate: false,
    }
}

pub(super) fn put(data: &[u8]) -> Operation<'_> {
    Operation::AllocStore {
        source: inline(data),
        seal: true,
    }
}

pub(super) fn put_unsealed(data: &[u8]) -> Operation<'_> {
    Operation::AllocStore {
        source: inline(data),
        seal: false,
    }
}
