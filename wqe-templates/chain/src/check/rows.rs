//! Rule 11: every row of the record table, run symbolically, does what its request asks for and nothing else. What is asked
//! is said here once more, apart from what makes the records.

use super::{Finding, Findings, Rule};
use crate::element::{Element, Kind, Name, Queue, Shape};
use crate::key::{HEAD_AT, Key};
use crate::memory::{Memory, Spot, scratch};
use crate::record::{Outcome, Record, Value, Variant, places};
use crate::template::Template;
use kbtp_mlx5::{Field, Opcode};
use kbtp_wire::EntryFlags;

/// Something that a slot does, in the order of its queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    /// Software is told.
    Bell,
    /// The slot goes on by itself: the client's queue and the loopback queue.
    Goes(Queue),
    /// The handle must be the session's.
    Probe,
    /// The entry's first word is written: Flags, and which Generation.
    EntryWord(u16, Turn),
    /// The entry's rest is written: Block Size, and the block of C3.
    EntryRest,
    /// A counter is advanced.
    Ticket(u64),
    /// The chain waits for a ring slot's Sequence: for the ticket, or for something else.
    Awaits { ticket: bool },
    /// The block of a ring slot is taken.
    Takes,
    /// The Block Offset of a ring slot is written, from here in scratch.
    SlotBlock(u16),
    /// The block goes to the client.
    DataOut,
    /// The client's data comes to the block.
    DataIn,
    /// What the next COMPLETION says behind the Generation, from here in scratch.
    Tells(u16),
    /// A COMPLETION is sent by this WQE, with or without Invalidate.
    Answer(Name, bool),
}

/// Which Generation an entry gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Same,
    Next,
}

/// Checks every row: `row` is what the record table holds.
#[must_use]
pub fn check_rows(
    template: &Template,
    row: impl Fn(Outcome, EntryFlags, Variant) -> Record,
) -> Vec<Finding> {
    let mut findings = Findings::default();
    let rule = Rule::R11RecordsExact;
    let punt = Record::punt(template);
    let stores = template.find("U2").is_some();
    let places = places(template);
    for outcome in Outcome::ALL {
        for flags in 0..16 {
            for v in 0..=u8::MAX {
                let record = row(outcome, EntryFlags(flags), Variant(v));
                let wanted = wanted(outcome, flags, v, stores);
                if let Some(what) = wrong(template, &places, &record, &punt, wanted.as_deref()) {
                    let at = format!("{outcome:?}, flags {flags:#x}, variant {v}");
                    findings.add(rule, "P", format!("{at}: {what}"));
                }
            }
        }
    }
    let silent = effects(template, &punt) == [Effect::Bell];
    findings.unless(silent, rule, "P", "a punt does more than to tell software");
    findings.0
}

/// What is wrong with a row.
fn wrong(
    template: &Template,
    places: &[Spot],
    record: &Record,
    punt: &Record,
    wanted: Option<&[Effect]>,
) -> Option<String> {
    let Some(wanted) = wanted else {
        return (record != punt).then(|| String::from("not the punt record"));
    };
    let named = record.values.iter().map(|(spot, _)| spot);
    if !record.fits() || !places.iter().eq(named) {
        return Some(String::from("not a value for each place"));
    }
    let made_for = |(_, element): &(Queue, &Element)| !element.may_be(record.opcode(element));
    if let Some((_, element)) = template.elements().find(made_for) {
        let opcode = record.opcode(element);
        return Some(format!("{} becomes {opcode}", element.name));
    }
    let found = effects(template, record);
    (found != wanted).then(|| format!("{found:?} instead of {wanted:?}"))
}

/// What a row must do: `None` for a punt.
fn wanted(outcome: Outcome, flags: u16, v: u8, stores: bool) -> Option<Vec<Effect>> {
    let goes = [Effect::Goes(Queue::Client), Effect::Goes(Queue::Worker)];
    let (bound, sealed) = (1, 3);
    let with_data = outcome == Outcome::Data;
    let store = |base: u8| {
        let bits = v.checked_sub(base).filter(|bits| *bits < 4)?;
        let entry = if bits & 1 == 1 { sealed } else { bound };
        Some((entry, bits & 2 == 2))
    };
    let effects = match v {
        1..=4 if with_data => {
            let unsealed = v == 2 || v == 4;
            (flags == sealed || (flags == bound && unsealed)).then_some(())?;
            [&goes[..], &[Effect::DataOut, Effect::Answer("C2", v >= 3)]].concat()
        }
        5..=8 if with_data && stores && flags == bound => {
            let (entry, invalidate) = store(5)?;
            let rest = [
                Effect::Probe,
                Effect::EntryRest,
                Effect::EntryWord(entry, Turn::Same),
                Effect::DataIn,
                Effect::Tells(scratch::STATUS),
                Effect::Answer("C4", invalidate),
            ];
            [&goes[..], &rest].concat()
        }
        9..=12 if with_data && stores && (flags == 0 || flags == 2) => {
            let (entry, invalidate) = store(9)?;
            let rest = [
                Effect::Probe,
                Effect::Ticket(HEAD_AT),
                Effect::Awaits { ticket: true },
                Effect::Takes,
                Effect::SlotBlock(scratch::ONES),
                Effect::EntryRest,
                Effect::EntryWord(entry, Turn::Next),
                Effect::DataIn,
                Effect::Tells(scratch::STATUS),
                Effect::Answer("C4", invalidate),
            ];
            [&goes[..], &rest].concat()
        }
        13 if outcome == Outcome::NoData && stores && (flags == bound || flags == sealed) => {
            let rest = [
                // The ring is software's: somebody may still send the block.
                Effect::EntryWord(0, Turn::Next),
                Effect::Tells(scratch::NOTHING),
                Effect::Answer("C4", false),
            ];
            [&goes[..], &rest].concat()
        }
        _ => return None,
    };
    Some(effects)
}

