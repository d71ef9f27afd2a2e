//! The requests one by one: what they do, and every status of P7 in its order.

use super::rig::*;
use crate::{DirectoryConfig, SessionEnd};
use kbtp_wire::{
    Bind, BlockOffset, ByteLen, Completion, DataDescriptor, Generation, Handle, Header, Opcode,
    Operation, Request, RequestFlags, RequestId, SessionCapabilities, Source, Stag, Status,
    TaggedOffset, Ticket,
};

const H: u64 = TABLE_BASE;

fn opened() -> (Rig, Client) {
    let mut rig = Rig::new(8, config());
    let (client, grant) = rig.open(&hello(1));
    assert_eq!(
        (grant.handle_base, grant.handle_count, grant.quota),
        (Handle(H), 64, 4)
    );
    (rig, client)
}

fn gen_of(completion: &Completion) -> u16 {
    Generation::to_wire(completion.generation)
}

//= test kbtp-6.3-allocate
//= test kbtp-3.4-shared-ring
//= test kbtp-3.1-block-offset-is-address
//= test kbtp-6.3-completion
//= test kbtp-6.1-load-write
//= test kbtp-6.1-load-completion
//= test kbtp-6.2-store-data
//= test kbtp-6.2-update-entry
//= test kbtp-p3-free-new-generation
//= test kbtp-p3-header-of-request
//= test kbtp-5.1-request-id-echoed
//= test kbtp-5.1-generation-current
//= test kbtp-3.2-data-length
#[test]
fn a_block_is_stored_loaded_rewritten_sealed_and_freed() {
    let (rig, mut client) = opened();
    let stored = client.call(&rig, H, 0, put_unsealed(b"first"));
    assert_eq!(
        (stored.status, gen_of(&stored), stored.data_len),
        (Status::Ok, 1, ByteLen(5))
    );
    assert_eq!(stored.block, BlockOffset(0x4000_0000));
    let loaded = client.call(&rig, H, 1, load_unsealed(0, BLOCK));
    assert_eq!((loaded.status, loaded.block), (Status::Ok, stored.block));
    assert_eq!(client.read_memory(0, 6), b"first\0");

    // By RDMA Read this time, and a whole block.
    let data: Vec<u8> = (0..BLOCK).map(|n| u8::try_from(n % 251).unwrap()).collect();
    client.write_memory(8192, &data);
    let store = Operation::Store {
        source: remote(8192, BLOCK),
        seal: true,
    };
    let rewritten = client.call(&rig, H, 0, store);
    assert_eq!((rewritten.status, gen_of(&rewritten)), (Status::Ok, 1));
    assert_eq!(
        (rewritten.data_len, rewritten.block),
        (ByteLen(BLOCK), stored.block)
    );
    let loaded = client.call(&rig, H, 0, load(0, BLOCK));
    assert_eq!(
        (loaded.status, loaded.data_len),
        (Status::Ok, ByteLen(BLOCK))
    );
    assert_eq!(client.read_memory(0, data.len()), data);

    let freed = client.call(&rig, H, 1, Operation::Free);
    assert_eq!((freed.status, gen_of(&freed)), (Status::Ok, 2));
    assert_eq!((freed.data_len, freed.block), (ByteLen(0), BlockOffset(0)));
    let again = client.call(&rig, H, 2, put(b"again"));
    assert_eq!((again.status, gen_of(&again)), (Status::Ok, 3));
    assert_eq!(rig.at_rest().bound, 1);
    assert_eq!(rig.counted(Opcode::AllocStore, Status::Ok), 2);
}

//= test kbtp-6.3-entry-after-data
//= test kbtp-9.1-loads-write-stores-read
#[test]
fn an_entry_is_written_only_after_its_data_was_read() {
    let (rig, mut client) = opened();
    client.write_memory(0, b"remote");
    let store = Operation::AllocStore {
        source: remote(0, 6),
        seal: true,
    };
    client.send(&rig, H, 0, store);
    client.post();
    assert!(!rig.shared.pool.entry(0).is_valid());
    assert_eq!((client.session.held(), rig.audit().elsewhere), (1, 1));
    client.pump(&rig);
    assert_eq!(client.statuses(), [(1, Status::Ok)]);
    client.call(&rig, H, 0, load(100, 6));
    assert_eq!(client.read_memory(100, 6), b"remote");
}

