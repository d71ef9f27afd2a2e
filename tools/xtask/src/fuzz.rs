//! `cargo xtask fuzz`: libFuzzer over the targets of `tests/fuzz`, guided by coverage, under `AddressSanitizer`.
//!
//! The flags that the compiler is given are unstable, so `RUSTC_BOOTSTRAP` is set; what is built is the production
//! code. What a run finds is merged into the corpus, no more of it than adds coverage.

use crate::corpus;
use crate::job::{Job, host};
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Coverage as libFuzzer wants it: counters of edges, a table of their places, and comparisons.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// A run longer than this is a fault of its own: a peer could keep a thread busy with it.
const SLOW_SECONDS: &str = "2";

/// Longest input. Everything that has a length has one below this.
const MAX_LEN: &str = "4096";

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fuzz {
    /// Of these targets; all if none is named.
    pub(crate) targets: Vec<String>,
    /// Seconds for each.
    pub(crate) seconds: u64,
    /// Targets at a time.
    pub(crate) jobs: u64,
    /// Keep what was found.
    pub(crate) keep: bool,
    /// Instead: run this input of the one target.
    pub(crate) replay: Option<PathBuf>,
    /// Only a part of the targets: part `.0` of `.1`.
    pub(crate) part: Option<(usize, usize)>,
}

impl Default for Fuzz {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            seconds: 30,
            jobs: 1,
            keep: true,
            replay: None,
            part: None,
        }
    }
}

impl Fuzz {
    /// The words of a command line after `fuzz`.
    pub(crate) fn parse(words: &[String]) -> Option<Self> {
        let mut fuzz = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--seconds" => fuzz.seconds = words.next()?.parse().ok()?,
                "--jobs" => fuzz.jobs = words.next()?.parse().ok()?,
                "--discard" => fuzz.keep = false,
                "--replay" => fuzz.replay = Some(words.next()?.into()),
                "--part" => {
                    let (which, of) = words.next()?.split_once('/')?;
                    let (which, of) = (which.parse().ok()?, of.parse().ok()?);
                    fuzz.part = Some((which, of)).filter(|_| which < of)?.into();
                }
                flag if flag.starts_with('-') => return None,
                target => fuzz.targets.push(target.to_owned()),
            }
        }
        (fuzz.replay.is_none() || fuzz.targets.len() == 1).then_some(fuzz)
    }

    /// Builds, then fuzzes one target after the other. Whether nothing was found that is wrong.
    pub(crate) fn run(
        &self,
        root: &Path,
        out: &mut (impl Write + Send),
    ) -> Result<bool, Box<dyn Error>> {
        let program = build(root)?;
        let corpora = root.join("tests/fuzz/corpus");
        let mut all: Vec<String> = fs::read_dir(&corpora)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<std::io::Result<_>>()?;
        all.sort();
        if let Some(unknown) = self.targets.iter().find(|name| !all.contains(name)) {
            return Err(format!("{unknown} is no target; there are {}", all.join(", ")).into());
        }
        if let (Some(input), [target]) = (&self.replay, &self.targets[..]) {
            let mut command = fuzzer(&program, target);
            return Ok(command.arg(input).status()?.success());
        }
        let chosen: Vec<&String> = all
            .iter()
            .enumerate()
            .filter(|(at, name)| {
                (self.targets.is_empty() || self.targets.contains(name))
                    && self.part.is_none_or(|(which, of)| at % of == which)
            })
            .map(|(_, name)| name)
            .collect();
        writeln!(
            out,
            "{:<20} {:>12} {:>9} {:>7} {:>7}  verdict",
            "target", "runs", "a second", "edges", "new"
        )?;
        let (next, said) = (AtomicUsize::new(0), Mutex::new((out, true)));
        let lane = || -> Result<(), String> {
            while let Some(name) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                let place = Place::of(root, name);
                let (good, text) = self.one(&program, &place).map_err(|e| e.to_string())?;
                let mut said = said.lock().map_err(|e| e.to_string())?;
                write!(said.0, "{text}").map_err(|e| e.to_string())?;
                said.1 &= good;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..self.jobs).map(|_| scope.spawn(lane)).collect();
            lanes.into_iter().try_for_each(|lane| {
                let died = |_| Err("a lane died".to_owned());
                lane.join().unwrap_or_else(died)
            })
        })?;
        let (out, good) = said.into_inner().map_err(|e| e.to_string())?;
        let verdict = if good { "good" } else { "FAULT" };
        writeln!(
            out,
            "fuzz: {} targets, {} s each, {verdict}",
            chosen.len(),
            self.seconds
        )?;
        Ok(good)
    }

    /// Fuzzes one target: whether nothing was wrong, and what there is to say.
    fn one(&self, program: &Path, place: &Place<'_>) -> Result<(bool, String), Box<dyn Error>> {
        let name = place.name;
        let found = place.work.join("found");
        let faults = place.work.join("faults");
        let inputs = place.work.join("corpus");
        for folder in [&found, &faults, &inputs] {
            if folder.exists() {
                fs::remove_dir_all(folder)?;
            }
            fs::create_dir_all(folder)?;
        }
        let before = corpus::unpack(&place.corpus, &inputs)?;
        let log = place.work.join("log");
        let status = fuzzer(program, name)
            .arg(format!("-max_total_time={}", self.seconds))
            .arg(format!("-max_len={MAX_LEN}"))
            .arg(format!("-timeout={SLOW_SECONDS}"))
            .args(["-rss_limit_mb=2048", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/", faults.display()))
            .args([&found, &inputs])
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .status()?;
        let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let figures = Figures::of(&said);
        let good = status.success();
        let mut kept = 0;
        if self.keep && good {
            merge(program, place, &inputs, &found)?;
            kept = fs::read_dir(&inputs)?.count().saturating_sub(before);
            corpus::pack(&inputs, &place.corpus)?;
        }
        let Figures { runs, rate, edges } = figures;
        let verdict = if good { "good" } else { "FAULT" };
        let mut text = format!("{name:<20} {runs:>12} {rate:>9} {edges:>7} {kept:>7}  {verdict}\n");
        if good {
            return Ok((true, text));
        }
        let lines: Vec<&str> = said.lines().collect();
        for line in lines.iter().skip(lines.len().saturating_sub(60)) {
            text.push_str("    ");
            text.push_str(line);
            text.push('\n');
        }
        for fault in fs::read_dir(&faults)? {
            let path = fault?.path().display().to_string();
            text += &[
                "  again with: make fuzz TARGET=",
                name,
                " FUZZFLAGS=\"--replay ",
                &path,
                "\"\n",
            ]
            .concat();
        }
        text.push_str(
            "  with the fix, put the file into the target's folder of tests/fuzz/corpus\n",
        );
        Ok((false, text))
    }
}

/// Where things of a target are.
struct Place<'a> {
    name: &'a str,
    corpus: PathBuf,
    /// What it finds, and its log.
    work: PathBuf,
}

