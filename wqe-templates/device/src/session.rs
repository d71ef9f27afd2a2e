//! One client's part of a device: two queue pairs, three completion queues, the slots.

use crate::alarm::Alarm;
use crate::error::SetUpError;
use crate::layout::{KEYED_AT, MemoryLayout};
use crate::limits::{
    LOG_BELL_STRIDE, LOG_BELLS, LOG_CQ, LOG_RECEIVE_STRIDE, LOG_REQUESTS, MAX_READS, RNR_RETRY,
};
use crate::tables::{Area, View, create};
use crate::target::create_cq;
use crate::{
    CqReader, Device, DeviceEvent, KeyAttributes, Layout, Master, MemoryId, Peer, PeerAccess,
    Place, Profile, QpAttributes, Roles, Target,
};
use kbtp_chain::element::{Bound, Cq, Queue};
use kbtp_chain::key::{DUMMY_AT, Key, Sizes};
use kbtp_chain::memory::{Memory, Spot};
use kbtp_chain::{Builder, CqPlace, Images, Placement, QueuePlace, Restart, Template};
use kbtp_memory::{PageOptions, Region};
use kbtp_mlx5::limits::BASIC_BLOCK;
use kbtp_mlx5::{AccessRights, Cqe, Cqn, DataSegment, Klm, Mkey, QpDoorbell, Qpn, encode_receive};
use kbtp_wire::Handle;

/// Where the rings and scratch lines of every session start, in the address space of its own keys.
const RINGS_START: u64 = 0x1000_0000_0000;

/// A session to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionPlan {
    /// Its number: what punts say.
    pub id: u16,
    /// The first handle it may store to.
    pub own_base: Handle,
    /// How many it may store to; 0 if it only reads.
    pub own_count: u64,
    /// What its client may do by itself (direct modes), with keys of [`Target::client_domain`].
    pub client_access: PeerAccess,
}

/// How far a session's queues are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Indices {
    /// Basic blocks that the loopback queue has run.
    pub worker: u64,
    /// Basic blocks that the client's queue pair has sent.
    pub client: u64,
    /// Requests that came.
    pub received: u64,
    /// Its completion queues, and the CQEs that each has had.
    pub cqes: [(Cqn, u64); 3],
}

/// A session.
#[derive(Debug)]
pub struct Session {
    pub(crate) images: Images,
    pub(crate) region: Region,
    pub(crate) layout: MemoryLayout,
    /// All three completion queues.
    pub(crate) cqes: Region,
    pub(crate) worker: Qpn,
    pub(crate) client: Qpn,
    cqns: [Cqn; 3],
    receive_cq: CqReader,
    /// Requests that came.
    received: u64,
    client_cq: CqReader,
    alarm: Alarm,
    /// Sends of the client's queue pair that succeeded.
    client_cqes: u64,
    client_failed: bool,
    pub(crate) keys: Vec<Mkey>,
    memories: [MemoryId; 2],
    /// The first slot that was armed.
    first: u64,
    /// The first slot whose receive WQE is not posted.
    pub(crate) armed: u64,
    pub(crate) bells: u16,
    pub(crate) restarting: Option<Box<crate::software::Restarting>>,
}

/// The address, in the space of the session's own keys, of octet `at` of its memory.
const fn address(at: u64) -> u64 {
    at.wrapping_sub(KEYED_AT).wrapping_add(RINGS_START)
}

/// Octets of each completion queue.
pub(crate) const CQ_LEN: u64 = (Cqe::LEN as u64) << LOG_CQ;

struct Queues {
    places: [CqPlace; 3],
    region: Region,
    memory: MemoryId,
}

