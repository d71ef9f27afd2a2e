//! Two targets without sockets: one whose requests the core serves, one whose requests chains serve.

use super::ops::Numbers;
use crate::chains::{ChainCounts, Chains, SeatId};
use kbtp_core::{
    Admission, Contents, Directory, DirectoryConfig, Exposer, Geometry, Pool, SessionConfig,
    SessionEnd, SessionId, Shared, TargetSession,
};
use kbtp_device::{Device as _, Peer, Route};
use kbtp_fabric::{
    Access, Atomics, Capabilities, LocalBuffer, LocalError, RemoteBuffer, Time, WorkOutcome,
    WorkRequest,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::Qpn;
use kbtp_nic_model::{
    Client, ClientKey, Fetch, Hazards, Kind, Model, Outgoing, Received, Sampling, Schedule,
    exchange,
};
use kbtp_wire::{
    AuthMode, BlockOffset, ByteLen, EntryFlags, Generation, Grant, Handle, Hello, HelloAck,
    InitiatorId, KnownTlvs, RequestId, SessionCapabilities, Stag, TableEntry, TaggedOffset,
};
use std::collections::VecDeque;
use std::ops::Range;

pub(super) const BLOCK: u32 = 4096;
pub(super) const BLOCKS: u32 = 160;
pub(super) const HANDLES: u64 = 1024;
pub(super) const BASE: u64 = 0x100;
pub(super) const FIRST_BLOCK: u64 = 0x7000_0000_0000;
pub(super) const KEY: u32 = 0xabc_d042;
pub(super) const BUFFER: u64 = 0x5000_0000;
pub(super) const BUFFERS: u64 = 4;
pub(super) const INLINE: u32 = 600;
const POOL_STAG: Stag = Stag(1);

/// Where counts of a target and its device stand when it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begin {
    /// Where they do.
    New,
    /// Shortly before they wrap: the Generations of all entries; and the slots of a session, by its number, at the wrap of the
    /// 24 bits of each of its completion queues, and at those of the 16 bits of its slots.
    Wraps,
}

impl Begin {
    /// The slot that a session begins with: its CQEs are three a slot of the client's queue pair, nine of the loopback queue.
    pub(super) const fn slot(self, number: u8) -> u64 {
        match (self, number % 4) {
            (Self::New, _) => 0,
            (Self::Wraps, 0) => (1 << 24) - 40,
            (Self::Wraps, 1) => (1 << 24) / 3 - 40,
            (Self::Wraps, 2) => (1 << 24) / 9 - 40,
            (Self::Wraps, _) => (1 << 16) - 40,
        }
    }
}

/// What a device may do that chains must bear, by the seed.
pub(super) fn hazards(seed: u64) -> Hazards {
    let mut random = Numbers::new(seed);
    let fetch = [
        Fetch::WhenEnabled,
        Fetch::WhenRun,
        Fetch::Either,
        Fetch::Torn,
    ];
    let sampling = [Sampling::Early, Sampling::Late, Sampling::Either];
    Hazards {
        fetch: random.pick(&fetch),
        sampling: random.pick(&sampling),
        split_atomics: random.percent(50),
        quiet_flush: random.percent(50),
        lenient_identity: random.percent(25),
        lenient_alignment: random.percent(25),
        lenient_nop: random.percent(25),
        lenient_roles: random.percent(25),
        ..Hazards::default()
    }
}

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    pub(super) octets: Vec<u8>,
    pub(super) invalidated: Option<u32>,
}

pub(super) fn geometry() -> Geometry {
    Geometry {
        block_size: BLOCK,
        blocks: BLOCKS,
        handles: HANDLES,
        table_base_handle: Handle(BASE),
        pool_base: BlockOffset(FIRST_BLOCK),
    }
}

/// Registers nothing: no direct mode is asked for.
struct Nothing;

impl Exposer for Nothing {
    fn expose(
        &mut self,
        _region: &Region,
        _range: Range<u64>,
        _base: TaggedOffset,
        _access: Access,
    ) -> Result<Stag, LocalError> {
        Ok(Stag(9))
    }

    fn revoke(&mut self, _stag: Stag) -> Result<(), LocalError> {
        Ok(())
    }
}

