//! Request messages, as they are put in front of inline data.
//! Source: KBTP draft, sections 5.1 and 5.2; profile, P1, P2 and P4.

use super::slot::Slot;
use super::types::{Request, Source};
use kbtp_fabric::{LocalBuffer, WorkRequest};
use kbtp_wire::{ByteLen, DataDescriptor, Header, Opcode, RequestFlags, RequestId};

/// Octets of the longest message head this party sends after HELLO.
pub(super) const HEAD_LEN: usize = Header::LEN + DataDescriptor::LEN;

pub(super) const fn send(head: &[u8], tail: Option<LocalBuffer>) -> WorkRequest<'_> {
    WorkRequest::Send {
        head,
        tail,
        solicited: false,
        invalidate: None,
    }
}

/// Writes the head of a request message into `head`. Returns its length and the inline data that follows.
pub(super) fn encode_request(
    slot: &Slot,
    head: &mut [u8; HEAD_LEN],
) -> (usize, Option<LocalBuffer>) {
    let flag = RequestFlags::NONE;
    let (opcode, flags, data, tail) = match slot.request {
        Request::Load {
            into,
            allow_unsealed,
            invalidate,
            ..
        } => (
            Opcode::Load,
            flag.with(RequestFlags::ALLOW_UNSEALED, allow_unsealed)
                .with(RequestFlags::INVALIDATE, invalidate),
            Some(descriptor(into)),
            None,
        ),
        Request::Store { from, seal, .. } | Request::AllocStore { from, seal, .. } => {
            let opcode = if slot.request.allocates() {
                Opcode::AllocStore
            } else {
                Opcode::Store
            };
            let flag = flag.with(RequestFlags::SEAL, seal);
            match from {
                //= kbtp-5.2-inline-descriptor-zero
                Source::Inline(data) => {
                    let bare = DataDescriptor {
                        len: data.len,
                        ..DataDescriptor::default()
                    };
                    let tail = if data.len == ByteLen(0) {
                        None
                    } else {
                        Some(data)
                    };
                    (
                        opcode,
                        flag.with(RequestFlags::INLINE, true),
                        Some(bare),
                        tail,
                    )
                }
                Source::Read { from, invalidate } => (
                    opcode,
                    flag.with(RequestFlags::INVALIDATE, invalidate),
                    Some(descriptor(from)),
                    None,
                ),
            }
        }
        Request::Free { .. } | Request::LoadDirect { .. } | Request::AllocDirect { .. } => {
            (Opcode::Free, flag, None, None)
        }
    };
    let header = Header::request(
        opcode,
        flags,
        RequestId(slot.request_id),
        slot.request.handle(),
        slot.request.generation(),
    );
    (put_head(head, &header, data.map(|d| d.encode())), tail)
}

/// Writes a header and a body of 16 octets; returns how many octets that is.
pub(super) fn put_head(
    head: &mut [u8; HEAD_LEN],
    header: &Header,
    body: Option<[u8; 16]>,
) -> usize {
    let (front, rest) = head.split_at_mut(Header::LEN);
    front.copy_from_slice(&header.encode());
    match body {
        Some(body) => {
            rest.copy_from_slice(&body);
            HEAD_LEN
        }
        None => Header::LEN,
    }
}

const fn descriptor(buffer: LocalBuffer) -> DataDescriptor {
    DataDescriptor {
        stag: buffer.stag,
        offset: buffer.offset,
        len: buffer.len,
    }
}
