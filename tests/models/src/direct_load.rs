//! Direct Load beside everything that changes an entry and its block (draft, sections 3.2, 6.2 to 6.4 and 6.6).
//!
//! The reader's 16-octet reads tear: its words are read one at a time, or two, in any order. The writer's stores to the
//! entry are visible one word at a time. Block contents are two halves, read and written one at a time. A second handle
//! takes and gives back blocks of the same pool, so that the block of a stale entry holds another's data.
//!
//! What section 6.6 asks for (the same Generation, VALID and SEALED before and after) is enough where a read takes its
//! words from the first to the last. Where it takes them in any order it is not, and comparing the whole entry is not
//! either: a first read may join an old Block Offset to a new Generation, and the second the same Generation to the Block
//! Offset of the next binding. The reader must know the Generation before the read that names the block
//! (docs/adr/0014): [`Known`].
//!
//! | step | function of the product |
//! |---|---|
//! | `Unbind` | `Open::free`, `entry::unbind` |
//! | `Give` | `Pool::release`, `Pool::put_back` |
//! | `Take` | `Pool::take`, `Pool::consume` |
//! | `Data` | `write_inline`, or the RDMA Read of a store |
//! | `Store(word)` | `entry::bind` or `entry::update`, one of its stores |
//! | `Other` | the same of another handle, as far as it touches the block |
//! | `ReadEntry(word)`, `ReadData` | the RDMA Reads of `Act::ReadEntry` and `Act::ReadBlock` |
//! | `Judge` | `Initiator::first_entry`, `second_entry` |

use stateright::{Model, Property};

/// Which rule is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// None: as the product does it.
    AsBuilt,
    /// Flags and Generation are written before the data of the block.
    EntryBeforeData,
    /// Flags and Generation are written before Data Length and Block Offset.
    ControlFirst,
    /// A free leaves the Generation as it is, and so does the bind after it.
    GenerationKept,
    /// The block goes back to the ring before the entry is unbound.
    ReturnedFirst,
    /// The reader takes the block after one look at the entry.
    OneLook,
    /// The reader takes blocks that are not sealed.
    UnsealedTaken,
    /// The reader compares Flags and Generation alone, as section 6.6 has it, though its reads tear.
    GenerationAlone,
    /// The reader asks for the entry again before its block has come.
    NotInTurn,
}

/// The model: how large, and by which rules.
#[derive(Clone, Debug)]
pub struct DirectLoad {
    /// Values of the Generation, without zero.
    pub generations: u8,
    /// Free and bind pairs of the handle that is read.
    pub pairs: u8,
    /// Bind unsealed first, then store again and seal.
    pub mapped: bool,
    /// Blocks that the second handle takes.
    pub others: u8,
    /// Blocks, at most four.
    pub blocks: u8,
    /// The reads tear between any two words of 32 bits; else between words of 64.
    pub tears_at_4: bool,
    /// A read takes its words in any order; else from the first to the last.
    pub any_order: bool,
    /// How the reader knows the Generation before the read that names the block.
    pub known: Known,
    /// Times the reader starts over: `DIRECT_LOAD_ATTEMPTS`.
    pub attempts: u8,
    /// Rule left out.
    pub rules: Rules,
}

/// How the reader knows the Generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// It does not.
    Not,
    /// It was told: a completion carried it.
    Told,
    /// It reads the entry once more.
    Read,
}

/// Words of an entry: Flags and Generation, Data Length, Block Offset high, low.
type Words = [u8; 4];

const CONTROL: usize = 0;
const LEN: usize = 1;
const HIGH: usize = 2;
const LOW: usize = 3;
const VALID: u8 = 0x80;
const SEALED: u8 = 0x40;
const GENERATION: u8 = 0x3f;

