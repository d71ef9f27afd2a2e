//! Counters of the target. Each worker owns one [`WorkerMetrics`] and one view of the core's counters and is their only
//! writer, so that counting stays on the worker's own cache lines; a scrape sums over the workers.

use kbtp_core::Stats;
use kbtp_wire::{Opcode, Status};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// A count with one writer and any number of readers.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owner calls this: it is no read-modify-write.
    pub(crate) fn add(&self, n: u64) {
        let now = self.0.load(Ordering::Relaxed).wrapping_add(n);
        self.0.store(now, Ordering::Relaxed);
    }

    /// Sets it; only the owner calls this.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Takes `n` off a gauge; only the owner calls this.
    pub(crate) fn sub(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    /// Adds one; only the owner calls this.
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    /// The count now.
    #[must_use]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the latency buckets, in microseconds. The last bucket has none.
pub(crate) const LATENCY_BOUNDS_US: [u64; 20] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000, 5_000_000,
];

/// A histogram of durations with fixed buckets.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [Counter; LATENCY_BOUNDS_US.len()],
    over: Counter,
    sum_ns: Counter,
}

impl Histogram {
    /// Counts one duration; only the owner calls this.
    pub(crate) fn observe_ns(&self, ns: u64) {
        let slot = LATENCY_BOUNDS_US.partition_point(|us| us * 1_000 < ns);
        self.buckets.get(slot).unwrap_or(&self.over).increment();
        self.sum_ns.add(ns);
    }
}

/// Opcodes of requests by value, as labels (P1). The core counts the reserved ones as 0.
const OPS: [(u8, &str); 7] = [
    (1, "hello"),
    (3, "load"),
    (4, "store"),
    (5, "alloc_store"),
    (6, "free"),
    (7, "bind"),
    (0, "reserved"),
];

/// Why a session, or a stream that never became one, ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndReason {
    /// The initiator closed its stream in order.
    PeerClosed,
    /// The initiator terminated the stream.
    PeerTerminated,
    /// The initiator broke RDMAP, DDP or MPA.
    TransportProtocol,
    /// The initiator broke KBTP.
    Protocol,
    /// The HELLO was refused.
    Refused,
    /// The connection broke.
    Connection,
    /// No HELLO came in time.
    HandshakeTimeout,
    /// It had not said HELLO when others needed its place.
    MadeRoom,
    /// A new session of the same pair took its place.
    Replaced,
    /// The target drains.
    Drained,
    /// The target failed.
    Internal,
}

impl EndReason {
    const ALL: [Self; 11] = [
        Self::PeerClosed,
        Self::PeerTerminated,
        Self::TransportProtocol,
        Self::Protocol,
        Self::Refused,
        Self::Connection,
        Self::HandshakeTimeout,
        Self::MadeRoom,
        Self::Replaced,
        Self::Drained,
        Self::Internal,
    ];

    /// The reason as a metric label and a log field.
    #[must_use]
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::PeerClosed => "peer_closed",
            Self::PeerTerminated => "peer_terminated",
            Self::TransportProtocol => "transport_protocol",
            Self::Protocol => "protocol",
            Self::Refused => "refused",
            Self::Connection => "connection",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::MadeRoom => "made_room",
            Self::Replaced => "replaced",
            Self::Drained => "drained",
            Self::Internal => "internal",
        }
    }
}

/// What can become of a connection before it is a worker's, as labels.
pub(crate) const CONNECTION_RESULTS: [&str; 7] = [
    "established",
    "over_half_open",
    "over_source",
    "made_room",
    "rejected",
    "failed",
    "no_descriptor",
];

/// The counters of one worker. Aligned so that two workers never share a cache line (lines are fetched in pairs on
/// common processors, hence 128).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerMetrics {
    ends: [Counter; EndReason::ALL.len()],
    /// From the receipt of a request to the posting of its completion.
    pub(crate) latency: Histogram,
    /// Sessions of this worker now.
    pub(crate) sessions: Counter,
    /// Streams of this worker that have not had their HELLO answered.
    pub(crate) half_open: Counter,
    /// Requests received and not yet answered.
    pub(crate) in_flight: Counter,
    /// Blocks of loads that the streams may still be sending; a block that is sent twice counts twice.
    pub(crate) pins: Counter,
    /// Tickets taken by initiators and not bound, as far as they were seen.
    pub(crate) tickets: Counter,
    /// Times a full send queue kept work waiting.
    pub(crate) send_queue_full: Counter,
    /// Streams turned away because there were too many; the control thread counts them on counters of its own.
    pub(crate) turned_away: Counter,
    /// What became of connections, by [`CONNECTION_RESULTS`]; the control thread's.
    pub(crate) connections: [Counter; CONNECTION_RESULTS.len()],
    /// Streams ever dealt to this worker: written by the control thread.
    pub(crate) dealt: Counter,
    /// Of those, how many have ended.
    pub(crate) gone: Counter,
    /// How often the control thread asked this worker to make room, and how often it has looked.
    pub(crate) room_asked: Counter,
    pub(crate) room_made: Counter,
    /// What chains did.
    pub(crate) chains: crate::chains::ChainCounts,
}

