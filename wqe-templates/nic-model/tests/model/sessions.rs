//! Several sessions at a time, each with requests in flight: whatever the order, each handle goes through what its own
//! session asked for, and no block is lost or in two places.

use crate::common::{
    ALLOC, BLOCK, BLOCKS, BUFFER, Expected, FREE, HANDLES, KEY, LOAD, Rig, SEAL, STORE, Setup,
    TABLE_BASE, completion, pattern, request,
};
use kbtp_nic_model::{Fetch, Hazards, Sampling, Schedule};
use kbtp_wire::{Generation, Status};

/// A request in flight.
struct Flight {
    id: u64,
    handle: u64,
    opcode: u8,
    slot: u64,
    /// What a LOAD should bring.
    data: u64,
    generation: u16,
}

struct Run {
    rig: Rig,
    expected: Vec<Expected>,
    /// Blocks of each session that are bound, or freed in this round.
    used: Vec<u32>,
    next_id: u64,
    served: u64,
}

fn index(handle: u64) -> usize {
    usize::try_from(handle - TABLE_BASE).unwrap()
}

impl Run {
    fn new(setup: &Setup) -> Self {
        Self {
            rig: Rig::new(setup),
            expected: vec![Expected::default(); index(TABLE_BASE + HANDLES)],
            used: vec![0; setup.sessions.len()],
            next_id: 1,
            served: 0,
        }
    }

    /// Some requests of one session, which follow each other without waiting.
    fn ask(&mut self, party: usize, depth: u64, flights: &mut Vec<Flight>) {
        let quota = BLOCKS / u32::try_from(self.used.len()).unwrap();
        let first = self.rig.parties[party].own.start;
        // A block comes back to the quota only when its FREE is complete.
        let mut held = self.used[party];
        for slot in 0..=self.rig.random.below(depth) {
            let handle = first + self.rig.random.below(6);
            let now = self.expected[index(handle)];
            let opcode = match (now.valid, now.sealed) {
                (false, _) if held >= quota => continue,
                (false, _) => ALLOC,
                (true, true) => self.rig.random.pick(&[LOAD, FREE, FREE]),
                (true, false) => self.rig.random.pick(&[STORE, FREE]),
            };
            let data = self.rig.random.next();
            let seal = opcode == STORE || self.rig.random.percent(50);
            let id = self.next_id;
            self.next_id += 1;
            let then = match opcode {
                ALLOC => {
                    held += 1;
                    self.used[party] += 1;
                    Expected {
                        valid: true,
                        sealed: seal,
                        generation: now.next(),
                        data,
                    }
                }
                STORE => Expected {
                    sealed: true,
                    data,
                    ..now
                },
                FREE => {
                    self.used[party] -= 1;
                    Expected {
                        valid: false,
                        generation: now.next(),
                        ..now
                    }
                }
                _ => now,
            };
            self.expected[index(handle)] = then;
            let filled = if opcode == LOAD { 0xee } else { data };
            self.rig.fill(party, slot, &pattern(filled));
            let buffer = (KEY, BUFFER + slot * u64::from(BLOCK), BLOCK);
            let flags = if matches!(opcode, STORE | ALLOC) && seal {
                SEAL
            } else {
                0
            };
            let generation = if opcode == FREE { now.generation } else { 0 };
            let with = (opcode != FREE).then_some(buffer);
            let message = request(opcode, flags, id, handle, generation, with);
            self.rig.send(party, &message);
            flights.push(Flight {
                id,
                handle,
                opcode,
                slot,
                data: then.data,
                generation: then.generation,
            });
        }
    }

    fn take(&mut self, party: usize, flight: &Flight) {
        let message = self.rig.received(party);
        let message = message.unwrap_or_else(|| panic!("none for {}", flight.id));
        let answer = completion(&message).expect("a completion");
        assert_eq!(answer.request_id.0, flight.id);
        assert_eq!(answer.handle.0, flight.handle);
        assert_eq!(answer.status, Status::Ok);
        assert_eq!(Generation::to_wire(answer.generation), flight.generation);
        if flight.opcode == LOAD {
            let buffer = self.rig.buffer(party, flight.slot);
            assert!(buffer == pattern(flight.data), "{}", flight.id);
        }
        self.served += 1;
    }

    fn round(&mut self, depth: u64) {
        let parties = self.used.len();
        let mut flights: Vec<Vec<Flight>> = Vec::new();
        for party in 0..parties {
            let mut own = Vec::new();
            self.ask(party, depth, &mut own);
            flights.push(own);
            for _ in 0..self.rig.random.below(40) {
                self.rig.step().expect("nobody looks");
            }
        }
        self.rig.settle().expect("it comes to rest");
        for (party, flights) in flights.iter().enumerate() {
            assert_eq!(self.rig.failed(party), None);
            assert_eq!(self.rig.parties[party].punts, 0);
            for flight in flights {
                self.take(party, flight);
            }
        }
        self.rig
            .conserved()
            .expect("every block is somewhere, once");
        for handle in TABLE_BASE..TABLE_BASE + HANDLES {
            let expected = self.expected[index(handle)];
            let entry = self.rig.entry(handle);
            assert_eq!(entry.flags.0, expected.flags());
            assert_eq!(Generation::to_wire(entry.generation), expected.generation);
            if expected.valid {
                assert!(self.rig.block(entry.block) == pattern(expected.data));
            }
        }
    }
}

