//! Random requests of one session at a time, and what should come of each.

use crate::common::{
    ALLOC, BLOCK, BLOCKS, BUFFER, BUFFERS, Expected, FREE, HANDLES, INVALIDATE, KEY, LOAD, Rig,
    SEAL, STORE, Setup, TABLE_BASE, UNSEALED, completion, key, pattern, request,
};
use kbtp_wire::{EntryFlags, Generation, Status};
use std::collections::BTreeMap;

/// A request, and what it should do.
struct Ask {
    opcode: u8,
    flags: u16,
    handle: u64,
    generation: u16,
    len: u32,
    slot: u64,
    data: u64,
    /// The handle afterwards, if it is served.
    then: Option<Expected>,
    /// Whether the chain serves it without software.
    by_chain: bool,
}

pub(crate) struct Drive {
    pub(crate) rig: Rig,
    expected: Vec<Expected>,
    next_id: u64,
    pub(crate) served: BTreeMap<u8, u64>,
    pub(crate) refused: u64,
    stores: Vec<bool>,
}

impl Drive {
    pub(crate) fn new(setup: &Setup) -> Self {
        let handles = usize::try_from(HANDLES).unwrap();
        Self {
            rig: Rig::new(setup),
            expected: vec![Expected::default(); handles],
            next_id: 1,
            served: BTreeMap::new(),
            refused: 0,
            stores: setup
                .sessions
                .iter()
                .map(|template| template.find("U2").is_some())
                .collect(),
        }
    }

    fn at(handle: u64) -> usize {
        usize::try_from(handle - TABLE_BASE).unwrap()
    }

    fn bound(&self) -> u32 {
        let bound = self.expected.iter().filter(|one| one.valid).count();
        u32::try_from(bound).unwrap()
    }

    fn choose(&mut self, party: usize) -> Ask {
        let full = self.bound() >= BLOCKS - 2;
        let own = self.rig.parties[party].own.clone();
        let stores = self.stores[party];
        let random = &mut self.rig.random;
        let mut opcode = random.pick(&[
            LOAD, LOAD, LOAD, LOAD, STORE, STORE, ALLOC, ALLOC, ALLOC, FREE, FREE,
        ]);
        // Some handles often, so that much happens to them.
        let mut handle = if random.percent(60) {
            own.start + random.below(6)
        } else {
            own.start + random.below(own.end - own.start)
        };
        if !stores {
            opcode = LOAD;
            let near = random.percent(80);
            handle = TABLE_BASE + random.below(if near { 6 } else { HANDLES });
        }
        let now = self.expected[Self::at(handle)];
        if stores && random.percent(75) {
            // What will be served, more often than not.
            opcode = match (now.valid, now.sealed) {
                (false, _) if full => LOAD,
                (false, _) => ALLOC,
                (true, false) => random.pick(&[LOAD, LOAD, STORE, FREE]),
                (true, true) => random.pick(&[LOAD, LOAD, FREE]),
            };
        } else if opcode == ALLOC && full {
            opcode = LOAD;
        }
        let mut flags = 0;
        if opcode == LOAD && (random.percent(30) || !now.sealed && random.percent(70)) {
            flags |= UNSEALED;
        }
        if matches!(opcode, STORE | ALLOC) && random.percent(50) {
            flags |= SEAL;
        }
        if opcode != FREE && random.percent(30) {
            flags |= INVALIDATE;
        }
        let other = now.generation.wrapping_add(1);
        let generation = random.pick(&[
            0,
            0,
            0,
            now.generation,
            now.generation,
            now.generation,
            other,
        ]);
        let len = if random.percent(85) {
            BLOCK
        } else {
            random.pick(&[BLOCK - 1, BLOCK + 1, 16, 2 * BLOCK, BLOCK | 1 << 24])
        };
        let mut ask = Ask {
            opcode,
            flags,
            handle,
            generation,
            len,
            slot: random.below(BUFFERS - 2),
            data: random.next(),
            then: None,
            by_chain: false,
        };
        ask.expect(now, stores);
        ask
    }

    /// One request, to its end.
    pub(crate) fn one(&mut self, party: usize) -> Result<(), String> {
        let ask = self.choose(party);
        let id = self.next_id;
        self.next_id += 1;
        self.rig.parties[party].client.set_key(key());
        let filled = if ask.opcode == LOAD {
            pattern(0xeeee_eeee_eeee_eeee)
        } else {
            pattern(ask.data)
        };
        self.rig.fill(party, ask.slot, &filled);
        let data =
            (ask.opcode != FREE).then_some((KEY, BUFFER + ask.slot * u64::from(BLOCK), ask.len));
        let message = request(ask.opcode, ask.flags, id, ask.handle, ask.generation, data);
        let invalidated = self.rig.parties[party].client.invalidated().len();
        let punts = self.rig.parties[party].punts;
        self.watch(party, &ask);
        self.rig.send(party, &message);
        self.rig.settle()?;
        self.rig.observe = None;
        if let Some(failed) = self.rig.failed(party) {
            return Err(format!("{failed} after {}", ask.show()));
        }
        self.check(party, id, &ask)?;
        let rang = self.rig.parties[party].punts > punts;
        if rang == ask.by_chain {
            return Err(format!("rang {rang}: {}", ask.show()));
        }
        let new = self.rig.parties[party].client.invalidated().len() - invalidated;
        let wanted = ask.then.is_some() && ask.flags & INVALIDATE != 0;
        if (new == 1) != wanted {
            return Err(format!("{new} keys invalidated: {}", ask.show()));
        }
        self.rig.conserved()
    }