impl Session {
    /// Makes the queues and keys of a session; neither queue pair is connected and no slot is armed.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn create<D: Device>(
        device: &mut D,
        target: &Target,
        profile: &Profile,
        plan: &SessionPlan,
    ) -> Result<Self, SetUpError<D::Error>> {
        let layout = MemoryLayout::new(&profile.template);
        let region = Region::anonymous(layout.len, &PageOptions::default())?;
        let rights = AccessRights::REMOTE_READ
            .with(AccessRights::REMOTE_WRITE)
            .with(AccessRights::ATOMIC);
        let area = Area::over(device, target.loopback, rights, region.clone())?;
        let queues = completion_queues(device)?;
        let [receive_cq, client_cq, worker_cq] = queues.places;
        let worker = worker_qp(device, target, &area, &layout, worker_cq.cqn)?;
        let client = client_qp(device, target, plan, &area, &layout, &queues)?;
        let mut keys = Keys {
            device: &mut *device,
            target,
            profile,
            plan,
            area: &area,
            layout: &layout,
            queues: &queues,
            worker,
            made: vec![area.base],
        };
        let all = keys.create()?;
        let made = keys.made;
        let placement = place(
            &layout,
            &queues,
            (worker, client),
            all,
            sizes(target, plan),
            plan.id,
        );
        let images = Images::new(&profile.template, &placement, target.pool.block_size)?;
        if images.slots() > 1 << layout.logs.receive {
            return Err(SetUpError::Size {
                what: "slots of a session",
                value: images.slots(),
            });
        }
        let session = Self {
            images,
            region,
            layout,
            worker,
            client,
            cqns: [receive_cq.cqn, client_cq.cqn, worker_cq.cqn],
            receive_cq: CqReader::new(queues.region.clone(), 0, LOG_REQUESTS, None),
            received: 0,
            alarm: Alarm::new(client_cq.cqn),
            client_cq: CqReader::new(queues.region.clone(), CQ_LEN, LOG_CQ, None),
            cqes: queues.region,
            client_cqes: 0,
            client_failed: false,
            keys: made,
            memories: [area.memory, queues.memory],
            first: 0,
            armed: 0,
            bells: 1 << LOG_BELLS,
            restarting: None,
        };
        session.post_bells()?;
        device
            .connect(worker, &Peer::Local(worker))
            .map_err(SetUpError::device("connecting a loopback queue pair"))?;
        Ok(session)
    }

    /// Every receive WQE of the loopback queue pair is an empty list.
    fn post_bells<E: core::error::Error + 'static>(&self) -> Result<(), SetUpError<E>> {
        for bell in 0..1 << LOG_BELLS {
            let at = self.layout.bells + (bell << LOG_BELL_STRIDE);
            self.region.write(at, &DataSegment::TERMINATOR)?;
        }
        self.write_bells()
    }

    pub(crate) fn write_bells<E: core::error::Error + 'static>(&self) -> Result<(), SetUpError<E>> {
        let record = QpDoorbell {
            receive: self.bells,
            send: kbtp_mlx5::WqeIndex(0),
        };
        let [a, b, c, d, ..] = record.encode();
        let at = self.layout.worker_doorbell + QpDoorbell::RECEIVE_AT as u64;
        Ok(self.region.write(at, &[a, b, c, d])?)
    }

    /// The queue pair that a client is to be connected to. [`Device::connect`] connects it.
    #[must_use]
    pub const fn client_qpn(&self) -> Qpn {
        self.client
    }

    /// The loopback queue pair.
    #[must_use]
    pub const fn worker_qpn(&self) -> Qpn {
        self.worker
    }

    /// The completion queues: of requests, of the client's queue pair's sends, of the loopback queue pair's.
    #[must_use]
    pub const fn cqns(&self) -> [Cqn; 3] {
        self.cqns
    }

    /// The template.
    #[must_use]
    pub const fn template(&self) -> &Template {
        self.images.template()
    }

    /// Where everything is.
    #[must_use]
    pub const fn placement(&self) -> &Placement {
        self.images.placement()
    }

    /// The memory of rings, scratch lines, receive WQEs and doorbell records.
    #[must_use]
    pub const fn memory(&self) -> &Region {
        &self.region
    }

    /// The memory of the completion queues.
    #[must_use]
    pub const fn cqe_memory(&self) -> &Region {
        &self.cqes
    }

    /// Where in [`memory`](Self::memory) the client's receive ring lies.
    #[must_use]
    pub const fn receives_at(&self) -> u64 {
        self.layout.receives
    }

    /// Where in [`memory`](Self::memory) the counter lies that absorbs what needs no ticket.
    #[must_use]
    pub const fn dummy_at(&self) -> u64 {
        self.layout.dummy
    }

    /// Where some octets of slot `n` lie in [`memory`](Self::memory), or in [`cqe_memory`](Self::cqe_memory) if they are a
    /// CQE's; `None` for what is not the session's.
    #[must_use]
    pub fn place_of(&self, n: u64, spot: Spot) -> Option<u64> {
        let (template, placement) = (self.template(), self.placement());
        let address = Builder::locate(template, placement, n, spot, "spot").ok()?;
        Some(match spot.memory {
            Memory::Cqe(..) => address,
            _ => Self::offset(address),
        })
    }

    /// How far the queues of a session are before slot `n`.
    #[must_use]
    pub fn indices_at(&self, n: u64) -> Indices {
        let (template, placement) = (self.template(), self.placement());
        let [receive, client, worker] = self.cqns;
        let cqes = [
            (receive, Cq::Receive),
            (client, Cq::Client),
            (worker, Cq::Worker),
        ];
        Indices {
            worker: placement.block(template, Queue::Worker, n),
            client: placement.block(template, Queue::Client, n),
            received: n,
            cqes: cqes.map(|(cqn, cq)| (cqn, placement.cqe(template, cq, n, 0))),
        }
    }

    /// Starts with slot `n` instead of the first one, on queues that stand [there](Self::indices_at): with a model of a device,
    /// to see indices wrap. Before any slot is armed.
    #[must_use]
    pub fn starting_at(mut self, n: u64) -> Self {
        self.first = n;
        self.armed = n;
        let (template, placement) = (self.template(), self.placement());
        let cqes = placement.cqe(template, Cq::Client, n, 0);
        let requests = placement.cqe(template, Cq::Receive, n, 0);
        self.client_cq = self.client_cq.from(cqes);
        self.receive_cq = self.receive_cq.from(requests);
        self.received = n;
        self
    }

    /// The slots that a client may have requests in: the credits it may be given. Two fewer than there are, so that no WQE
    /// is overwritten that the device has yet to run.
    #[must_use]
    pub fn credits(&self) -> u64 {
        self.images.slots().saturating_sub(2)
    }

    /// The next slot to be armed: how many were since the start.
    #[must_use]
    pub const fn armed(&self) -> u64 {
        self.armed
    }

    /// Arms every slot that is free: those whose completion went out. Returns how many.
    ///
    /// # Errors
    /// [`SetUpError`]; it was checked when the session was made that there is none.
    pub fn arm_free<D: Device>(&mut self, device: &mut D) -> Result<u64, SetUpError<D::Error>> {
        self.arm_free_as(device, |_| None)
    }

    /// The same; `headers` says for each slot under which key it looks up its request's header, if not the one that knows all
    /// requests of the profile ([`Target::headers`]).
    ///
    /// # Errors
    /// [`SetUpError`]; it was checked when the session was made that there is none.
    pub fn arm_free_as<D: Device>(
        &mut self,
        device: &mut D,
        mut headers: impl FnMut(u64) -> Option<Mkey>,
    ) -> Result<u64, SetUpError<D::Error>> {
        let end = self.completed().saturating_add(self.credits());
        if self.client_failed {
            return Ok(0);
        }
        let mut count = 0;
        while self.armed < end {
            let headers = headers(self.armed);
            self.arm_next(device, headers)?;
            count += 1;
        }
        if count > 0 {
            self.write_head(end)?;
            self.post_receives(device, self.armed)?;
        }
        Ok(count)
    }

    /// Arms every slot of a session whose slots arm themselves from then on ([`kbtp_chain::perpetual`]): once, before
    /// [`start`](Self::start). The last slot's receive WQE is posted by the first slot.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn arm_once<D: Device>(&mut self, device: &mut D) -> Result<(), SetUpError<D::Error>> {
        let end = self.first.saturating_add(self.images.slots());
        while self.armed < end {
            self.arm_next(device, None)?;
        }
        self.post_receives(device, end.saturating_sub(1))
    }

    /// Receive WQEs that are posted, modulo 2^16, as the device finds them.
    ///
    /// # Errors
    /// [`AccessError`](kbtp_memory::AccessError) never: the record is the session's own memory.
    pub fn posted_receives(&self) -> Result<u16, kbtp_memory::AccessError> {
        let mut record = [0; QpDoorbell::LEN];
        self.region.read(self.layout.client_doorbell, &mut record)?;
        Ok(QpDoorbell::decode(&record).receive)
    }

    /// Writes the first WQEs of a slot that is not armed: the slot before it lets them run, and they wait there for a request
    /// that cannot come so far. The WQEs that they replace have run: theirs was not the last slot that is complete.
    pub(crate) fn write_head<E: core::error::Error + 'static>(
        &mut self,
        n: u64,
    ) -> Result<(), SetUpError<E>> {
        let template = self.images.template();
        let head = template.worker.iter().take(usize::from(template.head));
        let blocks: u16 = head.map(kbtp_chain::element::Element::basic_blocks).sum();
        let len = usize::from(blocks) * BASIC_BLOCK;
        if let Some(([worker, ..], _)) = self.images.arm(n) {
            let at = Self::offset(worker.address);
            let octets = worker.octets.get(..len).unwrap_or_default();
            self.region.write(at, octets)?;
        }
        Ok(())
    }

    /// Writes the next slot; its receive WQE is not posted yet.
    fn arm_next<D: Device>(
        &mut self,
        device: &mut D,
        headers: Option<Mkey>,
    ) -> Result<(), SetUpError<D::Error>> {
        let n = self.armed;
        if let Some((parts, receive)) = self.images.arm(n) {
            for part in parts {
                let at = Self::offset(part.address);
                self.region.write(at, &part.octets)?;
            }
            let mut stride = [0; 1 << LOG_RECEIVE_STRIDE];
            encode_receive(&mut stride, receive).map_err(|error| {
                SetUpError::Build(kbtp_chain::BuildError::TooLong("receive", error))
            })?;
            let at = (n % (1 << self.layout.logs.receive)) << LOG_RECEIVE_STRIDE;
            self.region.write(self.layout.receives + at, &stride)?;
        }
        if let Some(headers) = headers {
            self.set_headers(n, headers)?;
        }
        self.armed = n.wrapping_add(1);
        // The device may not see the receive WQE before the slot.
        device.barrier();
        Ok(())
    }

    pub(crate) fn post_receives<D: Device>(
        &self,
        device: &mut D,
        end: u64,
    ) -> Result<(), SetUpError<D::Error>> {
        let [.., high, low] = end.to_be_bytes();
        let record = QpDoorbell {
            receive: u16::from_be_bytes([high, low]),
            send: kbtp_mlx5::WqeIndex(0),
        };
        let [a, b, c, d, ..] = record.encode();
        device.barrier();
        let at = self.layout.client_doorbell + QpDoorbell::RECEIVE_AT as u64;
        Ok(self.region.write(at, &[a, b, c, d])?)
    }

    /// Starts the loopback queue pair: it waits for the first request. Once, after the first slots were armed.
    ///
    /// # Errors
    /// [`SetUpError`]; returns false, with nothing done, if the master has no room.
    pub fn start<D: Device>(
        &self,
        device: &mut D,
        master: &mut Master,
    ) -> Result<bool, SetUpError<D::Error>> {
        self.start_at(device, master, self.first)
    }

    /// Lets the loopback queue wait for the request of slot `n`.
    pub(crate) fn start_at<D: Device>(
        &self,
        device: &mut D,
        master: &mut Master,
        n: u64,
    ) -> Result<bool, SetUpError<D::Error>> {
        let template = self.template();
        let head = template.worker.iter().take(usize::from(template.head));
        let blocks: u16 = head.map(kbtp_chain::element::Element::basic_blocks).sum();
        let start = self.placement().block(template, Queue::Worker, n);
        let end = start.wrapping_add(u64::from(blocks));
        master.enable(device, self.worker, Placement::index(end))
    }

    /// Slots whose completion went out, since the start; reads CQEs.
    pub fn completed(&mut self) -> u64 {
        while let Some(cqe) = self.client_cq.next() {
            match cqe {
                Cqe::Completed(_) => self.client_cqes = self.client_cqes.wrapping_add(1),
                Cqe::Failed(_) => self.client_failed = true,
            }
        }
        let each = self.template().cqes(Cq::Client).max(1) as u64;
        self.first.saturating_add(self.client_cqes / each)
    }

    /// Has the device tell when a slot's sends complete, or fail: what [`completed`](Self::completed) would see. Software that
    /// sleeps calls it last.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn watch<D: Device>(&mut self, device: &mut D) -> Result<(), SetUpError<D::Error>> {
        let set = self.alarm.set(device, self.client_cq.consumed());
        set.map_err(SetUpError::device("an alarm of a session"))
    }

    /// Whether an event is of this session: of its sends, or a queue pair of its that failed.
    pub fn rings(&mut self, event: DeviceEvent) -> bool {
        let failed = matches!(
            event,
            DeviceEvent::QpError(qpn) if qpn == self.worker || qpn == self.client
        );
        failed || self.alarm.rings(event)
    }

    /// Requests that came since the start; reads CQEs. The slots from [`completed`](Self::completed) on have one each.
    pub fn received(&mut self) -> u64 {
        while let Some(cqe) = self.receive_cq.next() {
            if let Cqe::Completed(_) = cqe {
                self.received = self.received.wrapping_add(1);
            }
        }
        self.received
    }

    /// Whether a send of the client's queue pair failed: the session is over.
    #[must_use]
    pub const fn client_failed(&self) -> bool {
        self.client_failed
    }

    /// Octets that the request of slot `n` had, as its CQE says; `None` if that is no longer there or an error's.
    pub(crate) fn received_len(&self, n: u64) -> Option<u32> {
        let place = (n % (1 << LOG_REQUESTS)) * Cqe::LEN as u64;
        let mut octets = [0; Cqe::LEN];
        self.cqes.read(place, &mut octets).ok()?;
        match Cqe::decode(&octets).ok()? {
            Cqe::Completed(cqe) => Some(cqe.byte_count),
            Cqe::Failed(_) => None,
        }
    }

    /// Octets of its memory that nobody looks at, under a key of other keys: the first one made.
    pub(crate) fn pad(&self) -> (Mkey, u64) {
        (
            self.keys.first().copied().unwrap_or_default(),
            self.layout.pad,
        )
    }

    /// Where an address of the rings lies in the session's memory.
    pub(crate) const fn offset(address: u64) -> u64 {
        address.wrapping_sub(RINGS_START).wrapping_add(KEYED_AT)
    }

    /// Lets the rest of slot `n`, which rang for software, run: data and completion as they are in its WQEs. Gives its
    /// receive WQE of the loopback queue pair back. Returns false, with nothing done, if the master has no room for both.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn resume<D: Device>(
        &mut self,
        device: &mut D,
        master: &mut Master,
        n: u64,
    ) -> Result<bool, SetUpError<D::Error>> {
        let end = |queue, by| {
            let placement = self.placement();
            let template = self.template();
            let bound = bound_of(template, by)?;
            let end = placement.end(template, queue, bound, n)?;
            Some(Placement::index(end))
        };
        let (Some(client), Some(worker)) = (end(Queue::Client, "GO"), end(Queue::Worker, "PW"))
        else {
            return Ok(false);
        };
        if !master.enable(device, self.client, client)? {
            return Ok(false);
        }
        self.bells = self.bells.wrapping_add(1);
        self.write_bells()?;
        // The second of two finds room: the queue has twice what counts as full.
        master.enable(device, self.worker, worker)
    }

    /// Ends the session: queue pairs, keys, queues and memory.
    ///
    /// # Errors
    /// [`SetUpError`] for what could not be ended; the rest is tried all the same.
    pub fn destroy<D: Device>(self, device: &mut D) -> Result<(), SetUpError<D::Error>> {
        let mut first = Ok(());
        let mut note = |result: Result<(), D::Error>, what| {
            if let Err(source) = result
                && first.is_ok()
            {
                first = Err(SetUpError::Device { what, source });
            }
        };
        for qpn in [self.worker, self.client] {
            note(device.destroy_qp(qpn), "ending a queue pair");
        }
        for cqn in self.cqns {
            note(device.destroy_cq(cqn), "ending a completion queue");
        }
        for key in self.keys.into_iter().rev() {
            note(device.destroy_key(key), "ending a key");
        }
        for memory in self.memories {
            note(device.unregister(memory), "forgetting memory");
        }
        first
    }
}