impl<'a> Place<'a> {
    fn of(root: &Path, name: &'a str) -> Self {
        Self {
            name,
            corpus: root.join("tests/fuzz/corpus").join(name),
            work: root.join("target/fuzz-work").join(name),
        }
    }
}

/// What libFuzzer says of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Figures {
    runs: u64,
    rate: u64,
    edges: u64,
}

impl Figures {
    fn of(said: &str) -> Self {
        let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok());
        let stat = |name: &str| {
            let line = said.lines().rev().find_map(|line| line.strip_prefix(name));
            number(line).unwrap_or(0)
        };
        let last = |key: &str| {
            let after = said.lines().rev().find_map(|line| line.split_once(key));
            number(after.and_then(|(_, rest)| rest.split_whitespace().next()))
        };
        Self {
            runs: stat("stat::number_of_executed_units:"),
            rate: stat("stat::average_exec_per_sec:"),
            edges: last("cov: ").unwrap_or(0),
        }
    }
}

/// Adds to `inputs` what of `found` adds coverage.
fn merge(
    program: &Path,
    place: &Place<'_>,
    inputs: &Path,
    found: &Path,
) -> Result<(), Box<dyn Error>> {
    let merged = fuzzer(program, place.name)
        .arg("-merge=1")
        .arg(format!("-max_len={MAX_LEN}"))
        .arg(format!("-artifact_prefix={}/", place.work.display()))
        .args([inputs, found])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if merged.success() {
        Ok(())
    } else {
        Err(format!("{}: what was found could not be merged", place.name).into())
    }
}

fn fuzzer(program: &Path, target: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("KBTP_FUZZ_TARGET", target)
        // Leaks are looked for by the suite; here each look would cost more than the run.
        .env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=0");
    command
}

/// The program that fuzzes, built.
fn build(root: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let host = host()?;
    let mut flags = vec!["-Zsanitizer=address"];
    flags.extend(COVERAGE);
    let job = Job {
        target_dir: root.join("target/fuzz"),
        flags,
        std: false,
    };
    let mut command = job.cargo(root, &host, "build");
    command.args([
        "--profile",
        "fuzz",
        "-p",
        "kbtp-fuzz",
        "--features",
        "libfuzzer",
        "--bin",
        "kbtp-libfuzzer",
    ]);
    if !command.status()?.success() {
        return Err("the fuzzer was not built; it needs a C++ compiler".into());
    }
    Ok(job.target_dir.join(host).join("fuzz/kbtp-libfuzzer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Fuzz> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Fuzz::parse(&words)
    }

    #[test]
    fn command_lines() {
        assert_eq!(parse(""), Some(Fuzz::default()));
        let some = parse("--seconds 5 trace --discard --part 1/3 --jobs 2").unwrap();
        assert_eq!((some.seconds, some.keep, some.jobs), (5, false, 2));
        assert_eq!(
            (some.part, some.targets),
            (Some((1, 3)), vec!["trace".to_owned()])
        );
        assert!(parse("trace --replay file").unwrap().replay.is_some());
        for wrong in [
            "--replay file",
            "--seconds",
            "--seconds x",
            "--part 3/3",
            "--frob",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn figures_are_read() {
        let one = "#10\tNEW    cov: 7 ft: 8 corp: 2/3b exec/s: 0 rss: 30Mb\n\
                   #9000\tDONE   cov: 45 ft: 50 corp: 9/99b exec/s: 4500 rss: 40Mb\n\
                   stat::number_of_executed_units: 9000\n\
                   stat::average_exec_per_sec:     4500\n";
        let figures = Figures {
            runs: 9000,
            rate: 4500,
            edges: 45,
        };
        assert_eq!(Figures::of(one), figures);
        assert_eq!(Figures::of(""), Figures::default());
    }
}
