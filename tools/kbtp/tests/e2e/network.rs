//! Two hosts and a cable: every MTU and both IPs, a cable that is pulled, and who may listen.

use crate::common::SAMPLE;
use crate::net::{Host, installed, possible};
use kbtp_harness::{End, Hand, Process, Scratch, cut_off, eventually, ok, options, run};
use std::sync::mpsc;
use std::time::Duration;

const KEY: &str = "00112233445566778899aabbccddeeff";

/// What is printed here is shown even if the test passes: the others that need hosts, or a decoder, say no more.
#[test]
fn what_these_tests_need_is_there() {
    let all = possible() && ["tshark", "dumpcap"].into_iter().all(installed);
    println!("hosts and a decoder: {}", if all { "yes" } else { "NO" });
}

/// A target on `host`.
fn serve(host: &Host, scratch: &Scratch, listen: &str, more: &[&str]) -> Process {
    let mut args = vec![
        "serve",
        "--json",
        "--stop-with-stdin",
        "--block-size=64KiB",
        "--blocks=64",
        "--lease=forever",
        "--admin=off",
        "--listen",
        listen,
    ];
    args.extend(more);
    Process::start(host.kbtp(&args), &scratch.at("target.log"))
}

/// Octets that repeat nowhere near a block's length.
fn file(scratch: &Scratch, name: &str) -> Vec<u8> {
    let octets = kbtp_harness::pattern(5, 1_000_003);
    std::fs::write(scratch.at(name), &octets).unwrap();
    octets
}

/// A file goes from `host` to the target and back.
fn there_and_back(host: &Host, scratch: &Scratch, target: &str, more: &[&str]) {
    let octets = file(scratch, "file");
    let (path, out) = (scratch.text("file"), scratch.text("out"));
    std::fs::create_dir(&out).unwrap();
    let with = |args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(more);
        host.kbtp(&all)
    };
    ok(with(&["put", "--target", target, &path]));
    ok(with(&["get", &path, "--output", &out]));
    assert!(std::fs::read(scratch.at("out/file")).unwrap() == octets);
    ok(with(&["free", &path]));
}

fn over(mtu: &str, addresses: &[&str]) {
    if !possible() {
        return;
    }
    let (a, b) = Host::pair(mtu);
    for address in addresses {
        let scratch = Scratch::new();
        let target = serve(&a, &scratch, address, &["--allow-unauthenticated"]);
        let at = target.said("/listen/0");
        there_and_back(&b, &scratch, &at, &[]);
        let args = ["--json", "replay", SAMPLE, "--limit=60", "--target", &at];
        let report: serde_json::Value = serde_json::from_str(&ok(b.kbtp(&args))).unwrap();
        assert_eq!(report["requests"], 60);
        assert!(report["hits"].as_u64().unwrap() > 0 && report["evictions"].as_u64() > Some(0));
        target.stop();
    }
}

#[test]
fn files_and_a_replay_go_over_ethernet_with_mtu_1500() {
    over("1500", &["10.77.0.1:0", "[fd77::1]:0"]);
}

#[test]
fn files_and_a_replay_go_over_jumbo_frames() {
    over("9000", &["10.77.0.1:0", "[fd77::1]:0"]);
}

