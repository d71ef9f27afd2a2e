//! Mutations of octets, the same for the same seed.

/// Values at the edges of fields, which plain chance rarely hits.
const EDGES: [u8; 8] = [0x00, 0x01, 0x02, 0x03, 0x7f, 0x80, 0xfe, 0xff];

/// Most octets a mutation grows to.
const MAX_LEN: usize = 4096;

/// A source of mutations: xorshift64*.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// A source that gives the same for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        // Zero is the one state that xorshift does not leave.
        Self {
            state: seed ^ 0x9e37_79b9_7f4a_7c15 | 1,
        }
    }

    const fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number under `bound`; zero for a bound of zero.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from((self.next() >> 11) % bound).unwrap_or(0)
    }

    fn octet(&mut self) -> u8 {
        let [.., octet] = (self.next() >> 24).to_be_bytes();
        octet
    }

    /// Changes `octets` in one to four places.
    pub fn mutate(&mut self, octets: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            self.once(octets);
        }
        octets.truncate(MAX_LEN);
    }

    fn once(&mut self, octets: &mut Vec<u8>) {
        let at = self.below(octets.len());
        let bit = self.below(8);
        let edge = EDGES.get(self.below(EDGES.len())).copied().unwrap_or(0);
        match self.below(8) {
            0 => change(octets, at, |octet| octet ^ (1 << bit)),
            1 => {
                let random = self.octet();
                change(octets, at, |_| random);
            }
            2 => change(octets, at, |_| edge),
            3 => {
                // A field of two or four octets, all at an edge or counted up or down by one.
                let (len, step) = (2 << self.below(2), self.below(3));
                for place in octets.iter_mut().skip(at & !1).take(len) {
                    *place = match step {
                        0 => edge,
                        1 => place.wrapping_add(1),
                        _ => place.wrapping_sub(1),
                    };
                }
            }
            4 => octets.truncate(at),
            5 => {
                let more = self.below(64);
                octets.extend(std::iter::repeat_with(|| self.octet()).take(more));
            }
            6 => {
                let end = at.saturating_add(self.below(32)).min(octets.len());
                let copy: Vec<u8> = octets.drain(at..end).collect();
                // Dropped, or doubled.
                if bit < 4 {
                    for _ in 0..2 {
                        octets.splice(at..at, copy.iter().copied());
                    }
                }
            }
            _ => octets.insert(at, edge),
        }
    }
}

fn change(octets: &mut [u8], at: usize, to: impl Fn(u8) -> u8) {
    if let Some(octet) = octets.get_mut(at) {
        *octet = to(*octet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_mutations() {
        let run = |seed| {
            let mut mutator = Mutator::new(seed);
            let mut octets = b"some octets to change".to_vec();
            for _ in 0..100 {
                mutator.mutate(&mut octets);
            }
            octets
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn empty_input_is_no_trouble_and_growth_is_bounded() {
        let mut mutator = Mutator::new(0);
        let mut octets = Vec::new();
        for _ in 0..20_000 {
            mutator.mutate(&mut octets);
            assert!(octets.len() <= MAX_LEN);
        }
    }
}
