//! An initiator: what it is between connections, and its end of one.

use crate::model::Seq;
use crate::options::Options;
use crate::plan::Step;
use crate::rng::Rng;
use crate::stamp;
use kbtp_core::initiator::{Initiator, Scratch, Settings};
use kbtp_fabric::{Access, LocalBuffer, Time};
use kbtp_iwarp::{Config, Connection, CopyFirst};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{
    ByteLen, Generation, InitiatorId, SessionCapabilities, Stag, TaggedOffset, Ticket,
};
use std::collections::{BTreeMap, VecDeque};

/// Octets between two buffers that nobody may touch.
const MARGIN: u64 = 128;
const CANARY: u8 = 0x3C;
/// What a buffer holds before a load.
pub const STALE: u8 = 0xEE;
/// Octets by which a buffer is longer than a block.
pub const EXTRA: u64 = 128;
/// Buffers of an initiator: one for each operation in flight.
const BUFFERS: usize = 40;

/// The kinds of operation, in the order of their weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the draft's names")]
pub enum Kind {
    Load,
    DirectLoad,
    Alloc,
    AllocDirect,
    Store,
    Free,
}

/// An operation in flight.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its name, and what its data is made of.
    pub id: u64,
    /// Kind.
    pub kind: Kind,
    /// Row of its handle, if it is in the table.
    pub row: Option<usize>,
    /// Generation expected.
    pub generation: Option<Generation>,
    /// Octets: of the data, or of the buffer of a load.
    pub len: u32,
    /// With SEAL.
    pub seal: bool,
    /// With ALLOW_UNSEALED.
    pub unsealed: bool,
    /// With INVALIDATE.
    pub invalidate: bool,
    /// Buffer, and its STag.
    pub buffer: Option<(usize, Stag)>,
    /// When it began, in the order of all that was observed.
    pub since: Seq,
    /// When it began.
    pub at: Time,
}

/// The buffers of an initiator.
#[derive(Debug)]
pub struct Arena {
    region: Region,
    stride: u64,
    len: u64,
    free: Vec<usize>,
}

impl Arena {
    fn new(options: &Options) -> Self {
        let len = u64::from(options.block_size) + EXTRA;
        let stride = len + MARGIN;
        let region =
            Region::anonymous(stride * BUFFERS as u64 + MARGIN, &PageOptions::default()).unwrap();
        for buffer in 0..=BUFFERS as u64 {
            region.fill(buffer * stride, MARGIN, CANARY).unwrap();
        }
        Self {
            region,
            stride,
            len,
            free: (0..BUFFERS).collect(),
        }
    }

    /// Takes a buffer for an operation, registers it, and puts into it what belongs there before.
    pub fn lend(
        &mut self,
        conn: &mut Connection,
        op: &Op,
        access: Access,
    ) -> Option<(usize, LocalBuffer)> {
        let buffer = *self.free.last()?;
        if matches!(op.kind, Kind::Load | Kind::DirectLoad) {
            self.make_stale(buffer);
        } else {
            let mut data = vec![0; op.len as usize];
            stamp::fill(op.id, &mut data);
            self.write(buffer, &data);
        }
        let lent = self.register(conn, buffer, op.len, access)?;
        self.free.pop();
        Some((buffer, lent))
    }

    /// Gives it back.
    pub fn give(&mut self, buffer: usize) {
        self.free.push(buffer);
    }

    /// All of them are free.
    pub fn give_all(&mut self) {
        self.free = (0..BUFFERS).collect();
    }

    const fn start(&self, buffer: usize) -> u64 {
        buffer as u64 * self.stride + MARGIN
    }

    /// Writes to a buffer.
    fn write(&self, buffer: usize, octets: &[u8]) {
        self.region.write(self.start(buffer), octets).unwrap();
    }

    /// Makes a buffer as it is before a load.
    fn make_stale(&self, buffer: usize) {
        self.region
            .fill(self.start(buffer), self.len, STALE)
            .unwrap();
    }

    /// Reads from a buffer.
    pub fn read(&self, buffer: usize, to: &mut [u8]) {
        self.region.read(self.start(buffer), to).unwrap();
    }

    /// Registers `len` octets of a buffer.
    fn register(
        &self,
        conn: &mut Connection,
        buffer: usize,
        len: u32,
        access: Access,
    ) -> Option<LocalBuffer> {
        let start = self.start(buffer);
        let base = TaggedOffset(0x7000_0000 + start);
        let stag = conn
            .register(
                &self.region,
                start..start + u64::from(len.max(1)),
                base,
                access,
            )
            .ok()?;
        Some(LocalBuffer {
            stag,
            offset: base,
            len: ByteLen(len),
        })
    }

