//! The one source of chance: `SplitMix64`, so that a seed is all it takes to repeat a run.

/// A generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Mixes two numbers into one that looks like neither.
#[must_use]
pub const fn mix(a: u64, b: u64) -> u64 {
    let mut z = a
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The generator of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0, 0)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    /// A number from `low` to `high`, both included.
    pub const fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True `n` times in a thousand.
    pub const fn per_mille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap_or(0)]
    }

    /// Fresh octets.
    pub fn octets<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        for chunk in out.chunks_mut(8) {
            let next = self.next().to_le_bytes();
            chunk.copy_from_slice(&next[..chunk.len()]);
        }
        out
    }
}
