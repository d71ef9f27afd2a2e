//! A target on the model, its clients, and what the protocol says should come of their requests.

use kbtp_chain::{Template, full, lap, load};
use kbtp_device::{
    Answer, Device, Master, Peer, PeerAccess, PoolPlace, Profile, Route, Session, SessionPlan,
    Target,
};
use kbtp_fabric::Time;
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::Qpn;
use kbtp_nic_model::{
    Client, ClientKey, Hazards, Kind, Model, Outgoing, Received, Schedule, exchange,
};
use kbtp_wire::{
    BlockOffset, ByteLen, Completion, EntryFlags, Generation, Handle, RingOrder, RingSlot, Status,
    TableEntry, Ticket,
};

pub(crate) const BLOCK: u32 = 4096;
pub(crate) const HANDLES: u64 = 64;
pub(crate) const BLOCKS: u32 = 24;
pub(crate) const TABLE_BASE: u64 = 0x100;
pub(crate) const FIRST_BLOCK: u64 = 0x7000_0000_0000;
pub(crate) const KEY: u32 = 0xabc_d042;
pub(crate) const BUFFER: u64 = 0x5000_0000;
pub(crate) const BUFFERS: u64 = 64;

const COUNTERS_AT: u64 = 0;
const RING_AT: u64 = 4096;
const TABLE_AT: u64 = 8192;

pub(crate) const LOAD: u8 = 3;
pub(crate) const STORE: u8 = 4;
pub(crate) const ALLOC: u8 = 5;
pub(crate) const FREE: u8 = 6;
pub(crate) const SEAL: u16 = 2;
pub(crate) const INVALIDATE: u16 = 8;
pub(crate) const UNSEALED: u16 = 16;

/// What a test runs on.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) hazards: Hazards,
    pub(crate) schedule: Schedule,
    pub(crate) seed: u64,
    /// Each session's template.
    pub(crate) sessions: Vec<Template>,
    /// The slot that each starts with.
    pub(crate) first_slot: u64,
}

impl Setup {
    pub(crate) fn new(schedule: Schedule, seed: u64, sessions: usize) -> Self {
        Self {
            hazards: Hazards::default(),
            schedule,
            seed,
            sessions: vec![full(ByteLen(BLOCK)); sessions],
            first_slot: 0,
        }
    }

    pub(crate) fn readers(mut self, count: usize) -> Self {
        let reader = load(ByteLen(BLOCK));
        self.sessions.extend(std::iter::repeat_n(reader, count));
        self
    }
}

/// A session with its client.
pub(crate) struct Party {
    pub(crate) session: Session,
    pub(crate) client: Client,
    held: Option<Outgoing>,
    /// Its handles.
    pub(crate) own: std::ops::Range<u64>,
    pub(crate) punts: u64,
    /// The first slot that software has not looked at.
    looked: u64,
}

type Observer = Box<dyn Fn(&Rig) -> Result<(), String>>;

pub(crate) struct Rig {
    pub(crate) model: Model,
    pub(crate) target: Target,
    pub(crate) master: Master,
    pub(crate) parties: Vec<Party>,
    /// Blocks that chains freed and software has not returned to the ring.
    pub(crate) freed: Vec<BlockOffset>,
    pub(crate) random: Numbers,
    /// Called after each event of the model.
    pub(crate) observe: Option<Observer>,
    lazy: bool,
    /// Software sleeps: it looks at nothing until an event wakes it. How often one has.
    pub(crate) woken: Option<u64>,
}

/// Numbers from a seed.
#[derive(Clone)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5eed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in `of` out of a hundred.
    pub(crate) fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

fn ring() -> RingOrder {
    RingOrder::for_blocks(BLOCKS).unwrap()
}

