//! What a target is told before it starts, and the checks that make a wrong word a sentence instead of a surprise.
//!
//! The command line reads a TOML file into [`TargetConfig`], lays the environment and flags over it, and calls
//! [`TargetConfig::validate`]. Each error names the key, the value and the remedy.

mod validate;

use crate::limits;
use crate::units::{de_duration, de_size};
use serde::Deserialize;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
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

/// The text of a key file: a device or a wrong name must not fill the memory.
fn read_key(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(limits::KEY_FILE_MAX + 1)
        .read_to_string(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|len| len <= limits::KEY_FILE_MAX) {
        return Ok(text);
    }
    let said = format!("longer than {} octets", limits::KEY_FILE_MAX);
    Err(io::Error::new(io::ErrorKind::FileTooLarge, said))
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

/// What executes requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// Workers.
    #[default]
    Software,
    /// Chains of work queue elements on a device; workers do what chains cannot.
    Chain,
}

/// The device of [`EngineChoice::Chain`]: `model`, or `mlx5:DEVICE`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum NicChoice {
    /// A device in software, in the one worker there is then; its clients come over TCP all the same.
    Model,
    /// A device of the mlx5 family, by the kernel's name for it.
    Mlx5(String),
}

impl fmt::Display for NicChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model => f.write_str("model"),
            Self::Mlx5(device) => write!(f, "mlx5:{device}"),
        }
    }
}

/// Not the name of a device for chains.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no device for chains: give model, or mlx5:DEVICE with a name that `kbtp doctor` lists"
)]
pub struct NoNic(String);

impl FromStr for NicChoice {
    type Err = NoNic;

    fn from_str(text: &str) -> Result<Self, NoNic> {
        // A device is a folder of this name in /sys, and no path to elsewhere.
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() <= limits::DEVICE_NAME_MAX
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        };
        match text.strip_prefix("mlx5:") {
            Some(device) if is_name(device) => Ok(Self::Mlx5(device.to_owned())),
            None if text == "model" => Ok(Self::Model),
            _ => Err(NoNic(text.to_owned())),
        }
    }
}

impl TryFrom<String> for NicChoice {
    type Error = NoNic;

    fn try_from(text: String) -> Result<Self, NoNic> {
        text.parse()
    }
}

/// How much something is wished for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wish {
    /// If the system lets us; status and log say if not.
    #[default]
    Prefer,
    /// Or no start.
    Require,
    /// Not at all.
    Never,
}

/// What pages the pool shall lie in, if the target allocates it itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PagesConfig {
    /// Hugepages.
    pub huge: Wish,
    /// Pages locked in memory.
    pub lock: Wish,
    /// The NUMA node to take them from: the network card's.
    pub numa_node: Option<u32>,
}

/// Bounds on what peers may make the target hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Sessions at one time, over all workers.
    pub sessions: u32,
    /// Streams that have not had their HELLO answered, over all workers.
    pub half_open: u32,
    /// Initiator IDs of one tenant that have handles at one time, with a session or on lease; none given: as many as
    /// there is room for beside what is kept for other tenants. With `max_quota` it bounds what a tenant can take.
    pub initiators: Option<u32>,
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
            initiators: None,
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
    /// What executes requests.
    pub engine: EngineChoice,
    /// The device that executes them; needed with, and only with, `engine = "chain"`.
    pub nic: Option<NicChoice>,
    /// Addresses of RDMA devices to listen on too, RoCEv2, InfiniBand or iWARP, each one device's own; none given: TCP alone.
    /// Port 0 takes a free one.
    pub rdma: Vec<SocketAddr>,
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
    /// Blocks an initiator is granted at most, and of the handles the same part; none given: as many as are left.
    pub max_quota: Option<u64>,
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
    /// Pages of a pool that the target allocates itself.
    pub pages: PagesConfig,
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
            engine: EngineChoice::default(),
            nic: None,
            rdma: Vec::new(),
            workers: None,
            block_size: 64 * 1024,
            blocks: 1024,
            handles: None,
            default_quota: None,
            max_quota: None,
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
            pages: PagesConfig::default(),
            spin: SpinPolicy::default(),
            limits: LimitsConfig::default(),
        }
    }
}

impl TargetConfig {
    /// Keeps within what the engine can: one worker for the model of a device, and as many credits as a session has slots for.
    pub(crate) fn fit_to_engine(&mut self) {
        if self.engine == EngineChoice::Chain {
            self.workers = Some(1);
            self.credits = self.credits.min(limits::CHAIN_CREDITS);
        }
    }

    /// Handles of the table: what is set, or four for each block, and enough for some sessions with a range each.
    #[must_use]
    pub fn handle_count(&self) -> u64 {
        self.handles.unwrap_or_else(|| {
            let four = self.blocks.saturating_mul(4);
            four.max(limits::HANDLES_DEFAULT_MIN)
        })
    }

    /// The quota of an initiator that wants none in particular: what is set, or a quarter of the pool, or the largest
    /// there may be.
    #[must_use]
    pub fn quota_default(&self) -> u64 {
        self.default_quota.unwrap_or_else(|| {
            let quarter = (self.blocks / 4).max(1);
            self.max_quota.map_or(quarter, |max| quarter.min(max))
        })
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
            let text = read_key(path).map_err(|e| error(e.to_string()))?;
            let key = decode_hex(&text)
                .ok_or_else(|| error("its content is not hexadecimal".to_owned()))?;
            tenant.key = Some(TenantKey::new(key));
            tenant.key_file = None;
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
    fn a_key_file_without_end_is_not_read_whole() {
        let mut config = TargetConfig {
            tenants: vec![TenantConfig {
                key: None,
                key_file: Some(PathBuf::from("/dev/zero")),
                ..tenant("blue", 0)
            }],
            ..TargetConfig::default()
        };
        let error = config.load_keys().unwrap_err();
        assert_eq!(error.problem, "longer than 4096 octets");
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
            ("max_quota", |c| {
                c.default_quota = Some(8);
                c.max_quota = Some(7);
            }),
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
            ("rdma", |c| c.rdma = vec!["0.0.0.0:7471".parse().unwrap()]),
            ("rdma", |c| c.rdma = vec!["192.0.2.1:7471".parse().unwrap()]),
            ("admin", |c| c.admin = Some(c.listen[0])),
            ("workers", |c| c.workers = Some(0)),
            ("spin", |c| c.spin = SpinPolicy::For(Duration::from_secs(1))),
            ("limits.sessions", |c| c.limits.sessions = 0),
            ("limits.half_open", |c| c.limits.half_open = 0),
            ("limits.initiators", |c| c.limits.initiators = Some(0)),
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
