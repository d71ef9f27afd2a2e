//! The life of a target: running, draining, stopped. It only moves forward.

use std::sync::atomic::{AtomicU8, Ordering};

/// Where a target is in its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// It takes sessions and requests.
    Running,
    /// New sessions and requests are answered SHUTTING_DOWN; what is in flight finishes.
    Draining,
    /// Its threads end.
    Stopped,
}

impl Phase {
    /// The phase as status and logs name it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

/// The phase, shared between threads.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle(AtomicU8);

impl Lifecycle {
    pub(crate) fn phase(&self) -> Phase {
        match self.0.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Draining,
            _ => Phase::Stopped,
        }
    }

    /// Moves forward to `phase`; false if it was there or past it already.
    pub(crate) fn advance(&self, phase: Phase) -> bool {
        self.0.fetch_max(phase as u8, Ordering::AcqRel) < phase as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_only_moves_forward_and_each_step_once() {
        let life = Lifecycle::default();
        assert_eq!(life.phase(), Phase::Running);
        assert!(life.advance(Phase::Draining));
        assert!(!life.advance(Phase::Draining));
        assert!(life.advance(Phase::Stopped));
        assert!(!life.advance(Phase::Draining));
        assert_eq!(life.phase(), Phase::Stopped);
    }
}
