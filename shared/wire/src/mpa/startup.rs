//! MPA Request and Reply Frames: 20 octets, then Private Data.
//! Source: RFC 5044, section 7.1.1 (Figure 8); RFC 6581, section 6 (the S bit, revision 2).
//! Octets: 0..16 Key, 16 M C R S Res(4), 17 Rev, 18..20 `PD_Length`, then as many octets of Private Data.
//!
//! Not checked here: whether a reply's revision and S bit fit the request, and what the Private Data says.

use crate::fixed::{get, put};

/// Revision of RFC 5044.
pub const REVISION_ORIGINAL: u8 = 1;
/// Revision of RFC 6581, which the S bit needs.
pub const REVISION_ENHANCED: u8 = 2;
/// Longest Private Data, the enhanced data of RFC 6581 included, in octets.
pub const MAX_PRIVATE_LEN: u16 = 512;

const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

const M: u8 = 0x80;
const C: u8 = 0x40;
const R: u8 = 0x20;
const S: u8 = 0x10;

/// Which of the two frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

/// The M, C, R and S bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent bits of the frame"
)]
pub struct StartupFlags {
    /// M: the sender of this frame requires Markers in the FPDUs it receives.
    pub markers: bool,
    /// C: the sender of this frame requires CRCs.
    pub crc: bool,
    /// R, in a reply: the connection is rejected.
    pub rejected: bool,
    /// S, from revision 2: the Private Data begins with [`EnhancedData`](super::EnhancedData).
    pub enhanced: bool,
}

/// The fixed part of an MPA Request or Reply Frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartupFrame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// The four bits.
    pub flags: StartupFlags,
    /// 1 or 2.
    pub revision: u8,
    /// Octets of Private Data that follow, at most [`MAX_PRIVATE_LEN`].
    pub private_len: u16,
}

/// Why a startup frame is improperly formatted. The connection is closed (RFC 5044, section 7.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartupError {
    /// The Key is neither.
    #[error("not an MPA startup frame: the key does not match")]
    Key,
    /// Both ends started in the same role (RFC 5044, section 7.1.2, rule 8).
    #[error("both ends started in the same MPA role: got a {got:?} frame")]
    SameRole {
        /// What came.
        got: FrameKind,
    },
    /// A revision this implementation does not speak.
    #[error("MPA revision {revision} is not spoken here")]
    Revision {
        /// What came.
        revision: u8,
    },
    /// More Private Data than allowed.
    #[error("{len} octets of Private Data, of at most {MAX_PRIVATE_LEN}")]
    PrivateTooLong {
        /// `PD_Length`.
        len: u16,
    },
    /// The S bit is set and the enhanced data does not fit in the Private Data.
    #[error("the S bit is set with {len} octets of Private Data")]
    EnhancedTooShort {
        /// `PD_Length`.
        len: u16,
    },
}

impl StartupFrame {
    /// Octets before the Private Data.
    pub const LEN: usize = 20;

    /// Decodes the frame a party that waits for `expected` has got.
    ///
    /// The R bit of a request and the reserved bits are not checked; the S bit is reserved in revision 1.
    ///
    /// # Errors
    /// [`StartupError`]: the connection is to be closed.
    pub fn decode(octets: &[u8; Self::LEN], expected: FrameKind) -> Result<Self, StartupError> {
        //= rfc5044-7.1.1-key
        let kind = match get::<0, 16, _>(octets) {
            REQUEST_KEY => FrameKind::Request,
            REPLY_KEY => FrameKind::Reply,
            _ => return Err(StartupError::Key),
        };
        //= rfc5044-7.1.2-same-role
        if kind != expected {
            return Err(StartupError::SameRole { got: kind });
        }
        let [bits, revision] = get::<16, 2, _>(octets);
        //= rfc5044-7.1.1-rev
        if revision != REVISION_ORIGINAL && revision != REVISION_ENHANCED {
            return Err(StartupError::Revision { revision });
        }
        let private_len = u16::from_be_bytes(get::<18, 2, _>(octets));
        //= rfc5044-7.1.1-pd-length
        if private_len > MAX_PRIVATE_LEN {
            return Err(StartupError::PrivateTooLong { len: private_len });
        }
        //= rfc6581-6-s-needs-revision-2
        let enhanced = bits & S != 0 && revision >= REVISION_ENHANCED;
        if enhanced && usize::from(private_len) < super::EnhancedData::LEN {
            return Err(StartupError::EnhancedTooShort { len: private_len });
        }
        let flags = StartupFlags {
            markers: bits & M != 0,
            crc: bits & C != 0,
            rejected: kind == FrameKind::Reply && bits & R != 0,
            enhanced,
        };
        Ok(Self {
            kind,
            flags,
            revision,
            private_len,
        })
    }

