//! Terminate header: a control word, then what was terminated.
//! Source: RFC 5040, section 4.8 (Figures 7 to 10); DDP codes: RFC 5041, section 7.2; MPA codes: RFC 5044, section 8,
//! and RFC 6581, section 8.
//! Octets: 0 Layer (4 bits) and `EType` (4), 1 Error Code, 2 M D R (3 bits) and reserved (13 with octet 3); then, as M,
//! D, R say: DDP Segment Length (2), Terminated DDP Header (14 or 18), Terminated RDMA Header (28).
//!
//! Not checked here: the headers that follow.

/// RDMAP, Remote Protection Error codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum ProtectionCode {
    InvalidStag = 0x00,
    BaseOrBounds = 0x01,
    AccessRights = 0x02,
    StagNotAssociated = 0x03,
    OffsetWrap = 0x04,
    StagCannotBeInvalidated = 0x09,
    Unspecified = 0xFF,
}

/// RDMAP, Remote Operation Error codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum OperationCode {
    InvalidVersion = 0x05,
    UnexpectedOpcode = 0x06,
    CatastrophicStream = 0x07,
    CatastrophicGlobal = 0x08,
    StagCannotBeInvalidated = 0x09,
    Unspecified = 0xFF,
}

/// DDP, Tagged Buffer Error codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum DdpTaggedCode {
    InvalidStag = 0x00,
    BaseOrBounds = 0x01,
    StagNotAssociated = 0x02,
    OffsetWrap = 0x03,
    InvalidVersion = 0x04,
}

/// DDP, Untagged Buffer Error codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum DdpUntaggedCode {
    InvalidQueue = 0x01,
    NoBuffer = 0x02,
    MsnRange = 0x03,
    InvalidMessageOffset = 0x04,
    MessageTooLong = 0x05,
    InvalidVersion = 0x06,
}

/// LLP (MPA) codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the RFCs'")]
pub enum MpaCode {
    ConnectionLost = 0x01,
    Crc = 0x02,
    MarkerMismatch = 0x03,
    InvalidStartupFrame = 0x04,
    LocalCatastrophic = 0x05,
    InsufficientIrd = 0x06,
    NoMatchingRtr = 0x07,
}

/// Layer, error type and error code together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TerminateCause {
    /// RDMAP (layer 0), Local Catastrophic Error; the code means nothing.
    RdmapCatastrophic,
    /// RDMAP, Remote Protection Error.
    Protection(ProtectionCode),
    /// RDMAP, Remote Operation Error.
    Operation(OperationCode),
    /// DDP (layer 1), Local Catastrophic.
    DdpCatastrophic,
    /// DDP, Tagged Buffer Error.
    DdpTagged(DdpTaggedCode),
    /// DDP, Untagged Buffer Error.
    DdpUntagged(DdpUntaggedCode),
    /// LLP (layer 2): MPA.
    Mpa(MpaCode),
    /// A triple that is not assigned; only received.
    Unassigned {
        /// 4 bits.
        layer: u8,
        /// 4 bits.
        kind: u8,
        /// 8 bits.
        code: u8,
    },
}

macro_rules! code_table {
    ($name:ident { $($variant:ident),+ $(,)? }) => {
        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            const fn from_code(code: u8) -> Option<Self> {
                $(if code == Self::$variant as u8 { return Some(Self::$variant); })+
                None
            }
        }
    };
}

code_table!(ProtectionCode {
    InvalidStag,
    BaseOrBounds,
    AccessRights,
    StagNotAssociated,
    OffsetWrap,
    StagCannotBeInvalidated,
    Unspecified,
});
code_table!(OperationCode {
    InvalidVersion,
    UnexpectedOpcode,
    CatastrophicStream,
    CatastrophicGlobal,
    StagCannotBeInvalidated,
    Unspecified,
});
code_table!(DdpTaggedCode {
    InvalidStag,
    BaseOrBounds,
    StagNotAssociated,
    OffsetWrap,
    InvalidVersion,
});
code_table!(DdpUntaggedCode {
    InvalidQueue,
    NoBuffer,
    MsnRange,
    InvalidMessageOffset,
    MessageTooLong,
    InvalidVersion,
});
code_table!(MpaCode {
    ConnectionLost,
    Crc,
    MarkerMismatch,
    InvalidStartupFrame,
    LocalCatastrophic,
    InsufficientIrd,
    NoMatchingRtr,
});

