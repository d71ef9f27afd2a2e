//! Sessions of one pair (tenant, Initiator ID): HELLO and its proof, replacement, leases, STags, draining, and a target
//! that stops and starts again (profile, P5, P6, P8 and P9; draft, section 4).
//!
//! Every connection may break between any two steps, the target may be killed between any two. Beside the initiator dial
//! one who replays a HELLO that he has overheard, and one who speaks another version.
//!
//! | step | function of the product |
//! |---|---|
//! | `Dial` | `Engine::accept` |
//! | `Hello` | `TargetSession::handle_message`, `take_hello` |
//! | `Admit` | `answer_hello`, `Directory::authenticate`, `Directory::open`, `finish_releasing` |
//! | `Evict` | `Engine::ask_to_go`, `Engine::evict` |
//! | `Break` | `Conn::close`, or the stream's own end |
//! | `Finish` | `Engine::end`, `TargetSession::finish`, `Directory::close`, `Engine::evicted` |
//! | `Ask`, `Execute`, `Bind`, `Free` | `take_message`, `alloc_store`, `data_is_there`, `free` |
//! | `Revoke` | `Tickets::revoke` |
//! | `LeaseOver`, `Release` | `Directory::poll`, `release`, `free_some`, `forget` |
//! | `Drain`, `Close` | `Shared::drain`, `Engine::close_if_idle` |
//! | `Kill`, `Start` | the process; `Pool::recover`, `Directory::recover`, `adopt` |

use crate::marks::Marks;
use stateright::{Model, Property};

/// A request was executed for a session without the range.
const DETACHED: u16 = 1 << 0;
/// A session opened while the target drained.
const OPENED_LATE: u16 = 1 << 1;
/// A free block was freed.
const FREED_TWICE: u16 = 1 << 2;
/// Bindings were resumed.
const RESUMED: u16 = 1 << 3;
/// A session was replaced.
const REPLACED: u16 = 1 << 4;

/// Which rule is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// None: as the product does it.
    AsBuilt,
    /// A session is granted beside the one that is connected.
    Beside,
    /// The new session is granted once the old one was told to go, before it is gone.
    BeforeItIsGone,
    /// A lease goes on when its pair comes back.
    LeaseGoesOn,
    /// Every connection is sent the same challenge.
    ChallengeReused,
    /// A HELLO is taken whatever its version.
    VersionIgnored,
    /// STags outlive the session.
    StagsKept,
    /// STags are numbered anew when the target starts.
    StagsAnew,
    /// What a session holds when it ends is not returned.
    HeldForgotten,
    /// A range whose lease is over is released and kept.
    ReleasedAndKept,
    /// A pair gets a new range while its earlier one is being released.
    ReleasingIgnored,
    /// A HELLO is granted while the target drains.
    DrainIgnored,
    /// Nobody tells the HELLO that waits that the old session is gone.
    WaiterForgotten,
}

/// The model: how large, and by which rules. Two blocks.
#[derive(Clone, Debug)]
pub struct Session {
    /// Connections in all.
    pub dials: u8,
    /// Requests in all.
    pub requests: u8,
    /// Times the target starts again.
    pub starts: u8,
    /// Strangers dial too.
    pub strangers: bool,
    /// Rule left out.
    pub rules: Rules,
}

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    /// The initiator, with the key of its tenant.
    Initiator,
    /// One who has overheard its last HELLO.
    Replayer,
    /// One who has the key and speaks another version only.
    Stranger,
}

/// Where a connection is at the target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// Its HELLO has not come.
    HalfOpen,
    /// Its HELLO is to be answered.
    Admission,
    /// It waits until this connection is gone, which was told so or not.
    Replacing(usize, bool),
    /// It serves requests.
    Open,
    /// It was refused.
    Closing,
    /// It is gone.
    Over,
}

/// The request of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ask {
    /// There is none.
    Nothing,
    /// An `ALLOC_STORE` was sent.
    Sent,
    /// It holds a block; its data is being read.
    Held(u8),
}

/// A connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conn {
    peer: Peer,
    challenge: u8,
    stage: Stage,
    broken: bool,
    ask: Ask,
    stag: Option<u8>,
    revoked: bool,
}

