//! Instructions per operation on the hot paths, counted by callgrind: no noise, so that two per cent can be seen.
//!
//! `make instructions` counts each case at two numbers of iterations; the difference divided by the iterations between
//! leaves out start and set-up. System calls count as nothing: what the kernel does is no part of the figure. The
//! result is compared with `baseline.toml` beside this crate; more than two per cent of growth fails.
#![forbid(unsafe_code)]

mod baseline;
mod cases;
mod count;

use baseline::{Baseline, Verdict};
use cases::{CASES, Failure};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str =
    "usage: kbtp-instructions [--update]        count, compare with the baseline or write it anew
       kbtp-instructions run CASE ITERATIONS   do only that, to be counted";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        [] => compare(false),
        ["--update"] => compare(true),
        ["run", case, iterations] => run(case, iterations).map(|()| true),
        ["list"] => list().map(|()| true),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kbtp-instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    for case in CASES {
        writeln!(out, "{:<22} {}", case.name, case.what)?;
    }
    Ok(())
}

fn run(case: &str, iterations: &str) -> Result<(), Failure> {
    let case = cases::find(case).ok_or_else(|| format!("there is no case {case}"))?;
    (case.run)(iterations.parse()?)
}

/// Whether all is well.
fn compare(update: bool) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    let Some(valgrind) = count::valgrind() else {
        // With CI=true, as CI systems set it, nothing may be left out.
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        writeln!(
            out,
            "SKIPPED: there is no valgrind here, so that no instruction was counted; install valgrind"
        )?;
        return Ok(!must);
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("baseline.toml");
    let now = Baseline {
        made: count::made(valgrind)?,
        count: count::all()?,
    };
    if update {
        std::fs::write(&path, now.to_text()?)?;
        write!(out, "{}", now.to_text()?)?;
        return Ok(true);
    }
    let then = Baseline::of_text(&std::fs::read_to_string(&path)?)?;
    let (text, verdict) = baseline::compare(&then, &now);
    write!(out, "{text}")?;
    Ok(verdict != Verdict::Worse)
}
