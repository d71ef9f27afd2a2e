//! The agent's event loop: the one place that waits, and reads the clock.

use crate::agent::{Agent, Facts, Reply, Standing};
use crate::limits::ACCEPT_PAUSE;
use crate::notify::notify;
use crate::shutdown::Shutdown;
use crate::store::Backing;
use crate::{AgentConfig, AgentError};
use kbtp_control::limits::{HELLO_TIMEOUT, MAX_CLIENTS};
use kbtp_control::{
    AgentConnection, AgentListener, Arrival, ControlError, DrainReason, Frame, FromAgent,
    ListenOptions, Refusal, Role, SocketFile, ToAgent,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use tracing::{debug, error, info, warn};

/// Counts from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

#[expect(
    clippy::disallowed_methods,
    reason = "the driver is where the clock is read"
)]
fn now() -> Instant {
    Instant::now()
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self(now())
    }

    pub(crate) fn elapsed_ms(self) -> u64 {
        u64::try_from(now().saturating_duration_since(self.0).as_millis()).unwrap_or(u64::MAX)
    }
}

#[derive(Debug)]
struct Client {
    connection: AgentConnection,
    standing: Standing,
    /// Until when it must have said Hello.
    greet_by: Instant,
}

/// An agent that listens: the pool is there and targets may call, and are answered once it [`run`](Self::run)s.
#[derive(Debug)]
pub struct Server {
    agent: Agent,
    listener: AgentListener,
    clients: Vec<Client>,
    clock: Clock,
    drain_timeout: Duration,
    /// Until when callers wait.
    accept_after: Option<Instant>,
}

/// Why the loop goes on or ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Serving,
    Draining { until: Instant },
}

/// Allocates, listens, and serves until told to stop: [`Server::bind`] and [`Server::run`].
///
/// # Errors
/// [`AgentError`].
pub fn run(config: &AgentConfig, shutdown: &Shutdown) -> Result<(), AgentError> {
    Server::bind(config)?.run(shutdown)
}

impl Server {
    /// Takes the socket, then allocates the pool: a second agent fails before it takes memory.
    ///
    /// # Errors
    /// [`AgentError`]: another agent lives at the socket, a setting cannot be, the memory is not to be had.
    pub fn bind(config: &AgentConfig) -> Result<Self, AgentError> {
        Self::bind_telling(config, |_| {})
    }