fn place(
    layout: &MemoryLayout,
    queues: &Queues,
    (worker, client): (Qpn, Qpn),
    keys: [Mkey; Key::ALL.len()],
    sizes: Sizes,
    session: u16,
) -> Placement {
    let [receive_cq, client_cq, worker_cq] = queues.places;
    Placement {
        session,
        worker: QueuePlace {
            qpn: worker,
            address: address(layout.worker_ring),
            log_size: layout.logs.worker,
        },
        client: QueuePlace {
            qpn: client,
            address: address(KEYED_AT),
            log_size: layout.logs.client,
        },
        receive_cq,
        client_cq,
        worker_cq,
        scratch: address(layout.scratch),
        sink: address(layout.sink),
        mailbox: address(layout.mailbox),
        keys,
        sizes,
        restart: Restart::default(),
    }
}

fn sizes(target: &Target, plan: &SessionPlan) -> Sizes {
    Sizes {
        table_base: target.pool.table_base.0,
        table_count: target.pool.table_count,
        own_base: plan.own_base.0,
        own_count: plan.own_count,
        ring: target.pool.ring,
    }
}

fn completion_queues<D: Device>(device: &mut D) -> Result<Queues, SetUpError<D::Error>> {
    let doorbells = 3 * CQ_LEN;
    let region = Region::anonymous(doorbells + 3 * 64, &PageOptions::default())?;
    let memory = device
        .register(&region)
        .map_err(SetUpError::device("memory of completion queues"))?;
    let mut make = |number: u64| {
        let at = Place {
            memory,
            offset: number * CQ_LEN,
        };
        let doorbell = Place {
            memory,
            offset: doorbells + number * 64,
        };
        let log_size = if number == 0 { LOG_REQUESTS } else { LOG_CQ };
        let cqn = create_cq(device, &region, at, doorbell, log_size)?;
        Ok::<_, SetUpError<D::Error>>(CqPlace {
            cqn,
            address: at.offset,
            log_size,
        })
    };
    Ok(Queues {
        places: [make(0)?, make(1)?, make(2)?],
        region,
        memory,
    })
}