impl WorkerMetrics {
    /// Streams that this worker has or is about to have.
    pub(crate) fn load(&self) -> u64 {
        self.dealt.get().saturating_sub(self.gone.get())
    }

    /// Counts the end of a stream.
    pub(crate) fn ended(&self, reason: EndReason) {
        if let Some(counter) = self.ends.get(reason as usize) {
            counter.increment();
        }
    }
}

/// What the pool and the directory hold at the time of a scrape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct PoolGauges {
    /// Blocks of the pool, F.
    pub blocks: u64,
    /// Octets of a block.
    pub block_size: u64,
    /// Blocks that the shared ring lists; those that are free in a partition are not among them.
    pub blocks_free: u64,
    /// Blocks bound to a handle.
    pub blocks_bound: u64,
    /// Blocks of loads that may still be on their way; one that is sent twice counts twice.
    pub blocks_pinned: u64,
    /// Blocks of the partitions of sessions with DIRECT_ALLOC.
    pub blocks_partitioned: u64,
    /// Freed blocks whose ring slot is not consumed yet (draft, section 3.3).
    pub blocks_deferred: u64,
    /// Handles of the table.
    pub handles: u64,
    /// Quota granted to all pairs.
    pub quota_granted: u64,
    /// Tickets taken and not bound.
    pub tickets_outstanding: u64,
    /// Slots of the shared ring.
    pub ring_slots: u64,
    /// Slots of the shared ring that list a block.
    pub ring_occupied: u64,
    /// Partitions of sessions with DIRECT_ALLOC, those being dissolved too.
    pub partitions: u64,
    /// Handle ranges that a pair without a session keeps.
    pub leases: u64,
}

/// How this target runs, for `build_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct BuildInfo {
    /// Version of this crate.
    pub version: &'static str,
    /// What executes requests.
    pub engine: &'static str,
    /// What carries them.
    pub transport: &'static str,
}

impl BuildInfo {
    /// This build: requests run in software, on our own iWARP over TCP sockets.
    pub const SOFTWARE_IWARP_TCP: Self = Self {
        version: env!("CARGO_PKG_VERSION"),
        engine: "software",
        transport: "iwarp-tcp",
    };

    /// Requests run as chains on a device, whose clients are on our own iWARP over TCP sockets.
    pub const CHAIN_IWARP_TCP: Self = Self {
        engine: "chain",
        ..Self::SOFTWARE_IWARP_TCP
    };
}

/// Blocks bound: those a recovery found, and what requests and released ranges have changed since. The counters of
/// several workers are read one after the other, so what happens meanwhile may make it a little off.
pub(crate) fn blocks_bound(workers: &[impl Counted], recovered: u64) -> u64 {
    const OK: u16 = 0;
    workers.iter().fold(recovered, |n, w| {
        let stats = w.stats();
        let bound = [Opcode::AllocStore, Opcode::Bind].map(|op| stats.get(op.to_wire(), OK));
        let freed = stats.get(Opcode::Free.to_wire(), OK);
        let released = stats.blocks_released.load(Ordering::Relaxed);
        bound
            .into_iter()
            .fold(n, u64::wrapping_add)
            .wrapping_sub(freed)
            .wrapping_sub(released)
    })
}

/// What one worker has counted: in this crate, and in the core.
pub(crate) trait Counted {
    /// This crate's counters.
    fn metrics(&self) -> &WorkerMetrics;
    /// The core's.
    fn stats(&self) -> &Stats;
}

