//! What goes out: posted work, answers to the peer's requests, the RTR indication and the Terminate, cut into FPDUs.
//! Source: RFC 5041, section 5; RFC 5040, sections 4 and 5; RFC 7306, sections 5 and 6.
//!
//! Messages of posted work and answers take turns, whole messages at a time.

use crate::config::Config;
use crate::connection::Connection;
use crate::outgoing::{Fpdu, Payload};
use crate::plants::{Plant, planted};
use crate::send_queue::{Awaited, Local, Work};
use crate::stags::Place;
use crate::startup::Rtr;
use crate::terminate::{Fault, TerminateOctets};
use kbtp_fabric::{RemoteBuffer, StreamError, Time};
use kbtp_wire::ddp::{DDP_VERSION, Msn, QueueNumber, TaggedHeader, UntaggedHeader};
use kbtp_wire::rdmap::{
    AtomicRequest, ImmediateData, RdmapControl, RdmapOpcode, ReadRequest, TerminateCause,
};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::io;

/// Whose message is being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Posted,
    Answer,
}

/// What an attempt to frame came to.
pub(crate) enum Framed {
    /// An FPDU, with more of its message to come or not.
    Fpdu { last: bool },
    /// The stream broke instead.
    Broken,
}

/// The sending half of RDMAP.
#[derive(Debug)]
pub(crate) struct Sending {
    send_msn: Msn,
    request_msn: Msn,
    pub(crate) response_msn: Msn,
    /// Octets framed of the upcoming work.
    done: u32,
    /// The Write is framed, its Immediate Data is not.
    immediate_due: bool,
    /// Whose message is begun.
    current: Option<Turn>,
    /// Whose turn it is when both have something.
    next: Turn,
    max_ulpdu: u16,
    /// The indication to be sent before all else.
    pub(crate) rtr: Option<Rtr>,
    /// No FPDU goes out before.
    pub(crate) not_before: Option<Time>,
    /// The Terminate to be sent.
    pub(crate) terminate: Option<TerminateOctets>,
}

impl Sending {
    pub(crate) const fn new() -> Self {
        Self {
            send_msn: Msn::FIRST,
            request_msn: Msn::FIRST,
            response_msn: Msn::FIRST,
            done: 0,
            immediate_due: false,
            current: None,
            next: Turn::Answer,
            max_ulpdu: 0,
            rtr: None,
            not_before: None,
            terminate: None,
        }
    }

    pub(crate) const fn begin(&mut self, config: &Config) {
        self.max_ulpdu = config.max_ulpdu;
    }

    #[cfg(any(test, feature = "plants"))]
    pub(crate) fn set_msn(&mut self, msn: Msn) {
        self.send_msn = msn;
        self.request_msn = msn;
        self.response_msn = msn;
    }

    /// Payload of one segment with a header of `header` octets, `left` being left.
    pub(crate) fn segment(&self, header: usize, left: u32) -> u16 {
        //= rfc5041-5.2-segmented
        //= rfc5044-3-ulpdu-not-over
        // At least 128 - 18 octets. Large segments are whole pages, so that the payload keeps its alignment.
        //= rfc5044-4.5-as-large-as-possible
        let room = usize::from(self.max_ulpdu).saturating_sub(header);
        let room = if room >= 8192 { room & !4095 } else { room };
        u16::try_from(left).map_or_else(
            |_| u16::try_from(room).unwrap_or(u16::MAX),
            |left| left.min(u16::try_from(room).unwrap_or(u16::MAX)),
        )
    }
}

pub(crate) const fn untagged(
    opcode: RdmapOpcode,
    queue: QueueNumber,
    msn: Msn,
    message_offset: u32,
    last: bool,
) -> UntaggedHeader {
    //= rfc5040-4.1-invalidate-stag-zero
    //= rfc5041-4.3-same-fields
    UntaggedHeader {
        last,
        version: DDP_VERSION,
        ulp: RdmapControl::encode(opcode),
        ulp_word: 0,
        queue,
        msn,
        message_offset,
    }
}

/// DDP header and RDMAP header in one piece.
pub(crate) fn joined<const N: usize>(header: &UntaggedHeader, rest: &[u8; N]) -> ([u8; 70], usize) {
    const { assert!(UntaggedHeader::LEN + N <= 70, "headers fit") };
    let mut octets = [0; 70];
    let (first, after) = octets.split_at_mut(UntaggedHeader::LEN);
    first.copy_from_slice(&header.encode());
    after.split_at_mut(N).0.copy_from_slice(rest);
    (octets, UntaggedHeader::LEN + N)
}

