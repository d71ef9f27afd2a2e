//! Waiting for what must come, with an end.

use kbtp_fabric::Time;
use kbtp_iwarp_tcp::Clock;

/// How long anything may take before a test gives up. A test that passes does not wait for it.
pub const PATIENCE_MS: u64 = 20_000;

/// Time that runs out.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    clock: Clock,
    /// When it has run out.
    pub end: Time,
}

impl Patience {
    /// As much as there is: [`PATIENCE_MS`].
    #[must_use]
    pub fn new() -> Self {
        let clock = Clock::new();
        let end = clock.now().after_ms(PATIENCE_MS);
        Self { clock, end }
    }

    /// The time now; the test fails if it has run out.
    #[must_use]
    pub fn now(&self, what: &str) -> Time {
        let now = self.clock.now();
        assert!(now < self.end, "{what}: not within {PATIENCE_MS} ms");
        now
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

/// Looks until there is something. Each look should cost the other side some work, so that no pause is needed.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let patience = Patience::new();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let _now = patience.now(what);
        std::thread::yield_now();
    }
}