/// A handle range; bits are blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    live: Option<usize>,
    bound: u8,
    lease: bool,
}

/// Where the target is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// It runs.
    Running,
    /// It drains.
    Draining,
    /// There is none.
    Down,
}

/// One state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    target: Target,
    conns: Vec<Conn>,
    range: Option<Range>,
    releasing: Vec<u8>,
    free: u8,
    /// Challenge that the last HELLO of the initiator answers.
    overheard: Option<u8>,
    next_stag: u8,
    stags: Vec<u8>,
    /// Bindings the initiator counts on.
    promised: u8,
    requests: u8,
    starts: u8,
    marks: Marks,
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A connection is accepted.
    Dial(Peer),
    /// Its HELLO comes.
    Hello(usize),
    /// Its HELLO is answered.
    Admit(usize),
    /// The session that is to be replaced is told.
    Evict(usize),
    /// A connection breaks.
    Break(usize),
    /// Its end is dealt with.
    Finish(usize),
    /// A request is sent.
    Ask(usize),
    /// It is begun.
    Execute(usize),
    /// Its data is there.
    Bind(usize),
    /// A bound block is freed.
    Free(usize, u8),
    /// The STags are revoked: a ticket was abandoned.
    Revoke(usize),
    /// The lease is over.
    LeaseOver,
    /// One block of a range without an owner is freed, or the range is nobody's.
    Release(usize),
    /// The target begins to drain.
    Drain,
    /// It closes an idle connection.
    Close(usize),
    /// It ends, in order or not.
    Kill,
    /// It starts again.
    Start,
}

const BLOCKS: [u8; 2] = [1, 2];
const ALL: u8 = 3;

impl Session {
    fn give_back(state: &mut State, block: u8) {
        state.marks.add(FREED_TWICE, state.free & block != 0);
        state.free |= block;
    }

    /// `Directory::open`.
    fn open(&self, state: &mut State, at: usize) {
        if self.rules != Rules::ReleasingIgnored {
            for bound in std::mem::take(&mut state.releasing) {
                for block in BLOCKS.iter().filter(|b| bound & **b != 0) {
                    Self::give_back(state, *block);
                }
            }
        }
        if let Some(old) = state.range.and_then(|range| range.live)
            && self.rules != Rules::Beside
        {
            state.conns[at].stage = Stage::Replacing(old, false);
            state.marks.add(REPLACED, true);
            return;
        }
        state
            .marks
            .add(RESUMED, state.range.is_some_and(|range| range.bound != 0));
        let lease =
            state.range.is_some_and(|range| range.lease) && self.rules == Rules::LeaseGoesOn;
        state.range = Some(Range {
            live: Some(at),
            bound: state.range.map_or(0, |range| range.bound),
            lease,
        });
        state.promised = state.range.map_or(0, |range| range.bound);
        state
            .marks
            .add(OPENED_LATE, state.target == Target::Draining);
        state.conns[at].stage = Stage::Open;
        state.conns[at].stag = Some(state.next_stag);
        state.stags.push(state.next_stag);
        state.next_stag += 1;
    }

    /// `answer_hello`.
    fn admit(&self, state: &mut State, at: usize) {
        let conn = state.conns[at];
        let answers = match conn.peer {
            Peer::Replayer => state.overheard == Some(conn.challenge),
            Peer::Initiator | Peer::Stranger => true,
        };
        let drains = state.target == Target::Draining && self.rules != Rules::DrainIgnored;
        if drains || !answers {
            state.conns[at].stage = Stage::Closing;
        } else {
            self.open(state, at);
        }
    }

    fn hello(&self, state: &mut State, at: usize) {
        let conn = &mut state.conns[at];
        let version = conn.peer != Peer::Stranger || self.rules == Rules::VersionIgnored;
        conn.stage = if version {
            Stage::Admission
        } else {
            Stage::Closing
        };
        if conn.peer == Peer::Initiator {
            state.overheard = Some(conn.challenge);
        }
    }

