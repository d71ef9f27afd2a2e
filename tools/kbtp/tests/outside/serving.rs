//! Targets as processes, and the commands against them.

use crate::common::{KBTP, Serving, dir, fails, finish, json, kbtp, ok, serve};
use kbtp::daemon::Daemon;
use kbtp::driver;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/sample_trace.jsonl");

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A file of `len` octets that repeat nowhere near a block's length.
fn file(dir: &Path, name: &str, len: u32) -> PathBuf {
    let path = dir.join(name);
    let octets: Vec<u8> = (0..len)
        .map(|i| u8::try_from(i.wrapping_mul(2_654_435_761) >> 24).unwrap())
        .collect();
    std::fs::write(&path, octets).unwrap();
    path
}

/// Asks until `done`, for twenty seconds at most.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = driver::now() + Duration::from_secs(20);
    while !done() {
        assert!(
            driver::now() < deadline,
            "{what} in vain for twenty seconds"
        );
    }
}

fn signal(target: &Serving, which: Signal) {
    let pid = i32::try_from(target.daemon.pid()).unwrap();
    kill(Pid::from_raw(pid), which).unwrap();
}

#[test]
fn files_come_back_as_they_were_and_are_freed() {
    let target = serve(&["--block-size=4KiB", "--blocks=64", "--quota=8"]);
    let dir = dir("files");
    let files: Vec<PathBuf> = [0, 1, 4096, 4097, 100_000]
        .iter()
        .map(|len| file(&dir, &format!("f{len}"), *len))
        .collect();
    let map = dir.join("all.kbtp.json");
    let mut args = vec!["put", "--target", &target.addr, "--map", text(&map)];
    args.extend(files.iter().map(|f| text(f)));
    let report = json(&args);
    // One, one, two and 25 blocks.
    assert_eq!(report["blocks"], 29);
    assert_eq!(target.status("/pool/blocks_bound"), 29);

    let out = dir.join("out");
    std::fs::create_dir(&out).unwrap();
    ok(&["get", text(&map), "--output", text(&out)]);
    for f in &files {
        let back = out.join(f.file_name().unwrap());
        assert_eq!(std::fs::read(f).unwrap(), std::fs::read(back).unwrap());
    }
    let said = fails(1, &["get", text(&map), "--output", text(&out)]);
    assert!(said.contains("--force"), "{said}");
    ok(&[
        "get",
        text(&map),
        "--output",
        text(&out),
        "--force",
        "--owner",
    ]);

    let mut one = kbtp(&["get", text(&map), "--file", "f4097", "--output", "-"]);
    assert_eq!(
        one.output().unwrap().stdout,
        std::fs::read(&files[3]).unwrap()
    );
    let said = fails(2, &["get", text(&map), "--file", "absent"]);
    assert!(said.contains("f4097"), "{said}");

    let report = json(&["free", text(&map), "--keep-map"]);
    assert_eq!((&report["freed"], &report["gone"]), (&29.into(), &0.into()));
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    let said = fails(1, &["get", text(&map), "--output", text(&out), "--force"]);
    assert!(said.contains("the blocks are gone"), "{said}");
    let report = json(&["free", text(&map)]);
    assert_eq!((&report["freed"], &report["gone"]), (&0.into(), &29.into()));
    assert!(!map.exists());
    target.stop();
}

#[test]
fn a_map_stands_beside_its_file_and_is_never_written_over() {
    let target = serve(&["--block-size=4KiB", "--blocks=16"]);
    let dir = dir("beside");
    let f = file(&dir, "model", 5000);
    let said = ok(&["put", "--target", &target.addr, text(&f)]);
    assert!(said.contains("model.kbtp.json"), "{said}");
    let said = fails(1, &["put", "--target", &target.addr, text(&f)]);
    assert!(said.contains("model.kbtp.json"), "{said}");
    assert_eq!(target.status("/pool/blocks_bound"), 2);
    std::fs::rename(&f, dir.join("was")).unwrap();
    ok(&["get", text(&f), "--output", text(&dir)]);
    assert_eq!(
        std::fs::read(&f).unwrap(),
        std::fs::read(dir.join("was")).unwrap()
    );
    ok(&["free", text(&f)]);
    target.stop();
}

