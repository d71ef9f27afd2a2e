//! Draft section 6.6: a direct load returns the data of one store, or nothing.

#[cfg(test)]
mod tests {
    use kbtp_models::check::{holds, violation};
    use kbtp_models::direct_load::{DirectLoad, Known, Rules};
    use kbtp_wire::Generation;

    const ONE_STORE: &str = "what is taken is one store of its Generation";

    /// Two frees and binds beside another handle's store, reads that tear anywhere.
    fn model(rules: Rules) -> DirectLoad {
        DirectLoad {
            generations: 7,
            pairs: 2,
            mapped: false,
            others: 1,
            blocks: 2,
            tears_at_4: true,
            any_order: true,
            known: Known::Read,
            attempts: 2,
            rules,
        }
    }

    /// So many frees and binds and nothing else: what the Generation is for.
    fn wrapping(pairs: u8) -> DirectLoad {
        DirectLoad {
            pairs,
            others: 0,
            tears_at_4: false,
            any_order: false,
            known: Known::Told,
            ..model(Rules::AsBuilt)
        }
    }

    fn caught(model: DirectLoad) {
        let rules = model.rules;
        let steps = violation(model, ONE_STORE);
        eprintln!("{rules:?}: {ONE_STORE}: {steps:?}");
        assert!(steps.is_some(), "{rules:?} goes unseen");
    }

    //= test kbtp-6.6-direct-load-valid
    //= test kbtp-6.6-direct-load-sequence
    #[test]
    fn with_words_read_in_any_order_when_the_entry_is_read_once_more() {
        assert!(holds(model(Rules::AsBuilt)).states > 200_000);
    }

    //= test kbtp-6.6-direct-load-valid
    #[test]
    fn with_words_read_in_any_order_when_the_generation_was_told() {
        let told = DirectLoad {
            known: Known::Told,
            ..model(Rules::AsBuilt)
        };
        assert!(holds(told).states > 100_000);
    }

    //= test kbtp-6.6-direct-load-valid
    #[test]
    fn with_words_read_in_order_the_sequence_of_the_draft_is_enough() {
        for tears_at_4 in [false, true] {
            let plain = DirectLoad {
                tears_at_4,
                any_order: false,
                known: Known::Not,
                blocks: 3,
                ..model(Rules::AsBuilt)
            };
            assert!(holds(plain).states > 20_000);
        }
    }

    //= test kbtp-6.2-update-entry
    //= test kbtp-6.6-direct-load-valid
    #[test]
    fn with_blocks_that_are_stored_to_before_they_are_sealed() {
        let mapped = DirectLoad {
            mapped: true,
            others: 0,
            ..model(Rules::AsBuilt)
        };
        assert!(holds(mapped).states > 50_000);
    }

    //= test kbtp-6.6-direct-load-valid
    #[test]
    fn with_words_read_in_any_order_the_sequence_of_the_draft_is_fooled() {
        caught(DirectLoad {
            known: Known::Not,
            ..model(Rules::AsBuilt)
        });
    }

    //= test kbtp-6.6-direct-load-valid
    #[test]
    fn two_looks_at_the_generation_alone() {
        caught(DirectLoad {
            known: Known::Not,
            pairs: 1,
            ..model(Rules::GenerationAlone)
        });
    }

    //= test kbtp-6.3-entry-after-data
    #[test]
    fn the_entry_before_the_data() {
        caught(model(Rules::EntryBeforeData));
    }

    //= test kbtp-3.2-bind-order
    #[test]
    fn flags_and_generation_before_the_rest() {
        caught(model(Rules::ControlFirst));
    }

    //= test kbtp-6.4-clear-entry
    #[test]
    fn a_generation_that_stays() {
        caught(model(Rules::GenerationKept));
    }

    //= test kbtp-6.4-entry-before-return
    #[test]
    fn the_block_returned_before_the_entry_is_unbound() {
        caught(model(Rules::ReturnedFirst));
    }

    //= test kbtp-6.6-direct-load-sequence
    #[test]
    fn one_look() {
        caught(model(Rules::OneLook));
    }

    //= test kbtp-6.6-direct-load-sequence
    #[test]
    fn the_second_look_before_the_block_has_come() {
        caught(model(Rules::NotInTurn));
    }

    //= test kbtp-6.6-direct-load-valid
    #[test]
    fn unsealed_blocks() {
        caught(DirectLoad {
            mapped: true,
            ..model(Rules::UnsealedTaken)
        });
    }

    /// The limit of it: with as many frees and binds between two looks as there are Generations, a load is fooled, and
    /// with one fewer it is not.
    //= test kbtp-3.2-generation-never-zero
    //= test kbtp-6.6-direct-load-valid
    #[test]
    fn a_whole_turn_of_the_generation_fools_it_and_nothing_less() {
        assert!(holds(wrapping(6)).states > 20_000);
        caught(wrapping(7));
    }

    /// How many that are: 65,535.
    //= test kbtp-3.2-generation-never-zero
    #[test]
    fn a_whole_turn_is_65_535_frees_and_binds() {
        let mut generation = Generation::FIRST;
        let mut pairs = 0_u32;
        loop {
            generation = generation.next().next();
            pairs += 1;
            if generation == Generation::FIRST {
                break;
            }
        }
        assert_eq!(pairs, 65_535);
    }
}
