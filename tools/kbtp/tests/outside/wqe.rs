//! `kbtp wqe` from outside.

use crate::common::{dir, fails, json, ok, run};
use serde_json::Value;

const SCHEDULES: [&str; 3] = ["eager", "random", "withhold"];

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap()
}

#[test]
fn show_draws_the_chain_of_the_documentation() {
    let document = include_str!("../../../../docs/chains.md");
    for profile in ["full", "load"] {
        let drawn = ok(&["wqe", "show", "--profile", profile]);
        assert!(document.contains(drawn.trim_end()), "{drawn}");
    }
}

/// The octets of a slot that is not the first: indices and addresses differ.
#[test]
fn show_prints_the_octets_that_arm_a_slot() {
    let drawn = ok(&[
        "wqe",
        "show",
        "--profile",
        "load",
        "--slot",
        "3",
        "--octets",
    ]);
    let expected = include_str!("../golden/wqe-show-load-slot-3.txt");
    assert_eq!(drawn, expected);
}

#[test]
fn show_has_every_patch_and_enable_as_json() {
    let shown = json(&["wqe", "show", "--octets"]);
    assert_eq!(list(&shown, "wqes").len(), 60);
    let by_p = |patch: &&Value| patch["by"] == "P";
    let patches = list(&shown, "patches");
    // Of the 19 pieces of the dispatching READ, one is in scratch.
    assert_eq!(patches.iter().filter(by_p).count(), 18);
    let request = list(&shown, "request");
    let octets: u64 = request.iter().map(|one| one["len"].as_u64().unwrap()).sum();
    assert_eq!(octets, 128);
    let arm = list(&shown, "arm");
    let names = arm.iter().filter_map(|step| step["write"]["what"].as_str());
    assert_eq!(names.take(2).collect::<Vec<_>>(), ["WAITR", "EN0"]);
    assert_eq!(arm.last().unwrap()["post_receive"]["segments"], 11);
}

/// Every tag that is opened is closed, and every WQE has its box.
fn drawing(svg: &str, boxes: usize) {
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<rect class=\"wqe").count(), boxes);
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        let name = tag.split([' ', '/']).find(|name| !name.is_empty());
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), name, "{tag}"),
            (_, true) => {}
            _ => open.push(name.unwrap()),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn drawings_show_what_is_armed_and_what_ran() {
    let path = dir("wqe-svg").join("chain.svg");
    let file = path.to_str().unwrap();
    ok(&["wqe", "show", "--svg", file]);
    let armed = std::fs::read_to_string(&path).unwrap();
    drawing(&armed, 60);
    assert_eq!(armed.matches("wqe ran").count(), 0);
    ok(&["wqe", "run", "load", "--svg", file]);
    let ran = std::fs::read_to_string(&path).unwrap();
    drawing(&ran, 60);
    assert!(ran.matches("wqe ran").count() > 40);
    let said = fails(1, &["wqe", "show", "--svg", "/nowhere/chain.svg"]);
    assert!(said.contains("/nowhere/chain.svg"), "{said}");
}

#[test]
fn check_says_of_each_rule_that_it_holds() {
    for profile in ["full", "load"] {
        let report = json(&["wqe", "check", "--profile", profile, "--slot", "1000"]);
        assert_eq!(report["holds"], true);
        let rules = list(&report, "rules");
        assert_eq!(rules.len(), 14);
        assert!(rules.iter().all(|rule| rule["holds"] == true));
        let text = ok(&["wqe", "check", "--profile", profile]);
        assert_eq!(text.matches("holds").count(), 14);
    }
}

