//! Octets that no request of one session may change: another's chains, scratch lines, receive WQEs and sinks, completion queues, rows,
//! blocks and client. All of them are looked at after each burst of its requests, whatever they are.

use super::kill::{ALLOC, FREE, LOAD, UNSEALED, ok, request};
use super::ops::{self, Numbers};
use super::rig::{BASE, BLOCK, Begin, ByChains, FIRST_BLOCK, key};
use crate::chains::seat::may_make_empty;
use kbtp_chain::key::Key;
use kbtp_chain::memory::Spot;
use kbtp_device::Session;
use kbtp_memory::Region;
use kbtp_mlx5::Field;
use kbtp_nic_model::{Hazards, Schedule};
use kbtp_wire::Grant;
use std::ops::Range;

/// The session that attacks; the others are its victims.
const ATTACKER: usize = 0;
const SESSIONS: u8 = 4;
/// Handles that each binds.
const BOUND: u64 = 4;

/// Octets, and what they were.
struct Canary {
    what: String,
    region: Region,
    at: u64,
    octets: Vec<u8>,
}

fn octets(region: &Region, range: &Range<u64>) -> Vec<u8> {
    let mut octets = vec![0; usize::try_from(range.end - range.start).unwrap()];
    region.read(range.start, &mut octets).unwrap();
    octets
}

impl Canary {
    fn new(what: impl Into<String>, region: &Region, range: Range<u64>) -> Self {
        Self {
            what: what.into(),
            region: region.clone(),
            at: range.start,
            octets: octets(region, &range),
        }
    }

    /// Where it was changed first.
    fn changed(&self) -> Option<String> {
        let now = octets(&self.region, &(self.at..self.at + self.octets.len() as u64));
        let at = now.iter().zip(&self.octets).position(|(a, b)| a != b)?;
        Some(format!("{}, octet {at} of {}", self.what, now.len()))
    }
}

/// A session whose requests are hostile, and others that do nothing meanwhile.
struct Bed {
    chains: ByChains,
    grants: Vec<Grant>,
    canaries: Vec<Canary>,
}

impl Bed {
    fn new(schedule: Schedule, seed: u64) -> Self {
        let hazards = Hazards::default();
        let (mut chains, grants) = ByChains::new(SESSIONS, 16, Begin::New, hazards, schedule, seed);
        for (party, grant) in grants.iter().enumerate() {
            for n in 0..BOUND {
                let fill = vec![u8::try_from(16 * party as u64 + n).unwrap(); 4096];
                chains.parties[party]
                    .client
                    .region()
                    .write(0, &fill)
                    .unwrap();
                let handle = grant.handle_base.0 + n;
                ok(&mut chains, party, &request(ALLOC, 0, handle, n, BLOCK));
            }
        }
        let mut bed = Self {
            chains,
            grants,
            canaries: Vec::new(),
        };
        bed.look();
        bed
    }

    /// Sets every canary.
    fn look(&mut self) {
        let Self {
            chains,
            grants,
            canaries,
        } = self;
        let pool = &chains.target.shared.pool;
        let places = pool.places();
        let rows = |grant: &Grant| {
            let first = places.table + (grant.handle_base.0 - BASE) * 16;
            first..first + grant.handle_count * 16
        };
        let own = rows(&grants[ATTACKER]);
        let end = places.table + super::rig::HANDLES * 16;
        let meta = pool.meta_region();
        canaries.push(Canary::new("rows before", meta, places.table..own.start));
        canaries.push(Canary::new("rows behind", meta, own.end..end));
        let table = chains.target.table();
        for (party, grant) in grants.iter().enumerate().filter(|(n, _)| *n != ATTACKER) {
            let seat = chains.chains.get(chains.parties[party].id).unwrap();
            let whole = |what: &str, region: &Region| {
                Canary::new(
                    format!("{what} of session {party}"),
                    region,
                    0..region.len(),
                )
            };
            canaries.push(whole("chain memory", seat.session.memory()));
            canaries.push(whole("completion queues", seat.session.cqe_memory()));
            canaries.push(whole("client", chains.parties[party].client.region()));
            for n in 0..BOUND {
                let entry = ops::entry(&table, grant.handle_base.0 + n);
                let at = entry.block.0 - FIRST_BLOCK;
                let what = format!("block {n} of session {party}");
                let range = at..at + u64::from(BLOCK);
                canaries.push(Canary::new(what, pool.block_region(), range));
            }
        }
    }

    /// What was changed, if anything.
    fn dead(&self) -> Option<String> {
        self.canaries.iter().find_map(Canary::changed)
    }

    /// Whatever somebody may send, at most as much at a time as it may. False once the session is over.
    fn attack(&mut self, random: &mut Numbers) -> bool {
        // A key that a completion invalidated.
        self.chains.parties[ATTACKER].client.set_key(key());
        let burst = if random.percent(80) {
            1
        } else {
            2 + random.below(5)
        };
        for _ in 0..burst {
            let table = self.chains.target.table();
            let grant = &self.grants[usize::try_from(random.below(SESSIONS.into())).unwrap()];
            let id = random.next();
            let mut message = ops::request(random, grant, &table, id);
            self.spoil(random, &mut message);
            // It keeps the chains of all from serving, whose slots software then writes.
            if !may_make_empty(&message) {
                self.chains.send(ATTACKER, &message);
            }
        }
        let lives = self.chains.settle().is_ok();
        while self.chains.received(ATTACKER).is_some() {}
        lives && !self.chains.parties[ATTACKER].client.is_broken()
    }

