//! An agent and a target, as processes.

use crate::inspect::{get_json, number};
use kbtp_harness::{
    Hand, Ledger, Patience, Process, Scratch, command, eventually, options, takes_all,
};
use kbtp_initiator::Client;
use serde_json::Value;
use std::process::Command;

/// Octets of a block.
pub(crate) const BLOCK_SIZE: u32 = 16 << 10;
/// Blocks of the pool: far more than are bound at once, so that most sessions get a partition for direct allocations.
pub(crate) const BLOCKS: u32 = 512;

/// This program, to be run as one of its hidden commands. Its allocator takes from the system what it is asked for, and
/// gives back what is freed: left to itself it takes 128 KiB at a time and keeps buffers of sessions that are gone, so
/// that memory in use does not show in memory resident.
pub(crate) fn myself(args: &[&str]) -> Command {
    let me = std::env::current_exe().expect("this program has a path");
    let mut command = command(me.to_str().expect("a path in UTF-8"), args);
    command.env("GLIBC_TUNABLES", "glibc.malloc.top_pad=4096");
    command
}

/// The `kbtp` command.
pub(crate) fn kbtp(args: &[&str]) -> Command {
    let mut all = vec!["kbtp"];
    all.extend(args);
    myself(&all)
}

/// Starts an agent.
pub(crate) fn agent(scratch: &Scratch, name: &str) -> Process {
    let (blocks, size) = (BLOCKS.to_string(), BLOCK_SIZE.to_string());
    let socket = scratch.text(&format!("{name}.sock"));
    let args = [
        "agent",
        "--json",
        "--stop-with-stdin",
        "--block-size",
        &size,
        "--blocks",
        &blocks,
        "--socket",
        &socket,
    ];
    Process::start(kbtp(&args), &scratch.at(&format!("{name}.log")))
}

/// A target with the pool of an agent.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) process: Process,
    pub(crate) address: String,
    pub(crate) admin: String,
}

impl Target {
    /// How one is started on `address` with the pool of the agent `name`.
    pub(crate) fn command(scratch: &Scratch, name: &str, address: &str, lease: &str) -> Command {
        let (blocks, size) = (BLOCKS.to_string(), BLOCK_SIZE.to_string());
        let socket = scratch.text(&format!("{name}.sock"));
        let args = [
            "serve",
            "--json",
            "--stop-with-stdin",
            "--admin=127.0.0.1:0",
            "--block-size",
            &size,
            "--blocks",
            &blocks,
            "--listen",
            address,
            "--lease",
            lease,
            "--agent",
            &socket,
        ];
        kbtp(&args)
    }

    /// Starts it and waits until it is ready.
    pub(crate) fn start(scratch: &Scratch, name: &str, address: &str, lease: &str) -> Self {
        let log = scratch.at(&format!("{name}-target.log"));
        let process = Process::start(Self::command(scratch, name, address, lease), &log);
        Self {
            address: process.said("/listen/0"),
            admin: process.said("/admin"),
            process,
        }
    }

    pub(crate) fn status(&self) -> Value {
        get_json(&self.admin, "/status")
    }

    /// Waits until nothing is in flight, and `bound` blocks are bound, each block exactly once: every other one must be
    /// free then, in the shared ring or in a partition. Gives the status.
    pub(crate) fn settles(&self, bound: u32) -> Value {
        let patience = Patience::new();
        loop {
            let (status, audit) = (self.status(), get_json(&self.admin, "/audit"));
            // A worker that has no processor to answer on tells nothing of its sessions.
            let all = number(&status, "/workers_silent") == 0;
            if all && at_rest(&status["pool"], &audit, bound.into()) {
                return status;
            }
            let pool = &status["pool"];
            let _now = patience.now(&format!(
                "{bound} blocks bound, the rest free: {pool}, {audit}"
            ));
        }
    }
}

impl Target {
    /// Initiators that are gone come back, free all they have and go; then one may have every block, directly: nothing
    /// leaked.
    pub(crate) fn is_whole(&self, ledgers: Vec<Ledger>) {
        for ledger in ledgers {
            let wanted = options(&self.address, ledger.owner).quota(ledger.bound().max(1));
            let client = Client::connect(wanted).expect("a session");
            let mut heir = Hand::over(client, ledger);
            heir.verify();
            heir.clear();
            heir.client.close().unwrap();
        }
        self.settles(0);
        eventually("all quota is there", || {
            (number(&self.status(), "/pool/quota_granted") == 0).then_some(())
        });
        takes_all(&self.address, BLOCKS, 1_000, |bound| {
            let _status = self.settles(bound);
        });
    }
}

fn at_rest(pool: &Value, audit: &Value, bound: u64) -> bool {
    let blocks = u64::from(BLOCKS);
    let zero = |of: &Value, fields: &[&str]| fields.iter().all(|field| number(of, field) == 0);
    number(pool, "/blocks_bound") == bound
        && number(pool, "/quota_granted") <= blocks
        && zero(
            pool,
            &["/blocks_pinned", "/blocks_deferred", "/tickets_outstanding"],
        )
        && audit["faults"].as_array().is_some_and(Vec::is_empty)
        && zero(audit, &["/awaited", "/deferred", "/elsewhere"])
        && number(audit, "/bound") == bound
        && number(audit, "/in_rings") == blocks - bound
}
