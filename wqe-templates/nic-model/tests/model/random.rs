//! Both profiles' chains on the model, against what the protocol says.

use crate::common::{ALLOC, FREE, LOAD, STORE, Setup};
use crate::drive::run;
use kbtp_nic_model::Schedule;

const SCHEDULES: [Schedule; 3] = [Schedule::Random, Schedule::Eager, Schedule::Withhold];

#[test]
fn random_requests_do_what_the_protocol_says() {
    for schedule in SCHEDULES {
        for seed in 0..4 {
            let drive = run(&Setup::new(schedule, seed, 1), 200)
                .unwrap_or_else(|error| panic!("{schedule:?}, seed {seed}: {error}"));
            for opcode in [LOAD, STORE, ALLOC, FREE] {
                assert!(drive.served[&opcode] > 0, "{opcode}: {:?}", drive.served);
            }
            assert!(drive.refused > 20);
        }
    }
}

#[test]
fn readers_load_what_others_store() {
    for schedule in SCHEDULES {
        for seed in 0..4 {
            let setup = Setup::new(schedule, seed, 1).readers(2);
            let drive = run(&setup, 200)
                .unwrap_or_else(|error| panic!("{schedule:?}, seed {seed}: {error}"));
            assert!(drive.served[&LOAD] > 20, "{:?}", drive.served);
        }
    }
}
