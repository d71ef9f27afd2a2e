//! What a session has to post, in order.

use super::Work;
use super::slots::SlotIndex;
use kbtp_fabric::{LocalBuffer, RemoteBuffer, WorkId, WorkRequest};
use kbtp_wire::{Completion, CompletionRecord, Stag};
use std::collections::VecDeque;

/// What posted work was, as its [`WorkId`] says: kind in bits 63 and 62, slot in 61 to 48, use of the slot below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Posted {
    /// Nothing depends on its end.
    Plain,
    /// The completion of a load, message or record: its end releases the block.
    LoadEnd { slot: SlotIndex, seq: u64 },
    /// The RDMA Read of a store.
    Read { slot: SlotIndex, seq: u64 },
}

const SEQ_BITS: u32 = 48;
const SLOT_BITS: u32 = 14;

impl Posted {
    pub(super) fn id(self) -> WorkId {
        let pack = |kind: u64, slot: SlotIndex, seq: u64| {
            let slot = u64::from(slot.0) << SEQ_BITS;
            WorkId((kind << (SEQ_BITS + SLOT_BITS)) | slot | (seq & mask(SEQ_BITS)))
        };
        match self {
            Self::Plain => WorkId(0),
            Self::LoadEnd { slot, seq } => pack(1, slot, seq),
            Self::Read { slot, seq } => pack(2, slot, seq),
        }
    }

    pub(super) fn of(id: WorkId) -> Self {
        let seq = id.0 & mask(SEQ_BITS);
        let slot = (id.0 >> SEQ_BITS) & mask(SLOT_BITS);
        let slot = SlotIndex(u16::try_from(slot).unwrap_or(u16::MAX));
        match id.0 >> (SEQ_BITS + SLOT_BITS) {
            1 => Self::LoadEnd { slot, seq },
            2 => Self::Read { slot, seq },
            _ => Self::Plain,
        }
    }
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// One thing to post.
#[derive(Clone, Debug)]
pub(super) enum Outgoing {
    /// HELLO_ACK; once a session.
    Ack(Box<[u8]>),
    /// COMPLETION; with INVALIDATE, and for a load the slot that its end releases.
    Complete {
        octets: [u8; Completion::LEN],
        invalidate: Option<Stag>,
        posted: Posted,
    },
    /// Completion record: 24 octets by RDMA Write with Immediate.
    Record {
        octets: [u8; CompletionRecord::LEN],
        remote: RemoteBuffer,
        immediate: u32,
        posted: Posted,
    },
    /// RDMA Write of a load.
    Write {
        local: LocalBuffer,
        remote: RemoteBuffer,
    },
    /// RDMA Read of a store.
    Read {
        local: LocalBuffer,
        remote: RemoteBuffer,
        posted: Posted,
    },
}

/// What is to be posted, in order. It never grows past what it was made for: one entry for each credit, two for each
/// slot, and the HELLO_ACK.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: VecDeque<Outgoing>,
}

impl Outbox {
    pub(super) fn reserve(&mut self, entries: usize) {
        self.queue.reserve(entries);
    }

    pub(super) fn push(&mut self, outgoing: Outgoing) {
        self.queue.push_back(outgoing);
    }

    /// The first entry as work.
    pub(super) fn front(&self) -> Option<Work<'_>> {
        Some(match self.queue.front()? {
            Outgoing::Ack(octets) => Work {
                id: Posted::Plain.id(),
                request: send(octets, None),
                signaled: false,
            },
            //= kbtp-6.5-completion-by-send
            //= kbtp-5.1-invalidate-data-descriptor
            //= kbtp-9.1-sends
            Outgoing::Complete {
                octets,
                invalidate,
                posted,
            } => Work {
                id: posted.id(),
                request: send(octets, *invalidate),
                // Its end tells that the Write before it, which is not signaled, no longer needs the block either.
                signaled: *posted != Posted::Plain,
            },
            //= kbtp-9.2-record-with-immediate
            //= kbtp-p3-record-immediate
            Outgoing::Record {
                octets,
                remote,
                immediate,
                posted,
            } => Work {
                id: posted.id(),
                request: WorkRequest::WriteImmediate {
                    octets,
                    remote: *remote,
                    immediate: *immediate,
                },
                signaled: *posted != Posted::Plain,
            },
            //= kbtp-9.1-loads-write-stores-read
            Outgoing::Write { local, remote } => Work {
                id: Posted::Plain.id(),
                request: WorkRequest::Write {
                    local: *local,
                    remote: *remote,
                    immediate: None,
                },
                signaled: false,
            },
            Outgoing::Read {
                local,
                remote,
                posted,
            } => Work {
                id: posted.id(),
                request: WorkRequest::Read {
                    local: *local,
                    remote: *remote,
                },
                signaled: true,
            },
        })
    }

    /// The first entry was posted; whether it completed a request.
    pub(super) fn pop(&mut self) -> bool {
        matches!(
            self.queue.pop_front(),
            Some(Outgoing::Complete { .. } | Outgoing::Record { .. })
        )
    }
}

const fn send(head: &[u8], invalidate: Option<Stag>) -> WorkRequest<'_> {
    WorkRequest::Send {
        head,
        tail: None,
        solicited: false,
        invalidate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ids_name_slot_and_use() {
        for posted in [
            Posted::Plain,
            Posted::LoadEnd {
                slot: SlotIndex(0),
                seq: 1,
            },
            Posted::Read {
                slot: SlotIndex(2047),
                seq: (1 << 48) - 1,
            },
        ] {
            assert_eq!(Posted::of(posted.id()), posted);
        }
    }
}
