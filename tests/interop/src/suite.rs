//! The tests that need the guest: what they have, and how their outcome is told.

mod ours;
mod theirs;

use crate::driver::{free_port, seconds};
use crate::guest::{Guest, Setup};
use crate::image::{Image, missing};
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Ports of the guest that are reached from the host: of `rping` and of `rdma_server`.
const RPING: u16 = 7174;
const SENDER: u16 = 7471;
/// For a command of the guest that moves little.
const COMMAND: Duration = Duration::from_mins(1);

/// What tests have: a guest, and where its ports are on the host.
#[derive(Debug)]
pub struct Scene {
    guest: Guest,
    rping: SocketAddr,
    sender: SocketAddr,
}

/// A test. What it says is for the reader of its line.
type Test = (String, Box<dyn Fn(&mut Scene) -> Outcome<()>>);

impl Scene {
    fn new(image: &Image, folder: &Path) -> Outcome<Self> {
        let (rping, sender) = (free_port()?, free_port()?);
        let mut setup = Setup::new("siw");
        setup.net = format!(
            "user,id=n0,hostfwd=tcp:127.0.0.1:{rping}-:{RPING},hostfwd=tcp:127.0.0.1:{sender}-:{SENDER}"
        );
        let mut guest = Guest::boot(image, folder, &setup)?;
        guest.devices("siw")?;
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (rping, sender) = (at(rping), at(sender));
        Ok(Self {
            guest,
            rping,
            sender,
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
    let built = seconds() - began;
    let mut scene = Scene::new(&image, folder)?;
    writeln!(
        out,
        "image {built:.1} s, boot {:.1} s",
        seconds() - began - built
    )?;
    let tests: Vec<Test> = ours::tests().into_iter().chain(theirs::tests()).collect();
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests.iter().filter(|(name, _)| name.contains(only)) {
        let since = seconds();
        let outcome = test(&mut scene);
        let took = seconds() - since;
        if let Err(error) = outcome {
            failed += 1;
            writeln!(out, "FAIL {took:5.1} s  {name}\n{error}")?;
            writeln!(out, "--- console:\n{}---", scene.guest.console())?;
            // Where the guest is gone, the others get a new one.
            if scene.guest.must("true", COMMAND).is_err() {
                scene = Scene::new(&image, folder)?;
            }
        } else {
            passed += 1;
            writeln!(out, "ok   {took:5.1} s  {name}")?;
        }
    }
    writeln!(
        out,
        "{passed} passed, {failed} failed, {:.1} s",
        seconds() - began
    )?;
    if passed + failed == 0 {
        return Err(format!("no test has {only:?} in its name").into());
    }
    Ok(failed == 0)
}
