//! One session that keeps a number of equal operations in flight: what is measured by `kbtp bench` and `kbtp-bench`.

use crate::cli::{BenchOp, TenantArgs};
use crate::content;
use crate::driver::{self, Interrupt};
use crate::failure::Failure;
use crate::session::{self, Session};
use hdrhistogram::Histogram;
use kbtp_initiator::{
    Buffer, Completed, FreeOptions, Generation, Handle, LoadOptions, Op, Operation, Spin,
    StoreItem, StoreOptions,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Latencies up to this are told apart: an operation is given up long before.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Significant figures of a latency: an error of 0.1 %.
const FIGURES: u8 = 3;

/// What a lane does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The target.
    pub target: SocketAddr,
    /// Who we are.
    pub who: TenantArgs,
    /// The operation.
    pub op: BenchOp,
    /// Octets of each operation.
    pub size: u32,
    /// Operations in flight.
    pub depth: u16,
    /// Handles to go round: beyond the caches, if they and the size multiply to more.
    pub blocks: u32,
    /// Whether it looks for answers for a while before it sleeps.
    pub spin: bool,
}

/// What a lane did.
#[derive(Debug)]
pub struct Run {
    /// Operations that ended.
    pub operations: u64,
    /// Octets they moved.
    pub octets: u64,
    /// From the first submission to the last answer.
    pub elapsed: Duration,
    /// Of each operation, from submission to answer, in nanoseconds.
    pub latency: Histogram<u64>,
}

/// An empty histogram of latencies in nanoseconds.
///
/// # Errors
/// [`Failure`] if memory is short.
pub fn latencies() -> Result<Histogram<u64>, Failure> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, FIGURES)
        .map_err(|e| Failure::operation(format_args!("no histogram: {e}"), "report this"))
}

/// Records a latency.
pub fn record(histogram: &mut Histogram<u64>, took: Duration) {
    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    histogram.saturating_record(ns.max(1));
}

/// A session and its buffers.
#[derive(Debug)]
pub struct Lane {
    session: Session,
    plan: Plan,
    /// Handles in turn; a generation where one is bound.
    handles: VecDeque<(Handle, Option<Generation>)>,
    idle: Vec<Buffer>,
    /// Buffers whose block is on its way back: so allocations and frees together never pass the depth.
    freeing: Vec<Buffer>,
    flying: Vec<(Op, Instant)>,
    interrupt: Option<Interrupt>,
}

impl Lane {
    /// Opens the session and, but for [`BenchOp::Alloc`], binds its blocks.
    ///
    /// # Errors
    /// [`Failure`] if the target has too few blocks, credits or octets in a block.
    pub fn open(plan: &Plan) -> Result<Self, Failure> {
        let options = session::options(plan.target, &plan.who)?
            .credits(plan.depth)
            .quota(plan.blocks)
            .spin(if plan.spin { Spin::Auto } else { Spin::Off })
            .handles(u64::from(plan.blocks));
        let session = session::open(options)?;
        check(&session, plan)?;
        let (base, _) = session.handles();
        let mut lane = Self {
            idle: session
                .register_many(usize::from(plan.depth), plan.size)
                .map_err(|e| session::failed("no buffers", &e))?,
            handles: (0..u64::from(plan.blocks))
                .map(|i| (Handle(base.0 + i), None))
                .collect(),
            interrupt: None,
            plan: plan.clone(),
            session,
            freeing: Vec::with_capacity(usize::from(plan.depth)),
            flying: Vec::with_capacity(usize::from(plan.depth)),
        };
        let mut content = vec![0; usize::try_from(plan.size).unwrap_or(0)];
        for (i, buffer) in (0..).zip(&mut lane.idle) {
            content::fill(i, &mut content);
            buffer
                .fill(&content)
                .map_err(|e| session::failed("cannot fill a buffer", &e))?;
        }
        if plan.op != BenchOp::Alloc {
            lane.bind()?;
        }
        Ok(lane)
    }

    /// Ends runs early when a signal comes.
    pub fn stop_on(&mut self, interrupt: &Interrupt) {
        self.interrupt = Some(interrupt.clone());
    }

    /// Binds every handle: sealed, as they are loaded, or open, as they are stored to.
    fn bind(&mut self) -> Result<(), Failure> {
        let seal = self.plan.op == BenchOp::Load;
        let handles = self.handles.make_contiguous();
        for handles in handles.chunks_mut(self.idle.len().max(1)) {
            let mut items: Vec<StoreItem<'_>> = handles
                .iter()
                .zip(&mut self.idle)
                .map(|((handle, _), buffer)| {
                    let mut item = StoreItem::new(*handle, buffer);
                    item.options.seal = seal;
                    item
                })
                .collect();
            self.session
                .alloc_store_many(&mut items)
                .map_err(|e| session::failed("cannot bind blocks", &e))?;
            for (item, (_, generation)) in items.into_iter().zip(handles) {
                let done = item
                    .result
                    .transpose()
                    .map_err(|e| session::failed("cannot bind a block", &e))?;
                *generation = done.map(|d| d.generation);
            }
        }
        Ok(())
    }

