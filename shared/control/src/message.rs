//! The messages.
//!
//! A client asks ([`ToAgent`]) and the agent answers each request once ([`FromAgent`]), in order; what the agent says
//! unasked is [`FromAgent::Drain`] and [`FromAgent::Revoke`]. The first request of a connection is Hello. New messages and new
//! [`HandOver`]s go at the end of their enums: postcard numbers variants by their place.

use crate::Refusal;
use crate::export::{AccessKey, Mechanisms, PoolGrant};
use crate::grant::{Incarnation, RegionName, WireGrant};
use serde::{Deserialize, Serialize};

/// What a client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Takes the memory. There is one at a time.
    Target,
    /// Looks only: Ping and Status.
    Observer,
}

/// First request of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the messages it speaks.
    pub version: u16,
    /// What it is.
    pub role: Role,
    /// Its process, for the report. The agent prefers what the kernel says.
    pub pid: u32,
}

/// How a granted region reaches the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum HandOver {
    /// A sealed memfd, beside the frame that says so. On one machine.
    Memfd,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ToAgent {
    /// Who calls. Answered by Welcome. A target that is welcome holds the agent until it detaches or its socket
    /// closes.
    Hello(Hello),
    /// Grant the pool. Answered by `PoolGrant`.
    AttachPool {
        /// How the target can take it.
        hand_over: HandOver,
    },
    /// Grant the named side region, created with `len` octets of zeros if there is none. Answered by `SideGrant`.
    AttachSide {
        /// Which.
        name: RegionName,
        /// Its length in octets, more than 0. An existing region must have just this length.
        len: u64,
        /// How the target can take it.
        hand_over: HandOver,
    },
    /// Forget the named side region, so that the next attach creates it anew. Answered by Dropped.
    DropSide {
        /// Which.
        name: RegionName,
    },
    /// Is the agent there? Answered by Pong.
    Ping,
    /// How is the agent? Answered by Status.
    Status,
    /// The target has unmapped everything and lets go; the connection stays. Answered by Detached.
    Detach,
    /// Grant the pool to another function of the device. Answered by Exported. May be repeated: it is the same grant.
    AttachExported {
        /// What the target can take.
        mechanisms: Mechanisms,
    },
    /// Nothing of the target uses the exported pool any more. Answered by `ReleaseNoted`.
    Released {
        /// The grant's epoch.
        epoch: u64,
        /// Its key, as a proof that it was granted.
        key: AccessKey,
    },
}

/// An answer, or what is said unasked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FromAgent {
    /// To Hello.
    Welcome(Welcome),
    /// To `AttachPool`.
    PoolGrant {
        /// The region.
        grant: WireGrant,
        /// How it comes.
        hand_over: HandOver,
        /// It was never granted before and is all zeros.
        fresh: bool,
    },
    /// To `AttachSide`.
    SideGrant {
        /// The region.
        grant: WireGrant,
        /// How it comes.
        hand_over: HandOver,
        /// It was created for this request and is all zeros.
        fresh: bool,
    },
    /// To `DropSide`.
    Dropped {
        /// There was one.
        existed: bool,
    },
    /// To Ping.
    Pong,
    /// To Status.
    Status(StatusReport),
    /// To Detach.
    Detached,
    /// To any request: no. Nothing has changed.
    Refused(Refusal),
    /// Unasked: the agent goes away. Stop granting, drain, and detach.
    Drain(DrainReason),
    /// To `AttachExported`; with [`Mechanism::Emulated`](crate::Mechanism::Emulated) the memory comes with it.
    Exported(PoolGrant),
    /// To Released.
    ReleaseNoted {
        /// Which.
        epoch: u64,
    },
    /// Unasked: stop using the exported pool, and say Released. The agent unmaps nothing before.
    Revoke {
        /// Which grant.
        epoch: u64,
    },
}

/// Why an agent drains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DrainReason {
    /// It was told to stop.
    Stopping,
}

/// Answer to Hello.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Version of the messages the agent speaks.
    pub version: u16,
    /// Which life of the agent this is.
    pub incarnation: Incarnation,
    /// The pool's shape.
    pub geometry: PoolGeometry,
    /// What the pool's memory is made of.
    pub pages: PageReport,
}

