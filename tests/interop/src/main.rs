//! `kbtp-interop`: builds the guest, runs programs in it, and the tests that need it.
#![forbid(unsafe_code)]

use kbtp_interop::driver::seconds;
use kbtp_interop::guest::{Guest, Setup};
use kbtp_interop::image::Image;
use kbtp_interop::{bench, devices, session, suite};
use std::error::Error;
use std::ffi::OsString;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage: kbtp-interop build
       kbtp-interop test [PART OF A NAME]
       kbtp-interop serve ADDRESS:PORT STREAMS
       kbtp-interop drive ADDRESS:PORT ROUNDS
       kbtp-interop session ADDRESS:PORT
       kbtp-interop bench ADDRESS:PORT
       kbtp-interop run [--file FILE].. [--limit SECONDS] [--siw BUILD] [--bare] COMMAND

  build    makes the guest's image, if it is not there
  test     boots a guest and runs the tests that need one, or those whose name has a PART in it
  serve    answers so many drivers, one after the other, over the RDMA device that has the address
  drive    tries every operation on who serves there, over an RDMA device
  session  a target at the RDMA device that has the address, and a client: blocks stored, loaded and freed in every way
  bench    the same, measured beside a bare loop of verbs on the device
  run      boots a guest with FILEs in /job, runs a shell command there, and ends as it ended
    --limit  how long the command may run; 120 without
    --siw    which build of siw: siw, or siw-crc, which always asks for CRCs
    --bare   without devices: no address, no siw, no rxe
The image lies in the folder KBTP_GUEST, target/guest without it.
";

fn main() -> ExitCode {
    let began = seconds();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match run(&words, began) {
        Ok(status) => status,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "a program's complaint")]
fn complain(what: &str) {
    eprintln!("kbtp-interop: {what}");
}

/// Where the guest's image and logs are.
fn folder() -> PathBuf {
    std::env::var_os("KBTP_GUEST").map_or_else(
        || {
            let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
            Path::new(&target).join("guest")
        },
        PathBuf::from,
    )
}

fn run(words: &[OsString], began: f64) -> Result<ExitCode, Box<dyn Error>> {
    let (command, rest) = words.split_first().ok_or(USAGE)?;
    match command.to_str() {
        Some("build") => {
            Image::in_folder(&folder())?;
            Ok(ExitCode::SUCCESS)
        }
        Some("test") => {
            let only = rest.first().map(|w| w.to_string_lossy());
            let only = only.unwrap_or_default();
            let good = suite::run(&folder(), &only, &mut std::io::stdout())?;
            Ok(if good {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Some("serve") => {
            let (at, streams) = place(rest)?;
            devices::serve(at, streams, &mut std::io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Some("drive") => {
            let (to, rounds) = place(rest)?;
            devices::drive_at(to, rounds, &mut std::io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Some("session") => {
            session::session(alone(rest)?, &mut std::io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Some("bench") => {
            bench::bench(alone(rest)?, &mut std::io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Some("run") => run_command(rest, began),
        _ => Err(USAGE.into()),
    }
}

/// An address.
fn alone(words: &[OsString]) -> Result<SocketAddr, Box<dyn Error>> {
    let [address] = words else {
        return Err(USAGE.into());
    };
    Ok(address.to_string_lossy().parse()?)
}

/// An address, and how often.
fn place(words: &[OsString]) -> Result<(SocketAddr, u32), Box<dyn Error>> {
    let [address, number] = words else {
        return Err(USAGE.into());
    };
    let (address, number) = (address.to_string_lossy(), number.to_string_lossy());
    Ok((address.parse()?, number.parse()?))
}

fn run_command(words: &[OsString], began: f64) -> Result<ExitCode, Box<dyn Error>> {
    let mut setup = Setup::new("run");
    let (mut limit, mut siw, mut bare) = (120, "siw".to_owned(), false);
    let mut command = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(USAGE);
        match word.to_str() {
            Some("--file") => setup.files.push(value()?.into()),
            Some("--limit") => limit = value()?.to_string_lossy().parse()?,
            Some("--siw") => siw = value()?.to_string_lossy().into_owned(),
            Some("--bare") => bare = true,
            _ => command.push(word.to_string_lossy().into_owned()),
        }
    }
    if command.is_empty() {
        return Err(USAGE.into());
    }
    let folder = folder();
    let image = Image::in_folder(&folder)?;
    let mut guest = Guest::boot(&image, &folder, &setup)?;
    if !bare {
        guest.devices(&siw)?;
    }
    let ran = guest.run(&command.join(" "), Duration::from_secs(limit))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", ran.said)?;
    if ran.status != 0 {
        let kernel = guest.run("dmesg | tail -n 50", Duration::from_secs(30))?;
        writeln!(out, "--- the guest's kernel:\n{}", kernel.said)?;
    }
    writeln!(
        out,
        "guest: status {}, {:.1} s",
        ran.status,
        seconds() - began
    )?;
    Ok(ExitCode::from(u8::try_from(ran.status).unwrap_or(125)))
}
