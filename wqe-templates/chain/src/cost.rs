//! What a chain costs: WQEs, basic blocks, and how many replies of the responder it waits for one after the other.

use crate::element::{Bound, Cq, Element, Name, Queue, Shape, has_reply};
use crate::record::{Action, Record};
use crate::template::Template;
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

impl Time {
    fn plus(self, more: Self) -> Self {
        Self {
            client: self.client.saturating_add(more.client),
            loopback: self.loopback.saturating_add(more.loopback),
        }
    }
}

/// How far one queue has got.
#[derive(Clone, Debug, Default)]
struct Lane {
    /// When the next WQE may start.
    ready: Time,
    /// When the last WQE that has a reply has it.
    replies: Time,
    /// When the last WQE is complete: they complete in order.
    done: Time,
    /// When each WQE that ran started and was complete, in order.
    ran: Vec<(Name, Time, Time)>,
    /// How many WQEs may run, from when on; each reaches further than those before it.
    grants: Vec<(usize, Time)>,
}

impl RequestCost {
    /// Of a request that is served without software. Every operation that has a reply takes a round trip, everything else
    /// none; a queue starts its WQEs in order, each when its fence or WAIT is over.
    ///
    /// `None` if the chain does not come to its end.
    #[must_use]
    pub fn of(template: &Template, action: Action) -> Option<Self> {
        let record = Record::of(template, Some(action));
        let mut lanes = [Lane::default(), Lane::default()];
        let head = (usize::from(template.head), Time::default());
        lanes.first_mut()?.grants.push(head);
        loop {
            let worker = run(template, &record, Queue::Worker, &mut lanes)?;
            let client = run(template, &record, Queue::Client, &mut lanes)?;
            if !worker && !client {
                break;
            }
        }
        let [worker, client] = lanes;
        let finished =
            worker.ran.len() == template.worker.len() && client.ran.len() == template.client.len();
        if !finished {
            return None;
        }
        let answer = |(name, ..): &&(Name, Time, Time)| {
            let sends = |one: Opcode| matches!(one, Opcode::Send | Opcode::SendInvalidate);
            template
                .find(name)
                .is_some_and(|(_, one)| sends(record.opcode(one)))
        };
        let (_, answered, _) = client.ran.iter().find(answer)?;
        let ends = |element: &&Element| {
            matches!(
                element.shape,
                Shape::Enable(Queue::Worker, Bound::NextSlot(_))
            )
        };
        let end = template.worker.iter().find(ends)?.name;
        let (_, ended, _) = worker.ran.iter().find(|(name, ..)| *name == end)?;
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

const fn lane(queue: Queue) -> usize {
    match queue {
        Queue::Worker => 0,
        Queue::Client => 1,
    }
}

/// Runs a queue as far as it gets; whether it got anywhere. `None` if a name leads nowhere.
fn run(template: &Template, record: &Record, queue: Queue, lanes: &mut [Lane; 2]) -> Option<bool> {
    let mut moved = false;
    loop {
        let own = lanes.get(lane(queue))?;
        let next = own.ran.len();
        let granted = own.grants.iter().find(|(reach, _)| next < *reach);
        let (Some(element), Some((_, granted))) = (template.queue(queue).get(next), granted) else {
            return Some(moved);
        };
        let opcode = record.opcode(element);
        let mut start = own.ready.max(*granted);
        if let Shape::Wait(cq, number) = element.shape {
            let Some(seen) = cqe_time(template, lanes, cq, number) else {
                return Some(moved);
            };
            start = start.max(seen);
        }
        let own = lanes.get_mut(lane(queue))?;
        if element.fenced {
            start = start.max(own.replies);
        }
        let within = has_reply(opcode) || opcode == Opcode::RdmaWrite;
        let done = own.done.max(start.plus(Time {
            client: u32::from(queue == Queue::Client && has_reply(opcode)),
            loopback: u32::from(queue == Queue::Worker && within),
        }));
        (own.done, own.ready) = (done, start);
        if has_reply(opcode) {
            own.replies = done;
        }
        own.ran.push((element.name, start, done));
        moved = true;
        if let (Shape::Enable(of, bound), Opcode::SendEnable) = (&element.shape, opcode) {
            let reach = reach(template, *of, *bound)?;
            let grants = &mut lanes.get_mut(lane(*of))?.grants;
            if grants.last().is_none_or(|(last, _)| *last < reach) {
                grants.push((reach, start));
            }
        }
    }
}

/// How many WQEs of the slot lie below a bound.
fn reach(template: &Template, queue: Queue, bound: Bound) -> Option<usize> {
    match bound {
        Bound::NextSlot(_) => Some(template.queue(queue).len()),
        Bound::Through(name) => {
            let of = template.queue(queue);
            Some(of.iter().position(|one| one.name == name)? + 1)
        }
    }
}

fn cqe_time(template: &Template, lanes: &[Lane; 2], cq: Cq, number: u8) -> Option<Time> {
    let queue = match cq {
        Cq::Receive => return Some(Time::default()),
        Cq::Client => Queue::Client,
        Cq::Worker => Queue::Worker,
    };
    let name = template.signalled(queue).nth(usize::from(number))?;
    let ran = &lanes.get(lane(queue))?.ran;
    ran.iter()
        .find(|(one, ..)| *one == name)
        .map(|(.., done)| *done)
}