impl Connection {
    /// Frames as much as is good.
    pub(crate) fn fill(&mut self) {
        while self.can_frame() && self.outgoing.has_room() {
            self.frame_one();
        }
        self.drained();
    }

    /// Whether an FPDU can be framed now, room apart.
    pub(crate) fn can_frame(&self) -> bool {
        if !self.state.sends_fpdus() {
            return false;
        }
        if self.deaf {
            return self.sending.terminate.is_some();
        }
        self.may_speak() && self.sending.not_before.is_none() && self.has_work()
    }

    /// Whether this party may send FPDUs: a responder has to be spoken to first.
    //= rfc5044-7.1.2-responder-first-fpdu
    pub(crate) const fn may_speak(&self) -> bool {
        self.initiator || self.fpdu_seen
    }

    /// Whether there is something to frame, were it allowed.
    pub(crate) fn has_work(&self) -> bool {
        self.rtr_due().is_some()
            || self.sending.terminate.is_some()
            || !self.inbound.is_empty()
            || self.posted_can_go()
    }

    /// Whether the upcoming work may be framed: requests wait for a place among those out.
    fn posted_can_go(&self) -> bool {
        match self.queue.upcoming() {
            None => false,
            //= rfc5040-6.1-ord-not-exceeded
            Some(Work::Read { .. } | Work::Atomic { .. }) => {
                self.queue.awaiting() < usize::from(self.ord) || planted(Plant::OrdIgnored)
            }
            Some(_) => true,
        }
    }

    fn frame_one(&mut self) {
        //= rfc5040-6.1-only-rdma-messages
        if self.sending.terminate.is_some() {
            return self.frame_terminate();
        }
        //= rfc6581-5-nothing-before-rtr
        if let Some(rtr) = self.rtr_due() {
            return self.frame_rtr(rtr);
        }
        let answers = !self.inbound.is_empty();
        let turn = match self.sending.current {
            Some(turn) => turn,
            None if answers && (self.sending.next == Turn::Answer || !self.posted_can_go()) => {
                Turn::Answer
            }
            None => Turn::Posted,
        };
        let framed = match turn {
            Turn::Posted => self.frame_posted(),
            Turn::Answer => self.frame_answer(),
        };
        match framed {
            Framed::Fpdu { last: false } => self.sending.current = Some(turn),
            Framed::Fpdu { last: true } => {
                self.sending.current = None;
                self.sending.next = match turn {
                    Turn::Posted => Turn::Answer,
                    Turn::Answer => Turn::Posted,
                };
            }
            Framed::Broken => {}
        }
    }

    //= rfc5040-3.1-on-ddp
    pub(crate) fn frame(&mut self, fpdu: &Fpdu<'_>) -> bool {
        self.outgoing.frame(fpdu, &self.stags)
    }

    fn frame_terminate(&mut self) {
        let Some(octets) = self.sending.terminate.take() else {
            return;
        };
        //= rfc5040-5.4-terminate-untagged
        let header = untagged(
            RdmapOpcode::Terminate,
            QueueNumber::TERMINATE,
            Msn::FIRST,
            0,
            true,
        );
        self.frame(&Fpdu {
            headers: &header.encode(),
            octets: (octets.as_slice(), &[]),
            payload: None,
        });
        // Nothing follows a Terminate.
        //= rfc5040-5.4-nothing-after-terminate
        self.deaf = true;
    }

    fn frame_rtr(&mut self, rtr: Rtr) {
        self.sending.rtr = None;
        match rtr {
            Rtr::Write => {
                let header = TaggedHeader {
                    last: true,
                    version: DDP_VERSION,
                    ulp: RdmapControl::encode(RdmapOpcode::Write),
                    stag: Stag(0),
                    offset: TaggedOffset(0),
                };
                self.frame(&Fpdu {
                    headers: &header.encode(),
                    ..Fpdu::default()
                });
            }
            Rtr::Send => {
                let msn = self.sending.send_msn;
                self.sending.send_msn = msn.next();
                let header = untagged(RdmapOpcode::Send, QueueNumber::SEND, msn, 0, true);
                self.frame(&Fpdu {
                    headers: &header.encode(),
                    ..Fpdu::default()
                });
            }
            Rtr::Read => {
                self.frame_request(&ReadRequest {
                    sink_stag: Stag(0),
                    sink_offset: TaggedOffset(0),
                    len: ByteLen(0),
                    source_stag: Stag(0),
                    source_offset: TaggedOffset(0),
                });
                self.queue.await_rtr();
            }
        }
    }

