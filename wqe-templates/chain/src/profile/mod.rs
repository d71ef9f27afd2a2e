//! The profiles: what a session's slots can do.

mod full;
mod load;
mod parts;
mod perpetual;

pub use full::full;
pub use load::load;
pub use perpetual::perpetual;
