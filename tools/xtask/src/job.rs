//! Builds with flags of their own, in a folder of their own.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Such a build.
#[derive(Clone, Debug)]
pub(crate) struct Job<'a> {
    /// Where it is built.
    pub(crate) target_dir: PathBuf,
    /// What the compiler is told.
    pub(crate) flags: Vec<&'a str>,
    /// Build the standard library with these flags too.
    pub(crate) std: bool,
}

impl Job<'_> {
    /// `cargo` with a sub-command that builds for `host`. The flags are for what is built, not for build scripts and
    /// macros, which is what a named target is for. Unstable flags on a stable compiler need `RUSTC_BOOTSTRAP`.
    pub(crate) fn cargo(&self, root: &Path, host: &str, command: &str) -> Command {
        let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
        cargo
            .current_dir(root)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags.join("\u{1f}"))
            .env("CARGO_INCREMENTAL", "0");
        cargo.args(command.split(' '));
        if self.std {
            cargo.arg("-Zbuild-std");
        }
        cargo
            .args(["--locked", "--target", host, "--target-dir"])
            .arg(&self.target_dir);
        cargo
    }
}

/// The machine's own target.
pub(crate) fn host() -> Result<String, Box<dyn Error>> {
    let said = Command::new("rustc").arg("-vV").output()?;
    let said = String::from_utf8(said.stdout)?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("rustc does not name its host")?.to_owned())
}

/// Whether the sources of the standard library are there, to be built with flags of ours.
pub(crate) fn std_sources() -> Result<bool, Box<dyn Error>> {
    let said = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()?;
    let sysroot = PathBuf::from(String::from_utf8(said.stdout)?.trim());
    Ok(sysroot.join("lib/rustlib/src/rust/library/std").is_dir())
}
