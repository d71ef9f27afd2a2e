//! The crash campaign: who is killed, when, and what must hold afterwards.
//!
//! After each kill every initiator looks at every block it has: what was done is there, what was in flight is there or not,
//! and each 64 octets say whose they are. Every block of the pool is found exactly once, quota and tickets are what the
//! sessions have, no STag comes again, and no file, descriptor or mapping is left behind.

pub(crate) mod initiator;
mod people;
mod put;
mod release;
mod report;
mod stags;

use crate::cli::CrashArgs;
use crate::driver::now;
use crate::inspect::{names, number, resources};
use crate::scene::{Target, agent};
use initiator::QUOTA;
use kbtp::output::Progress;
use kbtp_harness::{Dice, Patience, Process, Scratch};
use nix::sys::signal::Signal;
use people::{COUNT, People};
use put::Put;
use release::Release;
use report::Tally;
use serde_json::Value;
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Who is killed, and while what goes on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kill {
    /// The target, under load.
    Target,
    /// The target, while it recovers the pool of one that was killed.
    Recovery,
    /// The target, while initiators come back to it and get their partitions.
    Carving,
    /// The target, while it drains.
    Drain,
    /// The target, while it frees what initiators without a lease leave behind.
    Release,
    /// An initiator, under load.
    Initiator,
    /// An initiator, while it comes back.
    Coming,
    /// `kbtp put`.
    Put,
    /// The agent, under load.
    Agent,
    /// Agent and target at once.
    Both,
}

/// How many in a hundred are of each kind.
const SHARES: [(Kill, u64); 10] = [
    (Kill::Target, 26),
    (Kill::Recovery, 8),
    (Kill::Carving, 10),
    (Kill::Drain, 8),
    (Kill::Release, 10),
    (Kill::Initiator, 18),
    (Kill::Coming, 6),
    (Kill::Put, 8),
    (Kill::Agent, 4),
    (Kill::Both, 2),
];

impl Kill {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Target => "target, under load",
            Self::Recovery => "target, recovering",
            Self::Carving => "target, sessions coming back",
            Self::Drain => "target, draining",
            Self::Release => "target, releasing",
            Self::Initiator => "initiator, under load",
            Self::Coming => "initiator, coming back",
            Self::Put => "kbtp put",
            Self::Agent => "agent, under load",
            Self::Both => "agent and target, under load",
        }
    }

    /// The names of all of them.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        SHARES.iter().map(|(kill, _)| kill.name())
    }

    /// One whose name has `only` in it, which some name has.
    fn draw(dice: &mut Dice, only: &str) -> Self {
        let among = SHARES.iter().filter(|(kill, _)| kill.name().contains(only));
        let all: u64 = among.clone().map(|(_, share)| share).sum();
        let mut drawn = dice.below(all);
        let mut found = None;
        for (kill, share) in among {
            if drawn < *share {
                found = Some(*kill);
                break;
            }
            drawn -= share;
        }
        found.expect("the shares add up")
    }
}

/// The name of agent and socket.
const NAME: &str = "main";
const LEASE: &str = "forever";

/// Agent, target and initiators.
struct Campaign {
    scratch: Scratch,
    dice: Dice,
    agent: Process,
    target: Target,
    people: People,
    put: Put,
    release: Option<Release>,
    tally: Tally,
    /// Where the target listens, whichever it is.
    address: String,
    /// What the agent holds when one target is attached and all is at rest.
    agent_holds: Option<Holdings>,
}

/// Descriptors, memfds, sockets, threads.
type Holdings = [u64; 4];

pub(crate) fn run(args: &CrashArgs) -> ExitCode {
    static AT: AtomicU64 = AtomicU64::new(0);
    let (seed, kills, only) = (args.seed, args.kills, args.only.clone());
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        let at = AT.load(Ordering::Relaxed);
        kbtp::output::note(&format!(
            "failed at kill {at} of {kills}; again: kbtp-endurance crash --seed {seed} --kills {kills} --only {only:?}"
        ));
    }));
    let began = now();
    let mut campaign = Campaign::start(seed);
    let mut progress = Progress::new(kills, "killing");
    while campaign.tally.kills() < kills {
        let kill = Kill::draw(&mut campaign.dice, &args.only);
        AT.store(campaign.tally.kills() + 1, Ordering::Relaxed);
        campaign.kill(kill);
        progress.at(campaign.tally.kills());
    }
    progress.finish();
    let tally = campaign.finish();
    tally.report(args, began.elapsed())
}