/// A pool, all blocks free.
pub(crate) fn pool() -> PoolPlace {
    let options = PageOptions::default();
    let meta = Region::anonymous(TABLE_AT + HANDLES * 16, &options).unwrap();
    let blocks = Region::anonymous(u64::from(BLOCKS * BLOCK), &options).unwrap();
    let slots = ring().slots();
    for slot in 0..slots {
        let octets = if slot < BLOCKS {
            RingSlot {
                sequence: Ticket(slot),
                block: BlockOffset(FIRST_BLOCK + u64::from(slot * BLOCK)),
            }
        } else {
            RingSlot {
                sequence: Ticket(slot.wrapping_sub(slots)),
                block: BlockOffset::EMPTY,
            }
        };
        let at = RING_AT + u64::from(slot) * 16;
        meta.write(at, &octets.encode()).unwrap();
    }
    let tail = u64::from(BLOCKS) << 32 | u64::from(BLOCKS % slots) << 4;
    meta.write(COUNTERS_AT, &0_u64.to_le_bytes()).unwrap();
    meta.write(COUNTERS_AT + 64, &tail.to_le_bytes()).unwrap();
    PoolPlace {
        meta,
        table_at: TABLE_AT,
        table_base: Handle(TABLE_BASE),
        table_count: HANDLES,
        ring_at: RING_AT,
        ring: ring(),
        counters_at: COUNTERS_AT,
        blocks,
        first_block: BlockOffset(FIRST_BLOCK),
        block_size: ByteLen(BLOCK),
    }
}

/// A client with one key for all its buffers.
pub(crate) fn client(pace: usize) -> Client {
    let len = BUFFERS * u64::from(BLOCK);
    let mut client = Client::new(
        Region::anonymous(len, &PageOptions::default()).unwrap(),
        pace,
    );
    client.set_key(key());
    client
}

