//! The startup frame of the peer, as it comes in, and what is done about it.
//! Source: RFC 5044, section 7.1.2; RFC 6581, section 9.

use crate::connection::{Connection, Startup};
use crate::startup;
use crate::state::{Input, State};
use crate::terminate::Fault;
use kbtp_fabric::StreamError;
use kbtp_wire::mpa::{EnhancedData, FrameKind, MAX_PRIVATE_LEN, StartupError, StartupFrame};
use kbtp_wire::rdmap::TerminateCause;

/// The frame, as far as it is here.
#[derive(Debug)]
pub(crate) struct Opening {
    octets: Box<[u8]>,
    have: usize,
    frame: Option<StartupFrame>,
}

impl Opening {
    pub(crate) fn new() -> Self {
        Self {
            octets: vec![0; StartupFrame::LEN + usize::from(MAX_PRIVATE_LEN)].into_boxed_slice(),
            have: 0,
            frame: None,
        }
    }

    /// Octets the frame has, as far as those that are here tell.
    fn want(&self) -> usize {
        StartupFrame::LEN + self.frame.map_or(0, |frame| usize::from(frame.private_len))
    }

    pub(crate) fn is_whole_or_unbegun(&self) -> bool {
        self.have == 0 || (self.frame.is_some() && self.have == self.want())
    }

    /// The whole frame, with its enhanced data.
    pub(crate) fn frame(&self) -> Option<(StartupFrame, Option<EnhancedData>)> {
        let frame = self.frame.filter(|_| self.have == self.want())?;
        let data = self
            .octets
            .get(StartupFrame::LEN..)?
            .first_chunk()
            .filter(|_| frame.flags.enhanced)
            .map(|octets| EnhancedData::decode(*octets));
        Some((frame, data))
    }

    /// The ULP's Private Data of the whole frame.
    pub(crate) fn private_data(&self) -> &[u8] {
        let Some((_, data)) = self.frame() else {
            return &[];
        };
        let start = StartupFrame::LEN + data.map_or(0, |_| EnhancedData::LEN);
        self.octets.get(start..self.have).unwrap_or_default()
    }

    /// Takes up octets; those it has no use for stay. `true` once the frame is whole.
    fn take(&mut self, octets: &[u8], expected: FrameKind) -> Result<bool, StartupError> {
        let to = self.have..self.have + octets.len();
        if let Some(to) = self.octets.get_mut(to) {
            to.copy_from_slice(octets);
            self.have += octets.len();
        }
        if self.frame.is_none()
            && self.have >= StartupFrame::LEN
            && let Some(head) = self.octets.first_chunk()
        {
            self.frame = Some(StartupFrame::decode(head, expected)?);
        }
        Ok(self.frame.is_some() && self.have == self.want())
    }
}

impl Connection {
    /// Goes on with the peer's startup frame.
    pub(crate) fn take_startup(&mut self) {
        let expected = if self.initiator {
            FrameKind::Reply
        } else {
            FrameKind::Request
        };
        loop {
            let want = self.opening.want() - self.opening.have;
            let octets = self.incoming.take_raw(want);
            if octets.is_empty() && want > 0 {
                return;
            }
            match self.opening.take(octets, expected) {
                Ok(false) => {}
                Ok(true) => break,
                //= rfc5044-7.1.2-malformed-closes
                Err(error) => return self.startup_fails(&error.to_string()),
            }
        }
        if self.initiator {
            self.take_reply();
        } else {
            //= rfc5044-7.1.2-responder-waits
            self.startup = Startup::Request;
            self.apply(Input::Request);
        }
    }

    /// The connection closes; nothing can be told before Full Operation.
    fn startup_fails(&mut self, reason: &str) {
        self.startup = Startup::Failed;
        self.deaf = true;
        self.end_with(StreamError::Protocol {
            reason: reason.into(),
        });
        self.apply(Input::FaultUntold);
    }

    fn take_reply(&mut self) {
        let Some((frame, data)) = self
            .opening
            .frame()
            .filter(|_| self.state == State::AwaitReply)
        else {
            return;
        };
        //= rfc5044-7.1.2-rejected
        if frame.flags.rejected {
            self.startup = Startup::Rejected;
            self.end_with(StreamError::Protocol {
                reason: "the responder rejected the connection".into(),
            });
            self.apply(Input::Refused);
            return;
        }
        match startup::conclude(self.config(), frame, data) {
            Ok(agreed) => {
                self.agree(agreed);
                self.apply(Input::Reply);
            }
            Err(disagreed) => match disagreed.code {
                None => self.startup_fails(disagreed.rule),
                //= rfc6581-9.1-insufficient-ird
                Some(code) => {
                    self.refuse_reply(frame, Fault::new(TerminateCause::Mpa(code), disagreed.rule));
                }
            },
        }
    }

    /// Enters Full Operation only to tell the responder why it does not work.
    fn refuse_reply(&mut self, frame: StartupFrame, fault: Fault) {
        let crc = self.config().crc || frame.flags.crc;
        let markers = frame.flags.markers;
        self.outgoing.agree(crc, markers);
        let config = self.config().clone();
        self.sending.begin(&config);
        self.startup = Startup::Failed;
        self.apply(Input::Reply);
        self.fault(fault, None);
    }
}
