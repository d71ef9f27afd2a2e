//! `CREATE_MKEY`: keys over memory, over other keys, and such that a UMR makes something of.
//! Source: rdma-core, `providers/mlx5/mlx5_ifc.h`, `create_mkey_in`, `mkc`; openucx, `src/uct/ib/mlx5/dv/ib_mlx5_ifc.h`
//! (`mkey_umem_id` and the offset behind it).
//! Octets: 12 flags, 16..80 key context, 96..100 length of the list in 16 octets, 100..104 memory, 104..112 where in
//! it, from 272 on the list.

use crate::bits::Bits;
use crate::command::{Command, Opcode};
use kbtp_mlx5::{AccessRights, Klm, KsmEntry, Qpn};

/// Octets of the request without a list.
const LEN: usize = 0x880 / 8;
/// Where the key context starts.
const CONTEXT: u16 = 0x80;

const UMEM_VALID: Bits = Bits::new(0x61, 1);
const LIST_LEN: Bits = Bits::new(0x300, 32);
const UMEM: Bits = Bits::new(0x320, 32);
const UMEM_OFFSET: Bits = Bits::new(0x340, 64);

const fn context(at: u16, len: u8) -> Bits {
    Bits::new(at, len).behind(CONTEXT)
}

const FREE: Bits = context(0x01, 1);
const MODE_HIGH: Bits = context(0x03, 3);
const RELAXED: Bits = context(0x0d, 1);
const UMR_ENABLED: Bits = context(0x10, 1);
const RIGHTS: Bits = context(0x11, 5);
const MODE_LOW: Bits = context(0x16, 2);
const QPN: Bits = context(0x20, 24);
const TAG: Bits = context(0x38, 8);
const LENGTH_64: Bits = context(0x60, 1);
const REMOTE_INVALIDATE: Bits = context(0x67, 1);
const DOMAIN: Bits = context(0x68, 24);
const START: Bits = context(0x80, 64);
const LENGTH: Bits = context(0xc0, 64);
const TRANSLATIONS: Bits = context(0x1a0, 32);
const LOG_SIZE: Bits = context(0x1db, 5);

/// What a key is in all modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Protection domain.
    pub domain: u32,
    /// What it allows.
    pub rights: AccessRights,
    /// Its first address.
    pub start: u64,
    /// Its octets.
    pub len: u64,
    /// The low octet of the key.
    pub tag: u8,
    /// The only queue pair that may use it; `None` for any.
    pub qpn: Option<Qpn>,
    /// Whether a peer's Send with Invalidate may end it.
    pub remote_invalidate: bool,
    /// Whether writes may land in any order.
    pub relaxed_ordering: bool,
}

/// How addresses become octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Mode {
    Pages = 1,
    Pieces = 2,
    EqualPieces = 3,
}

impl Key {
    fn command(&self, mode: Mode) -> Command {
        let mut command = Command::new(Opcode::CreateMkey, LEN);
        let mode = u64::from(mode as u8);
        command.set(MODE_HIGH, mode >> 2);
        command.set(MODE_LOW, mode);
        command.set(RELAXED, u8::from(self.relaxed_ordering));
        // An atomic, remote write, remote read, local write, local read: the order that rights have on the wire.
        command.set(RIGHTS, self.rights.0 >> 2);
        command.set(QPN, self.qpn.map_or(Qpn::MAX, Qpn::get));
        command.set(TAG, self.tag);
        // A length of 2^64 has a bit of its own; no key here is so long.
        command.set(LENGTH_64, 0_u8);
        command.set(REMOTE_INVALIDATE, u8::from(self.remote_invalidate));
        command.set(DOMAIN, self.domain);
        command.set(START, self.start);
        command.set(LENGTH, self.len);
        command
    }

    /// Over registered memory, from an octet on.
    #[must_use]
    pub fn over_memory(&self, umem: u32, offset: u64) -> Command {
        let mut command = self.command(Mode::Pages);
        command.set(UMEM_VALID, 1_u8);
        command.set(UMEM, umem);
        command.set(UMEM_OFFSET, offset);
        command.set(LOG_SIZE, 12_u8);
        // The memory's pages are known to the device; what is counted here is not looked at, but may not be zero.
        let pages = self.len.div_ceil(1 << 12).max(1);
        command.set(TRANSLATIONS, pages.div_ceil(2));
        command.set(LIST_LEN, pages.div_ceil(2));
        command
    }

    fn with_list(&self, mode: Mode, list: impl Iterator<Item = [u8; 16]>) -> Command {
        let mut command = self.command(mode);
        let mut count = 0_u64;
        for entry in list {
            command.append(&entry);
            count += 1;
        }
        // Lists are read in lines of 64 octets.
        for _ in count..count.next_multiple_of(4) {
            command.append(&[0; 16]);
        }
        command.set(TRANSLATIONS, count);
        command.set(LIST_LEN, count.next_multiple_of(4));
        command
    }

    /// Over pieces of other keys, one after the other.
    #[must_use]
    pub fn over_pieces(&self, pieces: &[Klm]) -> Command {
        self.with_list(Mode::Pieces, pieces.iter().map(Klm::encode))
    }

    /// Over pieces of 2^`log_size` octets each.
    #[must_use]
    pub fn over_equal_pieces(&self, log_size: u8, pieces: &[KsmEntry]) -> Command {
        let mut command = self.with_list(Mode::EqualPieces, pieces.iter().map(KsmEntry::encode));
        command.set(LOG_SIZE, log_size);
        command
    }

    /// With room for a list of `segments` times 16 octets, that a UMR writes: nobody may use it before.
    #[must_use]
    pub fn for_umr(&self, segments: u32) -> Command {
        let mut command = self.command(Mode::Pieces);
        command.set(FREE, 1_u8);
        command.set(UMR_ENABLED, 1_u8);
        command.set(TRANSLATIONS, segments.next_multiple_of(4));
        command
    }
}