    /// Keeps the operations in flight for `window`, then waits for the last.
    ///
    /// # Errors
    /// [`Failure`] if one fails.
    pub fn run(&mut self, window: Duration) -> Result<Run, Failure> {
        let mut run = Run {
            operations: 0,
            octets: 0,
            elapsed: Duration::ZERO,
            latency: latencies()?,
        };
        let began = driver::now();
        let mut now = began;
        loop {
            let stopped = self.interrupt.as_ref().is_some_and(Interrupt::came);
            if now.duration_since(began) < window && !stopped {
                while !self.handles.is_empty()
                    && let Some(buffer) = self.idle.pop()
                {
                    self.submit(buffer)?;
                }
            }
            let ended = self
                .session
                .wait_any()
                .map_err(|e| session::failed("cannot wait", &e))?;
            now = driver::now();
            let Some(ended) = ended else {
                run.elapsed = now.duration_since(began);
                return Ok(run);
            };
            self.take(ended, now, &mut run)?;
        }
    }

    fn submit(&mut self, buffer: Buffer) -> Result<(), Failure> {
        let Some((handle, generation)) = self.handles.pop_front() else {
            self.idle.push(buffer);
            return Ok(());
        };
        if self.plan.op != BenchOp::Alloc {
            self.handles.push_back((handle, generation));
        }
        let began = driver::now();
        let op = match self.plan.op {
            BenchOp::Load => {
                let options = LoadOptions {
                    generation,
                    ..LoadOptions::default()
                };
                self.session.submit_load(handle, buffer, &options)
            }
            BenchOp::Store => {
                let options = StoreOptions {
                    generation,
                    seal: false,
                    ..StoreOptions::default()
                };
                self.session.submit_store(handle, buffer, &options)
            }
            BenchOp::Alloc => {
                self.session
                    .submit_alloc_store(handle, buffer, &StoreOptions::default())
            }
        };
        let op = op.map_err(|e| session::failed("cannot submit", &e.error))?;
        self.flying.push((op, began));
        Ok(())
    }

    fn take(&mut self, ended: Completed, now: Instant, run: &mut Run) -> Result<(), Failure> {
        ended
            .result
            .map_err(|e| session::failed("an operation failed", &e))?;
        if let Some(at) = self.flying.iter().position(|(op, _)| *op == ended.op) {
            let (_, began) = self.flying.swap_remove(at);
            record(&mut run.latency, now.duration_since(began));
            run.operations += 1;
            run.octets += u64::from(self.plan.size);
        }
        match ended.operation {
            Operation::AllocStore => {
                self.freeing.extend(ended.buffer);
                self.session
                    .submit_free(ended.handle, &FreeOptions::default())
                    .map_err(|e| session::failed("cannot submit a free", &e.error))?;
            }
            Operation::Free => {
                self.handles.push_back((ended.handle, None));
                self.idle.extend(self.freeing.pop());
            }
            _ => self.idle.extend(ended.buffer),
        }
        Ok(())
    }

    /// Frees what was bound and ends the session.
    ///
    /// # Errors
    /// [`Failure`] if the session cannot be ended in order; the target's lease frees the blocks then.
    pub fn close(mut self) -> Result<(), Failure> {
        let bound = self.handles.iter().filter(|(_, g)| g.is_some());
        let mut items: Vec<_> = bound
            .map(|(handle, _)| kbtp_initiator::FreeItem::new(*handle))
            .collect();
        self.session
            .free_many(&mut items)
            .map_err(|e| session::failed("cannot free the blocks", &e))?;
        self.session
            .close()
            .map_err(|e| session::failed("cannot end the session", &e))
    }
}

fn check(session: &Session, plan: &Plan) -> Result<(), Failure> {
    let terms = session.terms();
    let too_little = |what: &str, needed: u64, granted: u64, remedy: &str| {
        Err(Failure::operation(
            format_args!("{what}: {needed} needed, {} grants {granted}", plan.target),
            remedy,
        ))
    };
    if terms.grant.block_size.0 < plan.size {
        let (size, max) = (u64::from(plan.size), terms.grant.block_size.get());
        return too_little(
            "octets in a block",
            size,
            max,
            "take a smaller --size, or a target with a larger --block-size",
        );
    }
    if terms.grant.quota < plan.blocks {
        let (blocks, quota) = (u64::from(plan.blocks), u64::from(terms.grant.quota));
        return too_little(
            "blocks",
            blocks,
            quota,
            "take fewer --sessions, or a target with more --blocks",
        );
    }
    if terms.requests < plan.depth {
        let (depth, credits) = (u64::from(plan.depth), u64::from(terms.requests));
        return too_little(
            "requests in flight",
            depth,
            credits,
            "take a smaller --depth, or a target with more credits",
        );
    }
    Ok(())
}
