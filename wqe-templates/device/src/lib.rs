//! An mlx5 device as a trait, and what KBTP's chains need on one: keys, queue pairs, completion queues, look-up tables.
//!
//! [`Device`] is what software asks of the device; everything else passes through memory that both see. A [`Target`] has
//! what the sessions of a pool share, a [`Profile`] the records of a template, a [`Session`] one client's queue pairs; a
//! [`Master`] is software's own queue pair, with which it starts and resumes them. Below are `kbtp-chain` (templates to
//! octets), `kbtp-mlx5` (octets) and `kbtp-memory`; above it stand the model of a device, and what drives either.
//!
//! The keys follow the table of [`Key`](kbtp_chain::key::Key): domain, rights and range of each are taken from there.
#![forbid(unsafe_code)]

mod alarm;
pub mod calibrate;
mod cq;
mod device;
mod error;
mod greet;
mod layout;
pub mod limits;
mod master;
mod session;
mod slot;
mod software;
mod tables;
mod target;

pub use cq::CqReader;
pub use device::{
    CqAttributes, Device, DeviceEvent, Domain, KeyAttributes, Layout, MemoryId, Path, Peer,
    PeerAccess, Place, QpAttributes, RING_ALIGN, RingError, Roles, Route,
};
pub use error::SetUpError;
pub use master::Master;
pub use session::{Indices, Session, SessionPlan};
pub use slot::{Answer, SlotRequest};
pub use software::{Allocation, Standing};
pub use tables::{Records, Served, Tables};
pub use target::{PoolPlace, Profile, Target};
