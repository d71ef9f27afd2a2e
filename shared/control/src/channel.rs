//! The target's end.

use crate::driver::Deadline;
use crate::frame::VERSION;
use crate::grant::WireGrant;
use crate::limits::{CALL_TIMEOUT, DETACH_TIMEOUT};
use crate::socket::{SeqSocket, address, open};
use crate::{
    AgentEvent, AgentLink, ControlError, Frame, FrameError, FromAgent, HandOver, Hello, LinkCutter,
    Mechanism, Mechanisms, PoolAttachment, PoolGrant, RegionGrant, RegionName, Role,
    SideAttachment, StatusReport, ToAgent, Welcome,
};
use kbtp_memory::Region;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::connect;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, warn};
use zeroize::Zeroizing;

/// How to reach an agent.
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    /// The agent's socket.
    pub path: PathBuf,
    /// A user whose agent is trusted, besides root and this process's own user.
    pub agent_uid: Option<u32>,
    /// How long each call may take, more than zero.
    pub timeout: Duration,
}

impl ChannelOptions {
    /// The agent at `path`, of root or this user, with the default time limit.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            agent_uid: None,
            timeout: CALL_TIMEOUT,
        }
    }
}

/// A connection to an agent, welcome. Dropping it lets go of the agent; the regions stay mapped as long as they are
/// held, but the agent may grant them to another target then: give them up first.
#[derive(Debug)]
pub struct TargetChannel {
    socket: SeqSocket,
    welcome: Welcome,
    timeout: Duration,
    next_id: u32,
    unasked: Unasked,
    gone: bool,
}

/// What the agent said unasked and nobody has looked at.
#[derive(Debug, Default)]
struct Unasked {
    drain: Option<crate::DrainReason>,
    /// The last epoch: an agent has one grant at a time.
    revoked: Option<u64>,
}

/// The pool as another function of the device has it.
#[derive(Debug)]
pub struct ExportedPool {
    /// The grant, checked.
    pub grant: PoolGrant,
    /// The memory itself, with [`Mechanism::Emulated`].
    pub region: Option<Region>,
}

/// An answer and the descriptor that came with it.
#[derive(Debug)]
struct Answer {
    message: FromAgent,
    fd: Option<OwnedFd>,
}

impl TargetChannel {
    /// Connects and says Hello. As [`Role::Target`] this process then holds the agent: no other target is welcome
    /// until this channel is dropped, [`detach`](AgentLink::detach)es, or the process ends.
    ///
    /// # Errors
    /// [`ControlError::NoAgent`], [`ControlError::Permission`], [`ControlError::ForeignUser`];
    /// [`Refusal::Busy`](crate::Refusal::Busy) and the agent's other refusals.
    pub fn connect(options: &ChannelOptions, role: Role) -> Result<Self, ControlError> {
        let deadline = Deadline::after(options.timeout);
        let socket = open_to(options)?;
        let mut id = 0;
        let hello = ToAgent::Hello(Hello {
            version: VERSION,
            role,
            pid: std::process::id(),
        });
        let mut unasked = Unasked::default();
        let answer = exchange(&socket, &mut id, &hello, deadline, &mut unasked)?;
        let FromAgent::Welcome(welcome) = answer.message else {
            return Err(wrong(&hello, &answer.message));
        };
        if welcome.version != VERSION {
            return Err(FrameError::Version {
                got: welcome.version,
                speaks: VERSION,
            }
            .into());
        }
        debug!(incarnation = %welcome.incarnation, "welcome at the agent");
        Ok(Self {
            socket,
            welcome,
            timeout: options.timeout,
            next_id: id,
            unasked,
            gone: false,
        })
    }

    /// How long each call may take from now on, more than zero.
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    fn call(&mut self, request: &ToAgent) -> Result<Answer, ControlError> {
        self.call_within(request, self.timeout)
    }

    fn call_within(
        &mut self,
        request: &ToAgent,
        timeout: Duration,
    ) -> Result<Answer, ControlError> {
        if self.gone {
            return Err(ControlError::Gone);
        }
        let deadline = Deadline::after(timeout);
        let answer = exchange(
            &self.socket,
            &mut self.next_id,
            request,
            deadline,
            &mut self.unasked,
        );
        if matches!(answer, Err(ControlError::Gone)) {
            self.gone = true;
        }
        answer
    }

