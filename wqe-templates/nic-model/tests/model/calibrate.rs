//! The questions that a device is asked before chains may serve with it, asked of the model.

use kbtp_device::calibrate::{Outcome, Report, calibrate};
use kbtp_nic_model::{Fetch, Hazards, Model, Reply, Sampling, Schedule};

fn ask(hazards: Hazards, schedule: Schedule) -> Report {
    let mut model = Model::new(hazards, schedule, 3);
    let mut time = 0;
    // Nothing waits on the model but itself: when it stands still, one has waited long enough.
    let mut wait = |model: &mut Model| (0..40).any(|_| model.step());
    calibrate(&mut model, &mut wait, &mut || {
        time += 1;
        time
    })
    .unwrap()
}

fn failed(report: &Report) -> Vec<u8> {
    let failed = report.probes.iter();
    let failed = failed.filter(|probe| matches!(probe.outcome, Outcome::Failed(_)));
    failed.map(|probe| probe.number).collect()
}

fn says(report: &Report, number: u8) -> &str {
    let probe = report.probes.iter().find(|one| one.number == number);
    match &probe.unwrap().outcome {
        Outcome::Says(what) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_model_is_a_device_for_chains() {
    for schedule in [Schedule::Eager, Schedule::Random, Schedule::Withhold] {
        let report = ask(Hazards::default(), schedule);
        assert_eq!(failed(&report), [], "{report:?}");
        assert_eq!(report.refusal(), None);
        assert_eq!(report.probes.len(), 16);
        assert_eq!(says(&report, 9), "index checked, queue pair checked");
        assert_eq!(says(&report, 14), "an error's CQE ends a WAIT");
        assert!(report.latency.is_some());
    }
}

/// What chains bear is no reason to refuse a device.
#[test]
fn what_chains_bear_is_let_pass() {
    let plain = Hazards::default();
    for hazards in [
        Hazards {
            fetch: Fetch::WhenRun,
            ..plain
        },
        Hazards {
            fetch: Fetch::Torn,
            sampling: Sampling::Late,
            split_atomics: true,
            ..plain
        },
        Hazards {
            quiet_flush: true,
            lenient_alignment: true,
            ..plain
        },
    ] {
        let report = ask(hazards, Schedule::Random);
        assert_eq!(failed(&report), [], "{report:?}");
    }
    let lenient = Hazards {
        lenient_identity: true,
        ..plain
    };
    let report = ask(lenient, Schedule::Eager);
    assert_eq!(
        says(&report, 9),
        "index not checked, queue pair not checked"
    );
    assert_eq!(report.refusal(), None);
}

/// What they do not bear is found, and said.
#[test]
fn a_device_that_would_break_chains_is_refused() {
    let plain = Hazards::default();
    for (hazards, numbers, word) in [
        (
            Hazards {
                reply: Reply::BigEndian,
                ..plain
            },
            vec![3, 4, 5],
            "big-endian",
        ),
        (
            Hazards {
                max_pieces: 16,
                ..plain
            },
            vec![12],
            "22 octets",
        ),
        (
            Hazards {
                scatter_to_cqe: true,
                ..plain
            },
            vec![3, 4, 5, 10, 11, 12],
            "the reply",
        ),
    ] {
        let report = ask(hazards, Schedule::Eager);
        assert_eq!(failed(&report), numbers, "{report:?}");
        let refusal = report.refusal().unwrap();
        assert!(refusal.contains(word), "{refusal}");
    }
}
