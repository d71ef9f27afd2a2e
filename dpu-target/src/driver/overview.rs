//! What the admin endpoint tells of the target.

use super::admin::Answers;
use super::worker::Command;
use crate::engine::Worker;
use crate::inbox::{InboxError, InboxSender};
use crate::lifecycle::{Lifecycle, Phase};
use crate::limits;
use crate::metrics::{BuildInfo, Counted, PoolGauges, WorkerMetrics, blocks_bound, render};
use crate::plane::Plane;
use crate::status::{AuditStatus, ChainStatus, LeaseStatus, PagesStatus, Status, uuid};
use crate::transport::Served;
use crossbeam_channel::Sender;
use kbtp_core::{Audit, Stats};
use kbtp_fabric::Time;
use kbtp_iwarp_tcp::Clock;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What does not change while the target runs.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) agent: Option<PathBuf>,
    pub(crate) clock: Clock,
    pub(crate) started: Time,
    /// Blocks bound that a recovery found.
    pub(crate) recovered: u64,
    pub(crate) pages: PagesStatus,
    pub(crate) build: BuildInfo,
}

/// Every part of the target that is worth a look.
#[derive(Debug)]
pub(crate) struct Overview {
    pub(crate) facts: Facts,
    pub(crate) workers: Arc<[Arc<Worker>]>,
    /// The control thread's counters.
    pub(crate) own: Arc<Worker>,
    pub(crate) inboxes: Arc<[InboxSender<Command<Served>>]>,
    pub(crate) plane: Arc<Plane>,
    pub(crate) lifecycle: Arc<Lifecycle>,
}

impl Counted for Arc<Worker> {
    fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    fn stats(&self) -> &Stats {
        &self.shared.stats
    }
}

impl Overview {
    /// Everybody who counts: the workers and the control thread.
    fn counted(&self) -> Vec<Arc<Worker>> {
        let workers = self.workers.iter().map(Arc::clone);
        workers.chain([Arc::clone(&self.own)]).collect()
    }

    pub(crate) fn metrics(&self) -> String {
        render(&self.counted(), &self.pool(), &self.facts.build)
    }

    fn pool(&self) -> PoolGauges {
        let pool = &self.own.shared.pool;
        let geometry = pool.geometry();
        let usage = pool.usage();
        let summary = self.plane.with(|directory| directory.summary());
        let sum = |of: fn(&WorkerMetrics) -> u64| {
            let workers = self.workers.iter();
            workers.fold(0, |n: u64, w| n.wrapping_add(of(&w.metrics)))
        };
        PoolGauges {
            blocks: u64::from(geometry.blocks),
            block_size: u64::from(geometry.block_size),
            blocks_free: u64::from(usage.free),
            blocks_bound: blocks_bound(&self.counted(), self.facts.recovered),
            blocks_pinned: sum(|m| m.pins.get()),
            blocks_partitioned: u64::from(usage.partitioned),
            blocks_deferred: u64::from(usage.deferred),
            handles: geometry.handles,
            quota_granted: u64::from(summary.committed),
            tickets_outstanding: sum(|m| m.tickets.get()),
            ring_slots: u64::from(geometry.ring_order().slots()),
            ring_occupied: u64::from(usage.free.saturating_sub(usage.deferred)),
            partitions: u64::from(summary.partitions),
            leases: u64::from(summary.ranges.saturating_sub(summary.sessions)),
        }
    }

    pub(crate) fn audit(&self) -> Audit {
        self.own.shared.pool.audit()
    }

    /// What each worker answers to a command, and how many did not answer within [`limits::REPORT_WAIT_MS`]. Workers
    /// that have ended count as silent if `ended_too`.
    fn ask<T>(
        &self,
        command: impl Fn(Sender<T>) -> Command<Served>,
        ended_too: bool,
    ) -> (Vec<T>, usize) {
        let (tx, rx) = crossbeam_channel::bounded(self.inboxes.len());
        let asked = |worker: &&InboxSender<_>| match worker.send(command(tx.clone())) {
            Ok(()) | Err(InboxError::Full(_)) => true,
            Err(InboxError::Gone(_)) => ended_too,
        };
        let asked = self.inboxes.iter().filter(asked).count();
        drop(tx);
        let deadline = crossbeam_channel::after(Duration::from_millis(limits::REPORT_WAIT_MS));
        let mut answers = Vec::with_capacity(asked);
        while answers.len() < asked {
            crossbeam_channel::select! {
                recv(rx) -> answer => match answer {
                    Ok(answer) => answers.push(answer),
                    // Nobody is left who could answer.
                    Err(_) => break,
                },
                recv(deadline) -> _ => break,
            }
        }
        let silent = asked - answers.len();
        (answers, silent)
    }

    /// The whole. Waits for the workers, at most [`limits::REPORT_WAIT_MS`].
    pub(crate) fn status(&self) -> Status {
        let (reports, workers_silent) = self.ask(Command::Report, true);
        let now = self.facts.clock.now();
        Status {
            build: self.facts.build,
            phase: self.lifecycle.phase().label(),
            uptime_ns: now.since_ns(self.facts.started),
            instance: uuid(&self.own.shared.pool.instance()),
            listen: self.facts.listen.iter().map(ToString::to_string).collect(),
            agent: self.facts.agent.as_ref().map_or_else(
                || "in-process".to_owned(),
                |path| path.display().to_string(),
            ),
            pages: self.facts.pages.clone(),
            workers: self.workers.len(),
            pool: self.pool(),
            sessions: reports.into_iter().flatten().collect(),
            workers_silent,
            leases: self.leases(now),
            chains: self.chains(),
        }
    }

    /// What chains have done: there is one worker if there is a device.
    fn chains(&self) -> Option<ChainStatus> {
        let worker = self.workers.first()?;
        (self.facts.build == BuildInfo::CHAIN_IWARP_TCP).then(|| worker.metrics.chains.status())
    }

    fn leases(&self, now: Time) -> Vec<LeaseStatus> {
        let ranges = self.plane.with(|directory| directory.ranges());
        ranges
            .into_iter()
            .filter(|range| range.session.is_none())
            .map(|range| LeaseStatus {
                tenant: range.tenant,
                initiator: uuid(&range.initiator),
                bound: range.bound.map_or(0, u64::from),
                left_ns: range.lease_ends.map(|at| at.since_ns(now)),
            })
            .collect()
    }
}

impl Answers for Overview {
    fn healthy(&self) -> Result<(), String> {
        if self.lifecycle.phase() == Phase::Stopped {
            return Err("stopped".to_owned());
        }
        match self.ask(Command::Ping, false).1 {
            0 => Ok(()),
            silent => Err(format!("{silent} workers do not answer")),
        }
    }

    fn ready(&self) -> Result<(), String> {
        match self.lifecycle.phase() {
            Phase::Running => Ok(()),
            other => Err(other.label().to_owned()),
        }
    }

    fn metrics(&self) -> String {
        self.metrics()
    }

    fn status(&self) -> String {
        // Strings and numbers only: it cannot fail.
        serde_json::to_string(&self.status()).unwrap_or_default()
    }

    fn audit(&self) -> String {
        serde_json::to_string(&AuditStatus::from(self.audit())).unwrap_or_default()
    }
}
