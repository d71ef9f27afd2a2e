//! Agent, target and initiator are killed at any point; what was stored stays, and nothing leaks.

use crate::common::{KBTP, SAMPLE};
use kbtp_harness::{
    Dice, End, Hand, Ledger, Line, Patience, Process, Scratch, Tally, command, eventually, ok,
    options, takes_all,
};
use kbtp_initiator::Client;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

/// Far more than are bound at once, so that most sessions get a partition for direct allocations.
const BLOCKS: u64 = 512;
/// Handles and quota of an initiator.
const QUOTA: u32 = 24;

/// How often something is killed: `KBTP_KILLS`, or `default`.
fn kills(default: u64) -> u64 {
    match std::env::var("KBTP_KILLS") {
        Ok(text) => text.parse().expect("KBTP_KILLS is a number"),
        Err(_) => default,
    }
}

fn agent(scratch: &Scratch) -> Process {
    let socket = scratch.text("agent.sock");
    let args = [
        "agent",
        "--json",
        "--stop-with-stdin",
        "--block-size=16KiB",
        "--blocks=512",
        "--socket",
        &socket,
    ];
    Process::start(command(KBTP, &args), &scratch.at("agent.log"))
}

fn number(pool: &Value, field: &str) -> u64 {
    pool[field].as_u64().expect(field)
}

struct Target {
    process: Process,
    address: String,
    admin: String,
}

impl Target {
    /// Starts one on `address`, with the pool of the agent or its own.
    fn start(scratch: &Scratch, address: &str, more: &[&str]) -> Self {
        let mut args = vec![
            "serve",
            "--json",
            "--stop-with-stdin",
            "--block-size=16KiB",
            "--blocks=512",
            "--admin=127.0.0.1:0",
            "--listen",
            address,
        ];
        args.extend(more);
        let process = Process::start(command(KBTP, &args), &scratch.at("target.log"));
        Self {
            address: process.said("/listen/0"),
            admin: process.said("/admin"),
            process,
        }
    }

    fn with_agent(scratch: &Scratch, address: &str) -> Self {
        let socket = scratch.text("agent.sock");
        Self::start(scratch, address, &["--lease=forever", "--agent", &socket])
    }

    fn status(&self) -> Value {
        let args = ["--json", "stat", "--admin", &self.admin];
        serde_json::from_str(&ok(command(KBTP, &args))).unwrap()
    }

    /// A number of the pool.
    fn pool(&self, field: &str) -> u64 {
        number(&self.status()["pool"], field)
    }

    /// Waits until nothing is in flight, and `bound` blocks are bound; every other block must be free then, in the
    /// shared ring or in a partition.
    fn settles(&self, bound: u32) {
        let patience = Patience::new();
        loop {
            let pool = self.status()["pool"].take();
            if Self::at_rest(&pool, bound.into()) {
                assert!(number(&pool, "quota_granted") <= BLOCKS, "{pool}");
                return;
            }
            let _now = patience.now(&format!("{bound} blocks bound, the rest free: {pool}"));
        }
    }

    fn at_rest(pool: &Value, bound: u64) -> bool {
        let (free, partitioned) = (
            number(pool, "blocks_free"),
            number(pool, "blocks_partitioned"),
        );
        let shared = BLOCKS - partitioned;
        number(pool, "blocks_bound") == bound
            // What is bound may lie in a partition.
            && (shared.saturating_sub(bound)..=shared.min(BLOCKS - bound)).contains(&free)
            && ["blocks_pinned", "blocks_deferred", "tickets_outstanding"]
                .iter()
                .all(|field| number(pool, field) == 0)
    }

    /// Without a session every block is bound or listed by the shared ring.
    fn is_recovered(&self) {
        let pool = self.status()["pool"].take();
        assert_eq!(number(&pool, "partitions"), 0);
        assert_eq!(
            number(&pool, "blocks_free") + number(&pool, "blocks_bound"),
            BLOCKS,
            "{pool}"
        );
    }

    /// One initiator may have every block, and directly: nothing leaked.
    fn is_whole(&self) {
        self.settles(0);
        eventually("all quota is there", || {
            (self.pool("quota_granted") == 0).then_some(())
        });
        let all = u32::try_from(BLOCKS).unwrap();
        takes_all(&self.address, all, 500, |bound| self.settles(bound));
    }
}

