//! Answers to the peer's RDMA Reads and Atomics, in the order they came.
//! Source: RFC 5040, section 5.2; RFC 7306, sections 5.1, 5.2 and 5.4.

use crate::connection::Connection;
use crate::inbound::Inbound;
use crate::outgoing::{Fpdu, Payload};
use crate::plants::{Plant, planted};
use crate::stags::Place;
use crate::terminate::{Culprit, Fault};
use crate::transmit::{Framed, joined, untagged};
use core::sync::atomic::Ordering;
use kbtp_wire::ddp::{DDP_VERSION, Msn, QueueNumber, TaggedHeader};
use kbtp_wire::rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, RdmapControl, RdmapOpcode, ReadRequest,
    masked_swap,
};
use kbtp_wire::{ByteLen, TaggedOffset, fetch_add};

impl Connection {
    /// The next FPDU of the answer to the oldest request.
    pub(crate) fn frame_answer(&mut self) -> Framed {
        //= rfc5040-5.2.2-responses-in-order
        //= rfc7306-5.2.2-responses-in-order
        //= rfc5040-5.2.1-read-answered
        //= rfc7306-5.2.1-answered
        match self.inbound.front() {
            None => Framed::Broken,
            Some(Inbound::Read { request, done, msn }) => self.frame_response(request, done, msn),
            Some(Inbound::Atomic { request }) => self.frame_atomic(&request),
        }
    }

    fn frame_response(&mut self, request: ReadRequest, done: u32, msn: Msn) -> Framed {
        // What is left, as a request of its own: what a Terminate shows (RFC 5040, section 4.8).
        let rest = ReadRequest {
            sink_offset: TaggedOffset(request.sink_offset.0.wrapping_add(done.into())),
            len: ByteLen(request.len.0.saturating_sub(done)),
            source_offset: TaggedOffset(request.source_offset.0.wrapping_add(done.into())),
            ..request
        };
        let place = match self.check_source(&rest) {
            Ok(place) => place,
            Err(fault) => return self.answer_fault(fault, &rest, msn),
        };
        let len = self.sending.segment(TaggedHeader::LEN, rest.len.0);
        let last = u32::from(len) >= rest.len.0;
        //= rfc5040-4.4-sink-copied
        let header = TaggedHeader {
            last,
            version: DDP_VERSION,
            //= rfc5040-5.2.2-response-tagged
            //= rfc5040-5.2-read-two-messages
            ulp: RdmapControl::encode(RdmapOpcode::ReadResponse),
            stag: rest.sink_stag,
            offset: rest.sink_offset,
        };
        let copy = self.copies_responses();
        let payload = place.map(|Place { entry, at, .. }| Payload {
            entry,
            at,
            len,
            copy,
        });
        self.frame(&Fpdu {
            headers: &header.encode(),
            octets: (&[], &[]),
            payload,
        });
        if last {
            self.inbound.pop();
        } else {
            self.inbound.advance(len.into());
        }
        Framed::Fpdu { last }
    }

    /// The registration of a Read ended while it was being answered.
    fn answer_fault(&mut self, fault: Fault, rest: &ReadRequest, msn: Msn) -> Framed {
        let header = untagged(
            RdmapOpcode::ReadRequest,
            QueueNumber::READ_REQUEST,
            msn,
            0,
            true,
        );
        // 18 + 28 octets, the ULPDU of every Read Request.
        let culprit = Culprit {
            ulpdu_len: 46,
            header: header.encode(),
            header_len: 18,
            read_request: Some(rest.encode()),
        };
        self.fault(fault, Some(&culprit));
        Framed::Broken
    }

    fn frame_atomic(&mut self, request: &AtomicRequest) -> Framed {
        let original = match self.execute(request) {
            Ok(original) => original,
            Err(fault) => {
                self.fault(fault, None);
                return Framed::Broken;
            }
        };
        let msn = self.sending.response_msn;
        self.sending.response_msn = msn.next();
        //= rfc7306-5-response-queue-3
        let header = untagged(
            RdmapOpcode::AtomicResponse,
            QueueNumber::ATOMIC_RESPONSE,
            msn,
            0,
            true,
        );
        let response = AtomicResponse {
            request_id: request.request_id,
            original,
        };
        let (octets, len) = joined(&header, &response.encode());
        self.frame(&Fpdu {
            headers: octets.split_at(len).0,
            ..Fpdu::default()
        });
        self.inbound.pop();
        Framed::Fpdu { last: true }
    }

    /// Carries out an atomic operation in the byte order of this machine. Gives the value before it.
    fn execute(&self, request: &AtomicRequest) -> Result<u64, Fault> {
        //= rfc7306-5-exclusive
        let place = self.check_atomic(request)?;
        let word = self
            .stags
            .region(place.entry)
            .and_then(|region| region.u64_at(place.at).ok());
        // Checked just now.
        let Some(word) = word else {
            return Ok(0);
        };
        //= rfc7306-5.1.1-native-order
        //= rfc7306-5.3-atomic-across-streams
        let change = |value| match request.operation {
            AtomicOperation::FetchAdd { add, .. } if planted(Plant::MaskIgnored) => {
                fetch_add(value, add, 0)
            }
            AtomicOperation::FetchAdd { add, mask } => fetch_add(value, add, mask),
            AtomicOperation::CmpSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => masked_swap(value, compare, compare_mask, swap, swap_mask),
        };
        // The closure never declines, so that both arms hold the value before.
        let (Ok(before) | Err(before)) =
            word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| {
                Some(change(value))
            });
        Ok(before)
    }
}
