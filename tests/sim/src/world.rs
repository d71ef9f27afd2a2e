//! The world: one target, its initiators, the network, and one clock that jumps from event to event.

use crate::client::{self, CEnd, Client};
use crate::forge::{Forgery, Framer};
use crate::marks::{Mark, Marks};
use crate::model::{Model, Seq};
use crate::net::{NEVER, Pipe};
use crate::options::Options;
use crate::plan::{Fault, Step, What};
use crate::rng::{Rng, mix};
use crate::target::{self, Stage, TEnd, Target};
use crate::tear::Journal;
use kbtp_core::initiator::Initiator;
use kbtp_fabric::Time;
use kbtp_iwarp::{Action, Connection};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::AuthMode;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The sides of a connection.
pub const CLIENT: usize = 0;
/// See [`CLIENT`].
pub const TARGET: usize = 1;

/// Silence after which an initiator gives a stream up that owes it answers: longer than the target's own longest wait.
pub(crate) const WATCHDOG_NS: u64 = 1_500_000_000;
/// Silence after which the target's keep-alive finds a peer gone.
const KEEPALIVE_NS: u64 = 2_000_000_000;
/// How long the last operations may take once nothing disturbs them any more.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Calls into the target between two audits.
const AUDIT_EVERY: u64 = 100;
/// Turns in which nothing can still be moving: a stuck loop of the simulation itself.
const EVENTS_PER_STEP: u64 = 1_000;

/// A connection.
#[derive(Debug)]
pub struct Link {
    pub(crate) client: usize,
    pub(crate) c: Option<Box<CEnd>>,
    pub(crate) t: Option<Box<TEnd>>,
    /// Pipes towards the side of their number.
    pub(crate) pipes: [Pipe; 2],
    wake: [Time; 2],
    /// An octet was damaged on its way to this side, and its stream must end.
    pub(crate) damaged: [bool; 2],
    /// When the first ticket of its session was abandoned.
    pub(crate) abandoned_at: Option<Time>,
    /// Octets were damaged in either direction.
    pub(crate) hurt: bool,
    /// The target's sink of RDMA Reads may hold damaged octets.
    pub(crate) spoilt: bool,
    /// An FPDU was forged.
    pub(crate) forged: Option<Forgery>,
    /// The target has found it.
    pub(crate) caught: bool,
    /// Its initiator broke a rule for which the session may end.
    pub(crate) fatal: bool,
    /// The next time the target should look after it, it does not.
    pub(crate) lose_wake: bool,
    /// The life of the target it belongs to.
    pub(crate) life: u64,
    /// Something was done to it for which the target may say nothing any more.
    pub(crate) silenced: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    Wake(usize, usize),
    Connect(usize, u64),
    Step,
    Directory,
    DrainOver(u64),
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Steps are carried out.
    Steps,
    /// What is in flight ends; then, if leases last for ever, all is freed.
    Settle,
    /// Connections close.
    Close,
    /// Leases end.
    Leases,
    /// It is over.
    Over,
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Operations carried out.
    pub ops: u64,
    /// Events.
    pub events: u64,
    /// Faults by kind, in the order of [`Fault::ALL`].
    pub faults: [u64; Fault::ALL.len()],
    /// Marks met.
    pub marks: Marks,
    /// Hash of all that happened.
    pub hash: u64,
    /// What went wrong.
    pub violation: Option<String>,
    /// What happened, if it was asked for.
    pub history: VecDeque<String>,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
}

/// Lines of history kept.
const HISTORY: usize = 400;

