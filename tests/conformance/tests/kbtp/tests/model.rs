//! A target beside a model of it that is a map: thousands of requests, right and wrong, drawn from a seed; each
//! completion and each block must be what the model says.

use super::subject;
use kbtp_harness::{Session, Who, alloc_store, eventually, fetched, pattern, store};
use kbtp_wire::{
    BlockOffset, ByteLen, Completion, DataDescriptor, Generation, Operation, Request, Status,
    Ticket,
};
use std::collections::{BTreeMap, BTreeSet};

const QUOTA: u32 = 6;
const HANDLES: u64 = 9;

/// What a handle has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Entry {
    generation: Option<Generation>,
    /// Data, and whether it is sealed, while it is bound.
    bound: Option<(Vec<u8>, bool)>,
    block: Option<BlockOffset>,
}

/// Numbers drawn from a seed.
struct Draw {
    seed: u64,
    drawn: u64,
}

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.drawn += 1;
        let octets = pattern(self.seed.wrapping_mul(0x1_0001).wrapping_add(self.drawn), 4);
        u64::from(u32::from_be_bytes(octets.try_into().unwrap())) % end
    }

    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn data(&mut self) -> Vec<u8> {
        let len = match self.below(5) {
            0 => 0,
            1 => 4096,
            _ => usize::try_from(self.below(700)).unwrap(),
        };
        pattern(self.drawn, len)
    }
}

struct Walk {
    s: Session,
    draw: Draw,
    entries: BTreeMap<u64, Entry>,
    /// Tickets taken and not bound, with their blocks.
    tickets: Vec<(Ticket, BlockOffset)>,
    /// Statuses met.
    seen: BTreeSet<u16>,
}

impl Walk {
    fn usage(&self) -> u32 {
        let bound = self
            .entries
            .values()
            .filter(|entry| entry.bound.is_some())
            .count();
        u32::try_from(bound + self.tickets.len()).unwrap()
    }

    /// The generation a request names: mostly any, sometimes the right one, sometimes another.
    fn generation(&mut self, entry: &Entry) -> Option<Generation> {
        match self.draw.below(6) {
            0 => entry.generation,
            1 => Generation::new(u16::try_from(self.draw.below(9)).unwrap()),
            _ => None,
        }
    }

    fn ask(
        &mut self,
        n: u64,
        generation: Option<Generation>,
        operation: Operation<'_>,
    ) -> Completion {
        let handle = self.s.h(n);
        let request = self.s.request(handle, operation);
        let request = Request {
            generation,
            ..request
        };
        self.s.ask(&request)
    }

    fn step(&mut self) {
        let n = self.draw.below(HANDLES);
        let entry = self.entries.get(&n).cloned().unwrap_or_default();
        let generation = self.generation(&entry);
        let mismatch = generation.is_some() && generation != entry.generation;
        match self.draw.below(8) {
            0 | 1 => self.alloc(n, entry, generation, mismatch),
            2 => self.store(n, entry, generation, mismatch),
            3 => self.free(n, entry, generation, mismatch),
            4 => self.bind(n, entry, generation, mismatch),
            5 => self.take(),
            _ => self.load(n, &entry, generation, mismatch),
        }
    }

    /// Checks a completion against the status and entry that must be.
    fn check(&mut self, completion: &Completion, status: Status, entry: &Entry) {
        assert_eq!(completion.status, status, "{completion:?}, {entry:?}");
        assert_eq!(completion.generation, entry.generation, "{completion:?}");
        self.seen.insert(status.to_wire());
    }

    fn alloc(&mut self, n: u64, mut entry: Entry, generation: Option<Generation>, mismatch: bool) {
        let (data, seal) = (self.draw.data(), self.draw.once_in(2));
        let expected = if entry.bound.is_some() {
            Status::AlreadyValid
        } else if mismatch {
            Status::GenerationMismatch
        } else if self.usage() >= QUOTA {
            Status::NoSpace
        } else {
            Status::Ok
        };
        let completion = if self.draw.once_in(2) {
            self.ask(n, generation, alloc_store(Session::inline(&data), seal))
        } else {
            let buffer = self.s.raw.filled(&data);
            let completion = self.ask(
                n,
                generation,
                alloc_store(fetched(buffer.descriptor()), seal),
            );
            self.s.raw.release(buffer);
            completion
        };
        if expected == Status::Ok {
            self.bound(n, &mut entry, &completion, data, seal);
        }
        self.check(&completion, expected, &entry);
    }

    /// The handle was bound: what the model has of it now.
    fn bound(
        &mut self,
        n: u64,
        entry: &mut Entry,
        completion: &Completion,
        data: Vec<u8>,
        seal: bool,
    ) {
        assert_eq!(completion.data_len.0 as usize, data.len());
        let elsewhere = self
            .entries
            .values()
            .any(|other| other.bound.is_some() && other.block == Some(completion.block));
        let held = self
            .tickets
            .iter()
            .any(|(_, block)| *block == completion.block);
        assert!(!elsewhere && !held, "{} is in use", completion.block);
        entry.generation = Some(entry.generation.map_or(Generation::FIRST, Generation::next));
        entry.bound = Some((data, seal));
        entry.block = Some(completion.block);
        self.entries.insert(n, entry.clone());
    }

