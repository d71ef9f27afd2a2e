//! The memory keys that chains use, by what they cover. A key's bounds are checks: an address outside ends the chain.

use core::fmt;
use kbtp_mlx5::AccessRights;
use kbtp_wire::RingOrder;

/// Protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// Of the loopback queue pairs: nothing that a client names is looked up here.
    Loopback,
    /// Of the queue pairs that clients are connected to.
    Client,
    /// A client's own, on another machine.
    Remote,
}

/// A memory key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// Both rings of a session and its scratch lines, for its loopback queue pair only.
    Rings,
    /// The same for the client's queue pair: local rights only.
    RingsClient,
    /// The completion queues of a session, to read.
    Cqes,
    /// Which request: version, opcode and flags to a variant.
    Header,
    /// A request's Generation to the operands of a comparison.
    Generation,
    /// A Generation to itself or to the next one.
    NextGeneration,
    /// Records by predicate and variant, for messages with a Data Descriptor.
    RecordsWithData,
    /// The same for messages without.
    RecordsWithout,
    /// The punt record wherever one looks.
    Punt,
    /// A receive's CQE to the key of its records.
    Received,
    /// Valid for the CQE of a WQE that succeeded, and for nothing else.
    Completed,
    /// The block table, an entry every 256 octets.
    Table,
    /// This session's handles: Flags and Generation.
    OwnWord,
    /// This session's handles: Data Length and Block Offset.
    OwnBinding,
    /// Head, Tail and the dummy counter.
    Counters,
    /// The ring, from the Sequence of the first slot.
    Sequence,
    /// The ring, from the Block Offset of the first slot.
    BlockOffset,
    /// The pool, by Block Offset; local rights only.
    Pool,
    /// Whatever the client named.
    Client,
    /// What of a slot is a number of its lap, by lap.
    Laps,
    /// High octets of indices, by lap and page of the rings.
    Pages,
    /// What of a slot is the same whenever it is armed, and changes while it runs.
    Reset,
    /// The doorbell record of the client's receives.
    Doorbell,
}

/// What the ranges of keys depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// First handle of the table.
    pub table_base: u64,
    /// Handles of the table.
    pub table_count: u64,
    /// First handle of the session.
    pub own_base: u64,
    /// Handles of the session.
    pub own_count: u64,
    /// Order of the ring.
    pub ring: RingOrder,
}

/// Octets of address space that an entry takes in a view: the shift that makes an address of a handle.
pub const VIEW_STRIDE: u64 = 256;
/// Octets of the record table: three outcomes of the predicate, sixteen entry flags, 256 variants, 256 octets each.
pub const RECORDS_LEN: u64 = 3 << 20;
/// Where Head lies under [`Key::Counters`].
pub const HEAD_AT: u64 = 0;
/// Where the counter lies that absorbs the FetchAdd of a request that needs none.
pub const DUMMY_AT: u64 = 128;

impl Key {
    /// Every key.
    pub const ALL: [Self; 23] = [
        Self::Rings,
        Self::RingsClient,
        Self::Cqes,
        Self::Header,
        Self::Generation,
        Self::NextGeneration,
        Self::RecordsWithData,
        Self::RecordsWithout,
        Self::Punt,
        Self::Received,
        Self::Completed,
        Self::Table,
        Self::OwnWord,
        Self::OwnBinding,
        Self::Counters,
        Self::Sequence,
        Self::BlockOffset,
        Self::Pool,
        Self::Client,
        Self::Laps,
        Self::Pages,
        Self::Reset,
        Self::Doorbell,
    ];

    /// Its protection domain.
    #[must_use]
    pub const fn domain(self) -> Domain {
        match self {
            Self::RingsClient | Self::Pool => Domain::Client,
            Self::Client => Domain::Remote,
            _ => Domain::Loopback,
        }
    }

    /// What it allows.
    #[must_use]
    pub const fn rights(self) -> AccessRights {
        let local = AccessRights::LOCAL_READ.with(AccessRights::LOCAL_WRITE);
        let read = AccessRights::REMOTE_READ;
        let write = AccessRights::REMOTE_WRITE;
        match self {
            Self::Rings => local.with(read).with(write).with(AccessRights::ATOMIC),
            Self::RingsClient | Self::Pool => local,
            Self::OwnWord | Self::Client => read.with(write),
            Self::OwnBinding | Self::Doorbell => write,
            Self::Counters => read.with(write).with(AccessRights::ATOMIC),
            Self::Sequence | Self::BlockOffset => AccessRights::LOCAL_READ.with(read).with(write),
            _ => read,
        }
    }

    /// First address and length, where they do not depend on where memory was found; `None` for the others.
    #[must_use]
    pub fn range(self, sizes: &Sizes) -> Option<(u64, u64)> {
        let view = |base: u64, count: u64| {
            let start = base.checked_mul(VIEW_STRIDE)?;
            Some((start, count.checked_mul(VIEW_STRIDE)?))
        };
        match self {
            // Version, opcode and flags; what is no request of version 1 finds zeros, that is, a punt.
            Self::Header => Some((0, 1 << 32)),
            Self::Generation | Self::Laps | Self::Pages => Some((0, 65536 * VIEW_STRIDE)),
            Self::NextGeneration => Some((0, 2 * 65536 * VIEW_STRIDE)),
            Self::RecordsWithData | Self::RecordsWithout | Self::Punt => Some((0, RECORDS_LEN)),
            // The last octet of a receive's CQE, 0x20 to 0x23, then the low octet of its byte count.
            Self::Received => Some((0x20_0000, 0x4_0000)),
            // The last octet of a send's CQE: 0 or 1.
            Self::Completed => Some((0, 2 * VIEW_STRIDE)),
            Self::Table => view(sizes.table_base, sizes.table_count),
            Self::OwnWord | Self::OwnBinding => view(sizes.own_base, sizes.own_count),
            Self::Counters => Some((0, DUMMY_AT + 64)),
            Self::Sequence => Some((0, sizes.ring.ring_len())),
            Self::BlockOffset => Some((0, sizes.ring.ring_len() - 8)),
            Self::Reset => Some((0, VIEW_STRIDE)),
            Self::Doorbell => Some((0, 4)),
            Self::Rings | Self::RingsClient | Self::Cqes | Self::Pool | Self::Client => None,
        }
    }

    /// Whether an address that a client chose may be looked up under it: its bounds are those of one thing that any
    /// client may look at, or of this client's own.
    #[must_use]
    pub const fn is_bounded(self) -> bool {
        !matches!(
            self,
            Self::Rings | Self::RingsClient | Self::Cqes | Self::Pool | Self::Counters
        )
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rings => "rings",
            Self::RingsClient => "rings(C)",
            Self::Cqes => "cqes",
            Self::Header => "header",
            Self::Generation => "generation",
            Self::NextGeneration => "next generation",
            Self::RecordsWithData => "records, with data",
            Self::RecordsWithout => "records, without data",
            Self::Punt => "punt",
            Self::Received => "received",
            Self::Completed => "completed",
            Self::Table => "table",
            Self::OwnWord => "own word",
            Self::OwnBinding => "own binding",
            Self::Counters => "counters",
            Self::Sequence => "sequence",
            Self::BlockOffset => "block offset",
            Self::Pool => "pool",
            Self::Client => "client",
            Self::Laps => "laps",
            Self::Pages => "pages",
            Self::Reset => "reset",
            Self::Doorbell => "doorbell",
        })
    }
}
