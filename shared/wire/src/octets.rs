//! Reading and writing big-endian fields of fixed-size arrays.
//!
//! The offsets are literals, so that a field outside its array does not compile.

macro_rules! be16 {
    ($o:expr, $at:expr) => {
        u16::from_be_bytes([$o[$at], $o[$at + 1]])
    };
}

macro_rules! be32 {
    ($o:expr, $at:expr) => {
        u32::from_be_bytes([$o[$at], $o[$at + 1], $o[$at + 2], $o[$at + 3]])
    };
}

macro_rules! be64 {
    ($o:expr, $at:expr) => {
        u64::from_be_bytes([
            $o[$at],
            $o[$at + 1],
            $o[$at + 2],
            $o[$at + 3],
            $o[$at + 4],
            $o[$at + 5],
            $o[$at + 6],
            $o[$at + 7],
        ])
    };
}

macro_rules! put16 {
    ($o:expr, $at:expr, $v:expr) => {
        [$o[$at], $o[$at + 1]] = u16::to_be_bytes($v)
    };
}

macro_rules! put32 {
    ($o:expr, $at:expr, $v:expr) => {
        [$o[$at], $o[$at + 1], $o[$at + 2], $o[$at + 3]] = u32::to_be_bytes($v)
    };
}

macro_rules! put64 {
    ($o:expr, $at:expr, $v:expr) => {
        [
            $o[$at],
            $o[$at + 1],
            $o[$at + 2],
            $o[$at + 3],
            $o[$at + 4],
            $o[$at + 5],
            $o[$at + 6],
            $o[$at + 7],
        ] = u64::to_be_bytes($v)
    };
}

/// The 128-bit field at an offset, as octets.
macro_rules! octets16 {
    ($o:expr, $at:expr) => {
        ((u128::from(be64!($o, $at)) << 64) | u128::from(be64!($o, $at + 8))).to_be_bytes()
    };
}

macro_rules! put_octets16 {
    ($o:expr, $at:expr, $v:expr) => {{
        let v: &[u8; 16] = $v;
        put64!($o, $at, be64!(v, 0));
        put64!($o, $at + 8, be64!(v, 8));
    }};
}

pub(crate) use {be16, be32, be64, octets16, put_octets16, put16, put32, put64};

/// Copies `octets` to the front of `out` and returns the rest of `out`; `None` if they do not fit.
pub(crate) fn put_front<'a>(out: &'a mut [u8], octets: &[u8]) -> Option<&'a mut [u8]> {
    let (front, rest) = out.split_at_mut_checked(octets.len())?;
    front.copy_from_slice(octets);
    Some(rest)
}
