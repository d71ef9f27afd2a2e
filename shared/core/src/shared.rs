//! What all workers of a target share.

use crate::{Pool, Stats};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The pool and the counters of a target: shared by reference among its workers, never locked. A worker that counts
/// for itself has its own [`view`](Self::view).
#[derive(Debug)]
pub struct Shared {
    /// Pool, block table, rings.
    pub pool: Arc<Pool>,
    /// What was done through this view, for metrics.
    pub stats: Stats,
    draining: Arc<AtomicBool>,
}

impl Shared {
    /// A target that serves `pool`.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self {
            pool: Arc::new(pool),
            stats: Stats::default(),
            draining: Arc::new(AtomicBool::new(false)),
        }
    }

    /// The same target with counters of its own, so that workers do not count on each other's cache lines.
    #[must_use]
    pub fn view(&self) -> Self {
        Self {
            pool: Arc::clone(&self.pool),
            stats: Stats::default(),
            draining: Arc::clone(&self.draining),
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
