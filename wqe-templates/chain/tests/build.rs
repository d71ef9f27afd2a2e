//! Slots as octets: decoded again, at the start, across the ends of laps and where indices wrap.
#![forbid(unsafe_code)]

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    use super::common::{BLOCK, SCRATCH, WORKER, place_of, placement};
    use kbtp_chain::element::{Cq, Queue, Shape};
    use kbtp_chain::record::{Action, Outcome, Record, Variant, places};
    use kbtp_chain::{
        BuildError, Builder, Images, Placement, Step, Template, full, load, perpetual,
    };
    use kbtp_mlx5::{Atomic, Body, CqeIndex, Opcode, Wqe, WqeIndex};
    use kbtp_wire::{EntryFlags, RequestFlags};
    use std::collections::BTreeMap;

    /// Memory as it is after some steps, octet for octet; receive WQEs apart.
    #[derive(Default)]
    struct Memory {
        octets: BTreeMap<u64, u8>,
        receives: Vec<u64>,
    }

    impl Memory {
        fn arm(&mut self, builder: &Builder<'_>, n: u64) {
            let steps = builder.arm(n).expect("it makes sense");
            let [.., Step::Barrier, Step::PostReceive(list)] = &steps[..] else {
                panic!("the receive comes last, behind a barrier");
            };
            self.receives
                .push(list.iter().map(|one| u64::from(one.len.get())).sum());
            for step in &steps[..steps.len() - 2] {
                let Step::Write { address, octets } = step else {
                    panic!("writes only before the barrier: {step:?}");
                };
                self.octets.extend((*address..).zip(octets.iter().copied()));
            }
        }

        fn read(&self, address: u64, len: u64) -> Vec<u8> {
            (address..address + len)
                .map(|at| self.octets.get(&at).copied().unwrap_or(0xee))
                .collect()
        }
    }

    /// Walks a queue over slot `n` and what fills it up: every basic block belongs to a WQE that says where it is.
    fn walk(
        template: &Template,
        place: &Placement,
        memory: &Memory,
        queue: Queue,
        n: u64,
    ) -> usize {
        let end = place.block(template, queue, n + 1);
        let mut block = place.block(template, queue, n);
        let mut wqes = 0;
        while block < end {
            let octets = memory.read(place.address(queue, block), 64 * 16);
            let wqe = Wqe::decode(&octets).expect("a WQE");
            assert_eq!(wqe.control.index, Placement::index(block));
            assert_eq!(wqe.control.qpn, place.queue(queue).qpn);
            let blocks = u64::from(wqe.control.segments).div_ceil(4);
            let ring = 1 << place.queue(queue).log_size;
            assert!(block % ring + blocks <= ring, "across the end of the ring");
            block += blocks;
            wqes += 1;
        }
        assert_eq!(block, end);
        wqes
    }

    #[test]
    fn every_block_of_a_slot_is_a_wqe_of_its_place() {
        for template in [full(BLOCK), load(BLOCK)] {
            let place = placement();
            let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
            let slots = place.slots(&template);
            for n in [
                0,
                1,
                slots - 1,
                slots,
                31 * slots,
                32 * slots - 1,
                32 * slots,
                1 << 33,
            ] {
                let mut memory = Memory::default();
                memory.arm(&builder, n);
                assert_eq!(memory.receives, [128]);
                for queue in [Queue::Worker, Queue::Client] {
                    let wqes = walk(&template, &place, &memory, queue, n);
                    assert!(wqes >= template.queue(queue).len());
                }
                // Slots do not touch each other.
                let start = place.block(&template, Queue::Worker, n);
                let first = place.address(Queue::Worker, start);
                assert!((WORKER..WORKER + (64 << 11)).contains(&first));
                assert!(!memory.octets.contains_key(&(first.wrapping_sub(1))) || first == WORKER);
            }
        }
    }

    fn find(builder: &Builder<'_>, template: &Template, n: u64, name: &'static str) -> Vec<u8> {
        let (queue, element) = template.find(name).expect("a WQE");
        builder
            .wqe(n, queue, element)
            .expect("it makes sense")
            .as_octets()
            .to_vec()
    }

    #[test]
    fn indices_are_those_of_the_slot() {
        let (template, place) = (full(BLOCK), placement());
        let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
        assert_eq!(place.slots(&template), 28);
        // Slot 28 starts the second lap of both rings.
        assert_eq!(place.block(&template, Queue::Worker, 28), 2048);
        assert_eq!(place.block(&template, Queue::Client, 28), 256);
        let wait = |n, name| match Wqe::decode(&find(&builder, &template, n, name))
            .expect("ok")
            .body
        {
            Body::WaitCqe(wait) => (wait.cqn.get(), wait.index),
            other => panic!("{other:?}"),
        };
        assert_eq!(wait(5, "WAITR"), (0x81, CqeIndex::truncate(5)));
        assert_eq!(wait(5, "WT3"), (0x83, CqeIndex::truncate(5 * 9 + 2)));
        assert_eq!(wait(5, "WTC"), (0x82, CqeIndex::truncate(5 * 3 + 1)));
        // 24 bits of CQE, 16 of WQE.
        let far = (1 << 24) + 2;
        assert_eq!(wait(far, "WAITR").1, CqeIndex::truncate(2));
        let enable = |n, name| match Wqe::decode(&find(&builder, &template, n, name))
            .expect("ok")
            .body
        {
            Body::Enable(enable) => (enable.qpn.get(), enable.up_to),
            other => panic!("{other:?}"),
        };
        assert_eq!(enable(1, "EN0"), (0x41, WqeIndex(72 + 12)));
        assert_eq!(enable(1, "EC3"), (0x42, WqeIndex(7 + 5)));
        assert_eq!(enable(1, "EC4"), (0x42, WqeIndex(14)));
        assert_eq!(enable(1, "END"), (0x41, WqeIndex(2 * 72 + 2)));
        assert_eq!(
            enable(27, "END"),
            (0x41, WqeIndex(2048 + 2)),
            "over the end of the lap"
        );
        assert_eq!(
            enable(895, "END"),
            (0x41, WqeIndex(2)),
            "32 laps are 2^16 basic blocks"
        );
    }

    #[test]
    fn what_sleeps_is_a_nop_with_the_rest_in_place() {
        let (template, place) = (full(BLOCK), placement());
        let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
        for name in ["C1", "C3", "U0", "U1", "U2", "X1", "W1", "BT1", "BELL"] {
            let mut octets = find(&builder, &template, 3, name);
            assert_eq!(octets[3], Opcode::Nop.to_wire(), "{name}");
            octets[3] = Opcode::RdmaRead.to_wire();
            let wqe = Wqe::decode(&octets).expect("a read");
            assert!(matches!(wqe.body, Body::Read(..)), "{name}");
        }
        let bell = Wqe::decode(&find(&builder, &template, 0x1_0007, "BELL"))
            .expect("a NOP")
            .control;
        assert_eq!(bell.immediate, 3 << 16 | 7, "session and slot");
    }

    /// The device takes the word for a little-endian number; the operand is big-endian in the WQE.
    #[test]
    fn operands_are_the_words_reversed() {
        let (template, place) = (full(BLOCK), placement());
        let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
        let octets = find(&builder, &template, 0, "CASa");
        // Block Size 0x001000 is the word's octets 0 to 2, and its top octet octet 7; outcome 1 is bit 4 of octet 5.
        assert_eq!(octets[40..48], [0, 0, 0, 0, 0, 0, 0x10, 0], "compare");
        assert_eq!(
            octets[56..64],
            [0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff],
            "its mask"
        );
        assert_eq!(octets[32..40], [0, 0, 0x10, 0, 0, 0, 0, 0], "swap");
        assert_eq!(
            octets[48..56],
            [0xff, 0, 0x30, 0xff, 0xff, 0xff, 0xff, 0xff],
            "its mask"
        );
        let octets = find(&builder, &template, 0, "FA");
        let Body::Atomic(remote, atomic, _) = Wqe::decode(&octets).expect("ok").body else {
            panic!("an atomic")
        };
        assert_eq!(remote.address, 128, "the dummy counter");
        let boundary = 1 << 63 | 1 << 31 | 1 << 8;
        assert_eq!(
            atomic,
            Atomic::MaskedFetchAdd8 {
                add: 0x1_0000_0010,
                boundary
            }
        );
    }

    #[test]
    fn a_completion_starts_in_scratch() {
        let (template, place) = (full(BLOCK), placement());
        let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
        let mut memory = Memory::default();
        memory.arm(&builder, 29);
        let line = memory.read(SCRATCH + 256, 256);
        assert_eq!(line[..4], [1, 8, 0, 0], "version 1, COMPLETION, no flags");
        assert_eq!(
            line[122..132],
            [0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0],
            "status, Block Size, reserved"
        );
        assert_eq!(line[144..162], [0; 18], "what a FREE says");
        for name in ["C2", "C4"] {
            let (_, element) = template.find(name).expect("a WQE");
            let len: u32 = element.pieces().iter().map(|piece| piece.spot.len).sum();
            assert_eq!(len as usize, kbtp_wire::Completion::LEN);
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let place = placement();
        let mut template = full(BLOCK);
        template.worker_stride = 60;
        let error = Builder::new(&template, &place, BLOCK).expect_err("too many");
        assert_eq!(error, BuildError::Stride(Queue::Worker, 72, 60));
        template.worker_stride = 3000;
        assert_eq!(
            Builder::new(&template, &place, BLOCK).expect_err("too large"),
            BuildError::NoSlot
        );
        let mut template = full(BLOCK);
        let wait = template.find_mut("EN0").expect("a WQE");
        wait.shape = Shape::Enable(Queue::Client, kbtp_chain::element::Bound::Through("EN1"));
        let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
        assert_eq!(
            builder.arm(0).expect_err("of another queue"),
            BuildError::Name("EN0")
        );
        assert_eq!(template.cqes(Cq::Worker), 9);
    }

    #[test]
    fn variants_are_requests_that_chains_serve() {
        let of = |opcode, flags| Variant::of(1, opcode, flags).0;
        assert_eq!(
            [0, 0x10, 8, 0x18].map(|flags| of(3, flags)),
            [1, 2, 3, 4],
            "LOAD"
        );
        assert_eq!(
            [0, 2, 8, 10].map(|flags| of(4, flags)),
            [5, 6, 7, 8],
            "STORE"
        );
        assert_eq!(
            [0, 2, 8, 10].map(|flags| of(5, flags)),
            [9, 10, 11, 12],
            "ALLOC_STORE"
        );
        assert_eq!(of(6, 0), 13, "FREE");
        let mut served = 0;
        for opcode in 0..=u8::MAX {
            for flags in 0..=u16::MAX {
                served += u32::from(Variant::of(1, opcode, flags) != Variant::PUNT);
            }
        }
        assert_eq!(served, 13, "all else is for software");
        assert_eq!(Variant::of(2, 3, 0), Variant::PUNT);
        assert_eq!(of(3, RequestFlags::RECORD.0), 0);
        assert_eq!(of(4, RequestFlags::INLINE.0), 0);
    }

    #[test]
    fn actions_are_those_the_entry_allows() {
        let (valid, both) = (
            EntryFlags::VALID,
            EntryFlags::VALID.with(EntryFlags::SEALED, true),
        );
        let count = |flags: EntryFlags, outcome| {
            (0..=u8::MAX)
                .filter(|v| Variant(*v).action(outcome, flags).is_some())
                .count()
        };
        // Unsealed: two LOADs with ALLOW_UNSEALED, four STOREs. Sealed: four LOADs. Unbound: four ALLOC_STOREs.
        assert_eq!(count(valid, Outcome::Data), 6);
        assert_eq!(count(both, Outcome::Data), 4);
        assert_eq!(count(EntryFlags::NONE, Outcome::Data), 4);
        assert_eq!(
            count(both, Outcome::NoData) + count(valid, Outcome::NoData),
            2,
            "FREE"
        );
        assert_eq!(count(EntryFlags::NONE, Outcome::NoData), 0);
        for flags in 0..16 {
            assert_eq!(count(EntryFlags(flags), Outcome::None), 0);
            assert!(
                flags < 4 || count(EntryFlags(flags), Outcome::Data) == 0,
                "unknown flags"
            );
        }
    }

    #[test]
    fn records_have_an_octet_for_each_place() {
        for (template, len) in [(full(BLOCK), 20), (load(BLOCK), 5)] {
            for action in [
                None,
                Some(Action::Load { invalidate: true }),
                Some(Action::Store {
                    invalidate: false,
                    seal: true,
                }),
                Some(Action::AllocStore {
                    invalidate: false,
                    seal: false,
                }),
                Some(Action::Free),
            ] {
                let record = Record::of(&template, action);
                assert!(record.fits());
                assert_eq!(record.encode().len(), len);
                assert_eq!(record.values.len(), places(&template).len());
            }
        }
        let template = full(BLOCK);
        let free = Record::of(&template, Some(Action::Free)).encode();
        let expected = [
            0, 0, 0, 0x0a, 0, 0x17, 0x17, 0x08, // C1 C2 C3 C4 BELL GO PW U0
            128, 0, 0, 0, 0, 0, 0, // no ticket, BT1, no wait, X1 W1 U1 U2
            1, 0, 0, // next generation, no flags
            104, 144, // the entry is cleared, the completion says nothing of a block
        ];
        assert_eq!(free, expected);
        let punt = Record::punt(&template);
        let opcodes: Vec<_> = template
            .elements()
            .filter(|(_, one)| !one.may_become.is_empty())
            .map(|(_, one)| (one.name, punt.opcode(one)))
            .collect();
        for (name, opcode) in opcodes {
            let expected = if name == "BELL" {
                Opcode::RdmaWriteImmediate
            } else {
                Opcode::Nop
            };
            assert_eq!(opcode, expected, "{name}");
        }
    }

    #[test]
    fn a_person_can_read_it() {
        let drawn = full(BLOCK).to_string();
        let line = |name: &str| {
            let found = drawn
                .lines()
                .find(|line| line.split_whitespace().nth(1) == Some(name));
            found
                .unwrap_or_else(|| panic!("no line for {name}"))
                .to_owned()
        };
        assert!(line("CPB").contains("C3[40..48] > scratch[132..140]"));
        assert!(line("U0").contains("NOP | RDMA_READ | RDMA_WRITE"));
        assert!(line("CASb").contains("k1"));
        assert!(line("C1").ends_with("< request T P"));
        assert!(line("EN6").contains("W through EN7 (to 56)"));
    }

    /// The listing that is committed is that of the code.
    #[test]
    fn the_listing_is_up_to_date() {
        let drawn = format!("{}\n{}\n{}", full(BLOCK), load(BLOCK), perpetual(BLOCK));
        let lines = |text: &str| -> Vec<String> {
            text.lines()
                .map(|line| line.trim_end().to_owned())
                .collect()
        };
        let committed = include_str!("../../../docs/chains.md");
        let (_, rest) = committed.split_once("```text\n").expect("a listing");
        let (listing, _) = rest.split_once("```").expect("its end");
        assert_eq!(lines(listing), lines(&drawn));
    }

    /// Slots from images are those that are built one WQE at a time, on any lap.
    #[test]
    fn images_are_what_is_built() {
        for template in [full(BLOCK), load(BLOCK), perpetual(BLOCK)] {
            let place = place_of(&template);
            let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
            let mut images = Images::new(&template, &place, BLOCK).expect("it fits");
            let slots = place.slots(&template);
            assert_eq!(images.slots(), slots);
            for n in (0..3 * slots)
                .chain(31 * slots..33 * slots)
                .chain((1 << 24) - 5..(1 << 24) + 5)
                .chain([1 << 33, 7])
            {
                let mut memory = Memory::default();
                memory.arm(&builder, n);
                let steps = builder.arm(n).expect("it makes sense");
                let (parts, receive) = images.arm(n).expect("there are slots");
                let mut written = 0;
                for part in parts {
                    for (address, octet) in (part.address..).zip(&part.octets) {
                        // Between the end of a WQE and that of its basic block nothing is written.
                        let built = memory.octets.get(&address);
                        assert_eq!(
                            *octet,
                            built.copied().unwrap_or(0),
                            "slot {n}, {address:#x}"
                        );
                        written += usize::from(built.is_some());
                    }
                }
                assert_eq!(written, memory.octets.len());
                assert_eq!(steps.last(), Some(&Step::PostReceive(receive.to_vec())));
            }
        }
    }
}
