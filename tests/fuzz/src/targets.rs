//! The targets.

mod control;
mod device;
mod http;
mod initiator;
mod iwarp;
mod kbtp_messages;
mod nic;
mod session;
mod stream;
mod text;

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
        run: kbtp_messages::request,
        cost: 1,
    },
    Target {
        name: "kbtp_hello",
        run: kbtp_messages::hello,
        cost: 1,
    },
    Target {
        name: "kbtp_hello_ack",
        run: kbtp_messages::hello_ack,
        cost: 1,
    },
    Target {
        name: "kbtp_completion",
        run: kbtp_messages::completion,
        cost: 1,
    },
    Target {
        name: "kbtp_record",
        run: kbtp_messages::record,
        cost: 1,
    },
    Target {
        name: "kbtp_private_data",
        run: kbtp_messages::private_data,
        cost: 1,
    },
    Target {
        name: "kbtp_tlvs",
        run: kbtp_messages::tlvs,
        cost: 1,
    },
    Target {
        name: "kbtp_memory",
        run: kbtp_messages::memory,
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
    Target {
        name: "initiator_session",
        run: initiator::initiator_session,
        cost: 20,
    },
    Target {
        name: "mlx5_wqe",
        run: device::mlx5_wqe,
        cost: 1,
    },
    Target {
        name: "chain_memory",
        run: device::chain_memory,
        cost: 50,
    },
    Target {
        name: "chain_steps",
        run: device::chain_steps,
        cost: 500,
    },
    Target {
        name: "target_config",
        run: text::target_config,
        cost: 10,
    },
    Target {
        name: "command_line",
        run: text::command_line,
        cost: 500,
    },
    Target {
        name: "trace",
        run: text::trace,
        cost: 2,
    },
    Target {
        name: "nic_step",
        run: nic::nic_step,
        cost: 200,
    },
    Target {
        name: "admin_head",
        run: http::admin_head,
        cost: 2,
    },
    Target {
        name: "status_page",
        run: http::status_page,
        cost: 5,
    },
    Target {
        name: "config_file",
        run: text::config_file,
        cost: 10,
    },
    Target {
        name: "map_file",
        run: text::map_file,
        cost: 5,
    },
];