//= test kbtp-p7-zero-length-legal
#[test]
fn a_block_may_be_empty() {
    let (rig, mut client) = opened();
    for (at, source) in [(0, inline(b"")), (1, remote(0, 0))] {
        let stored = client.call(
            &rig,
            H + at,
            0,
            Operation::AllocStore { source, seal: true },
        );
        assert_eq!((stored.status, stored.data_len), (Status::Ok, ByteLen(0)));
        let loaded = client.call(&rig, H + at, 0, load(0, 0));
        assert_eq!((loaded.status, loaded.data_len), (Status::Ok, ByteLen(0)));
    }
    assert_eq!(client.session.under_way(), 0);
}

//= test kbtp-5.1-invalidate-data-descriptor
#[test]
fn invalidate_names_the_stag_of_the_data_descriptor() {
    let (rig, mut client) = opened();
    client.write_memory(0, b"x");
    let source = Source::Remote {
        buffer: buffer(0, 1),
        invalidate: true,
    };
    client.call(&rig, H, 0, Operation::AllocStore { source, seal: true });
    assert_eq!(client.invalidated, [PEER_STAG]);
    client.call(
        &rig,
        H,
        0,
        Operation::Load {
            sink: buffer(0, 9),
            invalidate: true,
            allow_unsealed: false,
        },
    );
    assert_eq!(client.invalidated, [PEER_STAG, PEER_STAG]);
    client.call(&rig, H, 0, load(0, 9));
    assert_eq!(client.invalidated.len(), 2);
}

//= test kbtp-p7-not-valid
//= test kbtp-6.1-load-valid
//= test kbtp-6.4-handle-in-range-valid
#[test]
fn unbound_handles_are_not_valid() {
    let (rig, mut client) = opened();
    let store = Operation::Store {
        source: inline(b"x"),
        seal: false,
    };
    for operation in [load(0, 1), store, Operation::Free] {
        let completion = client.call(&rig, H + 5, 9, operation);
        assert_eq!(
            (completion.status, gen_of(&completion)),
            (Status::NotValid, 0)
        );
        assert_eq!(
            (completion.data_len, completion.block),
            (ByteLen(0), BlockOffset(0))
        );
    }
    client.call(&rig, H + 5, 0, put(b"x"));
    client.call(&rig, H + 5, 0, Operation::Free);
    let completion = client.call(&rig, H + 5, 0, load(0, 1));
    assert_eq!(
        (completion.status, gen_of(&completion)),
        (Status::NotValid, 2)
    );
}

//= test kbtp-p7-already-valid
//= test kbtp-6.3-handle-not-valid
#[test]
fn a_bound_handle_is_already_valid() {
    let (rig, mut client) = opened();
    client.call(&rig, H, 0, put(b"x"));
    // Before GENERATION_MISMATCH and LENGTH_ERROR.
    let long = Operation::AllocStore {
        source: remote(0, BLOCK + 1),
        seal: false,
    };
    let completion = client.call(&rig, H, 7, long);
    assert_eq!(
        (completion.status, gen_of(&completion)),
        (Status::AlreadyValid, 1)
    );
    assert_eq!(rig.at_rest().bound, 1);
}

//= test kbtp-p7-not-sealed
//= test kbtp-6.1-load-sealed
//= test kbtp-p7-sealed
//= test kbtp-6.2-store-valid-unsealed
#[test]
fn seals_are_kept() {
    let (rig, mut client) = opened();
    client.call(&rig, H, 0, put_unsealed(b"x"));
    assert_eq!(
        client.call(&rig, H, 0, load(0, 0)).status,
        Status::NotSealed
    );
    assert_eq!(
        client.call(&rig, H, 0, load_unsealed(0, 1)).status,
        Status::Ok
    );
    let seal = Operation::Store {
        source: inline(b"y"),
        seal: true,
    };
    assert_eq!(client.call(&rig, H, 0, seal).status, Status::Ok);
    assert_eq!(client.call(&rig, H, 0, load(0, 1)).status, Status::Ok);
    let store = Operation::Store {
        source: remote(0, BLOCK + 1),
        seal: false,
    };
    assert_eq!(client.call(&rig, H, 0, store).status, Status::Sealed);
    client.call(&rig, H, 0, load(0, 1));
    assert_eq!(client.read_memory(0, 1), b"y");
}

