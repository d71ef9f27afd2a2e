//! The tables of `docs/SPECIFICATION.md` and `docs/THREAT-MODEL.md`, held together with code and tests.
//!
//! A table counts if the head of its last column is `Held by`. Each row has an id in its first cell, and its last cell
//! names what holds it, each in backquotes:
//!
//! - `PATH.rs::name`: a test that runs (not ignored), or a constant whose value stands in the row's cell `Number`;
//! - `docs/target.toml::key`: a default, whose value stands there too;
//! - `make TARGET`, with `BENCHFLAGS="..."` for a benchmark: target and options exist;
//! - `instructions:NAME`: a count with a committed baseline.
//!
//! `PATH` may leave out leading folders as long as one file only ends so. In every other cell and in the text around,
//! what has the form of a path must exist, and a `::name` after it must be defined there.

mod constant;
mod table;
mod tests_of;

use crate::finding::Finding;
use crate::tree::Tree;
use constant::Value;
use std::collections::BTreeSet;
use table::Row;

/// The documents.
const DOCUMENTS: &[&str] = &["docs/SPECIFICATION.md", "docs/THREAT-MODEL.md"];

/// Where the options of `make bench` are defined.
const BENCH_OPTIONS: &str = "tools/kbtp-bench/src/cli.rs";

/// Where the counts of `make instructions` are.
pub(crate) const INSTRUCTIONS: &str = "tests/instructions/baseline.toml";

/// What files of the tree end in that a document may name.
const ENDINGS: &[&str] = &["rs", "md", "toml", "txt", "service"];

fn ending(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(_, ending)| ending)
}

/// Rows that were looked at, for the summary.
pub(crate) fn check(tree: &Tree, findings: &mut Vec<Finding>) -> usize {
    let mut ids = BTreeSet::new();
    let mut rows = 0;
    for document in DOCUMENTS {
        let Some(text) = tree.text(document) else {
            findings.push(Finding::of(*document, "this document is missing"));
            continue;
        };
        for (at, line) in text.lines().enumerate() {
            for words in table::quoted(line) {
                if let Err(what) = place(tree, words) {
                    findings.push(Finding::at(*document, at + 1, what));
                }
            }
        }
        for row in table::rows(text) {
            rows += 1;
            let mut fault = |what: String| findings.push(Finding::at(*document, row.line, what));
            if row.id.is_empty() || row.id.contains(char::is_whitespace) {
                fault(format!("`{}` is no id", row.id));
            } else if !ids.insert(row.id.to_owned()) {
                fault(format!("{} stands twice", row.id));
            }
            let held: Vec<&str> = table::quoted(row.held_by).collect();
            if held.is_empty() {
                fault(format!("{}: nothing holds it", row.id));
            }
            for words in held {
                if let Err(what) = holds(tree, &row, words) {
                    fault(format!("{}: {what}", row.id));
                }
            }
        }
    }
    rows
}

/// Whether what has the form of a path is there.
fn place(tree: &Tree, words: &str) -> Result<(), String> {
    let (path, name) = words.split_once("::").unwrap_or((words, ""));
    let is_path = ENDINGS.contains(&ending(path))
        && !path.contains([' ', '*', '<'])
        && (path.contains('/') || !name.is_empty());
    if !is_path || path.starts_with('/') {
        return Ok(());
    }
    let text = file(tree, path)?;
    if ending(path) == "rs" && !name.is_empty() && !tests_of::defines(text, name) {
        return Err(format!("{path} defines no {name}"));
    }
    Ok(())
}

/// The one file whose path is or ends with this.
fn file<'a>(tree: &'a Tree, path: &str) -> Result<&'a str, String> {
    if let Some(text) = tree.text(path) {
        return Ok(text);
    }
    let end = format!("/{path}");
    let mut found = tree.ending(&end);
    match (found.next(), found.next()) {
        (Some((_, text)), None) => Ok(text),
        (None, _) => Err(format!("there is no file {path}")),
        (Some((one, _)), Some((two, _))) => Err(format!("{path} may be {one} or {two}")),
    }
}

fn holds(tree: &Tree, row: &Row<'_>, words: &str) -> Result<(), String> {
    if let Some(command) = words.strip_prefix("make ") {
        return made(tree, command);
    }
    if let Some(name) = words.strip_prefix("instructions:") {
        let text = tree.text(INSTRUCTIONS).unwrap_or_default();
        let known = text
            .lines()
            .any(|line| line.split('=').next().is_some_and(|key| key.trim() == name));
        return known
            .then_some(())
            .ok_or_else(|| format!("{INSTRUCTIONS} counts no {name}"));
    }
    let Some((path, name)) = words.split_once("::") else {
        return Err(format!(
            "`{words}` names neither test, constant nor benchmark"
        ));
    };
    let text = file(tree, path)?;
    if ending(path) == "toml" {
        let value = constant::of_toml(text, name)
            .ok_or_else(|| format!("{path} gives {name} no value that is a number"))?;
        return stands(row, words, value);
    }
    if name.starts_with(|c: char| c.is_ascii_uppercase()) {
        let value = constant::of_rust(tree, text, name)
            .ok_or_else(|| format!("{path} has no constant {name} that this check can read"))?;
        return stands(row, words, value);
    }
    if tests_of::is_test(text, name) {
        Ok(())
    } else {
        Err(format!("{path} has no test {name}, or it is ignored"))
    }
}

/// Whether the value stands in the row's number.
fn stands(row: &Row<'_>, what: &str, value: Value) -> Result<(), String> {
    let told = constant::told(row.number);
    if told.contains(&value) {
        Ok(())
    } else {
        Err(format!("{what} is {value}, the row says `{}`", row.number))
    }
}

