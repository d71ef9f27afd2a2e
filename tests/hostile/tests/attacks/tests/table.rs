//! The table of clauses in the README and the tests it names, held together.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What must have a row: the attacks of RFC 5042, sections 6 and 7, and those of KBTP.
const CLAUSES: [&str; 38] = [
    "6.1.1",
    "6.2.1",
    "6.2.2",
    "6.2.3",
    "6.3.1",
    "6.3.2",
    "6.3.3",
    "6.3.4",
    "6.3.5",
    "6.3.6",
    "6.4.1",
    "6.4.2",
    "6.4.3.1",
    "6.4.3.2",
    "6.4.3.3",
    "6.4.4",
    "6.4.5",
    "6.4.6",
    "6.5",
    "7.1",
    "7.2",
    "7.3",
    "7 socket",
    "7 channel",
    "7 proc",
    "KBTP handle",
    "KBTP generation",
    "KBTP ticket",
    "KBTP bind",
    "KBTP length",
    "KBTP quota",
    "KBTP hoarding",
    "KBTP record",
    "KBTP loris",
    "KBTP hello",
    "KBTP pair",
    "KBTP lease",
    "KBTP memory",
];

/// Names of the functions of a source that are tests.
fn tests_of(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut marked = false;
    for line in source.lines().map(str::trim) {
        if line == "#[test]" {
            marked = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            let name = rest.split('(').next().unwrap();
            if std::mem::take(&mut marked) {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(fs::read_to_string(path).unwrap());
        }
    }
    found
}

#[test]
fn the_table_is_true() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).unwrap();
    let own: BTreeSet<_> = sources(&here.join("tests"))
        .iter()
        .flat_map(|source| tests_of(source))
        .filter(|name| !matches!(name.as_str(), "the_table_is_true" | "child"))
        .collect();
    assert!(own.len() > 60, "{}", own.len());
    let readme = fs::read_to_string(here.join("README.md")).unwrap();
    let mut clauses = BTreeSet::new();
    let mut named = BTreeSet::new();
    for row in readme.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, clause, _, tests, _] = cells[..] else {
            panic!("{row}")
        };
        if clause == "clause" {
            continue;
        }
        assert!(clauses.insert(clause), "{clause} has two rows");
        let tests: Vec<_> = tests.split("`, `").map(|t| t.trim_matches('`')).collect();
        assert!(
            tests.iter().all(|test| !test.is_empty()),
            "{clause} has no test"
        );
        for test in tests {
            match test.split_once(": ") {
                None => {
                    assert!(own.contains(test), "{clause}: there is no test {test}");
                    named.insert(test.to_owned());
                }
                Some((path, test)) => {
                    let source = fs::read_to_string(root.join(path)).unwrap();
                    let there = tests_of(&source).contains(test);
                    assert!(there, "{clause}: there is no test {test} in {path}");
                }
            }
        }
    }
    let missing: Vec<_> = CLAUSES.iter().filter(|c| !clauses.contains(*c)).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
    let unnamed: Vec<_> = own.difference(&named).collect();
    assert!(unnamed.is_empty(), "in no row: {unnamed:?}");
}
