//! DIRECT_ALLOC: the initiator's half is played through what the session exposes (draft, 3.4 and 6.6; P4).

use super::rig::*;
use crate::{Contents, Directory, DirectoryConfig, Geometry, Pool, SessionEnd, Shared};
use kbtp_fabric::{Atomics, Time, WorkRequest};
use kbtp_wire::{
    AtomicForm, AuthMode, Bind, BlockOffset, ByteLen, Completion, Grant, Handle, Hello, Operation,
    RingCounter, RingSlot, SessionCapabilities, Stag, Status, Ticket, fetch_add,
};
use std::sync::atomic::Ordering::SeqCst;

const H: u64 = TABLE_BASE;

pub(super) fn wants(initiator: u8, quota: u32) -> Hello<'static> {
    Hello {
        capabilities: SessionCapabilities::DIRECT_ALLOC,
        quota,
        ..hello(initiator)
    }
}

fn opened(blocks: u32, quota: u32) -> (Rig, Client, Grant) {
    let mut rig = Rig::new(blocks, config());
    let (client, grant) = rig.open(&wants(1, quota));
    assert!(
        grant
            .capabilities
            .contains(SessionCapabilities::DIRECT_ALLOC)
    );
    (rig, client, grant)
}

/// FetchAdd on Head, as the initiator does it.
pub(super) fn take(client: &Client, grant: &Grant) -> Option<Ticket> {
    let head = grant.head_offset.0;
    let (region, at) = client
        .stags
        .place(grant.counter_stag, head, |a| a.remote_atomic)?;
    let (add, mask) = match grant.atomic_form {
        AtomicForm::Masked => (
            RingCounter::add_data(),
            RingCounter::add_mask(grant.ring_order),
        ),
        AtomicForm::Unmasked => (RingCounter::ADD_DATA_UNMASKED, 0),
    };
    let word = region.u64_at(at).unwrap();
    let before = word.fetch_update(SeqCst, SeqCst, |value| Some(fetch_add(value, add, mask)));
    Some(RingCounter(before.unwrap()).ticket())
}

/// RDMA Read of the ticket's slot.
pub(super) fn slot(client: &Client, grant: &Grant, ticket: Ticket) -> Option<BlockOffset> {
    let offset = grant.ring_offset.0 + u64::from(grant.ring_order.slot_of(ticket).0);
    let (region, at) = client
        .stags
        .place(grant.ring_stag, offset, |a| a.remote_read)?;
    let mut octets = [0; 16];
    region.read(at, &mut octets).unwrap();
    RingSlot::decode(&octets).block_for(ticket)
}

/// RDMA Write into the partition.
pub(super) fn write(client: &Client, grant: &Grant, block: BlockOffset, data: &[u8]) -> Option<()> {
    let right = |a: &kbtp_fabric::Access| a.remote_write;
    let (region, at) = client.stags.place(grant.partition_stag, block.0, right)?;
    region.write(at, data).ok()
}

pub(super) fn bind(
    rig: &impl Node,
    client: &mut Client,
    handle: u64,
    ticket: Ticket,
    block: BlockOffset,
) -> Completion {
    let bind = Bind {
        ticket,
        data_len: ByteLen(4),
        block,
    };
    client.call(rig, handle, 0, Operation::Bind { bind, seal: true })
}

