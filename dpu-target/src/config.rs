//! What a target is told before it starts, and the checks that make a wrong word a sentence instead of a surprise.
//!
//! The command line reads a TOML file into [`TargetConfig`], lays the environment and flags over it, and calls
//! [`TargetConfig::validate`]. Each error names the key, the value and the remedy.

use crate::limits;
use crate::units::{de_duration, de_size, format_size};
use serde::Deserialize;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The port a target listens on by default. It is not assigned by IANA; any other will do.
pub const DEFAULT_PORT: u16 = 7471;

/// The port of the admin endpoint by default.
pub const DEFAULT_ADMIN_PORT: u16 = 7480;

/// A wrong configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{key} = {value}: {problem}; {remedy}")]
pub struct ConfigError {
    /// The key, as in the file: `limits.sessions`.
    pub key: &'static str,
    /// The value it has.
    pub value: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

/// How long the bindings of a range stay when its session has ended (P8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lease {
    /// For as long as the target lives.
    Forever,
    /// This long; zero frees them at once.
    For(Duration),
}

impl Lease {
    /// The field of HELLO_ACK: milliseconds, all ones for ever (P8).
    #[must_use]
    pub fn to_wire_ms(self) -> u32 {
        match self {
            Self::Forever => u32::MAX,
            Self::For(d) => u32::try_from(d.as_millis())
                .unwrap_or(u32::MAX)
                .min(u32::MAX - 1),
        }
    }
}

impl<'de> Deserialize<'de> for Lease {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        if text == "forever" {
            return Ok(Self::Forever);
        }
        crate::units::parse_duration_us(&text)
            .map(|us| Self::For(Duration::from_micros(us)))
            .map_err(|e| serde::de::Error::custom(format!("{e}, or \"forever\"")))
    }
}

/// A tenant's secret. Its octets are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct TenantKey(Vec<u8>);

impl TenantKey {
    /// The key with these octets.
    #[must_use]
    pub fn new(octets: Vec<u8>) -> Self {
        Self(octets)
    }

    /// Its octets.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TenantKey({} octets)", self.0.len())
    }
}

impl<'de> Deserialize<'de> for TenantKey {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        decode_hex(&text).map(Self).ok_or_else(|| {
            serde::de::Error::custom("a key is an even number of hexadecimal digits")
        })
    }
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let text = text.trim();
    if !text.len().is_multiple_of(2) || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok())
        .collect()
}

/// A trust domain (P9).
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// Its name, as the HELLO's Tenant TLV carries it.
    pub name: String,
    /// Its HMAC key, in hexadecimal. None of the messages carries it.
    #[serde(default)]
    pub key: Option<TenantKey>,
    /// A file that holds the key in hexadecimal, for configurations that others may read.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// Its blocks may be loaded by the other shared tenants too (P9), and direct modes reach the whole pool.
    #[serde(default)]
    pub shared: bool,
}

/// Which direct modes (draft, section 6.6) may be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DirectConfig {
    /// DIRECT_LOAD: read-only STags of table and pool. Only a tenant that is trusted for all of them gets it.
    pub load: bool,
    /// DIRECT_ALLOC: a ring and a partition of the pool for each session.
    pub alloc: bool,
}

/// How long an idle worker looks for work before it sleeps. Waking a sleeping core costs tens of microseconds;
/// looking costs the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SpinPolicy {
    /// Sleep at once.
    Off,
    /// As long as recent gaps between work were, at most 100 microseconds, unless another thread wants the core.
    #[default]
    Auto,
    /// This long, unless another thread wants the core.
    For(Duration),
}

impl<'de> Deserialize<'de> for SpinPolicy {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        match text.as_str() {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            other => crate::units::parse_duration_us(other)
                .map(|us| Self::For(Duration::from_micros(us)))
                .map_err(|e| serde::de::Error::custom(format!("{e}, or \"auto\", or \"off\""))),
        }
    }
}

