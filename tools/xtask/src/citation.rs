//! Citations of requirements in Rust sources: comments that start with `//=`.

use crate::finding::Finding;
use crate::tree::Tree;

/// How a place stands to the requirement it cites.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// This code does it.
    Code,
    /// This test fails without it.
    Test,
    /// It does not hold here, for the reason given.
    Exception,
}

/// One citation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Citation {
    /// The requirement.
    pub(crate) id: String,
    /// How.
    pub(crate) kind: Kind,
    /// The file.
    pub(crate) path: String,
    /// The line, from 1.
    pub(crate) line: usize,
}

/// Every citation in the tree's Rust sources; malformed ones go to `findings`.
pub(crate) fn read(tree: &Tree, findings: &mut Vec<Finding>) -> Vec<Citation> {
    let mut citations = Vec::new();
    for (path, text) in tree.ending(".rs") {
        for (at, line) in text.lines().enumerate() {
            let Some(body) = line.trim_start().strip_prefix("//=") else {
                continue;
            };
            match parse(body, path, at + 1) {
                Ok(citation) => citations.push(citation),
                Err(what) => findings.push(Finding::at(path, at + 1, what)),
            }
        }
    }
    citations
}

fn parse(body: &str, path: &str, line: usize) -> Result<Citation, &'static str> {
    const FORM: &str = "a citation is `//= ID`, `//= test ID` or `//= exception ID: reason`";
    let body = body.strip_prefix(' ').ok_or(FORM)?.trim();
    let (kind, rest) = match body.split_once(' ') {
        Some(("test", rest)) => (Kind::Test, rest),
        Some(("exception", rest)) => (Kind::Exception, rest),
        _ => (Kind::Code, body),
    };
    let (id, after) = rest.split_once(' ').unwrap_or((rest, ""));
    let id = match kind {
        Kind::Exception if after.trim().is_empty() => return Err("an exception needs its reason"),
        Kind::Exception => id.strip_suffix(':').ok_or(FORM)?,
        Kind::Code | Kind::Test if !after.is_empty() && !after.trim().starts_with("//") => {
            return Err(FORM);
        }
        Kind::Code | Kind::Test => id,
    };
    // Code in a folder of tests is test code: it cannot be what meets a requirement.
    if kind == Kind::Code && path.split('/').any(|part| part == "tests") {
        return Err("only `//= test ID` may stand in a folder of tests");
    }
    Ok(Citation {
        id: id.to_owned(),
        kind,
        path: path.to_owned(),
        line,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(path: &str, line: &str) -> Result<(String, Kind), String> {
        let tree = Tree::from([(path, line)]);
        let mut findings = Vec::new();
        let citations = read(&tree, &mut findings);
        match (&citations[..], &findings[..]) {
            ([citation], []) => Ok((citation.id.clone(), citation.kind)),
            ([], [finding]) => Err(finding.what.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_three_forms() {
        let id = "kbtp-3.3-free".to_owned();
        assert_eq!(
            one("a.rs", "    //= kbtp-3.3-free"),
            Ok((id.clone(), Kind::Code))
        );
        assert_eq!(
            one("a.rs", "//= kbtp-3.3-free   // why"),
            Ok((id.clone(), Kind::Code))
        );
        assert_eq!(
            one("x/tests/a.rs", "//= test kbtp-3.3-free"),
            Ok((id.clone(), Kind::Test))
        );
        let exception = "//= exception kbtp-3.3-free: docs/adr/0001";
        assert_eq!(one("a.rs", exception), Ok((id, Kind::Exception)));
    }

    #[test]
    fn malformed_ones_are_seen() {
        for (path, line) in [
            ("a.rs", "//=kbtp-3.3-free"),
            ("a.rs", "//= kbtp-3.3-free and more"),
            ("a.rs", "//= test kbtp-3.3-free, kbtp-3.3-other"),
            ("a.rs", "//= exception kbtp-3.3-free"),
            ("a.rs", "//= exception kbtp-3.3-free no colon"),
            ("x/tests/a.rs", "//= kbtp-3.3-free"),
        ] {
            assert!(one(path, line).is_err(), "{path}: {line}");
        }
    }
}
