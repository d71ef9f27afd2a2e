//! The same random requests of several sessions, one after the other, to the software engine and to chains.

use super::ops::{Numbers, request};
use super::rig::{BLOCK, BLOCKS, BUFFERS, Begin, ByChains, BySoftware, Target};
use kbtp_nic_model::{Hazards, Schedule};
use kbtp_wire::{EntryFlags, Generation, TableEntry};

/// Two targets that should not differ.
struct Both {
    begin: Begin,
    software: BySoftware,
    chains: ByChains,
    random: Numbers,
    grants: Vec<kbtp_wire::Grant>,
    next_id: u64,
    log: Vec<(usize, Vec<u8>)>,
}

impl Both {
    fn new(sessions: u8, begin: Begin, schedule: Schedule, seed: u64) -> Self {
        // Some share the pool as it is, some want more than there is.
        let quota = [4, 24, BLOCKS / u32::from(sessions)][usize::try_from(seed % 3).unwrap()];
        let (software, grants) = BySoftware::new(sessions, quota, begin);
        let hazards = Hazards::default();
        let (chains, others) = ByChains::new(sessions, quota, begin, hazards, schedule, seed);
        assert_eq!(grants, others);
        Self {
            begin,
            software,
            chains,
            random: Numbers::new(seed),
            grants,
            next_id: 1,
            log: Vec::new(),
        }
    }

    fn step(&mut self) {
        let parties = self.grants.len() as u64;
        let party = usize::try_from(self.random.below(parties)).unwrap();
        let table = self.software.target.table();
        let id = self.next_id;
        self.next_id += 1;
        let message = request(&mut self.random, &self.grants[party], &table, id);
        self.log.push((party, message.clone()));
        // New data each time.
        let fill = self.random.next().to_be_bytes().repeat(8);
        let at = self.random.below(BUFFERS * u64::from(BLOCK) / 64) * 64;
        self.software.buffer(party).write(at, &fill).unwrap();
        let client = &self.chains.parties[party].client;
        client.region().write(at, &fill).unwrap();
        let one = self.software.ask(party, &message).unwrap();
        let other = self.chains.ask(party, &message).unwrap();
        assert!(one == other, "{one:x?}\n{other:x?}\n{}", self.show());
        let whole = usize::try_from(BUFFERS * u64::from(BLOCK)).unwrap();
        let (mut a, mut b) = (vec![0; whole], vec![0; whole]);
        self.software.buffer(party).read(0, &mut a).unwrap();
        let client = &self.chains.parties[party].client;
        client.region().read(0, &mut b).unwrap();
        assert!(a == b, "the buffers differ\n{}", self.show());
    }

    fn show(&self) -> String {
        let last = self.log.iter().rev().take(4).rev();
        let lines: Vec<_> = last
            .map(|(party, message)| format!("{party}: {message:x?}"))
            .collect();
        lines.join("\n")
    }

    /// The same table, ring, counters, blocks and counts.
    fn compare(&self) {
        let (one, other) = (&self.software.target, &self.chains.target);
        let table = other.table();
        assert!(one.table() == table, "the tables differ\n{}", self.show());
        assert_eq!(one.ring(), other.ring(), "{}", self.show());
        for octets in table.chunks_exact(16) {
            let entry = TableEntry::decode(octets.try_into().unwrap());
            if entry.flags.contains(EntryFlags::VALID) {
                let (at, len) = (entry.block.0, entry.data_len.0);
                assert!(
                    one.block(at, len) == other.block(at, len),
                    "{}",
                    self.show()
                );
            }
        }
        let counted = |target: &Target| target.shared.stats.snapshot();
        assert_eq!(counted(one), counted(other), "{}", self.show());
        let usage = |target: &Target| target.shared.pool.usage();
        assert_eq!(usage(one), usage(other), "{}", self.show());
        assert_eq!(other.shared.pool.audit().faults, Vec::<String>::new());
    }

    /// What was to wrap has: indices of every session, and Generations.
    fn has_wrapped(&self) {
        for (number, party) in (0..).zip(&self.chains.parties) {
            let seat = self.chains.chains.get(party.id).unwrap();
            let first = self.begin.slot(number);
            assert!(seat.answered() > first + 100, "session {number}");
        }
        let table = self.chains.target.table();
        let generations = table.chunks_exact(16).map(|octets| {
            let entry = TableEntry::decode(octets.try_into().unwrap());
            Generation::to_wire(entry.generation)
        });
        let wrapped = generations.filter(|generation| (1..1000).contains(generation));
        assert!(self.begin == Begin::New || wrapped.count() > 10);
    }
}

fn operations() -> u64 {
    let wanted = std::env::var("KBTP_CHAIN_OPS").ok();
    wanted.map_or(33_400, |wanted| wanted.parse().unwrap())
}

fn run(schedule: Schedule) {
    let each = operations().min(10_000);
    let rounds = operations().div_ceil(each);
    let (mut served, mut traps) = (0, 0);
    let mut punts = Vec::new();
    for round in 0..rounds {
        let sessions = 3 + u8::try_from(round % 6).unwrap();
        // Every other one from where counts wrap.
        let begin = [Begin::Wraps, Begin::New][usize::try_from(round % 2).unwrap()];
        let mut both = Both::new(sessions, begin, schedule, round);
        for number in 0..each {
            both.step();
            if number % 128 == 0 {
                both.compare();
            }
        }
        both.compare();
        both.has_wrapped();
        served += both.chains.counts.served.get();
        traps += both.chains.counts.traps.get();
        punts = both.chains.counts.punts().collect::<Vec<_>>();
    }
    let all = rounds * each;
    println!("{all} operations, {served} by chains, {traps} traps; {punts:?}");
    assert!(served > all / 6 && traps > all / 100);
}

#[test]
fn chains_do_as_software_eager() {
    run(Schedule::Eager);
}

#[test]
fn chains_do_as_software_random() {
    run(Schedule::Random);
}

#[test]
fn chains_do_as_software_withhold() {
    run(Schedule::Withhold);
}
