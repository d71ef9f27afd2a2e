//! Fuzz targets: every parser of octets that a peer sends.
//!
//! A [`Target`] takes any octets and must not panic; it also asserts what must hold of whatever it accepts, above all that
//! encoding what was decoded gives an equal value. `tests/replay.rs` runs each over its corpus and over mutations of
//! the corpus that are the same in every run. A coverage-guided fuzzer can call [`Target::run`] as it is.
//!
//! ```
//! for target in kbtp_fuzz::TARGETS {
//!     (target.run)(b"not a message");
//! }
//! ```
#![forbid(unsafe_code)]

mod mutate;
mod targets;

pub use mutate::Mutator;
pub use targets::{TARGETS, Target};
