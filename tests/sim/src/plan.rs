//! What happens from outside, in order: operations and faults. Each step carries its own chance, so that leaving one out
//! changes none of the others: that is what makes histories shrink.

use crate::options::Options;
use crate::rng::{Rng, mix};

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "see `Faults`")]
pub enum Fault {
    Stall,
    Reset,
    HalfOpen,
    TargetCrash,
    AgentCrash,
    ClientCrash,
    SlowReader,
    Corrupt,
    Jump,
    Drain,
    Replace,
    LateWorker,
    LostWake,
    Forge,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Stall,
        Self::Reset,
        Self::HalfOpen,
        Self::TargetCrash,
        Self::AgentCrash,
        Self::ClientCrash,
        Self::SlowReader,
        Self::Corrupt,
        Self::Jump,
        Self::Drain,
        Self::Replace,
        Self::LateWorker,
        Self::LostWake,
        Self::Forge,
    ];
}

/// What a step is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// An operation of an initiator.
    Op,
    /// A fault.
    Fault(Fault),
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its number in the whole plan.
    pub number: u64,
    /// What it is.
    pub what: What,
    /// The initiator it is about.
    pub client: usize,
    /// Its chance.
    pub salt: u64,
    /// Nanoseconds after the one before.
    pub gap_ns: u64,
}

/// The plan of a run.
#[must_use]
pub fn draw(options: &Options) -> Vec<Step> {
    let rng = &mut Rng::new(mix(options.seed, 0x5b1a));
    let f = &options.faults;
    let rates = [
        f.stall,
        f.reset,
        f.half_open,
        f.target_crash,
        f.agent_crash,
        f.client_crash,
        f.slow_reader,
        f.corrupt,
        f.jump,
        f.drain,
        f.replace,
        f.late_worker,
        f.lost_wake,
        f.forge,
    ];
    (0..options.steps)
        .map(|number| {
            let mut at = rng.below(10_000);
            let mut what = What::Op;
            for (fault, rate) in Fault::ALL.into_iter().zip(rates) {
                if at < rate {
                    what = What::Fault(fault);
                    break;
                }
                at -= rate;
            }
            Step {
                number,
                what,
                client: rng.below(options.clients as u64) as usize,
                salt: rng.next(),
                gap_ns: match rng.below(8) {
                    0 => 0,
                    1 => options.gap_ns * 10,
                    _ => rng.below(options.gap_ns * 2),
                },
            }
        })
        .collect()
}
