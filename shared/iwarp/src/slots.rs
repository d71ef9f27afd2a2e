//! Receive slots: where messages of the peer are put together and lie until the ULP releases them.

use kbtp_fabric::ReceiveSlot;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    /// A message is being put together.
    Filling,
    /// The ULP holds a message of this length.
    Held {
        len: u32,
    },
}

/// The slots of a stream, in one piece of memory.
#[derive(Debug)]
pub(crate) struct Slots {
    octets: Box<[u8]>,
    slot_len: usize,
    uses: Box<[Use]>,
    /// Free slots; the last freed is used first, for it is in the cache.
    free: Vec<u32>,
}

impl Slots {
    pub(crate) fn new(count: u16, slot_len: u32) -> Self {
        let slot_len = usize::try_from(slot_len).unwrap_or(0);
        Self {
            octets: vec![0; slot_len * usize::from(count)].into_boxed_slice(),
            slot_len,
            uses: vec![Use::Free; count.into()].into_boxed_slice(),
            free: (0..u32::from(count)).rev().collect(),
        }
    }

    /// A slot to fill, if there is one.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        self.set(slot, Use::Filling);
        Some(slot)
    }

    /// Whether none is being filled or held.
    pub(crate) fn all_free(&self) -> bool {
        self.free.len() == self.uses.len()
    }

    fn set(&mut self, slot: u32, to: Use) {
        if let Some(place) = usize::try_from(slot)
            .ok()
            .and_then(|slot| self.uses.get_mut(slot))
        {
            *place = to;
        }
    }

    fn get(&self, slot: u32) -> Use {
        usize::try_from(slot)
            .ok()
            .and_then(|slot| self.uses.get(slot))
            .copied()
            .unwrap_or(Use::Free)
    }

    /// Octets of a slot from `at` on, to be written.
    pub(crate) fn fill(&mut self, slot: u32, at: u32) -> &mut [u8] {
        let start = usize::try_from(slot).map_or(usize::MAX, |s| s.saturating_mul(self.slot_len));
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let end = start.saturating_add(self.slot_len);
        self.octets
            .get_mut(start.saturating_add(at)..end)
            .unwrap_or_default()
    }

    /// The first `len` octets of a slot.
    pub(crate) fn filled(&self, slot: u32, len: u32) -> &[u8] {
        let start = usize::try_from(slot).map_or(usize::MAX, |s| s.saturating_mul(self.slot_len));
        let len = usize::try_from(len).map_or(self.slot_len, |len| len.min(self.slot_len));
        self.octets
            .get(start..start.saturating_add(len))
            .unwrap_or_default()
    }

    /// The message in it is whole and goes to the ULP.
    pub(crate) fn hold(&mut self, slot: u32, len: u32) {
        self.set(slot, Use::Held { len });
    }

    /// The message of a held slot; empty for another.
    pub(crate) fn message(&self, slot: ReceiveSlot) -> &[u8] {
        match self.get(slot.0) {
            Use::Held { len } => self.filled(slot.0, len),
            _ => &[],
        }
    }

    /// Frees a held slot; another is left alone.
    pub(crate) fn release(&mut self, slot: ReceiveSlot) {
        if let Use::Held { .. } = self.get(slot.0) {
            self.set(slot.0, Use::Free);
            self.free.push(slot.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_held_and_released() {
        let mut slots = Slots::new(2, 8);
        let one = slots.take().unwrap();
        let two = slots.take().unwrap();
        assert_eq!(slots.take(), None);
        slots.fill(one, 2)[..3].copy_from_slice(b"abc");
        assert_eq!(slots.message(ReceiveSlot(one)), b"");
        slots.hold(one, 5);
        assert_eq!(slots.message(ReceiveSlot(one)), b"\0\0abc");
        assert_eq!(slots.fill(one, 9).len(), 0);
        // Neither a slot being filled nor one that does not exist is released.
        slots.release(ReceiveSlot(two));
        slots.release(ReceiveSlot(77));
        assert_eq!(slots.take(), None);
        slots.release(ReceiveSlot(one));
        slots.release(ReceiveSlot(one));
        assert_eq!(slots.take(), Some(one));
        assert_eq!(slots.take(), None);
    }
}
