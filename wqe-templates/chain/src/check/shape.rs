//! Rules 8, 9 and 13: lengths, alignment, keys.

use super::{Findings, Rule};
use crate::element::{Address, Element, Piece, Queue, Shape, has_reply};
use crate::key::{Domain, Key};
use crate::limits::{MAX_ELEMENTS, MAX_PIECES};
use crate::memory::{Memory, Spot, scratch};
use crate::record::Record;
use crate::template::{Source, Template};
use kbtp_mlx5::field::{RDMA_DATA_AT, SEND_DATA_AT};
use kbtp_mlx5::limits::{MAX_BASIC_BLOCKS, MAX_READ_LEN, MAX_SEGMENTS};
use kbtp_mlx5::{AccessRights, Field, Opcode};

pub(super) fn check(template: &Template, findings: &mut Findings) {
    for (queue, element) in template.elements() {
        lengths(element, findings);
        keys(queue, element, findings);
        aligned(template, element, findings);
    }
    whole(template, findings);
    counts_patched(template, findings);
}

/// Rule 8 for a WQE.
fn lengths(element: &Element, findings: &mut Findings) {
    let (rule, name) = (Rule::R8LengthsFit, element.name);
    let pieces = element.pieces();
    let sum: u64 = pieces.iter().map(|piece| u64::from(piece.spot.len)).sum();
    if let Shape::Rdma(remote, _) = &element.shape {
        let len = u64::from(remote.spot.len);
        findings.unless(
            sum == len,
            rule,
            name,
            format!("{sum} octets here, {len} there"),
        );
        let reads = element.may_be(Opcode::RdmaRead);
        findings.unless(!reads || len <= MAX_READ_LEN, rule, name, "reads too much");
    }
    let counts = pieces
        .iter()
        .all(|piece| piece.spot.len > 0 && piece.spot.len < 1 << 31);
    findings.unless(
        counts,
        rule,
        name,
        "a byte count of zero, or of inline data",
    );
    findings.unless(
        pieces.len() <= MAX_PIECES,
        rule,
        name,
        "too many data segments",
    );
    let fits = element.segments() <= MAX_SEGMENTS
        && usize::from(element.basic_blocks()) <= MAX_BASIC_BLOCKS;
    findings.unless(fits, rule, name, "too long");
}

/// Rule 8 for a slot.
fn whole(template: &Template, findings: &mut Findings) {
    let rule = Rule::R8LengthsFit;
    for queue in [Queue::Worker, Queue::Client] {
        let blocks: u16 = template
            .queue(queue)
            .iter()
            .map(Element::basic_blocks)
            .sum();
        let fits = blocks <= template.stride(queue);
        findings.unless(fits, rule, "slot", format!("queue {queue} has no room"));
    }
    let received: u64 = template
        .receive
        .iter()
        .map(|piece| u64::from(piece.spot.len))
        .sum();
    let exact = received == u64::from(template.capacity);
    findings.unless(
        exact,
        rule,
        "request",
        "the list has another capacity than is promised",
    );
    findings.unless(
        template.elements().count() <= MAX_ELEMENTS,
        rule,
        "slot",
        "too many WQEs",
    );
    for piece in &template.receive {
        let holds = piece.key.domain() == Domain::Client;
        findings.unless(
            holds,
            Rule::R13KeysConfined,
            "request",
            "a key of another domain",
        );
    }
}

/// Rule 8: a byte count that is patched comes from the Data Length of an entry, which the target itself keeps between 1 and
/// Block Size.
fn counts_patched(template: &Template, findings: &mut Findings) {
    for patch in template.patches() {
        let Memory::Wqe(name) = patch.target.memory else {
            continue;
        };
        let Some((_, element)) = template.find(name) else {
            continue;
        };
        let first = match element.shape {
            Shape::Rdma(..) => RDMA_DATA_AT,
            Shape::Send(_) => SEND_DATA_AT,
            _ => continue,
        };
        let count = |n: usize| {
            let n = u16::try_from(n).unwrap_or(u16::MAX);
            Spot::field(name, Field::byte_count(first, n))
        };
        let mut all = (0..element.pieces().len()).map(count);
        let Some(count) = all.find(|count| count.overlaps(patch.target)) else {
            continue;
        };
        let from_entry = |source| {
            let Source::Element(source) = source else {
                return false;
            };
            let found = template.find(source).and_then(|(_, one)| one.remote());
            found.is_some_and(|remote| remote.spot.memory == Memory::Entry)
        };
        let exact = patch.target == count && patch.from == 4 && from_entry(patch.source);
        findings.unless(exact, Rule::R8LengthsFit, name, "a byte count is patched");
    }
}