#[test]
fn what_does_not_fit_is_not_stored_at_all() {
    let target = serve(&["--block-size=4KiB", "--blocks=4"]);
    let f = file(&dir("full"), "big", 5 * 4096);
    let said = fails(1, &["put", "--target", &target.addr, text(&f)]);
    assert!(said.contains("5 blocks are needed"), "{said}");
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    target.stop();
}

#[test]
fn a_file_that_grows_while_it_is_read_is_not_stored() {
    let map = dir("grows").join("map.kbtp.json");
    let target = serve(&["--block-size=4KiB", "--blocks=16"]);
    // The system says that it has no octets, and gives some.
    let args = ["put", "/proc/self/status", "--map", text(&map)];
    let said = fails(1, &[&args[..], &["--target", &target.addr]].concat());
    assert!(said.contains("changed while it was read"), "{said}");
    assert!(!map.exists());
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    target.stop();
}

#[test]
fn a_lease_that_runs_out_takes_the_blocks() {
    let target = serve(&["--block-size=4KiB", "--blocks=16", "--lease=100ms"]);
    let dir = dir("lease");
    let f = file(&dir, "x", 5000);
    ok(&["put", "--target", &target.addr, text(&f)]);
    until("waited for the lease", || {
        target.status("/pool/blocks_bound") == 0
    });
    let said = fails(1, &["get", text(&f), "--output", text(&dir), "--force"]);
    assert!(said.contains("the blocks are gone"), "{said}");
    let report = json(&["free", text(&f)]);
    assert_eq!(report["gone"], 2);
    target.stop();

    let target = serve(&["--block-size=4KiB", "--blocks=16", "--lease=0"]);
    let said = fails(1, &["put", "--target", &target.addr, text(&f)]);
    assert!(said.contains("--lease"), "{said}");
    target.stop();
}

#[test]
fn another_instance_has_other_blocks() {
    let args = ["--block-size=4KiB", "--blocks=16"];
    let first = serve(&args);
    let dir = dir("instance");
    let f = file(&dir, "x", 5000);
    ok(&["put", "--target", &first.addr, text(&f)]);
    first.stop();
    let second = serve(&args);
    let said = fails(
        1,
        &[
            "get",
            text(&f),
            "--output",
            text(&dir),
            "--force",
            "--target",
            &second.addr,
        ],
    );
    assert!(said.contains("its blocks are lost"), "{said}");
    second.stop();
}