#[test]
fn check_finds_spoilt_octets_of_a_file() {
    let path = dir("wqe-check").join("slot.json");
    let file = path.to_str().unwrap();
    let mut shown = json(&["wqe", "show", "--octets", "--slot", "5"]);
    let write = |shown: &Value| std::fs::write(&path, shown.to_string()).unwrap();
    write(&shown);
    let said = ok(&["wqe", "check", "--slot", "5", "--octets", file]);
    assert!(
        said.contains("the octets are those that are built"),
        "{said}"
    );
    let said = fails(2, &["wqe", "check", "--octets", file]);
    assert!(said.contains("--slot 5"), "{said}");
    // The WAIT for a request waits for the one after it.
    let octets = &mut shown["arm"][0]["write"]["octets"];
    let whole = octets.as_str().unwrap().to_owned();
    let later = format!("{}06{}", &whole[..54], &whole[56..]);
    assert_ne!(whole, later);
    *octets = later.into();
    write(&shown);
    let (code, stdout, stderr) = run(&["wqe", "check", "--slot", "5", "--octets", file]);
    assert_eq!(code, 1, "{stdout}");
    assert!(stdout.contains("R5   BROKEN"), "{stdout}");
    assert!(
        stdout.contains("WAITR, octet 27: 06 instead of 05"),
        "{stdout}"
    );
    assert!(stderr.contains("1 of 14 rules"), "{stderr}");
    // A key that no rule looks at is still another octet.
    shown["arm"][0]["write"]["octets"] = whole.into();
    let octets = &mut shown["arm"][2]["write"]["octets"];
    let whole = octets.as_str().unwrap().to_owned();
    *octets = format!("{}ff{}", &whole[..54], &whole[56..]).into();
    write(&shown);
    let (code, stdout, stderr) = run(&["wqe", "check", "--slot", "5", "--octets", file]);
    assert_eq!(code, 1, "{stdout}");
    assert!(stdout.contains("CKR, octet 27: ff instead of"), "{stdout}");
    assert!(stderr.contains("not as built"), "{stderr}");
    std::fs::write(&path, "{").unwrap();
    let said = fails(1, &["wqe", "check", "--octets", file]);
    assert!(said.contains("slot.json"), "{said}");
}

#[test]
fn cost_counts_and_predicts() {
    let report = json(&["wqe", "cost", "--block-size", "4KiB"]);
    let [full, load] = &list(&report, "profiles")[..] else {
        panic!("{report}")
    };
    assert_eq!(full["wqes"], serde_json::json!([56, 4]));
    assert_eq!(load["basic_blocks"], serde_json::json!([25, 4]));
    let requests = list(full, "requests");
    let round_trips = requests.iter().map(|one| &one["round_trips_in_the_device"]);
    assert_eq!(round_trips.collect::<Vec<_>>(), [3, 9, 11, 8]);
    for request in requests.iter().chain(list(load, "requests")) {
        let predicted = list(request, "predicted");
        let device = predicted.iter().map(|one| one["device"].as_str().unwrap());
        assert_eq!(device.collect::<Vec<_>>(), ["ConnectX-7", "BlueField-3"]);
        assert!(
            predicted
                .iter()
                .all(|one| one["answered_ns"].as_u64() > Some(5000))
        );
    }
    let text = ok(&["wqe", "cost"]);
    assert!(text.contains("predicted, not measured"), "{text}");
}

/// Requests, what is the matter with each, and how it ends: a status, who answers, or the WQE that fails.
const CASES: &[(&str, &str, &str, &str)] = &[
    ("load", "ok", "OK", "the chain"),
    ("load", "longer-buffer", "OK", "software"),
    ("load", "not-valid", "NOT_VALID", "software"),
    (
        "load",
        "generation-mismatch",
        "GENERATION_MISMATCH",
        "software",
    ),
    ("load", "not-sealed", "NOT_SEALED", "software"),
    ("load", "length-error", "LENGTH_ERROR", "software"),
    ("load", "bad-request", "BAD_REQUEST", "software"),
    ("load", "not-authorized", "", "T"),
    ("store", "ok", "OK", "the chain"),
    ("store", "not-valid", "NOT_VALID", "software"),
    (
        "store",
        "generation-mismatch",
        "GENERATION_MISMATCH",
        "software",
    ),
    ("store", "sealed", "SEALED", "software"),
    ("store", "length-error", "LENGTH_ERROR", "software"),
    ("store", "bad-request", "BAD_REQUEST", "software"),
    ("store", "not-authorized", "", "U0"),
    ("alloc", "ok", "OK", "the chain"),
    ("alloc", "already-valid", "ALREADY_VALID", "software"),
    (
        "alloc",
        "generation-mismatch",
        "GENERATION_MISMATCH",
        "software",
    ),
    ("alloc", "length-error", "LENGTH_ERROR", "software"),
    ("alloc", "bad-request", "BAD_REQUEST", "software"),
    ("alloc", "not-authorized", "", "U0"),
    ("free", "ok", "OK", "the chain"),
    ("free", "not-valid", "NOT_VALID", "software"),
    (
        "free",
        "generation-mismatch",
        "GENERATION_MISMATCH",
        "software",
    ),
    ("free", "bad-request", "BAD_REQUEST", "software"),
    ("free", "not-authorized", "", "U0"),
];

