//! The states of a connection and every way from one to the next.
//!
//! ```text
//!  responder: AwaitRequest -> Deciding -> Established        initiator: AwaitReply -> Established
//!                                 '--> Refusing -> HalfClosed                  '--> Ended (refused)
//!
//!  Established -> Closing -> HalfClosed -> Ended             everything posted goes out, then our end of sending
//!       '-------> Answering -> HalfClosed -> Ended           the peer's end: what it asked for goes out, then ours
//!       '-------> Terminating -> HalfClosed -> Ended         a Terminate goes out, then our end of sending
//!       '-------> Ended                                      abort, peer's Terminate, peer's cut, broken connection
//! ```
//!
//! States only move forward. A transition and what the transport must do about it are one answer of [`State::on`].

/// Where a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum State {
    /// Responder: the MPA Request Frame is not here yet.
    AwaitRequest,
    /// Responder: the ULP has the request and has not answered.
    Deciding,
    /// Initiator: the MPA Reply Frame is not here yet.
    AwaitReply,
    /// Responder: the refusing reply goes out.
    Refusing,
    /// Full Operation.
    Established,
    /// The peer has ended its sending: what it asked for is answered.
    Answering,
    /// Closing in order: what was posted goes out and what was asked for comes in.
    Closing,
    /// The Terminate goes out; nothing more is taken in.
    Terminating,
    /// Our sending has ended, the peer's has not.
    HalfClosed,
    /// Over.
    Ended,
}

/// What happens to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Input {
    /// A valid MPA Request Frame is here.
    Request,
    /// The ULP accepts it.
    Accept,
    /// The ULP refuses it.
    Refuse,
    /// A valid MPA Reply Frame that accepts is here.
    Reply,
    /// A valid MPA Reply Frame that refuses is here.
    Refused,
    /// The peer broke a rule, and a Terminate tells it.
    FaultTold,
    /// The peer broke a rule, and cannot be told.
    FaultUntold,
    /// The peer's Terminate is here.
    PeerTerminate,
    /// The ULP closes in order.
    Close,
    /// The ULP closes at once.
    Abort,
    /// All that was to go out has gone.
    Drained,
    /// The peer ended its sending between messages, and nothing that is posted needs an answer of it.
    PeerEnd,
    /// The peer ended its sending in the middle of something, or owes an answer.
    PeerCut,
    /// The timer ran out.
    Timeout,
    /// The connection broke.
    Broken,
}

/// What a transition asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Effects {
    /// The transport ends its sending (a FIN).
    pub(crate) end_sending: bool,
    /// The transport closes the connection.
    pub(crate) close: bool,
    /// The close timer starts.
    pub(crate) start_timer: bool,
}

/// An input that has no meaning in a state: a mistake of the caller, and nothing changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Misplaced;

