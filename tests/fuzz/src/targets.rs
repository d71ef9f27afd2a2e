//! The targets.

mod control;
mod iwarp;
mod kbtp;
mod session;
mod stream;

/// A parser under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name, also of its folder in `corpus`.
    pub name: &'static str,
    /// Runs it: panics if a property does not hold.
    pub run: fn(&[u8]),
    /// How many times dearer a run is than one of the cheapest.
    pub cost: usize,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "kbtp_request",
        run: kbtp::request,
        cost: 1,
    },
    Target {
        name: "kbtp_hello",
        run: kbtp::hello,
        cost: 1,
    },
    Target {
        name: "kbtp_hello_ack",
        run: kbtp::hello_ack,
        cost: 1,
    },
    Target {
        name: "kbtp_completion",
        run: kbtp::completion,
        cost: 1,
    },
    Target {
        name: "kbtp_record",
        run: kbtp::record,
        cost: 1,
    },
    Target {
        name: "kbtp_private_data",
        run: kbtp::private_data,
        cost: 1,
    },
    Target {
        name: "kbtp_tlvs",
        run: kbtp::tlvs,
        cost: 1,
    },
    Target {
        name: "kbtp_memory",
        run: kbtp::memory,
        cost: 1,
    },
    Target {
        name: "mpa_startup",
        run: iwarp::startup,
        cost: 1,
    },
    Target {
        name: "ddp_segment",
        run: iwarp::ddp_segment,
        cost: 1,
    },
    Target {
        name: "rdmap_terminate",
        run: iwarp::terminate,
        cost: 1,
    },
    Target {
        name: "target_session",
        run: session::target_session,
        cost: 200,
    },
    Target {
        name: "rdmap_stream",
        run: stream::rdmap_stream,
        cost: 50,
    },
    Target {
        name: "control_frame",
        run: control::frame,
        cost: 2,
    },
];
