//! The initiator's session: an operation from its submission to its end, against answers written here.

use super::Failure;
use kbtp_core::initiator::{Initiator, Request, Settings};
use kbtp_fabric::{Atomics, LocalBuffer, Time, WorkRequest};
use kbtp_wire::{
    AuthMode, BlockOffset, ByteLen, Challenge, Completion, Generation, Grant, Handle, HelloAck,
    InitiatorId, KnownTlvs, Nonce, PrivateData, RequestId, Stag, Status, TaggedOffset,
};

const NOW: Time = Time(0);
const LATER: Time = Time(1 << 60);

/// Where a message has its Request ID.
const REQUEST_ID: core::ops::Range<usize> = 4..12;

fn opened() -> Result<Initiator, Failure> {
    let private_data = PrivateData {
        auth_mode: AuthMode::None,
        challenge: Challenge([0; 32]),
    };
    let settings = Settings::new(InitiatorId([7; 16]));
    let nonce = Nonce([0; 16]);
    let mut initiator = Initiator::new(
        settings,
        &private_data.encode(),
        nonce,
        Atomics::None,
        None,
        None,
        LATER,
    )?;
    let id = request_id(&mut initiator)?;
    let ack = HelloAck::Granted {
        request_id: RequestId(u64::from_be_bytes(id)),
        grant: Grant {
            block_size: ByteLen(4096),
            pool_blocks: 64,
            quota: 16,
            handle_count: 64,
            table_count: 1024,
            credits: 16,
            lease_ms: 60_000,
            ..Grant::default()
        },
        tlvs: KnownTlvs::default(),
    };
    let mut message = vec![0; ack.encoded_len()];
    ack.encode_into(&mut message)?;
    initiator.handle_received(&message, None)?;
    Ok(initiator)
}

/// Posts the next work, a Send, and gives the Request ID in it.
fn request_id(initiator: &mut Initiator) -> Result<[u8; 8], Failure> {
    let work = initiator.work().ok_or("there is nothing to send")?;
    let WorkRequest::Send { head, .. } = work.request else {
        return Err("a request is a Send".into());
    };
    let id = head
        .get(REQUEST_ID)
        .ok_or("a message has a header")?
        .try_into()?;
    initiator.posted(NOW);
    Ok(id)
}

pub(super) fn load(times: u32) -> Result<(), Failure> {
    let mut initiator = opened()?;
    let answer = Completion {
        request_id: RequestId(0),
        handle: Handle(7),
        generation: Some(Generation::FIRST),
        status: Status::Ok,
        data_len: ByteLen(4096),
        block: BlockOffset(1 << 40),
    };
    let mut answer = answer.encode();
    let request = Request::Load {
        handle: Handle(7),
        generation: None,
        into: LocalBuffer {
            stag: Stag(9),
            offset: TaggedOffset(0),
            len: ByteLen(4096),
        },
        allow_unsealed: false,
        invalidate: false,
    };
    for n in 0..times {
        initiator.submit(request, n.into(), LATER)?;
        let id = request_id(&mut initiator)?;
        answer
            .get_mut(REQUEST_ID)
            .ok_or("a message has a header")?
            .copy_from_slice(&id);
        initiator.handle_received(&answer, None)?;
        let finished = initiator
            .poll_finished()
            .ok_or("an operation did not end")?;
        if finished.token != u64::from(n) || finished.result.is_err() {
            return Err(format!("{finished:?}").into());
        }
    }
    Ok(())
}
