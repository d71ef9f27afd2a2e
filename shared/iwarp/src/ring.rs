//! A ring of octets: written at its tail, given back at its head, read in between.

/// A ring whose positions count octets since the start and never wrap (2^64 octets are years at any line rate).
#[derive(Debug)]
pub(crate) struct ByteRing {
    octets: Box<[u8]>,
    /// Octets given back.
    head: u64,
    /// Octets written.
    tail: u64,
    /// The position at the start of `octets`: moved up whenever the ring is empty, so that little traffic uses few
    /// cache lines.
    origin: u64,
}

impl ByteRing {
    /// A ring of at least `len` octets, rounded up to a power of two.
    pub(crate) fn new(len: usize) -> Self {
        Self {
            octets: vec![0; len.next_power_of_two()].into_boxed_slice(),
            head: 0,
            tail: 0,
            origin: 0,
        }
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.octets.len()
    }

    /// Octets that can be written now.
    pub(crate) const fn room(&self) -> usize {
        self.octets.len() - self.used()
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "tail - head is at most the length of the ring, a usize"
    )]
    const fn used(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Where the next octet will be written.
    pub(crate) const fn tail(&self) -> u64 {
        self.tail
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "masked below the length of the ring, a usize"
    )]
    const fn place(&self, position: u64) -> usize {
        (position.wrapping_sub(self.origin) & (self.octets.len() as u64 - 1)) as usize
    }

    /// Writes `from`.
    ///
    /// # Panics
    /// If there is no room: the caller has looked.
    pub(crate) fn write(&mut self, from: &[u8]) {
        let (first, second) = self.reserve(from.len());
        let (a, b) = from.split_at(first.len());
        first.copy_from_slice(a);
        second.copy_from_slice(b);
    }

    /// Takes the next `len` octets and gives them to be written, in two parts where they wrap.
    ///
    /// # Panics
    /// If there is no room: the caller has looked.
    pub(crate) fn reserve(&mut self, len: usize) -> (&mut [u8], &mut [u8]) {
        assert!(len <= self.room(), "the ring has room");
        let at = self.place(self.tail);
        self.tail += len as u64;
        let (before, after) = self.octets.split_at_mut(at);
        let first = len.min(after.len());
        (
            after.split_at_mut(first).0,
            before.split_at_mut(len - first).0,
        )
    }

    /// The `len` octets at `position`, in two parts where they wrap; empty if they are not in the ring.
    pub(crate) fn read(&self, position: u64, len: usize) -> (&[u8], &[u8]) {
        let within = position >= self.head
            && position
                .checked_add(len as u64)
                .is_some_and(|end| end <= self.tail);
        if !within {
            return (&[], &[]);
        }
        let (before, after) = self.octets.split_at(self.place(position));
        let first = len.min(after.len());
        (after.split_at(first).0, before.split_at(len - first).0)
    }

    /// Gives back all octets before `position`.
    pub(crate) fn release_to(&mut self, position: u64) {
        self.head = position.clamp(self.head, self.tail);
        if self.head == self.tail {
            self.origin = self.tail;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_ring_starts_anew() {
        let mut ring = ByteRing::new(64);
        for round in 0..10 {
            let at = ring.tail();
            ring.write(&[round; 48]);
            assert_eq!(
                ring.read(at, 48),
                (&[round; 48][..], &[][..]),
                "in one part"
            );
            ring.release_to(at + 48);
        }
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(sizes in proptest::collection::vec(1_usize..40, 1..60)) {
            let mut ring = ByteRing::new(64);
            let mut held: std::collections::VecDeque<(u64, Vec<u8>)> = std::collections::VecDeque::new();
            for (octet, len) in (0_u8..).zip(sizes) {
                while ring.room() < len {
                    let (at, octets) = held.pop_front().unwrap();
                    let (a, b) = ring.read(at, octets.len());
                    prop_assert_eq!([a, b].concat(), octets.clone());
                    ring.release_to(at + octets.len() as u64);
                    prop_assert_eq!(ring.read(at, 1).0.len(), 0);
                }
                let at = ring.tail();
                let octets = vec![octet; len];
                ring.write(&octets);
                held.push_back((at, octets));
            }
        }
    }
}
