//! A free-block ring whose operations are one step each; the model `ring` is about the steps within.

/// A free-block ring, whole operations at a time.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Ring {
    /// Ticket of the next allocation.
    pub(crate) head: u8,
    /// Ticket of the next free.
    pub(crate) tail: u8,
    /// Sequence and block.
    pub(crate) slots: Vec<(u8, Option<u8>)>,
    /// Ticket and block of frees that wait.
    pub(crate) deferred: Vec<(u8, u8)>,
    /// A slot was written that was not consumed.
    pub(crate) overwritten: bool,
}

impl Ring {
    /// A ring whose tickets are about to wrap: a new one begins at 0, but where it stands after a while is what matters.
    pub(crate) fn new(slots: u8, blocks: &[u8]) -> Self {
        let wrap = slots * 4;
        let first = wrap - 2;
        let filled = u8::try_from(blocks.len()).unwrap_or(u8::MAX);
        let mut ring = vec![(0, None); usize::from(slots)];
        for n in 0..slots {
            let ticket = (first + n) % wrap;
            ring[usize::from(ticket % slots)] = match blocks.get(usize::from(n)) {
                Some(block) => (ticket, Some(*block)),
                None => ((ticket + wrap - slots) % wrap, None),
            };
        }
        Self {
            head: first,
            tail: (first + filled) % wrap,
            slots: ring,
            deferred: Vec::new(),
            overwritten: false,
        }
    }

    pub(crate) fn count(&self) -> u8 {
        u8::try_from(self.slots.len()).unwrap_or(u8::MAX)
    }

    pub(crate) fn wrap(&self) -> u8 {
        self.count() * 4
    }

    pub(crate) fn distance(&self, from: u8, to: u8) -> u8 {
        (to + self.wrap() - from) % self.wrap()
    }

    pub(crate) fn slot(&self, ticket: u8) -> usize {
        usize::from(ticket % self.count())
    }

    /// Frees that have begun and that no allocation has a ticket for.
    pub(crate) fn available(&self) -> u8 {
        let ahead = self.distance(self.head, self.tail);
        if ahead <= self.count() { ahead } else { 0 }
    }

    /// `Ring::take`, or the initiator's `FetchAdd` if `any`.
    pub(crate) fn take(&mut self, any: bool) -> Option<u8> {
        if !any && self.available() == 0 {
            return None;
        }
        let ticket = self.head;
        self.head = (self.head + 1) % self.wrap();
        Some(ticket)
    }

    pub(crate) fn block_for(&self, ticket: u8) -> Option<u8> {
        let (sequence, block) = self.slots[self.slot(ticket)];
        block.filter(|_| sequence == ticket)
    }

    pub(crate) fn consume(&mut self, ticket: u8) -> Option<u8> {
        let block = self.block_for(ticket)?;
        let at = self.slot(ticket);
        self.slots[at].1 = None;
        self.settle();
        Some(block)
    }

    pub(crate) fn advance_tail(&mut self) -> u8 {
        let ticket = self.tail;
        self.tail = (self.tail + 1) % self.wrap();
        ticket
    }

    pub(crate) fn in_turn(&self, ticket: u8) -> bool {
        let (sequence, block) = self.slots[self.slot(ticket)];
        block.is_none() && self.distance(sequence, ticket) == self.count()
    }

    /// The second half of `Ring::free`: writes the slot, or defers that unless the rule is not to be kept.
    pub(crate) fn write(&mut self, ticket: u8, block: u8, keep: bool) {
        if !keep || self.in_turn(ticket) {
            let at = self.slot(ticket);
            self.overwritten |= self.slots[at].1.is_some();
            self.slots[at] = (ticket, Some(block));
        } else {
            self.deferred.push((ticket, block));
            self.deferred.sort_unstable();
            self.settle();
        }
    }

    pub(crate) fn free(&mut self, block: u8, keep: bool) {
        let ticket = self.advance_tail();
        self.write(ticket, block, keep);
    }

    pub(crate) fn settle(&mut self) {
        let waiting = std::mem::take(&mut self.deferred);
        for (ticket, block) in waiting {
            if self.in_turn(ticket) {
                let at = self.slot(ticket);
                self.slots[at] = (ticket, Some(block));
            } else {
                self.deferred.push((ticket, block));
            }
        }
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = u8> + '_ {
        let slots = self.slots.iter().filter_map(|(_, block)| *block);
        slots.chain(self.deferred.iter().map(|(_, block)| *block))
    }
}