impl State {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 10] = [
        Self::AwaitRequest,
        Self::Deciding,
        Self::AwaitReply,
        Self::Refusing,
        Self::Established,
        Self::Answering,
        Self::Closing,
        Self::Terminating,
        Self::HalfClosed,
        Self::Ended,
    ];

    /// The next state.
    #[expect(
        clippy::match_same_arms,
        reason = "one arm a rule, in the order they apply"
    )]
    pub(crate) const fn on(self, input: Input) -> Result<(Self, Effects), Misplaced> {
        const NOTHING: Effects = Effects {
            end_sending: false,
            close: false,
            start_timer: false,
        };
        const CLOSE: Effects = Effects {
            close: true,
            ..NOTHING
        };
        const TIMER: Effects = Effects {
            start_timer: true,
            ..NOTHING
        };
        const HALF_CLOSE: Effects = Effects {
            end_sending: true,
            start_timer: true,
            ..NOTHING
        };
        let next = match (self, input) {
            // Once over, nothing changes.
            (Self::Ended, Input::Accept | Input::Refuse) => return Err(Misplaced),
            (Self::Ended, _) => (Self::Ended, NOTHING),

            // The ULP's answer, in its place only.
            (Self::Deciding, Input::Accept) => (Self::Established, NOTHING),
            (Self::Deciding, Input::Refuse) => (Self::Refusing, TIMER),
            (_, Input::Accept | Input::Refuse) => return Err(Misplaced),

            // Startup.
            (Self::AwaitRequest, Input::Request) => (Self::Deciding, NOTHING),
            (Self::AwaitReply, Input::Reply) => (Self::Established, NOTHING),
            (Self::AwaitReply, Input::Refused) => (Self::Ended, CLOSE),
            (_, Input::Request | Input::Reply | Input::Refused) => return Err(Misplaced),

            // The end that needs no words.
            (_, Input::Abort | Input::Broken | Input::Timeout | Input::PeerTerminate) => {
                (Self::Ended, CLOSE)
            }

            // Faults of the peer.
            (Self::Established | Self::Closing, Input::FaultTold) => (Self::Terminating, TIMER),
            // The first fault is the one that is told (RFC 5040, section 7.1, rule 4).
            (Self::Terminating | Self::Refusing, Input::FaultTold | Input::FaultUntold) => {
                (self, NOTHING)
            }
            (_, Input::FaultTold | Input::FaultUntold) => (Self::Ended, CLOSE),

            // Closing in order.
            //= rfc5041-6.2.1-close-other-half
            //= rfc5041-6.2.1-inbound-after-own-end
            (Self::Established | Self::Answering, Input::Close) => (Self::Closing, TIMER),
            (
                Self::Closing | Self::Terminating | Self::HalfClosed | Self::Refusing,
                Input::Close,
            ) => (self, NOTHING),
            (_, Input::Close) => (Self::Ended, CLOSE),
            (
                Self::Answering | Self::Closing | Self::Terminating | Self::Refusing,
                Input::Drained,
            ) => (Self::HalfClosed, HALF_CLOSE),
            (_, Input::Drained) => (self, NOTHING),

            // The peer's end of sending. What we have to tell it still goes out.
            (Self::Terminating | Self::Refusing, Input::PeerEnd | Input::PeerCut) => {
                (self, NOTHING)
            }
            //= rfc5044-7.2-end-told
            (Self::Established, Input::PeerEnd) => (Self::Answering, TIMER),
            (Self::Answering | Self::Closing, Input::PeerEnd) => (self, NOTHING),
            (_, Input::PeerEnd | Input::PeerCut) => (Self::Ended, CLOSE),
        };
        Ok(next)
    }

    /// Whether octets of the peer mean anything.
    pub(crate) const fn takes_octets(self) -> bool {
        matches!(
            self,
            Self::AwaitRequest
                | Self::AwaitReply
                | Self::Established
                | Self::Closing
                | Self::HalfClosed
        )
    }

    /// Whether this is Full Operation, in which FPDUs are sent.
    pub(crate) const fn sends_fpdus(self) -> bool {
        matches!(
            self,
            Self::Established | Self::Answering | Self::Closing | Self::Terminating
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: [Input; 15] = [
        Input::Request,
        Input::Accept,
        Input::Refuse,
        Input::Reply,
        Input::Refused,
        Input::FaultTold,
        Input::FaultUntold,
        Input::PeerTerminate,
        Input::Close,
        Input::Abort,
        Input::Drained,
        Input::PeerEnd,
        Input::PeerCut,
        Input::Timeout,
        Input::Broken,
    ];

    /// Every state with every input, one a line.
    fn table() -> String {
        let mut out = Vec::new();
        for state in State::ALL {
            for input in INPUTS {
                let to = match state.on(input) {
                    Err(Misplaced) => "misplaced".to_owned(),
                    Ok((next, effects)) => {
                        let mut words = format!("{next:?}");
                        for (set, word) in [
                            (effects.end_sending, " end_sending"),
                            (effects.close, " close"),
                            (effects.start_timer, " timer"),
                        ] {
                            if set {
                                words.push_str(word);
                            }
                        }
                        words
                    }
                };
                out.push(format!("{state:?} {input:?}: {to}\n"));
            }
        }
        out.concat()
    }

    #[test]
    fn every_state_with_every_input_is_as_committed() {
        assert_eq!(table(), include_str!("state.table.txt"));
    }

    #[test]
    fn states_only_move_forward() {
        let rank = |state: State| State::ALL.iter().position(|s| *s == state);
        for state in State::ALL {
            for input in INPUTS {
                if let Ok((next, _)) = state.on(input) {
                    assert!(rank(next) >= rank(state), "{state:?} {input:?} {next:?}");
                }
            }
        }
    }

    #[test]
    fn every_way_out_closes_once() {
        for state in State::ALL {
            for input in INPUTS {
                if let Ok((next, effects)) = state.on(input) {
                    assert_eq!(
                        effects.close,
                        next == State::Ended && state != State::Ended,
                        "{state:?} {input:?}"
                    );
                }
            }
        }
    }
}
