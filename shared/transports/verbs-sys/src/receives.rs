//! The memory that a queue pair's receives lie in.

use crate::error::VerbsError;
use crate::memory::{Domain, Registration, Rights};
use crate::queue::{Completion, QueuePair};
use kbtp_memory::{PageOptions, Region};
use std::slice;

/// Who has a receive slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// Nobody.
    Free,
    /// The device, which writes to it when a message comes.
    Posted,
    /// This party: a message of so many octets lies there.
    Held(u32),
    /// Nobody ever again: its receive failed, and the device's word on it is not to be relied on.
    Lost,
}

/// The memory of one queue pair's receives: slots of one length, each either the device's or this party's.
///
/// Nobody else has the memory or its keys, so that a slot this party holds does not change.
#[derive(Debug)]
pub struct Receives {
    registration: Registration,
    slot_len: u32,
    slots: Box<[Slot]>,
    pair: Option<u32>,
}

impl Receives {
    /// `count` slots of `slot_len` octets, for a queue pair of `domain`.
    ///
    /// # Errors
    /// [`VerbsError`]: no memory, or it cannot be registered.
    pub fn new(domain: &Domain, count: u32, slot_len: u32) -> Result<Self, VerbsError> {
        let octets = u64::from(count).saturating_mul(u64::from(slot_len));
        let region =
            Region::anonymous(octets, &PageOptions::default()).map_err(|error| VerbsError::Os {
                what: "memory for receives",
                source: std::io::Error::other(error),
            })?;
        let rights = Rights {
            local_write: true,
            ..Rights::default()
        };
        let registration = domain.register(&region, 0..octets, None, rights)?;
        Ok(Self {
            registration,
            slot_len,
            slots: (0..count).map(|_| Slot::Free).collect(),
            pair: None,
        })
    }

    /// Slots.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no slot.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Gives `slot` to the device. Its work is numbered as the slot is. The queue pair is to be the same each time.
    ///
    /// # Errors
    /// [`VerbsError`]: it is the device's, or lost, or nothing was posted.
    pub fn post(&mut self, pair: &QueuePair, slot: u32) -> Result<(), VerbsError> {
        const WRONG: VerbsError = VerbsError::Unsupported {
            what: "receive slot that can be posted now, to that queue pair",
        };
        if self.pair.is_some_and(|number| number != pair.number()) {
            return Err(WRONG);
        }
        let at = usize::try_from(slot).unwrap_or(usize::MAX);
        let Some(state) = self.slots.get_mut(at) else {
            return Err(WRONG);
        };
        if matches!(state, Slot::Posted | Slot::Lost) {
            return Err(WRONG);
        }
        let offset = u64::from(slot).saturating_mul(u64::from(self.slot_len));
        let mut buffer = self.registration.buffer(offset, self.slot_len)?;
        // The buffer is the slot's, of which no reference is left: it is not `Held` from here on, and `self` is exclusively
        // borrowed.
        pair.post_receive(u64::from(slot), &mut buffer)?;
        *state = Slot::Posted;
        self.pair = Some(pair.number());
        Ok(())
    }

    /// Takes a slot back from the device; the slot, if the completion is of a message in one.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "each completion tells once who has the slot"
    )]
    pub fn complete(&mut self, completion: Completion) -> Option<u32> {
        let slot = u32::try_from(completion.work()).ok()?;
        let state = self.slots.get_mut(usize::try_from(slot).ok()?)?;
        if self.pair != Some(completion.queue_pair()) || *state != Slot::Posted {
            return None;
        }
        if !completion.is_ok() {
            *state = Slot::Lost;
            return None;
        }
        if !completion.is_receive() {
            return None;
        }
        // The octets of a Write with Immediate lie elsewhere.
        let len = if completion.is_write_with_immediate() {
            0
        } else {
            completion.len().min(self.slot_len)
        };
        *state = Slot::Held(len);
        Some(slot)
    }

    /// The message in `slot`; empty unless this party holds it.
    #[must_use]
    pub fn message(&self, slot: u32) -> &[u8] {
        let at = usize::try_from(slot).unwrap_or(usize::MAX);
        let (Some(Slot::Held(len)), Some(region)) =
            (self.slots.get(at), self.registration.region())
        else {
            return &[];
        };
        let offset = u64::from(slot).saturating_mul(u64::from(self.slot_len));
        let Ok(part) = region.sub(offset..offset.saturating_add(u64::from(*len))) else {
            return &[];
        };
        let len = usize::try_from(*len).unwrap_or(0);
        // SAFETY: the octets lie in the registered region (checked by `sub`), which is mapped as long as `self`. The
        // device wrote them before it reported the receive, and writes them again only when they are posted again,
        // which takes `&mut self`. The region and its keys are private to `self`, the peer has no right to it, and no
        // other work request can name it: nobody else writes them. A mapped octet is always initialised.
        unsafe { slice::from_raw_parts(part.as_ptr().cast_const(), len) }
    }
}
