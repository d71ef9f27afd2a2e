//! Random requests of several sessions against a plain map: statuses, data, order, and that no block is lost.
//!
//! A completion is judged when it arrives: by then every earlier request on its handle must have been answered (but a
//! load need not wait for loads), so the map's state is the one the request met.

use super::rig::*;
use crate::DirectoryConfig;
use kbtp_wire::{
    ByteLen, Completion, Generation, Handle, Hello, InitiatorId, Operation, RequestId, Status,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::{BTreeMap, BTreeSet};

const INITIATORS: usize = 3;
const HANDLES: u64 = 6;
const BLOCKS: u32 = 7;

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    /// The initiator sends a request on its n-th handle.
    Send(usize, u64, Ask),
    /// It loads the n-th handle of another.
    Peek(usize, usize, u64),
    /// It posts what there is to post.
    Post(usize),
    /// The stream does so many steps.
    Step(usize, u8),
    /// Time passes, and timers run.
    Tick(u8),
    /// Its stream ends, and it comes back.
    Reconnect(usize),
    /// A message that means nothing.
    Noise(usize, Vec<u8>),
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    kind: u8,
    len: u16,
    seal: bool,
    inline: bool,
    /// 0: any generation; 1: the right one; 2: a wrong one.
    generation: u8,
}

/// The data of a block, and whether it is sealed.
type Content = (Vec<u8>, bool);

/// A handle as it should be.
#[derive(Clone, Debug, Default)]
struct Entry {
    generation: u16,
    bound: Option<Content>,
}

/// A request that is not answered.
#[derive(Clone, Debug)]
struct Sent {
    id: RequestId,
    handle: u64,
    ask: Ask,
    generation: u16,
    data: Vec<u8>,
    at: u64,
    foreign: bool,
}

struct World {
    rig: Rig,
    clients: Vec<Option<Client>>,
    bases: Vec<u64>,
    quotas: Vec<u32>,
    sent: Vec<Vec<Sent>>,
    entries: BTreeMap<u64, Entry>,
    /// Every content a handle had, by generation.
    history: BTreeMap<(u64, u16), Vec<Content>>,
    /// Handles whose history has gaps: their session ended with requests under way.
    blurred: BTreeSet<u64>,
    /// Loads of others' handles that were answered OK, and what they brought; judged at the end.
    peeks: Vec<(u64, u16, Vec<u8>)>,
    events: u32,
    stamp: u8,
}

fn who(initiator: usize) -> Hello<'static> {
    let number = u8::try_from(initiator).unwrap() + 1;
    let mut hello = Hello {
        quota: 2,
        initiator: InitiatorId([number; 16]),
        ..hello(number)
    };
    // The last one is a stranger to the others.
    hello.tlvs.tenant = Some(if initiator + 1 == INITIATORS {
        "red"
    } else {
        "blue"
    });
    hello
}

impl World {
    fn new() -> Self {
        let tenants = vec![tenant("blue", false), tenant("red", false)];
        let mut world = Self {
            rig: Rig::new(
                BLOCKS,
                DirectoryConfig {
                    tenants,
                    ..config()
                },
            ),
            clients: Vec::new(),
            bases: Vec::new(),
            quotas: Vec::new(),
            sent: vec![Vec::new(); INITIATORS],
            entries: BTreeMap::new(),
            history: BTreeMap::new(),
            blurred: BTreeSet::new(),
            peeks: Vec::new(),
            events: 0,
            stamp: 0,
        };
        for initiator in 0..INITIATORS {
            let (client, grant) = world.rig.open(&who(initiator));
            world.clients.push(Some(client));
            world.bases.push(grant.handle_base.0);
            world.quotas.push(grant.quota);
        }
        world
    }

    fn run(&mut self, event: Event) {
        match event {
            Event::Send(who, handle, ask) => self.send(who, self.bases[who] + handle, ask, false),
            Event::Peek(who, other, handle) => {
                let ask = Ask {
                    kind: 0,
                    len: 4096,
                    seal: false,
                    inline: false,
                    generation: 0,
                };
                self.send(who, self.bases[other] + handle, ask, other != who);
            }
            Event::Post(who) => self.clients[who].as_mut().unwrap().post(),
            Event::Step(who, steps) => {
                for _ in 0..steps {
                    self.clients[who].as_mut().unwrap().step(&self.rig);
                    self.judge(who);
                }
            }
            Event::Tick(ms) => {
                self.rig.advance_ms(u64::from(ms));
                let now = self.rig.now;
                self.rig.directory.poll(now, &self.rig.shared);
                for client in self.clients.iter_mut().flatten() {
                    client.timeout(&self.rig).unwrap();
                }
            }
            Event::Reconnect(who) => self.reconnect(who),
            Event::Noise(who, octets) => self.noise(who, &octets),
        }
        self.events += 1;
        if self.events.is_multiple_of(4) {
            self.conserved();
        }
    }

