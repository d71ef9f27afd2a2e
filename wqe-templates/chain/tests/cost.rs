//! What the chains cost, counted: the figures are promises.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use kbtp_chain::record::Action;
    use kbtp_chain::{RequestCost, SlotCost, full, load};
    use kbtp_wire::ByteLen;

    const BLOCK: ByteLen = ByteLen(4096);

    #[test]
    fn a_slot_of_profile_f() {
        let cost = SlotCost::of(&full(BLOCK));
        assert_eq!((cost.worker_wqes, cost.worker_blocks), (59, 77));
        // A COMPLETION of 40 octets takes eight pieces where the loaded length and offset are gathered from C1.
        assert_eq!((cost.client_wqes, cost.client_blocks), (4, 7));
    }

    #[test]
    fn a_slot_of_profile_l() {
        let cost = SlotCost::of(&load(BLOCK));
        assert_eq!((cost.worker_wqes, cost.worker_blocks), (20, 25));
        assert_eq!((cost.client_wqes, cost.client_blocks), (2, 4));
    }

    #[test]
    fn round_trips_of_profile_f() {
        let template = full(BLOCK);
        let (invalidate, seal) = (false, true);
        for (action, loopbacks, client) in [
            (Action::Load { invalidate }, 3, 0),
            (Action::Store { invalidate, seal }, 9, 1),
            (Action::AllocStore { invalidate, seal }, 11, 1),
            (Action::Free, 9, 0),
        ] {
            let cost = RequestCost::of(&template, action).expect("it comes to its end");
            assert_eq!(cost.wqes_to_go, 27, "{action:?}");
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
}
