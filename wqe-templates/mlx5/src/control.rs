//! Control segment: the first 16 octets of every send WQE.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_wqe_ctrl_seg`; Linux, include/linux/mlx5/qp.h (fence modes).
//! Octets: 0 Modifier, 1..3 Index, 3 Opcode, 4..7 QPN, 7 Length in segments (6 bits), 8 Signature, 9..11 DCI stream,
//! 11 Fence (7..5), Completion (3..2), Solicited (1), 12..16 Immediate.
//! Not checked here: that length, modifier and opcode fit together ([`Wqe`](crate::Wqe) does), and reserved bits, which
//! the device ignores and `encode` leaves zero.

use crate::{DecodeError, Opcode, Qpn, WqeIndex};
use kbtp_wire::fixed::{be16, be32, get, put, put16, put32};

/// Whether a WQE waits for those before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Fence {
    /// It does not.
    #[default]
    None = 0,
    /// For those of this initiator that change memory keys.
    InitiatorSmall = 1,
    /// For reads and atomics before it.
    Fence = 2,
    /// For everything before it.
    StrongOrdering = 3,
    /// Both `Fence` and `InitiatorSmall`: what a Verbs fence asks for.
    FenceAndSmall = 4,
}

impl Fence {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::None,
            1 => Self::InitiatorSmall,
            2 => Self::Fence,
            3 => Self::StrongOrdering,
            4 => Self::FenceAndSmall,
            _ => return None,
        })
    }

    /// Whether the data that earlier reads and atomics fetch are in place before this WQE gathers or goes out.
    #[must_use]
    pub const fn orders_reads(self) -> bool {
        matches!(
            self,
            Self::Fence | Self::StrongOrdering | Self::FenceAndSmall
        )
    }
}

/// When a WQE writes a CQE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Signal {
    /// On an error.
    #[default]
    OnError = 0,
    /// On the first error.
    OnFirstError = 1,
    /// Always.
    Always = 2,
    /// Always, with an event.
    AlwaysWithEvent = 3,
}

impl Signal {
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::OnError,
            1 => Self::OnFirstError,
            2 => Self::Always,
            _ => Self::AlwaysWithEvent,
        }
    }

    /// Whether a WQE that succeeds writes a CQE.
    #[must_use]
    pub const fn on_success(self) -> bool {
        matches!(self, Self::Always | Self::AlwaysWithEvent)
    }
}

/// A control segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    /// Modifier of the opcode.
    pub modifier: u8,
    /// Where the WQE lies.
    pub index: WqeIndex,
    /// What the WQE does.
    pub opcode: Opcode,
    /// The queue pair it belongs to.
    pub qpn: Qpn,
    /// Its length in segments, this one included: 0 to 63.
    pub segments: u8,
    /// Check of the WQE, for queues that ask for it.
    pub signature: u8,
    /// DCI stream channel.
    pub stream: u16,
    /// What it waits for.
    pub fence: Fence,
    /// When it writes a CQE.
    pub signal: Signal,
    /// Whether the receiver's CQE is solicited.
    pub solicited: bool,
    /// Immediate data, key to invalidate, or key to change.
    pub immediate: u32,
}

impl Control {
    /// Octets of the segment.
    pub const LEN: usize = 16;

    /// Bits of the length.
    const SEGMENTS_MASK: u8 = 0x3f;
    const FENCE_SHIFT: u8 = 5;
    const SIGNAL_SHIFT: u8 = 2;
    const SOLICITED: u8 = 1 << 1;

    /// A control segment that asks for nothing special; the length is filled in when the WQE is put together.
    #[must_use]
    pub const fn new(opcode: Opcode, qpn: Qpn, index: WqeIndex) -> Self {
        Self {
            modifier: 0,
            index,
            opcode,
            qpn,
            segments: 0,
            signature: 0,
            stream: 0,
            fence: Fence::None,
            signal: Signal::OnError,
            solicited: false,
            immediate: 0,
        }
    }

    /// The segment in these octets.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] for an opcode or a fence mode that is not known here.
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let [opcode] = get::<3, 1, _>(octets);
        let [modes] = get::<11, 1, _>(octets);
        let [modifier] = get::<0, 1, _>(octets);
        let [length] = get::<7, 1, _>(octets);
        let [signature] = get::<8, 1, _>(octets);
        let fence = modes >> Self::FENCE_SHIFT;
        Ok(Self {
            modifier,
            index: WqeIndex(be16::<1, _>(octets)),
            opcode: Opcode::from_wire(opcode).ok_or_else(|| DecodeError::Unknown {
                field: "Opcode",
                value: u64::from(opcode),
            })?,
            qpn: Qpn::truncate(be32::<4, _>(octets) >> 8),
            segments: length & Self::SEGMENTS_MASK,
            signature,
            stream: be16::<9, _>(octets),
            fence: Fence::from_bits(fence).ok_or_else(|| DecodeError::Unknown {
                field: "Fence",
                value: u64::from(fence),
            })?,
            signal: Signal::from_bits(modes >> Self::SIGNAL_SHIFT),
            solicited: modes & Self::SOLICITED != 0,
            immediate: be32::<12, _>(octets),
        })
    }

    /// The octets of this segment. Of `segments`, the low six bits.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put::<0, 1, _>(&mut octets, [self.modifier]);
        put16::<1, _>(&mut octets, self.index.0);
        put::<3, 1, _>(&mut octets, [self.opcode.to_wire()]);
        let length = u32::from(self.segments & Self::SEGMENTS_MASK);
        put32::<4, _>(&mut octets, self.qpn.get() << 8 | length);
        put::<8, 1, _>(&mut octets, [self.signature]);
        put16::<9, _>(&mut octets, self.stream);
        let solicited = if self.solicited { Self::SOLICITED } else { 0 };
        let modes = (self.fence as u8) << Self::FENCE_SHIFT
            | (self.signal as u8) << Self::SIGNAL_SHIFT
            | solicited;
        put::<11, 1, _>(&mut octets, [modes]);
        put32::<12, _>(&mut octets, self.immediate);
        octets
    }
}
