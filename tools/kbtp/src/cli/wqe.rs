//! The command line of `wqe`.

use clap::{Args, Subcommand, ValueEnum};
use kbtp_target::{NicChoice, parse_size};
use std::path::PathBuf;

/// What to do with chains.
#[derive(Debug, Subcommand)]
pub enum WqeCommand {
    /// Draw a chain: what each WQE reads, writes and enables, and who patches it
    Show(WqeShowArgs),
    /// Hold the fourteen rules over a chain
    Check(WqeCheckArgs),
    /// Count what a chain takes, and predict how long it does
    Cost(WqeCostArgs),
    /// Run one request on a model of a NIC and print each octet that changes, and which WQE changed it
    Run(WqeRunArgs),
    /// Ask a NIC whether it does what chains count on
    Calibrate(WqeCalibrateArgs),
}

/// Flags of `wqe calibrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 1 if something that chains need does not work, or the device cannot be asked. Takes root or CAP_NET_RAW for a
device. None has been asked so far.")]
pub struct WqeCalibrateArgs {
    /// The NIC: model, or a device that `kbtp doctor` lists
    #[arg(long, value_name = "model|mlx5:DEVICE", default_value = "model")]
    pub nic: NicChoice,
}

/// Which chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WqeProfile {
    /// LOAD, STORE, ALLOC_STORE and FREE of whole blocks
    Full,
    /// LOAD alone, for sessions that only read
    Load,
}

/// A chain for blocks of some size.
#[derive(Clone, Copy, Debug, Args)]
pub struct WqeChainArgs {
    /// The chain
    #[arg(long, value_enum, default_value = "full")]
    pub profile: WqeProfile,

    /// Octets of a block, a multiple of 8, at most 1MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_block_size, default_value = "4KiB")]
    pub block_size: u32,
}

/// Blocks larger than this are beside the point of looking at a chain.
const LARGEST: u64 = 1 << 20;

fn parse_block_size(text: &str) -> Result<u32, String> {
    let size = parse_size(text).map_err(|e| e.to_string())?;
    u32::try_from(size)
        .ok()
        .filter(|_| (8..=LARGEST).contains(&size) && size.is_multiple_of(8))
        .ok_or_else(|| format!("'{text}' is no multiple of 8 from 8 to 1MiB"))
}

/// Flags of `wqe show`.
#[derive(Debug, Args)]
pub struct WqeShowArgs {
    /// The chain.
    #[command(flatten)]
    pub chain: WqeChainArgs,

    /// The slot whose octets are shown
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..1 << 40))]
    pub slot: u64,

    /// Show the octets that arm the slot, as they would lie in memory
    #[arg(long)]
    pub octets: bool,

    /// Write a drawing: queues as columns, who enables, patches and waits for whom as arrows
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Flags of `wqe check`.
#[derive(Debug, Args)]
pub struct WqeCheckArgs {
    /// The chain.
    #[command(flatten)]
    pub chain: WqeChainArgs,

    /// The slot that is armed
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..1 << 40))]
    pub slot: u64,

    /// Check these octets instead of those that would be written: what `wqe show --octets --json` prints, of the same chain
    /// and slot
    #[arg(long, value_name = "FILE")]
    pub octets: Option<PathBuf>,
}

/// Flags of `wqe cost`.
#[derive(Debug, Args)]
#[command(after_help = "\
Times are predicted, not measured: from what is reported of ConnectX-5 (fetching WQEs of a managed queue), an estimate of a round\n\
trip within the device, and the rate of the link. No chain has run on a device.")]
pub struct WqeCostArgs {
    /// Octets of a block, a multiple of 8, at most 1MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_block_size, default_value = "64KiB")]
    pub block_size: u32,
}

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WqeOperation {
    /// LOAD
    Load,
    /// STORE
    Store,
    /// ALLOC_STORE
    Alloc,
    /// FREE
    Free,
}

/// What is the matter with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WqeCase {
    /// Nothing: the chain serves it
    Ok,
    /// The entry is not bound
    NotValid,
    /// The entry is bound already
    AlreadyValid,
    /// The Generation is another
    GenerationMismatch,
    /// A LOAD of a block that is not sealed
    NotSealed,
    /// A STORE to a block that is sealed
    Sealed,
    /// The client's buffer is too short for a LOAD, or longer than a block
    LengthError,
    /// A LOAD into a buffer longer than a block, which software serves
    LongerBuffer,
    /// A FREE with a Data Descriptor; of the others, a flag that there is not
    BadRequest,
    /// The handle is another session's; of a LOAD, outside the table: the chain ends
    NotAuthorized,
}

/// In which order the model does what no rule orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WqeSchedule {
    /// Replies as soon as can be
    Eager,
    /// By the seed
    Random,
    /// Requests go out and replies come in only when a queue could not go on without
    Withhold,
}

/// Flags of `wqe run`.
#[derive(Debug, Args)]
#[command(after_help = "\
A request that the chain does not serve rings for software, which answers it here as the draft says; one whose handle is out of\n\
bounds ends the chain. Exit code 0 in all cases: what happens is what should.")]
pub struct WqeRunArgs {
    /// The request
    #[arg(value_enum)]
    pub operation: WqeOperation,

    /// What is the matter with it
    #[arg(long, value_enum, default_value = "ok")]
    pub case: WqeCase,

    /// The chain.
    #[command(flatten)]
    pub chain: WqeChainArgs,

    /// In which order things happen that no rule orders
    #[arg(long, value_enum, default_value = "eager")]
    pub schedule: WqeSchedule,

    /// Seed of the schedule
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Print steps that change nothing too
    #[arg(long)]
    pub all: bool,

    /// Write a drawing of what ran
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}
