//! DDP Control Field: the first octet of every DDP Segment.
//! Source: RFC 5041, section 4.1 (Figure 3).   Bits: 0 T, 1 L, 2..6 reserved, 6..8 DV.
//!
//! The version is not checked here: the error code for a wrong one depends on T.

/// The version of RFC 5041.
pub const DDP_VERSION: u8 = 1;

/// The DDP Control Field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DdpControl {
    /// T: Tagged Buffer Model.
    pub tagged: bool,
    /// L: last segment of its message.
    pub last: bool,
    /// DV, two bits.
    pub version: u8,
}

impl DdpControl {
    /// Decodes; every octet is one. Reserved bits are not checked.
    #[inline]
    #[must_use]
    pub const fn decode(octet: u8) -> Self {
        Self {
            tagged: octet & 0x80 != 0,
            last: octet & 0x40 != 0,
            version: octet & 0x03,
        }
    }

    /// The octet, reserved bits zero.
    #[inline]
    #[must_use]
    pub const fn encode(self) -> u8 {
        let t = if self.tagged { 0x80 } else { 0 };
        let l = if self.last { 0x40 } else { 0 };
        //= rfc5041-4.1-reserved-bits
        t | l | (self.version & 0x03)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_octet_round_trips_but_for_reserved_bits() {
        for octet in 0..=u8::MAX {
            //= test rfc5041-4.1-reserved-bits
            assert_eq!(DdpControl::decode(octet).encode(), octet & 0xC3);
        }
    }
}