    /// As [`bind`](Self::bind), and names the socket file as soon as it is there, before the pool is: touching each page
    /// takes seconds for each few GiB, and a process that is ended meanwhile can remove it.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_telling(
        config: &AgentConfig,
        there: impl FnOnce(SocketFile),
    ) -> Result<Self, AgentError> {
        config.validate()?;
        let listener = AgentListener::bind(&ListenOptions {
            path: config.socket.clone(),
            allowed_uid: config.allowed_uid,
        })?;
        there(listener.file().clone());
        Ok(Self {
            agent: Agent::new(config, Backing::Memfd)?,
            listener,
            clients: Vec::with_capacity(MAX_CLIENTS),
            clock: Clock::start(),
            drain_timeout: config.drain_timeout,
            accept_after: None,
        })
    }

    /// Serves until `shutdown`: then no new target is welcome, the attached one is told to drain, and this returns
    /// when it has let go, or its time is over, or `shutdown` is asked for again. The socket file is removed.
    ///
    /// # Errors
    /// [`AgentError::Os`] if the loop cannot wait any more. A client's faults end that client only.
    pub fn run(mut self, shutdown: &Shutdown) -> Result<(), AgentError> {
        notify("READY=1");
        let mut phase = Phase::Serving;
        loop {
            self.wait(shutdown, phase)?;
            match (phase, shutdown.take()?) {
                (_, 0) => {}
                (Phase::Serving, 1) => {
                    info!("told to stop");
                    notify("STOPPING=1");
                    self.start_drain();
                    let until = now().checked_add(self.drain_timeout);
                    phase = Phase::Draining {
                        until: until.unwrap_or_else(now),
                    };
                }
                _ => {
                    warn!("told to stop twice: not waiting for the target");
                    return Ok(());
                }
            }
            self.accept();
            self.serve();
            self.expire();
            if let Phase::Draining { until } = phase {
                if !self.agent.held() {
                    info!("no target any more: stopped");
                    return Ok(());
                }
                if now() >= until {
                    warn!(after = ?self.drain_timeout, "the target did not let go in time");
                    return Ok(());
                }
            }
        }
    }

    /// Waits for a client, a caller, the stop, or the next time limit.
    fn wait(&self, shutdown: &Shutdown, phase: Phase) -> Result<(), AgentError> {
        let drain_by = match phase {
            Phase::Serving => None,
            // No target: there is nothing to wait for.
            Phase::Draining { .. } if !self.agent.held() => return Ok(()),
            Phase::Draining { until } => Some(until),
        };
        let next = self
            .clients
            .iter()
            .filter(|client| client.standing == Standing::New)
            .map(|client| client.greet_by)
            .chain(self.accept_after)
            .chain(drain_by)
            .min();
        let timeout = next.map(|at| {
            // Half a millisecond on top: waking just before the limit would only mean to wait again.
            let left = at.saturating_duration_since(now());
            Timespec::try_from(left.saturating_add(Duration::from_micros(500))).unwrap_or_default()
        });
        let mut fds = Vec::with_capacity(MAX_CLIENTS.saturating_add(2));
        fds.push(PollFd::from_borrowed_fd(shutdown.as_fd(), PollFlags::IN));
        fds.extend(
            self.clients
                .iter()
                .map(|client| PollFd::from_borrowed_fd(client.connection.as_fd(), PollFlags::IN)),
        );
        if self.accept_after.is_none() {
            fds.push(PollFd::from_borrowed_fd(
                self.listener.as_fd(),
                PollFlags::IN,
            ));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(AgentError::os("cannot wait for control clients", e)),
        }
    }

    /// Takes the callers that wait, up to as many as there may be clients.
    fn accept(&mut self) {
        if self.accept_after.is_some_and(|at| now() < at) {
            return;
        }
        self.accept_after = None;
        for _ in 0..MAX_CLIENTS {
            match self.listener.accept() {
                Ok(None) => return,
                Ok(Some(Arrival::Foreign { .. })) => {}
                Ok(Some(Arrival::Client(connection))) if self.clients.len() >= MAX_CLIENTS => {
                    let limit = u32::try_from(MAX_CLIENTS).unwrap_or(u32::MAX);
                    warn!(limit, "too many control connections");
                    connection.refuse(0, Refusal::Clients { limit });
                }
                Ok(Some(Arrival::Client(connection))) => {
                    let at = now();
                    self.clients.push(Client {
                        connection,
                        standing: Standing::New,
                        greet_by: at.checked_add(HELLO_TIMEOUT).unwrap_or(at),
                    });
                }
                Err(error) => {
                    error!(%error, "cannot take a control connection; trying again soon");
                    self.accept_after = now().checked_add(ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// One request of each client that has one: none can keep the others waiting.
    fn serve(&mut self) {
        let mut index = 0;
        while let Some(client) = self.clients.get(index) {
            let stays = match client.connection.recv() {
                Ok(None) => true,
                Ok(Some(frame)) => self.handle(index, &frame),
                Err(ControlError::Gone) => false,
                Err(ControlError::Frame(error)) => {
                    warn!(pid = ?client.connection.pid(), %error, "a client broke the protocol");
                    let refusal = AgentConnection::refusal_of(&error);
                    client.connection.refuse(0, refusal);
                    false
                }
                Err(error) => {
                    warn!(pid = ?client.connection.pid(), %error, "lost a client");
                    false
                }
            };
            if stays {
                index = index.saturating_add(1);
            } else {
                self.close(index);
            }
        }
    }

    /// Answers a request; says whether the client stays.
    fn handle(&mut self, index: usize, frame: &Frame<ToAgent>) -> bool {
        let is_target = matches!(&frame.message, ToAgent::Hello(h) if h.role == Role::Target);
        if is_target {
            self.release_dead();
        }
        let facts = Facts {
            uptime_ms: self.clock.elapsed_ms(),
            clients: u32::try_from(self.clients.len()).unwrap_or(u32::MAX),
            peer_pid: None,
        };
        let Some(client) = self.clients.get_mut(index) else {
            return false;
        };
        let facts = Facts {
            peer_pid: client.connection.pid(),
            ..facts
        };
        debug!(pid = ?facts.peer_pid, request = frame.message.name(), "asked");
        let Reply {
            message,
            region,
            standing,
        } = self.agent.answer(client.standing, &frame.message, facts);
        if let Some(standing) = standing {
            client.standing = standing;
        }
        let fd = region.as_ref().and_then(kbtp_memory::Region::fd);
        match client.connection.send(frame.id, message, fd) {
            Ok(()) => standing.is_some(),
            Err(error) => {
                debug!(%error, "an answer was not delivered");
                false
            }
        }
    }

    /// A target that died may still be unnoticed when its successor calls: its requests are unread, or this turn of
    /// the loop has not come to it.
    fn release_dead(&mut self) {
        for client in &mut self.clients {
            if client.standing == Standing::Holder && client.connection.hung_up() {
                client.standing = Standing::Observer;
                self.agent.release();
            }
        }
    }

    fn close(&mut self, index: usize) {
        let client = self.clients.swap_remove(index);
        if client.standing == Standing::Holder {
            self.agent.release();
        }
    }

    /// Closes who is connected and has not said Hello in time.
    fn expire(&mut self) {
        let at = now();
        self.clients.retain(|client| {
            let late = client.standing == Standing::New && at >= client.greet_by;
            if late {
                warn!(pid = ?client.connection.pid(), "a client did not say Hello in time");
            }
            !late
        });
    }

    fn start_drain(&mut self) {
        self.agent.drain();
        let revoke = self.agent.revoke();
        let revoke = revoke.map(|epoch| FromAgent::Revoke { epoch });
        let drain = FromAgent::Drain(DrainReason::Stopping);
        let mut holders = self.clients.iter();
        if let Some(client) = holders.find(|client| client.standing == Standing::Holder) {
            for message in std::iter::once(drain).chain(revoke) {
                if let Err(error) = client.connection.send(0, message, None) {
                    debug!(%error, "the target was not told to drain");
                }
            }
        }
    }
}
