//! Bounds of what the KBTP parsers take, each with its reason.

/// Most TLVs in one HELLO or HELLO_ACK. Three types exist; the rest leaves room for extensions while a peer that
/// packs empty TLVs into a large message gets no loop longer than this.
pub const MAX_TLVS: usize = 32;
