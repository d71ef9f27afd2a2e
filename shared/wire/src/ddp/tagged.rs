//! DDP Tagged Buffer header: 14 octets.
//! Source: RFC 5041, section 4.2 (Figure 4).   Octets: 0 control, 1 `RsvdULP`, 2..6 STag, 6..14 TO.

use super::DdpControl;
use crate::fixed::{get, put};
use crate::{Stag, TaggedOffset};

/// Header of a DDP Segment that names its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaggedHeader {
    /// L.
    pub last: bool,
    /// DV.
    pub version: u8,
    /// `RsvdULP`: the RDMAP Control Field.
    pub ulp: u8,
    /// Whose buffer.
    pub stag: Stag,
    /// Where in it the payload goes.
    pub offset: TaggedOffset,
}

impl TaggedHeader {
    /// Octets.
    pub const LEN: usize = 14;

    /// Decodes; every input is valid. T is not looked at: the caller has chosen by it.
    #[inline]
    #[must_use]
    pub fn decode(octets: &[u8; Self::LEN]) -> Self {
        let [control, ulp] = get::<0, 2, _>(octets);
        let control = DdpControl::decode(control);
        Self {
            last: control.last,
            version: control.version,
            ulp,
            stag: Stag(u32::from_be_bytes(get::<2, 4, _>(octets))),
            offset: TaggedOffset(u64::from_be_bytes(get::<6, 8, _>(octets))),
        }
    }

    /// The octets, T set.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        let control = DdpControl {
            tagged: true,
            last: self.last,
            version: self.version,
        };
        //= rfc5041-4.2-tagged-header
        put::<0, 2, _>(&mut octets, [control.encode(), self.ulp]);
        put::<2, 4, _>(&mut octets, self.stag.0.to_be_bytes());
        put::<6, 8, _>(&mut octets, self.offset.0.to_be_bytes());
        octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn octets_lie_where_figure_4_has_them() {
        let header = TaggedHeader {
            last: true,
            version: 1,
            ulp: 0x40,
            stag: Stag(0x0102_0304),
            offset: TaggedOffset(0x1112_1314_1516_1718),
        };
        assert_eq!(
            header.encode(),
            [
                0xC1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18
            ]
        );
    }

    proptest! {
        #[test]
        fn round_trip(last in any::<bool>(), version in 0_u8..4, ulp in any::<u8>(), stag in any::<u32>(), offset in any::<u64>()) {
            let header = TaggedHeader { last, version, ulp, stag: Stag(stag), offset: TaggedOffset(offset) };
            prop_assert_eq!(TaggedHeader::decode(&header.encode()), header);
        }
    }
}
