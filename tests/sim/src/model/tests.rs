//! The oracle over histories made by hand.

use super::*;

/// Two stores whose first octets are alike, and row 0 that both are for.
const OPS: [u64; 2] = [0x1_0000_025F, 0x1_0000_035F];

fn model(lens: [u32; 2], seal: bool) -> Model {
    let options = Options::draw(1, 10);
    let table = vec![0; options.rows() as usize * 16];
    let mut model = Model::new(&options, table);
    for (op, len) in OPS.into_iter().zip(lens) {
        let (link, effect) = (0, Effect::Alloc);
        let pending = Pending {
            op,
            link,
            effect,
            len,
            seal,
        };
        model.expect(0, pending);
    }
    model
}

fn of_store(op: u64, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len];
    stamp::fill(op, &mut octets);
    octets
}

#[test]
fn a_sealed_octet_is_of_the_store_of_its_length_though_a_later_one_begins_alike() {
    let mut model = model([1, 184], true);
    assert_eq!(model.sealed_octets(0, 1, &of_store(OPS[0], 1)), Ok(()));
    assert_eq!(model.sealed_octets(0, 2, &of_store(OPS[1], 184)), Ok(()));
    // No store was of two octets, and none of that one has another.
    let short = of_store(OPS[0], 2);
    assert!(model.sealed_octets(0, 3, &short).is_err());
    assert!(model.sealed_octets(0, 4, &[short[0] ^ 1]).is_err());
}

#[test]
fn short_octets_of_one_store_are_not_a_mixture_and_octets_of_two_are() {
    let mut model = model([5, 5], false);
    let (one, other) = (of_store(OPS[0], 5), of_store(OPS[1], 5));
    assert_ne!(one, other);
    assert_eq!(model.unsealed_octets(0, 1, &one), Ok(()));
    assert_eq!(model.torn, 0);
    let mut model = self::model([100, 100], false);
    let mixed = [of_store(OPS[0], 64), of_store(OPS[1], 100)[64..].to_vec()].concat();
    assert_eq!(model.unsealed_octets(0, 1, &mixed), Ok(()));
    assert_eq!(model.torn, 1);
}

/// The same in a table whose row 0 binds a block of no octets, without SEAL.
fn bound(lens: [u32; 2]) -> Model {
    let mut model = model(lens, false);
    let kept = State {
        valid: true,
        generation: 7,
        ..State::default()
    };
    model.rows[0].history[0].state = kept;
    model
}

#[test]
fn a_store_was_to_be_seen_though_another_brought_its_length_back_in_the_same_call() {
    let long = |model: &Model, since| model.was(0, since, |s| s.generation == 7 && s.len == 3174);
    let mut model = bound([3174, 0]);
    let asked = model.seq;
    assert!(long(&model, asked));
    assert!(!model.was(0, asked, |s| s.len == 3), "no store was so long");
    model.answered(0, OPS[0], true);
    assert!(long(&model, asked), "between question and answer");
    assert!(!long(&model, model.seq), "before the question");
    // What comes behind all others stays.
    let model = bound([0, 3174]);
    assert!(!long(&model, model.seq));
    let mut model = bound([3174, 0]);
    model.answered(0, OPS[0], false);
    assert!(!long(&model, asked), "it failed");
    let mut model = bound([3174, 0]);
    model.answered(0, OPS[1], false);
    assert!(!long(&model, asked), "nothing brought the length back");
}
