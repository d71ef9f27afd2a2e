//! Licence expressions of packages, judged against a list.

/// Licences the tree may contain.
pub(crate) const ACCEPTED: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "NCSA",
    "Unlicense",
    "Zlib",
];

/// Whether an SPDX expression (or the older form with a slash for OR) can be satisfied with accepted licences alone.
pub(crate) fn accepted(expression: &str) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (good, rest) = any(&words);
    good && rest.is_empty()
}

/// Alternatives: `a OR b OR c`.
fn any<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut good, mut rest) = all(words);
    while let ["OR", after @ ..] = rest {
        let (next, after) = all(after);
        good |= next;
        rest = after;
    }
    (good, rest)
}

/// Joint terms: `a AND b`.
fn all<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut good, mut rest) = one(words);
    while let ["AND", after @ ..] = rest {
        let (next, after) = one(after);
        good &= next;
        rest = after;
    }
    (good, rest)
}

fn one<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inner @ ..] => match any(inner) {
            (good, [")", rest @ ..]) => (good, rest),
            (_, rest) => (false, rest),
        },
        [name, "WITH", exception, rest @ ..] => (
            ACCEPTED.contains(&format!("{name} WITH {exception}").as_str()),
            rest,
        ),
        [name, rest @ ..] => (ACCEPTED.contains(name), rest),
        [] => (false, words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
            "MIT AND (ISC OR GPL-2.0)",
        ] {
            assert!(accepted(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "(MIT",
            "MIT)",
            "MIT ISC",
        ] {
            assert!(!accepted(bad), "{bad}");
        }
    }
}
