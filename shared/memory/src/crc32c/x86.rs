//! CRC32C with the CRC32, PCLMULQDQ and VPCLMULQDQ instructions of x86-64.
//!
//! Registers hold polynomials in reflected form: bit i of an n-bit register is x^(n-1-i), and of two 64-bit halves of
//! 128 the low one comes first in the message. A carry-less product of two reflected 64-bit values is, read as a
//! reflected 128-bit value, the product times x: hence the exponents one short below.

use super::poly::x_pow;
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64,
    _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_prefetch, _mm_xor_si128,
    _mm512_castsi128_si512, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_set_epi64,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};
use std::ptr;

/// Octets from which folding is faster than three streams.
pub(super) const FOLD_MIN: usize = 256;

/// Octets of one stream in the long and the short rounds of [`streams`]: the combination costs about as much as 60
/// octets, the long round makes that small, the short one keeps small inputs fast.
const LONG: usize = 1024;
const SHORT: usize = 128;

pub(super) fn has_streams() -> bool {
    is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")
}

pub(super) fn has_fold() -> bool {
    is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && has_streams()
}

/// Reinterprets the bits: intrinsics take signed integers.
const fn signed(bits: u64) -> i64 {
    i64::from_ne_bytes(bits.to_ne_bytes())
}

const fn unsigned(bits: i64) -> u64 {
    u64::from_ne_bytes(bits.to_ne_bytes())
}

/// The state in a CRC register: the instruction leaves the upper half zero.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the CRC32 instruction zeroes the upper half"
)]
const fn low(register: u64) -> u32 {
    register as u32
}

/// Eight octets at `from`, as the instruction takes them.
///
/// # Safety
/// `from` must be readable for 8 octets.
#[inline]
unsafe fn load8(from: *const u8) -> u64 {
    // SAFETY: the caller's promise is passed on; the read needs no alignment.
    unsafe { ptr::read_unaligned(from.cast::<u64>()) }
}

/// One stream, for what is left at the end.
///
/// # Safety
/// `from` must be readable for `len` octets, and the CPU must have SSE4.2.
#[target_feature(enable = "sse4.2")]
unsafe fn single(state: u32, from: *const u8, len: usize) -> u32 {
    let mut crc = u64::from(state);
    let mut done = 0;
    while len - done >= 8 {
        // SAFETY: `done + 8 <= len`.
        crc = _mm_crc32_u64(crc, unsafe { load8(from.wrapping_add(done)) });
        done += 8;
    }
    let mut state = low(crc);
    while done < len {
        // SAFETY: `done < len`.
        state = _mm_crc32_u8(state, unsafe { from.wrapping_add(done).read() });
        done += 1;
    }
    state
}

/// What multiplies a state by x^(8 * octets): the product is short of one x, and the CRC instruction that reduces it
/// multiplies by x^32.
const fn shift_constant(octets: usize) -> i64 {
    signed(x_pow(8 * octets as u64 - 33) as u64)
}

/// The state after `8 * octets` zero bits, for the constant of that many.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn shift(state: u64, constant: i64) -> u64 {
    let product = _mm_clmulepi64_si128::<0>(
        _mm_cvtsi64_si128(signed(state)),
        _mm_cvtsi64_si128(constant),
    );
    _mm_crc32_u64(0, unsigned(_mm_cvtsi128_si64(product)))
}

/// Three interleaved streams: the CRC instruction takes one operation a cycle but gives its result after three.
///
/// # Safety
/// `from` must be readable for `len` octets, and the CPU must have SSE4.2 and PCLMULQDQ.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) unsafe fn streams(state: u32, from: *const u8, len: usize) -> u32 {
    // SAFETY: the caller's promises are passed on.
    let (state, done) = unsafe { rounds::<LONG>(state, from, len) };
    // SAFETY: the caller's promises are passed on; `rounds` gives at most `len`.
    let (state, more) = unsafe { rounds::<SHORT>(state, from.wrapping_add(done), len - done) };
    let done = done + more;
    // SAFETY: as above.
    unsafe { single(state, from.wrapping_add(done), len - done) }
}

/// As many rounds of three times `N` octets as there are; gives the state and the octets taken, at most `len`.
///
/// # Safety
/// As [`streams`].
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
unsafe fn rounds<const N: usize>(state: u32, from: *const u8, len: usize) -> (u32, usize) {
    let one = const { shift_constant(N) };
    let two = const { shift_constant(2 * N) };
    let mut done = 0;
    let mut a = u64::from(state);
    while len - done >= 3 * N {
        let (mut b, mut c) = (0, 0);
        let base = from.wrapping_add(done);
        let mut at = 0;
        while at < N {
            let p = base.wrapping_add(at);
            // SAFETY: `done + at + 8 <= done + N <= len`.
            a = _mm_crc32_u64(a, unsafe { load8(p) });
            // SAFETY: `done + N + at + 8 <= done + 2 * N <= len`.
            b = _mm_crc32_u64(b, unsafe { load8(p.wrapping_add(N)) });
            // SAFETY: `done + 2 * N + at + 8 <= done + 3 * N <= len`.
            c = _mm_crc32_u64(c, unsafe { load8(p.wrapping_add(2 * N)) });
            at += 8;
        }
        a = shift(a, two) ^ shift(b, one) ^ c;
        done += 3 * N;
    }
    (low(a), done)
}

