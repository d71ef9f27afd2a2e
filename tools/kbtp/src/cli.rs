//! The command line: every command and flag, in the words the help prints.

pub mod wqe;

use self::wqe::WqeCommand;
use crate::map::Id;
use crate::units::{parse_duration, parse_lease};
use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
};
use clap_complete::Shell;
use kbtp_target::{Lease, NicChoice, parse_size};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Serves, stores and loads KV-cache blocks over RDMA semantics (KBTP).
#[derive(Debug, Parser)]
#[command(
    name = "kbtp",
    version,
    propagate_version = true,
    after_help = "Sizes: 65536, 64KiB, 64K. Durations: 500ms, 30s, 5m, 2h, 1d.\n\
                  Exit codes: 0 done, 1 the operation failed, 2 wrong usage."
)]
pub struct Cli {
    /// Print one JSON document instead of text for people; why a command failed is then one JSON object on standard error
    #[arg(long, global = true)]
    pub json: bool,

    /// Log more, on standard error: once what happens, twice every detail
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that contradict each other: command, flag, flag.
const CONTRADICTIONS: [(&str, &str, &str); 2] = [
    ("serve", "standalone", "agent"),
    ("stat", "target", "admin"),
];

/// Reads the command line `args`, the name of the program first.
///
/// # Errors
/// What is wrong with it, and help and version, as clap has them.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(args)?;
    for (name, one, other) in CONTRADICTIONS {
        // Only if both are flags: a flag wins over what the environment says of the other.
        let contradict = matches.subcommand_matches(name).is_some_and(|m| {
            [one, other]
                .iter()
                .all(|f| m.value_source(f) == Some(ValueSource::CommandLine))
        });
        if contradict {
            return Err(command.error(
                ErrorKind::ArgumentConflict,
                format!("--{one} cannot be used with --{other}"),
            ));
        }
    }
    if let Some((name @ ("completions" | "man"), _)) = matches.subcommand()
        && matches.get_flag("json")
    {
        return Err(command.error(
            ErrorKind::ArgumentConflict,
            format!("--json cannot be used with {name}, which prints a file for other programs"),
        ));
    }
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Serve(args), Some(serve)) =
        (&mut cli.command, matches.subcommand_matches("serve"))
    {
        args.from_environment = serve
            .ids()
            .map(clap::Id::as_str)
            .filter(|id| serve.value_source(id) == Some(ValueSource::EnvVariable))
            .map(str::to_owned)
            .collect();
    }
    Ok(cli)
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a target: serve a pool of blocks
    Serve(Box<ServeArgs>),
    /// Run a host agent: own a pool and hand it to a target over a Unix socket
    Agent(AgentArgs),
    /// Store files as runs of blocks and write a map of where they are
    Put(PutArgs),
    /// Load files back by their map
    Get(GetArgs),
    /// Free the blocks of a map
    Free(FreeArgs),
    /// Show what a target holds and does
    Stat(StatArgs),
    /// Replay a trace of LLM requests against a target, checking every block loaded
    Replay(ReplayArgs),
    /// Make traces
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Start an agent and a target as processes, replay a trace against them, stop them
    Demo(DemoArgs),
    /// Measure latency and throughput of one operation
    Bench(BenchArgs),
    /// Show what this machine can do, and which way a target would run on it
    Doctor(DoctorArgs),
    /// Look into the chains of work queue elements with which an mlx5 NIC serves requests by itself
    #[command(subcommand)]
    Wqe(WqeCommand),
    /// Print shell completions
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man page, or write one for each command
    Man {
        /// Write kbtp.1, kbtp-serve.1 and so on into this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// What executes requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Engine {
    /// Workers.
    Software,
    /// Chains on a NIC.
    Chain,
}

/// A switch written out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// An address, or nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MaybeAddr {
    /// Here.
    At(SocketAddr),
    /// Nowhere.
    Off,
}

