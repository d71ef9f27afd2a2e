//! The clock: the one thing here that is not told the time.

use kbtp_fabric::Time;
use std::sync::OnceLock;
use std::time::Instant;

static EPOCH: OnceLock<Instant> = OnceLock::new();

/// The monotone clock of this process. All clocks of one process agree, whichever thread made them.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// The process's clock. It started, at 0, when the first one was asked for.
    #[must_use]
    pub fn new() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "this file is the driver that reads the clock"
        )]
        let epoch = *EPOCH.get_or_init(Instant::now);
        Self { epoch }
    }

    /// Now. Costs no system call.
    #[must_use]
    pub fn now(&self) -> Time {
        // 2^64 nanoseconds are 584 years.
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree() {
        let a = Clock::new();
        let before = a.now();
        let b = Clock::new();
        assert!(b.now() >= before);
        assert_eq!(a.epoch, b.epoch);
    }
}
