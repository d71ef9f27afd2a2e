//! `kbtp wqe cost`: what a chain takes, counted, and how long it should take, predicted.

use super::{put, template};
use crate::cli::wqe::{WqeCostArgs, WqeProfile};
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::units::octets;
use kbtp_chain::record::Action;
use kbtp_chain::{Prediction, RequestCost, SlotCost, Timing};
use kbtp_wire::ByteLen;
use serde::Serialize;

/// What the predictions rest on.
const BASIS: &str = "predicted, not measured: fetching WQEs as reported of ConnectX-5, a round trip within the device as \
estimated, the rate of the link; nothing known so far tells a BlueField-3 from the ConnectX-7 in it";

const DEVICES: [(&str, Timing); 2] = [
    ("ConnectX-7", Timing::CONNECTX_7),
    ("BlueField-3", Timing::CONNECTX_7),
];

#[derive(Debug, Serialize)]
struct Report {
    block_size: u32,
    profiles: Vec<Profile>,
    basis: &'static str,
}

#[derive(Debug, Serialize)]
struct Profile {
    name: WqeProfile,
    /// Of the loopback queue and of the client's.
    wqes: [usize; 2],
    /// The same in basic blocks of 64 octets, the slot's last NOPs not counted.
    basic_blocks: [u16; 2],
    requests: Vec<Request>,
}

#[derive(Debug, Serialize)]
struct Request {
    operation: &'static str,
    wqes_that_work: usize,
    round_trips_in_the_device: u32,
    round_trips_to_the_client: u32,
    round_trips_to_the_next: u32,
    predicted: Vec<Predicted>,
}

#[derive(Debug, Serialize)]
struct Predicted {
    device: &'static str,
    answered_ns: u64,
    requests_per_second_of_a_session: u64,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] if output fails.
pub(super) fn run(args: &WqeCostArgs, json: bool) -> Result<(), Failure> {
    let report = Report {
        block_size: args.block_size,
        profiles: [WqeProfile::Full, WqeProfile::Load]
            .map(|profile| of(profile, args.block_size))
            .into(),
        basis: BASIS,
    };
    output::report(json, &report, || text(&report))
}

fn of(profile: WqeProfile, block_size: u32) -> Profile {
    let template = template(profile, block_size);
    let slot = SlotCost::of(&template);
    let (invalidate, seal) = (false, true);
    let operations = [
        ("LOAD", Action::Load { invalidate }),
        ("STORE", Action::Store { invalidate, seal }),
        ("ALLOC_STORE", Action::AllocStore { invalidate, seal }),
        ("FREE", Action::Free),
    ];
    let request = |(operation, action)| {
        let cost = RequestCost::of(&template, action)?;
        let predicted = DEVICES.iter().filter_map(|(device, timing)| {
            let found = Prediction::of(&template, action, timing, ByteLen(block_size))?;
            Some(Predicted {
                device,
                answered_ns: found.answered_ns,
                requests_per_second_of_a_session: 1_000_000_000_u64.checked_div(found.slot_ns)?,
            })
        });
        Some(Request {
            operation,
            wqes_that_work: cost.working_wqes,
            round_trips_in_the_device: cost.loopbacks,
            round_trips_to_the_client: cost.client_round_trips,
            round_trips_to_the_next: cost.slot_loopbacks,
            predicted: predicted.collect(),
        })
    };
    Profile {
        name: profile,
        wqes: [slot.worker_wqes, slot.client_wqes],
        basic_blocks: [slot.worker_blocks, slot.client_blocks],
        requests: operations.into_iter().filter_map(request).collect(),
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for profile in &report.profiles {
        let name = match profile.name {
            WqeProfile::Full => "full",
            WqeProfile::Load => "load",
        };
        let ([worker, client], [worker_blocks, client_blocks]) =
            (profile.wqes, profile.basic_blocks);
        put(
            &mut text,
            format_args!(
                "profile {name}: {worker} + {client} WQEs a slot, {worker_blocks} + {client_blocks} basic blocks of 64 octets\n"
            ),
        );
        let mut headings = vec!["request", "WQEs that work", "NIC round trips", "client's"];
        let named = DEVICES.map(|(device, _)| [format!("{device} us"), "requests/s".to_owned()]);
        headings.extend(named.iter().flatten().map(String::as_str));
        let mut table = Table::new(&headings);
        for request in &profile.requests {
            let mut row = vec![
                request.operation.to_owned(),
                request.wqes_that_work.to_string(),
                request.round_trips_in_the_device.to_string(),
                request.round_trips_to_the_client.to_string(),
            ];
            for one in &request.predicted {
                let tenths = one.answered_ns.div_ceil(100);
                row.push(format!("{}.{}", tenths / 10, tenths % 10));
                row.push(one.requests_per_second_of_a_session.to_string());
            }
            table.row(row);
        }
        text.push_str(&table.text());
        text.push('\n');
    }
    put(
        &mut text,
        format_args!(
            "Blocks of {}; the round trips are those that follow one another before the completion is sent.\nTimes and rates of one session: {}.",
            octets(report.block_size.into()),
            report.basis
        ),
    );
    text
}
