//! Rules about crates: who may depend on whom and on what.

use crate::finding::Finding;
use crate::licence;
use crate::metadata::{Metadata, Package};
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// The layer of each crate; a crate depends on lower ones only. What else lies in `tools` and `tests` is above all.
const LAYERS: &[(&str, u8)] = &[
    ("kbtp-wire", 0),
    ("kbtp-memory", 1),
    // Depends on nothing, so that a crate's tests can run it beside their product.
    ("kbtp-models", 1),
    // The offload's own branch: wire, then the device's octets, then the chains made of them.
    ("kbtp-mlx5", 1),
    ("kbtp-chain", 2),
    // A device as a trait, over regions; then a model of one, whose clients may be fabric streams.
    ("kbtp-device", 3),
    ("kbtp-nic-model", 4),
    ("kbtp-mlx5-devx", 4),
    ("kbtp-fabric", 2),
    ("kbtp-iwarp", 3),
    ("kbtp-core", 3),
    ("kbtp-control", 3),
    ("kbtp-iwarp-tcp", 4),
    // Libraries of C and their objects; the transport over them.
    ("kbtp-verbs-sys", 2),
    ("kbtp-verbs", 4),
    ("kbtp-agent", 5),
    // A target on its own (`--standalone`) runs an agent in its process.
    ("kbtp-target", 6),
    // Beside the target: neither uses the other, but each is tested against the other.
    ("kbtp-initiator", 6),
];

const TOP: u8 = 9;

/// Crates whose state machines read no clock, socket or file, and what they may use from elsewhere.
const PURE: &[(&str, &[&str])] = &[
    ("kbtp-wire", &["thiserror"]),
    ("kbtp-mlx5", &["thiserror"]),
    ("kbtp-chain", &["thiserror"]),
    ("kbtp-fabric", &["thiserror"]),
    ("kbtp-iwarp", &["thiserror"]),
    ("kbtp-core", &["thiserror", "hmac", "sha2", "subtle"]),
];

/// Where each direct dependency is accounted for.
const ACCOUNT: &str = "docs/dependencies.md";

/// Packages that are there in two versions, and why that is borne.
const TWICE: &[(&str, &str)] = &[
    (
        "embedded-io",
        "postcard asks for both; neither has code in a std build",
    ),
    ("getrandom", "proptest (tests) is one version behind"),
    ("hashbrown", "stateright (tests) is behind"),
    ("rand", "proptest (tests) is one version behind"),
    ("rand_core", "proptest (tests) is one version behind"),
];

pub(crate) fn check(tree: &Tree, metadata: &Metadata, findings: &mut Vec<Finding>) {
    arrows(metadata, findings);
    pure(metadata, findings);
    accounted(tree, metadata, findings);
    licences(metadata, findings);
    duplicates(metadata, findings);
}

fn layer(metadata: &Metadata, package: &Package) -> Option<u8> {
    let folder = metadata.folder(package);
    let above = folder.starts_with("tools/") || folder.starts_with("tests/");
    LAYERS
        .iter()
        .find(|(name, _)| *name == package.name)
        .map(|(_, layer)| *layer)
        .or_else(|| above.then_some(TOP))
}

fn arrows(metadata: &Metadata, findings: &mut Vec<Finding>) {
    let mut layers = BTreeMap::new();
    for package in metadata.members() {
        match layer(metadata, package) {
            Some(layer) => {
                layers.insert(package.name.as_str(), layer);
            }
            None => findings.push(Finding::of(&package.name, "has no layer in xtask's LAYERS")),
        }
    }
    for package in metadata.members() {
        let Some(own) = layers.get(package.name.as_str()) else {
            continue;
        };
        for dependency in &package.dependencies {
            // A test may look down from anywhere; it must not pull its crate's users in.
            let limit = if dependency.kind.as_deref() == Some("dev") {
                own + 1
            } else {
                *own
            };
            match layers.get(dependency.name.as_str()) {
                Some(other) if *other >= limit && *own != TOP => {
                    let what = format!(
                        "depends on {}, which is not below it (layers {own} and {other})",
                        dependency.name
                    );
                    findings.push(Finding::of(&package.name, what));
                }
                _ => {}
            }
        }
    }
}

fn members(metadata: &Metadata) -> BTreeSet<&str> {
    metadata
        .members()
        .map(|package| package.name.as_str())
        .collect()
}

fn pure(metadata: &Metadata, findings: &mut Vec<Finding>) {
    let members = members(metadata);
    for package in metadata.members() {
        let Some((_, allowed)) = PURE.iter().find(|(name, _)| *name == package.name) else {
            continue;
        };
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            // Under cfg(loom) and cfg(shuttle) a checker takes the place of std's atomics or of its threads.
            let own = format!("cfg({name})");
            let checker = matches!(name, "loom" | "shuttle") && dependency.target == Some(own);
            let free = dependency.kind.as_deref() == Some("dev") || checker;
            if !free && !members.contains(name) && !allowed.contains(&name) {
                let what = format!("depends on {name}; this crate may use {allowed:?} only");
                findings.push(Finding::of(&package.name, what));
            }
        }
    }
}

