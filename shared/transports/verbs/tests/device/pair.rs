//! Two ends of a stream in one thread.

use kbtp_fabric::{
    Access, Event, LocalBuffer, ReceiveSlot, Stream, StreamError, Time, WorkId, WorkOutcome,
    WorkRequest,
};
use kbtp_memory::{PageOptions, Region};
use kbtp_verbs::{
    Accepted, Answer, ConnectOptions, Connected, Connector, ListenOptions, Listener, Request,
    StreamOptions, VerbsStream,
};
use kbtp_wire::{ByteLen, Stag, TaggedOffset};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Instant;

/// How long anything may take. A guest is slow.
const PATIENCE_MS: u64 = 20_000;

/// The addresses to test at; a test without one says so and passes.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let Ok(text) = std::env::var("KBTP_TEST_RDMA") else {
        println!("not run: KBTP_TEST_RDMA names no address of an RDMA device");
        return Vec::new();
    };
    text.split(',').map(|a| a.parse().unwrap()).collect()
}

/// The clock of these tests.
#[expect(clippy::disallowed_methods, reason = "a test's own driver")]
pub(crate) fn now() -> Time {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    let epoch = *EPOCH.get_or_init(Instant::now);
    Time(u64::try_from(epoch.elapsed().as_nanos()).unwrap())
}

/// Waits for one of the descriptors, or a moment for timers.
pub(crate) fn wait(fds: &[BorrowedFd<'_>]) {
    let mut fds: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    poll(&mut fds, PollTimeout::from(20_u16)).unwrap();
}

pub(crate) struct Deadline(Time);

impl Deadline {
    pub(crate) fn new() -> Self {
        Self(now().after_ms(PATIENCE_MS))
    }

    pub(crate) fn check(&self, what: &str) {
        assert!(now() < self.0, "{what} did not happen in time");
    }
}

pub(crate) fn options() -> StreamOptions {
    StreamOptions {
        send_work: 64,
        receives: 16,
        receive_len: 4096,
        ..StreamOptions::default()
    }
}

/// A listener and what it is asked.
pub(crate) fn listener(ip: IpAddr, stream: StreamOptions) -> Listener {
    let options = ListenOptions {
        stream,
        ..ListenOptions::default()
    };
    Listener::bind(SocketAddr::new(ip, 0), options).unwrap()
}

/// Connects to `listener`, which accepts.
pub(crate) fn meet(listener: &mut Listener, stream: StreamOptions) -> (Connected, Accepted) {
    let mut asked = Vec::new();
    let options = ConnectOptions {
        stream,
        ..ConnectOptions::default()
    };
    let to = listener.local_addr();
    let mut connector = Connector::start(to, options, b"the request", now()).unwrap();
    let (mut here, mut there) = (None, None);
    let deadline = Deadline::new();
    while here.is_none() || there.is_none() {
        deadline.check("a connection");
        if here.is_none() {
            here = connector.progress(now()).unwrap();
        }
        let mut answer = |request: &Request<'_>| {
            asked.push(request.private_data.to_vec());
            Answer::Accept {
                private_data: b"the reply".to_vec(),
            }
        };
        if let Some(accepted) = listener.progress(now(), &mut answer).unwrap() {
            there = Some(accepted);
        }
        if here.is_some() && there.is_some() {
            break;
        }
        let mut fds = vec![listener.as_fd()];
        if let Some(connected) = &here {
            let connected: &Connected = connected;
            fds.push(connected.stream.descriptor());
        }
        fds.extend(connector.descriptor());
        wait(&fds);
    }
    assert_eq!(asked.len(), 1);
    assert!(asked[0].starts_with(b"the request"));
    (here.unwrap(), there.unwrap())
}

/// Both ends of a stream.
pub(crate) struct Pair {
    pub(crate) here: VerbsStream,
    pub(crate) there: VerbsStream,
    /// Events that were taken while waiting for others.
    pub(crate) at_here: Vec<Event>,
    pub(crate) at_there: Vec<Event>,
    /// How each end ended.
    pub(crate) ended: [Option<StreamError>; 2],
    _listener: Listener,
}

impl Pair {
    pub(crate) fn new(ip: IpAddr, stream: StreamOptions) -> Self {
        let mut listener = listener(ip, stream.clone());
        let (here, there) = meet(&mut listener, stream);
        assert!(here.private_data.starts_with(b"the reply"));
        assert_eq!(&*there.reply_data, b"the reply");
        let mut pair = Self {
            here: here.stream,
            there: there.stream,
            at_here: Vec::new(),
            at_there: Vec::new(),
            ended: [None, None],
            _listener: listener,
        };
        pair.greet();
        pair
    }

