//! The engine against scripted streams and a clock that stands still until told: what happens when, without a socket.

mod random;

use super::*;
use crate::sources::Sources;
use kbtp_core::{Contents, Directory, DirectoryConfig, Geometry, Pool};
use kbtp_fabric::{
    Atomics, Capabilities, Event, LocalError, PostError, Readiness, ReceiveSlot, StreamError,
    WorkId, WorkOutcome, WorkRequest,
};
use kbtp_iwarp_tcp::{Poller, Spin};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{
    BlockOffset, ByteLen, Completion, DataDescriptor, Handle, Hello, HelloAck, InitiatorId,
    KnownTlvs, Operation, Request, RequestId, SessionCapabilities, Source, Stag, Status,
};
use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

const MS: u64 = 1_000_000;

/// The pool, to be read into; and as a source that does not change.
const POOL: Stag = Stag(77);
const SEALED: Stag = Stag(78);

/// What a test sees of a stream and does to it.
#[derive(Default)]
struct Script {
    /// Messages the peer sent and the engine has not been told of.
    arrived: RefCell<VecDeque<Vec<u8>>>,
    /// Sources of the Writes posted.
    sources: RefCell<Vec<Stag>>,
    /// Sends posted.
    sent: RefCell<Vec<Vec<u8>>>,
    /// Ends of posted work not yet reported.
    done: RefCell<VecDeque<(WorkId, WorkOutcome)>>,
    /// RDMA Reads do not end while this is set.
    reads_hang: Cell<bool>,
    hanging: RefCell<Vec<WorkId>>,
    /// How many posts are taken before the queue is full.
    room: Cell<usize>,
    /// How the engine closed it.
    closed: Cell<Option<CloseReason>>,
    /// The peer has closed it.
    peer_closed: Cell<bool>,
    /// A graceful close never ends.
    stuck: Cell<bool>,
    /// The stream has gone.
    dropped: Cell<bool>,
    ended: Cell<bool>,
}

struct Scripted {
    script: Rc<Script>,
    /// Messages handed to the engine, by slot.
    held: Vec<Option<Vec<u8>>>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.script.dropped.set(true);
    }
}

impl Stream for Scripted {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            atomics: Atomics::Masked,
            write_with_immediate: false,
            send_with_invalidate: true,
            outbound_reads: 4,
            inbound_reads: 4,
            max_receive: ByteLen(4096),
            max_message: ByteLen(1 << 20),
        }
    }

    fn register(
        &mut self,
        _region: &Region,
        _range: std::ops::Range<u64>,
        _base: TaggedOffset,
        access: Access,
    ) -> Result<Stag, LocalError> {
        Ok(if access.local_write { POOL } else { SEALED })
    }

    fn invalidate(&mut self, _stag: Stag) -> Result<(), LocalError> {
        Ok(())
    }

    fn retire(&mut self, _stag: Stag) -> Result<(), LocalError> {
        Ok(())
    }

    fn post(
        &mut self,
        id: WorkId,
        work: &WorkRequest<'_>,
        signaled: bool,
    ) -> Result<(), PostError> {
        if self.script.closed.get().is_some() {
            return Err(PostError::Closed);
        }
        let Some(room) = self.script.room.get().checked_sub(1) else {
            return Err(PostError::QueueFull);
        };
        self.script.room.set(room);
        match work {
            WorkRequest::Send { head, .. } => self.script.sent.borrow_mut().push(head.to_vec()),
            WorkRequest::Write { local, .. } => self.script.sources.borrow_mut().push(local.stag),
            _ => {}
        }
        if matches!(work, WorkRequest::Read { .. }) && self.script.reads_hang.get() {
            self.script.hanging.borrow_mut().push(id);
        } else if signaled {
            let outcome = match work {
                WorkRequest::Read { .. } => WorkOutcome::Read,
                _ => WorkOutcome::Sent,
            };
            self.script.done.borrow_mut().push_back((id, outcome));
        }
        Ok(())
    }

    fn progress(&mut self, _now: Time) -> Result<bool, StreamError> {
        let ends = match self.script.closed.get() {
            None => false,
            Some(CloseReason::Abort) => true,
            Some(CloseReason::Graceful) => !self.script.stuck.get(),
        };
        if ends && !self.script.ended.replace(true) {
            return Err(StreamError::ClosedHere);
        }
        if self.script.peer_closed.get() && !self.script.ended.replace(true) {
            self.script.closed.set(Some(CloseReason::Abort));
            return Err(StreamError::PeerClosed);
        }
        Ok(false)
    }

    fn next_event(&mut self) -> Option<Event> {
        if let Some((id, outcome)) = self.script.done.borrow_mut().pop_front() {
            return Some(Event::Done { id, outcome });
        }
        let message = self.script.arrived.borrow_mut().pop_front()?;
        let slot = ReceiveSlot(u32::try_from(self.held.len()).unwrap());
        let len = ByteLen(u32::try_from(message.len()).unwrap());
        self.held.push(Some(message));
        Some(Event::Received {
            slot,
            len,
            solicited: false,
            invalidated: None,
        })
    }

    fn message(&self, slot: ReceiveSlot) -> &[u8] {
        self.held[usize::try_from(slot.0).unwrap()]
            .as_deref()
            .expect("a slot is looked at while it is held")
    }

    fn release(&mut self, slot: ReceiveSlot) {
        let taken = self.held[usize::try_from(slot.0).unwrap()].take();
        assert!(taken.is_some(), "a slot is released once");
    }

    fn readiness(&self) -> Readiness {
        Readiness {
            read: true,
            write: false,
            at: None,
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        unreachable!("the scripted world watches tokens")
    }

    fn close(&mut self, how: CloseReason) {
        let closed = match (self.script.closed.get(), how) {
            (Some(CloseReason::Abort), _) | (_, CloseReason::Abort) => CloseReason::Abort,
            _ => CloseReason::Graceful,
        };
        self.script.closed.set(Some(closed));
    }
}

