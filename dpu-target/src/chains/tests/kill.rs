//! A client that is gone, a queue pair that fails, or a target that is killed, at every step of a request: nothing is lost, nothing is bound by half, and the others go on.

use super::ops::{Numbers, entry};
use super::rig::{BLOCK, BUFFER, Begin, ByChains, KEY, hazards};
use kbtp_core::Pool;
use kbtp_device::Device as _;
use kbtp_nic_model::Schedule;
use kbtp_wire::{Completion, EntryFlags, Status, TableEntry};

/// A request of a whole block, or of part of one.
pub(super) fn request(opcode: u8, flags: u16, handle: u64, id: u64, len: u32) -> Vec<u8> {
    let mut octets = vec![1, opcode];
    octets.extend(flags.to_be_bytes());
    octets.extend(id.to_be_bytes());
    octets.extend(handle.to_be_bytes());
    octets.extend([0; 4]);
    if opcode != FREE {
        octets.extend(KEY.to_be_bytes());
        octets.extend(BUFFER.to_be_bytes());
        octets.extend(len.to_be_bytes());
    }
    octets
}

pub(super) const LOAD: u8 = 3;
pub(super) const STORE: u8 = 4;
pub(super) const ALLOC: u8 = 5;
pub(super) const FREE: u8 = 6;
pub(super) const UNSEALED: u16 = 16;

/// What is asked for when the client goes: of handle 0, which is bound, or 1, which is not, or one of nobody's.
const CASES: [Case; 9] = [
    (LOAD, UNSEALED, 0, BLOCK),
    (LOAD, UNSEALED, 0, 2 * BLOCK),
    (STORE, 0, 0, BLOCK),
    (STORE, 0, 0, 100),
    (ALLOC, 0, 1, BLOCK),
    (ALLOC, 0, 1, 100),
    (FREE, 0, 0, 0),
    (LOAD, 0, 1, BLOCK),
    (ALLOC, 0, 1 << 40, BLOCK),
];

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The client is gone.
    Client,
    /// The client's queue pair fails.
    ClientQueue,
    /// The loopback queue pair fails.
    Loopback,
    /// The target and its device are gone; what is left of the pool is taken over.
    Restart,
}

/// The status of a request that is served.
pub(super) fn ok(chains: &mut ByChains, party: usize, message: &[u8]) {
    let answer = chains.ask(party, message).unwrap();
    let completion = Completion::decode_message(&answer.octets).unwrap();
    assert_eq!(completion.status, Status::Ok, "{message:x?}");
}

/// Opcode, flags, handle from the first of the session's, length.
type Case = (u8, u16, u64, u32);

/// What the first session's client stores.
const DATA: u8 = 0xa5;

/// Two sessions with a block each, of which the first has asked for something and one thing more, so many steps on; the first handle
/// of each, and whether the device had something left to do.
fn begun(schedule: Schedule, seed: u64, case: Case, steps: u64) -> (ByChains, [u64; 2], bool) {
    let (mut chains, grants) = ByChains::new(2, 8, Begin::New, hazards(seed), schedule, seed);
    let (opcode, flags, handle, len) = case;
    let bases = [0, 1].map(|party: usize| grants[party].handle_base.0);
    let client = chains.parties[0].client.region();
    client.write(0, &vec![DATA; 2 * BLOCK as usize]).unwrap();
    for (party, base) in bases.into_iter().enumerate() {
        ok(&mut chains, party, &request(ALLOC, 0, base, 1, BLOCK));
    }
    chains.send(0, &request(opcode, flags, bases[0] + handle, 2, len));
    // One behind it, which may have begun when the first lacks but its completion.
    chains.send(0, &request(ALLOC, 0, bases[0] + 2, 3, BLOCK));
    let mut under_way = true;
    for _ in 0..steps {
        under_way = chains.step().unwrap();
    }
    (chains, bases, under_way)
}

/// The target is killed after so many steps, and started on what is left: the table says what is bound, and all else is free. Returns
/// whether the request was still under way.
fn restart(schedule: Schedule, seed: u64, case: Case, steps: u64) -> bool {
    let (chains, bases, under_way) = begun(schedule, seed, case, steps);
    let before = chains.target.block(first_block(&chains, bases[1]), BLOCK);
    let table = chains.target.table();
    let pool = &chains.target.shared.pool;
    let (meta, blocks) = (pool.meta_region().clone(), pool.block_region().clone());
    let show = || format!("{case:?} after {steps} of {schedule:?} {seed}");
    let bound = |handle| {
        let entry = entry(&table, handle);
        entry.flags.contains(EntryFlags::VALID).then_some(entry)
    };
    let block = |entry: &TableEntry| chains.target.block(entry.block.0, entry.data_len.0);
    // Of those that were bound by the last two requests all is there.
    for allocated in [1, 2].into_iter().filter_map(|n| bound(bases[0] + n)) {
        assert!(allocated.data_len.0 > 0, "{}", show());
        assert!(
            block(&allocated).iter().all(|octet| *octet == DATA),
            "{}",
            show()
        );
    }
    let kept = bound(bases[1]).unwrap();
    let entries = [0, 1, 2]
        .iter()
        .filter(|n| bound(bases[0] + **n).is_some())
        .count();
    let (pool, recovered) = Pool::recover(meta, blocks, [9; 16]).unwrap();
    assert!(!recovered.report.instance_changed, "{}", show());
    let audit = pool.audit();
    assert_eq!(audit.faults, Vec::<String>::new(), "{}", show());
    let counts = (audit.bound, audit.awaited, audit.deferred, audit.elsewhere);
    let entries = u32::try_from(entries).unwrap();
    assert_eq!(counts, (1 + entries, 0, 0, 0), "{}", show());
    assert!(block(&kept) == before, "{}", show());
    under_way
}