pub(crate) const fn key() -> ClientKey {
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

pub(crate) const ROUTE: Peer = Peer::Remote(Route {
    qpn: Qpn::truncate(0x77),
    gid: [0; 16],
    send_psn: 0,
    receive_psn: 0,
    path: None,
});

impl Rig {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut model = Model::new(setup.hazards, setup.schedule, setup.seed);
        let target = Target::create(&mut model, pool()).unwrap();
        let master = Master::create(&mut model, target.loopback_domain()).unwrap();
        let count = setup.sessions.len() as u64;
        let mut profiles: Vec<Profile> = Vec::new();
        let mut rig = Self {
            model,
            target,
            master,
            parties: Vec::new(),
            freed: Vec::new(),
            random: Numbers::new(setup.seed),
            observe: None,
            lazy: setup.schedule != Schedule::Eager,
            woken: None,
        };
        for (id, template) in (0_u16..).zip(&setup.sessions) {
            let known = profiles.iter().position(|one| one.template() == template);
            let at = known.unwrap_or_else(|| {
                let made = rig.target.profile(&mut rig.model, template.clone());
                profiles.push(made.unwrap());
                profiles.len() - 1
            });
            let own = HANDLES / count;
            let base = TABLE_BASE + own * u64::from(id);
            rig.join(&profiles[at], id, base..base + own, setup.first_slot);
        }
        rig
    }

    pub(crate) fn join(
        &mut self,
        profile: &Profile,
        id: u16,
        own: std::ops::Range<u64>,
        first: u64,
    ) {
        let plan = SessionPlan {
            id,
            own_base: Handle(own.start),
            own_count: own.end - own.start,
            client_access: PeerAccess::default(),
        };
        let model = &mut self.model;
        let mut session = Session::create(model, &self.target, profile, &plan).unwrap();
        if first > 0 {
            session = model.started_at(session, first).unwrap();
        }
        model.connect(session.client_qpn(), &ROUTE).unwrap();
        if lap::is_perpetual(session.template()) {
            session.arm_once(model).unwrap();
        } else {
            session.arm_free(model).unwrap();
        }
        assert!(session.start(model, &mut self.master).unwrap());
        self.sit(session, own, first);
    }

    /// A session with a client; the first slot that it serves.
    pub(crate) fn sit(&mut self, session: Session, own: std::ops::Range<u64>, first: u64) {
        let pace = if self.lazy { 1 } else { 8 };
        self.parties.push(Party {
            session,
            client: client(pace),
            held: None,
            own,
            punts: 0,
            looked: first,
        });
    }

    pub(crate) fn send(&mut self, party: usize, octets: &[u8]) {
        self.parties[party].client.send(octets, Kind::Send);
    }

    pub(crate) fn received(&mut self, party: usize) -> Option<Received> {
        self.parties[party].client.receive()
    }

    pub(crate) fn any_party(&mut self) -> usize {
        let parties = self.parties.len() as u64;
        usize::try_from(self.random.below(parties)).unwrap()
    }

    /// One event of the model, or of a client.
    pub(crate) fn step(&mut self) -> Result<bool, String> {
        let turn = self.random.below(8);
        let moved = if turn == 0 {
            self.exchange()
        } else {
            self.model.step()
        };
        if let Some(observe) = self.observe.take() {
            let seen = observe(self);
            self.observe = Some(observe);
            seen?;
        }
        Ok(moved)
    }

    fn exchange(&mut self) -> bool {
        let mut moved = false;
        for party in &mut self.parties {
            let qpn = party.session.client_qpn();
            let Party { client, held, .. } = party;
            moved |= exchange(&mut self.model, qpn, client, held, Time(0));
        }
        moved
    }

    /// Takes the blocks that FREEs let go, of requests that are answered or never will be.
    fn look(&mut self) {
        for at in 0..self.parties.len() {
            let failed = self.failed(at).is_some();
            let Party {
                session, looked, ..
            } = &mut self.parties[at];
            let completed = session.completed();
            let end = if failed {
                session.received()
            } else {
                completed
            };
            for slot in *looked..end {
                let Some((handle, block)) = session.unbinds(slot) else {
                    continue;
                };
                let is_own = (TABLE_BASE..TABLE_BASE + HANDLES).contains(&handle.0);
                let now = is_own.then(|| entry(&self.target, handle.0));
                if now.is_some_and(|now| !now.is_valid() || now.block != block) {
                    self.freed.push(block);
                }
            }
            *looked = end.max(*looked);
        }
    }

    /// Returns freed blocks to the ring unless a LOAD is under way. Whether there were any.
    fn give_back(&mut self) -> bool {
        let loads = (0..self.parties.len()).any(|at| {
            let failed = self.failed(at).is_some();
            let session = &mut self.parties[at].session;
            let mut flights = session.completed()..session.received();
            let is_load = |slot| {
                session
                    .asked(slot)
                    .is_some_and(|(opcode, _)| opcode == LOAD)
            };
            !failed && flights.any(is_load)
        });
        if loads {
            return false;
        }
        let returned = !self.freed.is_empty();
        for block in std::mem::take(&mut self.freed) {
            give_back(&self.target, block);
        }
        returned
    }

    /// Software's turn: answers what rang, returns what was freed, arms what is free.
    pub(crate) fn software(&mut self) -> bool {
        self.look();
        let mut moved = self.give_back();
        while let Some((id, low)) = self.target.next_punt() {
            let party = &mut self.parties[usize::from(id)];
            party.punts += 1;
            // The slot is one of those armed last.
            let armed = party.session.armed();
            let back = u64::from(u16::try_from(armed & 0xffff).unwrap().wrapping_sub(low));
            let n = if lap::is_perpetual(party.session.template()) {
                // Every index of the slot follows from these 16 bits.
                low.into()
            } else {
                armed - back
            };
            let answer = software_answer(&self.target, &party.session, n);
            party.session.answer(n, &answer).unwrap();
            let model = &mut self.model;
            assert!(party.session.resume(model, &mut self.master, n).unwrap());
            moved = true;
        }
        let perpetual = |party: &&mut Party| lap::is_perpetual(party.session.template());
        for party in self.parties.iter_mut().filter(|party| !perpetual(party)) {
            moved |= party.session.arm_free(&mut self.model).unwrap() > 0;
        }
        moved
    }

    /// Sets all alarms: from now on software sleeps.
    pub(crate) fn sleep(&mut self) {
        self.woken = Some(self.woken.unwrap_or(0));
        self.target.watch(&mut self.model).unwrap();
        for party in &mut self.parties {
            party.session.watch(&mut self.model).unwrap();
        }
    }

    /// Software's turn, if it does not sleep or is woken.
    fn act(&mut self) -> bool {
        let Some(woken) = self.woken else {
            return self.software();
        };
        let mut rang = false;
        while let Some(event) = self.model.next_event() {
            rang |= self.target.rings(event);
            for party in &mut self.parties {
                rang |= party.session.rings(event);
            }
        }
        if rang {
            self.woken = Some(woken + 1);
            self.software();
            self.sleep();
        }
        rang
    }

    /// Runs until nothing moves.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let mut idle = 0;
        for _ in 0..300_000 {
            if self.step()? {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle > 20 {
                if self.exchange() || self.act() {
                    idle = 0;
                    continue;
                }
                return Ok(());
            }
        }
        Err("it does not come to rest".to_owned())
    }

    /// Why the queue pairs of a party are in error, if they are: loopback, client's.
    pub(crate) fn failed(&self, party: usize) -> Option<String> {
        let session = &self.parties[party].session;
        let worker = self.model.failure(session.worker_qpn());
        let client = self.model.failure(session.client_qpn());
        if worker.is_none() && client.is_none() {
            return None;
        }
        Some(format!("W {worker:?}, C {client:?}"))
    }

    pub(crate) fn entry(&self, handle: u64) -> TableEntry {
        entry(&self.target, handle)
    }

    /// A block's octets; none if there is no such block.
    pub(crate) fn block(&self, offset: BlockOffset) -> Vec<u8> {
        let mut octets = vec![0; usize::try_from(BLOCK).unwrap()];
        let at = offset.0.wrapping_sub(FIRST_BLOCK);
        let read = self.target.pool().blocks.read(at, &mut octets);
        read.map_or(Vec::new(), |()| octets)
    }

    /// All slots of the ring.
    pub(crate) fn ring(&self) -> Vec<RingSlot> {
        let slots = 0..u64::from(ring().slots());
        slots.map(|slot| self.slot(slot)).collect()
    }

    /// Head and Tail.
    pub(crate) fn counters(&self) -> [u8; 72] {
        let mut octets = [0; 72];
        self.target
            .pool()
            .meta
            .read(COUNTERS_AT, &mut octets)
            .unwrap();
        octets
    }

    /// A slot of the ring.
    pub(crate) fn slot(&self, slot: u64) -> RingSlot {
        let mut octets = [0; 16];
        let at = RING_AT + slot * 16;
        self.target.pool().meta.read(at, &mut octets).unwrap();
        RingSlot::decode(&octets)
    }

    /// Every block is once in the table or in the ring, as it is now.
    pub(crate) fn conserved(&self) -> Result<(), String> {
        let found = self.found();
        let all = (0..BLOCKS).map(|block| FIRST_BLOCK + u64::from(block * BLOCK));
        if found.iter().copied().eq(all) {
            Ok(())
        } else {
            Err(format!("blocks are lost or twice: {found:x?}"))
        }
    }

    /// The blocks in table and ring, in order.
    pub(crate) fn found(&self) -> Vec<u64> {
        let mut found = Vec::new();
        for handle in TABLE_BASE..TABLE_BASE + HANDLES {
            let entry = self.entry(handle);
            if entry.flags.contains(EntryFlags::VALID) {
                found.push(entry.block.0);
            }
        }
        for slot in 0..u64::from(ring().slots()) {
            let slot = self.slot(slot);
            if !slot.is_consumed() {
                found.push(slot.block.0);
            }
        }
        found.sort_unstable();
        found
    }

    /// Binds a handle to the first block, which has these octets.
    pub(crate) fn bind(&self, handle: u64, octets: &[u8]) {
        let pool = self.target.pool();
        let entry = TableEntry {
            flags: EntryFlags(3),
            generation: Generation::new(1),
            data_len: ByteLen(BLOCK),
            block: BlockOffset(FIRST_BLOCK),
        };
        let at = TABLE_AT + (handle - TABLE_BASE) * 16;
        pool.meta.write(at, &entry.encode()).unwrap();
        pool.blocks.write(0, octets).unwrap();
    }

    /// Octets of a client's buffer.
    pub(crate) fn buffer(&self, party: usize, slot: u64) -> Vec<u8> {
        let mut octets = vec![0; usize::try_from(BLOCK).unwrap()];
        let region = self.parties[party].client.region();
        region.read(slot * u64::from(BLOCK), &mut octets).unwrap();
        octets
    }

    pub(crate) fn fill(&self, party: usize, slot: u64, octets: &[u8]) {
        let region = self.parties[party].client.region();
        region.write(slot * u64::from(BLOCK), octets).unwrap();
    }
}