/// `TARGET` or `TARGET BENCHFLAGS="--option value ..."`.
fn made(tree: &Tree, command: &str) -> Result<(), String> {
    let (target, flags) = command.split_once(' ').unwrap_or((command, ""));
    let makefile = tree.text("Makefile").unwrap_or_default();
    if !makefile
        .lines()
        .any(|line| line.split(':').next() == Some(target) && line.contains(':'))
    {
        return Err(format!("the Makefile has no target {target}"));
    }
    let options = tree.text(BENCH_OPTIONS).unwrap_or_default();
    for option in flags
        .split([' ', '"', '='])
        .filter_map(|word| word.strip_prefix("--"))
    {
        let field = format!("pub(crate) {}:", option.replace('-', "_"));
        if !options.contains(&field) {
            return Err(format!("the benchmark has no option --{option}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str =
        "pub const SESSIONS: u32 = 10_000;\npub const WAIT_MS: u64 = 2_000;\nfn helper() {}\n";
    const TESTS: &str =
        "#[test]\nfn it_holds() {}\n#[test]\n#[ignore = \"long\"]\nfn it_is_long() {}\n";
    const MODEL: &str = "See `a/src/limits.rs`.\n";

    fn findings(document: &str) -> Vec<String> {
        let tree = Tree::from([
            ("docs/SPECIFICATION.md", document),
            ("docs/THREAT-MODEL.md", MODEL),
            (
                "docs/target.toml",
                "lease = \"5m\"\n[limits]\nhalf_open = 256\n",
            ),
            ("Makefile", "bench: ## Measure\n"),
            (BENCH_OPTIONS, "    pub(crate) sizes: Vec<u64>,\n"),
            (INSTRUCTIONS, "[count]\nfree = 12\n"),
            ("a/src/limits.rs", CODE),
            ("a/tests/it.rs", TESTS),
            ("b/tests/it.rs", TESTS),
        ]);
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        findings.into_iter().map(|finding| finding.what).collect()
    }

    fn row(number: &str, held_by: &str) -> String {
        format!(
            "| Id | Promise | Number | Held by |\n|---|---|---|---|\n| X-1 | what | {number} | {held_by} |\n"
        )
    }

    #[test]
    fn a_good_row_is_good() {
        for (number, held_by) in [
            ("", "`a/tests/it.rs::it_holds`"),
            ("10,000", "`limits.rs::SESSIONS`"),
            (
                "2 s and 10,000",
                "`limits.rs::WAIT_MS`, `limits.rs::SESSIONS`",
            ),
            ("5 min", "`docs/target.toml::lease`"),
            ("256", "`docs/target.toml::limits.half_open`"),
            ("1.3", "`make bench BENCHFLAGS=\"--sizes 4KiB\"`"),
            ("", "`instructions:free`"),
        ] {
            assert_eq!(
                findings(&row(number, held_by)),
                Vec::<String>::new(),
                "{held_by}"
            );
        }
    }

    #[test]
    fn each_broken_row_is_seen() {
        for (number, held_by, expected) in [
            ("", "nothing", "nothing holds it"),
            ("", "`a/tests/it.rs::it_does_not`", "defines no it_does_not"),
            (
                "",
                "`a/tests/it.rs::it_does_not`",
                "has no test it_does_not",
            ),
            ("", "`a/tests/it.rs::it_is_long`", "or it is ignored"),
            ("", "`a/src/limits.rs::helper`", "has no test helper"),
            ("", "`it.rs::it_holds`", "may be"),
            ("", "`c/tests/it.rs::it_holds`", "there is no file"),
            ("10,001", "`limits.rs::SESSIONS`", "is 10000"),
            ("3 s", "`limits.rs::WAIT_MS`", "the row says `3 s`"),
            ("2", "`limits.rs::WAIT_MS`", "the row says `2`"),
            ("10", "`limits.rs::ABSENT`", "no constant ABSENT"),
            ("6 min", "`docs/target.toml::lease`", "the row says `6 min`"),
            ("1", "`docs/target.toml::absent`", "no value"),
            ("", "`make coffee`", "no target coffee"),
            (
                "",
                "`make bench BENCHFLAGS=\"--colour red\"`",
                "no option --colour",
            ),
            ("", "`instructions:absent`", "counts no absent"),
            ("", "`something`", "names neither"),
        ] {
            let found = findings(&row(number, held_by));
            assert!(
                found.iter().any(|what| what.contains(expected)),
                "{held_by}: {found:?}"
            );
        }
    }

    #[test]
    fn ids_are_there_and_differ() {
        let good = row("", "`a/tests/it.rs::it_holds`");
        let twice = format!("{good}\n{good}");
        assert_eq!(findings(&twice), ["X-1 stands twice"]);
        assert_eq!(findings(&good.replace("X-1", "")), ["`` is no id"]);
    }

    #[test]
    fn paths_in_the_text_exist() {
        assert_eq!(
            findings("`a/src/gone.rs`\n"),
            ["there is no file a/src/gone.rs"]
        );
        assert_eq!(
            findings("`limits.rs::GONE`\n"),
            ["limits.rs defines no GONE"]
        );
        assert_eq!(
            findings("`/etc/kbtp/x.toml`, `*.rs`, `cargo`\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn both_documents_must_be_there() {
        let mut findings = Vec::new();
        assert_eq!(check(&Tree::default(), &mut findings), 0);
        assert_eq!(findings.len(), DOCUMENTS.len());
    }
}
