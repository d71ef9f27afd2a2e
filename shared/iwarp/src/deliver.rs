//! What segments of the peer mean, once their CRC is right.
//! Source: RFC 5041, section 5; RFC 5040, sections 5 and 7; RFC 7306, sections 5, 6 and 8.

use crate::connection::Connection;
use crate::inbound::Inbound;
use crate::incoming::{CONTROL_LEN, CRC_FAULT, Phase};
use crate::inspect::{MALFORMED, UNEXPECTED, opcode, operation, protection};
use crate::plants::{Plant, planted};
use crate::send_queue::Awaited;
use crate::stags::{NoPlace, Place};
use crate::state::{Input, State};
use crate::terminate::{Culprit, Fault, describe};
use kbtp_fabric::{Event, ReceiveSlot, StreamError, WorkOutcome};
use kbtp_memory::AccessError;
use kbtp_wire::ddp::{Msn, QueueNumber, TaggedHeader, UntaggedHeader};
use kbtp_wire::rdmap::{
    AtomicRequest, AtomicResponse, ImmediateData, OperationCode, ProtectionCode, RdmapOpcode,
    ReadRequest,
};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};

/// The messages that are half here, and what comes next.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// Next message of each untagged queue.
    pub(crate) msn: [Msn; 4],
    /// Octets of the message being put together.
    pub(crate) have: [u32; 4],
    /// The slot of the one of queue 0.
    pub(crate) slot: Option<u32>,
    /// A tagged message is begun and not ended.
    tagged_open: bool,
}

impl Assembly {
    pub(crate) const fn new() -> Self {
        Self {
            msn: [Msn::FIRST; 4],
            have: [0; 4],
            slot: None,
            tagged_open: false,
        }
    }

    /// Whether no message is half here.
    pub(crate) fn between_messages(&self) -> bool {
        self.have == [0; 4] && self.slot.is_none() && !self.tagged_open
    }

    #[cfg(test)]
    pub(crate) fn set_msn(&mut self, msn: Msn) {
        self.msn = [msn; 4];
    }
}

impl Connection {
    /// Takes up what is staged, FPDU by FPDU.
    pub(crate) fn take_fpdus(&mut self) {
        while self.state.takes_octets() && !self.deaf {
            match self.incoming.phase {
                Phase::Head => {
                    if !self.incoming.take_head() {
                        return;
                    }
                    self.incoming.phase = Phase::Payload;
                    self.inspect();
                }
                Phase::Payload => {
                    if !self.incoming.take_payload(&self.stags, &mut self.slots) {
                        return;
                    }
                    self.incoming.phase = Phase::Pad;
                }
                Phase::Pad => {
                    if !self.incoming.take_pad() {
                        return;
                    }
                    self.incoming.phase = Phase::Crc;
                }
                Phase::Crc => {
                    let Some(right) = self.incoming.take_crc() else {
                        return;
                    };
                    self.end_fpdu(right);
                }
            }
        }
    }

    fn end_fpdu(&mut self, right: bool) {
        if !right {
            //= rfc5044-6-verified-first
            self.fault(CRC_FAULT, None);
            return;
        }
        //= rfc5041-5.4-delivered-when-complete
        //= rfc5044-3-ulpdu-with-length
        //= rfc5041-5.3-delivered-once-in-order
        let first = !self.fpdu_seen;
        self.fpdu_seen = true;
        let outcome = match self.incoming.verdict.take() {
            Some(fault) => Err((fault, None)),
            None => self.deliver(first),
        };
        match outcome {
            Ok(()) => self.incoming.next_fpdu(),
            Err((fault, read_request)) => {
                let culprit = self.culprit(read_request);
                self.fault(fault, culprit.as_ref());
            }
        }
    }

    /// The segment just received, for a Terminate; `None` if it had no whole header.
    fn culprit(&self, read_request: Option<[u8; ReadRequest::LEN]>) -> Option<Culprit> {
        let _whole = self.incoming.header()?;
        let (header, header_len) = self.incoming.header_octets();
        Some(Culprit {
            ulpdu_len: self.incoming.ulpdu_len,
            header,
            header_len: u8::try_from(header_len).ok()?,
            read_request,
        })
    }

    /// Whether the message of the FPDU being received goes on after it.
    pub(crate) fn goes_on(&self) -> bool {
        match self.incoming.header() {
            Some(Ok(header)) => !header.last,
            Some(Err(header)) => !header.last,
            None => false,
        }
    }

