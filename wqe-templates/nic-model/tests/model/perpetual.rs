//! Slots that arm themselves: LOAD after LOAD with nobody but the device and the client doing anything.

use crate::common::{
    BLOCK, BUFFER, BUFFERS, INVALIDATE, KEY, LOAD, Rig, STORE, Setup, TABLE_BASE, completion, key,
    pattern, request,
};
use kbtp_chain::element::Shape;
use kbtp_chain::{Template, lap, perpetual};
use kbtp_device::Device;
use kbtp_nic_model::{Fetch, Hazards, Sampling, Schedule};
use kbtp_wire::{ByteLen, Status};

/// One session from this slot on, and a handle that is bound.
fn rig(template: Template, schedule: Schedule, hazards: Hazards, first_slot: u64) -> Rig {
    let mut setup = Setup::new(schedule, 5, 1);
    setup.sessions = vec![template];
    setup.hazards = hazards;
    setup.first_slot = first_slot;
    let rig = Rig::new(&setup);
    rig.bind(TABLE_BASE, &pattern(7));
    rig
}

fn template() -> Template {
    perpetual(ByteLen(BLOCK))
}

fn ask(rig: &mut Rig, id: u64) {
    let buffer = BUFFER + id % (BUFFERS - 1) * u64::from(BLOCK);
    let message = request(LOAD, 0, id, TABLE_BASE, 0, Some((KEY, buffer, BLOCK)));
    rig.send(0, &message);
}

/// So many LOADs, up to `depth` in flight. From the first to the last nothing is done but steps of the model and of the client.
fn stream(rig: &mut Rig, loads: u64, depth: u64) -> Result<(), String> {
    let (mut asked, mut answered, mut idle) = (0, 0, 0);
    while answered < loads {
        while asked < loads && asked - answered < depth {
            ask(rig, asked);
            asked += 1;
        }
        idle = if rig.step()? { 0 } else { idle + 1 };
        if idle > 1000 {
            return Err(format!("{answered} of {loads}: {:?}", rig.failed(0)));
        }
        while let Some(message) = rig.received(0) {
            let answer = completion(&message)?;
            let good = answer.status == Status::Ok && answer.request_id.0 == answered;
            let whole = answer.data_len.0 == BLOCK && answer.generation.is_some();
            if !good || !whole {
                return Err(format!("{answered}: {answer:?}"));
            }
            if answered % 61 == 0 && rig.buffer(0, answered % (BUFFERS - 1)) != pattern(7) {
                return Err(format!("{answered}: the buffer is another's"));
            }
            answered += 1;
        }
    }
    // The last slot arms the one before it.
    let mut idle = 0;
    while idle < 100 {
        idle = if rig.step()? { 0 } else { idle + 1 };
    }
    Ok(())
}

/// What the device has done, and nobody else.
fn alone(rig: &mut Rig, first: u64, loads: u64) {
    let session = &rig.parties[0].session;
    // Armed by software: every slot once, before the first request. Not one since.
    assert_eq!(session.armed(), first + lap::SLOTS);
    // Each slot has posted the receive WQE of the one before it.
    let posted = (first + loads - 1 + lap::SLOTS) & 0xffff;
    assert_eq!(u64::from(session.posted_receives().unwrap()), posted);
    assert_eq!(rig.target.next_punt(), None, "nobody was woken");
    assert_eq!(rig.model.next_event(), None, "no event");
    assert_eq!(rig.failed(0), None);
}

/// 300,000 LOADs: 1171 laps, 292 wraps of WQE indices, and the wrap of CQE indices and of the number of the lap in between.
#[test]
fn three_hundred_thousand_loads_cost_no_core_anything() {
    let (first, loads) = ((1 << 24) - (512 << 8), 300_000);
    let mut rig = rig(template(), Schedule::Eager, Hazards::default(), first);
    stream(&mut rig, loads, 200).unwrap();
    alone(&mut rig, first, loads);
}

