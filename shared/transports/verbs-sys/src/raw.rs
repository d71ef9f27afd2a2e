//! The C libraries' own structures, constants and functions, written by hand: no header and no generator is needed to
//! build. `tests/layout.rs` holds them against the headers of rdma-core where those are installed.
//!
//! Names are C's, in Rust's spelling: `struct ibv_qp_attr` is [`IbvQpAttr`]. What a member means stands in the manual
//! pages of rdma-core. Enumerations of C are `u32` or `c_int` here, since a library may give a value that no header of
//! ours names.

mod cm;
mod mlx5;
mod verbs;

pub use cm::*;
pub use mlx5::*;
pub use verbs::*;
