//! Direct Data Placement: RFC 5041.

mod control;
mod tagged;
mod untagged;

pub use control::{DDP_VERSION, DdpControl};
pub use tagged::TaggedHeader;
pub use untagged::{Msn, QueueNumber, UntaggedHeader};
