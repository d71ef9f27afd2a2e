//! Fields of the contexts in commands that make and change queue pairs, completion queues and keys.
//! Source: rdma-core, `providers/mlx5/mlx5_ifc.h` (qpc, mkc); DPDK, `drivers/common/mlx5/mlx5_prm.h` (cqc).
//! A field is named by its first bit, counted from the top bit of the context's first octet, as those files do.

/// A field of a context: up to 64 bits, the most significant first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BitField {
    /// Its first bit.
    pub at: usize,
    /// How many bits.
    pub bits: u8,
}

impl BitField {
    const fn new(at: usize, bits: u8) -> Self {
        Self { at, bits }
    }

    /// The field's value in `context`; `None` if the context is too short.
    #[must_use]
    pub fn get(self, context: &[u8]) -> Option<u64> {
        let mut value = 0;
        for bit in self.at..self.at.checked_add(usize::from(self.bits))? {
            let octet = context.get(bit / 8)?;
            value = value << 1 | u64::from(octet >> (7 - bit % 8) & 1);
        }
        Some(value)
    }

    /// Writes `value` to the field; `None`, with nothing written, if the context is too short or the value too large.
    #[must_use]
    pub fn set(self, context: &mut [u8], value: u64) -> Option<()> {
        let last = self
            .at
            .checked_add(usize::from(self.bits))?
            .checked_sub(1)?;
        context.get(last / 8)?;
        if value.checked_shr(u32::from(self.bits)).unwrap_or(0) != 0 {
            return None;
        }
        for place in 0..usize::from(self.bits) {
            let bit = last - place;
            let octet = context.get_mut(bit / 8)?;
            let mask = 1 << (7 - bit % 8);
            if value >> place & 1 == 1 {
                *octet |= mask;
            } else {
                *octet &= !mask;
            }
        }
        Some(())
    }
}

/// Queue pair context.
pub mod qpc {
    use super::BitField;

    /// Octets of the context.
    pub const LEN: usize = 0x740 / 8;
    /// Protection domain.
    pub const PD: BitField = BitField::new(0x28, 24);
    /// Log2 of the longest message: longer ones are a local length error.
    pub const LOG_MSG_MAX: BitField = BitField::new(0x43, 5);
    /// Log2 of the receive WQEs.
    pub const LOG_RQ_SIZE: BitField = BitField::new(0x49, 4);
    /// Log2 of a receive WQE's octets, less 4.
    pub const LOG_RQ_STRIDE: BitField = BitField::new(0x4d, 3);
    /// Log2 of the send queue's basic blocks.
    pub const LOG_SQ_SIZE: BitField = BitField::new(0x51, 4);
    /// The peer's number.
    pub const REMOTE_QPN: BitField = BitField::new(0xa8, 24);
    /// Retries of the transport.
    pub const RETRY_COUNT: BitField = BitField::new(0x38d, 3);
    /// Retries while the peer has no receive WQE; 7 is for ever.
    pub const RNR_RETRY: BitField = BitField::new(0x390, 3);
    /// Completion queue of sends.
    pub const CQN_SEND: BitField = BitField::new(0x3e8, 24);
    /// What atomics a peer may do: see [`ATOMIC_EXTENDED`].
    pub const ATOMIC_MODE: BitField = BitField::new(0x48c, 4);
    /// Peers may read.
    pub const REMOTE_READ: BitField = BitField::new(0x490, 1);
    /// Peers may write.
    pub const REMOTE_WRITE: BitField = BitField::new(0x491, 1);
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: BitField = BitField::new(0x492, 1);
    /// The receive queue is managed: runs as far as `RCV_EN` says.
    pub const CD_SLAVE_RECEIVE: BitField = BitField::new(0x49d, 1);
    /// The send queue is managed: runs as far as `SEND_EN` says.
    pub const CD_SLAVE_SEND: BitField = BitField::new(0x49e, 1);
    /// The send queue may hold WAIT, `SEND_EN` and `RCV_EN`.
    pub const CD_MASTER: BitField = BitField::new(0x49f, 1);
    /// Completion queue of receives.
    pub const CQN_RECEIVE: BitField = BitField::new(0x4e8, 24);
    /// Data in CQEs of requests; 0 for none.
    pub const CS_REQUEST: BitField = BitField::new(0x630, 8);
    /// Data in CQEs of responses; 0 for none.
    pub const CS_RESPONSE: BitField = BitField::new(0x638, 8);
    /// The doorbell record lies in a umem.
    pub const DBR_UMEM_VALID: BitField = BitField::new(0x683, 1);
    /// Which umem.
    pub const DBR_UMEM_ID: BitField = BitField::new(0x720, 32);

    /// [`ATOMIC_MODE`]: as InfiniBand says.
    pub const ATOMIC_IB: u64 = 1;
    /// [`ATOMIC_MODE`]: 8 octets only.
    pub const ATOMIC_CX: u64 = 2;
    /// [`ATOMIC_MODE`]: masked ones on up to 8 octets.
    pub const ATOMIC_EXTENDED: u64 = 3;
}

