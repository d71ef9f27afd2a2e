//! The rules of the tree.

mod crates;
mod sources;

use crate::finding::Finding;
use crate::metadata::Metadata;
use crate::tree::Tree;

/// Everything that breaks a rule.
pub(crate) fn check(tree: &Tree, metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    sources::check(tree, metadata, &mut findings);
    crates::check(tree, metadata, &mut findings);
    findings
}
