//! A session somewhere in memory.

use kbtp_chain::key::{Key, Sizes};
use kbtp_chain::{CqPlace, Placement, QueuePlace, Restart, Template, lap};
use kbtp_mlx5::{Cqn, Mkey, Qpn};
use kbtp_wire::{ByteLen, RingOrder};

pub(crate) const BLOCK: ByteLen = ByteLen(4096);
pub(crate) const WORKER: u64 = 0x10_0000_0000;
pub(crate) const CLIENT: u64 = 0x11_0000_0000;
pub(crate) const SCRATCH: u64 = 0x12_0000_0000;

pub(crate) fn placement() -> Placement {
    let cq = |number, address| CqPlace {
        cqn: Cqn::truncate(number),
        address,
        log_size: 9,
    };
    let mut keys = [Mkey(0); Key::ALL.len()];
    for (number, key) in (1..).zip(&mut keys) {
        *key = Mkey(number << 8 | 0x5a);
    }
    Placement {
        session: 3,
        worker: QueuePlace {
            qpn: Qpn::truncate(0x41),
            address: WORKER,
            log_size: 11,
        },
        client: QueuePlace {
            qpn: Qpn::truncate(0x42),
            address: CLIENT,
            log_size: 8,
        },
        receive_cq: cq(0x81, 0x13_0000_0000),
        client_cq: cq(0x82, 0x14_0000_0000),
        worker_cq: cq(0x83, 0x15_0000_0000),
        scratch: SCRATCH,
        sink: 0x16_0000_0000,
        mailbox: 0x17_0000_0000,
        keys,
        sizes: Sizes {
            table_base: 0,
            table_count: 64,
            own_base: 0,
            own_count: 32,
            ring: RingOrder::new(5).expect("small"),
        },
        restart: Restart::default(),
    }
}

/// The same with the rings that a template has.
pub(crate) fn place_of(template: &Template) -> Placement {
    let mut placement = placement();
    if lap::is_perpetual(template) {
        placement.worker.log_size = lap::LOG_WORKER;
        placement.client.log_size = lap::LOG_CLIENT;
        placement.receive_cq.log_size = 8;
    }
    placement
}
