//! What the conformance and hostile suites stand on.
//!
//! A [`Subject`] is a target under test; [`start`] makes one, and every test takes what it gives, so that another
//! engine or transport runs the same suite. Against it speak a [`Raw`] initiator (any octets as a Send, over a real
//! RDMAP Stream), a [`Session`] on top of it that knows the messages, a [`Peer`] that makes every octet of MPA, DDP
//! and RDMAP itself, and a [`Victim`] that works in the background and must not notice what the others do.
//!
//! For whole processes there are [`Process`] and [`Scratch`], and a [`Hand`]: an initiator of the client library that
//! keeps a [`Ledger`] of what must be in its blocks, whoever is killed.
//!
//! Nothing here sleeps: everything waits for an event, at most [`PATIENCE_MS`], and says what it waited for.
#![forbid(unsafe_code)]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_in_result,
    clippy::unwrap_used,
    reason = "support for tests: an expectation that does not hold ends the test, with the place and what was met"
)]

mod dice;
mod hand;
mod ledger;
mod patience;
mod peer;
mod process;
mod raw;
mod session;
mod software;
mod stamp;
mod subject;
mod victim;
mod watch;

pub use dice::Dice;
pub use hand::{End, Hand, Tally, cut_off, options, takes_all};
pub use ledger::{Block, Change, Found, Kind, Ledger, Line, Slot, TORN};
pub use patience::{PATIENCE_MS, Patience, eventually};
pub use peer::{Peer, Reply, Segment, Start, frame};
pub use process::{Process, Scratch, command, ok, run};
pub use raw::{Buffer, Raw, Received};
pub use session::{NO_DATA, Session, Who, alloc_store, fetched, load, remote, store};
pub use software::on_device;
pub use stamp::{Origin, differs, stamped};
pub use subject::{Audit, Count, Setup, Subject, TenantSetup, start};
pub use victim::{Ground, Victim, against};
pub use watch::faults;

/// Octets that differ from place to place and from seed to seed.
#[must_use]
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x.to_le_bytes()[4]
        })
        .collect()
}
