//! FPDU: 2 octets of ULPDU Length, the ULPDU, 0 to 3 octets of pad, 4 of CRC; Markers lie in between when in use.
//! Source: RFC 5044, sections 4.1 (Figure 2), 4.4 (CRC) and 4.5 (sizes).
//!
//! The CRC-32C covers everything before it, Markers and the Marker just ahead of the length included, and goes out
//! least significant octet first, as in the Internet SCSI digests (Figure 5: 52 23 99 83).

/// Octets of the ULPDU Length field.
pub const LENGTH_LEN: usize = 2;
/// Octets of the CRC field, present even when CRCs are not in use.
pub const CRC_LEN: usize = 4;
/// Octets of an FPDU beside ULPDU, pad and Markers.
pub const FPDU_OVERHEAD: usize = LENGTH_LEN + CRC_LEN;
/// Longest ULPDU: its length has 16 bits.
pub const MAX_ULPDU_LEN: u16 = u16::MAX;
/// No sender is made to use a MULPDU below this (RFC 5044, sections 3 and 4.5).
pub const MIN_MULPDU: u16 = 128;
/// No sender makes a ULPDU longer than this: with all its Markers it fits the largest IP datagram (RFC 5044,
/// section 3). A receiver takes what the length field can say.
//= rfc5044-3-mulpdu-range
pub const MAX_MULPDU: u16 = 64_768;

/// Octets of pad after a ULPDU of `ulpdu_len`: the FPDU is a multiple of four long.
#[inline]
#[must_use]
pub const fn pad_len(ulpdu_len: u16) -> usize {
    // 2 + ulpdu + pad + 4 = 0 mod 4, so pad = -(ulpdu + 2) mod 4 = (2 - ulpdu) mod 4.
    2_u16.wrapping_sub(ulpdu_len) as usize & 3
}

//= rfc5044-4.1-fpdu-format
/// Octets of an FPDU without its Markers: 8 to 65,544.
#[inline]
#[must_use]
pub const fn fpdu_len(ulpdu_len: u16) -> usize {
    FPDU_OVERHEAD + ulpdu_len as usize + pad_len(ulpdu_len)
}

/// MULPDU: the longest ULPDU whose FPDU fits in a segment of `emss` octets (RFC 5044, section 4.5), but never below
/// [`MIN_MULPDU`] nor above [`MAX_MULPDU`].
#[must_use]
pub const fn max_ulpdu_len(emss: u32, markers: bool) -> u16 {
    let marker_octets = if markers {
        4 * emss.div_ceil(super::MARKER_INTERVAL)
    } else {
        0
    };
    //= rfc5044-4.5-mulpdu
    let len = emss.saturating_sub(6 + marker_octets + emss % 4);
    if len < MIN_MULPDU as u32 {
        MIN_MULPDU
    } else if len > MAX_MULPDU as u32 {
        MAX_MULPDU
    } else {
        let [_, _, hi, lo] = len.to_be_bytes();
        u16::from_be_bytes([hi, lo])
    }
}

/// The CRC field for the CRC-32C `value`.
#[inline]
#[must_use]
pub const fn crc_to_wire(value: u32) -> [u8; CRC_LEN] {
    value.to_le_bytes()
}

/// The CRC-32C in a CRC field.
#[inline]
#[must_use]
pub const fn crc_from_wire(field: [u8; CRC_LEN]) -> u32 {
    u32::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_of_the_figures() {
        // Figure 5: 42 octets of ULPDU after a Marker end, CRC included, at octet 0x34.
        assert_eq!(fpdu_len(0x2A), 0x34 - 4);
        // Figure 4: a ULPDU of 16 octets has 2 octets of pad.
        assert_eq!(pad_len(16), 2);
        assert_eq!(fpdu_len(0), 8);
        assert_eq!(fpdu_len(u16::MAX), 65_544);
    }

    #[test]
    fn mulpdu_follows_the_formulas() {
        //= test rfc5044-4.5-mulpdu
        assert_eq!(max_ulpdu_len(1460, false), 1460 - 6);
        assert_eq!(max_ulpdu_len(1460, true), 1460 - (6 + 4 * 3));
        assert_eq!(max_ulpdu_len(1447, false), 1447 - (6 + 3));
        assert_eq!(max_ulpdu_len(100, true), 128);
        //= test rfc5044-3-mulpdu-range
        assert_eq!(max_ulpdu_len(u32::MAX, true), 64_768);
    }

    #[test]
    fn the_crc_goes_out_least_significant_octet_first() {
        assert_eq!(crc_to_wire(0x8399_2352), [0x52, 0x23, 0x99, 0x83]);
    }

    proptest! {
        #[test]
        fn every_fpdu_is_a_multiple_of_four(len in any::<u16>()) {
            prop_assert_eq!(fpdu_len(len) % 4, 0);
            prop_assert!(pad_len(len) < 4);
            prop_assert_eq!(fpdu_len(len) - pad_len(len), usize::from(len) + 6);
        }

        #[test]
        fn an_fpdu_of_mulpdu_fits_its_segment(emss in 256_u32..=65_000, markers in any::<bool>(), start in 0_u32..128) {
            let len = max_ulpdu_len(emss, markers);
            let plain = u32::try_from(fpdu_len(len)).unwrap();
            let wire = if markers {
                crate::mpa::MarkerClock::at(start * 4).wire_len(plain)
            } else {
                plain
            };
            prop_assert!(wire <= emss);
        }
    }
}
