//! Rules about the text of files.

use crate::finding::Finding;
use crate::lexer::code_only;
use crate::metadata::Metadata;
use crate::tree::Tree;

/// Longest Rust file, in lines.
const MAX_LINES: usize = 900;

/// The crates that may contain unsafe code.
const MAY_BE_UNSAFE: &[&str] = &["kbtp-memory", "kbtp-verbs-sys"];

/// Starts of paths that name one machine, beside the home of whoever runs the check.
const MACHINE_PATHS: &[&str] = &["/home/", "/Users/"];

/// Macros that stand for code that is not there.
const UNWRITTEN: &[&str] = &["todo!", "unimplemented!"];

pub(crate) fn check(tree: &Tree, metadata: &Metadata, findings: &mut Vec<Finding>) {
    for (path, text) in tree.ending(".rs") {
        length(path, text, findings);
        unwritten(path, text, findings);
    }
    let home = std::env::var("HOME").map(|home| format!("{home}/"));
    let homes = home
        .iter()
        .map(String::as_str)
        .filter(|home| home.len() > 1);
    let starts: Vec<&str> = MACHINE_PATHS.iter().copied().chain(homes).collect();
    for (path, text) in tree.files() {
        machine_paths(path, text, &starts, findings);
    }
    crate_roots(tree, metadata, findings);
    unsafe_code(tree, metadata, findings);
}

fn length(path: &str, text: &str, findings: &mut Vec<Finding>) {
    let lines = text.lines().count();
    if lines > MAX_LINES {
        let what = format!("{lines} lines; no file has more than {MAX_LINES}");
        findings.push(Finding::of(path, what));
    }
}

fn unwritten(path: &str, text: &str, findings: &mut Vec<Finding>) {
    for (at, line) in code_only(text).lines().enumerate() {
        for name in UNWRITTEN.iter().filter(|name| line.contains(**name)) {
            findings.push(Finding::at(
                path,
                at + 1,
                format!("{name} stands for code that is not there"),
            ));
        }
    }
}

/// A machine's path starts a word: `/home/x`, not `docs/home/x`.
fn machine_paths(path: &str, text: &str, starts: &[&str], findings: &mut Vec<Finding>) {
    for (at, line) in text.lines().enumerate() {
        let starts_word = |start: &str| {
            line.match_indices(start).any(|(found, _)| {
                let before = line
                    .get(..found)
                    .and_then(|before| before.chars().next_back());
                before.is_none_or(|c| !c.is_alphanumeric() && !"._-~*{}$/".contains(c))
            })
        };
        for start in starts.iter().filter(|start| starts_word(start)) {
            // This list of them is the one place that names them.
            if !path.ends_with("xtask/src/tidy/sources.rs") {
                findings.push(Finding::at(
                    path,
                    at + 1,
                    format!("{start} is a path of one machine"),
                ));
            }
        }
    }
}

/// Each library and program opens with what it is for, and all but those crates forbid unsafe code.
fn crate_roots(tree: &Tree, metadata: &Metadata, findings: &mut Vec<Finding>) {
    for package in metadata.members() {
        for root in metadata.roots(package) {
            let Some(text) = tree.text(root) else {
                continue;
            };
            if !text.starts_with("//! ") {
                findings.push(Finding::of(
                    root,
                    "a crate opens with `//!` and what it is for",
                ));
            }
            let forbids = code_only(text).contains("#![forbid(unsafe_code)]");
            if !forbids && !MAY_BE_UNSAFE.contains(&package.name.as_str()) {
                findings.push(Finding::of(root, "#![forbid(unsafe_code)] is missing"));
            }
        }
    }
}

