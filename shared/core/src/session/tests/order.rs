//! Order per handle, waiting for blocks, and ends in the middle of things.

use super::rig::*;
use kbtp_wire::{Opcode, Operation, Status};

const H: u64 = TABLE_BASE;

fn opened(blocks: u32) -> (Rig, Client) {
    let mut rig = Rig::new(blocks, config());
    let (client, _) = rig.open(&hello(1));
    (rig, client)
}

const fn store(at: u64, len: u32) -> Operation<'static> {
    Operation::Store {
        source: remote(at, len),
        seal: false,
    }
}

//= test kbtp-p8-order-per-handle
#[test]
fn requests_on_one_handle_take_effect_in_the_order_sent() {
    let (rig, mut client) = opened(8);
    client.write_memory(0, b"one");
    client.write_memory(8, b"two");
    let alloc = Operation::AllocStore {
        source: remote(0, 3),
        seal: false,
    };
    client.send(&rig, H, 0, alloc);
    client.send(&rig, H, 0, load_unsealed(100, 3));
    client.send(&rig, H, 0, load_unsealed(200, 3));
    client.send(&rig, H, 0, store(8, 3));
    client.send(&rig, H, 0, load_unsealed(300, 3));
    client.send(&rig, H, 0, Operation::Free);
    client.send(&rig, H, 0, put(b"new"));
    // Another handle does not wait.
    client.send(&rig, H + 1, 0, put(b"other"));
    client.post();
    assert_eq!(client.session.under_way(), 7);
    client.pump(&rig);
    let statuses = client.statuses();
    assert!(
        statuses.iter().all(|(_, status)| *status == Status::Ok),
        "{statuses:?}"
    );
    let order: Vec<_> = statuses.iter().map(|(id, _)| *id).collect();
    assert_eq!(order, [8, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(client.read_memory(100, 3), b"one");
    assert_eq!(client.read_memory(200, 3), b"one");
    assert_eq!(client.read_memory(300, 3), b"two");
    let loaded = client.call(&rig, H, 3, load(400, 3));
    assert_eq!(
        (loaded.status, client.read_memory(400, 3)),
        (Status::Ok, b"new".to_vec())
    );
}

//= test kbtp-p8-order-per-handle
#[test]
fn a_store_does_not_overtake_a_load_that_is_still_being_sent() {
    let (rig, mut client) = opened(8);
    client.call(&rig, H, 0, put_unsealed(b"old"));
    client.send(&rig, H, 0, load_unsealed(0, 3));
    client.send(
        &rig,
        H,
        0,
        Operation::Store {
            source: inline(b"new"),
            seal: false,
        },
    );
    client.pump(&rig);
    assert_eq!(client.read_memory(0, 3), b"old");
    assert_eq!(client.statuses(), [(2, Status::Ok), (3, Status::Ok)]);
}

//= test kbtp-5.2-inline-data-follows
#[test]
fn inline_data_that_waits_is_kept() {
    let (rig, mut client) = opened(8);
    client.write_memory(0, b"x");
    client.send(
        &rig,
        H,
        0,
        Operation::AllocStore {
            source: remote(0, 1),
            seal: false,
        },
    );
    for n in 1..7_u8 {
        let data = [n; 200];
        client.send(
            &rig,
            H,
            0,
            Operation::Store {
                source: inline(&data),
                seal: n == 6,
            },
        );
    }
    client.pump(&rig);
    assert!(
        client
            .statuses()
            .iter()
            .all(|(_, status)| *status == Status::Ok)
    );
    client.call(&rig, H, 0, load(0, 200));
    assert_eq!(client.read_memory(0, 200), [6; 200]);
}

//= test kbtp-6.4-entry-before-return
#[test]
fn a_free_waits_for_the_loads_of_its_own_session() {
    let (rig, mut owner) = opened(4);
    owner.call(&rig, H, 0, put(b"secret"));
    owner.send(&rig, H, 0, load(0, 6));
    owner.send(&rig, H, 0, Operation::Free);
    owner.send(&rig, H, 0, put(b"again!"));
    owner.pump(&rig);
    assert_eq!(
        owner.statuses(),
        [(2, Status::Ok), (3, Status::Ok), (4, Status::Ok)]
    );
    assert_eq!(owner.read_memory(0, 6), b"secret");
    rig.at_rest();
}

//= test kbtp-6.4-entry-before-return
//= test kbtp-3.4-usage-released
#[test]
fn a_free_completes_while_others_still_send_the_block() {
    let (mut rig, mut owner) = opened(2);
    rig.close(owner);
    let mut small = hello(1);
    small.quota = 1;
    (owner, _) = rig.open(&small);
    small.initiator = kbtp_wire::InitiatorId([2; 16]);
    let (mut reader, grant) = rig.open(&small);
    let theirs = grant.handle_base.0;
    owner.call(&rig, H, 0, put(b"secret"));
    reader.call(&rig, theirs, 0, put(b"other"));
    reader.send(&rig, H, 0, load(0, 6));
    reader.post();

    assert_eq!(owner.call(&rig, H, 0, Operation::Free).status, Status::Ok);
    // The quota is there again, but the only free block is being sent: the allocation waits.
    owner.send(&rig, H, 0, put(b"public"));
    owner.pump(&rig);
    assert!(owner.next_completion().is_none());
    assert_eq!(rig.audit().elsewhere, 1);
    let retry = owner.session.poll_timeout().expect("it looks again");
    rig.now = retry;
    owner.timeout(&rig).unwrap();
    owner.pump(&rig);
    assert!(owner.next_completion().is_none());

    reader.pump(&rig);
    assert_eq!(
        reader.read_memory(0, 6),
        b"secret",
        "not the next owner's data"
    );
    assert_eq!(reader.statuses(), [(2, Status::Ok)]);
    rig.now = owner.session.poll_timeout().unwrap();
    owner.timeout(&rig).unwrap();
    owner.pump(&rig);
    assert_eq!(owner.statuses(), [(3, Status::Ok)]);
    assert_eq!(owner.session.poll_timeout(), None);
    assert_eq!(reader.call(&rig, H, 0, load(0, 6)).status, Status::Ok);
    assert_eq!(reader.read_memory(0, 6), b"public");
    rig.at_rest();
}

//= test kbtp-p7-no-space
#[test]
fn an_allocation_does_not_wait_for_ever() {
    let (mut rig, mut owner) = opened(2);
    rig.close(owner);
    let mut small = hello(1);
    small.quota = 1;
    (owner, _) = rig.open(&small);
    small.initiator = kbtp_wire::InitiatorId([2; 16]);
    let (mut reader, grant) = rig.open(&small);
    owner.call(&rig, H, 0, put(b"x"));
    reader.call(&rig, grant.handle_base.0, 0, put(b"y"));
    reader.send(&rig, H, 0, load(0, 1));
    reader.post();
    owner.call(&rig, H, 0, Operation::Free);
    owner.send(&rig, H, 0, put(b"z"));
    owner.send(&rig, H, 0, load(0, 1));
    rig.advance_ms(crate::limits::BLOCK_WAIT_MS);
    owner.timeout(&rig).unwrap();
    owner.pump(&rig);
    assert_eq!(
        owner.statuses(),
        [(3, Status::NoSpace), (4, Status::NotValid)]
    );
    reader.pump(&rig);
    assert_eq!(owner.call(&rig, H, 0, put(b"z")).status, Status::Ok);
    rig.at_rest();
}

//= test kbtp-p7-read-failure
//= test kbtp-p7-failed-changes-nothing
#[test]
fn a_session_that_ends_in_the_middle_returns_what_it_holds() {
    for posted in [false, true] {
        let (mut rig, mut client) = opened(8);
        client.call(&rig, H, 0, put(b"x"));
        client.call(&rig, H + 1, 0, put_unsealed(b"old"));
        let alloc = Operation::AllocStore {
            source: remote(0, 9),
            seal: true,
        };
        client.send(&rig, H + 2, 0, alloc);
        client.send(&rig, H + 2, 0, Operation::Free);
        client.send(&rig, H + 1, 0, store(0, 9));
        client.send(&rig, H, 0, load(0, 1));
        client.send(&rig, H, 0, Operation::Free);
        if posted {
            client.post();
        }
        assert_eq!(rig.audit().elsewhere, 1);
        rig.close(client);
        let audit = rig.at_rest();
        assert_eq!((audit.bound, audit.in_rings), (2, 6));
        assert!(!rig.shared.pool.entry(2).is_valid());
        // Resumed, everything is as it was.
        let (mut client, grant) = rig.open(&hello(1));
        assert_eq!(grant.handle_base.0, H);
        assert_eq!(
            client.call(&rig, H + 1, 0, load_unsealed(0, 3)).status,
            Status::Ok
        );
        assert_eq!(client.call(&rig, H, 1, Operation::Free).status, Status::Ok);
        assert_eq!(client.call(&rig, H + 2, 0, put(b"z")).status, Status::Ok);
        assert_eq!(rig.counted(Opcode::Free, Status::Ok), 1);
    }
}

#[test]
fn a_parked_allocation_leaves_nothing_behind_when_its_session_ends() {
    let (mut rig, mut owner) = opened(2);
    rig.close(owner);
    let mut small = hello(1);
    small.quota = 1;
    (owner, _) = rig.open(&small);
    small.initiator = kbtp_wire::InitiatorId([2; 16]);
    let (mut reader, grant) = rig.open(&small);
    owner.call(&rig, H, 0, put(b"x"));
    reader.call(&rig, grant.handle_base.0, 0, put(b"y"));
    reader.send(&rig, H, 0, load(0, 1));
    reader.post();
    owner.call(&rig, H, 0, Operation::Free);
    owner.send(&rig, H, 0, put(b"z"));
    rig.close(owner);
    rig.close(reader);
    let audit = rig.at_rest();
    assert_eq!((audit.bound, audit.in_rings), (1, 1));
}

/// A ticket whose block is still to come outlives its session.
//= test kbtp-3.3-no-block-lost-or-twice
#[test]
fn the_ticket_of_a_session_that_ended_is_not_lost() {
    let (mut rig, mut client) = opened(2);
    // Another worker has its ticket and has not read the slot yet.
    let home = crate::pool::Home::Shared;
    let slow = rig.shared.pool.take(home).unwrap();
    client.call(&rig, H, 0, put(b"x"));
    client.call(&rig, H, 0, Operation::Free);
    client.send(&rig, H, 0, put(b"y"));
    client.pump(&rig);
    assert_eq!(client.next_completion(), None);
    assert_eq!(
        rig.shared
            .stats
            .frees_deferred
            .load(std::sync::atomic::Ordering::SeqCst),
        1
    );
    rig.close(client);
    let block = rig
        .shared
        .pool
        .consume(home, slow, crate::pool::Domain(1))
        .unwrap();
    rig.shared.pool.put_back(block);
    rig.shared.pool.settle();
    assert_eq!(rig.at_rest().in_rings, 2);
    assert_eq!(rig.shared.pool.usage().free, 2);
}

/// As many requests as there are credits, all on one handle, each answered in its turn.
//= test kbtp-p8-order-per-handle
#[test]
fn a_thousand_requests_may_wait_on_one_handle() {
    let mut rig = Rig::new(8, config());
    let (mut client, grant) = rig.open(&kbtp_wire::Hello {
        credits: u16::MAX,
        ..hello(1)
    });
    let credits = u64::from(grant.credits);
    client.write_memory(0, b"x");
    let first = Operation::AllocStore {
        source: remote(0, 1),
        seal: false,
    };
    client.send(&rig, H, 0, first);
    for n in 1..credits {
        let operation = match n % 3 {
            0 => load_unsealed(8, 64),
            1 => Operation::Store {
                source: inline(&[7; 8]),
                seal: false,
            },
            _ => load_unsealed(80, 64),
        };
        client.send(&rig, H, 0, operation);
    }
    client.post();
    assert_eq!(client.session.under_way() as u64, credits);
    assert_eq!(client.statuses(), []);
    client.pump(&rig);
    let statuses = client.statuses();
    let ids: Vec<_> = statuses.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, (1..=credits).collect::<Vec<_>>());
    assert!(statuses.iter().all(|(_, status)| *status == Status::Ok));
    assert_eq!(client.session.under_way(), 0);
}
