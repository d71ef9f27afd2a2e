//! Fields at fixed places of fixed-size structures; the compiler checks the places.

/// The `N` octets of `from` at `AT`.
#[inline]
pub(crate) fn get<const AT: usize, const N: usize, const M: usize>(from: &[u8; M]) -> [u8; N] {
    const { assert!(AT + N <= M, "the field lies inside the structure") };
    let mut field = [0; N];
    field.copy_from_slice(&from[AT..AT + N]);
    field
}

/// Writes `field` to `to` at `AT`.
#[inline]
pub(crate) fn put<const AT: usize, const N: usize, const M: usize>(
    to: &mut [u8; M],
    field: [u8; N],
) {
    const { assert!(AT + N <= M, "the field lies inside the structure") };
    to[AT..AT + N].copy_from_slice(&field);
}
