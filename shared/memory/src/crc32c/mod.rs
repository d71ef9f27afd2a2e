//! CRC32C (Castagnoli), the CRC of MPA FPDUs (RFC 5044, section 5) and of iSCSI (RFC 3720, appendix B.4).
//!
//! Four ways to compute it, chosen at run time by what the CPU has, all with the same result: folding with
//! carry-less multiplication of 512 bits (x86-64 with VPCLMULQDQ and AVX-512), three interleaved streams of the CRC
//! instruction (x86-64 with SSE4.2 and PCLMULQDQ; aarch64), and tables.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod poly;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

/// The CRC32C of `octets`.
#[must_use]
pub fn crc32c(octets: &[u8]) -> u32 {
    update(0, octets)
}

/// The CRC32C of what `crc` covers followed by `octets`; 0 covers nothing.
#[must_use]
pub fn update(crc: u32, octets: &[u8]) -> u32 {
    // SAFETY: the slice is readable for its length.
    unsafe { update_raw(crc, octets.as_ptr(), octets.len()) }
}

/// As [`update`], of `len` octets at `from`, which others may write meanwhile (the result is then of no use, but
/// nothing else happens).
///
/// # Safety
/// `from` must be readable for `len` octets.
pub(crate) unsafe fn update_raw(crc: u32, from: *const u8, len: usize) -> u32 {
    // The state of the algorithms is the CRC without its final inversion.
    // SAFETY: the caller's promise is passed on.
    !unsafe { advance(!crc, from, len) }
}

/// Advances the inner state over `len` octets in the best way this CPU has.
///
/// # Safety
/// `from` must be readable for `len` octets.
unsafe fn advance(state: u32, from: *const u8, len: usize) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        if len >= x86::FOLD_MIN && x86::has_fold() {
            // SAFETY: the CPU has the features (checked); the caller's promise is passed on.
            return unsafe { x86::fold(state, from, len) };
        }
        if x86::has_streams() {
            // SAFETY: the CPU has the features (checked); the caller's promise is passed on.
            return unsafe { x86::streams(state, from, len) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    if aarch64::has_streams() {
        // SAFETY: the CPU has the feature (checked); the caller's promise is passed on.
        return unsafe { aarch64::streams(state, from, len) };
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { portable::advance(state, from, len) }
}

/// The CRC32C of A followed by B, from those of A and of B and the length of B in octets. Costs some hundred cycles.
#[must_use]
pub fn combine(crc_a: u32, crc_b: u32, len_b: u64) -> u32 {
    // The inversions at both ends of A and B cancel out.
    poly::mul(crc_a, poly::x_pow_octets(len_b)) ^ crc_b
}

/// Which of the four ways long inputs take on this machine, for reports.
#[must_use]
pub fn method() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_fold() {
            return "vpclmulqdq";
        }
        if x86::has_streams() {
            return "sse4.2";
        }
    }
    #[cfg(target_arch = "aarch64")]
    if aarch64::has_streams() {
        return "aarch64-crc";
    }
    "tables"
}