    fn evict(&self, state: &mut State, at: usize) {
        let Stage::Replacing(old, _) = state.conns[at].stage else {
            return;
        };
        if state.conns[old].stage == Stage::Over {
            state.conns[at].stage = Stage::Admission;
            return;
        }
        state.conns[old].broken = true;
        state.conns[at].stage = Stage::Replacing(old, true);
        if self.rules == Rules::BeforeItIsGone {
            if let Some(range) = &mut state.range {
                range.live = None;
            }
            self.open(state, at);
        }
    }

    /// `Engine::end`: the stream goes first, then the session.
    fn finish(&self, state: &mut State, at: usize) {
        let conn = state.conns[at];
        state.conns[at].stage = Stage::Over;
        state.conns[at].ask = Ask::Nothing;
        if self.rules != Rules::StagsKept {
            state.conns[at].stag = None;
        }
        if let Ask::Held(block) = conn.ask
            && self.rules != Rules::HeldForgotten
        {
            Self::give_back(state, block);
        }
        if let Some(range) = &mut state.range
            && range.live == Some(at)
        {
            range.live = None;
            range.lease = true;
            if range.bound == 0 {
                state.range = None;
                state.releasing.push(0);
            }
        }
        for waiter in &mut state.conns {
            if let Stage::Replacing(old, true) = waiter.stage
                && old == at
                && self.rules != Rules::WaiterForgotten
            {
                waiter.stage = Stage::Admission;
            }
        }
    }

    fn request(state: &mut State, action: Action) {
        let (Action::Ask(at) | Action::Execute(at) | Action::Bind(at) | Action::Free(at, _)) =
            action
        else {
            return;
        };
        let attached = state.range.is_some_and(|range| range.live == Some(at));
        match (action, state.conns[at].ask) {
            (Action::Ask(_), _) => {
                state.requests -= 1;
                state.conns[at].ask = Ask::Sent;
            }
            (Action::Execute(_), _) => {
                state.marks.add(DETACHED, !attached);
                let block = BLOCKS.into_iter().find(|b| state.free & b != 0);
                // Drained or full: answered at once.
                state.conns[at].ask = match block.filter(|_| state.target == Target::Running) {
                    Some(block) => {
                        state.free &= !block;
                        Ask::Held(block)
                    }
                    None => Ask::Nothing,
                };
            }
            (Action::Bind(_), Ask::Held(block)) => {
                state.marks.add(DETACHED, !attached);
                if let Some(range) = &mut state.range {
                    range.bound |= block;
                }
                state.promised |= block;
                state.conns[at].ask = Ask::Nothing;
            }
            (Action::Free(_, block), _) => {
                state.marks.add(DETACHED, !attached);
                if let Some(range) = &mut state.range {
                    range.bound &= !block;
                }
                state.promised &= !block;
                Self::give_back(state, block);
            }
            _ => {}
        }
    }

    fn lease_over(&self, state: &mut State) {
        let Some(range) = state.range else {
            return;
        };
        state.releasing.push(range.bound);
        state.releasing.sort_unstable();
        if range.live.is_none() {
            state.promised = 0;
        }
        if self.rules == Rules::ReleasedAndKept {
            state.range = Some(Range {
                lease: false,
                ..range
            });
        } else {
            state.range = None;
        }
    }

    fn release(state: &mut State, at: usize) {
        let bound = state.releasing[at];
        match BLOCKS.into_iter().find(|b| bound & b != 0) {
            Some(block) => {
                state.releasing[at] &= !block;
                Self::give_back(state, block);
            }
            None => drop(state.releasing.remove(at)),
        }
    }

    fn start(&self, state: &mut State) {
        state.starts -= 1;
        state.target = Target::Running;
        if self.rules == Rules::StagsAnew {
            state.next_stag = 0;
        }
        // Of the records that bind something, the first is the pair's; the others are released.
        let mut bound: Vec<u8> = std::mem::take(&mut state.releasing);
        bound.extend(state.range.take().map(|range| range.bound));
        bound.retain(|bound| *bound != 0);
        state.range = bound.pop().map(|bound| Range {
            live: None,
            bound,
            lease: true,
        });
        state.releasing = bound;
        let kept = state.range.map_or(0, |range| range.bound);
        state.free = ALL & !state.releasing.iter().fold(kept, |all, bound| all | bound);
    }

