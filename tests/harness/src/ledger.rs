//! What an initiator knows of its blocks: what it was told is done, and what may or may not have been done.

use kbtp_harness::pattern;
use kbtp_initiator::Generation;
use std::fmt;
use std::str::FromStr;

/// A stored block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// Which of all data ever stored, or [`TORN`].
    pub(crate) version: u64,
    pub(crate) sealed: bool,
}

/// No version: parts of a store that was cut off, in a block that is not sealed.
pub(crate) const TORN: u64 = 0;

/// What is to be done to a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Bind it to a block.
    Alloc(Block),
    /// Store into its block, which is not sealed, and seal it.
    Store(u64),
    /// Unbind it.
    Free,
}

/// A handle.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Slot {
    /// What it holds, as far as anything is known.
    pub(crate) block: Option<Block>,
    /// Its Generation; none if that is not known.
    pub(crate) generation: Option<Generation>,
    /// A change whose outcome is not known.
    pub(crate) change: Option<Change>,
}

/// All handles of an initiator, the first one first.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    /// Makes its data unlike everybody else's.
    pub(crate) owner: u64,
    pub(crate) slots: Vec<Slot>,
    block_size: u32,
    versions: u64,
}

impl Ledger {
    /// Of `handles` handles with nothing in them.
    pub(crate) fn new(owner: u64, handles: u64, block_size: u32) -> Self {
        Self {
            owner,
            slots: vec![Slot::default(); usize::try_from(handles).unwrap()],
            block_size,
            versions: 0,
        }
    }

    /// A version that was never stored.
    pub(crate) const fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// The data of a version: lengths from nothing to a whole block, no two alike.
    pub(crate) fn data(&self, version: u64) -> Vec<u8> {
        let len = match version % 5 {
            0 => version % 100,
            1 => u64::from(self.block_size),
            _ => version.wrapping_mul(7919) % u64::from(self.block_size),
        };
        let mut data = pattern(
            self.owner.wrapping_mul(1 << 32) + version,
            usize::try_from(len).unwrap(),
        );
        // Short data differ too.
        let name = version.to_be_bytes();
        let named = data.len().min(name.len());
        data[..named].copy_from_slice(&name[name.len() - named..]);
        data
    }

    /// A change begins.
    pub(crate) fn begin(&mut self, handle: u64, change: Change) {
        let slot = self.slot_mut(handle);
        assert_eq!(slot.change, None, "one change of a handle at a time");
        slot.change = Some(change);
        if let Change::Alloc(Block { version, .. }) | Change::Store(version) = change {
            self.versions = self.versions.max(version);
        }
    }

    /// The change was done, and this is the Generation now.
    pub(crate) fn done(&mut self, handle: u64, generation: Generation) {
        let slot = self.slot_mut(handle);
        let before = slot.generation;
        let change = slot.change.take().expect("a change began");
        let expected = match change {
            Change::Store(_) => before,
            Change::Alloc(_) | Change::Free => before.map(Generation::next),
        };
        assert!(
            expected.is_none_or(|g| g == generation),
            "handle {handle}: {change:?} of generation {before:?} gives {generation}"
        );
        slot.generation = Some(generation);
        slot.block = after(slot.block, change);
    }

    /// The change was not done, for certain.
    pub(crate) fn refused(&mut self, handle: u64) {
        self.slot_mut(handle).change = None;
    }

    /// Checks that what is found at `handle` is what may be there, and takes it as known.
    pub(crate) fn found(&mut self, handle: u64, found: Option<&Found>) {
        let owner = self.owner;
        let slot = self.slot(handle);
        let before = slot.block;
        let possible = [
            Some(before),
            slot.change.map(|change| after(before, change)),
        ];
        // A block that is not sealed shows what was written of a store so far, until the next one.
        let torn = matches!(slot.change, Some(Change::Store(_)))
            || before.is_some_and(|block| block.version == TORN);
        let holds = |block: Option<Block>| match (block, found) {
            (None, None) => true,
            (Some(block), Some(found)) => {
                found.sealed == block.sealed
                    && (found.data == self.data(block.version) || (torn && !block.sealed))
            }
            _ => false,
        };
        let Some(now) = possible.into_iter().flatten().find(|block| holds(*block)) else {
            let what = found.map(|f| (f.generation, f.sealed, f.data.len()));
            panic!("initiator {owner}, handle {handle}: {slot:?} shows {what:?}");
        };
        if let (Some(Found { generation, .. }), Some(known)) = (found, slot.generation) {
            let expected = match slot.change {
                Some(Change::Alloc(_)) => known.next(),
                _ => known,
            };
            assert_eq!(*generation, expected, "handle {handle}: {slot:?}");
        }
        let now = now.map(|block| match found {
            Some(found) if found.data != self.data(block.version) => Block {
                version: TORN,
                ..block
            },
            _ => block,
        });
        let slot = self.slot_mut(handle);
        if found.is_some() || slot.change.is_some() {
            slot.generation = found.map(|f| f.generation);
        }
        slot.block = now;
        slot.change = None;
    }

    /// Handles that are bound, if no change is open.
    pub(crate) fn bound(&self) -> u32 {
        assert!(self.slots.iter().all(|slot| slot.change.is_none()));
        let bound = self.slots.iter().filter(|slot| slot.block.is_some());
        u32::try_from(bound.count()).unwrap()
    }

