//! Records: what the dispatching READ finds, and scatters over the opcodes of the slot. One for each outcome of the
//! predicate, entry flags and variant of request; whatever is not listed is a punt.

use crate::element::Element;
use crate::key::{DUMMY_AT, HEAD_AT};
use crate::memory::{Memory, Spot, scratch};
use crate::template::Template;
use kbtp_mlx5::{Comparison, Field, Opcode};
use kbtp_wire::{EntryFlags, RequestFlags};

/// What a chain does for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// WRITE the block to the client's buffer.
    Load {
        /// Invalidate the client's key with the completion.
        invalidate: bool,
    },
    /// READ the client's buffer into the block.
    Store {
        /// As for a LOAD.
        invalidate: bool,
        /// Seal the block.
        seal: bool,
    },
    /// The same into a block from the ring.
    AllocStore {
        /// As for a LOAD.
        invalidate: bool,
        /// Seal the block.
        seal: bool,
    },
    /// The entry is cleared; the block is software's to return.
    Free,
}

/// How the comparisons of the predicate ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Outcome {
    /// No comparison held.
    None = 0,
    /// Length is Block Size, and the Generation is as asked.
    Data = 1,
    /// There is no Data Descriptor, and the Generation is as asked.
    NoData = 2,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::None, Self::Data, Self::NoData];
}

/// What a request is, for chains: its opcode and flags as one octet. 0 is for software.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Variant(pub u8);

impl Variant {
    /// Of requests that software serves.
    pub const PUNT: Self = Self(0);

    /// Of a request with this version, opcode and flags.
    #[must_use]
    pub fn of(version: u8, opcode: u8, flags: u16) -> Self {
        use kbtp_wire::Opcode as Request;
        let has = |flag: RequestFlags| flags & flag.0 == flag.0;
        let only = |allowed: RequestFlags| flags & !allowed.0 == 0;
        let seal = RequestFlags::SEAL;
        let invalidate = RequestFlags::INVALIDATE;
        let unsealed = RequestFlags::ALLOW_UNSEALED;
        let bits = |one: RequestFlags, base: u8| {
            Self(base + u8::from(has(one)) + 2 * u8::from(has(invalidate)))
        };
        if version != kbtp_wire::VERSION {
            return Self::PUNT;
        }
        match Request::from_wire(opcode) {
            Some(Request::Load) if only(unsealed.union(invalidate)) => bits(unsealed, 1),
            Some(Request::Store) if only(seal.union(invalidate)) => bits(seal, 5),
            Some(Request::AllocStore) if only(seal.union(invalidate)) => bits(seal, 9),
            Some(Request::Free) if flags == 0 => Self(13),
            _ => Self::PUNT,
        }
    }

    /// What a chain does for it, given the predicate and the entry's flags (their low four bits); `None` for a punt.
    #[must_use]
    pub fn action(self, outcome: Outcome, entry: EntryFlags) -> Option<Action> {
        let base = |from: u8| self.0.checked_sub(from).filter(|bits| *bits < 4);
        let bound = entry.contains(EntryFlags::VALID);
        let sealed = entry.contains(EntryFlags::SEALED);
        let known = entry.0 & !(EntryFlags::VALID.0 | EntryFlags::SEALED.0) == 0;
        if !known {
            return None;
        }
        let (bits, action) = if let Some(bits) = base(1) {
            let may = outcome == Outcome::Data && bound && (sealed || bits & 1 == 1);
            let invalidate = bits & 2 == 2;
            (may, Action::Load { invalidate })
        } else if let Some(bits) = base(5) {
            let (seal, invalidate) = (bits & 1 == 1, bits & 2 == 2);
            let may = outcome == Outcome::Data && bound && !sealed;
            (may, Action::Store { invalidate, seal })
        } else if let Some(bits) = base(9) {
            let (seal, invalidate) = (bits & 1 == 1, bits & 2 == 2);
            let may = outcome == Outcome::Data && !bound;
            (may, Action::AllocStore { invalidate, seal })
        } else {
            let may = self.0 == 13 && outcome == Outcome::NoData && bound;
            (may, Action::Free)
        };
        bits.then_some(action)
    }
}

/// What a record writes to one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// An opcode.
    Opcode(Opcode),
    /// One octet.
    Octet(u8),
    /// Two octets.
    Half(u16),
    /// The low octet of the address of something in the scratch line.
    InScratch(u16),
}

impl Value {
    /// Appends its octets.
    pub fn encode(self, to: &mut Vec<u8>) {
        match self {
            Self::Opcode(opcode) => to.push(opcode.to_wire()),
            Self::Octet(octet) => to.push(octet),
            Self::Half(half) => to.extend(half.to_be_bytes()),
            Self::InScratch(at) => {
                let [_, low] = at.to_be_bytes();
                to.push(low);
            }
        }
    }

