//! The pool follows the models of `tests/models`: it runs on threads of shuttle, in random schedules, and each use of a
//! word that a step of the model stands for must be a step that the model allows then, to a state that looks the same.
//! Run with `make shuttle`, which also switches on faults of `plants.rs`: with each of these it must not follow.

mod ring;

use stateright::Model;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// What the panic says when the product does not follow.
const ASTRAY: &str = "the model does not do so";

/// Runs schedules with a fault in the product until one is found in which it does not follow.
#[cfg(feature = "plants")]
fn strays(fault: crate::plants::Plant, run: fn()) {
    crate::plants::plant(Some(fault));
    let result = std::panic::catch_unwind(|| crate::schedules::check(run));
    crate::plants::plant(None);
    let payload = result.expect_err("it follows nevertheless");
    let text = payload
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_default();
    assert!(text.contains(ASTRAY), "{fault:?}: another panic: {text}");
}

/// A model that is gone through in step with the product.
struct Way<M: Model> {
    model: M,
    state: M::State,
    /// How often each step was made.
    steps: BTreeMap<&'static str, u64>,
}

impl<M: Model> Way<M>
where
    M::State: Debug,
    M::Action: Clone + PartialEq + Debug,
{
    fn new(model: M) -> Self {
        let state = model.init_states().remove(0);
        Self {
            model,
            state,
            steps: BTreeMap::new(),
        }
    }

    /// The product does `what`, which is this step.
    fn go(&mut self, what: &'static str, action: M::Action) {
        let mut allowed = Vec::new();
        self.model.actions(&self.state, &mut allowed);
        self.must(allowed.contains(&action), || {
            format!("{what}, that is {action:?}")
        });
        let next = self.model.next_state(&self.state, action);
        self.state = next.expect("a step that is allowed");
        *self.steps.entry(what).or_default() += 1;
    }

    /// Product and model look the same.
    fn must(&self, same: bool, what: impl FnOnce() -> String) {
        assert!(same, "{ASTRAY}: {}, in {:?}", what(), self.state);
    }
}