/// Rule 9: also for every value of what is patched.
fn aligned(template: &Template, element: &Element, findings: &mut Findings) {
    let (rule, name) = (Rule::R9Aligned, element.name);
    let (Shape::CompareSwap { remote, .. }
    | Shape::FetchAdd { remote, .. }
    | Shape::WaitData { remote, .. }) = &element.shape
    else {
        return;
    };
    let holds = match remote.address {
        Address::Armed(address) => address % 8 == 0,
        _ => remote.spot.at % 8 == 0,
    };
    findings.unless(holds, rule, name, "not at a multiple of eight");
    let address = match element.shape {
        Shape::WaitData { .. } => Field::WAIT_ADDRESS,
        _ => Field::REMOTE_ADDRESS,
    };
    let patched = template.patches();
    let here = patched
        .iter()
        .filter(|one| one.target.overlaps(Spot::field(name, address)));
    for patch in here {
        let Source::Element(source) = patch.source else {
            findings.add(rule, name, "the request writes its address");
            continue;
        };
        let found = template.find(source).and_then(|(_, one)| one.remote());
        // A Slot Offset is a multiple of sixteen; a record's octets are those of rule 11, checked here too.
        let slot_offset = found
            .is_some_and(|remote| remote.spot == Spot::new(Memory::Scratch, scratch::TICKET, 4));
        let records = source == "P" && records_aligned(template, patch.target);
        let holds = slot_offset || records;
        findings.unless(
            holds,
            rule,
            name,
            format!("{source} may misalign its address"),
        );
    }
}

fn records_aligned(template: &Template, place: Spot) -> bool {
    use crate::record::{Action, Value};
    let (invalidate, seal) = (false, false);
    let actions = [
        None,
        Some(Action::Load { invalidate }),
        Some(Action::Store { invalidate, seal }),
        Some(Action::AllocStore { invalidate, seal }),
        Some(Action::Free),
    ];
    actions.iter().all(|action| {
        let value = Record::of(template, *action).value(place);
        matches!(value, Some(Value::Octet(octet)) if octet % 8 == 0)
    })
}

/// Rule 13.
fn keys(queue: Queue, element: &Element, findings: &mut Findings) {
    let (rule, name) = (Rule::R13KeysConfined, element.name);
    let own = match queue {
        Queue::Worker => Domain::Loopback,
        Queue::Client => Domain::Client,
    };
    for piece in element.pieces() {
        let right = local_right(element, piece);
        let holds = piece.key.domain() == own && piece.key.rights().contains(right);
        findings.unless(
            holds,
            rule,
            name,
            format!("local key {} does not fit", piece.key),
        );
    }
    if let Some(remote) = element.remote() {
        let there = match queue {
            Queue::Worker => Domain::Loopback,
            Queue::Client => Domain::Remote,
        };
        let right = remote_right(element);
        let holds = remote.key.domain() == there && remote.key.rights().contains(right);
        findings.unless(
            holds,
            rule,
            name,
            format!("key {} does not fit", remote.key),
        );
        let names_octets = remote.address == Address::OfSpot;
        let own_memory = matches!(remote.key, Key::Rings | Key::Cqes);
        findings.unless(
            names_octets == own_memory,
            rule,
            name,
            "rings are read at fixed addresses, tables at looked-up ones",
        );
    }
}

fn local_right(element: &Element, piece: &Piece) -> AccessRights {
    let none = AccessRights::default();
    let writes = if element.has_reply() {
        AccessRights::LOCAL_WRITE
    } else {
        none
    };
    let gathers = |opcode| !has_reply(opcode) && opcode != Opcode::Nop;
    let reads = if element.opcodes().any(gathers) || piece.instead.is_some() {
        AccessRights::LOCAL_READ
    } else {
        none
    };
    writes.with(reads)
}

fn remote_right(element: &Element) -> AccessRights {
    let of = |opcode| match opcode {
        Opcode::RdmaRead => AccessRights::REMOTE_READ,
        Opcode::RdmaWrite | Opcode::RdmaWriteImmediate => AccessRights::REMOTE_WRITE,
        Opcode::MaskedCs | Opcode::MaskedFa => AccessRights::ATOMIC,
        Opcode::Wait => AccessRights::LOCAL_READ,
        _ => AccessRights::default(),
    };
    let all = element.opcodes().map(of);
    all.fold(AccessRights::default(), AccessRights::with)
}
