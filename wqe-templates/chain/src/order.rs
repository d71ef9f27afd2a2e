//! What in a slot happens before what, whatever the device's timing: the reason why patches arrive in time.
//!
//! Each WQE has two points: it starts, and it is complete. A queue starts its WQEs in order and completes them in order.
//! What follows a WAIT for a CQE starts after the WQE that writes it is complete. What a `SEND_EN` enables starts after that, and a managed queue reads a WQE no earlier. A fence starts after the replies before it. The request's
//! octets are there before the WAIT for its CQE is over.

use crate::element::{Bound, Cq, Element, Name, Queue, Shape};
use crate::template::{Source, Template};

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// The request's octets are in place.
    Request,
    /// A WQE starts.
    Start(Name),
    /// A WQE is complete.
    Done(Name),
}

impl Point {
    /// When what a source writes is in place.
    #[must_use]
    pub const fn of(source: Source) -> Self {
        match source {
            Source::Request => Self::Request,
            Source::Element(name) => Self::Done(name),
        }
    }
}

/// The order of a slot's points.
#[derive(Debug)]
pub struct Order {
    names: Vec<Name>,
    /// For each point, those that come after it at once.
    after: Vec<Vec<usize>>,
    /// For each WQE, the `SEND_EN` that lets it run.
    enabled_by: Vec<Option<Name>>,
}

impl Order {
    /// Of a template.
    #[must_use]
    pub fn of(template: &Template) -> Self {
        let names: Vec<Name> = template.elements().map(|(_, one)| one.name).collect();
        let mut order = Self {
            after: vec![Vec::new(); 1 + 2 * names.len()],
            enabled_by: vec![None; names.len()],
            names,
        };
        for queue in [Queue::Worker, Queue::Client] {
            order.queue(template, queue);
        }
        order.enables(template);
        order
    }

    fn index(&self, point: Point) -> Option<usize> {
        let place = |name| self.names.iter().position(|one| *one == name);
        match point {
            Point::Request => Some(0),
            Point::Start(name) => Some(1 + 2 * place(name)?),
            Point::Done(name) => Some(2 + 2 * place(name)?),
        }
    }

    fn add(&mut self, earlier: Point, later: Point) {
        if let (Some(from), Some(to)) = (self.index(earlier), self.index(later))
            && let Some(after) = self.after.get_mut(from)
        {
            after.push(to);
        }
    }

    fn queue(&mut self, template: &Template, queue: Queue) {
        let elements = template.queue(queue);
        for (at, element) in elements.iter().enumerate() {
            self.add(Point::Start(element.name), Point::Done(element.name));
            if let Some(next) = elements.get(at + 1) {
                self.add(Point::Start(element.name), Point::Start(next.name));
                self.add(Point::Done(element.name), Point::Done(next.name));
                // A WAIT is over when its CQE is there; it does not wait for WQEs of its own queue to complete.
                if let Some(awaited) = awaited(template, element) {
                    self.add(awaited, Point::Start(next.name));
                }
            }
            if element.fenced {
                let before = elements.iter().take(at).filter(|one| one.has_reply());
                for earlier in before {
                    self.add(Point::Done(earlier.name), Point::Start(element.name));
                }
            }
        }
    }

    fn enables(&mut self, template: &Template) {
        for queue in [Queue::Worker, Queue::Client] {
            let mut next = if queue == Queue::Worker {
                usize::from(template.head)
            } else {
                0
            };
            for (by, of, bound) in template.enables().filter(|(_, of, _)| *of == queue) {
                let reach = reach(template.queue(of), bound).unwrap_or(next);
                for element in template.queue(of).iter().take(reach).skip(next) {
                    self.add(Point::Start(by), Point::Start(element.name));
                    let place = self.names.iter().position(|one| *one == element.name);
                    if let Some(slot) = place.and_then(|place| self.enabled_by.get_mut(place)) {
                        *slot = Some(by);
                    }
                }
                next = next.max(reach);
            }
        }
    }

    /// The `SEND_EN` that lets a WQE run: the device reads the WQE no earlier than that one starts.
    #[must_use]
    pub fn enabled_by(&self, name: Name) -> Option<Name> {
        let place = self.names.iter().position(|one| *one == name)?;
        self.enabled_by.get(place).copied().flatten()
    }

    /// Whether `earlier` is always before `later`.
    #[must_use]
    pub fn is_before(&self, earlier: Point, later: Point) -> bool {
        let (Some(from), Some(to)) = (self.index(earlier), self.index(later)) else {
            return false;
        };
        let mut seen = vec![false; self.after.len()];
        let mut open = vec![from];
        while let Some(point) = open.pop() {
            for next in self.after.get(point).into_iter().flatten() {
                if *next == to {
                    return true;
                }
                if let Some(seen) = seen.get_mut(*next).filter(|seen| !**seen) {
                    *seen = true;
                    open.push(*next);
                }
            }
        }
        false
    }

    /// A WQE that would have to start before itself.
    #[must_use]
    pub fn cycle(&self) -> Option<Name> {
        let mut names = self.names.iter().copied();
        names.find(|name| self.is_before(Point::Start(name), Point::Start(name)))
    }
}

/// When the CQE that a WQE waits for is there; `None` if it is no WAIT, or waits for what does not come.
#[must_use]
pub(crate) fn awaited(template: &Template, element: &Element) -> Option<Point> {
    let Shape::Wait(cq, number) = element.shape else {
        return None;
    };
    let queue = match cq {
        Cq::Receive => return Some(Point::Request),
        Cq::Client => Queue::Client,
        Cq::Worker => Queue::Worker,
    };
    let writer = template.signalled(queue).nth(usize::from(number))?;
    Some(Point::Done(writer))
}

/// How many WQEs of a queue lie below a bound.
fn reach(queue: &[Element], bound: Bound) -> Option<usize> {
    match bound {
        Bound::NextSlot(_) => Some(queue.len()),
        Bound::Through(name) => Some(queue.iter().position(|one| one.name == name)? + 1),
    }
}
