//! How services end: signals, at whatever moment, the end of their input, and others that hang.

use crate::common::{KBTP, dir, kbtp, serve};
use kbtp::daemon::Daemon;
use kbtp::driver;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, setsockopt, socket,
    sockopt,
};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

/// Asks until there is an answer, for twenty seconds at most.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = driver::now() + Duration::from_secs(20);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(driver::now() < deadline, "{what}: not in twenty seconds");
        std::thread::yield_now();
    }
}

fn signal(pid: u32, which: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), which).unwrap();
}

/// A process whose end is waited for, killed if a test fails before it.
struct Running(Child);

impl Running {
    fn ended(&mut self) -> ExitStatus {
        until("the process ends", || self.0.try_wait().unwrap())
    }

    fn stdout(&mut self) -> String {
        let mut said = String::new();
        let mut out = self.0.stdout.take().unwrap();
        out.read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().unwrap();
    }
}

/// Starts `args`, logging to a file.
fn spawn(args: &[&str], stdin: Stdio, stdout: Stdio, log: &Path) -> Running {
    let mut command = kbtp(args);
    command.env("KBTP_LOG", "info");
    let log = File::create(log).unwrap();
    Running(
        command
            .stdin(stdin)
            .stdout(stdout)
            .stderr(log)
            .spawn()
            .unwrap(),
    )
}

fn logged(log: &Path, what: &str) {
    until(what, || {
        let said = std::fs::read_to_string(log).unwrap();
        said.contains(what).then_some(())
    });
}

/// A path short enough for a socket.
fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kbtp-{name}-{}.sock", std::process::id()))
}

const SMALL: [&str; 2] = ["--block-size=4KiB", "--blocks=16"];

#[test]
fn a_signal_ends_a_target_that_starts() {
    // An agent that takes calls and answers none: the start goes no further.
    let path = socket_path("deaf");
    let none = SockFlag::SOCK_CLOEXEC;
    let deaf = socket(AddressFamily::Unix, SockType::SeqPacket, none, None).unwrap();
    bind(deaf.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&deaf, Backlog::new(1).unwrap()).unwrap();
    let log = dir("starts").join("log");
    let agent = path.to_str().unwrap();
    let args = [
        "serve",
        "--listen=127.0.0.1:0",
        "--admin=off",
        "--agent",
        agent,
    ];
    let mut target = spawn(&args, Stdio::null(), Stdio::piped(), &log);
    let caller = accept(&deaf).unwrap();
    signal(target.0.id(), Signal::SIGTERM);
    let status = target.ended();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{status}");
    assert_eq!(target.stdout(), "");
    logged(&log, "SIGTERM: ended before it was ready");
    nix::unistd::close(caller).unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_signal_ends_an_agent_that_starts_and_its_socket_goes() {
    let path = socket_path("starts");
    let log = dir("agent-starts").join("log");
    let at = path.to_str().unwrap();
    // Enough that touching each page takes longer than to see the socket.
    let args = ["agent", "--block-size=1MiB", "--blocks=768", "--socket", at];
    let mut agent = spawn(&args, Stdio::null(), Stdio::piped(), &log);
    until("the socket", || path.exists().then_some(()));
    signal(agent.0.id(), Signal::SIGINT);
    let status = agent.ended();
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32), "{status}");
    assert_eq!(agent.stdout(), "");
    assert!(!path.exists());
}

/// A connection that was reset.
fn reset() -> OwnedFd {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    let at_once = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&other, sockopt::Linger, &at_once).unwrap();
    drop(other);
    ours.into()
}

#[test]
fn an_input_that_cannot_be_read_has_ended_and_signals_are_heard() {
    let dir = dir("unreadable");
    let path = socket_path("unreadable");
    let at = path.to_str().unwrap();
    let serve = ["serve", "--admin=off", "--listen=127.0.0.1:0"];
    let agent = ["agent", "--socket", at];
    for service in [&serve[..], &agent[..]] {
        let args = [service, &SMALL, &["--stop-with-stdin"]].concat();
        for input in [File::open(&dir).unwrap().into(), reset()] {
            let log = dir.join("log");
            let mut running = spawn(&args, input.into(), Stdio::null(), &log);
            let status = running.ended();
            assert!(status.success(), "{args:?}: {status}");
            logged(&log, "the end of standard input: stopping");
        }
    }
}