    fn send(&mut self, who: usize, handle: u64, ask: Ask, foreign: bool) {
        let client = self.clients[who].as_mut().unwrap();
        if !client.session.ready() || self.sent[who].len() >= 8 {
            return;
        }
        let entry = self.entries.get(&handle).cloned().unwrap_or_default();
        let generation = match ask.generation {
            1 => entry.generation,
            2 => entry.generation.wrapping_add(7),
            _ => 0,
        };
        self.stamp = self.stamp.wrapping_add(1);
        let inline_len = usize::from(ask.len % 300);
        let data = vec![
            self.stamp;
            if ask.inline {
                inline_len
            } else {
                usize::from(ask.len)
            }
        ];
        // Each request has a buffer of its own.
        let slots = (0..8).map(|slot| slot * 4 * u64::from(BLOCK));
        let at = slots
            .into_iter()
            .find(|at| self.sent[who].iter().all(|sent| sent.at != *at));
        let at = at.unwrap();
        let len = u32::try_from(data.len()).unwrap();
        let source = if ask.inline {
            inline(&data)
        } else {
            remote(at, len)
        };
        let operation = match ask.kind {
            0 => Operation::Load {
                sink: buffer(at, u32::from(ask.len)),
                invalidate: ask.seal,
                allow_unsealed: !ask.seal,
            },
            1 => Operation::Store {
                source,
                seal: ask.seal,
            },
            2 => Operation::AllocStore {
                source,
                seal: ask.seal,
            },
            _ => Operation::Free,
        };
        if ask.kind != 0 && !ask.inline {
            client.write_memory(at, &data);
        }
        // The message of too much inline data would end the session.
        if ask.inline && (ask.kind == 1 || ask.kind == 2) && data.len() > 256 + 16 {
            return;
        }
        let id = client.send(&self.rig, handle, generation, operation);
        self.sent[who].push(Sent {
            id,
            handle,
            ask,
            generation,
            data,
            at,
            foreign,
        });
    }

    fn judge(&mut self, who: usize) {
        while let Some(completion) = self.clients[who].as_mut().unwrap().next_completion() {
            let at = self.sent[who]
                .iter()
                .position(|sent| sent.id == completion.request_id);
            let at = at.expect("each request is answered once");
            let sent = self.sent[who].remove(at);
            let earlier = self.sent[who][..at]
                .iter()
                .filter(|other| other.handle == sent.handle);
            for other in earlier {
                assert!(
                    other.ask.kind == 0 && sent.ask.kind == 0,
                    "{sent:?} before {other:?}"
                );
            }
            assert_eq!(completion.handle, Handle(sent.handle));
            if sent.foreign {
                self.judge_foreign(who, &sent, &completion);
            } else {
                self.judge_own(who, &sent, &completion);
            }
        }
    }

    /// A load of another's handle met it at some moment; whose answers may not be in yet.
    fn judge_foreign(&mut self, who: usize, sent: &Sent, completion: &Completion) {
        let stranger = who + 1 == INITIATORS || sent.handle >= self.bases[INITIATORS - 1];
        if stranger {
            assert_eq!(
                (completion.status, completion.generation),
                (Status::NotValid, None)
            );
        } else if completion.status == Status::Ok {
            let generation = Generation::to_wire(completion.generation);
            let len = usize::try_from(completion.data_len.0).unwrap();
            let found = self.clients[who]
                .as_ref()
                .unwrap()
                .read_memory(sent.at, len);
            self.peeks.push((sent.handle, generation, found));
        }
    }

    /// What others loaded was there once: sealed as a whole, unsealed octet by octet.
    fn judge_peeks(&self) {
        for (handle, generation, found) in &self.peeks {
            if self.blurred.contains(handle) {
                continue;
            }
            let versions = &self.history[&(*handle, *generation)];
            let sealed = versions
                .iter()
                .any(|(data, sealed)| *sealed && data == found);
            let mixed = found
                .iter()
                .enumerate()
                .all(|(n, octet)| versions.iter().any(|(data, _)| data.get(n) == Some(octet)));
            assert!(sealed || mixed, "handle {handle}, generation {generation}");
        }
    }