/// What the writer does, each in its order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Writer {
    /// The entry is bound and sealed.
    Sealed,
    /// It is unbound; the block is the handle's still.
    Unbound(u8),
    /// The block is back in the ring.
    Free,
    /// It has a block, with so many halves of the data written.
    Filling(u8, u8),
    /// It writes the entry; bits of the words that are written.
    Binding(u8, u8),
    /// The entry is bound and not sealed; so many halves of the second store are written.
    Storing(u8),
    /// It writes Data Length, then SEALED.
    Sealing(bool),
}

/// Where the reader is; the mask says which parts have been read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reader {
    /// First read of the entry.
    Entry(u8),
    /// The block.
    Block(u8),
    /// Second read of the entry.
    Check(u8),
    /// It took what it read.
    Took,
    /// It gave up.
    Gave,
}

/// One state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    entry: Words,
    /// Stamps in the halves of each block; 0: another handle's.
    data: Vec<[u8; 2]>,
    free: u8,
    writer: Writer,
    /// The store under way, or the one that is bound.
    stamp: u8,
    /// Generation that each stamp was sealed under; 0: not sealed yet.
    sealed: Vec<u8>,
    pairs: u8,
    /// Block of the second handle, and the halves it has written.
    other: Option<(u8, u8)>,
    others: u8,
    reader: Reader,
    attempt: u8,
    /// Generation that the reader knows; 0: none.
    hint: u8,
    first: Words,
    second: Words,
    read: [u8; 2],
    overtaken: bool,
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The writer frees the handle.
    Unbind,
    /// Its block goes back.
    Give,
    /// It takes a block.
    Take(u8),
    /// It writes half of the data.
    Data,
    /// It writes a word of the entry.
    Store(usize),
    /// The second handle takes a block.
    OtherTake(u8),
    /// It writes half of it.
    OtherData,
    /// It gives the block back.
    OtherGive,
    /// The reader reads one word of the entry, or two.
    ReadEntry(usize),
    /// It reads half of the block.
    ReadData(usize),
    /// It asks for the entry before the block has come.
    ReadEarly(usize),
    /// It looks at what it has.
    Judge,
}

/// Octets of data, in halves, that a store has.
const fn len_of(stamp: u8) -> u8 {
    1 + (stamp >> 1) % 2
}

impl DirectLoad {
    fn next_generation(&self, control: u8) -> u8 {
        let generation = control & GENERATION;
        if generation == self.generations {
            1
        } else {
            generation + 1
        }
    }

    fn bound(&self, state: &State, block: u8) -> Words {
        let generation = if self.rules == Rules::GenerationKept {
            state.entry[CONTROL] & GENERATION
        } else {
            self.next_generation(state.entry[CONTROL])
        };
        let sealed = if self.mapped { 0 } else { SEALED };
        [
            VALID | sealed | generation,
            len_of(state.stamp),
            block >> 1,
            block & 1,
        ]
    }

    /// Words that may be written next, of those that are not written yet.
    fn may_store(&self, written: u8) -> impl Iterator<Item = usize> {
        let control_last = self.rules != Rules::ControlFirst;
        (0..4).filter(move |word| {
            let others = written & 0b1110 == 0b1110;
            let control = written & 1 == 1;
            let turn = match (*word == CONTROL, control_last) {
                (true, true) => others,
                (true, false) | (false, true) => true,
                (false, false) => control,
            };
            written & (1 << word) == 0 && turn
        })
    }

    fn store(&self, state: &mut State, block: u8, written: u8, word: usize) {
        let entry = self.bound(state, block);
        if word == CONTROL {
            state.entry[CONTROL] = entry[CONTROL];
        } else {
            state.entry[word] = entry[word];
        }
        let written = written | 1 << word;
        state.writer = Writer::Binding(block, written);
        if written == 0b1111 {
            self.is_bound(state, block);
        }
    }

    fn is_bound(&self, state: &mut State, block: u8) {
        if self.rules == Rules::EntryBeforeData
            && state.data[usize::from(block)] != [state.stamp; 2]
        {
            state.writer = Writer::Filling(block, 0);
        } else if self.mapped {
            state.writer = Writer::Storing(0);
        } else {
            Self::seal(state);
        }
    }

