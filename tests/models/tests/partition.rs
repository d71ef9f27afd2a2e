//! Draft sections 3.3 and 3.4, profile P8: partitions, abandoned tickets, sessions that end.

#[cfg(test)]
mod tests {
    use kbtp_models::check::{holds, violation};
    use kbtp_models::partition::{Partition, Rules};

    const TWICE: &str = "no block is in two places";
    const OVERWRITTEN: &str = "no slot is overwritten";
    const FOREIGN: &str = "no write reaches another's block";
    const SENT: &str = "no load sends a block that went on";
    const OVERLOOKED: &str = "no ticket is overlooked";
    const WAITS: &str = "a ticket waits for a free alone";
    const REST: &str = "all comes to rest";

    fn model(direct: u8, sessions: u8, pins: u8, rules: Rules) -> Partition {
        Partition {
            blocks: 3,
            plain_quota: 1,
            direct_quota: 2,
            allocations: [1, direct],
            sessions,
            pins,
            rules,
        }
    }

    /// With two sessions, since what one leaves meets the next.
    fn caught(rules: Rules, property: &'static str) {
        let steps = violation(model(3, 2, 1, rules), property);
        assert!(steps.is_some(), "{rules:?} goes unseen");
        eprintln!("{rules:?}: {property}: {steps:?}");
    }

    //= test kbtp-3.3-no-block-lost-or-twice
    //= test kbtp-3.3-free-deferred
    //= test kbtp-3.4-usage-counted
    //= test kbtp-3.4-usage-released
    //= test kbtp-3.4-reclaim-new-ticket
    #[test]
    fn as_built_with_one_direct_session() {
        assert!(holds(model(3, 1, 1, Rules::AsBuilt)).states > 300_000);
    }

    //= test kbtp-3.3-no-block-lost-or-twice
    //= test kbtp-3.4-quota-sum
    //= test kbtp-p8-lease-keeps-bindings
    //= test kbtp-p8-contiguous-partition
    #[test]
    fn as_built_when_the_direct_session_comes_back() {
        assert!(holds(model(2, 2, 1, Rules::AsBuilt)).states > 300_000);
    }

    //= test kbtp-3.4-invalidate-before-reclaim
    #[test]
    fn reclaimed_before_the_stags_are_revoked() {
        caught(Rules::ReclaimBeforeRevoke, FOREIGN);
    }

    //= test kbtp-3.4-reclaim-new-ticket
    #[test]
    fn reclaimed_without_consuming_the_slot() {
        caught(Rules::ReclaimKeepsSlot, TWICE);
    }

    //= test kbtp-3.4-usage-counted
    #[test]
    fn no_look_at_head_after_the_stags_are_revoked() {
        caught(Rules::NoLookAfterRevoke, OVERLOOKED);
    }

    //= test kbtp-6.6-bind-verified
    //= test kbtp-3.4-late-bind-rejected
    #[test]
    fn a_bind_judged_by_its_block_alone() {
        caught(Rules::BindUnverified, WAITS);
    }

    //= test kbtp-3.3-free-no-overwrite
    #[test]
    fn a_free_that_does_not_wait_for_its_slot() {
        caught(Rules::NoDeferral, OVERWRITTEN);
    }

    //= test kbtp-6.4-entry-before-return
    #[test]
    fn a_freed_block_returned_while_a_load_sends_it() {
        caught(Rules::PinsIgnored, SENT);
    }

    //= test kbtp-3.4-usage-released
    #[test]
    fn the_ticket_of_a_session_that_ended_forgotten() {
        caught(Rules::OrphanForgotten, REST);
    }

    //= test kbtp-6.4-return-to-its-ring
    #[test]
    fn a_partition_dissolved_whatever_is_on_its_way_to_it() {
        caught(Rules::DissolveAtOnce, REST);
    }

    //= test kbtp-6.4-return-to-its-ring
    #[test]
    fn a_partition_dissolved_when_loads_alone_are_waited_for() {
        caught(Rules::DissolveAfterLoads, REST);
    }

    //= test kbtp-6.4-return-to-its-ring
    #[test]
    fn bound_blocks_at_home_in_a_partition_that_is_no_more() {
        caught(Rules::HomeKept, REST);
    }
}
