//! Where a session's queues and keys are: what a template needs to become octets.

use crate::element::{Bound, Cq, Queue};
use crate::key::{Key, Sizes};
use crate::template::Template;
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{CqeIndex, Cqn, Mkey, Qpn, WqeIndex};

/// A send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePlace {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// Address of its first basic block, in the address space of [`Key::Rings`] and [`Key::RingsClient`].
    pub address: u64,
    /// Log2 of its basic blocks.
    pub log_size: u8,
}

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqPlace {
    /// Its number.
    pub cqn: Cqn,
    /// Address of its first CQE, in the address space of [`Key::Cqes`].
    pub address: u64,
    /// Log2 of its CQEs.
    pub log_size: u8,
}

/// Where the loopback queue stands beside the client's queue: both as they were made, or later in its life, after it was reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restart {
    /// The slot that would lie at the start of its ring, a multiple of the slots of a lap: its basic blocks count from there.
    pub slot: u64,
    /// What its CQEs are ahead of those of a queue that was never reset, modulo 2^64.
    pub cqes: u64,
}

/// A session's queues, memory and keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Which session: what the doorbell of a punt says.
    pub session: u16,
    /// The loopback queue pair.
    pub worker: QueuePlace,
    /// The client's queue pair.
    pub client: QueuePlace,
    /// CQEs of requests.
    pub receive_cq: CqPlace,
    /// CQEs of the client's queue pair's sends.
    pub client_cq: CqPlace,
    /// CQEs of the loopback queue pair's sends.
    pub worker_cq: CqPlace,
    /// Address of the first scratch line, a multiple of 256. There is one for each slot.
    pub scratch: u64,
    /// Address of what no chain reads, only software: [`Template::capacity`] octets for each slot.
    pub sink: u64,
    /// Address of four octets that the doorbell of a punt writes.
    pub mailbox: u64,
    /// The keys, in the order of [`Key::ALL`].
    pub keys: [Mkey; Key::ALL.len()],
    /// What the ranges of keys depend on.
    pub sizes: Sizes,
    /// Where the loopback queue was reset last.
    pub restart: Restart,
}

impl Placement {
    /// A send queue's place.
    #[must_use]
    pub const fn queue(&self, queue: Queue) -> &QueuePlace {
        match queue {
            Queue::Worker => &self.worker,
            Queue::Client => &self.client,
        }
    }

    /// A completion queue's place.
    #[must_use]
    pub const fn cq(&self, cq: Cq) -> &CqPlace {
        match cq {
            Cq::Receive => &self.receive_cq,
            Cq::Client => &self.client_cq,
            Cq::Worker => &self.worker_cq,
        }
    }

    /// A key.
    #[must_use]
    pub fn key(&self, key: Key) -> Mkey {
        let at = Key::ALL.iter().position(|one| *one == key);
        at.and_then(|at| self.keys.get(at))
            .copied()
            .unwrap_or_default()
    }

    /// How many slots the rings hold: no slot lies across the end of one.
    #[must_use]
    pub fn slots(&self, template: &Template) -> u64 {
        let fit = |queue| {
            let blocks = 1_u64.checked_shl(u32::from(self.queue(queue).log_size));
            blocks.unwrap_or(0) / u64::from(template.stride(queue).max(1))
        };
        fit(Queue::Worker).min(fit(Queue::Client))
    }

    /// The first basic block of slot `n`, counted from the first one ever, or since the queue was reset.
    #[must_use]
    pub fn block(&self, template: &Template, queue: Queue, n: u64) -> u64 {
        let slots = self.slots(template).max(1);
        let ring = 1_u64.checked_shl(u32::from(self.queue(queue).log_size));
        let n = match queue {
            Queue::Worker => n.wrapping_sub(self.restart.slot),
            Queue::Client => n,
        };
        // Neither wraps: a lap of 2^63 slots is out of reach.
        (n / slots)
            .wrapping_mul(ring.unwrap_or(0))
            .wrapping_add((n % slots).wrapping_mul(u64::from(template.stride(queue))))
    }

    /// The basic block of `queue` where what a `SEND_EN` of slot `n` enables ends, counted from the first one ever; `None` if
    /// the bound names no WQE of that queue.
    #[must_use]
    pub fn end(&self, template: &Template, queue: Queue, bound: Bound, n: u64) -> Option<u64> {
        match bound {
            Bound::Through(_) => {
                let blocks = template.bound(queue, bound)?;
                Some(
                    self.block(template, queue, n)
                        .wrapping_add(u64::from(blocks)),
                )
            }
            Bound::NextSlot(blocks) => Some(
                self.block(template, queue, n.wrapping_add(1))
                    .wrapping_add(u64::from(blocks)),
            ),
        }
    }

    /// What the doorbell of a punt of slot `n` says: session and the low half of the slot's number.
    #[must_use]
    pub fn bell(&self, n: u64) -> u32 {
        let [.., high, low] = n.to_be_bytes();
        u32::from(self.session) << 16 | u32::from(u16::from_be_bytes([high, low]))
    }

    /// The index of a basic block.
    #[must_use]
    pub const fn index(block: u64) -> WqeIndex {
        let [.., high, low] = block.to_be_bytes();
        WqeIndex(u16::from_be_bytes([high, low]))
    }

    /// The address of a basic block.
    #[must_use]
    pub fn address(&self, queue: Queue, block: u64) -> u64 {
        let place = self.queue(queue);
        let ring = 1_u64.checked_shl(u32::from(place.log_size)).unwrap_or(1);
        place
            .address
            .wrapping_add((block % ring).wrapping_mul(BASIC_BLOCK as u64))
    }

    /// CQE `number` of slot `n`, counted from the first one ever.
    #[must_use]
    pub fn cqe(&self, template: &Template, cq: Cq, n: u64, number: u8) -> u64 {
        n.wrapping_mul(template.cqes(cq) as u64)
            .wrapping_add(u64::from(number))
            .wrapping_add(self.skipped(cq))
    }

    /// CQEs that a queue has had beside those of slots.
    #[must_use]
    pub const fn skipped(&self, cq: Cq) -> u64 {
        match cq {
            Cq::Worker => self.restart.cqes,
            Cq::Receive | Cq::Client => 0,
        }
    }

    /// The index of a CQE.
    #[must_use]
    pub const fn cqe_index(cqe: u64) -> CqeIndex {
        let [.., a, b, c] = cqe.to_be_bytes();
        CqeIndex::truncate(u32::from_be_bytes([0, a, b, c]))
    }

    /// The address of a CQE.
    #[must_use]
    pub fn cqe_address(&self, cq: Cq, cqe: u64) -> u64 {
        let place = self.cq(cq);
        let ring = 1_u64.checked_shl(u32::from(place.log_size)).unwrap_or(1);
        let octets = (cqe % ring).wrapping_mul(kbtp_mlx5::Cqe::LEN as u64);
        place.address.wrapping_add(octets)
    }
}
