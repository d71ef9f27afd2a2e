//! What a block holds in a replay: a function of its hash id and length alone, so that a wrong, stale or torn block
//! is caught whoever stored it.

/// The increment of the sequence: 2^64 over the golden ratio, odd, so that all 2^64 states occur.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of 64-bit words in which each input bit reaches each output bit (the finaliser of `SplitMix64`).
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The octets of one block as a sequence of words.
#[derive(Clone, Copy, Debug)]
struct Words {
    state: u64,
}

impl Words {
    fn of(hash_id: u64, len: usize) -> Self {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        Self {
            state: mix(hash_id ^ mix(len)),
        }
    }

    fn next(&mut self) -> [u8; 8] {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state).to_le_bytes()
    }
}

/// Writes the content of the block `hash_id` over all of `block`.
pub(crate) fn fill(hash_id: u64, block: &mut [u8]) {
    let mut words = Words::of(hash_id, block.len());
    for chunk in block.chunks_mut(8) {
        let word = words.next();
        for (octet, from) in chunk.iter_mut().zip(word) {
            *octet = from;
        }
    }
}

/// The first octet of `block` that is not what [`fill`] writes; `None` if it is right.
pub(crate) fn first_difference(hash_id: u64, block: &[u8]) -> Option<usize> {
    let mut words = Words::of(hash_id, block.len());
    for (i, chunk) in block.chunks(8).enumerate() {
        let word = words.next();
        let right = word.get(..chunk.len()).unwrap_or(&word);
        if chunk != right {
            let within = chunk.iter().zip(right).position(|(a, b)| a != b);
            return Some(i * 8 + within.unwrap_or(0));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_octet_is_found_where_it_is() {
        for len in [1, 7, 8, 9, 64, 4096] {
            let mut block = vec![0; len];
            fill(42, &mut block);
            assert_eq!(first_difference(42, &block), None);
            for at in [0, len / 2, len - 1] {
                block[at] ^= 1;
                assert_eq!(first_difference(42, &block), Some(at));
                block[at] ^= 1;
            }
        }
    }

    #[test]
    fn blocks_of_other_ids_and_lengths_differ() {
        let block = |id, len| {
            let mut b = vec![0; len];
            fill(id, &mut b);
            b
        };
        assert_ne!(block(1, 64), block(2, 64));
        assert_ne!(block(1, 64), block(1, 128)[..64]);
        assert!(first_difference(2, &block(1, 64)).is_some());
        assert!(first_difference(1, &[0; 64]).is_some());
    }
}
