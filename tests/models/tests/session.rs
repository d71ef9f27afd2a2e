//! Profile P5, P8 and P9: one pair, its sessions, its lease, its target.

#[cfg(test)]
mod tests {
    use kbtp_models::check::{holds, violation};
    use kbtp_models::session::{Rules, Session};

    const OWNS: &str = "one session at most has the range";
    const DETACHED: &str = "no request without the range";
    const STAGS: &str = "STags reach as far as the session";
    const STAG_TWICE: &str = "no STag is used twice";
    const PLACE: &str = "every block is in one place";
    const RECORD: &str = "a pair has one record";
    const LET_IN: &str = "only the initiator is let in";
    const DRAINS: &str = "nobody is let in while it drains";
    const LEASE: &str = "bindings live as long as their lease";
    const TOLD: &str = "who waits for a session is told";

    fn model(rules: Rules) -> Session {
        Session {
            dials: 3,
            requests: 2,
            starts: 1,
            strangers: false,
            rules,
        }
    }

    fn caught(rules: Rules, property: &'static str) {
        let strangers = matches!(rules, Rules::ChallengeReused | Rules::VersionIgnored);
        let model = Session {
            strangers,
            ..model(rules)
        };
        let steps = violation(model, property);
        eprintln!("{rules:?}: {property}: {steps:?}");
        assert!(steps.is_some(), "{rules:?} goes unseen");
    }

    //= test kbtp-p8-second-session-replaces
    //= test kbtp-p8-resume
    //= test kbtp-p8-lease-keeps-bindings
    //= test kbtp-p8-range-of-pair
    //= test kbtp-p8-empty-range-released
    //= test kbtp-p7-shutting-down
    #[test]
    fn as_built_with_a_target_that_starts_again() {
        assert!(holds(model(Rules::AsBuilt)).states > 300_000);
    }

    //= test kbtp-p9-fresh-challenge
    //= test kbtp-p7-version-mismatch
    //= test kbtp-p7-not-authorized-hello
    #[test]
    fn as_built_among_strangers() {
        let among = Session {
            strangers: true,
            starts: 0,
            ..model(Rules::AsBuilt)
        };
        assert!(holds(among).states > 50_000);
    }

    //= test kbtp-p8-second-session-replaces
    #[test]
    fn two_sessions_of_one_pair() {
        caught(Rules::Beside, OWNS);
    }

    //= test kbtp-p8-second-session-replaces
    #[test]
    fn the_new_session_before_the_old_one_is_gone() {
        caught(Rules::BeforeItIsGone, OWNS);
        caught(Rules::BeforeItIsGone, DETACHED);
        caught(Rules::BeforeItIsGone, STAGS);
    }

    //= test kbtp-p8-second-session-replaces
    #[test]
    fn a_hello_that_nobody_tells() {
        caught(Rules::WaiterForgotten, TOLD);
    }

    //= test kbtp-p8-lease-keeps-bindings
    #[test]
    fn a_lease_that_goes_on() {
        caught(Rules::LeaseGoesOn, LEASE);
    }

    //= test kbtp-p8-lease-keeps-bindings
    #[test]
    fn a_range_that_is_released_and_kept() {
        caught(Rules::ReleasedAndKept, PLACE);
    }

    //= test kbtp-p8-range-of-pair
    #[test]
    fn a_new_range_while_the_old_one_is_released() {
        caught(Rules::ReleasingIgnored, RECORD);
    }

    //= test kbtp-p7-read-failure
    #[test]
    fn blocks_of_a_session_that_ended_forgotten() {
        caught(Rules::HeldForgotten, PLACE);
    }

    //= test rfc5042-10.2-invalidate-before-use
    #[test]
    fn stags_that_outlive_their_session() {
        caught(Rules::StagsKept, STAGS);
    }

    //= test rfc5042-10.2-invalidate-before-use
    #[test]
    fn stags_numbered_anew() {
        caught(Rules::StagsAnew, STAG_TWICE);
    }

    //= test kbtp-p9-fresh-challenge
    #[test]
    fn one_challenge_for_all() {
        caught(Rules::ChallengeReused, LET_IN);
    }

    //= test kbtp-p7-version-mismatch
    #[test]
    fn another_version() {
        caught(Rules::VersionIgnored, LET_IN);
    }

    //= test kbtp-p7-shutting-down
    #[test]
    fn a_session_while_the_target_drains() {
        caught(Rules::DrainIgnored, DRAINS);
    }
}
