//! What an initiator knows of its blocks: what it was told is done, and what may or may not have been done.

use crate::stamp::{Origin, differs, stamped};
use kbtp_initiator::Generation;
use std::fmt;
use std::str::FromStr;

/// A stored block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Which of all data ever stored, or [`TORN`].
    pub version: u64,
    /// It does not change any more.
    pub sealed: bool,
}

/// No version: parts of a store that was cut off, in a block that is not sealed.
pub const TORN: u64 = 0;

/// What is to be done to a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Bind it to a block.
    Alloc(Block),
    /// Store into its block, which is not sealed, and seal it.
    Store(u64),
    /// Unbind it.
    Free,
}

/// A handle.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Slot {
    /// What it holds, as far as anything is known.
    pub block: Option<Block>,
    /// Its Generation; none if that is not known.
    pub generation: Option<Generation>,
    /// A change whose outcome is not known.
    pub change: Option<Change>,
}

/// All handles of an initiator, the first one first.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Makes its data unlike everybody else's.
    pub owner: u64,
    /// What is known of each handle.
    pub slots: Vec<Slot>,
    block_size: u32,
    versions: u64,
}

impl Ledger {
    /// Of `handles` handles with nothing in them.
    #[must_use]
    pub fn new(owner: u64, handles: u64, block_size: u32) -> Self {
        Self {
            owner,
            slots: vec![Slot::default(); usize::try_from(handles).unwrap()],
            block_size,
            versions: 0,
        }
    }

    /// A version that was never stored.
    pub const fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// Octets of the data of a version: from nothing to a whole block.
    fn len(&self, version: u64) -> u64 {
        match version % 5 {
            0 => version % 100,
            1 => u64::from(self.block_size),
            _ => version.wrapping_mul(7919) % u64::from(self.block_size),
        }
    }

    fn origin(&self, handle: u64, version: u64) -> Origin {
        Origin {
            owner: self.owner,
            handle,
            version,
        }
    }

    /// The data of a version stored to a handle: of all lengths, stamped, no two alike.
    #[must_use]
    pub fn data(&self, handle: u64, version: u64) -> Vec<u8> {
        let len = usize::try_from(self.len(version)).unwrap();
        stamped(self.origin(handle, version), len)
    }

    /// What is wrong with `data` as the data of a version stored to a handle, in words; none if nothing is.
    #[must_use]
    pub fn wrong(&self, handle: u64, version: u64, data: &[u8]) -> Option<String> {
        let (has, should) = (data.len() as u64, self.len(version));
        differs(self.origin(handle, version), data)
            .or_else(|| (has != should).then(|| format!("{has} octets instead of {should}")))
    }

    /// A change begins.
    pub fn begin(&mut self, handle: u64, change: Change) {
        let slot = self.slot_mut(handle);
        assert_eq!(slot.change, None, "one change of a handle at a time");
        slot.change = Some(change);
        if let Change::Alloc(Block { version, .. }) | Change::Store(version) = change {
            self.versions = self.versions.max(version);
        }
    }

    /// The change was done, and this is the Generation now.
    pub fn done(&mut self, handle: u64, generation: Generation) {
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
    pub fn refused(&mut self, handle: u64) {
        self.slot_mut(handle).change = None;
    }

    /// Checks that what is found at `handle` is what may be there, and takes it as known.
    pub fn found(&mut self, handle: u64, found: Option<&Found>) {
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
                    && (self.wrong(handle, block.version, &found.data).is_none()
                        || (torn && !block.sealed))
            }
            _ => false,
        };
        let Some(now) = possible.into_iter().flatten().find(|block| holds(*block)) else {
            let what = found.map(|f| (f.generation, f.sealed, f.data.len()));
            let wrong = before
                .zip(found)
                .and_then(|(block, found)| self.wrong(handle, block.version, &found.data));
            panic!("initiator {owner}, handle {handle}: {slot:?} shows {what:?}: {wrong:?}");
        };
        if let (Some(Found { generation, .. }), Some(known)) = (found, slot.generation) {
            let expected = match slot.change {
                Some(Change::Alloc(_)) => known.next(),
                _ => known,
            };
            assert_eq!(*generation, expected, "handle {handle}: {slot:?}");
        }
        let now = now.map(|block| match found {
            Some(found) if self.wrong(handle, block.version, &found.data).is_some() => Block {
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

    /// All that is known, as lines of a journal.
    pub fn lines(&self) -> impl Iterator<Item = Line> + '_ {
        let slots = (0..).zip(&self.slots);
        let slots = slots.map(|(handle, slot)| Line::Is(handle, *slot));
        std::iter::once(Line::Versions(self.versions)).chain(slots)
    }

    /// Handles that are bound, if no change is open.
    #[must_use]
    pub fn bound(&self) -> u32 {
        assert!(self.slots.iter().all(|slot| slot.change.is_none()));
        let bound = self.slots.iter().filter(|slot| slot.block.is_some());
        u32::try_from(bound.count()).unwrap()
    }

    /// What is known of a handle.
    #[must_use]
    pub fn slot(&self, handle: u64) -> Slot {
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
pub struct Found {
    /// Its Generation.
    pub generation: Generation,
    /// It is sealed.
    pub sealed: bool,
    /// Its data.
    pub data: Vec<u8>,
}

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// LOAD.
    Load,
    /// A load without the target.
    DirectLoad,
    /// STORE, read by the target.
    Store,
    /// STORE with its data.
    InlineStore,
    /// `ALLOC_STORE`, read by the target.
    Alloc,
    /// `ALLOC_STORE` with its data.
    InlineAlloc,
    /// An allocation without the target, and its BIND.
    Bind,
    /// FREE.
    Free,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Load,
        Self::DirectLoad,
        Self::Store,
        Self::InlineStore,
        Self::Alloc,
        Self::InlineAlloc,
        Self::Bind,
        Self::Free,
    ];

    /// Its name, one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::DirectLoad => "direct-load",
            Self::Store => "store",
            Self::InlineStore => "inline-store",
            Self::Alloc => "alloc",
            Self::InlineAlloc => "inline-alloc",
            Self::Bind => "bind",
            Self::Free => "free",
        }
    }
}

