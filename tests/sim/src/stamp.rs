//! What stores store: octets that tell, wherever they are cut, which store they come from and where they stood in it.
//! Each 64 octets begin with a stamp of 16 that is found nowhere else; the rest follows from it.

use crate::rng::mix;

const CHUNK: usize = 64;
const STAMP: usize = 16;

fn chunk(op: u64, number: u64) -> [u8; CHUNK] {
    let mut out = [0; CHUNK];
    let key = mix(op, number);
    for (word, place) in out.chunks_exact_mut(8).enumerate() {
        let value = match word {
            0 => op,
            1 => number ^ key,
            n => key.rotate_left(8 * n as u32) ^ n as u64,
        };
        place.copy_from_slice(&value.to_le_bytes());
    }
    out
}

/// The data of the store `op`.
pub fn fill(op: u64, out: &mut [u8]) {
    for (number, place) in out.chunks_mut(CHUNK).enumerate() {
        place.copy_from_slice(&chunk(op, number as u64)[..place.len()]);
    }
}

/// Where `octets` first differ from the data of the store `op`.
#[must_use]
pub fn differs(op: u64, octets: &[u8]) -> Option<usize> {
    for (number, part) in octets.chunks(CHUNK).enumerate() {
        let want = chunk(op, number as u64);
        if part != &want[..part.len()] {
            let at = part.iter().zip(want).position(|(a, b)| *a != b)?;
            return Some(number * CHUNK + at);
        }
    }
    None
}

/// Where `octets` first hold an octet that none of `ops` would have put there, each with the first octet it may
/// still hold.
#[must_use]
pub fn differs_from_all(ops: &[(u64, usize)], octets: &[u8]) -> Option<usize> {
    for (number, part) in octets.chunks(CHUNK).enumerate() {
        let start = number * CHUNK;
        let chunks: Vec<_> = ops
            .iter()
            .map(|(op, from)| (chunk(*op, number as u64), *from))
            .collect();
        let whole =
            |(want, from): &([u8; CHUNK], usize)| *from <= start && part == &want[..part.len()];
        if chunks.iter().any(whole) {
            continue;
        }
        for (i, octet) in part.iter().enumerate() {
            let here =
                |(want, from): &([u8; CHUNK], usize)| *from <= start + i && want[i] == *octet;
            if !chunks.iter().any(here) {
                return Some(start + i);
            }
        }
    }
    None
}

/// Whether the octets begin with the whole stamp of chunk `number` of the store `op`.
#[must_use]
pub fn begins(op: u64, number: usize, octets: &[u8]) -> bool {
    octets.first_chunk::<STAMP>() == chunk(op, number as u64).first_chunk()
}

/// The store that the octets seem to come from, if they are enough to say it: the first few are those of other stores too.
#[must_use]
pub fn origin(octets: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*octets.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_tell_stores_apart() {
        let (mut one, mut other) = (vec![0; 200], vec![0; 200]);
        fill(1, &mut one);
        fill(2, &mut other);
        assert_eq!(differs(1, &one), None);
        assert!(differs(2, &one).is_some());
        assert_eq!(origin(&one), Some(1));
        assert_eq!(origin(&one[..7]), None);
        let mut torn = one.clone();
        torn[70..].copy_from_slice(&other[70..]);
        assert_eq!(differs_from_all(&[(1, 0), (2, 0)], &torn), None);
        assert!(differs_from_all(&[(1, 0)], &torn).is_some());
        assert!(differs_from_all(&[(1, 0), (2, 130)], &torn).is_some());
        torn[199] ^= 1;
        assert_eq!(differs_from_all(&[(1, 0), (2, 0)], &torn), Some(199));
    }
}
