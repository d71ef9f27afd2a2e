//! The checker finds nothing in the profiles, and something in each of many ways to spoil them.
#![forbid(unsafe_code)]

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    use super::common::{BLOCK, place_of, placement};
    use kbtp_chain::element::{Address, Bound, Cq, Element, Name, Piece, Queue, Shape};
    use kbtp_chain::key::Key;
    use kbtp_chain::memory::{Memory, Spot, scratch};
    use kbtp_chain::record::{Outcome, Record, Value, Variant};
    use kbtp_chain::{
        Builder, Finding, Rule, Step, Template, check, check_armed, check_rearmed, check_rows,
        full, load, perpetual,
    };
    use kbtp_mlx5::{Field, Opcode};
    use kbtp_wire::EntryFlags;
    use std::collections::BTreeSet;

    fn rows(template: &Template) -> impl Fn(Outcome, EntryFlags, Variant) -> Record + '_ {
        |outcome, flags, variant| Record::of(template, variant.action(outcome, flags))
    }

    fn all(template: &Template) -> Vec<Finding> {
        let mut findings = check(template, &placement().sizes);
        findings.extend(check_rows(template, rows(template)));
        findings
    }

    #[test]
    fn each_rule_says_what_it_asks() {
        let said: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.says()).collect();
        assert_eq!(said.len(), Rule::ALL.len());
        let finding = Finding {
            rule: Rule::R9Aligned,
            wqe: "FA",
            what: "what".to_owned(),
        };
        assert_eq!(finding.to_string(), "R9Aligned: FA: what");
    }

    #[test]
    fn longer_requests_lie_in_the_sink() {
        let template = full(BLOCK);
        let longer = template.clone().with_capacity(template.capacity + 100);
        assert_eq!(longer.capacity, template.capacity + 100);
        let last = |t: &Template| t.receive.last().unwrap().spot.len;
        assert_eq!(last(&longer), last(&template) + 100);
        assert_eq!(longer.clone().with_capacity(0), longer);
        assert_eq!(all(&longer), []);
    }

    #[test]
    fn the_profiles_are_clean() {
        let place = placement();
        for template in [full(BLOCK), load(BLOCK)] {
            assert_eq!(all(&template), []);
            let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
            let slots = place.slots(&template);
            for n in [
                0,
                slots - 1,
                slots,
                32 * slots - 1,
                32 * slots,
                1 << 24,
                1 << 40,
            ] {
                let steps = builder.arm(n).expect("it makes sense");
                assert_eq!(check_armed(&template, &place, n, &steps), []);
            }
        }
    }

    /// That profile F, spoilt, breaks this rule.
    fn breaks(rule: Rule, how: &str, spoil: impl Fn(&mut Template)) {
        let mut template = full(BLOCK);
        spoil(&mut template);
        assert_ne!(template, full(BLOCK), "{how}: nothing was spoilt");
        let findings = all(&template);
        let found = findings.iter().any(|finding| finding.rule == rule);
        assert!(found, "{how}: {rule:?} finds nothing; {findings:?}");
    }

    fn wqe(template: &mut Template, name: Name) -> &mut Element {
        template
            .find_mut(name)
            .unwrap_or_else(|| panic!("no {name}"))
    }

    fn bound(name: Name, through: Name) -> impl Fn(&mut Template) {
        move |template| {
            let Shape::Enable(_, bound) = &mut wqe(template, name).shape else {
                panic!("{name} enables nothing")
            };
            *bound = Bound::Through(through);
        }
    }

    fn waits(name: Name, cq: Cq, number: u8) -> impl Fn(&mut Template) {
        move |template| wqe(template, name).shape = Shape::Wait(cq, number)
    }

    fn armed(name: Name, address: u64) -> impl Fn(&mut Template) {
        move |template| remote(template, name, |one| one.address = Address::Armed(address))
    }

    fn remote(
        template: &mut Template,
        name: Name,
        change: impl Fn(&mut kbtp_chain::element::Remote),
    ) {
        match &mut wqe(template, name).shape {
            Shape::Rdma(remote, _)
            | Shape::WaitData { remote, .. }
            | Shape::CompareSwap { remote, .. }
            | Shape::FetchAdd { remote, .. } => change(remote),
            other => panic!("{name}: {other:?}"),
        }
    }

    fn keyed(name: Name, key: Key) -> impl Fn(&mut Template) {
        move |template| remote(template, name, |one| one.key = key)
    }

    fn pieces(template: &mut Template, name: Name) -> &mut Vec<Piece> {
        match &mut wqe(template, name).shape {
            Shape::Rdma(_, pieces) | Shape::Send(pieces) => pieces,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn piece(name: Name, n: usize, spot: Spot) -> impl Fn(&mut Template) {
        move |template| pieces(template, name)[n].spot = spot
    }

    fn received(n: usize, spot: Spot) -> impl Fn(&mut Template) {
        move |template| template.receive[n].spot = spot
    }

    fn unfenced(name: Name) -> impl Fn(&mut Template) {
        move |template| wqe(template, name).fenced = false
    }

    fn swap(one: Name, other: Name) -> impl Fn(&mut Template) {
        move |template| {
            let at = |name| template.worker.iter().position(|wqe| wqe.name == name);
            let (a, b) = (at(one).expect("a WQE"), at(other).expect("a WQE"));
            template.worker.swap(a, b);
        }
    }

    fn gone(name: Name) -> impl Fn(&mut Template) {
        move |template| template.worker.retain(|one| one.name != name)
    }

    const TRASH: Spot = Spot::new(Memory::Scratch, scratch::TRASH, 1);

    fn at(name: Name, at: u16, len: u32) -> Spot {
        Spot::new(Memory::Wqe(name), at, len)
    }

    #[test]
    fn r1_patches_come_in_time() {
        let rule = Rule::R1PatchInTime;
        breaks(rule, "wave 1 with wave 0", bound("EN0", "EN2"));
        breaks(rule, "P before the comparisons", bound("EN1", "EN3"));
        breaks(
            rule,
            "comparisons without their look-ups",
            waits("WT1", Cq::Receive, 0),
        );
        breaks(rule, "C1 and C2 before P", waits("WT3", Cq::Worker, 1));
        breaks(
            rule,
            "NG before its Generation",
            waits("WT4", Cq::Worker, 2),
        );
        breaks(
            rule,
            "the ring slot before its offset",
            waits("WT7", Cq::Worker, 4),
        );
        breaks(rule, "C3 before its block", |template| {
            unfenced("W1")(template);
            waits("WT8", Cq::Worker, 5)(template);
        });
        breaks(
            rule,
            "requests before they come",
            waits("WAITR", Cq::Worker, 0),
        );
        breaks(
            rule,
            "CK2 before the CQE was copied",
            waits("WTD", Cq::Worker, 6),
        );
        breaks(
            rule,
            "a WQE that does not exist",
            piece("GM", 0, at("CASx", 43, 2)),
        );
    }

    #[test]
    fn r2_what_is_not_patched_does_no_harm() {
        let rule = Rule::R2InertUnpatched;
        for name in ["P", "T", "CK2"] {
            breaks(rule, name, armed(name, 0));
        }
        breaks(rule, "DR", armed("DR", 0x20_0000));
        breaks(rule, "D", armed("D", 0));
        breaks(
            rule,
            "P among the records",
            keyed("P", Key::RecordsWithData),
        );
        breaks(rule, "FA on Head", armed("FA", 0));
        breaks(rule, "any Generation", |template| {
            let Shape::CompareSwap { compare_mask, .. } = &mut wqe(template, "CASa").shape else {
                panic!("a compare and swap")
            };
            compare_mask[3] = 0;
        });
        breaks(rule, "a WRITE that is awake", |template| {
            wqe(template, "U2").opcode = Opcode::RdmaWrite;
        });
        breaks(rule, "C1 awake", |template| {
            wqe(template, "C1").opcode = Opcode::RdmaWrite;
        });
        breaks(
            rule,
            "a table of opcodes with a row for each value",
            |template| {
                pieces(template, "GM")[0].spot = at("C1", 3, 2);
            },
        );
    }

    #[test]
    fn r3_clients_are_confined() {
        let rule = Rule::R3ClientConfined;
        breaks(rule, "a length", received(6, at("C1", 32, 4)));
        breaks(rule, "a local key", received(6, at("C1", 36, 4)));
        breaks(rule, "a local address", received(7, at("C1", 40, 8)));
        breaks(rule, "an opcode", received(8, at("U2", 3, 1)));
        breaks(rule, "an operand", received(4, at("CASa", 40, 2)));
        breaks(rule, "an enable", received(6, at("GO", 24, 4)));
        breaks(rule, "a row's octet", received(3, at("T", 17, 7)));
        breaks(rule, "an address in the rings", keyed("T", Key::Rings));
        breaks(
            rule,
            "the entry to be",
            received(4, Spot::new(Memory::Scratch, scratch::ENTRY, 2)),
        );
        breaks(
            rule,
            "a copy of the client's key",
            piece("CPI", 0, at("C1", 36, 4)),
        );
        breaks(
            rule,
            "a copy of the handle",
            piece("CPH1", 0, at("U1", 40, 8)),
        );
        breaks(rule, "a Length that no comparison clears", |template| {
            let Shape::CompareSwap { swap_mask, .. } = &mut wqe(template, "CASb").shape else {
                panic!("a compare and swap")
            };
            swap_mask[7] = 0;
        });
        breaks(rule, "a copy of Length", |template| {
            remote(template, "CPG", |one| {
                one.spot = Spot::new(Memory::Scratch, scratch::REPLY, 2);
            });
            pieces(template, "CPG")[0].spot = Spot::new(Memory::Scratch, scratch::ENTRY, 2);
        });
    }

    #[test]
    fn r4_identities_are_fixed() {
        let rule = Rule::R4IdentityFixed;
        breaks(rule, "index", piece("P", 0, at("C1", 2, 1)));
        breaks(rule, "queue pair", piece("P", 1, at("C2", 6, 1)));
        breaks(rule, "length", piece("P", 2, at("C3", 7, 1)));
        breaks(rule, "all of them", received(7, at("C1", 0, 8)));
    }

    #[test]
    fn r5_cqes_are_counted() {
        let rule = Rule::R5CqesCounted;
        breaks(rule, "one that does not come", waits("WT9", Cq::Worker, 9));
        breaks(rule, "one that comes later", waits("WT1", Cq::Worker, 1));
        breaks(rule, "one fewer", |template| {
            wqe(template, "T").signalled = false;
        });
        breaks(rule, "the client's", waits("WTC", Cq::Client, 3));
        breaks(rule, "modes are patched", piece("P", 0, at("C1", 11, 1)));
    }

    #[test]
    fn r6_status_is_looked_at() {
        let rule = Rule::R6StatusChecked;
        breaks(rule, "nobody looks at C3's CQE", piece("CK1", 0, TRASH));
        breaks(rule, "nobody looks at the request's", |template| {
            for n in [0, 1, 3] {
                pieces(template, "CKR")[n].spot = TRASH;
            }
        });
        breaks(rule, "the entry before the look", swap("CK2", "U1"));
        breaks(
            rule,
            "a CQE that may not be there",
            waits("WTC", Cq::Client, 0),
        );
        breaks(rule, "another CQE", |template| {
            remote(template, "CK1", |one| {
                one.spot.memory = Memory::Cqe(Cq::Client, 0);
            });
        });
        breaks(rule, "not the status", |template| {
            remote(template, "CK1", |one| one.spot.at = 62);
        });
        breaks(
            rule,
            "a look that finds everything good",
            keyed("CK2", Key::Punt),
        );
    }

    #[test]
    fn r7_data_is_ordered() {
        let rule = Rule::R7DataOrdered;
        breaks(rule, "W1 over the block that X1 takes", unfenced("W1"));
        breaks(
            rule,
            "the entry's word before its Generation",
            unfenced("U0"),
        );
        breaks(
            rule,
            "offsets before the ticket",
            waits("WT6", Cq::Worker, 3),
        );
        breaks(rule, "the copied block", waits("WT9", Cq::Worker, 7));
        breaks(
            rule,
            "the comparison before its octets",
            waits("WT1", Cq::Receive, 0),
        );
        breaks(
            rule,
            "a Generation that is overwritten",
            piece("CPI2", 0, Spot::new(Memory::Scratch, scratch::REPLY, 4)),
        );
    }

    #[test]
    fn r8_lengths_fit() {
        let rule = Rule::R8LengthsFit;
        breaks(
            rule,
            "more here than there",
            piece("CPB", 0, Spot::new(Memory::Scratch, scratch::BLOCK, 9)),
        );
        breaks(
            rule,
            "zero is two gibioctets",
            piece("D", 0, at("P", 22, 0)),
        );
        breaks(rule, "a READ that is too long", |template| {
            remote(template, "C3", |one| one.spot.len = 1 << 25);
            pieces(template, "C3")[0].spot.len = 1 << 25;
        });
        breaks(rule, "too many pieces", |template| {
            let list = pieces(template, "P");
            let end = *list.last().expect("some");
            list.resize(31, end);
        });
        breaks(rule, "no room", |template| template.client_stride = 6);
        breaks(
            rule,
            "a byte count from elsewhere",
            piece("GM", 0, at("C1", 32, 4)),
        );
        breaks(
            rule,
            "a byte count from other octets of the entry",
            |template| pieces(template, "T").swap(0, 3),
        );
        breaks(rule, "less than was promised", |template| {
            template.receive.truncate(10);
        });
    }

    #[test]
    fn r9_words_are_aligned() {
        let rule = Rule::R9Aligned;
        breaks(rule, "a counter", armed("FA", 132));
        breaks(rule, "the predicate", |template| {
            remote(template, "CASa", |one| one.spot.at = 20);
        });
        breaks(rule, "a ring slot", armed("WD", 4));
        breaks(rule, "a ticket for an offset", |template| {
            remote(template, "BS1", |one| one.spot.at = scratch::TICKET + 4);
        });
        breaks(rule, "by the request", received(9, at("FA", 21, 3)));
    }

    #[test]
    fn r10_words_are_left_alone() {
        let rule = Rule::R10WordAlone;
        breaks(rule, "its unused octet", |template| {
            let list = pieces(template, "DR");
            list[0].spot = at("P", 23, 1);
        });
        breaks(rule, "a variant that comes meanwhile", |template| {
            let at = template
                .worker
                .iter()
                .position(|one| one.name == "D")
                .expect("a WQE");
            let late = template.worker.remove(at);
            let first = template
                .worker
                .iter()
                .position(|one| one.name == "CASa")
                .expect("a WQE");
            template.worker.insert(first, late);
        });
    }

    /// That profile F with spoilt rows breaks rule 11.
    fn rows_break(how: &str, spoil: impl Fn(Outcome, EntryFlags, Variant, &mut Record)) {
        let template = full(BLOCK);
        let findings = check_rows(&template, |outcome, flags, variant| {
            let mut record = rows(&template)(outcome, flags, variant);
            spoil(outcome, flags, variant, &mut record);
            record
        });
        assert!(!findings.is_empty(), "{how}");
    }

    fn set(record: &mut Record, place: Spot, value: Value) {
        for (spot, old) in &mut record.values {
            if *spot == place {
                *old = value;
            }
        }
    }

    /// Every opcode of a live row of each request matters.
    #[test]
    fn r11_each_opcode_of_a_record_counts() {
        let template = full(BLOCK);
        let (valid, sealed, data) = (EntryFlags(1), EntryFlags(3), Outcome::Data);
        let live = [
            (data, sealed, Variant(1)),
            (data, valid, Variant(6)),
            (data, EntryFlags(2), Variant(12)),
            (Outcome::NoData, sealed, Variant(13)),
        ];
        let mut opcodes = 0;
        for row in live {
            let good = rows(&template)(row.0, row.1, row.2);
            assert_ne!(good, Record::punt(&template), "{row:?}");
            for (place, value) in &good.values {
                let Value::Opcode(old) = value else {
                    continue;
                };
                opcodes += 1;
                let new = match old {
                    Opcode::Nop => Opcode::RdmaWrite,
                    _ => Opcode::Nop,
                };
                rows_break(&format!("{row:?}: {place}"), |o, f, v, record| {
                    if (o, f, v) == row {
                        set(record, *place, Value::Opcode(new));
                    }
                });
            }
        }
        assert_eq!(opcodes, 4 * 13);
    }

    #[test]
    fn r11_rows_are_those_of_their_requests() {
        let template = full(BLOCK);
        rows_break("a punt that goes on", |outcome, _, _, record| {
            if outcome == Outcome::None {
                let go = Spot::field("GO", Field::OPCODE);
                set(record, go, Value::Opcode(Opcode::SendEnable));
            }
        });
        rows_break(
            "a LOAD whatever the Generation",
            |outcome, flags, variant, record| {
                if outcome == Outcome::None && flags.0 == 3 {
                    *record = rows(&template)(Outcome::Data, flags, variant);
                }
            },
        );
        rows_break(
            "a LOAD of what is not sealed",
            |outcome, flags, variant, record| {
                if flags.0 == 1 && variant == Variant(1) {
                    *record = rows(&template)(outcome, EntryFlags(3), variant);
                }
            },
        );
    }

    #[test]
    fn r11_operands_of_a_free_count() {
        let octet = |name, at: u16| Spot::field(name, Field::new(at, 1));
        let flags = Spot::new(Memory::Scratch, scratch::ENTRY, 2);
        for (how, place, value) in [
            ("a ticket", octet("FA", 23), Value::Octet(0)),
            ("the same Generation", octet("NG", 20), Value::Octet(0)),
            ("a wait", octet("WD", 19), Value::Octet(1)),
            (
                "the ring slot is written",
                octet("W1", 3),
                Value::Opcode(Opcode::RdmaWrite),
            ),
            (
                "what a STORE answers",
                octet("C4", 95),
                Value::InScratch(scratch::STATUS),
            ),
            (
                "trash for the entry",
                octet("U0", 47),
                Value::InScratch(scratch::TRASH),
            ),
            ("flags that stay", flags, Value::Half(1)),
            ("a value too short", flags, Value::Octet(0)),
        ] {
            rows_break(how, |outcome, _, variant, record| {
                if outcome == Outcome::NoData && variant == Variant(13) {
                    set(record, place, value);
                }
            });
        }
    }

    #[test]
    fn r11_templates_do_what_records_say() {
        let rule = Rule::R11RecordsExact;
        breaks(rule, "the entry's first word first", swap("U1", "U2"));
        breaks(rule, "C1 and C2 whatever the record", |template| {
            let go = wqe(template, "GO");
            (go.opcode, go.may_become) = (Opcode::SendEnable, Vec::new());
            pieces(template, "P")[5].spot = TRASH;
        });
        breaks(rule, "an opcode that a WQE was not made for", |template| {
            wqe(template, "X1").may_become.clear();
        });
    }

    #[test]
    fn r12_slots_end() {
        let rule = Rule::R12Terminates;
        breaks(rule, "the breakpoint is passed", bound("EN3", "EN4"));
        breaks(rule, "nobody enables the rest", gone("EN9"));
        breaks(rule, "the next slot is not enabled", bound("END", "EC4"));
        breaks(rule, "C4 is not", gone("EC4"));
        breaks(rule, "backwards", bound("EN6", "EN4"));
        breaks(rule, "a second WAIT for data", |template| {
            let mut second = wqe(template, "WD").clone();
            second.name = "WD2";
            template.worker.insert(45, second);
        });
        breaks(rule, "a circle", |template| {
            waits("WT8", Cq::Worker, 8)(template);
        });
        breaks(rule, "less of the next slot", |template| {
            wqe(template, "END").shape = Shape::Enable(Queue::Worker, Bound::NextSlot(1));
        });
    }

    #[test]
    fn r13_keys_are_confined() {
        let rule = Rule::R13KeysConfined;
        breaks(rule, "loopback's key in the client's queue", |template| {
            pieces(template, "C2")[0].key = Key::Rings;
        });
        breaks(rule, "the table for writing", keyed("U2", Key::Table));
        breaks(
            rule,
            "the pool from the loopback queue",
            keyed("X1", Key::Pool),
        );
        breaks(rule, "our rings for the client", keyed("C1", Key::Rings));
        breaks(rule, "loopback's key for the request", |template| {
            template.receive[0].key = Key::Rings;
        });
        breaks(rule, "a look-up in the rings", keyed("NG", Key::Rings));
        breaks(rule, "the ring for an atomic", keyed("FA", Key::Sequence));
    }

    #[test]
    fn r14_steps_do_not_write_over_each_other() {
        let (template, place) = (full(BLOCK), placement());
        let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
        let good = builder.arm(7).expect("it makes sense");
        let Some(Step::Write { address: first, .. }) = good.first() else {
            panic!("it is a write")
        };
        let broken = |address: u64, len: usize| {
            let octets = vec![0; len];
            let mut steps = good.clone();
            steps.insert(1, Step::Write { address, octets });
            let findings = check_armed(&template, &place, 7, &steps);
            let rule = Rule::R14ArmedFirst;
            findings.iter().any(|finding| finding.rule == rule)
        };
        assert!(broken(first + 8, 8), "a WQE from its middle on");
        assert!(broken(first - 1, 2), "a WQE's first octet");
        assert!(broken(u64::MAX, 2), "behind all addresses");
        assert!(!broken(first + 8, 0), "nothing");
        assert!(!broken(first - 1, 1), "what lies before");
    }

    fn rearmed(template: &Template) -> Vec<Finding> {
        let place = place_of(template);
        let laps = [0, 1, 2, 3, 255, 256, 65534, 65535, 65536, 1 << 40];
        let slots = laps.map(|lap| (0..256).map(move |place| lap * 256 + place));
        let slots = slots.into_iter().flatten();
        let all = slots.map(|n| check_rearmed(template, &place, BLOCK, n).expect("it makes sense"));
        all.flatten().collect()
    }

    /// Every slot of the rings, on the first laps and where each index wraps.
    #[test]
    fn r14_slots_arm_each_other() {
        let template = perpetual(BLOCK);
        assert_eq!(rearmed(&template), []);
        let found = all(&template);
        assert_eq!(found, []);
    }

    /// Each octet that is armed again is needed, and so is the order.
    #[test]
    fn r14_what_is_not_armed_again_is_found() {
        let place = place_of(&perpetual(BLOCK));
        let spoilt = |spoil: &dyn Fn(&mut Template)| {
            let mut template = perpetual(BLOCK);
            spoil(&mut template);
            let slots = [511, 512, 513, 700]
                .map(|n| check_rearmed(&template, &place, BLOCK, n).expect("it makes sense"));
            assert!(
                slots
                    .concat()
                    .iter()
                    .any(|one| one.rule == Rule::R14ArmedFirst)
            );
        };
        for name in ["RST", "LAP", "IDX1", "IDX2", "IDXC"] {
            let count = pieces(&mut perpetual(BLOCK), name).len();
            for at in 0..count {
                spoilt(&|template: &mut Template| {
                    let len = pieces(template, name)[at].spot.len;
                    // Reserved octets, to which nothing belongs.
                    pieces(template, name)[at].spot = Spot::new(Memory::Before("WT1"), 16, len);
                });
            }
        }
        spoilt(&|template| wqe(template, "DB").fenced = false);
        spoilt(&|template| wqe(template, "WTC").shape = Shape::Wait(Cq::Worker, 2));
        spoilt(&swap("RST", "WTC"));
        spoilt(&swap("IDXC", "DB"));
    }

    #[test]
    fn r14_slots_are_armed_first() {
        let (template, place) = (full(BLOCK), placement());
        let builder = Builder::new(&template, &place, BLOCK).expect("it fits");
        let good = builder.arm(7).expect("it makes sense");
        let found = |steps: &[Step], rule| {
            let findings = check_armed(&template, &place, 7, steps);
            findings.iter().any(|finding| finding.rule == rule)
        };
        let spoil = |spoil: &dyn Fn(&mut Vec<Step>)| {
            let mut steps = good.clone();
            spoil(&mut steps);
            steps
        };
        let rule = Rule::R14ArmedFirst;
        assert!(
            found(&spoil(&|steps| steps.rotate_right(1)), rule),
            "the receive first"
        );
        assert!(found(
            &spoil(&|steps| steps.retain(|one| *one != Step::Barrier)),
            rule
        ));
        assert!(
            found(&spoil(&|steps| drop(steps.remove(5))), rule),
            "a WQE is missing"
        );
        assert!(
            found(&spoil(&|steps| drop(steps.pop())), rule),
            "no receive"
        );
        assert!(
            found(&spoil(&|steps| steps.extend(good.last().cloned())), rule),
            "two"
        );
        assert!(found(&builder.arm(6).expect("ok"), rule), "another slot");
        let octet = |at: usize, flip: u8| {
            spoil(&move |steps: &mut Vec<Step>| {
                if let Some(Step::Write { octets, .. }) = steps.first_mut() {
                    octets[at] ^= flip;
                }
            })
        };
        // WAITR is first: its index, CQE mode, the CQE it waits for, its opcode.
        assert!(found(&octet(2, 1), Rule::R4IdentityFixed));
        assert!(found(&octet(11, 8), Rule::R5CqesCounted));
        assert!(found(&octet(27, 1), Rule::R5CqesCounted));
        assert!(found(&octet(3, 0x0d), rule));
        assert!(found(&octet(3, 0x0f), rule), "a NOP in its place");
        // What lies between this slot and the next, on the worker queue.
        let end = good
            .iter()
            .rposition(|step| matches!(step, Step::Write { octets, .. } if octets.len() == 64));
        let filler = |at: usize, flip: u8| {
            spoil(&move |steps: &mut Vec<Step>| {
                let Some(Step::Write { octets, .. }) = steps.get_mut(end.expect("it is padded"))
                else {
                    panic!("it is a write")
                };
                assert_eq!(octets[3], 0, "a NOP");
                octets[at] ^= flip;
            })
        };
        assert!(found(&filler(2, 1), Rule::R4IdentityFixed));
        assert!(found(&filler(11, 8), Rule::R5CqesCounted));
        assert!(found(&filler(3, 0x0f), rule), "no WQE");
    }

    /// Two changes that change nothing: the responder's order keeps FA behind the probe, and W1's fence keeps EC3 behind X1.
    #[test]
    fn what_is_redundant_is_not_found() {
        for spoil in [
            &unfenced("FA") as &dyn Fn(&mut Template),
            &waits("WT8", Cq::Worker, 5),
        ] {
            let mut template = full(BLOCK);
            spoil(&mut template);
            assert_ne!(template, full(BLOCK));
            assert_eq!(all(&template), []);
        }
    }
}
