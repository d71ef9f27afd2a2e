//! Traces: one request a line, `{"timestamp":0,"input_length":6758,"output_length":500,"hash_ids":[0,1,2]}`.
//!
//! A hash id stands for one block of tokens together with everything before it: the same id is the same reusable
//! prefix block. Fields beside these four are skipped.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

/// Octets of a line at most: a million hash ids of 12 octets, far more than the longest context has blocks. It keeps
/// a file that is no trace from being read into memory whole.
pub const LINE_MAX: u64 = 16 << 20;

/// One request of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// When it arrived, milliseconds after the trace began.
    pub timestamp: u64,
    /// Tokens in.
    pub input_length: u64,
    /// Tokens out.
    pub output_length: u64,
    /// Its blocks, first to last.
    pub hash_ids: Vec<u64>,
}

/// Reads a trace request by request; the file is never in memory whole.
#[derive(Debug)]
pub struct TraceReader<R> {
    input: R,
    name: String,
    line: u64,
    octets: u64,
    text: Vec<u8>,
}

impl TraceReader<BufReader<File>> {
    /// Opens the file `path`.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|e| Failure::file("read the trace", path, &e))?;
        if file.metadata().is_ok_and(|m| m.is_dir()) {
            return Err(Failure::usage(
                format_args!("{} is a directory", path.display()),
                "name a trace file, one JSON request a line",
            ));
        }
        Ok(Self::new(BufReader::new(file), path.display().to_string()))
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads from `input`; errors call it `name`.
    pub fn new(input: R, name: String) -> Self {
        Self {
            input,
            name,
            line: 0,
            octets: 0,
            text: Vec::new(),
        }
    }

    /// Octets read so far.
    #[must_use]
    pub fn octets_read(&self) -> u64 {
        self.octets
    }

    /// The next request; `None` at the end. Empty lines are skipped.
    ///
    /// # Errors
    /// [`Failure`] names file, line and what is wrong with it.
    pub fn next_request(&mut self) -> Result<Option<Request>, Failure> {
        loop {
            self.text.clear();
            let read = self
                .input
                .by_ref()
                .take(LINE_MAX + 1)
                .read_until(b'\n', &mut self.text)
                .map_err(|e| self.unreadable(&e))?;
            let read = u64::try_from(read).unwrap_or(u64::MAX);
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            self.octets += read;
            if read > LINE_MAX {
                return Err(self.wrong("longer than 16MiB"));
            }
            if self.text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return self.parse().map(Some);
        }
    }

    fn parse(&self) -> Result<Request, Failure> {
        serde_json::from_slice(&self.text).map_err(|e| {
            // serde_json counts lines too; each of ours is a document of its own.
            let text = e.to_string();
            let said = text.split(" at line 1 column ").next().unwrap_or(&text);
            self.wrong(&format!("{said} (column {})", e.column()))
        })
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::operation(
            format_args!("{}:{}: not a request: {what}", self.name, self.line),
            "a line is {\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[0]}",
        )
    }

    fn unreadable(&self, e: &io::Error) -> Failure {
        Failure::file("read the trace", Path::new(&self.name), e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(text: &str) -> TraceReader<&[u8]> {
        TraceReader::new(text.as_bytes(), "t.jsonl".to_owned())
    }

    const GOOD: &str = r#"{"timestamp":5,"input_length":600,"output_length":7,"hash_ids":[3,4]}"#;

    #[test]
    fn requests_come_in_order_and_blank_lines_do_not_count_as_requests() {
        let text = format!("{GOOD}\n\n  \n{GOOD}");
        let mut r = reader(&text);
        let first = r.next_request().unwrap().unwrap();
        assert_eq!((first.timestamp, first.hash_ids), (5, vec![3, 4]));
        assert!(r.next_request().unwrap().is_some());
        assert!(r.next_request().unwrap().is_none());
        assert_eq!(r.octets_read(), u64::try_from(text.len()).unwrap());
    }

    #[test]
    fn a_wrong_line_is_named_with_what_is_wrong() {
        for (line, said) in [
            ("{", "EOF"),
            ("7", "invalid type"),
            (
                r#"{"timestamp":0,"input_length":1,"output_length":1}"#,
                "hash_ids",
            ),
            (
                r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[-1]}"#,
                "-1",
            ),
            (
                r#"{"timestamp":0,"input_length":"x","output_length":1,"hash_ids":[]}"#,
                "string",
            ),
        ] {
            let text = format!("{GOOD}\n{line}\n");
            let mut r = reader(&text);
            assert!(r.next_request().unwrap().is_some());
            let error = r.next_request().unwrap_err().to_string();
            assert!(error.starts_with("t.jsonl:2: not a request: "), "{error}");
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_read_whole() {
        let long = vec![b' '; usize::try_from(LINE_MAX).unwrap() + 2];
        let mut r = TraceReader::new(long.as_slice(), "t".to_owned());
        let error = r.next_request().unwrap_err().to_string();
        assert!(error.contains("t:1: not a request: longer than"), "{error}");
    }

    #[test]
    fn octets_that_are_not_text_are_an_error() {
        let mut r = TraceReader::new([0xff, 0xfe, b'\n'].as_slice(), "t".to_owned());
        assert!(r.next_request().is_err());
    }
}