/// The whole in Prometheus' text exposition format, version 0.0.4.
#[must_use]
pub(crate) fn render(workers: &[impl Counted], pool: &PoolGauges, build: &BuildInfo) -> String {
    let mut out = Exposition(String::with_capacity(16 * 1024));
    out.header(
        "kbtp_build_info",
        "gauge",
        "How this target was built and runs.",
    );
    out.line(format_args!(
        "kbtp_build_info{{version=\"{}\",engine=\"{}\",transport=\"{}\"}} 1",
        build.version, build.engine, build.transport
    ));
    requests(&mut out, workers);
    latency(&mut out, workers);
    ends(&mut out, workers);
    connections(&mut out, workers);
    for (name, kind, help, of) in COLUMNS {
        let sum = workers
            .iter()
            .fold(0, |n: u64, w| n.wrapping_add(of(w.metrics())));
        out.simple(name, kind, help, sum);
    }
    for (name, help, of) in CORE {
        let sum = workers.iter().fold(0, |n: u64, w| {
            n.wrapping_add(of(w.stats()).load(Ordering::Relaxed))
        });
        out.simple(name, "counter", help, sum);
    }
    chains(&mut out, workers);
    pool_gauges(&mut out, pool);
    out.0
}

/// Requests that chains left to software, by reason.
fn chains(out: &mut Exposition, workers: &[impl Counted]) {
    let name = "kbtp_chain_punts_total";
    out.header(
        name,
        "counter",
        "Requests of chains' sessions that software served, by reason.",
    );
    let mut sums: Vec<(&'static str, u64)> = Vec::new();
    for worker in workers {
        for (at, (reason, count)) in worker.metrics().chains.punts().enumerate() {
            match sums.get_mut(at) {
                Some((_, sum)) => *sum = sum.wrapping_add(count),
                None => sums.push((reason, count)),
            }
        }
    }
    for (reason, sum) in sums {
        out.line(format_args!("{name}{{reason=\"{reason}\"}} {sum}"));
    }
}

type Column = (
    &'static str,
    &'static str,
    &'static str,
    fn(&WorkerMetrics) -> u64,
);
type CoreColumn = (&'static str, &'static str, fn(&Stats) -> &AtomicU64);

const COLUMNS: &[Column] = &[
    (
        "kbtp_chain_sessions",
        "gauge",
        "Sessions that chains serve now.",
        |w| w.chains.sessions.get(),
    ),
    (
        "kbtp_chain_requests_total",
        "counter",
        "Requests that chains served without software.",
        |w| w.chains.served.get(),
    ),
    (
        "kbtp_chain_wakeups_total",
        "counter",
        "Times software had to do something before a request of a chain's session could be answered.",
        |w| w.chains.wakeups.get(),
    ),
    (
        "kbtp_chain_traps_total",
        "counter",
        "Requests that ended their loopback queue, which was started again.",
        |w| w.chains.traps.get(),
    ),
    (
        "kbtp_chain_slots_armed_total",
        "counter",
        "Slots armed by software, after their request was answered.",
        |w| w.chains.armed.get(),
    ),
    (
        "kbtp_chain_recovered_total",
        "counter",
        "Tickets and blocks that requests which came to nothing had taken, given back.",
        |w| w.chains.recovered.get(),
    ),
    (
        "kbtp_chain_given_up_total",
        "counter",
        "ALLOC_STOREs by chain whose block did not come in time.",
        |w| w.chains.given_up.get(),
    ),
    (
        "kbtp_chain_stalled_total",
        "counter",
        "Sessions ended because a chain made no progress.",
        |w| w.chains.stalled.get(),
    ),
    ("kbtp_sessions", "gauge", "Sessions now.", |w| {
        w.sessions.get()
    }),
    (
        "kbtp_half_open",
        "gauge",
        "Streams whose HELLO is not answered.",
        |w| w.half_open.get(),
    ),
    (
        "kbtp_requests_in_flight",
        "gauge",
        "Requests received and not answered.",
        |w| w.in_flight.get(),
    ),
    (
        "kbtp_streams_turned_away_total",
        "counter",
        "Streams refused because there were too many.",
        |w| w.turned_away.get(),
    ),
    (
        "kbtp_send_queue_full_total",
        "counter",
        "Times a full send queue kept work waiting.",
        |w| w.send_queue_full.get(),
    ),
];

const CORE: &[CoreColumn] = &[
    (
        "kbtp_octets_loaded_total",
        "Octets of blocks sent to initiators.",
        |s| &s.loaded_octets,
    ),
    (
        "kbtp_octets_stored_total",
        "Octets stored into blocks.",
        |s| &s.stored_octets,
    ),
    ("kbtp_sessions_granted_total", "Sessions granted.", |s| {
        &s.sessions_granted
    }),
    ("kbtp_sessions_refused_total", "Sessions refused.", |s| {
        &s.sessions_refused
    }),
    (
        "kbtp_sessions_broken_total",
        "Sessions ended because the initiator broke a rule.",
        |s| &s.sessions_broken,
    ),
    (
        "kbtp_partitions_refused_total",
        "DIRECT_ALLOC wanted and not granted for want of a partition.",
        |s| &s.partitions_refused,
    ),
    (
        "kbtp_tickets_abandoned_total",
        "Tickets not bound in time.",
        |s| &s.tickets_abandoned,
    ),
    (
        "kbtp_allocations_parked_total",
        "Allocations that waited for a slot or a block.",
        |s| &s.allocations_parked,
    ),
    (
        "kbtp_frees_deferred_total",
        "Frees whose slot write was deferred.",
        |s| &s.frees_deferred,
    ),
    (
        "kbtp_blocks_released_total",
        "Blocks freed because their range was released.",
        |s| &s.blocks_released,
    ),
    (
        "kbtp_leases_expired_total",
        "Handle ranges released because their lease ended.",
        |s| &s.leases_expired,
    ),
];

struct Exposition(String);

impl Exposition {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _infallible = self.0.write_fmt(line);
        self.0.push('\n');
    }

    fn header(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn simple(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.header(name, kind, help);
        self.line(format_args!("{name} {value}"));
    }
}

fn requests(out: &mut Exposition, workers: &[impl Counted]) {
    out.header(
        "kbtp_requests_total",
        "counter",
        "Requests answered, by operation and status.",
    );
    for (opcode, op) in OPS {
        for status in Status::ALL {
            let n = workers.iter().fold(0, |n: u64, w| {
                n.wrapping_add(w.stats().get(opcode, status.to_wire()))
            });
            // The rows that matter from the start, and those that have happened: a hundred zeros help nobody.
            if n > 0 || (status.is_ok() && opcode != 0) {
                let label = status.name().to_ascii_lowercase();
                out.line(format_args!(
                    "kbtp_requests_total{{op=\"{op}\",status=\"{label}\"}} {n}"
                ));
            }
        }
    }
}

fn ends(out: &mut Exposition, workers: &[impl Counted]) {
    out.header(
        "kbtp_session_ends_total",
        "counter",
        "Streams ended, by reason.",
    );
    for reason in EndReason::ALL {
        let n = workers
            .iter()
            .filter_map(|w| w.metrics().ends.get(reason as usize))
            .fold(0, |n: u64, c| n.wrapping_add(c.get()));
        out.line(format_args!(
            "kbtp_session_ends_total{{reason=\"{}\"}} {n}",
            reason.label()
        ));
    }
}

fn connections(out: &mut Exposition, workers: &[impl Counted]) {
    out.header(
        "kbtp_connections_total",
        "counter",
        "What became of connections in their startup.",
    );
    for (i, result) in CONNECTION_RESULTS.iter().enumerate() {
        let counters = workers
            .iter()
            .filter_map(|w| w.metrics().connections.get(i));
        let n = counters.fold(0, |n: u64, c| n.wrapping_add(c.get()));
        out.line(format_args!(
            "kbtp_connections_total{{result=\"{result}\"}} {n}"
        ));
    }
}

/// Nanoseconds as decimal seconds, exactly.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn latency(out: &mut Exposition, workers: &[impl Counted]) {
    const NAME: &str = "kbtp_request_seconds";
    out.header(
        NAME,
        "histogram",
        "From the receipt of a request to the posting of its answer.",
    );
    let mut count: u64 = 0;
    for (i, us) in LATENCY_BOUNDS_US.iter().enumerate() {
        for w in workers {
            count = count.wrapping_add(w.metrics().latency.buckets.get(i).map_or(0, Counter::get));
        }
        let le = seconds(us * 1_000);
        out.line(format_args!("{NAME}_bucket{{le=\"{le}\"}} {count}"));
    }
    let mut sum_ns: u64 = 0;
    for w in workers {
        count = count.wrapping_add(w.metrics().latency.over.get());
        sum_ns = sum_ns.wrapping_add(w.metrics().latency.sum_ns.get());
    }
    out.line(format_args!("{NAME}_bucket{{le=\"+Inf\"}} {count}"));
    out.line(format_args!("{NAME}_sum {}", seconds(sum_ns)));
    out.line(format_args!("{NAME}_count {count}"));
}

