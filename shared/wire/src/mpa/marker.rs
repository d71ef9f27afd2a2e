//! MPA Marker: 4 octets at every 512th octet of the stream, the first just ahead of the first FPDU.
//! Source: RFC 5044, sections 4.2 (Figure 3) and 4.3.   Octets: 0..2 reserved, 2..4 FPDUPTR.

/// Octets from the start of one Marker to the start of the next.
pub const MARKER_INTERVAL: u32 = 512;
/// Octets of a Marker.
pub const MARKER_LEN: u32 = 4;

/// A Marker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// Octets of the stream from the ULPDU Length field to the Marker; zero if the FPDU starts right after it.
    pub fpdu_pointer: u16,
}

impl Marker {
    /// Octets.
    pub const LEN: usize = MARKER_LEN as usize;

    /// Decodes; every input is valid. The reserved field and the two low bits of FPDUPTR count as zero.
    #[inline]
    #[must_use]
    pub const fn decode(octets: [u8; Self::LEN]) -> Self {
        let [_, _, hi, lo] = octets;
        Self {
            fpdu_pointer: u16::from_be_bytes([hi, lo]) & 0xFFFC,
        }
    }

    /// The octets.
    #[inline]
    #[must_use]
    pub const fn encode(self) -> [u8; Self::LEN] {
        //= rfc5044-4.2-marker-format
        //= rfc5044-4.2-low-bits
        let [hi, lo] = (self.fpdu_pointer & 0xFFFC).to_be_bytes();
        [0, 0, hi, lo]
    }
}

/// Where a stream is between two Markers. Both ends of a half connection count alike from the first Marker on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MarkerClock {
    /// Octets since the start of the last Marker's place, 0..512. At zero a Marker is due.
    phase: u32,
}

impl MarkerClock {
    /// The clock at the first octet of Full Operation, where a Marker is due.
    pub const START: Self = Self { phase: 0 };

    /// The clock `position` octets after the first Marker began.
    #[must_use]
    pub const fn at(position: u32) -> Self {
        Self {
            phase: position % MARKER_INTERVAL,
        }
    }

    /// Whether the next octets of the stream are a Marker.
    #[inline]
    #[must_use]
    pub const fn due(self) -> bool {
        self.phase == 0
    }

    /// Octets of FPDU until the next Marker; 508 just after one, zero if one is due.
    #[inline]
    #[must_use]
    pub const fn until_due(self) -> u32 {
        (MARKER_INTERVAL - self.phase) % MARKER_INTERVAL
    }

    /// The clock `octets` of the stream later, Markers counted.
    #[inline]
    #[must_use]
    pub const fn advanced(self, octets: u32) -> Self {
        Self {
            phase: (self.phase + octets % MARKER_INTERVAL) % MARKER_INTERVAL,
        }
    }

    /// Octets on the wire, Markers among and ahead of them included, of `plain` octets (at most 2^31) that start here.
    #[must_use]
    pub const fn wire_len(self, plain: u32) -> u32 {
        if plain == 0 {
            return 0;
        }
        // Octets that fit before the first Marker; each further 508 bring one more.
        let before = self.until_due();
        if plain <= before {
            return plain;
        }
        let markers = (plain - before).div_ceil(MARKER_INTERVAL - MARKER_LEN);
        plain + MARKER_LEN * markers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_marker_precedes_the_first_fpdu() {
        //= test rfc5044-4.3-first-marker
        assert!(MarkerClock::START.due());
        // Figure 5: the first FPDU, 48 octets, and its Marker.
        assert_eq!(MarkerClock::START.wire_len(48), 0x34);
        // Figure 6: a second FPDU at octet 0x1ec meets a Marker at 0x200, and ends at 0x220.
        let second = MarkerClock::at(0x1EC);
        assert_eq!(second.until_due(), 0x14);
        assert_eq!(second.wire_len(48), 0x220 - 0x1EC);
    }

    #[test]
    fn reserved_bits_count_as_zero() {
        //= test rfc5044-4.2-low-bits
        assert_eq!(Marker::decode([0xFF, 0xFF, 0x00, 0x17]).fpdu_pointer, 0x14);
        assert_eq!(Marker { fpdu_pointer: 0x17 }.encode(), [0, 0, 0, 0x14]);
    }

    proptest! {
        #[test]
        fn wire_len_counts_what_stepping_counts(start in 0_u32..512, plain in 0_u32..70_000) {
            let mut clock = MarkerClock::at(start);
            let mut wire = 0;
            for _ in 0..plain {
                if clock.due() {
                    clock = clock.advanced(4);
                    wire += 4;
                }
                clock = clock.advanced(1);
                wire += 1;
            }
            prop_assert_eq!(MarkerClock::at(start).wire_len(plain), wire);
            prop_assert_eq!(MarkerClock::at(start).advanced(wire), clock);
        }

        #[test]
        fn round_trip(pointer in any::<u16>()) {
            let marker = Marker { fpdu_pointer: pointer & 0xFFFC };
            prop_assert_eq!(Marker::decode(marker.encode()), marker);
        }
    }
}
