//! What the host agent and the target say to each other, and how memory changes hands between them.
//!
//! The agent owns the pool and the target's side regions (table, ring, directory); it grants them to one target at a
//! time over a Unix `SOCK_SEQPACKET` socket, each with a memfd, and keeps them when the target goes. The format of
//! what lies in them is the target's affair alone.
//!
//! [`TargetChannel`] is the target's end, [`AgentListener`] and [`AgentConnection`] are the agent's;
//! [`AgentLink`] is what a target needs of an agent, whether it lives across a socket or in the same process.
//!
//! ```no_run
//! use kbtp_control::{AgentLink, ChannelOptions, RegionName, Role, TargetChannel};
//! # fn main() -> Result<(), kbtp_control::ControlError> {
//! let options = ChannelOptions::new("/run/kbtp/agent.sock");
//! let mut agent = TargetChannel::connect(&options, Role::Target)?;
//! let pool = agent.attach_pool()?;
//! let table = agent.attach_side(&RegionName::new("table")?, 1 << 20)?;
//! println!("{} octets at {}, table fresh: {}", pool.grant.len, pool.grant.base, table.fresh);
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod channel;
mod driver;
mod error;
mod export;
mod frame;
mod grant;
pub mod limits;
mod link;
mod listener;
mod message;
mod socket;

pub use channel::{ChannelOptions, ExportedPool, TargetChannel};
pub use error::{ControlError, FrameError, Refusal};
pub use export::{AccessKey, Exports, GrantError, GrantRights, Mechanism, Mechanisms, PoolGrant};
pub use frame::{Frame, HEADER_LEN, MAGIC, VERSION, clip, first_len};
pub use grant::{Incarnation, RegionGrant, RegionName, WireGrant};
pub use link::{AgentEvent, AgentLink, LinkCutter, PoolAttachment, SideAttachment};
pub use listener::{AgentConnection, AgentListener, Arrival, ListenOptions, SocketFile};
pub use message::{
    DrainReason, FromAgent, HandOver, Hello, PageReport, PoolGeometry, RegionStatus, Role,
    StatusReport, ToAgent, Welcome,
};