impl TerminateCause {
    /// Layer, error type, error code.
    #[must_use]
    pub const fn triple(self) -> (u8, u8, u8) {
        match self {
            Self::RdmapCatastrophic => (0, 0, 0),
            Self::Protection(code) => (0, 1, code as u8),
            Self::Operation(code) => (0, 2, code as u8),
            Self::DdpCatastrophic => (1, 0, 0),
            Self::DdpTagged(code) => (1, 1, code as u8),
            Self::DdpUntagged(code) => (1, 2, code as u8),
            Self::Mpa(code) => (2, 0, code as u8),
            Self::Unassigned { layer, kind, code } => (layer, kind, code),
        }
    }

    /// The cause with this triple.
    #[must_use]
    pub const fn from_triple(layer: u8, kind: u8, code: u8) -> Self {
        let known = match (layer, kind) {
            (0, 0) => Some(Self::RdmapCatastrophic),
            (0, 1) => match ProtectionCode::from_code(code) {
                Some(code) => Some(Self::Protection(code)),
                None => None,
            },
            (0, 2) => match OperationCode::from_code(code) {
                Some(code) => Some(Self::Operation(code)),
                None => None,
            },
            (1, 0) => Some(Self::DdpCatastrophic),
            (1, 1) => match DdpTaggedCode::from_code(code) {
                Some(code) => Some(Self::DdpTagged(code)),
                None => None,
            },
            (1, 2) => match DdpUntaggedCode::from_code(code) {
                Some(code) => Some(Self::DdpUntagged(code)),
                None => None,
            },
            (2, 0) => match MpaCode::from_code(code) {
                Some(code) => Some(Self::Mpa(code)),
                None => None,
            },
            _ => None,
        };
        match known {
            Some(cause) => cause,
            None => Self::Unassigned { layer, kind, code },
        }
    }
}

impl core::fmt::Display for TerminateCause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (layer, kind, code) = self.triple();
        let text = match self {
            Self::RdmapCatastrophic => "RDMAP local catastrophic error",
            Self::Protection(code) => match code {
                ProtectionCode::InvalidStag => "RDMAP: invalid STag",
                ProtectionCode::BaseOrBounds => "RDMAP: base or bounds violation",
                ProtectionCode::AccessRights => "RDMAP: access rights violation",
                ProtectionCode::StagNotAssociated => "RDMAP: STag not associated with the stream",
                ProtectionCode::OffsetWrap => "RDMAP: Tagged Offset wraps",
                ProtectionCode::StagCannotBeInvalidated => "RDMAP: STag cannot be invalidated",
                ProtectionCode::Unspecified => "RDMAP: unspecified protection error",
            },
            Self::Operation(code) => match code {
                OperationCode::InvalidVersion => "RDMAP: invalid version",
                OperationCode::UnexpectedOpcode => "RDMAP: unexpected opcode",
                OperationCode::CatastrophicStream => "RDMAP: catastrophic error of this stream",
                OperationCode::CatastrophicGlobal => "RDMAP: catastrophic error, global",
                OperationCode::StagCannotBeInvalidated => "RDMAP: STag cannot be invalidated",
                OperationCode::Unspecified => "RDMAP: unspecified operation error",
            },
            Self::DdpCatastrophic => "DDP local catastrophic error",
            Self::DdpTagged(code) => match code {
                DdpTaggedCode::InvalidStag => "DDP: invalid STag",
                DdpTaggedCode::BaseOrBounds => "DDP: base or bounds violation",
                DdpTaggedCode::StagNotAssociated => "DDP: STag not associated with the stream",
                DdpTaggedCode::OffsetWrap => "DDP: Tagged Offset wraps",
                DdpTaggedCode::InvalidVersion => "DDP: invalid version (tagged)",
            },
            Self::DdpUntagged(code) => match code {
                DdpUntaggedCode::InvalidQueue => "DDP: invalid Queue Number",
                DdpUntaggedCode::NoBuffer => "DDP: no buffer for the message",
                DdpUntaggedCode::MsnRange => "DDP: Message Sequence Number out of range",
                DdpUntaggedCode::InvalidMessageOffset => "DDP: invalid Message Offset",
                DdpUntaggedCode::MessageTooLong => "DDP: message too long for its buffer",
                DdpUntaggedCode::InvalidVersion => "DDP: invalid version (untagged)",
            },
            Self::Mpa(code) => match code {
                MpaCode::ConnectionLost => "MPA: connection lost",
                MpaCode::Crc => "MPA: CRC error",
                MpaCode::MarkerMismatch => "MPA: Marker and length disagree",
                MpaCode::InvalidStartupFrame => "MPA: invalid startup frame",
                MpaCode::LocalCatastrophic => "MPA: local catastrophic error",
                MpaCode::InsufficientIrd => "MPA: insufficient IRD resources",
                MpaCode::NoMatchingRtr => "MPA: no matching RTR option",
            },
            Self::Unassigned { .. } => "unassigned error",
        };
        write!(f, "{text} (layer {layer}, type {kind}, code {code:#04x})")
    }
}