/// A block goes back to the ring, under the next ticket.
fn give_back(target: &Target, block: BlockOffset) {
    let meta = &target.pool().meta;
    let mut octets = [0; 8];
    meta.read(COUNTERS_AT + 64, &mut octets).unwrap();
    let ticket = u32::from_le_bytes(octets[4..].try_into().unwrap());
    let slots = ring().slots();
    let at = RING_AT + u64::from(ticket % slots) * 16;
    let octets = RingSlot {
        sequence: Ticket(ticket),
        block,
    };
    let octets = octets.encode();
    meta.write(at + 8, &octets[8..]).unwrap();
    meta.write(at, &octets[..8]).unwrap();
    let next = ticket.wrapping_add(1);
    let tail = u64::from(next) << 32 | u64::from(next % slots) << 4;
    meta.write(COUNTERS_AT + 64, &tail.to_le_bytes()).unwrap();
}

fn entry(target: &Target, handle: u64) -> TableEntry {
    let mut octets = [0; 16];
    let at = TABLE_AT + (handle - TABLE_BASE) * 16;
    target.pool().meta.read(at, &mut octets).unwrap();
    TableEntry::decode(&octets)
}

/// What software answers to a request that rang: it refuses all but a LOAD into a longer buffer.
fn software_answer(target: &Target, session: &Session, n: u64) -> Answer {
    let refused = |status, generation, data_len| Answer {
        status,
        generation,
        data_len,
        block: BlockOffset(0),
        data: false,
        invalidate: false,
    };
    let request = session.request(n).expect("it rang for a request");
    let octets = request.as_octets();
    if octets.len() < 24 {
        return refused(Status::BadRequest, None, ByteLen(0));
    }
    let handle = u64::from_be_bytes(octets[12..20].try_into().unwrap());
    let asked = u16::from_be_bytes([octets[20], octets[21]]);
    let flags = u16::from_be_bytes([octets[2], octets[3]]);
    if !(TABLE_BASE..TABLE_BASE + HANDLES).contains(&handle) {
        return refused(Status::NotValid, None, ByteLen(0));
    }
    let entry = entry(target, handle);
    let generation = entry.generation;
    let valid = entry.flags.contains(EntryFlags::VALID);
    let sealed = entry.flags.contains(EntryFlags::SEALED);
    let matches = asked == 0 || asked == Generation::to_wire(generation);
    let status = match octets[1] {
        LOAD | STORE | FREE if !valid => Status::NotValid,
        ALLOC if valid => Status::AlreadyValid,
        LOAD | STORE | FREE | ALLOC if !matches => Status::GenerationMismatch,
        LOAD if !sealed && flags & UNSEALED == 0 => Status::NotSealed,
        STORE if sealed => Status::Sealed,
        LOAD if octets.len() == 40 => {
            let len = u32::from_be_bytes(octets[36..40].try_into().unwrap());
            if len < entry.data_len.0 {
                return refused(Status::LengthError, generation, entry.data_len);
            }
            return Answer {
                status: Status::Ok,
                generation,
                data_len: entry.data_len,
                block: entry.block,
                data: true,
                invalidate: flags & INVALIDATE != 0,
            };
        }
        _ => Status::BadRequest,
    };
    refused(status, generation, ByteLen(0))
}