    fn seal(state: &mut State) {
        state.writer = Writer::Sealed;
        state.sealed[usize::from(state.stamp)] = state.entry[CONTROL] & GENERATION;
    }

    fn block_of(words: Words) -> u8 {
        words[HIGH] << 1 | words[LOW]
    }

    fn data(&self, state: &mut State) {
        match state.writer {
            Writer::Filling(block, half) => {
                state.data[usize::from(block)][usize::from(half)] = state.stamp;
                state.writer = Writer::Filling(block, half + 1);
                if half == 1 {
                    state.writer = Writer::Binding(block, 0);
                    if self.rules == Rules::EntryBeforeData {
                        self.is_bound(state, block);
                    }
                }
            }
            Writer::Storing(half) => {
                if half == 0 {
                    state.stamp += 1;
                }
                let block = Self::block_of(state.entry);
                state.data[usize::from(block)][usize::from(half)] = state.stamp;
                state.writer = if half == 1 {
                    Writer::Sealing(false)
                } else {
                    Writer::Storing(half + 1)
                };
            }
            _ => {}
        }
    }

    /// Bits of the words that one read of the reader's memory system takes together.
    fn together(&self, word: usize) -> u8 {
        match (self.tears_at_4, word) {
            (true, _) => 1 << word,
            (false, CONTROL | LEN) => 0b0011,
            (false, _) => 0b1100,
        }
    }

    fn read(&self, entry: Words, words: &mut Words, mask: u8, word: usize) -> u8 {
        let bits = self.together(word);
        for at in 0..4 {
            if bits & (1 << at) != 0 {
                words[at] = entry[at];
            }
        }
        mask | bits
    }

    fn wanted(&self, words: Words) -> bool {
        let flags = if self.rules == Rules::UnsealedTaken {
            VALID
        } else {
            VALID | SEALED
        };
        words[CONTROL] & flags == flags
    }

    fn readable(&self, words: Words) -> bool {
        (1..=2).contains(&words[LEN]) && Self::block_of(words) < self.blocks
    }

    /// `first_entry`.
    fn first(&self, state: &mut State) {
        state.read = [0; 2];
        let generation = state.first[CONTROL] & GENERATION;
        let fits = match self.known {
            Known::Not => true,
            Known::Told | Known::Read => generation == state.hint,
        };
        let gives_up = !self.wanted(state.first) || (!fits && self.known == Known::Told);
        state.reader = if gives_up {
            Reader::Gave
        } else if !fits {
            state.hint = generation;
            state.first = [0; 4];
            Reader::Entry(0)
        } else if self.readable(state.first) {
            Reader::Block(0)
        } else {
            // It has to say the same twice before that is believed.
            Reader::Check(0)
        };
    }

    /// `second_entry`.
    fn judge(&self, state: &mut State) {
        match state.reader {
            Reader::Entry(_) => self.first(state),
            Reader::Block(_) if self.rules == Rules::OneLook => state.reader = Reader::Took,
            Reader::Check(_) => {
                let same = if self.rules == Rules::GenerationAlone {
                    state.first[CONTROL] == state.second[CONTROL]
                } else {
                    state.first == state.second
                };
                if same {
                    // An implausible entry that stays ends the session.
                    state.reader = if self.readable(state.first) {
                        Reader::Took
                    } else {
                        Reader::Gave
                    };
                } else if state.attempt >= self.attempts {
                    state.reader = Reader::Gave;
                } else {
                    state.attempt += 1;
                    state.first = state.second;
                    self.first(state);
                }
                state.second = [0; 4];
            }
            _ => {}
        }
    }

