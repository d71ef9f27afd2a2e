//! The two profiles: what a session's slots can do.

mod full;
mod load;
mod parts;

pub use full::full;
pub use load::load;
