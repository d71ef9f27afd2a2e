//! Rules 1 to 4 and 10: who writes octets of WQEs, when, and what.

use super::{Findings, Rule};
use crate::element::{Address, Element, Name, Queue, Shape};
use crate::key::{DUMMY_AT, Key, Sizes};
use crate::memory::{Memory, Spot, scratch};
use crate::order::{Order, Point};
use crate::template::{Patch, Source, Template};
use kbtp_mlx5::{Field, Opcode};

pub(super) fn check(template: &Template, sizes: &Sizes, order: &Order, findings: &mut Findings) {
    let patches = template.patches();
    for patch in &patches {
        let Memory::Wqe(name) = patch.target.memory else {
            continue;
        };
        let Some((queue, element)) = template.find(name) else {
            findings.add(Rule::R1PatchInTime, name, "is patched, and does not exist");
            continue;
        };
        in_time(order, patch, name, findings);
        fixed(patch, name, findings);
        inert(patch, queue, element, &patches, sizes, findings);
    }
    confined(template, findings);
    alone(template, order, &patches, findings);
}

fn overlaps(spot: Spot, field: Field) -> bool {
    let end = u64::from(field.end());
    u64::from(spot.at) < end && u64::from(field.at) < spot.end()
}

fn in_time(order: &Order, patch: &Patch, name: Name, findings: &mut Findings) {
    let holds = order
        .enabled_by(name)
        .is_some_and(|by| order.is_before(Point::of(patch.source), Point::Start(by)));
    let what = format!("{} of {:?} may come too late", patch.target, patch.source);
    findings.unless(holds, Rule::R1PatchInTime, name, what);
}

fn fixed(patch: &Patch, name: Name, findings: &mut Findings) {
    for (field, what) in [
        (Field::INDEX, "index"),
        (Field::QPN, "queue pair"),
        (Field::LENGTH, "length"),
    ] {
        let holds = !overlaps(patch.target, field);
        findings.unless(
            holds,
            Rule::R4IdentityFixed,
            name,
            format!("{what} is patched"),
        );
    }
    let holds = !overlaps(patch.target, Field::MODES);
    findings.unless(
        holds,
        Rule::R5CqesCounted,
        name,
        "fence and completion are patched",
    );
}

/// Rule 2: what the WQE does if the patch did not come.
fn inert(
    patch: &Patch,
    queue: Queue,
    element: &Element,
    patches: &[Patch],
    sizes: &Sizes,
    findings: &mut Findings,
) {
    let rule = Rule::R2InertUnpatched;
    // A NOP does nothing whatever else it holds; whoever writes its opcode has waited for the rest (rule 1).
    if element.opcode == Opcode::Nop {
        return;
    }
    let name = element.name;
    let harmless = match &element.shape {
        _ if overlaps(patch.target, Field::OPCODE) => false,
        Shape::Rdma(remote, _) if overlaps(patch.target, Field::REMOTE_KEY) => {
            remote.key == Key::Punt
        }
        Shape::Rdma(..) if overlaps(patch.target, Field::REMOTE_ADDRESS) => {
            traps(element, sizes) || is_total(element, patches, sizes)
        }
        Shape::FetchAdd { remote, .. } => {
            overlaps(patch.target, Field::REMOTE_ADDRESS)
                && remote.address == Address::Armed(DUMMY_AT)
        }
        Shape::CompareSwap { compare_mask, .. } => {
            // Operands lie reversed in the WQE.
            let mut mask = *compare_mask;
            mask.reverse();
            let at = |octet: u16| usize::from(octet.saturating_sub(Field::COMPARE_MASK.at));
            let first = at(patch.target.at);
            let compares = mask.iter().skip(first).take(2).all(|octet| *octet == 0xff);
            overlaps(patch.target, Field::COMPARE)
                || (overlaps(patch.target, Field::COMPARE_MASK) && compares)
        }
        // A WAIT has no effect of its own.
        Shape::WaitData { .. } => !overlaps(patch.target, Field::OPCODE),
        _ => false,
    };
    let what = format!("{} of queue {queue} does harm unpatched", patch.target);
    findings.unless(harmless, rule, name, what);
}

