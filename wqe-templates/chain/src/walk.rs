//! One slot, walked through in time: what starts and completes when, by a clock.

use crate::element::{Bound, Cq, Name, Queue, Shape};
use crate::record::Record;
use crate::template::Template;
use kbtp_mlx5::Opcode;

/// What time is, and how long things take.
pub(crate) trait Clock {
    /// A point in time or a span of it.
    type Time: Copy + Ord + Default + core::ops::Add<Output = Self::Time>;

    /// From when a WQE may run to when it does: the first of those that a `SEND_EN` let run, or one behind another.
    fn turn(&self, first: bool) -> Self::Time;

    /// From when a WQE runs to when it is complete, if nothing is in its way.
    fn run(&self, queue: Queue, opcode: Opcode) -> Self::Time;

    /// How much later than the WQE before it one completes at the earliest.
    fn apart(&self, opcode: Opcode) -> Self::Time;

    /// From the request's arrival to when its CQE is there.
    fn arrival(&self) -> Self::Time;
}

/// How far one queue has got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane<T> {
    /// When the last WQE that ran did.
    ready: T,
    /// When the last WQE that has a reply has it.
    replies: T,
    /// When the last WQE is complete: they complete in order.
    done: T,
    /// When each WQE that ran started and was complete, in order.
    pub(crate) ran: Vec<(Name, T, T)>,
    /// How many WQEs may run, from when on; each reaches further than those before it.
    grants: Vec<(usize, T)>,
}

impl<T: Copy> Lane<T> {
    /// When a WQE started.
    pub(crate) fn start(&self, name: Name) -> Option<T> {
        let mut ran = self.ran.iter();
        ran.find(|(one, ..)| *one == name).map(|(_, at, _)| *at)
    }
}

/// The queues of a slot, the loopback queue first, after a request with this record. A queue starts its WQEs in order, each
/// when its fence or WAIT is over. `None` if the chain does not come to its end.
pub(crate) fn walk<C: Clock>(
    template: &Template,
    record: &Record,
    clock: &C,
) -> Option<[Lane<C::Time>; 2]> {
    let mut lanes = [Lane::default(), Lane::default()];
    let head = (usize::from(template.head), C::Time::default());
    lanes.first_mut()?.grants.push(head);
    loop {
        let worker = run(template, record, clock, Queue::Worker, &mut lanes)?;
        let client = run(template, record, clock, Queue::Client, &mut lanes)?;
        if !worker && !client {
            break;
        }
    }
    let [worker, client] = &lanes;
    let finished =
        worker.ran.len() == template.worker.len() && client.ran.len() == template.client.len();
    finished.then_some(lanes)
}

const fn lane(queue: Queue) -> usize {
    match queue {
        Queue::Worker => 0,
        Queue::Client => 1,
    }
}

/// Runs a queue as far as it gets; whether it got anywhere. `None` if a name leads nowhere.
fn run<C: Clock>(
    template: &Template,
    record: &Record,
    clock: &C,
    queue: Queue,
    lanes: &mut [Lane<C::Time>; 2],
) -> Option<bool> {
    let mut moved = false;
    loop {
        let own = lanes.get(lane(queue))?;
        let next = own.ran.len();
        let granted = own.grants.iter().find(|(reach, _)| next < *reach);
        let (Some(element), Some((_, granted))) = (template.queue(queue).get(next), granted) else {
            return Some(moved);
        };
        let opcode = record.opcode(element);
        let first = next == 0 || *granted > own.ready;
        let mut start = own.ready.max(*granted) + clock.turn(first);
        if let Shape::Wait(cq, number) = element.shape {
            let Some(seen) = cqe_time(template, clock, lanes, cq, number) else {
                return Some(moved);
            };
            start = start.max(seen);
        }
        let own = lanes.get_mut(lane(queue))?;
        if element.fenced {
            start = start.max(own.replies);
        }
        let earliest = own.done + clock.apart(opcode);
        let done = earliest.max(start + clock.run(queue, opcode));
        (own.done, own.ready) = (done, start);
        if crate::element::has_reply(opcode) {
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

fn cqe_time<C: Clock>(
    template: &Template,
    clock: &C,
    lanes: &[Lane<C::Time>; 2],
    cq: Cq,
    number: u8,
) -> Option<C::Time> {
    let queue = match cq {
        Cq::Receive => return Some(clock.arrival()),
        Cq::Client => Queue::Client,
        Cq::Worker => Queue::Worker,
    };
    let name = template.signalled(queue).nth(usize::from(number))?;
    let ran = &lanes.get(lane(queue))?.ran;
    ran.iter()
        .find(|(one, ..)| *one == name)
        .map(|(.., done)| *done)
}
