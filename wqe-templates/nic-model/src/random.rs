//! Numbers from a seed: the schedule is the same for the same seed.

/// `SplitMix64`: each state gives the next number, and no seed is bad.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        let number = self.next().checked_rem(bound).unwrap_or(0);
        usize::try_from(number).unwrap_or(0)
    }

    /// True in `of` out of 256.
    pub(crate) const fn chance(&mut self, of: u16) -> bool {
        let [octet, ..] = self.next().to_be_bytes();
        (octet as u16) < of
    }
}
