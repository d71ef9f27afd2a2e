//! The static checker: what must hold of a template whatever a client sends and however the device schedules.

mod armed;
mod flow;
mod patches;
mod rearmed;
mod rows;
mod shape;

pub use armed::check_armed;
pub use rearmed::check_rearmed;
pub use rows::check_rows;

use crate::element::Name;
use crate::key::Sizes;
use crate::order::Order;
use crate::template::Template;
use core::fmt;

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// A patch is in place before the device reads the WQE.
    R1PatchInTime,
    /// What is to be patched does no harm unpatched.
    R2InertUnpatched,
    /// What a client sends reaches only addresses that are checked, and its own buffer's.
    R3ClientConfined,
    /// Index, queue pair and length of a WQE are never patched.
    R4IdentityFixed,
    /// Every slot writes the same CQEs, and WAITs count them.
    R5CqesCounted,
    /// A WAIT for another queue is followed by a look at the CQE before anything has an effect.
    R6StatusChecked,
    /// Octets are written before they are read, or after.
    R7DataOrdered,
    /// Lengths add up and fit.
    R8LengthsFit,
    /// Atomics and WAITs for data are aligned.
    R9Aligned,
    /// Nobody else writes a word between two compare-and-swaps on it.
    R10WordAlone,
    /// Each record does what its request asks for, and nothing else.
    R11RecordsExact,
    /// Each WQE is enabled once, in order, and the slot ends in the next.
    R12Terminates,
    /// Keys are of the queue's domain and allow what is done, no more.
    R13KeysConfined,
    /// A request can come only when its slot is complete.
    R14ArmedFirst,
}

impl Rule {
    /// Every rule, in order.
    pub const ALL: [Self; 14] = [
        Self::R1PatchInTime,
        Self::R2InertUnpatched,
        Self::R3ClientConfined,
        Self::R4IdentityFixed,
        Self::R5CqesCounted,
        Self::R6StatusChecked,
        Self::R7DataOrdered,
        Self::R8LengthsFit,
        Self::R9Aligned,
        Self::R10WordAlone,
        Self::R11RecordsExact,
        Self::R12Terminates,
        Self::R13KeysConfined,
        Self::R14ArmedFirst,
    ];

    /// What it says, in a sentence.
    #[must_use]
    pub const fn says(self) -> &'static str {
        match self {
            Self::R1PatchInTime => "a patch is in place before the device reads the WQE",
            Self::R2InertUnpatched => "what is to be patched does no harm unpatched",
            Self::R3ClientConfined => {
                "what a client sends reaches only addresses that are checked, and its own buffer's"
            }
            Self::R4IdentityFixed => "index, queue pair and length of a WQE are never patched",
            Self::R5CqesCounted => "every slot writes the same CQEs, and WAITs count them",
            Self::R6StatusChecked => {
                "a WAIT for another queue is followed by a look at the CQE before anything has an effect"
            }
            Self::R7DataOrdered => "octets are written before they are read, or after",
            Self::R8LengthsFit => "lengths add up and fit",
            Self::R9Aligned => "atomics and WAITs for data are aligned",
            Self::R10WordAlone => "nobody else writes a word between two compare-and-swaps on it",
            Self::R11RecordsExact => "each record does what its request asks for, and nothing else",
            Self::R12Terminates => {
                "each WQE is enabled once, in order, and the slot ends in the next"
            }
            Self::R13KeysConfined => {
                "keys are of the queue's domain and allow what is done, no more"
            }
            Self::R14ArmedFirst => "a request can come only when its slot is complete",
        }
    }
}

/// A rule that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which rule.
    pub rule: Rule,
    /// Where.
    pub wqe: Name,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {}", self.rule, self.wqe, self.what)
    }
}

/// Collects findings.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, rule: Rule, wqe: Name, what: impl Into<String>) {
        let what = what.into();
        self.0.push(Finding { rule, wqe, what });
    }

    fn unless(&mut self, holds: bool, rule: Rule, wqe: Name, what: impl Into<String>) {
        if !holds {
            self.add(rule, wqe, what);
        }
    }
}

/// Every rule that a template breaks: rules 1 to 10, 12 and 13. [`check_rows`] has rule 11 and [`check_armed`] rule 14 and
/// the rest of rule 5.
#[must_use]
pub fn check(template: &Template, sizes: &Sizes) -> Vec<Finding> {
    let order = Order::of(template);
    let mut findings = Findings::default();
    patches::check(template, sizes, &order, &mut findings);
    flow::check(template, &order, &mut findings);
    shape::check(template, &mut findings);
    findings.0
}
