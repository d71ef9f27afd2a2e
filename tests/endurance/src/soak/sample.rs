//! What is sampled, and what of it must be as it was when nobody is there.

use super::analysis::Counts;
use crate::inspect::{get_json, metric, number, resources};
use serde_json::{Map, Value, json};

/// A process that is watched.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) name: &'static str,
    pub(super) pid: u32,
}

/// Gauges of the target, by name and place in its status.
const GAUGES: [(&str, &str); 9] = [
    ("handles bound", "/pool/blocks_bound"),
    ("tickets", "/pool/tickets_outstanding"),
    ("deferred frees", "/pool/blocks_deferred"),
    ("blocks pinned", "/pool/blocks_pinned"),
    ("blocks partitioned", "/pool/blocks_partitioned"),
    ("partitions", "/pool/partitions"),
    ("leases", "/pool/leases"),
    ("quota granted", "/pool/quota_granted"),
    ("blocks free", "/pool/blocks_free"),
];

/// One sample.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Seconds since the warm-up ended; less than zero during it.
    pub(super) at: f64,
    /// Octets resident of each process.
    pub(super) resident: Vec<f64>,
    /// Counts by process and name.
    pub(super) counts: Counts,
}

impl Sample {
    /// Looks at everything.
    pub(super) fn take(at: f64, watched: &[Watched], admin: &str) -> Self {
        let mut counts = Counts::new();
        let mut resident = Vec::with_capacity(watched.len());
        for process in watched {
            let seen = resources(process.pid);
            resident.push(octets(seen.resident));
            for (name, n) in [
                ("descriptors", seen.descriptors),
                ("sockets", seen.sockets),
                ("threads", seen.threads),
                ("mappings", seen.mappings),
                ("shared mappings", seen.shared),
                ("memfds", seen.memfds),
            ] {
                counts.insert(format!("{} {name}", process.name), n);
            }
        }
        let status = get_json(admin, "/status");
        for (name, pointer) in GAUGES {
            counts.insert(name.to_owned(), number(&status, pointer));
        }
        let sessions = status["sessions"].as_array().expect("sessions");
        counts.insert("sessions".to_owned(), sessions.len() as u64);
        let stags = sessions.iter().map(|s| number(s, "/stags")).sum();
        counts.insert("STags".to_owned(), stags);
        let half_open = metric(admin, "kbtp_half_open");
        counts.insert("half-open streams".to_owned(), half_open);
        Self {
            at,
            resident,
            counts,
        }
    }

    /// As JSON.
    pub(super) fn json(&self, watched: &[Watched]) -> Value {
        let resident: Map<String, Value> = watched
            .iter()
            .zip(&self.resident)
            .map(|(process, octets)| (process.name.to_owned(), json!(octets)))
            .collect();
        json!({"at_s": self.at, "resident": resident, "counts": self.counts})
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "memory of a machine is below 2^52"
)]
const fn octets(n: u64) -> f64 {
    n as f64
}
