//! What a device may do that breaks software which counts on more than is promised.
//!
//! | hazard | here |
//! |---|---|
//! | a WQE is read before its turn, and later writes to it are lost | [`Hazards::fetch`] |
//! | byte order of atomics and of their replies | little-endian memory; [`Hazards::reply`] |
//! | alignment of atomics | an error, unless [`Hazards::lenient_alignment`] |
//! | index and queue pair in a WQE are not those of its place | an error, unless [`Hazards::lenient_identity`] |
//! | indices of 16 and 24 bits | always; compared by signed distance, a `SEND_EN` backwards does nothing |
//! | owner bit, CQEs nobody wrote, overrun | always; [`overrun_ignored`](kbtp_device::CqAttributes) |
//! | WQEs across the end of the ring, or enabled in part | always an error |
//! | lengths of zero, too many segments | always an error; [`Hazards::max_pieces`] |
//! | a byte count of zero is 2 GiB; messages longer than the queue pair's | always |
//! | data in CQEs instead of memory | [`Hazards::scatter_to_cqe`] |
//! | a WRITE or SEND gathers before an earlier READ has scattered | unless fenced, by schedule |
//! | CQEs of errors and flushes satisfy WAITs, also of unsignalled WQEs | always; [`Hazards::quiet_flush`] |
//! | the receiver is not ready | [`rnr_retry`](kbtp_device::QpAttributes) |
//! | a message longer than the receive WQE | always an error of both sides |
//! | keys: existence, tag, domain, queue pair, rights, bounds, nesting | always |
//! | an error at the responder stops what comes after | always |
//! | relaxed ordering: octets land after the CQE | [`relaxed_ordering`](kbtp_device::KeyAttributes), by schedule |
//! | replies of READs scattered in any order | [`Hazards::out_of_order`] |
//! | NOPs with CQE, with a body, with a modifier | always; the last an error unless [`Hazards::lenient_nop`] |
//! | masked arithmetic | always |
//! | an atomic rewrites its whole word: what is written meanwhile is lost | [`Hazards::split_atomics`] |
//! | WAIT and `SEND_EN` of queue pairs without the role | an error, unless [`Hazards::lenient_roles`] |
//! | a doorbell rung before its record is written is not seen | always |
//! | Send with Invalidate of a key that does not allow it | always an error |
//! | a WQE is read in pieces while it is written | [`Fetch::Torn`] |

/// When a WQE's octets are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fetch {
    /// When it is enabled, by `SEND_EN` or doorbell: what is written later is lost.
    WhenEnabled,
    /// When its turn comes: the least that a device may do ahead.
    WhenRun,
    /// Each basic block one or the other.
    Either,
    /// Each eight octets one or the other.
    Torn,
}

/// Byte order of an atomic's reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Eight octets as they are in memory, four big-endian: what Linux sets up (`atomic_req_8B_endianness_mode` 1).
    Memory,
    /// Big-endian.
    BigEndian,
}

/// When the responder of a READ looks at its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sampling {
    /// When the request arrives.
    Early,
    /// When the reply goes out.
    Late,
    /// Each READ one or the other.
    Either,
}

/// The knobs. The default is what a correct driver must bear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a hazard of its own, on or off"
)]
pub struct Hazards {
    /// When WQEs are read.
    pub fetch: Fetch,
    /// When READs look.
    pub sampling: Sampling,
    /// Byte order of replies.
    pub reply: Reply,
    /// The most data segments of a WQE.
    pub max_pieces: usize,
    /// Atomics need not be aligned.
    pub lenient_alignment: bool,
    /// Index and queue pair of a WQE are not checked.
    pub lenient_identity: bool,
    /// A NOP may have a modifier.
    pub lenient_nop: bool,
    /// Any queue pair may hold WAIT and `SEND_EN`, and be enabled.
    pub lenient_roles: bool,
    /// Unsignalled WQEs are flushed without CQEs.
    pub quiet_flush: bool,
    /// Up to 32 octets that are received or read come in the CQE, not in memory.
    pub scatter_to_cqe: bool,
    /// Replies of READs are scattered in any order.
    pub out_of_order: bool,
    /// An atomic reads its word at one time and writes it at another.
    pub split_atomics: bool,
}

impl Default for Hazards {
    fn default() -> Self {
        Self {
            fetch: Fetch::WhenEnabled,
            sampling: Sampling::Either,
            reply: Reply::Memory,
            max_pieces: crate::limits::MAX_PIECES,
            lenient_alignment: false,
            lenient_identity: false,
            lenient_nop: false,
            lenient_roles: false,
            quiet_flush: false,
            scatter_to_cqe: false,
            out_of_order: false,
            split_atomics: false,
        }
    }
}

/// In which order things happen that no rule orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Whatever comes, by the seed.
    Random,
    /// Replies as soon as can be.
    Eager,
    /// Requests go out and replies come in only when a queue could not go on without. Finds what waits for nothing.
    Withhold,
}