#[test]
fn blocks_outlive_a_killed_target_whose_agent_holds_the_pool() {
    let dir = dir("agent");
    // A socket's path is short by law; the test directory's need not be.
    let scratch = kbtp_harness::Scratch::new();
    let socket = scratch.at("agent.sock");
    let args = [
        "agent",
        "--json",
        "--stop-with-stdin",
        "--block-size=4KiB",
        "--blocks=16",
    ];
    let mut args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    args.extend([OsStr::new("--socket"), socket.as_os_str()]);
    let agent = Daemon::start(OsStr::new(KBTP), &args).unwrap();
    let serving = ["--agent", text(&socket), "--block-size=4KiB", "--blocks=16"];
    let first = serve(&serving);
    let f = file(&dir, "x", 5000);
    ok(&["put", "--target", &first.addr, text(&f)]);
    signal(&first, Signal::SIGKILL);
    drop(first);
    let second = serve(&serving);
    let out = dir.join("out");
    std::fs::create_dir(&out).unwrap();
    ok(&[
        "get",
        text(&f),
        "--output",
        text(&out),
        "--target",
        &second.addr,
    ]);
    assert_eq!(
        std::fs::read(&f).unwrap(),
        std::fs::read(out.join("x")).unwrap()
    );
    ok(&["free", text(&f), "--target", &second.addr]);
    assert_eq!(second.status("/pool/blocks_bound"), 0);
    second.stop();
    assert!(agent.stop().unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn tenants_need_their_key() {
    let dir = dir("tenants");
    let key = "00112233445566778899aabbccddeeff";
    std::fs::write(
        dir.join("tenants.toml"),
        format!("[[tenants]]\nname = \"blue\"\nkey = \"{key}\"\n"),
    )
    .unwrap();
    std::fs::write(dir.join("key"), format!("{key}\n")).unwrap();
    std::fs::write(dir.join("wrong"), "ff".repeat(16)).unwrap();
    std::fs::write(dir.join("no"), "not hexadecimal").unwrap();
    let tenants = dir.join("tenants.toml");
    let target = serve(&[
        "--block-size=4KiB",
        "--blocks=16",
        "--tenant-file",
        text(&tenants),
    ]);
    let f = file(&dir, "x", 5000);
    let said = fails(1, &["put", "--target", &target.addr, text(&f)]);
    assert!(said.contains("--tenant"), "{said}");
    let with = |key: &str| -> Vec<String> {
        let key = dir.join(key);
        ["--tenant", "blue", "--key-file", text(&key)]
            .map(str::to_owned)
            .to_vec()
    };
    let put = |key: &str| -> Vec<String> {
        let mut args = ["put", "--target", &target.addr, text(&f)]
            .map(str::to_owned)
            .to_vec();
        args.extend(with(key));
        args
    };
    let said = fails(1, &put("wrong"));
    assert!(said.contains("NOT_AUTHORIZED"), "{said}");
    let said = fails(1, &put("no"));
    assert!(said.contains("holds no key"), "{said}");
    ok(&put("key"));
    let said = fails(2, &["free", text(&f)]);
    assert!(said.contains("add --tenant blue"), "{said}");
    std::fs::write(dir.join("short"), "00").unwrap();
    let get = |key: &str| [vec!["get".to_owned(), text(&f).to_owned()], with(key)].concat();
    let said = fails(1, &get("short"));
    assert!(said.contains("a key of 1 octets"), "{said}");
    assert_eq!(target.status("/pool/blocks_bound"), 2);
    ok(&[vec!["free".to_owned(), text(&f).to_owned()], with("key")].concat());
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    target.stop();
}

#[test]
fn flags_win_over_the_environment_which_wins_over_the_file() {
    let dir = dir("precedence");
    let config = dir.join("kbtp.toml");
    std::fs::write(
        &config,
        "blocks = 16\nblock_size = \"4KiB\"\nadmin = \"127.0.0.1:0\"\n",
    )
    .unwrap();
    let started = |flags: &[&str], blocks: Option<&str>| {
        let mut args = vec![
            "serve",
            "--json",
            "--stop-with-stdin",
            "--listen=127.0.0.1:0",
        ];
        args.extend(["--config", text(&config)]);
        args.extend(flags);
        // Its input ends at once, so it says that it is ready and stops.
        let mut command = kbtp(&args);
        if let Some(blocks) = blocks {
            command.env("KBTP_BLOCKS", blocks);
        }
        let (code, stdout, stderr) = finish(&mut command);
        assert_eq!(code, 0, "{stderr}");
        let ready: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        (ready["blocks"].clone(), ready["block_size"].clone())
    };
    assert_eq!(started(&[], None), (16.into(), 4096.into()));
    assert_eq!(started(&[], Some("32")), (32.into(), 4096.into()));
    assert_eq!(
        started(&["--blocks=64"], Some("32")),
        (64.into(), 4096.into())
    );
}

#[test]
fn blocks_of_another_owner_than_the_map_says_are_not_gone() {
    let dir = dir("owner");
    let f = file(&dir, "x", 5000);
    let target = serve(&["--block-size=4KiB", "--blocks=16"]);
    ok(&["put", text(&f), "--target", &target.addr]);
    let map = dir.join("x.kbtp.json");
    let right = std::fs::read_to_string(&map).unwrap();
    let id = serde_json::from_str::<serde_json::Value>(&right).unwrap()["initiator_id"].clone();
    let id = id.as_str().unwrap();
    let wrong = right.replace(id, "00112233-4455-6677-8899-aabbccddeeff");
    std::fs::write(&map, wrong).unwrap();
    let said = fails(1, &["free", text(&f)]);
    assert!(said.contains("is bound"), "{said}");
    assert!(map.exists());
    assert_eq!(target.status("/pool/blocks_bound"), 2);
    // As the status has it, and without the hyphens.
    let leases = json(&["stat", "--admin", &target.admin])["leases"].clone();
    let kept = leases.as_array().unwrap();
    assert!(kept.iter().any(|l| l["initiator"] == id), "{leases}");
    let bare = id.replace('-', "");
    let said = ok(&["free", "--initiator", &bare, "--target", &target.addr]);
    assert_eq!(said, "freed 2 blocks\n");
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    target.stop();
}

#[test]
fn an_interrupted_put_leaves_nothing_bound_and_an_interrupted_get_no_file() {
    let dir = dir("interrupt");
    let f = file(&dir, "x", 64 << 20);
    let target = serve(&["--block-size=4KiB", "--blocks=20000", "--lease=forever"]);
    let interrupted = |args: &[&str], when: &dyn Fn() -> bool| {
        let mut child = kbtp(args).stderr(Stdio::piped()).spawn().unwrap();
        until("the work has begun", when);
        kill(
            Pid::from_raw(i32::try_from(child.id()).unwrap()),
            Signal::SIGTERM,
        )
        .unwrap();
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
        assert!(said.contains("interrupted"), "{said}");
    };
    let put = ["put", text(&f), "--target", &target.addr];
    interrupted(&put, &|| target.status("/pool/blocks_bound") > 0);
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    assert!(!dir.join("x.kbtp.json").exists());
    ok(&put);
    let out = dir.join("out");
    std::fs::create_dir(&out).unwrap();
    let files = || std::fs::read_dir(&out).unwrap().count();
    ok(&["free", text(&f), "--keep-map"]);
    let bench = [
        "bench",
        "--size=4KiB",
        "--duration=1h",
        "--target",
        &target.addr,
    ];
    interrupted(&bench, &|| target.status("/pool/blocks_bound") > 0);
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    std::fs::remove_file(dir.join("x.kbtp.json")).unwrap();
    ok(&put);
    // Whoever only loads has a quota of one block.
    interrupted(&["get", text(&f), "--output", text(&out)], &|| {
        target.serves_quota(1)
    });
    assert_eq!(files(), 0);
    target.stop();
}

#[test]
fn signals_drain_the_target() {
    for which in [Signal::SIGTERM, Signal::SIGINT] {
        let target = serve(&["--blocks=4"]);
        signal(&target, which);
        target.stop();
    }
}

#[test]
fn a_port_in_use_is_named() {
    let target = serve(&["--blocks=4"]);
    let said = fails(1, &["serve", "--listen", &target.addr, "--admin", "off"]);
    assert!(said.contains(&target.addr), "{said}");
    target.stop();
}

#[test]
fn a_map_that_cannot_be_written_leaves_nothing_bound() {
    let target = serve(&["--block-size=4KiB", "--blocks=16", "--lease=forever"]);
    let dir = dir("limit");
    let f = file(&dir, "x", 5000);
    let script = format!(
        "ulimit -f 0; exec {KBTP} put {} --target {}",
        text(&f),
        target.addr
    );
    let mut shell = std::process::Command::new("sh");
    let (code, _, said) = finish(shell.args(["-c", &script]));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("x.kbtp.json"), "{said}");
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    assert!(!dir.join("x.kbtp.json").exists());
    target.stop();
}

#[test]
fn a_map_named_by_a_link_goes_with_its_link() {
    let target = serve(&["--block-size=4KiB", "--blocks=16"]);
    let dir = dir("link");
    let f = file(&dir, "x", 5000);
    ok(&["put", "--target", &target.addr, text(&f)]);
    let (map, link) = (dir.join("x.kbtp.json"), dir.join("link.kbtp.json"));
    std::os::unix::fs::symlink("x.kbtp.json", &link).unwrap();
    ok(&["free", text(&link)]);
    assert!(!map.exists() && link.symlink_metadata().is_err());
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    target.stop();
}

#[test]
fn stat_shows_what_a_session_is_granted() {
    let target = serve(&["--block-size=4KiB", "--blocks=16", "--lease=forever"]);
    let grant = json(&["stat", "--target", &target.addr]);
    assert_eq!(
        (&grant["block_size"], &grant["blocks"]),
        (&4096.into(), &16.into())
    );
    assert_eq!(grant["lease_ms"], u32::MAX);
    let said = ok(&["stat", "--target", &target.addr]);
    assert!(said.contains("forever"), "{said}");
    let said = ok(&["stat", "--admin", &target.admin]);
    assert!(said.contains("16 blocks of 4.00 KiB"), "{said}");
    target.stop();
}

/// References of the sample, and those in a prefix that came before.
fn expected() -> (u64, u64) {
    let (mut references, mut hits) = (0, 0);
    let mut stored = HashSet::new();
    for line in std::fs::read_to_string(SAMPLE).unwrap().lines() {
        let request: serde_json::Value = serde_json::from_str(line).unwrap();
        let ids: Vec<u64> = serde_json::from_value(request["hash_ids"].clone()).unwrap();
        references += ids.len() as u64;
        hits += ids.iter().take_while(|id| stored.contains(*id)).count() as u64;
        stored.extend(ids);
    }
    (references, hits)
}

#[test]
fn a_pool_that_holds_all_hits_every_prefix_that_came_before() {
    let report = json(&["replay", SAMPLE, "--block-size=4KiB", "--blocks=4096"]);
    let (references, hits) = expected();
    assert_eq!(report["requests"], 400);
    assert_eq!(report["references"], references);
    assert_eq!(report["hits"], hits);
    assert_eq!(report["misses"], references - hits);
    assert_eq!(report["evictions"], 0);
    assert_eq!(report["octets_loaded"], hits * 4096);
}

#[test]
fn a_small_pool_evicts_and_what_it_loads_is_right_still() {
    let report = json(&["replay", SAMPLE, "--block-size=4KiB", "--blocks=128"]);
    let (references, hits) = expected();
    assert_eq!(report["references"], references);
    assert!(report["evictions"].as_u64().unwrap() > 0);
    let got = report["hits"].as_u64().unwrap();
    assert!(got > 0 && got < hits, "{got} of {hits}");
}

#[test]
fn a_replay_against_a_target_leaves_nothing_behind() {
    let target = serve(&["--block-size=4KiB", "--blocks=256", "--lease=forever"]);
    let args = [
        "replay",
        SAMPLE,
        "--limit=50",
        "--target",
        &target.addr,
        "--blocks=200",
    ];
    let report = json(&args);
    assert_eq!(report["requests"], 50);
    assert_eq!(report["blocks"], 200);
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    let said = ok(&["replay", SAMPLE, "--limit=5", "--target", &target.addr]);
    assert!(said.contains("prefix_hit_ratio"), "{said}");
    // Nor does one that fails on the way.
    let bad = dir("replay-fails").join("t.jsonl");
    let good = std::fs::read_to_string(SAMPLE).unwrap();
    std::fs::write(&bad, good.lines().next().unwrap().to_owned() + "\n{\n").unwrap();
    let said = fails(1, &["replay", text(&bad), "--target", &target.addr]);
    assert!(said.contains("t.jsonl:2:"), "{said}");
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    // Sixteen blocks for each session: the last finds none left.
    let args = [
        "bench",
        "--size=4KiB",
        "--depth=8",
        "--sessions=17",
        "--target",
    ];
    fails(1, &[&args[..], &[&target.addr]].concat());
    assert_eq!(target.status("/pool/blocks_bound"), 0);
    target.stop();
}

#[test]
fn a_bad_trace_is_named_by_file_and_line() {
    let path = dir("bad").join("bad.jsonl");
    let first = std::fs::read_to_string(SAMPLE).unwrap();
    let first = first.lines().next().unwrap();
    std::fs::write(&path, format!("{first}\n{{\"timestamp\":1}}\n")).unwrap();
    let said = fails(1, &["replay", text(&path), "--block-size=4KiB"]);
    assert!(
        said.contains("bad.jsonl:2: ") && said.contains("input_length"),
        "{said}"
    );
    let said = fails(1, &["replay", "/nowhere.jsonl"]);
    assert!(said.contains("/nowhere.jsonl"), "{said}");
}

#[test]
fn each_operation_can_be_measured() {
    for op in ["load", "store", "alloc"] {
        let report = json(&[
            "bench",
            "--op",
            op,
            "--size=4KiB",
            "--depth=4",
            "--sessions=2",
            "--duration=50ms",
        ]);
        assert_eq!(report["op"], op);
        let operations = report["operations"].as_u64().unwrap();
        assert!(operations > 0);
        assert_eq!(report["octets"], operations * 4096);
        assert_eq!(report["latency_ns"]["count"], operations);
    }
    // As many as one may ask for; and a tenant of the environment means no target of the command's own.
    let mut most = kbtp(&["bench", "--size=4KiB", "--depth=1024", "--duration=1ms"]);
    let (code, _, said) = finish(most.envs([("KBTP_TENANT", "x"), ("KBTP_KEY_FILE", "/x")]));
    assert_eq!(code, 0, "{said}");
    fails(2, &["bench", "--duration=0s"]);
    let target = serve(&["--block-size=4KiB", "--blocks=16"]);
    let said = fails(1, &["bench", "--size=8KiB", "--target", &target.addr]);
    assert!(said.contains("octets in a block"), "{said}");
    target.stop();
}

/// Software and chains on the model of a NIC, one after the other.
#[test]
fn engines_are_measured_side_by_side() {
    let reports = json(&[
        "bench",
        "--op=alloc",
        "--size=4KiB",
        "--depth=4",
        "--duration=50ms",
        "--engine=both",
    ]);
    let [software, chain] = &reports.as_array().unwrap()[..] else {
        panic!("{reports}")
    };
    assert_eq!(software["engine"], "software");
    assert_eq!(chain["engine"], "chain");
    for report in [software, chain] {
        assert!(report["operations"].as_u64() > Some(0), "{report}");
    }
    let said = ok(&["bench", "--size=4KiB", "--duration=10ms", "--engine=chain"]);
    assert!(said.contains("chains on the model of a NIC"), "{said}");
}

#[test]
fn the_demo_starts_two_processes_and_leaves_nothing() {
    let temp = dir("demo");
    let mut command = kbtp(&[
        "demo",
        "--json",
        "--limit=40",
        "--block-size=4KiB",
        "--blocks=64",
    ]);
    let (code, stdout, stderr) = finish(command.env("TMPDIR", &temp));
    assert_eq!(code, 0, "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["replay"]["requests"], 40);
    assert!(report["replay"]["evictions"].as_u64().unwrap() > 0);
    assert!(
        report["status"]["agent"]
            .as_str()
            .unwrap()
            .ends_with("agent.sock")
    );
    assert_eq!(std::fs::read_dir(&temp).unwrap().count(), 0);
}

#[test]
fn a_target_says_which_way_it_runs() {
    let way = "software over iwarp-tcp";
    let target = serve(&["--block-size=4KiB", "--blocks=16"]);
    let build = json(&["stat", "--admin", &target.admin])["build"].clone();
    let said = |key: &str| build[key].as_str().unwrap();
    assert_eq!(
        format!("{} over {}", said("engine"), said("transport")),
        way
    );
    let stat = ok(&["stat", "--admin", &target.admin]);
    assert!(stat.contains(way), "{stat}");
    target.stop();
    let args = [
        "serve",
        "--stop-with-stdin",
        "--listen=127.0.0.1:0",
        "--admin=off",
        "--blocks=16",
    ];
    let mut child = kbtp(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut ready).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(ready.contains(way), "{ready}");
    // What is asked for is what runs, or nothing does.
    let folder = dir("way");
    let config = folder.join("chain.toml");
    std::fs::write(&config, "engine = \"chain\"\nnic = \"model\"\n").unwrap();
    let target = serve(&[
        "--config",
        text(&config),
        "--block-size=4KiB",
        "--blocks=16",
    ]);
    let build = json(&["stat", "--admin", &target.admin])["build"].clone();
    assert_eq!(build["engine"], "chain", "{build}");
    target.stop();
    std::fs::write(&config, "engine = \"chain\"\n").unwrap();
    let said = fails(2, &["serve", "--config", text(&config), "--admin=off"]);
    assert!(said.contains("nic = "), "{said}");
    std::fs::write(&config, "engine = \"chain\"\nnic = \"mlx4:x\"\n").unwrap();
    let said = fails(2, &["serve", "--config", text(&config), "--admin=off"]);
    assert!(said.contains("mlx5:DEVICE"), "{said}");
    // A device that is not there: nothing runs, and what would is named.
    let config = "engine = \"chain\"\nnic = \"mlx5:mlx5_of_nowhere\"\n";
    let file = folder.join("device.toml");
    std::fs::write(&file, config).unwrap();
    for args in [
        &["--config", text(&file)][..],
        &["--engine=chain", "--nic=mlx5:mlx5_of_nowhere"],
    ] {
        let listen = [
            "serve",
            "--listen=127.0.0.1:0",
            "--admin=off",
            "--blocks=16",
        ];
        let said = fails(1, &[&listen[..], args].concat());
        assert!(
            said.contains("(T2) may not serve with mlx5_of_nowhere"),
            "{said}"
        );
        assert!(said.contains("software (T0) would serve"), "{said}");
    }
}
