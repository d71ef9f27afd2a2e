//! Request messages, as they are put in front of inline data.
//! Source: KBTP draft, sections 5.1 and 5.2; profile, P1, P2 and P4.

use super::slot::Slot;
use super::types::{Request, Source};
use kbtp_fabric::{LocalBuffer, WorkRequest};
use kbtp_wire::{
    ByteLen, CompletionDescriptor, DataDescriptor, Header, Opcode, RequestFlags, RequestId,
};

/// Octets of the longest message head this party sends after HELLO.
pub(super) const HEAD_LEN: usize = Header::LEN + DataDescriptor::LEN + CompletionDescriptor::LEN;

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
    record: Option<CompletionDescriptor>,
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
    let body = data.map(|d| d.encode());
    (put_head(head, header, body, record), tail)
}

/// Writes a header, a body of 16 octets, and where the completion record goes; returns how many octets that is.
pub(super) fn put_head(
    head: &mut [u8; HEAD_LEN],
    mut header: Header,
    body: Option<[u8; 16]>,
    record: Option<CompletionDescriptor>,
) -> usize {
    header.flags = header.flags.with(RequestFlags::RECORD, record.is_some());
    let (front, rest) = head.split_at_mut(Header::LEN);
    front.copy_from_slice(&header.encode());
    let parts = [body, record.map(|record| record.encode())];
    let mut len = Header::LEN;
    for (place, part) in rest
        .as_chunks_mut()
        .0
        .iter_mut()
        .zip(parts.into_iter().flatten())
    {
        *place = part;
        len += part.len();
    }
    len
}

const fn descriptor(buffer: LocalBuffer) -> DataDescriptor {
    DataDescriptor {
        stag: buffer.stag,
        offset: buffer.offset,
        len: buffer.len,
    }
}
