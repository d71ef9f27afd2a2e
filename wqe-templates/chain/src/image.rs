//! Slots armed fast: octets of each place in the rings are built once; from lap to lap only indices change.

use crate::build::{BuildError, Builder, Step};
use crate::element::{Address, Bound, Cq, Queue, Shape};
use crate::lap;
use crate::memory::Memory;
use crate::placement::{Placement, Restart};
use crate::template::Template;
use kbtp_mlx5::{DataSegment, Field};

/// Octets at an address in the address space of [`Key::Rings`](crate::key::Key::Rings).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where.
    pub address: u64,
    /// What.
    pub octets: Vec<u8>,
}

/// What changes from lap to lap in one WQE, and where in its part.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// The WQE's own index: basic blocks from the start of the slot.
    Index(u16),
    /// Index of the CQE of a WAIT: of which queue, which of its slot's, of how many.
    Wait(Cq, u8, u64),
    /// The same of the slot before.
    WaitBefore(Cq, u8, u64),
    /// Address of the row of the slot before's next lap.
    Lap,
    /// The same by page, from which octet on.
    Page(u16, u16),
    /// Receive WQEs that are posted.
    Receives,
    /// End of what a `SEND_EN` enables: basic blocks from the start of this slot.
    Enable(Queue, u16),
    /// The same from the start of the next slot.
    EnableNext(Queue, u8),
    /// What the doorbell of a punt says.
    Bell,
    /// Address of a CQE, whose queue is longer or shorter than the rings: which of its slot's, of how many, and the octet.
    CqeAddress(Cq, u8, u64, u16),
}

/// Where a slot starts: the basic blocks of both queues, and those of the next slot.
struct Starts {
    n: u64,
    worker: [u64; 2],
    client: [u64; 2],
}

impl Starts {
    fn new(template: &Template, placement: &Placement, n: u64) -> Self {
        let of = |queue| [n, n.wrapping_add(1)].map(|n| placement.block(template, queue, n));
        Self {
            n,
            worker: of(Queue::Worker),
            client: of(Queue::Client),
        }
    }

    const fn of(&self, queue: Queue) -> [u64; 2] {
        match queue {
            Queue::Worker => self.worker,
            Queue::Client => self.client,
        }
    }

    /// CQE `number` of so many a slot, counted from the first one ever.
    fn cqe(&self, number: u8, each: u64) -> u64 {
        self.n.wrapping_mul(each).wrapping_add(u64::from(number))
    }
}

#[derive(Clone, Copy, Debug)]
struct Fix {
    queue: Queue,
    /// First octet of the WQE in its part.
    at: usize,
    change: Change,
}

/// One slot of the rings, ready to be written.
#[derive(Clone, Debug)]
struct Slot {
    parts: [Part; 3],
    receive: Vec<DataSegment>,
    fixes: Vec<Fix>,
}

/// The slots of a session's rings. [`arm`](Self::arm) gives what [`Builder::arm`] gives, as three runs of octets instead of
/// one for each WQE, without building anything.
#[derive(Clone, Debug)]
pub struct Images {
    template: Template,
    placement: Placement,
    slots: Vec<Slot>,
}

impl Images {
    /// Builds the slots of the first lap.
    ///
    /// # Errors
    /// As [`Builder::new`] and [`Builder::arm`].
    pub fn new(
        template: &Template,
        placement: &Placement,
        block_size: kbtp_wire::ByteLen,
    ) -> Result<Self, BuildError> {
        let builder = Builder::new(template, placement, block_size)?;
        let slots = (0..placement.slots(template)).map(|n| slot(&builder, template, placement, n));
        Ok(Self {
            slots: slots.collect::<Result<_, _>>()?,
            template: template.clone(),
            placement: placement.clone(),
        })
    }

    /// The template.
    #[must_use]
    pub const fn template(&self) -> &Template {
        &self.template
    }

    /// The place.
    #[must_use]
    pub const fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The loopback queue was reset.
    pub const fn restart(&mut self, at: Restart) {
        self.placement.restart = at;
    }

