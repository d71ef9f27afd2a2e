//! A client whose queue pair is the device's from its first message on: HELLO and its answer are software's, what follows the
//! chain's.

use crate::common::{
    ALLOC, BLOCK, BUFFER, FREE, HANDLES, KEY, LOAD, ROUTE, Rig, SEAL, Setup, TABLE_BASE,
    completion, pattern, request,
};
use kbtp_chain::full;
use kbtp_device::{Device as _, PeerAccess, Session, SessionPlan};
use kbtp_nic_model::Schedule;
use kbtp_wire::{ByteLen, Handle, Status};

fn run(rig: &mut Rig) {
    let mut idle = 0;
    while idle < 100 {
        idle = if rig.step().unwrap() { 0 } else { idle + 1 };
    }
}

/// A session whose HELLO has come, and is answered with `answer`.
fn greeted(schedule: Schedule, seed: u64, hello: &[u8], answer: &[u8]) -> Rig {
    let mut rig = Rig::new(&Setup::new(schedule, seed, 0));
    let profile = rig.target.profile(&mut rig.model, full(ByteLen(BLOCK)));
    let profile = profile.unwrap();
    // Who the client is, and which handles are its own, only its HELLO says.
    let plan = SessionPlan {
        id: 0,
        own_base: Handle(0),
        own_count: 0,
        client_access: PeerAccess::default(),
    };
    let mut session = Session::create(&mut rig.model, &rig.target, &profile, &plan).unwrap();
    rig.model.connect(session.client_qpn(), &ROUTE).unwrap();
    session.await_hello(&mut rig.model).unwrap();
    rig.sit(session, TABLE_BASE..TABLE_BASE + HANDLES, 0);
    let mut octets = Vec::new();
    let hears = |rig: &mut Rig, to: &mut Vec<u8>| {
        let session = &mut rig.parties[0].session;
        session.hello::<kbtp_nic_model::ModelError>(to).unwrap()
    };
    run(&mut rig);
    assert!(!hears(&mut rig, &mut octets), "nothing was said");
    rig.send(0, hello);
    run(&mut rig);
    assert!(hears(&mut rig, &mut octets));
    assert_eq!(octets, hello);
    let session = &mut rig.parties[0].session;
    session
        .grant(&mut rig.model, &rig.target, Handle(TABLE_BASE), HANDLES)
        .unwrap();
    assert!(session.begin(&mut rig.model, &mut rig.master).unwrap());
    for _ in 0..100 {
        run(&mut rig);
        let session = &mut rig.parties[0].session;
        if session.restarted(&mut rig.model, &mut rig.master).unwrap() {
            break;
        }
    }
    let session = &mut rig.parties[0].session;
    assert!(session.arm_free(&mut rig.model).unwrap() >= 20);
    assert!(rig.received(0).is_none(), "it is not answered yet");
    let session = &rig.parties[0].session;
    assert!(
        session
            .answer_hello(&mut rig.model, &mut rig.master, answer)
            .unwrap()
    );
    run(&mut rig);
    let message = rig.received(0).expect("an answer");
    assert_eq!(message.octets, answer);
    rig
}

const SCHEDULES: [Schedule; 3] = [Schedule::Random, Schedule::Eager, Schedule::Withhold];

#[test]
fn a_client_is_greeted_on_the_queue_pair_that_serves_it() {
    for schedule in SCHEDULES {
        for seed in 0..3 {
            let mut rig = greeted(schedule, seed, &[0x41; 100], &[0x5a; 77]);
            // More requests than the rings have slots: indices go on from the greeting's.
            for turn in 0..40 {
                let handle = TABLE_BASE + turn % 5;
                let buffer = Some((KEY, BUFFER, BLOCK));
                let data = pattern(turn);
                for (opcode, flags, with) in
                    [(ALLOC, SEAL, buffer), (LOAD, 0, buffer), (FREE, 0, None)]
                {
                    let filled = if opcode == LOAD {
                        pattern(0xee)
                    } else {
                        data.clone()
                    };
                    rig.fill(0, 0, &filled);
                    rig.send(0, &request(opcode, flags, turn, handle, 0, with));
                    rig.settle().expect("it comes to rest");
                    let answer = completion(&rig.received(0).expect("a completion")).unwrap();
                    assert_eq!(answer.status, Status::Ok, "{schedule:?} {turn} {opcode}");
                    if opcode == LOAD {
                        assert!(rig.buffer(0, 0) == data, "{schedule:?} {turn}");
                    }
                }
            }
            assert_eq!(rig.failed(0), None);
            assert_eq!(rig.parties[0].punts, 0, "chains served all of it");
            rig.conserved().unwrap();
        }
    }
}

#[test]
fn what_is_too_long_is_no_greeting() {
    let mut rig = greeted(Schedule::Eager, 1, &[1; 4], &[2; 4]);
    let session = &rig.parties[0].session;
    for octets in [&[][..], &[0; 129]] {
        let said = session.answer_hello(&mut rig.model, &mut rig.master, octets);
        assert!(said.unwrap_err().to_string().contains("greeting"));
    }
}