    /// Takes the pool for another function of the device, in one of these ways. May be repeated: it is the same grant until
    /// it is released.
    ///
    /// # Errors
    /// [`ControlError::BadGrant`] if what came makes no sense; [`Refusal::Mechanism`](crate::Refusal::Mechanism),
    /// [`Refusal::Revoked`](crate::Refusal::Revoked).
    pub fn attach_exported(
        &mut self,
        mechanisms: Mechanisms,
    ) -> Result<ExportedPool, ControlError> {
        let request = ToAgent::AttachExported { mechanisms };
        let answer = self.call(&request)?;
        let FromAgent::Exported(grant) = answer.message else {
            return Err(wrong(&request, &answer.message));
        };
        let bad = |reason: String| ControlError::BadGrant {
            name: "exported pool".to_owned(),
            reason,
        };
        grant.check().map_err(|error| bad(error.to_string()))?;
        if grant.incarnation != self.welcome.incarnation {
            return Err(bad("granted by another life of the agent".to_owned()));
        }
        if !mechanisms.contain(grant.mechanism.kind()) {
            let kind = grant.mechanism.kind();
            return Err(bad(format!("by {kind}, which was not asked for")));
        }
        let region = match (grant.mechanism, answer.fd) {
            (Mechanism::Emulated, Some(fd)) => {
                let region = Region::from_fd(fd, grant.len);
                Some(region.map_err(|source| ControlError::Region {
                    name: "exported pool".to_owned(),
                    source,
                })?)
            }
            _ => None,
        };
        Ok(ExportedPool { grant, region })
    }

    /// Says that nothing uses an exported pool any more: its queue pairs are stopped, its alias destroyed, its memory
    /// unmapped. The grant is void from here on.
    ///
    /// # Errors
    /// [`Refusal::NoGrant`](crate::Refusal::NoGrant) if it was released before.
    pub fn released(&mut self, grant: PoolGrant) -> Result<(), ControlError> {
        let request = ToAgent::Released {
            epoch: grant.epoch,
            key: grant.key,
        };
        match self.call(&request)?.message {
            FromAgent::ReleaseNoted { epoch } if epoch == grant.epoch => Ok(()),
            other => Err(wrong(&request, &other)),
        }
    }

    /// Maps a granted region.
    fn take(
        &self,
        name: &str,
        grant: WireGrant,
        hand_over: HandOver,
        fd: Option<OwnedFd>,
    ) -> Result<(RegionGrant, Region), ControlError> {
        let bad = |reason: String| ControlError::BadGrant {
            name: name.to_owned(),
            reason,
        };
        let grant = RegionGrant::from(grant);
        if grant.incarnation != self.welcome.incarnation {
            return Err(bad(format!(
                "granted by incarnation {}, welcomed by {}",
                grant.incarnation, self.welcome.incarnation
            )));
        }
        if grant.base.0.checked_add(grant.len).is_none() {
            return Err(bad(format!(
                "{} octets at {} pass the end of the address space",
                grant.len, grant.base
            )));
        }
        let region = match (hand_over, fd) {
            (HandOver::Memfd, Some(fd)) => Region::from_fd(fd, grant.len),
            (HandOver::Memfd, None) => {
                return Err(bad("no file descriptor came with it".to_owned()));
            }
        };
        let region = region.map_err(|source| ControlError::Region {
            name: name.to_owned(),
            source,
        })?;
        Ok((grant, region))
    }
}

impl AgentLink for TargetChannel {
    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn survives_restart(&self) -> bool {
        true
    }

