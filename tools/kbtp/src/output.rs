//! What a command prints: a table for people, JSON for programs, progress for terminals.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

/// `text` with each control character but the line feed written out: what others say must not steer the terminal.
#[must_use]
pub(crate) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// JSON with the control characters that JSON lets stand written out.
fn visible_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' {
            // Writing to a String cannot fail.
            let _infallible = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Lines of a name and a value, the values aligned.
#[derive(Debug, Default)]
pub struct Sheet {
    rows: Vec<(String, String)>,
}

impl Sheet {
    /// An empty sheet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line.
    pub fn row(&mut self, name: &str, value: impl std::fmt::Display) {
        self.rows
            .push((name.to_owned(), visible(&value.to_string())));
    }

    /// The text, each line ended.
    #[must_use]
    pub fn text(&self) -> String {
        let width = self.rows.iter().map(|(n, _)| n.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, value) in &self.rows {
            let line = format!("{name:width$}  {value}");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Columns under headings; the first is aligned left, the others right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|&h| h.to_owned()).collect()],
        }
    }

    /// Adds a line.
    pub fn row(&mut self, mut cells: Vec<String>) {
        for cell in &mut cells {
            *cell = visible(cell);
        }
        self.rows.push(cells);
    }

    /// The text, each line ended.
    #[must_use]
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            let cell = |r: &Vec<String>| r.get(c).map_or(0, |s| s.chars().count());
            self.rows.iter().map(cell).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, (cell, &w)) in row.iter().zip(&widths).enumerate() {
                let padded = if c == 0 {
                    format!("{cell:<w$}")
                } else {
                    format!("  {cell:>w$}")
                };
                line.push_str(&padded);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Prints `text` as it stands.
///
/// # Errors
/// [`Failure`] if standard output cannot be written; silent if its reader went away.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Failure::output(&e))
}

/// Prints `value` as one JSON document.
///
/// # Errors
/// [`Failure`] if standard output cannot be written.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|e| Failure::operation(format_args!("cannot form JSON: {e}"), "report this"))?;
    text.push('\n');
    print(&visible_json(&text))
}

/// Prints JSON if asked for, else the text for people.
///
/// # Errors
/// [`Failure`] if standard output cannot be written.
pub fn report(
    json: bool,
    value: &impl Serialize,
    people: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if json {
        print_json(value)
    } else {
        print(&people())
    }
}

/// As [`report`], the JSON on one line: for a service that is ready and goes on, whether or not anybody reads that.
///
/// # Errors
/// [`Failure`] if standard output cannot be written for another reason than that its reader went away.
pub fn ready(
    json: bool,
    value: &impl Serialize,
    people: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let line = || serde_json::to_string(value).map(|text| format!("{text}\n"));
    let text = if json {
        line()
            .map_err(|e| Failure::operation(format_args!("cannot form JSON: {e}"), "report this"))?
    } else {
        people()
    };
    match print(&text) {
        Err(failure) if failure.is_silent() => {
            tracing::warn!("nobody reads standard output: serving all the same");
            Ok(())
        }
        other => other,
    }
}

/// Says something about the work on standard error. A closed standard error is no reason to stop.
pub fn note(text: &str) {
    drop(writeln!(io::stderr().lock(), "{}", visible(text)));
}

/// Progress over `total` units of work: on standard error, only if that is a terminal, and only once the work has
/// taken a second.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    shown: bool,
}

/// Work shorter than this shows no progress.
const SHOW_AFTER: Duration = Duration::from_secs(1);

impl Progress {
    /// Progress towards `total`; of unknown extent if `total` is zero.
    #[must_use]
    pub fn new(total: u64, what: &'static str) -> Self {
        let bar = if total == 0 {
            ProgressBar::no_length()
        } else {
            ProgressBar::new(total)
        };
        bar.set_draw_target(ProgressDrawTarget::hidden());
        bar.set_message(what);
        Self { bar, shown: false }
    }

    /// Progress that moves by itself once a second, for work of `length` that cannot stop to say how far it is.
    #[must_use]
    pub fn by_itself(length: Duration, what: &'static str) -> Self {
        let bar = ProgressBar::no_length();
        bar.set_draw_target(ProgressDrawTarget::hidden());
        if length >= SHOW_AFTER && io::stderr().is_terminal() {
            bar.set_message(format!("{what} for {length:?}:"));
            if let Ok(style) = ProgressStyle::with_template("{msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(SHOW_AFTER);
        }
        Self { bar, shown: true }
    }

    /// Sets how far the work is.
    pub fn at(&mut self, position: u64) {
        self.bar.set_position(position);
        if !self.shown && self.bar.elapsed() >= SHOW_AFTER {
            self.show();
        }
    }

    fn show(&mut self) {
        self.shown = true;
        if !io::stderr().is_terminal() {
            return;
        }
        let template = if self.bar.length().is_some() {
            "{msg} [{bar:30}] {percent}% {pos}/{len} {eta} left"
        } else {
            "{msg} {spinner} {pos} {elapsed}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.set_draw_target(ProgressDrawTarget::stderr());
    }

    /// Takes the progress off the terminal.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_aligns_its_values() {
        let mut s = Sheet::new();
        s.row("a", 1);
        s.row("long name", "x");
        assert_eq!(s.text(), "a          1\nlong name  x\n");
    }

    #[test]
    fn a_table_aligns_numbers_right() {
        let mut t = Table::new(&["what", "n"]);
        t.row(vec!["x".to_owned(), "100".to_owned()]);
        assert_eq!(t.text(), "what    n\nx     100\n");
    }
}
