//! What a signal, or the end of its input, does to a service: from its first moment to its last.
//!
//! | | while it starts | while it serves | once it was asked to stop |
//! |---|---|---|---|
//! | SIGTERM, SIGINT | ends the process | asks it to stop in order | asks it to end at once; the next ends the process |
//! | end of input | asks it to stop as soon as it serves | asks it to stop in order | nothing |

use crate::driver::{self, Stop, StopSignals};
use crate::failure::Failure;
use crate::output;
use nix::sys::signal::Signal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a service is asked to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    /// What is in flight finishes.
    InOrder,
    /// Nothing is waited for.
    AtOnce,
}

type Undo = Box<dyn FnOnce() + Send>;
type Tell = Box<dyn Fn(Ask) + Send>;

/// How far the service is.
enum Stage {
    Starting {
        /// What is to be put back if it does not come to serve.
        undo: Option<Undo>,
        /// It is to stop as soon as it serves.
        asked: bool,
    },
    Serving {
        tell: Tell,
        asked: bool,
    },
}

/// What is to be done with the signals then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// Wait for the next.
    Wait,
    /// The next has its default action.
    GiveBack,
    /// End the process by this one.
    EndBy(Signal),
}

/// Listens for what stops a service, while it starts too.
pub(crate) struct Stopping(Arc<Mutex<Stage>>);

impl Stopping {
    /// Listens from now on. Call it before any other thread is started: they inherit the blocked signals.
    ///
    /// # Errors
    /// [`Failure`] if the system refuses.
    pub(crate) fn watch(with_stdin: bool) -> Result<Self, Failure> {
        let signals = StopSignals::take()?;
        let stage = Arc::new(Mutex::new(Stage::Starting {
            undo: None,
            asked: false,
        }));
        let seen = Arc::clone(&stage);
        driver::start("signals", move || listen(&signals, with_stdin, &seen))?;
        Ok(Self(stage))
    }

    /// What to put back if the service is stopped before it serves. It must not wait for anything.
    pub(crate) fn undo_with(&self, undo: impl FnOnce() + Send + 'static) {
        if let Stage::Starting { undo: slot, .. } = &mut *lock(&self.0) {
            *slot = Some(Box::new(undo));
        }
    }

    /// The service serves from now on, and is told when it is to stop.
    pub(crate) fn serving(&self, tell: impl Fn(Ask) + Send + 'static) {
        let mut stage = lock(&self.0);
        let asked = matches!(*stage, Stage::Starting { asked: true, .. });
        if asked {
            tracing::info!("{}: stopping", Stop::Input);
            tell(Ask::InOrder);
        }
        *stage = Stage::Serving {
            tell: Box::new(tell),
            asked,
        };
    }
}

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(signals: &StopSignals, mut with_stdin: bool, stage: &Mutex<Stage>) {
    loop {
        let stop = match signals.wait(with_stdin) {
            Ok(stop) => stop,
            Err(failure) => {
                // A service that nobody can stop would be worse than one that does not drain.
                tracing::error!("{failure}; the next signal ends this process");
                return signals.give_back();
            }
        };
        // An input that ended stays so: it asks once.
        with_stdin &= stop != Stop::Input;
        let then = lock(stage).hear(stop);
        match then {
            Then::Wait => {}
            Then::GiveBack => return signals.give_back(),
            Then::EndBy(signal) => return signals.end_by(signal),
        }
    }
}

impl Stage {
    fn hear(&mut self, stop: Stop) -> Then {
        match (self, stop) {
            (Self::Starting { undo, .. }, Stop::Signal(signal)) => {
                if let Some(undo) = undo.take() {
                    undo();
                }
                output::note(&format!("kbtp: {stop}: ended before it was ready"));
                Then::EndBy(signal)
            }
            (Self::Starting { asked, .. }, Stop::Input) => {
                *asked = true;
                Then::Wait
            }
            (Self::Serving { tell, asked }, _) if !*asked => {
                tracing::info!("{stop}: stopping");
                *asked = true;
                tell(Ask::InOrder);
                Then::Wait
            }
            (Self::Serving { .. }, Stop::Input) => Then::Wait,
            (Self::Serving { tell, .. }, Stop::Signal(_)) => {
                tracing::warn!("{stop} again: ending at once");
                tell(Ask::AtOnce);
                Then::GiveBack
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const TERM: Stop = Stop::Signal(Signal::SIGTERM);

    fn stopping() -> Stopping {
        Stopping(Arc::new(Mutex::new(Stage::Starting {
            undo: None,
            asked: false,
        })))
    }

    #[test]
    fn a_signal_while_it_starts_puts_back_what_there_is_and_ends_the_process() {
        let stopping = stopping();
        let (tx, undone) = channel();
        stopping.undo_with(move || tx.send(()).unwrap());
        let then = lock(&stopping.0).hear(Stop::Signal(Signal::SIGINT));
        assert_eq!(then, Then::EndBy(Signal::SIGINT));
        undone.try_recv().unwrap();
    }

    #[test]
    fn an_input_that_ends_while_it_starts_stops_it_once_it_serves() {
        let stopping = stopping();
        assert_eq!(lock(&stopping.0).hear(Stop::Input), Then::Wait);
        let (tx, told) = channel();
        stopping.serving(move |ask| tx.send(ask).unwrap());
        assert_eq!(told.try_recv(), Ok(Ask::InOrder));
        assert_eq!(lock(&stopping.0).hear(TERM), Then::GiveBack);
        assert_eq!(told.try_recv(), Ok(Ask::AtOnce));
    }

    #[test]
    fn the_first_signal_drains_and_the_second_ends_at_once_and_the_input_asks_no_more() {
        let stopping = stopping();
        let (tx, told) = channel();
        stopping.serving(move |ask| tx.send(ask).unwrap());
        assert!(told.try_recv().is_err());
        assert_eq!(lock(&stopping.0).hear(TERM), Then::Wait);
        assert_eq!(told.try_recv(), Ok(Ask::InOrder));
        assert_eq!(lock(&stopping.0).hear(Stop::Input), Then::Wait);
        assert!(told.try_recv().is_err());
        assert_eq!(lock(&stopping.0).hear(TERM), Then::GiveBack);
        assert_eq!(told.try_recv(), Ok(Ask::AtOnce));
    }
}