impl Campaign {
    fn start(seed: u64) -> Self {
        let scratch = Scratch::new();
        let agent = agent(&scratch, NAME);
        let target = Target::start(&scratch, NAME, "127.0.0.1:0", LEASE);
        let address = target.address.clone();
        let put = Put::new(&scratch);
        let mut people = People::start(&address);
        people.gather();
        let mut campaign = Self {
            scratch,
            dice: Dice::new(seed),
            agent,
            target,
            people,
            put,
            release: None,
            tally: Tally::default(),
            address,
            agent_holds: None,
        };
        campaign.check(None);
        campaign
    }

    fn micros(&mut self, below: u64) -> Duration {
        Duration::from_micros(self.dice.below(below))
    }

    /// Has all initiators work for a random while; what is in flight then is noted.
    fn work(&mut self) {
        self.people.go();
        let lines = self.dice.below(900);
        self.people.hear_lines(lines);
        let moment = self.micros(3_000);
        self.people.hear_for(moment);
    }

    /// Kills once, or twice where it takes two, and checks.
    fn kill(&mut self, kill: Kill) {
        match kill {
            Kill::Target | Kill::Recovery | Kill::Carving | Kill::Drain => self.kill_target(kill),
            Kill::Agent | Kill::Both => self.kill_agent(kill),
            Kill::Initiator | Kill::Coming => self.kill_initiator(kill),
            Kill::Put => self.kill_put(),
            Kill::Release => {
                let release = match self.release.take() {
                    Some(release) => release,
                    None => Release::start(&self.scratch),
                };
                let release = self.release.insert(release);
                release.kill(&self.scratch, &mut self.dice, &mut self.tally);
            }
        }
    }

    fn kill_target(&mut self, kill: Kill) {
        let instance = self.people.instance.clone();
        self.work();
        if kill == Kill::Drain {
            self.target.process.signal(Signal::SIGTERM);
            let moment = self.micros(300_000);
            self.people.hear_for(moment);
        }
        let first = if kill == Kill::Drain {
            kill
        } else {
            Kill::Target
        };
        self.tally.in_flight(first, self.people.flying());
        let mut killed = now();
        self.target.process.end_now();
        self.tally.killed(first);
        if kill == Kill::Recovery {
            self.kill_while_it_starts();
            killed = now();
        }
        self.target = self.start_target();
        if kill == Kill::Carving {
            let moment = self.micros(15_000);
            self.people.hear_for(moment);
            killed = now();
            self.target.process.end_now();
            self.tally.killed(kill);
            self.target = self.start_target();
        }
        self.people.gather();
        assert_eq!(self.people.instance, instance, "no block was lost");
        self.served(if kill == Kill::Drain { first } else { kill }, killed);
        self.check(None);
    }

    fn start_target(&self) -> Target {
        Target::start(&self.scratch, NAME, &self.address, LEASE)
    }

