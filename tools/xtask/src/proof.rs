//! `cargo xtask release-proof`: everything that speaks for a release, each part at its full size.
//!
//! A part that was good at the commit checked out, with nothing changed, is not run again, so that the whole can be
//! stopped and goes on where it was. Each part is a target of the Makefile, whose last line of output is its figure, or
//! the summary of the tests it ran.

use std::error::Error;
use std::fs::{self, File, TryLockError};
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
    part("shuttle", &["shuttle", "KBTP_SCHEDULES=1000000"], 50),
    part("plants", &["plants"], 2),
    part("vm-test", &["vm-test"], 10),
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
        let alone = if self.list {
            None
        } else {
            Some(alone(&folder)?)
        };
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
            } else if let Some(lock) = &alone {
                good &= one(root, part, &state, lock.try_clone()?, out)?;
            } else {
                let (make, minutes) = (part.make.join(" "), part.minutes);
                writeln!(out, "{:<10} {minutes:>4} min  make {make}", part.name)?;
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

/// The lock of a run. What a run starts inherits it, so that no other begins beside what a killed one has left running.
fn alone(folder: &Path) -> Result<File, Box<dyn Error>> {
    let lock = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(folder.join("lock"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            Err("another release-proof runs, or what one started: wait for it or end it".into())
        }
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// The commit, and whether anything differs from it, files that are not tracked among them.
fn state(root: &Path) -> Result<String, Box<dyn Error>> {
    let git = |words: &[&str]| -> Result<String, Box<dyn Error>> {
        let said = Command::new("git").current_dir(root).args(words).output()?;
        if !said.status.success() {
            let why = String::from_utf8_lossy(&said.stderr);
            let words = words.join(" ");
            return Err(format!("no commit to speak of, git {words}: {}", why.trim()).into());
        }
        Ok(String::from_utf8(said.stdout)?.trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=normal"])?;
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
    lock: File,
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
        // An empty file, as good as none to read from.
        .stdin(lock)
        .stdout(Stdio::piped())
        .stderr(File::create(&log)?)
        .spawn()?;
    let mut said = File::options().append(true).open(&log)?;
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
        let mut notes = File::options().create(true).append(true).open(notes)?;
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
    fn nothing_is_said_of_a_tree_without_a_commit() {
        let folder = std::env::temp_dir().join(format!("kbtp-proof-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let git = |words: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(&folder).args(words);
            assert!(git.output().unwrap().status.success(), "git {words:?}");
        };
        git(&["init", "--quiet"]);
        let error = state(&folder).unwrap_err().to_string();
        assert!(error.contains("rev-parse HEAD"), "{error}");
        let me = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        git(&[&me[..], &["commit", "--quiet", "--allow-empty", "-m", "a"]].concat());
        let clean = state(&folder).unwrap();
        assert_eq!(clean.len(), 40, "{clean}");
        fs::write(folder.join("new"), "").unwrap();
        assert_eq!(state(&folder).unwrap(), format!("{clean} and changes"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn nothing_runs_beside_what_a_run_left() {
        let folder = std::env::temp_dir().join(format!("kbtp-alone-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let first = alone(&folder).unwrap();
        let left = first.try_clone().unwrap();
        drop(first);
        assert!(alone(&folder).is_err());
        drop(left);
        assert!(alone(&folder).is_ok());
        fs::remove_dir_all(&folder).unwrap();
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