//= test kbtp-6.6-bind-verified
//= test kbtp-6.6-bind-order
//= test kbtp-p4-bind-completed
//= test kbtp-3.4-own-ring
//= test kbtp-6.6-initiator-never-writes-slots
//= test kbtp-p6-ring-read-only
//= test kbtp-3.3-counter-not-read
//= test kbtp-3.3-mark-consumed
//= test kbtp-9.2-unmasked-counter
//= test kbtp-3.3-counter-aligned
#[test]
fn an_initiator_allocates_for_itself() {
    for atomics in [Atomics::Masked, Atomics::Unmasked] {
        let mut rig = Rig::new(8, config());
        let mut client = rig.client_with(AuthMode::None, atomics);
        let grant = client.hello(&mut rig, &wants(1, 3)).unwrap();
        assert_eq!((grant.quota, grant.ring_order.get()), (3, 2));
        assert_eq!(grant.partition_len, 3 * u64::from(BLOCK));
        assert_eq!(client.stags.valid.len(), 3);
        let rights: Vec<_> = [grant.partition_stag, grant.ring_stag, grant.counter_stag]
            .iter()
            .map(|stag| {
                let (_, range, _, access) = &client.stags.valid[&stag.0];
                (
                    access.remote_read,
                    access.remote_write,
                    access.remote_atomic,
                    range.end - range.start,
                )
            })
            .collect();
        let expected = [
            (false, true, false, 12288),
            (true, false, false, 64),
            (false, false, true, 8),
        ];
        assert_eq!(rights, expected);

        // Round and round the ring, through many wraps.
        for turn in 0..20_u32 {
            let ticket = take(&client, &grant).unwrap();
            assert_eq!(ticket, Ticket(turn));
            let block = slot(&client, &grant, ticket).unwrap();
            write(&client, &grant, block, b"data").unwrap();
            let bound = bind(&rig, &mut client, H, ticket, block);
            assert_eq!(
                (bound.status, bound.block, bound.data_len),
                (Status::Ok, block, ByteLen(4))
            );
            assert_eq!(slot(&client, &grant, ticket), None, "consumed");
            client.call(&rig, H, 0, load(0, 4));
            assert_eq!(client.read_memory(0, 4), b"data");
            assert_eq!(client.call(&rig, H, 0, Operation::Free).status, Status::Ok);
        }
        assert_eq!(rig.audit().in_rings, 8);
        rig.close(client);
        assert_eq!(rig.shared.pool.usage().free, 8);
    }
}

//= test kbtp-p7-bad-ticket
//= test kbtp-p4-bind-not-valid
//= test kbtp-p7-length-error-store
#[test]
fn a_bind_that_lies_is_refused_and_changes_nothing() {
    let (rig, mut client, grant) = opened(8, 3);
    let ticket = take(&client, &grant).unwrap();
    let block = slot(&client, &grant, ticket).unwrap();
    let other = BlockOffset(block.0 + u64::from(BLOCK));
    let lies = [
        (ticket, other),
        (ticket, BlockOffset::EMPTY),
        (ticket, BlockOffset(block.0 + 1)),
        (Ticket(1), other),
        (Ticket(4), block),
        (Ticket(u32::MAX), block),
    ];
    for (ticket, block) in lies {
        assert_eq!(
            bind(&rig, &mut client, H, ticket, block).status,
            Status::BadTicket
        );
    }
    let too_long = Bind {
        ticket,
        data_len: ByteLen(BLOCK + 1),
        block,
    };
    let completion = client.call(
        &rig,
        H,
        0,
        Operation::Bind {
            bind: too_long,
            seal: true,
        },
    );
    assert_eq!(completion.status, Status::LengthError);
    let unknown = client.call(
        &rig,
        H,
        3,
        Operation::Bind {
            bind: too_long,
            seal: true,
        },
    );
    assert_eq!(unknown.status, Status::GenerationMismatch);
    let outside = bind(&rig, &mut client, H + 64, ticket, block);
    assert_eq!(outside.status, Status::NotAuthorized);
    assert_eq!(bind(&rig, &mut client, H, ticket, block).status, Status::Ok);
    // Bound once, it is not bound twice, neither there nor elsewhere.
    assert_eq!(
        bind(&rig, &mut client, H, ticket, block).status,
        Status::AlreadyValid
    );
    assert_eq!(
        bind(&rig, &mut client, H + 1, ticket, block).status,
        Status::BadTicket
    );
    assert_eq!(rig.audit().bound, 1);
}