/// A request's octets.
pub(crate) fn request(
    opcode: u8,
    flags: u16,
    id: u64,
    handle: u64,
    generation: u16,
    data: Option<(u32, u64, u32)>,
) -> Vec<u8> {
    let mut octets = vec![1, opcode];
    octets.extend(flags.to_be_bytes());
    octets.extend(id.to_be_bytes());
    octets.extend(handle.to_be_bytes());
    octets.extend(generation.to_be_bytes());
    octets.extend([0, 0]);
    if let Some((stag, offset, len)) = data {
        octets.extend(stag.to_be_bytes());
        octets.extend(offset.to_be_bytes());
        octets.extend(len.to_be_bytes());
    }
    octets
}

/// The octets of a block that a number stands for.
pub(crate) fn pattern(seed: u64) -> Vec<u8> {
    seed.to_be_bytes()
        .repeat(usize::try_from(BLOCK).unwrap() / 8)
}

/// A handle as it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) valid: bool,
    pub(crate) sealed: bool,
    pub(crate) generation: u16,
    /// Its data's number.
    pub(crate) data: u64,
}

impl Expected {
    pub(crate) fn next(self) -> u16 {
        match self.generation.wrapping_add(1) {
            0 => 1,
            next => next,
        }
    }

    pub(crate) fn flags(self) -> u16 {
        u16::from(self.valid) | u16::from(self.valid && self.sealed) << 1
    }
}

pub(crate) fn completion(message: &Received) -> Result<Completion, String> {
    Completion::decode_message(&message.octets).map_err(|error| error.to_string())
}
