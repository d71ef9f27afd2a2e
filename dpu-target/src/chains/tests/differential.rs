//! The same random requests of several sessions, one after the other, to the software engine and to chains.

use super::ops::{Numbers, entry, request};
use super::rig::{BLOCK, BLOCKS, BUFFERS, Begin, ByChains, BySoftware, Target, hazards};
use kbtp_nic_model::Schedule;
use kbtp_wire::{EntryFlags, TableEntry};

/// Two targets that should not differ.
struct Both {
    begin: Begin,
    software: BySoftware,
    chains: ByChains,
    random: Numbers,
    grants: Vec<kbtp_wire::Grant>,
    next_id: u64,
    log: Vec<(usize, Vec<u8>)>,
    /// Generations that went from 65535 to 1.
    wraps: u64,
}

impl Both {
    fn new(sessions: u8, begin: Begin, schedule: Schedule, seed: u64) -> Self {
        // Some share the pool as it is, some want more than there is.
        let quota = [4, 24, BLOCKS / u32::from(sessions)][usize::try_from(seed % 3).unwrap()];
        let (software, grants) = BySoftware::new(sessions, quota, begin);
        let hazards = hazards(seed);
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
            wraps: 0,
        }
    }

    fn age(&self) {
        self.software.target.age();
        self.chains.target.age();
    }

    fn step(&mut self) {
        let parties = self.grants.len() as u64;
        let party = usize::try_from(self.random.below(parties)).unwrap();
        let table = self.software.target.table();
        let id = self.next_id;
        self.next_id += 1;
        let message = request(&mut self.random, &self.grants[party], &table, id);
        if self.log.len() > 64 {
            self.log.drain(..60);
        }
        self.log.push((party, message.clone()));
        let handle = u64::from_be_bytes(message[12..20].try_into().unwrap());
        let before = entry(&table, handle).generation;
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
        let after = entry(&self.chains.target.table(), handle).generation;
        self.wraps += u64::from(after < before);
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
        assert!(self.begin == Begin::New || self.wraps > 20);
    }
}

fn operations() -> u64 {
    let wanted = std::env::var("KBTP_CHAIN_OPS").ok();
    wanted.map_or(33_400, |wanted| wanted.parse().unwrap())
}

/// `seeds` is the seed of the first round.
fn run(schedule: Schedule, seeds: u64) {
    let each = operations().min(10_000);
    let rounds = operations().div_ceil(each);
    let (mut served, mut traps, mut wraps) = (0, 0, 0);
    let mut punts = std::collections::BTreeMap::new();
    for round in 0..rounds {
        let sessions = 3 + u8::try_from(round % 6).unwrap();
        // Every other one from where counts wrap.
        let begin = [Begin::Wraps, Begin::New][usize::try_from(round % 2).unwrap()];
        let mut both = Both::new(sessions, begin, schedule, seeds + round);
        for number in 0..each {
            if begin == Begin::Wraps && number % 1000 == 0 {
                both.age();
            }
            both.step();
            if number % 128 == 0 {
                both.compare();
            }
        }
        both.compare();
        both.has_wrapped();
        wraps += both.wraps;
        served += both.chains.counts.served.get();
        traps += both.chains.counts.traps.get();
        for (reason, count) in both.chains.counts.punts() {
            *punts.entry(reason).or_insert(0) += count;
        }
    }
    let all = rounds * each;
    println!(
        "{schedule:?}: {all} operations, {served} by chains, {traps} traps, {wraps} Generations wrapped; {punts:?}"
    );
    assert!(served > all / 6 && traps > all / 100);
}

#[test]
fn chains_do_as_software_eager() {
    run(Schedule::Eager, 0);
}

#[test]
fn chains_do_as_software_random() {
    run(Schedule::Random, 1_000_000);
}

#[test]
fn chains_do_as_software_withhold() {
    run(Schedule::Withhold, 3_000_000);
}
