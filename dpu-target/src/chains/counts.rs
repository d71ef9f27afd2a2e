//! Counters that say what chains did and what they left to software.

use crate::metrics::Counter;
use crate::status::ChainStatus;

/// Why software served a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Punt {
    /// A FREE, while chains are kept from serving.
    Free,
    /// Inline data.
    Inline,
    /// A completion record was asked for.
    Record,
    /// The descriptor's Length is not Block Size.
    Partial,
    /// No request that chains know: BIND, HELLO, a reserved opcode, a message of another length.
    Unknown,
    /// It was refused: the handle, its entry, the quota, a drain.
    Refused,
    /// It was served all the same: the quota was close, or the entry one that chains leave alone.
    Other,
}

impl Punt {
    const ALL: [Self; 7] = [
        Self::Free,
        Self::Inline,
        Self::Record,
        Self::Partial,
        Self::Unknown,
        Self::Refused,
        Self::Other,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Inline => "inline",
            Self::Record => "record",
            Self::Partial => "partial",
            Self::Unknown => "unknown",
            Self::Refused => "refused",
            Self::Other => "other",
        }
    }
}

/// The counters of one worker's chains.
#[derive(Debug, Default)]
pub(crate) struct ChainCounts {
    /// Sessions that have a seat now.
    pub(crate) sessions: Counter,
    /// Requests that chains served, from receipt to completion.
    pub(crate) served: Counter,
    /// Requests that software served, by reason.
    punts: [Counter; Punt::ALL.len()],
    /// Of those, the ones that ended their loopback queue.
    pub(crate) traps: Counter,
    /// Slots armed.
    pub(crate) armed: Counter,
    /// Times software did something before a request could be answered.
    pub(crate) wakeups: Counter,
    /// Blocks and tickets of requests that came to nothing, given back.
    pub(crate) recovered: Counter,
    /// Requests whose block did not come in time.
    pub(crate) given_up: Counter,
    /// Sessions ended because a chain made no progress.
    pub(crate) stalled: Counter,
}

impl ChainCounts {
    pub(crate) fn punt(&self, reason: Punt) {
        if let Some(counter) = self.punts.get(reason as usize) {
            counter.increment();
        }
    }

    /// As `/status` shows them.
    pub(crate) fn status(&self) -> ChainStatus {
        ChainStatus {
            sessions: self.sessions.get(),
            served: self.served.get(),
            punts: self.punts().collect(),
            traps: self.traps.get(),
            armed: self.armed.get(),
            wakeups: self.wakeups.get(),
            recovered: self.recovered.get(),
            given_up: self.given_up.get(),
            stalled: self.stalled.get(),
        }
    }

    /// Punts by reason, as a label.
    pub(crate) fn punts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let labels = Punt::ALL.map(Punt::label);
        labels.into_iter().zip(self.punts.iter().map(Counter::get))
    }
}
