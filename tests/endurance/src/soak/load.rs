//! An initiator that works all the time: every kind of operation, each load compared, and now and then its session anew.
//!
//! It is told `go` and `rest`, one line each; it rests without a session and without a block.

use super::say;
use crate::cli::LoadArgs;
use crate::driver::told;
use kbtp_harness::{End, Hand, Slot, options};
use nix::sys::signal::Signal;
use std::process::ExitCode;
use std::time::Duration;

/// Handles and quota.
const QUOTA: u32 = 48;
/// Operations after which it takes a new session for its blocks.
const PERIOD: u64 = 2_000;

/// Far beyond what a busy machine makes of a round trip.
pub(super) const TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) fn run(args: &LoadArgs) -> ExitCode {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
    let told = told();
    let (mut operations, mut sessions) = (0_u64, 0_u64);
    let wanted = options(&args.target, args.owner)
        .quota(QUOTA)
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT)
        .direct_load(true)
        .direct_alloc(true);
    while told.recv().is_ok() {
        let mut hand = Hand::new(args.owner, wanted.clone()).seeded(args.seed);
        sessions += 1;
        let mut rest = false;
        while !rest {
            let mut done = 0;
            let end = hand.work(|| {
                done += 1;
                rest = told.try_recv().is_ok();
                done < PERIOD && !rest
            });
            operations += done;
            assert!(matches!(end, End::Enough), "{end:?}");
            hand.verify();
            if !rest {
                let resumed = hand.resume();
                sessions += 1;
                if !resumed.bindings_kept() {
                    // No processor for longer than the lease: its blocks are gone, as they should be.
                    hand.ledger.slots.fill(Slot::default());
                }
                hand.verify();
            }
            say(&format!("so far {operations} {sessions}"));
        }
        hand.clear();
        hand.client.close().unwrap();
        drop(hand.ledger);
        say(&format!("rested {operations} {sessions}"));
    }
    ExitCode::SUCCESS
}
