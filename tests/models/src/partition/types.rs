//! What a state of the model is made of.

use crate::marks::Marks;
use crate::whole_ring::Ring;

/// Which rule is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// None: as the product does it.
    AsBuilt,
    /// The blocks of abandoned tickets are reclaimed while the initiator's STags still reach them.
    ReclaimBeforeRevoke,
    /// A block is reclaimed, and its slot not consumed.
    ReclaimKeepsSlot,
    /// The target does not look which tickets were taken until the STags were revoked.
    NoLookAfterRevoke,
    /// A BIND is judged by its Block Offset alone, not by its ticket and what became of that.
    BindUnverified,
    /// A free overwrites a slot that is not consumed yet.
    NoDeferral,
    /// A freed block goes back to its ring while loads still send it.
    PinsIgnored,
    /// The ticket of a session that ended is forgotten.
    OrphanForgotten,
    /// A partition is dissolved while frees are on their way to its ring.
    DissolveAtOnce,
    /// A partition is dissolved once no load sends a freed block of it: frees that have read the block's home before are
    /// not seen. The product did this once.
    DissolveAfterLoads,
    /// Bound blocks stay at home in a partition that is no more.
    HomeKept,
}

/// A worker that returns a block to its ring, and may be between any two of these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Returner {
    /// Returns nothing.
    Idle,
    /// Is about to read which ring the block belongs to.
    Home(u8),
    /// Has read that it belongs to the partition, and counted itself; must read it again.
    Again(u8),
    /// Has read its home: whether that is the partition.
    Ring(u8, bool),
    /// Has its Tail ticket of the shared ring, and is about to write the slot.
    Write(u8, u8),
}

impl Returner {
    pub(super) const fn block(self) -> Option<u8> {
        match self {
            Self::Idle => None,
            Self::Home(block)
            | Self::Again(block)
            | Self::Ring(block, _)
            | Self::Write(_, block) => Some(block),
        }
    }
}

/// What an operation of the plain session waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Want {
    /// There is none.
    Nothing,
    /// Parked with a ticket.
    Ticket(u8),
    /// Has its block; the data is under way.
    Held(u8),
}

/// Where the session of the direct initiator is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direct {
    /// It has none.
    Away,
    /// The directory draws blocks for its partition.
    Carving,
    /// It has a partition.
    Open,
    /// It was resumed, and has no partition.
    Resumed,
}

/// An allocation of the direct initiator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Op {
    /// Has a ticket and reads its slot.
    Seeking(u8),
    /// Has seen the block, twice.
    Found(u8, u8),
    /// The RDMA Write is placed.
    Written(u8, u8),
    /// BIND is sent.
    Sent(u8, u8),
}

/// A partition's way back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Going {
    /// There is no partition.
    Gone,
    /// Its session is open.
    No,
    /// Its session has ended.
    Ended,
    /// Its blocks are at home in the shared ring again; frees on their way to its own ring are waited for.
    Closed,
}

/// One state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(super) shared: Ring,
    pub(super) part: Ring,
    /// The block's home is the partition.
    pub(super) home: Vec<bool>,
    pub(super) going: Going,
    /// `Partition::returning`, or what the rule counts instead.
    pub(super) count: i8,
    pub(super) drawn: Vec<u8>,
    pub(super) drawing: Option<u8>,
    pub(super) orphans: Vec<u8>,
    pub(super) plain_live: bool,
    pub(super) plain: Want,
    pub(super) plain_bound: Vec<u8>,
    pub(super) plain_usage: u8,
    pub(super) direct: Direct,
    pub(super) stags: bool,
    pub(super) ops: Vec<Op>,
    /// `Tickets::next`, `Tickets::open` with `lost`, `Tickets::abandoned`.
    pub(super) next: u8,
    pub(super) open: Vec<(u8, bool)>,
    pub(super) abandoned: Vec<u8>,
    pub(super) own: Option<u8>,
    pub(super) direct_bound: Vec<u8>,
    pub(super) pinned: Option<(u8, bool)>,
    /// Workers of the plain session, the direct session, and the load.
    pub(super) returners: [Returner; 3],
    pub(super) allocations: [u8; 2],
    pub(super) sessions: u8,
    pub(super) pins: u8,
    pub(super) marks: Marks,
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The plain session takes a ticket.
    Allocate,
    /// It takes the block.
    Consume,
    /// It binds the block.
    Bound,
    /// It frees a block it has bound.
    Free(u8),
    /// It ends.
    End,
    /// A lease is over: a block of the plain (false) or direct range is freed.
    Lease(bool, u8),
    /// A session of the direct initiator opens.
    Open,
    /// The directory takes a ticket, or a block, for the partition.
    Draw,
    /// It leaves a ticket behind whose block is not there.
    DrawLater,
    /// The initiator takes a ticket.
    FetchAdd,
    /// It reads the slot of its n-th operation.
    Read(usize),
    /// It writes the block.
    Write(usize),
    /// It sends BIND.
    Send(usize),
    /// It forgets its n-th operation.
    Forget(usize),
    /// The target takes the BIND of the n-th operation.
    Bind(usize),
    /// The target looks at Head.
    Look,
    /// The first n open tickets are over their time.
    Timeout(usize),
    /// The blocks of lost tickets that are there go back.
    Reclaim,
    /// The target allocates for an `ALLOC_STORE` of the direct session.
    OwnTake,
    /// It takes the block.
    OwnConsume,
    /// The direct session frees a block.
    DirectFree(u8),
    /// The direct session ends.
    DirectEnd,
    /// A load begins to send a bound block.
    Pin(u8),
    /// It is done.
    Unpin,
    /// A worker goes on with a return.
    Return(usize),
    /// An orphaned ticket's block has come.
    Orphan(usize),
    /// The directory goes on with dissolving.
    Dissolve,
}
