//! Rule 14 of slots that arm themselves: what the next slot's READs make of a slot that has run, whatever ran in it, is octet for
//! octet what software would arm for the next lap.

use super::{Finding, Findings, Rule};
use crate::build::{BuildError, Builder, Step};
use crate::element::{Cq, Element, Kind, Queue, Shape};
use crate::key::Key;
use crate::lap;
use crate::memory::{Memory, Spot, scratch};
use crate::placement::Placement;
use crate::template::Template;
use kbtp_mlx5::{Body, Opcode, Wqe};
use kbtp_wire::ByteLen;
use std::collections::BTreeMap;

/// What a slot's octets are once somebody wrote there.
const SPOILT: u8 = 0xa5;

/// Checks the READs by which slot `n + 1` arms slot `n` for its next lap.
///
/// # Errors
/// [`BuildError`] if the template makes no sense.
pub fn check_rearmed(
    template: &Template,
    placement: &Placement,
    block_size: ByteLen,
    n: u64,
) -> Result<Vec<Finding>, BuildError> {
    let rule = Rule::R14ArmedFirst;
    let mut findings = Findings::default();
    let known = lap::is_perpetual(template) && placement.slots(template) == lap::SLOTS;
    findings.unless(known, rule, "slot", "does not arm itself");
    in_order(template, &mut findings);
    for queue in [Queue::Worker, Queue::Client] {
        let blocks: u16 = template
            .queue(queue)
            .iter()
            .map(Element::basic_blocks)
            .sum();
        let full = blocks == template.stride(queue);
        findings.unless(full, rule, "NOP", "between two slots is not armed again");
    }
    let builder = Builder::new(template, placement, block_size)?;
    let mut memory = octets(&builder.arm(n)?);
    let wanted = octets(&builder.arm(n.wrapping_add(lap::SLOTS))?);
    for patch in template.patches() {
        let at = builder.address(n, patch.target, "slot")?;
        for octet in at..at.wrapping_add(u64::from(patch.target.len)) {
            memory.insert(octet, SPOILT);
        }
    }
    let status = Spot::new(Memory::Scratch, scratch::STATUS, 2);
    let status = builder.address(n, status, "slot")?;
    memory.extend([status, status.wrapping_add(1)].map(|octet| (octet, SPOILT)));
    let punt = placement.key(Key::Punt);
    let reset = lap::reset(template, block_size, punt)?;
    for element in &template.worker {
        if arms(element) {
            let wqe = builder.wqe(n.wrapping_add(1), Queue::Worker, element)?;
            scatter(placement, element, wqe.as_octets(), &reset, &mut memory);
        }
    }
    for (queue, element) in template.elements() {
        let spot = Spot::new(Memory::Wqe(element.name), 0, 1);
        let at = builder.address(n, spot, element.name)?;
        let len = u64::from(element.basic_blocks()) * kbtp_mlx5::limits::BASIC_BLOCK as u64;
        let found = |octet: &u64| memory.get(octet) != wanted.get(octet);
        if let Some(octet) = (at..at.wrapping_add(len)).find(found) {
            let what = format!("octet {} of queue {queue} is not armed again", octet - at);
            findings.add(rule, element.name, what);
        }
    }
    let answered = memory.get(&status) == wanted.get(&status);
    findings.unless(
        answered,
        rule,
        "C2",
        "would answer what software answered before",
    );
    Ok(findings.0)
}

/// Whether it writes octets of the slot before.
fn arms(element: &Element) -> bool {
    let pieces = element.pieces().iter();
    element.opcode == Opcode::RdmaRead
        && pieces
            .clone()
            .any(|piece| matches!(piece.spot.memory, Memory::Before(_)))
}

/// The slot before is complete when it is written, and armed before its receive WQE is posted.
fn in_order(template: &Template, findings: &mut Findings) {
    let rule = Rule::R14ArmedFirst;
    let worker = &template.worker;
    let last = u8::try_from(template.cqes(Cq::Client).saturating_sub(1)).ok();
    let waits = |one: &Element| match one.shape {
        Shape::WaitBefore(Cq::Client, number) => Some(number) == last,
        _ => false,
    };
    let waited = worker.iter().position(waits).unwrap_or(usize::MAX);
    let posts = |one: &Element| {
        let mut accesses = one.accesses(one.opcode, false).into_iter();
        accesses.any(|access| access.spot.memory == Memory::Doorbell && access.kind == Kind::Write)
    };
    let posted = worker.iter().position(posts);
    for (at, element) in worker.iter().enumerate() {
        if arms(element) {
            let what = "arms a slot whose completion may not have gone out";
            findings.unless(waited < at, rule, element.name, what);
            let what = "arms a slot whose receive WQE may be posted";
            findings.unless(
                posted.is_some_and(|posted| at < posted),
                rule,
                element.name,
                what,
            );
        }
    }
    let fenced = posted
        .and_then(|at| worker.get(at))
        .is_some_and(|one| one.fenced);
    findings.unless(fenced, rule, "DB", "does not wait until the slot is armed");
}

fn octets(steps: &[Step]) -> BTreeMap<u64, u8> {
    let mut all = BTreeMap::new();
    for step in steps {
        if let Step::Write { address, octets } = step {
            all.extend((*address..).zip(octets.iter().copied()));
        }
    }
    all
}

/// What a READ does, from its octets.
fn scatter(
    placement: &Placement,
    element: &Element,
    wqe: &[u8],
    reset: &[u8],
    memory: &mut BTreeMap<u64, u8>,
) {
    let Ok(Wqe {
        body: Body::Read(remote, list),
        ..
    }) = Wqe::decode(wqe)
    else {
        return;
    };
    let [.., high, low, _] = remote.address.to_be_bytes();
    let row = match element.remote().map(|remote| remote.key) {
        Some(Key::Laps) => lap::lap(u16::from_be_bytes([high, low])).to_vec(),
        Some(Key::Pages) => lap::page(high, low).to_vec(),
        Some(Key::Reset) => reset.to_vec(),
        _ => Vec::new(),
    };
    debug_assert_eq!(
        remote.rkey,
        placement.key(element.remote().map_or(Key::Punt, |r| r.key))
    );
    let [.., from] = remote.address.to_be_bytes();
    let mut octets = row.into_iter().skip(usize::from(from));
    for piece in list.iter() {
        for at in piece.address..piece.address.wrapping_add(u64::from(piece.len.get())) {
            // A row that is too short leaves what is spoilt.
            if let Some(octet) = octets.next() {
                memory.insert(at, octet);
            }
        }
    }
}
