//! Chains spoilt on purpose: the model shows that each part of a chain is needed, and that the schedules find what is not
//! ordered. `cargo test --test mutations -- --nocapture` prints how many of the runs found each.

use crate::common::{BLOCK, Setup};
use crate::drive::run;
use kbtp_chain::element::{Address, Bound, Cq, Element, Name, Piece, Shape};
use kbtp_chain::memory::{Memory, Spot, scratch};
use kbtp_chain::{Template, full};
use kbtp_mlx5::Opcode;
use kbtp_nic_model::Schedule;
use kbtp_wire::ByteLen;

const SCHEDULES: [Schedule; 3] = [Schedule::Random, Schedule::Eager, Schedule::Withhold];
const TRASH: Spot = Spot::new(Memory::Scratch, scratch::TRASH, 1);

/// Of each schedule. With more seeds and requests the rates are those of docs/chains.md.
const SEEDS: u64 = 3;
const REQUESTS: u64 = 40;

type Spoil = Box<dyn Fn(&mut Template)>;

fn wqe(template: &mut Template, name: Name) -> &mut Element {
    template.find_mut(name).expect("a WQE")
}

fn pieces(template: &mut Template, name: Name) -> &mut Vec<Piece> {
    match &mut wqe(template, name).shape {
        Shape::Rdma(_, pieces) | Shape::Send(pieces) => pieces,
        other => panic!("{name}: {other:?}"),
    }
}

fn bound(name: Name, through: Name) -> Spoil {
    Box::new(move |template| match &mut wqe(template, name).shape {
        Shape::Enable(_, bound) => *bound = Bound::Through(through),
        other => panic!("{name}: {other:?}"),
    })
}

fn waits(name: Name, cq: Cq, number: u8) -> Spoil {
    Box::new(move |template| wqe(template, name).shape = Shape::Wait(cq, number))
}

fn unfenced(name: Name) -> Spoil {
    Box::new(move |template| wqe(template, name).fenced = false)
}

fn swap(one: Name, other: Name) -> Spoil {
    Box::new(move |template| {
        let at = |name| template.worker.iter().position(|wqe| wqe.name == name);
        let (a, b) = (at(one).expect("a WQE"), at(other).expect("a WQE"));
        template.worker.swap(a, b);
    })
}

fn armed(name: Name, address: u64) -> Spoil {
    Box::new(move |template| match &mut wqe(template, name).shape {
        Shape::Rdma(remote, _) => remote.address = Address::Armed(address),
        other => panic!("{name}: {other:?}"),
    })
}

/// The four octets go as they come instead of the other way round.
fn straight(names: &'static [Name]) -> Spoil {
    Box::new(move |template| {
        for name in names {
            let pieces = pieces(template, name);
            pieces.reverse();
        }
    })
}

/// The record does not decide over this WQE any more: it always has this opcode.
fn always(name: Name, opcode: Opcode) -> Spoil {
    Box::new(move |template| {
        let place = Spot::field(name, kbtp_mlx5::Field::OPCODE);
        let piece = pieces(template, "P").iter_mut();
        let piece = piece.into_iter().find(|piece| piece.spot == place);
        piece.expect("a place of the record").spot = TRASH;
        wqe(template, name).opcode = opcode;
    })
}

fn of(spoil: impl Fn(&mut Template) + 'static) -> Spoil {
    Box::new(spoil)
}

/// In how many runs of how many something goes wrong.
fn rate(spoil: &Spoil, requests: u64, seeds: u64) -> [(u64, u64); 3] {
    let mut template = full(ByteLen(BLOCK));
    spoil(&mut template);
    assert_ne!(template, full(ByteLen(BLOCK)), "nothing is spoilt");
    SCHEDULES.map(|schedule| {
        let caught = (0..seeds).filter(|seed| {
            let mut setup = Setup::new(schedule, 1000 + seed, 1);
            setup.sessions = vec![template.clone()];
            run(&setup, requests).is_err()
        });
        (caught.count() as u64, seeds)
    })
}

