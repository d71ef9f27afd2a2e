//! Messages that are not what a client should send, and clients that go away: nothing that is not theirs changes.

use crate::common::{
    ALLOC, BLOCK, BUFFER, FREE, HANDLES, KEY, LOAD, Rig, SEAL, STORE, Setup, TABLE_BASE, UNSEALED,
    completion, pattern, request,
};
use kbtp_chain::Template;
use kbtp_chain::element::{Address, Shape};
use kbtp_chain::key::Key;
use kbtp_chain::memory::{Memory, Spot, scratch};
use kbtp_device::{Device, PeerAccess, Session, SessionPlan};
use kbtp_nic_model::Schedule;
use kbtp_wire::{EntryFlags, Handle, Status};
use std::collections::BTreeSet;

/// What comes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// Software answered.
    Rang,
    /// A queue pair is in error.
    Trapped,
    /// The chain answered.
    Served,
}

const SCHEDULES: [Schedule; 3] = [Schedule::Random, Schedule::Eager, Schedule::Withhold];
pub(crate) const WHOLE: Option<(u32, u64, u32)> = Some((KEY, BUFFER, BLOCK));
pub(crate) const MINE: u64 = TABLE_BASE + 1;
pub(crate) const THEIRS: u64 = TABLE_BASE + HANDLES / 2 + 1;

/// Table, ring and counters but the dummy one, and blocks.
fn state(rig: &Rig) -> [Vec<u8>; 2] {
    let pool = rig.target.pool();
    [&pool.meta, &pool.blocks].map(|region| {
        let mut octets = vec![0; usize::try_from(region.len()).unwrap()];
        region.read(0, &mut octets).unwrap();
        octets
    })
}

/// Two sessions, each with a bound block.
pub(crate) fn make(setup: &Setup) -> Rig {
    let mut rig = Rig::new(setup);
    for (party, handle) in [(0, MINE), (1, THEIRS)] {
        rig.fill(party, 0, &pattern(handle));
        rig.send(party, &request(ALLOC, 0, 1, handle, 0, WHOLE));
    }
    rig.settle().unwrap();
    for (party, handle) in [(0, MINE), (1, THEIRS)] {
        let answer = completion(&rig.received(party).unwrap()).unwrap();
        assert_eq!(answer.status, Status::Ok);
        assert!(rig.entry(handle).flags.contains(EntryFlags::VALID));
        rig.fill(party, 0, &pattern(7));
    }
    rig
}

fn fate(rig: &mut Rig, message: &[u8]) -> Fate {
    let punts = rig.parties[0].punts;
    rig.send(0, message);
    rig.settle().unwrap();
    if rig.failed(0).is_some() {
        return Fate::Trapped;
    }
    if rig.parties[0].punts > punts {
        return Fate::Rang;
    }
    Fate::Served
}

/// The other session goes on.
pub(crate) fn other_is_well(rig: &mut Rig) {
    assert_eq!(rig.failed(1), None);
    rig.send(1, &request(LOAD, UNSEALED, 99, THEIRS, 0, WHOLE));
    rig.settle().unwrap();
    let answer = completion(&rig.received(1).unwrap()).unwrap();
    assert_eq!(answer.status, Status::Ok);
    assert!(rig.buffer(1, 0) == pattern(THEIRS));
}

fn cut(len: usize) -> Vec<u8> {
    let mut message = request(LOAD, UNSEALED, 7, MINE, 0, WHOLE);
    message.extend([0x79; 200]);
    message.truncate(len);
    message
}

fn load(handle: u64, data: Option<(u32, u64, u32)>) -> Vec<u8> {
    request(LOAD, UNSEALED, 7, handle, 0, data)
}

