//! Data that tell, wherever they are cut, whose they are: each 64 octets begin with a stamp of 16, and the rest follows
//! from it. So octets of another initiator, of another handle, of an older store or of another place are seen, and named.

/// Octets that a stamp stands for.
const CHUNK: usize = 64;

/// Whose data, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The initiator that stored them.
    pub owner: u64,
    /// The handle they were stored to.
    pub handle: u64,
    /// Which of the stores of that initiator.
    pub version: u64,
}

/// The octets of chunk `number`. The stamp: version (its low 32 bits), handle (16), owner (16), version (high 32), number
/// (32), all big-endian: the version comes first, for data that are shorter than a stamp.
fn chunk(origin: Origin, number: usize) -> [u8; CHUNK] {
    let Origin {
        owner,
        handle,
        version,
    } = origin;
    let mut octets = [0; CHUNK];
    octets[..4].copy_from_slice(&version.to_be_bytes()[4..]);
    octets[4..6].copy_from_slice(&handle.to_be_bytes()[6..]);
    octets[6..8].copy_from_slice(&owner.to_be_bytes()[6..]);
    octets[8..12].copy_from_slice(&version.to_be_bytes()[..4]);
    octets[12..16].copy_from_slice(&(number as u64).to_be_bytes()[4..]);
    let mut x = owner
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(handle)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .wrapping_add(version)
        .wrapping_mul(0x94d0_49bb_1331_11eb)
        .wrapping_add(number as u64)
        | 1;
    for word in octets[16..].chunks_exact_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&x.to_be_bytes());
    }
    octets
}

/// `len` octets of data of `origin`.
#[must_use]
pub fn stamped(origin: Origin, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    for (number, part) in data.chunks_mut(CHUNK).enumerate() {
        part.copy_from_slice(&chunk(origin, number)[..part.len()]);
    }
    data
}

/// Where `data` first differ from those of `origin`, and what stands there instead, in words. Their length is not
/// looked at.
#[must_use]
pub fn differs(origin: Origin, data: &[u8]) -> Option<String> {
    data.chunks(CHUNK).enumerate().find_map(|(number, part)| {
        let right = chunk(origin, number);
        let at = part.iter().zip(right).position(|(a, b)| *a != b)?;
        let at = number * CHUNK + at;
        Some(format!("octet {at} is wrong: {}", named(part)))
    })
}

/// What the stamp at the start of `part` says.
fn named(part: &[u8]) -> String {
    let Some(stamp) = part.first_chunk::<16>() else {
        return format!("{part:02x?}");
    };
    if stamp.iter().all(|octet| *octet == 0) {
        return "zeros".to_owned();
    }
    let number = |range: std::ops::Range<usize>| {
        let octets = &stamp[range];
        octets.iter().fold(0u64, |n, o| n << 8 | u64::from(*o))
    };
    let (owner, handle) = (number(6..8), number(4..6));
    let version = number(8..12) << 32 | number(0..4);
    let place = number(12..16) * CHUNK as u64;
    let origin = Origin {
        owner,
        handle,
        version,
    };
    let its_own = chunk(origin, usize::try_from(number(12..16)).unwrap());
    let whole = if part == &its_own[..part.len()] {
        ""
    } else {
        ", damaged"
    };
    format!(
        "stamped by initiator {owner}, handle {handle}, version {version}, octet {place}{whole}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Origin = Origin {
        owner: 3,
        handle: 7,
        version: 99,
    };

    #[test]
    fn data_differ_from_all_others_and_say_whose_they_are() {
        let data = stamped(MINE, 200);
        assert_eq!(differs(MINE, &data), None);
        let others = [
            Origin { owner: 4, ..MINE },
            Origin { handle: 8, ..MINE },
            Origin {
                version: 98,
                ..MINE
            },
        ];
        for other in others {
            // In each chunk, so that no part of it goes unseen.
            for at in (0..200).step_by(CHUNK) {
                let mut mixed = data.clone();
                let end = (at + CHUNK).min(200);
                mixed[at..end].copy_from_slice(&stamped(other, 200)[at..end]);
                let said = differs(MINE, &mixed).unwrap();
                if end - at >= 16 {
                    let Origin {
                        owner,
                        handle,
                        version,
                    } = other;
                    let name = format!(
                        "initiator {owner}, handle {handle}, version {version}, octet {at}"
                    );
                    assert!(said.ends_with(&name), "{said}");
                }
            }
        }
        let mut moved = data.clone();
        moved.copy_within(0..64, 64);
        assert!(differs(MINE, &moved).unwrap().starts_with("octet 79 is"));
        let mut damaged = data;
        damaged[199] ^= 1;
        assert!(differs(MINE, &damaged).unwrap().starts_with("octet 199 is"));
        damaged.fill(0);
        assert!(differs(MINE, &damaged).unwrap().ends_with("zeros"));
    }
}