    const fn len(self) -> u32 {
        match self {
            Self::Opcode(_) | Self::Octet(_) | Self::InScratch(_) => 1,
            Self::Half(_) => 2,
        }
    }
}

/// A record: a value for each place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Places and values, in the order of the dispatching READ's pieces.
    pub values: Vec<(Spot, Value)>,
}

/// The places a template's dispatching READ writes, in order.
#[must_use]
pub fn places(template: &Template) -> Vec<Spot> {
    let pieces = template.find("P").map_or(&[][..], |(_, p)| p.pieces());
    pieces.iter().map(|piece| piece.spot).collect()
}

impl Record {
    /// The record of an action, or of a punt. An action that the template has no places for is a punt.
    #[must_use]
    pub fn of(template: &Template, action: Option<Action>) -> Self {
        let places = places(template);
        let serves_stores = template.find("U2").is_some();
        let action = action.filter(|one| serves_stores || matches!(one, Action::Load { .. }));
        let value = |spot: &Spot| (*spot, value(spot, action));
        Self {
            values: places.iter().map(value).collect(),
        }
    }

    /// The record that software completes.
    #[must_use]
    pub fn punt(template: &Template) -> Self {
        Self::of(template, None)
    }

    /// Its octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut octets = Vec::new();
        for (_, value) in &self.values {
            value.encode(&mut octets);
        }
        octets
    }

    /// Whether each value is as long as its place.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.values
            .iter()
            .all(|(spot, value)| spot.len == value.len())
    }

    /// The opcode that a WQE has after this record.
    #[must_use]
    pub fn opcode(&self, element: &Element) -> Opcode {
        let place = Spot::field(element.name, Field::OPCODE);
        let found = self.values.iter().find_map(|(spot, value)| match value {
            Value::Opcode(opcode) if *spot == place => Some(*opcode),
            _ => None,
        });
        found.unwrap_or(element.opcode)
    }

    /// The value at a place.
    #[must_use]
    pub fn value(&self, place: Spot) -> Option<Value> {
        let found = self.values.iter().find(|(spot, _)| *spot == place);
        found.map(|(_, value)| *value)
    }
}

fn value(spot: &Spot, action: Option<Action>) -> Value {
    match spot.memory {
        Memory::Wqe(name) if *spot == Spot::field(name, Field::OPCODE) => {
            Value::Opcode(opcode(name, action))
        }
        Memory::Wqe(name) => operand(name, action),
        _ => entry_flags(action),
    }
}

fn entry_flags(action: Option<Action>) -> Value {
    let sealed = match action {
        Some(Action::Store { seal, .. } | Action::AllocStore { seal, .. }) => Some(seal),
        Some(Action::Load { .. } | Action::Free) | None => None,
    };
    let flags = sealed.map_or(EntryFlags::NONE, |seal| {
        EntryFlags::VALID.with(EntryFlags::SEALED, seal)
    });
    Value::Half(flags.0)
}

/// The opcode of a WQE that sleeps until its record is there.
fn opcode(name: &str, action: Option<Action>) -> Opcode {
    use Action::{AllocStore, Free, Load, Store};
    let Some(action) = action else {
        return match name {
            "BELL" => Opcode::RdmaWriteImmediate,
            _ => Opcode::Nop,
        };
    };
    let send = |invalidate| {
        if invalidate {
            Opcode::SendInvalidate
        } else {
            Opcode::Send
        }
    };
    match (name, action) {
        ("GO" | "PW", _) => Opcode::SendEnable,
        ("C2", Load { invalidate })
        | ("C4", Store { invalidate, .. } | AllocStore { invalidate, .. }) => send(invalidate),
        ("C4", Free) => Opcode::Send,
        ("C3" | "U0", Store { .. } | AllocStore { .. }) | ("BT1" | "X1", AllocStore { .. }) => {
            Opcode::RdmaRead
        }
        ("C1", Load { .. })
        | ("U1" | "U2", Store { .. } | AllocStore { .. })
        | ("W1", AllocStore { .. })
        | ("U0", Free) => Opcode::RdmaWrite,
        _ => Opcode::Nop,
    }
}

fn operand(name: &str, action: Option<Action>) -> Value {
    let alloc = matches!(action, Some(Action::AllocStore { .. }));
    let free = matches!(action, Some(Action::Free));
    let low = |value: u64| {
        let [.., octet] = value.to_be_bytes();
        Value::Octet(octet)
    };
    match name {
        "FA" => low(if alloc { HEAD_AT } else { DUMMY_AT }),
        "WD" => Value::Octet(if alloc {
            Comparison::Equal as u8
        } else {
            Comparison::AlwaysTrue as u8
        }),
        "C4" => Value::InScratch(if free {
            scratch::NOTHING
        } else {
            scratch::STATUS
        }),
        "U0" => Value::InScratch(if free { scratch::ENTRY } else { scratch::TRASH }),
        // Which half of the table: the Generation itself, or the next one.
        _ => Value::Octet(u8::from(alloc || free)),
    }
}
