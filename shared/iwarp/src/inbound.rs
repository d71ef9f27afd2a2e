//! RDMA Reads and Atomics of the peer, answered in the order they came.
//! Source: RFC 5040, section 5.2; RFC 7306, sections 5.2 and 5.4.

use crate::plants::{Plant, planted};
use kbtp_wire::ddp::Msn;
use kbtp_wire::rdmap::{AtomicRequest, ReadRequest};
use std::collections::VecDeque;

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inbound {
    Read {
        request: ReadRequest,
        /// Octets answered.
        done: u32,
        /// Its message, for a Terminate.
        msn: Msn,
    },
    /// Carried out when it is answered, so that it keeps its place among the Reads.
    Atomic { request: AtomicRequest },
}

/// The requests that wait.
#[derive(Debug)]
pub(crate) struct InboundQueue {
    requests: VecDeque<Inbound>,
    depth: usize,
}

impl InboundQueue {
    /// A queue for at most `depth` requests.
    pub(crate) fn new(depth: u16) -> Self {
        Self {
            //= rfc5040-5.2.2-read-queue-buffers
            //= rfc5040-6.1-ird-ord-provided
            //= rfc7306-5.2.2-request-buffers
            //= rfc5040-8.1.2-read-queue-not-shared
            //= rfc5042-6.4.3.3-read-queue-not-shared
            // One more for the RTR indication.
            requests: VecDeque::with_capacity(usize::from(depth) + 1),
            depth: depth.into(),
        }
    }

    /// Sets the depth agreed on.
    pub(crate) fn agree(&mut self, depth: u16) {
        self.depth = depth.into();
    }

    pub(crate) fn is_full(&self) -> bool {
        //= rfc5040-8.1.1-read-cap
        //= rfc5042-6.4.3.3-read-cap
        self.requests.len() >= self.depth
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Appends; [`is_full`](Self::is_full) said no.
    pub(crate) fn push(&mut self, request: Inbound) {
        if planted(Plant::AnswersReversed) && self.untouched() {
            self.requests.push_front(request);
            return;
        }
        self.requests.push_back(request);
    }

    /// No answer has begun.
    fn untouched(&self) -> bool {
        !matches!(self.requests.front(), Some(Inbound::Read { done: 1.., .. }))
    }

    pub(crate) fn front(&self) -> Option<Inbound> {
        self.requests.front().copied()
    }

    /// `octets` more of the oldest request, a Read, are answered.
    pub(crate) fn advance(&mut self, octets: u32) {
        if let Some(Inbound::Read { done, .. }) = self.requests.front_mut() {
            *done = done.saturating_add(octets);
        }
    }

    /// The oldest request is answered.
    pub(crate) fn pop(&mut self) {
        self.requests.pop_front();
    }
}
