//! The clock: the one thing here that is not told the time.

use kbtp_fabric::Time;
use std::time::Instant;

/// A monotone clock for what waits by itself: it starts at 0 when it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "this file is the driver that reads the clock"
        )]
        let epoch = Instant::now();
        Self { epoch }
    }

    pub(crate) fn now(self) -> Time {
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
