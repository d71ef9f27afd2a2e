//! Segments of a UMR, the WQE that changes a memory key: control, key context, and the list the key translates with.

mod context;
mod control;
mod klm;
mod repeat;

pub use context::{AccessRights, MkeyContext};
pub use control::{UmrControl, UmrFlags, UmrMask};
pub use klm::{Klm, KsmEntry};
pub use repeat::{RepeatBlock, RepeatEntry};