/// The world of some engines: a clock, and the messages between them.
#[derive(Default)]
struct World {
    now: Rc<Cell<u64>>,
    watched: Vec<u64>,
    evict: Vec<(SessionId, Waiter)>,
    evicted: Vec<Waiter>,
}

impl Outside<Scripted> for World {
    fn now(&self) -> Time {
        Time(self.now.get())
    }

    fn watch(&mut self, token: u64, _: &Scripted, _: Interest) -> std::io::Result<()> {
        self.watched.push(token);
        Ok(())
    }

    fn rewatch(&mut self, _: u64, _: &Scripted, _: Interest) -> std::io::Result<()> {
        Ok(())
    }

    fn unwatch(&mut self, _: &Scripted) {}

    fn evict(&mut self, session: SessionId, waiter: Waiter) -> bool {
        self.evict.push((session, waiter));
        true
    }

    fn evicted(&mut self, waiter: Waiter) {
        self.evicted.push(waiter);
    }
}

/// Engines of one target, each with its world; one clock.
struct Rig {
    engines: Vec<(Engine<Scripted>, World)>,
    workers: Vec<Arc<Worker>>,
    plane: Arc<Plane>,
    sources: Arc<Sources>,
    now: Rc<Cell<u64>>,
    _poller: Poller,
}

const TIMES: Times = Times {
    handshake: 1_000,
    drain: 500,
    linger: 100,
};

impl Rig {
    fn new(count: usize) -> Self {
        let geometry = Geometry {
            block_size: 4096,
            blocks: 16,
            handles: 1024,
            table_base_handle: Handle(0),
            pool_base: BlockOffset(0x10_0000),
        };
        let region = |len| Region::anonymous(len, &PageOptions::default()).unwrap();
        let pool = Pool::format(
            region(geometry.meta_len()),
            region(geometry.pool_len()),
            geometry,
            [9; 16],
            Contents::Zeroed,
        )
        .unwrap();
        let shared = Shared::new(pool);
        let config = DirectoryConfig {
            default_quota: 4,
            credits_default: 8,
            credits_max: 8,
            lease_ms: 1_000,
            ..DirectoryConfig::default()
        };
        let directory = Directory::new(config, &shared.pool).unwrap();
        let poller = Poller::new(Spin::Off).unwrap();
        let plane = Arc::new(Plane::new(directory, poller.waker()));
        let now = Rc::new(Cell::new(0));
        let workers: Vec<_> = (0..count)
            .map(|index| {
                Arc::new(Worker {
                    index,
                    shared: shared.view(),
                    metrics: WorkerMetrics::default(),
                })
            })
            .collect();
        let engines = workers
            .iter()
            .map(|worker| {
                let world = World {
                    now: Rc::clone(&now),
                    ..World::default()
                };
                let engine = Engine::new(Arc::clone(worker), Arc::clone(&plane), TIMES);
                (engine, world)
            })
            .collect();
        Self {
            engines,
            workers,
            plane,
            sources: Arc::default(),
            now,
            _poller: poller,
        }
    }