/// The pool's shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolGeometry {
    /// Octets of a block.
    pub block_size: u32,
    /// Blocks (F).
    pub blocks: u32,
}

impl PoolGeometry {
    /// Octets of all blocks.
    #[must_use]
    pub const fn len(self) -> u64 {
        // At most (2^32 - 1)^2: no overflow.
        (self.block_size as u64).wrapping_mul(self.blocks as u64)
    }

    /// There is no octet in it; an agent does not start with such a pool.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// What a region's memory is made of, as it was had and not as it was wished.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageReport {
    /// Octets of a page.
    pub page_size: u64,
    /// They are hugepages from the kernel's reserve.
    pub huge: bool,
    /// Octets locked in memory.
    pub locked: u64,
    /// The NUMA node it was asked to lie on.
    pub numa_node: Option<u32>,
    /// What was wished and not had, in words; empty if nothing.
    pub shortfall: String,
}

/// One region in a report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionStatus {
    /// Its name; the pool is `pool`.
    pub name: String,
    /// Octets.
    pub len: u64,
    /// Octets locked in memory.
    pub locked: u64,
    /// How often it was granted.
    pub grants: u64,
}

/// How an agent is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatusReport {
    /// Which life of the agent this is.
    pub incarnation: Incarnation,
    /// The agent's process.
    pub pid: u32,
    /// How long it runs.
    pub uptime_ms: u64,
    /// The target's process, if there is one.
    pub target_pid: Option<u32>,
    /// Targets that were welcome so far.
    pub targets: u64,
    /// Connections now.
    pub clients: u32,
    /// It is about to go.
    pub draining: bool,
    /// The pool's shape.
    pub geometry: PoolGeometry,
    /// What the pool's memory is made of.
    pub pages: PageReport,
    /// The pool and the side regions.
    pub regions: Vec<RegionStatus>,
}

impl StatusReport {
    /// Octets locked in memory, all regions together.
    #[must_use]
    pub fn locked(&self) -> u64 {
        self.regions
            .iter()
            .fold(0, |sum, region| sum.saturating_add(region.locked))
    }
}

impl ToAgent {
    /// The request's name, for an error.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "Hello",
            Self::AttachPool { .. } => "AttachPool",
            Self::AttachSide { .. } => "AttachSide",
            Self::DropSide { .. } => "DropSide",
            Self::Ping => "Ping",
            Self::Status => "Status",
            Self::Detach => "Detach",
            Self::AttachExported { .. } => "AttachExported",
            Self::Released { .. } => "Released",
        }
    }
}

impl FromAgent {
    /// The answer's name, for an error.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Welcome(_) => "Welcome",
            Self::PoolGrant { .. } => "PoolGrant",
            Self::SideGrant { .. } => "SideGrant",
            Self::Dropped { .. } => "Dropped",
            Self::Pong => "Pong",
            Self::Status(_) => "Status",
            Self::Detached => "Detached",
            Self::Refused(_) => "Refused",
            Self::Drain(_) => "Drain",
            Self::Exported(_) => "Exported",
            Self::ReleaseNoted { .. } => "ReleaseNoted",
            Self::Revoke { .. } => "Revoke",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use kbtp_fabric::Access;
    use kbtp_wire::{Stag, TaggedOffset};
    use proptest::prelude::*;

    fn any_name() -> impl Strategy<Value = RegionName> {
        "[a-z0-9][a-z0-9._-]{0,63}".prop_map(|name| RegionName::new(&name).unwrap())
    }

    fn any_grant() -> impl Strategy<Value = WireGrant> {
        (any::<u32>(), any::<u64>(), any::<u64>(), any::<[u8; 16]>()).prop_map(
            |(stag, base, len, incarnation)| {
                crate::RegionGrant {
                    stag: Stag(stag),
                    base: TaggedOffset(base),
                    len,
                    access: Access::LOCAL,
                    incarnation: Incarnation(incarnation),
                }
                .into()
            },
        )
    }

