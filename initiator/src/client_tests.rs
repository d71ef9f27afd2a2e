//! The client over a stream in memory.

use crate::testing::{BLOCK, FakeDial, client, options, pattern, target};
use crate::{
    Client, ClientError, FreeItem, FreeOptions, Handle, LoadItem, LoadOptions, Operation,
    Reconnect, SessionError, Status, StoreItem, StoreOptions, SubmitError,
};
use kbtp_wire::Opcode;
use std::time::Duration;

fn load() -> LoadOptions {
    LoadOptions::default()
}

fn store() -> StoreOptions {
    StoreOptions::default()
}

#[test]
fn a_block_goes_round_inline_and_by_read() {
    let (world, mut client) = client(4);
    let (base, count) = client.handles();
    assert_eq!((base, count), (Handle(1000), 4));
    let mut buffer = client.register(BLOCK).unwrap();
    for (n, len) in [(0, 0), (1, 64), (2, 65), (3, 4096)] {
        let data = pattern(1, len);
        buffer.fill(&data).unwrap();
        let handle = Handle(base.0 + n);
        let stored = client.alloc_store(handle, &mut buffer, &store()).unwrap();
        let mut sink = client.register(BLOCK).unwrap();
        let with_generation = LoadOptions {
            generation: Some(stored.generation),
            ..load()
        };
        let loaded = client.load(handle, &mut sink, &with_generation).unwrap();
        assert_eq!(loaded.len.0 as usize, len);
        assert_eq!(sink.to_vec().unwrap(), data);
    }
    assert_eq!(world.lock().unwrap().bound(), 4);
    assert_eq!(client.usage().bound, 4);
    let freed = client.free(base, &FreeOptions::default()).unwrap();
    assert_eq!(freed.generation.get(), 2);
    let gone = client.load(base, &mut buffer, &load()).unwrap_err();
    assert!(gone.is_missing());
    assert_eq!(gone.status(), Some(Status::NotValid));
    assert_eq!(
        gone.to_string(),
        "load of handle 1000: NOT_VALID, generation 2"
    );
}

#[test]
fn stores_to_bound_handles_until_they_are_sealed() {
    let (_, mut client) = client(2);
    let (handle, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    let open = StoreOptions {
        seal: false,
        ..store()
    };
    buffer.fill(&pattern(1, 100)).unwrap();
    client.alloc_store(handle, &mut buffer, &open).unwrap();
    let unsealed = client.load(handle, &mut buffer, &load()).unwrap_err();
    assert_eq!(unsealed.status(), Some(Status::NotSealed));
    let any = LoadOptions {
        allow_unsealed: true,
        ..load()
    };
    client.load(handle, &mut buffer, &any).unwrap();
    buffer.fill(&pattern(2, 300)).unwrap();
    client.store(handle, &mut buffer, &store()).unwrap();
    let sealed = client.store(handle, &mut buffer, &store()).unwrap_err();
    assert_eq!(sealed.status(), Some(Status::Sealed));
    client.load(handle, &mut buffer, &load()).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), pattern(2, 300));
}

