//! What can go wrong on the control channel. Each text names the thing and the remedy.

use crate::RegionName;
use crate::limits::{MAX_FRAME_LEN, MAX_PATH_LEN};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// A frame that is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Shorter than its header.
    #[error("a frame of {len} octets is shorter than its header")]
    Short {
        /// Octets it has.
        len: usize,
    },
    /// Longer than any frame.
    #[error("a frame of {len} octets is over the limit of {MAX_FRAME_LEN}")]
    Long {
        /// Octets it has.
        len: usize,
    },
    /// Another protocol.
    #[error("the frame begins with {got:#010x}: not a KBTP control frame")]
    Magic {
        /// Its first four octets.
        got: u32,
    },
    /// Another version.
    #[error(
        "control frame of version {got}, this side speaks {speaks}: run agent and target of one release"
    )]
    Version {
        /// The frame's.
        got: u16,
        /// Ours.
        speaks: u16,
    },
    /// Reserved bits are set.
    #[error("reserved field of a control frame is {got:#06x}")]
    Reserved {
        /// The field.
        got: u16,
    },
    /// The length field does not say how long the frame is.
    #[error("the frame says {says} octets of body and has {has}")]
    Length {
        /// The field.
        says: u32,
        /// What came.
        has: usize,
    },
    /// The body is no message.
    #[error("the body is no message of this version: {reason}")]
    Body {
        /// In words.
        reason: String,
    },
    /// Descriptors came that the message does not carry, or did not come.
    #[error("{got} file descriptors came with {message}, which carries {wanted}")]
    Descriptors {
        /// The message.
        message: &'static str,
        /// How many came.
        got: usize,
        /// How many belong there.
        wanted: usize,
    },
}

/// Why an agent says no. Nothing has changed; unless said otherwise the connection stays.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// No common version. The connection ends.
    #[error(
        "the agent speaks control version {speaks}, asked for {got}: run agent and target of one release"
    )]
    Version {
        /// The agent's.
        speaks: u16,
        /// The client's.
        got: u16,
    },
    /// The caller's user may not. The connection ends.
    #[error(
        "the agent does not serve user {uid}: run the target as the agent's user, or set the agent's allowed user"
    )]
    User {
        /// The caller's.
        uid: u32,
    },
    /// There is a target already. The connection ends.
    #[error("the agent has a live target, process {pid}: stop that one first")]
    Busy {
        /// It.
        pid: u32,
    },
    /// Too many connections. The connection ends.
    #[error("the agent has {limit} connections already: close one")]
    Clients {
        /// The limit.
        limit: u32,
    },
    /// It is about to go: no new target and no new memory.
    #[error("the agent is stopping: start it again first")]
    Draining,
    /// An attached target only may ask this.
    #[error("{request} is for an attached target only")]
    NotTarget {
        /// The request.
        request: String,
    },
    /// Not now: Hello comes first, and once.
    #[error("unexpected {request}")]
    Unexpected {
        /// The request.
        request: String,
    },
    /// It was no frame, or no request. The connection ends.
    #[error("malformed request: {reason}")]
    Malformed {
        /// In words.
        reason: String,
    },
    /// The side region has another length.
    #[error(
        "side region {name} has {have} octets, asked for {asked}: start the target with the sizes it had, or let it drop the region (its contents are lost)"
    )]
    SideLength {
        /// Which.
        name: RegionName,
        /// Its octets.
        have: u64,
        /// What was asked for.
        asked: u64,
    },
    /// Too many side regions.
    #[error("the agent keeps {limit} side regions already: drop one, or restart the agent")]
    SideCount {
        /// The limit.
        limit: u32,
    },
    /// Too large a side region.
    #[error(
        "side region of {asked} octets, and {left} are left under the agent's limit: raise it in the agent's configuration"
    )]
    SideSize {
        /// What was asked for.
        asked: u64,
        /// What is left.
        left: u64,
    },
    /// The memory could not be had.
    #[error("no memory for the region: {reason}")]
    Memory {
        /// In words, with the remedy.
        reason: String,
    },
    /// It can export memory in none of the ways that the target takes.
    #[error("the agent exports memory by {speaks}, the target takes {asked}")]
    Mechanism {
        /// The agent's.
        speaks: String,
        /// The target's.
        asked: String,
    },
    /// There is no grant of that epoch and key.
    #[error("no grant of epoch {epoch} with that key")]
    NoGrant {
        /// The epoch that was named.
        epoch: u64,
    },
    /// The grant there is was revoked, and not released so far.
    #[error("the exported pool is being taken back: release it first")]
    Revoked,
}

/// What went wrong at this end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Nobody listens.
    #[error("no agent answers at {}: start it with `kbtp agent`, or name its socket", path.display())]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The socket may not be opened by this user.
    #[error("no permission for the agent's socket {}: run as the agent's user, or set the agent's allowed user", path.display())]
    Permission {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// Another agent lives at the socket.
    #[error("an agent is running at {}: stop it, or choose another socket", path.display())]
    AgentAlive {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is where the socket should be.
    #[error("{} exists and is not an agent's socket: remove it, or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The path does not fit a socket's address.
    #[error("the socket's path {} is over {MAX_PATH_LEN} octets: choose a shorter one", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// The other end belongs to a user that is not trusted.
    #[error("the process at the other end of {} belongs to user {uid}, which is neither root, nor this user, nor the one configured", path.display())]
    ForeignUser {
        /// The socket.
        path: PathBuf,
        /// The other end's user.
        uid: u32,
    },
    /// The agent said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What came is no frame. The connection is of no use any more.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// An answer to something else.
    #[error("the agent answered {wanted} with {got}")]
    WrongAnswer {
        /// The request.
        wanted: &'static str,
        /// The answer.
        got: &'static str,
    },
    /// No answer in time. The connection stays; a late answer is dropped.
    #[error("the agent did not answer {what} within {after:?}")]
    Deadline {
        /// The request.
        what: &'static str,
        /// How long it had.
        after: Duration,
    },
    /// The other end closed, or died.
    #[error("the other end of the control channel is gone")]
    Gone,
    /// The region that came cannot be used.
    #[error("region {name} cannot be used")]
    Region {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: kbtp_memory::MapError,
    },
    /// The region that came is not what the grant says.
    #[error("region {name}: {reason}")]
    BadGrant {
        /// Which.
        name: String,
        /// In words.
        reason: String,
    },
    /// Not a name for a side region.
    #[error(
        "{name:?} is no name for a side region: 1 to 64 of a-z 0-9 . _ -, the first a letter or digit"
    )]
    BadName {
        /// It.
        name: String,
    },
    /// The operating system refused.
    #[error("{what}")]
    Os {
        /// What was asked of it.
        what: String,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
}

impl ControlError {
    pub(crate) fn os(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Os {
            what: what.into(),
            source: source.into(),
        }
    }
}
