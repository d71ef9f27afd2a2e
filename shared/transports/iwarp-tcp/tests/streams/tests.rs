//! What all of them need, and the parts.

mod closing;
mod differential;
mod hostile;
mod loopback;
mod operations;
mod security;
mod startup;

use kbtp_fabric::{
    Access, CloseReason, Event, LocalBuffer, RemoteBuffer, Stream, StreamError, Time, WorkId,
    WorkOutcome, WorkRequest,
};
use kbtp_iwarp_tcp::{
    Accepted, Answer, Clock, ConnectOptions, Connected, Connector, Interest, ListenOptions,
    Listener, Poller, Request, Spin, StreamOptions, TcpRdmaStream,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// How long anything may take before a test gives up. Nothing waits for it in a test that passes.
const PATIENCE_MS: u64 = 30_000;

const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";

/// Says no longer than [`PATIENCE_MS`] that there is time left.
struct Patience {
    clock: Clock,
    end: Time,
}

impl Patience {
    fn new() -> Self {
        let clock = Clock::new();
        let end = clock.now().after_ms(PATIENCE_MS);
        Self { clock, end }
    }

    fn now(&self) -> Time {
        let now = self.clock.now();
        assert!(now < self.end, "what the test waits for does not come");
        now
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn listen(at: &str, stream: StreamOptions) -> Listener {
    let options = ListenOptions {
        stream,
        ..ListenOptions::default()
    };
    Listener::bind(addr(at), options).unwrap()
}

fn accept_all(_: &Request<'_>) -> Answer {
    Answer::Accept {
        private_data: b"welcome".to_vec(),
    }
}

/// Drives a listener until it gives a stream.
fn accept(listener: &mut Listener) -> Accepted {
    let patience = Patience::new();
    loop {
        let now = patience.now();
        if let Some(accepted) = listener.progress(now, &mut accept_all).unwrap() {
            return accepted;
        }
    }
}

/// Drives both sides of a startup.
fn meet(listener: &mut Listener, options: ConnectOptions) -> (Connected, Accepted) {
    let patience = Patience::new();
    let mut connector = Connector::start(listener.local_addr(), options, b"hello").unwrap();
    let (mut here, mut there) = (None, None);
    loop {
        let now = patience.now();
        if here.is_none() {
            here = connector.progress(now).unwrap();
        }
        if there.is_none() {
            there = listener.progress(now, &mut accept_all).unwrap();
        }
        match (here, there) {
            (Some(here), Some(there)) => return (here, there),
            unfinished => (here, there) = unfinished,
        }
    }
}

fn same(stream: StreamOptions) -> ConnectOptions {
    ConnectOptions {
        stream,
        ..ConnectOptions::default()
    }
}

/// One end: a stream, what it reported, and a buffer it registered.
struct End {
    stream: TcpRdmaStream,
    events: Vec<Event>,
    error: Option<StreamError>,
    region: Region,
    stag: Stag,
}

impl End {
    fn new(mut stream: TcpRdmaStream, len: u64) -> Self {
        let region = Region::anonymous(len, &PageOptions::default()).unwrap();
        let access = Access {
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            remote_invalidate: true,
            local_write: true,
        };
        let stag = stream
            .register(&region, 0..len, TaggedOffset(0), access)
            .unwrap();
        Self {
            stream,
            events: Vec::new(),
            error: None,
            region,
            stag,
        }
    }

    /// Whether anything moved.
    fn progress(&mut self, now: Time) -> bool {
        let moved = if self.error.is_some() {
            false
        } else {
            match self.stream.progress(now) {
                Ok(moved) => moved,
                Err(error) => {
                    self.error = Some(error);
                    true
                }
            }
        };
        let before = self.events.len();
        while let Some(event) = self.stream.next_event() {
            self.events.push(event);
        }
        moved || self.events.len() > before
    }

    fn local(&self, offset: u64, len: usize) -> LocalBuffer {
        LocalBuffer {
            stag: self.stag,
            offset: TaggedOffset(offset),
            len: ByteLen(u32::try_from(len).unwrap()),
        }
    }

    fn remote(&self, offset: u64) -> RemoteBuffer {
        RemoteBuffer {
            stag: self.stag,
            offset: TaggedOffset(offset),
        }
    }

    fn post(&mut self, id: u64, work: &WorkRequest<'_>) {
        self.stream.post(WorkId(id), work, true).unwrap();
    }

    fn outcome(&self, id: u64) -> Option<WorkOutcome> {
        self.events.iter().find_map(|event| match event {
            Event::Done { id: done, outcome } if *done == WorkId(id) => Some(*outcome),
            _ => None,
        })
    }

    /// Messages received, taken out of their slots.
    fn messages(&mut self) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        for event in &self.events {
            if let Event::Received { slot, len, .. } = event {
                let message = self.stream.message(*slot);
                assert_eq!(message.len() as u64, len.get());
                messages.push(message.to_vec());
                self.stream.release(*slot);
            }
        }
        self.events
            .retain(|event| !matches!(event, Event::Received { .. }));
        messages
    }

    fn close(&mut self, how: CloseReason) {
        self.stream.close(how);
    }
}

/// Both ends.
struct Pair {
    a: End,
    b: End,
    poller: Poller,
}

impl Pair {
    fn new(len: u64, at: &str, a: StreamOptions, b: StreamOptions) -> Self {
        let mut listener = listen(at, b);
        let (here, there) = meet(&mut listener, same(a));
        Self::of(End::new(here.stream, len), End::new(there.stream, len))
    }

    fn plain(len: u64) -> Self {
        Self::new(len, V4, StreamOptions::default(), StreamOptions::default())
    }

    fn of(a: End, b: End) -> Self {
        let poller = Poller::new(Spin::Off).unwrap();
        for (token, end) in [(0, &a), (1, &b)] {
            poller
                .add(end.stream.descriptor(), token, Interest::READ)
                .unwrap();
        }
        Self { a, b, poller }
    }

    /// Drives both ends until `done`.
    fn until(&mut self, mut done: impl FnMut(&mut End, &mut End) -> bool) {
        let patience = Patience::new();
        loop {
            let now = patience.now();
            let moved = self.a.progress(now) | self.b.progress(now);
            if done(&mut self.a, &mut self.b) {
                return;
            }
            if !moved {
                self.wait(patience.end);
            }
        }
    }

    /// Waits as a program would: for what the streams want.
    fn wait(&mut self, end: Time) {
        let mut until = end;
        for (token, side) in [(0, &self.a), (1, &self.b)] {
            let readiness = side.stream.readiness();
            self.poller
                .modify(side.stream.descriptor(), token, readiness.into())
                .unwrap();
            until = readiness.at.map_or(until, |at| at.min(until));
        }
        self.poller.wait(Some(until)).unwrap();
    }

    /// Drives both ends until the work `id` of A is done.
    fn outcome(&mut self, id: u64) -> WorkOutcome {
        self.until(|a, _| a.outcome(id).is_some());
        self.a.outcome(id).unwrap()
    }
}

/// Octets that differ from place to place and from seed to seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x.to_le_bytes()[4]
        })
        .collect()
}

fn octets(region: &Region, offset: u64, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len];
    region.read(offset, &mut octets).unwrap();
    octets
}

/// A listener's descriptor can be watched like a stream's.
fn watch(poller: &Poller, listener: &Listener) {
    poller.add(listener.as_fd(), 2, Interest::READ).unwrap();
}
