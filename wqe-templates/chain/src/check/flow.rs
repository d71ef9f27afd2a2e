//! Rules 5, 6, 7 and 12: what waits for what.

use super::{Findings, Rule};
use crate::element::{Access, Bound, Cq, Element, Kind, Name, Queue, Shape};
use crate::key::Key;
use crate::memory::{Memory, Spot};
use crate::order::{Order, Point, awaited};
use crate::record::{Action, Record, Value};
use crate::template::Template;
use kbtp_mlx5::{Field, Opcode};

pub(super) fn check(template: &Template, order: &Order, findings: &mut Findings) {
    counted(template, findings);
    status_checked(template, order, findings);
    terminates(template, order, findings);
    for action in [
        None,
        Some(Action::Load { invalidate: true }),
        Some(Action::Store {
            invalidate: true,
            seal: true,
        }),
        Some(Action::AllocStore {
            invalidate: true,
            seal: true,
        }),
        Some(Action::Free),
    ] {
        ordered(template, order, &Record::of(template, action), findings);
    }
}

/// Rule 5: a WAIT is for a CQE that comes, and comes from before it.
fn counted(template: &Template, findings: &mut Findings) {
    for (at, element) in template.worker.iter().enumerate() {
        let Shape::Wait(cq, number) = element.shape else {
            continue;
        };
        let exists = usize::from(number) < template.cqes(cq);
        let before = cq != Cq::Worker
            || template
                .signalled(Queue::Worker)
                .nth(usize::from(number))
                .and_then(|name| template.worker.iter().position(|one| one.name == name))
                .is_some_and(|writer| writer < at);
        findings.unless(
            exists && before,
            Rule::R5CqesCounted,
            element.name,
            format!("waits for CQE {number} of {cq}, which is not written before it"),
        );
    }
}

/// Whether a WQE does something that stays, or lets the client's queue do so.
fn has_effect(element: &Element) -> bool {
    let writes = element.opcodes().any(|opcode| {
        let written = |access: &Access| access.kind != Kind::Read && is_shared(access.spot);
        element.accesses(opcode, false).iter().any(written)
    });
    writes || matches!(element.shape, Shape::Enable(Queue::Client, _))
}

const fn is_shared(spot: Spot) -> bool {
    matches!(
        spot.memory,
        Memory::Entry | Memory::RingSlot | Memory::Counter | Memory::Block | Memory::Buffer
    )
}

/// Rule 6: a CQE of any status ends a WAIT.
fn status_checked(template: &Template, order: &Order, findings: &mut Findings) {
    let rule = Rule::R6StatusChecked;
    let position = |name: Name| template.worker.iter().position(|one| one.name == name);
    for (at, element) in template.worker.iter().enumerate() {
        let Shape::Wait(cq @ (Cq::Receive | Cq::Client), number) = element.shape else {
            continue;
        };
        let reads_cqe = |one: &&Element| {
            one.remote().is_some_and(|remote| {
                let last = 63 >= remote.spot.at && remote.spot.end() == 64;
                remote.spot.memory == Memory::Cqe(cq, number) && last
            })
        };
        let probe = |one: &&Element| {
            one.opcode == Opcode::RdmaRead
                && one
                    .remote()
                    .is_some_and(|remote| matches!(remote.key, Key::Received | Key::Completed))
        };
        let reader = template.worker.iter().find(reads_cqe);
        let probed = reader.and_then(|reader| {
            let address = |name| Spot::field(name, Field::REMOTE_ADDRESS);
            let fed = |one: &&Element| {
                reader
                    .pieces()
                    .iter()
                    .any(|piece| piece.spot.overlaps(address(one.name)))
            };
            template.worker.iter().filter(probe).find(fed)
        });
        let (Some(reader), Some(probed)) = (reader, probed) else {
            findings.add(rule, element.name, "nothing looks at the CQE it waits for");
            continue;
        };
        let there = awaited(template, element);
        let waited = there.is_some_and(|there| order.is_before(there, Point::Start(reader.name)));
        findings.unless(
            waited,
            rule,
            reader.name,
            "reads a CQE that may not be there yet",
        );
        // A READ that is refused stops what follows it in its queue.
        let until = position(probed.name).unwrap_or(usize::MAX);
        let between = template.worker.iter().take(until).skip(at + 1);
        for early in between.filter(|one| has_effect(one)) {
            let what = format!("has an effect before {} looked at the CQE", probed.name);
            findings.add(rule, early.name, what);
        }
    }
}

