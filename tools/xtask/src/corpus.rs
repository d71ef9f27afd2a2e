//! The corpora of `tests/fuzz` as they are kept: an input that was written by hand is a file with a name of its own,
//! and those that the fuzzer found are the lines of the file [`FOUND`], each in hexadecimal.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

/// The file of a corpus that has what was found, an input to a line.
const FOUND: &str = "found";

/// Lays a corpus out as files in the empty folder `work`, as libFuzzer wants it. How many there are.
pub(crate) fn unpack(corpus: &Path, work: &Path) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(corpus)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if name == FOUND {
            for (number, line) in fs::read_to_string(&path)?.lines().enumerate() {
                fs::write(work.join(format!("found-{number}")), octets(line, number)?)?;
                count += 1;
            }
        } else {
            fs::copy(&path, work.join(name))?;
            count += 1;
        }
    }
    Ok(count)
}

/// Writes what is in `work` and in no named file of the corpus to its file of what was found. How many those are.
pub(crate) fn pack(work: &Path, corpus: &Path) -> io::Result<usize> {
    let mut named = BTreeSet::new();
    for entry in fs::read_dir(corpus)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name != FOUND) {
            named.insert(fs::read(path)?);
        }
    }
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(work)? {
        let input = fs::read(entry?.path())?;
        if !named.contains(&input) {
            // Short ones first, as someone would read them.
            found.insert((input.len(), input));
        }
    }
    let mut text = String::new();
    for (_, input) in &found {
        for octet in input {
            write!(text, "{octet:02x}").map_err(io::Error::other)?;
        }
        text.push('\n');
    }
    if found.is_empty() {
        return Ok(0);
    }
    // Whole or not at all: a run that is stopped here loses nothing.
    let whole = work.with_extension("packed");
    fs::write(&whole, text)?;
    fs::rename(&whole, corpus.join(FOUND))?;
    Ok(found.len())
}

/// The octets of a line of hexadecimal digits.
fn octets(line: &str, number: usize) -> io::Result<Vec<u8>> {
    let digit = |octet: u8| char::from(octet).to_digit(16);
    let pair = |pair: &[u8]| match *pair {
        [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
        _ => None,
    };
    let octets = line.as_bytes().chunks(2).map(pair).collect::<Option<_>>();
    octets.ok_or_else(|| {
        let line = number.saturating_add(1);
        io::Error::other(format!(
            "{FOUND}, line {line}: not an even number of hexadecimal digits"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("corpus")).unwrap();
            fs::create_dir_all(path.join("work")).unwrap();
            Self(path)
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_corpus_comes_back_as_it_was_with_what_was_found() {
        let scratch = Scratch::new("pack");
        let (corpus, work) = (scratch.at("corpus"), scratch.at("work"));
        fs::write(corpus.join("by_hand"), [1, 2, 3]).unwrap();
        fs::write(corpus.join(FOUND), "00ff\n0a0b0c\n").unwrap();
        assert_eq!(unpack(&corpus, &work).unwrap(), 3);
        assert_eq!(fs::read(work.join("by_hand")).unwrap(), [1, 2, 3]);
        assert_eq!(fs::read(work.join("found-0")).unwrap(), [0, 255]);
        fs::write(work.join("new"), [7]).unwrap();
        fs::write(work.join("new again"), [7]).unwrap();
        assert_eq!(pack(&work, &corpus).unwrap(), 3);
        let found = fs::read_to_string(corpus.join(FOUND)).unwrap();
        assert_eq!(found, "07\n00ff\n0a0b0c\n");
    }

    #[test]
    fn a_line_that_is_no_octets_is_named() {
        let scratch = Scratch::new("octets");
        for wrong in ["abc", "0g", "é"] {
            fs::write(scratch.at("corpus").join(FOUND), format!("00\n{wrong}\n")).unwrap();
            let error = unpack(&scratch.at("corpus"), &scratch.at("work")).unwrap_err();
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }
}
