//! What the tests of the command share.

use kbtp::daemon::Daemon;
use serde_json::Value;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The command that was built.
pub(crate) const KBTP: &str = env!("CARGO_BIN_EXE_kbtp");

/// The command with `args`, free of the environment of who runs the tests.
pub(crate) fn kbtp<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(KBTP);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KBTP_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs it and gives exit code, standard output and standard error.
pub(crate) fn run<S: AsRef<OsStr>>(args: &[S]) -> (i32, String, String) {
    finish(&mut kbtp(args))
}

/// As [`run`], of a command made before.
pub(crate) fn finish(command: &mut Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    (
        status.code().unwrap_or(-1),
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    )
}

/// Runs it, expects success, and gives standard output.
pub(crate) fn ok<S: AsRef<OsStr> + std::fmt::Debug>(args: &[S]) -> String {
    let (code, stdout, stderr) = run(args);
    assert_eq!(code, 0, "{args:?}: {stderr}");
    stdout
}

/// Runs it with `--json`, expects success, and gives the document.
pub(crate) fn json(args: &[&str]) -> Value {
    let mut all = vec!["--json"];
    all.extend(args);
    serde_json::from_str(&ok(&all)).unwrap()
}

/// Runs it, expects exit code `code` and one line on standard error, and gives that line.
pub(crate) fn fails<S: AsRef<OsStr> + std::fmt::Debug>(code: i32, args: &[S]) -> String {
    let (got, stdout, stderr) = run(args);
    assert_eq!(got, code, "{args:?}: {stdout} {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("kbtp: "), "{stderr}");
    stderr
}

/// An empty directory of this test.
pub(crate) fn dir(name: &str) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&path));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A target on free ports of loopback.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) daemon: Daemon,
    pub(crate) addr: String,
    pub(crate) admin: String,
}

/// Starts a target with `args`.
pub(crate) fn serve(args: &[&str]) -> Serving {
    let mut all = vec![
        "serve",
        "--json",
        "--stop-with-stdin",
        "--listen=127.0.0.1:0",
        "--admin=127.0.0.1:0",
    ];
    all.extend(args);
    let daemon = Daemon::start(OsStr::new(KBTP), &all).unwrap();
    let text = |pointer| -> String {
        let addr: SocketAddr = daemon.address(pointer).unwrap();
        addr.to_string()
    };
    Serving {
        addr: text("/listen/0"),
        admin: text("/admin"),
        daemon,
    }
}

impl Serving {
    /// A number of its status.
    pub(crate) fn status(&self, pointer: &str) -> u64 {
        let status = json(&["stat", "--admin", &self.admin]);
        let found = status.pointer(pointer).and_then(Value::as_u64);
        found.unwrap_or_else(|| panic!("no {pointer} in {status}"))
    }

    /// Whether a session with this quota has had a request answered.
    pub(crate) fn serves_quota(&self, quota: u64) -> bool {
        let status = json(&["stat", "--admin", &self.admin]);
        let sessions = status["sessions"].as_array();
        sessions
            .into_iter()
            .flatten()
            .any(|s| s["quota"] == quota && s["requests"].as_u64() > Some(0))
    }

    /// Stops it; it must end well.
    pub(crate) fn stop(self) {
        assert!(self.daemon.stop().unwrap().success());
    }
}