    fn frame_request(&mut self, request: &ReadRequest) {
        let msn = self.sending.request_msn;
        self.sending.request_msn = msn.next();
        //= rfc5040-5.2.1-read-request-untagged
        //= rfc5040-5.2.1-read-one-buffer
        //= rfc5040-4.2-headers
        let header = untagged(
            RdmapOpcode::ReadRequest,
            QueueNumber::READ_REQUEST,
            msn,
            0,
            true,
        );
        let (octets, len) = joined(&header, &request.encode());
        self.frame(&Fpdu {
            headers: octets.split_at(len).0,
            ..Fpdu::default()
        });
    }

    fn frame_posted(&mut self) -> Framed {
        //= rfc5040-5.5-submitted-in-order
        //= rfc5040-5.1-write-in-order
        //= rfc5040-5.2.1-read-request-in-order
        //= rfc7306-5.2.1-in-order
        //= rfc7306-6.3-immediate-in-order
        //= rfc5041-5.3-transmit-in-order
        match self.queue.upcoming() {
            None => Framed::Broken,
            Some(Work::Send {
                opcode,
                invalidate,
                head_at,
                head_len,
                tail,
            }) => self.frame_send(opcode, invalidate, head_at, head_len, tail),
            Some(Work::Write {
                local,
                remote,
                immediate,
            }) => self.frame_write(local, remote, immediate),
            Some(Work::Read { local, remote }) => {
                self.frame_request(&ReadRequest {
                    sink_stag: local.stag,
                    sink_offset: local.offset,
                    len: ByteLen(local.len),
                    source_stag: remote.stag,
                    source_offset: remote.offset,
                });
                self.queue.framed_request(Awaited::Read {
                    sink: local.stag,
                    offset: local.offset,
                    left: local.len,
                    dropped: false,
                });
                Framed::Fpdu { last: true }
            }
            Some(Work::Atomic { remote, operation }) => {
                let msn = self.sending.request_msn;
                self.sending.request_msn = msn.next();
                let request = AtomicRequest {
                    request_id: msn.0,
                    stag: remote.stag,
                    offset: remote.offset,
                    operation,
                };
                //= rfc7306-5.2.1-request-untagged
                let header = untagged(
                    RdmapOpcode::AtomicRequest,
                    QueueNumber::READ_REQUEST,
                    msn,
                    0,
                    true,
                );
                let (octets, len) = joined(&header, &request.encode());
                self.frame(&Fpdu {
                    headers: octets.split_at(len).0,
                    ..Fpdu::default()
                });
                self.queue
                    .framed_request(Awaited::Atomic { request_id: msn.0 });
                Framed::Fpdu { last: true }
            }
        }
    }

    /// Where `len` octets of `local` from `done` on lie; `None` if its STag has ended since it was posted.
    fn source(&self, local: Local, done: u32, len: u16) -> Option<Payload> {
        let offset = TaggedOffset(local.offset.0.checked_add(done.into())?);
        let Place { entry, at, access } = self.stags.find(local.stag, offset, len.into()).ok()?;
        Some(Payload {
            entry,
            at,
            len,
            copy: self.copies_from(access),
        })
    }

    /// This party ended an STag that its posted work needs: a mistake of its ULP.
    fn source_gone(&mut self) -> Framed {
        self.deaf = true;
        self.incoming.discard();
        self.end_with(StreamError::Connection {
            source: io::Error::new(
                io::ErrorKind::InvalidInput,
                "an STag was invalidated under posted work",
            ),
        });
        //= rfc5040-7.1-local-error
        self.terminate(
            Fault::new(
                TerminateCause::RdmapCatastrophic,
                "posted work has no source",
            ),
            None,
        );
        Framed::Broken
    }

