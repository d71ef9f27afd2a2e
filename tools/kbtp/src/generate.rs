//! A synthetic trace: applications with a system prompt each, sessions of several turns that grow their history.
//!
//! The same seed gives the same trace, octet for octet, on every machine.

use crate::content::mix;
use crate::failure::Failure;
use crate::output;
use crate::trace::Request;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Tokens of a block, as in the public traces.
const BLOCK_TOKENS: u64 = 512;
/// Applications; each has one system prompt that all its sessions begin with.
const APPLICATIONS: u64 = 4;
/// Sessions that are open at one time.
const OPEN_SESSIONS: usize = 24;
/// Mean time between requests, in milliseconds.
const GAP_MS: u64 = 250;

/// A sequence of numbers from a seed.
#[derive(Debug)]
struct Numbers(u64);

impl Numbers {
    /// A number from `low` up to, not including, `high`.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The bias of the remainder is below 2^-40 for the small spans used here.
        low + mix(self.0) % (high - low)
    }
}

/// A conversation: full blocks of its history have ids for good, the last, partial one does not.
#[derive(Debug)]
struct Session {
    full: Vec<u64>,
    tokens: u64,
    turns_left: u64,
}

/// An endless synthetic trace.
#[derive(Debug)]
pub(crate) struct Generator {
    numbers: Numbers,
    next_id: u64,
    prompts: Vec<Vec<u64>>,
    sessions: Vec<Session>,
    now_ms: u64,
}

impl Generator {
    /// The trace of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        let mut this = Self {
            numbers: Numbers(mix(seed)),
            next_id: 0,
            prompts: Vec::new(),
            sessions: Vec::new(),
            now_ms: 0,
        };
        for _ in 0..APPLICATIONS {
            let blocks = this.numbers.between(1, 6);
            let prompt = (0..blocks).map(|_| this.fresh_id()).collect();
            this.prompts.push(prompt);
        }
        this
    }

    fn fresh_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    fn open_session(&mut self) -> Session {
        // The lower of two draws: the first applications are the popular ones.
        let a = self.numbers.between(0, APPLICATIONS);
        let b = self.numbers.between(0, APPLICATIONS);
        let prompt = usize::try_from(a.min(b))
            .ok()
            .and_then(|i| self.prompts.get(i));
        let full = prompt.cloned().unwrap_or_default();
        Session {
            tokens: count(&full) * BLOCK_TOKENS,
            full,
            turns_left: self.numbers.between(1, 9),
        }
    }

    /// Which session speaks next: a new one while few are open, else the lower of two draws, so that some speak often.
    fn take_session(&mut self) -> Session {
        if self.sessions.len() < OPEN_SESSIONS {
            return self.open_session();
        }
        let open = count(&self.sessions);
        let pick = self
            .numbers
            .between(0, open)
            .min(self.numbers.between(0, open));
        self.sessions.remove(usize::try_from(pick).unwrap_or(0))
    }

    /// Lengthens the history and gives ids to the blocks that it fills.
    fn grow(&mut self, session: &mut Session, tokens: u64) {
        session.tokens += tokens;
        while (count(&session.full) + 1) * BLOCK_TOKENS <= session.tokens {
            let id = self.fresh_id();
            session.full.push(id);
        }
    }
}

impl Iterator for Generator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        self.now_ms += self.numbers.between(0, 2 * GAP_MS);
        let mut session = self.take_session();
        let question = self.numbers.between(40, 4_000);
        self.grow(&mut session, question);
        let mut hash_ids = session.full.clone();
        if count(&session.full) * BLOCK_TOKENS < session.tokens {
            let partial = self.fresh_id();
            hash_ids.push(partial);
        }
        let output_length = self.numbers.between(10, 900);
        let request = Request {
            timestamp: self.now_ms,
            input_length: session.tokens,
            output_length,
            hash_ids,
        };
        self.grow(&mut session, output_length);
        session.turns_left -= 1;
        if session.turns_left > 0 {
            self.sessions.push(session);
        }
        Some(request)
    }
}

/// What was written.
#[derive(Debug, Serialize)]
struct Report<'a> {
    trace: &'a Path,
    seed: u64,
    requests: u64,
}

/// Writes the first `requests` requests of the trace of `seed` to `path`, or to standard output, where it is all there is:
/// it is JSON itself.
///
/// # Errors
/// [`Failure`] if that cannot be written.
pub(crate) fn run(
    seed: u64,
    requests: u64,
    path: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let Some(path) = path else {
        let stdout = BufWriter::new(io::stdout().lock());
        return write(seed, requests, stdout).map_err(|e| Failure::output(&e));
    };
    let failed = |e| Failure::file("write the trace", path, &e);
    let file = File::create(path).map_err(failed)?;
    write(seed, requests, BufWriter::new(file)).map_err(failed)?;
    let report = Report {
        trace: path,
        seed,
        requests,
    };
    output::report(json, &report, || {
        format!("{}: {requests} requests\n", path.display())
    })
}

fn write(seed: u64, requests: u64, mut to: impl Write) -> io::Result<()> {
    let mut trace = Generator::new(seed);
    for _ in 0..requests {
        let Some(request) = trace.next() else {
            break;
        };
        serde_json::to_writer(&mut to, &request)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

fn count<T>(items: &[T]) -> u64 {
    u64::try_from(items.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_is_a_trace() {
        let trace = |seed| Generator::new(seed).take(50).collect::<Vec<_>>();
        assert_eq!(trace(1), trace(1));
        assert_ne!(trace(1), trace(2));
    }

    #[test]
    fn requests_are_well_formed_and_share_prefixes() {
        let mut stored = BTreeSet::new();
        let (mut references, mut leading, mut before) = (0_u64, 0_u64, 0);
        for r in Generator::new(7).take(400) {
            assert_eq!(count(&r.hash_ids), r.input_length.div_ceil(BLOCK_TOKENS));
            assert!(r.timestamp >= before && r.output_length > 0);
            let distinct: BTreeSet<_> = r.hash_ids.iter().collect();
            assert_eq!(distinct.len(), r.hash_ids.len());
            before = r.timestamp;
            references += count(&r.hash_ids);
            let hits = r.hash_ids.iter().take_while(|&id| stored.contains(id));
            leading += u64::try_from(hits.count()).unwrap();
            stored.extend(r.hash_ids);
        }
        assert!(leading * 4 > references, "{leading} of {references} shared");
        assert!(
            leading * 10 < references * 9,
            "{leading} of {references} shared"
        );
    }
}