/// Ends the first session after so many steps. Returns whether the request was still under way, and whether a ticket was that
/// its chain had taken and not told of.
fn cut(fault: Fault, schedule: Schedule, seed: u64, case: Case, steps: u64) -> (bool, bool) {
    if fault == Fault::Restart {
        return (restart(schedule, seed, case, steps), false);
    }
    let (mut chains, bases, under_way) = begun(schedule, seed, case, steps);
    let before = chains.target.block(first_block(&chains, bases[1]), BLOCK);
    fail(&mut chains, fault);
    let untold = untold(&mut chains);
    chains.leave(0);
    let audit = chains.target.shared.pool.audit();
    let show = || format!("{case:?}, {fault:?} after {steps} of {schedule:?} {seed}: {audit:?}");
    assert_eq!(audit.faults, Vec::<String>::new(), "{}", show());
    assert_eq!((audit.awaited, audit.elsewhere), (0, 0), "{}", show());
    // The range was given up with the session, and all its blocks.
    assert_eq!((audit.bound, audit.deferred), (1, 0), "{}", show());
    // The other one has what it had, and goes on.
    let after = chains.target.block(first_block(&chains, bases[1]), BLOCK);
    assert!(before == after, "{}", show());
    for n in 1..8 {
        let message = request(ALLOC, 0, bases[1] + n, 1 + n, BLOCK);
        ok(&mut chains, 0, &message);
    }
    (under_way, untold)
}

/// Whether the first session's chain has taken a ticket and not told of it.
fn untold(chains: &mut ByChains) -> bool {
    let mut known = Vec::new();
    let seat = chains.chains.seats[0].as_mut().unwrap();
    seat.tickets(&mut known);
    let takes = seat.session.takes_ticket(seat.answered());
    let open = chains.target.shared.pool.open_tickets();
    takes && open.iter().any(|ticket| !known.contains(ticket))
}

/// The fault, and what software makes of it: whatever it was, the session ends.
fn fail(chains: &mut ByChains, fault: Fault) {
    let seat = chains.chains.get(chains.parties[0].id).unwrap();
    let qpns = (seat.session.client_qpn(), seat.session.worker_qpn());
    let device = &mut chains.chains.device;
    match fault {
        Fault::Client | Fault::Restart => {}
        Fault::ClientQueue => device.stop(qpns.0).unwrap(),
        Fault::Loopback => {
            device.stop(qpns.1).unwrap();
            while chains.step() == Ok(true) {}
        }
    }
    chains.parties[0].client.disconnect();
}

fn first_block(chains: &ByChains, handle: u64) -> u64 {
    let at = usize::try_from(handle - super::rig::BASE).unwrap() * 16;
    let table = chains.target.table();
    u64::from_be_bytes(table[at + 8..at + 16].try_into().unwrap())
}

/// Every step under every schedule takes many minutes.
fn every_step() -> bool {
    std::env::var_os("KBTP_EVERY_STEP").is_some()
}

/// Ends a request at its steps, `stride` apart. Returns how many times a ticket was not told of.
fn sweep(fault: Fault, case: Case, schedule: Schedule, seed: u64, stride: u64) -> u64 {
    let mut steps = Numbers::new(seed).below(stride);
    let (mut cuts, mut untold) = (0, 0);
    loop {
        let (under_way, one) = cut(fault, schedule, seed, case, steps);
        cuts += 1;
        untold += u64::from(one);
        if !under_way {
            break;
        }
        steps += stride;
    }
    assert!(steps > 40, "{case:?}: {steps}");
    println!(
        "{case:?}, {fault:?}, {schedule:?}, seed {seed:#x}: {cuts} steps, {untold} tickets not told of"
    );
    untold
}

const FAULTS: [Fault; 4] = [
    Fault::Client,
    Fault::ClientQueue,
    Fault::Loopback,
    Fault::Restart,
];
const SCHEDULES: [Schedule; 3] = [Schedule::Eager, Schedule::Random, Schedule::Withhold];

#[test]
fn a_session_that_ends_at_any_step_leaves_nothing_behind() {
    let every = every_step();
    let mut random = Numbers::new(1);
    for fault in FAULTS {
        for (number, case) in CASES.into_iter().enumerate() {
            for (turn, schedule) in SCHEDULES.into_iter().enumerate() {
                if every || (number + fault as usize) % 3 == turn {
                    let stride = if every { 1 } else { 61 };
                    sweep(fault, case, schedule, random.next(), stride);
                }
            }
        }
    }
}

/// Between FetchAdd and reply only Head knows.
#[test]
fn a_ticket_that_a_chain_took_and_did_not_tell_of_goes_back_at_once() {
    let case = (ALLOC, 0, 1, BLOCK);
    let untold = |seed| sweep(Fault::Loopback, case, Schedule::Withhold, seed, 1);
    assert!((5..8).any(|seed| untold(seed) > 0));
}
