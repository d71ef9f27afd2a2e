//! A connection: its parts, its set-up, and what a transport and a ULP call.

use crate::config::{Config, CopyFirst, Handshake};
use crate::deliver::Assembly;
use crate::inbound::InboundQueue;
use crate::incoming::Incoming;
use crate::opening::Opening;
use crate::outgoing::Outgoing;
use crate::plants::{Plant, planted};
use crate::send_queue::SendQueue;
use crate::slots::Slots;
use crate::stags::StagTable;
use crate::startup::{self, Rtr};
use crate::state::{Input, State};
use crate::transmit::Sending;
use core::fmt;
use core::ops::Range;
use kbtp_fabric::{
    Access, Atomics, Capabilities, CloseReason, Event, LocalError, ReceiveSlot, StreamError, Time,
};
use kbtp_memory::{ReadVec, Region, WriteVec};
use kbtp_wire::mpa::ReadDepth;
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::collections::VecDeque;
use std::io;

/// How far the startup has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Startup {
    /// The peer's frame is not here yet.
    Pending,
    /// Responder: a request is here; read [`Connection::peer_private_data`] and accept or reject it.
    Request,
    /// Full Operation began; the stream may have ended since.
    Established,
    /// The responder rejected, this one or the peer.
    Rejected,
    /// There was no valid startup, or the connection ended before.
    Failed,
}

/// What the transport does to its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// End the sending (a FIN); go on receiving.
    EndSending,
    /// Close the socket.
    Close,
}

//= exception rfc5041-6.2-no-own-teardown: DDP and RDMAP are one object here; teardown is RDMAP's, after a Terminate
//= exception rfc5041-6.2.1-data-after-close: TCP brings no octets after the peer's FIN
//= exception rfc5042-6.4.3.1-fair-share: each stream has receive slots of its own
//= exception rfc6581-9.3-local-error: all resources are there before a frame goes out, so that no local error arises
//= exception rfc5041-6.2.2-transfer-after-error: RFC 5040, section 5.4, lets nothing follow a Terminate
//= exception rfc5041-6.2.2-no-own-termination: DDP and RDMAP are one object here; RDMAP, its user, asks at once
//= exception rfc5041-8.2-protection-domains: each stream is a protection domain of its own, so that the two ties are one
//= exception rfc5044-5.1-fpdu-starts-segment: a socket does not say where segments start; with FPDUs of a segment each and no delay they mostly do at FPDUs
//= exception rfc5044-7.1.2-rejected-tcp-stays: nothing here uses a connection without RDMAP; both ends close it
//= exception rfc5044-5.1-mulpdu-of-segment: only where it is asked for; longer FPDUs cost fewer CRCs and calls
/// One RDMAP Stream.
///
/// A transport reads into [`recv_vec`](Self::recv_vec) and calls [`handle_received`](Self::handle_received), sends
/// from [`send_vec`](Self::send_vec) and calls [`handle_sent`](Self::handle_sent), with nothing else called in between
/// the two of a pair, then does what [`next_action`](Self::next_action) says. Nothing here allocates after set-up but
/// the words of an error, and the copy made when an STag ends while octets of it are being sent.
#[expect(
    clippy::struct_excessive_bools,
    reason = "flags that live and die apart from the state and from each other"
)]
pub struct Connection {
    pub(crate) state: State,
    pub(crate) initiator: bool,
    pub(crate) startup: Startup,
    config: Config,
    pub(crate) opening: Opening,
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
    pub(crate) stags: StagTable,
    pub(crate) slots: Slots,
    pub(crate) queue: SendQueue,
    pub(crate) inbound: InboundQueue,
    pub(crate) assembly: Assembly,
    pub(crate) sending: Sending,
    pub(crate) events: VecDeque<Event>,
    /// Slots of Immediate Data whose event is not taken yet, in order.
    pub(crate) immediates: VecDeque<ReceiveSlot>,
    pub(crate) max_receive: u32,
    pub(crate) ord: u16,
    pub(crate) ird: u16,
    pub(crate) rtr_send_expected: bool,
    /// A valid FPDU of the peer was here.
    pub(crate) fpdu_seen: bool,
    /// What still comes is dropped.
    pub(crate) deaf: bool,
    /// Nothing comes any more.
    pub(crate) peer_ended: bool,
    pub(crate) now: Time,
    pub(crate) deadline: Option<Time>,
    pub(crate) end_sending: bool,
    pub(crate) close: bool,
    pub(crate) ending: Option<StreamError>,
}