    fn kill(state: &mut State) {
        state.target = Target::Down;
        for conn in &mut state.conns {
            // The process is gone, and with it its streams and registrations.
            *conn = Conn {
                stage: Stage::Over,
                broken: true,
                ask: Ask::Nothing,
                stag: None,
                ..*conn
            };
        }
        if let Some(range) = &mut state.range {
            range.live = None;
        }
    }

    /// What must happen in some state, for the rest to mean something.
    fn reached() -> [Property<Self>; 5] {
        [
            Property::sometimes("a session is replaced", |_, state: &State| {
                state.marks.has(REPLACED)
            }),
            Property::sometimes("bindings are resumed", |_, state: &State| {
                state.marks.has(RESUMED)
            }),
            Property::sometimes("a lease ends with two blocks bound", |_, state: &State| {
                state.releasing.contains(&ALL)
            }),
            Property::sometimes(
                "a target starts with bindings",
                |model: &Self, state: &State| {
                    state.starts < model.starts && state.range.is_some_and(|range| range.bound != 0)
                        || model.starts == 0
                },
            ),
            Property::sometimes(
                "a replayed HELLO is refused",
                |model: &Self, state: &State| {
                    let refused =
                        |conn: &Conn| conn.peer == Peer::Replayer && conn.stage == Stage::Closing;
                    state.conns.iter().any(refused) || !model.strangers
                },
            ),
        ]
    }

    fn conn_actions(state: &State, at: usize, actions: &mut Vec<Action>) {
        let conn = state.conns[at];
        if conn.stage == Stage::Over {
            return;
        }
        actions.push(if conn.broken {
            Action::Finish(at)
        } else {
            Action::Break(at)
        });
        match conn.stage {
            Stage::HalfOpen if !conn.broken => actions.push(Action::Hello(at)),
            Stage::Admission if !conn.broken => actions.push(Action::Admit(at)),
            Stage::Replacing(_, false) if !conn.broken => actions.push(Action::Evict(at)),
            Stage::Open => {
                // What has come may be dealt with until the end is.
                match conn.ask {
                    Ask::Nothing if !conn.broken && state.requests > 0 => {
                        actions.push(Action::Ask(at));
                    }
                    Ask::Sent if !conn.broken => actions.push(Action::Execute(at)),
                    Ask::Held(_) => actions.push(Action::Bind(at)),
                    Ask::Nothing | Ask::Sent => {}
                }
                let own = state.range.filter(|range| range.live == Some(at));
                let bound = own.map_or(0, |range| range.bound);
                if !conn.broken && state.target == Target::Running {
                    let blocks = BLOCKS.into_iter().filter(|b| bound & b != 0);
                    actions.extend(blocks.map(|b| Action::Free(at, b)));
                }
                if conn.stag.is_some() && !conn.revoked && state.requests > 0 {
                    actions.push(Action::Revoke(at));
                }
                if state.target == Target::Draining && conn.ask == Ask::Nothing && !conn.broken {
                    actions.push(Action::Close(at));
                }
            }
            _ => {}
        }
    }
}

