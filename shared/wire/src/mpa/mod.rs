//! Marker PDU Aligned framing for TCP: RFC 5044, with the enhanced connection establishment of RFC 6581.

mod enhanced;
mod fpdu;
mod marker;
mod startup;

pub use enhanced::{EnhancedData, ReadDepth, RtrKinds};
pub use fpdu::{
    CRC_LEN, FPDU_OVERHEAD, LENGTH_LEN, MAX_MULPDU, MAX_ULPDU_LEN, MIN_MULPDU, crc_from_wire,
    crc_to_wire, fpdu_len, max_ulpdu_len, pad_len,
};
pub use marker::{MARKER_INTERVAL, MARKER_LEN, Marker, MarkerClock};
pub use startup::{
    FrameKind, MAX_PRIVATE_LEN, REVISION_ENHANCED, REVISION_ORIGINAL, StartupError, StartupFlags,
    StartupFrame,
};