#[test]
fn a_target_whose_agent_hangs_ends_and_says_why() {
    let path = socket_path("hangs");
    let at = path.to_str().unwrap();
    let args = ["agent", "--json", "--stop-with-stdin", "--socket", at];
    let agent = Daemon::start(OsStr::new(KBTP), [&args[..], &SMALL].concat()).unwrap();
    let log = dir("hangs").join("log");
    let args = [
        "serve",
        "--listen=127.0.0.1:0",
        "--admin=off",
        "--agent",
        at,
    ];
    let mut target = spawn(&args, Stdio::null(), Stdio::piped(), &log);
    let mut ready = [0];
    target
        .0
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    signal(agent.pid(), Signal::SIGSTOP);
    signal(target.0.id(), Signal::SIGTERM);
    let status = target.ended();
    signal(agent.pid(), Signal::SIGCONT);
    assert!(status.success(), "{status}");
    logged(&log, "the agent does not answer and is not waited for");
    // Once it goes on, it sees that its target is gone.
    serve(&["--agent", at]).stop();
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_service_serves_though_nobody_reads_what_it_says() {
    let dir = dir("unread");
    let path = socket_path("unread");
    let at = path.to_str().unwrap();
    let serve = ["serve", "--admin=off", "--listen=127.0.0.1:0"];
    let agent = ["agent", "--socket", at];
    for service in [&serve[..], &agent[..]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let log = dir.join("log");
        let args = [service, &SMALL].concat();
        let mut running = spawn(&args, Stdio::null(), writer.into(), &log);
        logged(&log, "nobody reads standard output");
        signal(running.0.id(), Signal::SIGTERM);
        let status = running.ended();
        assert!(status.success(), "{args:?}: {status}");
        logged(&log, "SIGTERM: stopping");
    }
}

#[test]
fn one_signal_ends_work_that_waits_for_a_target_that_is_stopped() {
    let dir = dir("waits");
    let f = dir.join("f");
    std::fs::write(&f, [7; 5000]).unwrap();
    let target = serve(&SMALL);
    signal(target.daemon.pid(), Signal::SIGSTOP);
    let log = dir.join("log");
    let put = ["put", f.to_str().unwrap(), "--target", &target.addr];
    let mut put = spawn(&put, Stdio::null(), Stdio::null(), &log);
    // It has taken the signals: they are in its mask, and one thread waits for them.
    let threads = PathBuf::from(format!("/proc/{}/task", put.0.id()));
    until("the thread that waits for signals", || {
        (std::fs::read_dir(&threads).unwrap().count() > 1).then_some(())
    });
    signal(put.0.id(), Signal::SIGTERM);
    let status = put.ended();
    signal(target.daemon.pid(), Signal::SIGCONT);
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{status}");
    logged(&log, "the work had not come to its next step");
    target.stop();
}

/// Whether the process is there, and not only what is left of it for its parent.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn one_signal_ends_a_demo_whose_target_is_stopped_and_leaves_nothing() {
    let temp = dir("stopped");
    let log = dir("stopped-log").join("log");
    let fifo = log.with_file_name("trace");
    // Nobody writes it: the demo waits for its trace, with agent and target there.
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = kbtp(&["demo", fifo.to_str().unwrap()]);
    command.args(SMALL).env("TMPDIR", &temp);
    let to = File::create(&log).unwrap();
    let mut demo = Running(command.stdout(Stdio::null()).stderr(to).spawn().unwrap());
    logged(&log, "target is process");
    let said = std::fs::read_to_string(&log).unwrap();
    let pids: Vec<u32> = said
        .split("is process ")
        .skip(1)
        .map(|rest| rest.split([' ', ',']).next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(pids.len(), 2, "{said}");
    signal(pids[1], Signal::SIGSTOP);
    signal(demo.0.id(), Signal::SIGTERM);
    let status = demo.ended();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{status}");
    until("agent and target are gone", || {
        (!pids.iter().any(|pid| lives(*pid))).then_some(())
    });
    assert_eq!(std::fs::read_dir(&temp).unwrap().count(), 0);
}