/// The same for less long under the schedules and hazards that find what is not ordered, from the start and over the wrap of
/// each index: 16 bits of WQEs and receives, 24 of CQEs (four, and one a slot).
#[test]
fn whatever_the_order_and_wherever_the_indices_are() {
    let plain = Hazards::default();
    let torn = Hazards {
        fetch: Fetch::Torn,
        sampling: Sampling::Late,
        split_atomics: true,
        ..plain
    };
    let late = Hazards {
        fetch: Fetch::WhenRun,
        sampling: Sampling::Early,
        ..plain
    };
    for schedule in [Schedule::Random, Schedule::Withhold, Schedule::Eager] {
        for hazards in [plain, torn, late] {
            for first in [0, (1 << 16) - 256, (1 << 22) - 256, (1 << 24) - 256] {
                // The last is more than there are receive WQEs.
                for depth in [1, 3, 400] {
                    let mut rig = rig(template(), schedule, hazards, first);
                    let done = stream(&mut rig, 600, depth);
                    done.unwrap_or_else(|error| panic!("{schedule:?}, {hazards:?}: {error}"));
                    alone(&mut rig, first, 600);
                }
            }
        }
    }
}

/// What is not a LOAD that is served is software's, and the slots go on arming themselves.
#[test]
fn software_serves_what_is_left_to_it_in_between() {
    let mut rig = rig(template(), Schedule::Withhold, Hazards::default(), 0);
    for round in 0..40 {
        stream(&mut rig, 23, 9).unwrap();
        let data = Some((KEY, BUFFER, BLOCK));
        let (opcode, flags) = [(STORE, 0), (LOAD, 0), (LOAD, INVALIDATE)][round % 3];
        let handle = TABLE_BASE + u64::from(round % 3 < 2);
        rig.parties[0].client.set_key(key());
        rig.send(0, &request(opcode, flags, 999, handle, 0, data));
        rig.settle().unwrap();
        let answer = completion(&rig.received(0).unwrap()).unwrap();
        let served = flags == INVALIDATE;
        assert_eq!(answer.status == Status::Ok, served, "{answer:?}");
        assert_eq!(rig.failed(0), None);
        rig.parties[0].client.set_key(key());
    }
    assert_eq!(rig.parties[0].session.armed(), lap::SLOTS);
    assert_eq!(rig.parties[0].punts, 27);
}

/// What arms is needed: a chain that does without ends, or answers wrong. What a stream of LOADs alone does not show, that what
/// requests wrote is reset and that the completion is waited for, the checker does.
#[test]
fn what_arms_is_needed() {
    type Spoil = fn(&mut Template);
    let spoilt: [(&str, Spoil); 4] = [
        ("DB without fence", |t| {
            t.find_mut("DB").unwrap().fenced = false;
        }),
        ("WAITs that count wrong", |t| swap_pieces(t, "LAP", 3, 4)),
        ("the lap of another", |t| swap_pieces(t, "LAP", 0, 5)),
        ("END in the wrong page", |t| {
            let last = t.find("IDX2").unwrap().1.pieces().len() - 1;
            swap_pieces(t, "IDX2", 0, last);
        }),
    ];
    for (how, spoil) in spoilt {
        let mut template = template();
        spoil(&mut template);
        let found = [Schedule::Withhold, Schedule::Random]
            .into_iter()
            .any(|schedule| {
                let mut rig = rig(template.clone(), schedule, Hazards::default(), 0);
                stream(&mut rig, 1500, 400).is_err()
            });
        assert!(found, "{how}");
    }
}

/// Two pieces of a READ change places.
fn swap_pieces(template: &mut Template, name: &'static str, one: usize, other: usize) {
    let Shape::Rdma(_, pieces) = &mut template.find_mut(name).unwrap().shape else {
        panic!("{name} is no READ")
    };
    pieces.swap(one, other);
}