/// The world.
pub struct World {
    pub(crate) o: Options,
    pub(crate) now: Time,
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    order: u64,
    pub(crate) rng: Rng,
    plan: VecDeque<Step>,
    most_events: u64,
    pub(crate) phase: Phase,
    phase_until: Time,
    pub(crate) links: Vec<Link>,
    pub(crate) clients: Vec<Client>,
    pub(crate) target: Target,
    pub(crate) target_up_at: Time,
    pub(crate) target_lives: u64,
    pub(crate) model: Model,
    pub(crate) known_ranges: Vec<(u64, u64)>,
    /// Calls into the target since the last step was checked, and since the last audit.
    pub(crate) calls: u64,
    pub(crate) unaudited: u64,
    pub(crate) last_tail: u32,
    pub(crate) deferred_seen: u64,
    /// When the clock last jumped.
    pub(crate) jumped_at: Time,
    /// Connections before this one are over.
    pub(crate) first_alive: usize,
    pub(crate) journal: Journal,
    /// The target dies in its next call that writes.
    pub(crate) dies_within: bool,
    /// It has, and is to be started again.
    pub(crate) dying: bool,
    /// When the target of which life began to drain.
    pub(crate) drained: Option<(u64, Seq)>,
    backoff_ns: u64,
    directory_at: Time,
    pub(crate) out: Outcome,
    pub(crate) telling: bool,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

macro_rules! tell {
    ($world:expr, $($arg:tt)*) => {
        if $world.telling {
            $world.line(&format!($($arg)*));
        }
    };
}
pub(crate) use tell;

impl World {
    /// The world of these options, in which `plan` is to happen.
    #[must_use]
    pub fn new(options: Options, plan: Vec<Step>, telling: bool) -> Self {
        #[cfg(feature = "plants")]
        kbtp_core::journal::keep(true);
        let mut rng = Rng::new(mix(options.seed, 0x3042_1d00));
        let target = Target::format(&options, &mut rng);
        let model = Model::new(&options, target.whole_table());
        let clients: Vec<_> = (0..options.clients)
            .map(|number| Client::new(&options, number, &mut rng))
            .collect();
        let last_tail = target.tail();
        let most_events = (plan.len() as u64 + 2_000) * EVENTS_PER_STEP;
        let mut world = Self {
            most_events,
            o: options,
            now: Time(1_000_000_000),
            heap: BinaryHeap::new(),
            order: 0,
            rng,
            plan: plan.into(),
            phase: Phase::Steps,
            phase_until: NEVER,
            links: Vec::new(),
            clients,
            target,
            target_up_at: Time(0),
            target_lives: 0,
            model,
            known_ranges: Vec::new(),
            calls: 0,
            unaudited: 0,
            last_tail,
            deferred_seen: 0,
            jumped_at: Time(0),
            first_alive: 0,
            journal: Journal::default(),
            dies_within: false,
            dying: false,
            drained: None,
            backoff_ns: 0,
            directory_at: NEVER,
            out: Outcome::default(),
            telling,
        };
        // What making the pool wrote is nobody's call.
        world.forget_journal();
        for client in 0..world.clients.len() {
            world.connect_in(client, client as u64 * 1_000);
        }
        world.at(world.now.after_ns(10_000), Event::Step);
        world
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Outcome {
        while self.turn() {}
        self.over()
    }

    /// What it came to.
    pub fn over(mut self) -> Outcome {
        self.out.virtual_ns = self.now.0;
        self.out
    }

    /// The next event, and the checks after it; whether there is one.
    pub fn turn(&mut self) -> bool {
        if self.phase == Phase::Over || self.out.violation.is_some() {
            return false;
        }
        let Some(Reverse((at, _, event))) = self.heap.pop() else {
            self.fail("nothing will ever happen again".into());
            return false;
        };
        self.now = self.now.max(at);
        self.out.events += 1;
        if self.out.events > self.most_events {
            let how = self.tell_all();
            self.fail(format!("no end, {event:?}: {how}"));
            return false;
        }
        self.handle(at, event);
        // Between turns, when every session is in its place.
        if self.calls > 0 {
            self.calls = 0;
            if self.unaudited >= AUDIT_EVERY {
                self.unaudited = 0;
                self.audit();
            } else {
                self.conserve();
            }
        }
        if self.phase != Phase::Steps {
            self.advance();
        }
        true
    }

    /// Where everybody is.
    fn tell_all(&self) -> String {
        let clients = self.clients.iter().map(|c| {
            let end = c.link.and_then(|link| self.links[link].c.as_ref());
            let session = end.and_then(|end| end.session.as_ref());
            let credits = session.map(|s| (s.is_open(), s.free_credits(), s.in_flight()));
            let ops = end.map(|end| (end.ops.len(), end.rogues.len(), end.closing));
            let queued = c.queue.len();
            format!(
                "{:?}: {queued} queued, session {credits:?}, {ops:?}",
                c.link
            )
        });
        let clients: Vec<_> = clients.collect();
        format!(
            "in {:?} at {:?}, {} steps left: {clients:#?}",
            self.phase,
            self.now,
            self.plan.len()
        )
    }

    pub(crate) fn fail(&mut self, what: String) {
        tell!(self, "VIOLATION: {what}");
        self.out.violation.get_or_insert(what);
    }

    pub(crate) fn check(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.fail(what);
        }
    }

