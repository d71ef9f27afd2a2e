//! What streams are set up with.

use crate::choice::Want;
use crate::limits;

/// What a stream is set up with.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Work requests its send queue holds, if the device has that many.
    pub send_work: u32,
    /// Receive slots.
    pub receives: u32,
    /// Octets of a receive slot.
    pub receive_len: u32,
    /// Registrations it may have.
    pub registrations: u16,
    /// RDMA Reads and Atomics outstanding at most, each way; less if a device has less.
    pub reads: u8,
    /// Octets of a message that are sent from the work request itself, if the device can.
    pub inline_octets: u32,
    /// Octets of memory that the device registers at a time: what is longer is registered in pieces. Never more than the
    /// device's `max_mr_size`.
    pub max_registration: u64,
    /// Registrations are on demand: pages are faulted in by the device instead of pinned. An error where the device has
    /// no such thing.
    pub on_demand: bool,
    /// How long the setting up may take, in milliseconds.
    pub startup_ms: u64,
    /// Quiet time after which the peer's device is asked for a sign of life, in milliseconds.
    pub keepalive_idle_ms: u64,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            send_work: limits::SEND_WORK,
            receives: limits::RECEIVES,
            receive_len: limits::RECEIVE_LEN,
            registrations: limits::REGISTRATIONS,
            reads: limits::READS,
            inline_octets: 64,
            max_registration: u64::MAX,
            on_demand: false,
            startup_ms: limits::STARTUP_MS,
            keepalive_idle_ms: limits::KEEPALIVE_IDLE_MS,
        }
    }
}

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The stream.
    pub stream: StreamOptions,
    /// Which device, port and GID.
    pub want: Want,
}

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The streams.
    pub stream: StreamOptions,
    /// Connections that are not established yet, at most.
    pub half_open: usize,
    /// Of those, at most so many from one source: an IPv4 address or an IPv6 network of 64 bits.
    pub half_open_per_source: usize,
    /// Connections the kernel holds before they are looked at.
    pub backlog: i32,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            stream: StreamOptions::default(),
            half_open: limits::HALF_OPEN,
            half_open_per_source: limits::HALF_OPEN_PER_SOURCE,
            backlog: limits::BACKLOG,
        }
    }
}
