//! An mlx5 device driven by its own commands, past verbs: what chains need of it verbs do not have (queue pairs that wait
//! for one another, keys of keys with start addresses, keys of other functions).
//!
//! The modules [`hca`], [`key`], [`queue`] and [`alias`] give the octets of commands; [`Mlx5Devx`] is a
//! [`Device`](kbtp_device::Device) made of them, over whatever gives commands to the kernel ([`Kernel`]). Nothing here is
//! unsafe; [`Libmlx5`] is the kernel of a machine with a device, over the libraries that `kbtp-verbs-sys` opens at run time.
//! Everything follows what drivers in open source do; **no device has been given any of it**.
#![forbid(unsafe_code)]

pub mod alias;
mod bits;
pub mod command;
mod device;
pub mod hca;
mod kernel;
pub mod key;
mod libmlx5;
pub mod queue;
mod share;
mod tier;
mod umr;

pub use bits::Bits;
pub use command::{Command, Refused};
pub use device::{DevxError, Mlx5Devx};
pub use kernel::{Handle, Kernel, Port, Registered};
pub use libmlx5::{Libmlx5, NoDevice, route};
pub use share::{Allowed, Shared};
pub use tier::{Judgement, Unfit, judge};