    fn reader_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let words = if self.tears_at_4 { 0..4 } else { 1..3 };
        let order = if self.any_order { 4 } else { 1 };
        let unread = |mask: u8| move |word: &usize| mask & (1 << word) == 0;
        match state.reader {
            Reader::Entry(0b1111) | Reader::Check(0b1111) => actions.push(Action::Judge),
            Reader::Entry(mask) | Reader::Check(mask) => {
                let next = words.filter(unread(mask)).take(order);
                actions.extend(next.map(Action::ReadEntry));
            }
            Reader::Block(mask) => {
                let halves = usize::from(state.first[LEN]);
                let all = (1 << halves) - 1;
                actions.extend((0..halves).filter(unread(mask)).map(Action::ReadData));
                if mask & all == all && self.rules == Rules::OneLook {
                    actions.push(Action::Judge);
                }
                if self.rules == Rules::NotInTurn && mask == 0 && !state.overtaken {
                    actions.push(Action::ReadEarly(0));
                }
            }
            Reader::Took | Reader::Gave => {}
        }
    }

    fn writer_actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.writer {
            Writer::Sealed if state.pairs > 0 => actions.push(Action::Unbind),
            Writer::Sealed => {}
            Writer::Unbound(_) => actions.push(Action::Give),
            Writer::Free => {
                let free = (0..self.blocks).filter(|b| state.free & (1 << b) != 0);
                actions.extend(free.map(Action::Take));
            }
            Writer::Filling(..) | Writer::Storing(_) => actions.push(Action::Data),
            Writer::Binding(_, written) => {
                actions.extend(self.may_store(written).map(Action::Store));
            }
            Writer::Sealing(len) => actions.push(Action::Store(if len { CONTROL } else { LEN })),
        }
        match state.other {
            Some((_, 2)) => actions.push(Action::OtherGive),
            Some(_) => actions.push(Action::OtherData),
            None if state.others > 0 => {
                let free = (0..self.blocks).filter(|b| state.free & (1 << b) != 0);
                actions.extend(free.map(Action::OtherTake));
            }
            None => {}
        }
    }

    fn other(state: &mut State, action: Action) {
        match (action, state.other) {
            (Action::OtherTake(block), _) => {
                state.others -= 1;
                state.free &= !(1 << block);
                state.other = Some((block, 0));
            }
            (Action::OtherData, Some((block, half))) => {
                state.data[usize::from(block)][usize::from(half)] = 0;
                state.other = Some((block, half + 1));
            }
            (Action::OtherGive, Some((block, _))) => {
                state.free |= 1 << block;
                state.other = None;
            }
            _ => {}
        }
    }

    fn write(&self, state: &mut State, action: Action) {
        match (action, state.writer) {
            (Action::Unbind, _) => {
                let block = Self::block_of(state.entry);
                state.pairs -= 1;
                if self.rules == Rules::ReturnedFirst {
                    state.free |= 1 << block;
                    state.writer = Writer::Unbound(block);
                } else {
                    self.unbind(state);
                    state.writer = Writer::Unbound(block);
                }
            }
            (Action::Give, Writer::Unbound(block)) => {
                if self.rules == Rules::ReturnedFirst {
                    self.unbind(state);
                } else {
                    state.free |= 1 << block;
                }
                state.writer = Writer::Free;
            }
            (Action::Take(block), _) => {
                state.free &= !(1 << block);
                state.stamp += 1;
                state.writer = if self.rules == Rules::EntryBeforeData {
                    Writer::Binding(block, 0)
                } else {
                    Writer::Filling(block, 0)
                };
            }
            (Action::Data, _) => self.data(state),
            (Action::Store(word), Writer::Binding(block, written)) => {
                self.store(state, block, written, word);
            }
            (Action::Store(_), Writer::Sealing(false)) => {
                state.entry[LEN] = len_of(state.stamp);
                state.writer = Writer::Sealing(true);
            }
            (Action::Store(_), Writer::Sealing(true)) => {
                state.entry[CONTROL] |= SEALED;
                Self::seal(state);
            }
            _ => {}
        }
    }

    fn unbind(&self, state: &mut State) {
        state.entry[CONTROL] = if self.rules == Rules::GenerationKept {
            state.entry[CONTROL] & GENERATION
        } else {
            self.next_generation(state.entry[CONTROL])
        };
    }

    /// What was taken is one store, sealed under the Generation that the entry showed.
    fn right(state: &State) -> bool {
        let generation = state.first[CONTROL] & GENERATION;
        let halves = usize::from(state.first[LEN]);
        let read = &state.read[..halves];
        let stamp = read[0];
        stamp != 0
            && read.iter().all(|half| *half == stamp)
            && len_of(stamp) == state.first[LEN]
            && state.sealed[usize::from(stamp)] == generation
    }
}