type Crafted = Vec<(&'static str, Vec<u8>, Fate)>;

/// What they ask for is not theirs, or not there.
fn crafted_requests() -> Crafted {
    use Fate::{Rang, Trapped};
    let mut version = load(MINE, WHOLE);
    version[0] = 2;
    vec![
        (
            "a handle behind the table",
            load(TABLE_BASE + HANDLES, WHOLE),
            Trapped,
        ),
        (
            "a handle before the table",
            load(TABLE_BASE - 1, WHOLE),
            Trapped,
        ),
        (
            "a handle with its top octet set",
            load(1 << 60 | MINE, WHOLE),
            Trapped,
        ),
        ("a handle near 2^56", load((1 << 56) - 1, WHOLE), Trapped),
        (
            "STORE of another's handle",
            request(STORE, 0, 7, THEIRS, 0, WHOLE),
            Trapped,
        ),
        (
            "FREE of another's handle",
            request(FREE, 0, 7, THEIRS, 0, None),
            Trapped,
        ),
        (
            "ALLOC of another's handle",
            request(ALLOC, 0, 7, THEIRS + 1, 0, WHOLE),
            Trapped,
        ),
        ("another version", version, Rang),
        ("an unknown opcode", request(77, 0, 7, MINE, 0, WHOLE), Rang),
        (
            "a reserved opcode",
            request(0x80, 0, 7, MINE, 0, WHOLE),
            Rang,
        ),
        (
            "unknown flags",
            request(LOAD, 0x4000 | UNSEALED, 7, MINE, 0, WHOLE),
            Rang,
        ),
        (
            "flags of another opcode",
            request(FREE, SEAL, 7, MINE, 0, None),
            Rang,
        ),
        (
            "a length of 2^24 more",
            load(MINE, Some((KEY, BUFFER, BLOCK | 1 << 24))),
            Rang,
        ),
        ("a length of zero", load(MINE, Some((KEY, BUFFER, 0))), Rang),
    ]
}

/// They are not as long as they should be.
fn crafted_lengths() -> Crafted {
    use Fate::{Rang, Trapped};
    let bad_key = Some((0xdead_0000, BUFFER, BLOCK));
    let outside = Some((KEY, BUFFER + (1 << 40), BLOCK));
    let mut inline = request(STORE, 1, 7, MINE, 0, Some((KEY, BUFFER, 4)));
    inline.extend(b"data");
    let mut long_free = request(FREE, 0, 7, MINE, 0, Some((0, 0, 0x00ff_ffff)));
    long_free.extend([0; 16]);
    vec![
        ("no octets", cut(0), Trapped),
        ("3 octets", cut(3), Trapped),
        ("12 octets", cut(12), Trapped),
        ("23 octets", cut(23), Rang),
        ("LOAD of 24 octets", cut(24), Rang),
        ("30 octets", cut(30), Rang),
        ("39 octets", cut(39), Rang),
        ("41 octets", cut(41), Rang),
        ("128 octets", cut(128), Rang),
        ("129 octets: more than fit", cut(129), Trapped),
        (
            "FREE with a descriptor",
            request(FREE, 0, 7, MINE, 0, Some((0, 0, 0x00ff_ffff))),
            Rang,
        ),
        ("FREE of 56 octets", long_free, Rang),
        ("INLINE STORE", inline, Rang),
        (
            "LOAD to a key that is not there",
            load(MINE, bad_key),
            Trapped,
        ),
        ("LOAD outside the key", load(MINE, outside), Trapped),
        (
            "STORE from a key that is not there",
            request(STORE, SEAL, 7, MINE, 0, bad_key),
            Trapped,
        ),
    ]
}

#[test]
fn crafted_messages_change_nothing() {
    for schedule in SCHEDULES {
        for (what, message, wanted) in [crafted_requests(), crafted_lengths()].concat() {
            let mut rig = make(&Setup::new(schedule, 3, 2));
            let before = state(&rig);
            let came = fate(&mut rig, &message);
            assert_eq!(came, wanted, "{schedule:?}, {what}");
            assert!(
                state(&rig) == before,
                "{schedule:?}, {what}: something changed"
            );
            other_is_well(&mut rig);
        }
    }
}

/// The ticket is taken before the data is known to come: the block is out of the ring, no entry has it, and the slot
/// says where it is.
#[test]
fn an_allocation_whose_data_does_not_come_binds_nothing() {
    for schedule in SCHEDULES {
        let mut rig = make(&Setup::new(schedule, 5, 2));
        let entries = |rig: &Rig| -> Vec<_> {
            let handles = TABLE_BASE..TABLE_BASE + HANDLES;
            handles.map(|handle| rig.entry(handle)).collect()
        };
        let before = entries(&rig);
        let bad = Some((0xdead_0000, BUFFER, BLOCK));
        let message = request(ALLOC, 0, 7, MINE + 1, 0, bad);
        assert_eq!(fate(&mut rig, &message), Fate::Trapped);
        assert!(entries(&rig) == before, "{schedule:?}: bound");
        assert!(rig.conserved().is_err(), "the block is in the slot");
        let block = rig.parties[0].session.taken_block(1);
        assert_eq!(block.map(|block| block.0 & 0xfff), Some(0));
        other_is_well(&mut rig);
    }
}

/// Spoilt: what the checks of CQEs are for.
fn spoilt(spoil: impl Fn(&mut Template)) -> Setup {
    let mut setup = Setup::new(Schedule::Random, 3, 2);
    for template in &mut setup.sessions {
        spoil(template);
    }
    setup
}

fn trash(len: u32) -> Spot {
    Spot::new(Memory::Scratch, scratch::TRASH, len)
}

#[test]
fn without_its_check_a_failed_read_would_bind() {
    let setup = spoilt(|template| {
        let Shape::Rdma(_, pieces) = &mut template.find_mut("CK1").unwrap().shape else {
            panic!("a READ")
        };
        pieces[0].spot = trash(1);
        let Shape::Rdma(remote, _) = &mut template.find_mut("CK2").unwrap().shape else {
            panic!("a READ")
        };
        remote.address = Address::Armed(0);
    });
    let mut rig = make(&setup);
    let bad = Some((0xdead_0000, BUFFER, BLOCK));
    fate(&mut rig, &request(ALLOC, 0, 7, MINE + 1, 0, bad));
    let entry = rig.entry(MINE + 1);
    assert!(
        entry.flags.contains(EntryFlags::VALID),
        "bound without data"
    );
}

#[test]
fn without_its_check_a_longer_message_would_be_served() {
    let setup = spoilt(|template| {
        let Shape::Rdma(_, pieces) = &mut template.find_mut("DR").unwrap().shape else {
            panic!("a READ")
        };
        pieces[0].spot = trash(4);
        let Shape::Rdma(remote, _) = &mut template.find_mut("P").unwrap().shape else {
            panic!("a READ")
        };
        remote.key = Key::RecordsWithData;
    });
    let mut rig = make(&setup);
    assert_eq!(fate(&mut rig, &cut(41)), Fate::Served);
}

/// The probe of the handle's range stands before the ticket.
#[test]
fn a_ticket_taken_before_the_probe_would_be_lost() {
    let setup = spoilt(|template| {
        let at = |name| template.worker.iter().position(|wqe| wqe.name == name);
        let (a, b) = (at("U0").unwrap(), at("FA").unwrap());
        template.worker.swap(a, b);
    });
    let mut rig = make(&setup);
    let before = state(&rig);
    fate(&mut rig, &request(ALLOC, 0, 7, THEIRS + 1, 0, WHOLE));
    assert!(state(&rig) != before);
}

/// Random octets, most of them near a request: what a parser of its own calls illegal changes nothing.
#[test]
fn fuzzed_messages_change_nothing_illegally() {
    let mut counts = [0_u64; 3];
    let mut rig = make(&Setup::new(Schedule::Random, 11, 2));
    for round in 0..600 {
        if rig.failed(0).is_some() {
            rig = make(&Setup::new(SCHEDULES[round % 3], round as u64, 2));
        }
        let message = fuzzed(&mut rig);
        let legal = is_legal(&rig, &message);
        let before = state(&rig);
        let came = fate(&mut rig, &message);
        counts[came as usize] += 1;
        while rig.received(0).is_some() {}
        if !legal {
            assert!(state(&rig) == before, "{round}: {message:02x?}");
        }
        let theirs = rig.entry(THEIRS);
        assert!(rig.block(theirs.block) == pattern(THEIRS), "{round}");
        if rig.failed(0).is_none() {
            rig.conserved().unwrap();
        }
    }
    let [rang, trapped, served] = counts;
    assert!(rang > 100 && trapped > 50 && served > 5, "{counts:?}");
    other_is_well(&mut rig);
}

fn fuzzed(rig: &mut Rig) -> Vec<u8> {
    let random = &mut rig.random;
    let opcode = random.pick(&[LOAD, STORE, ALLOC, FREE, LOAD]);
    let flags = random.pick(&[0, 0, SEAL, UNSEALED, 8]);
    let handle = random.pick(&[MINE, MINE, MINE + 1, THEIRS, TABLE_BASE + 40]);
    let generation = random.pick(&[0, 0, 1, 2]);
    let len = random.pick(&[BLOCK, BLOCK, BLOCK, 0, 0x00ff_ffff, u32::MAX]);
    // Also keys of the device: a client may name what it likes.
    let stag = random.pick(&[KEY, KEY, KEY, 0x0010_005a, 0x0010_085a, 0]);
    let data = (opcode != FREE || random.percent(20)).then_some((stag, BUFFER, len));
    let mut message = request(opcode, flags, 7, handle, generation, data);
    if random.percent(50) {
        for _ in 0..=random.below(3) {
            let at = usize::try_from(random.below(message.len() as u64)).unwrap();
            message[at] ^= 1 << random.below(8);
        }
    }
    if random.percent(30) {
        let len = usize::try_from(random.below(129)).unwrap();
        message.resize(len, 0xa5);
    }
    message
}

/// Whether a request may change something.
fn is_legal(rig: &Rig, message: &[u8]) -> bool {
    let is = |at: usize, len: usize| message.get(at..at + len);
    let number = |at, len| {
        is(at, len).map(|octets| {
            octets
                .iter()
                .fold(0, |sum, octet| sum << 8 | u64::from(*octet))
        })
    };
    let (Some(1), Some(opcode), Some(flags)) = (number(0, 1), number(1, 1), number(2, 2)) else {
        return false;
    };
    let (Some(handle), Some(generation)) = (number(12, 8), number(20, 2)) else {
        return false;
    };
    if !rig.parties[0].own.contains(&handle) {
        return false;
    }
    let entry = rig.entry(handle);
    let current = kbtp_wire::Generation::to_wire(entry.generation);
    let valid = entry.flags.contains(EntryFlags::VALID);
    let sealed = entry.flags.contains(EntryFlags::SEALED);
    let matches = generation == 0 || generation == u64::from(current);
    let whole = message.len() == 40 && number(36, 4) == Some(u64::from(BLOCK));
    let named = number(24, 4) == Some(u64::from(KEY));
    let data = number(28, 8).is_some_and(|at| {
        let end = BUFFER + crate::common::BUFFERS * u64::from(BLOCK);
        at >= BUFFER && at + u64::from(BLOCK) <= end
    });
    let flagged = flags & !u64::from(SEAL | 8) == 0;
    match u8::try_from(opcode).unwrap() {
        STORE => valid && !sealed && matches && whole && flagged && named && data,
        // One that names no memory of the client takes a ticket before that shows.
        ALLOC => !valid && matches && whole && flagged,
        FREE => valid && matches && flags == 0 && message.len() == 24,
        _ => false,
    }
}

/// What ends a session in the middle of a request.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The client goes away.
    Client,
    /// The client's queue pair fails.
    ClientQueue,
    /// The loopback queue pair fails.
    Worker,
}