    /// Delivers the FPDU just verified; `first` of the stream.
    fn deliver(&mut self, first: bool) -> Result<(), (Fault, Option<[u8; ReadRequest::LEN]>)> {
        let plain = |fault| (fault, None);
        match self.incoming.header() {
            None => Ok(()),
            Some(Ok(header)) => {
                let len = self.incoming.payload_len();
                self.assembly.tagged_open = !header.last;
                //= rfc5040-5.1-write-not-delivered
                if opcode(header.ulp).map_err(plain)? == RdmapOpcode::ReadResponse {
                    self.deliver_read_response(&header, len);
                }
                Ok(())
            }
            Some(Err(header)) => {
                let len = self.incoming.payload_len();
                let at = usize::try_from(header.queue.0).unwrap_or(usize::MAX);
                let Some(have) = self.assembly.have.get_mut(at) else {
                    return Ok(());
                };
                // Checked against the buffer before.
                *have = have.saturating_add(len);
                if !header.last {
                    return Ok(());
                }
                let len = core::mem::take(have);
                //= rfc5041-4.3-msn
                if let Some(msn) = self.assembly.msn.get_mut(at) {
                    *msn = msn.next();
                }
                //= rfc5041-4.3-rsvdulp-delivered
                match header.queue {
                    QueueNumber::SEND => self.deliver_send(&header, len, first).map_err(plain),
                    QueueNumber::READ_REQUEST => self.deliver_request(&header, len),
                    QueueNumber::TERMINATE => self.deliver_terminate(len).map_err(plain),
                    _ => self.deliver_atomic_response(len).map_err(plain),
                }
            }
        }
    }

    fn deliver_read_response(&mut self, header: &TaggedHeader, len: u32) {
        let Some(Awaited::Read {
            sink,
            offset,
            left,
            dropped,
        }) = self.queue.awaited()
        else {
            return;
        };
        // The sink was there when the header came; if it is not now, octets were dropped.
        let gone = len > 0 && self.stags.find(sink, offset, len.into()).is_err();
        let dropped = dropped || gone;
        self.queue.update_awaited(Awaited::Read {
            sink,
            offset: TaggedOffset(offset.0.wrapping_add(len.into())),
            left: left.saturating_sub(len),
            dropped,
        });
        if len > 0 && self.state == State::Closing {
            // Closing in order lasts as long as it gets on; what was asked for has an end.
            self.start_timer();
        }
        //= rfc5040-5.5-read-complete-on-response
        if header.last {
            //= rfc5040-5.2.2-response-delivered
            self.queue.answered(if dropped {
                WorkOutcome::Flushed
            } else {
                WorkOutcome::Read
            });
            self.complete();
        }
    }

    fn deliver_send(
        &mut self,
        header: &UntaggedHeader,
        len: u32,
        first: bool,
    ) -> Result<(), Fault> {
        let Some(slot) = self.assembly.slot.take() else {
            return Ok(());
        };
        let opcode = opcode(header.ulp)?;
        //= rfc5040-5.3-send-consumes-one
        //= rfc7306-6.3-immediate-consumes-one
        //= rfc5041-5.4-length-delivered
        self.slots.hold(slot, len);
        let (solicited, invalidate) = match opcode {
            RdmapOpcode::Send => (false, false),
            RdmapOpcode::SendSolicited => (true, false),
            RdmapOpcode::SendInvalidate => (false, true),
            RdmapOpcode::SendSolicitedInvalidate => (true, true),
            RdmapOpcode::Immediate | RdmapOpcode::ImmediateSolicited => {
                return self.deliver_immediate(slot, len);
            }
            _ => return Err(UNEXPECTED),
        };
        //= rfc6581-9.2-rtr-send
        // The indication of the peer-to-peer model is no message of the ULP.
        if first && len == 0 && self.rtr_send_expected && opcode == RdmapOpcode::Send {
            self.slots.release(ReceiveSlot(slot));
            return Ok(());
        }
        let invalidated = if invalidate {
            //= rfc5040-7.2-invalidate-stag-valid
            let stag = Stag(header.ulp_word);
            //= rfc5040-5.3-invalidate-on-delivery
            if !self.stags.peer_may_invalidate(stag) || self.end_registration(stag, false).is_err()
            {
                return Err(protection(
                    ProtectionCode::StagCannotBeInvalidated,
                    "the peer may not invalidate this STag",
                ));
            }
            Some(stag)
        } else {
            None
        };
        //= rfc5040-5.5-send-delivered-in-order
        //= rfc5040-5.3-send-in-order
        self.events.push_back(Event::Received {
            slot: ReceiveSlot(slot),
            len: ByteLen(len),
            solicited,
            invalidated,
        });
        Ok(())
    }

    fn deliver_immediate(&mut self, slot: u32, len: u32) -> Result<(), Fault> {
        //= rfc7306-6.3-immediate-eight-octets
        let Some(octets) = self
            .slots
            .filled(slot, len)
            .as_array::<{ ImmediateData::LEN }>()
        else {
            return Err(MALFORMED);
        };
        let data = ImmediateData::decode(*octets).low();
        // The slot is taken until the event is, so that the events are bounded.
        self.immediates.push_back(ReceiveSlot(slot));
        self.events.push_back(Event::Immediate { data });
        Ok(())
    }

