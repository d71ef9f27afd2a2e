//! `kbtp replay`: the main job. A trace of LLM requests is served from the blocks of a target.

use crate::bench::Latency;
use crate::cli::ReplayArgs;
use crate::content;
use crate::driver::{self, Interrupt};
use crate::failure::{Failure, chain};
use crate::lane::{latencies, record};
use crate::output::{self, Progress, Sheet};
use crate::own_target::{OwnTarget, Pool};
use crate::session;
use crate::trace::{Request, TraceReader};
use crate::units::{count, latency, octets, rate, ratio};
use hdrhistogram::Histogram;
use kbtp_initiator::{
    BlockCache, Buffer, CacheError, FreeItem, GetItem, Handle, Options, PutItem, Tcp,
};
use serde::Serialize;
use std::io::BufRead;
use std::time::{Duration, Instant};

/// Octets of a block, unless said otherwise.
const BLOCK_SIZE: u64 = 64 << 10;
/// Blocks of the pool, unless said otherwise.
const BLOCKS: u64 = 1024;
/// Blocks freed with one call at the end.
const FREE_BATCH: u64 = 4096;

/// What happened.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) target: String,
    pub(crate) block_size: u32,
    /// Blocks the cache could hold.
    pub(crate) blocks: u32,
    pub(crate) requests: u64,
    pub(crate) references: u64,
    /// References to blocks of a stored prefix: loaded, and every octet of them right.
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Of the misses, those stored already, behind a gap in their prefix.
    pub(crate) stored_behind_gap: u64,
    pub(crate) stores: u64,
    pub(crate) evictions: u64,
    /// Hits over references.
    pub(crate) prefix_hit_ratio: f64,
    pub(crate) octets_loaded: u64,
    pub(crate) octets_stored: u64,
    pub(crate) elapsed_ns: u64,
    /// Of loading the prefix of one request, all its blocks; checking is not counted.
    pub(crate) load_ns: Latency,
    pub(crate) load_octets_per_s: u64,
    /// Of storing the rest of one request.
    pub(crate) store_ns: Latency,
    pub(crate) store_octets_per_s: u64,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] if the trace cannot be read, an operation fails, or a block does not hold what was stored.
pub(crate) fn run(args: &ReplayArgs, json: bool) -> Result<(), Failure> {
    if args.pool.blocks == Some(0) {
        return Err(Failure::usage("--blocks of 0", "take 1 at least"));
    }
    // Before any thread: they inherit the blocked signals.
    let interrupt = Interrupt::take()?;
    // The trace first: a wrong name is found before a pool is made.
    let mut trace = TraceReader::open(&args.trace)?;
    let length = args.trace.metadata().map_or(0, |m| m.len());
    let own = match args.target {
        Some(_) => None,
        None => Some(OwnTarget::start(Pool {
            block_size: args.pool.block_size.unwrap_or(BLOCK_SIZE),
            blocks: args.pool.blocks.unwrap_or(BLOCKS),
            credits: 0,
            chains: false,
        })?),
    };
    let options = match (&own, args.target) {
        (Some(own), _) => Options::new(own.addr().to_string()),
        (None, Some(addr)) => session::options(addr, &args.who)?,
        (None, None) => return Err(Failure::usage("no target", "name one with --target")),
    };
    let plan = Plan {
        options,
        block_size: args.pool.block_size,
        blocks: args.pool.blocks,
        limit: args.limit,
        trace_length: length,
        free_at_end: own.is_none(),
        interrupt,
    };
    let report = replay(&plan, &mut trace)?;
    if let Some(own) = own {
        own.stop()?;
    }
    output::report(json, &report, || text(&report))
}

/// What to replay with.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) options: Options,
    pub(crate) block_size: Option<u64>,
    pub(crate) blocks: Option<u64>,
    pub(crate) limit: Option<u64>,
    /// Octets of the trace, for progress; zero if not known.
    pub(crate) trace_length: u64,
    /// Leave nothing bound; otherwise the end of the session or of the target does that.
    pub(crate) free_at_end: bool,
    /// Ends the replay early.
    pub(crate) interrupt: Interrupt,
}