//= test kbtp-3.4-ticket-timeout
//= test kbtp-3.4-invalidate-before-reclaim
//= test kbtp-3.4-direct-alloc-disabled
//= test kbtp-3.4-reclaim-new-ticket
//= test kbtp-3.4-late-bind-rejected
#[test]
fn a_ticket_that_is_not_bound_in_time_is_abandoned() {
    let (mut rig, mut client, grant) = opened(8, 3);
    let lost = take(&client, &grant).unwrap();
    let lost_block = slot(&client, &grant, lost).unwrap();
    rig.now = client.session.poll_timeout().unwrap();
    client.timeout(&rig).unwrap();
    rig.advance_ms(500);
    // This one is younger and stays good.
    let young = take(&client, &grant).unwrap();
    let young_block = slot(&client, &grant, young).unwrap();
    write(&client, &grant, young_block, b"data").unwrap();
    client.timeout(&rig).unwrap();
    rig.advance_ms(500);
    client.timeout(&rig).unwrap();
    let revoked = [grant.partition_stag, grant.ring_stag, grant.counter_stag];
    assert_eq!(client.stags.revoked, revoked);
    assert_eq!(write(&client, &grant, lost_block, b"late"), None);
    assert_eq!(take(&client, &grant), None);
    let audit = rig.audit();
    assert_eq!(
        (audit.in_rings, audit.awaited),
        (7, 1),
        "its block is in the ring again"
    );
    let late = bind(&rig, &mut client, H, lost, lost_block);
    assert_eq!(late.status, Status::TicketAbandoned);
    assert_eq!(
        bind(&rig, &mut client, H, young, young_block).status,
        Status::Ok
    );
    // The partition serves the target's own allocations now, all of it, the reclaimed block too.
    for n in 1..3 {
        assert_eq!(client.call(&rig, H + n, 0, put(b"x")).status, Status::Ok);
    }
    assert_eq!(
        client.call(&rig, H + 3, 0, put(b"x")).status,
        Status::NoSpace
    );
    assert_eq!(
        bind(&rig, &mut client, H + 3, lost, lost_block).status,
        Status::TicketAbandoned
    );
    assert_eq!(rig.shared.stats.tickets_abandoned.load(SeqCst), 1);
    rig.close(client);
    let audit = rig.at_rest();
    assert_eq!((audit.bound, audit.in_rings), (3, 5));
}

#[test]
fn nothing_is_reclaimed_if_the_stag_cannot_be_revoked() {
    let (mut rig, mut client, grant) = opened(8, 3);
    take(&client, &grant).unwrap();
    rig.advance_ms(1000);
    client.timeout(&rig).unwrap();
    client.stags.valid.remove(&grant.partition_stag.0);
    rig.advance_ms(1000);
    assert!(matches!(client.timeout(&rig), Err(SessionEnd::Local(_))));
    rig.close(client);
    assert_eq!(rig.at_rest().in_rings, 8);
}

//= test kbtp-3.4-usage-counted
//= test kbtp-3.4-over-quota-no-space
//= test kbtp-3.4-over-quota-terminate
#[test]
fn tickets_count_as_usage() {
    let (rig, mut client, grant) = opened(8, 3);
    let tickets: Vec<_> = (0..3).map(|_| take(&client, &grant).unwrap()).collect();
    assert_eq!(client.call(&rig, H, 0, put(b"x")).status, Status::NoSpace);
    let block = slot(&client, &grant, tickets[0]).unwrap();
    // One more than the quota: there is no block for it, and no BIND goes on while it is open.
    take(&client, &grant).unwrap();
    assert_eq!(
        bind(&rig, &mut client, H, tickets[0], block).status,
        Status::NoSpace
    );
    // More than the ring has slots.
    take(&client, &grant).unwrap();
    let free = Operation::Bind {
        bind: Bind {
            ticket: Ticket(0),
            data_len: ByteLen(0),
            block,
        },
        seal: false,
    };
    let request = kbtp_wire::Request {
        request_id: kbtp_wire::RequestId(99),
        handle: Handle(H),
        generation: None,
        record: None,
        operation: free,
    };
    let mut octets = vec![0; request.encoded_len()];
    request.encode_into(&mut octets).unwrap();
    let end = client.give(&rig, &octets);
    assert_eq!(end, Err(SessionEnd::Tickets { taken: 5, slots: 4 }));
}

//= test kbtp-3.3-free-deferred
//= test kbtp-3.3-allocation-wait
#[test]
fn a_slow_ticket_defers_the_free_of_its_slot() {
    let (rig, mut client, grant) = opened(8, 2);
    let slow = take(&client, &grant).unwrap();
    let slow_block = slot(&client, &grant, slow).unwrap();
    let quick = take(&client, &grant).unwrap();
    let block = slot(&client, &grant, quick).unwrap();
    bind(&rig, &mut client, H, quick, block);
    // Its free belongs to the slot of the slow ticket.
    assert_eq!(client.call(&rig, H, 0, Operation::Free).status, Status::Ok);
    assert_eq!(rig.audit().deferred, 1);
    let waiting = take(&client, &grant).unwrap();
    assert_eq!(slot(&client, &grant, waiting), None);
    assert_eq!(
        bind(&rig, &mut client, H, slow, slow_block).status,
        Status::Ok
    );
    assert_eq!(slot(&client, &grant, waiting), Some(block));
    assert_eq!(
        bind(&rig, &mut client, H + 1, waiting, block).status,
        Status::Ok
    );
    assert_eq!((rig.audit().bound, rig.audit().deferred), (2, 0));
}

