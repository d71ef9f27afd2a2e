//! A target and three initiators on threads of their own, over one pool, in schedules that a seed decides. Run with
//! `make shuttle`; a failure prints its schedule, which `shuttle::replay` runs again.
//!
//! The words of the pool are those of its region, and before each use of one another thread may go on (`sync`). What is
//! run is the code of a worker: sessions, pool, and the directory behind its mutex.

use super::direct::{bind, slot, take, wants, write};
use super::rig::*;
use crate::limits::PARK_RETRY_NS;
use crate::schedules::check;
use crate::sync::{Mutex, turn};
use crate::{Directory, SessionId, Shared};
use kbtp_fabric::{Atomics, Time};
use kbtp_wire::{
    AuthMode, Completion, Grant, Hello, HelloAck, Operation, SessionCapabilities, Status,
};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const BLOCKS: u32 = 4;

/// How often each of these happened, over all schedules.
static SEEN: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
const LOADED: usize = 0;
const PARTITION: usize = 1;
const RESUMED: usize = 2;
const PARKED: usize = 3;
const SENT_AFTER_FREE: usize = 4;

fn saw(what: usize) {
    SEEN[what].fetch_add(1, Relaxed);
}

struct Target {
    shared: Shared,
    directory: Mutex<Directory>,
    sessions: AtomicU64,
    /// Handles that somebody binds.
    handles: Mutex<Vec<u64>>,
}

/// One worker and its only session.
struct Worker {
    target: Arc<Target>,
    shared: Shared,
    now: Time,
}

impl Node for Worker {
    fn now(&self) -> Time {
        self.now
    }

    fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Worker {
    fn new(target: &Arc<Target>) -> Self {
        Self {
            target: Arc::clone(target),
            shared: target.shared.view(),
            now: Time(1),
        }
    }

    /// A session, or none for want of room.
    fn open(&self, hello: &Hello<'_>) -> (Client, Option<Grant>) {
        let id = SessionId(self.target.sessions.fetch_add(1, Relaxed));
        let mut client = Client::new(id, AuthMode::None, Atomics::Masked);
        let mut octets = vec![0; hello.encoded_len()];
        hello.encode_into(&mut octets).unwrap();
        client.give(self, &octets).unwrap();
        self.target.directory.with(|directory| {
            let (now, shared) = (self.now, &self.shared);
            client
                .session
                .admit(now, shared, directory, &mut client.stags)
                .unwrap();
        });
        client.pump(self);
        let answer = client.received.pop_front().unwrap();
        let granted = match HelloAck::decode(&answer).unwrap() {
            HelloAck::Granted { grant, .. } => Some(grant),
            HelloAck::Refused { status, .. } => {
                assert_eq!(status, Status::NoSpace);
                None
            }
        };
        (client, granted)
    }

    /// A session, as soon as what others leave behind has room for it.
    fn admitted(&self, hello: &Hello<'_>) -> (Client, Grant) {
        loop {
            if let (client, Some(grant)) = self.open(hello) {
                return (client, grant);
            }
            self.target
                .directory
                .with(|directory| directory.poll(Time(1), &self.shared));
            turn();
        }
    }

    /// The stream goes first, with what it had registered.
    fn close(&self, mut client: Client) {
        client.flush(self);
        let session = client.session;
        self.target
            .directory
            .with(|directory| session.finish(self.now, &self.shared, directory));
    }

    /// Sends a request and takes its completion; others go on between any two steps.
    fn ask(&mut self, client: &mut Client, handle: u64, operation: Operation<'_>) -> Completion {
        client.send(self, handle, 0, operation);
        loop {
            client.post();
            turn();
            while client.step(self) {
                turn();
            }
            if let Some(completion) = client.next_completion() {
                return completion;
            }
            saw(PARKED);
            self.now = self.now.after_ns(PARK_RETRY_NS);
            client.timeout(self).unwrap();
            turn();
        }
    }
}

/// The data of a handle, which no other has.
fn data(handle: u64) -> [u8; 4] {
    let [.., a, b] = handle.to_be_bytes();
    [a, b, a, b]
}

/// Stores and frees.
fn plain(target: &Arc<Target>) {
    let mut worker = Worker::new(target);
    let mine = Hello {
        quota: 1,
        ..hello(1)
    };
    let (mut client, grant) = worker.admitted(&mine);
    let handle = grant.handle_base.0;
    target.handles.with(|handles| handles.push(handle));
    for _ in 0..2 {
        let stored = worker.ask(&mut client, handle, put(&data(handle)));
        assert_eq!(stored.status, Status::Ok);
        let freed = worker.ask(&mut client, handle, Operation::Free);
        assert_eq!(freed.status, Status::Ok);
    }
    worker.close(client);
}

/// Allocates for itself if it may, leaves a block behind, comes back and frees it.
fn direct(target: &Arc<Target>) {
    let mut worker = Worker::new(target);
    let (mut client, grant) = worker.admitted(&wants(2, 2));
    let handle = grant.handle_base.0;
    target.handles.with(|handles| handles.push(handle));
    let own = grant
        .capabilities
        .contains(SessionCapabilities::DIRECT_ALLOC);
    for turns in 0..2 {
        let stored = if own && turns == 0 {
            saw(PARTITION);
            let ticket = take(&client, &grant).unwrap();
            let block = loop {
                turn();
                if let Some(block) = slot(&client, &grant, ticket) {
                    break block;
                }
            };
            write(&client, &grant, block, &data(handle)).unwrap();
            turn();
            bind(&worker, &mut client, handle, ticket, block)
        } else {
            worker.ask(&mut client, handle, put(&data(handle)))
        };
        assert_eq!(stored.status, Status::Ok);
        if turns == 0 {
            let freed = worker.ask(&mut client, handle, Operation::Free);
            assert_eq!(freed.status, Status::Ok);
        }
    }
    worker.close(client);
    let (mut client, grant) = worker.open(&wants(2, 2));
    let grant = grant.expect("its block is promised to it");
    assert_eq!(grant.handle_base.0, handle);
    saw(RESUMED);
    let freed = worker.ask(&mut client, handle, Operation::Free);
    assert_eq!(freed.status, Status::Ok);
    worker.close(client);
}

/// Keeps a block of its own, so that all are in use, and loads what the others bind.
fn reader(target: &Arc<Target>) {
    let mut worker = Worker::new(target);
    let mine = Hello {
        quota: 1,
        ..hello(3)
    };
    let (mut client, grant) = worker.admitted(&mine);
    let own = grant.handle_base.0;
    let stored = worker.ask(&mut client, own, put(&data(own)));
    assert_eq!(stored.status, Status::Ok);
    for n in 0..6 {
        let known = target.handles.with(|handles| handles.clone());
        let Some(handle) = known.get(n % known.len().max(1)) else {
            turn();
            continue;
        };
        client.write_memory(0, &[0; 4]);
        let loaded = worker.ask(&mut client, *handle, load(0, 4));
        match loaded.status {
            Status::Ok => {
                saw(LOADED);
                assert_eq!(client.read_memory(0, 4), data(*handle), "another's data");
                let row = target.shared.pool.geometry().row(loaded.handle).unwrap();
                if target.shared.pool.entry(row).generation != loaded.generation {
                    saw(SENT_AFTER_FREE);
                }
            }
            other => assert_eq!(other, Status::NotValid),
        }
    }
    let freed = worker.ask(&mut client, own, Operation::Free);
    assert_eq!(freed.status, Status::Ok);
    worker.close(client);
}

/// What the control thread does: dissolves partitions, ends leases that are over.
fn control(target: &Arc<Target>) {
    for _ in 0..4 {
        target
            .directory
            .with(|directory| directory.poll(Time(1), &target.shared));
        turn();
    }
}

fn run() {
    let rig = Rig::new(BLOCKS, config());
    let target = Arc::new(Target {
        shared: rig.shared,
        directory: Mutex::new(rig.directory),
        sessions: AtomicU64::new(1),
        handles: Mutex::new(Vec::new()),
    });
    let parts: [fn(&Arc<Target>); 4] = [plain, direct, reader, control];
    let threads = parts.map(|part| {
        let target = Arc::clone(&target);
        thread::spawn(move || part(&target))
    });
    for thread in threads {
        thread.join().unwrap();
    }
    // All leases are over.
    target.directory.with(|directory| {
        while let Some(due) = directory.next_timeout() {
            directory.poll(due, &target.shared);
        }
        assert_eq!(directory.summary().committed, 0);
    });
    let audit = target.shared.pool.audit();
    assert_eq!(audit.faults, Vec::<String>::new());
    assert_eq!(audit.in_rings, BLOCKS, "{audit:?}");
    assert_eq!(target.shared.pool.usage().free, BLOCKS);
}

//= test kbtp-3.3-no-block-lost-or-twice
//= test kbtp-6.4-return-to-its-ring
//= test kbtp-6.4-entry-before-return
#[test]
fn shuttle_a_target_and_three_initiators() {
    check(run);
    let seen = SEEN.each_ref().map(|count| count.load(Relaxed));
    eprintln!("loaded, partitions, resumed, parked, sent after a free: {seen:?}");
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