/// Replays `trace`.
///
/// # Errors
/// As [`run`].
pub(crate) fn replay<R: BufRead>(
    plan: &Plan,
    trace: &mut TraceReader<R>,
) -> Result<Report, Failure> {
    let mut replayer = Replayer::open(plan)?;
    let served = serve_all(plan, trace, &mut replayer);
    let report = replayer.report(*served.as_ref().unwrap_or(&Duration::ZERO));
    // What is bound is given back whatever happened: a lease may be forever.
    let closed = replayer.close(plan.free_at_end);
    served?;
    closed?;
    Ok(report)
}

/// Serves the requests of `trace`; how long that took.
fn serve_all<R: BufRead>(
    plan: &Plan,
    trace: &mut TraceReader<R>,
    replayer: &mut Replayer,
) -> Result<Duration, Failure> {
    let mut progress = Progress::new(plan.trace_length, "replaying");
    let began = driver::now();
    let mut left = plan.limit.unwrap_or(u64::MAX);
    while left > 0
        && let Some(request) = trace.next_request()?
    {
        plan.interrupt.check("while replaying")?;
        replayer.serve(&request)?;
        progress.at(trace.octets_read());
        left -= 1;
    }
    let elapsed = began.elapsed();
    progress.finish();
    Ok(elapsed)
}

/// The cache and what was counted.
struct Replayer {
    cache: BlockCache<Tcp>,
    target: String,
    block_size: u32,
    buffers: Vec<Buffer>,
    /// A block's content, to store or to compare.
    block: Vec<u8>,
    requests: u64,
    references: u64,
    hits: u64,
    stored_behind_gap: u64,
    loads: Phase,
    stores: Phase,
}

/// Time spent loading, or storing.
struct Phase {
    each: Histogram<u64>,
    total: Duration,
}

impl Phase {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            each: latencies()?,
            total: Duration::ZERO,
        })
    }

    /// Counts one request's share.
    fn count(&mut self, took: Duration) {
        record(&mut self.each, took);
        self.total += took;
    }
}

impl Replayer {
    fn open(plan: &Plan) -> Result<Self, Failure> {
        // What nobody else has, unless told less.
        let quota = plan
            .blocks
            .map_or(u32::MAX, |b| u32::try_from(b).unwrap_or(u32::MAX));
        let client = session::open(plan.options.clone().quota(quota))?;
        let grant = client.terms().grant;
        let max = grant.block_size.0;
        let block_size = match plan.block_size.map(u32::try_from) {
            None => max,
            Some(Ok(size)) if size > 0 && size <= max => size,
            Some(_) => {
                return Err(Failure::usage(
                    format_args!(
                        "blocks of {} do not fit into those of the target, {}",
                        octets(plan.block_size.unwrap_or(0)),
                        octets(u64::from(max))
                    ),
                    "take a smaller --block-size",
                ));
            }
        };
        Ok(Self {
            buffers: session::buffers(&client, block_size)?,
            block: vec![0; usize::try_from(block_size).unwrap_or(0)],
            cache: BlockCache::new(client),
            target: plan.options.address().to_owned(),
            block_size,
            requests: 0,
            references: 0,
            hits: 0,
            stored_behind_gap: 0,
            loads: Phase::new()?,
            stores: Phase::new()?,
        })
    }

    /// Serves one request: the stored prefix is loaded, the rest is stored.
    ///
    /// Blocks are used last to first, so that of a prefix that nobody uses any more the end is evicted before the
    /// beginning: a prefix without its first block is of no use.
    fn serve(&mut self, request: &Request) -> Result<(), Failure> {
        let ids = &request.hash_ids;
        let prefix = self.cache.prefix_len(ids.iter().map(|id| key(*id)));
        let (stored, rest) = ids.split_at_checked(prefix).unwrap_or((ids, &[]));
        self.requests += 1;
        self.references += len(ids);
        self.hits += len(stored);
        if !stored.is_empty() {
            self.load(stored)?;
        }
        let missing: Vec<u64> = rest
            .iter()
            .rev()
            .copied()
            .filter(|id| !self.cache.contains(&key(*id)))
            .collect();
        self.stored_behind_gap += len(rest) - len(&missing);
        if !missing.is_empty() {
            self.store(&missing)?;
        }
        for id in ids.iter().rev() {
            // Pinned and unpinned: the most lately used.
            if self.cache.pin(&key(*id)) {
                self.cache.unpin(&key(*id));
            }
        }
        Ok(())
    }

