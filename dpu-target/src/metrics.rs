//! Counters of the target. Each worker owns one [`WorkerMetrics`] and is its only writer, so that counting is a plain
//! load and store on the worker's own cache lines; a scrape sums over the workers.

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

    /// Adds one; only the owner calls this.
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    /// Sets a gauge; only the owner calls this.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
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

/// What a request asked for. The order is that of the opcodes of table P1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// Block Load.
    Load,
    /// Block Mapped Store.
    Store,
    /// Block Unmapped Store.
    AllocStore,
    /// Block Free.
    Free,
    /// BIND of a direct allocation.
    Bind,
    /// HELLO.
    Hello,
    /// An opcode the target does not know.
    Other,
}

impl Op {
    const ALL: [Self; 7] = [
        Self::Load,
        Self::Store,
        Self::AllocStore,
        Self::Free,
        Self::Bind,
        Self::Hello,
        Self::Other,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Store => "store",
            Self::AllocStore => "alloc_store",
            Self::Free => "free",
            Self::Bind => "bind",
            Self::Hello => "hello",
            Self::Other => "other",
        }
    }
}

/// Names of the statuses of table P7, by value.
pub(crate) const STATUS_LABELS: [&str; 16] = [
    "ok",
    "bad_request",
    "unsupported",
    "version_mismatch",
    "not_authorized",
    "not_valid",
    "already_valid",
    "not_sealed",
    "sealed",
    "generation_mismatch",
    "length_error",
    "no_space",
    "ticket_abandoned",
    "bad_ticket",
    "shutting_down",
    "internal_error",
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
    /// A new session of the same pair took its place.
    Replaced,
    /// The target drains.
    Drained,
    /// The target failed.
    Internal,
}

impl EndReason {
    const ALL: [Self; 10] = [
        Self::PeerClosed,
        Self::PeerTerminated,
        Self::TransportProtocol,
        Self::Protocol,
        Self::Refused,
        Self::Connection,
        Self::HandshakeTimeout,
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
            Self::Replaced => "replaced",
            Self::Drained => "drained",
            Self::Internal => "internal",
        }
    }
}

/// The counters of one worker. Aligned so that two workers never share a cache line (lines are fetched in pairs on
/// common processors, hence 128).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerMetrics {
    requests: [[Counter; STATUS_LABELS.len()]; Op::ALL.len()],
    ends: [Counter; EndReason::ALL.len()],
    /// From the receipt of a request to the posting of its completion.
    pub(crate) latency: Histogram,
    /// Octets of blocks written to initiators.
    pub(crate) octets_loaded: Counter,
    /// Octets taken into blocks.
    pub(crate) octets_stored: Counter,
    /// Sessions of this worker now.
    pub(crate) sessions: Counter,
    /// Streams of this worker that have not had their HELLO answered.
    pub(crate) half_open: Counter,
    /// Requests received and not yet answered.
    pub(crate) in_flight: Counter,
    /// Sessions begun.
    pub(crate) sessions_begun: Counter,
    /// Capabilities that were wanted, could have been granted, and were not for lack of room.
    pub(crate) capabilities_refused: Counter,
    /// Tickets abandoned.
    pub(crate) tickets_abandoned: Counter,
    /// Times the worker slept.
    pub(crate) sleeps: Counter,
    /// Times a full send queue kept work waiting.
    pub(crate) send_queue_full: Counter,
}

