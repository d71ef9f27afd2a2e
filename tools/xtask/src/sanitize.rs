//! `cargo xtask sanitize`: the tests under `AddressSanitizer` with `LeakSanitizer`, or under `ThreadSanitizer`.
//!
//! Every process writes what it finds into a file, the children of tests too, whatever becomes of them; at the end no
//! such file may be there. Before the tests, planted faults show that each kind is seen, in a child as well.

use crate::job::{Job, host, std_sources};
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A sanitizer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sanitizer {
    /// Memory that is not there any more, beyond its ends, or never freed.
    Address,
    /// Accesses of two threads with nothing between them.
    Thread,
}

/// A planted fault: how it is called, and what the report must say.
type Planted = (&'static str, &'static str);

impl Sanitizer {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "address" => Some(Self::Address),
            "thread" => Some(Self::Thread),
            _ => None,
        }
    }

    const fn flag(self) -> &'static str {
        match self {
            Self::Address => "-Zsanitizer=address",
            Self::Thread => "-Zsanitizer=thread",
        }
    }

    const fn folder(self) -> &'static str {
        match self {
            Self::Address => "target/asan",
            Self::Thread => "target/tsan",
        }
    }

    const fn planted(self) -> &'static [Planted] {
        match self {
            Self::Address => &[
                ("use-after-free", "heap-use-after-free"),
                ("overrun", "heap-buffer-overflow"),
                ("unmapped", "SEGV"),
                ("leak", "detected memory leaks"),
                ("use-after-free-in-child", "heap-use-after-free"),
            ],
            Self::Thread => &[
                ("race", "data race"),
                ("race-of-words", "data race"),
                ("race-in-child", "data race"),
            ],
        }
    }

    /// Options of the sanitizer's own run-time library: reports go to files that begin with `log`.
    fn options(self, root: &Path, log: &Path) -> [(&'static str, String); 2] {
        let folder = root.join("tests/sanitizers");
        let suppressed = |name: &str| format!("suppressions={}", folder.join(name).display());
        let log = format!("log_path={}", log.display());
        match self {
            Self::Address => [
                (
                    "ASAN_OPTIONS",
                    format!("{log}:detect_leaks=1:detect_stack_use_after_return=1"),
                ),
                (
                    "LSAN_OPTIONS",
                    format!("{}:print_suppressions=0", suppressed("leaks.txt")),
                ),
            ],
            Self::Thread => [
                (
                    "TSAN_OPTIONS",
                    format!("{log}:{}:print_suppressions=0", suppressed("races.txt")),
                ),
                ("KBTP_SANITIZED", "thread".to_owned()),
            ],
        }
    }
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sanitize {
    sanitizer: Sanitizer,
    /// What `cargo nextest run` is given to choose tests; the whole workspace if nothing.
    choice: Vec<String>,
}

impl Sanitize {
    /// The words of a command line after `sanitize`.
    pub(crate) fn parse(words: &[String]) -> Option<Self> {
        let (first, rest) = words.split_first()?;
        Some(Self {
            sanitizer: Sanitizer::parse(first)?,
            choice: rest.to_vec(),
        })
    }

    /// Builds and runs. Whether no process reported anything, and all tests passed.
    pub(crate) fn run(&self, root: &Path, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
        // ThreadSanitizer sees locks only in code that was built for it, and those of the standard library count most.
        let std = self.sanitizer == Sanitizer::Thread;
        if std && !std_sources()? {
            return Err(
                "the sources of the standard library are missing: rustup component add rust-src"
                    .into(),
            );
        }
        let host = host()?;
        let job = Job {
            target_dir: root.join(self.sanitizer.folder()),
            flags: vec![self.sanitizer.flag()],
            std,
        };
        self.plants(root, &job, &host, out)?;
        let log = fresh(&job.target_dir.join("reports"))?;
        let mut tests = job.cargo(root, &host, "nextest run");
        tests.args([
            "--cargo-profile",
            "sanitize",
            "--profile",
            "sanitize",
            "--no-fail-fast",
        ]);
        if self.choice.is_empty() {
            tests.arg("--workspace");
        }
        tests.args(&self.choice);
        let passed = tests
            .envs(self.sanitizer.options(root, &log))
            .status()?
            .success();
        let reports = reports(&log)?;
        for (name, text) in reports.iter().take(20) {
            writeln!(out, "\n{name}:")?;
            for line in text.lines().take(60) {
                writeln!(out, "{line}")?;
            }
        }
        let summary = |text: &String| {
            let line = text.lines().find(|line| line.starts_with("SUMMARY"));
            line.unwrap_or("no summary").to_owned()
        };
        let mut kinds: Vec<String> = reports.iter().map(|(_, text)| summary(text)).collect();
        kinds.sort();
        kinds.dedup();
        for kind in kinds {
            writeln!(out, "{kind}")?;
        }
        writeln!(
            out,
            "{:?}Sanitizer: {} planted faults seen, {} processes with reports, tests {}",
            self.sanitizer,
            self.sanitizer.planted().len(),
            reports.len(),
            if passed { "passed" } else { "FAILED" }
        )?;
        Ok(passed && reports.is_empty())
    }

    /// Runs the planted faults: each must be reported.
    fn plants(
        &self,
        root: &Path,
        job: &Job<'_>,
        host: &str,
        out: &mut impl Write,
    ) -> Result<(), Box<dyn Error>> {
        let mut build = job.cargo(root, host, "build");
        build.args([
            "--profile",
            "sanitize",
            "-p",
            "kbtp-memory",
            "--example",
            "planted",
        ]);
        if !build.status()?.success() {
            return Err("the planted faults were not built".into());
        }
        let program = job.target_dir.join(host).join("sanitize/examples/planted");
        for (fault, said) in self.sanitizer.planted() {
            let log = fresh(&job.target_dir.join("planted"))?;
            // Its own end is of no account: a child's report must count even if nobody looks at how the child ended.
            let _ended = Command::new(&program)
                .arg(fault)
                .envs(self.sanitizer.options(root, &log))
                .output()?;
            let seen = reports(&log)?;
            if !seen.iter().any(|(_, text)| text.contains(said)) {
                let all: String = seen.into_iter().map(|(_, text)| text).collect();
                return Err(format!("planted {fault}: no report of {said:?}; {all:?}").into());
            }
            writeln!(out, "planted {fault}: seen")?;
        }
        Ok(())
    }
}

/// An empty folder, and where reports go in it.
fn fresh(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.join("report"))
}

/// Every report, with its file's name.
fn reports(log: &Path) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let folder = log.parent().unwrap_or(log);
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        all.push((path.display().to_string(), text));
    }
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Sanitize> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Sanitize::parse(&words)
    }

    #[test]
    fn command_lines() {
        assert_eq!(parse("address").unwrap().sanitizer, Sanitizer::Address);
        let some = parse("thread -p kbtp-core --lib").unwrap();
        assert_eq!((some.sanitizer, some.choice.len()), (Sanitizer::Thread, 3));
        for wrong in ["", "memory"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn reports_go_where_they_are_looked_for() {
        for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
            let options = sanitizer.options(Path::new("/r"), Path::new("/l/report"));
            let all: Vec<&String> = options.iter().map(|(_, value)| value).collect();
            assert!(all.iter().any(|value| value.contains("log_path=/l/report")));
            assert!(
                all.iter()
                    .any(|value| value.contains("suppressions=/r/tests/sanitizers/"))
            );
            assert!(!sanitizer.planted().is_empty());
        }
    }
}
