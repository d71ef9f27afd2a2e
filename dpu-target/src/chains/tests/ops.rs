//! Random requests: what a chain serves, what it does not, and what nobody should ask for.

use super::rig::{BASE, BLOCK, BUFFER, BUFFERS, HANDLES, INLINE, KEY};
use kbtp_wire::{EntryFlags, Generation, Grant, TableEntry};

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed ^ 0x5eed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in `of` out of a hundred.
    pub(super) fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

const LOAD: u8 = 3;
const STORE: u8 = 4;
const ALLOC: u8 = 5;
const FREE: u8 = 6;

/// A request of a session with this grant, on a table whose octets these are.
pub(super) fn request(random: &mut Numbers, grant: &Grant, table: &[u8], id: u64) -> Vec<u8> {
    let own = grant.handle_base.0..grant.handle_base.0 + grant.handle_count;
    let bound = own.filter(|handle| entry(table, *handle).flags.contains(EntryFlags::VALID));
    let bound: Vec<u64> = bound.collect();
    let spent = bound.len() as u64 + 1 >= u64::from(grant.quota);
    let handle = if !bound.is_empty() && random.percent(if spent { 90 } else { 50 }) {
        random.pick(&bound)
    } else {
        handle(random, grant)
    };
    let entry = entry(table, handle);
    let valid = entry.flags.contains(EntryFlags::VALID);
    let sealed = entry.flags.contains(EntryFlags::SEALED);
    // What can be served, more often than not.
    let mut opcode = match (valid, sealed) {
        (false, _) => random.pick(&[ALLOC, ALLOC, ALLOC, LOAD]),
        (true, false) => random.pick(&[LOAD, LOAD, STORE, STORE, FREE]),
        (true, true) => random.pick(&[LOAD, LOAD, LOAD, FREE]),
    };
    if random.percent(15) {
        opcode = random.pick(&[LOAD, STORE, ALLOC, FREE, 7, 0, 8, 9, 0x80]);
    }
    let mut flags = match opcode {
        LOAD => random.pick(&[0, 0x10, 0x10, 0x08, 0x18]),
        STORE | ALLOC => random.pick(&[0, 2, 2, 8, 10]),
        _ => 0,
    };
    if random.percent(5) {
        flags = random.below(64) & 0xffff;
    }
    let inline = matches!(opcode, STORE | ALLOC) && random.percent(10);
    if inline {
        flags = 1 | flags & 2;
    }
    let now = Generation::to_wire(entry.generation);
    let generation = random.pick(&[0, 0, 0, now, now, now, now.wrapping_add(1)]);
    let mut octets = vec![1, opcode];
    if random.percent(1) {
        octets[0] = random.pick(&[0, 2, 0xff]);
    }
    octets.extend(u16::try_from(flags).unwrap().to_be_bytes());
    octets.extend(id.to_be_bytes());
    octets.extend(handle.to_be_bytes());
    octets.extend(generation.to_be_bytes());
    octets.extend(random.pick(&[[0; 2]; 40]));
    if random.percent(1) {
        octets[22..24].copy_from_slice(&random.pick(&[[0, 1], [1, 0], [0xff, 0xff]]));
    }
    body(random, opcode, inline, &mut octets);
    octets
}

fn body(random: &mut Numbers, opcode: u8, inline: bool, octets: &mut Vec<u8>) {
    if inline {
        let len = u32::try_from(random.below(u64::from(INLINE) + 8)).unwrap();
        let declared = if random.percent(90) { len } else { len ^ 1 };
        octets.extend([0; 12]);
        octets.extend(declared.to_be_bytes());
        octets.extend((0..len).map(|_| random.next().to_be_bytes()[0]));
        // The receive holds no more.
        octets.truncate(24 + 32 + usize::try_from(INLINE).unwrap());
    } else if matches!(opcode, LOAD | STORE | ALLOC) {
        let len = if random.percent(80) {
            BLOCK
        } else {
            random.pick(&[BLOCK - 1, BLOCK + 1, 0, 1, 100, 2 * BLOCK, BLOCK | 1 << 24])
        };
        let slot = random.below(BUFFERS - 1);
        octets.extend(KEY.to_be_bytes());
        octets.extend((BUFFER + slot * u64::from(BLOCK)).to_be_bytes());
        octets.extend(len.to_be_bytes());
    } else if opcode == 7 {
        octets.extend([0; 16]);
    }
    if random.percent(2) {
        let len = random.pick(&[24, 25, 39, 40, 41, 56, 255, 256, 300]);
        octets.resize(len, 0);
    }
}

/// Some handles often, so that much happens to them; those of others, and some that there are not.
fn handle(random: &mut Numbers, grant: &Grant) -> u64 {
    let base = grant.handle_base.0;
    match random.below(100) {
        0..70 => base + random.below(6),
        70..90 => base + random.below(grant.handle_count),
        90..97 => BASE + random.below(HANDLES),
        97 => BASE + HANDLES + random.below(100),
        98 => random.below(BASE),
        _ => random.next() | 1 << 60,
    }
}

pub(super) fn entry(table: &[u8], handle: u64) -> TableEntry {
    let row = handle.checked_sub(BASE).filter(|row| *row < HANDLES);
    let Some(at) = row.map(|row| usize::try_from(row).unwrap() * 16) else {
        return TableEntry::UNBOUND;
    };
    TableEntry::decode(table[at..at + 16].try_into().unwrap())
}