fn pool_gauges(out: &mut Exposition, pool: &PoolGauges) {
    out.header(
        "kbtp_blocks",
        "gauge",
        "Blocks, by state. A bound block may be pinned too.",
    );
    for (state, n) in [
        ("free", pool.blocks_free),
        ("bound", pool.blocks_bound),
        ("pinned", pool.blocks_pinned),
        ("deferred", pool.blocks_deferred),
        ("partitioned", pool.blocks_partitioned),
    ] {
        out.line(format_args!("kbtp_blocks{{state=\"{state}\"}} {n}"));
    }
    for (name, help, n) in [
        ("kbtp_pool_blocks", "Blocks of the pool.", pool.blocks),
        (
            "kbtp_block_size_octets",
            "Octets of a block.",
            pool.block_size,
        ),
        ("kbtp_handles", "Handles of the table.", pool.handles),
        (
            "kbtp_quota_granted_blocks",
            "Quota granted, in blocks.",
            pool.quota_granted,
        ),
        (
            "kbtp_tickets_outstanding",
            "Tickets taken and not bound.",
            pool.tickets_outstanding,
        ),
        (
            "kbtp_ring_slots",
            "Slots of the shared ring.",
            pool.ring_slots,
        ),
        (
            "kbtp_ring_occupied",
            "Slots of the shared ring that list a block.",
            pool.ring_occupied,
        ),
        (
            "kbtp_partitions",
            "Partitions of sessions with DIRECT_ALLOC.",
            pool.partitions,
        ),
        (
            "kbtp_leases",
            "Handle ranges kept for pairs without a session.",
            pool.leases,
        ),
    ] {
        out.simple(name, "gauge", help, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Worker(WorkerMetrics, Stats);

    impl Counted for Worker {
        fn metrics(&self) -> &WorkerMetrics {
            &self.0
        }
        fn stats(&self) -> &Stats {
            &self.1
        }
    }

    fn value<'a>(text: &'a str, series: &str) -> Option<&'a str> {
        text.lines()
            .find_map(|l| l.strip_prefix(series)?.strip_prefix(' '))
    }

    #[test]
    fn a_scrape_sums_the_workers() {
        let workers = [Worker::default(), Worker::default()];
        workers[0].1.count(3, 0);
        workers[1].1.count(3, 0);
        workers[1].1.count(6, 5);
        workers[1].1.count(0x77, 2);
        workers[0].1.loaded_octets.store(100, Ordering::Relaxed);
        workers[1].1.loaded_octets.store(1, Ordering::Relaxed);
        workers[0].0.ended(EndReason::Replaced);
        workers[0].0.latency.observe_ns(1_000);
        workers[1].0.latency.observe_ns(1_001);
        workers[1].0.latency.observe_ns(60_000_000_000);
        let pool = PoolGauges {
            blocks_bound: 3,
            ..PoolGauges::default()
        };
        let text = render(&workers, &pool, &BuildInfo::SOFTWARE_IWARP_TCP);
        for (series, expected) in [
            ("kbtp_requests_total{op=\"load\",status=\"ok\"}", "2"),
            ("kbtp_requests_total{op=\"free\",status=\"not_valid\"}", "1"),
            (
                "kbtp_requests_total{op=\"reserved\",status=\"unsupported\"}",
                "1",
            ),
            ("kbtp_requests_total{op=\"bind\",status=\"ok\"}", "0"),
            ("kbtp_octets_loaded_total", "101"),
            ("kbtp_session_ends_total{reason=\"replaced\"}", "1"),
            ("kbtp_request_seconds_bucket{le=\"0.000001000\"}", "1"),
            ("kbtp_request_seconds_bucket{le=\"0.000002000\"}", "2"),
            ("kbtp_request_seconds_bucket{le=\"+Inf\"}", "3"),
            ("kbtp_request_seconds_count", "3"),
            ("kbtp_request_seconds_sum", "60.000002001"),
            ("kbtp_blocks{state=\"bound\"}", "3"),
        ] {
            assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
        }
        assert!(text.contains("engine=\"software\",transport=\"iwarp-tcp\""));
    }

    #[test]
    fn every_series_has_help_and_type_before_it_once() {
        let workers = [Worker::default()];
        let text = render(
            &workers,
            &PoolGauges::default(),
            &BuildInfo::SOFTWARE_IWARP_TCP,
        );
        let mut seen = std::collections::BTreeSet::new();
        let mut current = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                current = rest.split(' ').next().unwrap();
                assert!(seen.insert(current), "{current} twice");
            } else if !line.starts_with('#') {
                assert!(line.starts_with(current), "{line} under {current}");
            }
        }
        assert!(seen.len() > 15);
    }

    #[test]
    fn every_series_is_documented() {
        let page = include_str!("../../docs/target.md");
        let workers = [Worker::default()];
        let pool = PoolGauges::default();
        let text = render(&workers, &pool, &BuildInfo::SOFTWARE_IWARP_TCP);
        for line in text.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
            let name = line.split(' ').next().unwrap();
            assert!(page.contains(&format!("`{name}")), "{name}");
        }
    }

    #[test]
    fn workers_do_not_share_cache_lines() {
        assert_eq!(align_of::<WorkerMetrics>(), 128);
    }
}
