//! Deterministic simulation: one target, its initiators and the network between them, in one thread, with virtual time,
//! from one seed.
//!
//! The production `kbtp-core` (pool, directory, sessions, initiator) and `kbtp-iwarp` run unchanged; everything else is
//! the [`world`] around them. [`options`] and the [`plan`] of operations and faults follow from the seed; the [`model`]
//! judges what happens; [`run`] runs seeds and shrinks what fails.
#![forbid(unsafe_code)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::struct_excessive_bools,
    clippy::unwrap_used,
    reason = "a tool for tests: what cannot be ends the run, with its seed; its numbers are small"
)]

mod act;
mod answers;
mod checks;
pub mod client;
mod faults;
pub mod forge;
pub mod marks;
pub mod model;
pub mod net;
pub mod options;
pub mod plan;
#[cfg(feature = "plants")]
pub mod plants;
pub mod report;
pub mod rng;
mod rogue;
pub mod run;
mod serve;
pub mod stamp;
pub mod target;
mod tear;
pub mod world;