/// Every entry that binds nothing is as if its handle had been freed so often that the next few Generations are the last.
fn freed_often(pool: &Pool) {
    let (at, region) = (pool.places().table, pool.meta_region());
    for row in 0..HANDLES {
        let at = at + row * TableEntry::LEN as u64;
        let mut octets = [0; TableEntry::LEN];
        region.read(at, &mut octets).unwrap();
        let mut entry = TableEntry::decode(&octets);
        if !entry.flags.contains(EntryFlags::VALID) {
            entry.generation = Generation::new(u16::MAX - u16::try_from(row % 4).unwrap());
            region.write(at, &entry.encode()).unwrap();
        }
    }
}

/// Pool, directory and sessions.
pub(super) struct Target {
    pub(super) shared: Shared,
    pub(super) directory: Directory,
    pub(super) now: Time,
}

impl Target {
    pub(super) fn new(quota: u32, begin: Begin) -> Self {
        let geometry = geometry();
        let options = PageOptions::default();
        let meta = Region::anonymous(geometry.meta_len(), &options).unwrap();
        let blocks = Region::anonymous(geometry.pool_len(), &options).unwrap();
        let pool = Pool::format(meta, blocks, geometry, [7; 16], Contents::Zeroed).unwrap();
        if begin == Begin::Wraps {
            freed_often(&pool);
        }
        let config = DirectoryConfig {
            default_quota: quota,
            credits_default: 8,
            credits_max: 8,
            inline_max: INLINE,
            lease_ms: 0,
            ..DirectoryConfig::default()
        };
        let directory = Directory::new(config, &pool).unwrap();
        Self {
            shared: Shared::new(pool),
            directory,
            now: Time(1),
        }
    }

    /// A session that was granted what it gets by default.
    pub(super) fn open(&mut self, number: u8) -> (TargetSession, Grant) {
        let mut core = TargetSession::new(SessionConfig {
            id: SessionId(number.into()),
            auth: AuthMode::None,
            challenge: [0; 32],
            pool_stag: POOL_STAG,
            capabilities: Capabilities {
                atomics: Atomics::None,
                write_with_immediate: false,
                send_with_invalidate: true,
                outbound_reads: 16,
                inbound_reads: 16,
                max_receive: ByteLen(4096),
                max_message: ByteLen(u32::MAX),
            },
        });
        let hello = Hello {
            request_id: RequestId(1),
            min_version: 1,
            max_version: 1,
            credits: 0,
            capabilities: SessionCapabilities::default(),
            quota: 0,
            max_inline: ByteLen(INLINE),
            handles: 0,
            initiator: InitiatorId([number; 16]),
            tlvs: KnownTlvs::default(),
        };
        let mut octets = vec![0; hello.encoded_len()];
        hello.encode_into(&mut octets).unwrap();
        core.handle_message(self.now, &self.shared, &octets)
            .unwrap();
        let admitted = core.admit(self.now, &self.shared, &mut self.directory, &mut Nothing);
        assert_eq!(admitted.unwrap(), Admission::Answered);
        let Some(WorkRequest::Send { head, .. }) = core.next_work().map(|work| work.request) else {
            panic!("a HELLO is answered")
        };
        let HelloAck::Granted { grant, .. } = HelloAck::decode(head).unwrap() else {
            panic!("the session is refused")
        };
        core.work_posted();
        (core, grant)
    }

    /// Generations wrap once more.
    pub(super) fn age(&self) {
        freed_often(&self.shared.pool);
    }

    pub(super) fn table(&self) -> Vec<u8> {
        let places = self.shared.pool.places();
        self.meta(places.table, HANDLES * 16)
    }

    /// Ring and counters.
    pub(super) fn ring(&self) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let places = self.shared.pool.places();
        (
            self.meta(places.ring, places.ring_order.ring_len()),
            self.meta(places.counters, 8),
            self.meta(places.counters + 64, 8),
        )
    }

    fn meta(&self, at: u64, len: u64) -> Vec<u8> {
        let mut octets = vec![0; usize::try_from(len).unwrap()];
        self.shared
            .pool
            .meta_region()
            .read(at, &mut octets)
            .unwrap();
        octets
    }

    pub(super) fn block(&self, offset: u64, len: u32) -> Vec<u8> {
        let mut octets = vec![0; usize::try_from(len).unwrap()];
        let region = self.shared.pool.block_region();
        region.read(offset - FIRST_BLOCK, &mut octets).unwrap();
        octets
    }
}

fn buffers() -> Region {
    Region::anonymous(BUFFERS * u64::from(BLOCK), &PageOptions::default()).unwrap()
}

