//! `kbtp wqe calibrate`: whether a device does what chains count on.

use super::broken;
use crate::cli::wqe::{WqeCalibrateArgs, WqeNic};
use crate::driver::now;
use crate::failure::Failure;
use crate::output::{self, Sheet};
use kbtp_device::calibrate::{Outcome, Report, calibrate};
use kbtp_nic_model::{Hazards, Model, Schedule};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Calibration {
    nic: WqeNic,
    /// Whether chains may serve with it.
    may_serve: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    questions: Vec<Question>,
    /// Of the model: how long this program takes, which says nothing of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<Latency>,
}

#[derive(Debug, Serialize)]
struct Question {
    number: u8,
    asks: &'static str,
    needed: bool,
    answer: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// In nanoseconds.
#[derive(Debug, Serialize)]
struct Latency {
    read: u64,
    nop: u64,
    next_nop: u64,
}

/// Events of a model that come to nothing before one has waited long enough: its random schedule may pass over all queues.
const PATIENCE: usize = 40;

/// Runs the command.
///
/// # Errors
/// [`Failure`] if chains may not serve with the device.
pub(super) fn run(args: &WqeCalibrateArgs, json: bool) -> Result<(), Failure> {
    let WqeNic::Model = args.nic;
    let mut model = Model::new(Hazards::default(), Schedule::Eager, 1);
    let begin = now();
    let mut wait = |model: &mut Model| (0..PATIENCE).any(|_| model.step());
    let mut clock = || u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let report = calibrate(&mut model, &mut wait, &mut clock);
    let report = report.map_err(|e| broken("calibrate the model", &e))?;
    let report = of(args.nic, report);
    output::report(json, &report, || text(&report))?;
    match report.refusal {
        None => Ok(()),
        Some(why) => Err(Failure::operation(
            format_args!("chains may not serve with this device: {why}"),
            "let software serve",
        )),
    }
}

fn of(nic: WqeNic, report: Report) -> Calibration {
    let refusal = report.refusal();
    let questions = report.probes.into_iter().map(|probe| {
        let (answer, why) = match probe.outcome {
            Outcome::Passed => ("yes", None),
            Outcome::Failed(why) => ("no", Some(why)),
            Outcome::Says(what) => ("either will do", Some(what)),
            Outcome::NotTried(why) => ("not tried", Some(why.to_owned())),
        };
        Question {
            number: probe.number,
            asks: probe.asks,
            needed: probe.needed,
            answer,
            why,
        }
    });
    Calibration {
        nic,
        may_serve: refusal.is_none(),
        refusal,
        questions: questions.collect(),
        latency_ns: report.latency.map(|latency| Latency {
            read: latency.read_ns,
            nop: latency.nop_ns,
            next_nop: latency.next_nop_ns,
        }),
    }
}

fn text(report: &Calibration) -> String {
    let mut sheet = Sheet::new();
    for question in &report.questions {
        let why = question.why.as_deref();
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let name = format!("{:>2}  {}", question.number, question.asks);
        sheet.row(&name, format_args!("{}{why}", question.answer));
    }
    if let Some(latency) = &report.latency_ns {
        let what = format_args!(
            "READ {} ns, NOP {} ns, each NOP behind it {} ns: of this model on this machine",
            latency.read, latency.nop, latency.next_nop
        );
        sheet.row("17  how long things take", what);
    }
    sheet.row("", "");
    let may = if report.may_serve {
        "may serve with it"
    } else {
        "may not serve with it"
    };
    sheet.row("chains", may);
    sheet.text()
}
