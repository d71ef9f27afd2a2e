//! Chains that serve a client over a real RDMAP stream: requests come in TCP segments, blocks go out from the pool's memory.

use crate::common::{
    ALLOC, BLOCK, BUFFER, FIRST_BLOCK, FREE, INVALIDATE, LOAD, Rig, SEAL, STORE, Setup, TABLE_BASE,
    pattern, request,
};
use kbtp_fabric::{Access, Event, Stream, WorkId, WorkRequest};
use kbtp_iwarp_tcp::{
    Answer, Clock, ConnectOptions, Connector, ListenOptions, Listener, Request, TcpRdmaStream,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_nic_model::{Outgoing, Schedule, StreamConnection, exchange};
use kbtp_wire::{Completion, EntryFlags, Stag, Status, TaggedOffset};

const HANDLE: u64 = TABLE_BASE + 3;
const BUFFER_ACCESS: Access = Access {
    remote_read: true,
    remote_write: true,
    remote_invalidate: true,
    ..Access::LOCAL
};

/// Both ends of a stream over loopback.
fn streams(clock: &Clock) -> (TcpRdmaStream, TcpRdmaStream) {
    let any = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(any, ListenOptions::default()).unwrap();
    let to = listener.local_addr();
    let mut connector = Connector::start(to, ConnectOptions::default(), b"").unwrap();
    let mut accept = |_: &Request<'_>| Answer::Accept {
        private_data: Vec::new(),
    };
    let (mut here, mut there) = (None, None);
    loop {
        let now = clock.now();
        assert!(now.0 < 10_000_000_000, "no connection");
        if there.is_none() {
            there = listener.progress(now, &mut accept).unwrap();
        }
        if here.is_none() {
            here = connector.progress(now).unwrap();
        }
        if let (Some(_), Some(_)) = (&here, &there) {
            return (there.unwrap().stream, here.unwrap().stream);
        }
    }
}

struct Over {
    rig: Rig,
    clock: Clock,
    connection: StreamConnection<TcpRdmaStream>,
    held: Option<Outgoing>,
    client: TcpRdmaStream,
    buffer: Region,
    stag: Stag,
    next_id: u64,
}

/// What a request came to.
struct Outcome {
    completion: Completion,
    invalidated: Option<Stag>,
}

impl Over {
    fn new(schedule: Schedule) -> Self {
        let clock = Clock::new();
        let (mut target, mut client) = streams(&clock);
        let rig = Rig::new(&Setup::new(schedule, 1, 1));
        let pool = rig.target.pool();
        let base = TaggedOffset(FIRST_BLOCK);
        let blocks = 0..pool.blocks.len();
        let stag = target
            .register(&pool.blocks, blocks, base, Access::LOCAL)
            .unwrap();
        let mut connection = StreamConnection::new(target);
        connection.add(rig.target.pool_memory(), stag, base);
        let buffer = Region::anonymous(u64::from(BLOCK), &PageOptions::default()).unwrap();
        let stag = client
            .register(
                &buffer,
                0..u64::from(BLOCK),
                TaggedOffset(BUFFER),
                BUFFER_ACCESS,
            )
            .unwrap();
        Self {
            rig,
            clock,
            connection,
            held: None,
            client,
            buffer,
            stag,
            next_id: 1,
        }
    }

    /// Everybody's turn.
    fn turn(&mut self) {
        while self.rig.model.step() {}
        let qpn = self.rig.parties[0].session.client_qpn();
        let now = self.clock.now();
        let (model, connection) = (&mut self.rig.model, &mut self.connection);
        exchange(model, qpn, connection, &mut self.held, now);
        self.rig.software();
    }

    fn ask(&mut self, opcode: u8, flags: u16, handle: u64) -> Outcome {
        let id = self.next_id;
        self.next_id += 1;
        let data = (opcode != FREE).then_some((self.stag.0, BUFFER, BLOCK));
        let message = request(opcode, flags, id, handle, 0, data);
        let send = WorkRequest::Send {
            head: &message,
            tail: None,
            solicited: false,
            invalidate: None,
        };
        self.client.post(WorkId(id), &send, false).unwrap();
        let deadline = self.clock.now().after_ms(10_000);
        loop {
            let now = self.clock.now();
            assert!(now < deadline, "no completion: {:?}", self.rig.failed(0));
            self.client.progress(now).unwrap();
            self.turn();
            let Some(event) = self.client.next_event() else {
                continue;
            };
            let Event::Received {
                slot, invalidated, ..
            } = event
            else {
                panic!("{event:?}")
            };
            let completion = Completion::decode_message(self.client.message(slot)).unwrap();
            self.client.release(slot);
            assert_eq!(completion.request_id.0, id);
            return Outcome {
                completion,
                invalidated,
            };
        }
    }

    fn fill(&self, data: u64) {
        self.buffer.write(0, &pattern(data)).unwrap();
    }

    fn buffered(&self) -> Vec<u8> {
        let mut octets = vec![0; usize::try_from(BLOCK).unwrap()];
        self.buffer.read(0, &mut octets).unwrap();
        octets
    }
}

#[test]
fn a_block_is_stored_loaded_and_freed_over_a_stream() {
    for schedule in [Schedule::Eager, Schedule::Random, Schedule::Withhold] {
        let mut over = Over::new(schedule);
        for round in 0..40 {
            over.fill(round);
            let stored = over.ask(ALLOC, 0, HANDLE).completion;
            assert_eq!(stored.status, Status::Ok);
            assert!(over.rig.block(stored.block) == pattern(round));
            over.fill(round + 100);
            let stored = over.ask(STORE, SEAL, HANDLE).completion;
            assert_eq!(stored.status, Status::Ok);
            over.fill(0);
            let loaded = over.ask(LOAD, 0, HANDLE).completion;
            assert_eq!(loaded.status, Status::Ok);
            assert_eq!(loaded.data_len.0, BLOCK);
            assert!(over.buffered() == pattern(round + 100));
            assert_eq!(over.ask(FREE, 0, HANDLE).completion.status, Status::Ok);
            assert!(!over.rig.entry(HANDLE).flags.contains(EntryFlags::VALID));
        }
        over.rig.conserved().unwrap();
        // Software's answers go the same way.
        let refused = over.ask(LOAD, 0, HANDLE).completion;
        assert_eq!(refused.status, Status::NotValid);
        assert_eq!(over.rig.parties[0].punts, 1);
    }
}

#[test]
fn the_clients_stag_is_invalidated_over_a_stream() {
    let mut over = Over::new(Schedule::Random);
    over.fill(9);
    let stored = over.ask(ALLOC, SEAL | INVALIDATE, HANDLE);
    assert_eq!(stored.completion.status, Status::Ok);
    assert_eq!(stored.invalidated, Some(over.stag));
}

/// The client is told, and the queue pairs are in error; other sessions would go on.
#[test]
fn a_client_that_closes_ends_its_session() {
    let mut over = Over::new(Schedule::Random);
    over.fill(9);
    over.ask(ALLOC, SEAL, HANDLE);
    over.client.close(kbtp_fabric::CloseReason::Graceful);
    let deadline = over.clock.now().after_ms(10_000);
    while over.rig.failed(0).is_none() {
        let now = over.clock.now();
        assert!(now < deadline, "the session does not end");
        // It ends with an error, or has ended.
        let ended = over.client.progress(now);
        drop(ended);
        over.turn();
    }
    assert!(over.rig.entry(HANDLE).flags.contains(EntryFlags::VALID));
    over.rig.conserved().unwrap();
}
