//! Where things lie in a session's memory, and how large its rings are.

use crate::RING_ALIGN;
use crate::limits::{
    LOG_BELL_STRIDE, LOG_BELLS, LOG_CLIENT, LOG_RECEIVE, LOG_RECEIVE_PERPETUAL, LOG_RECEIVE_STRIDE,
    LOG_WORKER,
};
use kbtp_chain::key::VIEW_STRIDE;
use kbtp_chain::limits::SCRATCH_LINE;
use kbtp_chain::{Template, lap};
use kbtp_mlx5::limits::BASIC_BLOCK;

/// Where things lie in a session's memory: each receive ring, and its send ring right behind it; then the rest. The session's
/// own keys cover what lies between [`KEYED_AT`] and `keyed`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryLayout {
    pub(crate) logs: Logs,
    pub(crate) receives: u64,
    pub(crate) bells: u64,
    pub(crate) worker_ring: u64,
    pub(crate) scratch: u64,
    pub(crate) sink: u64,
    pub(crate) mailbox: u64,
    pub(crate) keyed: u64,
    /// The counter that absorbs what needs no ticket; then 64 octets on, a pad that nobody looks at.
    pub(crate) dummy: u64,
    pub(crate) pad: u64,
    pub(crate) worker_doorbell: u64,
    pub(crate) client_doorbell: u64,
    pub(crate) len: u64,
}

/// Log2 of the sizes of a session's rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logs {
    pub(crate) worker: u8,
    pub(crate) client: u8,
    pub(crate) receive: u8,
}

impl Logs {
    fn of(template: &Template) -> Self {
        if lap::is_perpetual(template) {
            Self {
                worker: lap::LOG_WORKER,
                client: lap::LOG_CLIENT,
                receive: LOG_RECEIVE_PERPETUAL,
            }
        } else {
            Self {
                worker: LOG_WORKER,
                client: LOG_CLIENT,
                receive: LOG_RECEIVE,
            }
        }
    }
}

/// Where the client's send ring lies, and what the session's own keys cover begins; its receive ring ends there. Of receive
/// WQEs they cover the loopback queue pair's alone, which are empty lists.
pub(crate) const KEYED_AT: u64 = 1 << (LOG_RECEIVE_PERPETUAL + LOG_RECEIVE_STRIDE);

impl MemoryLayout {
    pub(crate) fn new(template: &Template) -> Self {
        let logs = Logs::of(template);
        let capacity = template.capacity;
        let slots = 1 << logs.receive;
        let block = BASIC_BLOCK as u64;
        let receives = KEYED_AT - (1 << (logs.receive + LOG_RECEIVE_STRIDE));
        let bells = (KEYED_AT + (block << logs.client)).next_multiple_of(RING_ALIGN);
        let worker_ring = bells + (1 << (LOG_BELLS + LOG_BELL_STRIDE));
        let scratch = (worker_ring + (block << logs.worker)).next_multiple_of(SCRATCH_LINE.into());
        let sink = scratch + u64::from(SCRATCH_LINE) * slots;
        let mailbox = (sink + u64::from(capacity) * slots).next_multiple_of(64);
        let keyed = mailbox + 64;
        let dummy = keyed;
        let pad = dummy + 64;
        let worker_doorbell = pad + VIEW_STRIDE;
        let client_doorbell = worker_doorbell + 64;
        Self {
            logs,
            receives,
            bells,
            worker_ring,
            scratch,
            sink,
            mailbox,
            keyed,
            dummy,
            pad,
            worker_doorbell,
            client_doorbell,
            len: client_doorbell + 64,
        }
    }
}
