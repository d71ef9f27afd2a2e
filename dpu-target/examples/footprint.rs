//! What a target costs in memory, measured: its resident set before it starts, when it has started, and with sessions.
//!
//! ```text
//! cargo run -p kbtp-target --example footprint -- [sessions] [handles] [blocks] [credits] [max_inline] [chain]
//! ```
//!
//! The initiators live in a process of their own, so that only the target's half is counted.
#![expect(clippy::print_stdout, reason = "it is a program that prints")]

use kbtp_initiator::{Client, Options};
use kbtp_target::{EngineChoice, NicChoice, SpinPolicy, Target, TargetConfig};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The argument that makes this program the initiators.
const INITIATORS: &str = "initiators";

/// What this process has of memory, in octets.
#[derive(Clone, Copy)]
struct Memory {
    /// Resident: touched so far.
    resident: u64,
    /// Its own data, touched or not: what it may come to.
    data: u64,
}

impl Memory {
    fn now() -> Outcome<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let octets = |name: &str| -> Outcome<u64> {
            let line = status.lines().find_map(|l| l.strip_prefix(name));
            let kib = line.ok_or("a line is missing in /proc/self/status")?;
            let kib: u64 = kib.trim().trim_end_matches("kB").trim().parse()?;
            Ok(kib * 1024)
        };
        Ok(Self {
            resident: octets("VmRSS:")?,
            data: octets("VmData:")?,
        })
    }
}

fn initiators(address: &str, sessions: u32) -> Outcome<()> {
    // Each has three descriptors: a socket, and a poller's two.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let clients: Vec<_> = (0..sessions)
        .map(|_| Client::connect(Options::new(address).quota(1).handles(1)))
        .collect::<Result<_, _>>()?;
    println!("connected {}", clients.len());
    // Until the parent closes the pipe.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn measure(sessions: u32, config: &TargetConfig) -> Outcome<()> {
    let empty = Memory::now()?;
    let target = Target::start(config.clone())?;
    let started = Memory::now()?;
    let address = target.address().ok_or("no address")?.to_string();
    let mut child = Command::new(std::env::current_exe()?)
        .args([INITIATORS, &address, &sessions.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let stdout = child.stdout.take().ok_or("no pipe")?;
    BufReader::new(stdout).read_line(&mut line)?;
    if line.trim() != format!("connected {sessions}") {
        return Err(format!("the initiators said {line:?}").into());
    }
    let served = Memory::now()?;
    let handles = config.handle_count();
    let (blocks, pool) = (config.blocks, config.block_size * config.blocks);
    let own = started.resident.saturating_sub(empty.resident);
    let each = |after: u64, before: u64| after.saturating_sub(before) / u64::from(sessions.max(1));
    println!(
        "{blocks} blocks, {handles} handles: {} octets beside the pool, {} of data at most",
        own - pool,
        started.data.saturating_sub(empty.data)
    );
    println!(
        "{sessions} sessions of {} credits and {} octets inline: {} octets each resident, {} at most",
        config.credits,
        config.max_inline,
        each(served.resident, started.resident),
        each(served.data, started.data)
    );
    drop(child.stdin.take());
    child.wait()?;
    target.shutdown_handle().kill();
    target.join()?;
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, address, sessions] = arguments.as_slice()
        && first == INITIATORS
    {
        return initiators(address, sessions.parse()?);
    }
    let number = |n: usize, default: u64| -> Outcome<u64> {
        arguments.get(n).map_or(Ok(default), |a| Ok(a.parse()?))
    };
    let sessions = u32::try_from(number(0, 500)?)?;
    let mut config = TargetConfig {
        listen: vec!["127.0.0.1:0".parse()?],
        admin: None,
        block_size: 4096,
        handles: Some(number(1, 1_000_000)?),
        blocks: number(2, 16_384)?,
        credits: u16::try_from(number(3, 64)?)?,
        max_inline: number(4, 4096)?,
        default_quota: Some(1),
        spin: SpinPolicy::Off,
        ..TargetConfig::default()
    };
    config.limits.half_open = 1024;
    if arguments.get(5).is_some_and(|engine| engine == "chain") {
        config.engine = EngineChoice::Chain;
        config.nic = Some(NicChoice::Model);
    }
    measure(sessions, &config)
}