impl Model for Session {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            target: Target::Running,
            conns: Vec::new(),
            range: None,
            releasing: Vec::new(),
            free: ALL,
            overheard: None,
            next_stag: 0,
            stags: Vec::new(),
            promised: 0,
            requests: self.requests,
            starts: self.starts,
            marks: Marks::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.target == Target::Down {
            if state.starts > 0 {
                actions.push(Action::Start);
            }
            return;
        }
        if state.conns.len() < usize::from(self.dials) {
            actions.push(Action::Dial(Peer::Initiator));
            if self.strangers {
                actions.push(Action::Dial(Peer::Replayer));
                actions.push(Action::Dial(Peer::Stranger));
            }
        }
        for at in 0..state.conns.len() {
            Self::conn_actions(state, at, actions);
        }
        let due = |range: &Range| {
            range.lease && (range.live.is_none() || self.rules == Rules::LeaseGoesOn)
        };
        if state.range.as_ref().is_some_and(due) {
            actions.push(Action::LeaseOver);
        }
        actions.extend((0..state.releasing.len()).map(Action::Release));
        if state.starts > 0 {
            if state.target == Target::Running {
                actions.push(Action::Drain);
            }
            actions.push(Action::Kill);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::Dial(peer) => {
                let count = u8::try_from(state.conns.len()).unwrap_or(u8::MAX);
                let challenge = if self.rules == Rules::ChallengeReused {
                    0
                } else {
                    count
                };
                state.conns.push(Conn {
                    peer,
                    challenge,
                    stage: Stage::HalfOpen,
                    broken: false,
                    ask: Ask::Nothing,
                    stag: None,
                    revoked: false,
                });
            }
            Action::Hello(at) => self.hello(state, at),
            Action::Admit(at) => self.admit(state, at),
            Action::Evict(at) => self.evict(state, at),
            Action::Break(at) | Action::Close(at) => state.conns[at].broken = true,
            Action::Finish(at) => self.finish(state, at),
            Action::Ask(_) | Action::Execute(_) | Action::Bind(_) | Action::Free(..) => {
                Self::request(state, action);
            }
            Action::Revoke(at) => {
                state.conns[at].stag = None;
                state.conns[at].revoked = true;
            }
            Action::LeaseOver => self.lease_over(state),
            Action::Release(at) => Self::release(state, at),
            Action::Drain => state.target = Target::Draining,
            Action::Kill => Self::kill(state),
            Action::Start => self.start(state),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("one session at most has the range", |_, state: &State| {
                let open = state.conns.iter().filter(|conn| conn.stage == Stage::Open);
                open.count() <= 1
            }),
            Property::always("no request without the range", |_, state: &State| {
                !state.marks.has(DETACHED)
            }),
            Property::always("STags reach as far as the session", |_, state: &State| {
                let live = state.range.and_then(|range| range.live);
                let mut conns = state.conns.iter().enumerate();
                conns.all(|(at, conn)| conn.stag.is_none() || (live == Some(at) && !conn.revoked))
            }),
            Property::always("no STag is used twice", |_, state: &State| {
                let mut stags = state.stags.clone();
                stags.sort_unstable();
                stags.dedup();
                stags.len() == state.stags.len()
            }),
            Property::always("every block is in one place", |_, state: &State| {
                let held = state.conns.iter().filter_map(|conn| match conn.ask {
                    Ask::Held(block) => Some(block),
                    _ => None,
                });
                let bound = state.range.map(|range| range.bound);
                let places = held.chain(bound).chain(state.releasing.iter().copied());
                let (sum, all) = places.chain([state.free]).fold((0, 0), |(sum, all), mask| {
                    (sum + mask.count_ones(), all | mask)
                });
                let whole = sum == ALL.count_ones() && all == ALL;
                !state.marks.has(FREED_TWICE) && (whole || state.target == Target::Down)
            }),
            Property::always("a pair has one record", |_, state: &State| {
                usize::from(state.range.is_some()) + state.releasing.len() <= 1
            }),
            Property::always("only the initiator is let in", |_, state: &State| {
                let open = state.conns.iter().filter(|conn| conn.stage == Stage::Open);
                open.map(|conn| conn.peer)
                    .all(|peer| peer == Peer::Initiator)
            }),
            Property::always("nobody is let in while it drains", |_, state: &State| {
                !state.marks.has(OPENED_LATE)
            }),
            // They may live longer: a target that is killed while it releases a range finds what is left of it.
            Property::always(
                "bindings live as long as their lease",
                |_, state: &State| {
                    let bound = state.range.map_or(0, |range| range.bound);
                    state.target == Target::Down || state.promised & !bound == 0
                },
            ),
            Property::always("who waits for a session is told", |_, state: &State| {
                state.conns.iter().all(|conn| match conn.stage {
                    Stage::Replacing(old, true) => state.conns[old].stage != Stage::Over,
                    _ => true,
                })
            }),
            Property::always("all comes to rest", |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let rest = state.free == ALL && state.range.is_none();
                !actions.is_empty() || rest
            }),
        ];
        properties.extend(Self::reached());
        properties
    }
}
