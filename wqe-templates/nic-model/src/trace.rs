//! What the device ran, in order.

use kbtp_mlx5::{Qpn, WqeIndex};
use std::fmt;

/// A WQE that was run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// Events of the model before it.
    pub time: u64,
    /// Its queue pair.
    pub qpn: Qpn,
    /// Its place in the queue.
    pub index: WqeIndex,
    /// Its opcode, as it is on the wire.
    pub opcode: u8,
    /// Its octets as the device had them.
    pub octets: Vec<u8>,
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            time,
            qpn,
            index,
            opcode,
            octets,
        } = self;
        write!(f, "{time} {qpn} {} {opcode:02x} ", index.0)?;
        octets.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}
