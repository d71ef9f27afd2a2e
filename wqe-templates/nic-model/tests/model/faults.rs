//! What goes wrong at each step of a request: nothing of it is half done, nothing is in two places, and others go on.

use crate::common::{
    ALLOC, BLOCKS, FREE, KEY, LOAD, Rig, SEAL, STORE, Setup, UNSEALED, completion, key, pattern,
    request,
};
use crate::hostile::{MINE, WHOLE, make, other_is_well};
use kbtp_chain::key::Key;
use kbtp_device::{Device, Profile};
use kbtp_memory::Region;
use kbtp_nic_model::{Fetch, Hazards, Sampling, Schedule};
use kbtp_wire::{EntryFlags, Status, TableEntry};

/// What happens in the middle of a request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The client goes away.
    Client,
    /// The client's key ends: its buffer is no longer there.
    ClientKey,
    /// The client's queue pair fails.
    ClientQueue,
    /// The loopback queue pair fails.
    Worker,
}

const FAULTS: &[Fault] = &[
    Fault::Client,
    Fault::ClientKey,
    Fault::ClientQueue,
    Fault::Worker,
];

fn octets(region: &Region) -> Vec<u8> {
    let mut octets = vec![0; usize::try_from(region.len()).unwrap()];
    region.read(0, &mut octets).unwrap();
    octets
}

/// Two sessions, and how their pool was before anything went wrong.
struct Bed {
    rig: Rig,
    profile: Profile,
    pool: [Vec<u8>; 2],
}

impl Bed {
    fn new(setup: &Setup) -> Self {
        let mut rig = make(setup);
        let template = rig.parties[0].session.template().clone();
        let profile = rig.target.profile(&mut rig.model, template).unwrap();
        let pool = rig.target.pool();
        let pool = [octets(&pool.meta), octets(&pool.blocks)];
        Self { rig, profile, pool }
    }

    /// Everything as it was, with a new session in place of the first.
    fn again(&mut self) {
        let rig = &mut self.rig;
        let party = rig.parties.remove(0);
        party.session.destroy(&mut rig.model).unwrap();
        rig.freed.clear();
        let [meta, blocks] = &self.pool;
        rig.target.pool().meta.write(0, meta).unwrap();
        rig.target.pool().blocks.write(0, blocks).unwrap();
        rig.join(&self.profile, 0, party.own, 0);
        let last = rig.parties.len() - 1;
        rig.parties.swap(0, last);
        rig.fill(0, 0, &pattern(7));
    }

    fn fail(&mut self, fault: Fault) {
        let Rig { model, parties, .. } = &mut self.rig;
        let party = &mut parties[0];
        match fault {
            Fault::Client => party.client.disconnect(),
            Fault::ClientKey => {
                let gone = kbtp_nic_model::ClientKey {
                    valid: false,
                    ..key()
                };
                party.client.set_key(gone);
            }
            Fault::ClientQueue => model.stop(party.session.client_qpn()).unwrap(),
            Fault::Worker => model.stop(party.session.worker_qpn()).unwrap(),
        }
    }

    /// A request with a fault after so many events. Whether the request was over by then.
    fn request(&mut self, opcode: u8, fault: Fault, events: u64) -> bool {
        let rig = &mut self.rig;
        let handle = if opcode == ALLOC { MINE + 1 } else { MINE };
        let before = rig.entry(handle);
        let data = if opcode == FREE { None } else { WHOLE };
        let flags = match opcode {
            STORE | ALLOC => SEAL,
            LOAD => UNSEALED,
            _ => 0,
        };
        rig.send(0, &request(opcode, flags, 8, handle, 0, data));
        for _ in 0..events {
            rig.step().unwrap();
        }
        let over = rig.parties[0].client.waiting() > 0;
        self.fail(fault);
        self.rig.settle().unwrap();
        let how = format!("opcode {opcode}, {fault:?} after {events}");
        self.nothing_is_half_done(opcode, handle, &before, &how);
        other_is_well(&mut self.rig);
        over
    }

    fn nothing_is_half_done(&mut self, opcode: u8, handle: u64, before: &TableEntry, how: &str) {
        let rig = &mut self.rig;
        let entry = rig.entry(handle);
        let valid = entry.flags.contains(EntryFlags::VALID);
        if opcode == LOAD {
            assert_eq!(entry, *before, "{how}");
        }
        if matches!(opcode, STORE | ALLOC) && entry.flags.contains(EntryFlags::SEALED) {
            let whole = valid && rig.block(entry.block) == pattern(7);
            assert!(whole, "{how}: sealed without its data");
        } else if opcode == ALLOC {
            assert!(!valid, "{how}");
        }
        let found = rig.found();
        let mut distinct = found.clone();
        distinct.dedup();
        assert_eq!(found, distinct, "{how}: a block in two places");
        let missing = usize::try_from(BLOCKS).unwrap() - found.len();
        let may = usize::from(matches!(opcode, ALLOC | FREE));
        assert!(missing <= may, "{how}: {missing} blocks lost");
        if let Some(message) = rig.received(0) {
            let answer = completion(&message).unwrap();
            assert_eq!(answer.status, Status::Ok, "{how}");
            assert_eq!(missing, 0, "{how}: answered, and a block lost");
        }
    }
}

