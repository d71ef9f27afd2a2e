//! `SipHash`-2-4 of one 64-bit word, and a keyed permutation of up to 32 bits made with it.
//! Source: Aumasson and Bernstein, "`SipHash`: a fast short-input PRF", 2012.

/// A 128-bit key.
#[derive(Clone, Copy)]
pub(crate) struct SipKey(u64, u64);

impl core::fmt::Debug for SipKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SipKey(..)")
    }
}

impl SipKey {
    /// The key in the first half of `seed` (`second` false) or in the other.
    pub(crate) fn from_seed(seed: &[u8; 32], second: bool) -> Self {
        let (words, _) = seed.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |w| u64::from_le_bytes(*w));
        if second {
            Self(word(2), word(3))
        } else {
            Self(word(0), word(1))
        }
    }

    /// `SipHash`-2-4 of the eight octets of `word`, little-endian.
    pub(crate) const fn hash(self, word: u64) -> u64 {
        let mut v = [
            self.0 ^ 0x736f_6d65_7073_6575,
            self.1 ^ 0x646f_7261_6e64_6f6d,
            self.0 ^ 0x6c79_6765_6e65_7261,
            self.1 ^ 0x7465_6462_7974_6573,
        ];
        // The message is one block; the last block holds only its length, 8.
        v = absorb(v, word);
        v = absorb(v, 8 << 56);
        v[2] ^= 0xff;
        v = round(round(round(round(v))));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }

    /// A permutation of the numbers below `2^bits` (2 to 32), one for each `tweak`: eight rounds of a Feistel network
    /// whose halves need not be equal.
    pub(crate) const fn permute(self, tweak: u64, bits: u32, number: u32) -> u32 {
        // A key of its own for each tweak, so that nothing of it needs room beside a half.
        let key = Self(self.hash(tweak), self.1 ^ tweak);
        let low_bits = bits / 2;
        let low_mask = (1_u64 << low_bits) - 1;
        let high_mask = (1_u64 << (bits - low_bits)) - 1;
        let number = number as u64;
        let mut low = number & low_mask;
        let mut high = (number >> low_bits) & high_mask;
        let mut turn = 0;
        while turn < 8 {
            // 16 bits of half, 4 of turn: no two inputs meet.
            let tag = turn << 20;
            if turn % 2 == 0 {
                high ^= key.hash(tag | low) & high_mask;
            } else {
                low ^= key.hash(tag | high) & low_mask;
            }
            turn += 1;
        }
        let [_, _, _, _, a, b, c, d] = ((high << low_bits) | low).to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

const fn absorb(v: [u64; 4], word: u64) -> [u64; 4] {
    let [v0, v1, v2, v3] = v;
    let [v0, v1, v2, v3] = round(round([v0, v1, v2, v3 ^ word]));
    [v0 ^ word, v1, v2, v3]
}

const fn round(v: [u64; 4]) -> [u64; 4] {
    let [mut v0, mut v1, mut v2, mut v3] = v;
    v0 = v0.wrapping_add(v1);
    v1 = v1.rotate_left(13) ^ v0;
    v0 = v0.rotate_left(32);
    v2 = v2.wrapping_add(v3);
    v3 = v3.rotate_left(16) ^ v2;
    v0 = v0.wrapping_add(v3);
    v3 = v3.rotate_left(21) ^ v0;
    v2 = v2.wrapping_add(v1);
    v1 = v1.rotate_left(17) ^ v2;
    v2 = v2.rotate_left(32);
    [v0, v1, v2, v3]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_vector_of_the_paper_for_eight_octets() {
        // Key 00..0f, message 00..07.
        let mut seed = [0; 32];
        for (at, octet) in seed.iter_mut().enumerate() {
            *octet = u8::try_from(at).unwrap();
        }
        let key = SipKey::from_seed(&seed, false);
        assert_eq!(
            key.hash(u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7])),
            0x93f5_f579_9a93_2462
        );
    }

    /// It goes to logs with what holds it.
    #[test]
    fn a_key_is_not_shown() {
        let key = SipKey::from_seed(&[0xAB; 32], true);
        assert_eq!(std::format!("{key:?}"), "SipKey(..)");
    }

    /// Else who knows some STags could tell part of others.
    #[test]
    fn each_half_of_a_permuted_number_follows_from_both_halves() {
        let key = SipKey::from_seed(&[7; 32], true);
        for tweak in [0, 1, 1 << 16] {
            let low_of = |high: u32| key.permute(tweak, 16, high << 8) & 0xFF;
            let high_of = |low: u32| key.permute(tweak, 16, low) >> 8;
            for half in [
                (0..256).map(low_of).collect(),
                (0..256).map(high_of).collect(),
            ] {
                // Of 256 random octets some 162 differ.
                let values: BTreeSet<u32> = half;
                assert!((120..200).contains(&values.len()), "{}", values.len());
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_standard_library(seed in any::<[u8; 32]>(), word in any::<u64>()) {
            use std::hash::Hasher;
            let key = SipKey::from_seed(&seed, true);
            #[expect(deprecated, reason = "a second implementation to compare with")]
            let mut other = std::hash::SipHasher::new_with_keys(key.0, key.1);
            other.write(&word.to_le_bytes());
            prop_assert_eq!(key.hash(word), other.finish());
        }

        #[test]
        fn permutations_hit_every_number_once(seed in any::<[u8; 32]>(), tweak in 0_u64..1 << 48, bits in 2_u32..12) {
            let key = SipKey::from_seed(&seed, false);
            let mut seen = vec![false; 1 << bits];
            for number in 0..1 << bits {
                let to = key.permute(tweak, bits, number) as usize;
                prop_assert!(!seen[to]);
                seen[to] = true;
            }
        }
    }
}