fn worker_qp<D: Device>(
    device: &mut D,
    target: &Target,
    area: &Area,
    layout: &MemoryLayout,
    cqn: Cqn,
) -> Result<Qpn, SetUpError<D::Error>> {
    let attributes = QpAttributes {
        domain: target.loopback,
        send_cq: cqn,
        receive_cq: target.punt_cqn,
        send_ring: area.place(layout.worker_ring),
        log_send: layout.logs.worker,
        receive_ring: area.place(layout.bells),
        log_receive: LOG_BELLS,
        log_stride: LOG_BELL_STRIDE,
        doorbell: area.place(layout.worker_doorbell),
        roles: Roles {
            master: true,
            managed_send: true,
            managed_receive: false,
        },
        access: PeerAccess::ALL,
        // Nothing that it moves is longer than a record.
        log_message: 12,
        rnr_retry: RNR_RETRY,
        max_reads: MAX_READS,
    };
    device
        .create_qp(&attributes)
        .map_err(SetUpError::device("a loopback queue pair"))
}

fn client_qp<D: Device>(
    device: &mut D,
    target: &Target,
    plan: &SessionPlan,
    area: &Area,
    layout: &MemoryLayout,
    queues: &Queues,
) -> Result<Qpn, SetUpError<D::Error>> {
    let [receive_cq, client_cq, _] = queues.places;
    let block = target.pool.block_size.0;
    let log_message = u8::try_from(block.max(1).next_power_of_two().trailing_zeros()).unwrap_or(31);
    let attributes = QpAttributes {
        domain: target.client,
        send_cq: client_cq.cqn,
        receive_cq: receive_cq.cqn,
        send_ring: area.place(KEYED_AT),
        log_send: layout.logs.client,
        receive_ring: area.place(layout.receives),
        log_receive: layout.logs.receive,
        log_stride: LOG_RECEIVE_STRIDE,
        doorbell: area.place(layout.client_doorbell),
        roles: Roles {
            managed_send: true,
            ..Roles::default()
        },
        access: plan.client_access,
        // An entry whose Data Length is spoilt is a local error, not a leak.
        log_message,
        rnr_retry: RNR_RETRY,
        max_reads: MAX_READS,
    };
    device
        .create_qp(&attributes)
        .map_err(SetUpError::device("a client's queue pair"))
}