/// Whether the WQE's address as armed is outside its key.
fn traps(element: &Element, sizes: &Sizes) -> bool {
    let Some(remote) = element.remote() else {
        return false;
    };
    let Address::Armed(address) = remote.address else {
        return false;
    };
    remote
        .key
        .range(sizes)
        .is_some_and(|range| !inside(range, address, remote.spot.len))
}

fn inside((start, len): (u64, u64), address: u64, octets: u32) -> bool {
    let end = address.checked_add(u64::from(octets));
    address >= start && end.is_some_and(|end| end <= start.saturating_add(len))
}

/// Whether every value of the octets that are patched is inside the key, and what is found there is no opcode: a table with
/// a row for each value.
fn is_total(element: &Element, patches: &[Patch], sizes: &Sizes) -> bool {
    let Some(remote) = element.remote() else {
        return false;
    };
    let (Address::Armed(armed), Some(range)) = (remote.address, remote.key.range(sizes)) else {
        return false;
    };
    let mut varies = [false; 8];
    for patch in patches
        .iter()
        .filter(|one| one.target.memory == Memory::Wqe(element.name))
    {
        for (octet, varies) in (Field::REMOTE_ADDRESS.at..).zip(&mut varies) {
            *varies |= overlaps(patch.target, Field::new(octet, 1));
        }
    }
    let with = |value: u8| {
        let mut octets = armed.to_be_bytes();
        for (octet, varies) in octets.iter_mut().zip(varies) {
            if varies {
                *octet = value;
            }
        }
        u64::from_be_bytes(octets)
    };
    let low = inside(range, with(0), remote.spot.len);
    // The selector of a Generation's half has two values, not 256: its records are checked by rule 11.
    let high = inside(range, with(0xff), remote.spot.len) || remote.key == Key::NextGeneration;
    let data_only = element
        .pieces()
        .iter()
        .all(|piece| match piece.spot.memory {
            Memory::Scratch => true,
            Memory::Wqe(_) => {
                overlaps(piece.spot, Field::COMPARE) || overlaps(piece.spot, Field::COMPARE_MASK)
            }
            _ => false,
        });
    low && high && data_only
}

/// Rule 3: where a request's octets get to, copies included.
fn confined(template: &Template, findings: &mut Findings) {
    let mut reached: Vec<Spot> = template.receive.iter().map(|piece| piece.spot).collect();
    let mut next = 0;
    while let Some(spot) = reached.get(next).copied() {
        next += 1;
        for copied in copies(template, spot) {
            if !reached.contains(&copied) {
                reached.push(copied);
            }
        }
    }
    for spot in reached {
        let holds = match spot.memory {
            _ if spot.is_discarded() => true,
            Memory::Wqe(name) => template
                .find(name)
                .is_some_and(|(queue, element)| may_hold(template, queue, element, spot)),
            Memory::Scratch => {
                let within = |at: u16, len: u64| {
                    spot.at >= at && spot.end() <= u64::from(at).saturating_add(len)
                };
                // The reply is the predicate word: Length, the entry's Generation and Flags, variant, Length's top.
                within(scratch::HEAD + 4, 8)
                    || within(scratch::REPLY, 3)
                    || within(scratch::REPLY + 7, 1)
            }
            _ => false,
        };
        let wqe = match spot.memory {
            Memory::Wqe(name) => name,
            _ => "scratch",
        };
        findings.unless(
            holds,
            Rule::R3ClientConfined,
            wqe,
            format!("octets of the request reach {spot}"),
        );
    }
}