/// An ID as maps, status and logs have it, or without its hyphens.
fn parse_id(text: &str) -> Result<Id, String> {
    let mut hyphened = text.to_owned();
    if text.len() == 32 && text.is_ascii() {
        for at in [20, 16, 12, 8] {
            hyphened.insert(at, '-');
        }
    }
    hyphened.parse()
}

fn parse_addr(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "not an IP address with a port: write 127.0.0.1:7471 or [::1]:7471 (names are not looked up)"
            .to_owned()
    })
}

fn parse_maybe_addr(text: &str) -> Result<MaybeAddr, String> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(MaybeAddr::Off);
    }
    text.parse()
        .map(MaybeAddr::At)
        .map_err(|_| format!("'{text}' is neither an address with a port (127.0.0.1:7480) nor off"))
}

/// Flags of `serve`. What is not given comes from the environment, then from the file, then from the default.
#[derive(Debug, Default, Args)]
#[command(
    after_help = "A flag wins over its environment variable, which wins over the file.\n\
    SIGTERM and SIGINT drain: requests in flight are answered, then the target stops."
)]
pub struct ServeArgs {
    /// Configuration file (TOML); docs/target.toml has every key
    #[arg(long, env = "KBTP_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Address to listen on, repeatable; port 0 takes a free one [default: 127.0.0.1:7471]
    #[arg(long, env = "KBTP_LISTEN", value_name = "ADDR", value_delimiter = ',', value_parser = parse_addr)]
    pub listen: Vec<SocketAddr>,

    /// Octets of a block; of a pool that an agent holds, the agent says [default: 64KiB]
    #[arg(long, env = "KBTP_BLOCK_SIZE", value_name = "SIZE", value_parser = parse_size)]
    pub block_size: Option<u64>,

    /// Blocks of the pool; of one that an agent holds, the agent says [default: 1024]
    #[arg(long, env = "KBTP_BLOCKS", value_name = "N")]
    pub blocks: Option<u64>,

    /// Handles of the block table [default: four for each block, and 4096 at least]
    #[arg(long, env = "KBTP_HANDLES", value_name = "N")]
    pub handles: Option<u64>,

    /// Blocks an initiator gets if it asks for no number [default: a quarter of the pool]
    #[arg(long, env = "KBTP_QUOTA", value_name = "N")]
    pub quota: Option<u64>,

    /// How long a directly allocated block may stay unbound before it is reclaimed [default: 5s]
    #[arg(long, env = "KBTP_TICKET_TIMEOUT", value_name = "TIME", value_parser = parse_duration)]
    pub ticket_timeout: Option<Duration>,

    /// How long blocks stay bound when their initiator's session has ended; 0 frees them at once [default: 5m]
    #[arg(long, env = "KBTP_LEASE", value_name = "TIME|forever", value_parser = parse_lease)]
    pub lease: Option<Lease>,

    /// Offer the direct modes, with which trusted initiators read and allocate without the target's CPU [default: on]
    #[arg(long, env = "KBTP_DIRECT", value_name = "on|off")]
    pub direct: Option<Switch>,

    /// Own the pool in this process, without an agent (the default)
    #[arg(long)]
    pub standalone: bool,

    /// Take the pool from the agent at this Unix socket
    #[arg(long, env = "KBTP_AGENT", value_name = "SOCKET")]
    pub agent: Option<PathBuf>,

    /// Address of metrics and status over HTTP, or off [default: 127.0.0.1:7480]
    #[arg(long, env = "KBTP_ADMIN", value_name = "ADDR|off", value_parser = parse_maybe_addr)]
    pub admin: Option<MaybeAddr>,

    /// What executes requests: workers, or chains of work queue elements on a NIC [default: software]
    #[arg(long, env = "KBTP_ENGINE", value_name = "software|chain")]
    pub engine: Option<Engine>,

