//! Keys of another function: it allows one, this one makes an alias of it.
//! Source: Linux, `include/linux/mlx5/mlx5_ifc.h` (`allow_other_vhca_access_in`, `alias_context`, `create_alias_obj_in`); openucx,
//! `src/uct/ib/mlx5/dv/ib_mlx5dv_md.c` (what the metadata of a key's alias is).
//! Octets of ALLOW: 18..20 Type, 20..24 Object, 32..64 Access key. Of an alias, behind the header of 16: 0..2 Function,
//! 4..8 Object, 16..48 Access key, 48..64 Metadata: the protection domain.

use crate::bits::Bits;
use crate::command::{Command, Opcode};
use kbtp_mlx5::Mkey;

/// Type of a key as an object.
pub const MKEY: u16 = 0xff01;

/// Octets of an access key.
pub const ACCESS_KEY: usize = 32;

/// `ALLOW_OTHER_VHCA_ACCESS`: whoever shows the access key may make an alias of the key with this index.
#[must_use]
pub fn allow(mkey_index: u32, access_key: &[u8; ACCESS_KEY]) -> Command {
    let mut command = Command::new(Opcode::AllowOtherVhcaAccess, 64);
    command.set(Bits::new(0x90, 16), MKEY);
    command.set(Bits::new(0xa0, 32), mkey_index);
    command.put(32, access_key);
    command
}

/// `CREATE_GENERAL_OBJECT`: an alias of a key of another function, in a protection domain of this one.
#[must_use]
pub fn create(
    vhca_id: u16,
    mkey_index: u32,
    access_key: &[u8; ACCESS_KEY],
    domain: u32,
) -> Command {
    const HEADER: u16 = 0x80;
    let mut command = Command::new(Opcode::CreateGeneralObject, 16 + 64);
    // An alias, and not an object of this function.
    command.set(Bits::new(0x30, 16), MKEY);
    command.set(Bits::new(0x60, 1), 1_u8);
    command.set(Bits::new(0x00, 16).behind(HEADER), vhca_id);
    command.set(Bits::new(0x20, 32).behind(HEADER), mkey_index);
    command.put(16 + 16, access_key);
    // Of four words of metadata, a key's alias uses the first.
    command.set(Bits::new(0x180, 32).behind(HEADER), domain);
    command
}

/// The alias as a key.
#[must_use]
pub const fn key(object: u32, tag: u8) -> Mkey {
    Mkey(object << 8 | tag as u32)
}
