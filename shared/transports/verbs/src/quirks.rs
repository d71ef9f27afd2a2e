//! What a device really does, whatever it announces. Found by trying ([`probe`](crate::probe::probe)), never by name.

/// What was tried, and how it went. A thing that fails the trial is not used, and is offered to nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what a device does is independent of what else it does"
)]
pub struct Quirks {
    /// A registration's Tagged Offsets begin where they were told to. A device that accepts that and goes on with
    /// addresses of this process (siw) has `false`.
    pub heeds_base: bool,
    /// Buffers that one RDMA Read fills: more than one where the second was seen to be filled. Some devices report success
    /// and leave it as it was (siw).
    pub read_buffers: u32,
    /// Write with Immediate arrives, with its data before it.
    pub immediate: bool,
    /// FetchAdd and CmpSwap do what they should.
    pub atomics: bool,
    /// Keys that a peer can invalidate: a window of type 2 was bound, was invalidated by a Send, and did not work any more.
    pub windows: bool,
    /// The flag of a completion that says that the message invalidated a key: the documented one, or the kernel's own (rxe).
    pub invalidated_flag: u32,
}

impl Quirks {
    /// Nothing but what every device does: Send, Write, and Read into one buffer, at addresses of this process.
    pub const LEAST: Self = Self {
        heeds_base: false,
        read_buffers: 1,
        immediate: false,
        atomics: false,
        windows: false,
        invalidated_flag: kbtp_verbs_sys::INVALIDATED,
    };
}

impl Default for Quirks {
    fn default() -> Self {
        Self::LEAST
    }
}