    fn accept(&mut self, engine: usize) -> Rc<Script> {
        let script = Rc::new(Script::default());
        script.room.set(1000);
        let (engine, world) = &mut self.engines[engine];
        let peer = "127.0.0.1:9".parse().unwrap();
        let accepted = Accepted {
            stream: Scripted {
                script: Rc::clone(&script),
                held: Vec::new(),
            },
            peer,
            auth: AuthMode::None,
            challenge: [0; 32],
            place: self.sources.take(&peer, 100),
        };
        engine.accept(accepted, world);
        script
    }

    /// Wakes every stream and runs every engine until nothing is queued, passing messages between them.
    fn settle(&mut self) {
        for _ in 0..20 {
            let mut told = false;
            let mut evict = Vec::new();
            let mut evicted = Vec::new();
            for (engine, world) in &mut self.engines {
                for token in world.watched.clone() {
                    engine.ready(token);
                }
                engine.run(world);
                evict.append(&mut world.evict);
                evicted.append(&mut world.evicted);
            }
            for (session, waiter) in evict {
                told = true;
                let (engine, world) = &mut self.engines[worker_of(session)];
                engine.evict(session, waiter, world);
            }
            for waiter in evicted {
                told = true;
                self.engines[waiter.worker].0.evicted(waiter.token);
            }
            let idle = self
                .engines
                .iter()
                .all(|(e, _)| e.ready.is_empty() && e.again.is_empty());
            if !told && idle {
                return;
            }
        }
        panic!("the engines do not come to rest");
    }

    fn pass(&mut self, ns: u64) {
        self.now.set(self.now.get() + ns);
        self.settle();
    }
}

fn encoded(f: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut octets = vec![0; 1024];
    let len = f(&mut octets);
    octets.truncate(len);
    octets
}

fn hello(initiator: u8) -> Vec<u8> {
    let hello = Hello {
        request_id: RequestId(1),
        min_version: 1,
        max_version: 1,
        credits: 0,
        capabilities: SessionCapabilities::NONE,
        quota: 0,
        max_inline: ByteLen(1024),
        handles: 0,
        initiator: InitiatorId([initiator; 16]),
        tlvs: KnownTlvs::default(),
    };
    encoded(|out| hello.encode_into(out).unwrap())
}

fn request(id: u64, handle: Handle, operation: Operation<'_>) -> Vec<u8> {
    let request = Request {
        request_id: RequestId(id),
        handle,
        generation: None,
        record: None,
        operation,
    };
    encoded(|out| request.encode_into(out).unwrap())
}

fn alloc_store(id: u64, handle: Handle) -> Vec<u8> {
    inline_store(id, handle, true)
}

fn inline_store(id: u64, handle: Handle, seal: bool) -> Vec<u8> {
    let source = Source::Inline {
        declared: ByteLen(4),
        octets: b"data",
    };
    request(id, handle, Operation::AllocStore { source, seal })
}

/// A store whose data the target reads.
fn read_store(id: u64, handle: Handle) -> Vec<u8> {
    let source = Source::Remote {
        buffer: DataDescriptor {
            stag: Stag(6),
            offset: TaggedOffset(0),
            len: ByteLen(4096),
        },
        invalidate: false,
    };
    request(id, handle, Operation::AllocStore { source, seal: true })
}

fn load(id: u64, handle: Handle) -> Vec<u8> {
    load_of(id, handle, false)
}

fn load_of(id: u64, handle: Handle, allow_unsealed: bool) -> Vec<u8> {
    let sink = DataDescriptor {
        stag: Stag(5),
        offset: TaggedOffset(0),
        len: ByteLen(4096),
    };
    let operation = Operation::Load {
        sink,
        invalidate: false,
        allow_unsealed,
    };
    request(id, handle, operation)
}

/// A HELLO_ACK: the first handle granted, or why there is no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ack {
    Granted(Handle),
    Refused(Status),
}

