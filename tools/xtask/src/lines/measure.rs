//! Builds the crates so that they count, runs their tests and reads the counts with LLVM's own tools.

use super::{CRATES, Runs, parse_lcov};
use crate::metadata::said_by;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where it builds, from the root; apart, so that an ordinary build is not made anew each time.
const TARGET: &str = "target/coverage";

/// Builds, tests, reads. Cost: a build of the crates and what they need, the first time.
pub(crate) fn measure(root: &Path) -> io::Result<Runs> {
    let tools = Tools::find()?;
    let target = root.join(TARGET);
    let counts = target.join("counts");
    let programs = build(root, &target, &counts)?;
    // What compilers and their plug-ins counted while building is not wanted.
    if counts.exists() {
        std::fs::remove_dir_all(&counts)?;
    }
    std::fs::create_dir_all(&counts)?;
    // Tests that run at the same time write to different files, a few for each program.
    run(cargo(root, &target, &counts)
        .args(["nextest", "run", "--cargo-profile", "lean"])
        .args(["--cargo-quiet", "--show-progress", "none"])
        .args(["--status-level", "fail", "--final-status-level", "fail"])
        .args(packages()))?;
    let profile = target.join("all.profdata");
    let files = std::fs::read_dir(&counts)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<PathBuf>>>()?;
    run(Command::new(&tools.profdata)
        .args(["merge", "--sparse", "-o"])
        .arg(&profile)
        .args(files))?;
    let mut export = Command::new(&tools.cov);
    export
        .args(["export", "--format=lcov", "--skip-functions"])
        .arg("--instr-profile")
        .arg(&profile);
    // The first program has no flag before it.
    let mut programs = programs.into_iter();
    export.args(programs.next());
    for program in programs {
        export.arg("--object").arg(program);
    }
    export.args(CRATES.map(|(_, folder)| root.join(folder)));
    Ok(parse_lcov(&said_by(&mut export)?, root))
}

/// The programs that hold the crates' tests.
fn build(root: &Path, target: &Path, counts: &Path) -> io::Result<Vec<String>> {
    let said = said_by(
        cargo(root, target, counts)
            .args(["test", "--no-run", "--profile", "lean"])
            .args(["--quiet", "--message-format", "json", "--lib", "--tests"])
            .args(packages()),
    )?;
    let program = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(message.get("executable")?.as_str()?.to_owned())
    };
    Ok(said.lines().filter_map(program).collect())
}

fn cargo(root: &Path, target: &Path, counts: &Path) -> Command {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(root)
        .env("RUSTFLAGS", format!("{flags} -C instrument-coverage"))
        // The same random inputs each time, so that the figures are the same.
        .env("PROPTEST_RNG_SEED", "1")
        .env("LLVM_PROFILE_FILE", counts.join("%4m.profraw"))
        .env("CARGO_TARGET_DIR", target);
    cargo
}

fn packages() -> impl Iterator<Item = &'static str> {
    CRATES.iter().flat_map(|(name, _)| ["--package", name])
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() {
        Ok(())
    } else {
        let program = command.get_program().display();
        Err(io::Error::other(format!("{program}: {status}")))
    }
}

/// LLVM's readers of what an instrumented program counts.
#[derive(Debug)]
struct Tools {
    profdata: PathBuf,
    cov: PathBuf,
}

impl Tools {
    /// Those of the compiler's version: its own (rustup's component `llvm-tools`), or the system's. An older one
    /// cannot read what a newer compiler counts.
    fn find() -> io::Result<Self> {
        let version = said_by(Command::new("rustc").arg("-vV"))?;
        let field = |name: &str| version.lines().find_map(|line| line.strip_prefix(name));
        let wrong = || io::Error::other("rustc -vV names no host or no LLVM");
        let host = field("host: ").ok_or_else(wrong)?;
        let llvm = field("LLVM version: ").ok_or_else(wrong)?;
        let major = llvm.split('.').next().unwrap_or(llvm);
        let sysroot = said_by(Command::new("rustc").args(["--print", "sysroot"]))?;
        let own = Path::new(sysroot.trim())
            .join("lib/rustlib")
            .join(host)
            .join("bin");
        let find = |name: &str| {
            let places = [
                own.join(name),
                PathBuf::from(format!("{name}-{major}")),
                PathBuf::from(name),
            ];
            places
                .into_iter()
                .find(|place| is_version(place, major))
                .ok_or_else(|| {
                    io::Error::other(format!(
                        "no {name} of LLVM {major}: `apt-get install llvm-{major}`, or `rustup component add llvm-tools`"
                    ))
                })
        };
        Ok(Self {
            profdata: find("llvm-profdata")?,
            cov: find("llvm-cov")?,
        })
    }
}

fn is_version(tool: &Path, major: &str) -> bool {
    let said = said_by(Command::new(tool).arg("--version")).unwrap_or_default();
    said.contains(&format!("LLVM version {major}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_of_another_version_is_no_tool() {
        assert!(!is_version(Path::new("rustc"), "22"));
        assert!(!is_version(Path::new("no-such-program"), "22"));
    }
}