/// The core alone: its work is done as soon as it is asked for.
pub(super) struct BySoftware {
    pub(super) target: Target,
    parties: Vec<(TargetSession, Region, VecDeque<Answer>)>,
}

impl BySoftware {
    pub(super) fn new(sessions: u8, quota: u32, begin: Begin) -> (Self, Vec<Grant>) {
        let mut target = Target::new(quota, begin);
        let mut grants = Vec::new();
        let parties = (0..sessions).map(|number| {
            let (core, grant) = target.open(number);
            grants.push(grant);
            (core, buffers(), VecDeque::new())
        });
        let parties = parties.collect();
        (Self { target, parties }, grants)
    }

    pub(super) fn buffer(&self, party: usize) -> &Region {
        &self.parties[party].1
    }

    pub(super) fn ask(&mut self, party: usize, message: &[u8]) -> Result<Answer, SessionEnd> {
        let Target { shared, now, .. } = &mut self.target;
        let (core, buffer, answers) = &mut self.parties[party];
        core.handle_message(*now, shared, message)?;
        for _ in 0..10_000 {
            while let Some(work) = core.next_work() {
                let (id, signaled) = (work.id, work.signaled);
                let outcome = perform(shared, buffer, &work.request, answers);
                core.work_posted();
                if signaled {
                    core.handle_done(*now, shared, id, outcome)?;
                }
            }
            if let Some(answer) = answers.pop_front() {
                return Ok(answer);
            }
            *now = core.poll_timeout().expect("something is to come");
            core.handle_timeout(*now, shared, &mut Nothing)?;
        }
        panic!("no answer")
    }
}

/// Does a work request, as a stream would.
fn perform(
    shared: &Shared,
    buffer: &Region,
    request: &WorkRequest<'_>,
    answers: &mut VecDeque<Answer>,
) -> WorkOutcome {
    let place = |local: &LocalBuffer| local.offset.0 - FIRST_BLOCK;
    let far = |remote: &RemoteBuffer| remote.offset.0 - BUFFER;
    let copy = |from: (&Region, u64), to: (&Region, u64), len: ByteLen| {
        let mut octets = vec![0; usize::try_from(len.0).unwrap()];
        from.0.read(from.1, &mut octets).unwrap();
        to.0.write(to.1, &octets).unwrap();
    };
    let blocks = shared.pool.block_region();
    match request {
        WorkRequest::Write { local, remote, .. } => {
            copy((blocks, place(local)), (buffer, far(remote)), local.len);
            WorkOutcome::Sent
        }
        WorkRequest::Read { local, remote } => {
            copy((buffer, far(remote)), (blocks, place(local)), local.len);
            WorkOutcome::Read
        }
        WorkRequest::Send {
            head, invalidate, ..
        } => {
            answers.push_back(Answer {
                octets: head.to_vec(),
                invalidated: invalidate.map(|stag| stag.0),
            });
            WorkOutcome::Sent
        }
        other => panic!("{other:?}"),
    }
}

/// A session on the device with its client.
pub(super) struct Party {
    pub(super) core: TargetSession,
    pub(super) id: SeatId,
    pub(super) qpn: Qpn,
    pub(super) client: Client,
    held: Option<Outgoing>,
}

/// Chains on the model.
pub(super) struct ByChains {
    pub(super) target: Target,
    pub(super) chains: Chains<Model>,
    pub(super) counts: ChainCounts,
    pub(super) parties: Vec<Party>,
}

pub(super) const FAR: Peer = Peer::Remote(Route {
    qpn: Qpn::truncate(7),
    gid: [0; 16],
    send_psn: 0,
    receive_psn: 0,
    path: None,
});

impl ByChains {
    pub(super) fn new(
        sessions: u8,
        quota: u32,
        begin: Begin,
        hazards: Hazards,
        schedule: Schedule,
        seed: u64,
    ) -> (Self, Vec<Grant>) {
        let mut target = Target::new(quota, begin);
        let model = Model::new(hazards, schedule, seed);
        let mut chains = Chains::new(model, &target.shared.pool, INLINE).unwrap();
        let mut grants = Vec::new();
        let mut parties = Vec::new();
        for number in 0..sessions {
            let (core, grant) = target.open(number);
            let id = chains.seat(&target.shared, &core).unwrap().unwrap();
            chains.replace(id, |device, session| {
                device.started_at(session, begin.slot(number)).unwrap()
            });
            let qpn = chains.client_qpn(id).unwrap();
            chains.device.connect(qpn, &FAR).unwrap();
            chains.start(id, &core).unwrap();
            grants.push(grant);
            let mut client = Client::new(buffers(), 2);
            client.set_key(key());
            parties.push(Party {
                core,
                id,
                qpn,
                client,
                held: None,
            });
        }
        let chains = Self {
            target,
            chains,
            counts: ChainCounts::default(),
            parties,
        };
        (chains, grants)
    }

