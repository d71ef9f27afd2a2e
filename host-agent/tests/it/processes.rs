//! Kills and users, with processes of their own. A child is this test binary, told by its environment what
//! to be.

use crate::common::{Running, Scratch, event, name, octets, options, readable};
use crate::hostile::Raw;
use kbtp_agent::{AgentConfig, Lock, Shutdown};
use kbtp_control::{
    AgentEvent, AgentLink, ControlError, FromAgent, Hello, Refusal, Role, TargetChannel, ToAgent,
    VERSION,
};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

const ROLE: &str = "KBTP_TEST_CHILD";
const SOCKET: &str = "KBTP_TEST_SOCKET";
const VICTIM: &str = "KBTP_TEST_VICTIM";
const MARK: &str = "child says: ";
/// Nobody.
const OTHER_UID: u32 = 65534;

/// A child process; killed when dropped.
struct Peer {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str, scratch: &Scratch, uid: Option<u32>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["processes::child", "--exact", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env(SOCKET, scratch.socket())
            .env(VICTIM, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid);
        }
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// The next thing the child says.
    fn says(&mut self) -> String {
        loop {
            if self.out.buffer().is_empty() {
                readable(self.out.get_ref().as_fd());
            }
            let mut line = String::new();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "the child ended");
            // The test harness writes to the same pipe, and not always a whole line.
            if let Some((_, text)) = line.split_once(MARK) {
                return text.trim_end().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It fails only if the child has ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().unwrap();
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{text}").unwrap();
    out.flush().unwrap();
}

/// Until the parent closes the pipe, or kills.
fn stay() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn in_words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        write!(text, ": {cause}").unwrap();
        source = cause.source();
    }
    text
}

/// What the children are; as a test of its own it does nothing.
#[test]
#[ignore = "run by the other tests in a process of its own"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let scratch_socket = std::env::var(SOCKET).unwrap();
    let config = AgentConfig::new(&scratch_socket, 4096, 16);
    let connect = || TargetChannel::connect(&options(scratch_socket.as_ref()), Role::Target);
    match role.as_str() {
        "writer" => {
            let mut channel = connect().unwrap();
            let pool = channel.attach_pool().unwrap();
            let table = channel.attach_side(&name("table"), 4096).unwrap();
            pool.region.write(3 * 4096, b"bound block").unwrap();
            table.region.write(48, b"entry").unwrap();
            say("written");
            stay();
        }
        "caller" => match connect() {
            Ok(_) => say("welcome"),
            Err(error) => say(&in_words(&error)),
        },
        "agent" => {
            let (shutdown, _never) = Shutdown::new().unwrap();
            let server = kbtp_agent::Server::bind(&config).unwrap();
            say("listening");
            server.run(&shutdown).unwrap();
        }
        "locker" => {
            setrlimit(Resource::RLIMIT_MEMLOCK, 8192, 8192).unwrap();
            let mut config = config;
            for lock in [Lock::Require, Lock::Prefer] {
                config.pages.lock = lock;
                match kbtp_agent::InProcess::start(&config) {
                    Ok(agent) => say(&format!("started; {}", agent.welcome().pages.shortfall)),
                    Err(error) => say(&in_words(&error)),
                }
            }
        }
        "peeker" => {
            let victim = std::env::var(VICTIM).unwrap();
            let there = |what: &&str| std::fs::File::open(format!("/proc/{victim}/{what}")).is_ok();
            let what = [
                "mem",
                "maps",
                "environ",
                "pagemap",
                "fd/3",
                "fd/5",
                "map_files",
                "fd",
            ];
            let opened: Vec<_> = what
                .into_iter()
                .filter(there)
                // A folder can be opened and not listed.
                .filter(|what| {
                    let path = format!("/proc/{victim}/{what}");
                    !Path::new(&path).is_dir() || std::fs::read_dir(path).is_ok()
                })
                .collect();
            say(&format!("opened {opened:?}"));
        }
        other => panic!("no child {other}"),
    }
}

#[test]
fn what_a_killed_target_wrote_its_successor_reads() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let mut writer = Peer::start("writer", &scratch, None);
    assert_eq!(writer.says(), "written");
    let pid = writer.child.id();
    let refusal = agent.connect(Role::Target).unwrap_err();
    assert!(
        matches!(refusal, ControlError::Refused(Refusal::Busy { pid: p }) if p == pid),
        "{refusal}"
    );
    writer.kill();
    // At once, without a second try: the end of the one before it is known.
    let mut target = agent.target();
    let pool = target.attach_pool().unwrap();
    let table = target.attach_side(&name("table"), 4096).unwrap();
    assert!(!table.fresh);
    assert_eq!(octets(&pool.region, 3 * 4096, 11), b"bound block");
    assert_eq!(octets(&table.region, 48, 5), b"entry");
}

#[test]
fn a_target_can_be_killed_and_restarted_again_and_again() {
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    for _ in 0..10 {
        let mut writer = Peer::start("writer", &scratch, None);
        assert_eq!(writer.says(), "written");
        writer.kill();
    }
    let report = agent.connect(Role::Observer).unwrap().status().unwrap();
    assert_eq!((report.targets, report.regions.len()), (10, 2));
    agent.target();
}

