//! Running a case under callgrind.

use crate::baseline::Made;
use crate::cases::{CASES, Case, Failure, PROCESSOR};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Iterations of the two runs. What happens once in many (a wrap of a small ring) is in the difference often enough.
const FEW: u32 = 64;
const MANY: u32 = 64 + 1024;

/// The version of valgrind, if there is one.
pub(crate) fn valgrind() -> Option<String> {
    let output = Command::new("valgrind").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// What the counts depend on, beside this tree.
pub(crate) fn made(valgrind: String) -> Result<Made, Failure> {
    Ok(Made {
        rustc: first_line("rustc")?,
        // `ldd (DISTRIBUTION) 2.36`: a distribution's patches do not matter.
        libc: first_line("ldd")?
            .split(' ')
            .next_back()
            .unwrap_or_default()
            .to_owned(),
        valgrind,
        processor: processor()?,
    })
}

/// What a program says of its version.
fn first_line(program: &str) -> Result<String, Failure> {
    let output = Command::new(program).arg("--version").output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Every case.
pub(crate) fn all() -> Result<BTreeMap<String, u64>, Failure> {
    let mut counts = BTreeMap::new();
    for case in CASES {
        let few = instructions(case, FEW)?;
        let many = instructions(case, MANY)?;
        let between = many
            .checked_sub(few)
            .ok_or_else(|| format!("{}: more iterations took fewer instructions", case.name))?;
        counts.insert(case.name.to_owned(), between / u64::from(MANY - FEW));
    }
    Ok(counts)
}

/// Instructions of a run.
fn instructions(case: &Case, iterations: u32) -> Result<u64, Failure> {
    let file = folder()?.join(format!("{}.callgrind", case.name));
    let text = callgrind(&file, &["run", case.name, &iterations.to_string()])?;
    // The counts of the whole run are its last line but for details: `summary: N` or `totals: N`.
    let profile = std::fs::read_to_string(&file)?;
    let total = profile.lines().find_map(|line| {
        let number = line
            .strip_prefix("summary: ")
            .or_else(|| line.strip_prefix("totals: "))?;
        number.trim().parse().ok()
    });
    total.ok_or_else(|| format!("{}: callgrind told no total: {text}", case.name).into())
}

/// The processor that valgrind shows to programs: it has no vectors of 512 bits, whatever the machine has.
fn processor() -> Result<String, Failure> {
    let file = folder()?.join("processor.callgrind");
    let text = callgrind(&file, &["run", PROCESSOR.name, "1"])?;
    Ok(format!("{}, {}", std::env::consts::ARCH, text.trim()))
}

/// Standard output of this program under callgrind, which writes its counts to `file`; `callgrind_annotate` shows where
/// they arise. An empty environment and one stack make the counts those of any other run.
fn callgrind(file: &Path, words: &[&str]) -> Result<String, Failure> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe()?)
        .args(words)
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .output()?;
    if output.status.success() {
        Ok(String::from_utf8(output.stdout)?)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
    }
}

/// Beside the program, which is in the target folder.
fn folder() -> Result<PathBuf, Failure> {
    let exe = std::env::current_exe()?;
    let folder = exe.with_file_name("instructions");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
