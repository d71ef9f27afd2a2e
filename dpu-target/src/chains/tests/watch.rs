//! Requests that wait for ever: for a block that nobody frees, for a device that does nothing.

use super::kill::{ALLOC, LOAD, UNSEALED, ok, request};
use super::rig::{BLOCK, Begin, ByChains};
use kbtp_chain::element::Name;
use kbtp_chain::memory::Spot;
use kbtp_core::SessionEnd;
use kbtp_core::limits::BLOCK_WAIT_MS;
use kbtp_mlx5::Field;
use kbtp_nic_model::{Hazards, Schedule};
use kbtp_wire::{Completion, Status, Ticket};

const SCHEDULES: [Schedule; 3] = [Schedule::Eager, Schedule::Random, Schedule::Withhold];

fn chains(schedule: Schedule) -> (ByChains, [u64; 2]) {
    let (chains, grants) = ByChains::new(2, 20, Begin::New, Hazards::default(), schedule, 3);
    (chains, [grants[0].handle_base.0, grants[1].handle_base.0])
}

/// Somebody takes every ticket that there is a block for, and does nothing with it.
fn take_all(chains: &ByChains) {
    let pool = &chains.target.shared.pool;
    let (meta, at) = (pool.meta_region(), pool.places().counters);
    let mut tail = [0; 8];
    meta.read(at + 64, &mut tail).unwrap();
    meta.write(at, &tail).unwrap();
    assert!(pool.open_tickets().len() > 100);
}

/// And gives them back; `known` are others'.
fn give_back(chains: &ByChains, known: &[Ticket]) {
    let pool = &chains.target.shared.pool;
    assert!(pool.put_back_lost(pool.open_tickets(), known) > 100);
}

fn is_whole(chains: &ByChains, bound: u32) {
    let pool = &chains.target.shared.pool;
    let audit = pool.audit();
    assert_eq!(audit.faults, Vec::<String>::new(), "{audit:?}");
    let counts = (audit.bound, audit.awaited, audit.deferred, audit.elsewhere);
    assert_eq!(counts, (bound, 0, 0, 0), "{audit:?}");
    assert_eq!(pool.open_tickets(), []);
}

fn status(octets: &[u8]) -> Status {
    Completion::decode_message(octets).unwrap().status
}

/// The block does not come: the answer is the core's, after the core's time, and what comes behind it is served. The ticket
/// keeps no block that is freed later.
//= test kbtp-p7-no-space
#[test]
fn a_chain_that_waits_for_a_block_is_given_up_when_the_core_gives_up() {
    for schedule in SCHEDULES {
        let (mut chains, bases) = chains(schedule);
        ok(&mut chains, 1, &request(ALLOC, 0, bases[1], 1, BLOCK));
        take_all(&chains);
        let began = chains.target.now;
        chains.send(1, &request(ALLOC, 0, bases[1] + 1, 2, BLOCK));
        chains.send(1, &request(LOAD, UNSEALED, bases[1], 3, BLOCK));
        chains.settle().unwrap();
        let waited = (chains.target.now.0 - began.0) / 1_000_000;
        assert!(
            (BLOCK_WAIT_MS..BLOCK_WAIT_MS + 10).contains(&waited),
            "{waited}"
        );
        assert_eq!(status(&chains.received(1).unwrap().octets), Status::NoSpace);
        assert_eq!(status(&chains.received(1).unwrap().octets), Status::Ok);
        let counts = &chains.counts;
        assert_eq!((counts.given_up.get(), counts.recovered.get()), (1, 1));
        assert_eq!((counts.traps.get(), counts.stalled.get()), (0, 0));
        give_back(&chains, &[]);
        is_whole(&chains, 1);
        ok(&mut chains, 1, &request(ALLOC, 0, bases[1] + 1, 4, BLOCK));
        ok(&mut chains, 0, &request(ALLOC, 0, bases[0], 4, BLOCK));
        is_whole(&chains, 3);
    }
}

