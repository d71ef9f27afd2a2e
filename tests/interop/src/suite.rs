//! The tests that need the guest: what they have, and how their outcome is told.

mod devices;
mod ours;
mod theirs;
mod two;

use crate::driver::{free_port, seconds};
use crate::guest::{Guest, Setup};
use crate::image::{Image, missing};
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Ports of the guest that are reached from the host: of `rping`, of `rdma_server`.
const RPING: u16 = 7174;
const SENDER: u16 = 7471;
/// And of our own other end.
const PEER: u16 = 7475;
/// This program, as it is called in the guest.
const PROGRAM: &str = "kbtp-interop";
/// For a command of the guest that moves little.
const COMMAND: Duration = Duration::from_mins(1);

/// What tests have: a guest, and where its ports are on the host.
#[derive(Debug)]
pub struct Scene {
    guest: Guest,
    rping: SocketAddr,
    sender: SocketAddr,
    peer: SocketAddr,
}

/// A test. What it says is for the reader of its line.
type Test = (String, Box<dyn Fn(&mut Scene) -> Outcome<()>>);

impl Scene {
    fn new(image: &Image, folder: &Path, files: &[PathBuf]) -> Outcome<Self> {
        let (rping, sender, peer) = (free_port()?, free_port()?, free_port()?);
        let mut setup = Setup::new("siw");
        setup.files = files.to_vec();
        let forward = |here, there| format!(",hostfwd=tcp:127.0.0.1:{here}-:{there}");
        setup.net.extend([
            forward(rping, RPING),
            forward(sender, SENDER),
            forward(peer, PEER),
        ]);
        let mut guest = Guest::boot(image, folder, &setup)?;
        guest.devices("siw")?;
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self {
            guest,
            rping: at(rping),
            sender: at(sender),
            peer: at(peer),
        })
    }

    /// Waits until the guest listens on a port.
    fn listens(&mut self, port: u16) -> Outcome<()> {
        // As /proc/net/tcp has it: the port in hexadecimal, and 0A for listening.
        let command = format!(
            "for i in $(seq 300); do grep -q ':{port:04X} 00000000:0000 0A' /proc/net/tcp && exit 0; usleep 100000; done; cat /tmp/*.log; exit 1"
        );
        self.guest.must(&command, COMMAND)?;
        Ok(())
    }

    /// Waits until a file of the guest has some words in it.
    fn says(&mut self, what: &str, file: &str) -> Outcome<()> {
        says(&mut self.guest, what, file, COMMAND)
    }
}

/// Waits until a file of the guest has some words in it.
fn says(guest: &mut Guest, what: &str, file: &str, within: Duration) -> Outcome<()> {
    let tries = within.as_secs() * 4;
    let command = format!(
        "for i in $(seq {tries}); do grep -q '{what}' {file} && exit 0; usleep 250000; done; cat {file}; exit 1"
    );
    guest.must(&command, within + COMMAND)?;
    Ok(())
}

/// Runs all tests whose name has `only` in it. Whether all passed.
///
/// A machine that cannot have the guest is told so; where `CI` is set, as CI systems do, that is a failure.
///
/// # Errors
/// The guest does not come up, or output fails.
pub fn run(folder: &Path, only: &str, out: &mut impl Write) -> Outcome<bool> {
    let began = seconds();
    let image = match missing().map_or_else(|| Image::in_folder(folder), |what| Err(what.into())) {
        Ok(image) => image,
        Err(error) => {
            let must = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
            writeln!(
                out,
                "\nNOT RUN: no test against the kernel's RDMA devices was run."
            )?;
            writeln!(
                out,
                "This machine cannot have the guest they run in: {error}\n"
            )?;
            return Ok(!must);
        }
    };
    writeln!(out, "image: {:.1} s", seconds() - began)?;
    let files = [std::env::current_exe()?, devices::program_of_tests()?];
    let mut tally = Tally::default();
    alone(&image, folder, &files, only, &mut tally, out)?;
    together(&image, folder, &files, only, &mut tally, out)?;
    writeln!(
        out,
        "{} passed, {} failed, {:.1} s",
        tally.passed,
        tally.failed,
        seconds() - began
    )?;
    if tally == Tally::default() {
        return Err(format!("no test has {only:?} in its name").into());
    }
    Ok(tally.failed == 0)
}

/// How tests went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tally {
    passed: u32,
    failed: u32,
}

impl Tally {
    /// Counts a test that began at `since` and says how it went. Whether it passed.
    fn count(
        &mut self,
        name: &str,
        since: f64,
        outcome: Outcome<()>,
        out: &mut impl Write,
    ) -> Outcome<bool> {
        let took = seconds() - since;
        match outcome {
            Ok(()) => {
                self.passed += 1;
                writeln!(out, "ok   {took:5.1} s  {name}")?;
                Ok(true)
            }
            Err(error) => {
                self.failed += 1;
                writeln!(out, "FAIL {took:5.1} s  {name}\n{error}")?;
                Ok(false)
            }
        }
    }
}

/// The tests with one guest.
fn alone(
    image: &Image,
    folder: &Path,
    files: &[PathBuf],
    only: &str,
    tally: &mut Tally,
    out: &mut impl Write,
) -> Outcome<()> {
    let tests = ours::tests().into_iter();
    let tests = tests.chain(devices::tests()).chain(theirs::tests());
    let tests: Vec<Test> = tests.filter(|(name, _)| name.contains(only)).collect();
    if tests.is_empty() {
        return Ok(());
    }
    let since = seconds();
    let mut scene = Scene::new(image, folder, files)?;
    writeln!(out, "one guest: {:.1} s", seconds() - since)?;
    for (name, test) in tests {
        let since = seconds();
        let outcome = test(&mut scene);
        if !tally.count(&name, since, outcome, out)? {
            writeln!(out, "--- console:\n{}---", scene.guest.console())?;
            // Where the guest is gone, the others get a new one.
            if scene.guest.must("true", COMMAND).is_err() {
                scene = Scene::new(image, folder, files)?;
            }
        }
    }
    Ok(())
}

/// The tests with two.
fn together(
    image: &Image,
    folder: &Path,
    files: &[PathBuf],
    only: &str,
    tally: &mut Tally,
    out: &mut impl Write,
) -> Outcome<()> {
    let tests = two::TESTS.iter().filter(|(name, _)| name.contains(only));
    let tests: Vec<&two::Test> = tests.collect();
    if tests.is_empty() {
        return Ok(());
    }
    let since = seconds();
    let mut guests = two::Two::new(image, folder, files)?;
    writeln!(out, "two guests: {:.1} s", seconds() - since)?;
    for (name, test) in tests {
        let since = seconds();
        let outcome = test(&mut guests);
        if !tally.count(name, since, outcome, out)? {
            writeln!(out, "--- consoles:\n{}---", guests.consoles())?;
            // What is left of it must not disturb the next.
            drop(guests);
            guests = two::Two::new(image, folder, files)?;
        }
    }
    Ok(())
}
