//! `kbtp wqe check`: each rule of the static checker, with its verdict.

use super::rig::Rig;
use super::show::ArmStep;
use super::{hex, put, unhex};
use crate::cli::wqe::{WqeCheckArgs, WqeProfile};
use crate::failure::Failure;
use crate::files;
use crate::output;
use kbtp_chain::record::{Outcome, Record};
use kbtp_chain::{Finding, Rule, Step, Template, check, check_armed, check_rows, table};
use serde::{Deserialize, Serialize};
use std::path::Path;

#[derive(Debug, Serialize)]
struct Report {
    profile: WqeProfile,
    slot: u64,
    holds: bool,
    rules: Vec<Verdict>,
    /// Octets of the file that are not those that would be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    differences: Option<Vec<Difference>>,
}

#[derive(Debug, Serialize)]
struct Verdict {
    rule: usize,
    says: &'static str,
    holds: bool,
    findings: Vec<Place>,
}

#[derive(Debug, Serialize)]
struct Place {
    wqe: &'static str,
    what: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    what: String,
    /// First octet, from the start of what it is in.
    at: usize,
    built: String,
    file: String,
}

/// What is read of a file that `wqe show --octets --json` made.
#[derive(Debug, Deserialize)]
struct Octets {
    slot: u64,
    arm: Vec<ArmStep>,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] if a rule does not hold, octets differ, or the file cannot be read.
pub(super) fn run(args: &WqeCheckArgs, json: bool) -> Result<(), Failure> {
    let rig = Rig::empty(args.chain)?;
    let template = rig.session.template();
    let built = rig.arm(args.slot)?;
    let file = args
        .octets
        .as_deref()
        .map(|path| read(path, args.slot, &built))
        .transpose()?;
    let steps = file.as_ref().unwrap_or(&built);
    let placement = rig.session.placement();
    let mut findings = check(template, &placement.sizes);
    findings.extend(check_rows(template, |outcome, flags, variant| {
        row(template, outcome, flags.0, variant.0)
    }));
    findings.extend(check_armed(template, placement, args.slot, steps));
    let differences = file.map(|file| differences(template, &built, &file));
    let same = differences.as_ref().is_none_or(Vec::is_empty);
    let report = Report {
        profile: args.chain.profile,
        slot: args.slot,
        holds: findings.is_empty() && same,
        rules: verdicts(&findings),
        differences,
    };
    output::report(json, &report, || text(&report))?;
    if report.holds {
        return Ok(());
    }
    let broken = report.rules.iter().filter(|one| !one.holds).count();
    Err(Failure::operation(
        match (broken, &report.differences) {
            (0, Some(all)) => format!("{} runs of octets are not as built", all.len()),
            _ => format!("{broken} of {} rules do not hold", report.rules.len()),
        },
        "the octets are not those of a chain that may serve: build them again",
    ))
}

/// A row of the record table, as a READ finds it: of the table for messages with a Data Descriptor or of the other, whichever
/// knows the outcome.
fn row(template: &Template, outcome: Outcome, flags: u16, variant: u8) -> Record {
    let [_, flags] = flags.to_be_bytes();
    let place = (outcome as u8) << 4 | flags & 0x0f;
    let with_data = outcome != Outcome::NoData;
    table::record(template, with_data, u16::from_be_bytes([place, variant]))
}

fn verdicts(findings: &[Finding]) -> Vec<Verdict> {
    let verdict = |(number, rule): (usize, Rule)| {
        let of = findings.iter().filter(|one| one.rule == rule);
        let findings: Vec<Place> = of
            .map(|one| Place {
                wqe: one.wqe,
                what: one.what.clone(),
            })
            .collect();
        Verdict {
            rule: number,
            says: rule.says(),
            holds: findings.is_empty(),
            findings,
        }
    };
    (1..).zip(Rule::ALL).map(verdict).collect()
}