impl Model for DirectLoad {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let stores = usize::from(self.pairs) * if self.mapped { 2 } else { 1 };
        let mut data = vec![[0; 2]; usize::from(self.blocks)];
        data[0] = [1; 2];
        let mut sealed = vec![0; stores + 2];
        sealed[1] = 1;
        vec![State {
            entry: [VALID | SEALED | 1, len_of(1), 0, 0],
            data,
            free: (1 << self.blocks) - 2,
            writer: Writer::Sealed,
            stamp: 1,
            sealed,
            pairs: self.pairs,
            other: None,
            others: self.others,
            reader: Reader::Entry(0),
            attempt: 1,
            hint: u8::from(self.known == Known::Told),
            first: [0; 4],
            second: [0; 4],
            read: [0; 2],
            overtaken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if matches!(state.reader, Reader::Took | Reader::Gave) {
            // Nothing that comes after changes what was taken.
            return;
        }
        self.reader_actions(state, actions);
        self.writer_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::ReadEntry(word) => match state.reader {
                Reader::Entry(mask) => {
                    let mask = self.read(state.entry, &mut state.first, mask, word);
                    state.reader = Reader::Entry(mask);
                }
                Reader::Check(mask) => {
                    let mask = self.read(state.entry, &mut state.second, mask, word);
                    state.reader = Reader::Check(mask);
                }
                _ => {}
            },
            Action::ReadEarly(_) => {
                state.second = state.entry;
                state.overtaken = true;
            }
            Action::ReadData(half) => {
                if let Reader::Block(mask) = state.reader {
                    let block = usize::from(Self::block_of(state.first));
                    state.read[half] = state.data[block][half];
                    let mask = mask | 1 << half;
                    let all = (1 << state.first[LEN]) - 1;
                    state.reader = match (mask == all, state.overtaken) {
                        (true, true) => Reader::Check(0b1111),
                        (true, false) if self.rules != Rules::OneLook => Reader::Check(0),
                        _ => Reader::Block(mask),
                    };
                }
            }
            Action::Judge => {
                state.overtaken = false;
                self.judge(state);
            }
            Action::OtherTake(_) | Action::OtherData | Action::OtherGive => {
                Self::other(state, action);
            }
            _ => self.write(state, action),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "what is taken is one store of its Generation",
                |_, state: &State| state.reader != Reader::Took || Self::right(state),
            ),
            Property::always(
                "the reader comes to an end",
                |model: &Self, state: &State| {
                    let mut actions = Vec::new();
                    model.reader_actions(state, &mut actions);
                    !actions.is_empty() || matches!(state.reader, Reader::Took | Reader::Gave)
                },
            ),
            Property::sometimes("a load is taken", |_, state: &State| {
                state.reader == Reader::Took
            }),
            Property::sometimes("a later store is taken", |model: &Self, state: &State| {
                state.reader == Reader::Took
                    && (state.read[0] > 1 || model.pairs == 0 || model.known == Known::Told)
            }),
            Property::sometimes("an entry changes under a load", |_, state: &State| {
                state.attempt > 1
            }),
        ]
    }
}
