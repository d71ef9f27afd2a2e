//! The initiators, as whoever started them knows them.

use super::initiator::QUOTA;
use super::stags::Stags;
use crate::driver::{Heard, listen, now};
use crate::scene::{BLOCK_SIZE, myself};
use kbtp_harness::{Kind, Ledger, Line};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How many there are: one as anybody, the others with direct modes.
pub(crate) const COUNT: usize = 3;

/// How long anything may take before the campaign gives up.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Connecting, or looking at its blocks.
    Coming,
    /// Its session is set up and its blocks are right; it waits.
    Ready,
    Working,
    /// Dead, and all that it said is heard.
    Dead,
}

#[derive(Debug)]
pub(crate) struct Initiator {
    owner: u64,
    child: Child,
    stdin: ChildStdin,
    state: State,
    /// The last load asked for that it has done.
    proven: u64,
    pub(crate) ledger: Ledger,
    /// What is in flight.
    pub(crate) flying: BTreeMap<u64, Kind>,
    /// When its last session answered its first load.
    pub(crate) served: Option<Instant>,
    /// Its last session has direct allocations.
    pub(crate) direct: bool,
    pub(crate) quota: u64,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct People {
    pub(crate) all: Vec<Initiator>,
    target: String,
    heard: Receiver<Heard>,
    tell: Sender<Heard>,
    proof: u64,
    /// Lines of the journal heard so far.
    pub(crate) lines: u64,
    /// The Target Instance ID that the last session was of.
    pub(crate) instance: Option<String>,
    pub(crate) stags: Stags,
    /// Sessions begun.
    pub(crate) sessions: u64,
    /// Operations that were done.
    pub(crate) operations: u64,
}

impl People {
    /// Starts them.
    pub(crate) fn start(target: &str) -> Self {
        let (tell, heard) = channel();
        let mut people = Self {
            all: Vec::new(),
            target: target.to_owned(),
            heard,
            tell,
            proof: 0,
            lines: 0,
            instance: None,
            stags: Stags::default(),
            sessions: 0,
            operations: 0,
        };
        for who in 0..COUNT {
            let owner = who as u64 + 1;
            let ledger = Ledger::new(owner, QUOTA.into(), BLOCK_SIZE);
            let initiator = people.spawn(who, ledger);
            people.all.push(initiator);
        }
        people
    }

    fn spawn(&self, who: usize, ledger: Ledger) -> Initiator {
        let owner = who as u64 + 1;
        let owner_text = owner.to_string();
        let mut args = vec![
            "initiator",
            "--target",
            &self.target,
            "--owner",
            &owner_text,
        ];
        if who > 0 {
            args.push("--direct");
        }
        if let Some(instance) = &self.instance {
            args.extend(["--instance", instance]);
        }
        let mut child = myself(&args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an initiator");
        listen(who, child.stdout.take().unwrap(), self.tell.clone());
        let mut stdin = child.stdin.take().unwrap();
        let mut known: Vec<_> = ledger.lines().map(|line| line.to_string()).collect();
        known.push("begin\n".to_owned());
        stdin
            .write_all(known.join("\n").as_bytes())
            .expect("it listens");
        Initiator {
            owner,
            child,
            stdin,
            state: State::Coming,
            proven: 0,
            ledger,
            flying: BTreeMap::new(),
            served: None,
            direct: false,
            quota: 0,
        }
    }

    /// Hears what they say until `until`, or until it is enough; whether it was.
    fn hear(&mut self, until: Instant, enough: impl Fn(&Self) -> bool) -> bool {
        while !enough(self) {
            let left = until.saturating_duration_since(now());
            match self.heard.recv_timeout(left) {
                Ok(heard) => self.take(&heard),
                Err(RecvTimeoutError::Timeout) => return enough(self),
                Err(RecvTimeoutError::Disconnected) => panic!("nobody is there"),
            }
        }
        true
    }

    fn hear_until(&mut self, what: &str, enough: impl Fn(&Self) -> bool) {
        let heard = self.hear(now() + PATIENCE, enough);
        let states: Vec<_> = self.all.iter().map(|i| (i.state, i.proven)).collect();
        assert!(heard, "{what}: not within {PATIENCE:?}: {states:?}");
    }

    /// Hears what they say for a while.
    pub(crate) fn hear_for(&mut self, moment: Duration) {
        self.hear(now() + moment, |_| false);
    }

    /// Hears what they say until they have written `lines` more lines.
    pub(crate) fn hear_lines(&mut self, lines: u64) {
        let end = self.lines + lines;
        self.hear_until("work", |people| people.lines >= end);
    }

    fn take(&mut self, heard: &Heard) {
        let initiator = &mut self.all[heard.who];
        let Some(line) = &heard.line else {
            assert!(
                initiator.state == State::Dead,
                "initiator {} ended by itself",
                initiator.owner
            );
            return;
        };
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "journal" => {
                let line: Line = rest.parse().unwrap();
                self.lines += 1;
                match line {
                    Line::Starts(handle, kind) => {
                        initiator.flying.insert(handle, kind);
                    }
                    Line::Done(handle, _) | Line::Looked(handle) => {
                        initiator.flying.remove(&handle);
                        self.operations += 1;
                    }
                    Line::Refused(handle) | Line::Is(handle, _) => {
                        initiator.flying.remove(&handle);
                    }
                    Line::Begin(..) | Line::Versions(_) => {}
                }
                line.enter(&mut initiator.ledger);
            }
            "session" => {
                let mut words = rest.split(' ');
                let mut next = || words.next().expect("a word");
                self.instance = Some(next().to_owned());
                initiator.quota = next().parse().unwrap();
                initiator.direct = next() == "1";
                let stags = next().split(',').map(|s| s.parse().unwrap());
                self.stags.take(heard.who, stags.filter(|stag| *stag != 0));
                self.sessions += 1;
            }
            "served" => initiator.served = Some(heard.at),
            "ready" | "paused" => initiator.state = State::Ready,
            "lost" => initiator.state = State::Coming,
            "prove" => initiator.proven = rest.parse().unwrap(),
            _ => panic!("initiator {} says {line:?}", initiator.owner),
        }
    }

