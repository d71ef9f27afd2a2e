//! `kbtp demo`: agent and target as processes of their own, a trace replayed against them, all of it stopped again.

use crate::cli::{DemoArgs, TenantArgs};
use crate::daemon::Daemon;
use crate::driver::Interrupt;
use crate::failure::Failure;
use crate::output;
use crate::own_target::wrong_config;
use crate::replay::{self, Plan, Report};
use crate::session;
use crate::status;
use crate::trace::TraceReader;
use kbtp_target::TargetConfig;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::path::{Path, PathBuf};

/// The trace that comes with this program: `kbtp trace generate` wrote it.
const SAMPLE: &[u8] = include_bytes!("../data/sample_trace.jsonl");

/// What happened, and what the target says of it.
#[derive(Debug, Serialize)]
struct DemoReport {
    replay: Report,
    status: Value,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] if a process does not start or does not stop well, or the replay fails.
pub(crate) fn run(args: &DemoArgs, json: bool) -> Result<(), Failure> {
    check(args)?;
    // First of all: the processes inherit the blocked signals too, and take them from a descriptor as this one does.
    let interrupt = Interrupt::take()?;
    let dir = TempDir::new()?;
    leave_nothing(&interrupt, vec![], &dir);
    let socket = socket_in(&dir)?;
    let me = std::env::current_exe().map_err(|e| {
        Failure::operation(format_args!("cannot find this program: {e}"), "mount /proc")
    })?;
    let shape = [
        format!("--block-size={}", args.block_size),
        format!("--blocks={}", args.blocks),
    ];
    let mut agent_args: Vec<OsString> =
        vec!["agent".into(), "--json".into(), "--stop-with-stdin".into()];
    agent_args.extend(["--socket".into(), socket.clone().into_os_string()]);
    agent_args.extend(shape.iter().map(OsString::from));
    let agent = start("agent", &me, &agent_args)?;

    let mut target_args: Vec<OsString> =
        vec!["serve".into(), "--json".into(), "--stop-with-stdin".into()];
    target_args.extend(["--agent".into(), socket.into_os_string()]);
    target_args.extend(["--listen=127.0.0.1:0".into(), "--admin=127.0.0.1:0".into()]);
    target_args.push(format!("--quota={}", args.blocks).into());
    target_args.extend(shape.iter().map(OsString::from));
    let target = start("target", &me, &target_args)?;
    leave_nothing(&interrupt, vec![target.pid(), agent.pid()], &dir);

    let addr = |pointer| {
        target
            .address(pointer)
            .map_err(|e| Failure::operation(e, "report this"))
    };
    let (listen, admin) = (addr("/listen/0")?, addr("/admin")?);
    if !json {
        output::note(&format!(
            "agent is process {}, target is process {} at {listen}",
            agent.pid(),
            target.pid()
        ));
    }
    let plan = |trace_length| -> Result<Plan, Failure> {
        Ok(Plan {
            options: session::options(listen, &TenantArgs::default())?,
            block_size: None,
            blocks: None,
            limit: args.limit,
            trace_length,
            // What is left is shown, and goes with the agent.
            free_at_end: false,
            interrupt: interrupt.clone(),
        })
    };
    let report = replayed(args, plan)?;
    let status = status::fetch(admin)?;
    stop("target", target)?;
    stop("agent", agent)?;
    let report = DemoReport {
        replay: report,
        status,
    };
    output::report(json, &report, || {
        format!(
            "{}\nthe target, before it stopped:\n{}",
            replay::text(&report.replay),
            status::text(&report.status)
        )
    })
}

/// What the processes would refuse is wrong usage of this command.
fn check(args: &DemoArgs) -> Result<(), Failure> {
    let shape = TargetConfig {
        block_size: args.block_size,
        blocks: args.blocks,
        ..TargetConfig::default()
    };
    shape.validate().map_err(|e| wrong_config(&e))
}

fn socket_in(dir: &TempDir) -> Result<PathBuf, Failure> {
    let socket = dir.path.join("agent.sock");
    if UnixAddr::from_pathname(&socket).is_err() {
        return Err(Failure::operation(
            format_args!("{} is too long for the path of a socket", socket.display()),
            "name a directory with a shorter path in TMPDIR",
        ));
    }
    Ok(socket)
}

/// Ends the processes and removes the directory, should this process end without having come to it.
fn leave_nothing(interrupt: &Interrupt, pids: Vec<u32>, dir: &TempDir) {
    let path = dir.path.clone();
    interrupt.on_abandon(move || {
        pids.into_iter().for_each(kill);
        remove(&path);
    });
}

/// What came of the trace that was asked for, replayed as `plan` has it for one of so many octets.
fn replayed(
    args: &DemoArgs,
    plan: impl Fn(u64) -> Result<Plan, Failure>,
) -> Result<Report, Failure> {
    if let Some(path) = &args.trace {
        let mut trace = TraceReader::open(path)?;
        return replay::replay(&plan(path.metadata().map_or(0, |m| m.len()))?, &mut trace);
    }
    let length = u64::try_from(SAMPLE.len()).unwrap_or(0);
    let mut trace = TraceReader::new(SAMPLE, "the sample trace".to_owned());
    replay::replay(&plan(length)?, &mut trace)
}

fn start(what: &str, program: &Path, args: &[OsString]) -> Result<Daemon, Failure> {
    Daemon::start(program.as_os_str(), args).map_err(|e| {
        Failure::operation(
            format_args!("cannot start the {what}: {e}"),
            "take a smaller --block-size or fewer --blocks if memory is short",
        )
    })
}

fn stop(what: &str, daemon: Daemon) -> Result<(), Failure> {
    let failed = |said: String| {
        Failure::operation(
            format_args!("the {what} did not stop well: {said}"),
            "see what it said before this",
        )
    };
    let status = daemon.stop().map_err(|e| failed(e.to_string()))?;
    if status.success() {
        Ok(())
    } else {
        Err(failed(status.to_string()))
    }
}

/// A directory for its owner alone, removed with all that is in it.
struct TempDir {
    path: PathBuf,
}

impl TempDir {
    fn new() -> Result<Self, Failure> {
        let dir = std::env::temp_dir();
        let mut attempt = 0;
        loop {
            let path = dir.join(format!("kbtp-demo-{}-{attempt}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                // Left by a process of the same number that was killed.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => attempt += 1,
                Err(e) => return Err(Failure::file("make the directory", &path, &e)),
            }
        }
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(dir: &Path) {
    if let Err(e) = fs::remove_dir_all(dir) {
        tracing::warn!("{} is left behind: {e}", dir.display());
    }
}

/// Ends a process of this command, whatever it does: it may be stopped.
fn kill(pid: u32) {
    let killed = i32::try_from(pid).map(|pid| signal::kill(Pid::from_raw(pid), Signal::SIGKILL));
    if !matches!(killed, Ok(Ok(()))) {
        tracing::warn!("process {pid} is left behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Generator;

    #[test]
    fn the_sample_is_what_the_generator_writes() {
        let mut trace = TraceReader::new(SAMPLE, "sample".to_owned());
        let mut made = Generator::new(1);
        let mut requests = 0;
        while let Some(request) = trace.next_request().unwrap() {
            assert_eq!(Some(request), made.next());
            requests += 1;
        }
        assert_eq!(requests, 400);
    }

    #[test]
    fn the_directory_is_private_and_goes() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = TempDir::new().unwrap();
        let mode = fs::metadata(&dir.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = dir.path.clone();
        drop(dir);
        assert!(!path.exists());
    }
}
