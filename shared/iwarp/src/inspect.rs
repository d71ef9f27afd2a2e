//! The checks of a segment's headers, before any of it is placed.
//! Source: RFC 5041, section 7; RFC 5040, sections 4.1 and 7.2.
//!
//! The checks of DDP come before those of RDMAP. The code of each is what the peer is told.

use crate::connection::Connection;
use crate::incoming::{CONTROL_LEN, Sink};
use crate::plants::{Plant, planted};
use crate::send_queue::Awaited;
use crate::stags::{NoPlace, Place};
use crate::terminate::Fault;
use kbtp_wire::ddp::{DDP_VERSION, QueueNumber, TaggedHeader, UntaggedHeader};
use kbtp_wire::rdmap::{
    DdpTaggedCode, DdpUntaggedCode, OperationCode, ProtectionCode, RDMAP_VERSION, RdmapControl,
    RdmapOpcode, TerminateCause,
};

pub(crate) const fn tagged(code: DdpTaggedCode, rule: &'static str) -> Fault {
    Fault::new(TerminateCause::DdpTagged(code), rule)
}

pub(crate) const fn untagged(code: DdpUntaggedCode, rule: &'static str) -> Fault {
    Fault::new(TerminateCause::DdpUntagged(code), rule)
}

pub(crate) const fn operation(code: OperationCode, rule: &'static str) -> Fault {
    Fault::new(TerminateCause::Operation(code), rule)
}

pub(crate) const fn protection(code: ProtectionCode, rule: &'static str) -> Fault {
    Fault::new(TerminateCause::Protection(code), rule)
}

/// RDMAP version and opcode, the checks common to all segments.
pub(crate) fn opcode(ulp: u8) -> Result<RdmapOpcode, Fault> {
    let control = RdmapControl::decode(ulp);
    //= rfc5040-7.2-version-valid
    if control.version != RDMAP_VERSION {
        return Err(operation(
            OperationCode::InvalidVersion,
            "the RDMAP version is not 1",
        ));
    }
    //= rfc5040-7.2-opcode-valid
    control.opcode.map_err(|_| {
        operation(
            OperationCode::UnexpectedOpcode,
            "the RDMAP opcode is reserved",
        )
    })
}

pub(crate) const UNEXPECTED: Fault = operation(
    OperationCode::UnexpectedOpcode,
    "the opcode does not go with this kind of segment",
);

pub(crate) const MALFORMED: Fault = operation(
    OperationCode::Unspecified,
    "a message has not the length its opcode has",
);

impl Connection {
    /// Checks the header that is here and says where the payload goes. A fault is kept until the CRC is found right,
    /// for the header itself may be what is damaged.
    pub(crate) fn inspect(&mut self) {
        let checked = match self.incoming.header() {
            None => Err(operation(
                OperationCode::CatastrophicStream,
                "a ULPDU is too short for a DDP header",
            )),
            //= rfc5041-4.1-tagged-flag
            //= rfc5041-5.2-placed
            Some(Ok(header)) => self.inspect_tagged(&header),
            Some(Err(header)) => self.inspect_untagged(&header),
        };
        match checked {
            Ok(sink) if self.incoming.verdict.is_none() => self.incoming.sink = sink,
            Ok(_) => self.incoming.sink = Sink::Discard,
            Err(fault) => {
                self.incoming.sink = Sink::Discard;
                self.incoming.verdict.get_or_insert(fault);
            }
        }
    }

    fn inspect_tagged(&self, header: &TaggedHeader) -> Result<Sink, Fault> {
        //= rfc5041-4.1-version
        if header.version != DDP_VERSION {
            return Err(tagged(
                DdpTaggedCode::InvalidVersion,
                "the DDP version is not 1",
            ));
        }
        let len = self.incoming.payload_left;
        //= rfc5041-5.2-zero-length-unchecked
        // STag and TO of a zero-length segment are not checked.
        let place = if len == 0 {
            None
        } else {
            //= rfc5041-7.1-tagged
            match self.stags.find(header.stag, header.offset, len.into()) {
                Ok(place) => Some(place),
                Err(NoPlace::Retired) => None,
                Err(NoPlace::Invalid) => {
                    return Err(tagged(
                        DdpTaggedCode::InvalidStag,
                        "the STag is not one of this stream",
                    ));
                }
                Err(NoPlace::Wrap) => {
                    return Err(tagged(
                        DdpTaggedCode::OffsetWrap,
                        "Tagged Offset and length wrap",
                    ));
                }
                Err(NoPlace::Bounds) => {
                    return Err(tagged(
                        DdpTaggedCode::BaseOrBounds,
                        "the octets lie outside the registration",
                    ));
                }
            }
        };
        match opcode(header.ulp)? {
            RdmapOpcode::Write => {
                //= rfc5041-8.3.1-access-rights
                let wrong = |place: Place| !place.access.remote_write;
                if place.is_some_and(wrong) && !planted(Plant::WriteRightsIgnored) {
                    return Err(protection(
                        ProtectionCode::AccessRights,
                        "the registration is not for RDMA Writes",
                    ));
                }
            }
            RdmapOpcode::ReadResponse => self.inspect_read_response(header, len)?,
            _ => return Err(UNEXPECTED),
        }
        Ok(
            place.map_or(Sink::Discard, |Place { entry, at, .. }| Sink::Region {
                entry,
                at,
            }),
        )
    }