    fn load(&mut self, ids: &[u64]) -> Result<(), Failure> {
        let mut took = Duration::ZERO;
        for ids in ids.rchunks(self.buffers.len().max(1)) {
            let keys: Vec<[u8; 8]> = ids.iter().map(|id| key(*id)).collect();
            let mut items: Vec<GetItem<'_>> = keys
                .iter()
                .zip(&mut self.buffers)
                .map(|(key, buffer)| GetItem::new(key, buffer))
                .collect();
            let began = driver::now();
            let ran = self.cache.get_many(&mut items);
            took += since(began);
            ran.map_err(|e| failed("cannot load", &e))?;
            let results: Vec<_> = items.into_iter().map(|i| i.result).collect();
            for ((id, result), at) in ids.iter().zip(results).zip(0..) {
                match result {
                    Some(Ok(Some(_))) => self.check(*id, at)?,
                    Some(Err(e)) => return Err(failed(&format!("cannot load block {id}"), &e)),
                    Some(Ok(None)) | None => {
                        return Err(Failure::operation(
                            format_args!(
                                "request {}: block {id} was stored, and {} has it no more",
                                self.requests, self.target
                            ),
                            "see whether the target restarted, or another session took this one's place",
                        ));
                    }
                }
            }
        }
        self.loads.count(took);
        Ok(())
    }

    /// Whether the buffer `at` holds the content of the block `id`, octet by octet.
    fn check(&mut self, id: u64, at: usize) -> Result<(), Failure> {
        let wrong = |what: String| {
            Failure::operation(
                format_args!(
                    "request {}: block {id} is not what was stored: {what}",
                    self.requests
                ),
                "this is a fault of the target or of the network: keep the trace and report it",
            )
        };
        let Some(buffer) = self.buffers.get(at) else {
            return Err(wrong("no buffer".to_owned()));
        };
        if buffer.len() != self.block_size {
            return Err(wrong(format!(
                "{} octets instead of {}",
                buffer.len(),
                self.block_size
            )));
        }
        buffer
            .read_at(0, &mut self.block)
            .map_err(|e| session::failed("cannot read a buffer", &e))?;
        match content::first_difference(id, &self.block) {
            None => Ok(()),
            Some(offset) => Err(wrong(format!("octet {offset} differs"))),
        }
    }

    fn store(&mut self, ids: &[u64]) -> Result<(), Failure> {
        let mut took = Duration::ZERO;
        for ids in ids.chunks(self.buffers.len().max(1)) {
            for (id, buffer) in ids.iter().zip(&mut self.buffers) {
                content::fill(*id, &mut self.block);
                buffer
                    .fill(&self.block)
                    .map_err(|e| session::failed("cannot fill a buffer", &e))?;
            }
            let keys: Vec<[u8; 8]> = ids.iter().map(|id| key(*id)).collect();
            let mut items: Vec<PutItem<'_>> = keys
                .iter()
                .zip(&mut self.buffers)
                .map(|(key, buffer)| PutItem::new(key, buffer))
                .collect();
            let began = driver::now();
            let ran = self.cache.put_many(&mut items);
            took += since(began);
            ran.map_err(|e| failed("cannot store", &e))?;
            for (item, id) in items.into_iter().zip(ids) {
                match item.result {
                    Some(Ok(())) => {}
                    Some(Err(e)) => return Err(failed(&format!("cannot store block {id}"), &e)),
                    None => {
                        return Err(Failure::operation(
                            format_args!("the store of block {id} was not begun"),
                            "run the command again",
                        ));
                    }
                }
            }
        }
        self.stores.count(took);
        Ok(())
    }

