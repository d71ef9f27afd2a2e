//! Bounds of the model, each with its reason.

/// The most data segments of a WQE: the least that devices of this kind report (ConnectX-4 Lx, `max_sge`).
pub const MAX_PIECES: usize = 30;

/// How deep keys are made of keys: what devices of this kind report (nested UMR).
pub const MAX_NESTING: u8 = 4;

/// The most entries of a key that is made of others: what devices report (`max_klm_list_size`).
pub const MAX_ENTRIES: usize = 65536;

/// The most objects of one kind: numbers have 24 bits on a device; so many are never wanted here.
pub const MAX_OBJECTS: u32 = 1 << 16;

/// Log2 of the most basic blocks of a send queue: an index has 16 bits, and the distance of two is signed.
pub const MAX_LOG_SEND: u8 = 15;

/// The same of receive WQEs.
pub const MAX_LOG_RECEIVE: u8 = 15;

/// Log2 of the most CQEs of a queue: an index has 24 bits, and the distance of two is signed.
pub const MAX_LOG_CQ: u8 = 22;

/// How often a receiver that is not ready is tried again in vain, for each retry that the queue pair has: what the model has
/// in place of a timer.
pub const STEPS_PER_RETRY: u32 = 64;

/// How often a model is let run in vain before what it is waited for counts as lost: its random schedule may pass over all
/// queues.
pub const PATIENCE: usize = 40;

/// The most events that wait for software; later ones are dropped, as from an event queue that overran.
pub const MAX_EVENTS: usize = 4096;