    /// What is known of a handle.
    pub(crate) fn slot(&self, handle: u64) -> Slot {
        self.slots[usize::try_from(handle).unwrap()]
    }

    fn slot_mut(&mut self, handle: u64) -> &mut Slot {
        &mut self.slots[usize::try_from(handle).unwrap()]
    }
}

/// What a handle holds after `change`.
fn after(before: Option<Block>, change: Change) -> Option<Block> {
    match change {
        Change::Alloc(block) => Some(block),
        Change::Store(version) => before.map(|_| Block {
            version,
            sealed: true,
        }),
        Change::Free => None,
    }
}

/// What a load shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) generation: Generation,
    pub(crate) sealed: bool,
    pub(crate) data: Vec<u8>,
}

/// A line of the journal that an initiator writes, so that another process knows what it knew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Line {
    Begin(u64, Change),
    Done(u64, Generation),
    Refused(u64),
}

impl Line {
    /// Enters it.
    pub(crate) fn enter(self, ledger: &mut Ledger) {
        match self {
            Self::Begin(handle, change) => ledger.begin(handle, change),
            Self::Done(handle, generation) => ledger.done(handle, generation),
            Self::Refused(handle) => ledger.refused(handle),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Begin(handle, Change::Alloc(block)) => {
                let seal = u8::from(block.sealed);
                write!(f, "alloc {handle} {} {seal}", block.version)
            }
            Self::Begin(handle, Change::Store(version)) => write!(f, "store {handle} {version} 0"),
            Self::Begin(handle, Change::Free) => write!(f, "free {handle} 0 0"),
            Self::Done(handle, generation) => write!(f, "done {handle} {} 0", generation.get()),
            Self::Refused(handle) => write!(f, "refused {handle} 0 0"),
        }
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |n: usize| -> Result<u64, String> {
            let word = words.get(n).ok_or_else(|| text.to_owned())?;
            word.parse().map_err(|e| format!("{text}: {e}"))
        };
        let (handle, value, sealed) = (number(1)?, number(2)?, number(3)? == 1);
        let generation = || {
            let value = u16::try_from(value).ok();
            value
                .and_then(Generation::new)
                .ok_or_else(|| text.to_owned())
        };
        Ok(match words.first() {
            Some(&"alloc") => Self::Begin(
                handle,
                Change::Alloc(Block {
                    version: value,
                    sealed,
                }),
            ),
            Some(&"store") => Self::Begin(handle, Change::Store(value)),
            Some(&"free") => Self::Begin(handle, Change::Free),
            Some(&"done") => Self::Done(handle, generation()?),
            Some(&"refused") => Self::Refused(handle),
            _ => return Err(text.to_owned()),
        })
    }
}

mod tests {
    use super::*;

    #[test]
    fn a_journal_tells_what_its_writer_knew() {
        let block = Block {
            version: 7,
            sealed: false,
        };
        let generation = Generation::FIRST;
        for line in [
            Line::Begin(3, Change::Alloc(block)),
            Line::Begin(3, Change::Store(9)),
            Line::Begin(3, Change::Free),
            Line::Done(3, generation),
            Line::Refused(3),
        ] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        assert!("done 3 0 0".parse::<Line>().is_err());
        assert!("alloc 3".parse::<Line>().is_err());
    }

    fn one(version: u64, change: Option<Change>) -> Ledger {
        let mut ledger = Ledger::new(1, 1, 4096);
        let sealed = change.is_none() || change == Some(Change::Free);
        ledger.begin(0, Change::Alloc(Block { version, sealed }));
        ledger.done(0, Generation::FIRST);
        if let Some(change) = change {
            ledger.begin(0, change);
        }
        ledger
    }

    fn shows(ledger: &Ledger, version: u64, sealed: bool) -> Found {
        Found {
            generation: Generation::FIRST,
            sealed,
            data: ledger.data(version),
        }
    }

    #[test]
    fn what_may_be_there_is_taken() {
        let ledger = one(3, Some(Change::Free));
        ledger.clone().found(0, None);
        ledger.clone().found(0, Some(&shows(&ledger, 3, true)));
        let ledger = one(3, Some(Change::Store(4)));
        ledger.clone().found(0, Some(&shows(&ledger, 3, false)));
        ledger.clone().found(0, Some(&shows(&ledger, 4, true)));
        // Torn, but not sealed; then nobody knows what is in it, until it is stored again.
        let mut torn = ledger.clone();
        torn.found(0, Some(&shows(&ledger, 9, false)));
        assert_eq!(torn.slot(0).block.map(|b| b.version), Some(TORN));
        torn.found(0, Some(&shows(&ledger, 8, false)));
        torn.begin(0, Change::Store(10));
        torn.done(0, Generation::FIRST);
        torn.found(0, Some(&shows(&ledger, 10, true)));
    }

    #[test]
    #[should_panic(expected = "handle 0")]
    fn a_stored_block_must_be_there() {
        one(3, None).found(0, None);
    }

    #[test]
    #[should_panic(expected = "handle 0")]
    fn a_stored_block_must_be_whole() {
        let mut ledger = one(3, None);
        let found = shows(&ledger, 4, true);
        ledger.found(0, Some(&found));
    }

    #[test]
    #[should_panic(expected = "handle 0")]
    fn a_sealed_block_must_not_be_torn() {
        let mut ledger = one(3, Some(Change::Store(4)));
        let found = shows(&ledger, 3, true);
        ledger.found(0, Some(&found));
    }
}
