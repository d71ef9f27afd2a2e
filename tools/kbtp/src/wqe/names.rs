//! Memory by the names of the drawing, and what in it changed.

use super::hex;
use super::rig::{BLOCKS, COUNTERS_AT, FIRST_HANDLE, HANDLES, OWN_HANDLES, RING_AT, Rig, TABLE_AT};
use kbtp_chain::element::Cq;
use kbtp_chain::limits::{MESSAGE_CAPACITY, SCRATCH_LINE};
use kbtp_chain::memory::{Memory, Spot};
use kbtp_memory::Region;
use kbtp_mlx5::Cqe;
use kbtp_mlx5::limits::SEGMENT;
use kbtp_wire::{RingSlot, TableEntry};
use serde::Serialize;

/// Octets that changed, one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Change {
    /// Where, as in the drawing.
    pub(super) place: String,
    /// What was there, in hexadecimal.
    pub(super) before: String,
    /// What is there now.
    pub(super) after: String,
}

/// Something with a name.
struct Span {
    at: u64,
    len: u64,
    name: String,
}

struct Area {
    region: Region,
    /// What has no name of its own.
    rest: &'static str,
    /// In order.
    spans: Vec<Span>,
    seen: Vec<u8>,
}

/// All memory of a rig.
pub(super) struct Watch {
    areas: Vec<Area>,
}

impl Watch {
    /// Looks from now on.
    pub(super) fn new(rig: &Rig) -> Self {
        let session = &rig.session;
        let pool = rig.target.pool();
        let block = u64::from(pool.block_size.0);
        let client = span(0, rig.client.region().len(), "client's buffer".to_owned());
        let blocks = (0..u64::from(BLOCKS)).map(|n| span(n * block, block, format!("block {n}")));
        let areas = [
            (session.memory(), "session", rings(rig)),
            (session.cqe_memory(), "CQEs", cqes(rig)),
            (&pool.meta, "pool", meta(rig)),
            (&pool.blocks, "blocks", blocks.collect()),
            (rig.client.region(), "client", vec![client]),
        ];
        let mut watch = Self {
            areas: areas.into_iter().map(area).collect(),
        };
        watch.look();
        watch
    }

    /// What changed since the last look.
    pub(super) fn look(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for area in &mut self.areas {
            area.look(&mut changes);
        }
        changes
    }
}

fn area((region, rest, mut spans): (&Region, &'static str, Vec<Span>)) -> Area {
    spans.sort_by_key(|span| span.at);
    let len = usize::try_from(region.len()).unwrap_or(0);
    Area {
        region: region.clone(),
        rest,
        spans,
        seen: vec![0; len],
    }
}

const fn span(at: u64, len: u64, name: String) -> Span {
    Span { at, len, name }
}

/// WQEs and scratch of the slot that is looked at and, with a word before their names, of the one after it.
fn rings(rig: &Rig) -> Vec<Span> {
    let session = &rig.session;
    let mut spans = Vec::new();
    for (slot, before) in [(0, ""), (1, "next ")] {
        let mut add = |memory, len: u64, name: &str| {
            if let Some(at) = session.place_of(slot, Spot::new(memory, 0, 1)) {
                spans.push(span(at, len, format!("{before}{name}")));
            }
        };
        for (_, element) in session.template().elements() {
            let octets = element.segments().saturating_mul(SEGMENT) as u64;
            add(Memory::Wqe(element.name), octets, element.name);
        }
        add(Memory::Scratch, SCRATCH_LINE.into(), "scratch");
        add(Memory::Sink, MESSAGE_CAPACITY.into(), "sink");
    }
    if let Some(at) = session.place_of(0, Spot::new(Memory::Mailbox, 0, 1)) {
        spans.push(span(at, 4, "mailbox".to_owned()));
    }
    spans.push(span(session.dummy_at(), 8, "dummy counter".to_owned()));
    spans
}

fn cqes(rig: &Rig) -> Vec<Span> {
    let session = &rig.session;
    let template = session.template();
    let mut spans = Vec::new();
    for cq in [Cq::Receive, Cq::Client, Cq::Worker] {
        for (slot, before) in [(0, ""), (1, "next ")] {
            for number in 0..u8::try_from(template.cqes(cq)).unwrap_or(u8::MAX) {
                let spot = Spot::new(Memory::Cqe(cq, number), 0, 1);
                if let Some(at) = session.place_of(slot, spot) {
                    let name = format!("{before}{cq}[{number}]");
                    spans.push(span(at, Cqe::LEN as u64, name));
                }
            }
        }
    }
    spans
}

fn meta(rig: &Rig) -> Vec<Span> {
    let mut spans = vec![
        span(COUNTERS_AT, 8, "Head".to_owned()),
        span(COUNTERS_AT + 64, 8, "Tail".to_owned()),
    ];
    let slots = u64::from(rig.target.pool().ring.slots());
    let slot = RingSlot::LEN as u64;
    let slots = (0..slots).map(|n| span(RING_AT + n * slot, slot, format!("ring slot {n}")));
    spans.extend(slots);
    let entry = TableEntry::LEN as u64;
    spans.extend((0..HANDLES).map(|row| {
        let whose = if row < OWN_HANDLES { "" } else { "another's " };
        let name = format!("{whose}entry {:#x}", FIRST_HANDLE + row);
        span(TABLE_AT + row * entry, entry, name)
    }));
    spans
}

/// Octets that are compared at a time: most change in none of them.
const CHUNK: usize = 4096;

impl Area {
    fn look(&mut self, changes: &mut Vec<Change>) {
        let mut now = vec![0; self.seen.len()];
        if self.region.read(0, &mut now).is_err() {
            return;
        }
        let seen = std::mem::replace(&mut self.seen, now);
        for from in (0..seen.len()).step_by(CHUNK) {
            let chunk = from..seen.len().min(from + CHUNK);
            if seen.get(chunk.clone()) != self.seen.get(chunk.clone()) {
                self.runs(&seen, chunk, changes);
            }
        }
    }

    /// Runs of octets that changed, each within one name.
    fn runs(&self, seen: &[u8], chunk: std::ops::Range<usize>, changes: &mut Vec<Change>) {
        let differs = |at: &usize| seen.get(*at) != self.seen.get(*at);
        let mut at = chunk.start;
        while let Some(from) = (at..chunk.end).find(differs) {
            let (name, start, end) = self.name(from);
            let end = end.min(chunk.end);
            let to = (from..end).find(|at| !differs(at)).unwrap_or(end);
            let place = match to - from {
                1 => format!("{name}[{}]", from - start),
                _ => format!("{name}[{}..{}]", from - start, to - start),
            };
            changes.push(Change {
                place,
                before: hex(seen.get(from..to).unwrap_or_default()),
                after: hex(self.seen.get(from..to).unwrap_or_default()),
            });
            at = to;
        }
    }

    /// The name of an octet, where what has it starts, and where it ends.
    fn name(&self, octet: usize) -> (&str, usize, usize) {
        let at = octet as u64;
        let behind = self.spans.partition_point(|span| span.at <= at);
        let place = |octets: u64| usize::try_from(octets).unwrap_or(usize::MAX);
        let before = behind.checked_sub(1).and_then(|n| self.spans.get(n));
        if let Some(span) = before.filter(|span| at < span.at + span.len) {
            return (&span.name, place(span.at), place(span.at + span.len));
        }
        let end = self.spans.get(behind).map_or(u64::MAX, |span| span.at);
        (self.rest, 0, place(end))
    }
}