//= test kbtp-p7-generation-mismatch
//= test kbtp-5.1-generation-any
//= test kbtp-5.1-generation-current
#[test]
fn a_wrong_generation_changes_nothing_and_tells_the_right_one() {
    let (rig, mut client) = opened();
    let first = client.call(&rig, H, 1, put(b"x"));
    assert_eq!(
        (first.status, gen_of(&first)),
        (Status::GenerationMismatch, 0)
    );
    client.call(&rig, H, 0, put_unsealed(b"x"));
    let store = Operation::Store {
        source: inline(b"y"),
        seal: true,
    };
    for operation in [load(0, 0), store, Operation::Free] {
        let completion = client.call(&rig, H, 2, operation);
        assert_eq!(
            (completion.status, gen_of(&completion)),
            (Status::GenerationMismatch, 1)
        );
    }
    assert_eq!(
        client.call(&rig, H, 1, load_unsealed(0, 1)).status,
        Status::Ok
    );
    assert_eq!(client.read_memory(0, 1), b"x");
}

//= test kbtp-p7-length-error-load
//= test kbtp-6.1-load-length
#[test]
fn a_load_into_too_short_a_buffer_tells_the_length() {
    let (rig, mut client) = opened();
    client.call(&rig, H, 0, put(b"12345"));
    let completion = client.call(&rig, H, 0, load(0, 4));
    assert_eq!(
        (completion.status, completion.data_len),
        (Status::LengthError, ByteLen(5))
    );
    assert_eq!((completion.block, gen_of(&completion)), (BlockOffset(0), 1));
    assert_eq!(client.read_memory(0, 5), [0; 5]);
    assert_eq!(client.session.under_way(), 0);
}

//= test kbtp-p7-length-error-store
//= test kbtp-p7-length-error-inline
//= test kbtp-p7-failed-changes-nothing
#[test]
fn stores_of_wrong_lengths_change_nothing() {
    let (rig, mut client) = opened();
    let lies = [
        remote(0, BLOCK + 1),
        remote(0, u32::MAX),
        // A message has room for this: RECORD would take 16 octets more.
        inline(&[1; 257]),
        Source::Inline {
            declared: ByteLen(3),
            octets: b"12",
        },
        Source::Inline {
            declared: ByteLen(3),
            octets: b"1234",
        },
        Source::Inline {
            declared: ByteLen(u32::MAX),
            octets: b"",
        },
    ];
    client.call(&rig, H + 1, 0, put_unsealed(b"old"));
    for source in lies {
        let alloc = Operation::AllocStore { source, seal: true };
        assert_eq!(client.call(&rig, H, 0, alloc).status, Status::LengthError);
        let store = Operation::Store { source, seal: true };
        assert_eq!(
            client.call(&rig, H + 1, 0, store).status,
            Status::LengthError
        );
    }
    assert_eq!(rig.at_rest().bound, 1);
    assert_eq!(
        client.call(&rig, H + 1, 0, load_unsealed(0, 3)).status,
        Status::Ok
    );
    assert_eq!(client.read_memory(0, 3), b"old");
    assert_eq!(client.call(&rig, H, 0, put(&[1; 256])).status, Status::Ok);
}

