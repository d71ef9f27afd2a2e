//! Checks of the tree itself, run as `cargo xtask`.
//!
//! `tidy` holds the crates' arrows, licences and a few rules no compiler knows; `reqtrace` holds code, tests and
//! `docs/spec/requirements/` together; `promises` holds the specification and the threat model to tests and limits;
//! `check` does all three. `coverage` measures which lines the tests run; `sanitize`, `fuzz` and `release-proof` build
//! in ways of their own and run long.
#![forbid(unsafe_code)]

mod citation;
mod corpus;
mod coverage;
mod finding;
mod fuzz;
mod job;
mod lexer;
mod licence;
mod lines;
mod metadata;
mod promises;
mod proof;
mod requirements;
mod sanitize;
mod tidy;
mod tree;

use coverage::{Coverage, SNAPSHOT};
use finding::{Finding, Report};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tree::Tree;

const USAGE: &str = "usage: cargo xtask tidy
       cargo xtask promises
       cargo xtask reqtrace [--update] [--report-only]
       cargo xtask check [--report-only]
       cargo xtask coverage [--update] [--missing]
       cargo xtask sanitize address|thread [what `cargo nextest run` takes to choose tests]
       cargo xtask fuzz [TARGET..] [--seconds N] [--jobs N] [--discard] [--part I/N]
       cargo xtask fuzz TARGET --replay FILE
       cargo xtask release-proof [PART..] [--list] [--anew]

  tidy           the rules of the tree: arrows between crates, licences, lengths, attributes
  promises       every row of docs/SPECIFICATION.md and docs/THREAT-MODEL.md names tests that exist and the numbers of limits
  reqtrace       every requirement has code and a test that cite it, and every citation a requirement
    --update       write docs/spec/coverage.txt anew
    --report-only  tell of missing coverage without failing for it
  check          all three
  coverage       the lines of the protocol's crates that their tests run; fails if they are fewer than before
    --update       write docs/spec/coverage-lines.txt anew
    --missing      list the lines that no test runs
  sanitize       the tests under AddressSanitizer or ThreadSanitizer, and planted faults that they must see
  fuzz           the fuzz targets, guided by coverage, under AddressSanitizer
    --seconds      for each target; 30 without
    --jobs         targets at a time
    --discard      keep nothing of what was found in the corpus
    --part         only every Nth target, from the Ith on
    --replay       run one input
  release-proof  everything at the size of a release; goes on where it was stopped
    --list         say what it is made of, and how long each part takes
    --anew         forget what was done
";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Command {
    Tidy,
    Promises,
    Reqtrace,
    Check,
    Coverage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Options {
    command: Command,
    update: bool,
    report_only: bool,
    missing: bool,
}

impl Options {
    fn parse(words: &[String]) -> Option<Self> {
        let (command, flags) = words.split_first()?;
        let command = match command.as_str() {
            "tidy" => Command::Tidy,
            "promises" => Command::Promises,
            "reqtrace" => Command::Reqtrace,
            "check" => Command::Check,
            "coverage" => Command::Coverage,
            _ => return None,
        };
        let mut options = Self {
            command,
            update: false,
            report_only: false,
            missing: false,
        };
        for flag in flags {
            match flag.as_str() {
                "--report-only" if matches!(command, Command::Reqtrace | Command::Check) => {
                    options.report_only = true;
                }
                "--update" if matches!(command, Command::Reqtrace | Command::Coverage) => {
                    options.update = true;
                }
                "--missing" if command == Command::Coverage => options.missing = true,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(outcome) = run_long(&words) {
        return outcome;
    }
    let Some(options) = Options::parse(&words) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(options, &mut std::io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What builds in its own way and runs long; `None` if the words are no such command.
fn run_long(words: &[String]) -> Option<ExitCode> {
    let (command, rest) = words.split_first()?;
    let out = &mut std::io::stdout();
    let done = match command.as_str() {
        "fuzz" => fuzz::Fuzz::parse(rest)?.run(&root(), out),
        "sanitize" => sanitize::Sanitize::parse(rest)?.run(&root(), out),
        "release-proof" => proof::Proof::parse(rest)?.run(&root(), out),
        _ => return None,
    };
    Some(match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    })
}

/// The workspace: two folders above this crate.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

fn run(options: Options, out: &mut impl Write) -> Result<bool, Box<dyn std::error::Error>> {
    let root = root();
    let tree = Tree::tracked(&root)?;
    if options.command == Command::Coverage {
        return measure_lines(&root, &tree, options, out);
    }
    let mut good = true;
    if matches!(options.command, Command::Tidy | Command::Check) {
        let metadata = metadata::Metadata::of(&root)?;
        let findings = tidy::check(&tree, &metadata);
        good &= findings.is_empty();
        print(out, "tidy", &findings)?;
    }
    if matches!(options.command, Command::Promises | Command::Check) {
        let mut findings = Vec::new();
        let rows = promises::check(&tree, &mut findings);
        good &= findings.is_empty();
        print(out, &format!("promises, {rows} rows"), &findings)?;
    }
    if matches!(options.command, Command::Reqtrace | Command::Check) {
        let mut report = Report::default();
        let coverage = Coverage::of(&tree, &mut report);
        write!(out, "{}", coverage.table())?;
        if options.update {
            std::fs::write(root.join(SNAPSHOT), coverage.snapshot())?;
        } else {
            coverage.compare_snapshot(&tree, &mut report);
        }
        coverage.require(&mut report);
        good &= report.faults.is_empty() && (options.report_only || report.shortfalls.is_empty());
        for note in &report.notes {
            writeln!(out, "{note}")?;
        }
        print(out, "reqtrace", &report.faults)?;
        print(out, "reqtrace, coverage", &report.shortfalls)?;
    }
    Ok(good)
}

fn measure_lines(
    root: &Path,
    tree: &Tree,
    options: Options,
    out: &mut impl Write,
) -> Result<bool, Box<dyn std::error::Error>> {
    let runs = lines::measure(root)?;
    let crates = lines::by_crate(&runs, |path| tree.text(path));
    if options.missing {
        write!(out, "{}", lines::missing(&crates))?;
    }
    write!(out, "{}", lines::table(&crates))?;
    if options.update {
        std::fs::write(root.join(lines::COMMITTED), lines::committed(&crates))?;
        return Ok(true);
    }
    let findings = lines::compare(&crates, tree.text(lines::COMMITTED));
    print(out, "coverage", &findings)?;
    Ok(findings.is_empty())
}

fn print(out: &mut impl Write, what: &str, findings: &[Finding]) -> std::io::Result<()> {
    for finding in findings {
        writeln!(out, "{finding}")?;
    }
    match findings.len() {
        0 => writeln!(out, "{what}: nothing found"),
        n => writeln!(out, "{what}: {n} found"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Options> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn commands_and_their_flags() {
        let both = parse("check --report-only").unwrap();
        assert_eq!(both.command, Command::Check);
        assert!(both.report_only && !both.update);
        assert!(parse("reqtrace --update").unwrap().update);
        let lines = parse("coverage --update --missing").unwrap();
        assert_eq!(lines.command, Command::Coverage);
        assert!(lines.update && lines.missing);
        for wrong in [
            "",
            "frobnicate",
            "tidy --update",
            "check --update",
            "tidy --report-only",
            "coverage --report-only",
            "check --missing",
            "promises --report-only",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_root_is_the_workspace() {
        assert!(root().join("clippy.toml").exists());
    }
}
