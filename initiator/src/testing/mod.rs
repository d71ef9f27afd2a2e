//! A target and a stream in memory, for tests: everything happens inside `post` and `progress`, in one thread.
//!
//! The target is simple and obedient; what a test wants of it otherwise (silence, refusal, a broken stream, octets of its
//! own) is said in [`Script`].

mod stream;
mod world;

pub(crate) use stream::FakeDial;
pub(crate) use world::World;

use crate::client::Client;
use crate::options::Options;
use std::sync::{Arc, Mutex};

pub(crate) const BLOCK: u32 = 4096;

/// Options that never wait long.
pub(crate) fn options() -> Options {
    Options::new("memory").max_inline(64)
}

/// A target with `blocks` blocks, and a way to it.
pub(crate) fn target(blocks: u32) -> (Arc<Mutex<World>>, FakeDial) {
    let world = Arc::new(Mutex::new(World::new(blocks)));
    let dial = FakeDial {
        world: Arc::clone(&world),
    };
    (world, dial)
}

/// A client of a target with `blocks` blocks.
pub(crate) fn client(blocks: u32) -> (Arc<Mutex<World>>, Client<FakeDial>) {
    let (world, dial) = target(blocks);
    let client = Client::connect_with(dial, options()).unwrap();
    (world, client)
}

/// Octets that tell blocks apart.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| seed ^ at.to_le_bytes()[0] ^ at.to_le_bytes()[1].rotate_left(3))
        .collect()
}