    fn store(&mut self, n: u64, mut entry: Entry, generation: Option<Generation>, mismatch: bool) {
        let (data, seal) = (self.draw.data(), self.draw.once_in(3));
        let expected = match &entry.bound {
            None => Status::NotValid,
            Some(_) if mismatch => Status::GenerationMismatch,
            Some((_, true)) => Status::Sealed,
            Some((_, false)) => Status::Ok,
        };
        let completion = if self.draw.once_in(2) {
            self.ask(n, generation, store(Session::inline(&data), seal))
        } else {
            let buffer = self.s.raw.filled(&data);
            let completion = self.ask(n, generation, store(fetched(buffer.descriptor()), seal));
            self.s.raw.release(buffer);
            completion
        };
        if expected == Status::Ok {
            assert_eq!(Some(completion.block), entry.block, "a STORE moves nothing");
            entry.bound = Some((data, seal));
            self.entries.insert(n, entry.clone());
        }
        self.check(&completion, expected, &entry);
    }

    fn free(&mut self, n: u64, mut entry: Entry, generation: Option<Generation>, mismatch: bool) {
        let expected = match &entry.bound {
            None => Status::NotValid,
            Some(_) if mismatch => Status::GenerationMismatch,
            Some(_) => Status::Ok,
        };
        let completion = self.ask(n, generation, Operation::Free);
        if expected == Status::Ok {
            entry.bound = None;
            entry.generation = entry.generation.map(Generation::next);
            self.entries.insert(n, entry.clone());
        }
        self.check(&completion, expected, &entry);
    }

    fn take(&mut self) {
        if self.usage() < QUOTA {
            let (ticket, block) = self.s.take_block();
            self.tickets.push((ticket, block));
        }
    }

    fn bind(&mut self, n: u64, mut entry: Entry, generation: Option<Generation>, mismatch: bool) {
        let (data, seal) = (self.draw.data(), self.draw.once_in(2));
        let wrong = self.draw.once_in(5);
        let Some((ticket, block)) = self.tickets.first().copied() else {
            return;
        };
        self.s.write_block(block, &data);
        let bind = kbtp_wire::Bind {
            ticket,
            data_len: ByteLen(u32::try_from(data.len()).unwrap()),
            block: if wrong {
                BlockOffset(block.0 ^ 4096)
            } else {
                block
            },
        };
        let expected = if entry.bound.is_some() {
            Status::AlreadyValid
        } else if mismatch {
            Status::GenerationMismatch
        } else if wrong {
            Status::BadTicket
        } else {
            Status::Ok
        };
        let completion = self.ask(n, generation, Operation::Bind { bind, seal });
        if expected == Status::Ok {
            self.tickets.remove(0);
            assert_eq!(completion.block, block);
            self.bound(n, &mut entry, &completion, data, seal);
        }
        self.check(&completion, expected, &entry);
    }

    fn load(&mut self, n: u64, entry: &Entry, generation: Option<Generation>, mismatch: bool) {
        let allow_unsealed = self.draw.once_in(2);
        let room = if self.draw.once_in(4) { 300 } else { 4096 };
        let buffer = self.s.raw.buffer(4096);
        self.s.raw.fill(&buffer, &[0xee; 4096]);
        let sink = DataDescriptor {
            len: ByteLen(room),
            ..buffer.descriptor()
        };
        let expected = match &entry.bound {
            None => Status::NotValid,
            Some(_) if mismatch => Status::GenerationMismatch,
            Some((_, false)) if !allow_unsealed => Status::NotSealed,
            Some((data, _)) if data.len() > room as usize => Status::LengthError,
            Some(_) => Status::Ok,
        };
        let load = Operation::Load {
            sink,
            invalidate: false,
            allow_unsealed,
        };
        let completion = self.ask(n, generation, load);
        self.check(&completion, expected, entry);
        let octets = self.s.raw.octets(&buffer);
        let written = match &entry.bound {
            Some((data, _)) if expected == Status::Ok => {
                assert_eq!(Some(completion.block), entry.block);
                assert!(octets[..data.len()] == *data, "handle {n}");
                data.len()
            }
            _ => 0,
        };
        assert!(
            octets[written..].iter().all(|octet| *octet == 0xee),
            "nothing else is written"
        );
        self.s.raw.release(buffer);
    }

    /// Every handle, and every block, is where the model has it.
    fn audit(&mut self) {
        for n in 0..HANDLES {
            let entry = self.entries.get(&n).cloned().unwrap_or_default();
            let found = self.s.content(self.s.h(n));
            let expected = entry
                .bound
                .map(|(data, _)| (entry.generation.unwrap(), data));
            assert!(found == expected, "handle {n}");
        }
    }
}

//= test kbtp-p7-failed-changes-nothing
//= test kbtp-p7-check-order
//= test kbtp-3.3-no-block-lost-or-twice
#[test]
fn a_target_does_what_its_model_does() {
    for seed in 1..=6 {
        let target = subject();
        let who = Who::new(seed).direct().quota(QUOTA);
        let mut walk = Walk {
            s: Session::open(&*target, &who),
            draw: Draw { seed, drawn: 0 },
            entries: BTreeMap::new(),
            tickets: Vec::new(),
            seen: BTreeSet::new(),
        };
        for _ in 0..1500 {
            walk.step();
        }
        let all = [0, 5, 6, 7, 8, 9, 10, 11, 13];
        assert_eq!(
            walk.seen,
            all.into(),
            "seed {seed}: every status of P7 that a request alone can have"
        );
        walk.audit();
        // The target looks at Head when a BIND comes; until then it may not know of the last tickets.
        walk.s
            .bind(walk.s.h(HANDLES), Ticket(u32::MAX), BlockOffset(0), 0, true);
        assert_eq!(target.audit().usage, u64::from(walk.usage()), "seed {seed}");
        walk.s.close();
        let count = eventually("the session is gone", || {
            (target.audit().quota == 0).then(|| target.count())
        });
        assert_eq!(
            (count.in_rings, count.faults.len()),
            (64, 0),
            "seed {seed}: {count:?}"
        );
    }
}