/// A request that is cut off after so many events: nobody sees half of it, no block is in two places, at most its own is in
/// none, and the other session goes on.
fn cut_off(setup: &Setup, opcode: u8, end: End, events: u64) {
    let mut rig = make(setup);
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
    let session = &rig.parties[0].session;
    match end {
        End::Client => rig.parties[0].client.disconnect(),
        End::ClientQueue => rig.model.stop(session.client_qpn()).unwrap(),
        End::Worker => rig.model.stop(session.worker_qpn()).unwrap(),
    }
    rig.settle().unwrap();
    let schedule = setup.schedule;
    let how = format!("{schedule:?}, opcode {opcode}, {end:?} after {events}");
    let entry = rig.entry(handle);
    let valid = entry.flags.contains(EntryFlags::VALID);
    if opcode == LOAD {
        assert_eq!(entry, before, "{how}");
    }
    if matches!(opcode, STORE | ALLOC) && entry.flags.contains(EntryFlags::SEALED) {
        assert!(
            valid && rig.block(entry.block) == pattern(7),
            "{how}: sealed without its data"
        );
    } else if opcode == ALLOC {
        assert!(!valid, "{how}");
    }
    let found = rig.found();
    let mut distinct = found.clone();
    distinct.dedup();
    assert_eq!(found, distinct, "{how}: a block in two places");
    let missing = usize::try_from(crate::common::BLOCKS).unwrap() - found.len();
    let may = usize::from(matches!(opcode, ALLOC | FREE));
    assert!(missing <= may, "{how}: {missing} blocks lost");
    other_is_well(&mut rig);
}