/// Completion queue context.
pub mod cqc {
    use super::BitField;

    /// Octets of a CQE: 0 for 64.
    pub const CQE_SIZE: BitField = BitField::new(0x08, 3);
    /// Collapsed: all CQEs overwrite the first.
    pub const COLLAPSED: BitField = BitField::new(0x0b, 1);
    /// Overrun ignored: software need not say what it has read.
    pub const OVERRUN_IGNORE: BitField = BitField::new(0x0e, 1);
    /// CQEs may be compressed.
    pub const COMPRESSION: BitField = BitField::new(0x11, 1);
    /// Log2 of the CQEs.
    pub const LOG_SIZE: BitField = BitField::new(0x63, 5);
}

/// Key context.
pub mod mkc {
    use super::BitField;

    /// Octets of the context.
    pub const LEN: usize = 64;
    /// Nobody may use it yet.
    pub const FREE: BitField = BitField::new(0x01, 1);
    /// High bits of the access mode.
    pub const ACCESS_MODE_HIGH: BitField = BitField::new(0x03, 3);
    /// Writes of one message may land in any order.
    pub const RELAXED_ORDERING_WRITE: BitField = BitField::new(0x0d, 1);
    /// UMRs may change it.
    pub const UMR_ENABLED: BitField = BitField::new(0x10, 1);
    /// Atomics.
    pub const ATOMIC: BitField = BitField::new(0x11, 1);
    /// Remote writes.
    pub const REMOTE_WRITE: BitField = BitField::new(0x12, 1);
    /// Remote reads.
    pub const REMOTE_READ: BitField = BitField::new(0x13, 1);
    /// Local writes.
    pub const LOCAL_WRITE: BitField = BitField::new(0x14, 1);
    /// Local reads.
    pub const LOCAL_READ: BitField = BitField::new(0x15, 1);
    /// Low bits of the access mode.
    pub const ACCESS_MODE_LOW: BitField = BitField::new(0x16, 2);
    /// The one QP that may use it; all ones for any.
    pub const QPN: BitField = BitField::new(0x20, 24);
    /// The low eight bits of the key.
    pub const TAG: BitField = BitField::new(0x38, 8);
    /// A peer's Send with Invalidate may end it.
    pub const REMOTE_INVALIDATE: BitField = BitField::new(0x67, 1);
    /// Protection domain.
    pub const PD: BitField = BitField::new(0x68, 24);
    /// Its first address.
    pub const START: BitField = BitField::new(0x80, 64);
    /// Its length.
    pub const LENGTH: BitField = BitField::new(0xc0, 64);
    /// Length of the translation list, in segments of 16 octets.
    pub const LIST_SEGMENTS: BitField = BitField::new(0x1a0, 32);

    /// Access mode: pages.
    pub const MODE_MTT: u8 = 1;
    /// Access mode: pieces of other keys, each with a length.
    pub const MODE_KLM: u8 = 2;
    /// Access mode: pieces of other keys, all of one size.
    pub const MODE_KSM: u8 = 3;
    /// Access mode: a key of another function.
    pub const MODE_CROSSING: u8 = 6;

    /// Sets the access mode, whose bits lie in two fields; `None` above 31 or if the context is too short.
    #[must_use]
    pub fn set_access_mode(context: &mut [u8], mode: u8) -> Option<()> {
        ACCESS_MODE_HIGH.set(context, u64::from(mode >> 2))?;
        ACCESS_MODE_LOW.set(context, u64::from(mode & 3))
    }
}

/// Opcodes of the commands.
pub mod command {
    /// Asks what the device can do.
    pub const QUERY_HCA_CAP: u16 = 0x100;
    /// Makes a key.
    pub const CREATE_MKEY: u16 = 0x200;
    /// Makes a completion queue.
    pub const CREATE_CQ: u16 = 0x400;
    /// Makes a queue pair.
    pub const CREATE_QP: u16 = 0x500;
    /// Queue pair: reset to initialised.
    pub const RST2INIT_QP: u16 = 0x502;
    /// Queue pair: initialised to ready to receive.
    pub const INIT2RTR_QP: u16 = 0x503;
    /// Queue pair: ready to receive to ready to send.
    pub const RTR2RTS_QP: u16 = 0x504;
    /// Queue pair: to error.
    pub const TO_ERROR_QP: u16 = 0x507;
    /// Queue pair: to reset.
    pub const TO_RESET_QP: u16 = 0x50a;
    /// Asks for a queue pair's context.
    pub const QUERY_QP: u16 = 0x50b;
    /// Makes an object, such as an alias of another function's key.
    pub const CREATE_GENERAL_OBJECT: u16 = 0xa00;
    /// Lets another function make an alias of an object.
    pub const ALLOW_OTHER_VHCA_ACCESS: u16 = 0xb16;
}