#[test]
fn the_target_allocates_from_the_same_ring() {
    let (rig, mut client, grant) = opened(8, 4);
    let mine = take(&client, &grant).unwrap();
    let stored = client.call(&rig, H, 0, put(b"x"));
    let first = grant.partition_offset.0;
    assert!((first..first + grant.partition_len).contains(&stored.block.0));
    let next = take(&client, &grant).unwrap();
    assert_eq!((mine, next), (Ticket(0), Ticket(2)));
    let blocks = [mine, next].map(|ticket| slot(&client, &grant, ticket).unwrap());
    assert_eq!(
        bind(&rig, &mut client, H + 1, Ticket(1), stored.block).status,
        Status::BadTicket
    );
    assert_eq!(
        bind(&rig, &mut client, H + 2, next, blocks[1]).status,
        Status::Ok
    );
    assert_eq!(
        bind(&rig, &mut client, H + 3, mine, blocks[0]).status,
        Status::Ok
    );
    assert_eq!(rig.audit().bound, 3);
}

//= test kbtp-p8-contiguous-partition
//= test kbtp-p6-stags-zero-without-capability
//= test kbtp-9.1-atomics
#[test]
fn without_a_partition_there_is_a_session_without_direct_alloc() {
    let mut rig = Rig::new(
        8,
        DirectoryConfig {
            default_quota: 8,
            ..config()
        },
    );
    // Every second block stays bound: no two are contiguous.
    let (mut owner, _) = rig.open(&hello(1));
    for n in 0..8 {
        owner.call(&rig, H + n, 0, put(b"x"));
    }
    for n in [0, 2, 4, 6] {
        owner.call(&rig, H + n, 0, Operation::Free);
    }
    rig.close(owner);
    let (client, grant) = rig.open(&wants(2, 2));
    assert_eq!(
        (grant.capabilities, grant.quota),
        (SessionCapabilities::NONE, 2)
    );
    assert!(client.stags.valid.is_empty());
    assert_eq!(rig.shared.stats.partitions_refused.load(SeqCst), 1);
    rig.close(client);
    let (single, grant) = rig.open(&wants(2, 1));
    assert_eq!(grant.capabilities, SessionCapabilities::DIRECT_ALLOC);
    rig.close(single);

    for (atomics, allowed, left) in [
        (Atomics::None, true, None),
        (Atomics::Masked, false, None),
        (Atomics::Masked, true, Some(2)),
    ] {
        let mut rig = Rig::new(
            8,
            DirectoryConfig {
                direct_alloc: allowed,
                ..config()
            },
        );
        let mut client = rig.client_with(AuthMode::None, atomics);
        client.stags.left = left;
        let grant = client.hello(&mut rig, &wants(1, 3)).unwrap();
        assert_eq!(grant.capabilities, SessionCapabilities::NONE);
        assert_eq!((grant.partition_len, grant.partition_stag.0), (0, 0));
        assert!(client.stags.valid.is_empty());
        assert_eq!(client.call(&rig, H, 0, put(b"x")).status, Status::Ok);
        rig.close(client);
        assert_eq!(rig.at_rest().in_rings, 7);
    }
}

//= test kbtp-p8-resume
//= test kbtp-3.4-quota-sum
#[test]
fn a_partition_goes_back_when_its_session_ends_and_its_bindings_stay() {
    let (mut rig, mut client, grant) = opened(8, 3);
    let ticket = take(&client, &grant).unwrap();
    let block = slot(&client, &grant, ticket).unwrap();
    write(&client, &grant, block, b"data").unwrap();
    bind(&rig, &mut client, H, ticket, block);
    take(&client, &grant).unwrap();
    rig.close(client);
    let audit = rig.at_rest();
    assert_eq!((audit.bound, audit.in_rings), (1, 7));
    let summary = rig.directory.summary();
    assert_eq!((summary.committed, summary.partitions), (1, 0));
    // Its quota comes with a partition as large, beside what it has bound.
    let (mut client, grant) = rig.open(&wants(1, 8));
    assert_eq!((grant.quota, rig.directory.summary().committed), (7, 8));
    assert_eq!(client.call(&rig, H, 1, load(0, 4)).status, Status::Ok);
    assert_eq!(client.read_memory(0, 4), b"data");
    client.call(&rig, H, 0, Operation::Free);
    assert_eq!(
        rig.shared.pool.usage().free,
        1,
        "it went back to the shared ring"
    );
    rig.close(client);
    assert_eq!(rig.shared.pool.usage().free, 8);
}