/// The M, D and R bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeaderControl {
    /// M: DDP Segment Length valid.
    pub segment_len: bool,
    /// D: DDP Header included.
    pub ddp_header: bool,
    /// R: RDMAP Header included.
    pub rdmap_header: bool,
}

/// The first 4 octets of a Terminate header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TerminateControl {
    /// Layer, error type and code.
    pub cause: TerminateCause,
    /// What follows.
    pub headers: HeaderControl,
}

impl TerminateControl {
    /// Octets.
    pub const LEN: usize = 4;

    /// Decodes; every input is valid. Reserved bits are ignored.
    #[must_use]
    pub const fn decode(octets: [u8; Self::LEN]) -> Self {
        let [kind, code, bits, _] = octets;
        Self {
            cause: TerminateCause::from_triple(kind >> 4, kind & 0x0F, code),
            headers: HeaderControl {
                segment_len: bits & 0x80 != 0,
                ddp_header: bits & 0x40 != 0,
                rdmap_header: bits & 0x20 != 0,
            },
        }
    }

    /// The octets, reserved bits zero.
    #[must_use]
    pub const fn encode(self) -> [u8; Self::LEN] {
        //= rfc5040-4.8-terminate-header
        //= rfc5040-4.8-reserved-zero
        //= rfc5041-7.2-error-numbers
        let (layer, kind, code) = self.cause.triple();
        let m = if self.headers.segment_len { 0x80 } else { 0 };
        let d = if self.headers.ddp_header { 0x40 } else { 0 };
        let r = if self.headers.rdmap_header { 0x20 } else { 0 };
        [layer << 4 | kind & 0x0F, code, m | d | r, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn every_cause_keeps_its_triple() {
        //= test rfc5041-7.2-error-numbers
        let mut causes: Vec<TerminateCause> = Vec::new();
        causes.push(TerminateCause::RdmapCatastrophic);
        causes.push(TerminateCause::DdpCatastrophic);
        causes.extend(
            ProtectionCode::ALL
                .iter()
                .map(|&c| TerminateCause::Protection(c)),
        );
        causes.extend(
            OperationCode::ALL
                .iter()
                .map(|&c| TerminateCause::Operation(c)),
        );
        causes.extend(
            DdpTaggedCode::ALL
                .iter()
                .map(|&c| TerminateCause::DdpTagged(c)),
        );
        causes.extend(
            DdpUntaggedCode::ALL
                .iter()
                .map(|&c| TerminateCause::DdpUntagged(c)),
        );
        causes.extend(MpaCode::ALL.iter().map(|&c| TerminateCause::Mpa(c)));
        assert_eq!(causes.len(), 2 + 7 + 6 + 5 + 6 + 7);
        for cause in causes {
            let (layer, kind, code) = cause.triple();
            assert_eq!(TerminateCause::from_triple(layer, kind, code), cause);
            assert!(cause.to_string().contains("layer"));
        }
    }

    #[test]
    fn the_control_word_lies_as_figure_8_has_it() {
        let control = TerminateControl {
            cause: TerminateCause::DdpTagged(DdpTaggedCode::OffsetWrap),
            headers: HeaderControl {
                segment_len: true,
                ddp_header: true,
                rdmap_header: false,
            },
        };
        assert_eq!(control.encode(), [0x11, 0x03, 0xC0, 0x00]);
    }

    proptest! {
        #[test]
        fn round_trip(octets in any::<[u8; 4]>()) {
            let control = TerminateControl::decode(octets);
            prop_assert_eq!(TerminateControl::decode(control.encode()), control);
            let [kind, code, bits, _] = octets;
            let code = if kind & 0xEF == 0 { 0 } else { code };
            //= test rfc5040-4.8-reserved-zero
            prop_assert_eq!(control.encode(), [kind, code, bits & 0xE0, 0]);
        }
    }
}