    fn judge_own(&mut self, who: usize, sent: &Sent, completion: &Completion) {
        let base = self.bases[who];
        let bound = self
            .entries
            .range(base..base + 64)
            .filter(|(_, e)| e.bound.is_some())
            .count();
        let pending = self.sent[who]
            .iter()
            .filter(|other| other.ask.kind == 2)
            .count();
        let entry = self.entries.entry(sent.handle).or_default();
        let (expected, may_lack_space) = expected(sent, entry);
        let usage = u32::try_from(bound + pending).unwrap();
        if completion.status == Status::NoSpace {
            assert!(may_lack_space, "{sent:?} against {entry:?}");
            // FREEs that are answered but allocations that still wait make it look fuller than it is, never emptier.
            assert!(
                usage + 8 >= self.quotas[who],
                "{usage} of {}",
                self.quotas[who]
            );
        } else {
            assert_eq!(completion.status, expected, "{sent:?} against {entry:?}");
        }
        let mut generation = entry.generation;
        if completion.status == Status::Ok {
            match sent.ask.kind {
                0 => {
                    let (data, _) = entry.bound.as_ref().unwrap();
                    let client = self.clients[who].as_ref().unwrap();
                    assert_eq!(client.read_memory(sent.at, data.len()), *data);
                }
                1 => {
                    let sealed = entry.bound.as_ref().unwrap().1 || sent.ask.seal;
                    entry.bound = Some((sent.data.clone(), sealed));
                }
                2 => {
                    generation = next(generation);
                    entry.bound = Some((sent.data.clone(), sent.ask.seal));
                    assert!(u32::try_from(bound).unwrap() < self.quotas[who]);
                }
                _ => {
                    generation = next(generation);
                    entry.bound = None;
                }
            }
            entry.generation = generation;
            if let Some(content) = &entry.bound {
                let versions = self.history.entry((sent.handle, generation)).or_default();
                if versions.last() != Some(content) {
                    versions.push(content.clone());
                }
                assert_eq!(
                    completion.data_len,
                    ByteLen(u32::try_from(content.0.len()).unwrap())
                );
            }
        }
        assert_eq!(
            Generation::to_wire(completion.generation),
            generation,
            "{sent:?}"
        );
    }

    fn reconnect(&mut self, who: usize) {
        let client = self.clients[who].take().unwrap();
        self.rig.close(client);
        // What was under way may or may not have happened, so look; but a STORE whose Read began may have spoilt
        // its block.
        let torn: Vec<Sent> = std::mem::take(&mut self.sent[who]);
        for sent in torn.iter().filter(|sent| !sent.foreign) {
            self.blurred.insert(sent.handle);
            let row = sent.handle - TABLE_BASE;
            let found = self.rig.shared.pool.entry(row);
            let entry = self.entries.entry(sent.handle).or_default();
            entry.generation = Generation::to_wire(found.generation);
            entry.bound = found.is_valid().then(|| {
                let block = self
                    .rig
                    .shared
                    .pool
                    .geometry()
                    .block_at(found.block)
                    .unwrap();
                let mut data = vec![0; usize::try_from(found.data_len.0).unwrap()];
                let at = u64::from(block.0) * u64::from(BLOCK);
                self.rig
                    .shared
                    .pool
                    .block_region()
                    .read(at, &mut data)
                    .unwrap();
                (data, found.is_sealed())
            });
            if let Some(content) = &entry.bound {
                let key = (sent.handle, entry.generation);
                self.history.entry(key).or_default().push(content.clone());
            }
        }
        let (client, grant) = self.rig.open(&who_hello(who));
        assert!(grant.handle_base.0 == self.bases[who] || !self.has_bound(who));
        if grant.handle_base.0 != self.bases[who] {
            // Nothing was bound, so the range was given up; the new one may have been anybody's.
            self.bases[who] = grant.handle_base.0;
        }
        self.quotas[who] = grant.quota;
        self.clients[who] = Some(client);
    }

    fn has_bound(&self, who: usize) -> bool {
        let base = self.bases[who];
        self.entries
            .range(base..base + 64)
            .any(|(_, entry)| entry.bound.is_some())
    }

    fn noise(&mut self, who: usize, octets: &[u8]) {
        let client = self.clients[who].as_mut().unwrap();
        if !client.session.ready() {
            return;
        }
        let ended = client.give(&self.rig, octets).is_err();
        if ended {
            self.reconnect(who);
        } else {
            // It was answered, or is a request by accident; either way the map does not know it.
            client.pump(&self.rig);
            self.sent[who].push(Sent {
                id: RequestId(u64::MAX),
                handle: u64::MAX,
                ask: Ask {
                    kind: 0,
                    len: 0,
                    seal: false,
                    inline: false,
                    generation: 0,
                },
                generation: 0,
                data: Vec::new(),
                at: 0,
                foreign: true,
            });
            self.reconnect(who);
        }
    }

    /// No block is in two places, and those in none are in somebody's hands.
    fn conserved(&self) {
        let audit = self.rig.audit();
        let busy: usize = self
            .clients
            .iter()
            .flatten()
            .map(|c| c.session.under_way())
            .sum();
        assert!(
            audit.elsewhere <= u32::try_from(busy).unwrap(),
            "{audit:?} with {busy} under way"
        );
    }