    pub(crate) fn any_request() -> impl Strategy<Value = ToAgent> {
        let hand_over = HandOver::Memfd;
        prop_oneof![
            (any::<u16>(), any::<bool>(), any::<u32>()).prop_map(|(version, target, pid)| {
                let role = if target { Role::Target } else { Role::Observer };
                ToAgent::Hello(Hello { version, role, pid })
            }),
            Just(ToAgent::AttachPool { hand_over }),
            (any_name(), any::<u64>()).prop_map(move |(name, len)| ToAgent::AttachSide {
                name,
                len,
                hand_over
            }),
            any_name().prop_map(|name| ToAgent::DropSide { name }),
            Just(ToAgent::Ping),
            Just(ToAgent::Status),
            Just(ToAgent::Detach),
            any::<u8>().prop_map(|bits| ToAgent::AttachExported {
                mechanisms: Mechanisms(bits)
            }),
            (any::<u64>(), any::<[u8; 32]>()).prop_map(|(epoch, key)| ToAgent::Released {
                epoch,
                key: AccessKey::new(key)
            }),
        ]
    }

    pub(crate) fn report_with_rows(rows: usize, name: &str, text: &str) -> StatusReport {
        StatusReport {
            incarnation: Incarnation([0xff; 16]),
            pid: u32::MAX,
            uptime_ms: u64::MAX,
            target_pid: Some(u32::MAX),
            targets: u64::MAX,
            clients: u32::MAX,
            draining: true,
            geometry: PoolGeometry {
                block_size: u32::MAX,
                blocks: u32::MAX,
            },
            pages: PageReport {
                page_size: u64::MAX,
                huge: true,
                locked: u64::MAX,
                numa_node: Some(u32::MAX),
                shortfall: text.to_owned(),
            },
            regions: vec![
                RegionStatus {
                    name: name.to_owned(),
                    len: u64::MAX,
                    locked: u64::MAX,
                    grants: u64::MAX,
                };
                rows
            ],
        }
    }

    pub(crate) fn any_answer() -> impl Strategy<Value = FromAgent> {
        let hand_over = HandOver::Memfd;
        prop_oneof![
            (any_grant(), any::<bool>()).prop_map(move |(grant, fresh)| FromAgent::PoolGrant {
                grant,
                hand_over,
                fresh
            }),
            (any_grant(), any::<bool>()).prop_map(move |(grant, fresh)| FromAgent::SideGrant {
                grant,
                hand_over,
                fresh
            }),
            any::<bool>().prop_map(|existed| FromAgent::Dropped { existed }),
            Just(FromAgent::Pong),
            (0usize..17, "[a-z]{0,64}", ".{0,100}").prop_map(|(rows, name, text)| {
                FromAgent::Status(report_with_rows(rows, &name, &text))
            }),
            (any::<u32>(), ".{0,100}").prop_map(|(pid, reason)| if pid % 2 == 0 {
                FromAgent::Refused(Refusal::Busy { pid })
            } else {
                FromAgent::Refused(Refusal::Malformed { reason })
            }),
            Just(FromAgent::Drain(DrainReason::Stopping)),
            crate::export::tests::any_pool_grant().prop_map(FromAgent::Exported),
            any::<u64>().prop_map(|epoch| FromAgent::ReleaseNoted { epoch }),
            any::<u64>().prop_map(|epoch| FromAgent::Revoke { epoch }),
        ]
    }

    #[test]
    fn the_largest_pool_has_a_length() {
        let geometry = PoolGeometry {
            block_size: u32::MAX,
            blocks: u32::MAX,
        };
        assert_eq!(geometry.len(), u64::from(u32::MAX) * u64::from(u32::MAX));
        assert!(!geometry.is_empty());
    }

    #[test]
    fn a_bad_name_is_no_message() {
        // AttachSide (2) of name "A".
        assert!(postcard::from_bytes::<ToAgent>(&[2, 1, b'A', 1, 0]).is_err());
        assert!(postcard::from_bytes::<ToAgent>(&[2, 1, b'a', 1, 0]).is_ok());
    }
}
