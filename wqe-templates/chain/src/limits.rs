//! Bounds of chains, each with its reason.

/// The most data segments in one WQE: the least that devices of this kind report (ConnectX-4 Lx, `max_sge`).
pub const MAX_PIECES: usize = 30;

/// Octets of a slot's scratch line: a line's octets are told apart by one octet of an address.
pub const SCRATCH_LINE: u16 = 256;

/// Octets a request may have if a template is not made for more: common header, Data Descriptor, and what only software looks
/// at. The receive list has room for so many; a longer message is a length error of the receive.
pub const MESSAGE_CAPACITY: u16 = 128;

/// The most WQEs of a template: what a byte's worth of names can tell apart, and far above what any has.
pub const MAX_ELEMENTS: usize = 255;