    fn finish(&mut self) {
        for _ in 0..4 {
            for who in 0..INITIATORS {
                self.clients[who].as_mut().unwrap().pump(&self.rig);
                self.judge(who);
            }
            self.rig.advance_ms(2000);
            for client in self.clients.iter_mut().flatten() {
                client.timeout(&self.rig).unwrap();
            }
        }
        for who in 0..INITIATORS {
            assert!(
                self.sent[who].is_empty(),
                "not answered: {:?}",
                self.sent[who]
            );
            assert_eq!(self.clients[who].as_ref().unwrap().session.under_way(), 0);
        }
        self.judge_peeks();
        let audit = self.rig.at_rest();
        let bound = self
            .entries
            .values()
            .filter(|entry| entry.bound.is_some())
            .count();
        assert_eq!(audit.bound, u32::try_from(bound).unwrap());
    }
}

fn who_hello(initiator: usize) -> Hello<'static> {
    who(initiator)
}

fn next(generation: u16) -> u16 {
    generation.checked_add(1).unwrap_or(1)
}

/// The status a request must end with, and whether it may be NO_SPACE instead.
fn expected(sent: &Sent, entry: &Entry) -> (Status, bool) {
    let wrong_generation = sent.generation != 0 && sent.generation != entry.generation;
    let len = sent.data.len();
    let limit = if sent.ask.inline { 256 } else { 4096 };
    let status = match (sent.ask.kind, &entry.bound) {
        (0 | 1 | 3, None) => Status::NotValid,
        (2, Some(_)) => Status::AlreadyValid,
        _ if wrong_generation => Status::GenerationMismatch,
        (0, Some((_, false))) if sent.ask.seal => Status::NotSealed,
        (0, Some((data, _))) if data.len() > usize::from(sent.ask.len) => Status::LengthError,
        (1, Some((_, true))) => Status::Sealed,
        (1 | 2, _) if len > limit => Status::LengthError,
        _ => Status::Ok,
    };
    (status, sent.ask.kind == 2 && status == Status::Ok)
}

fn ask() -> impl Strategy<Value = Ask> {
    let len = prop_oneof![Just(0_u16), 1_u16..300, 4000_u16..4200];
    (
        0_u8..4,
        len,
        any::<bool>(),
        any::<bool>(),
        prop_oneof![4 => Just(0_u8), 2 => Just(1), 1 => Just(2)],
    )
        .prop_map(|(kind, len, seal, inline, generation)| Ask {
            kind,
            len,
            seal,
            inline,
            generation,
        })
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..INITIATORS;
    prop_oneof![
        12 => (who.clone(), 0..HANDLES, ask()).prop_map(|(w, h, a)| Event::Send(w, h, a)),
        3 => (who.clone(), 0..INITIATORS, 0..HANDLES).prop_map(|(w, o, h)| Event::Peek(w, o, h)),
        8 => who.clone().prop_map(Event::Post),
        8 => (who.clone(), 1_u8..6).prop_map(|(w, n)| Event::Step(w, n)),
        2 => any::<u8>().prop_map(Event::Tick),
        1 => who.clone().prop_map(Event::Reconnect),
        1 => (who, prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(w, o)| Event::Noise(w, o)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    //= test kbtp-p8-order-per-handle
    //= test kbtp-1.3-one-completion
    //= test kbtp-p7-failed-changes-nothing
    //= test kbtp-p7-check-order
    //= test kbtp-3.3-no-block-lost-or-twice
    //= test kbtp-p7-not-valid-foreign
    #[test]
    fn sessions_agree_with_a_plain_map(events in prop::collection::vec(event(), 1..120)) {
        let mut world = World::new();
        for event in events {
            world.run(event);
        }
        world.finish();
    }
}

/// The property reaches what it is about: without this a generator could go blind unseen.
#[test]
fn the_oracle_sees_every_status_it_can() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(event(), 200);
    let mut seen = BTreeSet::new();
    for _ in 0..40 {
        let events = strategy.new_tree(&mut runner).unwrap().current();
        let mut world = World::new();
        for event in events {
            world.run(event);
        }
        world.finish();
        let snapshot = world.rig.shared.stats.snapshot();
        for row in snapshot.by_status {
            seen.extend(
                row.iter()
                    .enumerate()
                    .filter(|(_, n)| **n > 0)
                    .map(|(s, _)| s),
            );
        }
    }
    let wanted = [
        Status::Ok,
        Status::BadRequest,
        Status::NotValid,
        Status::AlreadyValid,
        Status::NotSealed,
        Status::Sealed,
        Status::GenerationMismatch,
        Status::LengthError,
        Status::NoSpace,
    ];
    for status in wanted {
        assert!(
            seen.contains(&usize::from(status.to_wire())),
            "{status} never came"
        );
    }
}