/// Makes a session's keys.
struct Keys<'a, D> {
    device: &'a mut D,
    target: &'a Target,
    profile: &'a Profile,
    plan: &'a SessionPlan,
    area: &'a Area,
    layout: &'a MemoryLayout,
    queues: &'a Queues,
    worker: Qpn,
    made: Vec<Mkey>,
}

impl<D: Device> Keys<'_, D> {
    /// Each key, in the order of [`Key::ALL`].
    fn create(&mut self) -> Result<[Mkey; Key::ALL.len()], SetUpError<D::Error>> {
        let mut keys = [Mkey::default(); Key::ALL.len()];
        for (slot, key) in keys.iter_mut().zip(Key::ALL) {
            *slot = self.key(key)?;
        }
        Ok(keys)
    }

    fn key(&mut self, key: Key) -> Result<Mkey, SetUpError<D::Error>> {
        let shared = match key {
            Key::Header => self.target.tables.header,
            Key::Generation => self.target.tables.generation,
            Key::NextGeneration => self.target.tables.next_generation,
            Key::Completed => self.target.tables.completed,
            Key::RecordsWithData => self.profile.records.with_data,
            Key::RecordsWithout => self.profile.records.without,
            Key::Punt => self.profile.records.punt,
            Key::Received => self.profile.records.received,
            Key::Table => self.target.table,
            Key::Sequence => self.target.sequence,
            Key::BlockOffset => self.target.block_offset,
            Key::Pool => self.target.blocks,
            // The client brings its own.
            Key::Client => Mkey::default(),
            Key::Laps | Key::Pages | Key::Reset => {
                let keys = self.profile.perpetual.as_ref();
                return Ok(keys.map_or_else(Mkey::default, |keys| match key {
                    Key::Laps => keys.laps,
                    Key::Pages => keys.pages,
                    _ => keys.reset,
                }));
            }
            Key::Rings | Key::RingsClient | Key::Cqes | Key::Counters | Key::Doorbell => {
                return self.own(key);
            }
            Key::OwnWord | Key::OwnBinding => {
                let sizes = sizes(self.target, self.plan);
                let pad = (self.area.base, self.layout.pad);
                let made = entries(self.device, self.target, &sizes, pad, key)?;
                self.made.extend(made);
                made.unwrap_or_default()
            }
        };
        Ok(shared)
    }

    fn made(&mut self, key: Mkey) -> Mkey {
        self.made.push(key);
        key
    }

    fn own(&mut self, key: Key) -> Result<Mkey, SetUpError<D::Error>> {
        let rights = key.rights();
        let loopback = self.target.loopback;
        let rings = Layout::Plain(self.area.place(KEYED_AT));
        let rings_len = self.layout.keyed.saturating_sub(KEYED_AT);
        let counters = [
            Klm {
                len: 128,
                mkey: self.target.meta,
                address: self.target.pool.counters_at,
            },
            Klm {
                len: 64,
                mkey: self.area.base,
                address: self.layout.dummy,
            },
        ];
        let attributes = match key {
            Key::Rings => KeyAttributes {
                qpn: Some(self.worker),
                ..KeyAttributes::new(loopback, rights, RINGS_START, rings_len, rings)
            },
            Key::RingsClient => {
                KeyAttributes::new(self.target.client, rights, RINGS_START, rings_len, rings)
            }
            Key::Doorbell => {
                let at = self.layout.client_doorbell + QpDoorbell::RECEIVE_AT as u64;
                let layout = Layout::Plain(self.area.place(at));
                KeyAttributes {
                    qpn: Some(self.worker),
                    ..KeyAttributes::new(loopback, rights, 0, 4, layout)
                }
            }
            Key::Counters => {
                KeyAttributes::new(loopback, rights, 0, DUMMY_AT + 64, Layout::List(&counters))
            }
            _ => {
                let cqes = Layout::Plain(Place {
                    memory: self.queues.memory,
                    offset: 0,
                });
                KeyAttributes::new(loopback, rights, 0, 3 * CQ_LEN, cqes)
            }
        };
        let made = create(self.device, "a session's key", &attributes)?;
        Ok(self.made(made))
    }
}