/// A CRC32C computed piece by piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Continues from the CRC of what came before.
    #[must_use]
    pub const fn resume(crc: u32) -> Self {
        Self(crc)
    }

    /// Takes in `octets`.
    pub fn update(&mut self, octets: &[u8]) {
        self.0 = update(self.0, octets);
    }

    /// Takes in `len` octets at `offset` of `region`.
    ///
    /// # Errors
    /// [`AccessError::Bounds`](crate::AccessError::Bounds); nothing was taken in.
    pub fn update_region(
        &mut self,
        region: &crate::Region,
        offset: u64,
        len: u64,
    ) -> Result<(), crate::AccessError> {
        self.0 = region.crc32c(offset, len, self.0)?;
        Ok(())
    }

    /// The CRC of what was taken in.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Way = (&'static str, fn(u32, &[u8]) -> u32);

    /// Every way this machine can take, and the definition of the CRC, bit by bit.
    fn ways() -> Vec<Way> {
        let mut ways: Vec<Way> = vec![
            ("tables", |s, o| unsafe {
                // SAFETY: the slice is readable for its length.
                portable::advance(s, o.as_ptr(), o.len())
            }),
            ("best", |s, o| unsafe {
                // SAFETY: the slice is readable for its length.
                advance(s, o.as_ptr(), o.len())
            }),
        ];
        #[cfg(target_arch = "x86_64")]
        {
            if x86::has_streams() {
                ways.push(("streams", |s, o| unsafe {
                    // SAFETY: the features were checked; the slice is readable for its length.
                    x86::streams(s, o.as_ptr(), o.len())
                }));
            }
            if x86::has_fold() {
                ways.push(("fold", |s, o| unsafe {
                    // SAFETY: the features were checked; the slice is readable for its length.
                    x86::fold(s, o.as_ptr(), o.len())
                }));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if aarch64::has_streams() {
            ways.push(("streams", |s, o| unsafe {
                // SAFETY: the feature was checked; the slice is readable for its length.
                aarch64::streams(s, o.as_ptr(), o.len())
            }));
        }
        ways
    }

    fn by_definition(mut state: u32, octets: &[u8]) -> u32 {
        for &octet in octets {
            state ^= u32::from(octet);
            for _ in 0..8 {
                let carry = state & 1;
                state = (state >> 1) ^ (carry * 0x82f6_3b78);
            }
        }
        state
    }

    fn pattern(len: usize) -> Vec<u8> {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x.to_le_bytes()[3]
            })
            .collect()
    }

    #[test]
    fn known_vectors() {
        // The check value of the CRC catalogue, then RFC 3720, appendix B.4, whose octets are in wire order.
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let iscsi_read: [u8; 48] = [
            0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0,
            0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
        ];
        let vectors: [(&[u8], u32); 7] = [
            (b"", 0),
            (b"123456789", 0xe306_9283),
            (&[0; 32], u32::from_le_bytes([0xaa, 0x36, 0x91, 0x8a])),
            (&[0xff; 32], u32::from_le_bytes([0x43, 0xab, 0xa8, 0x62])),
            (&ascending, u32::from_le_bytes([0x4e, 0x79, 0xdd, 0x46])),
            (&descending, u32::from_le_bytes([0x5c, 0xdb, 0x3f, 0x11])),
            (&iscsi_read, u32::from_le_bytes([0x56, 0x3a, 0x96, 0xd9])),
        ];
        for (octets, crc) in vectors {
            assert_eq!(crc32c(octets), crc);
            for (name, way) in ways() {
                assert_eq!(!way(!0, octets), crc, "{name}");
            }
        }
    }

    #[test]
    fn all_ways_agree_at_every_short_length() {
        let octets = pattern(1300);
        for (name, way) in ways() {
            for len in 0..octets.len() {
                let part = &octets[..len];
                assert_eq!(way(!0, part), by_definition(!0, part), "{name} at {len}");
            }
        }
    }

    #[test]
    fn all_ways_agree_around_the_block_sizes() {
        let octets = pattern(70_000);
        for (name, way) in ways() {
            for middle in [3 * 256, 3 * 1024, 3 * 4096, 4096, 8192, 65_536] {
                for len in middle - 9..middle + 9 {
                    let part = &octets[3..3 + len];
                    assert_eq!(way(5, part), by_definition(5, part), "{name} at {len}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn all_ways_agree(state: u32, octets in proptest::collection::vec(any::<u8>(), 0..9000), skip in 0_usize..64) {
            let part = octets.get(skip..).unwrap_or(&[]);
            let expected = by_definition(state, part);
            for (name, way) in ways() {
                prop_assert_eq!(way(state, part), expected, "{}", name);
            }
        }

        #[test]
        fn pieces_give_the_crc_of_the_whole(octets in proptest::collection::vec(any::<u8>(), 0..5000), cut: prop::sample::Index) {
            let (a, b) = octets.split_at(cut.index(octets.len() + 1));
            let whole = crc32c(&octets);
            let mut state = Crc32c::new();
            state.update(a);
            state.update(b);
            prop_assert_eq!(state.value(), whole);
            prop_assert_eq!(combine(crc32c(a), crc32c(b), b.len() as u64), whole);
        }
    }

    #[test]
    fn combine_takes_lengths_no_buffer_has() {
        // Appending zeros twice over must equal appending their sum.
        let crc = crc32c(b"some octets");
        let a = (1_u64 << 40) + 12_345;
        let b = (1_u64 << 33) + 7;
        assert_eq!(combine(combine(crc, 0, a), 0, b), combine(crc, 0, a + b));
        assert_eq!(combine(crc, 0, 0), crc);
    }
}