#[test]
fn a_session_cut_off_anywhere_leaves_nothing_half_done() {
    let mut case = 0;
    for schedule in SCHEDULES {
        for opcode in [LOAD, STORE, ALLOC, FREE] {
            for end in [End::Client, End::ClientQueue, End::Worker] {
                for events in (0..240).step_by(48) {
                    case += 1;
                    let setup = Setup::new(schedule, case, 2);
                    cut_off(&setup, opcode, end, events + case % 48);
                }
            }
        }
    }
}

/// Nothing of one session is left when it ends, and the other goes on.
#[test]
fn a_session_ends_and_its_keys_with_it() {
    let mut rig = make(&Setup::new(Schedule::Random, 9, 2));
    rig.send(0, &request(LOAD, UNSEALED, 8, MINE, 0, WHOLE));
    for _ in 0..30 {
        rig.step().unwrap();
    }
    let party = rig.parties.remove(0);
    let (worker, client) = (party.session.worker_qpn(), party.session.client_qpn());
    party.session.destroy(&mut rig.model).unwrap();
    for qpn in [worker, client] {
        rig.model.stop(qpn).unwrap_err();
    }
    // The other one stands first now, and its punts would name it by another number: it has none.
    rig.send(0, &request(LOAD, UNSEALED, 99, THEIRS, 0, WHOLE));
    rig.settle().unwrap();
    let answer = completion(&rig.received(0).unwrap()).unwrap();
    assert_eq!(answer.status, Status::Ok);
}

