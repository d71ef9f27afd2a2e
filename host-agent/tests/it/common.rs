//! An agent in a thread, a directory for its socket, and waiting for what must come.

use kbtp_agent::{AgentConfig, AgentError, Server, Shutdown, ShutdownHandle};
use kbtp_control::{
    AgentEvent, AgentLink, ChannelOptions, ControlError, RegionName, Role, TargetChannel,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What must come, comes within this.
pub(crate) const WAIT: Duration = Duration::from_secs(20);
pub(crate) const BLOCK_SIZE: u32 = 4096;
pub(crate) const BLOCKS: u32 = 16;

/// A directory that goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "kbtp-agent-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    pub(crate) fn config(&self) -> AgentConfig {
        AgentConfig::new(self.socket(), BLOCK_SIZE, BLOCKS)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// An agent that serves in a thread of this process.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) stop: ShutdownHandle,
    thread: Option<JoinHandle<Result<(), AgentError>>>,
    socket: PathBuf,
}

impl Running {
    pub(crate) fn start(config: &AgentConfig) -> Self {
        let server = Server::bind(config).unwrap();
        let (shutdown, stop) = Shutdown::new().unwrap();
        let thread = std::thread::Builder::new()
            .name("agent".to_owned())
            .spawn(move || server.run(&shutdown))
            .unwrap();
        Self {
            stop,
            thread: Some(thread),
            socket: config.socket.clone(),
        }
    }

    pub(crate) fn connect(&self, role: Role) -> Result<TargetChannel, ControlError> {
        TargetChannel::connect(&options(&self.socket), role)
    }

    pub(crate) fn target(&self) -> TargetChannel {
        self.connect(Role::Target).unwrap()
    }

    /// Waits until the agent has stopped, in order.
    pub(crate) fn ended(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.request();
            self.stop.request();
            thread.join().unwrap().unwrap();
        }
    }
}

pub(crate) fn options(socket: &Path) -> ChannelOptions {
    let mut options = ChannelOptions::new(socket);
    options.timeout = WAIT;
    options
}

pub(crate) fn name(name: &str) -> RegionName {
    RegionName::new(name).unwrap()
}

/// Waits until `fd` can be read or its other end is closed.
pub(crate) fn readable(fd: BorrowedFd<'_>) {
    let timeout = Timespec::try_from(WAIT).unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "nothing came");
}

/// The next event, which must come.
pub(crate) fn event(channel: &mut TargetChannel) -> AgentEvent {
    readable(channel.event_fd().unwrap());
    channel.next_event().unwrap().unwrap()
}

pub(crate) fn octets(region: &kbtp_memory::Region, at: u64, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len];
    region.read(at, &mut octets).unwrap();
    octets
}
