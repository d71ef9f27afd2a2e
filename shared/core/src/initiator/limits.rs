//! Bounds of the initiator, each with its reason.

/// Requests in flight in one session, whatever the target grants: a slot is about 200 octets, so that the slots of a
/// session stay within a quarter of a megabyte. At 20 us a round trip it still allows 50 million requests a second.
pub const MAX_REQUESTS: u16 = 1024;

/// Direct loads in flight in one session. They need no Request Credit but an outstanding RDMA Read each, and streams
/// allow few of those (ORD).
pub const MAX_DIRECT_LOADS: u16 = 64;

/// Times a direct load starts over when the entry changed under it: an entry that changes this often within a few
/// round trips is not worth waiting for, and the caller is told.
pub const DIRECT_LOAD_ATTEMPTS: u8 = 4;

/// Handles of a range that an initiator remembers one by one: half a megabyte. Of a longer range it counts only.
pub const TRACKED_HANDLES: u64 = 1 << 21;

/// Octets of the Tenant TLV: a name, not a document. HELLO has to fit one receive of the target.
pub const MAX_TENANT: usize = 255;

/// Octets of the Software TLV.
pub const MAX_SOFTWARE: usize = 255;

/// Work the state machine may hold for one slot: an RDMA Write and the BIND after it.
pub const STEPS_PER_SLOT: usize = 2;

/// The share of the Ticket Timeout, in 256ths, after which a ticket is no longer written through: the target may reclaim
/// its block when the rest has passed too, and the Write and the BIND need time to arrive (draft, section 3.4).
pub const TICKET_SHARE: u64 = 192;