/// Where copies of octets of `spot` are put. A look-up puts what the table says, not what it was asked.
fn copies(template: &Template, spot: Spot) -> Vec<Spot> {
    let mut copies = Vec::new();
    for (_, element) in template.elements() {
        let Some(remote) = element.remote() else {
            continue;
        };
        if remote.address != Address::OfSpot || !element.has_reply() {
            continue;
        }
        let mut from = u64::from(remote.spot.at);
        for piece in element.pieces() {
            let end = from.saturating_add(u64::from(piece.spot.len));
            let first = from.max(u64::from(spot.at));
            let last = end.min(spot.end());
            if remote.spot.memory == spot.memory && first < last {
                let at = u64::from(piece.spot.at) + (first - from);
                copies.push(Spot::new(
                    piece.spot.memory,
                    u16::try_from(at).unwrap_or(u16::MAX),
                    u32::try_from(last - first).unwrap_or(u32::MAX),
                ));
            }
            from = end;
        }
    }
    copies
}

fn may_hold(template: &Template, queue: Queue, element: &Element, spot: Spot) -> bool {
    let within = |field: Field| spot.at >= field.at && spot.end() <= u64::from(field.end());
    match queue {
        Queue::Client => {
            within(Field::IMMEDIATE)
                || (matches!(element.shape, Shape::Rdma(remote, _) if remote.key == Key::Client)
                    && (within(Field::REMOTE_ADDRESS) || within(Field::REMOTE_KEY)))
        }
        Queue::Worker => {
            let Shape::Rdma(remote, _) = &element.shape else {
                return false;
            };
            // The last octet of an address is within a row of 256 octets: only where a row is one octet may it vary.
            let last = spot.end() == u64::from(Field::REMOTE_ADDRESS.end());
            let stays = match cleared(template, element, spot) {
                Some(cleared) => cleared,
                None => !last || remote.spot.len == 1,
            };
            remote.key.is_bounded() && within(Field::REMOTE_ADDRESS) && stays
        }
    }
}

/// Whether every compare and swap on a WQE's address clears these octets of it; `None` if there is none. Of the swaps of a
/// predicate the last one finds what none before it took, so that one of them always swaps.
fn cleared(template: &Template, element: &Element, spot: Spot) -> Option<bool> {
    let word = Spot::field(element.name, Field::REMOTE_ADDRESS);
    let mut all = None;
    for one in &template.worker {
        let Shape::CompareSwap {
            remote,
            swap,
            swap_mask,
            ..
        } = &one.shape
        else {
            continue;
        };
        if remote.spot != word {
            continue;
        }
        let octets = (word.at..).zip(swap.iter().zip(swap_mask));
        let mut inside = octets.filter(|(at, _)| {
            spot.overlaps(Spot {
                at: *at,
                len: 1,
                ..word
            })
        });
        let clears = inside.all(|(_, (swap, mask))| *swap == 0 && *mask == 0xff);
        all = Some(all.unwrap_or(true) && clears);
    }
    all
}

/// Rule 10: a compare and swap writes its whole word back, and what came to any octet of it meanwhile is lost.
fn alone(template: &Template, order: &Order, patches: &[Patch], findings: &mut Findings) {
    let swaps: Vec<(&Element, Spot)> = template
        .worker
        .iter()
        .filter_map(|one| match &one.shape {
            Shape::CompareSwap { remote, .. } => Some((one, remote.spot)),
            _ => None,
        })
        .collect();
    let (Some((first, word)), Some((last, _))) = (swaps.first(), swaps.last()) else {
        return;
    };
    for patch in patches
        .iter()
        .filter(|one| one.target.overlaps(word.words()))
    {
        let swap = swaps
            .iter()
            .any(|(one, _)| Source::Element(one.name) == patch.source);
        let before = order.is_before(Point::of(patch.source), Point::Start(first.name));
        let after = match patch.source {
            Source::Request => false,
            Source::Element(name) => order.is_before(Point::Done(last.name), Point::Start(name)),
        };
        let what = format!("{:?} writes {} among the swaps", patch.source, patch.target);
        findings.unless(
            swap || before || after,
            Rule::R10WordAlone,
            first.name,
            what,
        );
    }
}