impl Script {
    fn arrive(&self, message: Vec<u8>) {
        self.arrived.borrow_mut().push_back(message);
    }

    /// What the last HELLO_ACK says.
    fn ack(&self) -> Ack {
        let sent = self.sent.borrow();
        match HelloAck::decode(sent.last().expect("an answer")).unwrap() {
            HelloAck::Granted { grant, .. } => Ack::Granted(grant.handle_base),
            HelloAck::Refused { status, .. } => Ack::Refused(status),
        }
    }

    fn statuses(&self) -> Vec<(u64, Status)> {
        let sent = self.sent.borrow();
        sent.iter()
            .filter_map(|m| Completion::decode_message(m).ok())
            .map(|c| (c.request_id.0, c.status))
            .collect()
    }
}

/// A stream with an open session, and its first handle.
fn open(rig: &mut Rig, engine: usize, initiator: u8) -> (Rc<Script>, Handle) {
    let script = rig.accept(engine);
    script.arrive(hello(initiator));
    rig.settle();
    match script.ack() {
        Ack::Granted(handle) => (script, handle),
        Ack::Refused(status) => panic!("refused: {status}"),
    }
}

#[test]
fn a_session_names_its_worker() {
    assert_eq!(worker_of(session_id(3, 7)), 3);
    assert_ne!(session_id(3, 7), session_id(3, 8));
    assert_eq!(worker_of(session_id(255, u64::MAX)), 255);
}

#[test]
fn a_session_opens_serves_and_is_counted() {
    let mut rig = Rig::new(1);
    let (script, handle) = open(&mut rig, 0, 1);
    let metrics = &rig.workers[0].metrics;
    assert_eq!((metrics.sessions.get(), metrics.half_open.get()), (1, 0));
    script.arrive(alloc_store(10, handle));
    script.arrive(load(11, handle));
    rig.settle();
    assert_eq!(script.statuses(), [(10, Status::Ok), (11, Status::Ok)]);
    let report = rig.engines[0].0.report(Time(5));
    assert_eq!(
        (report.len(), report[0].requests, report[0].in_flight),
        (1, 2, 0)
    );
    assert_eq!(rig.workers[0].metrics.in_flight.get(), 0);
    assert!(rig.plane.with(|d| d.summary()).sessions == 1);
}

#[test]
fn what_may_change_while_it_is_sent_has_a_source_of_its_own() {
    let mut rig = Rig::new(1);
    let (script, handle) = open(&mut rig, 0, 1);
    let other = Handle(handle.0 + 1);
    script.arrive(alloc_store(10, handle));
    script.arrive(inline_store(11, other, false));
    script.arrive(load_of(12, handle, true));
    script.arrive(load_of(13, other, true));
    rig.settle();
    assert!(script.statuses().iter().all(|(_, s)| *s == Status::Ok));
    assert_eq!(*script.sources.borrow(), [SEALED, POOL]);
}

#[test]
fn a_stream_holds_a_place_of_its_source_until_its_hello_is_answered() {
    let mut rig = Rig::new(1);
    let (_first, _) = open(&mut rig, 0, 1);
    assert_eq!(rig.sources.taken(), 0, "it is open");
    let silent = rig.accept(0);
    rig.settle();
    assert_eq!(rig.sources.taken(), 1);
    rig.pass(TIMES.handshake * MS);
    assert!(silent.dropped.get());
    assert_eq!(rig.sources.taken(), 0, "it is gone");
}

//= test rfc5042-6.4.2-idle-reaped
#[test]
fn the_oldest_silent_stream_makes_room() {
    let mut rig = Rig::new(1);
    let (open, _) = open(&mut rig, 0, 1);
    let first = rig.accept(0);
    rig.settle();
    let make_room = |rig: &mut Rig, source: Option<[u8; 4]>| {
        let now = Time(rig.now.get());
        rig.engines[0].0.make_room(source.map(Into::into), now);
        rig.settle();
    };
    make_room(&mut rig, None);
    assert!(!first.dropped.get(), "it has only just come");
    rig.pass(limits::SILENT_GRACE_MS * MS);
    let second = rig.accept(0);
    rig.settle();
    make_room(&mut rig, Some([192, 0, 2, 1]));
    assert!(!first.dropped.get(), "it comes from elsewhere");
    make_room(&mut rig, Some([127, 0, 0, 1]));
    assert!(first.dropped.get());
    make_room(&mut rig, None);
    assert!(!second.dropped.get() && !open.dropped.get());
    rig.pass(limits::SILENT_GRACE_MS * MS);
    make_room(&mut rig, None);
    assert!(second.dropped.get() && !open.dropped.get());
    assert!(rig.engines[0].0.silent.is_empty());
    assert_eq!(rig.workers[0].metrics.half_open.get(), 0);
}