//= test kbtp-6.4-return-to-its-ring
#[test]
fn a_partition_goes_back_while_loads_send_its_freed_blocks() {
    let (mut rig, mut client, grant) = opened(8, 3);
    let (mut reader, _) = rig.open(&Hello {
        quota: 1,
        ..hello(2)
    });
    let ticket = take(&client, &grant).unwrap();
    let block = slot(&client, &grant, ticket).unwrap();
    write(&client, &grant, block, b"data").unwrap();
    bind(&rig, &mut client, H, ticket, block);
    reader.send(&rig, H, 0, load(0, 4));
    reader.post();
    client.call(&rig, H, 0, Operation::Free);
    rig.close(client);
    assert_eq!(rig.directory.summary().partitions, 0);
    assert_eq!(rig.directory.next_timeout(), None);
    assert_eq!(rig.shared.pool.usage().free, 7);
    reader.pump(&rig);
    assert_eq!(reader.read_memory(0, 4), b"data");
    assert_eq!(rig.shared.pool.usage().free, 8);
}

/// The initiator goes on taking tickets while an allocation of the target waits: each ticket stays whose it is.
//= test kbtp-3.4-usage-counted
#[test]
fn a_parked_allocation_does_not_swallow_the_initiators_tickets() {
    let (mut rig, mut client, grant) = opened(8, 3);
    let (mut reader, _) = rig.open(&Hello {
        quota: 1,
        ..hello(2)
    });
    for n in 0..3 {
        client.call(&rig, H + n, 0, put(b"x"));
        reader.send(&rig, H + n, 0, load(0, 1));
    }
    reader.post();
    for n in 0..3 {
        client.call(&rig, H + n, 0, Operation::Free);
    }
    client.send(&rig, H, 0, put(b"parked"));
    client.pump(&rig);
    assert_eq!(client.next_completion(), None);
    let ticket = take(&client, &grant).unwrap();
    assert_eq!(slot(&client, &grant, ticket), None);
    reader.pump(&rig);
    rig.now = client.session.poll_timeout().unwrap();
    client.timeout(&rig).unwrap();
    client.pump(&rig);
    let parked = client.next_completion().unwrap();
    assert_eq!(parked.status, Status::Ok);
    let block = slot(&client, &grant, ticket).unwrap();
    assert_ne!(block, parked.block);
    assert_eq!(
        bind(&rig, &mut client, H + 1, ticket, block).status,
        Status::Ok
    );
}