/// Bounds on what peers may make the target hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Sessions at one time, over all workers.
    pub sessions: u32,
    /// Streams that have not had their HELLO answered, over all workers.
    pub half_open: u32,
    /// How long a stream may take from accept to HELLO.
    #[serde(deserialize_with = "de_duration")]
    pub handshake_timeout: Duration,
    /// How long a drain waits for requests in flight before it closes the streams anyway.
    #[serde(deserialize_with = "de_duration")]
    pub drain_timeout: Duration,
    /// How long a drain goes on answering SHUTTING_DOWN before it closes streams that have nothing in flight: what
    /// is on its way then learns why, instead of meeting a closed stream.
    #[serde(deserialize_with = "de_duration")]
    pub drain_linger: Duration,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            sessions: limits::SESSIONS_DEFAULT,
            half_open: limits::HALF_OPEN_DEFAULT,
            handshake_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            drain_linger: Duration::from_millis(250),
        }
    }
}

/// What a target is told before it starts.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TargetConfig {
    /// Addresses to listen on. Port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Worker threads; none given: one for each core the process may use, up to 16.
    pub workers: Option<u16>,
    /// Octets of a block.
    #[serde(deserialize_with = "de_size")]
    pub block_size: u64,
    /// Blocks of the pool, F.
    pub blocks: u64,
    /// Handles of the table; none given: four for each block, and 4096 at least.
    pub handles: Option<u64>,
    /// Blocks an initiator that names no quota is granted; none given: a quarter of the pool.
    pub default_quota: Option<u64>,
    /// How long an initiator may hold a ticket before it binds it (draft, section 3.4).
    #[serde(deserialize_with = "de_duration")]
    pub ticket_timeout: Duration,
    /// How long the bindings of a range stay when its session has ended: a duration, or `forever`.
    pub lease: Lease,
    /// Direct modes that may be granted.
    pub direct: DirectConfig,
    /// Request Credits of a session at most.
    pub credits: u16,
    /// Inline data of a request at most.
    #[serde(deserialize_with = "de_size")]
    pub max_inline: u64,
    /// Tenants. With none, all initiators are one unnamed tenant and nobody is authenticated.
    pub tenants: Vec<TenantConfig>,
    /// Said outright: listen on addresses other than loopback although nobody is authenticated.
    pub allow_unauthenticated: bool,
    /// Where the admin endpoint listens; none given: nowhere. It answers anyone who reaches it, so it belongs on
    /// loopback or a management network.
    pub admin: Option<SocketAddr>,
    /// Control socket of a host agent that holds the pool; none given: the target allocates the pool itself.
    pub agent: Option<PathBuf>,
    /// Looking for work before sleep: `auto`, `off` or a duration.
    pub spin: SpinPolicy,
    /// Bounds.
    pub limits: LimitsConfig,
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::new(
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                DEFAULT_PORT,
            )],
            workers: None,
            block_size: 64 * 1024,
            blocks: 1024,
            handles: None,
            default_quota: None,
            ticket_timeout: Duration::from_secs(5),
            lease: Lease::For(Duration::from_mins(5)),
            direct: DirectConfig {
                load: true,
                alloc: true,
            },
            credits: 64,
            max_inline: 4096,
            tenants: Vec::new(),
            allow_unauthenticated: false,
            admin: Some(SocketAddr::new(
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                DEFAULT_ADMIN_PORT,
            )),
            agent: None,
            spin: SpinPolicy::default(),
            limits: LimitsConfig::default(),
        }
    }
}

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
    /// Handles of the table: what is set, or four for each block, and enough for some sessions with a range each.
    #[must_use]
    pub fn handle_count(&self) -> u64 {
        self.handle_count_for(self.blocks)
    }

    /// As [`handle_count`](Self::handle_count), for a pool whose blocks an agent decides.
    pub(crate) fn handle_count_for(&self, blocks: u64) -> u64 {
        self.handles
            .unwrap_or_else(|| blocks.saturating_mul(4).max(limits::HANDLES_DEFAULT_MIN))
    }

    /// The quota of an initiator that wants none in particular: what is set, or a quarter of the pool.
    #[must_use]
    pub fn quota_default(&self) -> u64 {
        self.default_quota
            .unwrap_or_else(|| (self.blocks / 4).max(1))
    }

    /// Workers for a machine with this many cores.
    #[must_use]
    pub fn worker_count(&self, cores: usize) -> u16 {
        self.workers.unwrap_or_else(|| {
            u16::try_from(cores)
                .unwrap_or(u16::MAX)
                .clamp(1, limits::WORKERS_DEFAULT_MAX)
        })
    }

    /// Whether a HELLO must carry Tenant and Auth (P9): when there are tenants.
    #[must_use]
    pub fn auth_required(&self) -> bool {
        !self.tenants.is_empty()
    }

    /// Reads the key files of tenants that name one.
    ///
    /// # Errors
    /// [`ConfigError`] if a file cannot be read or is not hexadecimal.
    pub fn load_keys(&mut self) -> Result<(), ConfigError> {
        for tenant in &mut self.tenants {
            let Some(path) = &tenant.key_file else {
                continue;
            };
            let error = |problem: String| ConfigError {
                key: "tenants.key_file",
                value: path.display().to_string(),
                problem,
                remedy: "name a readable file that holds the key in hexadecimal, such as \
                         `openssl rand -hex 32` writes"
                    .to_owned(),
            };
            if tenant.key.is_some() {
                return Err(error(format!(
                    "tenant {:?} has a key in the configuration too",
                    tenant.name
                )));
            }
            let text = std::fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
            let key = decode_hex(&text)
                .ok_or_else(|| error("its content is not hexadecimal".to_owned()))?;
            tenant.key = Some(TenantKey::new(key));
            tenant.key_file = None;
        }
        Ok(())
    }

    /// Checks the whole. Call [`load_keys`](Self::load_keys) before it.
    ///
    /// # Errors
    /// [`ConfigError`], the first found.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_pool()?;
        self.validate_sessions()?;
        self.validate_tenants()?;
        self.validate_addresses()?;
        self.validate_limits()
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
            "not a pool a ring can list (its slot offset has 32 bits)",
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
        )?;
        check(
            self.max_inline <= self.block_size,
            "max_inline",
            format_size(self.max_inline),
            "inline data cannot be longer than a block",
            format!("take at most {}", format_size(self.block_size)),
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
            (1..=limits::LISTENERS_MAX).contains(&self.listen.len()),
            "listen",
            format!("{} addresses", self.listen.len()),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str, key: usize) -> TenantConfig {
        TenantConfig {
            name: name.to_owned(),
            key: Some(TenantKey::new(vec![7; key])),
            key_file: None,
            shared: false,
        }
    }

    #[test]
    fn the_default_is_valid_and_reads_from_an_empty_file() {
        let config: TargetConfig = toml::from_str("").unwrap();
        assert_eq!(config, TargetConfig::default());
        config.validate().unwrap();
    }

    #[test]
    fn the_documented_file_states_the_defaults_and_every_key() {
        let text = include_str!("../../docs/target.toml");
        let config: TargetConfig = toml::from_str(text).unwrap();
        assert_eq!(config, TargetConfig::default());
        // A field of the struct is a key in the text, commented out or not.
        let fields = format!("{config:?}");
        for field in fields
            .split([' ', '{', ','])
            .filter_map(|w| w.strip_suffix(':'))
        {
            assert!(text.contains(field), "{field} is not documented");
        }
    }

    #[test]
    fn a_whole_file_reads() {
        let config: TargetConfig = toml::from_str(
            r#"
            listen = ["127.0.0.1:0", "[::1]:7470"]
            workers = 2
            block_size = "4KiB"
            blocks = 64
            handles = 128
            default_quota = 8
            ticket_timeout = "250ms"
            lease = "forever"
            credits = 16
            max_inline = 512
            spin = "20us"
            admin = "127.0.0.1:0"
            [direct]
            load = true
            alloc = true
            [limits]
            sessions = 100
            drain_timeout = "1s"
            [[tenants]]
            name = "blue"
            key = "000102030405060708090a0b0c0d0e0f"
            shared = true
            "#,
        )
        .unwrap();
        config.validate().unwrap();
        assert_eq!(config.block_size, 4096);
        assert_eq!(config.lease.to_wire_ms(), u32::MAX);
        assert_eq!(config.ticket_timeout, Duration::from_millis(250));
        let key = config.tenants[0].key.as_ref().unwrap();
        assert_eq!(key.as_bytes()[15], 15);
        assert!(!format!("{config:?}").contains("0e0f"));
        assert!(config.auth_required() && config.tenants[0].shared);
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let said = toml::from_str::<TargetConfig>("block_sise = 1")
            .unwrap_err()
            .to_string();
        assert!(said.contains("block_sise"), "{said}");
    }

    #[test]
    //= test kbtp-p9-no-open-start
    fn an_open_address_needs_authentication_or_a_word() {
        let mut config = TargetConfig {
            listen: vec!["0.0.0.0:7470".parse().unwrap()],
            ..TargetConfig::default()
        };
        let error = config.validate().unwrap_err();
        assert_eq!(
            (error.key, error.value.as_str()),
            ("listen", "0.0.0.0:7470")
        );
        assert!(error.remedy.contains("allow_unauthenticated"));
        config.allow_unauthenticated = true;
        config.validate().unwrap();
        config.allow_unauthenticated = false;
        config.tenants.push(tenant("blue", 32));
        config.validate().unwrap();
    }

    #[test]
    fn each_check_fires_and_names_its_key() {
        type Spoil = fn(&mut TargetConfig);
        let cases: &[(&str, Spoil)] = &[
            ("block_size", |c| c.block_size = 1),
            ("block_size", |c| c.block_size = 6000),
            ("blocks", |c| c.blocks = 0),
            ("blocks", |c| c.blocks = limits::BLOCKS_MAX + 1),
            ("handles", |c| c.handles = Some(1)),
            ("default_quota", |c| c.default_quota = Some(0)),
            ("default_quota", |c| c.default_quota = Some(c.blocks + 1)),
            ("ticket_timeout", |c| c.ticket_timeout = Duration::ZERO),
            ("lease", |c| {
                c.lease = Lease::For(Duration::from_secs(5_000_000));
            }),
            ("credits", |c| c.credits = 0),
            ("max_inline", |c| c.max_inline = 1 << 20),
            ("max_inline", |c| {
                c.block_size = 4096;
                c.max_inline = 4097;
            }),
            ("tenants.name", |c| c.tenants = vec![tenant("", 32)]),
            ("tenants.name", |c| {
                c.tenants = vec![tenant("a", 32), tenant("a", 32)];
            }),
            ("tenants.key", |c| c.tenants = vec![tenant("a", 15)]),
            ("tenants.key", |c| {
                c.tenants = vec![TenantConfig {
                    key: None,
                    ..tenant("a", 32)
                }];
            }),
            ("listen", |c| c.listen.clear()),
            ("admin", |c| c.admin = Some(c.listen[0])),
            ("workers", |c| c.workers = Some(0)),
            ("spin", |c| c.spin = SpinPolicy::For(Duration::from_secs(1))),
            ("limits.sessions", |c| c.limits.sessions = 0),
            ("limits.half_open", |c| c.limits.half_open = 0),
            ("limits.drain_linger", |c| {
                c.limits.drain_linger = Duration::from_secs(11);
            }),
            ("limits.handshake_timeout", |c| {
                c.limits.handshake_timeout = Duration::ZERO;
            }),
            ("limits.drain_timeout", |c| {
                c.limits.drain_timeout = Duration::from_hours(2);
            }),
        ];
        for (key, spoil) in cases {
            let mut config = TargetConfig::default();
            spoil(&mut config);
            let error = config.validate().expect_err(key);
            assert_eq!(error.key, *key, "{error}");
            assert!(
                !error.remedy.is_empty() && !error.value.is_empty(),
                "{error}"
            );
        }
    }

    #[test]
    fn workers_follow_the_cores() {
        let config = TargetConfig::default();
        assert_eq!(config.worker_count(1), 1);
        assert_eq!(config.worker_count(4), 4);
        assert_eq!(config.worker_count(400), limits::WORKERS_DEFAULT_MAX);
    }

    #[test]
    fn a_lease_on_the_wire() {
        assert_eq!(Lease::For(Duration::ZERO).to_wire_ms(), 0);
        assert_eq!(Lease::For(Duration::from_secs(3)).to_wire_ms(), 3000);
        assert_eq!(Lease::For(Duration::MAX).to_wire_ms(), u32::MAX - 1);
    }
}
