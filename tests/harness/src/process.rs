//! Processes that a test starts, and a directory for what they write.

use crate::patience::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use tempfile::TempDir;

/// A directory that goes with its test, unless that fails. Its path is short, as a socket's must be.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// A new one.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        Self(TempDir::with_prefix("kbtp-").unwrap())
    }

    /// The path of `name` in it.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// As [`at`](Self::at), as text.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.disable_cleanup(true);
            eprintln!("what they wrote is in {}", self.0.path().display());
        }
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

/// `program` with `args`, free of the environment of who runs the tests.
pub fn command<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KBTP_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs it to its end: exit code, standard output, standard error.
#[must_use]
pub fn run(mut command: Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |octets| String::from_utf8(octets).unwrap();
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Runs it, expects success, and gives standard output.
#[expect(
    clippy::must_use_candidate,
    reason = "often only its success is wanted"
)]
pub fn ok(command: Command) -> String {
    let what = format!("{command:?}");
    let (code, stdout, stderr) = run(command);
    assert_eq!(code, 0, "{what}: {stderr}");
    stdout
}

/// A process of `kbtp` that says on a line of JSON that it is ready; killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Open as long as it is to run.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// What it logs.
    log: PathBuf,
    /// What it said when it was ready.
    pub ready: Value,
}

impl Process {
    /// Starts `command`, which logs to `log`, and waits until it is ready.
    #[must_use]
    pub fn start(mut command: Command, log: &Path) -> Self {
        let to = std::fs::File::create(log).unwrap();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(to)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let said = || std::fs::read_to_string(log).unwrap();
        let ready = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("{command:?} says {line:?}: {}", said()));
        Self {
            stdin: child.stdin.take(),
            child,
            stdout,
            log: log.to_owned(),
            ready,
        }
    }

    /// A text of what it said when it was ready.
    pub fn said(&self, pointer: &str) -> String {
        let found = self.ready.pointer(pointer).and_then(Value::as_str);
        found.expect("it says so").to_owned()
    }

    /// Its process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it `signal`.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Waits for its end, as long as patience lasts; how it ended, and what it logged.
    #[must_use]
    pub fn ended(mut self) -> (ExitStatus, String) {
        self.wait()
    }

    /// The same, of one that is kept.
    #[must_use]
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let status = eventually("the process ends", || self.child.try_wait().unwrap());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "one line is all it says");
        (status, std::fs::read_to_string(&self.log).unwrap())
    }

    /// SIGKILL, and its end.
    pub fn kill(mut self) {
        self.end_now();
    }

    /// The same, of one that is kept.
    pub fn end_now(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop; it must end well.
    pub fn stop(mut self) {
        drop(self.stdin.take());
        let (status, log) = self.ended();
        assert!(status.success(), "{status}: {log}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It fails only if the process has ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().unwrap();
    }
}
