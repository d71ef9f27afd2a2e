//! The agent's end.

use crate::frame::clip;
use crate::limits::BACKLOG;
use crate::socket::{Peer, SeqSocket, address, open};
use crate::{ControlError, Frame, FrameError, FromAgent, Refusal, ToAgent};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, bind, connect, listen};
use std::fs::{File, Permissions, TryLockError};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tracing::{debug, info, warn};
use zeroize::Zeroizing;

/// Where an agent listens, and to whom.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The socket's path.
    pub path: PathBuf,
    /// A user that may call besides root and the agent's own. The socket file is given to it.
    pub allowed_uid: Option<u32>,
}

/// A bound socket. Dropping it removes the socket file, unless another has taken its place.
#[derive(Debug)]
pub struct AgentListener {
    socket: OwnedFd,
    file: SocketFile,
    allowed: [Option<u32>; 3],
    /// Held while the agent lives: two that start at once cannot both find the old socket stale and replace it.
    _lock: File,
}

/// The file of a socket.
#[derive(Clone, Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Its device and inode.
    id: (u64, u64),
}

impl SocketFile {
    /// Removes it, unless another has taken its place.
    pub fn remove(&self) {
        let same = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.id);
        if same && let Err(error) = std::fs::remove_file(&self.path) {
            warn!(path = %self.path.display(), %error, "the socket file stays");
        }
    }
}

/// Who called.
#[derive(Debug)]
pub enum Arrival {
    /// One that may.
    Client(AgentConnection),
    /// One that may not; it was told so.
    Foreign {
        /// Its user.
        uid: u32,
    },
}

/// One client.
#[derive(Debug)]
pub struct AgentConnection {
    socket: SeqSocket,
    peer: Peer,
}

impl AgentListener {
    /// Listens at `options.path`, mode 0600. A socket that no agent answers at is replaced.
    ///
    /// # Errors
    /// [`ControlError::AgentAlive`], [`ControlError::NotASocket`], [`ControlError::PathTooLong`], or what the
    /// operating system refused.
    pub fn bind(options: &ListenOptions) -> Result<Self, ControlError> {
        let path = &options.path;
        let at = address(path)?;
        // What is no socket is refused before a lock file is made beside it.
        socket_at(path)?;
        let lock = lock(path)?;
        clear_stale(path)?;
        let socket = open()?;
        bind(&socket, &at).map_err(|e| {
            let what = format!(
                "cannot make the socket {}: its directory must exist and be writable by the agent",
                path.display()
            );
            ControlError::os(what, e)
        })?;
        // Nobody gets in between: until `listen`, connecting is refused.
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(|e| {
            ControlError::os(format!("cannot set the mode of {}", path.display()), e)
        })?;
        let own = rustix::process::geteuid().as_raw();
        if let Some(uid) = options.allowed_uid.filter(|uid| *uid != own) {
            std::os::unix::fs::chown(path, Some(uid), None).map_err(|e| {
                let what = format!(
                    "cannot give {} to the allowed user {uid}: only root can; run the agent as that user instead",
                    path.display()
                );
                ControlError::os(what, e)
            })?;
        }
        let meta = std::fs::symlink_metadata(path)
            .map_err(|e| ControlError::os(format!("cannot look at {}", path.display()), e))?;
        listen(&socket, BACKLOG).map_err(|e| ControlError::os("cannot listen", e))?;
        info!(path = %path.display(), "listening");
        Ok(Self {
            socket,
            file: SocketFile {
                path: path.clone(),
                id: (meta.dev(), meta.ino()),
            },
            allowed: [Some(own), Some(0), options.allowed_uid],
            _lock: lock,
        })
    }

    /// Takes one caller, or `None` if there is none now.
    ///
    /// # Errors
    /// [`ControlError::Os`], for example without a free descriptor.
    pub fn accept(&self) -> Result<Option<Arrival>, ControlError> {
        if !readable(self.socket.as_fd()) {
            return Ok(None);
        }
        let fd = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(fd) => fd,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(e) => return Err(ControlError::os("cannot accept a control connection", e)),
        };
        let socket = SeqSocket::new(fd);
        let peer = socket.peer()?;
        let connection = AgentConnection { socket, peer };
        if self.allowed.contains(&Some(peer.uid)) {
            return Ok(Some(Arrival::Client(connection)));
        }
        warn!(uid = peer.uid, pid = ?peer.pid, "refused a foreign user");
        connection.refuse(0, Refusal::User { uid: peer.uid });
        Ok(Some(Arrival::Foreign { uid: peer.uid }))
    }

    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// The socket's file.
    #[must_use]
    pub const fn file(&self) -> &SocketFile {
        &self.file
    }
}

