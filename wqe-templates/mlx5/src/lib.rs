//! Octet layouts of mlx5 work queues: what a host writes for the device, and what the device writes back.
//!
//! No `std`, no allocation, no unsafe: octets in, values out, and back. Below it is `kbtp-wire`, for the means to read and
//! write fields; above it stand `kbtp-chain` and whatever models or drives such a device. Everything in a work queue is
//! big-endian. A decoder is total: any octets give a value or a named error. Bits that the device ignores are ignored.
//!
//! One structure, one file; each names its source. The test `rdma_core` compares the layouts with the structures of
//! rdma-core's `mlx5dv.h` where that is installed.
//!
//! ```
//! use kbtp_mlx5::{Body, Control, DataList, DataSegment, Mkey, Opcode, Qpn, RemoteAddress, Wqe, WqeBuffer, WqeIndex};
//!
//! let qpn = Qpn::new(0x41).unwrap();
//! let remote = RemoteAddress { address: 0x1000, rkey: Mkey(0x100) };
//! let to = [DataSegment::new(64, Mkey(0x200), 0x2000).unwrap()];
//! let control = Control::new(Opcode::RdmaRead, qpn, WqeIndex(7));
//! let wqe = WqeBuffer::encode(&control, &Body::Read(remote, DataList::new(&to)))?;
//! assert_eq!(wqe.basic_blocks(), 1);
//! let read = Wqe::decode(wqe.as_octets()).unwrap();
//! assert_eq!(read.body, Body::Read(remote, DataList::new(&to)));
//! # Ok::<(), kbtp_mlx5::WqeTooLong>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod atomic;
pub mod context;
mod control;
mod cqe;
mod data;
mod doorbell;
mod enable;
mod error;
pub mod field;
mod ids;
mod inline;
pub mod limits;
mod opcode;
mod receive;
mod remote_address;
mod syndrome;
mod umr;
mod wait;
mod wqe;

pub use atomic::Atomic;
pub use control::{Control, Fence, Signal};
pub use cqe::{Completed, Cqe, CqeOpcode, Failed, OpOwn, owner_of};
pub use data::{ByteCount, DataSegment};
pub use doorbell::{CqArm, CqDoorbell, QpDoorbell, UAR_CQ, UAR_SEND};
pub use enable::Enable;
pub use error::{DecodeError, WqeTooLong};
pub use field::Field;
pub use ids::{CqeIndex, Cqn, Mkey, Qpn, WqeIndex};
pub use inline::InlineHeader;
pub use opcode::{Opcode, WaitFor};
pub use receive::{encode_receive, receive_list};
pub use remote_address::RemoteAddress;
pub use syndrome::Syndrome;
pub use umr::{
    AccessRights, Klm, KsmEntry, MkeyContext, RepeatBlock, RepeatEntry, UmrControl, UmrFlags,
    UmrMask,
};
pub use wait::{Comparison, OnMismatch, WaitCqe, WaitData};
pub use wqe::{Body, DataList, Payload, Wqe, WqeBuffer};