fn accounted(tree: &Tree, metadata: &Metadata, findings: &mut Vec<Finding>) {
    let text = tree.text(ACCOUNT).unwrap_or_default();
    // The table only: naming a crate among those not used does not account for it.
    let rows: String = text.lines().filter(|line| line.starts_with('|')).collect();
    let named: BTreeSet<&str> = rows
        .split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_')
        .collect();
    let members = members(metadata);
    let direct: BTreeSet<&str> = metadata
        .members()
        .flat_map(|package| &package.dependencies)
        .map(|dependency| dependency.name.as_str())
        .filter(|name| !members.contains(name))
        .collect();
    for name in direct.difference(&named) {
        findings.push(Finding::of(ACCOUNT, format!("does not account for {name}")));
    }
}

fn licences(metadata: &Metadata, findings: &mut Vec<Finding>) {
    for package in metadata.external() {
        let place = format!("{} {}", package.name, package.version);
        match &package.license {
            None => findings.push(Finding::of(place, "names no licence")),
            Some(licence) if !licence::accepted(licence) => {
                let what = format!("{licence} is not among {:?}", licence::ACCEPTED);
                findings.push(Finding::of(place, what));
            }
            Some(_) => {}
        }
    }
}

fn duplicates(metadata: &Metadata, findings: &mut Vec<Finding>) {
    let mut versions = BTreeMap::<&str, BTreeSet<&str>>::new();
    for package in metadata.external() {
        versions
            .entry(&package.name)
            .or_default()
            .insert(&package.version);
    }
    for (name, versions) in versions {
        if versions.len() > 1 && !TWICE.iter().any(|(twice, _)| *twice == name) {
            let what =
                format!("is there in versions {versions:?}; drop one or say why in xtask's TWICE");
            findings.push(Finding::of(name, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::fake::{external, member, metadata};
    use serde_json::Value;

    const TABLE: &str = "| crate | why |\n|---|---|\n| thiserror 2 | errors |\n| loom 0.7 (tests) | x |\n- nix: not used\n";

    fn found(packages: Vec<Value>) -> Vec<String> {
        let tree = Tree::from([(ACCOUNT, TABLE)]);
        let mut findings = Vec::new();
        check(&tree, &metadata(packages), &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    fn wire() -> Value {
        member("kbtp-wire", "shared/wire", &[("thiserror", None)])
    }

    #[test]
    fn a_good_workspace() {
        let good = vec![
            wire(),
            member("kbtp-fabric", "shared/fabric", &[("kbtp-wire", None)]),
            member(
                "kbtp-core",
                "shared/core",
                &[("kbtp-fabric", None), ("kbtp-iwarp", Some("dev"))],
            ),
            member("kbtp-iwarp", "shared/iwarp", &[("kbtp-wire", None)]),
            member(
                "kbtp-sim",
                "tests/sim",
                &[("kbtp-core", None), ("xtask", None)],
            ),
            member("xtask", "tools/xtask", &[]),
            external("thiserror", "2.0.0", Some("MIT OR Apache-2.0")),
        ];
        assert_eq!(found(good), Vec::<String>::new());
    }

    #[test]
    fn each_broken_rule_is_seen() {
        let fabric = |dependency, kind| {
            vec![
                wire(),
                member("kbtp-fabric", "shared/fabric", &[(dependency, kind)]),
                member("kbtp-core", "shared/core", &[]),
                member("kbtp-iwarp", "shared/iwarp", &[]),
            ]
        };
        let core_on_iwarp = vec![
            member("kbtp-core", "shared/core", &[("kbtp-iwarp", None)]),
            member("kbtp-iwarp", "shared/iwarp", &[]),
        ];
        for (packages, expected) in [
            (
                fabric("kbtp-core", None),
                "kbtp-fabric: depends on kbtp-core, which is not below",
            ),
            (
                fabric("kbtp-core", Some("build")),
                "kbtp-fabric: depends on kbtp-core",
            ),
            (
                fabric("kbtp-core", Some("dev")),
                "kbtp-fabric: depends on kbtp-core",
            ),
            (
                core_on_iwarp,
                "kbtp-core: depends on kbtp-iwarp, which is not below",
            ),
            (
                vec![member("kbtp-new", "shared/new", &[])],
                "kbtp-new: has no layer",
            ),
            (
                vec![member("kbtp-target", "dpu-target", &[("nix", None)])],
                "docs/dependencies.md: does not account for nix",
            ),
            (
                fabric("loom", None),
                "kbtp-fabric: depends on loom; this crate may use",
            ),
            (
                vec![external("x", "1.0.0", Some("GPL-3.0-only"))],
                "x 1.0.0: GPL-3.0-only is not",
            ),
            (
                vec![external("x", "1.0.0", None)],
                "x 1.0.0: names no licence",
            ),
            (
                vec![
                    external("x", "1.0.0", Some("MIT")),
                    external("x", "2.0.0", Some("MIT")),
                ],
                "x: is there in versions",
            ),
        ] {
            let found = found(packages);
            assert!(
                found.len() == 1 && found[0].starts_with(expected),
                "{expected}: {found:?}"
            );
        }
    }
}
