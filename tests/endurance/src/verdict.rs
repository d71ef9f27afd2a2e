//! What a run has shown, as its last line and its exit code.

use std::fmt;
use std::process::ExitCode;

/// Exit codes, for the help.
pub(crate) const EXIT_CODES: &str = "The last line is the verdict. Exit codes: 0 PASSED, 1 FAILED, 2 wrong usage, \
                                     3 INCONCLUSIVE: nothing was found, and the run could not have shown it all.";

/// What a run has shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Everything that was to be shown.
    Passed(String),
    /// Something is wrong.
    Failed(String),
    /// Nothing is wrong that was seen, but not all that was to be shown could be.
    Inconclusive(String),
}

impl Verdict {
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Passed(_) => "PASSED",
            Self::Failed(_) => "FAILED",
            Self::Inconclusive(_) => "INCONCLUSIVE",
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Passed(_) => ExitCode::SUCCESS,
            Self::Failed(_) => ExitCode::FAILURE,
            Self::Inconclusive(_) => ExitCode::from(3),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Passed(why) | Self::Failed(why) | Self::Inconclusive(why)) = self;
        write!(f, "{}: {why}", self.word())
    }
}
