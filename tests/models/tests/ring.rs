//! Draft section 3.3, "with these rules no block is ever lost or handed out twice": every interleaving.

#[cfg(test)]
mod tests {
    use kbtp_models::check::{holds, violation};
    use kbtp_models::ring::{Ring, Rules, Taking};

    const TWICE: &str = "no block is handed out twice";
    const LOST: &str = "no block is lost";
    const OVERWRITTEN: &str = "no slot is overwritten";
    const STUCK: &str = "nobody is stuck";

    fn ring(slots: u8, blocks: u8, quotas: &[u8], allocations: u8, rules: Rules) -> Ring {
        Ring {
            slots,
            blocks,
            quotas: quotas.to_vec(),
            allocations,
            taking: Taking::FetchAdd,
            rules,
        }
    }

    fn begun(ring: Ring) -> Ring {
        Ring {
            taking: Taking::Begun,
            ..ring
        }
    }

    fn caught(model: Ring, property: &'static str) {
        let rules = model.rules;
        let steps = violation(model, property);
        eprintln!("{rules:?}: {property}: {steps:?}");
        assert!(steps.is_some(), "{rules:?} goes unseen");
    }

    //= test kbtp-3.3-no-block-lost-or-twice
    #[test]
    fn as_specified_with_fewer_blocks_than_slots() {
        assert!(holds(ring(4, 3, &[1, 1, 1], 12, Rules::AsSpecified)).states > 100_000);
    }

    //= test kbtp-3.3-no-block-lost-or-twice
    #[test]
    fn as_specified_with_a_full_ring() {
        assert!(holds(ring(2, 2, &[1, 1], 17, Rules::AsSpecified)).states > 5_000);
    }

    //= test kbtp-3.3-no-block-lost-or-twice
    #[test]
    fn as_built_with_uneven_quotas() {
        let uneven = ring(4, 3, &[2, 1], 15, Rules::AsSpecified);
        assert!(holds(begun(uneven)).states > 5_000);
    }

    /// With tickets for begun frees alone nobody waits, whatever the quotas: docs/adr/0010.
    //= test kbtp-3.3-no-block-lost-or-twice
    #[test]
    fn as_built_without_quotas() {
        let without = ring(4, 3, &[1, 1, 1], 12, Rules::NoQuota);
        assert!(holds(begun(without)).states > 100_000);
    }

    //= test kbtp-3.3-free-deferred
    #[test]
    fn without_deferral_a_slot_is_overwritten() {
        caught(ring(2, 2, &[1, 1], 9, Rules::NoDeferral), OVERWRITTEN);
    }

    //= test kbtp-3.3-free-deferred
    #[test]
    fn a_deferred_write_out_of_turn_overwrites_a_slot() {
        caught(ring(2, 2, &[1, 1], 9, Rules::NoTurnCheck), OVERWRITTEN);
        caught(ring(2, 2, &[1, 1], 9, Rules::NoTurnCheck), LOST);
    }

    /// The slot is empty still when the free looks, and it is its turn when it looks again: in between it was filled.
    //= test kbtp-3.3-free-no-overwrite
    #[test]
    fn a_free_that_looks_at_the_turn_last_overwrites_a_slot() {
        let model = || ring(4, 3, &[1, 1, 1], 12, Rules::OffsetFirst);
        caught(begun(model()), OVERWRITTEN);
        caught(begun(model()), LOST);
    }

    //= test kbtp-3.3-allocation-wait
    #[test]
    fn without_the_sequence_check_a_block_goes_to_the_wrong_party() {
        caught(ring(2, 2, &[1, 1], 9, Rules::NoSequenceCheck), TWICE);
    }

    //= test kbtp-3.3-offset-before-sequence
    #[test]
    fn with_the_sequence_written_first_a_reader_finds_no_offset() {
        caught(ring(2, 2, &[1, 1], 9, Rules::SequenceFirst), TWICE);
    }

    //= test kbtp-3.4-quota-not-exceeded
    #[test]
    fn without_quotas_a_party_waits_for_ever() {
        caught(ring(4, 3, &[1, 1, 1], 10, Rules::NoQuota), STUCK);
    }

    //= test kbtp-3.3-mark-consumed
    #[test]
    fn without_marking_slots_consumed_a_block_stands_in_two_places() {
        caught(ring(4, 3, &[1, 1, 1], 10, Rules::NoConsume), TWICE);
    }
}
