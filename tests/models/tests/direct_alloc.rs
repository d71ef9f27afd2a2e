//! Draft section 6.6: direct allocations race on one ring.

#[cfg(test)]
mod tests {
    use kbtp_models::check::{holds, violation};
    use kbtp_models::direct_alloc::{DirectAlloc, Rules};

    const TWICE: &str = "no block is in two hands";
    const LOST: &str = "no block is lost";
    const TORN: &str = "no torn slot is taken";
    const FOREIGN: &str = "no write reaches another's block";
    const OVERWRITTEN: &str = "no slot is overwritten";
    const REST: &str = "all comes to rest";

    fn model(allocations: u8, rules: Rules) -> DirectAlloc {
        DirectAlloc {
            allocations,
            racing: 2,
            own: false,
            rules,
        }
    }

    fn caught(rules: Rules, property: &'static str) {
        let steps = violation(model(3, rules), property);
        eprintln!("{rules:?}: {property}: {steps:?}");
        assert!(steps.is_some(), "{rules:?} goes unseen");
    }

    //= test kbtp-6.6-slot-read-twice
    //= test kbtp-6.6-bind-verified
    //= test kbtp-3.4-late-bind-rejected
    //= test kbtp-3.4-ticket-timeout
    #[test]
    fn as_built_with_two_allocations_racing() {
        assert!(holds(model(3, Rules::AsBuilt)).states > 200_000);
    }

    //= test kbtp-6.6-slot-read-twice
    //= test kbtp-3.4-own-ring
    #[test]
    fn as_built_when_the_target_allocates_beside_them() {
        let own = DirectAlloc {
            own: true,
            ..model(3, Rules::AsBuilt)
        };
        assert!(holds(own).states > 200_000);
    }

    //= test kbtp-6.6-slot-read-twice
    #[test]
    fn a_slot_that_is_read_once() {
        caught(Rules::NoConfirmation, TORN);
    }

    //= test kbtp-3.3-allocation-wait
    #[test]
    fn a_slot_taken_whatever_its_sequence() {
        caught(Rules::NoSequenceCheck, TORN);
    }

    //= test kbtp-3.3-offset-before-sequence
    #[test]
    fn the_sequence_before_the_block_offset() {
        caught(Rules::SequenceFirst, TORN);
    }

    //= test kbtp-3.3-free-no-overwrite
    #[test]
    fn a_free_that_does_not_wait_for_its_slot() {
        caught(Rules::NoDeferral, OVERWRITTEN);
        caught(Rules::NoDeferral, LOST);
    }

    //= test kbtp-6.6-bind-order
    #[test]
    fn a_bind_that_keeps_the_slot() {
        caught(Rules::BindKeepsSlot, TWICE);
    }

    //= test kbtp-6.6-bind-verified
    #[test]
    fn a_bind_judged_by_its_block_alone() {
        caught(Rules::BindUnverified, REST);
    }

    //= test kbtp-3.4-invalidate-before-reclaim
    #[test]
    fn reclaimed_before_the_stags_are_revoked() {
        caught(Rules::ReclaimBeforeRevoke, FOREIGN);
    }

    //= test kbtp-3.4-ticket-timeout
    #[test]
    fn tickets_that_never_run_out() {
        caught(Rules::NoTimeout, REST);
    }
}