    /// The octets; the Private Data follows them.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        put::<0, 16, _>(
            &mut octets,
            match self.kind {
                FrameKind::Request => REQUEST_KEY,
                FrameKind::Reply => REPLY_KEY,
            },
        );
        //= rfc5044-7.1.1-res
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let bits = bit(self.flags.markers, M)
            | bit(self.flags.crc, C)
            | bit(
                self.flags.rejected && matches!(self.kind, FrameKind::Reply),
                R,
            )
            | bit(self.flags.enhanced, S);
        put::<16, 2, _>(&mut octets, [bits, self.revision]);
        put::<18, 2, _>(&mut octets, self.private_len.to_be_bytes());
        octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: FrameKind) -> StartupFrame {
        StartupFrame {
            kind,
            flags: StartupFlags {
                crc: true,
                enhanced: true,
                ..StartupFlags::default()
            },
            revision: 2,
            private_len: 44,
        }
    }

    #[test]
    fn the_keys_are_those_of_figure_8() {
        //= test rfc5044-7.1.1-key
        let request = frame(FrameKind::Request).encode();
        assert_eq!(
            request[..16],
            [
                0x4D, 0x50, 0x41, 0x20, 0x49, 0x44, 0x20, 0x52, 0x65, 0x71, 0x20, 0x46, 0x72, 0x61,
                0x6D, 0x65
            ]
        );
        assert_eq!(request[16..], [0x50, 2, 0, 44]);
        let reply = frame(FrameKind::Reply).encode();
        assert_eq!(
            reply[..16],
            [
                0x4D, 0x50, 0x41, 0x20, 0x49, 0x44, 0x20, 0x52, 0x65, 0x70, 0x20, 0x46, 0x72, 0x61,
                0x6D, 0x65
            ]
        );
        let mut wrong = request;
        wrong[3] ^= 1;
        assert_eq!(
            StartupFrame::decode(&wrong, FrameKind::Request),
            Err(StartupError::Key)
        );
    }

    #[test]
    fn the_same_role_twice_is_noticed() {
        //= test rfc5044-7.1.2-same-role
        assert_eq!(
            StartupFrame::decode(&frame(FrameKind::Request).encode(), FrameKind::Reply),
            Err(StartupError::SameRole {
                got: FrameKind::Request
            })
        );
    }

    #[test]
    fn private_data_and_revision_are_bounded() {
        //= test rfc5044-7.1.1-pd-length
        //= test rfc5044-7.1.1-rev
        let mut octets = frame(FrameKind::Request).encode();
        octets[18..].copy_from_slice(&513_u16.to_be_bytes());
        assert_eq!(
            StartupFrame::decode(&octets, FrameKind::Request),
            Err(StartupError::PrivateTooLong { len: 513 })
        );
        octets[18..].copy_from_slice(&3_u16.to_be_bytes());
        assert_eq!(
            StartupFrame::decode(&octets, FrameKind::Request),
            Err(StartupError::EnhancedTooShort { len: 3 })
        );
        for revision in [0, 3, 255] {
            octets[17] = revision;
            assert_eq!(
                StartupFrame::decode(&octets, FrameKind::Request),
                Err(StartupError::Revision { revision })
            );
        }
    }

    #[test]
    fn the_s_bit_is_reserved_in_revision_1() {
        //= test rfc6581-6-s-needs-revision-2
        let mut octets = frame(FrameKind::Request).encode();
        octets[17] = 1;
        octets[18..].copy_from_slice(&0_u16.to_be_bytes());
        let got = StartupFrame::decode(&octets, FrameKind::Request).unwrap();
        assert!(!got.flags.enhanced);
    }

    #[test]
    fn reserved_bits_and_r_of_a_request_are_ignored() {
        let mut octets = frame(FrameKind::Request).encode();
        octets[16] |= 0x2F;
        assert_eq!(
            StartupFrame::decode(&octets, FrameKind::Request),
            Ok(frame(FrameKind::Request))
        );
    }

    proptest! {
        #[test]
        fn round_trip(bits in any::<[bool; 4]>(), reply in any::<bool>(), len in 4_u16..=512) {
            let [markers, crc, rejected, enhanced] = bits;
            let kind = if reply { FrameKind::Reply } else { FrameKind::Request };
            let frame = StartupFrame {
                kind,
                flags: StartupFlags { markers, crc, rejected: rejected && reply, enhanced },
                revision: 2,
                private_len: len,
            };
            prop_assert_eq!(StartupFrame::decode(&frame.encode(), kind), Ok(frame));
        }

        #[test]
        fn decoding_is_total(octets in any::<[u8; 20]>(), key in 0_u8..3) {
            let mut octets = octets;
            match key {
                0 => octets[..16].copy_from_slice(&REQUEST_KEY),
                1 => octets[..16].copy_from_slice(&REPLY_KEY),
                _ => {}
            }
            if let Ok(frame) = StartupFrame::decode(&octets, FrameKind::Reply) {
                prop_assert!(frame.private_len <= MAX_PRIVATE_LEN);
            }
        }
    }
}