    fn spoil(&self, random: &mut Numbers, message: &mut Vec<u8>) {
        if random.percent(12) {
            for _ in 0..=random.below(3) {
                let at = usize::try_from(random.below(message.len() as u64)).unwrap();
                message[at] = random.next().to_be_bytes()[0];
            }
        }
        // Keys of the target's own, and addresses under them.
        if random.percent(1) && message.len() >= 40 {
            let victim = self.chains.parties[1].id;
            let keys = self
                .chains
                .chains
                .get(victim)
                .unwrap()
                .session
                .placement()
                .keys;
            message[24..28].copy_from_slice(&random.pick(&keys).0.to_be_bytes());
            let at = random.pick(&[0, FIRST_BLOCK, BASE << 8, 0x1000_0000_0000, u64::MAX]);
            message[28..36].copy_from_slice(&at.to_be_bytes());
        }
        if random.percent(1) {
            message.truncate(usize::try_from(random.below(60)).unwrap());
        }
    }
}

const SCHEDULES: [Schedule; 3] = [Schedule::Eager, Schedule::Random, Schedule::Withhold];

#[test]
fn no_request_of_a_session_changes_anything_of_another() {
    let mut ended = 0;
    let mut requests = 0;
    for seed in 0..24 {
        let mut bed = Bed::new(SCHEDULES[usize::try_from(seed % 3).unwrap()], seed);
        let mut random = Numbers::new(seed);
        for _ in 0..40 {
            let lives = bed.attack(&mut random);
            requests += 1;
            assert_eq!(bed.dead(), None, "seed {seed}");
            if !lives {
                ended += 1;
                bed.chains.parties[ATTACKER].client.disconnect();
                break;
            }
        }
        bed.chains.leave(ATTACKER);
        assert_eq!(bed.dead(), None, "seed {seed}, at its end");
        // The victims go on with what they had.
        for (party, victim) in (1..usize::from(SESSIONS)).enumerate() {
            for n in 0..BOUND {
                let handle = bed.grants[victim].handle_base.0 + n;
                ok(
                    &mut bed.chains,
                    party,
                    &request(LOAD, UNSEALED, handle, 9, BLOCK),
                );
                let mut loaded = vec![0; 4096];
                let client = &bed.chains.parties[party].client;
                client.region().read(0, &mut loaded).unwrap();
                let fill = u8::try_from(16 * victim as u64 + n).unwrap();
                assert!(loaded.iter().all(|octet| *octet == fill), "seed {seed}");
            }
        }
        let audit = bed.chains.target.shared.pool.audit();
        assert_eq!(audit.faults, Vec::<String>::new());
        assert_eq!((audit.awaited, audit.elsewhere), (0, 0), "{audit:?}");
    }
    println!("{requests} bursts, {ended} sessions ended");
    assert!(requests > 150 && ended > 3);
}

/// Session `party` as the device has it.
fn session(bed: &Bed, party: usize) -> &Session {
    let id = bed.chains.parties[party].id;
    &bed.chains.chains.get(id).unwrap().session
}

/// What a request of the attacker changes of its victim, when its armed slots were given a key of the victim.
fn found(plant: impl Fn(&Session, &Session, u64), message: &[u8]) -> String {
    let mut bed = Bed::new(Schedule::Eager, 1);
    let (attacker, victim) = (session(&bed, ATTACKER), session(&bed, 1));
    for slot in BOUND..attacker.armed() {
        plant(attacker, victim, slot);
    }
    bed.chains.send(ATTACKER, message);
    // Its own chain comes to nothing, or not.
    let _ended = bed.chains.settle();
    bed.dead().expect("a canary")
}

/// The canaries see what a wrong key lets through: a FREE of another's handle, and a request that is scattered to another's slot.
#[test]
fn a_wrong_key_is_found() {
    let handle = Bed::new(Schedule::Eager, 1).grants[1].handle_base.0;
    let own_word = |attacker: &Session, victim: &Session, slot: u64| {
        let key = victim.placement().key(Key::OwnWord).0.to_be_bytes();
        let at = attacker.place_of(slot, Spot::field("U0", Field::REMOTE_KEY));
        attacker.memory().write(at.unwrap(), &key).unwrap();
    };
    let rows = found(own_word, &request(FREE, 0, handle, 1, 0));
    assert!(rows.starts_with("rows behind"), "{rows}");
    let scatter = |attacker: &Session, victim: &Session, slot: u64| {
        let key = victim.placement().key(Key::RingsClient).0.to_be_bytes();
        // Every data segment of its receive WQE: byte count, key, address.
        for piece in 0..attacker.template().receive.len() as u64 {
            let at = attacker.receives_at() + slot % 64 * 256 + piece * 16 + 4;
            attacker.memory().write(at, &key).unwrap();
        }
    };
    let chain = found(scatter, &request(LOAD, UNSEALED, handle, 1, BLOCK));
    assert!(chain.starts_with("chain memory of session 1"), "{chain}");
}
