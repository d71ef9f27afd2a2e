//! The command line from outside: what it prints, and how it ends.

use crate::common::{KBTP, dir, fails, finish, json, kbtp, ok, run};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

#[test]
fn help_and_version_are_no_failures_and_no_command_is_one() {
    for args in [["--help"], ["--version"]] {
        let (code, stdout, _) = run(&args);
        assert_eq!(code, 0);
        assert!(stdout.contains("kbtp"), "{stdout}");
    }
    assert_eq!(run::<&str>(&[]).0, 2);
    assert_eq!(run(&["frobnicate"]).0, 2);
}

#[test]
fn every_command_has_a_help_of_its_own() {
    for command in [
        "serve",
        "agent",
        "put",
        "get",
        "free",
        "stat",
        "replay",
        "trace",
        "demo",
        "bench",
        "doctor",
        "wqe",
        "completions",
        "man",
    ] {
        let said = ok(&[command, "--help"]);
        assert!(said.contains(&format!("kbtp {command}")), "{said}");
    }
}

#[test]
fn wrong_sizes_and_durations_are_usage_errors_that_name_the_text() {
    for args in [
        ["serve", "--block-size", "64KB"],
        ["serve", "--lease", "soon"],
        ["bench", "--depth", "0"],
        ["replay", "x", "--blocks=many"],
    ] {
        let (code, _, stderr) = run(&args);
        assert_eq!(code, 2, "{args:?}");
        let wrong = args[2].rsplit('=').next().unwrap();
        assert!(stderr.contains(wrong), "{stderr}");
    }
}

#[test]
fn a_wrong_configuration_names_file_and_line_or_key_and_value() {
    let path = dir("config").join("kbtp.toml");
    std::fs::write(&path, "blocks = 16\nbloks = 17\n").unwrap();
    let path = path.to_str().unwrap();
    let said = fails(2, &["serve", "--config", path]);
    assert!(
        said.contains("kbtp.toml:2: ") && said.contains("bloks"),
        "{said}"
    );
    let said = fails(2, &["serve", "--blocks", "0", "--admin", "off"]);
    assert!(said.contains("blocks = 0: "), "{said}");
    let said = fails(2, &["serve", "--listen", "0.0.0.0:0", "--admin", "off"]);
    assert!(said.contains("allow_unauthenticated"), "{said}");
    let said = fails(1, &["serve", "--config", "/nowhere/kbtp.toml"]);
    assert!(said.contains("/nowhere/kbtp.toml"), "{said}");
}

#[test]
fn completions_and_man_pages_come_from_the_definition() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(ok(&["completions", shell]).contains("replay"), "{shell}");
    }
    assert!(ok(&["man"]).contains(".TH kbtp"));
    let dir = dir("man");
    ok(&["man", "--dir", dir.to_str().unwrap()]);
    for page in ["kbtp.1", "kbtp-serve.1", "kbtp-trace-generate.1"] {
        let text = std::fs::read_to_string(dir.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn doctor_says_which_way_would_run_and_why() {
    let report = json(&["doctor"]);
    assert_eq!(report["would_run"], "software over a plain NIC");
    let ways = report["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 3);
    assert!(ways.iter().all(|w| !w["why"].as_str().unwrap().is_empty()));
    let text = ok(&["doctor"]);
    assert!(text.contains("RUNS"), "{text}");
}

#[test]
fn a_generated_trace_is_what_its_seed_says() {
    let made = |seed| ok(&["trace", "generate", "--requests", "20", "--seed", seed]);
    assert_eq!(made("5").lines().count(), 20);
    assert_eq!(made("5"), made("5"));
    assert_ne!(made("5"), made("6"));
    let path = dir("trace").join("t.jsonl");
    let path = path.to_str().unwrap();
    ok(&[
        "trace",
        "generate",
        "--requests",
        "20",
        "--seed",
        "5",
        "-o",
        path,
    ]);
    assert_eq!(std::fs::read_to_string(path).unwrap(), made("5"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = kbtp(&["trace", "generate", "--requests", "1000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    drop(stdout);
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(said, "");
}

#[test]
fn a_target_that_is_not_there_is_named_with_the_remedy() {
    // A port that was free a moment ago; nobody listens on it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap().to_string();
    drop(free);
    let said = fails(1, &["stat", "--target", &addr]);
    assert!(
        said.contains(&addr) && said.contains("kbtp serve"),
        "{said}"
    );
    let said = fails(1, &["stat", "--admin", &addr]);
    assert!(said.contains(&addr) && said.contains("--admin"), "{said}");
}

#[test]
fn the_environment_stands_for_flags() {
    let mut command = kbtp(&["serve", "--admin", "off", "--listen", "127.0.0.1:0"]);
    let (code, _, stderr) = finish(command.env("KBTP_BLOCKS", "0"));
    assert_eq!(code, 2);
    assert!(stderr.contains("blocks = 0: "), "{stderr}");
    assert!(KBTP.ends_with("kbtp"));
}

#[test]
fn a_flag_wins_over_what_the_environment_says_of_its_opposite() {
    let args = [
        "serve",
        "--standalone",
        "--admin=off",
        "--listen=127.0.0.1:0",
    ];
    let mut command = kbtp(&args);
    let (code, _, said) = finish(
        command
            .arg("--stop-with-stdin")
            .env("KBTP_AGENT", "/nowhere/agent.sock")
            .env("KBTP_ALLOW_UNAUTHENTICATED", "1"),
    );
    assert_eq!(code, 0, "{said}");
    // Nothing listens there; that it is asked is the point.
    let mut command = kbtp(&["stat", "--target", "127.0.0.1:1"]);
    let (code, _, said) = finish(command.env("KBTP_ADMIN", "off"));
    assert!(code == 1 && said.contains("127.0.0.1:1"), "{said}");
    let (code, _, said) = run(&["stat", "--target=127.0.0.1:1", "--admin=127.0.0.1:2"]);
    assert!(code == 2 && said.contains("cannot be used with"), "{said}");
}

#[test]
fn a_configuration_without_end_is_refused() {
    let said = fails(1, &["serve", "--config", "/dev/zero"]);
    assert!(said.contains("longer than"), "{said}");
}
