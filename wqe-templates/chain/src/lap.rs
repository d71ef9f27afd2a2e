//! Slots that arm themselves: what of a slot changes from one lap of the rings to the next, as rows that READs find.
//!
//! The rings have 256 slots, so that whatever counts slots, or so many basic blocks or CQEs of each, changes in its high octets
//! alone. A slot arms the one before it:
//!
//! | key | address | row |
//! |---|---|---|
//! | [`Key::Laps`] | the lap, 16 bits, shifted by 8 | middle octets of what WAITs count, octets of addresses and of numbers of slots; once for each quarter of the rings, and for the first slot |
//! | [`Key::Pages`] | low octet of the lap and page of 256 basic blocks of the loopback queue, shifted by 8 | the high octet of indices there, again and again, then the next page's; the same of the client's queue |
//! | [`Key::Reset`] | 0 | what is the same whenever a slot is armed |

use crate::build::{BuildError, Builder};
use crate::element::{Cq, Queue};
use crate::key::{Key, Sizes};
use crate::memory::Memory;
use crate::placement::{CqPlace, Placement, QueuePlace, Restart};
use crate::template::Template;
use kbtp_mlx5::{Cqn, Mkey, Qpn};
use kbtp_wire::{ByteLen, RingOrder};

/// Slots of a lap.
pub const SLOTS: u64 = 256;
/// Log2 of the basic blocks of the loopback queue.
pub const LOG_WORKER: u8 = 14;
/// Log2 of those of the client's.
pub const LOG_CLIENT: u8 = 10;
/// Basic blocks of a slot of the loopback queue.
pub const WORKER_STRIDE: u16 = 64;
/// Basic blocks of a slot of the client's queue.
pub const CLIENT_STRIDE: u16 = 4;
/// CQEs of a slot of the loopback queue.
pub const WORKER_CQES: u16 = 4;

/// Octets of a row of [`Key::Laps`].
pub const LAP_ROW: usize = 128;
/// Octets of a row of [`Key::Pages`].
pub const PAGE_ROW: usize = 48;

/// Octets of a part of a lap's row: for one quarter of the rings, or for the first slot.
const PART: u16 = 24;
/// The part of the first slot of the rings, whose slot before belongs to the lap before.
const FIRST: u16 = 4;
/// Slots of a quarter of the rings: 256 CQEs of the loopback queue.
const QUARTER: u16 = 64;
/// Slots of a page of the loopback queue.
pub const PAGE_SLOTS: u16 = 4;
/// Slots of a page of the client's queue.
pub const CLIENT_PAGE_SLOTS: u16 = 64;

/// Where in a page's row those of the loopback queue end and the next page's is.
const NEXT_PAGE: usize = 35;
/// Where those of the client's queue are: three, and the next page's.
pub const CLIENT_PAGE: u16 = 40;

/// The row of a lap: for each part what the pieces of LAP scatter, in their order.
#[must_use]
pub fn lap(lap: u16) -> [u8; LAP_ROW] {
    let mut row = [0; LAP_ROW];
    for (part, octets) in (0..=FIRST).zip(row.chunks_mut(usize::from(PART))) {
        let first = part == FIRST;
        let quarter = if first { 0 } else { part };
        let waits = lap
            .wrapping_mul(WORKER_CQES)
            .wrapping_add(quarter)
            .to_be_bytes();
        let here = lap.to_be_bytes();
        let next = lap.wrapping_add(1).to_be_bytes();
        // The slot before the first one is a lap behind.
        let before = if first {
            lap.wrapping_sub(1).to_be_bytes()
        } else {
            here
        };
        let arms = if first { here } else { next };
        let ([_, low], [_, next], [_, arms_low]) = (here, next, arms);
        let lows = [low, next, arms_low, arms_low, arms_low];
        let all = [&waits[..], &waits, &waits, &here, &before, &arms, &lows].concat();
        for (octet, value) in octets.iter_mut().zip(all) {
            *octet = value;
        }
    }
    row
}

