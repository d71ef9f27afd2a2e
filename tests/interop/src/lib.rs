//! Real RDMA devices, those that the Linux kernel has in software: siw (iWARP on TCP) and rxe (RoCEv2 on UDP), in an
//! emulated machine of its own, since most machines have neither and few may load modules.
//!
//! [`Image`](image::Image) is what the guest is made of, [`Guest`](guest::Guest) one that runs. `README.md` beside
//! `Cargo.toml` says how to run a program in it.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cpio;
pub mod devices;
pub mod driver;
pub mod guest;
pub mod image;
pub mod kernel;
pub mod modules;
pub mod party;
pub mod peer;
mod root;
pub mod rping;
pub mod session;
pub mod streams;
pub mod suite;