/// A chain that waits for a block, and its ticket.
fn waiting(schedule: Schedule) -> (ByChains, Ticket) {
    let (mut chains, bases) = chains(schedule);
    take_all(&chains);
    chains.send(1, &request(ALLOC, 0, bases[1], 1, BLOCK));
    while chains.turn().unwrap() {}
    assert!(chains.received(1).is_none());
    let mut tickets = Vec::new();
    let seat = chains.chains.seats[1].as_mut().unwrap();
    assert!(!seat.tickets(&mut tickets));
    let [ticket] = tickets[..] else {
        panic!("{tickets:?}")
    };
    (chains, ticket)
}

/// The block comes while its chain waits.
#[test]
fn a_chain_that_waits_for_a_block_gets_it_when_it_comes() {
    for schedule in SCHEDULES {
        let (mut chains, ticket) = waiting(schedule);
        chains.chains.watch(chains.target.now);
        chains.target.now = chains.target.now.after_ms(BLOCK_WAIT_MS - 1);
        give_back(&chains, &[ticket]);
        chains.settle().unwrap();
        assert_eq!(status(&chains.received(1).unwrap().octets), Status::Ok);
        assert_eq!(chains.counts.given_up.get(), 0);
        is_whole(&chains, 1);
    }
}

/// The session whose chain waits ends: its ticket keeps no block that is freed later.
#[test]
fn a_session_that_ends_while_its_chain_waits_keeps_no_ticket() {
    for schedule in SCHEDULES {
        let (mut chains, ticket) = waiting(schedule);
        chains.parties[1].client.disconnect();
        chains.leave(1);
        // It waits for its block still, in software's list.
        assert!(chains.target.shared.pool.open_tickets().contains(&ticket));
        give_back(&chains, &[]);
        is_whole(&chains, 0);
    }
}

/// What the WAITs of a slot wait for, made something that never comes.
const WAITS: [Name; 6] = ["WT1", "WT2", "WT3", "WT4", "WT6", "WTD"];

/// A CQE that is lost, or a WAIT that does not see it: the session ends, with a reason, and another has nothing of it.
#[test]
fn a_chain_that_makes_no_progress_ends_its_session() {
    for (number, wait) in WAITS.into_iter().enumerate() {
        let (mut chains, bases) = chains(SCHEDULES[number % 3]);
        ok(&mut chains, 0, &request(ALLOC, 0, bases[0], 1, BLOCK));
        ok(&mut chains, 1, &request(ALLOC, 0, bases[1], 1, BLOCK));
        let seat = chains.chains.get(chains.parties[0].id).unwrap();
        let at = seat
            .session
            .place_of(1, Spot::field(wait, Field::WAIT_INDEX));
        // Far ahead.
        let far = 0x7f_0000_u32.to_be_bytes();
        seat.session.memory().write(at.unwrap(), &far).unwrap();
        let began = chains.target.now;
        chains.send(0, &request(ALLOC, 0, bases[0] + 1, 2, BLOCK));
        let end = chains.settle().expect_err(wait);
        assert_eq!(
            end,
            SessionEnd::Local("a chain makes no progress"),
            "{wait}"
        );
        assert_eq!(
            chains.target.now,
            began.after_ms(crate::limits::CHAIN_STALL_MS)
        );
        assert_eq!(chains.counts.stalled.get(), 1);
        chains.parties[0].client.disconnect();
        chains.leave(0);
        is_whole(&chains, 1);
        ok(&mut chains, 0, &request(LOAD, UNSEALED, bases[1], 3, BLOCK));
    }
}

/// A client that takes nothing is not the device's fault.
#[test]
fn a_chain_that_waits_for_its_client_is_left_alone() {
    let (mut chains, bases) = chains(Schedule::Eager);
    ok(&mut chains, 0, &request(ALLOC, 0, bases[0], 1, BLOCK));
    chains.parties[0].client.set_pace(0);
    chains.send(0, &request(LOAD, UNSEALED, bases[0], 2, BLOCK));
    for _ in 0..10 {
        while chains.turn().unwrap() {}
        assert_eq!(chains.chains.watch(chains.target.now), None);
        chains.target.now = chains.target.now.after_ms(10_000);
    }
    chains.parties[0].client.set_pace(8);
    chains.settle().unwrap();
    assert!(chains.received(0).is_some());
}
