//! Remote Direct Memory Access Protocol: RFC 5040, with the operations of RFC 7306.

mod atomic;
mod control;
mod immediate;
mod read_request;
mod terminate;

pub use atomic::{AtomicOperation, AtomicRequest, AtomicResponse, UnknownAtomic, masked_swap};
pub use control::{RDMAP_VERSION, RdmapControl, RdmapOpcode};
pub use immediate::ImmediateData;
pub use read_request::ReadRequest;
pub use terminate::{
    DdpTaggedCode, DdpUntaggedCode, HeaderControl, MpaCode, OperationCode, ProtectionCode,
    TerminateCause, TerminateControl,
};
