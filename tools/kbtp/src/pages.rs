//! Completions and man pages, generated from the definition of the command line.

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output;
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::fs;
use std::path::Path;

/// Prints the completions of `shell`.
///
/// # Errors
/// [`Failure`] if standard output cannot be written.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kbtp", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

/// Prints the page of the command, or writes the page of each command into `dir`.
///
/// # Errors
/// [`Failure`] if a page cannot be written.
pub(crate) fn man(dir: Option<&Path>) -> Result<(), Failure> {
    let Some(dir) = dir else {
        let mut text = Vec::new();
        clap_mangen::Man::new(Cli::command())
            .render(&mut text)
            .map_err(|e| Failure::output(&e))?;
        return output::print(&String::from_utf8_lossy(&text));
    };
    fs::create_dir_all(dir).map_err(|e| Failure::file("make the directory", dir, &e))?;
    clap_mangen::generate_to(Cli::command(), dir)
        .map_err(|e| Failure::file("write the pages into", dir, &e))
}
