//! Which lines of the protocol's crates their own tests run, held by a committed figure that may only rise.
//!
//! Lines of test code do not count: neither files of tests nor items under `#[cfg(test)]`.

mod measure;

use crate::finding::Finding;
use crate::lexer::code_only;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

pub(crate) use measure::measure;

/// The committed figures.
pub(crate) const COMMITTED: &str = "docs/spec/coverage-lines.txt";

/// The crates that are measured, and where their code lies.
pub(crate) const CRATES: [(&str, &str); 4] = [
    ("kbtp-wire", "shared/wire/src/"),
    ("kbtp-iwarp", "shared/iwarp/src/"),
    ("kbtp-core", "shared/core/src/"),
    ("kbtp-chain", "wqe-templates/chain/src/"),
];

/// What a crate may lose without a failure, in hundredths of a percent: random inputs differ from run to run.
const SLACK: u64 = 10;

const HEAD: &str = "\
# Lines that a crate's own tests run, in percent. `make coverage` fails if a crate falls by more than 0.1;
# `cargo xtask coverage --update` writes what it measures.
";

/// How often each line of each file ran; files by their path from the root.
pub(crate) type Runs = BTreeMap<String, BTreeMap<usize, u64>>;

/// The lines of one crate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CrateLines {
    name: &'static str,
    lines: u64,
    ran: u64,
    /// Lines that no test ran, by file.
    missing: Vec<(String, Vec<usize>)>,
}

impl CrateLines {
    /// In hundredths of a percent, rounded down.
    fn percent(&self) -> u64 {
        (self.ran * 10_000).checked_div(self.lines).unwrap_or(0)
    }
}

/// Reads a report in lcov's format; `root` is taken off the paths.
pub(crate) fn parse_lcov(report: &str, root: &Path) -> Runs {
    let mut runs = Runs::new();
    let mut file = String::new();
    for line in report.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let path = Path::new(path);
            let inside = path.strip_prefix(root).unwrap_or(path);
            file = inside.display().to_string();
        } else if let Some((number, count)) =
            line.strip_prefix("DA:").and_then(|da| da.split_once(','))
            && let (Ok(number), Ok(count)) = (number.parse(), count.parse::<u64>())
        {
            // A file that stands in two reports ran as often as in both.
            let ran: &mut u64 = runs
                .entry(file.clone())
                .or_default()
                .entry(number)
                .or_default();
            *ran = ran.saturating_add(count);
        }
    }
    runs
}

/// Counts the lines of each crate; `source` gives a file's text.
pub(crate) fn by_crate<'a>(
    runs: &Runs,
    source: impl Fn(&str) -> Option<&'a str>,
) -> Vec<CrateLines> {
    let count = |(name, folder): (&'static str, &str)| {
        let mut crate_lines = CrateLines {
            name,
            lines: 0,
            ran: 0,
            missing: Vec::new(),
        };
        for (path, lines) in runs.iter().filter(|(path, _)| path.starts_with(folder)) {
            if is_test_file(path) {
                continue;
            }
            let tests = test_items(source(path).unwrap_or_default());
            let mut missing = Vec::new();
            for (line, ran) in lines {
                if tests.iter().any(|item| item.contains(line)) {
                    continue;
                }
                crate_lines.lines += 1;
                if *ran > 0 {
                    crate_lines.ran += 1;
                } else {
                    missing.push(*line);
                }
            }
            if !missing.is_empty() {
                crate_lines.missing.push((path.clone(), missing));
            }
        }
        crate_lines
    };
    CRATES.into_iter().map(count).collect()
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| {
        let name = part.strip_suffix(".rs").unwrap_or(part);
        name == "tests" || name.ends_with("_tests")
    })
}

/// The lines, from 1, of each item under `#[cfg(test)]`.
fn test_items(source: &str) -> Vec<Range<usize>> {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    let code = code_only(source);
    let line_of = |at: usize| {
        code.get(..at)
            .map_or(0, |before| before.matches('\n').count())
            + 1
    };
    let mut items = Vec::new();
    let mut from = 0;
    while let Some(at) = code
        .get(from..)
        .and_then(|rest| rest.find(ATTRIBUTE))
        .map(|at| from + at)
    {
        let end = item_end(&code, at + ATTRIBUTE.len());
        items.push(line_of(at)..line_of(end) + 1);
        from = end;
    }
    items
}

/// Where an item ends: at the `;`, or where the block that it opens is closed.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices().skip_while(|(at, _)| *at < from) {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' if depth == 1 => return at,
            '}' | ']' | ')' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => return at,
            _ => {}
        }
    }
    code.len()
}

/// The committed figures, as they are to be written.
pub(crate) fn committed(crates: &[CrateLines]) -> String {
    let row = |lines: &CrateLines| format!("{} {}\n", lines.name, shown(lines.percent()));
    let rows: Vec<String> = crates.iter().map(row).collect();
    HEAD.to_owned() + &rows.concat()
}

/// What is lower than committed; `text` are the committed figures.
pub(crate) fn compare(crates: &[CrateLines], text: Option<&str>) -> Vec<Finding> {
    let update = "`cargo xtask coverage --update` writes what is measured";
    let Some(text) = text else {
        return vec![Finding::of(COMMITTED, format!("is not there; {update}"))];
    };
    let figure = |name: &str| {
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(found, _)| *found == name)
            .and_then(|(_, percent)| hundredths(percent))
    };
    let mut findings = Vec::new();
    for lines in crates {
        let Some(committed) = figure(lines.name) else {
            let what = format!("has no figure for {}; {update}", lines.name);
            findings.push(Finding::of(COMMITTED, what));
            continue;
        };
        if lines.percent() + SLACK < committed {
            let what = format!(
                "its tests run {} % of its lines, and {} % before: `cargo xtask coverage --missing` lists those they \
                 do not; {update}, and the commit says why",
                shown(lines.percent()),
                shown(committed),
            );
            findings.push(Finding::of(lines.name, what));
        }
    }
    findings
}