    /// Slots of a lap.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    /// What arms slot `n`: the octets of its part of the loopback queue, of the client's queue, and its scratch line; then
    /// the receive WQE, to be posted once they are visible to the device. `None` only if there are no slots.
    pub fn arm(&mut self, n: u64) -> Option<(&[Part; 3], &[DataSegment])> {
        let Self {
            template,
            placement,
            slots,
        } = self;
        let place = usize::try_from(n.checked_rem(slots.len() as u64)?).ok()?;
        let slot = slots.get_mut(place)?;
        let starts = Starts::new(template, placement, n);
        for fix in &slot.fixes {
            let part = part_of(&mut slot.parts, fix.queue);
            apply(fix, placement, &starts, &mut part.octets);
        }
        // Nothing but addresses moves with the lap, and those of the rings repeat.
        Some((&slot.parts, &slot.receive))
    }
}

fn part_of(parts: &mut [Part; 3], queue: Queue) -> &mut Part {
    let [worker, client, _] = parts;
    match queue {
        Queue::Worker => worker,
        Queue::Client => client,
    }
}

fn put(octets: &mut [u8], at: usize, field: Field, value: &[u8]) {
    let from = at.saturating_add(usize::from(field.at));
    if let Some(place) = octets.get_mut(from..from.saturating_add(value.len())) {
        place.copy_from_slice(value);
    }
}

fn apply(fix: &Fix, placement: &Placement, starts: &Starts, octets: &mut [u8]) {
    let at = fix.at;
    let enable = |octets: &mut [u8], end| {
        let index = u32::from(Placement::index(end).0);
        put(octets, at, Field::ENABLE_INDEX, &index.to_be_bytes());
    };
    match fix.change {
        Change::Index(offset) => {
            let [block, _] = starts.of(fix.queue);
            let index = Placement::index(block.wrapping_add(u64::from(offset)));
            put(octets, at, Field::INDEX, &index.0.to_be_bytes());
        }
        Change::Wait(cq, number, each) => {
            let cqe = starts.cqe(number, each);
            let index = Placement::cqe_index(cqe.wrapping_add(placement.skipped(cq)));
            put(octets, at, Field::WAIT_INDEX, &index.get().to_be_bytes());
        }
        Change::WaitBefore(cq, number, each) => {
            let cqe = starts.cqe(number, each).wrapping_sub(each);
            let index = Placement::cqe_index(cqe.wrapping_add(placement.skipped(cq)));
            put(octets, at, Field::WAIT_INDEX, &index.get().to_be_bytes());
        }
        Change::Lap => {
            let address = lap::lap_address(starts.n);
            put(octets, at, Field::REMOTE_ADDRESS, &address.to_be_bytes());
        }
        Change::Page(from, slots) => {
            let address = lap::page_address(starts.n, from, slots);
            put(octets, at, Field::REMOTE_ADDRESS, &address.to_be_bytes());
        }
        Change::Receives => {
            let receives = lap::receives(starts.n);
            put(octets, at, Field::IMMEDIATE, &receives.to_be_bytes());
        }
        Change::Enable(queue, blocks) => {
            let [block, _] = starts.of(queue);
            enable(octets, block.wrapping_add(u64::from(blocks)));
        }
        Change::EnableNext(queue, blocks) => {
            let [_, next] = starts.of(queue);
            enable(octets, next.wrapping_add(u64::from(blocks)));
        }
        Change::Bell => {
            let says = placement.bell(starts.n);
            put(octets, at, Field::IMMEDIATE, &says.to_be_bytes());
        }
        Change::CqeAddress(cq, number, each, octet) => {
            let address = placement.cqe_address(cq, starts.cqe(number, each));
            let address = address.wrapping_add(u64::from(octet));
            put(octets, at, Field::REMOTE_ADDRESS, &address.to_be_bytes());
        }
    }
}

