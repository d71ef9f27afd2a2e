//! Requests that are completed by completion records.

use super::*;
use kbtp_wire::{CompletionDescriptor, CompletionRecord, DecodeError};

fn recording() -> Rig {
    let capabilities = SessionCapabilities::RECORD_COMPLETION;
    let mut rig = Rig::new(Settings {
        capabilities,
        ..settings()
    });
    assert_eq!(rig.post().len(), 1);
    let granted = Grant {
        capabilities,
        ..grant()
    };
    rig.receive(&ack(Initiator::HELLO_ID, granted)).unwrap();
    rig
}

fn load(invalidate: bool) -> Request {
    Request::Load {
        handle: Handle(103),
        generation: None,
        into: buffer(0xb0f, BLOCK),
        allow_unsealed: false,
        invalidate,
    }
}

const fn record(id: RequestId) -> CompletionRecord {
    CompletionRecord {
        request_id: id,
        status: Status::Ok,
        generation: Generation::new(5),
        data_len: ByteLen(100),
        block: BlockOffset(0x8000),
    }
}

/// Where a request wants its record, in the records' memory.
fn place(body: &[u8]) -> u64 {
    let descriptor = CompletionDescriptor::decode(body.last_chunk().unwrap()).unwrap();
    assert_eq!(descriptor.stag, RECORDS);
    descriptor.offset.0 - 0x1000
}

//= test kbtp-9.2-record-with-immediate
//= test kbtp-p3-record-immediate
//= test kbtp-5.2-completion-descriptor
#[test]
fn a_record_completes_the_request_that_its_immediate_names() {
    let mut rig = recording();
    // All credits twice: records of several requests do not meet.
    for round in 0..2 {
        let mut asked = Vec::new();
        for token in 0..u64::from(CREDITS) {
            rig.initiator.submit(load(false), token, NEVER).unwrap();
            let (header, body, _) = rig.message();
            assert!(header.flags.contains(RequestFlags::RECORD));
            assert_eq!(body.len(), 32);
            asked.push((token, header.request_id, place(&body)));
        }
        for (token, id, at) in asked.into_iter().rev() {
            rig.records.write(at, &record(id).encode()).unwrap();
            let immediate = CompletionRecord::immediate(id);
            rig.initiator.handle_immediate(immediate).unwrap();
            let finished = rig.finished();
            assert_eq!(finished.len(), 1, "round {round}");
            assert_eq!(finished[0].token, token);
            let done = finished[0].result.unwrap();
            assert_eq!((done.len, done.block), (ByteLen(100), BlockOffset(0x8000)));
        }
        assert_eq!(rig.initiator.free_credits(), u32::from(CREDITS));
    }
}

#[test]
fn a_free_names_its_record_right_behind_the_header() {
    let mut rig = recording();
    let free = Request::Free {
        handle: Handle(103),
        generation: None,
    };
    rig.initiator.submit(free, 1, NEVER).unwrap();
    let (header, body, _) = rig.message();
    assert_eq!(header.flags, RequestFlags::RECORD);
    assert_eq!(body.len(), CompletionDescriptor::LEN);
    let at = place(&body);
    rig.records
        .write(at, &record(header.request_id).encode())
        .unwrap();
    let immediate = CompletionRecord::immediate(header.request_id);
    rig.initiator.handle_immediate(immediate).unwrap();
    assert_eq!(rig.finished().len(), 1);
}

#[test]
fn a_message_completes_a_request_that_asked_for_a_record_too() {
    let mut rig = recording();
    rig.initiator.submit(load(false), 1, NEVER).unwrap();
    let (header, ..) = rig.message();
    rig.receive(&ok(&header, 5, 100, 0x8000)).unwrap();
    assert_eq!(rig.finished().len(), 1);
}

#[test]
fn whose_stag_is_to_be_invalidated_asks_for_a_message() {
    let mut rig = recording();
    rig.initiator.submit(load(true), 1, NEVER).unwrap();
    let (header, body, _) = rig.message();
    assert_eq!(header.flags, RequestFlags::INVALIDATE);
    assert_eq!(body.len(), DataDescriptor::LEN);
}

#[test]
fn a_record_that_does_not_fit_ends_the_session() {
    let ends = |spoil: fn(&mut CompletionRecord), expected: fn(&PeerError) -> bool| {
        let mut rig = recording();
        rig.initiator.submit(load(false), 1, NEVER).unwrap();
        let (header, body, _) = rig.message();
        let mut wrong = record(header.request_id);
        spoil(&mut wrong);
        rig.records.write(place(&body), &wrong.encode()).unwrap();
        let immediate = CompletionRecord::immediate(header.request_id);
        match rig.initiator.handle_immediate(immediate) {
            Err(SessionError::Peer(error)) => assert!(expected(&error), "{error:?}"),
            other => panic!("{other:?}"),
        }
        assert!(!rig.initiator.is_open());
    };
    // The Immediate Data has only half of it.
    ends(
        |record| record.request_id.0 ^= 1 << 40,
        |error| matches!(error, PeerError::NotOutstanding { .. }),
    );
    ends(
        |record| record.data_len = ByteLen(BLOCK + 1),
        |error| matches!(error, PeerError::Completion { .. }),
    );
    ends(
        |record| record.generation = None,
        |error| matches!(error, PeerError::Completion { .. }),
    );
    // Nothing was written there at all.
    let mut rig = recording();
    rig.initiator.submit(load(false), 1, NEVER).unwrap();
    let (header, ..) = rig.message();
    let immediate = CompletionRecord::immediate(header.request_id);
    assert!(rig.initiator.handle_immediate(immediate).is_err());
    // A Status that there is not.
    let mut rig = recording();
    rig.initiator.submit(load(false), 1, NEVER).unwrap();
    let (header, body, _) = rig.message();
    let mut octets = record(header.request_id).encode();
    octets[8] = 0xff;
    rig.records.write(place(&body), &octets).unwrap();
    let immediate = CompletionRecord::immediate(header.request_id);
    let result = rig.initiator.handle_immediate(immediate);
    let unknown = PeerError::Malformed(DecodeError::Unknown {
        field: "Status",
        value: 0xff00,
    });
    assert_eq!(result, Err(SessionError::Peer(unknown)));
}

#[test]
fn an_immediate_that_no_request_waits_for_ends_the_session() {
    let told = |data: u32, rig: &mut Rig| {
        let result = rig.initiator.handle_immediate(data);
        assert_eq!(result, Err(PeerError::Immediate { data }.into()));
        assert!(!rig.initiator.is_open());
    };
    told(0x0001_0000, &mut recording());
    told(0xffff, &mut recording());
    // A request of a session that was not granted records.
    let mut rig = Rig::open();
    rig.initiator.submit(load(false), 1, NEVER).unwrap();
    let (header, body, _) = rig.message();
    assert_eq!((header.flags, body.len()), (RequestFlags::NONE, 16));
    told(CompletionRecord::immediate(header.request_id), &mut rig);
}
