//! CQE: 64 octets, what a device writes when a WQE is done.
//! Source: rdma-core, providers/mlx5/mlx5dv.h, `mlx5_cqe64` and `mlx5_err_cqe`; cq.c (owner bit).
//! Octets: 2..4 WQE id, 17 ML path, 22..24 SLID, 24..28 Flags and remote QPN, 32..36 SRQ or user index, 36..40 Immediate or
//! invalidated key, 44..48 Byte count, 48..56 Timestamp, 56..60 Send opcode (8) and QPN (24), 60..62 WQE counter, 62
//! Signature, 63 Opcode (7..4), Format (3..2), Solicited (1), Owner (0).
//! With an error: 32..36 SRQ, 54 Vendor syndrome, 55 Syndrome, 56..64 as above.
//! The rest is ignored in and zero out; a model of a device writes CQEs, software only reads them.

use crate::{DecodeError, Qpn, Syndrome};
use kbtp_wire::fixed::{be16, be32, be64, get, put, put16, put32, put64};

/// What a CQE reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CqeOpcode {
    /// A send WQE is done.
    Request = 0,
    /// A Write with Immediate came.
    ReceivedWriteImmediate = 1,
    /// A Send came.
    ReceivedSend = 2,
    /// A Send with Immediate came.
    ReceivedSendImmediate = 3,
    /// A Send with Invalidate came.
    ReceivedSendInvalidate = 4,
    /// The queue was resized.
    Resize = 5,
    /// No packet.
    NoPacket = 6,
    /// A signature did not match.
    SignatureError = 12,
    /// A send WQE failed.
    RequestError = 13,
    /// A receive WQE failed.
    ResponderError = 14,
    /// Nothing was written here yet.
    Invalid = 15,
}

impl CqeOpcode {
    /// Every opcode, in the order of their values.
    pub const ALL: [Self; 11] = [
        Self::Request,
        Self::ReceivedWriteImmediate,
        Self::ReceivedSend,
        Self::ReceivedSendImmediate,
        Self::ReceivedSendInvalidate,
        Self::Resize,
        Self::NoPacket,
        Self::SignatureError,
        Self::RequestError,
        Self::ResponderError,
        Self::Invalid,
    ];

    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Request,
            1 => Self::ReceivedWriteImmediate,
            2 => Self::ReceivedSend,
            3 => Self::ReceivedSendImmediate,
            4 => Self::ReceivedSendInvalidate,
            5 => Self::Resize,
            6 => Self::NoPacket,
            12 => Self::SignatureError,
            13 => Self::RequestError,
            14 => Self::ResponderError,
            15 => Self::Invalid,
            _ => return None,
        })
    }
}

/// The last octet of a CQE. The device writes it after the rest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpOwn {
    /// What the CQE reports.
    pub opcode: CqeOpcode,
    /// Format: two bits count. Non-zero for CQEs that are compressed or carry data.
    pub format: u8,
    /// Whether the sender asked for an event.
    pub solicited: bool,
    /// Whose turn it is: toggles at each lap of the queue.
    pub owner: bool,
}

impl OpOwn {
    /// What software writes to every CQE of a new queue.
    pub const INITIAL: u8 = 0xf0;

    /// A plain one.
    #[must_use]
    pub const fn new(opcode: CqeOpcode, owner: bool) -> Self {
        Self {
            opcode,
            format: 0,
            solicited: false,
            owner,
        }
    }

    /// What the octet says.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] for an opcode that is not known here.
    pub fn decode(octet: u8) -> Result<Self, DecodeError> {
        Ok(Self {
            opcode: CqeOpcode::from_bits(octet >> 4).ok_or_else(|| DecodeError::Unknown {
                field: "CQE opcode",
                value: u64::from(octet >> 4),
            })?,
            format: octet >> 2 & 3,
            solicited: octet & 2 != 0,
            owner: octet & 1 != 0,
        })
    }

    /// The octet.
    #[must_use]
    pub const fn encode(self) -> u8 {
        (self.opcode as u8) << 4
            | (self.format & 3) << 2
            | (self.solicited as u8) << 1
            | self.owner as u8
    }

    /// Whether the CQE is software's to read: written, and in the lap of the one that software reads as number
    /// `consumer` from a queue of 2^`log_size`.
    #[must_use]
    pub const fn is_ready(self, consumer: u32, log_size: u8) -> bool {
        !matches!(self.opcode, CqeOpcode::Invalid) && self.owner == owner_of(consumer, log_size)
    }
}

/// The owner bit of CQE number `index` in a queue of 2^`log_size`.
#[must_use]
pub const fn owner_of(index: u32, log_size: u8) -> bool {
    match index.checked_shr(log_size as u32) {
        Some(lap) => lap & 1 != 0,
        None => false,
    }
}