#[test]
fn a_target_notices_that_its_agent_was_killed() {
    let scratch = Scratch::new();
    let mut agent = Peer::start("agent", &scratch, None);
    assert_eq!(agent.says(), "listening");
    let mut target = TargetChannel::connect(&options(&scratch.socket()), Role::Target).unwrap();
    let before = target.welcome().incarnation;
    let pool = target.attach_pool().unwrap();
    assert_eq!(target.next_event().unwrap(), None);
    agent.kill();
    assert_eq!(event(&mut target), AgentEvent::Gone);
    assert!(matches!(target.attach_pool(), Err(ControlError::Gone)));
    pool.region.write(0, b"still mapped").unwrap();

    // The socket it left is replaced, and its successor is another agent with other memory.
    assert!(scratch.socket().exists());
    let next = Running::start(&scratch.config());
    let mut target = next.target();
    assert_ne!(target.welcome().incarnation, before);
    let pool = target.attach_pool().unwrap();
    assert_eq!(octets(&pool.region, 0, 12), [0; 12]);
}

#[test]
fn a_dead_target_that_is_not_noticed_yet_does_not_keep_its_successor_out() {
    let scratch = Scratch::new();
    let mut agent = Peer::start("agent", &scratch, None);
    assert_eq!(agent.says(), "listening");
    let clients = |of: &Raw| {
        of.ask(2, ToAgent::Status);
        match of.answer() {
            Some(FromAgent::Status(report)) => report.clients,
            other => panic!("{other:?}"),
        }
    };
    // The successor takes the place of an observer, so that the agent comes to it before it comes to the target.
    let observer = Raw::new(&scratch).hello(Role::Observer);
    let target = Raw::new(&scratch).hello(Role::Target);
    let successor = Raw::new(&scratch);
    while clients(&target) < 3 {}
    drop(observer);
    while clients(&target) > 2 {}
    // While the agent stands still the target dies and the successor calls.
    agent.signal(Signal::SIGSTOP);
    let pid = Pid::from_raw(agent.child.id().try_into().unwrap());
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    drop(target);
    successor.ask(
        1,
        ToAgent::Hello(Hello {
            version: VERSION,
            role: Role::Target,
            pid: 1,
        }),
    );
    agent.signal(Signal::SIGCONT);
    let answer = successor.answer();
    assert!(matches!(answer, Some(FromAgent::Welcome(_))), "{answer:?}");
}

/// Whether this process may start others as another user.
fn root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        say("not root: users cannot be told apart here");
    }
    root
}

#[test]
fn a_foreign_user_is_kept_out_by_the_file_and_by_the_agent() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    let _agent = Running::start(&scratch.config());
    let text = Peer::start("caller", &scratch, Some(OTHER_UID)).says();
    assert!(
        text.contains("no permission for the agent's socket"),
        "{text}"
    );
    // A file mode that somebody widened does not help.
    std::fs::set_permissions(scratch.socket(), PermissionsExt::from_mode(0o666)).unwrap();
    let text = Peer::start("caller", &scratch, Some(OTHER_UID)).says();
    assert!(text.contains("does not serve user 65534"), "{text}");
}

#[test]
fn the_allowed_user_gets_in() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    let mut config = scratch.config();
    config.allowed_uid = Some(OTHER_UID);
    let _agent = Running::start(&config);
    let mode = std::fs::metadata(scratch.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        Peer::start("caller", &scratch, Some(OTHER_UID)).says(),
        "welcome"
    );
}

#[test]
fn an_agent_of_a_foreign_user_is_not_trusted() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let mut agent = Peer::start("agent", &scratch, Some(OTHER_UID));
    assert_eq!(agent.says(), "listening");
    let mut options = options(&scratch.socket());
    let error = TargetChannel::connect(&options, Role::Target).unwrap_err();
    assert!(
        matches!(error, ControlError::ForeignUser { uid: OTHER_UID, .. }),
        "{error}"
    );
    options.agent_uid = Some(OTHER_UID);
    TargetChannel::connect(&options, Role::Target)
        .unwrap()
        .attach_pool()
        .unwrap();
}

/// The pool is a file without a name, so that `/proc` is the only way to it from outside.
#[test]
fn a_foreign_user_sees_no_memory_through_proc() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    let agent = Running::start(&scratch.config());
    let mut target = agent.target();
    let side = target.attach_side(&name("ring"), 4096).unwrap();
    side.region.write(0, b"secret").unwrap();
    let foreign = Peer::start("peeker", &scratch, Some(OTHER_UID)).says();
    assert_eq!(foreign, "opened []");
    // Who may see it does, so that this looks at what is there.
    let own = Peer::start("peeker", &scratch, None).says();
    assert!(own.contains("mem") && own.contains("fd/3"), "{own}");
}

#[test]
fn memory_that_cannot_be_locked_is_named_with_its_limit() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    // Not as root, who may lock what it likes.
    let mut locker = Peer::start("locker", &scratch, Some(OTHER_UID));
    let text = locker.says();
    assert!(
        text.starts_with("pool: 65536 octets are not locked"),
        "{text}"
    );
    assert!(
        text.contains("8192") && text.contains("LimitMEMLOCK=infinity"),
        "{text}"
    );
    let text = locker.says();
    assert!(
        text.starts_with("started; 65536 octets are not locked"),
        "{text}"
    );
}