    /// The initiator speaks first, as the protocol has it.
    fn greet(&mut self) {
        self.here.post(WorkId(0), &send(b"hello"), false).unwrap();
        let (slot, len) = self.received_there();
        assert_eq!(len, 5);
        assert_eq!(self.there.message(slot), b"hello");
        self.there.release(slot);
    }

    pub(crate) fn step(&mut self) {
        let ends = [
            (&mut self.here, &mut self.at_here),
            (&mut self.there, &mut self.at_there),
        ];
        let mut moved = false;
        for ((stream, events), ended) in ends.into_iter().zip(&mut self.ended) {
            match stream.progress(now()) {
                Ok(more) => moved |= more,
                Err(error) => *ended = Some(error),
            }
            while let Some(event) = stream.next_event() {
                moved = true;
                events.push(event);
            }
        }
        if !moved {
            wait(&[self.here.descriptor(), self.there.descriptor()]);
        }
    }

    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let deadline = Deadline::new();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            for (ended, who) in self.ended.iter().zip(["the initiator", "the responder"]) {
                if let Some(error) = ended
                    && !what.contains("end")
                {
                    panic!("waiting for {what}: {who} ended: {error}");
                }
            }
            deadline.check(what);
            self.step();
        }
    }

    /// How the work `id` of the initiator ended.
    pub(crate) fn done_here(&mut self, id: u64) -> WorkOutcome {
        self.until("work of the initiator", |pair| {
            take(&mut pair.at_here, |event| match event {
                Event::Done { id: done, outcome } if done.0 == id => Some(outcome),
                _ => None,
            })
        })
    }

    /// The next message at the responder.
    pub(crate) fn received_there(&mut self) -> (ReceiveSlot, u32) {
        self.until("a message at the responder", |pair| {
            take(&mut pair.at_there, |event| match event {
                Event::Received { slot, len, .. } => Some((slot, len.0)),
                _ => None,
            })
        })
    }

    /// The next message at the initiator.
    pub(crate) fn received_here(&mut self) -> (ReceiveSlot, u32) {
        self.until("a message at the initiator", |pair| {
            take(&mut pair.at_here, |event| match event {
                Event::Received { slot, len, .. } => Some((slot, len.0)),
                _ => None,
            })
        })
    }

    /// How both ended.
    pub(crate) fn both_ended(&mut self) -> (StreamError, StreamError) {
        self.until("the ends", |pair| {
            let [here, there] = &mut pair.ended;
            (here.is_some() && there.is_some())
                .then(|| (here.take().unwrap(), there.take().unwrap()))
        })
    }
}

/// Takes the first event that fits.
pub(crate) fn take<T>(events: &mut Vec<Event>, fits: impl Fn(Event) -> Option<T>) -> Option<T> {
    let at = events.iter().position(|event| fits(*event).is_some())?;
    fits(events.remove(at))
}

pub(crate) const fn send(head: &[u8]) -> WorkRequest<'_> {
    WorkRequest::Send {
        head,
        tail: None,
        solicited: false,
        invalidate: None,
    }
}

/// Memory and its STag: all of it, at the Tagged Offset it can have.
pub(crate) struct Block {
    pub(crate) region: Region,
    pub(crate) stag: Stag,
    pub(crate) base: TaggedOffset,
}

impl Block {
    pub(crate) fn new(stream: &mut VerbsStream, len: u64, access: Access) -> Self {
        let region = Region::anonymous(len, &PageOptions::default()).unwrap();
        let base = stream.tagged_base(&region, 0, TaggedOffset(0x7000));
        let stag = stream.register(&region, 0..len, base, access).unwrap();
        Self { region, stag, base }
    }

    pub(crate) const fn local(&self, at: u64, len: u32) -> LocalBuffer {
        LocalBuffer {
            stag: self.stag,
            offset: TaggedOffset(self.base.0 + at),
            len: ByteLen(len),
        }
    }

    pub(crate) const fn remote(&self, at: u64) -> kbtp_fabric::RemoteBuffer {
        kbtp_fabric::RemoteBuffer {
            stag: self.stag,
            offset: TaggedOffset(self.base.0 + at),
        }
    }

    pub(crate) fn fill(&self, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let octets: Vec<u8> = (0..self.region.len())
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                state.to_le_bytes()[7]
            })
            .collect();
        self.region.write(0, &octets).unwrap();
        octets
    }

    pub(crate) fn octets(&self, at: u64, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        self.region.read(at, &mut octets).unwrap();
        octets
    }
}

pub(crate) const SINK: Access = Access {
    remote_write: true,
    local_write: true,
    ..Access::LOCAL
};

pub(crate) const SOURCE: Access = Access {
    remote_read: true,
    ..Access::LOCAL_READ
};
