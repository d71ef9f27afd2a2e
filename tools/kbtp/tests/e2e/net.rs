//! Hosts of our own: network namespaces, and a cable between two of them.

use crate::common::KBTP;
use kbtp_harness::{command, ok, run};
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A host: a network namespace of its own, which goes with this.
#[derive(Debug)]
pub(crate) struct Host {
    name: String,
}

/// Whether hosts can be made. Where not, says so, loudly; under CI that is a failure.
pub(crate) fn possible() -> bool {
    let name = unused("try");
    let made = Command::new("ip").args(["netns", "add", &name]).output();
    let why = match made {
        Ok(output) if output.status.success() => {
            ok(ip(&["netns", "del", &name]));
            return true;
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("ip: {error}"),
    };
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "network namespaces cannot be made here: {why}"
    );
    println!("SKIPPED, NOTHING TESTED: network namespaces cannot be made here: {why}");
    false
}

/// A name that no other host has.
fn unused(role: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("kbtp-{}-{number}-{role}", std::process::id())
}

fn ip(args: &[&str]) -> Command {
    command("ip", args)
}

impl Host {
    /// A host with nothing but loopback.
    pub(crate) fn new(role: &str) -> Self {
        let name = unused(role);
        ok(ip(&["netns", "add", &name]));
        let host = Self { name };
        host.ip(&["link", "set", "lo", "up"]);
        host
    }

    /// Two hosts with a cable. The first has `10.77.0.1` and `fd77::1`, the second `10.77.0.2` and `fd77::2`;
    /// on both the interface is `cable`.
    pub(crate) fn pair(mtu: &str) -> (Self, Self) {
        let (a, b) = (Self::new("a"), Self::new("b"));
        a.ip(&[
            "link", "add", "cable", "mtu", mtu, "type", "veth", "peer", "name", "cable", "mtu",
            mtu, "netns", &b.name,
        ]);
        for (host, number) in [(&a, "1"), (&b, "2")] {
            let (four, six) = (format!("10.77.0.{number}/24"), format!("fd77::{number}/64"));
            host.ip(&["addr", "add", &four, "dev", "cable"]);
            host.ip(&["addr", "add", &six, "dev", "cable", "nodad"]);
            host.ip(&["link", "set", "cable", "up"]);
        }
        (a, b)
    }

    /// Runs `ip` on it.
    pub(crate) fn ip(&self, args: &[&str]) {
        let mut all = vec!["-n", &self.name];
        all.extend(args);
        ok(ip(&all));
    }

    /// `program` on it.
    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut all = vec!["netns", "exec", &self.name, program];
        all.extend(args);
        ip(&all)
    }

    /// `kbtp` on it.
    pub(crate) fn kbtp(&self, args: &[&str]) -> Command {
        self.command(KBTP, args)
    }

    /// Runs `work` on a thread whose sockets are this host's.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.name)).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(namespace, CloneFlags::CLONE_NEWNET).expect("the namespace is entered");
                work()
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let (code, _, stderr) = run(ip(&["netns", "del", &self.name]));
        if code != 0 {
            println!("{} stays: {stderr}", self.name);
        }
    }
}
/// Whether `tool` is there, under the same rule.
pub(crate) fn installed(tool: &str) -> bool {
    let Err(error) = Command::new(tool).arg("--version").output() else {
        return true;
    };
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{tool}: {error}"
    );
    println!("SKIPPED, NOTHING TESTED: {tool}: {error}");
    false
}