/// Whether an event has a change of this place.
fn changes(report: &Value, who: &str, place: &str) -> bool {
    list(report, "events").iter().any(|event| {
        let mut changes = list(event, "changes").iter();
        event["who"] == who && changes.any(|change| change["place"] == place)
    })
}

#[test]
fn every_case_ends_as_it_should() {
    for (number, (operation, case, status, by)) in CASES.iter().enumerate() {
        // A model is made for each: those that the chain serves go through all schedules, the others through one.
        let all = if *case == "ok" { 3 } else { 1 };
        for schedule in SCHEDULES.iter().cycle().skip(number).take(all) {
            let args = [
                "wqe",
                "run",
                operation,
                "--case",
                case,
                "--schedule",
                schedule,
            ];
            let report = json(&args);
            let outcome = &report["outcome"];
            if status.is_empty() {
                assert_eq!(outcome["end"], "ended", "{args:?}: {outcome}");
                assert_eq!(outcome["wqe"], *by, "{args:?}: {outcome}");
                // Nothing of anybody's was touched.
                let touched = list(&report, "events").iter().flat_map(|event| {
                    let changes = list(event, "changes").iter();
                    changes.map(|change| change["place"].as_str().unwrap())
                });
                let mut touched = touched.filter(|place| {
                    let of = ["entry", "another's", "block", "ring slot", "Head", "Tail"];
                    of.iter().any(|of| place.starts_with(of))
                });
                assert_eq!(touched.next(), None, "{args:?}");
            } else {
                assert_eq!(outcome["status"], *status, "{args:?}: {outcome}");
                assert_eq!(outcome["by"], *by, "{args:?}: {outcome}");
            }
        }
    }
}

#[test]
fn each_octet_that_changes_has_who_changed_it() {
    let load = json(&["wqe", "run", "load"]);
    for (who, place) in [
        ("request", "D[20..22]"),
        ("D", "P[22]"),
        ("P", "GO[3]"),
        ("P", "C1[3]"),
        ("C1", "client's buffer[0..4096]"),
    ] {
        assert!(changes(&load, who, place), "{who}, {place}");
    }
    let alloc = json(&["wqe", "run", "alloc"]);
    for (who, place) in [
        ("FA", "Head[0]"),
        ("X1", "C3[42]"),
        ("C3", "block 0[0..4096]"),
        ("U2", "entry 0x100[1]"),
    ] {
        assert!(changes(&alloc, who, place), "{who}, {place}");
    }
    // What runs when does not change what comes of it.
    let text = ok(&["wqe", "run", "free", "--schedule", "withhold", "--all"]);
    assert!(text.contains("U0         RDMA_WRITE"), "{text}");
    assert!(text.contains("OK, answered by the chain"), "{text}");
}

#[test]
fn calibrate_asks_the_model_all_questions() {
    let report = json(&["wqe", "calibrate"]);
    assert_eq!(report["may_serve"], true);
    let questions = list(&report, "questions");
    assert_eq!(questions.len(), 16);
    let needed = questions.iter().filter(|one| one["needed"] == true);
    assert!(needed.clone().count() >= 12);
    assert!(needed.clone().all(|one| one["answer"] == "yes"));
    let text = ok(&["wqe", "calibrate", "--nic", "model"]);
    assert!(text.contains("may serve with it"), "{text}");
    let said = fails(1, &["wqe", "calibrate", "--nic", "mlx5:mlx5_of_nowhere"]);
    assert!(said.contains("mlx5_of_nowhere cannot be asked"), "{said}");
    fails(2, &["wqe", "calibrate", "--nic", "mlx5:../x"]);
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for args in [
        &["wqe", "run", "free", "--case", "sealed"][..],
        &["wqe", "run", "store", "--profile", "load"],
    ] {
        fails(2, args);
    }
    let (code, _, stderr) = run(&["wqe", "show", "--block-size", "7"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("'7'"), "{stderr}");
}
