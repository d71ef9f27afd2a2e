//! What all workers of a target share.

use crate::{Pool, Stats};
use std::sync::atomic::{AtomicBool, Ordering};

/// The pool and the counters of a target: shared by reference among its workers, never locked.
#[derive(Debug)]
pub struct Shared {
    /// Pool, block table, rings.
    pub pool: Pool,
    /// What was done, for metrics.
    pub stats: Stats,
    draining: AtomicBool,
}

impl Shared {
    /// A target that serves `pool`.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            stats: Stats::default(),
            draining: AtomicBool::new(false),
        }
    }

    /// From now on every new request and every HELLO is answered with SHUTTING_DOWN (P7); what has begun ends well.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether [`drain`](Self::drain) was called.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}
