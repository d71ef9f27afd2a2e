//! Running a model: every state visited, or the violation of one property found.

use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

/// How much there was to visit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visited {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
}

/// Visits every state of `model`, and says on standard error how many there were. Each `always` property must hold in all of them and each `sometimes` property in one.
///
/// # Panics
/// With the steps that lead to a violation.
pub fn holds<M>(model: M) -> Visited
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Send + Sync + Clone + Debug + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    let began = clock();
    let checker = model
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    checker.assert_properties();
    let visited = Visited {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
    };
    let seconds = began.elapsed().as_secs_f32();
    let (states, steps) = (visited.states, visited.steps);
    eprintln!("{states} states, {steps} steps, {seconds:.1} s");
    visited
}

/// Searches `model` until a state violates the `always` property of this name; the number of steps that lead there, or
/// `None` if no state does.
pub fn violation<M>(model: M, property: &'static str) -> Option<usize>
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Send + Sync + Clone + Debug + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([property])))
        .spawn_bfs()
        .join();
    let path = checker.discovery(property)?;
    Some(path.into_actions().len())
}

#[expect(
    clippy::disallowed_methods,
    reason = "for the report alone: nothing depends on it"
)]
fn clock() -> Instant {
    Instant::now()
}