    pub(crate) fn line(&mut self, what: &str) {
        if self.out.history.len() == HISTORY {
            self.out.history.pop_front();
        }
        let us = self.now.0 / 1_000;
        self.out.history.push_back(format!("{us:>9} us  {what}"));
    }

    pub(crate) fn hash(&mut self, word: u64) {
        self.out.hash = mix(self.out.hash, word);
    }

    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.order += 1;
        self.heap.push(Reverse((at, self.order, event)));
    }

    pub(crate) fn wake(&mut self, link: usize, side: usize, at: Time) {
        if at == NEVER {
            return;
        }
        let at = at.max(self.now);
        if at < self.links[link].wake[side] {
            self.links[link].wake[side] = at;
            self.at(at, Event::Wake(link, side));
        }
    }

    fn handle(&mut self, at: Time, event: Event) {
        match event {
            Event::Wake(link, side) => {
                if self.links[link].wake[side] != at {
                    return;
                }
                self.links[link].wake[side] = NEVER;
                if side == TARGET && std::mem::take(&mut self.links[link].lose_wake) {
                    return self.wake_lost(link);
                }
                self.hash((self.now.0 << 8) ^ (link as u64 * 2 + side as u64));
                if side == CLIENT {
                    self.client_turn(link);
                } else {
                    self.target_turn(link);
                }
            }
            Event::Connect(client, number) => {
                if self.clients[client].connections == number {
                    self.connect(client);
                }
            }
            Event::Step => self.step(),
            Event::Directory => {
                self.directory_at = NEVER;
                self.poll_directory();
            }
            Event::DrainOver(life) => {
                if life == self.target_lives {
                    self.stop_drained();
                }
            }
        }
    }

    // ---- Steps ----

    fn step(&mut self) {
        let Some(step) = self.plan.front().copied() else {
            self.begin(Phase::Settle);
            return;
        };
        let client = &mut self.clients[step.client];
        let crowded = client.queue.len() >= 8;
        if crowded && step.what == What::Op {
            let open = client.link.is_some_and(|link| {
                let end = self.links[link].c.as_ref();
                end.is_some_and(|c| c.session.as_ref().is_some_and(Initiator::is_open))
            });
            if open {
                // The initiator is busy: whoever makes operations waits for it.
                self.backoff_ns = (self.backoff_ns * 2).clamp(20_000, 2_000_000);
                self.at(self.now.after_ns(self.backoff_ns), Event::Step);
                return;
            }
        }
        self.backoff_ns = 0;
        self.plan.pop_front();
        match step.what {
            What::Op if crowded => {}
            What::Op => {
                let client = &mut self.clients[step.client];
                client.queue.push_back(step);
                if let Some(link) = client.link {
                    self.wake(link, CLIENT, self.now);
                }
            }
            What::Fault(fault) => self.fault(fault, &step),
        }
        let gap = self.plan.front().map_or(0, |next| next.gap_ns);
        self.at(self.now.after_ns(gap), Event::Step);
    }

    /// Nobody looks after a connection when it was time to. A worker that polls looks again by itself; else it is up to
    /// the next octets, or to the initiator's patience.
    fn wake_lost(&mut self, link: usize) {
        self.out.marks.hit(Mark::WakeLost);
        tell!(self, "connection {link}: a wake-up is lost");
        if self.rng.per_mille(700) {
            let at = self.now.after_ns(self.rng.within(1_000, 100_000_000));
            self.wake(link, TARGET, at);
        }
    }

    // ---- Connections ----

    pub(crate) fn connect_in(&mut self, client: usize, ns: u64) {
        self.clients[client].connections += 1;
        let number = self.clients[client].connections;
        self.at(self.now.after_ns(ns), Event::Connect(client, number));
    }

