//! The targets.

mod iwarp;
mod kbtp;

/// A parser under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name, also of its folder in `corpus`.
    pub name: &'static str,
    /// Runs it: panics if a property does not hold.
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "kbtp_request",
        run: kbtp::request,
    },
    Target {
        name: "kbtp_hello",
        run: kbtp::hello,
    },
    Target {
        name: "kbtp_hello_ack",
        run: kbtp::hello_ack,
    },
    Target {
        name: "kbtp_completion",
        run: kbtp::completion,
    },
    Target {
        name: "kbtp_record",
        run: kbtp::record,
    },
    Target {
        name: "kbtp_private_data",
        run: kbtp::private_data,
    },
    Target {
        name: "kbtp_tlvs",
        run: kbtp::tlvs,
    },
    Target {
        name: "kbtp_memory",
        run: kbtp::memory,
    },
    Target {
        name: "mpa_startup",
        run: iwarp::startup,
    },
    Target {
        name: "ddp_segment",
        run: iwarp::ddp_segment,
    },
    Target {
        name: "rdmap_terminate",
        run: iwarp::terminate,
    },
];
