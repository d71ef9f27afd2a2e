//! The one place of this crate that reads the clock.

use std::time::{Duration, Instant};

#[expect(
    clippy::disallowed_methods,
    reason = "the drivers are where the clock is read"
)]
fn now() -> Instant {
    Instant::now()
}

/// When a call gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    start: Instant,
    after: Duration,
}

impl Deadline {
    pub(crate) fn after(after: Duration) -> Self {
        Self {
            start: now(),
            after,
        }
    }

    /// What is left; `None` if the time is over.
    pub(crate) fn left(self) -> Option<Duration> {
        self.after
            .checked_sub(now().saturating_duration_since(self.start))
            .filter(|left| !left.is_zero())
    }

    pub(crate) const fn total(self) -> Duration {
        self.after
    }
}