    #[expect(
        clippy::too_many_lines,
        reason = "both ends of a connection, field by field"
    )]
    fn connect(&mut self, client: usize) {
        if self.clients[client].link.is_some() || matches!(self.phase, Phase::Close | Phase::Leases)
        {
            return;
        }
        if self.now < self.target_up_at {
            let wait = self.target_up_at.since_ns(self.now) + 1_000;
            self.connect_in(client, wait);
            return;
        }
        let number = self.links.len();
        let now = self.now;
        let (seed, other) = (self.rng.octets(), self.rng.octets());
        let config = client::stream_config(&self.o);
        let conn = Connection::initiator(&config, seed, b"", now);
        let answer = Connection::responder(&target::stream_config(&self.o), other, now);
        let (Ok(conn), Ok(answer)) = (conn, answer) else {
            self.fail("a stream cannot be made".into());
            return;
        };
        #[cfg(feature = "plants")]
        let (conn, answer) = {
            let (mut conn, mut answer) = (conn, answer);
            kbtp_iwarp::plants::begin_at(&mut conn, self.o.first_msn);
            kbtp_iwarp::plants::begin_at(&mut answer, self.o.first_msn);
            (conn, answer)
        };
        let scratch = Region::anonymous(Initiator::SCRATCH_LEN, &PageOptions::default());
        let Ok(scratch) = scratch else {
            self.fail("no memory".into());
            return;
        };
        let auth = if self.o.auth {
            AuthMode::Hmac
        } else {
            AuthMode::None
        };
        let challenge = self.rng.octets();
        let marked = self.o.target_markers || self.o.client_markers;
        let pipe = || {
            let mut pipe = Pipe::default();
            pipe.framer = (!marked).then(Framer::default);
            pipe
        };
        self.links.push(Link {
            client,
            c: Some(Box::new(CEnd {
                conn,
                session: None,
                ops: std::collections::BTreeMap::new(),
                given_up: 0,
                scratch,
                reset: false,
                closing: false,
                broke: false,
                progress_at: now,
                rogues: Vec::new(),
                hoarded: Vec::new(),
            })),
            t: Some(Box::new(TEnd {
                conn: answer,
                session: None,
                stage: Stage::Startup,
                replaced_gone: false,
                waiters: Vec::new(),
                waiting: VecDeque::new(),
                reset: false,
                auth,
                challenge,
                id: None,
                hello_by: now.after_ms(5_000),
                keepalive: None,
                late_until: now,
                taken: 0,
                completed: 0,
                acknowledged: false,
            })),
            pipes: [pipe(), pipe()],
            wake: [NEVER; 2],
            damaged: [false; 2],
            abandoned_at: None,
            hurt: false,
            spoilt: false,
            forged: None,
            caught: false,
            fatal: false,
            lose_wake: false,
            life: self.target_lives,
            silenced: false,
        });
        self.clients[client].link = Some(number);
        tell!(self, "initiator {client} connects: connection {number}");
        self.wake(number, CLIENT, now);
        self.wake(number, TARGET, now.after_ns(1));
    }

    /// Moves octets between a stream and the network; whether any moved.
    pub(crate) fn pump(
        &mut self,
        link: usize,
        side: usize,
        conn: &mut Connection,
        reset: bool,
    ) -> bool {
        let now = self.now;
        let mut moved = false;
        if conn.next_timeout().is_some_and(|at| at <= now) {
            conn.handle_timeout(now);
        }
        let watched = side == TARGET && self.links[link].forged.is_some();
        let was_whole = watched && Self::is_whole(conn);
        let got = self.links[link].pipes[side].receive(conn, now, &self.o, &mut self.rng);
        if got.forged && was_whole {
            self.check_forged(link, conn);
        }
        moved |= got.octets > 0 || got.ended;
        if got.octets > 0 && self.links[link].pipes[side].blocked {
            self.links[link].pipes[side].blocked = false;
            self.wake(link, 1 - side, now);
        }
        let pipe = &mut self.links[link].pipes[1 - side];
        let (sent, damaged) = pipe.send(conn, now, &self.o, &mut self.rng);
        moved |= sent > 0;
        if let Some(framer) = &mut pipe.framer
            && std::mem::take(&mut framer.wrapped)
        {
            self.out.marks.hit(Mark::MsnWrap);
        }
        self.links[link].damaged[1 - side] |= damaged;
        self.links[link].hurt |= damaged;
        self.links[link].spoilt |= damaged && side == CLIENT;
        while let Some(action) = conn.next_action() {
            moved = true;
            let pipe = &mut self.links[link].pipes[1 - side];
            if action == Action::Close && reset {
                pipe.reset(now, &self.o, &mut self.rng);
            } else {
                pipe.end(now, &self.o, &mut self.rng);
            }
        }
        if moved {
            let at = self.links[link].pipes[1 - side].next_at(true);
            self.wake(link, 1 - side, at);
        }
        moved
    }

    /// The target will find out that nobody is there any more.
    pub(crate) fn keep_alive(&mut self, link: usize) {
        let at = self.now.after_ns(KEEPALIVE_NS);
        if let Some(t) = &mut self.links[link].t {
            t.keepalive = Some(at);
            self.wake(link, TARGET, at);
        }
    }

    /// An initiator stops: nobody learns what became of its operations.
    pub(crate) fn client_dies(&mut self, client: usize, link: usize) {
        self.keep_alive(link);
        self.links[link].c = None;
        self.links[link].pipes[CLIENT].void = true;
        self.clients[client].link = None;
        self.clients[client].arena.give_all();
    }

    // ---- The directory ----

    pub(crate) fn plan_directory(&mut self) {
        let at = self.target.directory.next_timeout().unwrap_or(NEVER);
        let at = at.max(self.now);
        if at < self.directory_at && at != NEVER {
            self.directory_at = at;
            self.at(at, Event::Directory);
        }
    }

    fn poll_directory(&mut self) {
        let now = self.now;
        if self
            .target
            .directory
            .next_timeout()
            .is_some_and(|at| at <= now)
        {
            let target = &mut self.target;
            target.directory.poll(now, &target.shared);
            self.after_release();
            self.ranges_changed();
        }
        self.plan_directory();
    }

    // ---- The end ----

    fn begin(&mut self, phase: Phase) {
        tell!(self, "{phase:?}");
        self.phase = phase;
        self.phase_until = self.now.after_ns(PATIENCE_NS);
        for link in 0..self.links.len() {
            for side in [CLIENT, TARGET] {
                self.links[link].pipes[side].held_until = self.now;
                self.links[link].lose_wake = false;
                if let Some(t) = &mut self.links[link].t {
                    t.late_until = self.now;
                }
                self.wake(link, side, self.now);
            }
        }
        self.dies_within = false;
        for client in &mut self.clients {
            client.paused_until = self.now;
            client.queue.clear();
        }
        if phase == Phase::Leases {
            self.plan_directory();
        }
    }

    fn advance(&mut self) {
        let done = match self.phase {
            Phase::Steps | Phase::Over => false,
            Phase::Settle => (0..self.clients.len()).all(|client| self.is_settled(client)),
            Phase::Close => self.links.iter().all(|l| l.c.is_none() && l.t.is_none()),
            Phase::Leases => self.target.directory.next_timeout().is_none(),
        };
        if done {
            match self.phase {
                Phase::Settle => self.begin(Phase::Close),
                Phase::Close => self.begin(Phase::Leases),
                _ => {
                    self.baseline();
                    self.phase = Phase::Over;
                }
            }
        } else if self.now > self.phase_until {
            let stuck: Vec<_> = self
                .links
                .iter()
                .enumerate()
                .filter(|(_, link)| link.c.is_some() || link.t.is_some())
                .map(|(number, link)| {
                    let ops: Vec<_> = link.c.iter().flat_map(|c| c.ops.values()).collect();
                    let stage = link.t.as_ref().map(|t| t.stage);
                    format!("connection {number}: target {stage:?}, operations {ops:?}")
                })
                .collect();
            let ranges = self.target.directory.ranges();
            let phase = self.phase;
            self.fail(format!("stuck in {phase:?}: {stuck:?}, ranges {ranges:?}"));
        }
    }

    /// Whether an initiator has nothing left to do.
    fn is_settled(&self, client: usize) -> bool {
        // What an initiator that is gone has sent may still be on its way.
        if self
            .links
            .iter()
            .any(|link| link.c.is_none() && link.t.is_some())
        {
            return false;
        }
        let Some(link) = self.clients[client].link else {
            // It may have something to free yet.
            return self.o.lease_ms != u32::MAX || self.model.bound_in_all() == 0;
        };
        let idle = self.links[link].c.as_ref().is_none_or(|c| {
            // An allocation that was given up is bound and freed yet, so that its ticket is used up.
            let tidied = c
                .session
                .as_ref()
                .is_none_or(|session| session.in_flight() == 0);
            let open = c.session.is_some() || c.conn.is_ended();
            c.ops.is_empty() && c.rogues.is_empty() && tidied && open
        });
        idle && (self.o.lease_ms != u32::MAX || self.model.bound_in_all() == 0)
    }

    /// When an initiator gives a silent stream up.
    pub(crate) const fn watchdog(end: &CEnd) -> Time {
        end.progress_at.after_ns(WATCHDOG_NS)
    }
}