fn show(how: &str, rates: [(u64, u64); 3]) {
    let [random, eager, withhold] = rates.map(|(caught, of)| format!("{caught}/{of}"));
    println!("{how:<52} random {random:<5} eager {eager:<5} withhold {withhold}");
}

/// Found by at least one schedule.
fn found(mutations: Vec<(&str, Spoil)>) {
    let mut missed = Vec::new();
    for (how, spoil) in mutations {
        let rates = rate(&spoil, REQUESTS, SEEDS);
        show(how, rates);
        if rates.iter().all(|(caught, _)| *caught == 0) {
            missed.push(how);
        }
    }
    assert_eq!(missed, Vec::<&str>::new());
}

#[test]
fn waves_wait_for_each_other() {
    found(vec![
        ("wave 1 enabled with wave 0", bound("EN0", "EN2")),
        ("P before the comparisons", bound("EN1", "EN3")),
        ("comparisons do not wait", waits("WT1", Cq::Receive, 0)),
        (
            "P does not wait for the comparisons",
            waits("WT2", Cq::Worker, 0),
        ),
        ("C1 and C2 released before P", waits("WT3", Cq::Worker, 1)),
        ("NG enabled before CPG is done", waits("WT4", Cq::Worker, 2)),
        (
            "look-ups of the slot before the ticket",
            waits("WT6", Cq::Worker, 3),
        ),
        (
            "ring slot used before its address",
            waits("WT7", Cq::Worker, 4),
        ),
        ("entry before the data", waits("WTC", Cq::Client, 0)),
        (
            "CK2 enabled before CK1 is done",
            waits("WTD", Cq::Worker, 6),
        ),
        ("completion before the entry", waits("WT9", Cq::Worker, 7)),
    ]);
}

#[test]
fn what_a_record_decides_is_decided_by_it() {
    found(vec![
        ("breakpoint not honoured", bound("EN3", "EN4")),
        ("GO not conditional", always("GO", Opcode::SendEnable)),
        ("PW not conditional", always("PW", Opcode::SendEnable)),
        ("C1 not conditional", always("C1", Opcode::RdmaWrite)),
        ("X1 not conditional", always("X1", Opcode::RdmaRead)),
        ("poison removed from P", armed("P", 0)),
    ]);
}

#[test]
fn fences_and_order_are_needed() {
    found(vec![
        ("W1 without fence", unfenced("W1")),
        ("U0 without fence", unfenced("U0")),
        ("U2 before U1", swap("U1", "U2")),
        ("W1 before X1", swap("X1", "W1")),
    ]);
}

#[test]
fn octets_are_turned_round_where_they_must() {
    found(vec![
        ("ticket not turned round", straight(&["BT1"])),
        (
            "slot offset not turned round",
            straight(&["BS1", "BS2", "BS3"]),
        ),
        (
            "new Generation from the wrong half",
            of(|template| {
                let place = Spot::new(Memory::Wqe("NG"), 20, 1);
                let pieces = pieces(template, "P").iter_mut();
                for piece in pieces.filter(|piece| piece.spot == place) {
                    piece.spot = TRASH;
                }
            }),
        ),
        (
            "the old Generation is answered",
            of(|template| {
                for piece in pieces(template, "C4") {
                    if piece.spot == Spot::new(Memory::Scratch, scratch::ENTRY + 2, 2) {
                        piece.spot = Spot::new(Memory::Scratch, scratch::REPLY_GENERATION, 2);
                    }
                }
            }),
        ),
    ]);
}

/// Two parts of a chain are there although others do their work: what a responder does in order needs no fence.
#[test]
fn what_is_redundant_is_not_found() {
    for (how, spoil) in [
        ("FA without fence", unfenced("FA")),
        ("C3 released on an earlier CQE", waits("WT8", Cq::Worker, 5)),
    ] {
        let rates = rate(&spoil, REQUESTS, SEEDS);
        show(how, rates);
        assert!(rates.iter().all(|(caught, _)| *caught == 0), "{how}");
    }
}