    fn attach_pool(&mut self) -> Result<PoolAttachment, ControlError> {
        let request = ToAgent::AttachPool {
            hand_over: HandOver::Memfd,
        };
        let answer = self.call(&request)?;
        let FromAgent::PoolGrant {
            grant,
            hand_over,
            fresh,
        } = answer.message
        else {
            return Err(wrong(&request, &answer.message));
        };
        let (grant, region) = self.take("pool", grant, hand_over, answer.fd)?;
        let geometry = self.welcome.geometry;
        if grant.len < geometry.len() || geometry.is_empty() {
            return Err(ControlError::BadGrant {
                name: "pool".to_owned(),
                reason: format!(
                    "{} octets do not hold {} blocks of {}",
                    grant.len, geometry.blocks, geometry.block_size
                ),
            });
        }
        Ok(PoolAttachment {
            grant,
            region,
            geometry,
            fresh,
        })
    }

    fn attach_side(&mut self, name: &RegionName, len: u64) -> Result<SideAttachment, ControlError> {
        let request = ToAgent::AttachSide {
            name: name.clone(),
            len,
            hand_over: HandOver::Memfd,
        };
        let answer = self.call(&request)?;
        let FromAgent::SideGrant {
            grant,
            hand_over,
            fresh,
        } = answer.message
        else {
            return Err(wrong(&request, &answer.message));
        };
        let (grant, region) = self.take(name.as_str(), grant, hand_over, answer.fd)?;
        if grant.len != len {
            return Err(ControlError::BadGrant {
                name: name.to_string(),
                reason: format!("asked for {len} octets, granted {}", grant.len),
            });
        }
        Ok(SideAttachment {
            grant,
            region,
            fresh,
        })
    }

    fn drop_side(&mut self, name: &RegionName) -> Result<bool, ControlError> {
        let request = ToAgent::DropSide { name: name.clone() };
        match self.call(&request)?.message {
            FromAgent::Dropped { existed } => Ok(existed),
            other => Err(wrong(&request, &other)),
        }
    }

    fn ping(&mut self) -> Result<(), ControlError> {
        match self.call(&ToAgent::Ping)?.message {
            FromAgent::Pong => Ok(()),
            other => Err(wrong(&ToAgent::Ping, &other)),
        }
    }

    fn status(&mut self) -> Result<StatusReport, ControlError> {
        match self.call(&ToAgent::Status)?.message {
            FromAgent::Status(report) => Ok(report),
            other => Err(wrong(&ToAgent::Status, &other)),
        }
    }

    fn detach(&mut self) -> Result<(), ControlError> {
        let timeout = self.timeout.min(DETACH_TIMEOUT);
        match self.call_within(&ToAgent::Detach, timeout)?.message {
            FromAgent::Detached => Ok(()),
            other => Err(wrong(&ToAgent::Detach, &other)),
        }
    }

