//! CRC32C with the CRC instructions of aarch64: three interleaved streams, combined by polynomial multiplication.

use super::poly::{mul, x_pow};
use std::arch::{asm, is_aarch64_feature_detected};
use std::ptr;

/// Octets of one stream: the two multiplications that combine three streams cost some 200 cycles, small against the
/// 1536 of a round.
const STREAM: usize = 4096;

pub(super) fn has_streams() -> bool {
    is_aarch64_feature_detected!("crc")
}

/// Takes eight octets into `crc`.
#[inline]
#[target_feature(enable = "crc")]
fn take8(mut crc: u32, octets: u64) -> u32 {
    // SAFETY: the CPU has the instruction (the feature is enabled), which reads and writes these registers only.
    unsafe {
        asm!(
            "crc32cx {crc:w}, {crc:w}, {octets:x}",
            crc = inout(reg) crc,
            octets = in(reg) octets,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    crc
}

/// Takes one octet into `crc`.
#[inline]
#[target_feature(enable = "crc")]
fn take1(mut crc: u32, octet: u8) -> u32 {
    // SAFETY: as in `take8`.
    unsafe {
        asm!(
            "crc32cb {crc:w}, {crc:w}, {octet:w}",
            crc = inout(reg) crc,
            octet = in(reg) u32::from(octet),
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    crc
}

/// Eight octets at `from`, as the instruction takes them.
///
/// # Safety
/// `from` must be readable for 8 octets.
#[inline]
unsafe fn load8(from: *const u8) -> u64 {
    // SAFETY: the caller's promise is passed on; the read needs no alignment.
    u64::from_le(unsafe { ptr::read_unaligned(from.cast::<u64>()) })
}

/// Three interleaved streams while there are octets for them, then one.
///
/// # Safety
/// `from` must be readable for `len` octets, and the CPU must have the CRC instructions.
#[target_feature(enable = "crc")]
pub(super) unsafe fn streams(state: u32, from: *const u8, len: usize) -> u32 {
    const BY_ONE: u32 = x_pow(8 * STREAM as u64);
    const BY_TWO: u32 = x_pow(16 * STREAM as u64);
    let mut done = 0;
    let mut a = state;
    while len - done >= 3 * STREAM {
        let (mut b, mut c) = (0, 0);
        let mut at = 0;
        while at < STREAM {
            let p = from.wrapping_add(done + at);
            // SAFETY: `done + at + 8 <= done + STREAM <= len`.
            a = take8(a, unsafe { load8(p) });
            // SAFETY: `done + STREAM + at + 8 <= done + 2 * STREAM <= len`.
            b = take8(b, unsafe { load8(p.wrapping_add(STREAM)) });
            // SAFETY: `done + 2 * STREAM + at + 8 <= done + 3 * STREAM <= len`.
            c = take8(c, unsafe { load8(p.wrapping_add(2 * STREAM)) });
            at += 8;
        }
        a = mul(a, BY_TWO) ^ mul(b, BY_ONE) ^ c;
        done += 3 * STREAM;
    }
    while len - done >= 8 {
        // SAFETY: `done + 8 <= len`.
        a = take8(a, unsafe { load8(from.wrapping_add(done)) });
        done += 8;
    }
    while done < len {
        // SAFETY: `done < len`.
        a = take1(a, unsafe { from.wrapping_add(done).read() });
        done += 1;
    }
    a
}