    /// Everybody's turn; whether anything moved.
    pub(super) fn turn(&mut self) -> Result<bool, SessionEnd> {
        let ran = self.chains.run();
        Ok(self.serve()? || ran)
    }

    /// What software and clients have to do.
    fn serve(&mut self) -> Result<bool, SessionEnd> {
        let mut moved = false;
        let Self {
            target,
            chains,
            counts,
            parties,
        } = self;
        for party in &mut *parties {
            let Party {
                core,
                id,
                qpn,
                client,
                held,
            } = party;
            if !chains.get(*id).is_some_and(crate::chains::Seat::restarts) {
                moved |= exchange(&mut chains.device, *qpn, client, held, target.now);
            }
            moved |= chains.work(*id, core, target.now, &target.shared, counts)?;
        }
        chains.settle(&target.shared.pool, counts);
        if chains.could_resume(&target.shared.pool)
            && parties.iter().all(|party| party.core.under_way() == 0)
        {
            chains.resume();
        }
        Ok(moved)
    }

    /// One event of the model, and what follows from it at once; whether anything is left to do.
    pub(super) fn step(&mut self) -> Result<bool, SessionEnd> {
        let stepped = self.chains.device.step();
        self.chains.notice();
        Ok(self.serve()? || stepped)
    }

    /// A session whose client is gone: its end, as a worker brings it about.
    pub(super) fn leave(&mut self, party: usize) {
        let mut gone = self.parties.remove(party);
        let Self {
            target,
            chains,
            counts,
            ..
        } = self;
        for _ in 0..10_000 {
            let held = &mut gone.held;
            exchange(
                &mut chains.device,
                gone.qpn,
                &mut gone.client,
                held,
                target.now,
            );
            if !chains.run() {
                break;
            }
        }
        chains.unseat(gone.id, &mut gone.core, &target.shared, counts);
        let Target {
            shared,
            directory,
            now,
        } = target;
        gone.core.finish(*now, shared, directory);
        self.settle().unwrap();
    }

    /// Until nothing moves and nobody waits for a time.
    pub(super) fn settle(&mut self) -> Result<(), SessionEnd> {
        for _ in 0..100_000 {
            if self.turn()? {
                continue;
            }
            let due = self
                .parties
                .iter()
                .filter_map(|party| party.core.poll_timeout());
            let due = due.chain(self.chains.watch(self.target.now)).min();
            let Some(at) = due else { return Ok(()) };
            // What the core was given late is due since then.
            self.target.now = self.target.now.max(at);
            let at = self.target.now;
            for party in &mut self.parties {
                let shared = &self.target.shared;
                party.core.handle_timeout(at, shared, &mut Nothing)?;
            }
        }
        panic!("it does not come to rest")
    }

    pub(super) fn send(&mut self, party: usize, message: &[u8]) {
        self.parties[party].client.send(message, Kind::Send);
    }

    pub(super) fn received(&mut self, party: usize) -> Option<Received> {
        self.parties[party].client.receive()
    }

    pub(super) fn ask(&mut self, party: usize, message: &[u8]) -> Result<Answer, SessionEnd> {
        self.parties[party].client.set_key(key());
        self.send(party, message);
        self.settle()?;
        let received = self.received(party);
        let received =
            received.unwrap_or_else(|| panic!("no answer to {message:x?}: {}", self.show(party)));
        Ok(Answer {
            octets: received.octets,
            invalidated: received.invalidated,
        })
    }

    /// Where a session stands, for a test that fails.
    pub(super) fn show(&self, party: usize) -> String {
        let party = &self.parties[party];
        let seat = self.chains.get(party.id).unwrap();
        let (worker, client) = (seat.session.worker_qpn(), seat.session.client_qpn());
        let failed = [worker, client].map(|qpn| self.chains.device.failure(qpn));
        format!("{failed:?}, {}", seat.show())
    }
}

pub(super) const fn key() -> ClientKey {
    ClientKey {
        key: KEY,
        start: BUFFER,
        len: BUFFERS * BLOCK as u64,
        at: 0,
        read: true,
        write: true,
        valid: true,
    }
}