    /// The NIC of --engine chain: a device that `kbtp doctor` lists, or model, one in software: what chains do can be seen, at a
    /// fraction of a NIC's speed
    #[arg(long, env = "KBTP_NIC", value_name = "model|mlx5:DEVICE")]
    pub nic: Option<NicChoice>,

    /// Worker threads [default: one for each core, at most 16; with --engine chain one]
    #[arg(long, env = "KBTP_WORKERS", value_name = "N")]
    pub workers: Option<u16>,

    /// Tenants and their keys (TOML: `[[tenants]]` with `name`, `key` or `key_file`, `shared`)
    #[arg(long, env = "KBTP_TENANT_FILE", value_name = "FILE")]
    pub tenant_file: Option<PathBuf>,

    /// Listen on addresses other than loopback although nobody is authenticated
    #[arg(long, env = "KBTP_ALLOW_UNAUTHENTICATED", value_parser = BoolishValueParser::new())]
    pub allow_unauthenticated: bool,

    /// Stop when standard input ends, for a process that starts this one
    #[arg(long)]
    pub stop_with_stdin: bool,

    /// What of it the environment said, and no flag: names of fields.
    #[arg(skip)]
    pub(crate) from_environment: Vec<String>,
}

/// Flags of `agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Unix socket to wait on for the target
    #[arg(long, env = "KBTP_AGENT", value_name = "PATH")]
    pub socket: PathBuf,

    /// Octets of a block
    #[arg(long, env = "KBTP_BLOCK_SIZE", value_name = "SIZE", value_parser = parse_size, default_value = "64KiB")]
    pub block_size: u64,

    /// Blocks of the pool
    #[arg(long, env = "KBTP_BLOCKS", value_name = "N", default_value_t = 1024)]
    pub blocks: u32,

    /// mlx5 device of this host from whose function the pool may be granted to a target on the processor of that NIC
    #[arg(long, env = "KBTP_GRANT_FROM", value_name = "DEVICE")]
    pub grant_from: Option<String>,

    /// Stop when standard input ends, for a process that starts this one
    #[arg(long)]
    pub stop_with_stdin: bool,
}

/// Which target, and as whom.
#[derive(Clone, Debug, Args)]
pub struct TargetArgs {
    /// Address of the target
    #[arg(
        long,
        env = "KBTP_TARGET",
        value_name = "ADDR",
        value_parser = parse_addr,
        default_value = "127.0.0.1:7471"
    )]
    pub target: SocketAddr,

    /// Who we are.
    #[command(flatten)]
    pub who: TenantArgs,
}

/// As whom a session is opened.
#[derive(Clone, Debug, Default, Args)]
pub struct TenantArgs {
    /// Tenant to authenticate as
    #[arg(long, env = "KBTP_TENANT", value_name = "NAME", requires = "key_file")]
    pub tenant: Option<String>,

    /// File with the tenant's key in hexadecimal
    #[arg(long, env = "KBTP_KEY_FILE", value_name = "FILE", requires = "tenant")]
    pub key_file: Option<PathBuf>,
}

/// Flags of `put`.
#[derive(Debug, Args)]
#[command(after_help = "\
A file becomes a run of blocks of the target's block size, sealed, owned by an Initiator ID made for the map. The map\n\
(JSON) names target, owner, handles, generations, lengths and the SHA-256 of each file; get and free need it.\n\n\
The blocks outlive this command for the target's lease: they are freed when that long has passed since the owner's last\n\
session ended. With the default of 5m a map is good for five minutes after put, or after the last get --owner; start the target with\n\
--lease forever to keep blocks until free or the end of the target. With a lease of 0 put refuses, for nothing would remain.")]
pub struct PutArgs {
    /// Files to store
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Where to write the map; it must not exist [default: FILE.kbtp.json beside a single file]
    #[arg(long, value_name = "MAP")]
    pub map: Option<PathBuf>,

    /// The target.
    #[command(flatten)]
    pub at: TargetArgs,
}