/// Three initiators: one as anybody, two with direct modes.
fn hands(address: &str) -> Vec<Hand> {
    (1..=3)
        .map(|owner| {
            let direct = owner > 1;
            let wanted = options(address, owner)
                .quota(QUOTA)
                .direct_load(direct)
                .direct_alloc(direct);
            let hand = Hand::new(owner, wanted);
            assert_eq!(hand.client.terms().direct_alloc, direct);
            hand
        })
        .collect()
}

/// All work until `after` operations and a moment; then `end` ends the target. How each of them ended.
fn work_until(hands: &mut [Hand], after: u64, moment: u64, end: impl FnOnce()) -> Vec<End> {
    let ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let threads: Vec<_> = hands
            .iter_mut()
            .map(|hand| {
                let (tell, ending) = (tell.clone(), &ending);
                scope.spawn(move || {
                    let end = hand.work(|| {
                        // Nobody listens any more once the target is ended.
                        tell.send(()).unwrap_or_default();
                        true
                    });
                    assert!(ending.load(Ordering::SeqCst), "too early: {end:?}");
                    end
                })
            })
            .collect();
        drop(tell);
        for _ in 0..after {
            if told.recv().is_err() {
                break;
            }
        }
        for _ in 0..moment {
            std::hint::spin_loop();
        }
        ending.store(true, Ordering::SeqCst);
        end();
        drop(told);
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn bound(hands: &[Hand]) -> u32 {
    hands.iter().map(|hand| hand.ledger.bound()).sum()
}

/// Every initiator comes back to the same range and finds what it must.
fn resume_all(hands: &mut [Hand], target: &Target) {
    for hand in &mut *hands {
        let resumed = hand.resume();
        assert!(resumed.bindings_kept(), "{resumed:?}");
        hand.verify();
    }
    target.settles(bound(hands));
}

fn finish(mut hands: Vec<Hand>, target: Target, agent: Process) -> Vec<Tally> {
    let tallies = hands.iter().map(|hand| hand.tally).collect();
    for hand in &mut hands {
        hand.clear();
    }
    for hand in hands {
        hand.client.close().unwrap();
    }
    target.is_whole();
    target.process.stop();
    agent.stop();
    tallies
}

#[test]
fn a_target_killed_under_load_loses_nothing_that_was_done() {
    let scratch = Scratch::new();
    let agent = agent(&scratch);
    let mut target = Target::with_agent(&scratch, "127.0.0.1:0");
    let address = target.address.clone();
    let mut hands = hands(&address);
    let mut dice = Dice::new(1);
    for _ in 0..kills(20) {
        let (after, moment) = (dice.below(400), dice.below(100_000));
        let process = target.process;
        let ends = work_until(&mut hands, after, moment, || process.kill());
        assert!(ends.iter().all(|e| matches!(e, End::Lost(_))), "{ends:?}");
        target = Target::with_agent(&scratch, &address);
        target.is_recovered();
        resume_all(&mut hands, &target);
    }
    let tallies = finish(hands, target, agent);
    println!("{tallies:?}");
    let unknown: u64 = tallies.iter().map(|t| t.unknown).sum();
    assert!(unknown > 0, "no kill met a change in flight: {tallies:?}");
    for tally in &tallies[1..] {
        assert!(
            tally.direct_allocs > 0 && tally.direct_loads > 0,
            "{tally:?}"
        );
    }
}

#[test]
fn a_drain_under_load_loses_nothing_that_was_done() {
    let scratch = Scratch::new();
    let agent = agent(&scratch);
    let mut target = Target::with_agent(&scratch, "127.0.0.1:0");
    let address = target.address.clone();
    let mut hands = hands(&address);
    let mut dice = Dice::new(2);
    for _ in 0..kills(4) {
        let (after, moment) = (dice.below(400), dice.below(100_000));
        let process = target.process;
        let ends = work_until(&mut hands, after, moment, || {
            process.signal(Signal::SIGTERM);
        });
        assert!(
            ends.iter().any(|e| matches!(e, End::Draining)),
            "nobody was told: {ends:?}"
        );
        let (status, log) = process.ended();
        assert!(status.success(), "{status}: {log}");
        target = Target::with_agent(&scratch, &address);
        target.is_recovered();
        resume_all(&mut hands, &target);
    }
    finish(hands, target, agent);
}

#[test]
fn a_target_whose_agent_is_killed_says_so_to_its_initiators_and_ends() {
    let scratch = Scratch::new();
    let agent = agent(&scratch);
    let target = Target::with_agent(&scratch, "127.0.0.1:0");
    let mut hands = hands(&target.address);
    let ends = work_until(&mut hands, 300, 0, || agent.kill());
    assert!(
        ends.iter().any(|e| matches!(e, End::Draining)),
        "nobody was told: {ends:?}"
    );
    let address = target.address;
    let (status, log) = target.process.ended();
    assert_eq!(status.code(), Some(1), "what was stored is lost: {log}");
    assert!(log.contains("the agent was gone"), "it says why: {log:?}");

    // The next agent is another incarnation: nothing is there, and the initiators are told.
    let agent = self::agent(&scratch);
    let target = Target::with_agent(&scratch, &address);
    for hand in &mut hands {
        assert!(hand.resume().instance_changed);
    }
    target.settles(0);
    drop(hands);
    target.process.stop();
    agent.stop();
}

const CHILD: &str = "KBTP_E2E_CHILD";
const MARK: &str = "journal: ";

/// What a killed initiator is; as a test of its own it does nothing.
#[test]
#[ignore = "run by the tests of killed initiators in a process of its own"]
fn child() {
    let Ok(address) = std::env::var(CHILD) else {
        return;
    };
    let mut hand = child_hand(&address).telling(|line| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{MARK}{line}").unwrap();
        out.flush().unwrap();
    });
    let end = hand.work(|| true);
    panic!("{end:?}");
}