/// The octets of slot `n` of the first lap, and what changes later.
fn slot(
    builder: &Builder<'_>,
    template: &Template,
    placement: &Placement,
    n: u64,
) -> Result<Slot, BuildError> {
    let part = |queue| {
        let block = placement.block(template, queue, n);
        let next = placement.block(template, queue, n.wrapping_add(1));
        let blocks = usize::try_from(next.wrapping_sub(block)).unwrap_or(0);
        Part {
            address: placement.address(queue, block),
            octets: vec![0; blocks.saturating_mul(kbtp_mlx5::limits::BASIC_BLOCK)],
        }
    };
    let mut parts = [
        part(Queue::Worker),
        part(Queue::Client),
        Part {
            address: builder.scratch(n),
            octets: vec![0; usize::from(crate::limits::SCRATCH_LINE)],
        },
    ];
    let mut receive = Vec::new();
    for step in builder.arm(n)? {
        match step {
            Step::Write { address, octets } => {
                for part in &mut parts {
                    let at = address.checked_sub(part.address);
                    let at = at.and_then(|at| usize::try_from(at).ok());
                    let place = at.and_then(|at| part.octets.get_mut(at..at + octets.len()));
                    if let Some(place) = place {
                        place.copy_from_slice(&octets);
                        break;
                    }
                }
            }
            Step::Barrier => {}
            Step::PostReceive(list) => receive = list,
        }
    }
    let [worker, client, _] = &parts;
    let mut fixes = Vec::new();
    for queue in [Queue::Worker, Queue::Client] {
        let part = match queue {
            Queue::Worker => worker,
            Queue::Client => client,
        };
        fixes_of(template, queue, part.octets.len(), &mut fixes);
    }
    Ok(Slot {
        parts,
        receive,
        fixes,
    })
}

fn fixes_of(template: &Template, queue: Queue, len: usize, fixes: &mut Vec<Fix>) {
    let mut offset = 0_u16;
    let mut fix = |offset: u16, change| {
        let at = usize::from(offset).saturating_mul(kbtp_mlx5::limits::BASIC_BLOCK);
        fixes.push(Fix { queue, at, change });
    };
    let each = |cq| template.cqes(cq) as u64;
    for element in template.queue(queue) {
        fix(offset, Change::Index(offset));
        match &element.shape {
            Shape::Wait(cq, number) => fix(offset, Change::Wait(*cq, *number, each(*cq))),
            Shape::WaitBefore(cq, number) => {
                fix(offset, Change::WaitBefore(*cq, *number, each(*cq)));
            }
            Shape::Enable(queue, Bound::NextSlot(blocks)) => {
                fix(offset, Change::EnableNext(*queue, *blocks));
            }
            Shape::Enable(queue, bound) => {
                // The builder refuses a bound that is none.
                let blocks = template.bound(*queue, *bound).unwrap_or(0);
                fix(offset, Change::Enable(*queue, blocks));
            }
            Shape::Rdma(remote, _) => {
                if element.name == "BELL" {
                    fix(offset, Change::Bell);
                }
                match remote.address {
                    Address::Lap => fix(offset, Change::Lap),
                    Address::Page(from, slots) => fix(offset, Change::Page(from, slots)),
                    Address::OfSpot | Address::Armed(_) => {}
                }
                if remote.spot.memory == Memory::Doorbell {
                    fix(offset, Change::Receives);
                }
                if let (Address::OfSpot, Memory::Cqe(cq, number)) =
                    (remote.address, remote.spot.memory)
                {
                    fix(
                        offset,
                        Change::CqeAddress(cq, number, each(cq), remote.spot.at),
                    );
                }
            }
            _ => {}
        }
        offset = offset.saturating_add(element.basic_blocks());
    }
    // NOPs to the end of the slot or of the lap.
    let blocks = len / kbtp_mlx5::limits::BASIC_BLOCK;
    while usize::from(offset) < blocks {
        fix(offset, Change::Index(offset));
        offset = offset.saturating_add(1);
    }
}
