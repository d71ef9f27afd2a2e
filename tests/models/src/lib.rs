//! Exhaustive models of what runs concurrently in the protocol, small enough that every interleaving is visited.
//!
//! Each model has switches that leave one rule out; the tests demand that the model as specified holds and that
//! each mutilated one fails, so that a property that could not fail would be seen.
#![forbid(unsafe_code)]
#![expect(
    clippy::indexing_slicing,
    reason = "every index comes from the model's own small state; a wrong one must stop the checker"
)]

pub mod check;
pub mod direct_alloc;
pub mod direct_load;
mod marks;
pub mod partition;
pub mod ring;
pub mod session;
mod whole_ring;
