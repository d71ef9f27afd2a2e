//! What a target under test must never do: panic, or say that it failed.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, Once, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// What it did of that, in words.
static FAULTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// How the threads of a target and its agent are named.
const THREADS: [&str; 2] = ["kbtp-", "agent"];

/// Watches every target of this process from now on: panics of its threads, and what it logs as its own error.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("");
            if THREADS.iter().any(|its| name.starts_with(its)) {
                note(format!("{name} panicked: {info}"));
            }
            before(info);
        }));
        // A test that logs elsewhere watches for itself.
        let _taken = tracing::subscriber::set_global_default(Errors);
    });
}

/// What targets of this process have done since they are watched that they must not do.
#[must_use]
pub fn faults() -> Vec<String> {
    FAULTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

fn note(fault: String) {
    FAULTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(fault);
}

/// Takes what is logged as an error and nothing else.
struct Errors;

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR && metadata.target().starts_with("kbtp_")
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words(format!("{}:", event.metadata().target()));
        event.record(&mut words);
        note(words.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// The fields of an event.
struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _written = write!(self.0, " {field}={value:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_errors_of_a_target_are_noticed_and_those_of_others_are_not() {
        watch();
        let run = |name: &str| {
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(|| panic!("planted")).unwrap().join()
        };
        run("somebody").unwrap_err();
        assert_eq!(faults(), Vec::<String>::new());
        run("kbtp-worker-0").unwrap_err();
        tracing::error!(target: "kbtp_target", what = 7, "planted");
        tracing::error!(target: "elsewhere", "planted");
        tracing::warn!(target: "kbtp_target", "planted");
        let found = faults();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("kbtp-worker-0 panicked"), "{found:?}");
        assert!(found[1].contains("what=7") && found[1].contains("planted"));
    }
}
