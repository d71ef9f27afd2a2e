//! RDMA verbs without a C library at build time: libibverbs, librdmacm and libmlx5 are opened when a program asks for
//! them, so that one program runs on machines with and without.
//!
//! [`raw`] has the structures and constants, [`Verbs`], [`Cm`] and [`Mlx5`] the functions; both are what the crates of
//! one family of devices build on. Above them stand owners for the objects this project uses: each keeps its parents
//! alive, ends its object when dropped, and has no unsafe function. With `kbtp-memory` this is where unsafe code stands.
//!
//! ```
//! match kbtp_verbs_sys::devices() {
//!     Ok(devices) => {
//!         for device in devices {
//!             println!("{}: {}", device.name, device.context.is_ok());
//!         }
//!     }
//!     Err(error) => println!("no RDMA devices here: {error}"),
//! }
//! ```

mod cm;
mod context;
mod devx;
mod error;
mod foreign;
mod load;
mod memory;
mod queue;
pub mod raw;
mod receives;

pub use cm::{CmEvent, CmEventKind, CmId, ConnectParameters};
pub use context::{
    AsyncEvent, Context, ContextRef, Device, DeviceAttributes, Gid, GidKind, PortAttributes,
    devices,
};
pub use devx::{Devx, DevxDomain, DevxEvents, DevxMemory, DevxObject, DevxUar};
pub use error::VerbsError;
pub use foreign::PeerPath;
pub use load::{Cm, Missing, Mlx5, Prototype, Verbs};
pub use memory::{Domain, Registration, Rights, Sge, Window};
pub use queue::{
    Completion, CompletionQueue, INVALIDATED, INVALIDATED_BY_KERNEL, Operation, QueuePair, Queues,
    Remote, Source, WindowRights, Work, status_text,
};
pub use receives::Receives;
