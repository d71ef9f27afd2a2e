//! `QUERY_HCA_CAP`: what a device can do.
//! Source: rdma-core, `providers/mlx5/mlx5_ifc.h`, `cmd_hca_cap`, `atomic_caps`; Linux, `include/linux/mlx5/mlx5_ifc.h`,
//! `cmd_hca_cap_2` (what other functions may be allowed).

use crate::bits::Bits;
use crate::command::{Command, Opcode};

/// Which of a device's capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// General.
    General = 0x00,
    /// Atomics.
    Atomic = 0x03,
    /// General, second page.
    General2 = 0x20,
}

/// Octets of an answer.
pub const ANSWER: usize = 0x8080 / 8;

/// Where capabilities start in an answer.
const AT: u16 = 0x80;

/// Asks for what the device does now (and not for what it could be set to).
#[must_use]
pub fn query(kind: Kind) -> Command {
    let mut command = Command::new(Opcode::QueryHcaCap, 16);
    command.modifier((kind as u16) << 1 | 1);
    command
}

const fn field(at: u16, len: u8) -> Bits {
    Bits::new(at, len).behind(AT)
}

/// What chains ask of the general capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a capability of its own, there or not"
)]
pub struct General {
    /// The number of this function.
    pub vhca_id: u16,
    /// Queue pairs may wait and be waited for, enable and be enabled.
    pub cross_channel: bool,
    /// Atomics.
    pub atomic: bool,
    /// Repeat blocks in keys.
    pub repeat_block: bool,
    /// UMRs may make keys of keys.
    pub umr_indirect: bool,
    /// Log2 of the basic blocks of a queue.
    pub log_max_queue: u8,
    /// Log2 of the pieces of a key.
    pub log_max_pieces: u8,
}

impl General {
    /// In an answer.
    #[must_use]
    pub fn decode(answer: &[u8]) -> Self {
        let small = |at, len| u8::try_from(field(at, len).get(answer)).unwrap_or(u8::MAX);
        Self {
            vhca_id: u16::try_from(field(0x30, 16).get(answer)).unwrap_or(0),
            cross_channel: field(0x22c, 1).is_set(answer),
            atomic: field(0x21e, 1).is_set(answer),
            repeat_block: !field(0x206, 1).is_set(answer),
            umr_indirect: !field(0x209, 1).is_set(answer),
            log_max_queue: small(0x88, 8),
            log_max_pieces: small(0x11a, 6),
        }
    }

    /// What is missing for chains, in words; `None` if nothing is.
    #[must_use]
    pub fn lacks(&self) -> Option<&'static str> {
        match self {
            Self {
                cross_channel: false,
                ..
            } => Some("queue pairs that wait for one another (cd)"),
            Self { atomic: false, .. } => Some("atomics"),
            Self {
                repeat_block: false,
                ..
            } => Some("repeat blocks in keys"),
            Self {
                umr_indirect: false,
                ..
            } => Some("keys of keys by UMR"),
            Self { log_max_queue, .. } if *log_max_queue < 11 => {
                Some("queues of 2048 basic blocks")
            }
            Self { log_max_pieces, .. } if *log_max_pieces < 16 => Some("keys of 65536 pieces"),
            _ => None,
        }
    }
}

/// What chains ask of the capabilities for atomics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Atomics {
    /// Replies of 8 octets come in the byte order of the host.
    pub reply_in_host_order: bool,
    /// Operations: bit 0 compare-and-swap, 1 FetchAdd, 2 and 3 the same, masked.
    pub operations: u16,
    /// Sizes that queue pairs may use: bit n for 2^n octets.
    pub sizes: u16,
}

impl Atomics {
    /// In an answer.
    #[must_use]
    pub fn decode(answer: &[u8]) -> Self {
        let half = |at| u16::try_from(field(at, 16).get(answer)).unwrap_or(0);
        Self {
            reply_in_host_order: field(0x40, 2).get(answer) == 1,
            operations: half(0x90),
            sizes: half(0xb0),
        }
    }

    /// Whether masked operations on 8 octets are there.
    #[must_use]
    pub const fn masked_8(&self) -> bool {
        self.operations & 0b1100 == 0b1100 && self.sizes & 1 << 3 != 0
    }
}

/// All of what is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// General.
    pub general: General,
    /// Of atomics.
    pub atomics: Atomics,
    /// Of sharing; `None` on a device that does not know it.
    pub sharing: Option<Sharing>,
}

impl Capabilities {
    /// What is missing for chains, each in words.
    #[must_use]
    pub fn lacks(&self) -> Vec<&'static str> {
        let masked = self.atomics.masked_8();
        let masked = (!masked).then_some("masked atomics of 8 octets");
        self.general.lacks().into_iter().chain(masked).collect()
    }
}

/// What may be shared with other functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// Which objects of this function may stand for which of another.
    pub object_to_object: u32,
    /// Which objects of this function others may be allowed to use.
    pub allowed: u64,
}

impl Sharing {
    /// A key of this function may stand for one of another.
    /// Source: openucx, `src/uct/ib/mlx5/dv/ib_mlx5dv_md.c` (what it asks before it shares a key).
    const LOCAL_KEY_TO_REMOTE_KEY: u32 = 1 << 8;

    /// Whether keys may be aliases of another function's. Whether this function's may be allowed the device says when it is asked to
    /// allow one.
    #[must_use]
    pub const fn shares_keys(&self) -> bool {
        self.object_to_object & Self::LOCAL_KEY_TO_REMOTE_KEY != 0
    }

    /// In an answer.
    #[must_use]
    pub fn decode(answer: &[u8]) -> Self {
        Self {
            object_to_object: field(0xe0, 32).get32(answer),
            allowed: field(0x100, 64).get(answer),
        }
    }
}
