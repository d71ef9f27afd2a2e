//! What the device ran, in order, and what its last step did.

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

/// What a step of the model did with a WQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// It was read and started: what it gathers was gathered.
    Started,
    /// The responder did what it asks for.
    Responded,
    /// Its reply was scattered and its CQE written.
    Completed,
    /// It failed, or was flushed.
    Failed,
}

/// The WQE that a step of the model moved on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WqeStep {
    /// Its queue pair.
    pub qpn: Qpn,
    /// Its place in the queue.
    pub index: WqeIndex,
    /// How.
    pub deed: Deed,
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
