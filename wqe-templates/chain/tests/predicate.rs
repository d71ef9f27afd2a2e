//! The predicate and its look-ups, computed as a device does from the octets of the WQEs: whatever the request and the
//! entry are, the record that is found is the one that the draft's rules ask for.
#![forbid(unsafe_code)]

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    use super::common::{BLOCK, place_of};
    use kbtp_chain::key::Key;
    use kbtp_chain::record::{Action, Record};
    use kbtp_chain::{Builder, Template, full, load, perpetual, table};
    use kbtp_wire::{BlockOffset, ByteLen, EntryFlags, Generation, RequestFlags, TableEntry};
    use proptest::prelude::*;
    use proptest::sample::select;

    fn wqe(template: &Template, name: &'static str) -> Vec<u8> {
        let place = place_of(template);
        let builder = Builder::new(template, &place, BLOCK).expect("it fits");
        let (queue, element) = template.find(name).expect("a WQE");
        builder
            .wqe(0, queue, element)
            .expect("it makes sense")
            .as_octets()
            .to_vec()
    }

    /// What a masked compare and swap does to a word in memory, from the octets of its WQE.
    fn swap(word: &mut [u8; 8], wqe: &[u8]) {
        let operand = |at: usize| u64::from_be_bytes(wqe[at..at + 8].try_into().expect("8"));
        let (swap, compare, swap_mask, compare_mask) =
            (operand(32), operand(40), operand(48), operand(56));
        let old = u64::from_le_bytes(*word);
        if (old ^ compare) & compare_mask == 0 {
            *word = (old & !swap_mask | swap & swap_mask).to_le_bytes();
        }
    }

    /// The record that a request of these octets finds.
    fn found(template: &Template, message: &[u8], entry: &TableEntry) -> Record {
        // What the receive scatters to the predicate word, over what is armed.
        let mut word: [u8; 8] = wqe(template, "P")[16..24].try_into().expect("8");
        if let Some(len) = message.get(36..40) {
            word[7] = len[0];
            word[..3].copy_from_slice(&len[1..]);
        }
        let entry = entry.encode();
        word[5] = entry[1];
        word[3..5].copy_from_slice(&entry[2..4]);
        let header = u32::from_be_bytes(message[..4].try_into().expect("4"));
        word[6] = table::header(header);
        let generation = Generation::new(u16::from_be_bytes([message[20], message[21]]));
        let row = table::generation(generation);
        for name in ["CASa", "CASf", "CASb"] {
            if template.find(name).is_none() {
                continue;
            }
            let mut octets = wqe(template, name);
            if name != "CASb" {
                octets[43..45].copy_from_slice(&row[..2]);
                octets[59..61].copy_from_slice(&row[2..4]);
            }
            swap(&mut word, &octets);
        }
        let address = u64::from_be_bytes(word);
        let key = table::received(u8::try_from(message.len()).expect("short"));
        let range = key.range(&place_of(template).sizes).expect("a table");
        assert!(address < range.1, "in range whatever came: {address:#x}");
        assert_eq!(address & 0xff, 0);
        let row = u16::try_from(address >> 8 & 0xffff).expect("16 bits");
        let outcome = u16::try_from(address >> 20).expect("two bits");
        assert_eq!(row >> 12, outcome & 0xf, "the outcome is above the flags");
        match key {
            Key::RecordsWithData => table::record(template, true, row),
            Key::RecordsWithout => table::record(template, false, row),
            _ => Record::punt(template),
        }
    }

    /// What the draft asks for; `None` for what software answers.
    fn wanted(message: &[u8], entry: &TableEntry) -> Option<Action> {
        let flags = u16::from_be_bytes([message[2], message[3]]);
        let has = |flag: RequestFlags| flags & flag.0 != 0;
        let only = |flags_allowed: u16| flags & !flags_allowed == 0;
        let asked = u16::from_be_bytes([message[20], message[21]]);
        let current = Generation::to_wire(entry.generation);
        let (invalidate, seal) = (has(RequestFlags::INVALIDATE), has(RequestFlags::SEAL));
        let len = message
            .get(36..40)
            .map(|len| u32::from_be_bytes(len.try_into().expect("4")));
        if message[0] != 1 || (asked != 0 && asked != current) {
            return None;
        }
        match (message[1], len) {
            (3, Some(len)) if len == BLOCK.0 && only(0x18) && entry.is_valid() => {
                let may = entry.is_sealed() || has(RequestFlags::ALLOW_UNSEALED);
                may.then_some(Action::Load { invalidate })
            }
            (4, Some(len)) if len == BLOCK.0 && only(0x0a) && entry.is_valid() => {
                (!entry.is_sealed()).then_some(Action::Store { invalidate, seal })
            }
            (5, Some(len)) if len == BLOCK.0 && only(0x0a) => {
                (!entry.is_valid()).then_some(Action::AllocStore { invalidate, seal })
            }
            (6, None) if flags == 0 && entry.is_valid() => Some(Action::Free),
            _ => None,
        }
    }

    prop_compose! {
        fn message()(
            version in select(&[1, 1, 1, 1, 1, 0, 2, 255][..]),
            opcode in prop_oneof![9 => 1..8_u8, 1 => any::<u8>()],
            flags in prop_oneof![9 => select(&[0, 0, 2, 8, 10, 16, 24, 1, 4][..]), 1 => any::<u16>()],
            generation in prop_oneof![0..4_u16, any::<u16>()],
            len in prop_oneof![
                6 => Just(BLOCK.0),
                1 => select(&[0, 0x00ff_ffff, 0xffff_ffff, BLOCK.0 | 1 << 24, BLOCK.0 - 1][..]),
                1 => any::<u32>(),
            ],
            octets in select(&[40, 40, 40, 24, 24, 39, 41][..]),
        ) -> Vec<u8> {
            let mut message = vec![0xa5; 41];
            message[..2].copy_from_slice(&[version, opcode]);
            message[2..4].copy_from_slice(&u16::to_be_bytes(flags));
            message[20..22].copy_from_slice(&u16::to_be_bytes(generation));
            message[36..40].copy_from_slice(&u32::to_be_bytes(len));
            message.truncate(octets);
            message
        }
    }

    prop_compose! {
        fn entry()(
            flags in 0..4_u16,
            generation in prop_oneof![0..4_u16, any::<u16>()],
            block: u64,
        ) -> TableEntry {
            TableEntry {
                flags: EntryFlags(flags),
                generation: Generation::new(generation),
                data_len: ByteLen(1),
                block: BlockOffset(block),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn the_record_is_the_one_that_is_asked_for(message in message(), entry in entry()) {
            let whole = message.len() == 24 || message.len() == 40;
            let wanted = wanted(&message, &entry).filter(|_| whole);
            let template = full(BLOCK);
            prop_assert_eq!(found(&template, &message, &entry), Record::of(&template, wanted));
            let only_loads = wanted.filter(|action| matches!(action, Action::Load { .. }));
            for template in [load(BLOCK), perpetual(BLOCK)] {
                let wanted = Record::of(&template, only_loads);
                prop_assert_eq!(found(&template, &message, &entry), wanted);
            }
        }
    }

    #[test]
    fn rows_are_what_they_say() {
        let generation = Generation::new;
        assert_eq!(
            table::generation(generation(0x1234)),
            [0x34, 0x12, 0xff, 0xff, 0x34, 0x12, 0xff, 0xff]
        );
        assert_eq!(table::generation(None), [0; 8]);
        assert_eq!(
            table::next_generation(false, generation(0x1234)),
            [0x12, 0x34]
        );
        assert_eq!(table::next_generation(true, generation(0x12ff)), [0x13, 0]);
        assert_eq!(table::next_generation(true, generation(u16::MAX)), [0, 1]);
        assert_eq!(table::next_generation(true, None), [0, 1]);
        assert_eq!(table::header(0x0103_0000), 1);
        assert_eq!(table::header(0x0203_0000), 0);
        assert_eq!(
            (table::received(24), table::received(40)),
            (Key::RecordsWithout, Key::RecordsWithData)
        );
        assert_eq!(table::received(39), Key::Punt);
    }
}
