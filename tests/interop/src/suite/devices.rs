//! Our streams over RDMA devices (`kbtp-verbs`) in the guest: with themselves, and across the guest's boundary with the
//! user-space stack.

use super::ours::options;
use super::theirs::{build, listen};
use super::{COMMAND, Outcome, PEER, PROGRAM, Scene, Test};
use crate::guest::{HOST, RXE_ADDRESS};
use crate::party::Party;
use crate::peer::{answer, drive};
use crate::streams::{accept, connect};
use kbtp_iwarp_tcp::{FpduSize, Handshake, StreamOptions};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// All operations at all sizes, under emulation.
const LONG: Duration = Duration::from_mins(3);
/// The tests of `kbtp-verbs`, all of them.
const SUITE: Duration = Duration::from_mins(6);

/// All tests of this file.
pub(super) fn tests() -> Vec<Test> {
    let mut tests: Vec<Test> = vec![
        (
            "kbtp-verbs: its tests on rxe and siw".to_owned(),
            Box::new(its_tests),
        ),
        (
            "kbtp-verbs on rxe with itself: all operations".to_owned(),
            Box::new(with_itself),
        ),
        (
            "KBTP on rxe: records, direct modes, everything".to_owned(),
            Box::new(|scene| {
                kbtp(
                    scene,
                    RXE_ADDRESS,
                    "granted records and loads and allocations: good",
                )
            }),
        ),
        (
            "KBTP on siw: neither records nor direct modes".to_owned(),
            Box::new(|scene| kbtp(scene, crate::guest::ADDRESS, "granted nothing more: good")),
        ),
    ];
    for (crc, fpdu) in [
        (true, FpduSize::Largest),
        (true, FpduSize::Segment),
        (false, FpduSize::Largest),
    ] {
        let options = StreamOptions {
            fpdu,
            ..options(Handshake::Enhanced, crc)
        };
        let said = if crc { "CRC" } else { "no CRC" };
        let name = format!("our stack to kbtp-verbs on siw: all operations, {said}, {fpdu:?}");
        tests.push((name, Box::new(move |scene| to_device(scene, &options))));
    }
    for (siw, crc) in [("siw", false), ("siw-crc", true)] {
        let said = if crc { "CRC" } else { "no CRC" };
        let name = format!("kbtp-verbs on siw to our stack: all operations, {said}");
        tests.push((name, Box::new(move |scene| from_device(scene, siw, crc))));
    }
    tests
}

/// Builds the program of the device tests.
pub(super) fn program_of_tests() -> Outcome<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["test", "--locked", "-p", "kbtp-verbs"])
        .args(["--test", "device", "--no-run"])
        .output()?;
    // "  Executable tests/device.rs (target/debug/deps/device-0123456789abcdef)"
    let said = String::from_utf8(built.stderr)?;
    let line = said.lines().find(|l| l.contains("Executable"));
    let path = line.and_then(|l| Some(l.split_once('(')?.1.split_once(')')?.0));
    Ok(path
        .ok_or_else(|| format!("no program was built: {said}"))?
        .into())
}

fn its_tests(scene: &mut Scene) -> Outcome<()> {
    build(scene, "siw")?;
    let addresses = format!("{RXE_ADDRESS},{}", crate::guest::ADDRESS);
    // What a test that passes says is seen only so.
    let command =
        format!("KBTP_TEST_RDMA={addresses} ./device-* --test-threads 1 --nocapture 2>&1");
    let said = scene.guest.must(&command, SUITE)?;
    if said.contains("test result: ok") && !said.contains("not run") {
        return Ok(());
    }
    Err(format!("not all was run: {said}").into())
}

/// Starts the other end in the guest, for one stream.
fn serve(scene: &mut Scene, at: &str) -> Outcome<()> {
    let start = format!("setsid ./{PROGRAM} serve {at}:{PEER} 1 >/tmp/peer.log 2>&1 &");
    scene.guest.must(&start, COMMAND)?;
    scene.says("listening on", "/tmp/peer.log")
}

/// The other end saw the stream close in order.
fn served(scene: &mut Scene) -> Outcome<()> {
    scene.says("closed after", "/tmp/peer.log")
}

fn with_itself(scene: &mut Scene) -> Outcome<()> {
    serve(scene, RXE_ADDRESS)?;
    let said = scene
        .guest
        .must(&format!("./{PROGRAM} drive {RXE_ADDRESS}:{PEER} 1"), LONG)?;
    if !said.contains("rxe_rx0") || !said.contains("Immediate Data, atomics") {
        return Err(format!("not everything was done: {said}").into());
    }
    served(scene)
}

/// A target and a client on one device.
fn kbtp(scene: &mut Scene, at: &str, granted: &str) -> Outcome<()> {
    build(scene, "siw")?;
    let said = scene
        .guest
        .must(&format!("./{PROGRAM} session {at}:{PEER}"), LONG)?;
    if said.contains(granted) {
        return Ok(());
    }
    Err(format!("it was not {granted}: {said}").into())
}

fn to_device(scene: &mut Scene, options: &StreamOptions) -> Outcome<()> {
    build(scene, "siw")?;
    serve(scene, crate::guest::ADDRESS)?;
    let driven = connect(scene.peer, options)
        .map_err(Into::into)
        .and_then(Party::new)
        .and_then(|mut party| {
            drive(&mut party, false)?;
            party.close()
        });
    if let Err(error) = driven {
        let other = scene
            .guest
            .run("cat /tmp/peer.log; dmesg | tail", COMMAND)?;
        return Err(format!("{error}; the other end: {}", other.said).into());
    }
    // How it ended there is not looked at: when the initiator closes the connection, siw may report its queue pair broken
    // before it reports the end.
    scene.says("closed after\\|ended:", "/tmp/peer.log")
}

fn from_device(scene: &mut Scene, siw: &str, crc: bool) -> Outcome<()> {
    build(scene, siw)?;
    let mut listener = listen(crc)?;
    let port = listener.local_addr().port();
    scene
        .guest
        .begin(&format!("./{PROGRAM} drive {HOST}:{port} 1"))?;
    let answered = accept(&mut listener)
        .and_then(Party::new)
        .and_then(|mut party| answer(&mut party));
    let ran = scene.guest.end(LONG)?;
    match answered {
        Ok(_) if ran.status == 0 => Ok(()),
        other => {
            let kernel = scene.guest.run("dmesg | tail", COMMAND)?;
            Err(format!("{other:?}; {ran:?}; {}", kernel.said).into())
        }
    }
}