//= test kbtp-p7-not-authorized
//= test kbtp-6.2-store-in-range
//= test kbtp-6.3-handle-in-range
#[test]
fn handles_of_others_are_out_of_reach() {
    let (mut rig, mut client) = opened();
    let (mut other, grant) = rig.open(&hello(2));
    let theirs = grant.handle_base.0;
    assert_eq!(theirs, H + 64);
    other.call(&rig, theirs, 0, put_unsealed(b"theirs"));
    let store = Operation::Store {
        source: inline(b"x"),
        seal: false,
    };
    for (handle, generation) in [
        (theirs, 1),
        (H + 1024, 0),
        (H - 1, 0),
        (u64::MAX, 0),
        (0, 0),
    ] {
        for operation in [store, put(b"x"), Operation::Free] {
            let completion = client.call(&rig, handle, 9, operation);
            assert_eq!(completion.status, Status::NotAuthorized, "{handle:#x}");
            assert_eq!(gen_of(&completion), generation);
        }
    }
    for handle in [H + 1024, H - 1, u64::MAX] {
        assert_eq!(
            client.call(&rig, handle, 0, load(0, 9)).status,
            Status::NotAuthorized
        );
    }
    // One tenant, one trust domain: it may load what the other has.
    let loaded = client.call(&rig, theirs, 0, load_unsealed(0, 9));
    assert_eq!(loaded.status, Status::Ok);
    assert_eq!(client.read_memory(0, 6), b"theirs");
}

//= test kbtp-p7-not-valid-foreign
//= test kbtp-p9-own-blocks-only
#[test]
fn absent_and_not_yours_cannot_be_told_apart() {
    let tenants = vec![
        tenant("a", false),
        tenant("b", false),
        tenant("c", true),
        tenant("d", true),
    ];
    let mut rig = Rig::new(
        16,
        DirectoryConfig {
            tenants,
            ..config()
        },
    );
    let names = ["a", "b", "c", "d"];
    let mut clients: Vec<_> = (1..)
        .zip(names)
        .map(|(n, name)| {
            let mut hello = hello(n);
            hello.tlvs.tenant = Some(name);
            rig.open(&hello)
        })
        .collect();
    let handles: Vec<u64> = clients
        .iter()
        .map(|(_, grant)| grant.handle_base.0)
        .collect();
    for ((client, _), handle) in clients.iter_mut().zip(&handles) {
        client.call(&rig, *handle, 0, put(b"own"));
        client.call(&rig, *handle + 1, 0, put(b"own"));
        client.call(&rig, *handle + 1, 0, Operation::Free);
    }
    for (owner, handle) in handles.iter().enumerate() {
        for (reader, (client, _)) in clients.iter_mut().enumerate() {
            let may = owner == reader || (owner >= 2 && reader >= 2);
            let bound = client.call(&rig, *handle, 0, load(0, 3));
            let freed = client.call(&rig, *handle + 1, 0, load(0, 3));
            let absent = client.call(&rig, H + 1000, 0, load(0, 3));
            if may {
                assert_eq!((bound.status, gen_of(&bound)), (Status::Ok, 1));
                assert_eq!((freed.status, gen_of(&freed)), (Status::NotValid, 2));
            } else {
                for completion in [&bound, &freed, &absent] {
                    assert_eq!(completion.status, Status::NotValid);
                    assert_eq!(gen_of(completion), 0);
                }
            }
        }
    }
}

//= test kbtp-p7-no-space
//= test kbtp-3.4-over-quota-no-space
//= test kbtp-3.4-usage-counted
//= test kbtp-3.4-usage-released
#[test]
fn the_quota_is_kept_and_a_free_releases_it() {
    let (rig, mut client) = opened();
    client.write_memory(0, b"x");
    // Allocations under way count as well.
    for n in 0..5 {
        client.send(
            &rig,
            H + n,
            0,
            Operation::AllocStore {
                source: remote(0, 1),
                seal: true,
            },
        );
    }
    client.pump(&rig);
    let mut statuses = client.statuses();
    statuses.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(statuses[3..], [(4, Status::Ok), (5, Status::NoSpace)]);
    assert_eq!(
        client.call(&rig, H + 9, 0, put(b"x")).status,
        Status::NoSpace
    );
    client.call(&rig, H, 0, Operation::Free);
    assert_eq!(client.call(&rig, H + 9, 0, put(b"x")).status, Status::Ok);
    assert_eq!(
        client.call(&rig, H + 10, 0, put(b"x")).status,
        Status::NoSpace
    );
    assert_eq!(rig.at_rest().bound, 4);
}

