//! The command line from outside: what it prints, and how it ends.

use crate::common::{KBTP, dir, fails, finish, json, kbtp, ok, run};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

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

/// Runs it both ways: as text, one line `kbtp: THING; REMEDY`, and with `--json`, one object with the same two.
fn fails_twice(code: i32, args: &[&str]) -> Value {
    let said = fails(code, args);
    let mut with_json = vec!["--json"];
    with_json.extend(args);
    let (got, stdout, stderr) = run(&with_json);
    assert_eq!((got, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let object: Value = serde_json::from_str(&stderr).unwrap();
    let word = |key: &str| object[key].as_str().unwrap().to_owned();
    assert_eq!(object.as_object().unwrap().len(), 2, "{object}");
    assert!(
        !word("error").is_empty() && !word("remedy").is_empty(),
        "{object}"
    );
    assert_eq!(
        said,
        format!("kbtp: {}; {}\n", word("error"), word("remedy"))
    );
    object
}

#[test]
fn every_failure_is_one_line_with_the_thing_and_a_remedy() {
    let dir = dir("failures");
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    std::fs::write(at("short.key"), "00\n").unwrap();
    // A word `none` is the path of what is not there, `short.key` that of a key too short.
    for (code, thing, line) in [
        (2, "frobnicate", "frobnicate"),
        (2, "--sed", "trace generate --sed=1"),
        (2, "'64KB'", "serve --block-size 64KB"),
        (2, "'maybe'", "serve --direct=maybe"),
        (2, "<FILE>", "put"),
        (2, "--standalone", "serve --standalone --agent=/x"),
        (2, "blocks = 999999999999", "serve --blocks=999999999999"),
        (2, "block_size", "agent --socket none --block-size=1KiB"),
        (1, "/none", "agent --socket none/agent.sock"),
        (
            1,
            "/none",
            "serve --admin=off --listen=127.0.0.1:0 --agent none",
        ),
        (
            1,
            "192.0.2.1:1",
            "serve --admin=off --listen=192.0.2.1:1 --allow-unauthenticated",
        ),
        (1, "/none", "get none"),
        (1, "/none", "free none"),
        (1, "/none", "put none"),
        (1, "/none", "replay none"),
        (1, "127.0.0.1:1", "stat --target=127.0.0.1:1"),
        (1, "127.0.0.1:1", "stat --admin=127.0.0.1:1"),
        (1, "127.0.0.1:1", "bench --target=127.0.0.1:1"),
        (1, "/none/x", "trace generate -o none/x"),
        (
            1,
            "short.key",
            "stat --target=127.0.0.1:1 --tenant=a --key-file short.key",
        ),
    ] {
        let path = |word: &str| match word {
            "none" | "none/agent.sock" | "none/x" | "short.key" => at(word),
            word => word.to_owned(),
        };
        let words: Vec<String> = line.split(' ').map(path).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let object = fails_twice(code, &words);
        let error = object["error"].as_str().unwrap();
        assert!(error.contains(thing), "{object}");
    }
}

#[test]
fn a_value_of_the_environment_is_called_by_its_variable() {
    for (variable, wrong) in [
        ("KBTP_LISTEN", "localhost"),
        ("KBTP_BLOCK_SIZE", "foo"),
        ("KBTP_BLOCKS", "foo"),
        ("KBTP_HANDLES", "foo"),
        ("KBTP_QUOTA", "foo"),
        ("KBTP_TICKET_TIMEOUT", "foo"),
        ("KBTP_LEASE", "foo"),
        ("KBTP_DIRECT", "foo"),
        ("KBTP_ADMIN", "foo"),
        ("KBTP_WORKERS", "foo"),
        ("KBTP_ALLOW_UNAUTHENTICATED", "foo"),
        // These read, and are wrong all the same.
        ("KBTP_BLOCK_SIZE", "1"),
        ("KBTP_BLOCKS", "0"),
        ("KBTP_HANDLES", "1"),
        ("KBTP_QUOTA", "0"),
    ] {
        let mut command = kbtp(&["serve", "--standalone"]);
        let (code, _, stderr) = finish(command.env(variable, wrong));
        assert_eq!(code, 2, "{variable}: {stderr}");
        let named = format!("{variable} in the environment");
        assert!(
            stderr.contains(&named) && stderr.lines().count() == 1,
            "{stderr}"
        );
        assert!(!stderr.contains("'--"), "no flag was given: {stderr}");
    }
    for (args, variable) in [
        (&["stat", "--admin=off"][..], "KBTP_TENANT"),
        (&["stat", "--admin=off"], "KBTP_KEY_FILE"),
    ] {
        let (code, _, stderr) = finish(kbtp(args).env(variable, "x"));
        assert_eq!(code, 2, "{stderr}");
        assert!(
            stderr.contains(&format!("in the environment there is {variable}")),
            "{stderr}"
        );
    }
    let (_, _, stderr) = finish(kbtp(&["stat"]).env("KBTP_ADMIN", "foo"));
    assert!(stderr.contains("KBTP_ADMIN in the environment"), "{stderr}");
    let (_, _, stderr) = finish(kbtp(&["bench"]).env("KBTP_TARGET", "foo"));
    assert!(
        stderr.contains("KBTP_TARGET in the environment"),
        "{stderr}"
    );
    // A flag that is given is to blame itself.
    let mut command = kbtp(&["serve", "--block-size=bar"]);
    let (_, _, stderr) = finish(command.env("KBTP_BLOCK_SIZE", "64KiB"));
    assert!(stderr.contains("'bar' for '--block-size"), "{stderr}");
}

#[test]
fn what_is_written_to_a_file_is_reported_as_json_too() {
    let path = dir("made").join("t.jsonl");
    let path = path.to_str().unwrap();
    let made = json(&["trace", "generate", "--requests=3", "--seed=9", "-o", path]);
    let expected = serde_json::json!({"trace": path, "seed": 9, "requests": 3});
    assert_eq!(made, expected);
    for args in [&["man"][..], &["completions", "bash"]] {
        let object = refuses_json(args);
        assert!(
            object["error"].as_str().unwrap().contains(args[0]),
            "{object}"
        );
    }
}

/// What a command that knows no JSON says when it is asked for it.
fn refuses_json(args: &[&str]) -> Value {
    let mut all = vec!["--json"];
    all.extend(args);
    let (code, stdout, stderr) = run(&all);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    serde_json::from_str(&stderr).unwrap()
}

#[test]
fn installing_puts_everything_below_the_prefix_and_uninstalling_takes_it_away() {
    let to = dir("installed");
    let make = |target: &str| {
        let done = Command::new("make")
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .args(["-s", target, "PREFIX=/opt/kbtp"])
            .arg(format!("KBTP={KBTP}"))
            .arg(format!("DESTDIR={}", to.display()))
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    };
    make("install");
    let read = |path: &str| std::fs::read_to_string(to.join("opt/kbtp").join(path)).unwrap();
    let installed = to.join("opt/kbtp/bin/kbtp");
    let version = Command::new(&installed).arg("--version").output().unwrap();
    assert!(version.status.success());
    for unit in ["agent", "target"] {
        let unit = read(&format!("lib/systemd/system/kbtp-{unit}.service"));
        assert!(unit.contains("\nExecStart=/opt/kbtp/bin/kbtp "), "{unit}");
    }
    assert!(read("share/man/man1/kbtp-serve.1").contains(".TH"));
    for completion in [
        "bash-completion/completions/kbtp",
        "zsh/site-functions/_kbtp",
        "fish/vendor_completions.d/kbtp.fish",
    ] {
        let text = read(&format!("share/{completion}"));
        assert!(text.contains("replay"), "{completion}");
    }
    assert!(read("share/doc/kbtp/examples/kbtp.env").contains("KBTP_AGENT"));
    make("uninstall");
    let mut left = vec![to];
    while let Some(path) = left.pop() {
        assert!(path.is_dir(), "{} was left behind", path.display());
        left.extend(std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()));
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
    assert!(report["tiers"].is_array());
    let text = ok(&["doctor"]);
    assert!(text.contains("--nic model"), "{text}");
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

#[test]
fn a_demo_that_cannot_be_is_wrong_usage_and_names_the_remedy() {
    for (flag, said) in [
        ("--blocks=0", "blocks = 0: "),
        ("--block-size=1", "block_size = 1"),
    ] {
        let got = fails(2, &["demo", flag]);
        assert!(got.contains(said), "{got}");
    }
    let deep = dir("deep").join("d".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    let (code, _, said) = finish(kbtp(&["demo"]).env("TMPDIR", &deep));
    assert_eq!(code, 1);
    assert!(said.contains("TMPDIR"), "{said}");
    assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0);
}