/// A line of the journal that an initiator writes, so that another process knows what it knew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// An operation is about to be sent.
    Starts(u64, Kind),
    /// A change is about to be sent.
    Begin(u64, Change),
    /// The change was done.
    Done(u64, Generation),
    /// It was not.
    Refused(u64),
    /// A load was answered, or will not be.
    Looked(u64),
    /// All that is known of a handle.
    Is(u64, Slot),
    /// How many versions there were.
    Versions(u64),
}

impl Line {
    /// Enters it.
    pub fn enter(self, ledger: &mut Ledger) {
        match self {
            Self::Starts(..) | Self::Looked(_) => {}
            Self::Begin(handle, change) => ledger.begin(handle, change),
            Self::Done(handle, generation) => ledger.done(handle, generation),
            Self::Refused(handle) => ledger.refused(handle),
            Self::Is(handle, slot) => *ledger.slot_mut(handle) = slot,
            Self::Versions(count) => ledger.versions = count,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Starts(handle, kind) => write!(f, "starts {handle} {}", kind.name()),
            Self::Begin(handle, change) => write!(f, "begin {handle} {}", Words(Some(change))),
            Self::Done(handle, generation) => write!(f, "done {handle} {}", generation.get()),
            Self::Refused(handle) => write!(f, "refused {handle}"),
            Self::Looked(handle) => write!(f, "looked {handle}"),
            Self::Is(handle, slot) => {
                let generation = slot.generation.map_or(0, Generation::get);
                let block = Words(slot.block.map(Change::Alloc));
                write!(f, "is {handle} {generation} {block} {}", Words(slot.change))
            }
            Self::Versions(count) => write!(f, "versions {count}"),
        }
    }
}

/// A change as three words.
struct Words(Option<Change>);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Change::Alloc(block)) => {
                write!(f, "alloc {} {}", block.version, u8::from(block.sealed))
            }
            Some(Change::Store(version)) => write!(f, "store {version} 0"),
            Some(Change::Free) => f.write_str("free 0 0"),
            None => f.write_str("none 0 0"),
        }
    }
}

/// The words of a line, one after the other.
struct Reader<'l>(std::str::Split<'l, char>);

/// Words that are no line.
struct NoLine;

impl Reader<'_> {
    fn word(&mut self) -> Result<&str, NoLine> {
        self.0.next().ok_or(NoLine)
    }

    fn number<N: FromStr>(&mut self) -> Result<N, NoLine> {
        self.word()?.parse().map_err(|_| NoLine)
    }

    /// A change, or "none".
    fn change(&mut self) -> Result<Option<Change>, NoLine> {
        let word = self.word()?.to_owned();
        let (version, sealed) = (self.number()?, self.number::<u8>()? == 1);
        Ok(match word.as_str() {
            "alloc" => Some(Change::Alloc(Block { version, sealed })),
            "store" => Some(Change::Store(version)),
            "free" => Some(Change::Free),
            "none" => None,
            _ => return Err(NoLine),
        })
    }

    fn slot(&mut self) -> Result<Slot, NoLine> {
        let generation = Generation::new(self.number()?);
        let block = match self.change()? {
            Some(Change::Alloc(block)) => Some(block),
            None => None,
            _ => return Err(NoLine),
        };
        Ok(Slot {
            block,
            generation,
            change: self.change()?,
        })
    }

    fn kind(&mut self) -> Result<Kind, NoLine> {
        let word = self.word()?;
        let mut all = Kind::ALL.into_iter();
        all.find(|kind| kind.name() == word).ok_or(NoLine)
    }

    fn line(&mut self) -> Result<Line, NoLine> {
        let (word, handle) = (self.word()?.to_owned(), self.number()?);
        let line = match word.as_str() {
            "starts" => Line::Starts(handle, self.kind()?),
            "begin" => Line::Begin(handle, self.change()?.ok_or(NoLine)?),
            "done" => Line::Done(handle, Generation::new(self.number()?).ok_or(NoLine)?),
            "refused" => Line::Refused(handle),
            "looked" => Line::Looked(handle),
            "is" => Line::Is(handle, self.slot()?),
            "versions" => Line::Versions(handle),
            _ => return Err(NoLine),
        };
        match self.0.next() {
            None => Ok(line),
            Some(_) => Err(NoLine),
        }
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Reader(text.split(' '))
            .line()
            .map_err(|NoLine| format!("no line of a journal: {text:?}"))
    }
}

#[cfg(test)]
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
            Line::Looked(3),
            Line::Starts(3, Kind::InlineStore),
            Line::Versions(17),
            Line::Is(3, Slot::default()),
            Line::Is(
                3,
                Slot {
                    block: Some(block),
                    generation: Some(generation),
                    change: Some(Change::Store(8)),
                },
            ),
        ] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        for no_line in ["done 3 0", "begin 3", "done 3 1 1", "begin 3 none 0 0", ""] {
            assert!(no_line.parse::<Line>().is_err(), "{no_line}");
        }
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
            data: ledger.data(0, version),
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