//= test kbtp-p2-record-needs-capability
//= test kbtp-p7-unsupported
//= test kbtp-6.5-record-not-on-rdmap
//= test kbtp-p1-reserved-unsupported
//= test kbtp-6.5-record-only-ordered
//= test kbtp-p12-both-sides
#[test]
fn what_was_not_granted_is_unsupported() {
    let mut rig = Rig::new(8, config());
    let mut hello = hello(1);
    hello.capabilities =
        SessionCapabilities::RECORD_COMPLETION.union(SessionCapabilities(0xffff_0000));
    let (mut client, grant) = rig.open(&hello);
    assert_eq!(grant.capabilities, SessionCapabilities::NONE);
    let record = kbtp_wire::CompletionDescriptor {
        stag: Stag(1),
        offset: TaggedOffset(0),
    };
    let request = Request {
        request_id: RequestId(9),
        handle: Handle(0),
        generation: None,
        record: Some(record),
        operation: Operation::Free,
    };
    let mut octets = vec![0; request.encoded_len()];
    request.encode_into(&mut octets).unwrap();
    client.give(&rig, &octets).unwrap();
    let mut reserved = Header::request(
        Opcode::Free,
        RequestFlags::NONE,
        RequestId(10),
        Handle(H),
        None,
    );
    for opcode in [0, 9, 0x7f, 0x80, 0xff] {
        reserved.opcode = opcode;
        client.give(&rig, &reserved.encode()).unwrap();
    }
    client.pump(&rig);
    let statuses = client.statuses();
    assert_eq!(statuses.len(), 6);
    assert!(
        statuses
            .iter()
            .all(|(_, status)| *status == Status::Unsupported),
        "{statuses:?}"
    );
    let bind = Bind {
        ticket: Ticket(0),
        data_len: ByteLen(0),
        block: BlockOffset(0x4000_0000),
    };
    let completion = client.call(&rig, H, 0, Operation::Bind { bind, seal: false });
    assert_eq!(completion.status, Status::Unsupported);
}

//= test kbtp-p7-bad-request
//= test kbtp-p7-version-mismatch
//= test kbtp-p7-check-order
#[test]
fn malformed_requests_are_answered_and_the_session_goes_on() {
    let (rig, mut client) = opened();
    let good = Header::request(
        Opcode::Free,
        RequestFlags::NONE,
        RequestId(1),
        Handle(H),
        None,
    );
    let statuses = [
        (Header { status: 1, ..good }, Status::BadRequest),
        (
            Header {
                flags: RequestFlags::SEAL,
                ..good
            },
            Status::BadRequest,
        ),
        (
            Header {
                opcode: Opcode::Load.to_wire(),
                ..good
            },
            Status::BadRequest,
        ),
        (
            Header {
                opcode: Opcode::Completion.to_wire(),
                ..good
            },
            Status::BadRequest,
        ),
        (
            Header {
                opcode: Opcode::HelloAck.to_wire(),
                ..good
            },
            Status::BadRequest,
        ),
        (Header { version: 2, ..good }, Status::VersionMismatch),
        (
            Header {
                version: 2,
                status: 3,
                ..good
            },
            Status::BadRequest,
        ),
        (
            Header {
                version: 2,
                opcode: 0x90,
                ..good
            },
            Status::VersionMismatch,
        ),
    ];
    for (header, expected) in statuses {
        client.give(&rig, &header.encode()).unwrap();
        client.pump(&rig);
        assert_eq!(client.statuses(), [(1, expected)], "{header:?}");
    }
    assert_eq!(client.call(&rig, H, 0, put(b"x")).status, Status::Ok);
}

//= test kbtp-p7-shutting-down
#[test]
fn a_draining_target_ends_what_it_began_and_takes_nothing_new() {
    let (mut rig, mut client) = opened();
    client.call(&rig, H, 0, put(b"x"));
    client.write_memory(0, b"y");
    client.send(
        &rig,
        H + 1,
        0,
        Operation::AllocStore {
            source: remote(0, 1),
            seal: true,
        },
    );
    client.send(&rig, H + 1, 0, load(0, 1));
    rig.shared.drain();
    client.send(&rig, H, 0, load(0, 1));
    client.pump(&rig);
    let mut statuses = client.statuses();
    statuses.sort_unstable_by_key(|(id, _)| *id);
    let expected = [(2, Status::Ok), (3, Status::Ok), (4, Status::ShuttingDown)];
    assert_eq!(statuses, expected);
    let mut late = rig.client();
    assert_eq!(
        late.hello(&mut rig, &hello(2)).unwrap_err(),
        Status::ShuttingDown
    );
}