/// A session without handles of its own: it loads, and what else it asks for ends it.
#[test]
fn a_session_that_only_reads_has_no_handles() {
    let mut rig = make(&Setup::new(Schedule::Random, 9, 2));
    let profile = rig
        .target
        .profile(&mut rig.model, rig.parties[0].session.template().clone());
    let party = rig.parties.remove(0);
    party.session.destroy(&mut rig.model).unwrap();
    rig.join(&profile.unwrap(), 0, TABLE_BASE..TABLE_BASE, 0);
    rig.parties.swap(0, 1);
    rig.send(0, &request(LOAD, UNSEALED, 8, MINE, 0, WHOLE));
    rig.settle().unwrap();
    let answer = completion(&rig.received(0).unwrap()).unwrap();
    assert_eq!(answer.status, Status::Ok);
    let before = state(&rig);
    assert_eq!(
        fate(&mut rig, &request(FREE, 0, 9, MINE, 0, None)),
        Fate::Trapped
    );
    assert!(state(&rig) == before);
    other_is_well(&mut rig);
}

/// A device has as much of everything after many sessions as after one.
#[test]
fn sessions_that_end_leave_room_for_others() {
    let mut rig = make(&Setup::new(Schedule::Eager, 9, 2));
    let profile = rig
        .target
        .profile(&mut rig.model, rig.parties[0].session.template().clone());
    let profile = profile.unwrap();
    let plan = SessionPlan {
        id: 7,
        own_base: Handle(TABLE_BASE),
        own_count: 4,
        client_access: PeerAccess::default(),
    };
    let mut numbers = BTreeSet::new();
    let mut keys = BTreeSet::new();
    for _ in 0..20 {
        let session = Session::create(&mut rig.model, &rig.target, &profile, &plan).unwrap();
        numbers.insert((session.worker_qpn(), session.client_qpn(), session.cqns()));
        let own = session.placement().key(Key::Rings);
        assert!(keys.insert(own), "a key of before is valid again");
        session.destroy(&mut rig.model).unwrap();
    }
    assert_eq!(numbers.len(), 1);
    other_is_well(&mut rig);
}
