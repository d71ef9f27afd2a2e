//! How a target takes leave of its agent, and how a kill cuts that short.

use super::memory::Link;
use kbtp_control::{ControlError, LinkCutter};
use std::sync::atomic::{AtomicBool, Ordering};

/// The leave, shared between who takes it and who may kill the target.
#[derive(Debug)]
pub(super) struct Parting {
    cutter: Option<LinkCutter>,
    /// The target is to end at once.
    killed: AtomicBool,
    /// It waits for the agent.
    leaving: AtomicBool,
}

impl Parting {
    pub(super) fn new(link: &Link) -> Result<Self, ControlError> {
        Ok(Self {
            cutter: link.cutter()?,
            killed: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
        })
    }

    /// Nothing waits for the agent from now on.
    pub(super) fn kill(&self) {
        // Each of the two stores its word before it reads the other's, in one order for all: one of them sees both.
        self.killed.store(true, Ordering::SeqCst);
        if self.leaving.load(Ordering::SeqCst) {
            self.close();
        }
    }

    /// Tells the agent that the target lets go. An agent that is not told sees the link close.
    pub(super) fn detach(&self, link: &mut Link) {
        self.leaving.store(true, Ordering::SeqCst);
        if self.killed.load(Ordering::SeqCst) {
            tracing::debug!("the agent is not told that the target ends: it sees the link close");
            return;
        }
        match link.detach() {
            Ok(()) => {}
            Err(_) if self.killed.load(Ordering::SeqCst) => {
                tracing::warn!("the agent has not answered, and is not waited for any more");
            }
            Err(ControlError::Deadline { after, .. }) => tracing::warn!(
                ?after,
                "the agent does not answer and is not waited for: it sees the link close when it goes on"
            ),
            Err(error) => {
                tracing::debug!(%error, "the agent was not told that the target ends");
            }
        }
    }

    /// Ends the link.
    pub(super) fn close(&self) {
        if let Some(cutter) = &self.cutter {
            cutter.cut();
        }
    }
}