    fn report(&self, elapsed: Duration) -> Report {
        let stats = self.cache.stats();
        Report {
            target: self.target.clone(),
            block_size: self.block_size,
            blocks: self.cache.capacity(),
            requests: self.requests,
            references: self.references,
            hits: self.hits,
            misses: self.references - self.hits,
            stored_behind_gap: self.stored_behind_gap,
            stores: stats.stores,
            evictions: stats.evictions,
            prefix_hit_ratio: ratio(self.hits, self.references),
            octets_loaded: stats.octets_loaded,
            octets_stored: stats.octets_stored,
            elapsed_ns: nanoseconds(elapsed),
            load_ns: Latency::from(&self.loads.each),
            load_octets_per_s: crate::units::per_second(stats.octets_loaded, self.loads.total),
            store_ns: Latency::from(&self.stores.each),
            store_octets_per_s: crate::units::per_second(stats.octets_stored, self.stores.total),
        }
    }

    /// Ends the session; frees what is bound first if asked to.
    fn close(self, free: bool) -> Result<(), Failure> {
        let stats = self.cache.stats();
        // The cache gives handles out in order, from the first of the range on.
        let used = u64::from(self.cache.capacity()).min(stats.stores + stats.failed_stores);
        let mut client = self.cache.into_client();
        let (base, _) = client.handles();
        let mut next = 0;
        while free && next < used {
            let end = used.min(next + FREE_BATCH);
            let mut items: Vec<FreeItem> = (next..end)
                .map(|n| FreeItem::new(Handle(base.0 + n)))
                .collect();
            client
                .free_many(&mut items)
                .map_err(|e| session::failed("cannot free the blocks", &e))?;
            next = end;
        }
        client
            .close()
            .map_err(|e| session::failed("cannot end the session", &e))
    }
}

/// The key of a block in the cache.
fn key(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

fn len<T>(items: &[T]) -> u64 {
    u64::try_from(items.len()).unwrap_or(u64::MAX)
}

fn since(began: Instant) -> Duration {
    driver::now().duration_since(began)
}

fn nanoseconds(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn failed(doing: &str, error: &CacheError) -> Failure {
    match error {
        CacheError::Client(e) => session::failed(doing, e),
        e => Failure::operation(format_args!("{doing}: {}", chain(e)), "take a larger pool"),
    }
}

/// The report for people.
pub(crate) fn text(r: &Report) -> String {
    let elapsed = Duration::from_nanos(r.elapsed_ns);
    let mut sheet = Sheet::new();
    sheet.row(
        "pool",
        format_args!(
            "{} blocks of {} at {}",
            count(u64::from(r.blocks)),
            octets(u64::from(r.block_size)),
            r.target
        ),
    );
    sheet.row("requests", count(r.requests));
    sheet.row("block references", count(r.references));
    sheet.row(
        "hits",
        format_args!("{} (loaded, every octet checked)", count(r.hits)),
    );
    let gap = match r.stored_behind_gap {
        0 => String::new(),
        n => format!(" ({} of them stored, behind a gap)", count(n)),
    };
    sheet.row("misses", format_args!("{}{gap}", count(r.misses)));
    sheet.row("blocks stored", count(r.stores));
    sheet.row("evictions", count(r.evictions));
    sheet.row(
        "prefix_hit_ratio",
        format_args!("{:.4} ({}/{})", r.prefix_hit_ratio, r.hits, r.references),
    );
    for (name, moved, speed, l) in [
        ("loaded", r.octets_loaded, r.load_octets_per_s, r.load_ns),
        ("stored", r.octets_stored, r.store_octets_per_s, r.store_ns),
    ] {
        sheet.row(
            name,
            format_args!(
                "{} at {}/s; a request's share: p50 {}, p99 {}",
                octets(moved),
                octets(speed),
                latency(l.p50),
                latency(l.p99)
            ),
        );
    }
    sheet.row(
        "time",
        format_args!(
            "{} ({} in all, content made and checked)",
            latency(r.elapsed_ns),
            rate(r.octets_loaded + r.octets_stored, elapsed)
        ),
    );
    sheet.text()
}
