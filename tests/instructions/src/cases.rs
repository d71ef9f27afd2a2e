//! What is counted. Each case sets itself up, then does its operation so many times and fails if one goes wrong.

mod initiator;
mod octets;
mod session;
mod stream;

/// Why a case could not be run.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// One operation.
pub(crate) struct Case {
    /// Its name, in the baseline.
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) what: &'static str,
    /// Does it so many times.
    pub(crate) run: fn(u32) -> Result<(), Failure>,
}

/// Every case of the baseline.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "wire-request",
        what: "a LOAD request is encoded and decoded",
        run: octets::request,
    },
    Case {
        name: "wire-completion",
        what: "a COMPLETION is encoded and decoded",
        run: octets::completion,
    },
    Case {
        name: "wire-headers",
        what: "a tagged and an untagged DDP header are encoded and decoded",
        run: octets::headers,
    },
    Case {
        name: "wire-entry",
        what: "a table entry and a ring slot are encoded and decoded",
        run: octets::entry,
    },
    Case {
        name: "crc-4k",
        what: "the CRC of 4 KiB of a region",
        run: octets::crc,
    },
    Case {
        name: "target-load-4k",
        what: "target: LOAD of 4 KiB, from message to posted COMPLETION (without moving the block)",
        run: session::load,
    },
    Case {
        name: "target-inline-512",
        what: "target: STORE of 512 octets inline",
        run: session::inline,
    },
    Case {
        name: "target-alloc-free",
        what: "target: ALLOC_STORE of nothing and FREE: one turn of the free-block ring",
        run: session::alloc_free,
    },
    Case {
        name: "target-store-read",
        what: "target: STORE of 4 KiB by RDMA Read (without moving the block)",
        run: session::store,
    },
    Case {
        name: "initiator-load",
        what: "initiator: LOAD from submission to its end",
        run: initiator::load,
    },
    Case {
        name: "stream-send-40",
        what: "both ends: a Send of 40 octets with CRC",
        run: stream::send,
    },
    Case {
        name: "stream-write-4k",
        what: "both ends: an RDMA Write of 4 KiB with CRC",
        run: stream::write,
    },
    Case {
        name: "stream-read-4k",
        what: "both ends: an RDMA Read of 4 KiB with CRC",
        run: stream::read,
    },
];

/// Tells what the processor has; no case of the baseline.
pub(crate) const PROCESSOR: Case = Case {
    name: "processor",
    what: "",
    run: octets::processor,
};

/// The case of this name.
pub(crate) fn find(name: &str) -> Option<&'static Case> {
    let listed = CASES.iter().find(|case| case.name == name);
    listed.or_else(|| (name == PROCESSOR.name).then_some(&PROCESSOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_does_what_it_counts() {
        for case in CASES {
            assert!(!case.what.is_empty());
            (case.run)(300).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        }
    }

    #[test]
    fn names_differ_and_are_found() {
        for case in CASES {
            assert_eq!(
                CASES.iter().filter(|other| other.name == case.name).count(),
                1
            );
            assert!(find(case.name).is_some());
        }
        assert!(find("nothing").is_none());
    }
}