//= test kbtp-p7-internal-error
#[test]
fn an_entry_that_cannot_be_is_an_internal_error() {
    let (rig, mut client) = opened();
    client.call(&rig, H, 0, put_unsealed(b"x"));
    let meta = rig.shared.pool.meta_region();
    let at = rig.shared.pool.layout().table + 8;
    let mut good = [0; 8];
    meta.read(at, &mut good).unwrap();
    meta.write(at, &0x1234_u64.to_be_bytes()).unwrap();
    let store = Operation::Store {
        source: inline(b"y"),
        seal: false,
    };
    for operation in [load_unsealed(0, 1), store, Operation::Free] {
        assert_eq!(
            client.call(&rig, H, 0, operation).status,
            Status::InternalError
        );
    }
    meta.write(at, &good).unwrap();
    assert_eq!(client.call(&rig, H, 1, Operation::Free).status, Status::Ok);
    rig.at_rest();
}

//= test kbtp-p7-too-short-ends-session
//= test kbtp-p7-too-long-ends-session
//= test kbtp-p7-over-credits-ends-session
//= test kbtp-p5-hello-first
#[test]
fn some_faults_end_the_session() {
    let faults: [(Vec<u8>, SessionEnd); 3] = [
        (vec![1; 23], SessionEnd::TooShort(23)),
        (
            vec![1; 56 + 257],
            SessionEnd::TooLong {
                len: 313,
                limit: 312,
            },
        ),
        (
            Header::request(
                Opcode::Hello,
                RequestFlags::NONE,
                RequestId(1),
                Handle(0),
                None,
            )
            .encode()
            .to_vec(),
            SessionEnd::HelloOrder,
        ),
    ];
    for (message, end) in faults {
        let (mut rig, mut client) = opened();
        assert_eq!(client.give(&rig, &message), Err(end));
        // It stays ended.
        assert_eq!(client.give(&rig, &[1; 24]), Err(end));
        assert!(client.session.next_work().is_none());
        rig.close(client);
        rig.at_rest();
    }
    let (mut rig, mut client) = opened();
    let free = Header::request(
        Opcode::Free,
        RequestFlags::NONE,
        RequestId(1),
        Handle(H),
        None,
    );
    for _ in 0..8 {
        client.give(&rig, &free.encode()).unwrap();
    }
    assert_eq!(
        client.give(&rig, &free.encode()),
        Err(SessionEnd::Credits(8))
    );
    rig.close(client);
}

/// A credit comes back when its completion is posted, not before and not later.
//= test kbtp-p7-over-credits-ends-session
#[test]
fn credits_come_back_with_completions() {
    let (rig, mut client) = opened();
    client.call(&rig, H, 0, put(b"x"));
    for _ in 0..8 {
        client.send(&rig, H, 0, load(0, 1));
    }
    client.post();
    // The initiator may have all completions while the stream still holds the blocks.
    for _ in 0..8 {
        assert!(client.session.ready());
        client.send(&rig, H, 0, load(0, 1));
    }
    assert!(!client.session.ready());
    client.pump(&rig);
    assert!(client.session.ready());
    assert_eq!(client.statuses().len(), 16);
    assert_eq!(client.session.under_way(), 0);
}

#[test]
fn descriptors_of_inline_data_carry_nothing_else() {
    let (rig, mut client) = opened();
    let request = Request {
        request_id: RequestId(3),
        handle: Handle(H),
        generation: None,
        record: None,
        operation: put(b"x"),
    };
    let mut octets = vec![0; request.encoded_len()];
    request.encode_into(&mut octets).unwrap();
    octets[24..40].copy_from_slice(
        &DataDescriptor {
            stag: Stag(1),
            ..buffer(0, 1)
        }
        .encode(),
    );
    client.give(&rig, &octets).unwrap();
    client.pump(&rig);
    assert_eq!(client.statuses(), [(3, Status::BadRequest)]);
}
