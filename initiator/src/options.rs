//! What a client is told before it connects.

use crate::entropy;
use crate::error::ClientError;
use crate::limits;
use kbtp_core::initiator::{Settings, TenantKey};
use kbtp_iwarp_tcp::Spin;
use kbtp_memory::PageOptions;
use kbtp_wire::{ByteLen, InitiatorId, SessionCapabilities};
use std::time::Duration;

/// When a broken connection is set up again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reconnect {
    /// Only by [`Client::reconnect`](crate::Client::reconnect).
    Manual,
    /// By the next operation, with pauses that double. Loads that were cut off are tried again; nothing else is.
    Automatic {
        /// How often.
        attempts: u32,
        /// The first pause.
        first_pause: Duration,
        /// The longest pause.
        longest_pause: Duration,
    },
}

impl Reconnect {
    /// Automatic, with the bounds of [`limits`].
    pub const AUTOMATIC: Self = Self::Automatic {
        attempts: limits::RECONNECT_ATTEMPTS,
        first_pause: limits::RECONNECT_FIRST_PAUSE,
        longest_pause: limits::RECONNECT_LONGEST_PAUSE,
    };
}

/// Where to connect to, as whom, and what to ask for. Every setter gives the options back.
///
/// ```
/// use kbtp_initiator::Options;
/// use std::time::Duration;
///
/// let options = Options::new("cache-1:7471")
///     .tenant("blue", b"its key")
///     .quota(256)
///     .direct_load(true)
///     .timeout(Duration::from_millis(200));
/// assert_eq!(options.address(), "cache-1:7471");
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) address: String,
    pub(crate) initiator_id: Option<InitiatorId>,
    pub(crate) tenant: String,
    pub(crate) key: Option<TenantKey>,
    pub(crate) software: String,
    pub(crate) credits: u16,
    pub(crate) quota: u32,
    pub(crate) handles: u64,
    pub(crate) max_inline: ByteLen,
    pub(crate) capabilities: SessionCapabilities,
    pub(crate) direct_loads: u16,
    pub(crate) crc: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) spin: Spin,
    pub(crate) invalidate: bool,
    pub(crate) reconnect: Reconnect,
    pub(crate) pages: PageOptions,
}