/// Rule 12.
fn terminates(template: &Template, order: &Order, findings: &mut Findings) {
    let rule = Rule::R12Terminates;
    if let Some(name) = order.cycle() {
        findings.add(rule, name, "would have to start before itself");
    }
    for queue in [Queue::Worker, Queue::Client] {
        let mut reached = if queue == Queue::Worker {
            u16::from(template.head)
        } else {
            0
        };
        let mut last = None;
        for (name, of, bound) in template.enables().filter(|(_, of, _)| *of == queue) {
            let end = template.bound(of, bound).unwrap_or_default();
            findings.unless(end > reached, rule, name, "enables nothing new");
            reached = reached.max(end);
            last = Some((name, bound));
            let own = template.offset(name).unwrap_or(u16::MAX);
            let below = queue == Queue::Client || own < end;
            findings.unless(below, rule, name, "enables what lies before it");
        }
        let blocks = u8::try_from(
            template
                .worker
                .iter()
                .take(usize::from(template.head))
                .map(Element::basic_blocks)
                .sum::<u16>(),
        );
        let expected = match queue {
            Queue::Worker => blocks.map(Bound::NextSlot).ok(),
            Queue::Client => Some(Bound::NextSlot(0)),
        };
        findings.unless(
            last.map(|(_, bound)| bound) == expected,
            rule,
            last.map_or("slot", |(name, _)| name),
            format!("queue {queue} does not end where the next slot begins"),
        );
    }
    for (at, (queue, element)) in template.elements().enumerate() {
        let head = queue == Queue::Worker && at < usize::from(template.head);
        let enabled = order.enabled_by(element.name).is_some();
        findings.unless(head || enabled, rule, element.name, "nobody enables it");
    }
    let waits = |one: &&Element| matches!(one.shape, Shape::WaitData { .. });
    if let Some(second) = template.worker.iter().filter(waits).nth(1) {
        findings.add(rule, second.name, "is the second WAIT for data");
    }
}

/// What a WQE reads and writes under a record.
fn accesses(element: &Element, record: &Record) -> Vec<Access> {
    let chosen = element.choice().and_then(|place| record.value(place));
    let instead = element.pieces().iter().any(|piece| {
        let at = piece.instead.map(|spot| spot.at);
        matches!(chosen, Some(Value::InScratch(chosen)) if Some(chosen) == at)
    });
    element.accesses(record.opcode(element), instead)
}

/// Rule 7: two WQEs that use the same octets, one of them to write, never do so at the same time.
fn ordered(template: &Template, order: &Order, record: &Record, findings: &mut Findings) {
    let all: Vec<(Queue, &Element, Access)> = template
        .elements()
        .flat_map(|(queue, one)| {
            let uses = accesses(one, record);
            uses.into_iter().map(move |access| (queue, one, access))
        })
        .filter(|(_, _, access)| !access.spot.is_discarded())
        .collect();
    for (at, (queue, first, one)) in all.iter().enumerate() {
        for (other_queue, second, other) in all.iter().skip(at + 1) {
            let reads = one.kind == Kind::Read && other.kind == Kind::Read;
            if first.name == second.name || reads || !one.spot.overlaps(other.spot) {
                continue;
            }
            // The responder takes requests in order. Only a READ may fetch its octets later than its turn.
            let in_turn = queue == other_queue
                && one.at_responder
                && other.at_responder
                && one.kind != Kind::Read;
            let before = order.is_before(Point::Done(first.name), Point::Start(second.name));
            let after = order.is_before(Point::Done(second.name), Point::Start(first.name));
            findings.unless(
                in_turn || before || after,
                Rule::R7DataOrdered,
                second.name,
                format!("uses {} while {} does", other.spot, first.name),
            );
        }
    }
    // The request's octets come before everything that uses them.
    for piece in &template.receive {
        for (_, element, access) in &all {
            let touched = access.spot.overlaps(piece.spot);
            let there = order.is_before(Point::Request, Point::Start(element.name));
            findings.unless(
                !touched || there,
                Rule::R7DataOrdered,
                element.name,
                format!("uses {} before the request is there", access.spot),
            );
        }
    }
}
