//! Draft section 3.3, "with these rules no block is ever lost or handed out twice": every interleaving.

#[cfg(test)]
mod tests {
    use kbtp_models::ring::{Ring, Rules};
    use stateright::{Checker, HasDiscoveries, Model};

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
            rules,
        }
    }

    /// The names of the `always` properties that a state violates.
    fn violated(model: Ring) -> Vec<&'static str> {
        let checker = model
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        [TWICE, LOST, OVERWRITTEN, STUCK]
            .into_iter()
            .filter(|name| checker.discovery(name).is_some())
            .collect()
    }

    fn holds(model: Ring) {
        let checker = model.checker().threads(2).spawn_bfs().join();
        checker.assert_properties();
    }

    //= test kbtp-3.3-no-block-lost-or-twice
    #[test]
    fn as_specified_with_fewer_blocks_than_slots() {
        holds(ring(4, 3, &[1, 1, 1], 17, Rules::AsSpecified));
    }

    //= test kbtp-3.3-no-block-lost-or-twice
    #[test]
    fn as_specified_with_a_full_ring_and_uneven_quotas() {
        holds(ring(2, 2, &[1, 1], 17, Rules::AsSpecified));
    }

    //= test kbtp-3.3-free-deferred
    #[test]
    fn without_deferral_a_slot_is_overwritten() {
        let found = violated(ring(2, 2, &[1, 1], 9, Rules::NoDeferral));
        assert!(
            found.contains(&OVERWRITTEN) || found.contains(&STUCK),
            "{found:?}"
        );
    }

    //= test kbtp-3.3-free-deferred
    #[test]
    fn a_deferred_write_out_of_turn_overwrites_a_slot() {
        let found = violated(ring(2, 2, &[1, 1], 9, Rules::NoTurnCheck));
        assert!(
            found.contains(&OVERWRITTEN) || found.contains(&LOST),
            "{found:?}"
        );
    }

    //= test kbtp-3.3-allocation-wait
    #[test]
    fn without_the_sequence_check_a_block_goes_to_the_wrong_party() {
        let found = violated(ring(2, 2, &[1, 1], 9, Rules::NoSequenceCheck));
        assert!(
            found.contains(&TWICE) || found.contains(&LOST) || found.contains(&STUCK),
            "{found:?}"
        );
    }

    //= test kbtp-3.3-offset-before-sequence
    #[test]
    fn with_the_sequence_written_first_a_reader_takes_an_old_offset() {
        let found = violated(ring(2, 2, &[1, 1], 9, Rules::SequenceFirst));
        assert!(
            found.contains(&TWICE) || found.contains(&STUCK),
            "{found:?}"
        );
    }

    //= test kbtp-3.4-quota-not-exceeded
    #[test]
    fn without_quotas_a_party_waits_for_ever() {
        let found = violated(ring(4, 3, &[1, 1, 1], 10, Rules::NoQuota));
        assert!(found.contains(&STUCK), "{found:?}");
    }

    //= test kbtp-3.3-mark-consumed
    #[test]
    fn without_marking_slots_consumed_a_block_stands_in_two_places() {
        let found = violated(ring(4, 3, &[1, 1, 1], 10, Rules::NoConsume));
        assert!(found.contains(&TWICE), "{found:?}");
    }
}