/// Flags of `get`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each file is checked against its SHA-256 before it takes its name. Blocks whose lease has run out, or that were freed, are\n\
an error that says so: nothing stale is ever written.")]
pub struct GetArgs {
    /// The map, or a file whose map is FILE.kbtp.json
    #[arg(value_name = "MAP|FILE")]
    pub map: PathBuf,

    /// Directory to write the files into, or - for standard output
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,

    /// Only the file of this name; repeatable
    #[arg(long, value_name = "NAME")]
    pub file: Vec<String>,

    /// Replace files that exist
    #[arg(long)]
    pub force: bool,

    /// Open the session as the owner of the blocks, which renews their lease; ends any other session of the owner
    #[arg(long)]
    pub owner: bool,

    /// Target to use instead of the one the map names
    #[arg(long, env = "KBTP_TARGET", value_name = "ADDR", value_parser = parse_addr)]
    pub target: Option<SocketAddr>,

    /// Who we are.
    #[command(flatten)]
    pub who: TenantArgs,
}

/// Flags of `free`.
#[derive(Debug, Args)]
#[command(after_help = "\
A put that is killed leaves blocks and no map. kbtp stat shows whose they are; --initiator frees them.")]
pub struct FreeArgs {
    /// The map, or a file whose map is FILE.kbtp.json
    #[arg(
        value_name = "MAP|FILE",
        required_unless_present = "initiator",
        conflicts_with = "initiator"
    )]
    pub map: Option<PathBuf>,

    /// Free all blocks of this Initiator ID, without a map; ends the session it may have
    #[arg(long, value_name = "ID", requires = "target", value_parser = parse_id)]
    pub(crate) initiator: Option<Id>,

    /// Leave the map in place
    #[arg(long)]
    pub keep_map: bool,

    /// Target to use instead of the one the map names
    #[arg(long, env = "KBTP_TARGET", value_name = "ADDR", value_parser = parse_addr)]
    pub target: Option<SocketAddr>,

    /// Who we are.
    #[command(flatten)]
    pub who: TenantArgs,
}

/// Flags of `stat`.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// Ask the target's status page at this address
    #[arg(
        long,
        env = "KBTP_ADMIN",
        value_name = "ADDR",
        value_parser = parse_maybe_addr,
        default_value = "127.0.0.1:7480"
    )]
    pub admin: MaybeAddr,

    /// Ask over a session with the target at this address: what it grants, not what it holds
    #[arg(long, value_name = "ADDR", value_parser = parse_addr)]
    pub target: Option<SocketAddr>,

    /// Who we are.
    #[command(flatten)]
    pub who: TenantArgs,
}

/// The blocks to use, of a target that the command starts for itself or of another.
#[derive(Clone, Debug, Args)]
pub struct PoolArgs {
    /// Octets of a block [default: 64KiB; with --target, the target's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub block_size: Option<u64>,

    /// Blocks to use [default: 1024; with --target, all that are free]
    #[arg(long, value_name = "N")]
    pub blocks: Option<u64>,
}

/// Flags of `replay`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each request of the trace is served as an engine with this cache would: the longest prefix of its hash ids that is stored is\n\
loaded and every octet of it checked, the rest is stored, and what was used longest ago gives way when the quota is spent.\n\
The content of a block is computed from its hash id, so that a wrong, stale or torn block is caught.\n\n\
prefix_hit_ratio is the number of leading blocks already stored over all block references.")]
pub struct ReplayArgs {
    /// The trace: one JSON request a line, `{"timestamp","input_length","output_length","hash_ids"}`
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// Replay against this target; without it, one is started in this process, on a loopback port of its own
    #[arg(long, env = "KBTP_TARGET", value_name = "ADDR", value_parser = parse_addr)]
    pub target: Option<SocketAddr>,

    /// Who we are.
    #[command(flatten)]
    pub who: TenantArgs,

    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,

