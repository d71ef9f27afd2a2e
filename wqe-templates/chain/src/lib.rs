//! KBTP requests as chains of work queue elements that an mlx5 device executes by itself.
//!
//! A [`Template`] is one slot of a session's two send queues, as data: WQEs, what they read and write, who writes whose
//! octets, who enables whom. A [`Builder`] makes the slot's octets for a place in memory; [`RequestCost`] counts what a
//! request takes; `Display` draws a template; [`check`], [`check_rows`] and [`check_armed`] hold fourteen rules over it, the
//! reason why no client can make a chain do what its request did not ask for. Below is `kbtp-mlx5`, for octets; nothing here talks to a device.
//!
//! How a chain decides: the request's octets land in addresses of READs, whose keys are bounded, so that what is out of
//! range ends the chain. Three compare-and-swaps turn Length, Generation, entry flags and kind of request into the address
//! of a record; a READ scatters the record's octets over the opcodes of WQEs that lie there as NOPs. The record of whatever
//! is not served wakes only the doorbell of software, which completes the slot. See
//! `docs/adr/0020-request-chains.md`, and `docs/chains.md` for both profiles as they are drawn.
//!
//! ```
//! use kbtp_chain::record::Action;
//! use kbtp_chain::{RequestCost, SlotCost, full};
//!
//! let template = full(kbtp_wire::ByteLen(65536));
//! assert_eq!(SlotCost::of(&template).worker_wqes, 56);
//! let load = RequestCost::of(&template, Action::Load { invalidate: false }).unwrap();
//! assert_eq!(load.loopbacks, 3);
//! println!("{template}");
//! ```
#![forbid(unsafe_code)]

mod build;
mod check;
mod cost;
pub mod element;
mod image;
pub mod key;
pub mod lap;
pub mod limits;
pub mod memory;
mod order;
mod placement;
mod predict;
mod profile;
pub mod record;
mod show;
pub mod table;
pub mod template;
mod walk;

pub use build::{BuildError, Builder, Step};
pub use check::{Finding, Rule, check, check_armed, check_rearmed, check_rows};
pub use cost::{RequestCost, SlotCost};
pub use image::{Images, Part};
pub use order::{Order, Point};
pub use placement::{CqPlace, Placement, QueuePlace, Restart};
pub use predict::{Prediction, Timing};
pub use profile::{full, load, perpetual};
pub use template::Template;
