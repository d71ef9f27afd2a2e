//! The soak: a mixed load and initiators that come and go, for long; what grows meanwhile, and what is left when nobody is
//! there any more.
//!
//! Resident memory is judged by the line through its samples, after a warm-up. Everything that can be counted must be at
//! rest, with no session, what it was at rest after the warm-up, exactly.

mod analysis;
pub(crate) mod churn;
pub(crate) mod load;
mod report;
mod sample;

use crate::cli::{Plant, SoakArgs};
use crate::driver::{Heard, listen, now};
use crate::scene::{BLOCKS, Target, agent, myself};
use analysis::changed;
use kbtp::output::Progress;
use kbtp_harness::{Process, Scratch, options};
use kbtp_initiator::{Client, Handle, StoreItem};
use report::Report;
use sample::{Sample, Watched};
use std::io::Write as _;
use std::process::{Child, ChildStdin, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long blocks outlive their session: short, so that leases run out all the time, and longer than it takes to come again
/// on a busy machine.
const LEASE: &str = "2s";
const NAME: &str = "soak";
/// How long an initiator may take to come to rest.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long a process may take to settle: what it has for as many as come at a time has grown to its size then, for the
/// most part, and the places that its allocator keeps.
const WARM_UP: Duration = Duration::from_mins(5);
/// Samples of a run, about.
const SAMPLES: u32 = 600;
/// Time between two samples at least and at most.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What the initiators of the soak say, in one system call.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// A process that puts load on the target.
#[derive(Debug)]
struct Worker {
    child: Child,
    stdin: ChildStdin,
    resting: bool,
    operations: u64,
    sessions: u64,
}

impl Worker {
    fn start(who: usize, args: &[&str], tell: Sender<Heard>) -> Self {
        let mut child = myself(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an initiator");
        listen(who, child.stdout.take().unwrap(), tell);
        Self {
            stdin: child.stdin.take().unwrap(),
            child,
            resting: true,
            operations: 0,
            sessions: 0,
        }
    }

    fn tell(&mut self, what: &str) {
        self.stdin
            .write_all(format!("{what}\n").as_bytes())
            .expect("it listens");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It fails only if the process has ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().unwrap();
    }
}

struct Soak {
    agent: Process,
    target: Target,
    workers: Vec<Worker>,
    heard: Receiver<Heard>,
    watched: Vec<Watched>,
    samples: Vec<Sample>,
    /// When the warm-up ended, or will.
    zero: Instant,
    interval: Duration,
    patience: Duration,
}

pub(crate) fn run(args: &SoakArgs) -> ExitCode {
    let scratch = Scratch::new();
    let length = args.length();
    let mut soak = Soak::start(&scratch, args);
    let warm_up = (length * 2 / 5).clamp(Duration::from_secs(5), WARM_UP);
    soak.zero = now() + warm_up;
    soak.touch_all();
    let total = (warm_up + length).as_secs();
    let mut progress = Progress::new(total, "soaking");
    let began = now();
    let mut report = Report::new(args, &soak.watched);
    // The first rest warms up too: what a first end of a session leaves behind is no leak.
    soak.work_until(began + warm_up / 2, |_| true, &mut progress, began);
    soak.rest();
    soak.work_until(soak.zero, |_| true, &mut progress, began);
    soak.rest();
    let (operations, sessions) = soak.done();
    let baseline = soak.settled(None);
    let zero = now();
    soak.zero = zero;
    soak.samples.clear();
    let cycles = args.cycles;
    let enough = |soak: &Soak| soak.done().1 - sessions >= cycles;
    soak.work_until(zero + length, enough, &mut progress, began);
    progress.finish();
    soak.rest();
    let end = soak.settled(Some(&baseline));
    let (all_operations, all_sessions) = soak.done();
    report.judge(
        &soak.samples,
        &baseline,
        &end,
        (all_operations - operations, all_sessions - sessions),
        zero.elapsed(),
    );
    let code = report.print();
    soak.finish();
    code
}

impl Soak {
    fn start(scratch: &Scratch, args: &SoakArgs) -> Self {
        let agent = agent(scratch, NAME);
        let target = Target::start(scratch, NAME, "127.0.0.1:0", LEASE);
        let (tell, heard) = channel();
        let seed = args.seed.to_string();
        let mut workers = Vec::new();
        let mut watched = vec![
            Watched {
                name: "agent",
                pid: agent.pid(),
            },
            Watched {
                name: "target",
                pid: target.process.pid(),
            },
        ];
        let common = ["--target", &target.address, "--seed", &seed];
        for (name, kind, owner) in [
            ("load 1", "load", Some("1")),
            ("load 2", "load", Some("2")),
            ("churn", "churn", None),
        ] {
            let mut all = vec![kind];
            all.extend(common);
            all.extend(owner.into_iter().flat_map(|owner| ["--owner", owner]));
            if let (Some(plant), "churn") = (args.plant, kind) {
                all.push(match plant {
                    Plant::Sessions => "--plant=sessions",
                    Plant::Memory => "--plant=memory",
                });
            }
            let worker = Worker::start(workers.len(), &all, tell.clone());
            watched.push(Watched {
                name,
                pid: worker.child.id(),
            });
            workers.push(worker);
        }
        Self {
            agent,
            target,
            workers,
            heard,
            watched,
            samples: Vec::new(),
            zero: now(),
            interval: (args.length() / SAMPLES).clamp(INTERVAL.0, INTERVAL.1),
            patience: args.patience,
        }
    }

    /// Stores to every block of the pool once: pages that nobody has touched would count as growth later.
    fn touch_all(&self) {
        let wanted = options(&self.target.address, 9)
            .quota(BLOCKS)
            .timeout(load::TIMEOUT)
            .connect_timeout(load::TIMEOUT);
        let mut client = Client::connect(wanted).expect("a session");
        let size = client.block_size();
        let mut buffers = client.register_many(64, size).unwrap();
        for buffer in &mut buffers {
            buffer
                .fill(&vec![1; usize::try_from(size).unwrap()])
                .unwrap();
        }
        let mut next = client.handles().0.0;
        for _ in 0..BLOCKS / 64 {
            let mut items: Vec<_> = (next..)
                .zip(&mut buffers)
                .map(|(handle, buffer)| StoreItem::new(Handle(handle), buffer))
                .collect();
            client.alloc_store_many(&mut items).unwrap();
            assert!(items.iter().all(|i| matches!(i.result, Some(Ok(_)))));
            next += 64;
        }
        client.close().unwrap();
        // They are freed when the lease is over.
        self.target.settles(0);
    }

    fn take(&mut self, heard: &Heard) {
        let line = heard.line.as_ref().expect("an initiator ended by itself");
        let worker = &mut self.workers[heard.who];
        let mut words = line.split(' ').rev();
        let mut next = || words.next().and_then(|n| n.parse().ok()).expect("a number");
        (worker.sessions, worker.operations) = (next(), next());
        worker.resting = line.starts_with("rested");
    }

    /// Operations and sessions so far.
    fn done(&self) -> (u64, u64) {
        let workers = self.workers.iter();
        workers.fold((0, 0), |(o, s), w| (o + w.operations, s + w.sessions))
    }

    /// Has all work until `until`, and until it is `enough`; samples meanwhile.
    fn work_until(
        &mut self,
        until: Instant,
        enough: impl Fn(&Self) -> bool,
        progress: &mut Progress,
        began: Instant,
    ) {
        for worker in &mut self.workers {
            worker.tell("go");
        }
        let mut next = now() + self.interval;
        while now() < until || !enough(self) {
            let left = next.saturating_duration_since(now());
            if let Ok(heard) = self.heard.recv_timeout(left) {
                self.take(&heard);
                continue;
            }
            next = now() + self.interval;
            let sample = self.sample();
            self.samples.push(sample);
            progress.at(began.elapsed().as_secs());
        }
    }

    fn sample(&self) -> Sample {
        let at = now();
        let after = at.saturating_duration_since(self.zero).as_secs_f64();
        let before = self.zero.saturating_duration_since(at).as_secs_f64();
        Sample::take(after - before, &self.watched, &self.target.admin)
    }

    /// Has all of them end their sessions.
    fn rest(&mut self) {
        for worker in &mut self.workers {
            worker.resting = false;
            worker.tell("rest");
        }
        let until = now() + PATIENCE;
        while !self.workers.iter().all(|w| w.resting) {
            let left = until.saturating_duration_since(now());
            let heard = self.heard.recv_timeout(left).expect("they come to rest");
            self.take(&heard);
        }
    }

    /// The counts when nothing moves any more: when they are what they were, or, with nothing to compare them with, when
    /// no block is bound or leased. After [`SoakArgs::patience`] those there are.
    fn settled(&self, expected: Option<&Sample>) -> Sample {
        let until = now() + self.patience;
        loop {
            let sample = self.sample();
            let rests = match expected {
                Some(expected) => changed(&expected.counts, &sample.counts).is_empty(),
                None => [
                    "handles bound",
                    "leases",
                    "sessions",
                    "quota granted",
                    "half-open streams",
                ]
                .iter()
                .all(|name| sample.counts[*name] == 0),
            };
            if rests || now() >= until {
                return sample;
            }
            std::thread::yield_now();
        }
    }

    fn finish(self) {
        drop(self.workers);
        self.target.process.stop();
        self.agent.stop();
    }
}
