//! What the directory is told and what it tells: configuration, errors, summaries.

use crate::TenantKey;
use crate::limits::{CREDITS_DEFAULT, CREDITS_MAX, INLINE_DEFAULT};
use kbtp_fabric::Time;
use kbtp_wire::Handle;

/// Names a session to the directory and its worker; chosen by the caller, never reused within a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// A tenant: a trust domain of its own unless `shared` (P9).
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// Name as in the Tenant TLV. The empty name is who sends no Tenant TLV.
    pub name: String,
    /// HMAC key; without one the tenant cannot pass Auth Mode 1.
    pub key: Option<TenantKey>,
    /// All tenants marked so form one trust domain: they load each other's blocks.
    pub shared: bool,
}

/// How sessions are granted.
#[derive(Clone, Debug)]
pub struct DirectoryConfig {
    /// Who may come. Empty: one tenant with the empty name.
    pub tenants: Vec<TenantConfig>,
    /// Blocks for a session that wants the default (P5).
    pub default_quota: u32,
    /// Most blocks for one session; 0: as many as are left.
    pub max_quota: u32,
    /// Most handle ranges, each an Initiator ID with or without a session, of one tenant; 0: as many as there are beside
    /// what is [kept for the other tenants](crate::limits::INITIATORS_KEPT).
    pub max_initiators: u32,
    /// How long bindings outlive their session, in milliseconds; `u32::MAX` for ever, 0 not at all (P8).
    pub lease_ms: u32,
    /// After how long a ticket that was not bound is abandoned, in milliseconds (draft, section 3.4).
    pub ticket_timeout_ms: u32,
    /// Whether DIRECT_LOAD may be granted.
    pub direct_load: bool,
    /// Whether DIRECT_ALLOC may be granted.
    pub direct_alloc: bool,
    /// Request Credits for a session that wants the default; at most [`limits::CREDITS_MAX`](crate::limits::CREDITS_MAX).
    pub credits_default: u16,
    /// Most Request Credits; at most [`limits::CREDITS_MAX`](crate::limits::CREDITS_MAX).
    pub credits_max: u16,
    /// Largest Max Inline, in octets; at most [`limits::INLINE_MAX`](crate::limits::INLINE_MAX).
    pub inline_max: u32,
}

impl Default for DirectoryConfig {
    fn default() -> Self {
        Self {
            tenants: Vec::new(),
            default_quota: 1024,
            max_quota: 0,
            max_initiators: 0,
            lease_ms: 60_000,
            ticket_timeout_ms: 5_000,
            direct_load: false,
            direct_alloc: false,
            credits_default: CREDITS_DEFAULT,
            credits_max: CREDITS_MAX,
            inline_max: INLINE_DEFAULT,
        }
    }
}

/// Why a directory could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Too many tenants, two of one name, or a name that is too long.
    #[error("tenant {name:?}: {problem}")]
    Tenant {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A limit of the configuration is out of bounds.
    #[error("{key} is {value}: {problem}")]
    Config {
        /// Which field.
        key: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        problem: &'static str,
    },
}

/// A handle range, for `kbtp top` and the admin port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeSummary {
    /// Its tenant.
    pub tenant: String,
    /// Its initiator.
    pub initiator: [u8; 16],
    /// First handle.
    pub base: Handle,
    /// Handles.
    pub count: u64,
    /// Quota, in blocks.
    pub quota: u32,
    /// Blocks bound; known while no session is connected.
    pub bound: Option<u32>,
    /// The session that has it.
    pub session: Option<SessionId>,
    /// When its lease ends, without a session.
    pub lease_ends: Option<Time>,
}

/// Totals of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectorySummary {
    /// Ranges, with or without a session.
    pub ranges: u32,
    /// Sessions granted and not ended.
    pub sessions: u32,
    /// Sum of quotas, in blocks; at most F.
    pub committed: u32,
    /// Partitions in use or being dissolved.
    pub partitions: u32,
}
