//! How a command fails: one line that names the thing and the remedy, or one JSON object with both, and an exit code.

use crate::output::visible;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// What kind of failure, which decides the exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Exit code 1.
    Operation,
    /// Exit code 2.
    Usage,
    /// The reader of our output went away: nothing to say, and nothing failed.
    OutputClosed,
}

/// A failed command. Its text is one line.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    what: String,
    remedy: String,
}

impl Failure {
    /// The operation failed. There is always a `remedy`: what to do, or where to look.
    #[must_use]
    pub fn operation(what: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self::new(Kind::Operation, &what, &remedy)
    }

    /// The command was asked for something that cannot be.
    #[must_use]
    pub fn usage(what: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self::new(Kind::Usage, &what, &remedy)
    }

    /// A file could not be read or written.
    #[must_use]
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => match missing_folder(doing, path) {
                Some(folder) => &format!("make the directory: mkdir -p {}", folder.display()),
                None => "check the path",
            },
            io::ErrorKind::PermissionDenied => "check who owns it and its permissions",
            io::ErrorKind::AlreadyExists => "remove it first or name another",
            io::ErrorKind::IsADirectory | io::ErrorKind::FileTooLarge => "name another file",
            io::ErrorKind::StorageFull => "make room on that file system",
            _ => "see the reason before this",
        };
        Self::operation(
            format_args!("cannot {doing} {}: {}", path.display(), chain(error)),
            remedy,
        )
    }

    /// Standard output could not be written.
    #[must_use]
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Kind::OutputClosed, &"", &"");
        }
        Self::operation(
            format_args!("cannot write to standard output: {error}"),
            "check where it goes",
        )
    }

    /// The same failure, and something that comes of it.
    #[must_use]
    pub fn and(self, more: impl fmt::Display) -> Self {
        let remedy = format_args!("{}; {more}", self.remedy);
        Self::new(self.kind, &self.what, &remedy)
    }

    fn new(kind: Kind, what: &dyn fmt::Display, remedy: &dyn fmt::Display) -> Self {
        let this = Self {
            kind,
            what: one_line(&what.to_string()),
            remedy: one_line(&remedy.to_string()),
        };
        debug_assert!(
            this.is_silent() || !this.remedy.is_empty(),
            "no remedy: {this:?}"
        );
        this
    }

    /// It as one JSON object on one line, `{"error": what, "remedy": what to do}`.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::json!({"error": self.what, "remedy": self.remedy}).to_string()
    }

    /// Says on standard error why `program` failed, as text or as JSON, and gives the exit code.
    #[must_use]
    pub fn tell(&self, program: &str, json: bool) -> ExitCode {
        if !self.is_silent() {
            crate::output::note(&if json {
                self.json()
            } else {
                format!("{program}: {self}")
            });
        }
        self.exit_code()
    }

    /// Whether there is anything to tell.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.kind == Kind::OutputClosed
    }

    /// 1 for a failed operation, 2 for usage, 0 if only the reader of our output went away.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self.kind {
            Kind::Operation => ExitCode::from(1),
            Kind::Usage => ExitCode::from(2),
            Kind::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// An error with its sources, on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        // Many errors repeat their source in their own text.
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

/// The directory that lacks if `path` was to be written.
fn missing_folder<'p>(doing: &str, path: &'p Path) -> Option<&'p Path> {
    let folder = path.parent()?;
    let lacks = doing.starts_with("write") && folder != Path::new("") && !folder.exists();
    lacks.then_some(folder)
}

fn one_line(text: &str) -> String {
    text.split('\n')
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .map(visible)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_with_a_remedy() {
        let f = Failure::operation("no\n such\nthing", "look elsewhere");
        assert_eq!(f.to_string(), "no such thing; look elsewhere");
        assert_eq!(
            f.json(),
            r#"{"error":"no such thing","remedy":"look elsewhere"}"#
        );
        assert_eq!(f.exit_code(), ExitCode::from(1));
        assert_eq!(Failure::usage("x", "y").exit_code(), ExitCode::from(2));
    }

    #[test]
    #[should_panic(expected = "no remedy")]
    fn a_failure_without_a_remedy_is_a_mistake() {
        drop(Failure::operation("no such thing", " \n"));
    }

    #[test]
    fn who_writes_into_a_directory_that_lacks_is_told_to_make_it() {
        let lacks = io::Error::from(io::ErrorKind::NotFound);
        let said = |doing, path| Failure::file(doing, Path::new(path), &lacks).to_string();
        let written = said("write", "/nowhere/at all/x");
        assert!(
            written.ends_with("; make the directory: mkdir -p /nowhere/at all"),
            "{written}"
        );
        for (doing, path) in [("read", "/nowhere/x"), ("write", "/x"), ("write", "x")] {
            assert!(said(doing, path).ends_with("; check the path"), "{path}");
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let f = Failure::output(&io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(f.is_silent());
        assert_eq!(f.exit_code(), ExitCode::SUCCESS);
        assert!(!Failure::output(&io::Error::from(io::ErrorKind::StorageFull)).is_silent());
    }

    #[test]
    fn a_chain_does_not_repeat_itself() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Outer(#[source] io::Error);
        let e = Outer(io::Error::other("inner"));
        assert_eq!(chain(&e), "outer: inner");
    }
}