    /// A Read Response is what the oldest request asked for, no more, no less, in order.
    fn inspect_read_response(&self, header: &TaggedHeader, len: u32) -> Result<(), Fault> {
        //= rfc5040-5.2.2-response-matches
        let Some(Awaited::Read {
            sink, offset, left, ..
        }) = self.queue.awaited()
        else {
            return Err(operation(
                OperationCode::UnexpectedOpcode,
                "an RDMA Read Response comes that was not asked for",
            ));
        };
        if len > 0 && header.stag != sink {
            return Err(tagged(
                DdpTaggedCode::InvalidStag,
                "the STag is not the sink of the RDMA Read",
            ));
        }
        let elsewhere = header.offset != offset && !planted(Plant::ResponseUnchecked);
        if len > 0 && elsewhere || len > left {
            return Err(tagged(
                DdpTaggedCode::BaseOrBounds,
                "the octets are not those the RDMA Read asked for",
            ));
        }
        //= rfc5041-4.1-last-flag
        if header.last != (len == left) {
            return Err(operation(
                OperationCode::Unspecified,
                "an RDMA Read Response ends before or after its length",
            ));
        }
        Ok(())
    }

    fn inspect_untagged(&mut self, header: &UntaggedHeader) -> Result<Sink, Fault> {
        //= rfc5041-4.1-version
        if header.version != DDP_VERSION {
            return Err(untagged(
                DdpUntaggedCode::InvalidVersion,
                "the DDP version is not 1",
            ));
        }
        //= rfc5041-7.1-untagged
        let queue = u8::try_from(header.queue.0).ok().filter(|queue| *queue < 4);
        let known = queue.and_then(|queue| {
            let at = usize::from(queue);
            Some((
                queue,
                *self.assembly.msn.get(at)?,
                *self.assembly.have.get(at)?,
            ))
        });
        let Some((queue, msn, have)) = known else {
            return Err(untagged(
                DdpUntaggedCode::InvalidQueue,
                "there is no such queue",
            ));
        };
        if header.msn != msn && !planted(Plant::MsnIgnored) {
            return Err(untagged(
                DdpUntaggedCode::MsnRange,
                "the MSN is not the next of its queue",
            ));
        }
        let room = self.buffer_room(header.queue)?;
        if header.message_offset != have && !planted(Plant::OffsetIgnored) {
            return Err(untagged(
                DdpUntaggedCode::InvalidMessageOffset,
                "the Message Offset is not where the message goes on",
            ));
        }
        let len = self.incoming.payload_left;
        if u64::from(have) + u64::from(len) > u64::from(room) {
            return Err(untagged(
                DdpUntaggedCode::MessageTooLong,
                "the message is longer than its buffer",
            ));
        }
        //= rfc5040-4.1-usage
        if opcode(header.ulp)?.queue() != Some(header.queue) {
            return Err(UNEXPECTED);
        }
        Ok(match self.assembly.slot {
            Some(slot) if queue == 0 => Sink::Slot { slot, at: have },
            _ => Sink::Control { queue, at: have },
        })
    }

    /// Octets in the buffer for the next message of a queue; taken if need be.
    fn buffer_room(&mut self, queue: QueueNumber) -> Result<u32, Fault> {
        const NO_BUFFER: Fault = untagged(
            //= rfc5041-7.1-no-buffer-is-a-fault
            DdpUntaggedCode::NoBuffer,
            "more messages come than there are buffers",
        );
        const CONTROL: u32 = 52;
        const { assert!(CONTROL as usize == CONTROL_LEN, "one length") };
        match queue {
            QueueNumber::SEND => {
                if self.assembly.slot.is_none() {
                    self.assembly.slot = Some(self.slots.take().ok_or(NO_BUFFER)?);
                }
                Ok(self.max_receive)
            }
            //= rfc5040-6.1-ird-not-exceeded
            QueueNumber::READ_REQUEST
                if self.inbound.is_full() && !planted(Plant::DepthIgnored) =>
            {
                Err(NO_BUFFER)
            }
            QueueNumber::ATOMIC_RESPONSE => match self.queue.awaited() {
                Some(Awaited::Atomic { .. }) => Ok(CONTROL),
                _ => Err(NO_BUFFER),
            },
            _ => Ok(CONTROL),
        }
    }
}