/// What a slot does under a record. A Worker's order is that of its queue; the client's follows.
fn effects(template: &Template, record: &Record) -> Vec<Effect> {
    let mut all = Vec::new();
    for (queue, element) in template.elements() {
        let opcode = record.opcode(element);
        if opcode == Opcode::Nop {
            continue;
        }
        match queue {
            Queue::Worker => worker(template, record, element, opcode, &mut all),
            Queue::Client => client(record, element, opcode, &mut all),
        }
    }
    all
}

fn client(record: &Record, element: &Element, opcode: Opcode, all: &mut Vec<Effect>) {
    if element.choice().is_some() {
        all.push(Effect::Tells(source(record, element)));
    }
    match opcode {
        Opcode::RdmaWrite => all.push(Effect::DataOut),
        Opcode::RdmaRead => all.push(Effect::DataIn),
        Opcode::Send => all.push(Effect::Answer(element.name, false)),
        Opcode::SendInvalidate => all.push(Effect::Answer(element.name, true)),
        _ => {}
    }
}

fn worker(
    template: &Template,
    record: &Record,
    element: &Element,
    opcode: Opcode,
    all: &mut Vec<Effect>,
) {
    let sleeps = !element.may_become.is_empty();
    let octet = |field| match record.value(Spot::field(element.name, field)) {
        Some(Value::Octet(octet)) => Some(u64::from(octet)),
        _ => None,
    };
    match &element.shape {
        Shape::Enable(queue, _) if sleeps => all.push(Effect::Goes(*queue)),
        Shape::FetchAdd { .. } => {
            let last = Field::REMOTE_ADDRESS.part(7, 1);
            let at = last.and_then(octet).unwrap_or(u64::MAX);
            if at != crate::key::DUMMY_AT {
                all.push(Effect::Ticket(at));
            }
        }
        Shape::WaitData { .. } if octet(Field::WAIT_CONDITION) != Some(0) => {
            let ticket = template.find("BT1").map(|(_, one)| record.opcode(one));
            let ticket = ticket == Some(Opcode::RdmaRead);
            all.push(Effect::Awaits { ticket });
        }
        Shape::Rdma(remote, _) => {
            let written = element
                .accesses(opcode, false)
                .iter()
                .any(|access| access.at_responder && access.kind != Kind::Read);
            let effect = match (remote.spot.memory, written) {
                (Memory::Mailbox, true) => Some(Effect::Bell),
                (Memory::Entry, false) if sleeps => Some(Effect::Probe),
                (Memory::Entry, true) if remote.key == Key::OwnBinding => Some(Effect::EntryRest),
                (Memory::Entry, true) => Some(entry_word(record, element)),
                (Memory::RingSlot, false) => Some(Effect::Takes),
                (Memory::RingSlot, true) => Some(Effect::SlotBlock(source(record, element))),
                _ => None,
            };
            all.extend(effect);
        }
        _ => {}
    }
}

/// Where in scratch a WQE gathers from: what it has a choice of, or all.
fn source(record: &Record, element: &Element) -> u16 {
    let chosen = element.choice().and_then(|place| record.value(place));
    match chosen {
        Some(Value::InScratch(at)) => at,
        _ => element
            .pieces()
            .first()
            .map_or(u16::MAX, |piece| piece.spot.at),
    }
}

fn entry_word(record: &Record, element: &Element) -> Effect {
    let flags = match record.value(Spot::new(Memory::Scratch, scratch::ENTRY, 2)) {
        Some(Value::Half(flags)) if source(record, element) == scratch::ENTRY => flags,
        _ => u16::MAX,
    };
    let half = Field::REMOTE_ADDRESS.part(4, 1);
    let half = half.and_then(|half| record.value(Spot::field("NG", half)));
    let turn = match half {
        Some(Value::Octet(0)) => Turn::Same,
        _ => Turn::Next,
    };
    Effect::EntryWord(flags, turn)
}