#[test]
fn a_pulled_cable_is_an_error_in_time_and_never_wrong_data() {
    if !possible() {
        return;
    }
    let (a, b) = Host::pair("1500");
    let scratch = Scratch::new();
    let target = serve(&a, &scratch, "10.77.0.1:0", &["--allow-unauthenticated"]);
    let at = target.said("/listen/0");
    for (owner, pulled) in [(1, &a), (2, &b)] {
        b.inside(|| {
            let wanted = options(&at, owner)
                .quota(16)
                .direct_load(true)
                .direct_alloc(true)
                .timeout(Duration::from_secs(4))
                .connect_timeout(Duration::from_secs(2));
            let mut hand = Hand::new(owner, wanted);
            let (tell, told) = mpsc::channel();
            let end = std::thread::scope(|scope| {
                let cable = scope.spawn(|| {
                    for _ in 0..200 {
                        told.recv().expect("work goes on");
                    }
                    pulled.ip(&["link", "set", "cable", "down"]);
                    // What is on its way may still arrive; then nothing does.
                    drop(told);
                });
                // Each operation has its time; none hangs.
                let end = hand.work(|| {
                    tell.send(()).unwrap_or_default();
                    true
                });
                cable.join().unwrap();
                end
            });
            let End::Lost(error) = end else {
                panic!("{end:?}");
            };
            assert!(cut_off(&error), "{error}");
            assert!(hand.client.reconnect().is_err(), "there is no cable");
            pulled.ip(&["link", "set", "cable", "up"]);
            let resumed = eventually("the session is resumed", || hand.client.reconnect().ok());
            assert!(resumed.bindings_kept(), "{resumed:?}");
            hand.verify();
            let mut done = 0;
            let end = hand.work(|| {
                done += 1;
                done < 200
            });
            assert!(matches!(end, End::Enough), "{end:?}");
            hand.verify();
            hand.clear();
            hand.client.close().unwrap();
        });
    }
    target.stop();
}

/// With the cable out for a moment only, TCP goes on where it was: nothing is lost, and no session is set up anew.
#[test]
fn a_cable_that_is_soon_back_ends_nothing() {
    if !possible() {
        return;
    }
    let (a, b) = Host::pair("9000");
    let scratch = Scratch::new();
    let target = serve(&a, &scratch, "10.77.0.1:0", &["--allow-unauthenticated"]);
    let at = target.said("/listen/0");
    b.inside(|| {
        let wanted = options(&at, 1).quota(16).timeout(Duration::from_mins(1));
        let mut hand = Hand::new(1, wanted);
        let (tell, told) = mpsc::channel();
        let (back, is_back) = mpsc::channel();
        let pulled = &a;
        std::thread::scope(|scope| {
            let cable = scope.spawn(move || {
                for _ in 0..3 {
                    for _ in 0..100 {
                        told.recv().expect("work goes on");
                    }
                    pulled.ip(&["link", "set", "cable", "down"]);
                    pulled.ip(&["link", "set", "cable", "up"]);
                }
                back.send(()).unwrap();
                told.iter().for_each(drop);
            });
            let mut after = 0;
            let end = hand.work(|| {
                tell.send(()).unwrap();
                after += u32::from(after > 0 || is_back.try_recv().is_ok());
                after < 100
            });
            assert!(matches!(end, End::Enough), "{end:?}");
            drop(tell);
            cable.join().unwrap();
        });
        hand.verify();
    });
    target.stop();
}

#[test]
fn who_listens_beyond_loopback_must_know_its_initiators() {
    if !possible() {
        return;
    }
    let (a, b) = Host::pair("1500");
    let scratch = Scratch::new();
    for listen in [
        "10.77.0.1:7471",
        "[fd77::1]:7471",
        "0.0.0.0:7471",
        "[::]:7471",
    ] {
        let (code, _, stderr) = run(a.kbtp(&["serve", "--admin=off", "--listen", listen]));
        assert_eq!(code, 2, "{listen}: {stderr}");
        assert!(stderr.contains("allow_unauthenticated"), "{stderr}");
    }
    let tenants = scratch.text("tenants.toml");
    let text = format!("[[tenants]]\nname = \"blue\"\nkey = \"{KEY}\"\n");
    std::fs::write(&tenants, text).unwrap();
    let key = scratch.text("key");
    std::fs::write(&key, KEY).unwrap();
    let target = serve(&a, &scratch, "[fd77::1]:0", &["--tenant-file", &tenants]);
    let at = target.said("/listen/0");
    let who = ["--tenant", "blue", "--key-file", &key];
    there_and_back(&b, &scratch, &at, &who);
    let (code, _, stderr) = run(b.kbtp(&["stat", "--target", &at]));
    assert_eq!(code, 1, "nobody in particular is let in: {stderr}");
    std::fs::write(&key, KEY.replace('0', "1")).unwrap();
    let mut stranger = vec!["stat", "--target", &at];
    stranger.extend(who);
    let (code, _, stderr) = run(b.kbtp(&stranger));
    assert_eq!(code, 1);
    assert!(stderr.contains("NOT_AUTHORIZED"), "{stderr}");
    target.stop();
}