/// A CQE of any kind but an error's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completed {
    /// WQE id of a shared or striding receive queue.
    pub wqe_id: u16,
    /// Path bits.
    pub ml_path: u8,
    /// Source LID.
    pub slid: u16,
    /// Flags (8) and remote QPN (24).
    pub flags_rqpn: u32,
    /// Shared receive queue or user index.
    pub srqn_uidx: u32,
    /// Immediate data or invalidated key.
    pub immediate: u32,
    /// Octets received, or read.
    pub byte_count: u32,
    /// The device's clock.
    pub timestamp: u64,
    /// Opcode of the send WQE, as it is on the wire.
    pub send_opcode: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// Index of the WQE.
    pub wqe_counter: u16,
    /// Check of the CQE.
    pub signature: u8,
    /// The last octet.
    pub op_own: OpOwn,
}

/// A CQE of a WQE that failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Failed {
    /// Shared receive queue.
    pub srqn: u32,
    /// What the firmware adds.
    pub vendor_syndrome: u8,
    /// Why it failed.
    pub syndrome: Syndrome,
    /// Opcode of the send WQE, as it is on the wire.
    pub send_opcode: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// Index of the WQE.
    pub wqe_counter: u16,
    /// Check of the CQE.
    pub signature: u8,
    /// The last octet: an error's.
    pub op_own: OpOwn,
}

/// A CQE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cqe {
    /// Of any kind but an error's.
    Completed(Completed),
    /// Of a WQE that failed.
    Failed(Failed),
}

impl Cqe {
    /// Octets of a CQE.
    pub const LEN: usize = 64;
    /// Where its byte count lies.
    pub const BYTE_COUNT_AT: usize = 44;
    /// Where its last octet lies.
    pub const OP_OWN_AT: usize = 63;

    /// The CQE in these octets. Whether it is ready is for [`OpOwn::is_ready`] to say.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] for an opcode that is not known here.
    pub fn decode(octets: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let [op_own] = get::<{ Self::OP_OWN_AT }, 1, _>(octets);
        let op_own = OpOwn::decode(op_own)?;
        let [send_opcode] = get::<56, 1, _>(octets);
        let qpn = Qpn::truncate(be32::<56, _>(octets));
        let wqe_counter = be16::<60, _>(octets);
        let [signature] = get::<62, 1, _>(octets);
        if let CqeOpcode::RequestError | CqeOpcode::ResponderError = op_own.opcode {
            let [vendor_syndrome, syndrome] = get::<54, 2, _>(octets);
            return Ok(Self::Failed(Failed {
                srqn: be32::<32, _>(octets),
                vendor_syndrome,
                syndrome: Syndrome(syndrome),
                send_opcode,
                qpn,
                wqe_counter,
                signature,
                op_own,
            }));
        }
        let [ml_path] = get::<17, 1, _>(octets);
        Ok(Self::Completed(Completed {
            wqe_id: be16::<2, _>(octets),
            ml_path,
            slid: be16::<22, _>(octets),
            flags_rqpn: be32::<24, _>(octets),
            srqn_uidx: be32::<32, _>(octets),
            immediate: be32::<36, _>(octets),
            byte_count: be32::<{ Self::BYTE_COUNT_AT }, _>(octets),
            timestamp: be64::<48, _>(octets),
            send_opcode,
            qpn,
            wqe_counter,
            signature,
            op_own,
        }))
    }

    /// The octets of this CQE.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        let (send_opcode, qpn, wqe_counter, signature, op_own) = match self {
            Self::Completed(cqe) => {
                put16::<2, _>(&mut octets, cqe.wqe_id);
                put::<17, 1, _>(&mut octets, [cqe.ml_path]);
                put16::<22, _>(&mut octets, cqe.slid);
                put32::<24, _>(&mut octets, cqe.flags_rqpn);
                put32::<32, _>(&mut octets, cqe.srqn_uidx);
                put32::<36, _>(&mut octets, cqe.immediate);
                put32::<{ Self::BYTE_COUNT_AT }, _>(&mut octets, cqe.byte_count);
                put64::<48, _>(&mut octets, cqe.timestamp);
                let tail = (cqe.send_opcode, cqe.qpn, cqe.wqe_counter);
                (tail.0, tail.1, tail.2, cqe.signature, cqe.op_own)
            }
            Self::Failed(cqe) => {
                put32::<32, _>(&mut octets, cqe.srqn);
                put::<54, 2, _>(&mut octets, [cqe.vendor_syndrome, cqe.syndrome.0]);
                let tail = (cqe.send_opcode, cqe.qpn, cqe.wqe_counter);
                (tail.0, tail.1, tail.2, cqe.signature, cqe.op_own)
            }
        };
        put32::<56, _>(&mut octets, u32::from(send_opcode) << 24 | qpn.get());
        put16::<60, _>(&mut octets, wqe_counter);
        put::<62, 1, _>(&mut octets, [signature]);
        put::<{ Self::OP_OWN_AT }, 1, _>(&mut octets, [op_own.encode()]);
        octets
    }
}
