//! `cargo xtask release-proof`: everything that speaks for a release, each part at its full size.
//!
//! A part that was good at the commit checked out, with nothing changed, is not run again, so that the whole can be
//! stopped and goes on where it was. Each part is a target of the Makefile, whose last line of output is its figure, or
//! the summary of the tests it ran.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A part: its name, what `make` is given, and how many minutes it takes on two quiet cores.
struct Part {
    name: &'static str,
    make: &'static [&'static str],
    minutes: u64,
}

const fn part(name: &'static str, make: &'static [&'static str], minutes: u64) -> Part {
    Part {
        name,
        make,
        minutes,
    }
}

/// Quick parts first: a fault in one of them makes hours of the others worthless.
const PARTS: &[Part] = &[
    part("lint", &["lint"], 4),
    part("test", &["test"], 6),
    part("coverage", &["coverage"], 3),
    part("instructions", &["instructions"], 3),
    part("promises", &["promises"], 3),
    part("valgrind", &["valgrind"], 5),
    part("loom", &["loom"], 5),
    part("asan", &["asan"], 15),
    part("tsan", &["tsan"], 30),
    part("differential", &["differential"], 15),
    part("flakes", &["flakes", "N=100"], 300),
    part("crash", &["crash", "KILLS=1000"], 30),
    part("soak", &["soak", "SOAKFLAGS=--minutes 120"], 125),
    // 10^9 operations.
    part("sim", &["sim", "SIMFLAGS=--seeds 500000 --jobs 2"], 320),
    part("mutants", &["mutants"], 600),
    part("fuzz", &["fuzz", "FUZZFLAGS=--seconds 3600 --jobs 2"], 750),
];

/// Where it is noted what was done.
const FOLDER: &str = "target/release-proof";

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Proof {
    /// Only these parts.
    parts: Vec<String>,
    list: bool,
    anew: bool,
}

impl Proof {
    /// The words of a command line after `release-proof`.
    pub(crate) fn parse(words: &[String]) -> Option<Self> {
        let mut proof = Self::default();
        for word in words {
            match word.as_str() {
                "--list" => proof.list = true,
                "--anew" => proof.anew = true,
                name if PARTS.iter().any(|part| part.name == name) => {
                    proof.parts.push(name.to_owned());
                }
                _ => return None,
            }
        }
        Some(proof)
    }

    /// Runs the parts, a line for each. Whether all are good.
    pub(crate) fn run(&self, root: &Path, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
        let folder = root.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let notes = folder.join("done");
        if self.anew && notes.exists() {
            fs::remove_file(&notes)?;
        }
        let state = state(root)?;
        let done = fs::read_to_string(&notes).unwrap_or_default();
        let wanted =
            |part: &&Part| self.parts.is_empty() || self.parts.iter().any(|n| n == part.name);
        let parts: Vec<&Part> = PARTS.iter().filter(wanted).collect();
        let left = parts
            .iter()
            .filter(|part| noted(&done, part.name, &state).is_none());
        let minutes: u64 = left.map(|part| part.minutes).sum();
        writeln!(
            out,
            "{} parts; what is left takes about {} h {} min on two quiet cores",
            parts.len(),
            minutes / 60,
            minutes % 60
        )?;
        let mut good = true;
        for part in parts {
            if let Some(line) = noted(&done, part.name, &state) {
                writeln!(out, "{:<10} good before  {line}", part.name)?;
            } else if self.list {
                let (make, minutes) = (part.make.join(" "), part.minutes);
                writeln!(out, "{:<10} {minutes:>4} min  make {make}", part.name)?;
            } else {
                good &= one(root, part, &state, out)?;
            }
        }
        if !self.list {
            writeln!(
                out,
                "release-proof: {}",
                if good { "good" } else { "FAULT" }
            )?;
        }
        Ok(good)
    }
}

/// The commit, and whether anything differs from it.
fn state(root: &Path) -> Result<String, Box<dyn Error>> {
    let git = |words: &[&str]| -> Result<String, Box<dyn Error>> {
        let said = Command::new("git").current_dir(root).args(words).output()?;
        Ok(String::from_utf8(said.stdout)?.trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    // With changes no run is like another: nothing that was done counts.
    Ok(if changes.is_empty() {
        commit
    } else {
        format!("{commit} and changes")
    })
}

/// The figure of a part that was good in this state.
fn noted<'a>(done: &'a str, name: &str, state: &str) -> Option<&'a str> {
    if state.ends_with("changes") {
        return None;
    }
    done.lines().rev().find_map(|line| {
        let mut fields = line.splitn(3, '\t');
        (fields.next() == Some(state) && fields.next() == Some(name)).then(|| fields.next())?
    })
}

fn one(
    root: &Path,
    part: &Part,
    state: &str,
    out: &mut impl Write,
) -> Result<bool, Box<dyn Error>> {
    write!(out, "{:<10} ", part.name)?;
    out.flush()?;
    let log = root.join(FOLDER).join(format!("{}.log", part.name));
    let clock = elapsed();
    let mut make = Command::new("make")
        .current_dir(root)
        .arg("--silent")
        .args(part.make)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log)?)
        .spawn()?;
    let mut said = fs::OpenOptions::new().append(true).open(&log)?;
    let mut figure = String::new();
    if let Some(pipe) = make.stdout.take() {
        for line in BufReader::new(pipe).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            writeln!(said, "{line}")?;
            if !line.trim().is_empty() {
                line.trim().clone_into(&mut figure);
            }
        }
    }
    let good = make.wait()?.success();
    if figure.is_empty() {
        // The tests' runner speaks on standard error.
        let all = fs::read(&log)?;
        let all = String::from_utf8_lossy(&all);
        let summary = all.lines().rev().find(|line| line.contains("Summary ["));
        summary.unwrap_or_default().trim().clone_into(&mut figure);
    }
    let took = elapsed().saturating_sub(clock).as_secs();
    let verdict = if good { "good" } else { "FAULT" };
    writeln!(out, "{verdict:<5} {took:>6} s  {figure}")?;
    if good {
        let notes = root.join(FOLDER).join("done");
        let mut notes = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(notes)?;
        writeln!(notes, "{state}\t{}\t{took} s, {figure}", part.name)?;
    } else {
        writeln!(out, "           see {FOLDER}/{}.log", part.name)?;
    }
    Ok(good)
}

/// Time since the machine started, as the system counts it.
fn elapsed() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Proof> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Proof::parse(&words)
    }

    #[test]
    fn command_lines() {
        assert!(parse("").unwrap().parts.is_empty());
        assert_eq!(parse("asan --list").unwrap().parts, ["asan"]);
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn every_part_is_a_target_of_the_makefile() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let makefile = fs::read_to_string(root.join("Makefile")).unwrap();
        for part in PARTS {
            let target = format!("\n{}:", part.make[0]);
            assert!(makefile.contains(&target), "{} is no target", part.make[0]);
            assert!(part.minutes > 0);
        }
    }

    #[test]
    fn what_was_done_counts_for_its_commit_only() {
        let done = "abc\tasan\t9 s, good\nabd\ttsan\t8 s, fine\n";
        assert_eq!(noted(done, "asan", "abc"), Some("9 s, good"));
        assert_eq!(noted(done, "tsan", "abc"), None);
        assert_eq!(noted(done, "asan", "abc and changes"), None);
        assert!(elapsed() > Duration::ZERO);
    }
}