    /// Whether somebody wrote around a buffer.
    #[must_use]
    pub fn canaries_dead(&self, buffer: usize) -> bool {
        let mut octets = [0; MARGIN as usize];
        [buffer as u64, buffer as u64 + 1].iter().any(|at| {
            self.region.read(at * self.stride, &mut octets).unwrap();
            octets.iter().any(|octet| *octet != CANARY)
        })
    }
}

/// A message that no honest initiator sends, and the answers it may get.
#[derive(Clone, Copy, Debug)]
pub struct Rogue {
    /// Its Request ID.
    pub id: u64,
    /// Statuses it may get.
    pub may: &'static [u16],
    /// It was said many times, until the session ends: whatever the first ones get.
    pub many: bool,
}

/// The initiator's end of a connection.
#[derive(Debug)]
pub struct CEnd {
    /// The stream.
    pub conn: Connection,
    /// The session, once the stream is established.
    pub session: Option<Initiator>,
    /// What is in flight.
    pub ops: BTreeMap<u64, Op>,
    /// Given up, and not released yet.
    pub given_up: usize,
    /// Memory for direct modes.
    pub scratch: Region,
    /// It was aborted.
    pub reset: bool,
    /// It closes.
    pub closing: bool,
    /// It broke the protocol, and the target will say so.
    pub broke: bool,
    /// When something last came, or nothing was awaited.
    pub progress_at: Time,
    /// Messages that no honest initiator sends, in flight.
    pub rogues: Vec<Rogue>,
    /// Tickets taken for nothing, and when.
    pub hoarded: Vec<(Ticket, Time)>,
}

/// An initiator.
#[derive(Debug)]
pub struct Client {
    /// Its Initiator ID.
    pub id: InitiatorId,
    /// Its tenant.
    pub tenant: usize,
    /// Its connection.
    pub link: Option<usize>,
    /// Steps to be carried out.
    pub queue: VecDeque<Step>,
    /// It does nothing before.
    pub paused_until: Time,
    /// Connections so far.
    pub connections: u64,
    /// The last instance it met.
    pub instance: Option<[u8; 16]>,
    /// Its buffers.
    pub arena: Arena,
}

/// The configuration of a stream of an initiator.
#[must_use]
pub fn stream_config(options: &Options) -> Config {
    Config {
        send_queue: 80,
        receive_slots: 40,
        max_receive: 4096,
        registrations: 128,
        outbound_reads: options.read_depth,
        inbound_reads: options.read_depth,
        crc: options.client_crc,
        markers: options.client_markers,
        max_ulpdu: options.max_ulpdu,
        copy_first: CopyFirst::Nothing,
        staging_len: options.staging,
        head_ring_len: 64 << 10,
        ..Config::default()
    }
}

impl Client {
    /// An initiator.
    #[must_use]
    pub fn new(options: &Options, number: usize, rng: &mut Rng) -> Self {
        Self {
            id: InitiatorId(rng.octets()),
            tenant: if options.tenants == 0 {
                0
            } else {
                number % options.tenants
            },
            link: None,
            queue: VecDeque::new(),
            paused_until: Time(0),
            connections: 0,
            instance: None,
            arena: Arena::new(options),
        }
    }

    /// What it asks for in HELLO.
    #[must_use]
    pub fn settings(&self, options: &Options, wrong_key: bool) -> Settings {
        let mut settings = Settings::new(self.id);
        if options.tenants > 0 {
            settings.tenant = crate::target::tenant_name(self.tenant);
            let key = if wrong_key { 99 } else { self.tenant };
            settings.key = Some(crate::target::tenant_key(key));
        }
        settings.request_credits = options.credits;
        settings.quota = options.quota;
        settings.max_inline = ByteLen(options.max_inline);
        settings.max_direct_loads = 4;
        settings.capabilities = SessionCapabilities::NONE;
        if options.direct_load {
            settings.capabilities = settings
                .capabilities
                .union(SessionCapabilities::DIRECT_LOAD);
        }
        if options.direct_alloc {
            settings.capabilities = settings
                .capabilities
                .union(SessionCapabilities::DIRECT_ALLOC);
        }
        settings
    }
}

impl CEnd {
    /// Whether the target owes it something.
    #[must_use]
    pub fn waits(&self) -> bool {
        let session = self.session.as_ref();
        !self.rogues.is_empty() || session.is_none_or(|s| s.in_flight() > 0 || !s.is_open())
    }

    /// Scratch memory, registered.
    pub fn scratch(&mut self) -> Option<Scratch> {
        let base = TaggedOffset(0x1000);
        let stag = self
            .conn
            .register(&self.scratch, 0..self.scratch.len(), base, Access::LOCAL)
            .ok()?;
        Some(Scratch {
            region: self.scratch.clone(),
            stag,
            base,
        })
    }
}
