//! Memory that a peer or a NIC writes: the only crate with raw memory.

/// A mapped stretch of memory.
#[derive(Clone, Debug)]
pub struct Region;
