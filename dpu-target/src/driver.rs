//! What touches the world: threads, sockets, clocks. The rest of the crate is told.

mod admin;
mod clock;
