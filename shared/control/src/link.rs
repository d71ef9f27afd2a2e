//! What a target needs of an agent, wherever the agent lives.

use crate::{
    ControlError, DrainReason, PoolGeometry, RegionGrant, RegionName, StatusReport, Welcome,
};
use kbtp_memory::Region;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The pool, in the target's hands.
#[derive(Clone, Debug)]
pub struct PoolAttachment {
    /// Its STag, base and rights.
    pub grant: RegionGrant,
    /// Its memory.
    pub region: Region,
    /// Its shape; block `i` begins at `grant.base + i * block_size`.
    pub geometry: PoolGeometry,
    /// It was never granted before and is all zeros, so it need not be cleared. A target that was killed between this
    /// and its first use of the pool only makes its successor clear it in vain.
    pub fresh: bool,
}

/// A side region, in the target's hands.
#[derive(Clone, Debug)]
pub struct SideAttachment {
    /// Its STag, base and rights.
    pub grant: RegionGrant,
    /// Its memory.
    pub region: Region,
    /// It was created for this attachment and is all zeros. `false` does not say that an earlier target finished
    /// writing its first contents: mark that in the region itself, last.
    pub fresh: bool,
}

/// What an agent does of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AgentEvent {
    /// It is going to stop: grant nothing more, drain, answer `SHUTTING_DOWN`, detach.
    Draining(DrainReason),
    /// It takes the exported pool back: use it no more, then release it.
    Revoked {
        /// Which grant.
        epoch: u64,
    },
    /// It is gone. The mapped memory stays readable and writable, but no later target will find it: grant nothing
    /// more, drain, answer `SHUTTING_DOWN`. This is the last event, given again each time it is asked for.
    Gone,
}

/// Ends a link from any thread: what waits on it fails as if the agent were gone, and the agent sees it close.
#[derive(Clone, Debug)]
pub struct LinkCutter(pub(crate) Arc<OwnedFd>);

impl LinkCutter {
    /// Ends it. Calling it again does nothing.
    pub fn cut(&self) {
        // It fails only if the link is at its end already.
        if let Err(error) = rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Both) {
            tracing::debug!(%error, "the link was cut before");
        }
    }
}

/// An agent as its target sees it. One thread at a time; calls wait for the answer, with a deadline.
pub trait AgentLink {
    /// What the agent said of itself and its pool when the link was made.
    fn welcome(&self) -> &Welcome;

    /// Memory and bindings outlive this process.
    fn survives_restart(&self) -> bool;

    /// Takes the pool. May be repeated: it is the same memory and the same grant.
    ///
    /// # Errors
    /// [`ControlError`].
    fn attach_pool(&mut self) -> Result<PoolAttachment, ControlError>;

    /// Takes the side region `name`, created with `len` octets of zeros if there is none.
    ///
    /// # Errors
    /// [`ControlError`]; [`Refusal::SideLength`](crate::Refusal::SideLength) if it exists with another length.
    fn attach_side(&mut self, name: &RegionName, len: u64) -> Result<SideAttachment, ControlError>;

    /// Has the agent forget the side region `name`; says whether there was one. The memory goes when the last mapping
    /// of it goes.
    ///
    /// # Errors
    /// [`ControlError`].
    fn drop_side(&mut self, name: &RegionName) -> Result<bool, ControlError>;

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// [`ControlError`].
    fn ping(&mut self) -> Result<(), ControlError>;

    /// Asks how the agent is.
    ///
    /// # Errors
    /// [`ControlError`].
    fn status(&mut self) -> Result<StatusReport, ControlError>;

    /// Lets go, so that another target may attach. The caller has given up its regions before. Waits no longer than
    /// [`DETACH_TIMEOUT`](crate::limits::DETACH_TIMEOUT).
    ///
    /// # Errors
    /// [`ControlError`].
    fn detach(&mut self) -> Result<(), ControlError>;

    /// The next event, without waiting. Ask when [`event_fd`](Self::event_fd) is readable and after each other call:
    /// an event that came during a call no longer makes the descriptor readable.
    ///
    /// # Errors
    /// [`ControlError`] if the agent broke the protocol; the link is of no use any more then.
    fn next_event(&mut self) -> Result<Option<AgentEvent>, ControlError>;

    /// Becomes readable when there is an event. `None` for an agent that has none.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// What ends the link from another thread. `None` for an agent that nobody waits for.
    ///
    /// # Errors
    /// [`ControlError::Os`] without a free descriptor.
    fn cutter(&self) -> Result<Option<LinkCutter>, ControlError> {
        Ok(None)
    }
}