/// The two multipliers that move a 128-bit lane `bits` further on, for its low (first) and its high half.
const fn fold_constants(bits: u64) -> (i64, i64) {
    (
        signed((x_pow(bits + 63) as u64) << 32),
        signed((x_pow(bits - 1) as u64) << 32),
    )
}

/// The multipliers of four lanes, first lane first.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(lanes: [(i64, i64); 4]) -> __m512i {
    let [l0, l1, l2, l3] = lanes;
    _mm512_set_epi64(l3.1, l3.0, l2.1, l2.0, l1.1, l1.0, l0.1, l0.0)
}

/// `acc` moved on by what `k` says, plus `next`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_into(acc: __m512i, k: __m512i, next: __m512i) -> __m512i {
    const XOR3: i32 = 0x96;
    let first = _mm512_clmulepi64_epi128::<0x00>(acc, k);
    let second = _mm512_clmulepi64_epi128::<0x11>(acc, k);
    _mm512_ternarylogic_epi64::<XOR3>(first, second, next)
}

/// 64 octets at `from`.
///
/// # Safety
/// `from` must be readable for 64 octets, and the CPU must have AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load64(from: *const u8) -> __m512i {
    // SAFETY: the caller's promise is passed on; the read needs no alignment.
    unsafe { ptr::read_unaligned(from.cast::<__m512i>()) }
}

/// How far ahead of the folding octets are fetched. The hardware's own prefetch stops at each page, and a pool lies in
/// memory, not in the cache: a page ahead, 11 GB/s from memory instead of 9, and nothing lost in the cache.
const AHEAD: usize = 4096;

/// Begins to fetch the 256 octets at `from` into the cache. They need not exist:
/// a prefetch changes nothing but the cache.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch(from: *const u8) {
    _mm_prefetch::<_MM_HINT_T0>(from.cast());
    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(64).cast());
    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(128).cast());
    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(192).cast());
}

/// Folds 256 octets a step in four registers, then 64, then reduces 512 bits to 128 and those with the CRC
/// instruction.
///
/// # Safety
/// `from` must be readable for `len` octets, and the CPU must have what [`has_fold`] asks for.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512vl,vpclmulqdq")]
pub(super) unsafe fn fold(state: u32, from: *const u8, len: usize) -> u32 {
    const BY_256: (i64, i64) = fold_constants(2048);
    const BY_64: (i64, i64) = fold_constants(512);
    const TO_LAST: [(i64, i64); 4] = [
        fold_constants(384),
        fold_constants(256),
        fold_constants(128),
        (0, 0),
    ];
    if len < 256 {
        // SAFETY: the caller's promises are passed on.
        return unsafe { streams(state, from, len) };
    }
    // SAFETY: octets 0..64 of at least 256.
    let first = unsafe { load64(from) };
    let seed = _mm512_zextsi128_si512(_mm_cvtsi64_si128(i64::from(state)));
    let mut acc0 = _mm512_xor_si512(first, seed);
    // SAFETY: octets 64..128 of at least 256.
    let mut acc1 = unsafe { load64(from.wrapping_add(64)) };
    // SAFETY: octets 128..192 of at least 256.
    let mut acc2 = unsafe { load64(from.wrapping_add(128)) };
    // SAFETY: octets 192..256 of at least 256.
    let mut acc3 = unsafe { load64(from.wrapping_add(192)) };
    let mut done = 256;
    let k = lanes([BY_256; 4]);
    while len - done >= 256 {
        let next = from.wrapping_add(done);
        prefetch(next.wrapping_add(AHEAD));
        // SAFETY: `done + 256 <= len`.
        acc0 = fold_into(acc0, k, unsafe { load64(next) });
        // SAFETY: as above.
        acc1 = fold_into(acc1, k, unsafe { load64(next.wrapping_add(64)) });
        // SAFETY: as above.
        acc2 = fold_into(acc2, k, unsafe { load64(next.wrapping_add(128)) });
        // SAFETY: as above.
        acc3 = fold_into(acc3, k, unsafe { load64(next.wrapping_add(192)) });
        done += 256;
    }
    let k = lanes([BY_64; 4]);
    let mut acc = fold_into(fold_into(fold_into(acc0, k, acc1), k, acc2), k, acc3);
    while len - done >= 64 {
        // SAFETY: `done + 64 <= len`.
        acc = fold_into(acc, k, unsafe { load64(from.wrapping_add(done)) });
        done += 64;
    }
    // Lanes 0 to 2 move to where lane 3 is.
    let last = _mm512_extracti32x4_epi32::<3>(acc);
    let folded = fold_into(acc, lanes(TO_LAST), _mm512_castsi128_si512(last));
    let sum = _mm_xor_si128(
        _mm_xor_si128(lane::<0>(folded), lane::<1>(folded)),
        lane::<2>(folded),
    );
    let crc = _mm_crc32_u64(0, unsigned(_mm_cvtsi128_si64(sum)));
    let crc = _mm_crc32_u64(crc, unsigned(_mm_extract_epi64::<1>(sum)));
    // SAFETY: `done <= len`; the caller's promises are passed on.
    unsafe { single(low(crc), from.wrapping_add(done), len - done) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lane<const N: i32>(of: __m512i) -> __m128i {
    _mm512_extracti32x4_epi32::<N>(of)
}