impl AsFd for AgentListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for AgentListener {
    fn drop(&mut self) {
        self.file.remove();
    }
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Takes the lock file beside the socket.
fn lock(path: &Path) -> Result<File, ControlError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&name, flags, Mode::from_raw_mode(0o600)).map_err(|e| {
        let what = format!(
            "cannot open {}: its directory must exist and be writable by the agent",
            name.display()
        );
        ControlError::os(what, e)
    })?;
    let file = File::from(file);
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ControlError::AgentAlive {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(e)) => Err(ControlError::os(
            format!("cannot lock {}", name.display()),
            e,
        )),
    }
}

/// Whether there is a socket at `path`; refuses if it is something else.
fn socket_at(path: &Path) -> Result<bool, ControlError> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => {
            let what = format!("cannot look at {}", path.display());
            Err(ControlError::os(what, e))
        }
        Ok(meta) if !meta.file_type().is_socket() => Err(ControlError::NotASocket {
            path: path.to_owned(),
        }),
        Ok(_) => Ok(true),
    }
}

/// Removes the socket of an agent that is gone; refuses if one answers, or if it is no socket.
fn clear_stale(path: &Path) -> Result<(), ControlError> {
    let path_buf = || path.to_owned();
    if !socket_at(path)? {
        return Ok(());
    }
    let probe = open()?;
    rustix::io::ioctl_fionbio(&probe, true)
        .map_err(|e| ControlError::os("cannot prepare a socket", e))?;
    match connect(&probe, &address(path)?) {
        // A full queue has an owner too.
        Ok(()) | Err(Errno::AGAIN) => Err(ControlError::AgentAlive { path: path_buf() }),
        Err(Errno::PROTOTYPE) => Err(ControlError::NotASocket { path: path_buf() }),
        Err(Errno::CONNREFUSED | Errno::NOENT) => {
            debug!(path = %path.display(), "replacing a stale socket");
            match std::fs::remove_file(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    let what = format!("cannot remove the stale socket {}", path.display());
                    Err(ControlError::os(what, e))
                }
                _ => Ok(()),
            }
        }
        Err(e) => {
            let what = format!("cannot tell whether an agent lives at {}", path.display());
            Err(ControlError::os(what, e))
        }
    }
}

impl AgentConnection {
    /// The client's user, as the kernel knows it.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.peer.uid
    }

    /// The client's process, if it can be seen from here.
    #[must_use]
    pub const fn pid(&self) -> Option<u32> {
        self.peer.pid
    }

    /// Takes one request and its ID, or `None` if there is none now.
    ///
    /// # Errors
    /// [`ControlError::Gone`] when the client closed; [`ControlError::Frame`] when it broke the protocol.
    pub fn recv(&self) -> Result<Option<Frame<ToAgent>>, ControlError> {
        let Some(received) = self.socket.recv(false)? else {
            return Ok(None);
        };
        let frame = Frame::<ToAgent>::decode(&received.octets)?;
        if frame.id == 0 {
            return Err(FrameError::Body {
                reason: "a request with ID 0".to_owned(),
            }
            .into());
        }
        Ok(Some(frame))
    }

    /// Sends an answer, or with ID 0 what was not asked, and the descriptor that belongs to it.
    ///
    /// # Errors
    /// [`ControlError::Gone`] if the client is gone or leaves so many answers unread that there is no room for this
    /// one; [`ControlError::Frame`] if the message fits no frame.
    pub fn send(
        &self,
        id: u32,
        message: FromAgent,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ControlError> {
        // There may be a key in it.
        let octets = Zeroizing::new(Frame { id, message }.encode()?);
        if self.socket.send(&octets, fd)? {
            Ok(())
        } else {
            Err(ControlError::Gone)
        }
    }

    /// Says no, as far as it can be said: for a connection that ends.
    pub fn refuse(&self, id: u32, refusal: Refusal) {
        if let Err(error) = self.send(id, FromAgent::Refused(refusal), None) {
            debug!(%error, "a refusal was not delivered");
        }
    }

    /// The refusal that answers a frame that is none.
    #[must_use]
    pub fn refusal_of(error: &FrameError) -> Refusal {
        match error {
            FrameError::Version { got, speaks } => Refusal::Version {
                got: *got,
                speaks: *speaks,
            },
            other => Refusal::Malformed {
                reason: clip(&other.to_string()),
            },
        }
    }

    /// The client has closed, even if requests of it are unread.
    #[must_use]
    pub fn hung_up(&self) -> bool {
        self.socket.hung_up()
    }
}

impl AsFd for AgentConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }
}