    fn next_event(&mut self) -> Result<Option<AgentEvent>, ControlError> {
        if let Some(reason) = self.unasked.drain.take() {
            return Ok(Some(AgentEvent::Draining(reason)));
        }
        if let Some(epoch) = self.unasked.revoked.take() {
            return Ok(Some(AgentEvent::Revoked { epoch }));
        }
        while !self.gone {
            match recv_answer(&self.socket) {
                Ok(None) => return Ok(None),
                Ok(Some((0, answer))) => match answer.message {
                    FromAgent::Drain(reason) => return Ok(Some(AgentEvent::Draining(reason))),
                    FromAgent::Revoke { epoch } => {
                        return Ok(Some(AgentEvent::Revoked { epoch }));
                    }
                    other => {
                        return Err(ControlError::WrongAnswer {
                            wanted: "nothing",
                            got: other.name(),
                        });
                    }
                },
                Ok(Some((id, answer))) => {
                    debug!(id, answer = answer.message.name(), "dropped a late answer");
                }
                Err(ControlError::Gone) => {
                    warn!("the agent is gone");
                    self.gone = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(AgentEvent::Gone))
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.fd())
    }

    fn cutter(&self) -> Result<Option<LinkCutter>, ControlError> {
        let fd = self
            .socket
            .fd()
            .try_clone_to_owned()
            .map_err(|e| ControlError::os("cannot hold the control socket twice", e))?;
        Ok(Some(LinkCutter(Arc::new(fd))))
    }
}

fn open_to(options: &ChannelOptions) -> Result<SeqSocket, ControlError> {
    let path = &options.path;
    let at = address(path)?;
    let fd = open()?;
    // Connecting waits while the agent's queue is full, as long as a send may.
    set_socket_timeout(&fd, Timeout::Send, Some(options.timeout))
        .map_err(|e| ControlError::os("cannot set a time limit on the control socket", e))?;
    let connected = loop {
        match connect(&fd, &at) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    connected.map_err(|e| match e {
        Errno::NOENT | Errno::CONNREFUSED => ControlError::NoAgent {
            path: path.clone(),
            source: e.into(),
        },
        Errno::ACCESS | Errno::PERM => ControlError::Permission {
            path: path.clone(),
            source: e.into(),
        },
        Errno::PROTOTYPE => ControlError::NotASocket { path: path.clone() },
        Errno::AGAIN => ControlError::Deadline {
            what: "the connection",
            after: options.timeout,
        },
        e => ControlError::os(format!("cannot connect to {}", path.display()), e),
    })?;
    let socket = SeqSocket::new(fd);
    // Whoever can write the socket's directory could put a socket of its own there and collect what a target stores.
    let uid = socket.peer()?.uid;
    let own = rustix::process::geteuid().as_raw();
    if uid == 0 || uid == own || Some(uid) == options.agent_uid {
        Ok(socket)
    } else {
        Err(ControlError::ForeignUser {
            path: path.clone(),
            uid,
        })
    }
}

const fn wrong(request: &ToAgent, answer: &FromAgent) -> ControlError {
    ControlError::WrongAnswer {
        wanted: request.name(),
        got: answer.name(),
    }
}

/// Sends a request and waits for its answer. Refusals become errors; Drain is noted on the way.
fn exchange(
    socket: &SeqSocket,
    last_id: &mut u32,
    request: &ToAgent,
    deadline: Deadline,
    unasked: &mut Unasked,
) -> Result<Answer, ControlError> {
    *last_id = last_id.checked_add(1).unwrap_or(1);
    let id = *last_id;
    let late = || ControlError::Deadline {
        what: request.name(),
        after: deadline.total(),
    };
    let frame = Frame {
        id,
        message: request,
    };
    // There may be a key in it.
    let octets = Zeroizing::new(frame.encode()?);
    loop {
        match socket.send(&octets, None) {
            // Gone: it may have said why before it closed.
            Ok(true) | Err(ControlError::Gone) => break,
            Ok(false) => {
                socket.wait(PollFlags::OUT, deadline.left().ok_or_else(late)?)?;
            }
            Err(error) => return Err(error),
        }
    }
    loop {
        match recv_answer(socket)? {
            None => {
                socket.wait(PollFlags::IN, deadline.left().ok_or_else(late)?)?;
            }
            Some((got, answer)) => match answer.message {
                FromAgent::Drain(reason) => unasked.drain = Some(reason),
                FromAgent::Revoke { epoch } => unasked.revoked = Some(epoch),
                // With ID 0: said on the way out, to whatever was asked.
                FromAgent::Refused(refusal) if got == id || got == 0 => return Err(refusal.into()),
                _ if got == id => return Ok(answer),
                _ => debug!(got, answer = answer.message.name(), "dropped a late answer"),
            },
        }
    }
}

/// One answer and its ID, if there is one now.
fn recv_answer(socket: &SeqSocket) -> Result<Option<(u32, Answer)>, ControlError> {
    let Some(received) = socket.recv(true)? else {
        return Ok(None);
    };
    let Frame { id, message } = Frame::<FromAgent>::decode(&received.octets)?;
    let mut fds = received.fds;
    let wanted = match &message {
        FromAgent::PoolGrant { hand_over, .. } | FromAgent::SideGrant { hand_over, .. } => {
            match hand_over {
                HandOver::Memfd => 1,
            }
        }
        FromAgent::Exported(grant) => usize::from(grant.mechanism == Mechanism::Emulated),
        _ => 0,
    };
    if fds.len() != wanted {
        return Err(FrameError::Descriptors {
            message: message.name(),
            got: fds.len(),
            wanted,
        }
        .into());
    }
    Ok(Some((
        id,
        Answer {
            message,
            fd: fds.pop(),
        },
    )))
}
