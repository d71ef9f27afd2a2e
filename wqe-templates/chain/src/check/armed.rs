//! Rule 14, and of the others what only octets show: what arms a slot, as the device will find it.

use super::{Finding, Findings, Rule};
use crate::build::Step;
use crate::element::{Element, Queue, Shape};
use crate::placement::Placement;
use crate::template::Template;
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{Body, Opcode, Wqe};

/// Checks the steps that arm slot `n`: everything is written before the receive WQE is posted, each WQE says where it is,
/// none lies across the end of its ring, and WAITs count from the slot's first CQE.
#[must_use]
pub fn check_armed(
    template: &Template,
    placement: &Placement,
    n: u64,
    steps: &[Step],
) -> Vec<Finding> {
    let mut findings = Findings::default();
    in_order(steps, &mut findings);
    apart(steps, &mut findings);
    for (queue, element) in template.elements() {
        wqe(template, placement, n, steps, queue, element, &mut findings);
    }
    for queue in [Queue::Worker, Queue::Client] {
        filler(template, placement, n, steps, queue, &mut findings);
    }
    findings.0
}

fn in_order(steps: &[Step], findings: &mut Findings) {
    let rule = Rule::R14ArmedFirst;
    let position = |wanted: fn(&Step) -> bool| steps.iter().position(wanted);
    let posted = position(|step| matches!(step, Step::PostReceive(_)));
    let last_write = steps
        .iter()
        .rposition(|step| matches!(step, Step::Write { .. }));
    let Some(posted) = posted else {
        findings.add(rule, "request", "no receive WQE is posted");
        return;
    };
    let once = steps
        .iter()
        .filter(|step| matches!(step, Step::PostReceive(_)))
        .count()
        == 1;
    findings.unless(once, rule, "request", "more than one receive WQE is posted");
    let written = last_write.is_none_or(|last| last < posted);
    findings.unless(
        written,
        rule,
        "request",
        "can come before its slot is written",
    );
    let between = steps.get(last_write.unwrap_or(0)..posted).unwrap_or(&[]);
    let barrier = between.contains(&Step::Barrier);
    findings.unless(
        barrier,
        rule,
        "request",
        "no barrier between the slot and its receive",
    );
}

/// No step writes over what another wrote from elsewhere on: what lies at an address is what was last written there.
fn apart(steps: &[Step], findings: &mut Findings) {
    let rule = Rule::R14ArmedFirst;
    let mut spans = Vec::with_capacity(steps.len());
    for step in steps {
        let Step::Write { address, octets } = step else {
            continue;
        };
        match address.checked_add(octets.len() as u64) {
            Some(end) if end > *address => spans.push((*address, end)),
            Some(_) => {}
            None => findings.add(rule, "request", "octets are written behind all addresses"),
        }
    }
    spans.sort_unstable();
    // How far those reach that start where the last one does, and those that start before.
    let (mut start, mut here, mut before) = (0, 0, 0);
    for (from, to) in spans {
        if from != start {
            before = here.max(before);
            (start, here) = (from, 0);
        }
        if from < before {
            let rule = Rule::R14ArmedFirst;
            findings.add(
                rule,
                "request",
                "octets are written over those of another step",
            );
            return;
        }
        here = here.max(to);
    }
}

/// The last octets that are written at an address.
fn written_at(steps: &[Step], wanted: u64) -> Option<&Vec<u8>> {
    steps.iter().rev().find_map(|step| match step {
        Step::Write { address, octets } if *address == wanted => Some(octets),
        _ => None,
    })
}

/// Between the last WQE of a slot and the first of the next there is nothing but NOPs that say where they are.
fn filler(
    template: &Template,
    placement: &Placement,
    n: u64,
    steps: &[Step],
    queue: Queue,
    findings: &mut Findings,
) {
    let used: u64 = template
        .queue(queue)
        .iter()
        .map(|element| u64::from(element.basic_blocks()))
        .sum();
    let from = placement.block(template, queue, n).wrapping_add(used);
    let to = placement.block(template, queue, n.wrapping_add(1));
    for block in from..to {
        let octets = written_at(steps, placement.address(queue, block));
        let Some(Ok(wqe)) = octets.map(|octets| Wqe::decode(octets)) else {
            findings.add(Rule::R14ArmedFirst, "NOP", "between two slots is no WQE");
            continue;
        };
        let control = wqe.control;
        let at_home = control.index == Placement::index(block)
            && control.qpn == placement.queue(queue).qpn
            && usize::from(control.segments) == 1;
        findings.unless(
            at_home,
            Rule::R4IdentityFixed,
            "NOP",
            "says it is elsewhere",
        );
        let inert = control.opcode == Opcode::Nop && !control.signal.on_success();
        findings.unless(
            inert,
            Rule::R5CqesCounted,
            "NOP",
            "between two slots does something",
        );
    }
}

fn wqe(
    template: &Template,
    placement: &Placement,
    n: u64,
    steps: &[Step],
    queue: Queue,
    element: &Element,
    findings: &mut Findings,
) {
    let name = element.name;
    let offset = u64::from(template.offset(name).unwrap_or_default());
    let block = placement.block(template, queue, n).wrapping_add(offset);
    let address = placement.address(queue, block);
    let found = written_at(steps, address);
    let Some(octets) = found else {
        findings.add(Rule::R14ArmedFirst, name, "is not written");
        return;
    };
    let Ok(wqe) = Wqe::decode(octets) else {
        findings.add(Rule::R14ArmedFirst, name, "is no WQE");
        return;
    };
    let at_home = wqe.control.index == Placement::index(block)
        && wqe.control.qpn == placement.queue(queue).qpn
        && usize::from(wqe.control.segments) == element.segments();
    findings.unless(at_home, Rule::R4IdentityFixed, name, "says it is elsewhere");
    findings.unless(
        wqe.control.opcode == element.opcode,
        Rule::R14ArmedFirst,
        name,
        "is armed as something else",
    );
    let signalled = wqe.control.signal.on_success() == element.signalled;
    findings.unless(
        signalled,
        Rule::R5CqesCounted,
        name,
        "writes another number of CQEs",
    );
    if let (Shape::Wait(cq, number), Body::WaitCqe(wait)) = (&element.shape, wqe.body) {
        let expected = Placement::cqe_index(placement.cqe(template, *cq, n, *number));
        let counted = wait.index == expected && wait.cqn == placement.cq(*cq).cqn;
        findings.unless(counted, Rule::R5CqesCounted, name, "waits for another CQE");
    }
    let ring = 1_u64
        .checked_shl(u32::from(placement.queue(queue).log_size))
        .unwrap_or(1);
    let end = (block % ring).saturating_add(octets.len().div_ceil(BASIC_BLOCK) as u64);
    findings.unless(
        end <= ring,
        Rule::R8LengthsFit,
        name,
        "lies across the end of its ring",
    );
}