#[test]
fn a_stream_without_hello_is_cut_in_time() {
    //= test rfc5044-7.1.2-user-timeout
    let mut rig = Rig::new(1);
    let script = rig.accept(0);
    rig.settle();
    rig.pass(TIMES.handshake * MS - 1);
    assert!(!script.dropped.get());
    rig.pass(1);
    assert!(script.dropped.get());
    assert_eq!(script.closed.get(), Some(CloseReason::Abort));
    assert_eq!(rig.workers[0].metrics.half_open.get(), 0);
    assert_eq!(
        rig.engines[0].0.timers.next_at(),
        None,
        "idle: no timer is left"
    );
}

#[test]
fn an_idle_engine_has_no_timer() {
    let mut rig = Rig::new(1);
    let (_script, _) = open(&mut rig, 0, 1);
    assert_eq!(rig.engines[0].0.wait_until(), None);
}

#[test]
fn a_broken_first_message_ends_the_stream() {
    let mut rig = Rig::new(1);
    let script = rig.accept(0);
    script.arrive(load(1, Handle(0)));
    rig.settle();
    assert!(script.dropped.get());
    assert!(script.sent.borrow().is_empty());
}

#[test]
fn a_full_send_queue_keeps_the_work() {
    let mut rig = Rig::new(1);
    let (script, handle) = open(&mut rig, 0, 1);
    script.arrive(alloc_store(10, handle));
    rig.settle();
    script.room.set(1);
    // A load is a Write and a Send: room for one of them only, then for none.
    for id in 11..15 {
        script.arrive(load(id, handle));
    }
    rig.settle();
    assert!(!script.statuses().iter().any(|(id, _)| *id > 10));
    assert!(rig.workers[0].metrics.send_queue_full.get() > 0);
    for _ in 0..8 {
        script.room.set(1);
        rig.settle();
    }
    let ids: Vec<_> = script.statuses().iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [10, 11, 12, 13, 14]);
}

#[test]
//= test kbtp-p8-second-session-replaces
fn a_second_session_of_a_pair_replaces_the_first_across_workers() {
    let mut rig = Rig::new(2);
    let (first, base) = open(&mut rig, 0, 1);
    first.arrive(alloc_store(10, base));
    rig.settle();
    let (second, again) = open(&mut rig, 1, 1);
    assert_eq!(base, again, "the same range");
    assert!(first.dropped.get() && !second.dropped.get());
    assert_eq!(first.closed.get(), Some(CloseReason::Abort));
    second.arrive(load(11, base));
    rig.settle();
    assert_eq!(second.statuses(), [(11, Status::Ok)]);
    let sessions: Vec<_> = rig
        .workers
        .iter()
        .map(|w| w.metrics.sessions.get())
        .collect();
    assert_eq!(sessions, [0, 1]);
    assert_eq!(rig.engines[1].0.wait_until(), None, "no timer is left");
}

#[test]
fn a_second_session_of_a_pair_replaces_the_first_on_one_worker() {
    let mut rig = Rig::new(1);
    let (first, base) = open(&mut rig, 0, 1);
    let (second, again) = open(&mut rig, 0, 1);
    assert_eq!(base, again);
    assert!(first.dropped.get() && !second.dropped.get());
}

#[test]
fn a_replacement_that_is_never_answered_gives_up() {
    let mut rig = Rig::new(2);
    let (first, _) = open(&mut rig, 0, 1);
    let second = rig.accept(1);
    second.arrive(hello(1));
    let (engine, world) = &mut rig.engines[1];
    engine.run(world);
    assert_eq!(world.evict.len(), 1);
    // The eviction is lost: worker 0 hangs.
    world.evict.clear();
    let hung = rig.engines.remove(0);
    rig.now.set(limits::REPLACE_WAIT_MS * MS);
    let (engine, world) = &mut rig.engines[0];
    engine.run(world);
    engine.run(world);
    assert!(second.dropped.get() && !first.dropped.get());
    drop(hung);
}