fn child_hand(address: &str) -> Hand {
    let wanted = options(address, 7)
        .quota(QUOTA)
        .direct_load(true)
        .direct_alloc(true);
    Hand::new(7, wanted)
}

/// A process that works until it is killed, which it is when dropped.
struct Worker(Child);

impl Worker {
    fn start(address: &str) -> Self {
        let child = command(
            std::env::current_exe().unwrap().to_str().unwrap(),
            &["kills::child", "--exact", "--ignored", "--nocapture"],
        )
        .env(CHILD, address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
        Self(child)
    }

    /// Lets it do `after` things and a moment, kills it, and enters in `ledger` what it knew.
    fn kill_after(mut self, after: u64, moment: u64, ledger: &mut Ledger) {
        let mut lines = BufReader::new(self.0.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
            .filter_map(|text| Some(text.split_once(MARK)?.1.to_owned()));
        let mut enter = |text: String| {
            // A kill may cut the last line short.
            if let Ok(line) = text.parse::<Line>() {
                line.enter(ledger);
            }
        };
        for line in lines.by_ref().take(usize::try_from(after).unwrap()) {
            enter(line);
        }
        for _ in 0..moment {
            std::hint::spin_loop();
        }
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        lines.for_each(enter);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It fails only if the process has ended.
        self.0.kill().unwrap_or_default();
        self.0.wait().unwrap();
    }
}

#[test]
fn an_initiator_killed_under_load_leaves_what_it_stored_and_nothing_else() {
    let scratch = Scratch::new();
    let target = Target::start(&scratch, "127.0.0.1:0", &["--lease=forever"]);
    let mut dice = Dice::new(3);
    for _ in 0..kills(8) {
        // Handles and block size are as the child's.
        let mut ledger = Ledger::new(7, QUOTA.into(), 16 << 10);
        Worker::start(&target.address).kill_after(
            1 + dice.below(600),
            dice.below(100_000),
            &mut ledger,
        );
        eventually("the target sees it go", || {
            let status = target.status();
            status["sessions"]
                .as_array()
                .unwrap()
                .is_empty()
                .then_some(())
        });
        let wanted = options(&target.address, 7).quota(QUOTA);
        let mut heir = Hand::over(Client::connect(wanted).unwrap(), ledger);
        heir.verify();
        target.settles(heir.ledger.bound());
        heir.clear();
        heir.client.close().unwrap();
        target.settles(0);
    }
    target.is_whole();
    target.process.stop();
}

#[test]
fn a_killed_replay_is_gone_when_its_lease_has_run_out() {
    let scratch = Scratch::new();
    let target = Target::start(&scratch, "127.0.0.1:0", &["--lease=100ms"]);
    for _ in 0..2 {
        let args = ["replay", SAMPLE, "--target", &target.address];
        let mut replay = Worker(command(KBTP, &args).stdout(Stdio::null()).spawn().unwrap());
        eventually("the replay stores", || {
            (target.pool("blocks_bound") > 40).then_some(())
        });
        replay.0.kill().unwrap();
        target.settles(0);
    }
    target.is_whole();
    target.process.stop();
}
