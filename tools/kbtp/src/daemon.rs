//! A process of our own that says on its first line, in JSON, that it is ready, and stops when its standard input
//! ends: so it cannot outlive the one that started it.

use crate::driver::ends_within;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Octets of the first line at most: addresses and a few numbers.
const READY_MAX: u64 = 64 << 10;

/// How long a process has to stop once it is told: a target drains for 10 s, and an agent waits 30 s for its target. One
/// that hangs, or was stopped by somebody else, must not keep whoever started it.
const STOP_WAIT: Duration = Duration::from_secs(40);

/// The process.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    /// It ends when the process does.
    stdout: BufReader<ChildStdout>,
    ready: Value,
}

impl Daemon {
    /// Starts `program` with `args` and waits until it is ready. It writes to our standard error.
    ///
    /// # Errors
    /// What the system says, or that the process ended, or said something else.
    pub fn start(
        program: &OsStr,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> io::Result<Self> {
        let mut command = Command::new(program);
        if std::env::var_os("KBTP_LOG").is_none() {
            // Whoever starts it for a while need not hear of what only makes it slower.
            command.env("KBTP_LOG", "error");
        }
        for (name, _) in std::env::vars_os() {
            // It is told all by its arguments: the environment of the user's own targets is not for it.
            let name_text = name.to_string_lossy();
            if name_text.starts_with("KBTP_") && name_text != "KBTP_LOG" {
                command.env_remove(&name);
            }
        }
        let mut child = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let Some(stdout) = child.stdout.take() else {
            return Err(io::Error::other("a process without standard output"));
        };
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.by_ref().take(READY_MAX).read_line(&mut line)?;
        if let Ok(ready) = serde_json::from_str(&line) {
            return Ok(Self {
                child,
                stdout,
                ready,
            });
        }
        drop(child.stdin.take());
        let status = child.wait()?;
        Err(io::Error::other(format!(
            "{} did not get ready ({status}); see what it said before this",
            program.display()
        )))
    }

    /// What it said.
    #[must_use]
    pub fn ready(&self) -> &Value {
        &self.ready
    }

    /// The address at `pointer` in what it said.
    ///
    /// # Errors
    /// If it said none.
    pub fn address(&self, pointer: &str) -> io::Result<SocketAddr> {
        let text = self.ready.pointer(pointer).and_then(Value::as_str);
        text.and_then(|t| t.parse().ok())
            .ok_or_else(|| io::Error::other(format!("no address at {pointer} in {}", self.ready)))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends its input and waits until it has stopped.
    ///
    /// # Errors
    /// What the system says, or that it had not stopped in time and was killed.
    pub fn stop(mut self) -> io::Result<ExitStatus> {
        self.end(STOP_WAIT)
    }

    fn end(&mut self, wait: Duration) -> io::Result<ExitStatus> {
        drop(self.child.stdin.take());
        if ends_within(self.stdout.get_mut(), wait)? {
            return self.child.wait();
        }
        self.child.kill()?;
        self.child.wait()?;
        let said = format!("it had not stopped in {}s and was killed", wait.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, said))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that was stopped has ended, and is not waited for again.
        if let Err(error) = self.end(STOP_WAIT) {
            tracing::warn!("process {}: {error}", self.child.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> io::Result<Daemon> {
        Daemon::start(OsStr::new("sh"), ["-c", script])
    }

    #[test]
    fn it_is_ready_when_it_says_so_and_stops_when_its_input_ends() {
        let daemon = shell(r#"echo '{"listen":["127.0.0.1:9"]}'; cat >/dev/null; exit 3"#).unwrap();
        assert_eq!(daemon.address("/listen/0").unwrap().port(), 9);
        assert!(daemon.address("/admin").is_err());
        assert!(daemon.pid() > 0);
        assert_eq!(daemon.stop().unwrap().code(), Some(3));
    }

    #[test]
    fn one_that_does_not_stop_is_killed() {
        let mut daemon = shell("echo 1; exec sleep 1000").unwrap();
        let error = daemon.end(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(!daemon.stop().unwrap().success());
    }

    #[test]
    fn one_that_does_not_get_ready_is_an_error() {
        let error = shell("exit 1").unwrap_err().to_string();
        assert!(error.contains("did not get ready"), "{error}");
        assert!(shell("echo hello").is_err());
    }
}
