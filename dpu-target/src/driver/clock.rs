//! The clock of the driver: nanoseconds since the target started, monotone.

use kbtp_fabric::Time;
use nix::sys::epoll::EpollTimeout;
use std::time::Instant;

/// A monotone clock that starts at zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that shows zero now.
    #[expect(clippy::disallowed_methods, reason = "the driver reads the clock")]
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// The time now.
    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// How long an epoll may wait at `now` for something due `at`: whole milliseconds, rounded up, so that what is due
/// has come when it wakes.
pub(crate) fn epoll_timeout(now: Time, at: Time) -> EpollTimeout {
    let ms = at.since_ns(now).div_ceil(1_000_000);
    EpollTimeout::try_from(i32::try_from(ms).unwrap_or(i32::MAX)).unwrap_or(EpollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_rounds_up_and_saturates() {
        let ms = |now, at| i32::from(epoll_timeout(Time(now), Time(at)));
        assert_eq!(ms(0, 1), 1);
        assert_eq!(ms(0, 1_000_000), 1);
        assert_eq!(ms(0, 1_000_001), 2);
        assert_eq!(ms(5, 5), 0);
        assert_eq!(ms(9, 5), 0);
        assert_eq!(ms(0, u64::MAX), i32::MAX);
    }
}