/// Without STags, keys and the octets of messages: this goes to logs.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("initiator", &self.initiator)
            .field("startup", &self.startup)
            .field("state", &self.state)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// The initiator of a stream; its MPA Request Frame, with `private_data`, is ready to be sent. `seed` must be
    /// fresh and unpredictable to the peer: STags follow from it.
    ///
    /// # Errors
    /// [`LocalError::Limit`] if a bound of [`limits`](crate::limits) is passed, or the Private Data is too long: 508
    /// octets, 512 with [`Handshake::Original`].
    pub fn initiator(
        config: &Config,
        seed: [u8; 32],
        private_data: &[u8],
        now: Time,
    ) -> Result<Self, LocalError> {
        let mut connection = Self::new(config, &seed, true, now)?;
        let enhanced = config.handshake != Handshake::Original;
        let frame =
            startup::request(config, private_data).ok_or_else(|| private_limit(enhanced))?;
        connection.outgoing.raw(frame.as_slice());
        Ok(connection)
    }

    /// The responder of a stream; it waits for the MPA Request Frame. `seed` as for [`initiator`](Self::initiator).
    ///
    /// # Errors
    /// [`LocalError::Limit`] if a bound of [`limits`](crate::limits) is passed.
    pub fn responder(config: &Config, seed: [u8; 32], now: Time) -> Result<Self, LocalError> {
        Self::new(config, &seed, false, now)
    }

    fn new(
        config: &Config,
        seed: &[u8; 32],
        initiator: bool,
        now: Time,
    ) -> Result<Self, LocalError> {
        config.check()?;
        //= rfc5042-6.4.6-overflow-contained
        // Nothing is shared between streams but the regions registered with them.
        //= rfc5042-3-no-assumed-trust
        let events = usize::from(config.receive_slots) + usize::from(config.send_queue);
        Ok(Self {
            state: if initiator {
                State::AwaitReply
            } else {
                State::AwaitRequest
            },
            initiator,
            startup: Startup::Pending,
            config: config.clone(),
            opening: Opening::new(),
            incoming: Incoming::new(config.staging_len),
            outgoing: Outgoing::new(),
            stags: StagTable::new(config.registrations, seed),
            slots: Slots::new(config.receive_slots, config.max_receive),
            queue: SendQueue::new(
                config.send_queue,
                config.head_ring_len,
                config.outbound_reads,
            ),
            inbound: InboundQueue::new(config.inbound_reads),
            assembly: Assembly::new(),
            sending: Sending::new(),
            events: VecDeque::with_capacity(events),
            immediates: VecDeque::with_capacity(config.receive_slots.into()),
            max_receive: config.max_receive,
            ord: 0,
            ird: 0,
            rtr_send_expected: false,
            fpdu_seen: false,
            deaf: false,
            peer_ended: false,
            now,
            //= rfc5044-7.1.2-timeout
            deadline: Some(now.after_ms(config.startup_timeout_ms)),
            end_sending: false,
            close: false,
            ending: None,
        })
    }

    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    /// How far the startup has come.
    #[must_use]
    pub const fn startup(&self) -> Startup {
        self.startup
    }

    /// The Private Data of the peer's startup frame: of the request for a responder, of the reply for an initiator.
    /// Empty before it is here.
    #[must_use]
    pub fn peer_private_data(&self) -> &[u8] {
        self.opening.private_data()
    }

    /// IRD and ORD in the peer's startup frame, as it said them; `None` before it is here, or if it said none. What was
    /// agreed on is in [`capabilities`](Self::capabilities).
    #[must_use]
    pub fn peer_read_depths(&self) -> Option<(ReadDepth, ReadDepth)> {
        //= rfc6581-9.1-pass-ird-ord
        let (_, data) = self.opening.frame()?;
        data.map(|data| (data.ird, data.ord))
    }

    /// Responder: accepts the request, with `private_data` in the reply.
    ///
    /// # Errors
    /// [`LocalError::Limit`] if there is no request to answer, or the Private Data is too long: 508 octets, 512 if the
    /// request was not enhanced.
    pub fn accept(&mut self, private_data: &[u8], now: Time) -> Result<(), LocalError> {
        self.answer(private_data, false, now)
    }

    /// Responder: rejects the request, with `private_data` in the reply, and ends the connection.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn reject(&mut self, private_data: &[u8], now: Time) -> Result<(), LocalError> {
        self.answer(private_data, true, now)
    }

    fn answer(&mut self, private_data: &[u8], reject: bool, now: Time) -> Result<(), LocalError> {
        self.now = now;
        let Some((frame, data)) = self
            .opening
            .frame()
            .filter(|_| self.state == State::Deciding)
        else {
            return Err(LocalError::Limit {
                what: "MPA requests to answer",
                limit: 0,
            });
        };
        let (octets, agreed) = startup::reply(&self.config, frame, data, private_data, reject)
            .ok_or_else(|| private_limit(data.is_some()))?;
        self.outgoing.raw(octets.as_slice());
        if reject {
            self.startup = Startup::Rejected;
            self.deaf = true;
            self.end_with(StreamError::ClosedHere);
            self.apply(Input::Refuse);
        } else {
            self.agree(agreed);
            self.apply(Input::Accept);
            self.take_up();
        }
        Ok(())
    }

    /// Begins Full Operation.
    pub(crate) fn agree(&mut self, agreed: startup::Agreed) {
        self.startup = Startup::Established;
        self.deadline = None;
        self.ord = agreed.ord;
        self.ird = agreed.ird;
        self.rtr_send_expected = agreed.rtr_send_expected;
        self.inbound.agree(agreed.ird);
        //= rfc5044-7.1-bound-at-full-operation
        //= rfc5044-4.4-crc-if-either
        self.outgoing.agree(agreed.crc, agreed.markers_out);
        self.incoming.agree(agreed.crc, agreed.markers_in);
        self.sending.begin(&self.config);
        if self.initiator {
            self.sending.rtr = agreed.rtr;
            if self.config.first_send_delay_ms > 0 {
                let at = self.now.after_ms(self.config.first_send_delay_ms);
                self.sending.not_before = Some(at);
            }
        }
    }

    /// Where the next octets go. Empty: do not read now. Valid until the next call.
    pub fn recv_vec(&mut self) -> ReadVec<'_> {
        if !self.wants_read() {
            return ReadVec::new();
        }
        let more = self.goes_on();
        self.incoming.recv_vec(&self.stags, &mut self.slots, more)
    }

    /// `octets` came into what [`recv_vec`](Self::recv_vec) gave.
    pub fn handle_received(&mut self, octets: usize, now: Time) {
        self.now = now;
        self.incoming
            .handle_received(octets, &self.stags, &mut self.slots);
        self.take_up();
    }

    /// Takes up what is staged.
    fn take_up(&mut self) {
        if self.deaf || self.state == State::Ended {
            self.incoming.discard();
            return;
        }
        if matches!(self.state, State::AwaitRequest | State::AwaitReply) {
            self.take_startup();
        }
        if matches!(
            self.state,
            State::Established | State::Closing | State::HalfClosed
        ) {
            self.take_fpdus();
            self.drained();
        }
    }

    /// The peer ended its sending.
    pub fn handle_end(&mut self, now: Time) {
        self.now = now;
        let clean = self.incoming.between_fpdus()
            && self.assembly.between_messages()
            && self.opening.is_whole_or_unbegun();
        let error = match self.state {
            State::HalfClosed => StreamError::ClosedHere,
            _ if clean && self.startup == Startup::Established => StreamError::PeerClosed,
            _ if clean => StreamError::Protocol {
                reason: "the peer closed the connection during the startup".into(),
            },
            //= rfc5044-8-errors-detected
            _ => StreamError::Protocol {
                reason: "the peer closed the stream in the middle of a message".into(),
            },
        };
        self.peer_ended = true;
        self.end_with(error);
        //= rfc5041-6.2.1-half-closed
        // What was posted here, and the answers to what the peer has sent, still go out as long as the close timer lets
        // them. Nothing of it may need an answer, or a first word, of a peer that says no more.
        let no_more_of_it = self.queue.asks_nothing() && self.may_speak();
        self.apply(if clean && no_more_of_it {
            Input::PeerEnd
        } else {
            Input::PeerCut
        });
        self.drained();
    }

    /// The connection broke.
    pub fn handle_broken(&mut self, error: io::Error) {
        //= rfc5041-7-errors-passed-up
        self.end_with(StreamError::Connection { source: error });
        self.apply(Input::Broken);
    }

    /// What to send. Empty: nothing now. Frames what is posted, as far ahead as is good; computes its CRCs.
    pub fn send_vec(&mut self, now: Time) -> WriteVec<'_> {
        self.now = now;
        self.fill();
        let mut list = WriteVec::new();
        if self.state != State::Ended {
            self.outgoing.gather(&mut list, &self.stags);
        }
        list
    }

    /// The first `octets` of what [`send_vec`](Self::send_vec) gave are sent.
    pub fn handle_sent(&mut self, octets: usize, now: Time) {
        self.now = now;
        self.outgoing.handle_sent(octets);
        if octets > 0 && matches!(self.state, State::Closing | State::Answering) {
            // Closing in order lasts as long as it gets on.
            self.start_timer();
        }
        self.complete();
        self.drained();
    }

    /// What the transport is to do to its socket, each once.
    pub fn next_action(&mut self) -> Option<Action> {
        if core::mem::take(&mut self.close) {
            self.end_sending = false;
            return Some(Action::Close);
        }
        core::mem::take(&mut self.end_sending).then_some(Action::EndSending)
    }

    /// Whether to read when there is something.
    #[must_use]
    pub const fn wants_read(&self) -> bool {
        !matches!(self.state, State::Deciding | State::Ended) && !self.peer_ended
    }

    /// Whether there is something to send.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.state != State::Ended && (!self.outgoing.is_empty() || self.can_frame())
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), whatever happens before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        if self.state == State::Answering && self.is_drained() {
            // The ULP has taken the last that came, and had nothing to say to it.
            return Some(self.now);
        }
        let delay = self.sending.not_before.filter(|_| self.has_work());
        match (self.deadline, delay) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Runs the timers due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        if self.sending.not_before.is_some_and(|at| at <= now) {
            self.sending.not_before = None;
        }
        self.drained();
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        // Once our side is closed the peer may be as slow as it likes; it is no error.
        self.end_with(if self.state == State::HalfClosed {
            StreamError::ClosedHere
        } else {
            StreamError::Connection {
                source: io::ErrorKind::TimedOut.into(),
            }
        });
        self.apply(Input::Timeout);
    }

    pub(crate) fn start_timer(&mut self) {
        self.deadline = Some(self.now.after_ms(self.config.close_timeout_ms));
    }

    /// What the stream can do; depths are zero before it is established.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            //= rfc7306-5-both-operations
            atomics: Atomics::Masked,
            // Immediate Data is there, and delivered after the Write before it; but whether the peer has RFC 7306 is
            // not negotiated, and the draft (section 9.1) asks that nothing be built on it over RDMAP.
            write_with_immediate: false,
            send_with_invalidate: true,
            outbound_reads: self.ord,
            inbound_reads: self.ird,
            max_receive: ByteLen(self.max_receive),
            max_message: ByteLen(u32::MAX),
        }
    }

    /// Registers `range` of `region`; see [`kbtp_fabric::Stream::register`]. STags may be registered before the stream
    /// is established. Cost: eight rounds of `SipHash`.
    ///
    /// # Errors
    /// [`LocalError::Range`], [`LocalError::Limit`].
    pub fn register(
        &mut self,
        region: &Region,
        range: Range<u64>,
        base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        self.stags.register(region, range, base, access)
    }

    /// Ends an STag; see [`kbtp_fabric::Stream::invalidate`]. What of it is framed and not sent is copied, so that the
    /// stream goes on; posted work that still needs it ends the stream.
    ///
    /// # Errors
    /// [`LocalError::UnknownStag`].
    pub fn invalidate(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.end_registration(stag, false)
    }

    /// Retires an STag; see [`kbtp_fabric::Stream::retire`]. It keeps its place in the table until the stream ends or
    /// the peer invalidates it. An RDMA Read or Atomic of the peer on it still ends the stream.
    ///
    /// # Errors
    /// [`LocalError::UnknownStag`].
    pub fn retire(&mut self, stag: Stag) -> Result<(), LocalError> {
        self.end_registration(stag, true)
    }

    /// STags that are registered, those that are retired too.
    #[must_use]
    pub const fn stags(&self) -> u64 {
        self.stags.in_use()
    }

    /// The next event; `None` if there is none now.
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        match event {
            Event::Done { .. } => self.queue.taken(),
            Event::Immediate { .. } => {
                if let Some(slot) = self.immediates.pop_front() {
                    self.slots.release(slot);
                }
            }
            Event::Received { .. } => {}
        }
        Some(event)
    }

    /// The octets of a received message; empty for a slot that is not held.
    #[must_use]
    pub fn message(&self, slot: ReceiveSlot) -> &[u8] {
        self.slots.message(slot)
    }

    /// Gives a receive slot back.
    pub fn release(&mut self, slot: ReceiveSlot) {
        self.slots.release(slot);
    }

    /// Ends the stream; go on sending, receiving and doing what [`next_action`](Self::next_action) says until
    /// [`take_error`](Self::take_error) gives the end.
    pub fn close(&mut self, how: CloseReason) {
        if self.state == State::Ended {
            return;
        }
        match how {
            //= rfc5041-6.2.1-all-sent-before-close
            CloseReason::Graceful => {
                if self.startup != Startup::Established {
                    self.end_with(StreamError::ClosedHere);
                }
                self.apply(Input::Close);
                self.drained();
            }
            CloseReason::Abort => {
                self.end_with(StreamError::ClosedHere);
                self.apply(Input::Abort);
            }
        }
    }

    /// Whether the stream is over.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// How the stream ended, once, when it has.
    pub fn take_error(&mut self) -> Option<StreamError> {
        if self.is_ended() {
            self.ending.take()
        } else {
            None
        }
    }

    // Below: for the other parts of the connection.

    pub(crate) const fn copies_responses(&self) -> bool {
        !matches!(self.config.copy_first, CopyFirst::Nothing)
    }

    /// Whether payload from a registration with such rights is copied before it is sent.
    pub(crate) fn copies_from(&self, access: Access) -> bool {
        match self.config.copy_first {
            _ if planted(Plant::CopyForgotten) => false,
            CopyFirst::Nothing | CopyFirst::ReadResponses => false,
            CopyFirst::Writable => {
                access.local_write || access.remote_write || access.remote_atomic
            }
            CopyFirst::Everything => true,
        }
    }

    /// The indication a peer-to-peer initiator owes.
    pub(crate) const fn rtr_due(&self) -> Option<Rtr> {
        self.sending.rtr
    }
}

fn private_limit(enhanced: bool) -> LocalError {
    LocalError::Limit {
        what: "octets of Private Data",
        limit: startup::private_room(enhanced) as u64,
    }
}