/// A table of all crates.
pub(crate) fn table(crates: &[CrateLines]) -> String {
    let head = format!("{:<12} {:>6} {:>6} {:>7}\n", "crate", "lines", "ran", "%");
    let row = |lines: &CrateLines| {
        let percent = shown(lines.percent());
        let (name, all, ran) = (lines.name, lines.lines, lines.ran);
        format!("{name:<12} {all:>6} {ran:>6} {percent:>7}\n")
    };
    let rows: Vec<String> = crates.iter().map(row).collect();
    head + &rows.concat()
}

/// The lines that no test ran, in runs.
pub(crate) fn missing(crates: &[CrateLines]) -> String {
    let of_file = |(path, lines): &(String, Vec<usize>)| {
        let runs = lines.chunk_by(|a, b| a + 1 == *b);
        let show = |run: &[usize]| match run {
            [first, .., last] => format!("{path}:{first}-{last}\n"),
            [one] => format!("{path}:{one}\n"),
            [] => String::new(),
        };
        runs.map(show).collect::<Vec<String>>().concat()
    };
    let files = crates.iter().flat_map(|lines| &lines.missing);
    files.map(of_file).collect::<Vec<String>>().concat()
}

fn shown(hundredths: u64) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn hundredths(percent: &str) -> Option<u64> {
    let (whole, part) = percent.trim().split_once('.')?;
    let part = Some(part).filter(|part| part.len() == 2)?;
    let whole: u64 = whole.parse().ok()?;
    Some(whole * 100 + part.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
fn a() {
    b();
}
#[cfg(test)]
use std::{fmt, io};
fn c() {}
#[cfg(test)]
mod tests {
    // }
    fn d() { let _ = \"}\"; }
    #[cfg(test)]
    fn e() {}
}
fn f() {}
";

    #[test]
    fn items_of_tests_are_found() {
        assert_eq!(test_items(SOURCE), [4..6, 7..14]);
        let array = test_items("#[cfg(test)]\nfn x(a: [u8; 2]) {\n}\nfn y() {}\n");
        assert_eq!(array.first(), Some(&(1..4)));
        let open = test_items("#[cfg(test)]\nmod open {\n");
        assert_eq!(open.first(), Some(&(1..4)));
        assert_eq!(test_items("// #[cfg(test)]\nfn a() {}\n"), []);
    }

    fn crates(report: &str) -> Vec<CrateLines> {
        by_crate(&parse_lcov(report, Path::new("/r")), |_| Some(SOURCE))
    }

    #[test]
    fn only_lines_of_code_count() {
        let report = "\
SF:/r/shared/wire/src/a.rs\nDA:1,3\nDA:2,0\nDA:6,1\nDA:10,0\nDA:14,0\nend_of_record
SF:/r/shared/wire/src/tests/b.rs\nDA:1,0\nend_of_record
SF:/r/shared/wire/src/loom_tests.rs\nDA:1,0\nend_of_record
SF:/r/shared/core/src/pool/tests.rs\nDA:1,0\nend_of_record
SF:/r/shared/memory/src/c.rs\nDA:1,0\nend_of_record
SF:/r/shared/wire/src/a.rs\nDA:2,0\nDA:6,1\nend_of_record
";
        let crates = crates(report);
        let wire = crates.iter().find(|c| c.name == "kbtp-wire").unwrap();
        assert_eq!((wire.lines, wire.ran, wire.percent()), (4, 2, 5000));
        assert_eq!(
            missing(&crates),
            "shared/wire/src/a.rs:2\nshared/wire/src/a.rs:14\n"
        );
        let core = crates.iter().find(|c| c.name == "kbtp-core").unwrap();
        assert_eq!((core.lines, core.percent()), (0, 0));
    }

    fn measured(ran: u64) -> Vec<CrateLines> {
        CRATES
            .map(|(name, _)| CrateLines {
                name,
                lines: 10_000,
                ran,
                missing: Vec::new(),
            })
            .to_vec()
    }

    #[test]
    fn a_figure_may_rise_and_not_fall() {
        let text = committed(&measured(9_250));
        assert!(text.contains("kbtp-core 92.50\n"), "{text}");
        for ran in [9_240, 9_250, 10_000] {
            assert_eq!(compare(&measured(ran), Some(&text)), []);
        }
        let fallen = compare(&measured(9_239), Some(&text));
        assert_eq!(fallen.len(), CRATES.len());
        let said = fallen[0].to_string();
        assert!(
            said.contains("92.39 %") && said.contains("92.50 %"),
            "{said}"
        );
        assert_eq!(compare(&measured(9_250), None).len(), 1);
        let without = text.replace("kbtp-wire", "kbtp-wine");
        assert_eq!(compare(&measured(9_250), Some(&without)).len(), 1);
        let unreadable = text.replace("92.50", "92.5");
        assert_eq!(compare(&measured(9_250), Some(&unreadable)).len(), 4);
    }

    #[test]
    fn lines_that_follow_one_another_are_one_run() {
        let mut crates = measured(1);
        crates.truncate(1);
        crates[0].missing = vec![("a.rs".to_owned(), vec![1, 2, 3, 5, 7, 8])];
        assert_eq!(missing(&crates), "a.rs:1-3\na.rs:5\na.rs:7-8\n");
    }
}
