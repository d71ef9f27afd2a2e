//! What who has no session can do to a target's log.

use crate::common::KBTP;
use kbtp_harness::{Peer, Process, Scratch, command, frame};
use nix::sys::signal::Signal;

/// Streams that break the rules.
const STREAMS: u64 = 100;

#[test]
fn a_stranger_does_not_fill_the_log() {
    let scratch = Scratch::new();
    let args = [
        "serve",
        "--json",
        "--listen=127.0.0.1:0",
        "--admin=off",
        "--block-size=4KiB",
        "--blocks=16",
    ];
    let target = Process::start(command(KBTP, &args), &scratch.at("log"));
    let address = target.said("/listen/0").parse().unwrap();
    let mut wrong = frame(&[0; 18]);
    *wrong.last_mut().unwrap() ^= 1;
    for _ in 0..STREAMS {
        let mut peer = Peer::connect(address);
        peer.octets(&wrong);
        peer.end();
    }
    target.signal(Signal::SIGTERM);
    let (status, log) = target.ended();
    assert!(status.success(), "{status}: {log}");
    let (more, lines): (Vec<&str>, Vec<&str>) = log
        .lines()
        .filter(|line| line.contains("a stream ended"))
        .partition(|line| line.contains("more like it"));
    let more: u64 = more
        .iter()
        .map(|line| {
            let before = line.split(" more like it").next().unwrap();
            before.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        })
        .sum();
    // Ten in each ten seconds, however slowly the machine comes to a hundred.
    assert!(more > 0, "{log}");
    assert_eq!(lines.len() as u64 + more, STREAMS, "{log}");
}