impl WorkerMetrics {
    /// Counts an answered request. A status outside table P7 counts as an internal error: the target sent it.
    pub(crate) fn request(&self, op: Op, status: u16) {
        let last = STATUS_LABELS.len() - 1;
        let status = usize::from(status).min(last);
        if let Some(counter) = self
            .requests
            .get(op as usize)
            .and_then(|row| row.get(status))
        {
            counter.increment();
        }
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
    /// Blocks that a ring lists.
    pub blocks_free: u64,
    /// Blocks bound to a handle.
    pub blocks_bound: u64,
    /// Blocks that work in flight still reads or writes.
    pub blocks_pinned: u64,
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
}

/// The whole in Prometheus' text exposition format, version 0.0.4.
#[must_use]
pub(crate) fn render(
    workers: &[impl AsRef<WorkerMetrics>],
    pool: &PoolGauges,
    build: &BuildInfo,
) -> String {
    let mut out = Exposition(String::with_capacity(16 * 1024));
    let sum = |of: fn(&WorkerMetrics) -> &Counter| -> u64 {
        workers
            .iter()
            .fold(0, |n, w| of(w.as_ref()).get().wrapping_add(n))
    };
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
    for (name, help, of) in COUNTERS {
        out.simple(name, "counter", help, sum(*of));
    }
    for (name, help, of) in GAUGES {
        out.simple(name, "gauge", help, sum(*of));
    }
    pool_gauges(&mut out, pool);
    out.0
}

type Column = (&'static str, &'static str, fn(&WorkerMetrics) -> &Counter);

const COUNTERS: &[Column] = &[
    (
        "kbtp_octets_loaded_total",
        "Octets of blocks written to initiators.",
        |w| &w.octets_loaded,
    ),
    (
        "kbtp_octets_stored_total",
        "Octets taken into blocks.",
        |w| &w.octets_stored,
    ),
    ("kbtp_sessions_begun_total", "Sessions begun.", |w| {
        &w.sessions_begun
    }),
    (
        "kbtp_capabilities_refused_total",
        "Sessions granted without a direct mode for lack of a partition.",
        |w| &w.capabilities_refused,
    ),
    (
        "kbtp_tickets_abandoned_total",
        "Tickets not bound in time.",
        |w| &w.tickets_abandoned,
    ),
    (
        "kbtp_worker_sleeps_total",
        "Times a worker slept for want of work.",
        |w| &w.sleeps,
    ),
    (
        "kbtp_send_queue_full_total",
        "Times a full send queue kept work waiting.",
        |w| &w.send_queue_full,
    ),
];

const GAUGES: &[Column] = &[
    ("kbtp_sessions", "Sessions now.", |w| &w.sessions),
    (
        "kbtp_half_open",
        "Streams whose HELLO is not answered.",
        |w| &w.half_open,
    ),
    (
        "kbtp_requests_in_flight",
        "Requests received and not answered.",
        |w| &w.in_flight,
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

fn requests(out: &mut Exposition, workers: &[impl AsRef<WorkerMetrics>]) {
    out.header(
        "kbtp_requests_total",
        "counter",
        "Requests answered, by operation and status.",
    );
    for op in Op::ALL {
        for (status, label) in STATUS_LABELS.iter().enumerate() {
            let n = workers
                .iter()
                .filter_map(|w| w.as_ref().requests.get(op as usize)?.get(status))
                .fold(0, |n: u64, c| n.wrapping_add(c.get()));
            // The rows that matter from the start, and those that have happened: 112 lines of zeros help nobody.
            if n > 0 || status == 0 {
                out.line(format_args!(
                    "kbtp_requests_total{{op=\"{}\",status=\"{label}\"}} {n}",
                    op.label()
                ));
            }
        }
    }
}

fn ends(out: &mut Exposition, workers: &[impl AsRef<WorkerMetrics>]) {
    out.header(
        "kbtp_session_ends_total",
        "counter",
        "Streams ended, by reason.",
    );
    for reason in EndReason::ALL {
        let n = workers
            .iter()
            .filter_map(|w| w.as_ref().ends.get(reason as usize))
            .fold(0, |n: u64, c| n.wrapping_add(c.get()));
        out.line(format_args!(
            "kbtp_session_ends_total{{reason=\"{}\"}} {n}",
            reason.label()
        ));
    }
}

/// Nanoseconds as decimal seconds, exactly.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn latency(out: &mut Exposition, workers: &[impl AsRef<WorkerMetrics>]) {
    const NAME: &str = "kbtp_request_seconds";
    out.header(
        NAME,
        "histogram",
        "From the receipt of a request to the posting of its answer.",
    );
    let mut count: u64 = 0;
    for (i, us) in LATENCY_BOUNDS_US.iter().enumerate() {
        for w in workers {
            count = count.wrapping_add(w.as_ref().latency.buckets.get(i).map_or(0, Counter::get));
        }
        let le = seconds(us * 1_000);
        out.line(format_args!("{NAME}_bucket{{le=\"{le}\"}} {count}"));
    }
    let mut sum_ns: u64 = 0;
    for w in workers {
        count = count.wrapping_add(w.as_ref().latency.over.get());
        sum_ns = sum_ns.wrapping_add(w.as_ref().latency.sum_ns.get());
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
    use std::sync::Arc;

    fn value<'a>(text: &'a str, series: &str) -> Option<&'a str> {
        text.lines()
            .find_map(|l| l.strip_prefix(series)?.strip_prefix(' '))
    }

    #[test]
    fn a_scrape_sums_the_workers() {
        let workers = [
            Arc::new(WorkerMetrics::default()),
            Arc::new(WorkerMetrics::default()),
        ];
        workers[0].request(Op::Load, 0);
        workers[1].request(Op::Load, 0);
        workers[1].request(Op::Free, 5);
        workers[1].request(Op::Other, 999);
        workers[0].octets_loaded.add(100);
        workers[1].octets_loaded.add(1);
        workers[0].ended(EndReason::Replaced);
        workers[0].latency.observe_ns(1_000);
        workers[1].latency.observe_ns(1_001);
        workers[1].latency.observe_ns(60_000_000_000);
        let pool = PoolGauges {
            blocks_bound: 3,
            ..PoolGauges::default()
        };
        let text = render(&workers, &pool, &BuildInfo::SOFTWARE_IWARP_TCP);
        for (series, expected) in [
            ("kbtp_requests_total{op=\"load\",status=\"ok\"}", "2"),
            ("kbtp_requests_total{op=\"free\",status=\"not_valid\"}", "1"),
            (
                "kbtp_requests_total{op=\"other\",status=\"internal_error\"}",
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
        let workers = [Arc::new(WorkerMetrics::default())];
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
    fn workers_do_not_share_cache_lines() {
        assert_eq!(align_of::<WorkerMetrics>(), 128);
    }
}