    /// Whoever looks at an entry that is being bound sees Data Length, block and data as soon as VALID; and a client that has
    /// its completion finds the entry as it is from then on.
    fn watch(&mut self, party: usize, ask: &Ask) {
        let Some(then) = ask.then else { return };
        let (handle, data, opcode) = (ask.handle, pattern(then.data), ask.opcode);
        self.rig.observe = Some(Box::new(move |rig| {
            let entry = rig.entry(handle);
            let valid = entry.flags.contains(EntryFlags::VALID);
            if opcode == ALLOC && valid {
                let whole = entry.data_len.0 == BLOCK && rig.block(entry.block) == data;
                whole
                    .then_some(())
                    .ok_or_else(|| "VALID before the data".to_owned())?;
            }
            let answered = rig.parties[party].client.waiting() > 0;
            let generation = Generation::to_wire(entry.generation);
            if answered && (entry.flags.0, generation) != (then.flags(), then.generation) {
                return Err("a completion before the entry".to_owned());
            }
            Ok(())
        }));
    }

    fn check(&mut self, party: usize, id: u64, ask: &Ask) -> Result<(), String> {
        let show = || ask.show();
        let message = self.rig.received(party);
        let message = message.ok_or_else(|| format!("no completion: {}", show()))?;
        let answer = completion(&message)?;
        if answer.request_id.0 != id || answer.handle.0 != ask.handle {
            return Err(format!("another's completion: {answer:?}, {}", show()));
        }
        let ok = answer.status == Status::Ok;
        if ok != ask.then.is_some() {
            return Err(format!("{answer:?}: {}", show()));
        }
        let expected = &mut self.expected[Self::at(ask.handle)];
        if let Some(then) = ask.then {
            *expected = then;
            *self.served.entry(ask.opcode).or_default() += 1;
        } else {
            self.refused += 1;
        }
        let expected = *expected;
        let entry = self.rig.entry(ask.handle);
        let generation = Generation::to_wire(entry.generation);
        if (entry.flags.0, generation) != (expected.flags(), expected.generation) {
            return Err(format!("{entry:?}, not {expected:?}: {}", show()));
        }
        if !ok {
            return Ok(());
        }
        if answer.generation != entry.generation {
            return Err(format!("{answer:?}, {entry:?}: {}", show()));
        }
        if ask.opcode == FREE {
            if (answer.data_len.0, answer.block.0) != (0, 0) {
                return Err(format!("{answer:?}: {}", show()));
            }
        } else {
            let data = pattern(expected.data);
            if answer.data_len.0 != BLOCK || answer.block != entry.block {
                return Err(format!("{answer:?}, {entry:?}: {}", show()));
            }
            if self.rig.block(entry.block) != data {
                return Err(format!("the block is another's: {}", show()));
            }
            if ask.opcode == LOAD && self.rig.buffer(party, ask.slot) != data {
                return Err(format!("the buffer is another's: {}", show()));
            }
        }
        Ok(())
    }
}

impl Ask {
    fn show(&self) -> String {
        format!(
            "opcode {} flags {:#x} handle {:#x} generation {} length {}",
            self.opcode, self.flags, self.handle, self.generation, self.len
        )
    }

    /// What the protocol says of it.
    fn expect(&mut self, now: Expected, stores: bool) {
        let matches = self.generation == 0 || self.generation == now.generation;
        let seal = self.flags & SEAL != 0;
        let whole = self.len == BLOCK;
        let then = match self.opcode {
            LOAD => {
                let may = now.sealed || self.flags & UNSEALED != 0;
                (now.valid && matches && may && self.len >= BLOCK).then_some(now)
            }
            STORE => (now.valid && !now.sealed && matches && whole).then_some(Expected {
                sealed: seal,
                data: self.data,
                ..now
            }),
            ALLOC => (!now.valid && matches && whole).then_some(Expected {
                valid: true,
                sealed: seal,
                generation: now.next(),
                data: self.data,
            }),
            _ => (now.valid && matches).then_some(Expected {
                valid: false,
                generation: now.next(),
                ..now
            }),
        };
        self.then = then;
        let chained = self.opcode == LOAD || stores;
        self.by_chain = then.is_some() && chained && (whole || self.opcode == FREE);
    }
}

/// So many random requests.
pub(crate) fn run(setup: &Setup, requests: u64) -> Result<Drive, String> {
    let mut drive = Drive::new(setup);
    for number in 0..requests {
        let party = drive.rig.any_party();
        drive
            .one(party)
            .map_err(|error| format!("request {number} of party {party}: {error}"))?;
    }
    Ok(drive)
}
