//! A target of its own that keeps nothing of initiators that are gone, killed while it frees what they had.

use super::Kill;
use super::report::Tally;
use crate::driver::now;
use crate::inspect::{metric, number};
use crate::scene::{BLOCKS, Target, agent};
use kbtp_harness::{Dice, Patience, Process, Scratch, options};
use kbtp_initiator::{Client, Handle, LoadOptions, StoreItem, StoreOptions};
use std::time::Duration;

pub(super) const NAME: &str = "release";
/// Nothing is kept.
const LEASE: &str = "0s";
/// Initiators, each with a part of the pool.
const INITIATORS: u32 = 4;
/// Blocks of each.
const EACH: u32 = BLOCKS / INITIATORS;

/// Agent and target.
#[derive(Debug)]
pub(crate) struct Release {
    agent: Process,
    target: Target,
    address: String,
}

impl Release {
    pub(crate) fn start(scratch: &Scratch) -> Self {
        let agent = agent(scratch, NAME);
        let target = Target::start(scratch, NAME, "127.0.0.1:0", LEASE);
        Self {
            agent,
            address: target.address.clone(),
            target,
        }
    }

    /// Fills the pool, has the initiators go, and kills the target a moment later.
    pub(crate) fn kill(&mut self, scratch: &Scratch, dice: &mut Dice, tally: &mut Tally) {
        let clients: Vec<_> = (0..INITIATORS).map(|n| self.fill(n)).collect();
        self.target.settles(BLOCKS);
        // The sockets close, one after the other.
        drop(clients);
        let began = now();
        let moment = Duration::from_micros(dice.below(4_000));
        while began.elapsed() < moment {
            std::hint::spin_loop();
        }
        let killed = now();
        self.target.process.end_now();
        tally.killed(Kill::Release);
        self.target = Target::start(scratch, NAME, &self.address, LEASE);
        // What it found when it started it may have freed since.
        let found = number(&self.target.status(), "/pool/blocks_bound")
            + metric(&self.target.admin, "kbtp_blocks_released_total");
        tally.released(found, BLOCKS.into());
        // It serves before the rest is freed.
        let mut next = Client::connect(options(&self.address, 50)).expect("a session");
        let mut buffer = next.register(next.block_size()).unwrap();
        let first = next.handles().0;
        let loaded = next.load(first, &mut buffer, &LoadOptions::default());
        assert!(loaded.is_err(), "a block of nobody is bound: {loaded:?}");
        tally.served(Kill::Release, killed.elapsed());
        next.close().unwrap();
        let patience = Patience::new();
        loop {
            let status = self.target.status();
            let left = ["/pool/leases", "/pool/quota_granted", "/pool/partitions"];
            let sessions = status["sessions"].as_array().map_or(0, Vec::len);
            if sessions == 0 && left.iter().all(|field| number(&status, field) == 0) {
                break;
            }
            let _now = patience.now(&format!("everything is released: {status}"));
        }
        self.target.settles(0);
    }

    /// An initiator that has bound every block of its quota.
    fn fill(&self, number: u32) -> Client {
        let direct = number > 0;
        let wanted = options(&self.address, 100 + u64::from(number))
            .quota(EACH)
            .direct_load(direct)
            .direct_alloc(direct);
        let mut client = Client::connect(wanted).expect("a session");
        let base = client.handles().0.0;
        let count = usize::try_from(EACH).unwrap();
        let mut buffers = client.register_many(count, 64).unwrap();
        for buffer in &mut buffers {
            buffer.fill(&[0xa5; 64]).unwrap();
        }
        let mut rest = buffers.into_iter();
        let mut at = base;
        if client.terms().direct_alloc {
            // A few without the target, so that tickets and partitions are among what is released.
            for _ in 0..8 {
                let buffer = rest.next().expect("a buffer");
                let op = client.submit_alloc_direct(Handle(at), buffer, &StoreOptions::default());
                let done = client.wait(op.expect("it is taken")).unwrap();
                done.result.expect("it is bound");
                at += 1;
            }
        }
        let mut rest: Vec<_> = rest.collect();
        let mut items: Vec<_> = (at..)
            .zip(&mut rest)
            .map(|(handle, buffer)| StoreItem::new(Handle(handle), buffer))
            .collect();
        client.alloc_store_many(&mut items).unwrap();
        for item in &items {
            assert!(matches!(item.result, Some(Ok(_))), "{:?}", item.result);
        }
        client
    }

    pub(crate) fn finish(self) {
        self.target.process.stop();
        self.agent.stop();
    }
}