    fn tell(initiator: &mut Initiator, what: &str) {
        let told = initiator.stdin.write_all(format!("{what}\n").as_bytes());
        told.unwrap_or_else(|e| panic!("initiator {}: {e}", initiator.owner));
    }

    /// Has all of them work.
    pub(crate) fn go(&mut self) {
        for initiator in &mut self.all {
            assert_eq!(initiator.state, State::Ready);
            initiator.state = State::Working;
            Self::tell(initiator, "go");
        }
    }

    /// Waits until each of them has a session whose target answers, has found its blocks right, and rests.
    pub(crate) fn gather(&mut self) {
        self.proof += 1;
        let proof = self.proof;
        for initiator in &mut self.all {
            Self::tell(initiator, "pause");
            Self::tell(initiator, &format!("prove {proof}"));
        }
        self.hear_until("all initiators rest", |people| {
            let rests = |i: &Initiator| i.state == State::Ready && i.proven == proof;
            people.all.iter().all(rests)
        });
        for initiator in &self.all {
            assert!(initiator.flying.is_empty(), "{initiator:?}");
        }
    }

    /// SIGKILL for one of them; returns once all that it said is heard.
    pub(crate) fn kill(&mut self, who: usize) {
        let initiator = &mut self.all[who];
        initiator.child.kill().unwrap();
        initiator.child.wait().unwrap();
        initiator.state = State::Dead;
        let until = now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(now());
            let heard = self.heard.recv_timeout(left).expect("its end is heard");
            let end = heard.who == who && heard.line.is_none();
            self.take(&heard);
            if end {
                self.all[who].state = State::Dead;
                return;
            }
        }
    }

    /// Starts the heir of one that was killed: another process that knows what it knew.
    pub(crate) fn replace(&mut self, who: usize) {
        let heir = self.spawn(who, self.all[who].ledger.clone());
        let flying = std::mem::take(&mut self.all[who].flying);
        self.all[who] = Initiator { flying, ..heir };
    }

    /// Ends them all; what they knew.
    pub(crate) fn end(mut self) -> Vec<Ledger> {
        let ledgers = self.all.iter().map(|i| i.ledger.clone()).collect();
        for who in 0..COUNT {
            self.kill(who);
        }
        ledgers
    }

    /// Blocks bound by all of them.
    pub(crate) fn bound(&self) -> u32 {
        self.all.iter().map(|i| i.ledger.bound()).sum()
    }

    /// What is in flight, by kind.
    pub(crate) fn flying(&self) -> impl Iterator<Item = Kind> + '_ {
        self.all.iter().flat_map(|i| i.flying.values().copied())
    }
}

impl Drop for People {
    fn drop(&mut self) {
        for initiator in &mut self.all {
            // It fails only if the process has ended.
            initiator.child.kill().unwrap_or_default();
            initiator.child.wait().unwrap();
        }
    }
}