    /// Starts a target and kills it before it can be ready, or soon after.
    fn kill_while_it_starts(&mut self) {
        let log = self.scratch.at("main-target.log");
        let log = std::fs::File::create(log).unwrap();
        let mut target = Target::command(&self.scratch, NAME, &self.address, LEASE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("a target");
        let moment = self.micros(25_000);
        self.people.hear_for(moment);
        target.kill().unwrap();
        target.wait().unwrap();
        self.tally.killed(Kill::Recovery);
    }

    fn kill_agent(&mut self, kill: Kill) {
        let instance = self.people.instance.clone();
        self.work();
        self.tally.in_flight(kill, self.people.flying());
        let killed = now();
        self.agent.end_now();
        self.tally.killed(kill);
        if kill == Kill::Both {
            self.target.process.end_now();
        } else {
            let (status, log) = self.target.process.wait();
            assert_eq!(status.code(), Some(1), "what was stored is lost: {log}");
            assert!(log.contains("the agent was gone"), "it says why: {log:?}");
        }
        self.agent = agent(&self.scratch, NAME);
        self.target = self.start_target();
        self.people.gather();
        assert_ne!(self.people.instance, instance, "the blocks are gone");
        assert_eq!(self.people.bound(), 0);
        self.served(kill, killed);
        self.agent_holds = None;
        self.check(None);
    }

    fn kill_initiator(&mut self, kill: Kill) {
        let who = usize::try_from(self.dice.below(COUNT as u64)).unwrap();
        self.work();
        self.people.kill(who);
        let mut killed = now();
        self.tally.killed(Kill::Initiator);
        let of_one = self.people.all[who].flying.values().copied();
        self.tally.in_flight(Kill::Initiator, of_one);
        self.people.replace(who);
        if kill == Kill::Coming {
            let moment = self.micros(20_000);
            self.people.hear_for(moment);
            self.people.kill(who);
            killed = now();
            self.tally.killed(kill);
            self.people.replace(who);
        }
        self.people.gather();
        let served = self.people.all[who].served.expect("it was served");
        self.tally
            .served(kill, served.saturating_duration_since(killed));
        self.check(None);
    }

    fn kill_put(&mut self) {
        self.people.go();
        let moment = self.micros(self.put.usual());
        self.put.kill(&self.address, moment);
        self.tally.killed(Kill::Put);
        self.people.gather();
        // What it had stored before it was killed stays, and its owner is named by the status.
        let left = self.put.clean(&self.address, &self.target);
        self.tally.put(left);
        self.check(None);
    }

    /// Notes how long it took from the kill until every initiator had its first load answered.
    fn served(&mut self, kill: Kill, killed: Instant) {
        let last = self.people.all.iter().filter_map(|i| i.served).max();
        let last = last.expect("they were served");
        self.tally
            .served(kill, last.saturating_duration_since(killed));
    }

    /// What must hold whenever nobody works.
    fn check(&mut self, expected: Option<u32>) {
        let bound = expected.unwrap_or_else(|| self.people.bound());
        let status = self.target.settles(bound);
        assert_eq!(
            status["instance"].as_str().map(str::to_owned),
            self.people.instance
        );
        self.check_sessions(&status);
        let pids = (self.agent.pid(), self.target.process.pid());
        let target = resources(pids.1);
        assert_eq!(target.shared, 2, "pool and table are mapped once");
        let expected = self.put.files();
        let mut files = names(&self.scratch.at(""));
        files.retain(|name| !expected.contains(name) && !name.starts_with("release"));
        assert_eq!(
            files,
            ["main-target.log", "main.log", "main.sock", "main.sock.lock"],
            "a file was left behind"
        );
        // The agent notices the end of a target, or of a status that was asked for, a moment later.
        let patience = Patience::new();
        loop {
            let agent = resources(pids.0);
            let holds = [
                agent.descriptors,
                agent.memfds,
                agent.sockets,
                agent.threads,
            ];
            let known = *self.agent_holds.get_or_insert(holds);
            if holds == known && agent.memfds == 2 && agent.shared == 2 {
                return;
            }
            let _now = patience.now(&format!("the agent holds {known:?} again: {agent:?}"));
        }
    }

    fn check_sessions(&self, status: &Value) {
        let sessions = status["sessions"].as_array().expect("sessions");
        assert_eq!(sessions.len(), COUNT, "{status}");
        assert_eq!(number(status, "/pool/leases"), 0, "{status}");
        let direct = self.people.all.iter().filter(|i| i.direct).count() as u64;
        assert_eq!(number(status, "/pool/partitions"), direct, "{status}");
        // What is bound outside a session's partition is set aside besides its quota.
        let quota = u64::from(QUOTA) * COUNT as u64;
        let set_aside = quota..=quota + u64::from(self.people.bound());
        let granted = number(status, "/pool/quota_granted");
        assert!(set_aside.contains(&granted), "{status}");
        for session in sessions {
            assert!(
                number(session, "/usage") <= number(session, "/quota"),
                "{session}"
            );
            assert_eq!(number(session, "/in_flight"), 0, "{session}");
        }
        for initiator in &self.people.all {
            assert_eq!(
                initiator.quota,
                u64::from(QUOTA),
                "the quota is there again"
            );
        }
    }

    /// Ends all; nothing may be left.
    fn finish(self) -> Tally {
        let mut tally = self.tally;
        tally.sessions = self.people.sessions;
        tally.operations = self.people.operations;
        tally.stags = self.people.stags.count() as u64;
        tally.stags_again = self.people.stags.again;
        let ledgers = self.people.end();
        self.target.is_whole(ledgers);
        self.target.process.stop();
        self.agent.stop();
        if let Some(release) = self.release {
            release.finish();
        }
        let left = [NAME, release::NAME].map(|name| self.scratch.at(&format!("{name}.sock")));
        for socket in left {
            assert!(!socket.exists(), "{} was left behind", socket.display());
        }
        tally
    }
}
