//! A target with one session on a model of a NIC, and its client: what the chains are looked at on.
//!
//! The pool has eight blocks and sixteen handles from 0x100 on; the first eight are the session's.

use super::{broken, template};
use crate::cli::wqe::{WqeChainArgs, WqeSchedule};
use crate::failure::Failure;
use kbtp_chain::{Builder, Step, Template};
use kbtp_device::{
    Device as _, Master, Peer, PeerAccess, PoolPlace, Route, Session, SessionPlan, SetUpError,
    Target,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::Qpn;
use kbtp_nic_model::{Client, ClientKey, Hazards, Model, ModelError, Schedule};
use kbtp_wire::{BlockOffset, ByteLen, Handle, RingOrder, RingSlot, TableEntry, Ticket};

/// The first handle of the table, and of the session.
pub(super) const FIRST_HANDLE: u64 = 0x100;
/// Handles of the table.
pub(super) const HANDLES: u64 = 16;
/// Handles of the session.
pub(super) const OWN_HANDLES: u64 = 8;
/// Blocks of the pool.
pub(super) const BLOCKS: u32 = 8;
/// Block Offset of the first block.
pub(super) const FIRST_BLOCK: u64 = 0x7000_0000_0000;
/// The client's key to its buffer.
pub(super) const KEY: u32 = 0x0c1e_4701;
/// First address of the client's buffer.
pub(super) const BUFFER: u64 = 0x5000_0000;

/// What each octet of the client's buffer is at first.
pub(super) const IN_BUFFER: u8 = 0xc1;
/// What each octet of the first block is at first; the others are zeros.
pub(super) const IN_BLOCK: u8 = 0xb0;

/// Where Head lies in the metadata; Tail lies 64 octets on.
pub(super) const COUNTERS_AT: u64 = 0;
/// Where the ring lies.
pub(super) const RING_AT: u64 = 4096;
/// Where the table lies.
pub(super) const TABLE_AT: u64 = 8192;

/// All of it.
pub(super) struct Rig {
    pub(super) model: Model,
    pub(super) target: Target,
    pub(super) master: Master,
    pub(super) session: Session,
    pub(super) client: Client,
}

type Error = SetUpError<ModelError>;

impl Rig {
    /// A session whose slots are armed, with this entry of this handle, if the table has it. A valid one has the first block.
    pub(super) fn new(
        chain: WqeChainArgs,
        schedule: WqeSchedule,
        seed: u64,
        entry: Option<(u64, &TableEntry)>,
    ) -> Result<Self, Failure> {
        let schedule = match schedule {
            WqeSchedule::Eager => Schedule::Eager,
            WqeSchedule::Random => Schedule::Random,
            WqeSchedule::Withhold => Schedule::Withhold,
        };
        let template = template(chain.profile, chain.block_size);
        let block_size = ByteLen(chain.block_size);
        Self::set_up(template, block_size, schedule, seed, entry)
            .map_err(|e| broken("set a session up on the model", &e))
    }

    /// The same with nothing bound.
    pub(super) fn empty(chain: WqeChainArgs) -> Result<Self, Failure> {
        Self::new(chain, WqeSchedule::Eager, 1, None)
    }

    fn set_up(
        template: Template,
        block_size: ByteLen,
        schedule: Schedule,
        seed: u64,
        entry: Option<(u64, &TableEntry)>,
    ) -> Result<Self, Error> {
        let mut model = Model::new(Hazards::default(), schedule, seed);
        let target = Target::create(&mut model, pool(block_size, entry)?)?;
        let mut master = Master::create(&mut model, target.loopback_domain())?;
        let profile = target.profile(&mut model, template)?;
        let plan = SessionPlan {
            id: 0,
            own_base: Handle(FIRST_HANDLE),
            own_count: OWN_HANDLES,
            client_access: PeerAccess::default(),
        };
        let mut session = Session::create(&mut model, &target, &profile, &plan)?;
        let route = Route {
            qpn: Qpn::default(),
            gid: [0; 16],
            send_psn: 0,
            receive_psn: 0,
            path: None,
        };
        model
            .connect(session.client_qpn(), &Peer::Remote(route))
            .map_err(|source| SetUpError::Device {
                what: "connecting the client",
                source,
            })?;
        session.arm_free(&mut model)?;
        session.start(&mut model, &mut master)?;
        while model.step() {}
        let len = 2 * u64::from(block_size.0);
        let region = Region::anonymous(len, &PageOptions::default())?;
        let all = vec![IN_BUFFER; usize::try_from(len).unwrap_or(0)];
        region.write(0, &all)?;
        let block = all.len() / 2;
        let all = vec![IN_BLOCK; block];
        target.pool().blocks.write(0, &all)?;
        let mut client = Client::new(region, 1);
        client.set_key(ClientKey {
            key: KEY,
            start: BUFFER,
            len,
            at: 0,
            read: true,
            write: true,
            valid: true,
        });
        Ok(Self {
            model,
            target,
            master,
            session,
            client,
        })
    }

    /// What arms a slot.
    pub(super) fn arm(&self, slot: u64) -> Result<Vec<Step>, Failure> {
        let (template, placement) = (self.session.template(), self.session.placement());
        let block_size = self.target.pool().block_size;
        Builder::new(template, placement, block_size)
            .and_then(|builder| builder.arm(slot))
            .map_err(|e| broken("build the slot", &e))
    }
}

fn pool(block_size: ByteLen, entry: Option<(u64, &TableEntry)>) -> Result<PoolPlace, Error> {
    let options = PageOptions::default();
    let meta = Region::anonymous(TABLE_AT + HANDLES * TableEntry::LEN as u64, &options)?;
    let blocks = Region::anonymous(u64::from(BLOCKS) * u64::from(block_size.0), &options)?;
    // Its default is the smallest; eight blocks have one.
    let ring = RingOrder::for_blocks(BLOCKS).unwrap_or_default();
    let bound = u32::from(entry.is_some_and(|(_, entry)| entry.is_valid()));
    let free = BLOCKS - bound;
    for slot in 0..ring.slots() {
        let octets = if slot < free {
            let block = u64::from(slot + bound) * u64::from(block_size.0);
            RingSlot {
                sequence: Ticket(slot),
                block: BlockOffset(FIRST_BLOCK + block),
            }
        } else {
            RingSlot {
                sequence: Ticket(slot.wrapping_sub(ring.slots())),
                block: BlockOffset::EMPTY,
            }
        };
        let at = RING_AT + u64::from(slot) * RingSlot::LEN as u64;
        meta.write(at, &octets.encode())?;
    }
    let place = free.checked_rem(ring.slots()).unwrap_or(0);
    let tail = u64::from(free) << 32 | u64::from(place) << 4;
    meta.write(COUNTERS_AT + 64, &tail.to_le_bytes())?;
    if let Some((handle, entry)) = entry
        && (FIRST_HANDLE..FIRST_HANDLE + HANDLES).contains(&handle)
    {
        let row = handle - FIRST_HANDLE;
        meta.write(TABLE_AT + row * TableEntry::LEN as u64, &entry.encode())?;
    }
    Ok(PoolPlace {
        meta,
        table_at: TABLE_AT,
        table_base: Handle(FIRST_HANDLE),
        table_count: HANDLES,
        ring_at: RING_AT,
        ring,
        counters_at: COUNTERS_AT,
        blocks,
        first_block: BlockOffset(FIRST_BLOCK),
        block_size,
    })
}