    /// Stop after so many requests
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

/// What to do with traces.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Write a synthetic trace: applications with a system prompt each, sessions of several turns
    Generate {
        /// The same seed gives the same trace
        #[arg(long, default_value_t = 1)]
        seed: u64,

        /// Requests to write
        #[arg(long, value_name = "N", default_value_t = 400)]
        requests: u64,

        /// File to write; it is replaced [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Flags of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The trace [default: one that comes with this program]
    #[arg(value_name = "TRACE")]
    pub trace: Option<PathBuf>,

    /// Octets of a block
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64KiB")]
    pub block_size: u64,

    /// Blocks of the pool; the default is small enough that the trace of this program needs evictions
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub blocks: u64,

    /// Stop after so many requests
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

/// The operation that `bench` measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BenchOp {
    /// Load sealed blocks
    Load,
    /// Store into bound blocks
    Store,
    /// Allocate, store and free
    Alloc,
}

/// What serves the requests that `bench` measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BenchEngine {
    /// Software
    Software,
    /// Chains on the model of a NIC
    Chain,
    /// One after the other
    Both,
}

/// Flags of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The operation
    #[arg(long, value_enum, default_value = "load")]
    pub op: BenchOp,

    /// Octets of an operation
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64KiB")]
    pub size: u64,

    /// Operations in flight on each session
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,

    /// Sessions, a thread each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub sessions: u16,

    /// How long to measure
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    pub duration: Duration,

    /// Measure this target; without it, one is started in this process, on a loopback port of its own
    #[arg(long, env = "KBTP_TARGET", value_name = "ADDR", value_parser = parse_addr)]
    pub target: Option<SocketAddr>,

    /// What serves in a target that is started here; another target says itself
    #[arg(
        long,
        value_enum,
        default_value = "software",
        conflicts_with = "target"
    )]
    pub engine: BenchEngine,

    /// Who we are.
    #[command(flatten)]
    pub who: TenantArgs,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Write what a bug report needs into a new file of text, without addresses, names of hosts and secrets
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// Look for /sys and /proc below this directory instead of /
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    fn serve(args: &[&str]) -> Result<Box<ServeArgs>, clap::Error> {
        let all = ["kbtp", "serve"].iter().chain(args);
        match parse(all.map(OsString::from))?.command {
            Command::Serve(s) => Ok(s),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn serve_reads_sizes_durations_and_addresses() {
        let s = serve(&[
            "--listen",
            "127.0.0.1:0,[::1]:0",
            "--block-size",
            "4K",
            "--lease",
            "forever",
            "--ticket-timeout",
            "250ms",
            "--direct",
            "off",
            "--admin",
            "off",
        ])
        .unwrap();
        assert_eq!(s.listen.len(), 2);
        assert_eq!(s.block_size, Some(4096));
        assert_eq!(s.lease, Some(Lease::Forever));
        assert_eq!(s.ticket_timeout, Some(Duration::from_millis(250)));
        assert_eq!(s.direct, Some(Switch::Off));
        assert_eq!(s.admin, Some(MaybeAddr::Off));
    }

    #[test]
    fn wrong_words_are_usage_errors() {
        for args in [
            ["--block-size", "64KB"],
            ["--lease", "5"],
            ["--listen", "localhost"],
            ["--admin", "7480"],
            ["--direct", "maybe"],
            ["--blocks", "-1"],
        ] {
            let error = serve(&args).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{args:?}");
        }
        let both = serve(&["--standalone", "--agent", "/s"]).unwrap_err();
        assert_eq!(both.exit_code(), 2);
        assert!(serve(&["--standalone"]).unwrap().standalone);
        for words in [["man", "--json"], ["--json", "man"]] {
            let all = std::iter::once("kbtp").chain(words);
            let error = parse(all.map(OsString::from)).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn a_tenant_needs_its_key() {
        assert!(Cli::try_parse_from(["kbtp", "stat", "--tenant", "blue"]).is_err());
        assert!(Cli::try_parse_from(["kbtp", "bench", "--depth", "0"]).is_err());
    }
}