/// Some more events than the longest request takes.
const MANY: u64 = 600;

/// Each of these faults at every step of every request, or every so many.
fn everywhere(setup: &Setup, faults: &[Fault], every: u64) {
    let mut bed = Bed::new(setup);
    for opcode in [LOAD, STORE, ALLOC, FREE] {
        for &fault in faults {
            // Not the same steps for all, if not at all steps.
            let mut events = u64::from(opcode) % every;
            loop {
                bed.again();
                let over = bed.request(opcode, fault, events);
                if over {
                    break;
                }
                events += every;
                assert!(
                    events < MANY,
                    "opcode {opcode}, {fault:?}: it is never over"
                );
            }
            assert!(events > 40, "opcode {opcode}: it took {events} events");
        }
    }
}

fn at_once(fault: Fault) {
    everywhere(&Setup::new(Schedule::Eager, 5, 2), &[fault], 1);
}

#[test]
fn a_client_that_goes_at_each_step() {
    at_once(Fault::Client);
}

#[test]
fn a_clients_key_that_ends_at_each_step() {
    at_once(Fault::ClientKey);
}

#[test]
fn a_clients_queue_pair_that_fails_at_each_step() {
    at_once(Fault::ClientQueue);
}

#[test]
fn a_loopback_queue_pair_that_fails_at_each_step() {
    at_once(Fault::Worker);
}

#[test]
fn faults_when_replies_are_withheld() {
    everywhere(&Setup::new(Schedule::Withhold, 6, 2), FAULTS, 4);
}

#[test]
fn faults_with_hazards() {
    let mut setup = Setup::new(Schedule::Random, 7, 2);
    setup.hazards = Hazards {
        fetch: Fetch::Torn,
        sampling: Sampling::Late,
        split_atomics: true,
        ..Hazards::default()
    };
    everywhere(&setup, FAULTS, 4);
}

/// The pool is taken back while requests run: whoever moves data fails, no entry is bound without its data, and nothing else is lost.
#[test]
fn a_pool_that_is_taken_back_binds_nothing() {
    for (seed, opcode) in (0..).zip([LOAD, STORE, ALLOC, FREE]) {
        for events in (0..150).step_by(30) {
            let mut rig = make(&Setup::new(Schedule::Withhold, seed + events, 2));
            let handle = if opcode == ALLOC { MINE + 1 } else { MINE };
            let data = if opcode == FREE { None } else { WHOLE };
            let flags = if opcode == LOAD { UNSEALED } else { 0 };
            rig.send(0, &request(opcode, flags, 8, handle, 0, data));
            for _ in 0..events {
                rig.step().unwrap();
            }
            let pool = rig.parties[0].session.placement().key(Key::Pool);
            rig.model.destroy_key(pool).unwrap();
            rig.settle().unwrap();
            let entry = rig.entry(handle);
            if opcode == ALLOC && entry.flags.contains(EntryFlags::VALID) {
                assert!(rig.block(entry.block) == pattern(7), "after {events}");
            }
            let found = rig.found();
            let mut distinct = found.clone();
            distinct.dedup();
            assert_eq!(found, distinct);
            assert!(usize::try_from(BLOCKS).unwrap() - found.len() <= 1);
            // The other one is told at its next request.
            rig.send(
                1,
                &request(LOAD, UNSEALED, 9, crate::hostile::THEIRS, 0, WHOLE),
            );
            rig.settle().unwrap();
            assert!(rig.received(1).is_none());
            assert!(rig.failed(1).is_some());
        }
    }
}

/// Software does nothing for a long time: the device serves what slots are armed for, the rest waits, and nothing is lost.
#[test]
fn software_that_sleeps_delays_and_loses_nothing() {
    for schedule in [Schedule::Eager, Schedule::Random, Schedule::Withhold] {
        let mut rig = make(&Setup::new(schedule, 11, 2));
        let armed = rig.parties[0].session.armed();
        let asked = 40;
        for id in 0..asked {
            rig.send(0, &request(LOAD, UNSEALED, id, MINE, 0, WHOLE));
        }
        let mut idle = 0;
        while idle < 200 {
            idle = if rig.step().unwrap() { 0 } else { idle + 1 };
        }
        let served = rig.parties[0].client.waiting() as u64;
        // All slots that were armed and had no request before.
        assert_eq!(served, armed - 1, "{schedule:?}");
        assert_eq!(rig.failed(0), None);
        rig.settle().unwrap();
        for id in 0..asked {
            let answer = completion(&rig.received(0).unwrap()).unwrap();
            assert_eq!((answer.request_id.0, answer.status), (id, Status::Ok));
        }
        assert_eq!(rig.parties[0].punts, 0);
        let named = rig.parties[0].client.invalidated();
        assert!(!named.contains(&KEY));
    }
}
