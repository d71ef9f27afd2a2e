//! Trying out what a device does: a device announces what its driver's author thought of, and some accept what they do not
//! do.
//!
//! Each trial is a connection of the device with itself, through the address it is known by. It takes some round trips of
//! the connection manager, once for each device and process.

use crate::driver::Clock;
use crate::limits::{PROBE_MS, RETRIES};
use crate::quirks::Quirks;
use kbtp_fabric::Time;
use kbtp_memory::{PageOptions, Region};
use kbtp_verbs_sys::{
    CmEventKind, CmId, Completion, CompletionQueue, ConnectParameters, DeviceAttributes, Domain,
    INVALIDATED, INVALIDATED_BY_KERNEL, Operation, Queues, Receives, Registration, Remote, Rights,
    Source, VerbsError, WindowRights, Work,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

/// What was found, by the names of devices.
static KNOWN: Mutex<BTreeMap<String, Quirks>> = Mutex::new(BTreeMap::new());

/// Octets of each side's memory.
const MEMORY: u64 = 8192;
/// A Tagged Offset that is no address of any process: a page that is never mapped, and some.
const BASE: u64 = 0x1000;
/// What is written, and where it is looked for.
const PATTERN: [u8; 8] = *b"KBTPtest";

/// What the device of `id` does, which is bound to an address of it. The first call for a device tries it out.
///
/// # Errors
/// [`VerbsError`]: the device cannot be tried out.
pub fn quirks_of(id: &CmId) -> Result<Quirks, VerbsError> {
    let device = id.context()?.name();
    let known = |known: &BTreeMap<String, Quirks>| known.get(&device).copied();
    if let Some(quirks) = known(&KNOWN.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(quirks);
    }
    let address = id.local_addr().ok_or(VerbsError::Unsupported {
        what: "address to be tried out at",
    })?;
    let quirks = probe(address.ip())?;
    let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(device, quirks);
    Ok(quirks)
}

/// Tries out the device that has the address `address`.
///
/// # Errors
/// [`VerbsError`]: no device has it, or it cannot even connect and send.
pub fn probe(address: IpAddr) -> Result<Quirks, VerbsError> {
    let clock = Clock::new();
    let mut listener = CmId::new()?;
    listener.bind(SocketAddr::new(address, 0))?;
    listener.listen(8)?;
    let attributes = listener.context()?.attributes()?;
    let device = listener.context()?.name();
    let mut bench = Bench {
        clock,
        listener,
        attributes,
    };
    // What every device does must go, or there is nothing to try the rest with.
    let sends = bench.pair().and_then(|mut pair| pair.send_arrives());
    if !sends? {
        return Err(VerbsError::Unsupported {
            what: "working Send to itself",
        });
    }
    let yes = |trial: Result<bool, VerbsError>| match trial {
        Ok(yes) => yes,
        Err(error) => {
            tracing::debug!(device, %error, "a trial failed");
            false
        }
    };
    let heeds_base = yes(bench.pair().and_then(Pair::heeds_base));
    let two = yes(bench.pair().and_then(Pair::reads_into_two));
    let immediate = yes(bench.pair().and_then(Pair::immediate_arrives));
    let atomics = bench.attributes.atomics && yes(bench.pair().and_then(Pair::counts));
    let flag = if bench.attributes.windows_2 {
        bench
            .pair()
            .and_then(Pair::invalidates)
            .unwrap_or_else(|error| {
                tracing::debug!(device, %error, "windows were tried in vain");
                None
            })
    } else {
        None
    };
    let quirks = Quirks {
        heeds_base,
        read_buffers: if two { 2 } else { 1 },
        immediate,
        atomics,
        windows: flag.is_some(),
        invalidated_flag: flag.unwrap_or(INVALIDATED),
    };
    tracing::info!(device, ?quirks, "an RDMA device was tried out");
    Ok(quirks)
}

/// Where trials are made.
struct Bench {
    clock: Clock,
    listener: CmId,
    attributes: DeviceAttributes,
}

/// One side of a connection.
struct Side {
    /// First: its queue pair ends before what the pair uses.
    id: CmId,
    queue: CompletionQueue,
    receives: Receives,
    memory: Registration,
    domain: Domain,
    gone: bool,
}

/// A connection of the device with itself.
struct Pair {
    clock: Clock,
    client: Side,
    server: Side,
    atomics: bool,
}

fn os(what: &'static str) -> impl FnOnce(Errno) -> VerbsError {
    move |errno| VerbsError::Os {
        what,
        source: errno.into(),
    }
}

/// Waits until one of `fds` is readable or it is `until`; whether there is time left.
fn wait(clock: Clock, until: Time, fds: &[BorrowedFd<'_>]) -> Result<bool, VerbsError> {
    let left = until.since_ns(clock.now()).div_ceil(1_000_000);
    if left == 0 {
        return Ok(false);
    }
    let mut fds: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    let time = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, time) {
        Ok(_) | Err(Errno::EINTR) => Ok(true),
        Err(errno) => Err(os("waiting for a device")(errno)),
    }
}

fn silent() -> VerbsError {
    VerbsError::Os {
        what: "connecting a device with itself",
        source: io::ErrorKind::TimedOut.into(),
    }
}

impl Side {
    fn new(mut id: CmId, attributes: &DeviceAttributes) -> Result<Self, VerbsError> {
        let domain = Domain::new(&id)?;
        let queue = CompletionQueue::new(&id, 32)?;
        let region =
            Region::anonymous(MEMORY, &PageOptions::default()).map_err(|error| VerbsError::Os {
                what: "memory for a trial",
                source: io::Error::other(error),
            })?;
        let rights = Rights {
            local_write: true,
            remote_write: true,
            remote_read: true,
            remote_atomic: attributes.atomics,
            bind_window: attributes.windows_2,
            on_demand: false,
        };
        let memory = domain.register(&region, 0..MEMORY, None, rights)?;
        let mut receives = Receives::new(&domain, 4, 64)?;
        id.create_queue_pair(&Queues {
            domain: &domain,
            send: &queue,
            receive: &queue,
            send_work: 8,
            receives: 4,
            buffers: 2.min(attributes.max_sge),
            inline_octets: 0,
        })?;
        for slot in 0..4 {
            if let Some(pair) = id.queue_pair() {
                receives.post(pair, slot)?;
            }
        }
        Ok(Self {
            id,
            queue,
            receives,
            memory,
            domain,
            gone: false,
        })
    }

    fn region(&self) -> Option<&Region> {
        self.memory.region()
    }

    fn fill(&self, at: u64, octets: &[u8]) -> bool {
        self.region().is_some_and(|r| r.write(at, octets).is_ok())
    }

    fn holds(&self, at: u64, octets: &[u8]) -> bool {
        let mut found = [0; PATTERN.len()];
        let read = self
            .region()
            .is_some_and(|r| r.read(at, &mut found).is_ok());
        read && found == *octets
    }

    fn word(&self, at: u64) -> Option<&std::sync::atomic::AtomicU64> {
        self.region()?.u64_at(at).ok()
    }

    const fn remote(&self, at: u64) -> Remote {
        Remote {
            address: self.memory.base().saturating_add(at),
            key: self.memory.remote_key(),
        }
    }

    fn post(&self, operation: Operation<'_>) -> Result<(), VerbsError> {
        let pair = self.id.queue_pair().ok_or_else(silent)?;
        pair.post(&Work {
            id: 1 << 63,
            signaled: true,
            solicited: false,
            fence: false,
            operation,
        })
    }

    /// The next completion, if one comes before the connection ends or the time does.
    fn next(&mut self, clock: Clock) -> Result<Option<Completion>, VerbsError> {
        let until = clock.now().after_ms(PROBE_MS);
        loop {
            let mut found = None;
            self.queue
                .poll::<1>(|completion| found = Some(completion))?;
            if found.is_some() {
                return Ok(found);
            }
            if self.gone {
                return Ok(None);
            }
            while let Some(event) = self.id.next_event()? {
                self.gone |= event.kind == CmEventKind::Disconnected;
            }
            self.queue.arm()?;
            self.queue
                .poll::<1>(|completion| found = Some(completion))?;
            if found.is_some() {
                return Ok(found);
            }
            if !self.gone && !wait(clock, until, &[self.queue.fd(), self.id.fd()])? {
                return Ok(None);
            }
            self.queue.take_events()?;
        }
    }

    /// Whether the next completion is of something that succeeded.
    fn succeeds(&mut self, clock: Clock) -> Result<bool, VerbsError> {
        Ok(self
            .next(clock)?
            .is_some_and(|completion| completion.is_ok()))
    }
}

impl Bench {
    fn pair(&mut self) -> Result<Pair, VerbsError> {
        let clock = self.clock;
        let until = clock.now().after_ms(PROBE_MS);
        let to = self.listener.local_addr().ok_or_else(silent)?;
        let parameters = ConnectParameters {
            private_data: &[],
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
        };
        let mut id = CmId::new()?;
        id.resolve_address(None, to, 2_000)?;
        expect(clock, until, &mut id, CmEventKind::AddressResolved)?;
        id.resolve_route(2_000)?;
        expect(clock, until, &mut id, CmEventKind::RouteResolved)?;
        let mut client = Side::new(id, &self.attributes)?;
        client.id.connect(&parameters)?;
        let asked = loop {
            match self.listener.next_event()? {
                Some(event) if event.kind == CmEventKind::ConnectRequest => {
                    break event.request.ok_or_else(silent)??;
                }
                Some(_) => {}
                None if wait(clock, until, &[self.listener.fd()])? => {}
                None => return Err(silent()),
            }
        };
        let mut server = Side::new(asked, &self.attributes)?;
        server.id.accept(&parameters)?;
        expect(clock, until, &mut client.id, CmEventKind::Established)?;
        // On iWARP the responder hears of it once the initiator has sent something, on others right away; either way it
        // can receive.
        Ok(Pair {
            clock,
            client,
            server,
            atomics: self.attributes.atomics,
        })
    }
}

fn expect(clock: Clock, until: Time, id: &mut CmId, kind: CmEventKind) -> Result<(), VerbsError> {
    loop {
        match id.next_event()? {
            Some(event) if event.kind == kind => return Ok(()),
            Some(event) => match event.kind {
                CmEventKind::Failed(what) => {
                    return Err(VerbsError::Os {
                        what,
                        source: io::Error::from_raw_os_error(event.status.saturating_abs()),
                    });
                }
                _ => return Err(silent()),
            },
            None if wait(clock, until, &[id.fd()])? => {}
            None => return Err(silent()),
        }
    }
}

impl Pair {
    /// A Send arrives. It also tells that the Writes before it have. A receiver of the kernel's (siw) may overlook the first
    /// message on a connection and looks again when more comes: it is sent twice.
    fn send_arrives(&mut self) -> Result<bool, VerbsError> {
        for _ in 0..2 {
            let buffer = self.client.memory.buffer(0, 8)?;
            self.client.post(Operation::Send {
                source: Source::Registered(&[buffer]),
                invalidate: None,
            })?;
            if !self.client.succeeds(self.clock)? {
                return Ok(false);
            }
        }
        let Some(completion) = self.server.next(self.clock)? else {
            return Ok(false);
        };
        let slot = self.server.receives.complete(completion);
        Ok(slot.is_some_and(|slot| self.server.receives.message(slot).len() == 8))
    }

    fn write(
        &mut self,
        from: &Registration,
        remote: Remote,
        immediate: Option<u32>,
    ) -> Result<bool, VerbsError> {
        let buffer = from.buffer(0, 8)?;
        self.client.post(Operation::Write {
            source: Source::Registered(&[buffer]),
            remote,
            immediate,
        })?;
        self.client.succeeds(self.clock)
    }

    /// Both sides register memory at a Tagged Offset, and the client writes from there to there.
    fn heeds_base(mut self) -> Result<bool, VerbsError> {
        let based = |side: &Side| {
            let region = side.region().ok_or_else(silent)?;
            let rights = Rights {
                local_write: true,
                remote_write: true,
                ..Rights::default()
            };
            side.domain
                .register(region, 4096..MEMORY, Some(BASE), rights)
        };
        let from = based(&self.client)?;
        let to = based(&self.server)?;
        self.client.fill(4096, &PATTERN);
        let remote = Remote {
            address: BASE,
            key: to.remote_key(),
        };
        let written = self.write(&from, remote, None)?;
        Ok(written && self.send_arrives()? && self.server.holds(4096, &PATTERN))
    }

    /// A Read into two buffers fills both.
    fn reads_into_two(mut self) -> Result<bool, VerbsError> {
        self.server.fill(0, &PATTERN);
        self.server.fill(8, &PATTERN);
        let sink = [
            self.client.memory.buffer(512, 8)?,
            self.client.memory.buffer(1024, 8)?,
        ];
        let remote = self.server.remote(0);
        self.client.post(Operation::Read {
            sink: &sink,
            remote,
        })?;
        let read = self.client.succeeds(self.clock)?;
        Ok(read && self.client.holds(512, &PATTERN) && self.client.holds(1024, &PATTERN))
    }

    /// A Write with Immediate arrives, and its data is there then.
    fn immediate_arrives(mut self) -> Result<bool, VerbsError> {
        self.client.fill(0, &PATTERN);
        let buffer = self.client.memory.buffer(0, 8)?;
        let remote = self.server.remote(2048);
        self.client.post(Operation::Write {
            source: Source::Registered(&[buffer]),
            remote,
            immediate: Some(0x0102_0304),
        })?;
        let sent = self.client.succeeds(self.clock)?;
        let arrived = self.server.next(self.clock)?.is_some_and(|completion| {
            completion.is_ok() && completion.immediate() == Some(0x0102_0304)
        });
        Ok(sent && arrived && self.server.holds(2048, &PATTERN))
    }

    /// FetchAdd and CmpSwap change the peer's word and give its value before.
    fn counts(mut self) -> Result<bool, VerbsError> {
        use std::sync::atomic::Ordering::SeqCst;
        let set = |side: &Side, value| side.word(0).map(|word| word.store(value, SeqCst));
        set(&self.server, 40).ok_or_else(silent)?;
        let sink = self.client.memory.buffer(0, 8)?;
        let remote = self.server.remote(0);
        let value = |side: &Side| side.word(0).map(|word| word.load(SeqCst));
        self.client.post(Operation::FetchAdd {
            sink,
            remote,
            add: 0x1_0000_0000,
        })?;
        let added = self.client.succeeds(self.clock)?
            && value(&self.client) == Some(40)
            && value(&self.server) == Some(0x1_0000_0028);
        if !added {
            return Ok(false);
        }
        self.client.post(Operation::CompareSwap {
            sink,
            remote,
            compare: 0x1_0000_0028,
            swap: 7,
        })?;
        Ok(self.client.succeeds(self.clock)?
            && value(&self.client) == Some(0x1_0000_0028)
            && value(&self.server) == Some(7)
            && self.atomics)
    }

    /// A window is bound, written through, invalidated by a Send and useless then. Gives the flag that the completion had.
    fn invalidates(mut self) -> Result<Option<u32>, VerbsError> {
        let mut window = self.server.domain.window()?;
        let pair = self.server.id.queue_pair().ok_or_else(silent)?;
        let rights = WindowRights {
            write: true,
            read: false,
        };
        let memory = &self.server.memory;
        pair.bind(1 << 63, &mut window, memory, memory.base(), 4096, rights)?;
        if !self.server.succeeds(self.clock)? {
            return Ok(None);
        }
        self.client.fill(0, &PATTERN);
        let remote = Remote {
            address: self.server.memory.base(),
            key: window.remote_key(),
        };
        let buffer = self.client.memory.buffer(0, 8)?;
        let write = Operation::Write {
            source: Source::Registered(&[buffer]),
            remote,
            immediate: None,
        };
        self.client.post(write)?;
        self.client.post(Operation::Send {
            source: Source::Registered(&[buffer]),
            invalidate: Some(remote.key),
        })?;
        let sent = self.client.succeeds(self.clock)? && self.client.succeeds(self.clock)?;
        let Some(completion) = self.server.next(self.clock)? else {
            return Ok(None);
        };
        let flag = [INVALIDATED, INVALIDATED_BY_KERNEL]
            .into_iter()
            .find(|flag| completion.invalidated(*flag) == Some(remote.key));
        if !sent || !completion.is_ok() || !self.server.holds(0, &PATTERN) {
            return Ok(None);
        }
        // The key is gone: what is written through it now must fail.
        self.client.post(write)?;
        let refused = !self.client.succeeds(self.clock)?;
        Ok(flag.filter(|_| refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_there_is_an_error_that_says_so() {
        let error = probe(IpAddr::from([192, 0, 2, 1])).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}