    fn deliver_request(
        &mut self,
        header: &UntaggedHeader,
        len: u32,
    ) -> Result<(), (Fault, Option<[u8; ReadRequest::LEN]>)> {
        //= rfc5040-5.2.1-read-request-consumes-one
        //= rfc7306-5.2.1-request-consumes-one
        //= rfc5040-5.5-read-request-after-delivery
        //= rfc7306-5.4-after-delivery
        let octets = *self.incoming.control.get(1);
        let plain = |fault| (fault, None);
        match opcode(header.ulp).map_err(plain)? {
            RdmapOpcode::ReadRequest => {
                let request: [u8; ReadRequest::LEN] = exactly(&octets, len).map_err(plain)?;
                let decoded = ReadRequest::decode(&request);
                self.check_source(&decoded)
                    .map_err(|fault| (fault, Some(request)))?;
                self.inbound.push(Inbound::Read {
                    request: decoded,
                    done: 0,
                    msn: header.msn,
                });
                Ok(())
            }
            RdmapOpcode::AtomicRequest => {
                let request: [u8; AtomicRequest::LEN] = exactly(&octets, len).map_err(plain)?;
                //= rfc7306-5.2.1-unsupported-code
                let request = AtomicRequest::decode(&request).map_err(|_| {
                    plain(operation(
                        OperationCode::UnexpectedOpcode,
                        "the Atomic Operation Code is not assigned",
                    ))
                })?;
                self.check_atomic(&request).map_err(plain)?;
                self.inbound.push(Inbound::Atomic { request });
                Ok(())
            }
            _ => Err(plain(UNEXPECTED)),
        }
    }

    /// The checks of RFC 5040, section 7.2, on the source of an RDMA Read.
    pub(crate) fn check_source(&self, request: &ReadRequest) -> Result<Option<Place>, Fault> {
        //= rfc5040-5.2.1-zero-read-not-validated
        if request.len.0 == 0 {
            return Ok(None);
        }
        //= rfc5040-7.2-read-source-range
        //= rfc5040-7.2-read-source-stag
        //= rfc5040-5.2.1-read-source-validated
        //= rfc5042-6.3.5-least-rights
        let place = self
            .stags
            .find(
                request.source_stag,
                request.source_offset,
                request.len.get(),
            )
            .map_err(source_fault)?;
        if place.access.remote_read || planted(Plant::ReadRightsIgnored) {
            Ok(Some(place))
        } else {
            Err(protection(
                ProtectionCode::AccessRights,
                "the registration is not for RDMA Reads",
            ))
        }
    }

    /// The checks on the word of an atomic operation.
    pub(crate) fn check_atomic(&self, request: &AtomicRequest) -> Result<Place, Fault> {
        let place = self
            .stags
            .find(request.stag, request.offset, 8)
            .map_err(source_fault)?;
        if !place.access.remote_atomic {
            return Err(protection(
                ProtectionCode::AccessRights,
                "the registration is not for atomic operations",
            ));
        }
        //= rfc7306-8.2-request-validated
        //= rfc7306-5.1.1-aligned
        //= rfc7306-5.1.2-aligned
        match self
            .stags
            .region(place.entry)
            .map(|region| region.u64_at(place.at).err())
        {
            Some(None) => Ok(place),
            Some(Some(AccessError::Misaligned { .. })) => Err(operation(
                OperationCode::CatastrophicStream,
                "the word of an atomic operation is not aligned to 8 octets",
            )),
            _ => Err(source_fault(NoPlace::Bounds)),
        }
    }

    fn deliver_terminate(&mut self, len: u32) -> Result<(), Fault> {
        let octets = self.incoming.control.get(2);
        let len = usize::try_from(len).unwrap_or(0);
        let reason = octets.get(..len).and_then(describe).ok_or(MALFORMED)?;
        //= rfc5040-5.4-terminate-delivered
        self.end_with(StreamError::PeerTerminated { reason });
        self.apply(Input::PeerTerminate);
        Ok(())
    }

    fn deliver_atomic_response(&mut self, len: u32) -> Result<(), Fault> {
        let octets: [u8; AtomicResponse::LEN] = exactly(self.incoming.control.get(3), len)?;
        let response = AtomicResponse::decode(&octets);
        match self.queue.awaited() {
            //= rfc7306-5.2.2-request-id
            Some(Awaited::Atomic { request_id }) if request_id == response.request_id => {
                //= rfc7306-5.2.2-response-delivered
                self.queue.answered(WorkOutcome::Atomic(response.original));
                self.complete();
                Ok(())
            }
            _ => Err(operation(
                OperationCode::Unspecified,
                "an Atomic Response has not the identifier of its request",
            )),
        }
    }
}

/// The first octets of `octets`, if they are `len`.
fn exactly<const N: usize>(octets: &[u8; CONTROL_LEN], len: u32) -> Result<[u8; N], Fault> {
    match octets.first_chunk() {
        Some(chunk) if usize::try_from(len) == Ok(N) => Ok(*chunk),
        _ => Err(MALFORMED),
    }
}

/// What RDMAP says of a source or word that cannot be reached.
const fn source_fault(no: NoPlace) -> Fault {
    match no {
        NoPlace::Invalid => protection(
            ProtectionCode::InvalidStag,
            "the STag is not one of this stream",
        ),
        NoPlace::Wrap => protection(ProtectionCode::OffsetWrap, "Tagged Offset and length wrap"),
        NoPlace::Bounds => protection(
            ProtectionCode::BaseOrBounds,
            "the octets lie outside the registration",
        ),
        NoPlace::Retired => protection(ProtectionCode::AccessRights, "the registration is retired"),
    }
}