    fn frame_send(
        &mut self,
        opcode: RdmapOpcode,
        invalidate: u32,
        head_at: u64,
        head_len: u32,
        tail: Option<Local>,
    ) -> Framed {
        // Checked to be below 2^32 when it was posted.
        let total = head_len.saturating_add(tail.map_or(0, |tail| tail.len));
        let done = self.sending.done;
        let len = self
            .sending
            .segment(UntaggedHeader::LEN, total.saturating_sub(done));
        let last = u64::from(done) + u64::from(len) >= u64::from(total);
        let msn = self.sending.send_msn;
        //= rfc5040-5.3-send-untagged
        //= rfc5041-5.2-mo-offset
        //= rfc5041-4.3-mo-zero-first
        //= rfc5041-4.1-last-flag
        //= rfc5040-5.3-invalidate-names-stag
        let mut header = untagged(opcode, QueueNumber::SEND, msn, done, last);
        header.ulp_word = invalidate;

        let from_head = u16::try_from(head_len.saturating_sub(done)).map_or(len, |l| l.min(len));
        let from_tail = len - from_head;
        let payload = match tail {
            Some(tail) if from_tail > 0 => {
                let tail_done = done.saturating_sub(head_len);
                match self.source(tail, tail_done, from_tail) {
                    Some(payload) => Some(payload),
                    None => return self.source_gone(),
                }
            }
            _ => None,
        };
        let octets = if from_head > 0 {
            self.queue
                .head(head_at.saturating_add(done.into()), from_head.into())
        } else {
            (&[][..], &[][..])
        };
        let framed = self.outgoing.frame(
            &Fpdu {
                headers: &header.encode(),
                octets,
                payload,
            },
            &self.stags,
        );
        if !framed {
            return self.source_gone();
        }
        if last {
            self.sending.send_msn = msn.next();
            self.end_work();
        } else {
            self.sending.done = done.saturating_add(len.into());
        }
        Framed::Fpdu { last }
    }

    fn end_work(&mut self) {
        self.sending.done = 0;
        self.sending.immediate_due = false;
        self.queue.framed(self.outgoing.framed());
    }

    fn frame_write(
        &mut self,
        local: Local,
        remote: RemoteBuffer,
        immediate: Option<u64>,
    ) -> Framed {
        if self.sending.immediate_due {
            return self.frame_immediate(immediate.unwrap_or(0));
        }
        let done = self.sending.done;
        let len = self
            .sending
            .segment(TaggedHeader::LEN, local.len.saturating_sub(done));
        //= rfc5041-5.2-zero-length-one-segment
        let last = u64::from(done) + u64::from(len) >= u64::from(local.len);
        let payload = if len == 0 {
            None
        } else {
            match self.source(local, done, len) {
                Some(payload) => Some(payload),
                None => return self.source_gone(),
            }
        };
        let header = TaggedHeader {
            last,
            version: DDP_VERSION,
            //= rfc5040-5.1-write-tagged
            //= rfc5040-5.1-write-one-buffer
            //= rfc5041-4.2-same-stag
            //= rfc5041-5.2-to-offset
            ulp: RdmapControl::encode(RdmapOpcode::Write),
            //= rfc5041-5.3-segments-in-order
            stag: remote.stag,
            offset: TaggedOffset(remote.offset.0.wrapping_add(done.into())),
        };
        let framed = self.frame(&Fpdu {
            headers: &header.encode(),
            octets: (&[], &[]),
            payload,
        });
        if !framed {
            return self.source_gone();
        }
        if !last {
            self.sending.done = done.saturating_add(len.into());
            return Framed::Fpdu { last: false };
        }
        if immediate.is_some() {
            // The Immediate Data is a message of its own; no other comes between the two.
            self.sending.immediate_due = true;
            return Framed::Fpdu { last: false };
        }
        self.end_work();
        Framed::Fpdu { last: true }
    }

    fn frame_immediate(&mut self, data: u64) -> Framed {
        let msn = self.sending.send_msn;
        self.sending.send_msn = msn.next();
        //= rfc7306-6.3-immediate-untagged
        let header = untagged(RdmapOpcode::Immediate, QueueNumber::SEND, msn, 0, true);
        let (octets, len) = joined(&header, &ImmediateData(data).encode());
        self.frame(&Fpdu {
            headers: octets.split_at(len).0,
            ..Fpdu::default()
        });
        self.end_work();
        Framed::Fpdu { last: true }
    }
}
