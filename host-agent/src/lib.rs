//! The host agent: it owns the pool's memory and the target's side regions, hands them to one target at a time, and
//! then stays out of the way. They outlive the target, so that a target that died finds its blocks again.
//!
//! [`run`] serves until told to stop; [`Server`] is the same in two steps. [`InProcess`] is the agent of a target that
//! runs alone: the same code, without a socket, and the memory goes with the process.
//!
//! ```no_run
//! use kbtp_agent::{AgentConfig, Shutdown};
//! # fn main() -> Result<(), kbtp_agent::AgentError> {
//! let config = AgentConfig::new("/run/kbtp/agent.sock", 64 << 10, 1024);
//! kbtp_agent::run(&config, &Shutdown::on_signals()?)
//! # }
//! ```
#![forbid(unsafe_code)]

mod agent;
mod config;
mod driver;
mod error;
mod function;
mod in_process;
pub mod limits;
mod notify;
mod shutdown;
mod store;

pub use config::{AgentConfig, Lock, PageWish};
pub use driver::{Server, run};
pub use error::AgentError;
pub use in_process::InProcess;
pub use kbtp_control::SocketFile;
pub use kbtp_memory::Huge;
pub use shutdown::{Shutdown, ShutdownHandle};
