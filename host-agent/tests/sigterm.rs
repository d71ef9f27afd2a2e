//! SIGTERM: the agent tells its target to drain, waits for it, and ends in order. Agent and target are two processes,
//! both this program.

use kbtp_agent::{AgentConfig, Server, Shutdown};
use kbtp_control::{AgentEvent, AgentLink, ChannelOptions, DrainReason, Role, TargetChannel};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SOCKET: &str = "KBTP_TEST_SOCKET";
const NAME: &str = "an_agent_stops_in_order_on_sigterm";
const WAIT: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return agent(PathBuf::from(socket));
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ignored_only = args.iter().any(|arg| arg == "--ignored");
    if args.iter().any(|arg| arg == "--list") {
        if !ignored_only {
            writeln!(std::io::stdout(), "{NAME}: test")?;
        }
        return Ok(());
    }
    let filters: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = filters.is_empty() || filters.iter().any(|filter| NAME.contains(filter.as_str()));
    if ignored_only || !wanted {
        return Ok(());
    }
    let dir = std::env::temp_dir().join(format!("kbtp-sigterm-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let socket = dir.join("agent.sock");
    let mut child = Command::new(std::env::current_exe()?)
        .env(SOCKET, &socket)
        .stdout(Stdio::piped())
        .spawn()?;
    let result = stops_in_order(&mut child, &socket);
    // It fails only if the child has ended, as it should.
    child.kill().unwrap_or_default();
    child.wait()?;
    std::fs::remove_dir_all(&dir)?;
    result
}

fn agent(socket: PathBuf) -> Result<(), Box<dyn Error>> {
    let shutdown = Shutdown::on_signals()?;
    let server = Server::bind(&AgentConfig::new(socket, 4096, 4))?;
    writeln!(std::io::stdout(), "listening")?;
    Ok(server.run(&shutdown)?)
}

fn stops_in_order(child: &mut Child, socket: &Path) -> Result<(), Box<dyn Error>> {
    let out = child.stdout.take().ok_or("no pipe")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    assert_eq!(line, "listening\n");
    let mut target = TargetChannel::connect(&ChannelOptions::new(socket), Role::Target)?;
    target.attach_pool()?;
    assert_eq!(target.next_event()?, None);

    kill(Pid::from_raw(child.id().try_into()?), Signal::SIGTERM)?;
    let draining = AgentEvent::Draining(DrainReason::Stopping);
    assert_eq!(event(&mut target)?, draining);
    target.ping()?;
    assert!(child.try_wait()?.is_none(), "it waits for its target");
    target.detach()?;
    assert_eq!(event(&mut target)?, AgentEvent::Gone);
    assert!(child.wait()?.success());
    assert!(!socket.exists());
    Ok(())
}

fn event(target: &mut TargetChannel) -> Result<AgentEvent, Box<dyn Error>> {
    let fd = target.event_fd().ok_or("no descriptor")?;
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&WAIT)), Ok(1), "nothing came");
    Ok(target.next_event()?.ok_or("no event")?)
}