/// The row of a page of a lap, by its low octet.
#[must_use]
pub fn page(lap: u8, page: u8) -> [u8; PAGE_ROW] {
    let mut row = [0; PAGE_ROW];
    let worker = lap.wrapping_mul(1 << (LOG_WORKER - 8)).wrapping_add(page);
    let client = lap.wrapping_mul(1 << (LOG_CLIENT - 8));
    let client = client.wrapping_add(page / (1 << 4));
    for (at, octet) in row.iter_mut().enumerate() {
        let of_client = at.checked_sub(usize::from(CLIENT_PAGE));
        *octet = match of_client {
            None => worker.wrapping_add(u8::from(at >= NEXT_PAGE)),
            Some(at) => client.wrapping_add(u8::from(at >= 3)),
        };
    }
    row
}

/// The lap that slot `n` arms the slot before it for, and that slot's place.
const fn before(n: u64) -> (u64, u16) {
    let lap = n.wrapping_sub(1) / SLOTS;
    let [.., low] = n.wrapping_sub(1).to_be_bytes();
    (lap.wrapping_add(1), low as u16)
}

/// Where slot `n` looks up the lap of the slot before.
#[must_use]
pub const fn lap_address(n: u64) -> u64 {
    let (lap, place) = before(n);
    let part = if place == 0 { FIRST } else { place / QUARTER };
    (lap & 0xffff) << 8 | (part * PART) as u64
}

/// Where slot `n` looks up the page of the slot before, from octet `at` on; one further if that is the last of `slots`.
#[must_use]
pub const fn page_address(n: u64, at: u16, slots: u16) -> u64 {
    let (lap, place) = before(n);
    let last = slots > 0 && place % slots == slots - 1;
    let octet = at + last as u16;
    (lap & 0xff) << 16 | ((place / PAGE_SLOTS) as u64) << 8 | octet as u64
}

/// The receive WQEs that are posted once slot `n` has armed the slot before it: up to that one of the next lap.
#[must_use]
pub const fn receives(n: u64) -> u32 {
    (n.wrapping_add(SLOTS) & 0xffff) as u32
}

/// The row of [`Key::Reset`]: the octets, as any slot is armed, that RST scatters.
///
/// # Errors
/// [`BuildError`] if the template makes no sense.
pub fn reset(template: &Template, block_size: ByteLen, punt: Mkey) -> Result<Vec<u8>, BuildError> {
    // Neither places nor other keys are among them.
    let placement = nowhere(punt);
    let builder = Builder::new(template, &placement, block_size)?;
    let mut row = Vec::new();
    let pieces = template
        .find("RST")
        .map_or(&[][..], |(_, one)| one.pieces());
    for piece in pieces {
        let armed = match piece.spot.memory {
            Memory::Before(name) => {
                let (queue, element) = template.find(name).ok_or(BuildError::Name(name))?;
                builder.wqe(0, queue, element)?.as_octets().to_vec()
            }
            _ => builder.scratch_line(),
        };
        let at = usize::from(piece.spot.at);
        let len = usize::try_from(piece.spot.len).unwrap_or(0);
        let octets = armed.get(at..at.saturating_add(len));
        row.extend(octets.ok_or(BuildError::Length("RST"))?);
    }
    Ok(row)
}

fn nowhere(punt: Mkey) -> Placement {
    let queue = |log_size| QueuePlace {
        qpn: Qpn::default(),
        address: 0,
        log_size,
    };
    let cq = CqPlace {
        cqn: Cqn::default(),
        address: 0,
        log_size: 8,
    };
    let keys = Key::ALL.map(|key| if key == Key::Punt { punt } else { Mkey(0) });
    Placement {
        session: 0,
        worker: queue(LOG_WORKER),
        client: queue(LOG_CLIENT),
        receive_cq: cq,
        client_cq: cq,
        worker_cq: cq,
        scratch: 0,
        sink: 0,
        mailbox: 0,
        keys,
        sizes: Sizes {
            table_base: 0,
            table_count: 0,
            own_base: 0,
            own_count: 0,
            ring: RingOrder::default(),
        },
        restart: Restart::default(),
    }
}

/// Whether a template's slots arm themselves; the numbers here are then its own.
#[must_use]
pub fn is_perpetual(template: &Template) -> bool {
    template.find("RST").is_some()
        && template.stride(Queue::Worker) == WORKER_STRIDE
        && template.stride(Queue::Client) == CLIENT_STRIDE
        && template.cqes(Cq::Worker) == usize::from(WORKER_CQES)
        && template.cqes(Cq::Client) == 1
}
