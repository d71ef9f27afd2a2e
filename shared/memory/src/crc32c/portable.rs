//! CRC32C by tables, eight octets a step, for CPUs without a CRC instruction.

use super::poly::POLY;

/// `TABLES[k][o]`: the state after octet `o` and `k` zero octets.
static TABLES: [[u32; 256]; 8] = tables();

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time only, where an index out of range fails the build"
)]
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut octet = 0;
    while octet < 256 {
        let mut state = octet as u32;
        let mut k = 0;
        while k < 8 {
            let mut bit = 0;
            while bit < 8 {
                state = (state >> 1) ^ if state & 1 == 1 { POLY } else { 0 };
                bit += 1;
            }
            tables[k][octet] = state;
            k += 1;
        }
        octet += 1;
    }
    tables
}

/// Advances `state` over `len` octets.
///
/// # Safety
/// `from` must be readable for `len` octets.
pub(super) unsafe fn advance(mut state: u32, from: *const u8, len: usize) -> u32 {
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
    #[expect(clippy::indexing_slicing, reason = "an octet is below 256")]
    let at = |table: &[u32; 256], octet: u8| table[usize::from(octet)];
    let mut done = 0;
    while len - done >= 8 {
        // SAFETY: `done + 8 <= len`, so the eight octets are within what the caller promised.
        let octets: [u8; 8] = unsafe { from.wrapping_add(done).cast::<[u8; 8]>().read() };
        let [s0, s1, s2, s3] = state.to_le_bytes();
        let [o0, o1, o2, o3, o4, o5, o6, o7] = octets;
        state = at(t7, o0 ^ s0)
            ^ at(t6, o1 ^ s1)
            ^ at(t5, o2 ^ s2)
            ^ at(t4, o3 ^ s3)
            ^ at(t3, o4)
            ^ at(t2, o5)
            ^ at(t1, o6)
            ^ at(t0, o7);
        done += 8;
    }
    while done < len {
        // SAFETY: `done < len`, so the octet is within what the caller promised.
        let octet = unsafe { from.wrapping_add(done).read() };
        let [s0, ..] = state.to_le_bytes();
        state = (state >> 8) ^ at(t0, octet ^ s0);
        done += 1;
    }
    state
}
