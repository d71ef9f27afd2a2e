//! A queue pair and nothing around it: a device connected with itself, for [`probe`](crate::probe) to try out what it does, and for
//! benchmarks to compare with.

use crate::driver::Clock;
use crate::limits::{PROBE_MS, RETRIES};
use kbtp_fabric::Time;
use kbtp_memory::{PageOptions, Region};
use kbtp_verbs_sys::{
    CmEventKind, CmId, Completion, CompletionQueue, ConnectParameters, DeviceAttributes, Domain,
    Operation, Queues, Receives, Registration, Remote, Rights, Sge, VerbsError, Work,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

/// The number of all work that is no receive.
const SENT: u64 = 1 << 63;

/// What each side of a connection has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Octets of memory that the peer may read and write.
    pub memory: u64,
    /// Work requests posted and not ended.
    pub send_work: u32,
    /// Receives posted.
    pub receives: u32,
    /// Octets of each.
    pub receive_len: u32,
}

/// A device that is connected with itself.
#[derive(Debug)]
pub struct Bare {
    clock: Clock,
    listener: CmId,
    attributes: DeviceAttributes,
    device: String,
    shape: Shape,
}

/// One side of a connection.
#[derive(Debug)]
pub struct Side {
    clock: Clock,
    /// Before the rest: its queue pair ends before what the pair uses.
    pub(crate) id: CmId,
    queue: CompletionQueue,
    receives: Receives,
    pub(crate) memory: Registration,
    pub(crate) domain: Domain,
    gone: bool,
}

/// A connection of the device with itself.
#[derive(Debug)]
pub struct Pair {
    /// Who connected.
    pub client: Side,
    /// Who accepted.
    pub server: Side,
    /// The device says that it has atomics.
    pub atomics: bool,
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

pub(crate) fn silent() -> VerbsError {
    VerbsError::Os {
        what: "connecting a device with itself",
        source: io::ErrorKind::TimedOut.into(),
    }
}

impl Side {
    fn new(
        mut id: CmId,
        clock: Clock,
        attributes: &DeviceAttributes,
        shape: &Shape,
    ) -> Result<Self, VerbsError> {
        let domain = Domain::new(&id)?;
        let entries = shape.send_work.saturating_add(shape.receives);
        let queue = CompletionQueue::new(&id, entries.max(32))?;
        let region = Region::anonymous(shape.memory, &PageOptions::default()).map_err(|error| {
            VerbsError::Os {
                what: "memory for a trial",
                source: io::Error::other(error),
            }
        })?;
        let rights = Rights {
            local_write: true,
            remote_write: true,
            remote_read: true,
            remote_atomic: attributes.atomics,
            bind_window: attributes.windows_2,
            on_demand: false,
        };
        let memory = domain.register(&region, 0..shape.memory, None, rights)?;
        let mut receives = Receives::new(&domain, shape.receives, shape.receive_len)?;
        id.create_queue_pair(&Queues {
            domain: &domain,
            send: &queue,
            receive: &queue,
            send_work: shape.send_work,
            receives: shape.receives,
            buffers: 2.min(attributes.max_sge),
            inline_octets: 0,
        })?;
        for slot in 0..shape.receives {
            if let Some(pair) = id.queue_pair() {
                receives.post(pair, slot)?;
            }
        }
        Ok(Self {
            clock,
            id,
            queue,
            receives,
            memory,
            domain,
            gone: false,
        })
    }

    /// Its memory.
    #[must_use]
    pub fn region(&self) -> Option<&Region> {
        self.memory.region()
    }

    pub(crate) fn fill(&self, at: u64, octets: &[u8]) -> bool {
        self.region().is_some_and(|r| r.write(at, octets).is_ok())
    }

    pub(crate) fn holds(&self, at: u64, octets: [u8; 8]) -> bool {
        let mut found = [0; 8];
        let read = self
            .region()
            .is_some_and(|r| r.read(at, &mut found).is_ok());
        read && found == octets
    }

    pub(crate) fn word(&self, at: u64) -> Option<&std::sync::atomic::AtomicU64> {
        self.region()?.u64_at(at).ok()
    }

    /// Octet `at` of its memory, for the other side.
    #[must_use]
    pub const fn remote(&self, at: u64) -> Remote {
        Remote {
            address: self.memory.base().saturating_add(at),
            key: self.memory.remote_key(),
        }
    }

    /// Octets of its memory, for its own work.
    ///
    /// # Errors
    /// [`VerbsError`] if they are not all in it.
    pub fn buffer(&self, at: u64, len: u32) -> Result<Sge, VerbsError> {
        self.memory.buffer(at, len)
    }

    /// Posts work, which ends with a completion.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn post(&self, operation: Operation<'_>) -> Result<(), VerbsError> {
        self.post_as(operation, true)
    }

    /// The same; if it is not `signaled` only its failure is told.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn post_as(&self, operation: Operation<'_>, signaled: bool) -> Result<(), VerbsError> {
        let pair = self.id.queue_pair().ok_or_else(silent)?;
        pair.post(&Work {
            id: SENT,
            signaled,
            solicited: false,
            fence: false,
            operation,
        })
    }

    /// Octets of the message that a completion tells of, if it does of one; its receive is posted again.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn received(&mut self, completion: Completion) -> Result<Option<u32>, VerbsError> {
        if completion.work() == SENT {
            return Ok(None);
        }
        let len = completion.len();
        let slot = self.receives.complete(completion);
        let (Some(slot), Some(pair)) = (slot, self.id.queue_pair()) else {
            return Ok(None);
        };
        self.receives.post(pair, slot)?;
        Ok(Some(len))
    }

    /// The message that came, if it has 8 octets.
    pub(crate) fn is_of_eight(&mut self, completion: Completion) -> bool {
        let slot = self.receives.complete(completion);
        slot.is_some_and(|slot| self.receives.message(slot).len() == 8)
    }

    /// The next completion, if one comes before the connection ends or the time does.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn next_ended(&mut self) -> Result<Option<Completion>, VerbsError> {
        let clock = self.clock;
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
    pub(crate) fn succeeds(&mut self) -> Result<bool, VerbsError> {
        Ok(self
            .next_ended()?
            .is_some_and(|completion| completion.is_ok()))
    }
}

impl Bare {
    /// The device that has the address `address`.
    ///
    /// # Errors
    /// [`VerbsError`]: no device has it.
    pub fn at(address: IpAddr, shape: Shape) -> Result<Self, VerbsError> {
        let mut listener = CmId::new()?;
        listener.bind(SocketAddr::new(address, 0))?;
        listener.listen(8)?;
        let attributes = listener.context()?.attributes()?;
        let device = listener.context()?.name();
        Ok(Self {
            clock: Clock::new(),
            listener,
            attributes,
            device,
            shape,
        })
    }

    /// Its name.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What it says of itself.
    #[must_use]
    pub const fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// A new connection.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn pair(&mut self) -> Result<Pair, VerbsError> {
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
        let mut client = Side::new(id, clock, &self.attributes, &self.shape)?;
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
        let mut server = Side::new(asked, clock, &self.attributes, &self.shape)?;
        server.id.accept(&parameters)?;
        expect(clock, until, &mut client.id, CmEventKind::Established)?;
        // On iWARP the responder hears of it once the initiator has sent something, on others right away; either way it
        // can receive.
        Ok(Pair {
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
