//! Requests that are completed by completion records, where the stream has RDMA Write with Immediate.

use super::rig::*;
use kbtp_wire::{
    ByteLen, Completion, CompletionDescriptor, CompletionRecord, Generation, Handle, Opcode,
    Operation, Request, RequestId, SessionCapabilities, Status, TaggedOffset,
};

const H: u64 = TABLE_BASE;
/// Where the initiator wants records.
const SLOTS: u64 = 0x8_0000;

fn recording() -> (Rig, Client) {
    let mut rig = Rig::new(8, config());
    let mut hello = hello(1);
    hello.capabilities = SessionCapabilities::RECORD_COMPLETION;
    let (client, grant) = rig.open_on_infiniband(&hello);
    assert_eq!(grant.capabilities, SessionCapabilities::RECORD_COMPLETION);
    (rig, client)
}

/// Gives the session a request whose record goes to slot `slot`.
fn ask(rig: &Rig, client: &mut Client, id: u64, handle: u64, slot: u64, operation: Operation<'_>) {
    let request = Request {
        request_id: RequestId(id),
        handle: Handle(handle),
        generation: None,
        record: Some(CompletionDescriptor {
            stag: PEER_STAG,
            offset: TaggedOffset(SLOTS + 32 * slot),
        }),
        operation,
    };
    let mut octets = vec![0; request.encoded_len()];
    request.encode_into(&mut octets).unwrap();
    client.give(rig, &octets).unwrap();
}

fn record(client: &Client, slot: u64) -> CompletionRecord {
    let octets = client.read_memory(SLOTS + 32 * slot, CompletionRecord::LEN);
    CompletionRecord::decode(octets.as_slice().try_into().unwrap()).unwrap()
}

/// The record of a request, once all is posted and done; no message comes for it.
fn recorded(
    rig: &Rig,
    client: &mut Client,
    id: u64,
    handle: u64,
    operation: Operation<'_>,
) -> CompletionRecord {
    ask(rig, client, id, handle, id % 8, operation);
    client.pump(rig);
    assert_eq!(client.next_completion(), None);
    let [.., a, b, c, d] = id.to_be_bytes();
    assert_eq!(
        client.immediates.pop(),
        Some(u32::from_be_bytes([a, b, c, d]))
    );
    let record = record(client, id % 8);
    assert_eq!(record.request_id, RequestId(id));
    record
}

//= test kbtp-9.2-record-with-immediate
//= test kbtp-p3-record-immediate
//= test kbtp-6.5-record-instead
//= test kbtp-6.5-record-only-ordered
#[test]
fn every_request_ends_with_a_record_that_was_asked_for() {
    let (rig, mut client) = recording();
    let high = 7 << 40;
    let stored = recorded(&rig, &mut client, high + 1, H, put_unsealed(b"first"));
    assert_eq!((stored.status, stored.data_len), (Status::Ok, ByteLen(5)));
    assert_eq!(stored.generation, Generation::new(1));
    let loaded = recorded(&rig, &mut client, high + 2, H, load_unsealed(0, BLOCK));
    assert_eq!((loaded.status, loaded.block), (Status::Ok, stored.block));
    assert_eq!(client.read_memory(0, 5), b"first");
    let store = Operation::Store {
        source: remote(8192, BLOCK),
        seal: true,
    };
    let rewritten = recorded(&rig, &mut client, high + 3, H, store);
    assert_eq!(rewritten.status, Status::Ok);
    let refused = recorded(&rig, &mut client, high + 4, H + 1, Operation::Free);
    assert_ne!(refused.status, Status::Ok);
    let freed = recorded(&rig, &mut client, high + 5, H, Operation::Free);
    assert_eq!(
        (freed.status, freed.generation),
        (Status::Ok, Generation::new(2))
    );
    // More than there are credits: a record gives its credit back.
    for id in 6..40 {
        recorded(&rig, &mut client, high + id, H, Operation::Free);
    }
    assert_eq!(rig.at_rest().bound, 0);
    assert_eq!(rig.counted(Opcode::Load, Status::Ok), 1);
}

#[test]
fn the_record_of_a_load_goes_out_after_its_data_and_its_end_releases_the_block() {
    let (rig, mut client) = recording();
    recorded(&rig, &mut client, 1, H, put_unsealed(b"first"));
    ask(&rig, &mut client, 2, H, 2, load_unsealed(0, BLOCK));
    client.post();
    // The Write.
    assert!(client.step(&rig));
    assert_eq!(
        (client.read_memory(0, 5).as_slice(), client.immediates.len()),
        (&b"first"[..], 0)
    );
    assert_eq!(client.session.under_way(), 1);
    assert!(client.step(&rig));
    assert_eq!(client.immediates, [2]);
    assert_eq!(client.session.under_way(), 0);
}

#[test]
fn a_message_completes_what_is_to_invalidate_an_stag_too() {
    let (rig, mut client) = recording();
    recorded(&rig, &mut client, 1, H, put_unsealed(b"first"));
    let Operation::Load { sink, .. } = load_unsealed(0, BLOCK) else {
        panic!("a load")
    };
    let load = Operation::Load {
        sink,
        allow_unsealed: true,
        invalidate: true,
    };
    ask(&rig, &mut client, 2, H, 2, load);
    client.pump(&rig);
    let completion: Option<Completion> = client.next_completion();
    assert_eq!(completion.map(|c| c.status), Some(Status::Ok));
    assert_eq!(client.invalidated, [PEER_STAG]);
    assert!(client.immediates.is_empty());
}

#[test]
fn who_did_not_ask_for_records_gets_none() {
    let mut rig = Rig::new(8, config());
    let (mut client, grant) = rig.open_on_infiniband(&hello(1));
    assert_eq!(grant.capabilities, SessionCapabilities::NONE);
    ask(&rig, &mut client, 1, H, 1, Operation::Free);
    client.pump(&rig);
    assert_eq!(
        client.next_completion().unwrap().status,
        Status::Unsupported
    );
    // One without the flag, of a session that was granted records, is completed by a message.
    let (rig, mut client) = recording();
    let completion = client.call(&rig, H, 0, put_unsealed(b"first"));
    assert_eq!(completion.status, Status::Ok);
    assert!(client.immediates.is_empty());
}
