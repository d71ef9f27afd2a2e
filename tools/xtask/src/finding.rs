//! What a check found.

use std::fmt;

/// One thing that is wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    /// The file or crate.
    pub(crate) place: String,
    /// The line in the file, from 1; 0 for the whole of it.
    pub(crate) line: usize,
    /// What is wrong, and what would be right.
    pub(crate) what: String,
}

impl Finding {
    /// Something wrong with a whole file or crate.
    pub(crate) fn of(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::at(place, 0, what)
    }

    /// Something wrong with a line.
    pub(crate) fn at(place: impl Into<String>, line: usize, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.place, self.what),
            line => write!(f, "{}:{line}: {}", self.place, self.what),
        }
    }
}

/// What `reqtrace` found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Broken citations and lists: never right.
    pub(crate) faults: Vec<Finding>,
    /// Missing coverage.
    pub(crate) shortfalls: Vec<Finding>,
    /// What is good to know and wrong with nothing.
    pub(crate) notes: Vec<Finding>,
}
