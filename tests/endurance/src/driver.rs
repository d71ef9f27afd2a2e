//! Threads that read what other processes say, and what this one is told.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

pub(crate) use kbtp::driver::now;

/// Something that one of several processes said, and when it was read.
#[derive(Debug)]
pub(crate) struct Heard {
    /// Which process.
    pub(crate) who: usize,
    /// When.
    pub(crate) at: Instant,
    /// A line; none when there are no more.
    pub(crate) line: Option<String>,
}

/// Reads the lines of `from` on a thread of its own. A line that is cut off is none.
pub(crate) fn listen(who: usize, from: impl Read + Send + 'static, to: Sender<Heard>) {
    kbtp::driver::start("listener", move || {
        let mut from = BufReader::new(from);
        let mut line = String::new();
        while from.read_line(&mut line).is_ok() && line.ends_with('\n') {
            let said = line.trim_end().to_owned();
            line.clear();
            let heard = Heard {
                who,
                at: now(),
                line: Some(said),
            };
            if to.send(heard).is_err() {
                return;
            }
        }
        // Nobody listens any more once the campaign has ended.
        drop(to.send(Heard {
            who,
            at: now(),
            line: None,
        }));
    })
    .expect("a thread");
}

/// The lines of standard input, read on a thread of its own.
pub(crate) fn told() -> Receiver<String> {
    let (tell, told) = channel();
    kbtp::driver::start("told", move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    })
    .expect("a thread");
    told
}
