//! DDP Untagged Buffer header: 18 octets.
//! Source: RFC 5041, section 4.3 (Figure 5).
//! Octets: 0 control, 1..6 `RsvdULP`, 6..10 QN, 10..14 MSN, 14..18 MO.

use super::DdpControl;
use crate::fixed::{get, put};

/// Queue Number. RDMAP uses the four named ones (RFC 7306, section 10.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueueNumber(pub u32);

impl QueueNumber {
    /// Sends and Immediate Data.
    pub const SEND: Self = Self(0);
    /// RDMA Read Requests and Atomic Requests.
    pub const READ_REQUEST: Self = Self(1);
    /// Terminate.
    pub const TERMINATE: Self = Self(2);
    /// Atomic Responses.
    pub const ATOMIC_RESPONSE: Self = Self(3);
}

/// Message Sequence Number of one queue: starts at one and wraps to zero (RFC 5041, section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Msn(pub u32);

impl Msn {
    /// The first of every queue.
    pub const FIRST: Self = Self(1);

    /// The next one, modulo 2^32.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// How far `self` is ahead of `earlier`, modulo 2^32.
    #[inline]
    #[must_use]
    pub const fn distance(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

/// Header of a DDP Segment for a queued buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UntaggedHeader {
    /// L.
    pub last: bool,
    /// DV.
    pub version: u8,
    /// First octet of `RsvdULP`: the RDMAP Control Field.
    pub ulp: u8,
    /// The other four octets of `RsvdULP`: the Invalidate STag, or zero.
    pub ulp_word: u32,
    /// Which queue.
    pub queue: QueueNumber,
    /// Which message of the queue.
    pub msn: Msn,
    /// Where in the message the payload goes, in octets.
    pub message_offset: u32,
}

impl UntaggedHeader {
    /// Octets.
    pub const LEN: usize = 18;

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
            ulp_word: u32::from_be_bytes(get::<2, 4, _>(octets)),
            queue: QueueNumber(u32::from_be_bytes(get::<6, 4, _>(octets))),
            msn: Msn(u32::from_be_bytes(get::<10, 4, _>(octets))),
            message_offset: u32::from_be_bytes(get::<14, 4, _>(octets)),
        }
    }

    /// The octets, T clear.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        let control = DdpControl {
            tagged: false,
            last: self.last,
            version: self.version,
        };
        //= rfc5041-4.3-untagged-header
        //= rfc5040-4.1-invalidate-stag-place
        put::<0, 2, _>(&mut octets, [control.encode(), self.ulp]);
        put::<2, 4, _>(&mut octets, self.ulp_word.to_be_bytes());
        put::<6, 4, _>(&mut octets, self.queue.0.to_be_bytes());
        put::<10, 4, _>(&mut octets, self.msn.0.to_be_bytes());
        put::<14, 4, _>(&mut octets, self.message_offset.to_be_bytes());
        octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figure_5_of_rfc_5044_shows_a_send() {
        let octets = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        let header = UntaggedHeader::decode(&octets);
        assert!(header.last);
        assert_eq!(header.version, 1);
        assert_eq!(header.queue, QueueNumber::SEND);
        assert_eq!(header.msn, Msn::FIRST);
        assert_eq!(header.message_offset, 0);
        assert_eq!(header.encode(), octets);
    }

    #[test]
    fn the_msn_wraps_to_zero() {
        //= test rfc5041-4.3-msn
        assert_eq!(Msn(u32::MAX).next(), Msn(0));
        assert_eq!(Msn(1).distance(Msn(u32::MAX)), 2);
    }

    proptest! {
        #[test]
        fn round_trip(last in any::<bool>(), version in 0_u8..4, ulp in any::<u8>(), words in any::<[u32; 4]>()) {
            let [ulp_word, queue, msn, message_offset] = words;
            let header = UntaggedHeader {
                last, version, ulp, ulp_word, queue: QueueNumber(queue), msn: Msn(msn), message_offset,
            };
            prop_assert_eq!(UntaggedHeader::decode(&header.encode()), header);
        }
    }
}
