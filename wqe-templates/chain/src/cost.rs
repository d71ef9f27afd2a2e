//! What a chain costs: WQEs, basic blocks, and how many replies of the responder it waits for one after the other.

use crate::element::{Bound, Element, Name, Queue, Shape, has_reply};
use crate::record::{Action, Record};
use crate::template::Template;
use crate::walk::{Clock, walk};
use kbtp_mlx5::Opcode;

/// What a slot takes, whatever its request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotCost {
    /// WQEs of the loopback queue pair.
    pub worker_wqes: usize,
    /// Basic blocks of these.
    pub worker_blocks: u16,
    /// WQEs of the client's queue pair.
    pub client_wqes: usize,
    /// Basic blocks of these.
    pub client_blocks: u16,
}

impl SlotCost {
    /// Of a template; the NOPs that fill a slot up are not counted.
    #[must_use]
    pub fn of(template: &Template) -> Self {
        let blocks = |queue| {
            template
                .queue(queue)
                .iter()
                .map(Element::basic_blocks)
                .sum()
        };
        Self {
            worker_wqes: template.worker.len(),
            worker_blocks: blocks(Queue::Worker),
            client_wqes: template.client.len(),
            client_blocks: blocks(Queue::Client),
        }
    }
}

/// What a request takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestCost {
    /// WQEs up to the one that lets the client's queue send the data or ask for it, that one included.
    pub wqes_to_go: usize,
    /// Round trips within the device, one after the other, before the completion is sent.
    pub loopbacks: u32,
    /// Round trips to the client before the completion is sent.
    pub client_round_trips: u32,
    /// Round trips within the device until the next request of the session is looked at.
    pub slot_loopbacks: u32,
    /// WQEs that are not NOPs.
    pub working_wqes: usize,
}

/// Time in round trips: within the device, and to the client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Time {
    client: u32,
    loopback: u32,
}

impl core::ops::Add for Time {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            client: self.client.saturating_add(more.client),
            loopback: self.loopback.saturating_add(more.loopback),
        }
    }
}

/// Every operation that has a reply takes a round trip, everything else none.
struct RoundTrips;

impl Clock for RoundTrips {
    type Time = Time;

    fn turn(&self, _first: bool) -> Time {
        Time::default()
    }

    fn run(&self, queue: Queue, opcode: Opcode) -> Time {
        let within = has_reply(opcode) || opcode == Opcode::RdmaWrite;
        Time {
            client: u32::from(queue == Queue::Client && has_reply(opcode)),
            loopback: u32::from(queue == Queue::Worker && within),
        }
    }

    fn apart(&self, _opcode: Opcode) -> Time {
        Time::default()
    }

    fn arrival(&self) -> Time {
        Time::default()
    }
}

/// The WQE that sends the completion.
pub(crate) fn answering(template: &Template, record: &Record) -> Option<Name> {
    let sends =
        |one: &&Element| matches!(record.opcode(one), Opcode::Send | Opcode::SendInvalidate);
    template.client.iter().find(sends).map(|one| one.name)
}

/// The WQE that lets the loopback queue go on to the next slot.
pub(crate) fn ending(template: &Template) -> Option<Name> {
    let ends = |element: &&Element| {
        matches!(
            element.shape,
            Shape::Enable(Queue::Worker, Bound::NextSlot(_))
        )
    };
    template.worker.iter().find(ends).map(|one| one.name)
}

impl RequestCost {
    /// Of a request that is served without software. Every operation that has a reply takes a round trip, everything else
    /// none; a queue starts its WQEs in order, each when its fence or WAIT is over.
    ///
    /// `None` if the chain does not come to its end.
    #[must_use]
    pub fn of(template: &Template, action: Action) -> Option<Self> {
        let record = Record::of(template, Some(action));
        let [worker, client] = walk(template, &record, &RoundTrips)?;
        let answered = client.start(answering(template, &record)?)?;
        let ended = worker.start(ending(template)?)?;
        let go = worker.ran.iter().position(|(name, ..)| *name == "GO")?;
        let working = |(_, one): &(Queue, &Element)| record.opcode(one) != Opcode::Nop;
        Some(Self {
            wqes_to_go: go + 1,
            loopbacks: answered.loopback,
            client_round_trips: answered.client,
            slot_loopbacks: ended.loopback,
            working_wqes: template.elements().filter(working).count(),
        })
    }
}