/// A view of a session's own entries: their first word, or the rest. Without handles no key: whoever looks under it fails.
pub(crate) fn entries<D: Device>(
    device: &mut D,
    target: &Target,
    sizes: &Sizes,
    pad: (Mkey, u64),
    key: Key,
) -> Result<Option<Mkey>, SetUpError<D::Error>> {
    if sizes.own_count == 0 {
        return Ok(None);
    }
    let (skip, len) = match key {
        Key::OwnWord => (0, 4),
        _ => (4, 12),
    };
    let size = |value| SetUpError::Size {
        what: "a session's handles",
        value,
    };
    let last = sizes.own_base.checked_add(sizes.own_count);
    let row = sizes.own_base.checked_sub(sizes.table_base);
    let table_end = sizes.table_base.checked_add(sizes.table_count);
    let (Some(row), true) = (row, last.is_some() && last <= table_end) else {
        return Err(size(sizes.own_base));
    };
    let (start, _) = key.range(sizes).ok_or_else(|| size(sizes.own_base))?;
    let view = View {
        domain: target.loopback,
        rights: key.rights(),
        start,
        rows: sizes.own_count,
        base: target.meta,
        at: target.pool.table_at + row * 16 + skip,
        stride: 16,
        len,
        pad,
    };
    view.create(device, "a session's entries").map(Some)
}

/// The end of what a `SEND_EN` of a template enables, if it has one of this name.
pub(crate) fn bound_of(template: &Template, name: &str) -> Option<Bound> {
    let found = template.enables().find(|(one, ..)| *one == name);
    found.map(|(_, _, bound)| bound)
}
