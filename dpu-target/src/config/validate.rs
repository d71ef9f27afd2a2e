//! The checks of a configuration, in the order of its keys.

use super::{ConfigError, EngineChoice, Lease, NicChoice, SpinPolicy, TargetConfig};
use crate::limits;
use crate::units::format_size;
use std::fmt;

/// One check: `ok`, or the error it makes.
fn check(
    ok: bool,
    key: &'static str,
    value: impl fmt::Display,
    problem: impl Into<String>,
    remedy: impl Into<String>,
) -> Result<(), ConfigError> {
    if ok {
        return Ok(());
    }
    Err(ConfigError {
        key,
        value: value.to_string(),
        problem: problem.into(),
        remedy: remedy.into(),
    })
}

impl TargetConfig {
    /// Checks the whole, but for what depends on the shape of an agent's pool: that is not known before the target is
    /// attached to it, and checked then. Call [`load_keys`](Self::load_keys) before it.
    ///
    /// # Errors
    /// [`ConfigError`], the first found.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_engine()?;
        if self.agent.is_none() {
            self.validate_pool()?;
        }
        self.validate_sessions()?;
        self.validate_tenants()?;
        self.validate_addresses()?;
        self.validate_limits()
    }

    fn validate_engine(&self) -> Result<(), ConfigError> {
        let chain = self.engine == EngineChoice::Chain;
        check(
            chain == self.nic.is_some(),
            "nic",
            self.nic
                .as_ref()
                .map_or_else(|| "none".to_owned(), NicChoice::to_string),
            "chains need a device, and nothing else does",
            "give engine = \"chain\" and nic = \"model\" or \"mlx5:DEVICE\", or neither",
        )?;
        check(
            !chain || self.workers.is_none_or(|workers| workers == 1),
            "workers",
            self.workers.unwrap_or(1),
            "a device for chains is served by one worker",
            "take 1, or leave it out",
        )
    }

    /// Takes the shape of the pool that is there, and checks what depends on it.
    ///
    /// # Errors
    /// [`ConfigError`], the first found.
    pub(crate) fn take_shape(&mut self, block_size: u32, blocks: u32) -> Result<(), ConfigError> {
        self.block_size = block_size.into();
        self.blocks = blocks.into();
        self.validate_pool()
    }

    fn validate_pool(&self) -> Result<(), ConfigError> {
        check(
            (limits::BLOCK_SIZE_MIN..=limits::BLOCK_SIZE_MAX).contains(&self.block_size),
            "block_size",
            format_size(self.block_size),
            "not a block size this target serves",
            format!(
                "take {} to {}",
                format_size(limits::BLOCK_SIZE_MIN),
                format_size(limits::BLOCK_SIZE_MAX)
            ),
        )?;
        check(
            self.block_size.is_multiple_of(limits::BLOCK_SIZE_MIN),
            "block_size",
            format_size(self.block_size),
            "blocks begin at whole pages",
            format!("take a multiple of {}", format_size(limits::BLOCK_SIZE_MIN)),
        )?;
        check(
            (1..=limits::BLOCKS_MAX).contains(&self.blocks),
            "blocks",
            self.blocks,
            "not a number of blocks that a pool can have",
            format!("take 1 to {}", limits::BLOCKS_MAX),
        )?;
        let handles = self.handle_count();
        check(
            (self.blocks..=limits::HANDLES_MAX).contains(&handles),
            "handles",
            handles,
            "a handle is needed for each block, and a table holds no more than 2^32",
            format!("take {} to {}", self.blocks, limits::HANDLES_MAX),
        )?;
        let quota = self.quota_default();
        check(
            (1..=self.blocks).contains(&quota),
            "default_quota",
            quota,
            "quotas are at least one block and at most the pool",
            format!("take 1 to {}", self.blocks),
        )?;
        check(
            self.max_quota.is_none_or(|max| max >= quota),
            "max_quota",
            self.max_quota.unwrap_or_default(),
            format!("less than the default quota of {quota}"),
            "take at least that, or leave it out",
        )?;
        check(
            self.max_inline <= self.block_size,
            "max_inline",
            format_size(self.max_inline),
            "inline data cannot be longer than a block",
            format!("take at most {}", format_size(self.block_size)),
        )
    }

    fn validate_sessions(&self) -> Result<(), ConfigError> {
        let ticket_ms = self.ticket_timeout.as_millis();
        check(
            (1..=u128::from(u32::MAX)).contains(&ticket_ms),
            "ticket_timeout",
            format!("{ticket_ms}ms"),
            "HELLO_ACK carries it as milliseconds in 32 bits, and zero would abandon every ticket",
            "take 1ms to 49d; some seconds suit",
        )?;
        if let Lease::For(d) = self.lease {
            check(
                d.as_millis() < u128::from(u32::MAX),
                "lease",
                format!("{}ms", d.as_millis()),
                "HELLO_ACK carries it as milliseconds in 32 bits",
                "take less than 49d, or \"forever\"",
            )?;
        }
        check(
            (1..=limits::CREDITS_MAX).contains(&self.credits),
            "credits",
            self.credits,
            "each credit costs a receive buffer, and none would let nobody ask",
            format!("take 1 to {}", limits::CREDITS_MAX),
        )?;
        check(
            self.max_inline <= limits::INLINE_MAX,
            "max_inline",
            format_size(self.max_inline),
            "every receive buffer of every session would be this long",
            format!(
                "take at most {}; longer data is read from the initiator's memory",
                format_size(limits::INLINE_MAX)
            ),
        )
    }

    fn validate_tenants(&self) -> Result<(), ConfigError> {
        check(
            self.tenants.len() <= limits::TENANTS_MAX,
            "tenants",
            self.tenants.len(),
            "too many",
            format!("name at most {}", limits::TENANTS_MAX),
        )?;
        for (i, tenant) in self.tenants.iter().enumerate() {
            check(
                !tenant.name.is_empty() && tenant.name.len() <= limits::TENANT_NAME_MAX,
                "tenants.name",
                format!("{:?}", tenant.name),
                "a tenant's name is what its HELLO carries",
                format!("give it 1 to {} octets", limits::TENANT_NAME_MAX),
            )?;
            check(
                !self
                    .tenants
                    .iter()
                    .take(i)
                    .any(|other| other.name == tenant.name),
                "tenants.name",
                format!("{:?}", tenant.name),
                "named twice",
                "merge the two entries",
            )?;
            let key_len = tenant.key.as_ref().map_or(0, |k| k.as_bytes().len());
            check(
                (limits::TENANT_KEY_MIN..=limits::TENANT_KEY_MAX).contains(&key_len),
                "tenants.key",
                format!("({key_len} octets, of tenant {:?})", tenant.name),
                "too short to withstand guessing, too long to be of use, or missing",
                format!(
                    "give it {} to {} random octets in hexadecimal",
                    limits::TENANT_KEY_MIN,
                    limits::TENANT_KEY_MAX
                ),
            )?;
        }
        Ok(())
    }

    fn validate_addresses(&self) -> Result<(), ConfigError> {
        check(
            (1..=limits::LISTENERS_MAX).contains(&(self.listen.len() + self.rdma.len())),
            "listen",
            format!("{} addresses", self.listen.len() + self.rdma.len()),
            "nowhere to listen, or too many places",
            format!("name 1 to {}", limits::LISTENERS_MAX),
        )?;
        //= kbtp-p9-no-open-start
        for address in &self.listen {
            check(
                address.ip().is_loopback() || self.auth_required() || self.allow_unauthenticated,
                "listen",
                address,
                "not a loopback address, and nobody would be authenticated",
                "name tenants with keys, listen on 127.0.0.1 or [::1], or set \
                 allow_unauthenticated = true if everybody who reaches this address may use the pool",
            )?;
        }
        //= kbtp-p9-no-open-start
        for address in &self.rdma {
            check(
                self.engine == EngineChoice::Software,
                "rdma",
                address,
                "chains have only been tried with iWARP over TCP",
                "leave rdma empty, or take engine = \"software\"",
            )?;
            check(
                !address.ip().is_unspecified() && !address.ip().is_loopback(),
                "rdma",
                address,
                "not an address of one RDMA device",
                "name an address that one device has: rdma link and ip address list them",
            )?;
            check(
                self.auth_required() || self.allow_unauthenticated,
                "rdma",
                address,
                "an address that others reach, and nobody would be authenticated",
                "name tenants with keys, or set allow_unauthenticated = true if everybody who reaches this address may use \
                 the pool",
            )?;
        }
        if let Some(admin) = self.admin {
            check(
                admin.port() == 0 || !self.listen.contains(&admin),
                "admin",
                admin,
                "initiators connect to this address too",
                "take another port",
            )?;
        }
        Ok(())
    }

    fn validate_limits(&self) -> Result<(), ConfigError> {
        let workers = self.workers.unwrap_or(1);
        check(
            (1..=limits::WORKERS_MAX).contains(&workers),
            "workers",
            workers,
            "no thread would serve, or more than any machine has use for",
            format!("take 1 to {}, or leave it out", limits::WORKERS_MAX),
        )?;
        if let SpinPolicy::For(d) = self.spin {
            check(
                d.as_micros() <= u128::from(limits::SPIN_MAX_US),
                "spin",
                format!("{}us", d.as_micros()),
                "an idle worker would burn a core for it",
                format!(
                    "take \"auto\", \"off\", or at most {}us",
                    limits::SPIN_MAX_US
                ),
            )?;
        }
        check(
            (1..=limits::SESSIONS_MAX).contains(&self.limits.sessions),
            "limits.sessions",
            self.limits.sessions,
            "no session could start, or more than there are handle ranges for",
            format!("take 1 to {}", limits::SESSIONS_MAX),
        )?;
        check(
            (1..=limits::HALF_OPEN_MAX).contains(&self.limits.half_open),
            "limits.half_open",
            self.limits.half_open,
            "no handshake could start, or strangers could hold too much memory",
            format!("take 1 to {}", limits::HALF_OPEN_MAX),
        )?;
        check(
            self.limits
                .initiators
                .is_none_or(|most| (1..=limits::SESSIONS_MAX).contains(&most)),
            "limits.initiators",
            self.limits.initiators.unwrap_or_default(),
            "no tenant could have a session, or more than there are handle ranges",
            format!("take 1 to {}, or leave it out", limits::SESSIONS_MAX),
        )?;
        check(
            self.limits.drain_linger <= self.limits.drain_timeout,
            "limits.drain_linger",
            format!("{}ms", self.limits.drain_linger.as_millis()),
            "longer than the whole drain may take",
            format!(
                "take at most limits.drain_timeout = {}ms",
                self.limits.drain_timeout.as_millis()
            ),
        )?;
        for (key, d) in [
            ("limits.handshake_timeout", self.limits.handshake_timeout),
            ("limits.drain_timeout", self.limits.drain_timeout),
        ] {
            check(
                (1..=3_600_000).contains(&d.as_millis()),
                key,
                format!("{}ms", d.as_millis()),
                "too short for a round trip, or longer than anyone waits",
                "take 1ms to 1h",
            )?;
        }
        Ok(())
    }
}
