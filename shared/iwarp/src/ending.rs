//! How a connection goes from state to state, and how it ends.
//! Source: RFC 5040, sections 6.2 and 7.1.

use crate::connection::{Connection, Startup};
use crate::plants::{Plant, planted};
use crate::send_queue::Retired;
use crate::state::{Effects, Input, State};
use crate::terminate::{Culprit, Fault, TerminateOctets};
use kbtp_fabric::{Event, StreamError, WorkOutcome};

impl Connection {
    /// Keeps `error` for the end of the stream. The first one counts.
    pub(crate) fn end_with(&mut self, error: StreamError) {
        if self.state != State::Ended {
            self.ending.get_or_insert(error);
        }
    }

    /// Makes the transition of `input`.
    pub(crate) fn apply(&mut self, input: Input) {
        // A misplaced input changes nothing; the callers have looked at the state.
        let Ok((next, effects)) = self.state.on(input) else {
            return;
        };
        let before = core::mem::replace(&mut self.state, next);
        let Effects {
            end_sending,
            close,
            start_timer,
        } = effects;
        self.end_sending |= end_sending;
        self.close |= close;
        if start_timer {
            self.start_timer();
        }
        if next == State::HalfClosed && before != State::HalfClosed && self.peer_ended {
            // The peer was first: there is nothing to wait for.
            self.apply(Input::PeerEnd);
        } else if next == State::Ended && before != State::Ended {
            self.over();
        }
    }

    fn over(&mut self) {
        self.deadline = None;
        self.deaf = true;
        self.incoming.discard();
        if self.startup == Startup::Pending || self.startup == Startup::Request {
            self.startup = Startup::Failed;
        }
        self.complete();
        //= rfc5040-6.2.1-outstanding-in-error
        //= rfc5041-6.2.2-outstanding-in-error
        while let Some(id) = self.queue.flush() {
            self.events.push_back(Event::Done {
                id,
                outcome: WorkOutcome::Flushed,
            });
        }
    }

    /// Ends the stream because the peer broke a rule, and tells it so where it can be told.
    pub(crate) fn fault(&mut self, fault: Fault, culprit: Option<&Culprit>) {
        self.deaf = true;
        self.incoming.discard();
        //= rfc5040-7.1-user-informed
        //= rfc5041-6.2.2-fatal-reported
        self.end_with(StreamError::Protocol {
            reason: format!("{}: {}", fault.rule, fault.cause),
        });
        self.terminate(fault, culprit);
    }

    /// Queues a Terminate, if it may be sent.
    pub(crate) fn terminate(&mut self, fault: Fault, culprit: Option<&Culprit>) {
        //= rfc5044-7.1.2-responder-first-fpdu
        let told = self.initiator || self.fpdu_seen;
        //= rfc5040-7.1-first-error
        if told && self.state != State::Terminating && !planted(Plant::TerminateForgotten) {
            //= rfc5040-7.1-terminate-sent
            //= rfc7306-8.1-terminate-sent
            //= rfc5040-6.2.1-terminate-on-error
            //= rfc5041-7.1-error-report
            //= rfc5041-7.1-one-more-message
            //= rfc5044-8-codes-told
            self.sending.terminate = Some(TerminateOctets::new(fault.cause, culprit));
        }
        //= rfc5040-6.2.1-terminate-gets-out
        //= rfc5044-8-no-close-by-mpa
        self.apply(if told {
            Input::FaultTold
        } else {
            Input::FaultUntold
        });
    }

    /// Reports what is done.
    pub(crate) fn complete(&mut self) {
        while let Some(retired) = self.queue.retire(self.outgoing.sent()) {
            if let Retired::Report(id, outcome) = retired {
                self.events.push_back(Event::Done { id, outcome });
            }
        }
    }

    /// Notices that all that was to go out is out.
    pub(crate) fn drained(&mut self) {
        if self.is_drained() {
            self.apply(Input::Drained);
        }
    }

    /// Whether all that was to go out before the end is out.
    pub(crate) fn is_drained(&self) -> bool {
        let answered =
            || self.queue.is_idle() && self.inbound.is_empty() && self.sending.rtr.is_none();
        self.outgoing.is_empty()
            && match self.state {
                State::Closing => answered(),
                // The ULP may answer a message that it holds.
                State::Answering => answered() && self.slots.all_free(),
                State::Terminating => self.sending.terminate.is_none(),
                State::Refusing => true,
                _ => false,
            }
    }
}