impl Options {
    /// A target's address, `host:port`, with defaults for the rest: a fresh Initiator ID, no tenant, the target's own
    /// defaults for credits, quota and handles, 4 KiB of inline data, no direct modes, CRCs on.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            initiator_id: None,
            tenant: String::new(),
            key: None,
            software: concat!("kbtp-initiator ", env!("CARGO_PKG_VERSION")).into(),
            credits: 0,
            quota: 0,
            handles: 0,
            max_inline: ByteLen(4096),
            capabilities: SessionCapabilities::NONE,
            direct_loads: 16,
            crc: true,
            connect_timeout: limits::CONNECT_TIMEOUT,
            timeout: Some(limits::OPERATION_TIMEOUT),
            spin: Spin::Auto,
            invalidate: false,
            reconnect: Reconnect::Manual,
            pages: PageOptions::default(),
        }
    }

    /// The target's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The tenant and its key (profile, P9).
    #[must_use]
    pub fn tenant(self, name: impl Into<String>, key: &[u8]) -> Self {
        Self {
            tenant: name.into(),
            key: Some(TenantKey::new(key)),
            ..self
        }
    }

    /// The tenant, towards a target without authentication.
    #[must_use]
    pub fn tenant_name(self, name: impl Into<String>) -> Self {
        Self {
            tenant: name.into(),
            ..self
        }
    }

    /// The Initiator ID, a UUID. The same one resumes its handle range (profile, P8); by default each client takes a
    /// fresh random one and keeps it over reconnects.
    #[must_use]
    pub fn initiator_id(self, id: InitiatorId) -> Self {
        Self {
            initiator_id: Some(id),
            ..self
        }
    }

    /// Name and version of the software, for the target's logs.
    #[must_use]
    pub fn software(self, name: impl Into<String>) -> Self {
        Self {
            software: name.into(),
            ..self
        }
    }

    /// Request Credits: requests in flight. 0: the target's default.
    #[must_use]
    pub fn credits(self, credits: u16) -> Self {
        Self { credits, ..self }
    }

    /// Allocation Quota, in blocks. 0: the target's default.
    #[must_use]
    pub fn quota(self, blocks: u32) -> Self {
        Self {
            quota: blocks,
            ..self
        }
    }

    /// Handles. 0: as many as the quota.
    #[must_use]
    pub fn handles(self, handles: u64) -> Self {
        Self { handles, ..self }
    }

    /// Stores up to this many octets are sent with their request, if the target takes that: one trip less.
    #[must_use]
    pub fn max_inline(self, octets: u32) -> Self {
        Self {
            max_inline: ByteLen(octets),
            ..self
        }
    }

    /// Ask for Direct Load (draft, section 6.6).
    #[must_use]
    pub fn direct_load(self, wanted: bool) -> Self {
        self.capability(SessionCapabilities::DIRECT_LOAD, wanted)
    }

    /// Ask for Direct Allocation (draft, section 6.6).
    #[must_use]
    pub fn direct_alloc(self, wanted: bool) -> Self {
        self.capability(SessionCapabilities::DIRECT_ALLOC, wanted)
    }

    /// Ask for completion records (draft, section 6.5): the target writes how a request ended into memory of this client, and
    /// no message. Granted on InfiniBand and RoCE alone, on devices that have RDMA Write with Immediate.
    #[must_use]
    pub fn records(self, wanted: bool) -> Self {
        self.capability(SessionCapabilities::RECORD_COMPLETION, wanted)
    }

    /// Direct loads in flight, at most 64.
    #[must_use]
    pub fn direct_loads(self, count: u16) -> Self {
        Self {
            direct_loads: count,
            ..self
        }
    }

    /// Whether to want CRCs on the stream (RFC 5044). They are on if either side wants them.
    #[must_use]
    pub fn crc(self, wanted: bool) -> Self {
        Self {
            crc: wanted,
            ..self
        }
    }

    /// How long connecting and setting the session up may take.
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Self {
            connect_timeout: timeout,
            ..self
        }
    }

    /// How long an operation may take, unless it says otherwise.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }

    /// Operations take as long as they take, unless they say otherwise.
    #[must_use]
    pub fn no_timeout(self) -> Self {
        Self {
            timeout: None,
            ..self
        }
    }

    /// How a waiting call looks for its answer before it sleeps.
    #[must_use]
    pub fn spin(self, spin: Spin) -> Self {
        Self { spin, ..self }
    }

    /// Have the target invalidate the STag of each load's and each store's buffer as it completes, so that it can
    /// neither write nor read the buffer afterwards. Costs a registration for each operation.
    #[must_use]
    pub fn invalidate(self, wanted: bool) -> Self {
        Self {
            invalidate: wanted,
            ..self
        }
    }

    /// When a broken connection is set up again.
    #[must_use]
    pub fn reconnect(self, reconnect: Reconnect) -> Self {
        Self { reconnect, ..self }
    }

    /// What pages buffers are made of.
    #[must_use]
    pub fn pages(self, pages: PageOptions) -> Self {
        Self { pages, ..self }
    }

    /// Whether CRCs are wanted on the stream.
    #[must_use]
    pub const fn wants_crc(&self) -> bool {
        self.crc
    }

    fn capability(self, capability: SessionCapabilities, wanted: bool) -> Self {
        let without = self.capabilities.without(capability);
        Self {
            capabilities: if wanted {
                without.union(capability)
            } else {
                without
            },
            ..self
        }
    }

    /// Takes a fresh Initiator ID unless there is one.
    pub(crate) fn settle_id(&mut self) -> Result<InitiatorId, ClientError> {
        if let Some(id) = self.initiator_id {
            return Ok(id);
        }
        let id = InitiatorId(entropy::uuid()?);
        self.initiator_id = Some(id);
        Ok(id)
    }

    /// What the session asks for.
    pub(crate) fn settings(&self, id: InitiatorId) -> Settings {
        Settings {
            tenant: self.tenant.clone(),
            key: self.key.clone(),
            software: self.software.clone(),
            request_credits: self.credits,
            capabilities: self.capabilities,
            quota: self.quota,
            max_inline: self.max_inline,
            handles: self.handles,
            max_direct_loads: self.direct_loads,
            ..Settings::new(id)
        }
    }
}
