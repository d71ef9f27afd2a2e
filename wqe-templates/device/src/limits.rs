//! Sizes that are chosen here, each with its reason.

/// Log2 of the basic blocks of a session's loopback queue: 28 slots of profile F, more than the credits of any client here.
pub const LOG_WORKER: u8 = 11;

/// Log2 of the basic blocks of a session's client queue: room for as many slots as the loopback queue has.
pub const LOG_CLIENT: u8 = 8;

/// Log2 of the receive WQEs of the client's queue pair: at least as many as slots.
pub const LOG_RECEIVE: u8 = 6;

/// The same of a session whose slots arm themselves: they have 256.
pub const LOG_RECEIVE_PERPETUAL: u8 = 8;

/// Log2 of the octets of a receive WQE: eleven data segments.
pub const LOG_RECEIVE_STRIDE: u8 = 8;

/// Log2 of the receive WQEs of the loopback queue pair: one for each punt that software has not seen, at most one a slot.
pub const LOG_BELLS: u8 = 6;

/// Log2 of the octets of those: an empty list.
pub const LOG_BELL_STRIDE: u8 = 4;

/// Log2 of the CQEs of a session's completion queues: a chain looks at CQEs of its own slot only, at most nine a slot, so
/// that a queue of all slots' CQEs is enough.
pub const LOG_CQ: u8 = 9;

/// The same of the queue of a session's requests: a slot has one, and in rings of 256 slots each finds it in the same place.
pub const LOG_REQUESTS: u8 = 8;

/// Log2 of the CQEs of the queue of punts, over all sessions of a target: 256 sessions, each with a punt in every slot that it
/// may ring from, and as many receive WQEs flushed when it ends.
pub const LOG_PUNT_CQ: u8 = 15;

/// Log2 of the basic blocks of software's own queue. Each command takes one, and is done before the next lap.
pub const LOG_MASTER: u8 = 6;

/// Reads and atomics outstanding on a queue pair: what devices report (ConnectX-4 Lx, `max_qp_rd_atomic`).
pub const MAX_READS: u8 = 16;

/// Retries while there is no receive WQE: for ever. Clients have no more credits than there are slots.
pub const RNR_RETRY: u8 = 7;