/// Test and example files are crates of their own, which a library's `forbid` does not reach. A test that counts
/// allocations is let through: an allocator cannot be written without unsafe code.
fn unsafe_code(tree: &Tree, metadata: &Metadata, findings: &mut Vec<Finding>) {
    let exempt: Vec<&str> = metadata
        .members()
        .filter(|package| MAY_BE_UNSAFE.contains(&package.name.as_str()))
        .map(|package| metadata.folder(package))
        .collect();
    let inside = |path: &str, folder: &str| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    for (path, text) in tree.ending(".rs") {
        if exempt.iter().any(|folder| inside(path, folder)) {
            continue;
        }
        let code = code_only(text);
        if path.contains("/tests/") && code.contains("unsafe impl GlobalAlloc") {
            continue;
        }
        for (at, line) in code.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.any(|word| word == "unsafe") {
                findings.push(Finding::at(
                    path,
                    at + 1,
                    "unsafe code outside the crates that may have it",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::fake::{member, metadata};

    const GOOD: &str = "//! A crate.\n#![forbid(unsafe_code)]\n";

    fn found(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::from([("shared/wire/src/lib.rs", GOOD), (path, text)]);
        let metadata = metadata(vec![
            member("kbtp-wire", "shared/wire", &[]),
            member("kbtp-memory", "shared/memory", &[]),
        ]);
        let mut findings = Vec::new();
        check(&tree, &metadata, &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_tree() {
        let memory = "//! Memory.\nunsafe fn f() {}\n";
        assert_eq!(
            found("shared/memory/src/lib.rs", memory),
            Vec::<String>::new()
        );
        let longest = "// line\n".repeat(MAX_LINES);
        assert_eq!(found("a.rs", &longest), Vec::<String>::new());
    }

    #[test]
    fn each_broken_rule_is_seen() {
        let long = "// line\n".repeat(MAX_LINES + 1);
        let lib = "shared/wire/src/lib.rs";
        for (path, text, expected) in [
            ("a.rs", long.as_str(), "a.rs: 901 lines"),
            ("a.rs", "fn f() {\n    todo!()\n}\n", "a.rs:2: todo! stands"),
            (
                "a.rs",
                "fn f() { unimplemented!(\"x\") }\n",
                "a.rs:1: unimplemented! stands",
            ),
            (
                "docs/a.md",
                "see `/Users/x`\n",
                "docs/a.md:1: /Users/ is a path",
            ),
            ("a.sh", "cd /home/me\n", "a.sh:1: /home/ is a path"),
            (lib, "//! A crate.\n", "#![forbid(unsafe_code)] is missing"),
            (
                lib,
                "//! C.\n// #![forbid(unsafe_code)]\n",
                "#![forbid(unsafe_code)] is missing",
            ),
            (lib, "#![forbid(unsafe_code)]\n", "a crate opens with"),
            (
                "shared/wire/tests/a.rs",
                "fn f() {\n  unsafe { g() }\n}\n",
                "a.rs:2: unsafe code",
            ),
            (
                "shared/memory2/src/a.rs",
                "unsafe impl Send for X {}\n",
                "a.rs:1: unsafe code",
            ),
        ] {
            let found = found(path, text);
            assert!(
                found.len() == 1 && found[0].contains(expected),
                "{expected}: {found:?}"
            );
        }
    }

    #[test]
    fn a_test_may_count_allocations_and_a_library_may_not() {
        let counting = "unsafe impl GlobalAlloc for Counting {}\n";
        assert_eq!(
            found("shared/wire/tests/a.rs", counting),
            Vec::<String>::new()
        );
        assert_eq!(found("shared/wire/src/a.rs", counting).len(), 1);
    }

    #[test]
    fn words_that_only_look_so_are_left_alone() {
        for text in [
            "// todo!() in a comment\n",
            "const A: &str = \"todo!()\";\n",
            "#![forbid(unsafe_code)]\n",
            "// https://example.org/home/x and docs/home/x and ${HOME}/home/x\n",
            "/// unsafe { } in a comment\n",
        ] {
            assert_eq!(found("a.rs", text), Vec::<String>::new(), "{text}");
        }
    }
}