/// The initiator of a partition writes blocks that it never binds: blocks that were freed since, and those of tickets
/// that are abandoned.
//= test kbtp-p9-reads-as-zeros
//= test kbtp-6.4-clear-for-other-domain
#[test]
fn what_was_written_and_never_bound_is_not_seen_by_another_tenant() {
    for killed in [false, true] {
        let config = || DirectoryConfig {
            tenants: vec![tenant("red", false), tenant("blue", false)],
            ..config()
        };
        let mut rig = Rig::new(2, config());
        let of = |name, initiator| {
            let mut hello = wants(initiator, 2);
            hello.tlvs.tenant = Some(name);
            hello
        };
        let (mut red, grant) = rig.open(&of("red", 1));
        // Each block is bound and freed once, so that the target had reason to think it clean.
        for _ in 0..2 {
            let ticket = take(&red, &grant).unwrap();
            let block = slot(&red, &grant, ticket).unwrap();
            assert_eq!(bind(&rig, &mut red, H, ticket, block).status, Status::Ok);
            assert_eq!(red.call(&rig, H, 0, Operation::Free).status, Status::Ok);
        }
        for n in 0..2_u64 {
            take(&red, &grant).unwrap();
            let block = BlockOffset(grant.partition_offset.0 + n * u64::from(BLOCK));
            write(&red, &grant, block, b"secret").unwrap();
        }
        red.timeout(&rig).unwrap();
        rig.advance_ms(1000);
        red.timeout(&rig).unwrap();
        assert_eq!(rig.shared.stats.tickets_abandoned.load(SeqCst), 0);
        rig.advance_ms(1000);
        red.timeout(&rig).unwrap();
        assert_eq!(rig.shared.stats.tickets_abandoned.load(SeqCst), 2);
        if killed {
            let pool = &rig.shared.pool;
            let (meta, data) = (pool.meta_region().clone(), pool.block_region().clone());
            let now = rig.now;
            drop((red, rig));
            let (pool, recovered) = Pool::recover(meta, data, [9; 16]).unwrap();
            let shared = Shared::new(pool);
            let directory = Directory::recover(config(), &shared, recovered, now).unwrap();
            rig = Rig::over(shared, directory, now);
        } else {
            rig.close(red);
        }

        let (mut blue, grant) = rig.open(&of("blue", 2));
        for n in 0..2_u64 {
            let ticket = take(&blue, &grant).unwrap();
            let block = slot(&blue, &grant, ticket).unwrap();
            assert_eq!(
                bind(&rig, &mut blue, grant.handle_base.0 + n, ticket, block).status,
                Status::Ok
            );
            blue.call(&rig, grant.handle_base.0 + n, 0, load(0, 4));
            assert_eq!(blue.read_memory(0, 4), [0; 4], "killed {killed}");
        }
    }
}

/// Who has a partition can write its blocks while they are sent: their CRC would be wrong then.
#[test]
fn a_sealed_block_is_sent_as_one_that_changes_while_it_lies_in_a_partition() {
    const SEALED_STAG: Stag = Stag(2);
    let (mut rig, mut owner, grant) = opened(8, 2);
    let ticket = take(&owner, &grant).unwrap();
    let block = slot(&owner, &grant, ticket).unwrap();
    write(&owner, &grant, block, b"data").unwrap();
    assert_eq!(bind(&rig, &mut owner, H, ticket, block).status, Status::Ok);
    let mut reader = rig.client();
    reader.session.send_sealed_from(SEALED_STAG);
    reader.hello(&mut rig, &hello(2)).unwrap();
    let mut source = |rig: &Rig| {
        reader.send(rig, H, 0, load(0, 4));
        let request = reader.session.next_work().unwrap().request;
        let WorkRequest::Write { local, .. } = request else {
            panic!("{request:?}");
        };
        reader.session.work_posted();
        reader.session.work_posted();
        local.stag
    };
    assert_eq!(source(&rig), POOL_STAG);
    rig.close(owner);
    assert_eq!(source(&rig), SEALED_STAG, "nobody writes it any more");
}

/// Sessions that begin or end wait for it, so it must not take as long as the partition is large.
#[test]
fn a_partition_goes_back_a_part_at_a_time() {
    let geometry = Geometry {
        block_size: 16 << 20,
        ..geometry(6)
    };
    let (meta, data) = regions(&geometry);
    let pool = Pool::format(meta, data, geometry, [7; 16], Contents::Zeroed).unwrap();
    let tenants = vec![tenant("red", false), tenant("blue", false)];
    let config = DirectoryConfig {
        tenants,
        ..config()
    };
    let directory = Directory::new(config, &pool).unwrap();
    let mut rig = Rig::over(Shared::new(pool), directory, Time(1));
    let mut hello = wants(1, 6);
    hello.tlvs.tenant = Some("red");
    let (client, grant) = rig.open(&hello);
    assert_eq!(grant.quota, 6);
    rig.close(client);
    let summary = rig.directory.summary();
    assert_eq!((summary.partitions, summary.committed), (1, 6));
    assert_eq!(rig.audit().in_rings, 4);
    let due = rig.directory.next_timeout().unwrap();
    assert!(due > rig.now, "the mutex is free meanwhile");
    rig.now = due;
    rig.directory.poll(due, &rig.shared);
    let summary = rig.directory.summary();
    assert_eq!((summary.partitions, summary.committed), (0, 0));
    assert_eq!(rig.at_rest().in_rings, 6);
    assert_eq!(rig.directory.next_timeout(), None);
}
