//! What the chains cost, counted: the figures are promises.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use kbtp_chain::record::Action;
    use kbtp_chain::{Prediction, RequestCost, SlotCost, Timing, full, load, perpetual};
    use kbtp_wire::ByteLen;

    const BLOCK: ByteLen = ByteLen(4096);

    #[test]
    fn a_slot_of_profile_f() {
        let cost = SlotCost::of(&full(BLOCK));
        assert_eq!((cost.worker_wqes, cost.worker_blocks), (56, 72));
        // A COMPLETION of 40 octets takes eight pieces where the loaded length and offset are gathered from C1.
        assert_eq!((cost.client_wqes, cost.client_blocks), (4, 7));
    }

    #[test]
    fn a_slot_of_profile_l() {
        let cost = SlotCost::of(&load(BLOCK));
        assert_eq!((cost.worker_wqes, cost.worker_blocks), (20, 25));
        assert_eq!((cost.client_wqes, cost.client_blocks), (2, 4));
    }

    /// What arms the slot before costs its session's next request one round trip more, and no request of its own any.
    #[test]
    fn a_slot_that_arms_itself() {
        let template = perpetual(BLOCK);
        let cost = SlotCost::of(&template);
        assert_eq!((cost.worker_wqes, cost.worker_blocks), (29, 64));
        assert_eq!((cost.client_wqes, cost.client_blocks), (2, 4));
        let action = Action::Load { invalidate: false };
        let cost = RequestCost::of(&template, action).expect("it comes to its end");
        assert_eq!((cost.loopbacks, cost.slot_loopbacks), (3, 4));
    }

    #[test]
    fn round_trips_of_profile_f() {
        let template = full(BLOCK);
        let (invalidate, seal) = (false, true);
        for (action, loopbacks, client) in [
            (Action::Load { invalidate }, 3, 0),
            (Action::Store { invalidate, seal }, 9, 1),
            (Action::AllocStore { invalidate, seal }, 11, 1),
            (Action::Free, 8, 0),
        ] {
            let cost = RequestCost::of(&template, action).expect("it comes to its end");
            assert_eq!(cost.wqes_to_go, 26, "{action:?}");
            assert_eq!(cost.loopbacks, loopbacks, "{action:?}");
            assert_eq!(cost.client_round_trips, client, "{action:?}");
        }
    }

    #[test]
    fn round_trips_of_profile_l() {
        let template = load(BLOCK);
        let action = Action::Load { invalidate: false };
        let cost = RequestCost::of(&template, action).expect("it comes to its end");
        assert_eq!((cost.loopbacks, cost.client_round_trips), (3, 0));
        assert_eq!(cost.slot_loopbacks, 3);
        // What it does not serve is handed to software, and the chain stops there.
        assert_eq!(RequestCost::of(&template, Action::Free), None);
    }

    /// The design's estimate of a LOAD: some ten microseconds beside the data.
    #[test]
    fn predicted_times_follow_the_counts() {
        let template = full(BLOCK);
        let timing = Timing::CONNECTX_7;
        let (invalidate, seal) = (false, true);
        let predict = |template, action, timing: &Timing| {
            Prediction::of(template, action, timing, BLOCK).expect("it comes to its end")
        };
        let of = |action| predict(&template, action, &timing);
        let load_f = of(Action::Load { invalidate });
        assert!((9_000..12_000).contains(&load_f.answered_ns), "{load_f:?}");
        let store = of(Action::Store { invalidate, seal });
        let alloc = of(Action::AllocStore { invalidate, seal });
        let free = of(Action::Free);
        assert!(load_f.answered_ns < free.answered_ns);
        assert!(free.answered_ns < store.answered_ns);
        assert!(store.answered_ns < alloc.answered_ns);
        let readers = load(BLOCK);
        let load_l = predict(&readers, Action::Load { invalidate }, &timing);
        assert!(
            load_l.slot_ns < load_f.slot_ns / 2,
            "{load_l:?}, {load_f:?}"
        );
        // With nothing but round trips, as many as are counted.
        let only = Timing {
            wave_ns: 0,
            wqe_ns: 0,
            loopback_ns: 1000,
            same_word_ns: 0,
            receive_ns: 0,
            propagation_ns: 0,
            gigabits_per_second: u64::MAX,
        };
        for action in [
            Action::Load { invalidate },
            Action::Store { invalidate, seal },
            Action::AllocStore { invalidate, seal },
            Action::Free,
        ] {
            let counted = RequestCost::of(&template, action).expect("it comes to its end");
            let predicted = predict(&template, action, &only);
            let loopbacks = u64::from(counted.loopbacks);
            assert_eq!(predicted.answered_ns, 1000 * loopbacks, "{action:?}");
        }
    }
}
