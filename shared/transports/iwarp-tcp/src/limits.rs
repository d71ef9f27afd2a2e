//! Bounds of this crate, each with its reason.

/// Longest a [`Poller`](crate::Poller) looks for work by itself before it sleeps. A sleep and a wake-up cost about
/// 50 µs of latency: looking on for twice that is the most that can pay.
pub const SPIN_MAX_NS: u64 = 100_000;

/// Looks for work between two yields of the core: a microsecond or two, so that another thread of this core, perhaps
/// the very peer, does not wait long.
pub const LOOKS_PER_YIELD: u32 = 3;

/// A yield that took longer may have given the core to another thread: alone on the core it is one system call.
pub const YIELD_ALONE_NS: u64 = 20_000;

/// A core that another thread wanted is left alone for so many times as long as that thread ran: looking on then
/// costs at most a fifth of the time, whether a slice of 3 ms was lost to a computation or 30 µs to a short task.
pub const CROWDED_TIMES: u64 = 4;
/// At most that long: some slices of the scheduler.
pub const CROWDED_MAX_NS: u64 = 20_000_000;

/// One wait in so many looks on even though recent gaps were long: a 32nd of the waits, each at most
/// [`SPIN_MAX_NS`], costs little and finds out within a moment that traffic has come to life.
pub const SPIN_PROBE_EVERY: u32 = 32;

/// Descriptors one wait reports; the rest come with the next. 64 keep the events in one page.
pub const EPOLL_EVENTS: usize = 64;

/// Quiet time before keep-alive probes: a crashed peer is found within half a minute, and an idle stream costs one
/// small packet in ten seconds.
pub const KEEPALIVE_IDLE_MS: u64 = 10_000;
/// Between keep-alive probes.
pub const KEEPALIVE_INTERVAL_MS: u64 = 5_000;
/// Unanswered probes that end a stream.
pub const KEEPALIVE_PROBES: u32 = 3;

/// How long sent octets may go unacknowledged or a peer may take none: longer than a path's reconvergence, far shorter
/// than the quarter of an hour TCP would take by itself.
pub const USER_TIMEOUT_MS: u64 = 20_000;

/// Octets one call of `progress` moves before its stream gives way to others: at 10 GB/s, 100 µs.
pub const PROGRESS_OCTETS: usize = 1 << 20;
/// How long one call of `progress` goes on: a flood of FPDUs without payload moves few octets in much time. Looked at
/// between rounds, the longest of which takes some tens of microseconds more.
pub const PROGRESS_NS: u64 = 20_000;
/// Rounds of one receive and one send in one call of `progress`; reached before [`PROGRESS_OCTETS`] only by floods of
/// small messages.
pub const PROGRESS_ROUNDS: usize = 32;

/// Connections in their startup at most: one takes well under a millisecond, so that 64 are 64,000 streams a second.
pub const HALF_OPEN: usize = 64;
/// Of those, from one source: a node that restarts opens some streams at once, and three such sources leave room.
pub const HALF_OPEN_PER_SOURCE: usize = 16;
/// How old a connection in its startup is before it can be made to go for a new one, when all places are taken. An honest
/// peer is through in a round trip or two, and one that is slower than this is only in danger while others fill every place.
/// Shorter, and a crowd of honest peers that come at once would throw out one another before any is done.
pub const SILENT_GRACE_MS: u64 = 250;
/// Connections the kernel holds for us.
pub const BACKLOG: i32 = 128;
/// Connections accepted in one go: others want their turn.
pub const ACCEPT_BURST: usize = 64;
/// How long accepting pauses when descriptors or memory are out.
pub const ACCEPT_PAUSE_MS: u64 = 100;

/// Octets a peer may send ahead of our reading from the start: a block of 1 MiB. Left to itself Linux begins with
/// 64 KiB, and on a short path may stay near it: then writer and reader wait for each other in turns, and Writes of
/// 1 MiB over loopback reach 2.3 to 4 GB/s instead of 4.4 to 5.
pub const RECEIVE_WINDOW: u32 = 1 << 20;