/// The steps of a file. The receive list is not in it: it is the one that is built.
fn read(path: &Path, slot: u64, built: &[Step]) -> Result<Vec<Step>, Failure> {
    let text = files::read_text(path, files::SETTINGS_MAX);
    let text = text.map_err(|e| Failure::file("read", path, &e))?;
    let wrong = |what: String| {
        Failure::operation(
            format_args!("{}: {what}", path.display()),
            "make it with kbtp wqe show --octets --json",
        )
    };
    let octets: Octets = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    if octets.slot != slot {
        return Err(Failure::usage(
            format_args!("{} is of slot {}", path.display(), octets.slot),
            format_args!("say --slot {}", octets.slot),
        ));
    }
    let receive = built.iter().find_map(|step| match step {
        Step::PostReceive(list) => Some(list),
        _ => None,
    });
    let step = |(number, step): (usize, ArmStep)| match step {
        ArmStep::Write {
            address, octets, ..
        } => {
            let octets = unhex(&octets);
            let octets = octets.ok_or_else(|| wrong(format!("step {number}: no octets")))?;
            Ok(Step::Write { address, octets })
        }
        ArmStep::Barrier => Ok(Step::Barrier),
        ArmStep::PostReceive { .. } => Ok(Step::PostReceive(receive.cloned().unwrap_or_default())),
    };
    octets.arm.into_iter().enumerate().map(step).collect()
}

/// Runs of octets that differ from those that are built, in memory as all steps leave it.
fn differences(template: &Template, built: &[Step], file: &[Step]) -> Vec<Difference> {
    let mut names = template.elements().map(|(_, element)| element.name);
    let mut all = Vec::new();
    for step in built {
        let Step::Write { address, octets } = step else {
            continue;
        };
        let what = names.next().unwrap_or("behind the WQEs");
        let found = file.iter().rev().find_map(|step| match step {
            Step::Write {
                address: at,
                octets,
            } if at == address => Some(octets.as_slice()),
            _ => None,
        });
        let found = found.unwrap_or_default();
        let len = octets.len().max(found.len());
        let differs = |at: &usize| octets.get(*at) != found.get(*at);
        let mut at = 0;
        while let Some(from) = (at..len).find(differs) {
            let to = (from..len).find(|at| !differs(at)).unwrap_or(len);
            let cut = |of: &[u8]| hex(of.get(from..to.min(of.len())).unwrap_or_default());
            all.push(Difference {
                what: what.to_owned(),
                at: from,
                built: cut(octets),
                file: cut(found),
            });
            at = to;
        }
    }
    all
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for verdict in &report.rules {
        let mark = if verdict.holds { "holds " } else { "BROKEN" };
        put(
            &mut text,
            format_args!("R{:<2}  {mark}  {}", verdict.rule, verdict.says),
        );
        for place in &verdict.findings {
            put(
                &mut text,
                format_args!("             {}: {}", place.wqe, place.what),
            );
        }
    }
    let Some(differences) = &report.differences else {
        return text;
    };
    if differences.is_empty() {
        text.push_str("the octets are those that are built\n");
    }
    for one in differences {
        put(
            &mut text,
            format_args!(
                "{}, octet {}: {} instead of {}",
                one.what, one.at, one.file, one.built
            ),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbtp_chain::full;
    use kbtp_wire::ByteLen;

    #[test]
    fn a_file_without_end_is_not_read_whole() {
        let error = read(Path::new("/dev/zero"), 0, &[]).unwrap_err();
        assert!(
            error.to_string().contains("longer than 1.00 MiB"),
            "{error}"
        );
    }

    #[test]
    fn differences_are_runs_of_octets_with_their_wqe() {
        let template = full(ByteLen(4096));
        let write = |octets: &[u8]| Step::Write {
            address: 64,
            octets: octets.to_vec(),
        };
        let built = [write(&[1, 2, 3, 4, 5])];
        assert_eq!(differences(&template, &built, &built), []);
        let found = differences(&template, &built, &[write(&[1, 7, 8, 4, 9])]);
        let [first, second] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!((first.what.as_str(), first.at), ("WAITR", 1));
        assert_eq!(
            (first.built.as_str(), first.file.as_str()),
            ("0203", "0708")
        );
        assert_eq!((second.at, second.file.as_str()), (4, "09"));
        assert_eq!(differences(&template, &built, &[]).len(), 1);
    }
}
