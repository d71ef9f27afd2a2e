//! Block-table entry: 16 octets in the Table STag, written only by the target.
//! Source: KBTP draft, section 3.2; byte order in memory: profile, P10.
//! Octets: 0..2 Flags, 2..4 Generation, 4..8 Data Length, 8..16 Block Offset.
//! Not checked here: flag bits that the draft does not name (kept as they are), and that a VALID entry has a Generation.

use crate::fixed::{be16, be32, be64, put16, put32, put64};
use crate::{BlockOffset, ByteLen, EntryFlags, Generation};

/// What a handle is bound to.
//= kbtp-3.2-entry-layout
//= kbtp-p10-big-endian-structures
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// VALID, SEALED.
    pub flags: EntryFlags,
    /// `None` only in an entry that was never bound.
    pub generation: Option<Generation>,
    /// Valid octets in the block.
    pub data_len: ByteLen,
    /// The block.
    pub block: BlockOffset,
}

impl TableEntry {
    /// Octets of an entry.
    pub const LEN: usize = 16;

    /// An entry that was never bound: zeros.
    pub const UNBOUND: Self = Self {
        flags: EntryFlags::NONE,
        generation: None,
        data_len: ByteLen(0),
        block: BlockOffset(0),
    };

    /// The entry in these octets.
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        Self {
            flags: EntryFlags(be16::<0, _>(octets)),
            generation: Generation::new(be16::<2, _>(octets)),
            data_len: ByteLen(be32::<4, _>(octets)),
            block: BlockOffset(be64::<8, _>(octets)),
        }
    }

    /// The octets of this entry.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put16::<0, _>(&mut octets, self.flags.0);
        put16::<2, _>(&mut octets, Generation::to_wire(self.generation));
        put32::<4, _>(&mut octets, self.data_len.0);
        put64::<8, _>(&mut octets, self.block.0);
        octets
    }

    /// The entry as its four 32-bit words: Flags and Generation, Data Length, Block Offset high, low. Each word is
    /// what an `AtomicU32` over the entry's octets loads, converted with [`u32::from_be`].
    #[must_use]
    pub const fn from_words(words: [u32; 4]) -> Self {
        let [control, data_len, high, low] = words;
        let [f0, f1, g0, g1] = control.to_be_bytes();
        Self {
            flags: EntryFlags(u16::from_be_bytes([f0, f1])),
            generation: Generation::new(u16::from_be_bytes([g0, g1])),
            data_len: ByteLen(data_len),
            block: BlockOffset(((high as u64) << 32) | low as u64),
        }
    }

    /// The words of [`from_words`](Self::from_words); store each with [`u32::to_be`].
    #[must_use]
    pub fn to_words(&self) -> [u32; 4] {
        let octets = &self.encode();
        [
            be32::<0, _>(octets),
            be32::<4, _>(octets),
            be32::<8, _>(octets),
            be32::<12, _>(octets),
        ]
    }

    /// Whether the handle is bound.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.flags.contains(EntryFlags::VALID)
    }

    /// Whether the block is sealed.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.flags.contains(EntryFlags::SEALED)
    }
}