#[test]
fn one_busy_stream_does_not_starve_another() {
    let mut rig = Rig::new(1);
    let (busy, handle) = open(&mut rig, 0, 1);
    let (other, other_handle) = open(&mut rig, 0, 2);
    busy.arrive(alloc_store(10, handle));
    rig.settle();
    // More than a turn serves.
    for id in 0..u64::from(limits::EVENTS_PER_TURN) * 2 {
        busy.arrive(load(100 + id, handle));
    }
    other.arrive(alloc_store(10, other_handle));
    let (engine, world) = &mut rig.engines[0];
    for token in world.watched.clone() {
        engine.ready(token);
    }
    engine.run(world);
    assert_eq!(other.statuses(), [(10, Status::Ok)]);
    let served = busy.statuses().len();
    assert!(served > 1 && served < 1 + 2 * usize::try_from(limits::EVENTS_PER_TURN).unwrap());
    rig.settle();
    assert_eq!(
        busy.statuses().len(),
        1 + 2 * usize::try_from(limits::EVENTS_PER_TURN).unwrap()
    );
}

#[test]
fn a_drain_answers_then_closes_then_ends() {
    let mut rig = Rig::new(1);
    let (script, handle) = open(&mut rig, 0, 1);
    rig.workers[0].shared.drain();
    rig.engines[0].0.drain(Time(0));
    script.arrive(load(10, handle));
    let late = rig.accept(0);
    late.arrive(hello(2));
    rig.settle();
    assert_eq!(script.statuses(), [(10, Status::ShuttingDown)]);
    assert_eq!(late.ack(), Ack::Refused(Status::ShuttingDown));
    assert!(late.dropped.get(), "a refused HELLO ends its stream");
    assert!(!script.dropped.get() && !rig.engines[0].0.is_finished());
    rig.pass(TIMES.linger * MS);
    assert!(script.dropped.get());
    assert_eq!(script.closed.get(), Some(CloseReason::Graceful));
    assert!(rig.engines[0].0.is_finished());
}

#[test]
fn a_drain_waits_for_what_is_in_flight() {
    let mut rig = Rig::new(1);
    let (script, handle) = open(&mut rig, 0, 1);
    script.reads_hang.set(true);
    script.arrive(read_store(10, handle));
    rig.settle();
    assert_eq!(script.hanging.borrow().len(), 1);
    rig.workers[0].shared.drain();
    rig.engines[0].0.drain(Time(0));
    rig.pass(TIMES.linger * MS + 1);
    assert!(script.closed.get().is_none(), "a store is under way");
    let read = script.hanging.borrow_mut().pop().unwrap();
    let mut done = script.done.borrow_mut();
    done.push_back((read, WorkOutcome::Read));
    drop(done);
    rig.settle();
    assert_eq!(script.statuses(), [(10, Status::Ok)]);
    assert_eq!(script.closed.get(), Some(CloseReason::Graceful));
    assert!(rig.engines[0].0.is_finished());
}

#[test]
fn a_drain_is_over_in_time_even_if_a_stream_does_not_end() {
    let mut rig = Rig::new(1);
    let (script, _) = open(&mut rig, 0, 1);
    script.stuck.set(true);
    rig.workers[0].shared.drain();
    rig.engines[0].0.drain(Time(0));
    rig.pass(TIMES.linger * MS);
    assert!(!script.dropped.get());
    rig.pass((TIMES.drain - TIMES.linger) * MS);
    assert!(script.dropped.get() && rig.engines[0].0.is_finished());
}

#[test]
fn a_stream_that_does_not_close_in_order_is_cut() {
    let mut rig = Rig::new(1);
    let script = rig.accept(0);
    script.stuck.set(true);
    // A HELLO of another version is refused, and the stream closed in order.
    let mut message = hello(1);
    message[24] = 7;
    message[25] = 7;
    script.arrive(message);
    rig.settle();
    assert_eq!(script.ack(), Ack::Refused(Status::VersionMismatch));
    assert_eq!(script.closed.get(), Some(CloseReason::Graceful));
    rig.pass(limits::CLOSE_WAIT_MS * MS);
    assert!(script.dropped.get());
}