const SCHEDULES: [Schedule; 3] = [Schedule::Random, Schedule::Eager, Schedule::Withhold];

#[test]
fn three_sessions_in_any_order() {
    for schedule in SCHEDULES {
        for seed in 0..6 {
            let mut run = Run::new(&Setup::new(schedule, seed, 3));
            for _ in 0..40 {
                run.round(4);
            }
            assert!(run.served > 150, "{}", run.served);
        }
    }
}

/// Software that only wakes for events serves as software that looks all the time: no alarm is lost, of several laps.
#[test]
fn software_that_sleeps_is_woken_for_all_it_has_to_do() {
    for schedule in SCHEDULES {
        for seed in 0..4 {
            let mut run = Run::new(&Setup::new(schedule, seed, 3));
            run.rig.sleep();
            for _ in 0..40 {
                run.round(4);
            }
            assert!(run.served > 150, "{}", run.served);
            let woken = run.rig.woken.expect("it sleeps");
            assert!((1..=run.served).contains(&woken), "{woken}");
        }
    }
}

/// A slot that rings wakes software, too; and without alarms nobody comes.
#[test]
fn a_punt_wakes_software() {
    for schedule in SCHEDULES {
        for asleep in [true, false] {
            let mut rig = Rig::new(&Setup::new(schedule, 5, 1));
            if asleep {
                rig.sleep();
            } else {
                // No alarm is set.
                rig.woken = Some(0);
            }
            // No chain serves a LOAD of what is not bound.
            let data = Some((KEY, BUFFER, BLOCK));
            rig.send(0, &request(LOAD, 0, 1, TABLE_BASE, 0, data));
            rig.settle().expect("it comes to rest");
            assert_eq!(rig.received(0).is_some(), asleep, "{schedule:?}");
            assert_eq!(rig.parties[0].punts, u64::from(asleep));
        }
    }
}

/// A FREE leaves the ring alone: Tail may name a slot that the free of the turn before is still to fill, which looks empty
/// until then. Software returns the block when it has looked at the turn.
#[test]
fn a_free_touches_no_ring_slot() {
    for schedule in SCHEDULES {
        let mut rig = Rig::new(&Setup::new(schedule, 3, 1));
        let data = Some((KEY, BUFFER, BLOCK));
        rig.send(0, &request(ALLOC, 0, 1, TABLE_BASE, 0, data));
        rig.settle().expect("it comes to rest");
        rig.received(0).expect("a completion");
        let block = rig.entry(TABLE_BASE).block;
        let before = (rig.ring(), rig.counters());
        rig.send(0, &request(FREE, 0, 2, TABLE_BASE, 0, None));
        let mut idle = 0;
        while idle < 100 {
            idle = if rig.step().expect("nobody looks") {
                0
            } else {
                idle + 1
            };
        }
        let answer = completion(&rig.received(0).expect("a completion")).expect("one");
        assert_eq!(answer.status, Status::Ok, "{schedule:?}");
        assert!(!rig.entry(TABLE_BASE).is_valid());
        assert_eq!((rig.ring(), rig.counters()), before, "{schedule:?}");
        assert!(!rig.found().contains(&block.0));
        rig.settle().expect("it comes to rest");
        rig.conserved().expect("software returned the block");
        assert_eq!(rig.parties[0].punts, 0);
    }
}

/// Whatever a device may do beside.
#[test]
fn chains_bear_every_hazard() {
    let plain = Hazards::default();
    let hazards = [
        Hazards {
            fetch: Fetch::WhenRun,
            ..plain
        },
        Hazards {
            fetch: Fetch::Either,
            ..plain
        },
        Hazards {
            fetch: Fetch::Torn,
            ..plain
        },
        Hazards {
            sampling: Sampling::Early,
            ..plain
        },
        Hazards {
            sampling: Sampling::Late,
            ..plain
        },
        Hazards {
            split_atomics: true,
            ..plain
        },
        Hazards {
            fetch: Fetch::Torn,
            sampling: Sampling::Late,
            split_atomics: true,
            ..plain
        },
    ];
    for hazards in hazards {
        for schedule in SCHEDULES {
            let mut setup = Setup::new(schedule, 77, 2);
            setup.hazards = hazards;
            let mut run = Run::new(&setup);
            for _ in 0..30 {
                run.round(4);
            }
            assert!(run.served > 60, "{hazards:?}, {}", run.served);
        }
    }
}