#[test]
fn direct_modes_go_round_too() {
    let (_, dial) = target(4);
    let options = options().direct_load(true).direct_alloc(true);
    let mut client = Client::connect_with(dial, options).unwrap();
    let (base, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    for (n, len) in [(0, 0), (1, 1), (2, 4096)] {
        let handle = Handle(base.0 + n);
        let data = pattern(9, len);
        buffer.fill(&data).unwrap();
        let stored = client.alloc_direct(handle, &mut buffer, &store()).unwrap();
        let options = LoadOptions {
            generation: Some(stored.generation),
            ..load()
        };
        let mut sink = client.register(BLOCK).unwrap();
        client.load_direct(handle, &mut sink, &options).unwrap();
        assert_eq!(sink.to_vec().unwrap(), data);
        client.load(handle, &mut sink, &options).unwrap();
        assert_eq!(sink.to_vec().unwrap(), data);
    }
}

#[test]
fn an_entry_that_never_rests_is_told() {
    let (world, dial) = target(2);
    let mut client = Client::connect_with(dial, options().direct_load(true)).unwrap();
    let (handle, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    client.alloc_store(handle, &mut buffer, &store()).unwrap();
    world.lock().unwrap().script.restless = true;
    let error = client.load_direct(handle, &mut buffer, &load());
    assert!(matches!(
        error,
        Err(ClientError::Unstable { attempts: 4, .. })
    ));
}

#[test]
fn a_ring_without_blocks_runs_the_ticket_out() {
    let (world, dial) = target(2);
    let mut client = Client::connect_with(dial, options().direct_alloc(true)).unwrap();
    let (handle, _) = client.handles();
    world.lock().unwrap().script.no_blocks = true;
    let mut buffer = client.register(BLOCK).unwrap();
    let error = client.alloc_direct(handle, &mut buffer, &store());
    assert!(
        matches!(error, Err(ClientError::TicketTimeout { .. })),
        "{error:?}"
    );
}

#[test]
fn batches_keep_the_credits_full_and_say_how_each_ended() {
    let (world, dial) = target(32);
    let mut client = Client::connect_with(dial, options().credits(4)).unwrap();
    let (base, _) = client.handles();
    let mut buffers = client.register_many(32, BLOCK).unwrap();
    for (buffer, seed) in buffers.iter_mut().zip(0..) {
        buffer.fill(&pattern(seed, 500)).unwrap();
    }
    let mut items: Vec<_> = buffers
        .iter_mut()
        .zip(base.0..)
        .map(|(buffer, handle)| StoreItem::new(Handle(handle), buffer))
        .collect();
    assert_eq!(client.alloc_store_many(&mut items).unwrap(), 32);
    assert!(items.iter().all(|item| matches!(item.result, Some(Ok(_)))));
    let mut sinks = client.register_many(33, BLOCK).unwrap();
    let mut items: Vec<_> = sinks
        .iter_mut()
        .zip(base.0..)
        .map(|(buffer, handle)| LoadItem::new(Handle(handle), buffer))
        .collect();
    // One handle too many.
    assert_eq!(client.load_many(&mut items).unwrap(), 32);
    let last = items.pop().unwrap().result.unwrap().unwrap_err();
    assert_eq!(last.status(), Some(Status::NotAuthorized));
    drop(items);
    for (buffer, seed) in sinks.iter().take(32).zip(0..) {
        assert_eq!(buffer.to_vec().unwrap(), pattern(seed, 500));
    }
    let mut items: Vec<_> = (base.0..base.0 + 32)
        .map(|h| FreeItem::new(Handle(h)))
        .collect();
    assert_eq!(client.free_many(&mut items).unwrap(), 32);
    let world = world.lock().unwrap();
    assert_eq!(world.bound(), 0);
    assert_eq!(world.count(Opcode::Load), 33);
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn pipelined_operations_own_their_buffers_until_they_are_claimed() {
    let (_, mut client) = client(8);
    let (base, _) = client.handles();
    let mut ops = Vec::new();
    for n in 0..4 {
        let mut buffer = client.register(BLOCK).unwrap();
        buffer.fill(&pattern(7, 80)).unwrap();
        let handle = Handle(base.0 + n);
        ops.push(client.submit_alloc_store(handle, buffer, &store()).unwrap());
    }
    // The third first, then the rest in the order they ended.
    let third = client.wait(ops[2]).unwrap();
    assert_eq!((third.op, third.handle), (ops[2], Handle(base.0 + 2)));
    assert_eq!(third.operation, Operation::AllocStore);
    assert!(matches!(client.wait(ops[2]), Err(ClientError::UnknownOp)));
    let mut seen = Vec::new();
    while let Some(completed) = client.wait_any().unwrap() {
        completed.result.unwrap();
        seen.push(completed.op);
    }
    assert_eq!(seen, [ops[0], ops[1], ops[3]]);
    let buffer = third.buffer.unwrap();
    let op = client.submit_load(Handle(base.0), buffer, &load()).unwrap();
    let loaded = client.wait(op).unwrap();
    assert_eq!(loaded.buffer.unwrap().to_vec().unwrap(), pattern(7, 80));
    let op = client
        .submit_free(Handle(base.0), &FreeOptions::default())
        .unwrap();
    assert!(client.wait(op).unwrap().buffer.is_none());
}

#[test]
fn a_full_pipeline_gives_the_buffer_back() {
    let (world, dial) = target(8);
    let mut client = Client::connect_with(dial, options().credits(2)).unwrap();
    world.lock().unwrap().script.silent = true;
    let (handle, _) = client.handles();
    for _ in 0..2 {
        let buffer = client.register(BLOCK).unwrap();
        client.submit_load(handle, buffer, &load()).unwrap();
    }
    let buffer = client.register(BLOCK).unwrap();
    let rejected = client.submit_load(handle, buffer, &load()).unwrap_err();
    assert!(rejected.error.is_busy());
    assert!(rejected.buffer.is_some());
    assert_eq!(client.free_credits(), 0);
    world.lock().unwrap().script.silent = false;
    assert!(client.wait_any().unwrap().is_some());
    client
        .submit_load(handle, rejected.buffer.unwrap(), &load())
        .unwrap();
}

#[test]
fn a_buffer_given_back_is_not_written_any_more() {
    let (world, mut client) = client(4);
    let (handle, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    buffer.fill(&pattern(1, 4096)).unwrap();
    client.alloc_store(handle, &mut buffer, &store()).unwrap();
    world.lock().unwrap().script.silent = true;
    buffer.fill(&[0xaa; 4096]).unwrap();
    let hurried = LoadOptions {
        timeout: Some(Duration::from_millis(20)),
        ..load()
    };
    let late = client.load(handle, &mut buffer, &hurried).unwrap_err();
    assert!(
        matches!(late, ClientError::Deadline { sent: true, .. }),
        "{late}"
    );
    // The same by hand.
    let op = client.submit_load(handle, buffer, &load()).unwrap();
    client.poll();
    client.cancel(op).unwrap();
    let cancelled = client.wait(op).unwrap();
    assert!(matches!(
        cancelled.result,
        Err(ClientError::Cancelled { .. })
    ));
    let mut buffer = cancelled.buffer.unwrap();
    // Now the target answers both: what it writes is dropped.
    world.lock().unwrap().script.silent = false;
    client.poll();
    assert_eq!(client.link.stream().unwrap().dropped, 2 * 4096);
    assert_eq!(buffer.to_vec().unwrap(), [0xaa; 4096]);
    assert_eq!(client.in_flight(), 0);
    assert!(client.is_connected());
    // Scratch memory, and the buffer as a source: the STags retired are gone.
    assert_eq!(client.link.stream().unwrap().registered(), 2);
    // The buffer is as good as new.
    client.load(handle, &mut buffer, &load()).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), pattern(1, 4096));
}

#[test]
fn a_store_given_up_is_never_carried_out_with_other_data() {
    let (world, mut client) = client(4);
    let (handle, _) = client.handles();
    world.lock().unwrap().script.silent = true;
    let mut buffer = client.register(BLOCK).unwrap();
    buffer.fill(&pattern(1, 4096)).unwrap();
    let hurried = StoreOptions {
        timeout: Some(Duration::from_millis(20)),
        ..store()
    };
    let late = client
        .alloc_store(handle, &mut buffer, &hurried)
        .unwrap_err();
    assert!(late.outcome_unknown());
    buffer.fill(&pattern(2, 4096)).unwrap();
    world.lock().unwrap().script.silent = false;
    // The target's read of the buffer fails, and the stream with it.
    client.poll();
    assert!(!client.is_connected());
    assert_eq!(world.lock().unwrap().bound(), 0);
}

#[test]
fn credits_that_never_come_back_are_waited_for_no_longer_than_asked() {
    let (world, dial) = target(4);
    let mut client = Client::connect_with(dial, options().credits(1)).unwrap();
    let (handle, _) = client.handles();
    world.lock().unwrap().script.silent = true;
    let hurried = LoadOptions {
        timeout: Some(Duration::from_millis(20)),
        ..load()
    };
    let mut buffer = client.register(BLOCK).unwrap();
    for sent in [true, false] {
        match client.load(handle, &mut buffer, &hurried).unwrap_err() {
            ClientError::Deadline { sent: got, .. } => assert_eq!(got, sent),
            other => panic!("{other}"),
        }
    }
    world.lock().unwrap().script.silent = false;
    let gone = client.load(handle, &mut buffer, &load()).unwrap_err();
    assert!(gone.is_missing());
}

#[cfg(feature = "tokio")]
#[test]
fn what_is_left_in_the_socket_is_due_at_once() {
    let (_, mut client) = client(4);
    client.pump();
    assert!(client.arm().unwrap().is_none_or(|at| at > client.now()));
    // A loop that is told of changes only heard of this before it armed.
    client.link.stream().unwrap().ring();
    assert!(client.arm().unwrap().is_some_and(|at| at <= client.now()));
    client.pump();
    assert!(client.arm().unwrap().is_none_or(|at| at > client.now()));
}

#[test]
fn stags_of_dropped_buffers_go() {
    let (_, mut client) = client(4);
    let (handle, _) = client.handles();
    let before = client.link.stream().unwrap().registered();
    let mut buffer = client.register(BLOCK).unwrap();
    client.alloc_store(handle, &mut buffer, &store()).unwrap();
    client.load(handle, &mut buffer, &load()).unwrap();
    client.load(handle, &mut buffer, &load()).unwrap();
    // One to write it, one to read it: registered once each.
    assert_eq!(client.link.stream().unwrap().registered(), before + 2);
    drop(buffer);
    client.poll();
    assert_eq!(client.link.stream().unwrap().registered(), before);
}

#[test]
fn a_buffer_is_within_reach_of_the_last_client_it_served() {
    let ((_, mut one), (_, mut other)) = (client(4), client(4));
    let (handle, _) = one.handles();
    let registered = |one: &mut Client<FakeDial>, other: &mut Client<FakeDial>| {
        (
            one.link.stream().unwrap().registered(),
            other.link.stream().unwrap().registered(),
        )
    };
    let before = registered(&mut one, &mut other);
    let mut buffer = one.register(BLOCK).unwrap();
    for client in [&mut one, &mut other] {
        client.alloc_store(handle, &mut buffer, &store()).unwrap();
    }
    for _ in 0..2 {
        for client in [&mut one, &mut other] {
            client.load(handle, &mut buffer, &load()).unwrap();
        }
    }
    one.poll();
    assert_eq!(registered(&mut one, &mut other), (before.0, before.1 + 1));
    drop(buffer);
    one.poll();
    other.poll();
    assert_eq!(registered(&mut one, &mut other), before);
}

#[test]
fn stags_can_serve_once() {
    //= test rfc5042-6.3.3-read-no-longer-than-needed
    let (_, dial) = target(4);
    let mut client = Client::connect_with(dial, options().invalidate(true)).unwrap();
    let (handle, _) = client.handles();
    let before = client.link.stream().unwrap().registered();
    let mut buffer = client.register(BLOCK).unwrap();
    buffer.fill(&pattern(3, 2000)).unwrap();
    client.alloc_store(handle, &mut buffer, &store()).unwrap();
    for _ in 0..3 {
        client.load(handle, &mut buffer, &load()).unwrap();
        assert_eq!(client.link.stream().unwrap().registered(), before);
    }
    assert_eq!(buffer.to_vec().unwrap(), pattern(3, 2000));
}

#[test]
fn a_lost_connection_is_told_with_what_is_known() {
    let (world, mut client) = client(4);
    let (handle, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    world.lock().unwrap().script.break_after = Some(0);
    let lost = client
        .alloc_store(handle, &mut buffer, &store())
        .unwrap_err();
    assert!(matches!(lost, ClientError::Disconnected { sent: true, .. }));
    assert!(lost.outcome_unknown() && lost.is_disconnected());
    assert!(!client.is_connected());
    let refused = client.load(handle, &mut buffer, &load()).unwrap_err();
    assert!(matches!(refused, ClientError::NotConnected { .. }));
    // It was carried out, and is still there.
    let resumed = client.reconnect().unwrap();
    assert!(resumed.bindings_kept());
    assert_eq!(client.usage().unsure, 1);
    client.load(handle, &mut buffer, &load()).unwrap();
    let id = client.initiator_id();
    assert_eq!(world.lock().unwrap().hello_id, Some(id.0));
}

/// Else each block that was in doubt when the connection was lost would cost one of the quota for ever.
#[test]
fn who_says_what_is_bound_after_a_reconnect_has_the_whole_quota() {
    let (world, mut client) = client(4);
    let (base, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    let all = |client: &mut Client<FakeDial>, buffer: &mut crate::Buffer| {
        for n in 0..4 {
            let handle = Handle(base.0 + n);
            client.alloc_store(handle, buffer, &store()).unwrap();
        }
    };
    all(&mut client, &mut buffer);
    world.lock().unwrap().script.break_before = Some(0);
    client.load(base, &mut buffer, &load()).unwrap_err();
    client.reconnect().unwrap();
    client.set_bound(4);
    for n in 0..4 {
        let handle = Handle(base.0 + n);
        client.free(handle, &FreeOptions::default()).unwrap();
    }
    assert_eq!((client.usage().bound, client.usage().unsure), (0, 0));
    all(&mut client, &mut buffer);
    assert_eq!(client.usage().bound, 4);
}

#[test]
fn a_new_instance_is_told() {
    let (world, mut client) = client(4);
    let (handle, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    client.alloc_store(handle, &mut buffer, &store()).unwrap();
    world.lock().unwrap().crash();
    world.lock().unwrap().script.break_before = Some(0);
    client.load(handle, &mut buffer, &load()).unwrap_err();
    let resumed = client.reconnect().unwrap();
    assert!(resumed.instance_changed && !resumed.range_changed);
    assert!(!resumed.bindings_kept());
    assert_eq!(client.usage().bound, 0);
}

#[test]
fn what_one_reconnect_lost_is_told_after_the_next_too() {
    let (world, dial) = target(4);
    let mut client = Client::connect_with(dial, options().reconnect(Reconnect::AUTOMATIC)).unwrap();
    let (handle, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    client.alloc_store(handle, &mut buffer, &store()).unwrap();
    world.lock().unwrap().script.break_before = Some(0);
    client.free(handle, &FreeOptions::default()).unwrap_err();
    // The target starts anew; the first connection to it breaks with the load, and the next one carries it out.
    world.lock().unwrap().crash();
    world.lock().unwrap().script.break_before = Some(0);
    let gone = client.load(handle, &mut buffer, &load()).unwrap_err();
    assert_eq!(gone.status(), Some(Status::NotValid));
    let resumed = client.take_resumed().unwrap();
    assert!(resumed.instance_changed && !resumed.bindings_kept());
    assert_eq!(client.take_resumed(), None);
}

#[test]
fn loads_are_tried_again_on_a_new_connection_and_stores_are_not() {
    let (world, dial) = target(4);
    let automatic = Reconnect::Automatic {
        attempts: 4,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(2),
    };
    let mut client = Client::connect_with(dial, options().reconnect(automatic)).unwrap();
    let (handle, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    buffer.fill(&pattern(1, 100)).unwrap();
    client.alloc_store(handle, &mut buffer, &store()).unwrap();
    {
        let script = &mut world.lock().unwrap().script;
        script.break_before = Some(0);
        script.unreachable = 2;
    }
    client.load(handle, &mut buffer, &load()).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), pattern(1, 100));
    let resumed = client.take_resumed().unwrap();
    assert_eq!((resumed.attempts, resumed.bindings_kept()), (3, true));
    assert_eq!(client.take_resumed(), None);
    // A store that is cut off is reported, once, and the next operation finds a connection.
    let next = Handle(handle.0 + 1);
    world.lock().unwrap().script.break_after = Some(0);
    let lost = client.alloc_store(next, &mut buffer, &store()).unwrap_err();
    assert!(lost.outcome_unknown());
    assert_eq!(world.lock().unwrap().count(Opcode::AllocStore), 2);
    let again = client.alloc_store(next, &mut buffer, &store()).unwrap_err();
    assert_eq!(again.status(), Some(Status::AlreadyValid));
    // No more attempts than allowed.
    {
        let script = &mut world.lock().unwrap().script;
        script.break_before = Some(0);
        script.unreachable = 100;
    }
    client.load(handle, &mut buffer, &load()).unwrap_err();
    assert_eq!(world.lock().unwrap().script.unreachable, 96);
}

#[test]
fn a_stream_that_is_ending_is_waited_for() {
    let (world, mut client) = client(4);
    let (handle, _) = client.handles();
    world.lock().unwrap().script.ending = true;
    let soon = FreeOptions {
        timeout: Some(Duration::from_millis(20)),
        ..FreeOptions::default()
    };
    let op = client.submit_free(handle, &soon).unwrap();
    // There is nothing to do but wait, though something is to be posted.
    assert!(!client.pump());
    let late = client.wait(op).unwrap().result.unwrap_err();
    assert!(matches!(late, ClientError::Deadline { sent: false, .. }));
}

#[test]
fn a_refusal_is_told_by_its_status() {
    let (world, dial) = target(4);
    world.lock().unwrap().script.refuse = Some(Status::NoSpace);
    let error = Client::connect_with(dial, options()).unwrap_err();
    assert_eq!(error.status(), Some(Status::NoSpace));
    assert!(matches!(
        error,
        ClientError::Session {
            source: SessionError::Refused { .. },
            ..
        }
    ));
}

#[test]
fn a_target_that_breaks_the_protocol_is_left() {
    let (world, mut client) = client(4);
    let (handle, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    world.lock().unwrap().script.answer = Some(vec![0; 40]);
    let error = client.load(handle, &mut buffer, &load()).unwrap_err();
    assert!(matches!(error, ClientError::Disconnected { .. }));
    let ended = client.ended().unwrap().to_string();
    assert!(ended.contains("malformed message"), "{ended}");
}

#[test]
fn what_cannot_be_is_not_sent() {
    let (world, mut client) = client(2);
    let (handle, _) = client.handles();
    let mut buffer = client.register(BLOCK).unwrap();
    let error = client
        .load_direct(handle, &mut buffer, &load())
        .unwrap_err();
    assert!(matches!(
        error,
        ClientError::Rejected {
            reason: SubmitError::NotGranted("DIRECT_LOAD"),
            operation: Operation::LoadDirect,
            ..
        }
    ));
    assert!(buffer.fill(&[0; 4097]).is_err());
    assert!(buffer.set_len(4097).is_err());
    assert!(buffer.write_at(4090, &[0; 7]).is_err());
    assert!(buffer.read_at(0, &mut [0; 1]).is_err());
    buffer.write_at(4090, &[5; 6]).unwrap();
    assert_eq!(buffer.len(), 4096);
    let mut last = [0; 2];
    buffer.read_at(4094, &mut last).unwrap();
    assert_eq!(last, [5; 2]);
    let region = buffer.region().clone();
    assert!(client.register_region(&region, 1..4097).is_err());
    assert_eq!(
        client.register_region(&region, 64..128).unwrap().capacity(),
        64
    );
    for n in 0..2 {
        client
            .alloc_store(Handle(handle.0 + n), &mut buffer, &store())
            .unwrap();
    }
    let over = client.alloc_store(Handle(handle.0 + 2), &mut buffer, &store());
    assert!(matches!(
        over,
        Err(ClientError::Rejected {
            reason: SubmitError::Quota { quota: 2 },
            ..
        })
    ));
    assert_eq!(world.lock().unwrap().count(Opcode::AllocStore), 2);
}

#[test]
fn closing_is_in_order() {
    let (world, client) = client(2);
    client.close().unwrap();
    assert_eq!(world.lock().unwrap().sessions, 1);
}
