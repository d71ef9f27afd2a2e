//! `kbtp wqe calibrate`: whether a device does what chains count on.

use super::broken;
use crate::cli::wqe::WqeCalibrateArgs;
use crate::driver::now;
use crate::failure::Failure;
use crate::output::{self, Sheet};
use kbtp_device::calibrate::{Outcome, Report, calibrate};
use kbtp_mlx5_devx::{Libmlx5, Mlx5Devx, judge};
use kbtp_nic_model::{Hazards, Model, PATIENCE, Schedule};
use kbtp_target::NicChoice;
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Calibration {
    nic: String,
    /// Whether chains may serve with it.
    may_serve: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    questions: Vec<Question>,
    /// How long things took, software included; of the model it says nothing of a device.
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

/// Runs the command.
///
/// # Errors
/// [`Failure`] if chains may not serve with the device.
pub(super) fn run(args: &WqeCalibrateArgs, json: bool) -> Result<(), Failure> {
    let begin = now();
    let mut clock = || u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (unfit, report) = match &args.nic {
        NicChoice::Model => {
            let report = of_model(&mut clock)?;
            (report.refusal(), Some(report))
        }
        NicChoice::Mlx5(name) => of_device(name, &mut clock)?,
    };
    let report = of(args.nic.to_string(), unfit, report);
    output::report(json, &report, || text(&report))?;
    match report.refusal {
        None => Ok(()),
        Some(why) => Err(Failure::operation(
            format_args!("chains may not serve with this device: {why}"),
            "let software serve",
        )),
    }
}

fn of_model(clock: &mut dyn FnMut() -> u64) -> Result<Report, Failure> {
    let mut model = Model::new(Hazards::default(), Schedule::Eager, 1);
    let mut wait = |model: &mut Model| (0..PATIENCE).any(|_| model.step());
    calibrate(&mut model, &mut wait, clock).map_err(|e| broken("calibrate the model", &e))
}

fn of_device(
    name: &str,
    clock: &mut dyn FnMut() -> u64,
) -> Result<(Option<String>, Option<Report>), Failure> {
    const HELP: &str = "kbtp doctor lists the devices of this machine and what each lacks";
    let kernel = Libmlx5::open(name)
        .map_err(|e| Failure::operation(format_args!("{name} cannot be asked: {e}"), HELP))?;
    let judgement = judge(&mut Mlx5Devx::new(kernel), clock).map_err(|e| {
        let said = crate::failure::chain(&e);
        Failure::operation(format_args!("{name} cannot be asked: {said}"), HELP)
    })?;
    let unfit = judgement.unfit.map(|unfit| unfit.to_string());
    Ok((unfit, judgement.report))
}

fn of(nic: String, refusal: Option<String>, report: Option<Report>) -> Calibration {
    let (probes, latency) = report.map_or((Vec::new(), None), |r| (r.probes, r.latency));
    let questions = probes.into_iter().map(|probe| {
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
        latency_ns: latency.map(|latency| Latency {
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
            "READ {} ns, NOP {} ns, each NOP behind it {} ns: of {} on this machine",
            latency.read, latency.nop, latency.next_nop, report.nic
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
