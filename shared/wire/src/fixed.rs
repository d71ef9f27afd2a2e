//! Fields at fixed places of fixed-size structures; the compiler checks the places. For layouts of any crate of this project.

/// The `N` octets of `from` at `AT`.
#[inline]
#[must_use]
pub fn get<const AT: usize, const N: usize, const M: usize>(from: &[u8; M]) -> [u8; N] {
    const { assert!(AT + N <= M, "the field lies inside the structure") };
    let mut field = [0; N];
    field.copy_from_slice(&from[AT..AT + N]);
    field
}

/// Writes `field` to `to` at `AT`.
#[inline]
pub fn put<const AT: usize, const N: usize, const M: usize>(to: &mut [u8; M], field: [u8; N]) {
    const { assert!(AT + N <= M, "the field lies inside the structure") };
    to[AT..AT + N].copy_from_slice(&field);
}

macro_rules! numbers {
    ($($read:ident $write:ident $number:ident),*) => {
        $(
            #[doc = concat!("The big-endian `", stringify!($number), "` of `from` at `AT`.")]
            #[inline]
            #[must_use]
            pub fn $read<const AT: usize, const M: usize>(from: &[u8; M]) -> $number {
                $number::from_be_bytes(get::<AT, { size_of::<$number>() }, M>(from))
            }

            #[doc = concat!("Writes the `", stringify!($number), "` to `to` at `AT`, big-endian.")]
            #[inline]
            pub fn $write<const AT: usize, const M: usize>(to: &mut [u8; M], number: $number) {
                put::<AT, { size_of::<$number>() }, M>(to, number.to_be_bytes());
            }
        )*
    };
}

numbers!(be16 put16 u16, be32 put32 u32, be64 put64 u64);
